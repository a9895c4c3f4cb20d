"""`Heads`: a stack of attention heads that never changes, with names, a mask, rotation, and low-rank QK and OV matrices."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import (
    AS_IT_IS,
    Count,
    HeadName,
    HeadNames,
    Integer,
    Natural,
    Place,
    Positive,
    kind,
    must,
    one_dtype,
    place_of,
    public,
    reads,
)

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix


@dataclass(frozen=True, eq=False)
class Turn:
    """Queries and keys at position p are turned by `p * angles[n]` in plane n, so a score depends on the distance only.

    **Error**: angles are in the dtype of the model's own tables (float32). **Source**: Su et al. 2021, rotary position embedding.
    """

    planes: Int[Tensor, "plane 2"]
    """The two dimensions of each plane; dimensions in no plane are not turned."""
    angles: Float[Tensor, " plane"]
    """Radians for each position."""
    gain: float = 1.0
    """Turned dimensions are multiplied by this, in queries and keys alike (YaRN)."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn) or self.gain != other.gain:
            return False
        return torch.equal(self.planes, other.planes) and torch.equal(self.angles, other.angles)

    __hash__ = object.__hash__

    def __call__(
        self, x: Float[Tensor, "*batch pos d_head"], at: Int[Tensor, " pos"] | None = None
    ) -> Float[Tensor, "*batch pos d_head"]:
        """Each row turned to its position (`at`, by default 0, 1, 2, ...)."""
        at = torch.arange(x.shape[-2], device=x.device) if at is None else at
        angle = at[:, None].to(self.angles) * self.angles
        cos, sin = (self.gain * part.to(x) for part in (angle.cos(), angle.sin()))
        first, second = self.planes.T
        out = x.clone()
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., second] * cos + x[..., first] * sin
        return out

    def matrix(self, distance: int, d_head: int) -> Float[Tensor, "d_head d_head"]:
        """`R` such that a source `distance` tokens back scores `q R k^T`."""
        rows = torch.eye(d_head, dtype=self.angles.dtype, device=self.angles.device)
        there, here = (
            self(rows, torch.full((d_head,), p, device=rows.device)) for p in (distance, 0)
        )
        return there @ here.mT


Mask = Literal["causal", "full", "self_or_first"]
Positions = Literal["absolute", "rotary", "other"]
Kind = Literal["Q", "K", "V"]
NormLike = Annotated[
    Any,
    kind(
        lambda norm: type(norm).__name__ == "Norm",
        "a norm",
        "it is applied to each head",
        "Write anatomy.Norm(...).",
    ),
]
_TENSORS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
_SHARED = ("W_K", "W_V", "b_K", "b_V", "norm_K")
"""What the heads of a group have in common."""
_LATER: Any = None  # filled from the other arguments


def _known(queries: Tensor, keys: Tensor) -> Any:
    # the extremes are finite where all is, and NaN where anything is: no second copy of the weights
    whole = all(
        not W.numel() or torch.stack(W.aminmax()).isfinite().all() or W.isnan().all()
        for W in (queries, keys)
    )
    return whole or "finite W_Q and W_K, or NaN alone: no circuit at all"


def _grouped(W_K: Tensor, groups: tuple[int, ...] | None, names: Sequence[str]) -> Any:
    n = len(names) if groups is None else 1 + max(groups, default=-1)
    good = len(W_K) == n and (groups is None or len(groups) == len(names))
    return (
        good
        or f"[{n}, d_model, d_head], and a group for each of {len(names)} heads where heads share"
    )


@public
def allowed_pairs(
    mask: Mask, n_pos: Natural, device: torch.device | str | None = None
) -> Bool[Tensor, "dst src"]:
    """True where attention is allowed.

    - `"causal"`: the position itself and everything before it.
    - `"full"`: every position (encoders).
    - `"self_or_first"`: the position itself and position 0, the bias token of a neuron that became a head
      (the mask matrix of "Attention-Only Transformers", Theorem 2, with the bias token first, so that it is causal).
    """
    pairs = torch.ones(n_pos, n_pos, dtype=torch.bool, device=device)
    if mask == "causal":
        return pairs.tril()
    if mask == "self_or_first":
        pairs = torch.eye(n_pos, dtype=torch.bool, device=device)
        pairs[:, 0] = True
    return pairs


@public
@must(
    lambda names, W_Q: (
        len(names) == len({*names}) == len(W_Q)
        or f"one name for each of {len(W_Q)} heads, and unique ones"
    )
)
@must(
    lambda layers, names: (
        layers is None
        or len(layers) == len(names)
        or f"layers with {len(names)} entries, one a head"
    )
)
@must(_grouped)
@must(_known, "W_Q", "W_K")
@one_dtype(*_TENSORS)
@reads("W_Q")
@one_dtype("pattern", "x")
@one_dtype("q", "k")
@must(
    lambda pattern, self: (
        pattern.shape[-3] == len(self) or f"patterns of {len(self)} heads, [..., head, dst, src]"
    )
)
@must(
    lambda scores, self: (
        scores.shape[-3] == len(self) or f"scores of {len(self)} heads, [..., head, dst, src]"
    )
)
@dataclass(frozen=True, eq=False, repr=False)
class Heads:
    """A stack of attention heads. Row vectors: a head reads `x @ W_Q`, `x @ W_K`, `x @ W_V` and writes `z @ W_O`.

    One head's output on a stream `x[pos, d_model]` is `softmax(mask(x W_QK x^T / scale)) x W_OV` when biases are zero, with
    `W_QK = W_Q W_K^T` and `W_OV = W_V W_O`. The framework paper writes the same with column vectors. Left out: biases mean
    zero, `layers` layer 0 for every head, `scale` sqrt(d_head). **Error**: the products are exact up to rounding.
    **Source**: "A Mathematical Framework for Transformer Circuits", transposed: its vectors are columns.
    """

    names: tuple[str, ...]
    """One name per head, such as `"L1H3"`; unique."""
    W_Q: Annotated[Float[Tensor, "head d_model d_head"], AS_IT_IS]
    W_K: Annotated[Float[Tensor, "group d_model d_head"], AS_IT_IS]
    """One key and one value matrix for each head, or for each group of heads where `groups` says so."""
    W_V: Float[Tensor, "group d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None = None
    """Query bias; `None` means zero. Likewise `b_K`, `b_V`. Output biases belong to a layer, not to a head."""
    b_K: Float[Tensor, "group d_head"] | None = None
    b_V: Float[Tensor, "group d_head"] | None = None
    _: KW_ONLY
    layers: tuple[Natural, ...] = _LATER
    """The layer each head sits in; a head composes only with heads of earlier layers."""
    scale: Positive = _LATER
    """Scores are divided by this."""
    mask: Mask = "causal"
    positions: Positions = "absolute"
    """`"absolute"`: positions are part of the stream. `"rotary"`: queries and keys are rotated by position, so `QK` as
    given here holds for two tokens at the same position only; scores need `turn`. `"other"`: scores hold more than is
    known here (ALiBi, relative positions)."""
    groups: tuple[Natural, ...] | None = None
    """Grouped queries: the row of `W_K`, `W_V` that each head reads with. `None`: its own."""
    turn: Turn | None = None
    """Rotary positions."""
    norm_Q: NormLike | None = None
    """A norm of the queries, gain `[head, 1, d_head]` (`circuitkit.anatomy.Norm`); `norm_K` likewise by group."""
    norm_K: NormLike | None = None
    cap: Positive | None = None
    """Scores are squeezed to `cap * tanh(score / cap)`."""
    window: Count | None = None
    """A destination sees itself and the `window - 1` positions before it; `None`: all that the mask allows."""
    of: str = ""
    """The model they were read from, if it has a name: heads of two models share no stream, and are not composed."""

    def __post_init__(self) -> None:
        layers = (
            (0,) * len(self.names)
            if self.layers is None
            else tuple(int(layer) for layer in self.layers)
        )
        scale = math.sqrt(self.W_Q.shape[-1]) if self.scale is None else self.scale
        vars(self).update(names=tuple(self.names), layers=layers, scale=scale)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self):
        return (self[name] for name in self.names)

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:6]) + (", ..." if len(self) > 6 else "")
        return f"Heads([{shown}], n={len(self)}, d_model={self.d_model}, d_head={self.d_head}, mask={self.mask!r})"

    def __getitem__(self, key: HeadNames | slice) -> "Heads":
        """Heads by name (`"L1H3"`), by a list of names, by index or by slice; always `Heads` again."""
        if isinstance(key, slice):
            return self._take(list(range(len(self)))[key])
        return self._take([self.index(k) for k in ([key] if isinstance(key, (str, int)) else key)])

    def index(self, key: HeadName) -> int:
        """Position of a head in the stack, by name or by (possibly negative) index."""
        return place_of(key, self.names)

    def _take(self, rows: list[int]) -> "Heads":
        """These heads, as views where they lie side by side."""
        if rows == list(range(len(self))):
            return self
        groups, picked, kept = self.groups, {}, rows
        if groups is not None:
            kept = sorted({groups[row] for row in rows})
            groups = tuple(kept.index(groups[row]) for row in rows)
        own, shared = _rows(rows), _rows(kept)
        for name in (*_TENSORS, "norm_Q", "norm_K"):
            value, where = getattr(self, name), shared if name in _SHARED else own
            if value is not None:
                picked[name] = value.take(where) if name.startswith("norm") else value[where]
        if groups == tuple(range(len(rows))):
            groups = None
        names, layers = (tuple(field[row] for row in rows) for field in (self.names, self.layers))
        return replace(self, names=names, layers=layers, groups=groups, **picked)

    def by_head(self, name: Literal["W_K", "W_V", "b_K", "b_V", "W_Q", "W_O", "b_Q"]) -> Tensor:
        """`W_Q`, `W_K`, `W_V`, `b_K`, ... with one entry for each head: repeated where heads share it, a view elsewhere."""
        value = getattr(self, name)
        return value if self.groups is None or name not in _SHARED else value[list(self.groups)]

    def ungrouped(self) -> "Heads":
        """The same heads, each with keys and values of its own."""
        if self.groups is None:
            return self
        own: dict[str, Any] = {
            name: self.by_head(name) for name in _SHARED[:-1] if getattr(self, name) is not None
        }
        norm = None if self.norm_K is None else self.norm_K.take(list(self.groups))
        return replace(self, groups=None, norm_K=norm, **own)

    @property
    def d_model(self) -> int:
        return self.W_Q.shape[1]

    @property
    def d_head(self) -> int:
        return self.W_Q.shape[2]

    @property
    def QK(self) -> "FactoredMatrix":
        """`W_Q @ W_K^T`, `[head, d_model, d_model]`, kept as its two factors. Not divided by `scale`."""
        from transformer_lens import FactoredMatrix

        return FactoredMatrix(self.W_Q, self.by_head("W_K").mT)

    def QK_at(self, distance: Integer) -> "FactoredMatrix":
        """`W_Q R W_K^T` for a source `distance` tokens back under rotary positions, biases and norms left out; else it is `QK`."""
        from transformer_lens import FactoredMatrix

        _need_turn(self)
        left = (
            self.W_Q
            if self.turn is None
            else self.W_Q @ self.turn.matrix(distance, self.d_head).to(self.W_Q)
        )
        return FactoredMatrix(left, self.by_head("W_K").mT)

    @property
    def OV(self) -> "FactoredMatrix":
        """`W_V @ W_O`, `[head, d_model, d_model]`, kept as its two factors."""
        from transformer_lens import FactoredMatrix

        return FactoredMatrix(self.by_head("W_V"), self.W_O)

    def to(self, *args: Place, **kwargs) -> "Heads":
        """The same heads on another device or in another dtype; arguments as in `torch.Tensor.to`."""
        held = (*_TENSORS, "norm_Q", "norm_K")
        moved = {
            name: getattr(self, name).to(*args, **kwargs)
            for name in held
            if getattr(self, name) is not None
        }
        return replace(self, **moved)

    def scores(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """Attention scores before mask and softmax, `[..., head, dst, src]`, on what the heads read."""
        return self.scores_of(self.side("Q", x), self.side("K", x))

    def side(
        self, kind: Kind, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos d_head"]:
        """Queries, keys or values (`kind` "Q", "K", "V") as they are compared: with biases, norms and rotation."""
        if kind != "V":
            _need_turn(self)
        out, norm = projected(self, kind, x), getattr(self, f"norm_{kind}", None)
        out = out if norm is None else norm(out)
        out = out if self.turn is None or kind == "V" else self.turn(out)
        return out if kind == "Q" or self.groups is None else out[..., list(self.groups), :, :]

    def scores_of(
        self,
        q: Annotated[Float[Tensor, "*batch head dst d_head"], AS_IT_IS],
        k: Annotated[Float[Tensor, "*batch head src d_head"], AS_IT_IS],
    ) -> Float[Tensor, "*batch head dst src"]:
        """Scores of given queries and keys: divided by `scale`, squeezed by `cap`."""
        scores = q @ k.mT / self.scale
        return scores if self.cap is None else self.cap * (scores / self.cap).tanh()

    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """Attention pattern `[..., head, dst, src]`: softmax over allowed sources; rows sum to 1."""
        return self.pattern_of(self.scores(x))

    def pattern_of(
        self, scores: Annotated[Float[Tensor, "*batch head pos pos"], AS_IT_IS]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """The softmax of scores over the sources that mask and window allow."""
        return scores.masked_fill(
            ~self.allowed(scores.shape[-1], scores.device), -math.inf
        ).softmax(-1)

    def allowed(
        self, n_pos: Natural, device: torch.device | str | None = None
    ) -> Bool[Tensor, "dst src"]:
        """True where mask and window let a destination see a source."""
        pairs = allowed_pairs(self.mask, n_pos, device)
        return (
            pairs if self.window is None else pairs & torch.ones_like(pairs).triu(1 - self.window)
        )

    def results(
        self,
        x: Float[Tensor, "*batch pos d_model"],
        pattern: Float[Tensor, "*batch head pos pos"] | None = None,
    ) -> Float[Tensor, "*batch head pos d_model"]:
        """What each head writes, `[..., head, pos, d_model]`, with its own pattern or a given (frozen) one."""
        return (self.pattern(x) if pattern is None else pattern) @ self.side("V", x) @ self.W_O


def _need_turn(heads: Heads) -> None:
    """A `ValueError` unless everything is known that these heads do to queries and keys."""
    if heads.positions == "other" or (heads.positions == "rotary" and heads.turn is None):
        why = (
            "rotate queries and keys by position"
            if heads.positions == "rotary"
            else "do not score by QK alone"
        )
        raise ValueError(
            f"these heads {why} (positions={heads.positions!r}); expected positions='absolute'. "
            "Read their pattern from the model's cache: model.run_with_cache(tokens)[1]['blocks.0.attn.hook_pattern']. Or "
            "take heads that know their rotation: circuitkit.anatomy(model)['L0H0']."
        )


def _rows(rows: list[int]) -> slice | list[int]:
    """Rows side by side as a slice, which gives views."""
    return (
        slice(rows[0], rows[-1] + 1)
        if rows and rows == list(range(rows[0], rows[-1] + 1))
        else rows
    )


def projected(heads: Heads, kind: str, x: Tensor) -> Tensor:
    """`x W + b` for queries, keys or values, by head or, where heads share, by group."""
    out, bias = (
        torch.einsum("...pm,hmd->...hpd", x, getattr(heads, f"W_{kind}")),
        getattr(heads, f"b_{kind}"),
    )
    return out if bias is None else out + bias[:, None, :]


@public
@must(
    lambda parts: (
        len({part.of for part in parts} - {""}) < 2
        or "heads of one model, because others share no stream with them"
    )
)
def stack(*parts: Heads) -> Heads:
    """One `Heads` with the heads of all parts in order, which must agree in sizes, scale, mask, positions, cap, window and turn.

    A bias that only some parts have is zero for the others. **Shapes**: `[head, ...]` tensors are joined along `head`.
    **Error**: none. **Source**: this book.
    """
    if not parts:
        raise ValueError("stack needs at least one Heads; got none")
    first = parts[0]
    if len(parts) == 1:
        return first
    for name in ("d_model", "d_head", "scale", "mask", "positions", "cap", "window", "turn"):
        values = [getattr(part, name) for part in parts]
        if any(value != values[0] for value in values):
            raise ValueError(f"cannot stack heads whose {name} differ: {values}; keep them apart")
    joined: dict[str, Any] = {}
    for name in _TENSORS:
        tensors = [getattr(part, name) for part in parts]
        if all(tensor is None for tensor in tensors):
            continue
        filled = [
            part.W_Q.new_zeros(len(part.W_K) if name in _SHARED else len(part), part.d_head)
            if t is None
            else t
            for part, t in zip(parts, tensors, strict=True)
        ]
        joined[name] = torch.cat(filled)
    for name in ("norm_Q", "norm_K"):
        norms = [getattr(part, name) for part in parts]
        if any(norm is not None for norm in norms):
            if any(norm is None for norm in norms):
                raise ValueError(
                    f"cannot stack heads of which only some have a {name}; keep them apart"
                )
            joined[name] = norms[0].join(norms)
    if any(part.groups is not None for part in parts):
        before = [0, *torch.tensor([len(part.W_K) for part in parts]).cumsum(0).tolist()]
        own = [range(len(part)) if part.groups is None else part.groups for part in parts]
        joined["groups"] = tuple(
            first + g for first, groups in zip(before, own, strict=False) for g in groups
        )
    kept, models = (
        (*_TENSORS, "names", "layers", "norm_Q", "norm_K", "groups", "of"),
        {part.of for part in parts} - {""},
    )
    same = {f.name: getattr(first, f.name) for f in fields(first) if f.name not in kept}
    names = tuple(name for part in parts for name in part.names)
    layers = tuple(layer for part in parts for layer in part.layers)
    return Heads(
        names=names, layers=layers, of=models.pop() if len(models) == 1 else "", **same, **joined
    )
