"""Exercises of chapter 5, on attention-head superposition and gated blocks."""

import math
from itertools import combinations

import torch
from torch import Tensor

from circuitkit.exercises._check import Result, check
from circuitkit.exercises._exercise import Case, Exercise, Mistake, built, normal, sizes

_PAGE = "05-attention-superposition"
_TASK = f"{_PAGE}#the-task"
_VERDICT = f"{_PAGE}#a-verdict-that-can-fail"
_BLIND = f"{_PAGE}#the-published-check-passes-a-model-that-never-looks"
_TWO = f"{_PAGE}#two-heads-do-any-number"
_GATE = f"{_PAGE}#the-gated-block-and-its-loophole"


# --- 5.1 what must follow ------------------------------------------------------------------------------------------


def _labels_spec(tokens: Tensor, n: int) -> Tensor:
    labels, waiting = [], False
    for token in tokens.tolist():
        if token == 0:
            waiting = True
        if waiting and 1 <= token <= n:
            labels.append(token + n)
            waiting = False
        else:
            labels.append(-1)
    return torch.tensor(labels)


def _labels(tokens, n, *, used="each", needs="before", first=1, last=0, completion=None, free=-1):
    """The labels with one thing wrong."""
    found, waiting, spent = torch.full_like(tokens, free), False, False
    for pos, token in enumerate(tokens.tolist()):
        waiting = token == 0 if needs == "adjacent" and token not in range(1, n + 1) else waiting or token == 0
        if first <= token <= n - last and (waiting or needs == "nothing") and not spent:
            found[pos] = token + n if completion is None else completion(token)
            waiting, spent = used == "never", used == "once"
    return found


def _draw_prompt(generator: torch.Generator, step: int) -> Case:
    n, length = 2 + step // 4, 5 + 2 * step
    tokens, waiting = [2 * n + 1], False
    while len(tokens) < length:
        kind = torch.rand((), generator=generator).item()
        low, high = (0, 0) if kind < 0.2 and not waiting else (1, n) if kind < 0.5 else (n + 1, 2 * n + 1)
        token = int(torch.randint(low, high + 1, (), generator=generator))
        tokens.append(token)
        waiting = waiting or token == 0
        if waiting and 1 <= token <= n:
            tokens.append(token + n)
            waiting = False
    return {"tokens": torch.tensor(tokens[:length]), "n": n}


LABELS = Exercise(
    number="5.1",
    title="what must follow",
    minutes=10,
    difficulty="easy",
    read=_TASK,
    spec=_labels_spec,
    draw=_draw_prompt,
    names=("position",),
    mistakes=(
        Mistake(
            "a source is never used up",
            lambda tokens, n: _labels(tokens, n, used="never"),
            "One source is good for one completion. What has to change when it has been used?",
        ),
        Mistake(
            "no source is needed",
            lambda tokens, n: _labels(tokens, n, needs="nothing"),
            "A destination without a source before it asks for nothing. This is the model that never looks.",
            read=_BLIND,
        ),
        Mistake(
            "the source has to stand directly before the destination",
            lambda tokens, n: _labels(tokens, n, needs="adjacent"),
            "They are called skip-trigrams because anything may stand between source and destination.",
        ),
        Mistake(
            "only the first trigram is found",
            lambda tokens, n: _labels(tokens, n, used="once"),
            "A prompt may hold several trigrams: a new source begins a new one.",
        ),
        Mistake(
            "the label stands at the completion",
            lambda tokens, n: torch.cat([torch.tensor([-1]), _labels(tokens, n)[:-1]]),
            "A label says what follows a position, so it stands where the model has to predict: one place earlier.",
        ),
        Mistake(
            "the label is the destination",
            lambda tokens, n: _labels(tokens, n, completion=lambda token: token),
            "At these places the completion has to follow: another token than the one that is there.",
        ),
        Mistake(
            "the completion is numbered one too high",
            lambda tokens, n: _labels(tokens, n, completion=lambda token: token + n + 1),
            "Destinations are 1 to n and completions n + 1 to 2n. Which completion belongs to destination 1?",
        ),
        Mistake(
            "the completion is numbered one too low",
            lambda tokens, n: _labels(tokens, n, completion=lambda token: token + n - 1),
            "Destinations are 1 to n and completions n + 1 to 2n. Which completion belongs to destination 1?",
        ),
        Mistake(
            "free positions hold 0",
            lambda tokens, n: _labels(tokens, n, free=0),
            "0 would say that the source must follow. Where any token may follow, the label is -1.",
        ),
        Mistake(
            "the last destination is forgotten",
            lambda tokens, n: _labels(tokens, n, last=1),
            "Destinations are 1 to n, both included.",
        ),
        Mistake(
            "the source counts as a destination",
            lambda tokens, n: _labels(tokens, n, first=0),
            "Token 0 is the source; destinations begin with 1.",
        ),
    ),
)


def check_labels(answer) -> Result:
    """Exercise 5.1. `answer(tokens, n)` returns the token that must follow each position, and -1 where any may.

    **Shapes**: `tokens [pos]`, whole numbers: 0 is the source, 1 to `n` the destinations, `n + 1` to `2n` their
    completions, `2n + 1` begins the prompt. A destination that comes after an unused source is completed and uses it.
    """
    return check(LABELS, answer)


# --- 5.2 a verdict that can fail -----------------------------------------------------------------------------------


def _verdict_spec(written: Tensor, residual: Tensor, completion: int, has_source: Tensor) -> Tensor:
    n_heads, rates = written.shape[1], []
    for head in range(n_heads):
        others = [k for k in range(n_heads) if k != head]
        carried, silent = [], []
        for row in range(len(written)):
            outcomes = []
            for count in range(n_heads):
                for kept in combinations(others, count):
                    logits = residual[row] + sum(written[row, k] for k in (head, *kept))
                    outcomes.append(int(logits.argmax()) == completion)
            carried += [all(outcomes)] if has_source[row] else []
            silent += [] if has_source[row] else [not any(outcomes)]
        rates.append([sum(carried) / len(carried), sum(silent) / len(silent)])
    return torch.tensor(rates, dtype=torch.float64)


def _verdict(written, residual, completion, has_source, *, sets="all", rest=1.0, worst=True, kind="strict"):
    """The two rates with one thing wrong."""
    n_heads, rates = written.shape[1], []
    for head in range(n_heads):
        others = [k for k in range(n_heads) if k != head]
        kept = [(head, *some) for count in range(n_heads) for some in combinations(others, count)]
        if sets == "whole":
            kept = [tuple(range(n_heads))]
        elif sets == "alone":
            kept = [(head,)]
        elif sets == "not alone":
            kept = kept[1:]
        elif sets == "not whole":
            kept = kept[:-1]
        elif sets == "without":
            kept = [some for count in range(n_heads + 1) for some in combinations(range(n_heads), count)]
        logits = torch.stack([written[:, list(some)].sum(1) + rest * residual for some in kept])
        hit = logits[..., completion] > 0 if kind == "positive" else logits.argmax(-1) == completion
        always, ever = (hit.all(0), hit.any(0)) if worst else (hit.double().mean(0), hit.double().mean(0))
        carried, fires = always.double()[has_source].mean(), ever.double()[~has_source].mean()
        silent = {"fires": fires, "unsure": 1 - always.double()[~has_source].mean()}.get(kind, 1 - fires)
        if kind == "of all rows":
            carried, silent = (always & has_source).double().mean(), (~ever & ~has_source).double().mean()
        elif kind == "all rows":
            carried, silent = always.double().mean(), 1 - ever.double().mean()
        elif kind == "some set":
            carried = ever.double()[has_source].mean()
        elif kind == "same rows":
            silent = 1 - ever.double()[has_source].mean()
        rates.append(torch.stack([carried, torch.ones(()).double() if kind == "no control" else silent]))
    return torch.stack(rates)


def _draw_rows(generator: torch.Generator, step: int) -> Case:
    n_heads, d_vocab = sizes(generator, step // 5, 2)
    half = 4 + step
    completion = int(torch.randint(d_vocab, (), generator=generator))
    has_source = torch.arange(2 * half) % 2 == 0
    written, residual = 0.7 * normal(generator, 2 * half, n_heads, d_vocab), 0.7 * normal(generator, 2 * half, d_vocab)
    written[has_source, :, completion] += 1.2
    residual[~has_source, completion] -= 1.2
    return {"written": written, "residual": residual, "completion": completion, "has_source": has_source}


VERDICT = Exercise(
    number="5.2",
    title="a verdict that can fail",
    minutes=30,
    difficulty="hard",
    read=_VERDICT,
    spec=_verdict_spec,
    draw=_draw_rows,
    names=("head", "rate"),
    mistakes=(
        Mistake(
            "the residual stream is left out",
            lambda **rows: _verdict(**rows, rest=0.0),
            "The published check judges head outputs alone. The model's logits hold the residual stream, too.",
        ),
        Mistake(
            "no other head is ever removed",
            lambda **rows: _verdict(**rows, sets="whole"),
            "This judges the model as a whole, and every head gets the same rates. The question is about one head.",
        ),
        Mistake(
            "only the set without any other head is tried",
            lambda **rows: _verdict(**rows, sets="alone"),
            "Alone is one of many sets. Two other heads may spoil together what neither spoils by itself.",
        ),
        Mistake(
            "the sets are averaged",
            lambda **rows: _verdict(**rows, worst=False),
            "The completion has to stay whatever set is removed. One failing set is enough to fail a row.",
        ),
        Mistake(
            "there is no negative control",
            lambda **rows: _verdict(**rows, kind="no control"),
            "The second rate is 1 whatever the rows are: so a head that always fires would pass.",
            read=_BLIND,
        ),
        Mistake(
            "a row counts as silent when some set does not predict",
            lambda **rows: _verdict(**rows, kind="unsure"),
            "Silent is the opposite of *ever* predicted, not of *always* predicted: turn 'for every set' around with care.",
        ),
        Mistake(
            "the second rate says how often the head fires",
            lambda **rows: _verdict(**rows, kind="fires"),
            "Both rates should be 1 for a perfect head. What is the share of rows on which it keeps quiet?",
        ),
        Mistake(
            "both rates are divided by the number of all rows",
            lambda **rows: _verdict(**rows, kind="of all rows"),
            "The first rate is a share of the rows with a source, the second of the rows without.",
        ),
        Mistake(
            "rows with and without a source are not told apart",
            lambda **rows: _verdict(**rows, kind="all rows"),
            "What a head should do depends on the source: predict with it, keep quiet without. `has_source` says which.",
        ),
        Mistake(
            "the second rate is taken over the rows with a source",
            lambda **rows: _verdict(**rows, kind="same rows"),
            "Where there is a source the head should not be quiet. Which rows are the control?",
        ),
        Mistake(
            "the first rate asks for some set, not for every set",
            lambda **rows: _verdict(**rows, kind="some set"),
            "Lucky help from other heads would count. The completion has to stay whatever is removed.",
        ),
        Mistake(
            "the set without any other head is not tried",
            lambda **rows: _verdict(**rows, sets="not alone"),
            "All others removed is a set, too. Where does your range begin?",
        ),
        Mistake(
            "the set of all heads is not tried",
            lambda **rows: _verdict(**rows, sets="not whole"),
            "None removed is a set, too. Where does your range end?",
        ),
        Mistake(
            "the head itself is removed, too",
            lambda **rows: _verdict(**rows, sets="without"),
            "Every set has to hold the head that is judged; only the others come and go.",
        ),
        Mistake(
            "a completion counts as predicted when its logit is positive",
            lambda **rows: _verdict(**rows, kind="positive"),
            "Predicted means: above all other tokens. Zero means nothing for a logit.",
        ),
    ),
)


def check_strict_verdict(answer) -> Result:
    """Exercise 5.2. `answer(written, residual, completion, has_source)` returns two rates for each head, `[head, 2]`.

    **Shapes**: `written [row, head, vocab]` is what each head adds to the logits, `residual [row, vocab]` the rest of
    them, `completion` a token, `has_source [row]` true or false. **Rates**: the share of rows with a source on which
    the completion is the top logit with *every* set of other heads removed; and the share of rows without a source on
    which it is the top logit with *none*.
    """
    return check(VERDICT, answer)


# --- 5.3 two heads, any number of trigrams -------------------------------------------------------------------------


def _two_heads_spec(n: int, gain: float, prompt: tuple[int, ...]) -> Tensor:
    written = torch.zeros(2 * n + 2, dtype=torch.float64)
    if 0 in prompt and 1 <= prompt[-1] <= n:
        written[prompt[-1] + n] = gain
    return written


def _run_two_heads(answer, n: int, gain: float, prompt: tuple[int, ...]) -> Tensor | None:
    """What both heads together write at the last position of the prompt."""
    v = 2 * n + 2
    shapes = {"W_Q": (2, v, "d_head"), "W_K": (2, v, "d_head"), "W_V": (2, v, "d_value"), "W_O": (2, "d_value", v)}
    parts = built(answer(n, gain), **shapes)
    if parts is None:
        return None
    W_Q, W_K, W_V, W_O = parts
    tokens, written = list(prompt), torch.zeros(v, dtype=torch.float64)
    for head in range(2):
        attention = (W_K[head][tokens] @ W_Q[head][tokens[-1]]).softmax(0)
        written += attention @ W_V[head][tokens] @ W_O[head]
    return written


def _two(n, gain, *, score=30.0, source=2.0, signs=(1, -1), source_value=0.0, onto=None, shared=False, match=True):
    """The two heads with one thing wrong."""
    v, b = 2 * n + 2, torch.arange(1, n + 1)
    W_Q, W_K, W_V = (torch.zeros(2, v, n, dtype=torch.float64) for _ in range(3))
    W_O = torch.zeros(2, n, v, dtype=torch.float64)
    each = torch.eye(n, dtype=torch.float64)
    W_Q[:, b] = each if match else torch.ones_like(each) / n
    W_K[:, b] = score * (each if match else torch.ones_like(each))
    W_K[1, 0] = source * score
    W_V[:, b] = torch.ones_like(each) / n if shared else each
    W_V[1, 0] = source_value
    for head, sign in enumerate(signs):
        W_O[head][:, b + n if onto is None else onto(b)] = sign * gain * (torch.ones_like(each) if shared else each)
    return W_Q, W_K, W_V, W_O


def _draw_two(generator: torch.Generator, step: int) -> Case:
    n = 2 + step // 4
    b, other = (1 + torch.randperm(n, generator=generator)[:2]).tolist()
    filler = int(torch.randint(n + 1, 2 * n + 1, (), generator=generator))
    start = 2 * n + 1
    prompts = [
        (start, filler, b), (start, 0, b), (start, other, filler, b), (start, 0, other, filler, b),
        (start, 0, b, filler), (start, 0, filler, b, b), (start, b, other, b), (start, other, 0, b),
    ]  # fmt: skip
    return {"n": n, "gain": 4.0 + step % 3, "prompt": prompts[step % len(prompts)]}


TWO_HEADS = Exercise(
    number="5.3",
    title="two heads, any number of trigrams",
    minutes=25,
    difficulty="hard",
    read=_TWO,
    spec=_two_heads_spec,
    draw=_draw_two,
    observe=_run_two_heads,
    tolerance=1e-5,
    names=("written on token",),
    mistakes=(
        Mistake(
            "the heads always cancel",
            lambda n, gain: _two(n, gain, source=0.0),
            "Without a source that is right. With one, one of the two heads has to be somewhere else.",
        ),
        Mistake(
            "there is a guess, source or no source",
            lambda n, gain: _two(n, gain, signs=(1, 0)),
            "This is the model that never looks. Who takes the guess back when there is no source?",
            read=_BLIND,
        ),
        Mistake(
            "the wrong head is led away by the source",
            lambda n, gain: _two(n, gain, signs=(-1, 1)),
            "The completion is pushed down where it should go up: the head that stays is the one that takes back.",
        ),
        Mistake(
            "the heads add up instead of cancelling",
            lambda n, gain: _two(n, gain, signs=(1, 1)),
            "Without a source, what one head writes the other has to write with the opposite sign.",
        ),
        Mistake(
            "the source only draws level with the destination",
            lambda n, gain: _two(n, gain, source=1.0),
            "Half of the attention stays behind and takes back half of the guess. Which key has to score higher?",
        ),
        Mistake(
            "the source has a value",
            lambda n, gain: _two(n, gain, source_value=1.0),
            "A head that looks at the source should find nothing there.",
        ),
        Mistake(
            "all destinations share one value",
            lambda n, gain: _two(n, gain, shared=True),
            "Every completion is written at once: this is d_head = 1. How many directions do n completions need?",
        ),
        Mistake(
            "the destination itself is written",
            lambda n, gain: _two(n, gain, onto=lambda b: b),
            "The OV circuit has to send a destination to its completion, n tokens further on.",
        ),
        Mistake(
            "the completions are numbered one too low",
            lambda n, gain: _two(n, gain, onto=lambda b: b + n - 1),
            "Destination 1 is completed by token n + 1. Does your count of destinations begin with 0 or with 1?",
        ),
        Mistake(
            "the gain is left out",
            lambda n, gain: _two(n, 1.0),
            "The mechanism is right. Something has to be multiplied by `gain`.",
        ),
        Mistake(
            "a destination looks at all destinations",
            lambda n, gain: _two(n, gain, match=False),
            "It mixes in the completions of other destinations in the prompt. Which key should answer which query?",
        ),
        Mistake(
            "the scores are too small for full attention",
            lambda n, gain: _two(n, gain, score=1.0),
            "A score of 1 is only e times as good as a score of 0. How large must it be for a weight below 1e-6?",
        ),
    ),
)


def check_two_heads(answer) -> Result:
    """Exercise 5.3. `answer(n, gain)` returns `W_Q, W_K, W_V, W_O` of two heads that serve `n` skip-trigrams.

    **Shapes**: `W_Q, W_K, W_V [2, vocab, d_head]`, `W_O [2, d_head, vocab]`, any `d_head`, on one-hot tokens numbered as
    in exercise 5.1, `vocab = 2n + 2`. Scores are $q \\cdot k$, not divided; the mask is causal. **Wanted**: at a
    destination with a source anywhere before it the two heads together write `gain` on its completion; everywhere else,
    and on every other token, nothing.
    """
    return check(TWO_HEADS, answer)


# --- 5.4 a gated pattern -------------------------------------------------------------------------------------------


def _gated_spec(pattern: Tensor, x: Tensor, W_GQ: Tensor, W_GK: Tensor, b_GQ: Tensor, b_GK: Tensor) -> Tensor:
    out = torch.zeros_like(pattern)
    for dst in range(len(x)):
        for src in range(len(x)):
            score = float(torch.dot(x[dst] @ W_GQ + b_GQ, x[src] @ W_GK + b_GK))
            out[dst, src] = min(max(score, 0.0), 1.0) * pattern[dst, src]
    return out


def _gated(pattern, x, W_GQ, W_GK, b_GQ, b_GK, *, bias=1.0, swap=False, scale=1.0, opens="clamp", after="product"):
    """The gated pattern with one thing wrong."""
    scores = (x @ W_GQ + bias * b_GQ) @ (x @ W_GK + bias * b_GK).T / scale
    scores = scores.T if swap else scores
    gate = {
        "clamp": scores.clamp(0, 1),
        "sigmoid": scores.sigmoid(),
        "relu": scores.relu(),
        "none": scores,
        "step": (scores > 0).double(),
    }[opens]
    if after == "gate":
        return gate
    if after == "closed":
        return (1 - gate) * pattern
    gated = gate * pattern
    total = gated.sum(-1, keepdim=True)
    return {
        "product": gated,
        "renormalised": gated / total,
        "guarded": torch.where(total > 0, gated / total, 0.0),
        "softmax": gated.softmax(-1),
        "matrix": gate @ pattern,
    }[after]


def _draw_gated(generator: torch.Generator, step: int) -> Case:
    d_gate, *rest = sorted(sizes(generator, step // 2, 3))
    return _gated_case(generator, rest[step % 2], rest[1 - step % 2], d_gate)


def _gated_case(generator: torch.Generator, pos: int, d_model: int, d_gate: int) -> Case:
    scores = normal(generator, pos, pos).masked_fill(torch.ones(pos, pos).triu(1).bool(), -math.inf)
    shrink = (d_model * math.sqrt(d_gate)) ** -0.5
    return {
        "pattern": scores.softmax(-1),
        "x": normal(generator, pos, d_model),
        "W_GQ": shrink * normal(generator, d_model, d_gate),
        "W_GK": shrink * normal(generator, d_model, d_gate),
        "b_GQ": 0.5 + 0.2 * normal(generator, d_gate),
        "b_GK": 0.5 + 0.2 * normal(generator, d_gate),
    }


GATED = Exercise(
    number="5.4",
    title="a gated pattern",
    minutes=10,
    difficulty="easy",
    read=_GATE,
    spec=_gated_spec,
    draw=_draw_gated,
    names=("destination", "source"),
    mistakes=(
        Mistake(
            "the rows are made to sum to 1 again",
            lambda **case: _gated(**case, after="renormalised"),
            "A gate that closes has to make the head write less. Renormalising, or gating before the softmax, gives "
            "the weight to other places instead.",
        ),
        Mistake(
            "the rows are made to sum to 1 again, unless all of a row is shut",
            lambda **case: _gated(**case, after="guarded"),
            "A gate that closes has to make the head write less, not only when all are shut. Nothing is divided here.",
        ),
        Mistake(
            "there is a softmax after the gate",
            lambda **case: _gated(**case, after="softmax"),
            "The pattern has its softmax behind it. A second one opens again what the gate has shut.",
        ),
        Mistake(
            "gate and pattern are multiplied as matrices",
            lambda **case: _gated(**case, after="matrix"),
            "Each pair has its own gate: entry by entry, `*` and not `@`.",
        ),
        Mistake(
            "the gate is all or nothing",
            lambda **case: _gated(**case, opens="step"),
            "Between 0 and 1 a gate is half open: it is the score itself, cut off at both ends.",
        ),
        Mistake(
            "the gate is a sigmoid",
            lambda **case: _gated(**case, opens="sigmoid"),
            "A sigmoid is never quite 0. Which function is exactly 0 below 0, exactly 1 above 1, and straight between?",
        ),
        Mistake(
            "the gate may exceed 1",
            lambda **case: _gated(**case, opens="relu"),
            "Such a gate can amplify. Gates end at 1.",
        ),
        Mistake(
            "the gate is not cut off at 0 and 1",
            lambda **case: _gated(**case, opens="none"),
            "A negative gate turns around what the head writes. Gates lie between 0 and 1.",
        ),
        Mistake(
            "the gate's biases are left out",
            lambda **case: _gated(**case, bias=0.0),
            "The gate's queries and keys have biases of their own.",
        ),
        Mistake(
            "the gate is transposed",
            lambda **case: _gated(**case, swap=True),
            "Rows of the pattern are destinations: the destination asks with W_GQ, the source answers with W_GK.",
        ),
        Mistake(
            "gate scores are divided by sqrt(d_gate)",
            lambda **case: _gated(**case, scale=case["b_GQ"].numel() ** 0.5),
            "That is a habit of attention scores. Look at the formula of the gate once more.",
        ),
        Mistake(
            "this is the gate without the pattern",
            lambda **case: _gated(**case, after="gate"),
            "The gate is right. It multiplies something.",
        ),
        Mistake(
            "the gate is 1 where it should be 0",
            lambda **case: _gated(**case, after="closed"),
            "Gate 1 means open: the pattern is left as it is.",
        ),
    ),
)


def check_gated_pattern(answer) -> Result:
    """Exercise 5.4. `answer(pattern, x, W_GQ, W_GK, b_GQ, b_GK)` returns the gated pattern of one head.

    **Shapes**: `pattern [destination, source]`, `x [pos, d_model]`, `W_GQ` and `W_GK [d_model, d_gate]`, `b_GQ` and
    `b_GK [d_gate]`; the result has the shape of `pattern`.
    """
    return check(GATED, answer)


# --- 5.5 a gate for one pair ---------------------------------------------------------------------------------------


def _pair_spec(W_E: Tensor, query: int, key: int) -> Tensor:
    table = torch.zeros(len(W_E), len(W_E), dtype=torch.float64)
    table[query, key] = 1.0
    return table


def _run_gate(answer, W_E: Tensor, query: int, key: int) -> Tensor | None:
    """The gate between every two tokens, `[query, key]`."""
    d_model = W_E.shape[1]
    parts = built(answer(W_E, query, key), W_GQ=(d_model,), b_GQ=(), W_GK=(d_model,), b_GK=())
    if parts is None:
        return None
    W_GQ, b_GQ, W_GK, b_GK = parts
    return torch.outer(W_E @ W_GQ + b_GQ, W_E @ W_GK + b_GK).clamp(0, 1)


def _solved(W_E, token):
    """Weights and bias that read 1 at one token and 0 at the others."""
    wide = torch.cat([W_E, torch.ones(len(W_E), 1, dtype=W_E.dtype)], 1)
    one = torch.zeros(len(W_E), dtype=W_E.dtype)
    one[token] = 1.0
    solution = torch.linalg.solve(wide, one)
    return solution[:-1], solution[-1]


def _rows(W_E, token):
    """A row of the inverse of the embedding with a column of ones, where a column is needed."""
    inverse = torch.linalg.inv(torch.cat([W_E, torch.ones(len(W_E), 1, dtype=W_E.dtype)], 1))
    return inverse[token, :-1], inverse[token, -1]


def _along(W_E, token, power):
    """The token's own embedding as the direction to read, divided by a power of its length."""
    return W_E[token] / W_E[token].norm() ** power, 0.0


PAIR = Exercise(
    number="5.5",
    title="a gate for one pair",
    minutes=20,
    difficulty="medium",
    read=_GATE,
    spec=_pair_spec,
    draw=lambda generator, step: {
        "W_E": normal(generator, 3 + step, 2 + step),
        "query": int(torch.randint(1 + step // 3, (), generator=generator)),
        "key": 2 + int(torch.randint(1 + step // 3, (), generator=generator)),
    },
    observe=_run_gate,
    tolerance=1e-6,
    names=("query token", "key token"),
    mistakes=(
        Mistake(
            "query and key are exchanged",
            lambda W_E, query, key: (*_solved(W_E, key), *_solved(W_E, query)),
            "The gate opens for the right two tokens in the wrong order. Which comes in through W_GQ?",
        ),
        Mistake(
            "the gate opens for every key",
            lambda W_E, query, key: (*_solved(W_E, query), 0 * W_E[0], 1.0),
            "The query side is right; the key side says 1 to all tokens.",
        ),
        Mistake(
            "the gate opens for every query",
            lambda W_E, query, key: (0 * W_E[0], 1.0, *_solved(W_E, key)),
            "The key side is right; the query side says 1 to all tokens.",
        ),
        Mistake(
            "the biases are left at 0",
            lambda W_E, query, key: (
                torch.linalg.pinv(W_E)[:, query],
                0.0,
                torch.linalg.pinv(W_E)[:, key],
                0.0,
            ),
            "There is one token more than dimensions, so no direction alone is 1 on one token and 0 on all others. A "
            "direction and a bias have one number more.",
        ),
        Mistake(
            "the directions are the embeddings of the two tokens",
            lambda W_E, query, key: (*_along(W_E, query, 0), *_along(W_E, key, 0)),
            "Other tokens have a part in these directions, since embeddings are not orthogonal. Ask for values instead: "
            "1 at one token, 0 at the others.",
        ),
        Mistake(
            "the directions are the embeddings of the two tokens, divided by their squared length",
            lambda W_E, query, key: (*_along(W_E, query, 2), *_along(W_E, key, 2)),
            "The pair itself is right now. Other tokens still have a part in these directions. Ask for values instead: "
            "1 at one token, 0 at the others.",
        ),
        Mistake(
            "rows of the inverse are taken instead of columns",
            lambda W_E, query, key: (*_rows(W_E, query), *_rows(W_E, key)),
            "W_E times the inverse is the identity. To get 1 at one token, which part of the inverse do you multiply by?",
        ),
        Mistake(
            "the gate never opens",
            lambda W_E, query, key: (*_solved(W_E, query), *(-part for part in _solved(W_E, key))),
            "The product is negative where it should be 1, and the clamp makes it 0. One of the two signs is wrong.",
        ),
    ),
)


def check_one_pair_gate(answer) -> Result:
    """Exercise 5.5. `answer(W_E, query, key)` returns `W_GQ, b_GQ, W_GK, b_GK` of a gate that opens for one pair only.

    **Shapes**: `W_E [vocab, d_model]` with `vocab = d_model + 1`, `query` and `key` two tokens; `W_GQ` and `W_GK
    [d_model]`, `b_GQ` and `b_GK` numbers. **Wanted**: the gate, cut off at 0 and 1, is 1 when token `query` looks at
    token `key`, and 0 for every other pair of tokens.
    """
    return check(PAIR, answer)


# --- 5.6 the price of open gates -----------------------------------------------------------------------------------


def _penalty_spec(gates: Tensor, power: float) -> Tensor:
    total, pairs = 0.0, 0
    for dst in range(gates.shape[1]):
        for src in range(dst + 1):
            total += sum(float(gate) ** power for gate in gates[:, dst, src]) ** (1 / power)
            pairs += 1
    return torch.tensor(total / pairs, dtype=torch.float64)


def _joint(gates, power, *, root=True, mean=False):
    """The penalty of each pair."""
    powers = gates**power
    summed = powers.mean(0) if mean else powers.sum(0)
    return summed ** (1 / power) if root else summed


def _over(pairs, diagonal=0):
    """The mean over pairs up to a diagonal."""
    return pairs[torch.ones_like(pairs).tril(diagonal).bool()].mean()


def _draw_gates(generator: torch.Generator, step: int) -> Case:
    n_heads, pos = sizes(generator, step, 2)
    gates = normal(generator, n_heads, pos, pos).clamp(0, 1)
    return {"gates": gates, "power": (0.6, 0.5, 0.8)[step % 3]}


PRICE = Exercise(
    number="5.6",
    title="the price of open gates",
    minutes=10,
    difficulty="easy",
    read=_GATE,
    spec=_penalty_spec,
    draw=_draw_gates,
    mistakes=(
        Mistake(
            "the mean runs over all pairs",
            lambda gates, power: _joint(gates, power).mean(),
            "Half of these pairs lie in the future, where nothing can be read. The post's code counts them, too, and "
            "pays for gates that do nothing.",
        ),
        Mistake(
            "the future counts as zeros in the mean",
            lambda gates, power: _joint(gates, power).tril().mean(),
            "The future is gone from the sum, but the mean still divides by its pairs.",
        ),
        Mistake(
            "the pairs are summed, not averaged",
            lambda gates, power: _joint(gates, power).tril().sum(),
            "A longer prompt would cost more for the same gates.",
        ),
        Mistake(
            "a position's look at itself is left out",
            lambda gates, power: _over(_joint(gates, power), -1),
            "A position may look at itself: the diagonal is causal.",
        ),
        Mistake(
            "the power 1/p is left out",
            lambda gates, power: _over(_joint(gates, power, root=False)),
            "A single gate at 0.5 should cost 0.5, whatever p is. What has to undo the power after the sum?",
        ),
        Mistake(
            "the root is taken of the mean",
            lambda gates, power: _over(_joint(gates, power, root=False)) ** (1 / power),
            "Each pair has its own price. Root first, mean afterwards.",
        ),
        Mistake(
            "the past is left out instead of the future",
            lambda gates, power: _over(_joint(gates, power).T),
            "Rows are destinations. Which triangle is the past of a row, `tril` or `triu`?",
        ),
        Mistake(
            "the heads are averaged, not summed",
            lambda gates, power: _over(_joint(gates, power, mean=True)),
            "One open gate should cost the same however many closed ones stand beside it.",
        ),
        Mistake(
            "the gates are added without a power",
            lambda gates, power: _over(gates.sum(0)),
            "Then one gate at 1 costs as much as two at 0.5, and nothing speaks for one head a pair.",
        ),
        Mistake(
            "each head pays by itself for its pairs",
            lambda gates, power: sum(_over(gate**power) ** (1 / power) for gate in gates),
            "The heads compete at each pair: first the sum over heads, pair by pair, then the mean over pairs.",
        ),
    ),
)


def check_gate_price(answer) -> Result:
    """Exercise 5.6. `answer(gates, power)` returns the mean over causal pairs of $(\\sum_h g_h^p)^{1/p}$.

    **Shapes**: `gates [head, destination, source]`, between 0 and 1, future pairs included; `power` is a number below
    1; the result is one number.
    """
    return check(PRICE, answer)


EXERCISES = (LABELS, VERDICT, TWO_HEADS, GATED, PAIR, PRICE)
