"""Induction: what heads do on rows that repeat, and what a model gains from the repetition.

The last part trains a small model that learns to use the repetition.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from circuitkit.ablation import Run, run
from circuitkit.checks import checked, require_at_least, to_tokens
from circuitkit.effects import Effect
from circuitkit.handmade import bridge_of
from circuitkit.heads import Heads, in_full_precision
from circuitkit.models import stored
from circuitkit.parts import head_names, n_heads
from circuitkit.rows import (
    Repeated,
    after_occurrences,
    default_rows,
    earlier_occurrences,
    repeated_tokens,
    require_repeating,
    second_pass,
    token_losses,
)
from circuitkit.tables import Table
from circuitkit.training import fit

__all__ = [
    "InductionLoss",
    "InductionTraining",
    "Repeated",
    "Survey",
    "induction_loss",
    "losses_by_position",
    "repeated_tokens",
    "scores",
    "stored_survey",
    "stored_zoo",
    "train_induction_model",
]

BEHAVIOURS = ("prefix matching", "previous token", "duplicate token", "copying")
"""The columns of `scores`."""
Names = str | Sequence[str]
Text = str | Sequence[str] | Int[Tensor, "*batch pos"]


# What heads do


@checked
def scores(model: Any, tokens: Repeated | Text | None = None, *, without: Names = ()) -> Table:
    r"""Compute four scores of every head on rows in which tokens recur.

    * prefix matching: mean attention from a token that occurred before to the positions *after* its
      earlier occurrences, 0 to 1;
    * previous token: mean attention to the previous position, 0 to 1;
    * duplicate token: mean attention from a token that occurred before to its earlier occurrences,
      0 to 1;
    * copying: whether the head raises the logits of the tokens to which it attends, -1 to 1.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : rows from `repeated_tokens`, a text, or token ids `[batch, pos]`. If it is None: eight
        rows of a random span of 64 tokens that comes twice, behind the tokenizer's opening token if
        there is one (a shorter span if the context or the vocabulary is too small)
    without : parts, wires and paths that are cut, see `circuitkit.run`

    Returns
    -------
    A `Table` with the axes "head" and "behaviour".

    Raises
    ------
    ValueError : if no token recurs, and for a model without attention heads

    Notes
    -----
    With the pattern $A$ and the positions $P_t$ before $t$ that hold the same token, prefix matching
    is the mean of $\sum_{p \in P_t} A_{t,\,p+1}$ over all $t$ whose $P_t$ is not empty, duplicate
    token is the mean of $\sum_{p \in P_t} A_{t,\,p}$, and previous token is the mean of
    $A_{t,\,t-1}$ over $t \ge 1$. Copying is $\sum_i \mathrm{Re}\,\lambda_i / \sum_i |\lambda_i|$ over
    the eigenvalues of the map from the token at a source position to the logits that the head
    writes if it attends only there, $L_{ij} = v_i W_O W_U[:, x_j]$. Here $i$ and $j$ are all
    positions $p + 1$ of all rows together, and values and unembedding vectors are centred over
    them. The rows of $W_U$ are multiplied by the gain of the final norm, whose divisor is left out.
    Values are the model's own, so norms, MLPs and earlier heads count; cutting a wire into the
    values of a head changes none of its scores.

    Error: float32 rounding, and the sampling error of a mean over about 500 positions. Source:
    Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching, copying, which
    is normalised differently there); Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits" (eigenvalues).

    Examples
    --------
    >>> from circuitkit.handmade import build_induction_model
    >>> table = scores(build_induction_model(20, 16))
    >>> round(table["L1H0", "prefix matching"], 3)
    1.0
    """
    if tokens is None:
        tokens = default_rows(model)
    tokens = to_tokens(model, tokens.tokens if isinstance(tokens, Repeated) else tokens)
    same, after = earlier_occurrences(tokens), after_occurrences(tokens)
    if not bool(same.any()):
        raise ValueError(
            "No token recurs in these rows, so there is nothing to match. "
            "Use repeated_tokens(...), or longer text."
        )
    done = run(model, tokens, without=without)
    columns = []
    for layer in range(len(model.blocks)):
        if n_heads(model, layer):
            pattern = done.recording.patterns(layer)  # [batch, head, dst, src]
            copying = copying_scores(done, layer, sources=after.any(1))
            columns.append(torch.stack([*attention_scores(pattern, same, after), copying], dim=1))
    if not columns:
        raise ValueError(
            "This model has no attention heads, so there is nothing to score. Give a model with "
            "attention layers, such as load_model('two-layer')."
        )
    axes = {"head": tuple(head_names(model)), "behaviour": BEHAVIOURS}
    return Table(torch.cat(columns).cpu(), axes, "score")


def attention_scores(
    pattern: Float[Tensor, "batch head dst src"], same: Tensor, after: Tensor
) -> list[Float[Tensor, " head"]]:
    """Compute prefix matching, previous token and duplicate token of the heads of a layer.

    `same` and `after` mark the earlier occurrences of each destination's token, and the positions
    after them, `[batch, dst, src]`.
    """
    n_recurring = same.any(-1).sum()
    prefix_matching = torch.einsum("bhds,bds->h", pattern, after.to(pattern)) / n_recurring
    duplicate_token = torch.einsum("bhds,bds->h", pattern, same.to(pattern)) / n_recurring
    previous_token = pattern.diagonal(-1, -2, -1).mean((0, 2))
    return [prefix_matching, previous_token, duplicate_token]


def copying_scores(done: Run, layer: int, sources: Tensor) -> Float[Tensor, " head"]:
    """Compute how far each head of a layer raises the logits of the tokens at some sources.

    The map from the token at each source to the logits of the tokens there has as many rows as
    there are sources, but its rank is at most d_head. Its eigenvalues other than 0 are those of the
    `[d_head, d_head]` matrix that is computed here.
    """
    attention = done.model.blocks[layer].attn
    W_O = in_full_precision(attention.W_O)  # [head, d_head, d_model]
    value = in_full_precision(done.recording[f"blocks.{layer}.attn.hook_v"][sources])
    value = value.reshape(len(value), -1, W_O.shape[1]).transpose(0, 1)  # [group, source, d_head]
    value = value.repeat_interleave(len(W_O) // len(value), dim=0)  # [head, source, d_head]
    norm = done.recording.final_norm()
    gain = 1 if norm is None else in_full_precision(norm.gain)[:, None]
    unembed = gain * in_full_precision(done.model.W_U)[:, done.tokens[sources]]  # [d_model, source]
    # with centred unembedding vectors, what all values have in common is multiplied by zero
    unembed = unembed - unembed.mean(1, keepdim=True)
    eigenvalues = torch.linalg.eigvals(W_O @ unembed @ value)
    size = eigenvalues.abs().sum(-1)
    return torch.where(size > 0, eigenvalues.real.sum(-1) / size.clamp_min(1e-30), 0.0)


# What a model gains from the repetition


class InductionLoss(NamedTuple):
    """Loss on random tokens that come twice, in nats for each token.

    Parameters
    ----------
    first : mean loss on the first pass over the span, which nothing predicts
    second : mean loss on the second pass
    difference : `second - first`, negative if the model uses the first pass
    accuracy : the share of tokens of the second pass that have the largest logit

    Notes
    -----
    Source: see `induction_loss`.
    """

    first: float
    second: float
    difference: float
    accuracy: float


@checked
def induction_loss(
    model: Any, rows: Repeated | None = None, *, without: Names = ()
) -> InductionLoss:
    """Compute the loss on the second pass over a random span, and compare it with the first.

    Both passes leave out their first token, which nothing predicts.

    Parameters
    ----------
    model : a `TransformerBridge`
    rows : rows from `repeated_tokens`. If it is None: eight rows of a random span of 64 tokens that
        comes twice, behind the tokenizer's opening token if there is one (a shorter span if the
        context or the vocabulary is too small)
    without : parts, wires and paths that are cut, see `circuitkit.run`

    Raises
    ------
    ValueError : if the span of `rows` does not come twice, or has fewer than two tokens

    Notes
    -----
    Error: float32 rounding, and the sampling error of the rows. Source: Olsson et al. 2022,
    "In-context Learning and Induction Heads"; `evals.induction_loss` of transformer-lens measures
    the second pass only.

    Examples
    --------
    >>> from circuitkit.handmade import build_induction_model
    >>> result = induction_loss(build_induction_model(20, 16))
    >>> round(result.second, 3), result.accuracy
    (0.0, 1.0)
    """
    rows = default_rows(model) if rows is None else rows
    require_repeating(rows)
    logits = run(model, to_tokens(model, rows.tokens), without=without).logits
    span = slice(rows.start, rows.start + rows.period)
    first = float(token_losses(logits[:, span], rows.tokens[:, span]).mean())
    second, accuracy = (float(values.mean()) for values in second_pass(logits, rows))
    return InductionLoss(first, second, second - first, accuracy)


@checked
def losses_by_position(
    model: Any, tokens: Text, *, without: Names = ()
) -> Float[Tensor, "batch next"]:
    """Compute the loss of predicting each next token, in nats.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, or token ids `[batch, pos]`
    without : parts, wires and paths that are cut, see `circuitkit.run`

    Returns
    -------
    Losses `[batch, pos - 1]`, `-log softmax(logits[t])[tokens[t + 1]]`: entry `t` belongs to the
    token at position `t + 1`.

    Notes
    -----
    Error: float32 rounding. Source: the usual cross-entropy.

    Examples
    --------
    >>> from circuitkit.handmade import build_induction_model
    >>> losses_by_position(build_induction_model(5, 8), torch.tensor([[3, 1, 4, 3, 1]])).shape
    torch.Size([1, 4])
    """
    tokens = to_tokens(model, tokens)
    return token_losses(run(model, tokens, without=without).logits, tokens)


# Stored results


@dataclass(frozen=True, eq=False)
class Survey:
    """Scores of all heads, and the induction loss without three groups of heads.

    Parameters
    ----------
    scores : the table of `scores` on the default rows
    groups : names of heads, under `"induction"`, `"previous token"` and `"random"`
    losses : the induction loss, under `"nothing"` of the whole model, under the name of a group of
        the model without that group
    provenance : where the weights came from
    heads : for each method of attribution, an estimate of what ablating each head costs `[head]`, in
        the order of the scores
    seconds : the processor time of each method of attribution
    effects : results of `circuitkit.effect`, without the names of the random sets
    more : other results of the same study, by name

    Notes
    -----
    Source: this book; see `stored_survey`.
    """

    scores: Table
    groups: dict[str, tuple[str, ...]]
    losses: dict[str, InductionLoss]
    provenance: dict[str, Any]
    heads: dict[str, Float[Tensor, " head"]]
    seconds: dict[str, float]
    effects: dict[str, Effect]
    more: dict[str, Any]


@functools.cache
def stored_survey(name: str = "smollm2-135m") -> Survey:
    """Load the survey of a model whose weights do not ship with the book.

    Parameters
    ----------
    name : `"smollm2-135m"`

    Raises
    ------
    ValueError : if no survey of this name is stored

    Notes
    -----
    Source: `studies/edition-2/study/real_induction.py` and `real_circuit.py`, which computed it.

    Examples
    --------
    >>> stored_survey().provenance["model"]
    'SmolLM2-135M-Instruct'
    """
    data = stored("induction", f"{name}.json")
    columns = [data["scores"][behaviour.replace(" ", "_")] for behaviour in BEHAVIOURS]
    axes = {"head": tuple(data["names"]), "behaviour": BEHAVIOURS}
    effects = {}
    for key, entry in data["effects"].items():
        values = torch.tensor(entry["values"])
        effects[key] = Effect(entry["done"], entry["measure"], (tuple(entry["cut"]),), values)
    return Survey(
        scores=Table(torch.tensor(columns).T, axes, "score"),
        groups={group: tuple(names) for group, names in data["groups"].items()},
        losses={group: InductionLoss(*values) for group, values in data["losses"].items()},
        provenance=data["provenance"],
        heads={method: torch.tensor(entry["values"]) for method, entry in data["heads"].items()},
        seconds={method: entry["seconds"] for method, entry in data["heads"].items()},
        effects=effects,
        more=data["more"],
    )


def stored_zoo() -> list[dict[str, Any]]:
    """Load the results of sixteen small models, eight seeds on each of two tasks.

    Returns
    -------
    For each model: its accuracy in every tenth step of training (`"curve"`), that of the trained
    model (`"whole"`), that with all wires of a kind between the layers replaced by their mean
    (`"Q"`, `"K"`, `"V"`), and that with one wire replaced, under the name of the wire.

    Notes
    -----
    Source: `studies/edition-2/study/zoo.py`, which trained them.

    Examples
    --------
    >>> sorted({entry["task"] for entry in stored_zoo()})
    ['different', 'recurring']
    """
    return stored("induction", "zoo.jsonl")


# A model that learns induction

D_CONTENT = 64
"""Stream dimensions that heads read and write."""
D_POSITION = 16
"""Stream dimensions that hold the position, which queries and keys read and nothing writes."""
D_HEAD = 32


@dataclass(frozen=True, eq=False)
class InductionTraining:
    """A finished training run. Curves have one entry for each step, from the batch of that step.

    Parameters
    ----------
    model : the trained `TransformerBridge`, attention-only, without norms and biases
    names : names of its heads, the columns of the last two curves
    loss : mean loss in nats on the tokens that the row determines `[step]`
    accuracy : the share of these tokens that are predicted `[step]`
    previous_token : mean attention to the previous position `[step, head]`
    prefix_matching : mean attention to positions after earlier occurrences `[step, head]`

    Notes
    -----
    Source: see `train_induction_model`.
    """

    model: Any
    names: tuple[str, ...]
    loss: Float[Tensor, " step"]
    accuracy: Float[Tensor, " step"]
    previous_token: Float[Tensor, "step head"]
    prefix_matching: Float[Tensor, "step head"]

    def onset(self, accuracy: float = 0.5) -> int | None:
        """Return the first step with at least this accuracy, or None if there is none."""
        reached = (self.accuracy >= accuracy).nonzero()
        return int(reached[0]) if len(reached) else None


@checked
def train_induction_model(
    n_layers: int = 2,
    *,
    n_heads: int = 1,
    d_vocab: int = 64,
    n_ctx: int = 48,
    batch: int = 64,
    steps: int = 300,
    learning_rate: float = 5e-3,
    seed: int = 0,
) -> InductionTraining:
    """Train an attention-only model to continue repeated random tokens.

    Each row repeats a random span of `n_ctx / 4` to `n_ctx / 2` different tokens. Only tokens that
    the row so far determines are scored. Positions are fixed sinusoids, which queries and keys read
    and nothing writes. AdamW trains with a warm-up over 20 steps, a linear decay over the last 30%
    of steps, and gradients clipped at norm 1.

    Parameters
    ----------
    n_layers, n_heads : number of layers, and of heads in each layer
    d_vocab, n_ctx : numbers of tokens and of positions
    batch, steps, learning_rate : of the training
    seed : of the initial weights; the rows are drawn with `seed + 1`

    Returns
    -------
    An `InductionTraining` with the model and its curves.

    Raises
    ------
    ValueError : if the context is too short for a span, or the vocabulary too small for one

    Notes
    -----
    Error: equal seeds give equal runs on one machine. Training is in float64, because it amplifies
    rounding. Source: the task of Olsson et al. 2022, "In-context Learning and Induction Heads".

    Examples
    --------
    >>> training = train_induction_model(1, steps=2, d_vocab=8, n_ctx=8, batch=4)
    >>> training.names, training.loss.shape
    (('L0H0',), torch.Size([2]))
    """
    require_at_least(1, n_layers=n_layers, n_heads=n_heads, batch=batch)
    if n_ctx < 8 or d_vocab < n_ctx // 2:
        raise ValueError(
            f"n_ctx={n_ctx} and d_vocab={d_vocab} do not fit: n_ctx must be at least 8, and d_vocab "
            "at least n_ctx / 2, because a span has no token twice."
        )
    net = InductionNet(n_layers, n_heads, d_vocab, n_ctx, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    curves = []

    def loss_of_new_rows(step: int) -> Tensor:
        rows = task_rows(d_vocab, n_ctx, batch, (n_ctx // 4, n_ctx // 2), generator)
        loss, measures = loss_and_measures(net, rows)
        curves.append(measures)
        return loss

    def rate(step: int) -> float:
        return learning_rate * min(1.0, (step + 1) / 20, (steps - step) / (0.3 * steps))

    adamw = functools.partial(torch.optim.AdamW, betas=(0.9, 0.98), weight_decay=0.01)
    losses = fit(
        net.parameters(),
        loss_of_new_rows,
        steps,
        learning_rate=rate,
        optimizer=adamw,
        clip_norm=1.0,
    )
    names = tuple(f"L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads))
    measures = [torch.stack(column) for column in zip(*curves, strict=True)]
    return InductionTraining(net.to_bridge(), names, losses, *measures)


def task_rows(
    d_vocab: int, n_pos: int, batch: int, periods: tuple[int, int], generator: torch.Generator
) -> Int[Tensor, "batch pos"]:
    """Draw rows that repeat a span of different tokens, each with its own random period.

    If the period were fixed, one head could attend a fixed number of positions back; if a token
    could come twice in a span, it would have two right continuations.
    """
    # equal random numbers keep their order, so every processor draws the same rows
    spans = torch.rand(batch, d_vocab, generator=generator).argsort(dim=1, stable=True)
    period = torch.randint(periods[0], periods[1] + 1, (batch, 1), generator=generator)
    return spans.gather(1, torch.arange(n_pos) % period)


def loss_and_measures(net: "InductionNet", rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Compute the loss, and accuracy, previous token and prefix matching of every head."""
    seen, following = rows[:, :-1], rows[:, 1:]
    logits, patterns = net(seen)
    is_determined = earlier_occurrences(seen).any(-1)
    targets = following.masked_fill(~is_determined, -100)  # cross_entropy leaves out -100
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    with torch.no_grad():
        after = after_occurrences(seen).to(patterns)
        prefix_matching = torch.einsum("bhds,bds->h", patterns, after) / is_determined.sum()
        previous_token = patterns.diagonal(-1, -2, -1).mean((0, 2))
        accuracy = (logits.argmax(-1) == following)[is_determined].double().mean()
    return loss, (accuracy, previous_token, prefix_matching)


class InductionNet(nn.Module):
    """Attention layers without norms and biases, in float64, whose positions only Q and K read."""

    def __init__(self, n_layers: int, n_heads: int, d_vocab: int, n_ctx: int, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int, std: float) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64) * std

        def by_head(columns: Tensor) -> nn.Parameter:  # [d, head * d_head] -> [head, d, d_head]
            return nn.Parameter(columns.unflatten(1, (n_heads, -1)).transpose(0, 1).contiguous())

        width = n_heads * D_HEAD
        self.W_pos = sinusoids(n_ctx, D_POSITION)
        self.W_E = nn.Parameter(normal(d_vocab, D_CONTENT, std=1.0))
        self.W_U = nn.Parameter(normal(D_CONTENT, d_vocab, std=0.02))
        self.layers: Any = nn.ModuleList()
        for _ in range(n_layers):
            W_Q = by_head(normal(D_CONTENT + D_POSITION, width, std=0.09))
            W_K = by_head(normal(D_CONTENT + D_POSITION, width, std=0.09))
            W_V = by_head(normal(D_CONTENT, width, std=0.09))
            W_O = nn.Parameter(normal(width, D_CONTENT, std=0.06).unflatten(0, (n_heads, -1)))
            self.layers.append(nn.ParameterList([W_Q, W_K, W_V, W_O]))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits `[batch, pos, d_vocab]` and patterns `[batch, head, dst, src]`."""
        n_pos = tokens.shape[1]
        x = self.W_E[tokens]  # [batch, pos, d_content]
        positions = self.W_pos[:n_pos].expand(len(x), -1, -1)
        future = torch.full((n_pos, n_pos), -math.inf, dtype=x.dtype).triu(1)
        patterns = []
        for W_Q, W_K, W_V, W_O in self.layers:
            reads = torch.cat([x, positions], dim=-1)  # [batch, pos, d_model]
            q, k = (torch.einsum("bpm,hmd->bhpd", reads, W) for W in (W_Q, W_K))
            v = torch.einsum("bpc,hcd->bhpd", x, W_V)
            scores = future + q @ k.mT / math.sqrt(D_HEAD)
            patterns.append(scores.softmax(-1))
            x = x + torch.einsum("bhpd,hdc->bpc", patterns[-1] @ v, W_O)
        return x @ self.W_U, torch.cat(patterns, dim=1)

    def to_bridge(self) -> Any:
        """Return the same function as a `TransformerBridge`; the stream is content, then position."""
        pad = nn.functional.pad
        n_heads = len(self.layers[0][0])
        weights = zip(*self.layers, strict=True)
        W_Q, W_K, W_V, W_O = (torch.cat(of_layers).detach() for of_layers in weights)
        layers = tuple(layer for layer in range(len(self.layers)) for _ in range(n_heads))
        heads = Heads(
            tuple(map(str, range(len(layers)))),
            W_Q,
            W_K,
            pad(W_V, (0, 0, 0, D_POSITION)),
            pad(W_O, (0, D_POSITION)),
            layers=layers,
        )
        return bridge_of(
            heads,
            pad(self.W_E.detach(), (0, D_POSITION)),
            pad(self.W_U.detach(), (0, 0, 0, D_POSITION)),
            pad(self.W_pos, (D_CONTENT, 0)),
        )


def sinusoids(n_ctx: int, d_position: int) -> Float[Tensor, "pos d_position"]:
    """Return fixed positions: cosines and sines, with frequencies from 1.6 down to 1.6 / 50."""
    n_frequencies = d_position // 2
    falls = torch.arange(n_frequencies, dtype=torch.float64) / max(n_frequencies - 1, 1)
    angle = torch.arange(n_ctx, dtype=torch.float64)[:, None] * (1.6 * 50.0**-falls)
    return 2.0 * torch.cat([angle.cos(), angle.sin()], dim=1)
