"""Activation functions as sums of sigmoid heads: which sums follow SiLU, ReLU and GELU, and how closely.

A head that chooses between its own token and a bias token computes `sigmoid(b x + c) (a x + d)` of
the number x that a neuron reads. A few such heads, added up, follow an activation function.

Sums on the whole line follow a function that tends to 0 on the left and to a line on the right. Sums
for gates follow any function, on a finite range. To add an activation such as softplus:

1. Give it an entry in `ACTIVATIONS`, and in `SILU_SCALES` if a scaled SiLU computes it exactly.
2. Otherwise fit it: `python -m studies.activation_fit softplus --store` adds to
   `data/conversion/activations.json`.
3. If MLPs use it as a gate, `python -m studies.activation_fit softplus --gate 10 30 100 --store` adds
   to `data/conversion/gates.safetensors`. After 2 or 3, run `python -m tools manifest`.
4. Write its formula into `EXACT` in `tests/support/activations.py`, and add its name to the tests in
   `tests/library/conversion/test_activations.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit.checks import checked, require_at_least, require_positive
from circuitkit.data import stored

SILU_SCALES = {"silu": 1.0, "quick_gelu": 1.702}
"""The activations that one head computes exactly: `SiLU(s x) / s` with this s."""


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU: `x sigmoid(1.702 x)`."""
    return F.silu(1.702 * x) / 1.702


def gelu_of_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": gelu_of_tanh,
    "quick_gelu": quick_gelu,
    "sigmoid": torch.sigmoid,
}
"""The functions by name. A sigmoid is known as a gate only, where it is one head."""

# The largest |relu(x) - silu(x)|; it is reached where |x| = 1 + exp(-|x|), at |x| = 1.27846.
RELU_MINUS_SILU = 0.27846454276107367


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
        row for each. The list `.terms` has `[b, c, a, d]` of each head of the first neuron alone.
    errors : the largest difference from the activation in exact arithmetic, for each row
    is_gate : whether it is the sum of a gate

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
    is_gate: bool = False

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
        """A list with `[b, c, a, d]` of each head; if neurons differ, those of the first neuron alone.

        `coefficients` holds the same numbers of all neurons, as a tensor `[4, neuron, head]`.
        """
        return self.coefficients[:, 0].T.tolist()

    def columns(self, like: Tensor) -> Float[Tensor, "4 neuron head"]:
        """The coefficients in the dtype and on the device of another tensor."""
        return self.coefficients.to(like)

    def queries(self, gate: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch head"]:
        """The query of each head of the neurons, `b g + c`."""
        b, c, _, _ = self.columns(gate)
        return (b * gate[..., None] + c).flatten(-2)

    def values(self, value: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch head"]:
        """The value of each head at its own token: `a v + d`, or `d v` in a gated MLP."""
        _, _, a, d = self.columns(value)
        wide = value[..., None]
        return (d * wide if self.is_gate else a * wide + d).flatten(-2)

    def __call__(self, x: Float[Tensor, "*batch neuron"]) -> Float[Tensor, "*batch neuron"]:
        """The sum, entry by entry. Half precision is summed in float32 and rounded once."""
        if x.dtype in (torch.bfloat16, torch.float16):
            return self(x.float()).to(x.dtype)
        if self.activation in SILU_SCALES and not self.is_gate:
            # torch computes this one term in closed form
            return ACTIVATIONS[self.activation](x)
        total = torch.zeros_like(x)
        for b, c, a, d in self.columns(x).unbind(-1):  # each [neuron]
            weight_on_itself = torch.sigmoid(b * x + c)
            total += weight_on_itself * (d if self.is_gate else a * x + d)
        return total


def same_for_all_neurons(
    activation: str, terms: Iterable, error: float, *, is_gate: bool = False
) -> HeadSum:
    """The sum whose heads have these rows (b, c, a, d)."""
    coefficients = torch.tensor(list(terms), dtype=torch.float64).T[:, None]  # [4, 1, head]
    errors = torch.tensor([error], dtype=torch.float64)
    return HeadSum(activation, coefficients, errors, is_gate)


# Sums on the whole line


@checked
def head_sum(activation: str, heads_per_neuron: int = 5, *, sharpness: float = 2.0**14) -> HeadSum:
    """The heads that compute an activation function on the whole line.

    `"silu"` and `"quick_gelu"` are exact with one head. `"relu"` is `SiLU(s x) / s` with a
    sharpness s, and its error is `0.2785 / s`. `"gelu"` and `"gelu_new"` have stored fits of 1 to
    8 heads.

    Parameters
    ----------
    activation : `"silu"`, `"quick_gelu"`, `"relu"`, `"gelu"` (by erf) or `"gelu_new"` (by tanh)
    heads_per_neuron : at most how many heads
    sharpness : of ReLU, at least 1

    Returns
    -------
    A `HeadSum`: called on x, it returns the sum. `.error` is its largest error, and `.terms` lists
    the coefficients `[b, c, a, d]` of each head, which are the same for all neurons.

    Raises
    ------
    ValueError : if the activation is unknown, and for a smaller sharpness

    Notes
    -----
    Error: `.error`, on the whole line. Source: "Attention-Only Transformers", section 2; the sums
    are this book's.

    Examples
    --------
    >>> round(head_sum("gelu", heads_per_neuron=1).error, 4)
    0.0139
    """
    require_at_least(1, sharpness=sharpness)
    require_positive(sharpness=sharpness)  # not infinite
    return with_at_most(heads_per_neuron, head_sums(activation, sharpness))


def head_sums(activation: str, sharpness: float) -> list[HeadSum]:
    """All sums that follow an activation on the whole line, the shortest first."""
    require_activation(activation)
    if activation == "sigmoid":
        raise ValueError("A sigmoid alone has no x in its value. Use gate_sum('sigmoid', reach).")
    if activation == "relu":
        error = RELU_MINUS_SILU / sharpness
        return [same_for_all_neurons("relu", [[sharpness, 0.0, 1.0, 0.0]], error)]
    if activation in SILU_SCALES:
        return [same_for_all_neurons(activation, [[SILU_SCALES[activation], 0.0, 1.0, 0.0]], 0.0)]
    sums = []
    for fit in stored("conversion", "activations.json")["fits"].get(activation, {}).values():
        rows = zip(fit["b"], fit["c"], fit["a"], fit["d"], strict=True)
        sums.append(same_for_all_neurons(activation, rows, fit["error"]))
    return from_the_shortest(activation, sums, "activations.json")


def require_activation(name: str) -> None:
    """Raise a `ValueError` for an activation that is not in `ACTIVATIONS`."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"The activation {name!r} is not supported. Heads can compute {sorted(ACTIVATIONS)}."
        )


def from_the_shortest(activation: str, sums: list[HeadSum], file: str) -> list[HeadSum]:
    """The stored sums in the order of their length; a `ValueError` if there are none."""
    if not sums:
        raise ValueError(
            f"There are no fits of {activation!r} in data/conversion/{file}. Make them with "
            "studies/activation_fit.py; circuitkit/conversion/activations.py begins with the steps."
        )
    return sorted(sums, key=len)


def with_at_most(heads_per_neuron: int, sums: list[HeadSum]) -> HeadSum:
    """The longest sum with no more heads for each neuron than this."""
    allowed = [terms for terms in sums if len(terms) <= heads_per_neuron]
    if not allowed:
        raise ValueError(
            f"With {sums[0].activation!r}, a neuron has {len(sums[0])} to {len(sums[-1])} heads, not "
            f"heads_per_neuron={heads_per_neuron}."
        )
    return allowed[-1]


# Sums for gates


@checked
def gate_sum(
    activation: str, reach: float | Float[Tensor, " neuron"], heads_per_neuron: int = 16
) -> HeadSum:
    """Sigmoids that follow the activation of a gate: `f(g) = sum_i d_i sigmoid(b_i g + c_i)`.

    In a gated MLP the query of a head reads the gate, and its value the other branch. A gate that
    *is* a sigmoid is one head exactly. Any other is followed by a sum of sigmoids on a finite range
    only: each neuron takes the stored fit of the next larger range.

    Parameters
    ----------
    activation : `"sigmoid"`, or the gate's activation as in `head_sum`
    reach : the largest size of the gate's pre-activation, for all neurons or for each
    heads_per_neuron : at most how many heads; there are sums of 2, 4, 8, 16 and 32

    Returns
    -------
    A `HeadSum`. Its `.coefficients` `[4, neuron, head]` and its `.errors` are those of each neuron;
    `.terms` lists the coefficients of the first neuron alone.

    Raises
    ------
    ValueError : if no fit reaches so far, and for a negative reach

    Notes
    -----
    Error: `.error` for `|g| <= reach`, proved between grid points too. Source: this book; the
    paper leaves gated MLPs out.

    Examples
    --------
    >>> gate_sum("silu", 30.0, 16).error < 1e-5
    True
    """
    reaches = torch.as_tensor(reach, dtype=torch.float64).reshape(-1)
    require_at_least(0, reach=float(reaches.min()))
    return with_at_most(heads_per_neuron, gate_sums(activation, reaches))


def gate_sums(activation: str, reaches: Float[Tensor, " neuron"]) -> list[HeadSum]:
    """All sums that follow the activation of a gate on these ranges, the shortest first."""
    require_activation(activation)
    if activation == "sigmoid":
        return [same_for_all_neurons("sigmoid", [[1.0, 0.0, 0.0, 1.0]], 0.0, is_gate=True)]
    fitted = "silu" if activation in SILU_SCALES else activation
    sums = []
    for name, rows in stored("conversion", "gates.safetensors").items():
        if name.startswith(f"{fitted}."):
            sums.append(gate_fit(activation, rows[rows[:, 0].argsort()], reaches))
    return from_the_shortest(activation, sums, "gates.safetensors")


def gate_fit(
    activation: str, rows: Float[Tensor, "range column"], reaches: Float[Tensor, " neuron"]
) -> HeadSum:
    """For each neuron the fit of the next larger range; a row is a range, its error, b, c and d."""
    ranges = rows[:, 0].contiguous()
    if activation == "relu":
        # s ReLU(g / s) = ReLU(g), so one stored range serves all
        scale = ranges[0] / reaches.clamp_min(1e-30)  # [neuron]
        place = torch.zeros_like(reaches, dtype=torch.long)
    else:
        scale = torch.full_like(reaches, SILU_SCALES.get(activation, 1.0))
        largest, stored_up_to = float(reaches.max()), float(ranges[-1] / scale[0])
        if not largest <= stored_up_to:
            raise ValueError(
                f"Heads follow a {activation!r} gate up to {stored_up_to:.3g}, and this one can "
                f"meet {largest:.3g}."
            )
        place = torch.searchsorted(ranges, reaches * scale)
    errors = rows[place, 1] / scale  # [neuron]
    b, c, d = rows[place, 2:].unflatten(-1, (3, -1)).unbind(-2)  # [neuron, head]
    b, d = b * scale[:, None], d / scale[:, None]
    coefficients = torch.stack([b, c, torch.zeros_like(b), d])
    return HeadSum(activation, coefficients, errors, is_gate=True)
