"""Gated MLPs as heads: the query reads the gate, the value reads the other branch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Limit, NonNegative, must, one_dtype, public, whole
from circuitkit._stored import stored
from circuitkit.anatomy import Neurons
from circuitkit.conversion._head_sum import FUNCTIONS, PIECE, HeadSum, in_single

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
                reach: HeadSum(name, tuple(row[:n]), tuple(row[n : 2 * n]), none, tuple(row[2 * n :]), error, reach)
                for reach, error, *row in rows.tolist()
            }
    return dict(sorted(found.items()))


def _scaled(fit: HeadSum, activation: str, scale: float) -> HeadSum:
    """`f(scale g) / scale` for the `f` that was fitted."""
    b, d = tuple(b * scale for b in fit.b), tuple(d / scale for d in fit.d)
    return replace(fit, activation=activation, b=b, d=d, error=fit.error / scale, reach=fit.reach / scale)


def _one_knob(activation: str, heads_per_neuron: int | None, max_error: float | None) -> Any:
    one = (heads_per_neuron is None) != (max_error is None) and heads_per_neuron != 1
    return activation == "sigmoid" or one or f"exactly one of heads_per_neuron (2 to {MOST_GATE_HEADS}) and max_error: each decides the other"


@public
@must(lambda activation: activation in (*FUNCTIONS, "sigmoid") or f"one of {sorted([*FUNCTIONS, 'sigmoid'])}, which a gate can be")
@must(lambda reach, activation: activation == "sigmoid" or reach * (1.702 if activation == "quick_gelu" else 1) <= _MOST_REACH
     or f"a finite range up to {_MOST_REACH:g}: state the range of the gate's pre-activations, or leave this layer as it is")
@must(_one_knob)
def gate_sum(
    activation: str, reach: Limit, heads_per_neuron: GateHeads | None = None, max_error: NonNegative | None = None
) -> HeadSum:
    """Sigmoids that follow a gate's activation, `f(g) = sum_i d_i sigmoid(b_i g + c_i)` for `|g| <= reach`.

    A head multiplies a sigmoid of its query by a value that is linear in the stream: a gate that *is* a sigmoid is one head,
    exactly; any other is followed by a sum of sigmoids on a finite range only. Taken is the stored fit (`tools/train/gates.py`)
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

    @cached_property
    def places(self) -> Tensor:
        """`which`, made once: as long a list takes as long to read as a few heads to compute."""
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
        return torch.cat([F.pad(fit.columns(like), (0, k - len(fit))) for fit in self.sums], 1)[:, self.places]

    @in_single
    def __call__(self, g: Float[Tensor, "*batch d_mlp"]) -> Float[Tensor, "*batch d_mlp"]:
        b, c, _, d = self.columns(g)
        if torch.is_grad_enabled() and g.requires_grad:
            heads = zip(b.T, c.T, d.T, strict=True)
            return sum(((g * bi + ci).sigmoid() * di for bi, ci, di in heads), torch.zeros_like(g))
        # 2 sigmoid(z) = 1 + tanh(z / 2), and tanh is the quicker
        b, c, d = b / 2, c / 2, d / 2
        flat = g.reshape(-1, g.shape[-1])
        out, sizes = d.sum(-1).repeat(len(flat), 1), torch.tensor([len(fit) for fit in self.sums])[self.places]
        for less, k in pairwise([0, *sorted(set(sizes.tolist()))]):
            some = (sizes > less).nonzero()[:, 0].to(g.device)
            whole = len(some) > 0.75 * len(sizes)  # a few more heads that write 0 are quicker than a selection
            reads, gathered = (flat, out) if whole else (flat.index_select(1, some), out.index_select(1, some))
            columns = [(column if whole else column[some])[:, less:k].T.contiguous() for column in (b, c, d)]
            rows = max(1, PIECE // max(1, reads.shape[1]))
            for piece, total in zip(reads.split(rows), gathered.split(rows), strict=True):
                for bi, ci, di in zip(*columns, strict=True):
                    total.addcmul_(torch.addcmul(ci, piece, bi).tanh_(), di)
            if not whole:
                out.index_copy_(1, some, gathered)
        return out.view(g.shape)


def gate_sums(
    activation: str, reaches: Sequence[float], heads_per_neuron: int | None = None, max_error: float | None = None
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
        if max_error is None:
            return fit(reach, max(k for k in table if k <= (heads_per_neuron or 0)))
        found = next((made for made in (fit(reach, k) for k in table) if made.error <= max_error), None)
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
