"""What turns a neuron on and what it writes: the full QK and OV circuits of a neuron-head, in tokens."""

from dataclasses import replace
from typing import NamedTuple

import torch

from circuitkit._contract import Converted, Count, public
from circuitkit._precision import finest
from circuitkit.anatomy import Neurons, anatomy

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


def _top(values: torch.Tensor, k: int) -> tuple[tuple[int, float], ...]:
    best = finest(values).topk(min(k, len(values)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
