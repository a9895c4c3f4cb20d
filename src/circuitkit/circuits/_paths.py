"""Exact sums with frozen norms and patterns: logits over paths, the loss over orders of paths, one score over pairs of parts."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._blocks import largest_entries, require_room
from circuitkit._contract import (
    AnyModel,
    Count,
    HeadName,
    Integer,
    Names,
    Natural,
    Token,
    ids,
    must,
    public,
    sizes,
)
from circuitkit._heads import Heads
from circuitkit._state import require_unhooked
from circuitkit.anatomy import Anatomy, Neurons, Norm, Run, anatomy, read
from circuitkit.anatomy._address import spelled, unknown
from circuitkit.anatomy._engine import run_of
from circuitkit.anatomy._sublayer import Sublayer

DIRECT, BIAS, REST = "direct", "bias", "rest"


@public
@must(
    lambda at, self: (
        isinstance(at, slice)
        or -(n := self._run.tokens.shape[1]) <= at < n
        or f"one of {n} positions"
    )
)
class PathLogits(Mapping):
    """A mapping from path name to that path's logits `[batch, pos, d_vocab]`, made when asked for.

    `"direct"` is the token straight to the logits, `"L0H1->L1H3"` through two heads (a virtual head); `"L0 MLP->L1H3"` or
    `"L0N3.1->L1H3"` begins with what an MLP or a neuron-head wrote. `"bias"` holds all that biases add, `"rest"` longer
    chains than were asked for. The sum of all is the model's logits. **Source**: see `path_logits`.
    """

    def __init__(self, streams: dict[str, Callable[[], Tensor]], run: Run):
        self._streams = streams
        self._run = run

    def __getitem__(self, name: str) -> Float[Tensor, "batch pos d_vocab"]:
        return self.sum([name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and spelled(name) in self._streams

    def __repr__(self) -> str:
        orders = [self.order(name) for name in self]
        counts = ", ".join(
            f"{orders.count(order)} of order {order}" for order in sorted({*orders} - {-1})
        )
        return f"PathLogits({len(self)} paths: {counts}{', the rest' if REST in self else ''})"

    def order(self, name: str) -> int:
        """How many heads the path passes; -1 for `"rest"`."""
        (name,) = self._known([name])
        return -1 if name == REST else sum(part.kind == "H" for part in read(name))

    def sum(
        self, names: Names | None = None, *, at: Integer | slice = slice(None)
    ) -> Float[Tensor, "..."]:
        """The logits of several paths together (all of them by default), unembedded once; `at` picks positions."""
        names = (
            list(self._streams)
            if names is None
            else self._known([names] if isinstance(names, str) else list(names))
        )
        final, model = self._run.final, self._run.model
        if not names:
            return torch.zeros(*self._run.tokens.shape, model.d_vocab).to(model.W_U)[:, at]
        stream = reduce(torch.add, self._added([self._streams[name] for name in names]))
        logits = (stream if final is None else final.linear(stream))[:, at] @ model.W_U
        if BIAS in names:
            logits = (
                logits if final is None or final.bias is None else logits + final.bias @ model.W_U
            )
            logits = logits if model.b_U is None else logits + model.b_U
        return logits

    def _added(self, streams: list[Any]) -> Iterator[Tensor]:
        """Streams to add up: what one head gathered on several paths is added before it is written."""
        gathered: dict[tuple[str, int], list[Any]] = {}
        for made in streams:
            if made.func is _written:
                _, sub, z, head, *_ = made.args
                gathered.setdefault((sub.name, head), [*made.args[:2], 0, *made.args[3:]])[2] += z
            else:
                yield made()
        yield from (_written(*args) for args in gathered.values())

    def stream(self, name: str) -> Float[Tensor, "batch pos d_model"]:
        """What the path leaves in the residual stream before the unembedding (and the final norm)."""
        return self._streams[self._known([name])[0]]()

    def _known(self, names: list[str]) -> list[str]:
        names = [name if name in self._streams else spelled(name) for name in names]
        for name in names:
            if name not in self._streams:
                raise unknown("path", name, self._streams)
        if len({*names}) < len(names):
            raise ValueError(
                f"some of the paths {names[:6]} were named twice; expected each once, because their logits are added up"
            )
        return names


@public
@ids()
def path_logits(
    model: AnyModel,
    tokens: Int[Tensor, "*batch pos"],
    *,
    max_order: Natural | None = None,
    most: Count = 4096,
    neurons: bool | None = None,
) -> PathLogits:
    r"""Logits as a sum over paths with every attention pattern frozen at its value on these tokens.

    Two attention-only layers without biases: $W_E W_U + \sum_h A^h \otimes W_{OV}^h + \sum_{h_2, h_1} (A^{h_2} A^{h_1})
    \otimes W_{OV}^{h_1} W_{OV}^{h_2}$, read from the token to the logits. `max_order` is the longest chain of heads kept
    apart (default: all); longer ones are summed in `"rest"`.

    **Norms** are frozen at the values the model used: exact for the sum, but a path's share then depends on the others.
    **MLPs**: what one wrote begins paths of its own; with `neurons`, each neuron-head does (left out: where there are at most
    1024). **Shapes**: tokens `[batch, pos]` or `[pos]`, values `[batch, pos, d_vocab]`. **Error**: exact up to rounding (1e-5
    of the largest logit in float32, 1e-12 in float64). **Source**: "A Mathematical Framework for Transformer Circuits", path
    expansion; LayerNorm and MLPs are ours.
    """
    value = anatomy(model).linear_head("path_logits")
    apart = value.few_neurons() if neurons is None else neurons
    layers = sum(isinstance(sub.inside, Heads) for sub in value.sublayers)
    order = layers if max_order is None else max_order
    _require_few(value, order, most, apart, tokens.numel())
    require_unhooked(model, "path_logits")
    run = run_of(model, tokens[None] if tokens.ndim == 1 else tokens)
    return PathLogits(_expand(run, order, layers, apart), run)


@public
@ids()
@must(lambda tokens: tokens.ndim == 1 or "one row of tokens: tokens[0]")
@must(lambda at, tokens: -(n := tokens.shape[-1]) <= at < n or f"one of {n} positions")
@must(lambda answer, model: answer < (n := sizes(model)[0]) or f"a token, 0 to {n - 1}")
def largest_paths(
    model: AnyModel, tokens: Int[Tensor, " pos"], answer: Token, k: Count = 10, *, at: Integer = -1
) -> list[tuple[str, float]]:
    r"""The `k` chains of two heads that move a token's logit most, by name as in `path_logits`, with what each adds.

    What is added is the path's logit of `answer` at `at`, less its mean over the vocabulary. No path is formed: what the later
    head asks for, $A^{h_2}_{at,p} W_V^{h_2} W_O^{h_2} u$ at each position $p$, is held against what the earlier one writes there.
    **Error**: rounding; patterns and norms are frozen. **Source**: as `path_logits`; the ranking is this book's.
    """
    value = anatomy(model).linear_head("largest_paths")
    require_unhooked(model, "largest_paths")
    run, layers = run_of(model, tokens[None]), []
    place = at % len(tokens)
    here, u = run.where(0, place), (value.W_U[:, answer] - value.W_U.mean(1))[:, None]
    u = (
        u[None, None]
        if run.final is None
        else run.final.fold(u) / run.final.at(slice(0, 1), slice(place, place + 1)).scale[..., None]
    )
    born = {DIRECT: (torch.stack([run.part(name, 0) for name in value.starts]).sum(0), 0)}
    found: list[tuple[Tensor, list[str], Any, Any]] = []
    for step, sub in (
        (number, sub) for number, one in enumerate(value.steps) for sub in one.sublayers
    ):
        heads, before = sub.inside, run.norms[sub.name][0]
        if not isinstance(heads, Heads):
            born |= {name: (stream, step) for name, stream in _begun(run, sub, step, False).items()}
            continue
        asked = torch.einsum(
            "hmd,hd->hm",
            heads.W_V,
            heads.W_O @ here._pulled(u, step, sub, None)[0, 0, :, 0],
        )
        reads = (
            asked.T[None] if before is None else before.fold(asked.T) / before.scale[0][..., None]
        )
        reads = torch.einsum(
            "hp,pmh->hpm", run.patterns[sub.name][0, :, place], reads.expand(len(tokens), -1, -1)
        ).flatten(1)
        stood = torch.stack([run._carried(*one, step) for one in born.values()])
        layers.append(
            (step, sub, _through(heads, run.patterns[sub.name], stood, before)[0], [*born], reads)
        )
    for (
        first,
        earlier,
        z,
        names,
        _,
    ) in layers:  # what a layer wrote is formed once, and held against all that later ones ask for
        wrote = run._left(
            earlier,
            torch.einsum("ohbpd,hdm->ohbpm", z, earlier.inside.W_O).contiguous(),
            first,
            first,
        )
        for step, later, _, _, reads in layers:
            if first < step:
                found.append(
                    (
                        run._carried(wrote, first, step).flatten(2) @ reads.T,
                        names,
                        earlier.inside.names,
                        later.inside.names,
                    )
                )
    best = []
    for values, names, earlier, later in found:
        top = values.flatten().abs().topk(min(k, values.numel())).indices
        for place, added in zip(top.tolist(), values.flatten()[top].tolist(), strict=True):
            rest, j = divmod(place, len(later))
            chain = names[rest // len(earlier)], earlier[rest % len(earlier)], later[j]
            best.append(("->".join(part for part in chain if part != DIRECT), added))
    return sorted(best, key=lambda one: -abs(one[1]))[:k]


def _require_few(model: Anatomy, order: int, most: int, apart: bool, n_tokens: int) -> None:
    """A `ValueError` before, not a full memory after."""
    by_order = [1]
    for _, sub, names in model.groups(neurons=apart):
        if sub is not None and isinstance(sub.inside, Heads):
            longer = [0, *(n * len(sub.inside) for n in by_order)]
            by_order = [n + more for n, more in zip([*by_order, 0], longer, strict=True)]
        elif sub is not None:
            by_order[0] += sum(not name.endswith("bias") for name in names)
    n_paths = sum(by_order[: order + 1])
    if n_paths > most:
        affordable = [k for k in range(len(by_order)) if sum(by_order[: k + 1]) <= most]
        instead = (
            f"Write max_order={affordable[-1]} (longer chains are then summed in 'rest')"
            if affordable
            else "Write neurons=False"
        )
        raise ValueError(
            f"path_logits would keep {n_paths} paths of up to {order} heads apart; expected at most {most}, because each is a stream of "
            f"its own. {instead}, or raise most=."
        )
    whole = sum(by_order[:order]) * model.d_model + n_paths * max(
        (model[n].d_head for n in model.head_names[:1]), default=0
    )
    require_room(
        "path_logits",
        whole * n_tokens,
        model.W_E,
        "Give fewer tokens at a time, or a smaller max_order",
    )


def _expand(run: Run, order: int, layers: int, apart: bool) -> dict[str, Callable[[], Tensor]]:
    """Every path's contribution to the last residual stream, made when asked for; of the longest, what heads gathered is kept."""
    start = torch.stack([run.part(name, 0) for name in run.model.starts]).sum(0)
    bias = (
        run.part("embed bias", 0) if "embed bias" in run.model.parts(0) else torch.zeros_like(start)
    )
    born, streams, orders = (
        {DIRECT: (start, 0)},
        {DIRECT: partial(run._carried, start, 0, None)},
        {DIRECT: 0},
    )
    ended, rest = start if order == 0 else torch.zeros_like(start), torch.zeros_like(start)
    for number, step in enumerate(run.model.steps):
        names = [name for name in born if orders[name] < order]
        stood = torch.stack(
            [*(run._carried(*born[name], number) for name in names), bias, ended + rest]
        )
        for sub in step.sublayers:
            before, after = run.norms[sub.name]
            if not isinstance(sub.inside, Neurons) or apart:
                bias = bias + run.bias_of(sub)
            if not isinstance(sub.inside, Heads):
                made = _begun(run, sub, number, apart)
                born |= {name: (stream, number) for name, stream in made.items()}
                streams |= {
                    name: partial(run._carried, stream, number, None)
                    for name, stream in made.items()
                }
                orders |= dict.fromkeys(made, 0)
                ended = ended if order else sum(made.values(), ended)
                continue
            z, fixed = _through(sub.inside, run.patterns[sub.name], stood, before)
            last = z[[row for row, name in enumerate(names) if orders[name] + 1 == order]].sum(0)
            more = torch.einsum(
                "nhbpd,hdm->nbpm", torch.stack([z[-2], last, z[-1]]), sub.inside.W_O
            )
            more, fixed = (
                (more, fixed) if after is None else (after.linear(more), after.linear(fixed))
            )
            bias, ended, rest = bias + more[0] + fixed, ended + more[1], rest + more[2]
            for row, name in enumerate(names):
                for head, label in enumerate(sub.inside.names):
                    path = label if name == DIRECT else f"{name}->{label}"
                    orders[path] = orders[name] + 1
                    streams[path] = partial(_written, run, sub, z[row, head], head, number, None)
                    if orders[path] < order:
                        born[path] = (
                            _written(run, sub, z[row, head], head, number, number),
                            number,
                        )
        if (closing := run.closings.get(number)) is not None:
            bias, ended, rest = closing(bias), closing.linear(ended), closing.linear(rest)
    streams = dict(sorted(streams.items(), key=lambda item: orders[item[0]]))
    if _has_biases(run.model, apart):
        streams[BIAS] = partial(torch.clone, bias)
    if order < layers:
        streams[REST] = partial(torch.clone, rest)
    return streams


def _written(
    run: Run, sub: Sublayer, z: Tensor, head: int, step: int, before: int | None
) -> Tensor:
    """What one head wrote of what it gathered, as it stands in a later stream."""
    return run._left(sub, z @ sub.inside.W_O[head], step, before)


def _begun(run: Run, sub: Sublayer, step: int, apart: bool) -> dict[str, Tensor]:
    """What an MLP wrote, which begins its own paths: as a whole, or each of its neuron-heads."""
    if not apart or not isinstance(sub.inside, Neurons):
        return {sub.name: run._part(sub.name, step)}
    rows = torch.arange(len(sub.inside)) // len(sub.inside.terms)
    written = run.z(sub).movedim(-1, 0)[..., None] * sub.inside.W_out[rows][:, None, None]
    after = run.norms[sub.name][1]
    return dict(
        zip(sub.inside.names, written if after is None else after.linear(written), strict=True)
    )


def _through(
    heads: Heads, pattern: Tensor, x: Float[Tensor, "path batch pos d_model"], norm: Norm | None
) -> tuple[Tensor, Tensor]:
    """What each head of a layer gathers when it reads each stream, `[path, head, batch, pos, d_head]`, and what the layer
    writes because of value biases and the norm's, whatever is in the stream."""
    W_V, fixed = heads.W_V, torch.zeros_like(heads.W_V[:, 0])
    fixed = fixed if heads.b_V is None else heads.b_V
    fixed = fixed if norm is None or norm.bias is None else fixed + norm.bias @ W_V
    values = torch.einsum("nbpm,hmd->nhbpd", x if norm is None else norm.linear(x), W_V)
    return torch.einsum("bhqp,nhbpd->nhbqd", pattern, values), torch.einsum(
        "bhq,hd,hdm->bqm", pattern.sum(-1), fixed, heads.W_O
    )


def _has_biases(model: Anatomy, apart: bool) -> bool:
    norms = [model.final, *(sub.before for sub in model.sublayers)]
    given = [model.b_U, *(norm.bias for norm in norms if norm is not None)]
    given += [sub.inside.b_V for sub in model.sublayers if isinstance(sub.inside, Heads)]
    return any(value is not None for value in given) or any(
        n.endswith("bias") for n in model.parts(neurons=apart)
    )


class TermImportance(NamedTuple):
    """Losses in nats per token, patterns frozen: what is worth how much is `removed[k] - full` for each order `k`.

    **Source**: see `term_importance`.
    """

    full: float
    """The model's own loss."""
    kept: tuple[float, ...]
    """`kept[k]`: only paths through at most `k` heads; the last is `full`."""
    removed: tuple[float, ...]
    """`removed[k]`: all paths but those through exactly `k` heads."""
    by_path: dict[str, float]
    """How much the loss rises when one path alone is removed, largest first (negative: the path hurts here)."""
    tokens: int
    """Predictions averaged over."""


@public
@ids(least=2)
def term_importance(
    model: AnyModel, tokens: Int[Tensor, "batch pos"], *, by_path: bool = True
) -> TermImportance:
    """Loss when terms of order 0, 1, 2, ... are kept or removed, and when each single path is removed.

    Order counts the heads a path passes; MLP outputs count as starts; biases are always kept. Patterns are those of the full
    model, so this asks what the terms *write*, not where heads look. Losses of two orders do not add up. **Error**: as
    `path_logits`. **Source**: "A Mathematical Framework for Transformer Circuits", "Term importance analysis".
    """
    paths = path_logits(model, tokens)
    orders = {name: paths.order(name) for name in paths if name != BIAS}
    always = [BIAS] if BIAS in paths else []
    longest = max(orders.values())

    def loss(wanted) -> float:
        return next_token_loss(
            paths.sum([name for name in orders if wanted(name)] + always), tokens
        )

    every, full = paths.sum(), loss(lambda name: True)
    alone = (
        {gone: next_token_loss(every - paths[gone], tokens) - full for gone in orders}
        if by_path
        else {}
    )
    return TermImportance(
        full=full,
        kept=tuple(loss(lambda name, k=k: orders[name] <= k) for k in range(longest + 1)),
        removed=tuple(loss(lambda name, k=k: orders[name] != k) for k in range(longest + 1)),
        by_path=dict(sorted(alone.items(), key=lambda item: -item[1])),
        tokens=tokens.shape[0] * (tokens.shape[1] - 1),
    )


def next_token_loss(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> float:
    """Mean cross-entropy of predicting each next token, in nats."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()


@public
@must(
    lambda tokens, paths: (
        tokens.shape == paths._run.tokens.shape
        and 0 <= tokens.min() <= tokens.max() < paths._run.model.d_vocab
        or "the tokens that the paths were made on, because the loss is of predicting them"
    )
)
def loss_of_paths(
    paths: PathLogits, tokens: Int[Tensor, "batch pos"], names: Names | None = None
) -> float:
    """Next-token loss of the sum of some paths (all by default), `mean(-log softmax(sum)[next token])`, in nats.

    **Error**: float32 rounding. **Source**: "A Mathematical Framework for Transformer Circuits", term importance.
    """
    return next_token_loss(paths.sum(names), tokens)


@public
class ScoreDecomposition(NamedTuple):
    """What `score_decomposition` returns: two sides, whose products, one for each pair, add up to the score.

    No pair is formed before it is asked for. **Source**: see `score_decomposition`.
    """

    queries: Float[Tensor, "query d_head"]
    """What each component at the destination asks for, over the head's scale."""
    keys: Float[Tensor, "key d_head"]
    """What each component at the source offers."""
    components: tuple[str, ...]
    """`"embed"`, `"pos"`, earlier heads, their `"L0 bias"`, MLPs or neuron-heads, and `"bias"`; the same on both sides."""

    @property
    def table(self) -> Float[Tensor, "query key"]:
        """`table[i, j]`: component `i` at the destination, read as a query, against component `j` at the source, as a key."""
        return self.queries @ self.keys.T

    @property
    def score(self) -> float:
        """The whole attention score before mask and softmax: the sum over all pairs."""
        return float(self.queries.sum(0) @ self.keys.sum(0))

    @property
    def query(self) -> Float[Tensor, " query"]:
        """Each component's share on the query side, summed over keys."""
        return self.queries @ self.keys.sum(0)

    @property
    def key(self) -> Float[Tensor, " key"]:
        """Each component's share on the key side, summed over queries."""
        return self.keys @ self.queries.sum(0)

    def by_neuron(self) -> "ScoreDecomposition":
        """The heads of a neuron added up to one component, `"L0N37"`: alone they are large and cancel."""
        names = [name.partition(".")[0] for name in self.components]
        place = {name: i for i, name in enumerate(dict.fromkeys(names))}
        to = torch.tensor([place[name] for name in names], device=self.queries.device)
        left, right = (
            side.new_zeros(len(place), side.shape[1]).index_add(0, to, side)
            for side in (self.queries, self.keys)
        )
        return ScoreDecomposition(left, right, tuple(place))

    def largest(self, k: Count = 5) -> list[tuple[str, str, float]]:
        """The `k` pairs of largest size: (query component, key component, share). Pairs are formed a block at a time."""
        ends = []
        for sign in (1, -1):
            values, rows, columns = largest_entries(
                sign * self.queries, self.keys.T, min(k, len(self.components) ** 2)
            )
            ends += zip((sign * values).tolist(), rows.tolist(), columns.tolist(), strict=True)
        best = sorted(dict.fromkeys(ends), key=lambda end: -abs(end[0]))[:k]
        return [(self.components[i], self.components[j], share) for share, i, j in best]


@public
@ids()
@must(
    lambda dst, src, row, tokens: (
        (src <= dst < tokens.shape[-1] and row < (len(tokens) if tokens.ndim == 2 else 1))
        or f"0 <= src <= dst < {tokens.shape[-1]} and a row of the batch, because a head looks back. Count from 0"
    )
)
def score_decomposition(
    model: AnyModel,
    tokens: Int[Tensor, "*batch pos"],
    head: HeadName,
    dst: Natural,
    src: Natural,
    *,
    row: Natural = 0,
    neurons: bool | None = None,
) -> ScoreDecomposition:
    r"""Who makes a head look there: its score at (`dst`, `src`) split by what earlier components wrote.

    $s = \sum_{i,j} (c_i W_Q) (c_j W_K)^\top / \sqrt{d_{head}}$ over the components $c$ of the stream at the destination and
    at the source; norms frozen, rotations by the distance, a soft cap behind the sum. `b_Q`, `b_K` and the norm's bias are
    the component `"bias"`. `neurons`: whether neuron-heads of a converted model stand for themselves (left out: where it has
    at most 1024). **Shapes**: `row` picks from a batch. **Error**: exact up to rounding. **Source**: "A Mathematical
    Framework for Transformer Circuits", the table behind Q- and K-composition.
    """
    value, rows = anatomy(model), tokens[None] if tokens.ndim == 1 else tokens
    apart = value.few_neurons() if neurons is None else neurons
    names, queries, keys = run_of(model, rows[[row]]).score_sides(
        value.head_name(head), dst, src, neurons=apart
    )
    return ScoreDecomposition(queries, keys, names)
