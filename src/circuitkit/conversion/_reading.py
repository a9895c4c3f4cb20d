"""Reading a converted model: a neuron-head's full QK and OV circuits in tokens, and its whole stream as Theorem 4 has it."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Converted, Count, ids, public
from circuitkit._heads import Heads, allowed_pairs
from circuitkit._precision import finest
from circuitkit.anatomy import Neurons, Norm, anatomy
from circuitkit.anatomy._neurons import widened, with_bias_token

_COLUMNS = ("W_in", "b_in", "W_gate", "b_gate")


class NeuronReading(NamedTuple):
    """Token ids with their scores, largest first: `W_E W_in` of one neuron for reading, `W_out W_U` for writing.

    **Source**: see `read_neuron`.
    """

    name: str
    on: tuple[tuple[int, float], ...]
    """Tokens that turn the neuron on: what it reads from each token's embedding behind its norm, bias included."""
    off: tuple[tuple[int, float], ...]
    """Tokens that turn it off, most negative first."""
    writes: tuple[tuple[int, float], ...]
    """Tokens whose logits it raises for each unit it is on."""
    lowers: tuple[tuple[int, float], ...]
    """Tokens whose logits it lowers, most negative first."""


@public
def read_neuron(model: Converted, head: str, k: Count = 10) -> NeuronReading:
    """The two rank-one circuits of a neuron-head as lists of tokens: `W_E W_in` (QK) and `W_out W_U` (OV).

    Read from embeddings alone, without what earlier layers add and the last norm's scale; a gated neuron by its gate.
    **Error**: exact for what it states. **Source**: the framework paper's full circuits.
    """
    whole = anatomy(model)
    _, sub, rows, _ = whole.find(head)
    if rows is None or not isinstance(sub.inside, Neurons):
        raise ValueError(f"read_neuron got head={head!r}; expected a neuron or one of its heads, such as 'L1N37', 'L1N37.2'")
    neurons, n = sub.inside, rows[0] // len(sub.inside.terms)
    columns = {name: w[..., [n]] for name, w in vars(neurons).items() if name in _COLUMNS and w is not None}
    one = replace(neurons, W_out=neurons.W_out[[n]], **columns)
    with torch.no_grad():
        reads = one.reads(whole.embedding if sub.before is None else sub.before(whole.embedding))[0][:, 0]
        writes = one.W_out[0] @ whole.W_U
    ends = [_top(values, k) for values in (reads, -reads, writes, -writes)]
    signed = [end if i % 2 == 0 else tuple((token, -score) for token, score in end) for i, end in enumerate(ends)]
    return NeuronReading(head, *signed)


def _top(values: Tensor, k: int) -> tuple[tuple[int, float], ...]:
    best = finest(values).topk(min(k, len(values)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


@public
@ids()
def literal_stream(
    model: Converted, tokens: Int[Tensor, " pos"]
) -> Float[Tensor, "sublayer pos_and_bias d_model_and_1"]:
    """The stream before the first sublayer and after each one, bias token first, computed from `Heads` alone.

    Each sublayer adds its heads' results on the normalised stream, and its output bias on the real tokens. Norms act on the
    original coordinates (the repair of Theorem 4); ordinary heads have the mask `[1] (+) causal`. Serial blocks with norms in
    front, one sequence at a time: for reading and proving, slow. **Error**: that of the conversion.
    **Source**: "Attention-Only Transformers", proof of Theorem 4.
    """
    whole = anatomy(model)
    if any(len(step.sublayers) > 1 or step.closing or sub.after for step in whole.steps for sub in step.sublayers):
        raise ValueError("literal_stream needs serial blocks with norms in front; read others from their cache")
    stream = [with_bias_token(whole.run(tokens[None]).streams[0][0])]
    for sub in whole.sublayers:
        normed = _normed(stream[-1], sub.before)
        if isinstance(sub.inside, Heads):
            results = _on_tokens(sub.inside, normed)
        else:
            results = sub.inside.heads.results(normed)
        stream.append(stream[-1] + results.sum(0))
        if sub.bias is not None:
            stream[-1][1:, :-1] += sub.bias
    return torch.stack(stream)


def _on_tokens(heads: Heads, x: Float[Tensor, "pos_and_bias d_model_and_1"]) -> Tensor:
    """What ordinary heads write: real tokens do not see the bias token, which sees itself and holds no value.

    Values with a bias `b_V` get it undone there, by the row of `W_V` that only the bias token reads.
    """
    wide = widened(heads)
    if wide.b_V is not None:
        wide.W_V[:, -1] = -wide.b_V
    allowed = torch.block_diag(torch.ones(1, 1), torch.ones(len(x) - 1, len(x) - 1)).bool()
    allowed &= allowed_pairs(heads.mask, len(x))
    return wide.results(x, wide.pattern_of(wide.scores(x).masked_fill(~allowed.to(x.device), -torch.inf)))


def _normed(stream: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return stream
    return torch.cat([stream[:1], torch.cat([norm(stream[1:, :-1]), stream[1:, -1:]], -1)])
