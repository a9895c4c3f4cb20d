"""Activation functions as sums of sigmoid heads: which sums follow SiLU, ReLU and GELU, and how closely.

A head that chooses between its own token and a bias token computes `sigmoid(b x + c) (a x + d)` of
the number x that a neuron reads. A few such heads, added up, follow an activation function.

To add an activation, (1) give it an entry in `ACTIVATIONS`; (2) unless a scaled SiLU computes it
exactly, fit it and store the fits in `data/conversion/activations.json`; (3) if it is also used as
a gate, store fits for gates in `data/conversion/gates.safetensors`. `studies/edition-2/train` has
the scripts that fitted the others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit.checks import checked
from circuitkit.models import stored

__all__ = ["HeadSum", "gate_sum", "generalized_silu", "head_sum"]

QUICK_GELU_SCALE = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU: `x sigmoid(1.702 x)`."""
    return F.silu(QUICK_GELU_SCALE * x) / QUICK_GELU_SCALE


def gelu_of_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU."""
    return F.gelu(x, approximate="tanh")


@dataclass(frozen=True)
class Activation:
    """An activation function that can be converted.

    Parameters
    ----------
    function : what torch computes
    max_slope : no less than its slope anywhere. The promise about rounding rests on it, because an
        error of the pre-activation is passed on at most `max_slope` times. Write `math.inf` for a
        function of unbounded slope; then nothing is promised.
    silu_scale : s, if the function is `SiLU(s x) / s`
    """

    function: Callable[[Tensor], Tensor]
    max_slope: float
    silu_scale: float | None = None


ACTIVATIONS = {
    "silu": Activation(F.silu, 1.0999, silu_scale=1.0),
    "relu": Activation(F.relu, 1.0),
    "gelu": Activation(F.gelu, 1.1290),
    "gelu_new": Activation(gelu_of_tanh, 1.1291),
    "quick_gelu": Activation(quick_gelu, 1.0999, silu_scale=QUICK_GELU_SCALE),
    "sigmoid": Activation(torch.sigmoid, 0.25),
}
"""The functions by name. A sigmoid is known as a gate only, where it is one head."""

# The largest |relu(x) - silu(x)|; it is reached where |x| = 1 + exp(-|x|), at |x| = 1.27846.
RELU_MINUS_SILU = 0.27846454276107367
DEFAULT_SHARPNESS = 2.0**14
MOST_HEADS = 8
MOST_GATE_HEADS = 32


@dataclass(frozen=True, eq=False, repr=False)
class HeadSum:
    """`f(x) = sum_i sigmoid(b_i x + c_i) (a_i x + d_i)`: each term is one head of dimension 1.

    The query of a head is `b_i x + c_i`. Its keys are -1 at the bias token and 0 elsewhere, so that
    the two-way softmax puts the weight `sigmoid(b_i x + c_i)` on the token itself. There the value
    is `a_i x + d_i`; at the bias token it is 0.

    In a *gate* the value does not depend on the gate's x. There `a_i = 0`, and `d_i` is a factor of
    what the other branch reads.

    Parameters
    ----------
    activation : the name of the function that the sum follows
    coefficients : b, c, a and d of each head, `[4, neuron, head]`; one row for all neurons, or a
        row for each
    errors : the largest difference from the activation for `|x| <= reach` in exact arithmetic, for
        each row
    reach : the range on which the errors hold

    Notes
    -----
    Source: "Attention-Only Transformers", section 2, for one term; sums and gates are this book's.

    Examples
    --------
    >>> round(float(head_sum("silu")(torch.tensor(1.0))), 4)
    0.7311
    """

    activation: str
    coefficients: Float[Tensor, "4 neuron head"]
    errors: Float[Tensor, " neuron"]
    reach: float = math.inf

    def __len__(self) -> int:
        """How many heads a neuron has."""
        return self.coefficients.shape[-1]

    def __repr__(self) -> str:
        return f"HeadSum({self.activation!r}, {len(self)} heads a neuron, error {self.error:.2g})"

    @property
    def error(self) -> float:
        """The largest error of any neuron."""
        return float(self.errors.max()) if self.errors.numel() else 0.0

    @property
    def terms(self) -> list[list[float]]:
        """`[b, c, a, d]` of each head, of the first neuron if neurons differ."""
        return self.coefficients[:, 0].T.tolist()

    @property
    def scaled_silu(self) -> tuple[float, float] | None:
        """`(s, r)` if the whole sum is `r SiLU(s x)`, else None."""
        if self.coefficients[0].numel() != 1:
            return None
        ((b, c, a, d),) = self.terms
        return (b, a / b) if c == d == 0 != b else None

    def columns(self, like: Tensor) -> Float[Tensor, "4 neuron head"]:
        """The coefficients in the dtype and on the device of another tensor."""
        return self.coefficients.to(like)

    def __call__(self, x: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch neuron"]:
        """The sum, entry by entry. Half precision is summed in float32 and rounded once."""
        if x.dtype in (torch.bfloat16, torch.float16):
            return self(x.float()).to(x.dtype)
        if self.scaled_silu is not None:
            scale, factor = self.scaled_silu
            return F.silu(x) if scale == factor == 1 else F.silu(scale * x) * factor
        total = torch.zeros_like(x)
        for b, c, a, d in self.columns(x).unbind(-1):  # each [neuron]
            weight_on_itself = torch.sigmoid(b * x + c)
            total = total + weight_on_itself * (a * x + d)
        return total


def require_activation(name: str) -> None:
    """Raise a `ValueError` for an activation that is not in `ACTIVATIONS`."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"The activation {name!r} is not supported. Heads can compute {sorted(ACTIVATIONS)}."
        )


def same_for_all_neurons(activation: str, terms: list, error: float) -> HeadSum:
    """The sum whose heads have these rows (b, c, a, d), on the whole line."""
    rows = torch.tensor(terms, dtype=torch.float64)  # [head, 4]
    return HeadSum(activation, rows.T[:, None], torch.tensor([error], dtype=torch.float64))


@checked
def generalized_silu(
    a1: float | int, a2: float | int, activation: str = "generalized silu", error: float = 0.0
) -> HeadSum:
    """The activations of the paper, which one head computes: `a1 SiLU(a2 x)`.

    Parameters
    ----------
    a1, a2 : the two factors; the paper's GELU has `1 / 1.702` and `1.702`
    activation : the name of the function that this shall follow
    error : its largest difference from that function

    Notes
    -----
    Source: "Attention-Only Transformers", section 2.
    """
    return same_for_all_neurons(activation, [[a2, 0.0, a1 * a2, 0.0]], error)


@checked
def head_sum(
    activation: str,
    heads_per_neuron: int | None = None,
    *,
    max_error: float | int | None = None,
    sharpness: float | int | None = None,
) -> HeadSum:
    """The heads that compute an activation function on the whole line.

    `"silu"` and `"quick_gelu"` are exact with one head. `"relu"` is `SiLU(s x) / s` with a
    sharpness s, and its error is `0.2785 / s`. `"gelu"` and `"gelu_new"` have stored fits of 1 to
    8 heads.

    Parameters
    ----------
    activation : `"silu"`, `"quick_gelu"`, `"relu"`, `"gelu"` (by erf) or `"gelu_new"` (by tanh)
    heads_per_neuron : how many heads; 5 where it matters and neither number is given
    max_error : instead of that, the largest error allowed; the fewest heads within it are taken
    sharpness : of ReLU; 16384 unless given or set by `max_error`

    Raises
    ------
    ValueError : if the activation is unknown or the error cannot be met

    Notes
    -----
    Error: `.error`, on the whole line. Source: "Attention-Only Transformers", section 2; the sums
    are this book's.

    Examples
    --------
    >>> round(head_sum("gelu", heads_per_neuron=1).error, 4)
    0.0139
    """
    require_activation(activation)
    if activation == "sigmoid":
        raise ValueError("A sigmoid alone has no x in its value. Use gate_sum('sigmoid', reach).")
    if heads_per_neuron is not None and not 1 <= heads_per_neuron <= MOST_HEADS:
        raise ValueError(
            f"A neuron has 1 to {MOST_HEADS} heads, not heads_per_neuron={heads_per_neuron}."
        )
    scale = ACTIVATIONS[activation].silu_scale
    if scale is not None:
        return same_for_all_neurons(activation, [[scale, 0.0, 1.0, 0.0]], 0.0)
    if activation == "relu":
        return relu_sum(max_error, sharpness)
    fits = {
        int(k): fit
        for k, fit in stored("conversion", "activations.json")["fits"][activation].items()
    }
    if max_error is not None:
        heads_per_neuron = fewest_heads(activation, fits, max_error)
    fit = fits[heads_per_neuron or 5]
    rows = zip(fit["b"], fit["c"], fit["a"], fit["d"], strict=True)
    return same_for_all_neurons(activation, list(rows), fit["error"])


def fewest_heads(activation: str, fits: dict[int, dict], max_error: float) -> int:
    """The smallest number of heads whose fit is within an error."""
    for heads_per_neuron in sorted(fits):
        if fits[heads_per_neuron]["error"] <= max_error:
            return heads_per_neuron
    raise ValueError(
        f"An error of {max_error:.3g} cannot be met for {activation!r}: {MOST_HEADS} heads per "
        f"neuron reach {fits[MOST_HEADS]['error']:.3g}. Allow that much, or write "
        f"heads_per_neuron={MOST_HEADS}."
    )


def relu_sum(max_error: float | None, sharpness: float | None) -> HeadSum:
    """`SiLU(s x) / s`, which follows ReLU the more closely the larger s."""
    s = DEFAULT_SHARPNESS if sharpness is None else float(sharpness)
    if max_error is not None:
        if max_error <= 0:
            raise ValueError("One head follows ReLU up to an error that is never 0. Allow some.")
        # a power of two scales without rounding
        s = 2.0 ** math.ceil(math.log2(RELU_MINUS_SILU / max_error))
    if not 0 < s < math.inf:
        raise ValueError(f"The sharpness of ReLU is a positive, finite number, not {s}.")
    return same_for_all_neurons("relu", [[s, 0.0, 1.0, 0.0]], RELU_MINUS_SILU / s)


@checked
def gate_sum(
    activation: str,
    reach: float | int | Float[Tensor, " neuron"],
    heads_per_neuron: int | None = None,
    *,
    max_error: float | int | None = None,
) -> HeadSum:
    """Sigmoids that follow the activation of a gate: `f(g) = sum_i d_i sigmoid(b_i g + c_i)`.

    In a gated MLP the query of a head reads the gate, and its value the other branch. A gate that
    *is* a sigmoid is one head exactly. Any other is followed by a sum of sigmoids on a finite range
    only: each neuron takes the stored fit of the next larger range.

    Parameters
    ----------
    activation : `"sigmoid"`, or the gate's activation as in `head_sum`
    reach : the largest size of the gate's pre-activation, for all neurons or for each
    heads_per_neuron : at most how many heads, 2 to 32
    max_error : instead of that, the largest error allowed; the fewest heads within it are taken

    Raises
    ------
    ValueError : if no fit reaches so far, or none is within the error

    Notes
    -----
    Error: `.error` for `|g| <= .reach`, proved between grid points too. Source: this book; the
    paper leaves gated MLPs out.

    Examples
    --------
    >>> gate_sum("silu", 30.0, 16).error < 1e-5
    True
    """
    require_activation(activation)
    if activation == "sigmoid":
        return same_for_all_neurons("sigmoid", [[1.0, 0.0, 0.0, 1.0]], 0.0)
    if (heads_per_neuron is None) == (max_error is None):
        raise ValueError(
            "gate_sum needs either heads_per_neuron or max_error, because each decides the other. "
            "Write for example heads_per_neuron=16."
        )
    reaches = torch.as_tensor(reach, dtype=torch.float64).reshape(-1)
    tables = gate_tables(activation)
    if heads_per_neuron is not None:
        if not min(tables) <= heads_per_neuron <= MOST_GATE_HEADS:
            raise ValueError(
                f"A neuron with a {activation!r} gate has {min(tables)} to {MOST_GATE_HEADS} heads, "
                f"not heads_per_neuron={heads_per_neuron}."
            )
        most = max(k for k in tables if k <= heads_per_neuron)
        return gate_fit(activation, tables[most], reaches)
    for k in sorted(tables):
        fit = gate_fit(activation, tables[k], reaches)
        if fit.error <= (max_error or 0.0):
            return fit
    raise ValueError(
        f"An error of {max_error:.3g} cannot be met for a {activation!r} gate on "
        f"[-{float(reaches.max()):.3g}, {float(reaches.max()):.3g}]: {max(tables)} heads per neuron "
        f"reach {fit.error:.3g}. Allow more, or state a smaller range that holds."
    )


def gate_tables(activation: str) -> dict[int, Float[Tensor, "range column"]]:
    """The stored fits of a gate by heads per neuron; a row is the range, the error, b, c and d."""
    # a quick GELU is a scaled SiLU
    fitted = "silu" if ACTIVATIONS[activation].silu_scale is not None else activation
    tables = {}
    for name, rows in stored("conversion", "gates.safetensors").items():
        gate, heads_per_neuron = name.rsplit(".", 1)
        if gate == fitted:
            tables[int(heads_per_neuron)] = rows[rows[:, 0].argsort()]
    return tables


def gate_fit(activation: str, rows: Tensor, reaches: Float[Tensor, " neuron"]) -> HeadSum:
    """For each neuron the stored fit of the next larger range; `rows` are the fits of one size."""
    ranges = rows[:, 0].contiguous()
    if activation == "relu":
        # s ReLU(g / s) = ReLU(g), so one stored range serves all
        scale = ranges[0] / reaches.clamp_min(1e-30)  # [neuron]
        place = torch.zeros_like(reaches, dtype=torch.long)
    else:
        scale = torch.full_like(reaches, ACTIVATIONS[activation].silu_scale or 1.0)
        require_stored_range(activation, reaches, float(ranges[-1] / scale[0]))
        place = torch.searchsorted(ranges, reaches * scale)
    errors, reach = rows[place, 1] / scale, ranges[place] / scale  # [neuron]
    b, c, d = rows[place, 2:].unflatten(-1, (3, -1)).unbind(-2)  # [neuron, head]
    b, d = b * scale[:, None], d / scale[:, None]
    return HeadSum(
        activation, torch.stack([b, c, torch.zeros_like(b), d]), errors, float(reach.max())
    )


def require_stored_range(activation: str, reaches: Tensor, stored_up_to: float) -> None:
    """Raise a `ValueError` if a gate can meet more than the fits were made for."""
    largest = float(reaches.max())
    if not largest <= stored_up_to:
        raise ValueError(
            f"A {activation!r} gate can meet {largest:.3g} here, and fits are stored up to "
            f"{stored_up_to:.3g}. State a smaller range that holds, or leave this layer as it is."
        )
