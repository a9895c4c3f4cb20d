"""Activation functions as sums of what one attention head can compute, sigmoid(b x + c) (a x + d); and gated MLPs, where
the query reads the gate and the value the other branch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, wraps
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import (
    Finite,
    Limit,
    Natural,
    NonNegative,
    Positive,
    must,
    one_dtype,
    public,
    whole,
)
from circuitkit.anatomy import Neurons
from circuitkit.models import stored

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
"""The activation functions that can be converted, as torch computes them."""

Activation = Literal["silu", "relu", "gelu", "gelu_new", "quick_gelu"]
NeuronHeadCount = Annotated[int, whole(1, 8, "a neuron has as many heads")]
DEFAULT_SHARPNESS = 2.0**14
PIECE = 2**17
_Sum = TypeVar("_Sum", bound=Callable)
_RELU_ERROR = (
    0.27846454276107367  # max of |relu(x) - silu(x)|, at |x| = 1.27846, the root of x = 1 + exp(-x)
)


def in_single(run: _Sum) -> _Sum:
    """Sums in half precision lose what their terms cancel: run them in float32 and round once."""
    run_wide = cast("Any", run)

    @wraps(run_wide)
    def wide(self: Any, x: Tensor) -> Tensor:
        half = x.dtype in (torch.bfloat16, torch.float16)
        return run_wide(self, x.float()).to(x.dtype) if half else run_wide(self, x)

    return cast("_Sum", wide)


@public
@must(
    lambda a, b, c, d: (
        len(a) == len(b) == len(c) == len(d) > 0 or "one number of each for every head"
    )
)
@dataclass(frozen=True)
class HeadSum:
    """`f(x) = sum_i sigmoid(b_i x + c_i) (a_i x + d_i)`: one term is one head of internal dimension 1.

    The query is `b_i x + c_i`; against a bias token with key -1 and value 0 the two-way softmax looks at the token itself with
    weight `sigmoid(b_i x + c_i)` and reads `a_i x + d_i` there. A *gate's* value does not know the gate: there `a_i = 0`, and `d_i`
    is the factor of the value. **Source**: "Attention-Only Transformers", section 2, for one term; sums and gates are this book's.
    """

    activation: str
    """The function this approximates."""
    b: tuple[Finite, ...]
    c: tuple[Finite, ...]
    a: tuple[Finite, ...]
    d: tuple[Finite, ...]
    error: NonNegative
    """Largest absolute difference from `activation` on `[-reach, reach]`, in exact arithmetic."""
    reach: Limit = math.inf
    """The whole real line, or for a gate the range that its pre-activations must stay within."""

    def __len__(self) -> int:
        return len(self.b)

    @in_single
    def __call__(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The sum, entry by entry; in place and in pieces that fit a cache where no gradient is asked for."""
        if not (torch.is_grad_enabled() and x.requires_grad) and x.numel():
            return self._in_pieces(x.contiguous())
        if self.scaled_silu is not None:
            scale, factor = self.scaled_silu
            return F.silu(x) if scale == factor == 1.0 else F.silu(x * scale) * factor
        heads = (torch.sigmoid(x * b + c) * (x * a + d if a else d) for b, c, a, d in self.terms)
        return sum(heads, start=torch.zeros_like(x))

    @property
    def scaled_silu(self) -> tuple[float, float] | None:
        """`(s, r)` if the whole sum is `r SiLU(s x)`, else None."""
        if len(self.terms) == 1 and self.c == self.d == (0.0,) and self.b[0] != 0:
            return self.b[0], self.a[0] / self.b[0]
        return None

    def _in_pieces(self, x: Tensor) -> Tensor:
        if self.scaled_silu is not None:
            scale, factor = self.scaled_silu
            out = F.silu(x) if scale == 1.0 else F.silu(x * scale, inplace=True)
            return out if factor == 1.0 else out.mul_(factor)
        out = torch.zeros_like(x)
        terms = [(b, x.new_tensor(c), a, d, x.new_tensor(d)) for b, c, a, d in self.terms]
        for piece, gathered in zip(
            x.view(-1).split(PIECE // 2), out.view(-1).split(PIECE // 2), strict=True
        ):
            for b, c, a, d, shift in terms:
                weight = torch.add(
                    c, piece, alpha=b
                ).sigmoid_()  # one pass, where a product and a sum would be two
                _ = (
                    gathered.addcmul_(weight, torch.add(shift, piece, alpha=a))
                    if a
                    else gathered.add_(weight, alpha=d)
                )
        return out

    def columns(self, like: Tensor) -> Float[Tensor, "bcad 1 head"]:
        """`b, c, a, d` of every head, the same for all neurons."""
        return like.new_tensor((self.b, self.c, self.a, self.d))[:, None]

    def heads(self, neurons: Natural) -> int:
        """Heads of so many neurons."""
        return neurons * len(self)

    def errors(self, like: Tensor) -> Tensor:
        """The error, the same for all neurons."""
        return like.new_tensor([self.error])

    @property
    def terms(self) -> tuple[tuple[float, float, float, float], ...]:
        """`(b, c, a, d)` of each head."""
        return tuple(zip(self.b, self.c, self.a, self.d, strict=True))


@public
def generalized_silu(
    a1: Finite, a2: Finite, activation: str = "generalized silu", error: NonNegative = 0.0
) -> HeadSum:
    """The paper's activations with one head: `a1 SiLU(a2 x)`; its GELU is `generalized_silu(1/1.702, 1.702, "gelu", 0.02034)`.

    **Source**: "Attention-Only Transformers", section 2.
    """
    return HeadSum(activation, (float(a2),), (0.0,), (float(a1) * float(a2),), (0.0,), error)


@cache
def _fits() -> dict[str, dict[str, dict]]:
    return stored("conversion", "activations.json")["fits"]


@public
@must(
    lambda heads_per_neuron, max_error: (
        heads_per_neuron is None or max_error is None or "either, not both: each decides the other"
    )
)
@must(
    lambda sharpness, activation: (
        sharpness is None or activation == "relu" or "no sharpness, a knob of relu only"
    )
)
@must(
    lambda sharpness, max_error: (
        sharpness is None
        or max_error is None
        or "either, not both: the error is 0.2785 / sharpness"
    )
)
@must(
    lambda max_error, activation: (
        max_error != 0 or activation != "relu" or "more: the error of one head is never zero"
    )
)
def head_sum(
    activation: Activation,
    heads_per_neuron: NeuronHeadCount | None = None,
    max_error: NonNegative | None = None,
    sharpness: Positive | None = None,
) -> HeadSum:
    """The heads that compute one activation function, fewest for the error asked.

    `silu` and `quick_gelu` are exact with one head. `relu` is `SiLU(s x)/s`, one head, error `0.2785/s`; the sharpness `s` is 16384
    unless given or set by `max_error`. `gelu` (erf) and `gelu_new` (tanh) take 1 to 8 heads, fitted on the whole line
    (`studies/edition-2/train/activations.py`). **Error**: `.error`, on the whole line. **Source**: section 2 of the paper; the sums are ours.

    >>> round(head_sum("gelu", heads_per_neuron=1).error, 4)
    0.0139
    """
    if activation == "silu":
        return generalized_silu(1.0, 1.0, "silu")
    if activation == "quick_gelu":
        return HeadSum("quick_gelu", (1.702,), (0.0,), (1.0,), (0.0,), 0.0)
    if activation == "relu":
        return _relu(max_error, sharpness)
    table = {int(k): fit for k, fit in _fits()[activation].items()}
    if max_error is not None:
        enough = [k for k in sorted(table) if table[k]["error"] <= max_error]
        if not enough:
            raise ValueError(
                f"max_error={max_error:g} cannot be met for {activation!r}: 8 heads per neuron reach "
                f"{table[8]['error']:.3g}; ask for that, or for heads_per_neuron=8"
            )
        heads_per_neuron = enough[0]
    fit = table[5 if heads_per_neuron is None else heads_per_neuron]
    return HeadSum(activation, *(tuple(fit[key]) for key in "bcad"), error=fit["error"])


def _relu(max_error: float | None, sharpness: float | None) -> HeadSum:
    s = DEFAULT_SHARPNESS if sharpness is None else float(sharpness)
    if max_error is not None:
        s = 2.0 ** math.ceil(
            math.log2(_RELU_ERROR / max_error)
        )  # a power of two scales without rounding
    return HeadSum("relu", (s,), (0.0,), (1.0,), (0.0,), _RELU_ERROR / s)


@public
def activation_error(
    activation: Activation, heads_per_neuron: NeuronHeadCount | None = None
) -> float:
    """The promised sup-norm error of an activation with so many heads per neuron; 0.0 where one head is exact.
    **Source**: `head_sum`.

    >>> activation_error("silu", 1)
    0.0
    """
    return head_sum(activation, heads_per_neuron=heads_per_neuron).error


_knobs = "activation", "heads_per_neuron", "max_error", "sharpness"
_fixed = "no other knob, because a HeadSum fixes its heads already"


@public
@must(lambda a, *knobs: not isinstance(a, HeadSum) or not any(knobs) or _fixed, *_knobs)
@one_dtype("W_in", "W_out", "b_in", "b_out")
def neuron_heads(
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    activation: Activation | HeadSum = "silu",
    heads_per_neuron: NeuronHeadCount | None = None,
    *,
    max_error: NonNegative | None = None,
    sharpness: Positive | None = None,
    layer: Natural = 0,
) -> Neurons:
    """The MLP `act(x W_in + b_in) W_out + b_out` as attention heads, one or a few per neuron.

    `activation` is a name or a `HeadSum` of your own; the knobs are those of `head_sum`. **Error**: `.bound`.
    **Source**: "Attention-Only Transformers", Theorem 2, with the bias token first, both biases kept and several heads per neuron.

    >>> import torch
    >>> mlp = neuron_heads(torch.eye(2), torch.eye(2), activation="silu")
    >>> mlp(torch.tensor([[0.0, 1.0]]))
    tensor([[0.0000, 0.7311]])
    """
    if not isinstance(activation, HeadSum):
        activation = head_sum(activation, heads_per_neuron, max_error, sharpness)
    return Neurons(W_in, W_out, b_in, b_out, activation, layer)


MOST_GATE_HEADS = 32
GateHeads = Annotated[int, whole(1, MOST_GATE_HEADS, "a neuron has as many heads")]
_MOST_REACH = 500.0


@cache
def _tables(activation: str) -> dict[int, dict[float, HeadSum]]:
    """The stored fits: heads a neuron, then reach."""
    found: dict[int, dict[float, HeadSum]] = {}
    for key, rows in stored("conversion", "gates.safetensors").items():
        name, k = key.rsplit(".", 1)
        if name == activation:
            n, none = int(k), (0.0,) * int(k)
            found[n] = {
                reach: HeadSum(
                    name,
                    tuple(row[:n]),
                    tuple(row[n : 2 * n]),
                    none,
                    tuple(row[2 * n :]),
                    error,
                    reach,
                )
                for reach, error, *row in rows.tolist()
            }
    return dict(sorted(found.items()))


def _scaled(fit: HeadSum, activation: str, scale: float) -> HeadSum:
    """`f(scale g) / scale` for the `f` that was fitted."""
    b, d = tuple(b * scale for b in fit.b), tuple(d / scale for d in fit.d)
    return replace(
        fit, activation=activation, b=b, d=d, error=fit.error / scale, reach=fit.reach / scale
    )


def _one_knob(activation: str, heads_per_neuron: int | None, max_error: float | None) -> Any:
    one = (heads_per_neuron is None) != (max_error is None) and heads_per_neuron != 1
    return (
        activation == "sigmoid"
        or one
        or f"exactly one of heads_per_neuron (2 to {MOST_GATE_HEADS}) and max_error: each decides the other"
    )


@public
@must(
    lambda activation: (
        activation in (*FUNCTIONS, "sigmoid")
        or f"one of {sorted([*FUNCTIONS, 'sigmoid'])}, which a gate can be"
    )
)
@must(
    lambda reach, activation: (
        activation == "sigmoid"
        or reach * (1.702 if activation == "quick_gelu" else 1) <= _MOST_REACH
        or f"a finite range up to {_MOST_REACH:g}: state the range of the gate's pre-activations, or leave this layer as it is"
    )
)
@must(_one_knob)
def gate_sum(
    activation: str,
    reach: Limit,
    heads_per_neuron: GateHeads | None = None,
    max_error: NonNegative | None = None,
) -> HeadSum:
    """Sigmoids that follow a gate's activation, `f(g) = sum_i d_i sigmoid(b_i g + c_i)` for `|g| <= reach`.

    A head multiplies a sigmoid of its query by a value that is linear in the stream: a gate that *is* a sigmoid is one head,
    exactly; any other is followed by a sum of sigmoids on a finite range only. Taken is the stored fit (`studies/edition-2/train/gates.py`)
    of the next larger range, with the most heads within `heads_per_neuron` or the fewest within `max_error`. **Error**: `.error`
    on `[-.reach, .reach]`, proved between grid points too. **Source**: ours; the paper leaves gated MLPs out.

    >>> gate_sum("silu", 30.0, 16).error < 1e-5
    True
    """
    if activation == "sigmoid":
        return HeadSum("sigmoid", (1.0,), (0.0,), (0.0,), (1.0,), 0.0)
    return gate_sums(activation, [float(reach)], heads_per_neuron, max_error).sums[0]


@dataclass(frozen=True, eq=False)
class GateSums:
    """The sums of a layer's neurons, each fitted to the range that this neuron can meet. Read like a `HeadSum`."""

    sums: tuple[HeadSum, ...]
    which: tuple[int, ...]
    """For each neuron, its place in `sums`."""

    @property
    def places(self) -> Tensor:
        """`which` as an index."""
        return torch.tensor(self.which)

    def __len__(self) -> int:
        """Heads of the neuron that has most; another's further heads hold the value 0."""
        return max(map(len, self.sums))

    def heads(self, neurons: int) -> int:
        """Heads that write, of all neurons."""
        return sum(len(self.sums[place]) for place in self.which)

    @property
    def activation(self) -> str:
        return self.sums[0].activation

    @property
    def error(self) -> float:
        """The largest error of any neuron's gate."""
        return max(fit.error for fit in self.sums)

    @property
    def reach(self) -> float:
        return max(fit.reach for fit in self.sums)

    @property
    def scaled_silu(self) -> None:
        """A gate is never one SiLU: it multiplies another branch."""

    def errors(self, like: Tensor) -> Float[Tensor, " d_mlp"]:
        """The error of each neuron's gate."""
        return like.new_tensor([fit.error for fit in self.sums])[self.places]

    def columns(self, like: Tensor) -> Float[Tensor, "bcad d_mlp head"]:
        """`b, c, a, d` of every head."""
        k = len(self)
        return torch.cat([F.pad(fit.columns(like), (0, k - len(fit))) for fit in self.sums], 1)[
            :, self.places
        ]

    @in_single
    def __call__(self, g: Float[Tensor, "*batch d_mlp"]) -> Float[Tensor, "*batch d_mlp"]:
        if torch.is_grad_enabled() and g.requires_grad:
            b, c, _, d = self.columns(g)
            heads = zip(b.T, c.T, d.T, strict=True)
            return sum(((g * bi + ci).sigmoid() * di for bi, ci, di in heads), torch.zeros_like(g))
        flat = g.reshape(-1, g.shape[-1])
        out = torch.zeros_like(flat)
        for some, columns in self._rounds(g):
            reads, gathered = (
                (flat, out)
                if some is None
                else (flat.index_select(1, some), out.index_select(1, some))
            )
            rows = max(1, PIECE // max(1, reads.shape[1]))
            for piece, total in zip(reads.split(rows), gathered.split(rows), strict=True):
                for bi, ci, di in columns:
                    total.addcmul_(torch.addcmul(ci, piece, bi).sigmoid_(), di)
            if some is not None:
                out.index_copy_(1, some, gathered)
        return out.view(g.shape)

    def _rounds(self, like: Tensor) -> list[tuple[Tensor | None, list[tuple[Tensor, ...]]]]:
        """Which neurons have heads left to sum, None for all, and `b, c, d` of these heads, a row each."""
        place = like.dtype, like.device
        if (
            type(like) is Tensor and place in self._laid_out
        ):  # a fake mode's tensors are of another type, and hold no numbers
            return self._laid_out[place]
        b, c, _, d = self.columns(like)
        sizes, rounds = [len(self.sums[fit]) for fit in self.which], []
        for less, k in pairwise([0, *sorted(set(sizes))]):
            chosen = [n for n, size in enumerate(sizes) if size > less]
            # a few more heads that write 0 are quicker than a selection
            some = (
                None
                if len(chosen) > 0.75 * len(sizes)
                else like.new_tensor(chosen, dtype=torch.long)
            )
            columns = (column if some is None else column[some] for column in (b, c, d))
            rounds.append(
                (
                    some,
                    list(
                        zip(*(column[:, less:k].T.contiguous() for column in columns), strict=True)
                    ),
                )
            )
        if type(like) is Tensor:
            self._laid_out[place] = rounds
        return rounds

    @cached_property
    def _laid_out(self) -> dict:
        return {}


def gate_sums(
    activation: str,
    reaches: Sequence[float],
    heads_per_neuron: int | None = None,
    max_error: float | None = None,
) -> GateSums:
    """For each neuron the stored fit of the next larger range, with so many heads or the fewest within `max_error`."""
    scale, stored = (1.702, "silu") if activation == "quick_gelu" else (1.0, activation)
    table = _tables(stored)
    ladder = sorted({rung for fits in _tables("silu").values() for rung in fits})
    if (most := max(reaches, default=1.0)) * scale > ladder[-1]:
        raise ValueError(
            f"a {activation!r} gate can meet {most:.3g}; fits are stored up to {ladder[-1] / scale:.3g}: state a smaller "
            "gate_range that holds, or leave this layer as it is"
        )

    def fit(reach: float, k: int) -> HeadSum:
        if activation == "relu":  # s ReLU(g / s) = ReLU(g): one range gives all
            (one,) = table[k].values()
            return _scaled(one, activation, one.reach / reach)
        best = next(one for rung, one in sorted(table[k].items()) if rung >= reach)
        return _scaled(best, activation, scale)

    def chosen(reach: float) -> HeadSum:
        if max_error is None and (heads_per_neuron or 0) < min(table):
            raise ValueError(
                f"heads_per_neuron={heads_per_neuron}; expected {min(table)} to {max(table)} for a {activation!r} gate"
            )
        if max_error is None:
            return fit(reach, max(k for k in table if k <= (heads_per_neuron or 0)))
        found = next(
            (made for made in (fit(reach, k) for k in table) if made.error <= max_error), None
        )
        if found is None:
            raise ValueError(
                f"max_error={max_error:g} cannot be met for a {activation!r} gate on [-{most:.3g}, {most:.3g}]: "
                f"{max(table)} heads per neuron reach {fit(reach, max(table)).error:.3g}; allow more "
                "error or state a smaller gate_range that holds"
            )
        return found

    rungs = [next(rung for rung in ladder if reach * scale <= rung) for reach in reaches]
    used = sorted(set(rungs), reverse=True) or ladder[:1]
    return GateSums(tuple(map(chosen, used)), tuple(used.index(rung) for rung in rungs))


@public
@one_dtype("W_gate", "W_in", "W_out", "b_gate", "b_in", "b_out")
def gated_neuron_heads(
    W_gate: Float[Tensor, "d_model d_mlp"],
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_gate: Float[Tensor, " d_mlp"] | None = None,
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    activation: str = "sigmoid",
    heads_per_neuron: GateHeads | None = None,
    *,
    gate_range: Limit = math.inf,
    max_error: NonNegative | None = None,
) -> Neurons:
    """A gated MLP as heads. Gated by a sigmoid, a neuron is one head exactly: `W_Q` is the gate and `W_V` the input.

    SwiGLU (`silu`), GEGLU and ReGLU need a finite `gate_range` and several heads (`gate_sum`); an output entry is then wrong
    by at most `error * max_j sum_n |u_n W_out[n, j]|`, with `u` the other branch. **Shapes**: as annotated. **Source**: ours.
    """
    terms = gate_sum(activation, gate_range, heads_per_neuron, max_error)
    return Neurons(W_in, W_out, b_in, b_out, terms, W_gate=W_gate, b_gate=b_gate)
