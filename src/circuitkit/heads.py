"""Attention heads as a value, `Heads`; `circuitkit.reading` reads them out of a model.

Vectors are rows: a head reads `x @ W_Q`, `x @ W_K` and `x @ W_V`, and writes `z @ W_O`. Every
formula about a single head stands in this file: QK and OV, scores, patterns, masks, rotations.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import FactoredMatrix

from circuitkit.checks import (
    checked,
    require_device,
    require_finite,
    require_not_negative,
    require_plain,
    require_positive,
    shown,
)
from circuitkit.names import SIDES, Side, unknown

__all__ = ["Heads", "Rotary", "stack"]

Mask = Literal["causal", "full", "self_or_first"]
Positions = Literal["absolute", "rotary", "other"]

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "gain_Q", "gain_K")
SCORING = ("scale", "mask", "positions", "norm_eps", "norm_over", "cap", "window")
"""Fields that say how scores become patterns; all heads of a stack agree in them."""


# Parts of a head that are no matrices: rotation and mask


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary positions: a query or key at position p is rotated by `p * angles[n]` in plane n.

    A score then depends on the distance between two tokens, not on their positions.

    Parameters
    ----------
    planes : `[plane, 2]`, the two dimensions of each plane; other dimensions are not rotated
    angles : `[plane]`, in radians for each position
    gain : rotated dimensions are multiplied by this, in queries and keys alike (YaRN)

    Notes
    -----
    The angles have the precision of the model's own table, which is usually float32.
    Source: Su et al. 2021, "RoFormer".

    Examples
    --------
    >>> quarter = Rotary(torch.tensor([[0, 1]]), torch.tensor([torch.pi / 2]))
    >>> quarter(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).round().abs().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    planes: Int[Tensor, "plane 2"]
    angles: Float[Tensor, " plane"]
    gain: float = 1.0

    def __post_init__(self) -> None:
        require_positive(gain=self.gain)
        require_finite(self.angles, "angles, given to Rotary,")

    @checked
    def __call__(
        self, x: Float[Tensor, "*batch pos d_head"], positions: Int[Tensor, " pos"] | None = None
    ) -> Float[Tensor, "*batch pos d_head"]:
        """Rotate each row to its position, by default 0, 1, 2, ..."""
        if positions is None:
            positions = torch.arange(x.shape[-2], device=x.device)
        angle = positions[:, None].to(self.angles) * self.angles  # [pos, plane]
        cos = self.gain * angle.cos().to(x)
        sin = self.gain * angle.sin().to(x)
        first, second = self.planes.T
        rotated = x.clone()
        rotated[..., first] = x[..., first] * cos - x[..., second] * sin
        rotated[..., second] = x[..., second] * cos + x[..., first] * sin
        return rotated


def same_rotation(one: Rotary | None, other: Rotary | None) -> bool:
    """Whether two rotations have the same planes, angles and gain."""
    if one is None or other is None:
        return one is other
    return (
        one.gain == other.gain
        and torch.equal(one.planes, other.planes)
        and torch.equal(one.angles, other.angles)
    )


def allowed_pairs(
    mask: Mask, n_pos: int, device: torch.device | None = None
) -> Bool[Tensor, "dst src"]:
    """True for each destination (row) and each source that it may see under this mask."""
    pairs = torch.ones(n_pos, n_pos, dtype=torch.bool, device=device)
    if mask == "causal":
        return pairs.tril()
    if mask == "self_or_first":
        pairs = torch.eye(n_pos, dtype=torch.bool, device=device)
        pairs[:, 0] = True
    return pairs


# The stack of heads


@dataclass(frozen=True, eq=False, repr=False)
class Heads:
    """A stack of attention heads with names: a copy of their weights that never changes.

    One head's output on a stream `x` `[pos, d_model]` is `softmax(mask(x W_QK x^T / scale)) x W_OV`
    when biases are zero, with `W_QK = W_Q W_K^T` and `W_OV = W_V W_O`.

    Parameters
    ----------
    names : one unique name for each head, such as `"L1H3"`. A stack may be empty, as a list may:
        `heads[:0]`.
    W_Q, W_K, W_V : `[head, d_model, d_head]`. Where heads share keys and values (grouped queries),
        the shared matrices are repeated.
    W_O : `[head, d_head, d_model]`
    b_Q, b_K, b_V : `[head, d_head]`, or None for zero. An output bias belongs to a layer.
    layers : the layer of each head, by default 0; a head composes only with heads of lower layers
    scale : scores are divided by this; 0, the default, stands for `sqrt(d_head)`
    mask : what a destination sees. `"causal"`: itself and all positions before it. `"full"`: every
        position (encoders). `"self_or_first"`: itself and position 0, which is the bias token of a
        neuron that was converted into a head
    positions : `"absolute"` if positions are in the stream, `"rotary"` if queries and keys are
        rotated, `"other"` if scores depend on more than this class holds (ALiBi, or heads of
        several kinds); then the heads have weights and no patterns
    turn : the rotation of queries and keys
    gain_Q, gain_K : `[head, d_head]`, what queries and keys are multiplied by, or None for 1
    norm_eps : queries and keys are divided by `sqrt(mean(x^2) + norm_eps)`, or not if it is None
    norm_over : how many heads share this mean: 1, or all heads of the layer (OLMo 2)
    cap : scores are squeezed to `cap * tanh(score / cap)`
    window : a destination sees itself and the `window - 1` positions before it
    of : the model that the heads belong to, if known; heads of two models are not composed. Heads
        that were read before and after a change of the weights count as heads of one model, so read
        all of them again after it.
    why_no_patterns : if `positions` is `"other"`, why; error messages say it

    Notes
    -----
    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; its vectors
    are columns. The mask of neurons: "Attention-Only Transformers" (author unknown), Theorem 2; the
    bias token comes first here, so that the mask is causal. Norms of queries and keys: Henry et
    al. 2020, "Query-Key Normalization for Transformers".

    Examples
    --------
    >>> W = torch.ones(1, 4, 2)
    >>> Heads(("L0H0",), W, W, W, W.mT).pattern(torch.eye(2, 4)).tolist()
    [[[1.0, 0.0], [0.5, 0.5]]]
    """

    names: tuple[str, ...]
    W_Q: Float[Tensor, "head d_model d_head"]
    W_K: Float[Tensor, "head d_model d_head"]
    W_V: Float[Tensor, "head d_model d_head"]
    W_O: Float[Tensor, "head d_head d_model"]
    b_Q: Float[Tensor, "head d_head"] | None = None
    b_K: Float[Tensor, "head d_head"] | None = None
    b_V: Float[Tensor, "head d_head"] | None = None
    _: KW_ONLY
    layers: tuple[int | float, ...] = ()
    scale: float = 0.0
    mask: Mask = "causal"
    positions: Positions = "absolute"
    turn: Rotary | None = None
    gain_Q: Float[Tensor, "head d_head"] | None = None
    gain_K: Float[Tensor, "head d_head"] | None = None
    norm_eps: float | None = None
    norm_over: int = 1
    cap: float | None = None
    window: int | None = None
    of: str = ""
    why_no_patterns: str = ""

    def __post_init__(self) -> None:
        layers = tuple(self.layers) or (0,) * len(self.names)
        scale = float(self.scale) or math.sqrt(self.W_Q.shape[-1])
        # a frozen dataclass fills in defaults that depend on other fields in this way
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "scale", scale)
        n = len(self.names)
        if len(set(self.names)) < n or not n == len(layers) == len(self.W_Q):
            raise ValueError(
                f"A stack of heads needs a unique name and a layer for each of its {len(self.W_Q)} "
                f"heads; it was given the names {self.names} and the layers {self.layers}."
            )
        require_positive(scale=scale, cap=self.cap, window=self.window, norm_over=self.norm_over)
        require_not_negative(norm_eps=self.norm_eps)
        for layer in layers:
            require_not_negative(layer=layer)
        dtypes = {str(weight.dtype) for weight in weights_of(self).values()}
        if len(dtypes) > 1:
            raise ValueError(f"The weights have the dtypes {sorted(dtypes)}. Convert them to one.")
        for name, weight in weights_of(self).items():
            require_finite(weight, f"{name}, given to Heads,")

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator["Heads"]:
        return (self[name] for name in self.names)

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:6]) + (", ..." if len(self) > 6 else "")
        sizes = f"d_model={self.d_model}, d_head={self.d_head}, mask={self.mask!r}"
        return f"Heads([{shown}], n={len(self)}, {sizes})"

    def __getitem__(self, key: str | int | slice | Sequence[str] | Sequence[int]) -> "Heads":
        """The heads with a name, `heads["L1H3"]`, or with names, a number, numbers or a slice.

        The result is always a stack of heads, also of one; its tensors are views where the heads
        lie side by side.
        """
        if isinstance(key, slice):
            rows = list(range(len(self)))[key]
        else:
            keys = key if isinstance(key, (list, tuple)) else [key]
            rows = [place_in_stack(self, one_key) for one_key in keys]
        if isinstance(key, tuple) and any(isinstance(part, int) for part in key):
            raise TypeError(
                f"heads[{', '.join(map(str, key))}] does not say whether it means a layer and a "
                "head. Write a name, heads['L1H3'], or a list of numbers, heads[[1, 3]]."
            )
        adjacent = bool(rows) and rows == list(range(rows[0], rows[-1] + 1))
        index = slice(rows[0], rows[-1] + 1) if adjacent else rows
        return replace(
            self,
            names=tuple(self.names[row] for row in rows),
            layers=tuple(self.layers[row] for row in rows),
            **{name: weight[index] for name, weight in weights_of(self).items()},
        )

    @property
    def d_model(self) -> int:
        """The length of the vectors that the heads read and write."""
        return self.W_Q.shape[1]

    @property
    def d_head(self) -> int:
        """The length of queries, keys and values."""
        return self.W_Q.shape[2]

    @property
    def QK(self) -> FactoredMatrix:
        """`W_Q @ W_K^T`, `[head, d_model, d_model]`, as two factors; not divided by `scale`."""
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:
        """`W_V @ W_O`, `[head, d_model, d_model]`, as two factors."""
        return FactoredMatrix(self.W_V, self.W_O)

    def to(self, *args: Any, **kwargs: Any) -> "Heads":
        """The same heads on another device or in another dtype; arguments of `torch.Tensor.to`."""
        # a first argument may also be a dtype or another tensor
        for device in (*args[:1], kwargs.get("device")):
            if isinstance(device, str | int | torch.device):
                require_device("heads.to", device)
        moved = {name: weight.to(*args, **kwargs) for name, weight in weights_of(self).items()}
        return replace(self, **moved)

    def side(
        self, side: Side, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos d_head"]:
        """Queries, keys or values of a stream, with biases, norms and rotation."""
        if side not in SIDES:
            raise ValueError(f"A side of a head is 'Q', 'K' or 'V', not {shown(side)}.")
        require_stream(self, x)
        out = torch.einsum("...pm,hmd->...hpd", x, getattr(self, f"W_{side}"))
        bias = getattr(self, f"b_{side}")
        if bias is not None:
            out = out + bias[:, None, :]
        if side == "V":
            return out
        require_scores(self)
        if self.norm_eps is not None:
            out = out / norm_divisor(self, out)
        gain = getattr(self, f"gain_{side}")
        if gain is not None:
            out = out * gain[:, None, :]
        return out if self.turn is None else self.turn(out)

    def scores(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """Attention scores before mask and softmax, `[..., head, dst, src]`.

        Parameters
        ----------
        x : what the heads read: the stream behind the layer's norm
        """
        return self.scores_of(self.side("Q", x), self.side("K", x))

    def scores_of(
        self, query: Float[Tensor, "*batch dst d_head"], key: Float[Tensor, "*batch src d_head"]
    ) -> Float[Tensor, "*batch dst src"]:
        """Scores of given queries and keys, before mask and softmax, `[..., dst, src]`."""
        scores = query @ key.mT / self.scale
        return scores if self.cap is None else self.cap * (scores / self.cap).tanh()

    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch head pos pos"]:
        """Attention pattern `[..., head, dst, src]`; each row sums to 1."""
        return self.pattern_of(self.side("Q", x), self.side("K", x))

    def pattern_of(
        self, query: Float[Tensor, "*batch pos d_head"], key: Float[Tensor, "*batch pos d_head"]
    ) -> Float[Tensor, "*batch pos pos"]:
        """Attention pattern of given queries and keys, `[..., dst, src]`."""
        scores = self.scores_of(query, key)
        allowed = self.allowed(scores.shape[-1], scores.device)
        return scores.masked_fill(~allowed, -math.inf).softmax(-1)

    @checked
    def allowed(self, n_pos: int, device: torch.device | None = None) -> Bool[Tensor, "dst src"]:
        """True where mask and window let a destination see a source."""
        require_positive(n_pos=n_pos)
        pairs = allowed_pairs(self.mask, n_pos, device)
        return pairs if self.window is None else pairs.triu(1 - self.window)

    def results(
        self,
        x: Float[Tensor, "*batch pos d_model"],
        pattern: Float[Tensor, "*batch head pos pos"] | None = None,
    ) -> Float[Tensor, "*batch head pos d_model"]:
        """What each head writes, with its own pattern or a given (frozen) one."""
        if pattern is None:
            pattern = self.pattern(x)
        require_pattern(self, x, pattern)
        z = pattern @ self.side("V", x)  # [..., head, pos, d_head]
        return z @ self.W_O


Heads.__init__ = checked(Heads.__init__)  # shapes and types of the weights


def weights_of(heads: Heads) -> dict[str, Tensor]:
    """The weights, biases and gains that these heads have, by name."""
    values = {name: getattr(heads, name) for name in WEIGHTS}
    return {name: value for name, value in values.items() if value is not None}


def place_in_stack(heads: Heads, key: Any) -> int:
    """The place of a head in a stack, from its name or a (possibly negative) number."""
    if isinstance(key, str):
        if key not in heads.names:
            raise unknown("head", key, heads.names)
        return heads.names.index(key)
    if isinstance(key, bool) or not isinstance(key, int):
        raise TypeError(f"A head is called by its name or number, not {shown(key)}.")
    if not -len(heads) <= key < len(heads):
        raise IndexError(f"There is no head number {key}; the stack has {len(heads)} heads.")
    return key % len(heads)


def norm_divisor(
    heads: Heads, x: Float[Tensor, "*batch head pos d_head"]
) -> Float[Tensor, "*batch head_or_1 pos 1"]:
    """What the norm of these heads divides each query or key by."""
    if heads.norm_over not in (1, len(heads)):
        raise ValueError(
            f"The norm of these queries and keys divides by the size of all {heads.norm_over} heads "
            f"of a layer together, and these are {len(heads)}. Take all heads of the layer."
        )
    mean_square = x.square().mean(-1 if heads.norm_over == 1 else (-3, -1), keepdim=True)
    return (mean_square + (heads.norm_eps or 0.0)).sqrt()


def require_stream(heads: Heads, x: Any) -> None:
    """Raise an error if these heads cannot read this stream."""
    require_plain("These heads were given ", x)
    is_tensor = isinstance(x, Tensor)
    has_shape = is_tensor and x.ndim >= 2 and x.shape[-1] == heads.d_model
    if not has_shape or x.dtype != heads.W_Q.dtype:
        error = ValueError if is_tensor else TypeError
        raise error(
            f"These heads read a stream [..., pos, {heads.d_model}] of {heads.W_Q.dtype}, and they "
            f"were given {shown(x)}. Take it from a run, run(model, tokens).read('L0H0'), or "
            "convert one of the two with .to(dtype)."
        )
    require_finite(x, "The stream that was given to these heads")


def require_pattern(heads: Heads, x: Tensor, pattern: Any) -> None:
    """Raise an error if a pattern does not fit these heads and the positions of a stream."""
    require_stream(heads, x)
    is_tensor = isinstance(pattern, Tensor)
    expected = (*x.shape[:-2], len(heads), x.shape[-2], x.shape[-2])
    has_shape = is_tensor and pattern.shape in (expected, expected[-3:])
    if not has_shape or pattern.dtype != x.dtype:
        error = ValueError if is_tensor else TypeError
        raise error(
            f"The pattern is {shown(pattern)}. These heads and this stream need the shape "
            f"{expected}, which is [..., head, dst, src], in {x.dtype}."
        )
    require_finite(pattern, "The pattern that was given to these heads")


def require_scores(heads: Heads) -> None:
    """Raise a `ValueError` if it is not known how these heads score."""
    is_rotation_missing = heads.positions == "rotary" and heads.turn is None
    if heads.positions == "other" or is_rotation_missing:
        reason = heads.why_no_patterns or f"turn is None, and positions={heads.positions!r}"
        raise ValueError(
            f"The patterns of these heads ({', '.join(heads.names[:3])}, ...) cannot be computed "
            f"from their weights: {reason}. A run of the model has them: "
            f"run(model, tokens).pattern({heads.names[0]!r})."
        )


def in_full_precision(tensor: Tensor) -> Tensor:
    """The tensor, in float32 if it is in half precision, in which torch has no decompositions."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


@checked
def stack(first: Heads, *others: Heads) -> Heads:
    """One stack with the heads of all parts, in order.

    Parameters
    ----------
    first, others : heads that agree in sizes, scale, mask, positions, rotation, norms, cap and
        window. A bias that only some of them have is zero for the others.

    Raises
    ------
    ValueError : if they differ, or belong to different models

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> W = torch.ones(1, 4, 2)
    >>> stack(Heads(("a",), W, W, W, W.mT), Heads(("b",), W, W, W, W.mT)).names
    ('a', 'b')
    """
    parts = (first, *others)
    models = {part.of for part in parts} - {""}
    if len(models) > 1:
        raise ValueError(
            f"These heads belong to different models ({', '.join(sorted(models))}), which share no "
            "stream. Stack heads of one model."
        )
    if len(parts) == 1:
        return first
    if difference := first_difference(parts):
        raise ValueError(
            f"Heads that differ in {difference} cannot be stacked. Keep them apart, or read them "
            "together with heads_of(model, names), which then gives weights without patterns."
        )
    return replace(
        first,
        names=tuple(name for part in parts for name in part.names),
        layers=tuple(layer for part in parts for layer in part.layers),
        of=models.pop() if models else "",
        **{name: joined_weights(parts, name) for name in WEIGHTS},
    )


def first_difference(parts: Sequence[Heads]) -> str:
    """The first property in which heads differ so that they cannot be stacked, or ""."""
    first = parts[0]
    for name in ("d_model", "d_head", *SCORING):
        values = [getattr(part, name) for part in parts]
        if any(value != values[0] for value in values):
            return f"{name} ({', '.join(map(str, values))})"
    if any(not same_rotation(first.turn, part.turn) for part in parts):
        return "their rotation"
    if first.norm_over > 1 and len(parts) > 1:
        return "the layer over which queries and keys are normalised"
    return ""


def joined_weights(parts: Sequence[Heads], name: str) -> Tensor | None:
    """One weight of all parts; parts that lack a bias that others have get zeros, or gains of 1."""
    values = [getattr(part, name) for part in parts]
    if all(value is None for value in values):
        return None
    neutral = 1.0 if name.startswith("gain") else 0.0
    filled = []
    for part, value in zip(parts, values, strict=True):
        size = (len(part), part.d_head)
        filled.append(part.W_Q.new_full(size, neutral) if value is None else value)
    return torch.cat(filled)
