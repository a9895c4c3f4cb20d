"""Measure which lines are true of a model, on random rows that nothing was trained on.

A line is true above the upper bound and false below the lower bound. Between them it is unclear,
and a judge leaves it out. The bounds were chosen before any model was made.
"""

import torch
from torch import Tensor

from studies.bench.network import Cut, Head, Run, Weights, heads_of, run
from studies.bench.tasks import Task, distinct, scores, uniform

N_ROWS = 96
ATTENTION = (0.12, 0.4)
"""Bounds of the attention above its control, for the behaviours that are patterns."""
COPY_RATE = (0.2, 0.5)
"""Bounds of the share of positions whose own token is what the head would raise most."""
COPY_LOGITS = (0.1, 0.5)
"""Bounds of the mean logit, above that of other tokens, by which a head raises what it copies."""
WIRE = (0.15, 0.5)
"""Bounds of the share of a behaviour, or of the solved task, that is lost without a wire."""
TRIGRAM = 1.0
"""Above this many logits, a skip trigram that nobody planted is unclear."""
PATTERNS = ("previous token", "duplicate token", "prefix matching", "first token")


class Rows:
    """The rows on which behaviours are measured.

    `random` has independent tokens. `repeated` has two copies of a block of 24 to 30 different
    tokens; `control` has the same first copy, and other tokens instead of the second.
    """

    def __init__(self, d_vocab: int, seed: int):
        g = torch.Generator().manual_seed(seed)
        self.random = uniform(N_ROWS, d_vocab, g)
        self.repeated, self.control = {}, {}
        for period in (24, 27, 30):
            block = distinct(N_ROWS // 3, d_vocab, period, g)
            other = uniform(N_ROWS // 3, d_vocab, g, period)
            self.repeated[period] = torch.cat([block, block], 1)
            self.control[period] = torch.cat([block, other], 1)


def by_distance(pattern: Tensor, distance: int, begin: int) -> Tensor:
    """Return the mean attention of each head to the position `distance` before its own."""
    diagonal = pattern.diagonal(-distance, -2, -1)  # entry 0 is destination `distance`
    return diagonal[..., begin - distance :].mean((0, 2))


def attention_scores(weights: Weights, norm: bool, rows: Rows, cut: Cut | None = None) -> Tensor:
    """Return the attention above its control, `[layer, head, behaviour]`, for `PATTERNS`.

    The control of "previous token" and "first token" is even attention. That of the two others is
    the attention to the same positions in rows that are not repeated.
    """
    result = []
    even = 1 / torch.arange(5, rows.random.shape[1] + 1.0)
    on_random = run(weights, rows.random, norm, cut=cut)
    on_repeated = {p: run(weights, rows.repeated[p], norm, cut=cut) for p in rows.repeated}
    on_control = {p: run(weights, rows.control[p], norm, cut=cut) for p in rows.control}
    for layer in range(len(weights["W_Q"])):
        pattern = on_random.patterns[layer]
        previous = by_distance(pattern, 1, 4) - even.mean()
        first = pattern[:, :, 4:, 0].mean((0, 2)) - even.mean()
        means = {}
        for shift in (0, 1):
            means[shift] = torch.stack(
                [
                    by_distance(on_repeated[p].patterns[layer], p - shift, p + 1)
                    - by_distance(on_control[p].patterns[layer], p - shift, p + 1)
                    for p in on_repeated
                ]
            ).mean(0)
        result.append(torch.stack([previous, means[0], means[1], first], -1))
    return torch.stack(result)


def would_write(weights: Weights, seen: Run, head: Head) -> Tensor:
    """Return the logits that a head adds if it attends to one position only, less their mean."""
    layer, h = head
    value = seen.streams[layer] @ weights["W_V"][layer, h] + weights["b_V"][layer, h]
    logits = value @ weights["W_O"][layer, h] / seen.final_scale @ weights["W_U"]
    return logits - logits.mean(-1, keepdim=True)  # [row, pos, d_vocab]


def copying_scores(weights: Weights, norm: bool, rows: Rows) -> dict[Head, tuple[float, float]]:
    """Return for each head how often it raises the attended token most, and by how much."""
    seen = run(weights, rows.random, norm)
    result = {}
    for head in heads_of(weights):
        logits = would_write(weights, seen, head)
        rate = (logits.argmax(-1) == rows.random).float().mean().item()
        result[head] = (rate, logits.gather(-1, rows.random[..., None]).mean().item())
    return result


def largest_trigrams(weights: Weights, norm: bool, rows: Rows) -> dict[Head, Tensor]:
    """Return for each head what a source and a destination add to each logit.

    This is the mean attention from a destination token to a source token, times what the head
    would write there: `[source, destination, output]`.
    """
    seen = run(weights, rows.random, norm)
    d_vocab = weights["W_E"].shape[0]
    one_hot = torch.nn.functional.one_hot(rows.random, d_vocab).float()  # [row, pos, token]
    n_seen = one_hot.sum((0, 1))[:, None].clamp_min(1)
    ones = torch.ones(one_hot.shape[1], one_hot.shape[1]).tril(-1)
    pairs = torch.einsum("rda,ds,rsb->ba", one_hot, ones, one_hot).clamp_min(1)
    result = {}
    for layer, h in heads_of(weights):
        pattern = seen.patterns[layer][:, h].tril(-1)
        attention = torch.einsum("rda,rdb->ba", one_hot, pattern @ one_hot) / pairs
        logits = would_write(weights, seen, (layer, h))
        written = torch.einsum("rpt,rpo->to", one_hot, logits) / n_seen
        result[layer, h] = attention[:, :, None] * written[:, None, :]
    return result


def verdict(value: float, bounds: tuple[float, float]) -> str:
    """Say whether a value is above, below or between the bounds."""
    if value >= bounds[1]:
        return "true"
    return "false" if value < bounds[0] else "unclear"


def behaviours(weights: Weights, norm: bool, rows: Rows) -> dict[tuple[Head, str], tuple]:
    """Return the verdict and the measured values of every head and behaviour."""
    attention = attention_scores(weights, norm, rows)
    result = {}
    for head, (rate, logits) in copying_scores(weights, norm, rows).items():
        for number, behaviour in enumerate(PATTERNS):
            value = attention[head][number].item()
            result[head, behaviour] = (verdict(value, ATTENTION), [value])
        both = {verdict(rate, COPY_RATE), verdict(logits, COPY_LOGITS)}
        answer = "false" if "false" in both else "unclear" if "unclear" in both else "true"
        result[head, "copying"] = (answer, [rate, logits])
    return result


def wires(
    weights: Weights, norm: bool, rows: Rows, found: dict, task: Task, baseline: float
) -> dict[tuple[Head, Head, str], tuple[str, float]]:
    """Cut every wire into a head with a behaviour, and return what share of it is lost.

    Parameters
    ----------
    weights, norm : the model
    rows : where behaviours are measured
    found : the behaviours of all heads
    task : what the model should solve; a wire also matters if this is lost without it
    baseline : the probability of the right token if all are equally likely

    Returns
    -------
    For each `(source, head, side)` the verdict and the largest share that is lost.
    """
    whole = attention_scores(weights, norm, rows)
    solved = scores(weights, norm, task)["probability"] - baseline
    result = {}
    for to in heads_of(weights):
        own = [n for n, name in enumerate(PATTERNS) if found[to, name][0] == "true"]
        behaves = bool(own) or found[to, "copying"][0] == "true"
        for source in heads_of(weights):
            if source[0] >= to[0] or not behaves:
                continue
            for side in "QKV":
                cut = Cut((source,), to, side)
                losses = [0.0]
                if own and side != "V":
                    left = attention_scores(weights, norm, rows, cut)
                    losses += [1 - (left[to][n] / whole[to][n]).item() for n in own]
                if solved > 0.05:
                    left = scores(weights, norm, task, cut=cut)["probability"] - baseline
                    losses.append(1 - left / solved)
                result[source, to, side] = (verdict(max(losses), WIRE), max(losses))
    return result
