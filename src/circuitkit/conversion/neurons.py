"""The neurons of an MLP as attention heads: as a value, and as a module inside a model.

A neuron-head lives on the stream with a bias token: position 0 comes first, and one more
coordinate is 1 there and 0 on the tokens. Its mask lets a token attend to itself and to position 0.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from circuitkit.checks import checked, require_at_least, require_finite, shown
from circuitkit.conversion.activations import HeadSum, gate_sum, head_sum
from circuitkit.heads import Heads
from circuitkit.parts import neuron_names


@dataclass(frozen=True, eq=False, repr=False)
class Neurons:
    """The heads of one MLP, gated or not, without a copy of any weight.

    Neuron n reads `v = x W_in + b_in` and the gate `g = x W_gate + b_gate`, which is v itself in
    an MLP without gates. Its i-th head has the query `b_i g + c_i`, the key -1 at the bias token
    and 0 elsewhere, and the value `a_i v + d_i` (`d_i v` if gated) and 0 at the bias token. It
    writes `W_out[n]`. The softmax over itself and the bias token is `sigmoid(q), 1 - sigmoid(q)`.

    Parameters
    ----------
    W_in, W_out : `[d_model, d_mlp]` and `[d_mlp, d_model]`
    b_in, b_out : `[d_mlp]` and `[d_model]`, or None
    terms : the heads that follow the activation; how closely is its `.error`
    layer : of the model, for the names
    W_gate, b_gate : of a gated MLP, `[d_model, d_mlp]` and `[d_mlp]`

    Notes
    -----
    Error: see `terms`. Source: "Attention-Only Transformers", Theorem 2, with the bias token first;
    several heads for each neuron, and gates, are this book's.

    Examples
    --------
    >>> neuron_heads(torch.eye(2), torch.eye(2)).names
    ('L0N0', 'L0N1')
    """

    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    b_in: Float[Tensor, " d_mlp"] | None
    b_out: Float[Tensor, " d_model"] | None
    terms: HeadSum
    layer: int = 0
    W_gate: Float[Tensor, "d_model d_mlp"] | None = None
    b_gate: Float[Tensor, " d_mlp"] | None = None

    def __len__(self) -> int:
        """How many heads there are."""
        return self.W_in.shape[1] * len(self.terms)

    def __repr__(self) -> str:
        return f"Neurons({self.W_in.shape[1]} neurons x {self.terms!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """`"L1N3"`, or `"L1N3.0"`, `"L1N3.1"`, ... where a neuron has several heads."""
        names = neuron_names(self.layer, range(self.W_in.shape[1]), len(self.terms))
        return tuple(map(str, names))

    def __call__(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The output of the MLP by two keys for each token: itself and the bias token."""
        require_finite(x, "The stream that was given to these neurons")
        gate, value = self.reads(x)
        gathered = self.terms(gate) * value if self.terms.is_gate else self.terms(gate)
        return F.linear(gathered, self.W_out.T, self.b_out)

    def literal(
        self, x: Float[Tensor, "*batch pos d_model"]
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The same output from the heads and their whole patterns on the stream with a bias token."""
        output = self.heads().results(with_bias_token(x)).sum(-3)[..., 1:, :-1]
        return output if self.b_out is None else output + self.b_out

    def pattern(
        self, x: Float[Tensor, "*batch pos d_model"], rows: Iterable[int] | None = None
    ) -> Float[Tensor, "*batch head pos_and_bias pos_and_bias"]:
        """Whole patterns `[..., head, dst, src]` of all heads or some; position 0 is the bias token."""
        return self.heads(rows).pattern(with_bias_token(x))

    def reads(self, x: Float[Tensor, "*batch pos d_model"]) -> tuple[Tensor, Tensor]:
        """What queries and what values read of each neuron, `[..., pos, neuron]` each."""
        if x.shape[-1] != len(self.W_in):
            raise ValueError(
                f"These neurons read a stream of {len(self.W_in)} dimensions, and were given "
                f"{shown(x)}."
            )
        value = F.linear(x, self.W_in.T, self.b_in)
        gate = value if self.W_gate is None else F.linear(x, self.W_gate.T, self.b_gate)
        return gate, value

    def z(
        self, gate: Float[Tensor, "*batch neuron"], value: Float[Tensor, "*batch neuron"]
    ) -> Float[Tensor, "*batch head"]:
        """What each head gathers: its attention to the token itself, times the value there."""
        return torch.sigmoid(self.terms.queries(gate)) * self.terms.values(value)

    def neuron(self, number: int) -> Heads:
        """The heads of one neuron."""
        k = len(self.terms)
        return self.heads(range(number * k, (number + 1) * k))

    def heads(self, rows: Iterable[int] | None = None) -> Heads:
        """All heads, or those with these numbers, as `Heads` on `d_model + 1` coordinates.

        The last coordinate is 1 on the bias token only. The heads of neuron n have the numbers
        `n k` to `n k + k - 1`, if a neuron has k heads.
        """
        rows = list(range(len(self)) if rows is None else rows)
        k = len(self.terms)
        if rows and not -len(self) <= min(rows) <= max(rows) < len(self):
            raise IndexError(
                f"Heads {min(rows)} to {max(rows)} were asked for. There are the heads 0 to "
                f"{len(self) - 1}, {k} for each neuron."
            )
        number = self.W_in.new_tensor(rows, dtype=torch.long)
        neuron, term = number // k, number % k
        columns = self.terms.columns(self.W_in)
        columns = columns.expand(-1, self.W_in.shape[1], -1)[:, neuron, term]
        b, c, a, d = columns[..., None]  # [head, 1] each
        if self.terms.is_gate:
            a, d = d, a  # the value is d times the other branch
        zero = torch.zeros_like(b)
        w_value = self.W_in.T[neuron]  # [head, d_model]
        b_value = zero if self.b_in is None else self.b_in[neuron][:, None]
        w_gate, b_gate = w_value, b_value
        if self.W_gate is not None:
            w_gate = self.W_gate.T[neuron]
            b_gate = zero if self.b_gate is None else self.b_gate[neuron][:, None]
        names = self.names
        return Heads(
            names=tuple(names[row] for row in rows),
            W_Q=torch.cat([b * w_gate, zero], 1)[..., None],
            W_K=torch.cat([torch.zeros_like(w_gate), zero - 1], 1)[..., None],
            # b_V is added at the bias token, too; the last row takes it away there
            W_V=torch.cat([a * w_value, -(a * b_value + d)], 1)[..., None],
            W_O=torch.cat([self.W_out[neuron], zero], 1)[:, None],
            b_Q=b * b_gate + c,
            b_V=a * b_value + d,
            layers=(self.layer,) * len(rows),
            scale=1.0,
            mask="self_or_first",
        )


class NeuronLayer(nn.Module):
    """What stands in the place of the activation function in a converted MLP of a model.

    It takes what the neurons read (the gate, in a gated MLP) and returns what their heads gather.
    Reading is done by the MLP's matrix `in` before it, and writing by `out` behind it: they hold
    the weights of all heads, and stay where they are.

    Hooks have the shape `[batch, pos, head, ...]`; `hook_scores` and `hook_pattern` end with the two
    keys (bias token, itself). They run only when something listens.

    Parameters
    ----------
    mlp : the MLP's bridge, which holds the weights
    terms : the heads that follow the activation
    layer : the number of the layer
    """

    def __init__(self, mlp: nn.Module, terms: HeadSum, layer: int) -> None:
        super().__init__()
        # the MLP is the parent of this module, so it must not be registered as its child
        object.__setattr__(self, "mlp", mlp)
        self.terms, self.layer = terms, layer
        self.hook_in = HookPoint()
        self.hook_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_v, self.hook_z = HookPoint(), HookPoint()
        for hook in self.hooks_of_heads():
            hook.pos_dim = 1

    def hooks_of_heads(self) -> list[HookPoint]:
        """The hooks of single heads."""
        return [self.hook_scores, self.hook_pattern, self.hook_v, self.hook_z]

    @property
    def neurons(self) -> Neurons:
        """The heads of this layer with the weights that the model holds now."""
        mlp: Any = self.mlp
        biases = (bias_of(mlp, "in"), bias_of(mlp, "out"))
        gate = (mlp.W_gate, bias_of(mlp, "gate"))
        return Neurons(mlp.W_in, mlp.W_out, *biases, self.terms, self.layer, *gate)

    def forward(self, reads: Float[Tensor, "*batch d_mlp"]) -> Float[Tensor, "*batch d_mlp"]:
        """What the heads of each neuron gather, added up."""
        reads = self.hook_in(reads)
        if any(hook.has_hooks() for hook in self.hooks_of_heads()):
            return self.head_by_head(reads)
        return self.terms(reads)

    def head_by_head(self, reads: Float[Tensor, "*batch d_mlp"]) -> Float[Tensor, "*batch d_mlp"]:
        """The same with every step of the two-key attention at a hook."""
        is_half = reads.dtype in (torch.bfloat16, torch.float16)
        gate = reads.float() if is_half else reads
        # the other factor of a gated neuron is multiplied in behind this module
        value = self.terms.values(torch.ones_like(gate) if self.terms.is_gate else gate)
        zero = torch.zeros_like(value)
        query = self.terms.queries(gate)
        scores = self.hook_scores(torch.stack([-query, zero], -1))  # [batch, pos, head, key]
        pattern = self.hook_pattern(scores.softmax(-1))
        values = self.hook_v(torch.stack([zero, value], -1))
        z = self.hook_z((pattern * values).sum(-1))
        return z.unflatten(-1, (reads.shape[-1], len(self.terms))).sum(-1).to(reads.dtype)


def bias_of(mlp: Any, name: str) -> Tensor | None:
    """The bias of an MLP's matrix `in`, `out` or `gate`; None where the checkpoint has none."""
    bias = getattr(getattr(mlp, name, None), "bias", None)
    return bias if isinstance(bias, Tensor) else None


@checked
def neuron_heads(
    W_in: Float[Tensor, "d_model d_mlp"],
    W_out: Float[Tensor, "d_mlp d_model"],
    b_in: Float[Tensor, " d_mlp"] | None = None,
    b_out: Float[Tensor, " d_model"] | None = None,
    activation: str | HeadSum = "silu",
    heads_per_neuron: int = 5,
    *,
    W_gate: Float[Tensor, "d_model d_mlp"] | None = None,
    b_gate: Float[Tensor, " d_mlp"] | None = None,
    layer: int = 0,
) -> Neurons:
    """An MLP as attention heads, one or a few for each neuron.

    The MLP is `act(x W_in + b_in) W_out + b_out`, or with a gate
    `(act(x W_gate + b_gate) * (x W_in + b_in)) W_out + b_out`.

    Parameters
    ----------
    W_in, W_out, b_in, b_out : the weights of the MLP
    activation : a name as in `head_sum`, or a sum of heads. With `W_gate`, it is `"sigmoid"` or
        what `gate_sum` returns.
    heads_per_neuron : as in `head_sum`
    W_gate, b_gate : of a gated MLP
    layer : for the names of the heads

    Returns
    -------
    The `Neurons`: called on x, they return what the MLP outputs. `.heads()` has all of them as
    `Heads`, and `.neuron(3)` those of neuron 3.

    Raises
    ------
    ValueError : if the activation is unknown, or the weights differ in dtype or hold NaN or infinite
        values

    Notes
    -----
    Error: `error * max_j sum_n |W_out[n, j]|` in an output entry, where `error` is that of the
    activation. Source: "Attention-Only Transformers", Theorem 2.

    Examples
    --------
    >>> mlp = neuron_heads(torch.eye(2), torch.eye(2), activation="silu")
    >>> mlp(torch.tensor([[0.0, 1.0]]))
    tensor([[0.0000, 0.7311]])
    """
    require_at_least(0, layer=layer)
    given = {"W_in": W_in, "W_out": W_out, "b_in": b_in, "b_out": b_out}
    given |= {"W_gate": W_gate, "b_gate": b_gate}
    weights = {name: weight for name, weight in given.items() if weight is not None}
    dtypes = sorted({str(weight.dtype) for weight in weights.values()})
    if len(dtypes) > 1:
        raise ValueError(f"The weights have the dtypes {dtypes}. Convert them to one dtype.")
    for name, weight in weights.items():
        require_finite(weight, f"{name}, given to neuron_heads,")
    if isinstance(activation, HeadSum):
        terms = activation
    elif W_gate is None:
        terms = head_sum(activation, heads_per_neuron)
    elif activation == "sigmoid":
        terms = gate_sum("sigmoid", reach=1.0)
    else:
        raise ValueError(
            f"A {activation!r} gate is followed by a sum of heads on a finite range. Write "
            f"activation=gate_sum({activation!r}, reach, heads_per_neuron)."
        )
    if terms.is_gate != (W_gate is not None):
        raise ValueError(
            "The heads of a gated MLP come from gate_sum, and those of another from head_sum. Give "
            "W_gate with the first and not with the second."
        )
    return Neurons(W_in, W_out, b_in, b_out, terms, layer, W_gate, b_gate)


@checked
def with_bias_token(
    x: Float[Tensor, "*batch pos d_model"],
) -> Float[Tensor, "*batch pos_and_bias d_model_and_1"]:
    """The stream with a bias token first: one more coordinate, which is 1 there and 0 on tokens.

    Parameters
    ----------
    x : `[..., pos, d_model]`

    Notes
    -----
    Source: the direct sum `X (+) [1]` of "Attention-Only Transformers", which puts the bias token
    last, where no causal mask admits it.

    Examples
    --------
    >>> with_bias_token(torch.tensor([[5.0, 7.0]])).tolist()
    [[0.0, 0.0, 1.0], [5.0, 7.0, 0.0]]
    """
    wide = F.pad(x, (0, 1, 1, 0))  # one column of zeros behind, one row of zeros before
    wide[..., 0, -1] = 1.0
    return wide
