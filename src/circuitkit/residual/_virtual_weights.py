"""Virtual weights: how the output of one component is read by another, through the stream."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from circuitkit._blocks import Thin, gram_products
from circuitkit._contract import AnyModel, public
from circuitkit._heads import Heads
from circuitkit.anatomy import Anatomy, anatomy, read
from circuitkit.anatomy._address import spelled, unknown
from circuitkit.anatomy._sublayer import Place

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix


@public
def components(model: AnyModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All writers and all readers of a model's residual stream, as matrices.

    Writers `[rows, d_model]`: `"embed"`, `"pos"`, `"L0H1"` (its W_O), `"L0 MLP"` (its W_out). Readers `[d_model, columns]`:
    `"L1H0.Q"`, `".K"`, `".V"`, `"L1 MLP"` (its W_in; gated: the gate `"L1 MLP.Q"`, the other branch `".V"`), `"unembed"`. A norm's
    gain and centring are folded in, `(I - 1/d) diag(w) W`; its divisor, a number per position, is not. **Error**: none, weights are
    views or folded. **Source**: "A Mathematical Framework for Transformer Circuits", where every layer reads and writes linearly.
    """
    value = _serial(model)
    names = [name for name in value.parts(neurons=False) if not name.endswith("bias")]
    writers = {name: _writer(value, name) for name in names}
    readers = [f"{name}.{kind}".rstrip(".") for name in names for kind in _inputs(value.find(name))]
    return {n: W for n, W in writers.items() if W is not None}, {n: _reader(value, n) for n in [*readers, "unembed"]}


def _serial(model: Any) -> Anatomy:
    value = anatomy(model)
    if any(step.closing for step in value.steps):
        raise ValueError(
            "got a model that norms its whole stream between its layers (post-norm, as BERT does); expected one whose parts "
            "stay in the stream as they were written, because only then do weights meet weights. residual.decompose splits it"
        )
    return value


def _inputs(place: Place) -> tuple[str, ...]:
    """The kinds of input that a part has; one without a name is `""`."""
    inside = None if place.sublayer is None else place.sublayer.inside
    if isinstance(inside, Heads):
        return "Q", "K", "V"
    return () if inside is None or inside.W_in is None else ("",) if inside.W_gate is None else ("Q", "V")


def _writer(value: Anatomy, name: str) -> Tensor | None:
    """What a part writes with, behind the norm that follows; `None` for an MLP that is no one matrix."""
    step, sub, rows, is_bias = value.find(name)
    if sub is None:
        return value.W_pos if name == "pos" else value.embedding
    inside = sub.inside
    if is_bias:
        out = sub.bias[None]
    elif isinstance(inside, Heads):
        out = inside.W_O[list(rows)].flatten(0, 1)
    elif rows is not None:
        out = inside.W_out[[rows[0] // len(inside.terms)]]
    else:
        out = inside.W_out
    return out if sub.after is None or out is None else replace(sub.after, scale=1.0).linear(out)


def _reader(value: Anatomy, name: str) -> Tensor:
    """What an input reads with, gain and centring of the norm before it folded in."""
    *_, address = read(name)
    _, sub, rows, _ = value.find(address)
    W: Any
    if sub is None:
        W, norm = value.W_U, value.final
    elif isinstance(sub.inside, Heads):
        head = sub.inside[rows]
        W, norm = getattr(head, f"W_{address.input}")[0], sub.before
    else:
        gate = address.input == "Q" and sub.inside.W_gate is not None
        W, norm = sub.inside.W_gate if gate else sub.inside.W_in, sub.before
        W = W if rows is None else W[:, [rows[0] // len(sub.inside.terms)]]
    return W if norm is None else norm.fold(W)


@public
def virtual_weights(model: AnyModel, writer: str, reader: str) -> "FactoredMatrix":
    """`W_out @ W_in` for a writer and a reader (names as in `components`), kept as its two factors.

    `("L0H1", "L1H0.K")` is `W_O^{0.1} W_K^{1.0}`, `[d_head, d_head]`, and `("embed", "unembed")` the direct path `W_E W_U`; a
    neuron of a converted model is `"L0N3"`. Exact up to a norm's divisor. **Source**: "A Mathematical Framework for
    Transformer Circuits", virtual weights.
    """
    from transformer_lens import FactoredMatrix

    value, writer, reader = _serial(model), spelled(writer), spelled(reader)
    one, other, kind = value.find(writer), value.find(reader), read(reader)[-1].input or ""
    W = None if one.step == len(value.steps) else _writer(value, writer)
    if W is None:
        raise unknown("writer", writer, components(model)[0])
    kinds = _inputs(other)
    if other.is_bias or (other.step < len(value.steps) and kind not in (("", "Q", "V") if kinds == ("",) else kinds)):
        raise unknown("reader", reader, components(model)[1])
    if one.step >= other.step:
        raise ValueError(f"{writer!r} writes after {reader!r} has read; expected a writer that comes before the reader")
    return FactoredMatrix(W, _reader(value, reader))


@public
def virtual_weight_table(model: AnyModel) -> tuple[tuple[str, ...], tuple[str, ...], Tensor]:
    """`(writers, readers, strength)` with `strength[writer, reader] = ||W_out W_in||_F / (||W_out||_F ||W_in||_F)`.

    NaN where the writer does not come before the reader; random matrices score about `1 / sqrt(d_model)`. Products, some of
    the size of d_vocab, are never formed. **Source**: framework paper, virtual weights; the ratio is its composition score.
    """
    writers, readers = components(model)
    products = gram_products([Thin(W[None], W[None]) for W in writers.values()], [Thin(W.mT[None], W.mT[None]) for W in readers.values()])
    sizes_out, sizes_in = (torch.stack([W.norm() for W in some.values()]) for some in (writers, readers))
    strength = products.clamp_min(0).sqrt() / (sizes_out[:, None] * sizes_in)
    step = {name: anatomy(model).find(name).step for name in (*writers, *readers)}
    written, read_at = ([step[name] for name in names] for names in (writers, readers))
    strength[products.new_tensor(written)[:, None] >= products.new_tensor(read_at)] = torch.nan
    return tuple(writers), tuple(readers), strength
