"""An MLP as attention heads of internal dimension 1: each neuron chooses between itself and a bias token."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import (
    HeadName,
    HeadNames,
    Integer,
    Natural,
    NonNegative,
    Positive,
    must,
    one_dtype,
    public,
    reads,
)
from circuitkit._heads import Heads
from circuitkit.conversion._head_sum import Activation, HeadSum, NeuronHeadCount, head_sum

_MOST_PATTERN_NUMBERS = 2**22


@public
@reads("W_in")
@dataclass(frozen=True, eq=False)
class NeuronHeads:
    """The heads of one MLP. Call it for the fast route; `.literal` gives the same numbers by full attention patterns.

    Neuron n with head term (b, c, a, d) has, on the stream `X + [1]` (one more coordinate, 1 on the bias token only):
    query `b (x W_in + b_in) + c`, key -1 on the bias token and 0 elsewhere, value `a (x W_in + b_in) + d` and 0 on the
    bias token, output row `W_out[n]`. Its softmax over itself and the bias token is `(sigmoid(q), 1 - sigmoid(q))`.

    **Source**: "Attention-Only Transformers", Theorem 2, with the bias token first.
    """

    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_in: Float[Tensor, " d_mlp"] | None
    b_out: Float[Tensor, " d_model"] | None
    terms: HeadSum
    """What each neuron's heads compute, and how far that is from the activation."""
    name: str = ""
    """Prefix of the heads' names, such as `"L0"`."""
    layer: int = 0

    def __len__(self) -> int:
        return self.W_in.shape[1] * len(self.terms)

    def __repr__(self) -> str:
        d_model, d_mlp = self.W_in.shape
        return f"NeuronHeads({d_mlp} neurons x {len(self.terms)} heads, d_model={d_model}, {self.terms.activation!r})"

    def __call__(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch pos d_model"]:
        """The sublayer's output by the two-key route: two scores per head and position, never a whole pattern.

        **Error**: `bound`, and rounding as in the MLP itself.
        """
        rows, scaled = x.flatten(0, -2), self.terms.scaled_silu
        if scaled is not None:  # one head per neuron: its two scales ride on the two matrix products
            query = _affine(rows, self.W_in, self.b_in, scaled[0], scaled[0])
            gathered = F.silu(query, inplace=not query.requires_grad)
            return _affine(gathered, self.W_out, self.b_out, scaled[1]).reshape(x.shape)
        gathered = self.terms(_affine(rows, self.W_in, self.b_in))
        return _affine(gathered, self.W_out, self.b_out).reshape(x.shape)

    def literal(self, x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch pos d_model"]:
        """The same output from the full masked patterns of the heads on `x + [1]`, a few heads at a time."""
        with_bias = with_bias_token(x)
        n_pos = with_bias.shape[-2]
        step = max(1, _MOST_PATTERN_NUMBERS // (with_bias[..., 0].numel() * max(n_pos, with_bias.shape[-1])))
        total = torch.zeros_like(with_bias)
        for first in range(0, len(self), step):
            total = total + self._some(range(first, min(first + step, len(self)))).results(with_bias).sum(-3)
        out = total[..., 1:, :-1]
        return out if self.b_out is None else out + self.b_out

    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"], heads: HeadNames | None = None
    ) -> Float[Tensor, "*batch head pos_and_bias pos_and_bias"]:
        """Full patterns `[..., head, dst, src]` of chosen heads; position 0 is the bias token."""
        heads = [heads] if isinstance(heads, (str, int)) else heads
        chosen = range(len(self)) if heads is None else [self.index(head) for head in heads]
        return self._some(chosen).pattern(with_bias_token(x))

    @property
    def names(self) -> tuple[str, ...]:
        """`N{neuron}` with the prefix, and `.{term}` behind it if a neuron has several heads."""
        k = len(self.terms)
        return tuple(
            f"{self.name}N{n}" + (f".{i}" if k > 1 else "") for n in range(self.W_in.shape[1]) for i in range(k)
        )

    def index(self, head: HeadName) -> int:
        """Position of a head, by name or number."""
        names = self.names
        if head not in names and not (isinstance(head, int) and -len(names) <= head < len(names)):
            raise ValueError(f"no neuron-head is called {head!r}; names run from {names[0]!r} to {names[-1]!r}")
        return names.index(head) if isinstance(head, str) else range(len(names))[head]

    @property
    def heads(self) -> Heads:
        """All of them as `Heads` on `d_model + 1` coordinates, mask `"self_or_first"`: what the book's tools read."""
        return self._some(range(len(self)))

    def neuron(self, *neurons: Integer) -> Heads:
        """The heads of chosen neurons as `Heads`."""
        k, n = len(self.terms), self.W_in.shape[1]
        if outside := [neuron for neuron in neurons if not -n <= neuron < n]:
            raise ValueError(f"no neurons {outside} in this layer; it has neurons 0 to {n - 1}")
        return self._some([range(n)[neuron] * k + i for neuron in neurons for i in range(k)])

    @property
    def bound(self) -> float:
        """Largest error of any output entry in exact arithmetic, whatever the input.

        `error * max_j sum_n |W_out[n, j]|`: every neuron may be wrong by the activation's error at once.
        """
        return self.terms.error * float(self.W_out.detach().abs().sum(0).max())

    def _some(self, rows: "range | list[int]") -> Heads:
        k, names = len(self.terms), self.names
        rows = list(rows)
        neuron = torch.tensor([row // k for row in rows], device=self.W_in.device, dtype=torch.long)
        b, c, a, d = (self.W_in.new_tensor([values[row % k] for row in rows])[:, None] for values in self._columns)
        reads = self.W_in.T[neuron]
        shift = reads.new_zeros(len(rows), 1) if self.b_in is None else self.b_in[neuron][:, None]
        zero, value_bias = reads.new_zeros(len(rows), 1), a * shift + d
        key = torch.cat([torch.zeros_like(reads), zero - 1], 1)
        return Heads(
            names=tuple(names[row] for row in rows),
            W_Q=torch.cat([b * reads, zero], 1)[..., None],
            W_K=key[..., None],
            W_V=torch.cat([a * reads, -value_bias], 1)[..., None],
            W_O=torch.cat([self.W_out[neuron], zero], 1)[:, None, :],
            b_Q=b * shift + c,
            b_V=value_bias,
            layers=(self.layer,) * len(rows),
            scale=1.0,
            mask="self_or_first",
        )

    @property
    def _columns(self) -> tuple[tuple[float, ...], ...]:
        return self.terms.b, self.terms.c, self.terms.a, self.terms.d


def _affine(x: Tensor, W: Tensor, b: Tensor | None, scale: float = 1.0, bias_scale: float = 1.0) -> Tensor:
    """`scale x W + bias_scale b`."""
    if b is None:
        return x @ W if scale == 1.0 else (x @ W) * scale
    return torch.addmm(b, x, W, alpha=scale, beta=bias_scale)


@public
def with_bias_token(x: Float[Tensor, "*batch pos d_model"]) -> Float[Tensor, "*batch pos_and_bias d_model_and_1"]:
    """`X + [1]` with the bias token first: one more coordinate, which is 1 on position 0 and 0 on the real tokens.

    **Source**: the paper's direct sum `X (+) [1]`; it puts the bias token last, which no causal mask admits.

    >>> with_bias_token(torch.tensor([[5.0, 7.0]])).tolist()
    [[0.0, 0.0, 1.0], [5.0, 7.0, 0.0]]
    """
    row = torch.zeros_like(x[..., :1, :])
    out = torch.cat([row, x], -2)
    mark = torch.zeros_like(out[..., :1])
    mark[..., 0, :] = 1
    return torch.cat([out, mark], -1)


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
    name: str = "",
    layer: Natural = 0,
) -> NeuronHeads:
    """The MLP `act(x W_in + b_in) W_out + b_out` as attention heads, one or a few per neuron.

    `activation` is a name (`silu`, `relu`, `gelu`, `gelu_new`, `quick_gelu`) or a `HeadSum` of your own. SiLU and
    quick-GELU need one head and are exact; ReLU needs one of finite `sharpness`; GELU takes `heads_per_neuron` 1 to 8
    (5 if nothing is said) or the fewest within `max_error`, the largest error of the activation itself.
    **Shapes**: W_in `[d_model, d_mlp]`, W_out `[d_mlp, d_model]`. **Error**: `.bound`. **Source**: "Attention-Only
    Transformers", Theorem 2, with the bias token first, both biases kept and several heads per neuron.

    >>> mlp = neuron_heads(torch.eye(2), torch.eye(2), activation="silu")
    >>> mlp(torch.tensor([[0.0, 1.0]]))
    tensor([[0.0000, 0.7311]])
    """
    if not isinstance(activation, HeadSum):
        activation = head_sum(activation, heads_per_neuron, max_error, sharpness)
    return NeuronHeads(W_in, W_out, b_in, b_out, activation, name, layer)
