"""A model on repeated random tokens: what every head does, how much the model gains, and a survey of its induction heads."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Fraction, Names, Several, ids, must, public, sizes
from circuitkit._precision import full_precision
from circuitkit._work import each, fingerprint
from circuitkit.anatomy import Anatomy, read
from circuitkit.induction._effect import Effect
from circuitkit.induction._stream import (
    Fill,
    Repeated,
    after_occurrences,
    earlier_occurrences,
    engine,
    look,
    repeated_tokens,
    repeating,
    run,
    second_pass,
    token_losses,
)
from circuitkit.models import hashes, manifest, stored

Kind = Literal["prefix_matching", "previous_token", "duplicate_token", "copying"]
KINDS = get_args(Kind)


@public
@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of all heads, each a tensor `[head]` in the order of `names`, which is the order of the layers.

    **Source**: see `scores`.
    """

    names: tuple[str, ...]
    """Head names, such as `"L1H3"`."""
    prefix_matching: Float[Tensor, " head"]
    """Mean attention from a token that occurred before to the positions *after* its earlier occurrences; 0 to 1."""
    previous_token: Float[Tensor, " head"]
    """Mean attention to the previous position, over all positions but the first; 0 to 1."""
    duplicate_token: Float[Tensor, " head"]
    """Mean attention from a token that occurred before to its earlier occurrences; 0 to 1."""
    copying: Float[Tensor, " head"]
    """How far the head, where it attends, raises the logit of the token there: eigenvalue score, -1 to 1."""

    def __getitem__(self, name: str) -> dict[str, float]:
        """The four scores of one head."""
        if name not in self.names:
            shown = ", ".join(self.names[:24]) + (
                f", ... ({len(self.names)} in all)" if len(self.names) > 24 else ""
            )
            raise ValueError(
                f"no head is called {name!r}; expected one of {shown}, because scores are kept by head."
            )
        return {kind: float(getattr(self, kind)[self.names.index(name)]) for kind in KINDS}

    def top(self, kind: Kind, k: Count = 5) -> list[tuple[str, float]]:
        """The `k` heads with the highest score of a kind, best first."""
        values = getattr(self, kind)
        order = values.argsort(descending=True, stable=True)[:k]
        return [(self.names[i], float(values[i])) for i in order.tolist()]

    def __repr__(self) -> str:
        best = ", ".join(
            f"{kind} {name} {value:.2f}" for kind in KINDS for name, value in self.top(kind, 1)
        )
        return f"Scores({len(self.names)} heads; best {best})"


def default_rows(model: Any, *, period: int = 64, batch: int = 8) -> Repeated:
    """Two passes over a span of different tokens, after the tokenizer's opening token if the model has one."""
    bos, (d_vocab, n_ctx) = (
        getattr(getattr(model, "tokenizer", None), "bos_token_id", None),
        sizes(model),
    )
    opening = int(bos is not None)
    period = min(period, (n_ctx - opening) // 2, d_vocab - opening)
    return repeated_tokens(d_vocab, period, batch=batch, bos=None if bos is None else int(bos))


@public
@ids(least=2)
@must(
    lambda tokens: (
        bool(earlier_occurrences(getattr(tokens, "tokens", tokens)).any())
        or "rows in which some token recurs, because that is where heads are measured. Use repeated_tokens(...), or longer text"
    )
)
def scores(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"] | Repeated | None = None,
    *,
    without: Names = (),
    fill: Fill = "zero",
) -> Scores:
    r"""Prefix-matching, previous-token, duplicate-token and copying score of every head, from one forward pass.

    With the pattern $A$ and $P_t$ the positions before $t$ that hold the same token, over all $t$ whose $P_t$ is not empty:
    prefix matching is the mean of $\sum_{p \in P_t} A_{t,\,p+1}$, duplicate token that of $\sum_{p \in P_t} A_{t,\,p}$;
    previous token is the mean of $A_{t,\,t-1}$ over $t \ge 1$. Copying is $\sum_i \mathrm{Re}\,\lambda_i / \sum_i
    |\lambda_i|$ over the eigenvalues of the map from the token at a source position to the logits that the head writes when
    it attends only there, $L_{ij} = v_i W_O W_U[:, x_j]$, with $i, j$ over all positions $p + 1$, values and unembedding
    vectors centred over them. Values are the model's own, so norms, MLPs and earlier heads count.

    **Shapes**: `tokens` any rows `[batch, pos]` in which tokens recur, left out eight rows of a random span of 64 (less if
    the model is smaller), twice. `without` leaves out parts and wires, see `Anatomy.run`. Patterns are reduced where they are
    computed, some destinations at a time, and dropped: any attention will do, and long contexts. **Error**: float32 rounding;
    the sampling error of a mean over about 500 positions. **Source**: "In-context Learning and Induction Heads" (prefix
    matching, copying); "A Mathematical Framework" (eigenvalues). Theirs normalise copying differently.

    >>> from circuitkit.handmade import build_induction_model
    >>> result = scores(build_induction_model(20, 16))
    >>> [round(value, 3) for value in result.prefix_matching.tolist()]
    [0.0, 1.0]
    """
    rows = default_rows(model) if tokens is None else tokens
    rows = rows.tokens if isinstance(rows, Repeated) else rows
    runs = engine(model, without, look=True)
    watcher = _Watcher(runs, rows.to(runs.W_E.device))
    look("scores", runs, rows, watcher.see, without, fill)
    columns = {kind: torch.cat([found[kind] for found in watcher.found.values()]) for kind in KINDS}
    names = tuple(
        f"L{i}H{j}" for i, found in watcher.found.items() for j in range(len(found["copying"]))
    )
    return Scores(names, **{kind: column.cpu() for kind, column in columns.items()})


class _Watcher:
    """Reduces each layer's patterns and values to the four scores of its heads."""

    def __init__(self, model: Any, rows: Tensor):
        same, after = earlier_occurrences(rows), after_occurrences(rows)
        self.masks = {"prefix_matching": after, "duplicate_token": same}
        self.places: dict[int, dict[str, tuple[Tensor, ...]]] = {}
        self.n_known = same.any(-1).sum()
        self.found: dict[int, dict[str, Tensor]] = {}
        self.sources = after.any(1)
        columns = full_precision(model.W_U.detach())[:, rows[self.sources]]
        norm = model.final if isinstance(model, Anatomy) else getattr(model, "ln_final", None)
        gain = getattr(norm, "gain", getattr(norm, "weight", None))
        columns = columns if gain is None else columns * full_precision(gain.detach())[:, None]
        self.unembed = columns - columns.mean(1, keepdim=True)

    def see(self, layer: int, pattern: Tensor, values: Tensor, W_O: Tensor, rows: slice) -> None:
        """`pattern[batch, head, dst, src]`: attention on the marked sources, for each destination that has one, and no other."""
        first, n_pos = rows.start, pattern.shape[-1]
        if not first:
            zero = pattern.new_zeros(pattern.shape[1])
            self.found[layer] = dict.fromkeys(KINDS, zero) | {"copying": self._copying(values, W_O)}
        if (
            first not in self.places
        ):  # where they stand in these destinations: the same in every layer
            self.places[first] = {
                kind: mask[:, rows].nonzero(as_tuple=True) for kind, mask in self.masks.items()
            }
        found = self.found[layer]
        for kind, (row, dst, src) in self.places[first].items():
            found[kind] = found[kind] + pattern[row, :, dst, src].sum(0) / self.n_known
        previous = pattern.diagonal(first - 1, -2, -1).sum((0, 2))
        found["previous_token"] = found["previous_token"] + previous / (len(pattern) * (n_pos - 1))

    def _copying(self, values: Tensor, W_O: Tensor) -> Tensor:
        """`values[batch, head or group, pos, d_head]`: the wanted eigenvalues are those of a d_head x d_head matrix."""
        W_O = full_precision(W_O.detach())
        value = full_precision(values.detach()).transpose(1, 2)[self.sources].transpose(0, 1)
        # Centring the unembedding vectors is enough: what is the same in all values then multiplies to zero.
        value = value.repeat_interleave(W_O.shape[0] // value.shape[0], dim=0)
        eigenvalues = torch.linalg.eigvals(W_O @ self.unembed @ value)
        total = eigenvalues.abs().sum(-1)
        return torch.where(total > 0, eigenvalues.real.sum(-1) / total.clamp(min=1e-30), 0.0)


class InductionLoss(NamedTuple):
    """Loss on repeated random tokens, in nats a token. **Source**: see `induction_loss`."""

    first: float
    """Mean loss on the first pass over the span, which nothing predicts."""
    second: float
    """Mean loss on the second pass."""
    difference: float
    """`second - first`: negative when the model uses the first pass."""
    accuracy: float
    """Share of second-pass tokens that are the model's top choice."""


@public
@ids("rows")
@must(
    lambda rows: (
        repeating(rows)
        or f"two equal passes of {rows.period} from position {rows.start} on, because they are compared. Use times=2"
    )
)
def induction_loss(
    model: AnyModel, rows: Repeated | None = None, *, without: Names = (), fill: Fill = "zero"
) -> InductionLoss:
    """Loss on the second pass over a random span minus loss on the first.

    Both passes leave out their first token, which even a perfect induction head cannot know. `rows` comes from `repeated_tokens`,
    default as in `scores`. `without` leaves out parts and wires, see `Anatomy.run`. **Shapes**: `rows.tokens[batch, pos]` gives
    four numbers. **Error**: float32 rounding and the sampling error of the rows. **Source**: "In-context Learning and Induction
    Heads"; transformer-lens `evals.induction_loss` measures the second pass alone.

    >>> from circuitkit.handmade import build_induction_model
    >>> result = induction_loss(build_induction_model(20, 16))
    >>> round(result.second, 3), result.accuracy
    (0.0, 1.0)
    """
    rows = default_rows(model) if rows is None else rows
    logits = run("induction_loss", model, rows.tokens, without=without, fill=fill)
    one = slice(rows.start, rows.start + rows.period)
    first = float(token_losses(logits[:, one], rows.tokens[:, one].to(logits.device)).mean())
    again, right = (float(values.mean()) for values in second_pass(logits, rows))
    return InductionLoss(first, again, again - first, right)


@public
@ids(least=2)
def losses_by_position(
    model: AnyModel, tokens: Int[Tensor, "batch pos"], *, without: Names = (), fill: Fill = "zero"
) -> Float[Tensor, "batch next"]:
    """Loss of predicting each next token, in nats, `-log softmax(logits[t])[tokens[t + 1]]`: entry `t` is about position `t + 1`.

    **Shapes**: `[batch, pos]` to `[batch, pos - 1]`. **Error**: float32 rounding. **Source**: the usual cross-entropy.
    """
    logits = run("losses_by_position", model, tokens, without=without, fill=fill)
    return token_losses(logits, tokens.to(logits.device))


@public
@ids(least=2)
@must(
    lambda early, late, width, tokens: (
        width <= early < (tokens.shape[1] - 1 if late is None else late) < tokens.shape[1]
        or f"1 <= width <= early < late <= {tokens.shape[1] - 1}, the predicted tokens of a row. Use longer rows or smaller numbers"
    )
)
def in_context_score(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"],
    *,
    early: Count = 50,
    late: Count | None = None,
    width: Count = 1,
    without: Names = (),
) -> float:
    """Loss late in a row minus loss early in it, averaged over rows: negative when context helps.

    `early` and `late` count predicted tokens, the first is 1; `late` defaults to the last. `width` averages over that many
    tokens ending there, which lowers the noise. **Error**: sampling error, large on few rows. **Source**: "In-context
    Learning and Induction Heads", 500th minus 50th token of rows of 512.
    """
    late = tokens.shape[1] - 1 if late is None else late
    losses = losses_by_position(model, tokens, without=without).mean(0)
    return float(losses[late - width : late].mean() - losses[early - width : early].mean())


@dataclass(frozen=True, eq=False)
class Survey:
    """Scores of all heads, and the induction loss with three groups of heads taken out. **Source**: see `survey`."""

    scores: Scores
    """Every head on the default rows."""
    groups: dict[str, tuple[str, ...]]
    """`"induction"`: heads whose prefix matching reaches the threshold; `"previous token"` and `"random"`: as many."""
    losses: dict[str, InductionLoss]
    """Under `"nothing"` the whole model; under a group's name the model without that group."""
    provenance: dict[str, Any]
    """Where the weights came from; empty unless the survey was stored."""
    heads: dict[str, Float[Tensor, " head"]]
    """Numbers by head, in the order of the scores: what each way of asking says that replacing it would cost; empty unless stored."""
    seconds: dict[str, float]
    """Processor seconds that each way of asking took, on one machine in one hour."""
    effects: dict[str, Effect]
    """Cuts of its wires beside drawn sets, whose names are not kept; empty unless stored (`studies/edition-2/study/real_circuit.py`)."""
    more: dict[str, Any]
    """What else that study found, by its pieces: `"saturated"`, `"sizes"`, `"groups"`, `"sinks"`, `"norms"`; empty unless stored."""


@public
def survey(
    model: AnyModel, *, threshold: Fraction = 0.4, batch: Count = 8, period: Several = 64
) -> Survey:
    """Find a model's induction heads and previous-token heads, take each group out, and measure.

    Induction heads have a prefix matching of at least `threshold` (the best one if there is none). The other groups hold as
    many: heads with the highest previous-token score, and random other heads, drawn with seed 0 from the layers of the
    induction heads if those have enough. **Error**: as `scores` and `induction_loss`. **Cost**: five forward passes.
    **Source**: "In-context Learning and Induction Heads", ablation of heads; the three groups are this book's.

    >>> from circuitkit.handmade import build_induction_model
    >>> result = survey(build_induction_model(20, 16))
    >>> result.groups["induction"], round(result.losses["induction"].accuracy, 2)
    (('L1H0',), 0.09)
    """
    rows = default_rows(model, period=period, batch=batch)
    found = scores(model, rows)
    k = max(1, int((found.prefix_matching >= threshold).sum()))
    chosen = {
        "induction": tuple(name for name, _ in found.top("prefix_matching", k)),
        "previous token": tuple(name for name, _ in found.top("previous_token", k)),
    }
    chosen["random"] = _others(found.names, chosen, k)
    taken = {"nothing": (), **chosen}
    told = each(
        lambda group: induction_loss(model, rows, without=group),
        {name: (taken[name],) for name in taken},
        "survey",
        lambda: fingerprint(model, rows.tokens.tolist(), chosen),
    )
    losses = {name: InductionLoss(*one) for name, one in zip(taken, told, strict=True)}
    return Survey(found, chosen, losses, {}, {}, {}, {}, {})


def _others(names: tuple[str, ...], chosen: dict[str, tuple[str, ...]], k: int) -> tuple[str, ...]:
    """`k` heads in no group so far, near the induction heads if there are enough."""
    left = [name for name in names if not any(name in group for group in chosen.values())]
    layers = {read(name)[0].layer for name in chosen["induction"]}
    near = [name for name in left if read(name)[0].layer in layers]
    pool = near if len(near) >= k else left
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[:k].tolist()
    return tuple(pool[i] for i in sorted(order))


_KNOWN = tuple(
    sorted(
        name.removesuffix(".json")
        for name in hashes(manifest("induction"))
        if name.endswith(".json")
    )
)
_computed = f"one of {[*_KNOWN]}: only these were computed beforehand. Write survey(circuitkit.load_model(name)) for another model"


@public
@must(lambda name: name in _KNOWN or _computed)
@cache
def stored_survey(name: str = "smollm2-135m") -> Survey:
    """The survey of a model whose weights do not ship with the book, as `make real-models` last computed and compared it.

    **Source**: `studies/edition-2/study/real_induction.py`.

    >>> stored_survey().provenance["model"]
    'SmolLM2-135M-Instruct'
    """
    table = stored("induction", f"{name}.json")
    return Survey(
        Scores(
            tuple(table["names"]), **{kind: torch.tensor(table["scores"][kind]) for kind in KINDS}
        ),
        {group: tuple(names) for group, names in table["groups"].items()},
        {group: InductionLoss(*values) for group, values in table["losses"].items()},
        table["provenance"],
        {how: torch.tensor(one["values"]) for how, one in table["heads"].items()},
        {how: one["seconds"] for how, one in table["heads"].items()},
        {
            name: Effect(
                one["done"], one["measure"], (tuple(one["cut"]),), torch.tensor(one["values"])
            )
            for name, one in table["effects"].items()
        },
        table["more"],
    )


@public
def stored_zoo() -> list[dict[str, Any]]:
    """Sixteen small models, eight seeds on each of two tasks: how their accuracy rose, and what is left without each wire.

    Accuracy by ten steps is their `"curve"`, the whole model's `"whole"`; under `"Q"`, `"K"`, `"V"` all wires of a kind
    between the layers are replaced by their mean, under a wire's name that one. **Source**: `studies/edition-2/study/zoo.py`.

    >>> sorted({one["task"] for one in stored_zoo()})
    ['different', 'recurring']
    """
    return stored("induction", "zoo.jsonl")
