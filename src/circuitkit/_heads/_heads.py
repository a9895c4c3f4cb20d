"""`Heads`: a frozen stack of attention heads with names, a mask and low-rank QK and OV matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._heads._mask import MASKS, Mask, allowed_pairs

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix

Positions = Literal["absolute", "rotary", "other"]
_TENSORS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Heads:
    """A stack of attention heads. Row vectors: a head reads `x @ W_Q`, `x @ W_K`, `x @ W_V` and writes `z @ W_O`.

    One head's output on a stream `x[pos, d_model]` is `softmax(mask(x W_QK x^T / scale)) x W_OV` when biases are zero,
    with `W_QK = W_Q W_K^T` and `W_OV = W_V W_O`. The framework paper writes the same with column vectors.
    Left out: biases mean zero, `layers` layer 0 for every head, `scale` sqrt(d_head).

    **Error**: the products are exact up to rounding. **Source**: "A Mathematical Framework for Transformer
    Circuits", transposed: its vectors are columns.
    """

    names: tuple[str, ...]
    """One name per head, such as `"L1H3"`; unique."""
    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "head d_model d_head"]
    W_V: Float[Tensor, "head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None
    """Query bias; `None` means zero. Likewise `b_K`, `b_V`. Output biases belong to a layer, not to a head."""
    b_K: Float[Tensor, "head d_head"] | None
    b_V: Float[Tensor, "head d_head"] | None
    layers: tuple[int, ...]
    """The layer each head sits in; a head composes only with heads of earlier layers."""
    scale: float
    """Scores are divided by this."""
    mask: Mask
    positions: Positions
    """`"absolute"`: positions are part of the stream. `"rotary"`: queries and keys are rotated by position, so `QK` as
    given here holds for two tokens at the same position only. `"other"`: scores hold more than these matrices (ALiBi,
    relative positions, a soft cap, a local window)."""

    def __init__(
        self,
        names: Sequence[str],
        W_Q: Float[Tensor, "head d_model d_head"],
        W_K: Float[Tensor, "head d_model d_head"],
        W_V: Float[Tensor, "head d_model d_head"],
        W_O: Float[Tensor, "head d_head d_model"],
        b_Q: Float[Tensor, "head d_head"] | None = None,
        b_K: Float[Tensor, "head d_head"] | None = None,
        b_V: Float[Tensor, "head d_head"] | None = None,
        *,
        layers: Sequence[int] | None = None,
        scale: float | None = None,
        mask: Mask = "causal",
        positions: Positions = "absolute",
    ) -> None:
        names = tuple(names)
        layers = (0,) * len(names) if layers is None else tuple(int(layer) for layer in layers)
        scale = math.sqrt((1, *W_Q.shape)[-1]) if scale is None else scale
        given = (names, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, layers, scale, mask, positions)
        vars(self).update(zip((field.name for field in fields(self)), given, strict=True))
        problems = _problems(self)
        if problems:
            raise ValueError("these heads do not fit together:\n  " + "\n  ".join(problems))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self):
        return (self[name] for name in self.names)

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:6]) + (", ..." if len(self) > 6 else "")
        return f"Heads([{shown}], n={len(self)}, d_model={self.d_model}, d_head={self.d_head}, mask={self.mask!r})"

    def __getitem__(self, key: "str | int | slice | Sequence[str | int]") -> "Heads":
        """Heads by name (`"L1H3"`), by a list of names, by index or by slice; always `Heads` again."""
        if isinstance(key, slice):
            return self._take(list(range(len(self)))[key])
        return self._take([self.index(k) for k in ([key] if isinstance(key, (str, int)) else key)])

    def index(self, key: "str | int") -> int:
        """Position of a head in the stack, by name or by (possibly negative) index."""
        if isinstance(key, str):
            if key not in self.names:
                shown = ", ".join(self.names[:24]) + (f", ... ({len(self)} in all)" if len(self) > 24 else "")
                raise ValueError(f"no head is called {key!r}; the heads are: {shown}")
            return self.names.index(key)
        if not -len(self) <= key < len(self):
            raise ValueError(f"head index {key} is out of range for {len(self)} heads")
        return int(key) % len(self)

    def _take(self, rows: list[int]) -> "Heads":
        picked = {name: getattr(self, name)[rows] for name in _TENSORS if getattr(self, name) is not None}
        layers = tuple(self.layers[row] for row in rows)
        return replace(self, names=tuple(self.names[row] for row in rows), layers=layers, **picked)

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

        return FactoredMatrix(self.W_Q, self.W_K.transpose(-2, -1))

    @property
    def OV(self) -> "FactoredMatrix":
        """`W_V @ W_O`, `[head, d_model, d_model]`, kept as its two factors."""
        from transformer_lens import FactoredMatrix

        return FactoredMatrix(self.W_V, self.W_O)

    def to(self, *args, **kwargs) -> "Heads":
        """The same heads on another device or in another dtype; arguments as in `torch.Tensor.to`."""
        moved = {name: getattr(self, name).to(*args, **kwargs) for name in _TENSORS if getattr(self, name) is not None}
        return replace(self, **moved)

    def scores(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """Attention scores before mask and softmax, `[..., head, dst, src]`, on what the heads read."""
        if self.positions != "absolute":
            why = "rotate queries and keys by position" if self.positions == "rotary" else "do not score by QK alone"
            raise ValueError(
                f"these heads {why} (positions={self.positions!r}); expected positions='absolute'. "
                "Read their pattern from the model's cache: model.run_with_cache(tokens)[1]['blocks.0.attn.hook_pattern']."
            )
        _need_stream(self, x)
        q = torch.einsum("...pm,hmd->...hpd", x, self.W_Q) + _row(self.b_Q)
        k = torch.einsum("...pm,hmd->...hpd", x, self.W_K) + _row(self.b_K)
        return q @ k.transpose(-2, -1) / self.scale

    def pattern(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch head pos pos"]:
        """Attention pattern `[..., head, dst, src]`: softmax over allowed sources; rows sum to 1."""
        _need_stream(self, x)
        allowed = allowed_pairs(self.mask, x.shape[-2], x.device)
        return self.scores(x).masked_fill(~allowed, -math.inf).softmax(-1)

    def results(
        self, x: Float[Tensor, "*batch pos d_model"], pattern: Float[Tensor, "*batch head pos pos"] | None = None
    ) -> Float[Tensor, "*batch head pos d_model"]:
        """What each head writes, `[..., head, pos, d_model]`, with its own pattern or a given (frozen) one."""
        _need_stream(self, x)
        v = torch.einsum("...pm,hmd->...hpd", x, self.W_V) + _row(self.b_V)
        return (self.pattern(x) if pattern is None else pattern) @ v @ self.W_O


def _need_stream(heads: Heads, x: Tensor) -> None:
    """A `ValueError` unless these heads can read `x`."""
    W = heads.W_Q
    if not isinstance(x, Tensor):
        given = f"a {type(x).__name__}"
    elif x.ndim < 2 or x.shape[-1] != heads.d_model or (x.dtype, x.device) != (W.dtype, W.device):
        given = f"shape {tuple(x.shape)}, {x.dtype}, on {x.device}"
    else:
        return
    raise ValueError(
        f"these heads got a stream x of {given}; expected [..., pos, d_model] with d_model={heads.d_model}, {W.dtype}, on "
        f"{W.device}, as their weights are. Bring the heads to the stream with heads.to(x)."
    )


def _row(bias: Tensor | None) -> Tensor | float:
    return 0.0 if bias is None else bias[:, None, :]


def _problems(heads: Heads) -> list[str]:
    """Everything that is wrong with the parts of a `Heads`, each as one line."""
    n, out = len(heads.names), []
    wanted = {"W_Q": "[head, d_model, d_head]", "W_K": "[head, d_model, d_head]", "W_V": "[head, d_model, d_head]"}
    wanted |= {
        "W_O": "[head, d_head, d_model]",
        "b_Q": "[head, d_head]",
        "b_K": "[head, d_head]",
        "b_V": "[head, d_head]",
    }
    if heads.W_Q.ndim != 3:
        out.append(f"W_Q has shape {tuple(heads.W_Q.shape)}; expected three axes {wanted['W_Q']}")
    sizes = {"head": n, **dict(zip(("d_model", "d_head"), heads.W_Q.shape[1:], strict=False))}
    for name in _TENSORS if heads.W_Q.ndim == 3 else ():
        tensor = getattr(heads, name)
        expected = tuple(sizes[axis] for axis in wanted[name].strip("[]").split(", "))
        if tensor is not None and tuple(tensor.shape) != expected:
            out.append(f"{name} has shape {tuple(tensor.shape)}; expected {expected} = {wanted[name]}")
    if len(set(heads.names)) != n:
        out.append(f"names are not unique: {sorted({name for name in heads.names if heads.names.count(name) > 1})}")
    if len(heads.layers) != n:
        out.append(f"layers has {len(heads.layers)} entries for {n} names")
    if heads.mask not in MASKS:
        out.append(f"mask is {heads.mask!r}; expected one of {list(MASKS)}")
    if heads.positions not in get_args(Positions):
        out.append(f"positions is {heads.positions!r}; expected 'absolute', 'rotary' or 'other'")
    return out


def stack(*parts: Heads) -> Heads:
    """One `Heads` with the heads of all parts in order. Parts must agree in d_model, d_head, scale, mask, positions.

    A bias that only some parts have is filled with zeros for the others, which changes nothing they compute.

    **Shapes**: `[head, ...]` tensors are joined along `head`. **Error**: none. **Source**: this book.
    """
    if not parts:
        raise ValueError("stack needs at least one Heads; got none")
    for part in parts:
        if not isinstance(part, Heads):
            raise ValueError(
                f"stack got a {type(part).__name__}; expected Heads, each an argument of its own: stack(*list_of_heads), "
                "or circuitkit.heads(model) for a model's."
            )
    first = parts[0]
    for name in ("d_model", "d_head", "scale", "mask", "positions"):
        values = [getattr(part, name) for part in parts]
        if any(value != values[0] for value in values):
            raise ValueError(f"cannot stack heads whose {name} differ: {values}; keep them apart")
    joined = {}
    for name in _TENSORS:
        tensors = [getattr(part, name) for part in parts]
        if all(tensor is None for tensor in tensors):
            continue
        filled = [
            part.W_Q.new_zeros(len(part), part.d_head) if t is None else t
            for part, t in zip(parts, tensors, strict=True)
        ]
        joined[name] = torch.cat(filled)
    same = {f.name: getattr(first, f.name) for f in fields(first) if f.name not in (*_TENSORS, "names", "layers")}
    names = tuple(name for part in parts for name in part.names)
    return Heads(names=names, layers=tuple(layer for part in parts for layer in part.layers), **same, **joined)
