"""The path expansion: logits as an exact sum over paths through frozen attention patterns."""

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Count, Integer, Model, Names, Natural, ids, public, unconverted
from circuitkit._precision import require_same
from circuitkit.circuits._frozen import Affine, Frozen, freeze

DIRECT, BIAS, REST = "direct", "bias", "rest"


@public
class PathLogits(Mapping):
    """A mapping from path name to that path's logits `[batch, pos, d_vocab]`, made when asked for.

    `"direct"` is the token straight to the logits, `"L0H1"` through one head, `"L0H1>L1H3"` through two in a row (a
    virtual head), `"MLP0>L1H3"` begins with what an MLP wrote. `"bias"` holds everything that biases add, `"rest"` all
    chains longer than the order asked for. The sum of all values is the model's logits.

    **Source**: see `path_logits`.
    """

    def __init__(self, streams: dict[str, Float[Tensor, "batch pos d_model"]], frozen: Frozen):
        self._streams = streams
        self._frozen = frozen

    def __getitem__(self, name: str) -> Float[Tensor, "batch pos d_vocab"]:
        return self.sum([name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def __repr__(self) -> str:
        orders = [self.order(name) for name in self]
        counts = ", ".join(f"{orders.count(order)} of order {order}" for order in sorted({*orders} - {-1}))
        return f"PathLogits({len(self)} paths: {counts}{', the rest' if REST in self else ''})"

    def order(self, name: str) -> int:
        """How many heads the path passes; -1 for `"rest"`."""
        self._known([name])
        return -1 if name == REST else sum(part.startswith("L") for part in name.split(">"))

    def sum(self, names: Names | None = None, *, at: Integer | slice = slice(None)) -> Float[Tensor, "..."]:
        """The logits of several paths together (all of them by default), unembedded once; `at` picks positions."""
        names = self._known(list(self._streams if names is None else [names] if isinstance(names, str) else names))
        final, frozen = self._frozen.final, self._frozen
        if not names:
            return torch.zeros_like(frozen.logits[:, at])
        stream = torch.stack([self._streams[name] for name in names]).sum(0)
        logits = final.linear(stream)[:, at] @ frozen.W_U
        if BIAS in names:
            logits = logits if final.bias is None else logits + final.bias @ frozen.W_U
            logits = logits if frozen.b_U is None else logits + frozen.b_U
        return logits

    def stream(self, name: str) -> Float[Tensor, "batch pos d_model"]:
        """What the path leaves in the residual stream before the unembedding (and the final norm)."""
        return self._streams[self._known([name])[0]]

    def _known(self, names: list[str]) -> list[str]:
        unknown = [name for name in names if name not in self._streams]
        if unknown:
            shown = ", ".join([*self._streams][:12]) + ", ..." * (len(self) > 12)
            raise ValueError(f"no path is called {unknown[0]!r}; the paths are: {shown}")
        return names


@public
@unconverted
@ids()
def path_logits(
    model: Model, tokens: Int[Tensor, "*batch pos"], *, max_order: Natural | None = None, most: Count = 4096
) -> PathLogits:
    r"""Logits as a sum over paths with every attention pattern frozen at its value on these tokens.

    Two attention-only layers without biases: $W_E W_U + \sum_h A^h \otimes W_{OV}^h +
    \sum_{h_2, h_1} (A^{h_2} A^{h_1}) \otimes W_{OV}^{h_1} W_{OV}^{h_2}$, read from the token to the logits.
    `max_order` is the longest chain of heads kept apart (default: all); longer ones are summed in `"rest"`.

    **Norms**: scales (and means) are frozen at the values the model used; that is exact for the sum, but a path's share
    then depends on what the others wrote. **MLPs**: what an MLP wrote is taken as given, and is the start of its own
    paths. **Shapes**: tokens `[batch, pos]` or `[pos]`, values `[batch, pos, d_vocab]`. **Error**: exact up to rounding
    (1e-5 of the largest logit in float32, 1e-12 in float64), and checked: a model with parts unknown here raises.
    **Source**: "A Mathematical Framework for Transformer Circuits", path expansion; LayerNorm and MLPs are ours.
    """
    frozen = freeze(model, tokens, "path_logits")
    order = frozen.n_layers if max_order is None else max_order
    _require_few(frozen, order, most)
    paths = PathLogits(_expand(frozen, order), frozen)
    text = "path_logits: the paths do not sum to the model's own logits. It has parts between its blocks that are not known here "
    text += "(a soft cap, a norm after attention, a scaled residual), and an expansion that leaves something out explains nothing"
    require_same(paths.sum(), frozen.logits, 1e-3 * max(1.0, float(frozen.logits.abs().max())), text)
    return paths


def _require_few(frozen: Frozen, order: int, most: int) -> None:
    """A `ValueError` before, not a full memory after."""
    by_order = [1, *[0] * frozen.n_layers]
    for number in range(frozen.n_layers):
        width = frozen.patterns[number].shape[1]
        by_order = [n + width * (by_order[k - 1] if k else 0) for k, n in enumerate(by_order)]
        by_order[0] += frozen.mlps[number] is not None
    n_paths = sum(by_order[: order + 1])
    if n_paths > most:
        affordable = [k for k in range(len(by_order)) if sum(by_order[: k + 1]) <= most]
        raise ValueError(
            f"path_logits would keep {n_paths} paths of up to {order} heads apart; expected at most {most}, because each is a stream of "
            f"its own. Write max_order={affordable[-1]} (longer chains are then summed in 'rest'), or raise most=."
        )


def _expand(frozen: Frozen, order: int) -> dict[str, Tensor]:
    """Every path's contribution to the last residual stream."""
    start = torch.stack(list(frozen.starts.values())).sum(0)
    streams, orders = {DIRECT: start}, {DIRECT: 0}
    bias, rest = torch.zeros_like(start), torch.zeros_like(start)
    for number in range(frozen.n_layers):
        heads, norm, pattern = frozen.layer(number), frozen.norms[number], frozen.patterns[number]
        names = list(streams)
        moved = _through(heads, pattern, norm.linear(torch.stack([*streams.values(), bias, rest])))
        bias = bias + moved[-2].sum(0) + _constant(heads, pattern, norm)
        bias = bias if (written := frozen.output_biases[number]) is None else bias + written
        rest = rest + moved[-1].sum(0)
        for row, name in enumerate(names):
            if orders[name] >= order:
                rest = rest + moved[row].sum(0)
                continue
            for head, label in enumerate(heads.names):
                path = label if name == DIRECT else f"{name}>{label}"
                streams[path], orders[path] = moved[row, head], orders[name] + 1
        if (mlp := frozen.mlps[number]) is not None:
            streams[f"MLP{number}"], orders[f"MLP{number}"] = mlp, 0
    streams = dict(sorted(streams.items(), key=lambda item: orders[item[0]]))
    if _has_biases(frozen):
        streams[BIAS] = bias
    if order < frozen.n_layers:
        streams[REST] = rest
    return streams


def _through(heads, pattern: Tensor, x: Float[Tensor, "path batch pos d_model"]) -> Tensor:
    """What each head of a layer writes when it reads each stream: `[path, head, batch, pos, d_model]`."""
    values = torch.einsum("nbpm,hmd->nhbpd", x, heads.W_V)
    return torch.einsum("bhqp,nhbpd->nhbqd", pattern, values) @ heads.W_O[:, None]


def _constant(heads, pattern: Tensor, norm: Affine) -> Tensor:
    """What a layer writes because of the norm's bias and the value biases, whatever is in the stream."""
    values = torch.zeros_like(heads.W_V[:, 0]) if heads.b_V is None else heads.b_V
    if norm.bias is not None:
        values = values + norm.bias @ heads.W_V
    per_row = torch.einsum("bhqp,hd->bhqd", pattern, values)
    return torch.einsum("bhqd,hdm->bqm", per_row, heads.W_O)


def _has_biases(frozen: Frozen) -> bool:
    norms = [*frozen.norms, frozen.final]
    given = [frozen.heads.b_V, frozen.b_U, *frozen.output_biases, *(norm.bias for norm in norms)]
    return any(value is not None for value in given)
