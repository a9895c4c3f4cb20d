"""A model as one value: embeddings, steps of sublayers that read one stream through norms, an unembedding."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import (
    AS_IT_IS,
    Count,
    Finite,
    HeadNames,
    Names,
    Natural,
    NonNegative,
    PartName,
    Positive,
    ids,
    kind,
    must,
    one_dtype,
    place_of,
    public,
)
from circuitkit._heads import Heads, stack
from circuitkit.anatomy._address import Address, read, unknown
from circuitkit.anatomy._neurons import Neurons

if TYPE_CHECKING:
    from circuitkit.anatomy._run import Run


@public
@must(
    lambda x, self: (
        (self.gain is None or x.shape[-1] == self.gain.shape[-1])
        and (
            self.scale is None
            or all(
                n == m or m == 1
                for n, m in zip(x.shape[-2::-1], self.scale.shape[-2::-1], strict=False)
            )
        )
        or "rows as long as the gain, those it was frozen on"
    )
)
@must(
    lambda W, self: (
        self.gain is None
        or W.shape[-2] == self.gain.shape[-1]
        or f"{self.gain.shape[-1]} rows, as the gain"
    )
)
@dataclass(frozen=True, eq=False)
class Norm:
    """`x -> (x - mean) / scale * gain + bias` with `scale = sqrt(mean((x - mean)^2) + eps)`: LayerNorm or RMSNorm.

    **Error**: rounding. **Source**: Ba, Kiros and Hinton 2016; Zhang and Sennrich 2019 (without the mean).
    """

    gain: Float[Tensor, "*size"] | None
    bias: Float[Tensor, "*size"] | None = None
    eps: NonNegative = 1e-5
    centre: bool = True
    """Whether the mean is taken out: a LayerNorm does, an RMSNorm does not."""
    across: bool = False
    """Over all heads together (Olmo 2), for norms of queries and keys `[head, pos, d_head]`."""
    scale: Any = None
    """The divisor of each row once the norm is frozen, `[..., 1]`."""

    def _centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centre else x

    def freeze(self, x: Annotated[Float[Tensor, "*row size"], AS_IT_IS]) -> "Norm":
        """The norm with its divisor fixed at the value it has on `x`: from here on it is affine."""
        if self.across and self.gain is not None and self.gain.shape[0] != x.shape[-3]:
            raise ValueError(
                f"a norm over {self.gain.shape[0]} heads together got {x.shape[-3]}; expected all heads of the layer, because "
                "each one's divisor depends on the others. Take them together."
            )
        square = self._centred(x).square().mean((-3, -1) if self.across else -1, keepdim=True)
        return replace(self, scale=(square + self.eps).sqrt())

    def linear(
        self, x: Annotated[Float[Tensor, "*row size"], AS_IT_IS]
    ) -> Float[Tensor, "*row size"]:
        """What a frozen norm does to a share of the stream: everything but its bias."""
        out = self._centred(x) / self.scale
        return out if self.gain is None else out * self.gain

    def __call__(
        self, x: Annotated[Float[Tensor, "*row size"], AS_IT_IS]
    ) -> Float[Tensor, "*row size"]:
        out = (self if self.scale is not None else self.freeze(x)).linear(x)
        return out if self.bias is None else out + self.bias

    def fold(self, W: Float[Tensor, "*row size out"]) -> Float[Tensor, "*row size out"]:
        """The matrix that reads the stream as `W` reads the norm's output, up to the divisor: `(I - 1/d) diag(gain) W`."""
        W = W if self.gain is None else self.gain[:, None] * W
        return W - W.mean(-2, keepdim=True) if self.centre else W

    def bound(
        self, W: Float[Tensor, "size out"], b: Float[Tensor, " out"] | None = None
    ) -> Float[Tensor, " out"]:
        """The largest `|norm(x) W + b|` that any input can cause: a normed row is at most `sqrt(size)` long."""
        shift = 0.0 if self.bias is None else self.bias @ W
        shift = shift if b is None else shift + b
        return math.sqrt(W.shape[0]) * self.fold(W).norm(dim=0) + abs(shift)

    def at(self, *index: Any) -> "Norm":
        """The frozen norm of some rows."""
        return replace(self, scale=self.scale[index])

    def only(self, head: Natural) -> "Norm":
        """The frozen norm of one head, on its own."""
        pick = lambda value: None if value is None else value[[head if len(value) > 1 else 0]]  # noqa: E731
        return replace(
            self, across=False, gain=pick(self.gain), bias=pick(self.bias), scale=pick(self.scale)
        )

    def take(self, rows: Any) -> "Norm":
        """The norm of some heads; one over all heads together is kept whole."""
        return self if self.across else self.each(lambda value: value[rows])

    def to(self, *args: Any, **kwargs: Any) -> "Norm":
        return self.each(lambda value: value.to(*args, **kwargs))

    def join(self, norms: "Sequence[Norm]") -> "Norm":
        """Norms of the heads of several layers as one."""
        if (
            any(norm.across for norm in norms)
            or len({(norm.eps, norm.centre, norm.bias is None) for norm in norms}) > 1
        ):
            raise ValueError(
                "cannot stack heads whose norms of queries or keys are of different kinds; keep them apart"
            )
        every = lambda name: (
            None
            if getattr(self, name) is None
            else torch.cat([getattr(norm, name) for norm in norms])
        )
        return replace(self, gain=every("gain"), bias=every("bias"))

    def each(self, move: Any) -> "Norm":
        """The norm whose gain and bias went through a function."""
        gain, bias = (None if value is None else move(value) for value in (self.gain, self.bias))
        return replace(self, gain=gain, bias=bias)


UNLIMITED = 1 << 30
"""The context of a model without positions."""


@public
@dataclass(frozen=True, eq=False, repr=False)
class MLP:
    """A whole MLP as one function of what it reads, with the matrices that read and write if it has such. **Source**: this book."""

    function: Callable[[Tensor], Tensor]
    W_in: Float[Tensor, "d_model d_mlp"] | None = None
    W_out: Float[Tensor, "d_mlp d_model"] | None = None
    W_gate: Float[Tensor, "d_model d_mlp"] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


@public
@must(
    lambda bias, inside: (
        not isinstance(inside, Heads)
        or len(bias) == inside.d_model
        or f"[{inside.d_model}], what is added to the stream"
    )
)
@dataclass(frozen=True, eq=False, repr=False)
class Sublayer:
    """What reads the stream at one place and adds to it: `after(inside(before(x)) + bias)`.

    **Source**: "A Mathematical Framework for Transformer Circuits": each layer reads and writes the stream.
    """

    layer: Natural
    inside: Annotated[
        Any,
        kind(
            lambda it: (callable(it) and not isinstance(it, type)) or isinstance(it, Heads),
            "Heads, Neurons or a function",
        ),
    ]
    """`Heads`, `Neurons`, or a whole `MLP`."""
    before: Norm | None = None
    after: Norm | None = None
    bias: Float[Tensor, " d_model"] | None = None
    """What is added at every position: `b_O`, or `b_out` of neuron-heads; a whole MLP keeps its own."""
    gate: Callable[[Tensor], Tensor] | None = None
    """Of gated heads: the stream to gates `[head, dst, src]`, which multiply the pattern."""

    @property
    def name(self) -> str:
        return f"L{self.layer}" if isinstance(self.inside, Heads) else f"L{self.layer} MLP"

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what it is made of, without its bias."""
        return self.inside.names if isinstance(self.inside, (Heads, Neurons)) else (self.name,)

    @property
    def n_parts(self) -> int:
        return len(self.inside) if isinstance(self.inside, (Heads, Neurons)) else 1


class Step(NamedTuple):
    """Sublayers that read the stream side by side, and a norm of the whole stream behind them (BERT). **Source**: this book."""

    sublayers: tuple[Sublayer, ...]
    closing: Norm | None = None


class Place(NamedTuple):
    """Where a name stands. **Source**: this book."""

    step: int
    """-1 for embeddings, the number of steps for the unembedding."""
    sublayer: Any
    """A `Sublayer`, or `None` for embeddings and the unembedding."""
    rows: Any
    """The numbers of heads of the sublayer; `None` for the whole of it, or for its bias."""
    is_bias: bool = False


@public
@must(
    lambda before, self: before <= len(self.steps) or f"a step of the model, 0 to {len(self.steps)}"
)
@must(
    lambda W_E, W_U, W_pos: (
        all(W is None or W.numel() for W in (W_E, W_U, W_pos)) or "tables with entries"
    )
)
@dataclass(frozen=True, eq=False, repr=False)
class Anatomy:
    """Any model as one value: what it is made of, by name, and one loop that runs it. Made by `circuitkit.anatomy(model)`.

    `logits = cap(final(stream) W_U + b_U)`; the stream begins as `W_E[tokens] + W_pos` and every sublayer adds to it. Weights
    are views of the model's own. **Source**: "A Mathematical Framework for Transformer Circuits".
    """

    W_E: Float[Tensor, "d_vocab_in d_model"]
    steps: tuple[Step, ...]
    W_U: Float[Tensor, "d_model d_vocab"]
    W_pos: Float[Tensor, "n_ctx d_model"] | None = None
    final: Norm | None = None
    b_U: Float[Tensor, " d_vocab"] | None = None
    gain: Finite = 1.0
    """Token embeddings are multiplied by this (Gemma)."""
    opening: Norm | None = None
    """A norm of the stream before the first step (BERT)."""
    head: Callable[[Tensor], Tensor] | None = None
    """What stands between the stream and the last norm and is no norm (BERT): then logits are no sum over parts."""
    cap: Positive | None = None
    n_ctx: Count = UNLIMITED

    def __repr__(self) -> str:
        shown = [f"{sub.n_parts} in {sub.name!r}" for step in self.steps for sub in step.sublayers]
        most = ", ".join(shown[:4]) + (f", ... ({len(shown)} sublayers)" if len(shown) > 4 else "")
        return f"Anatomy(d_model={self.d_model}, d_vocab={self.d_vocab}; {most or 'no layers'})"

    @property
    def embedding(self) -> Float[Tensor, "d_vocab_in d_model"]:
        """What tokens put into the stream: `W_E`, a view, or as many times that as `gain` says."""
        return self.W_E if self.gain == 1.0 else self.W_E * self.gain

    @property
    def d_model(self) -> int:
        return self.W_E.shape[1]

    @property
    def d_vocab(self) -> int:
        return self.W_E.shape[0]

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        return tuple(sub for step in self.steps for sub in step.sublayers)

    @property
    def starts(self) -> tuple[str, ...]:
        return ("embed",) if self.W_pos is None else ("embed", "pos")

    def bias_name(self, step: int, sub: Sublayer) -> str | None:
        """The name of what this sublayer adds whatever it reads, or `None`; a closing norm's bias goes to the last one."""
        closing = self.steps[step].closing if sub is self.steps[step].sublayers[-1] else None
        given = (sub.bias, sub.after and sub.after.bias, closing and closing.bias)
        return f"{sub.name} bias" if any(value is not None for value in given) else None

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of all attention heads."""
        return tuple(
            name for sub in self.sublayers if isinstance(sub.inside, Heads) for name in sub.parts
        )

    def few_neurons(self, most: int = 1024) -> bool:
        """Whether there are so few neuron-heads that each is shown for itself where nothing is said."""
        return sum(sub.n_parts for sub in self.sublayers if isinstance(sub.inside, Neurons)) <= most

    def groups(
        self, before: Natural | None = None, neurons: bool = True
    ) -> Iterator[tuple[int, Sublayer | None, tuple[str, ...]]]:
        """The parts that stand in the stream before a step (by default, all), group by group, without their values.

        Without `neurons`, neuron-heads of a layer are one part, its bias included: the MLP that they were.
        """
        opening = (
            ("embed bias",) if self.opening is not None and self.opening.bias is not None else ()
        )
        yield -1, None, (*self.starts, *opening)
        for number, step in enumerate(self.steps[:before]):
            for sub in step.sublayers:
                if isinstance(sub.inside, Neurons) and not neurons:
                    yield number, sub, (sub.name,)
                    continue
                bias = self.bias_name(number, sub)
                yield number, sub, (*sub.parts, *([] if bias is None else [bias]))

    def parts(self, before: Natural | None = None, neurons: bool = True) -> tuple[str, ...]:
        """Names of the parts whose sum is the stream before a step (by default, the last stream)."""
        return tuple(name for *_, names in self.groups(before, neurons) for name in names)

    def linear_head(self, what: str) -> "Anatomy":
        """This value, for what splits logits into sums; a `ValueError` where they are none."""
        if self.cap is None and self.head is None:
            return self
        why = (
            "a network stands before its unembedding"
            if self.cap is None
            else f"its logits are capped at {self.cap:g}"
        )
        raise ValueError(
            f"{what} got a model whose logits are no sum over parts, because {why}; expected one without "
            "(output_logits_soft_cap, a masked language model's head). The stream itself is a sum: residual.decompose"
        )

    @cached_property
    def _by_layer(self) -> dict[tuple[int, bool], tuple[int, Sublayer]]:
        placed = ((number, sub) for number, step in enumerate(self.steps) for sub in step.sublayers)
        return {(sub.layer, isinstance(sub.inside, Heads)): (number, sub) for number, sub in placed}

    def find(self, name: PartName | Address) -> Place:
        """The place of a part or an input by its name; the nearest names where there is none."""
        address = read(name)[-1] if isinstance(name, str) else name
        number: Any = address.number
        if address.layer is None:
            if address.kind == "unembed":
                return Place(len(self.steps), None, None)
            if address.kind in self.parts(0):
                return Place(-1, None, None, address.kind == "embed bias")
        else:
            step, sub = self._by_layer.get(
                (address.layer, address.kind in ("H", "bias")), (0, None)
            )
            if sub is not None and address.kind in ("MLP", "bias", "MLP bias"):
                if address.kind == "MLP" or self.bias_name(step, sub) is not None:
                    return Place(step, sub, None, address.kind != "MLP")
            elif sub is not None and address.kind == "H" and number < len(sub.inside):
                return Place(step, sub, (number,))
            elif sub is not None and isinstance(sub.inside, Neurons):
                rows = sub.inside.rows(number, address.term)
                if rows:
                    return Place(step, sub, tuple(rows))
        whole = (sub.name for sub in self.sublayers if isinstance(sub.inside, Neurons))
        raise unknown("part", str(address), [*self.parts(), *whole, "unembed"])

    def __getitem__(self, names: HeadNames) -> Heads:
        """Heads by name: of attention as views, of neurons built now on `d_model + 1` coordinates; a list is stacked.

        Numbers count the attention heads.
        """
        taken = self.taken([names] if isinstance(names, (str, int)) else names)
        return stack(
            *(
                sub.inside.take(rows) if isinstance(sub.inside, Neurons) else sub.inside[list(rows)]
                for _, sub, rows in taken
            )
        )

    def taken(self, names: "Sequence[str | int]") -> list[tuple[int, Any, list[int]]]:
        """Step, sublayer and rows of heads by name, side by side where they follow each other in one sublayer."""
        found: list[tuple[int, Any, list[int]]] = []
        for name in map(self.head_name, names):
            step, sub, rows, is_bias = self.find(name)
            if rows is None and sub is not None and isinstance(sub.inside, Neurons) and not is_bias:
                rows = range(len(sub.inside))
            if rows is None or sub is None:
                raise ValueError(
                    f"{name!r} is no head; heads are called 'L3H5', neurons and their heads 'L3N120', 'L3N120.2'"
                )
            if found and found[-1][1] is sub:
                found[-1][2].extend(rows)
            else:
                found.append((step, sub, list(rows)))
        return found

    def head_name(self, head: "str | int") -> str:
        """The address of an attention head that is given by its number, or of a part by its name."""
        return head if isinstance(head, str) else self.head_names[place_of(head, self.head_names)]

    def _ipython_key_completions_(self) -> list[str]:
        return [name for sub in self.sublayers if sub.n_parts < 2048 for name in sub.parts]

    @public
    @ids(model="self")
    @must(
        lambda base, self, tokens: (
            getattr(base, "model", None) is self
            and base.tokens.equal(tokens)
            or "a run of these tokens through this model"
        )
    )
    @must(
        lambda source, self, tokens: (
            getattr(source, "model", None) is self
            and source.tokens.shape == tokens.shape
            or "a run of as many tokens through this model"
        )
    )
    @must(
        lambda at, tokens: (
            max(at, default=0) < tokens.shape[1]
            or f"positions of the rows, 0 to {tokens.shape[1] - 1}"
        )
    )
    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        *,
        without: Names = (),
        fill: Literal["zero", "mean"] | Callable[[Tensor], Tensor] = "zero",
        edit: Callable[[Sublayer, Tensor], Tensor] | None = None,
        watch: Callable[[Sublayer, Tensor, Tensor, slice], None] | None = None,
        base: "Run | None" = None,
        source: "Run | None" = None,
        at: Sequence[Natural] = (),
        grad: bool = False,
    ) -> "Run":
        """One forward pass that keeps what every part did; `without` takes out parts, inputs, wires and paths by name.

        A part `"L0H1"` is replaced where it is written, for all who read it; a wire `"L0H1->L1H3.K"` only where that input
        reads it, norms applied anew; an input `"L1H3.K"` in all that it reads; a path `"L0H1->L1H3.K->unembed"` only at its
        end, which reads L1H3 as if its first wire were replaced. `fill` says by what: `"zero"`, `"mean"` over the rows at
        each position, or a function along the rows, such as `lambda x: x[order]`, of the values here or in `source`, another
        run of this model (patching: `lambda x: x`); `at` some positions only. Biases become nothing. `edit(sublayer, z)`
        returns what its heads gathered (what a whole MLP wrote) as it shall be; `watch(sublayer, pattern, values, rows)` sees
        patterns, of some destinations at a time where they are long, and they are not kept. `base`, an earlier run of the same
        tokens, saves the steps before the first change.
        **Error**: rounding. **Source**: path patching; "A Mathematical Framework for Transformer Circuits", ablations.
        """
        from circuitkit.anatomy._run import forward

        return forward(self, tokens, without, fill, edit, watch, base, grad, source, at)


@public
@one_dtype("heads", "W_E", "W_U", "W_pos")
@must(
    lambda heads, W_E: (
        len(heads) > 0 and heads.d_model == W_E.shape[1] or "heads and tables of one d_model"
    )
)
def from_heads(
    heads: Heads,
    W_E: Float[Tensor, "d_vocab_in d_model"],
    W_U: Float[Tensor, "d_model d_vocab"],
    W_pos: Float[Tensor, "n_ctx d_model"] | None = None,
    *,
    gate: Callable[[Tensor], Tensor] | None = None,
) -> Anatomy:
    """The attention-only model without norms that these heads make, layer by layer; heads get names by their place.

    **Error**: none, weights are shared. **Source**: "A Mathematical Framework for Transformer Circuits".

    >>> import torch
    >>> from circuitkit.circuits import random_heads
    >>> from_heads(random_heads(2, 8, 3), torch.eye(8), torch.eye(8)).parts()
    ('embed', 'L0H0', 'L0H1')
    """
    steps = []
    for layer in sorted(set(heads.layers)):
        rows = [row for row, at in enumerate(heads.layers) if at == layer]
        steps.append(Step((Sublayer(layer, named(heads[rows], layer), gate=gate),)))
    return Anatomy(W_E, tuple(steps), W_U, W_pos, n_ctx=UNLIMITED if W_pos is None else len(W_pos))


def named(heads: Heads, layer: int) -> Heads:
    """The heads of one layer under their addresses."""
    return replace(
        heads, names=tuple(f"L{layer}H{n}" for n in range(len(heads))), layers=(layer,) * len(heads)
    )
