"""What weights alone say about the stream: how one part reads what another writes, the angles between their subspaces, and
that no basis is privileged."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._blocks import Thin, gram_products, joint_rows, product_norms, tiles
from circuitkit._contract import AnyModel, Count, Real, Seed, must, one_dtype, one_stream, public
from circuitkit._heads import Heads
from circuitkit._precision import finest, full_precision
from circuitkit.anatomy import Anatomy, Neurons, Norm, anatomy, read
from circuitkit.anatomy._address import spelled, unknown
from circuitkit.anatomy._sublayer import MLP, Place, Step, Sublayer

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
    return {n: W for n, W in writers.items() if W is not None}, {
        n: _reader(value, n) for n in [*readers, "unembed"]
    }


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
    return (
        ()
        if inside is None or inside.W_in is None
        else ("",)
        if inside.W_gate is None
        else ("Q", "V")
    )


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
        head = sub.inside[list(rows)]
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
    if other.is_bias or (
        other.step < len(value.steps) and kind not in (("", "Q", "V") if kinds == ("",) else kinds)
    ):
        raise unknown("reader", reader, components(model)[1])
    if one.step >= other.step:
        raise ValueError(
            f"{writer!r} writes after {reader!r} has read; expected a writer that comes before the reader"
        )
    return FactoredMatrix(W, _reader(value, reader))


@public
def virtual_weight_table(model: AnyModel) -> tuple[tuple[str, ...], tuple[str, ...], Tensor]:
    """`(writers, readers, strength)` with `strength[writer, reader] = ||W_out W_in||_F / (||W_out||_F ||W_in||_F)`.

    NaN where the writer does not come before the reader; random matrices score about `1 / sqrt(d_model)`. Products, some of
    the size of d_vocab, are never formed. **Source**: framework paper, virtual weights; the ratio is its composition score.
    """
    writers, readers = components(model)
    products = gram_products(
        [Thin(W[None], W[None]) for W in writers.values()],
        [Thin(W.mT[None], W.mT[None]) for W in readers.values()],
    )
    sizes_out, sizes_in = (
        torch.stack([W.norm() for W in some.values()]) for some in (writers, readers)
    )
    strength = products.clamp_min(0).sqrt() / (sizes_out[:, None] * sizes_in)
    step = {name: anatomy(model).find(name).step for name in (*writers, *readers)}
    written, read_at = ([step[name] for name in names] for names in (writers, readers))
    strength[products.new_tensor(written)[:, None] >= products.new_tensor(read_at)] = torch.nan
    return tuple(writers), tuple(readers), strength


Kind = Literal["Q", "K", "V"]


@public
def reading_basis(heads: Heads, kind: Kind = "V") -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can read through its queries, keys or values: `x W` sees the column space of `W` alone.

    **Shapes**: `[head, d_model, d_head]`. **Error**: rounding. **Source**: "A Mathematical Framework for Transformer
    Circuits", subspaces and bandwidth.
    """
    name: Any = f"W_{kind}"
    return torch.linalg.qr(full_precision(getattr(heads, name)))[0]


@public
def writing_basis(heads: Heads) -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can write, the row space of `W_O`.

    **Shapes**: `[head, d_model, d_head]`. **Error**: rounding. **Source**: as `reading_basis`.
    """
    return torch.linalg.qr(full_precision(heads.W_O).transpose(-2, -1))[0]


@public
@one_stream()
@one_dtype("earlier", "later")
def subspace_overlap(
    earlier: Heads, later: Heads, kind: Kind = "V"
) -> Float[Tensor, "earlier later"]:
    """Share of each later head's reading subspace that each earlier head can write to, between 0 and 1.

    Mean squared cosine of the principal angles, `||A^T B||_F^2 / d_head` of the later head; times `d_head`, their projection
    kernel. Two random subspaces score `d_head / d_model` (of the earlier head), however strongly they are used. Memory: a GiB
    beside the heads. **Shapes**: `[earlier, later]`. **Error**: rounding. **Source**: this book; angles: Bjorck and Golub 1973.
    """
    out = earlier.W_O.new_zeros(
        len(earlier), len(later), dtype=full_precision(earlier.W_O[:0]).dtype
    )
    each = earlier.d_model * max(earlier.d_head, later.d_head)
    makers = (
        (lambda rows: Thin(*2 * [writing_basis(earlier[rows]).mT])),
        (lambda rows: Thin(*2 * [reading_basis(later[rows], kind).mT])),
    )
    for where, written, reading in tiles(len(earlier), len(later), each, *makers):
        out[where] = product_norms(written, reading)
    return out.square_().div_(later.d_head)


@public
@one_stream()
@one_dtype("earlier", "later")
def principal_cosines(earlier: Heads, later: Heads, kind: Kind = "V") -> Float[Tensor, " angle"]:
    r"""Cosines of the principal angles between all that some heads can write together and all that others read together, largest first.

    $\sum_i \cos^2\theta_i$ is the projection kernel of the two sets; over the number of angles, the share of the smaller space
    that lies in the larger. Random spaces of dimensions $r \le s$ share $s/d_{model}$. Heads are joined a tile at a time, by
    triangles whose condition is not squared. **Shapes**: as many as the smaller joint space has dimensions. **Error**:
    rounding; directions below it, beside the largest, are in neither space. **Source**: Bjorck and Golub 1973; sets are ours.

    >>> from circuitkit.circuits import random_heads
    >>> both = random_heads(2, 16, 3)
    >>> principal_cosines(both, random_heads(4, 16, 4, seed=1)).shape  # six dimensions, and all sixteen
    torch.Size([6])
    """
    name: Any = f"W_{kind}"
    written = joint_rows(
        len(earlier), earlier.W_O[:1].numel(), lambda some: full_precision(earlier[some].W_O)
    )
    reading = joint_rows(
        len(later),
        later.W_O[:1].numel(),
        lambda some: full_precision(getattr(later[some], name).mT),
    )
    return torch.linalg.svdvals(written @ reading.T).clamp(max=1)


@public
@must(
    lambda fix, d_model: (
        fix.shape == (d_model,) and bool(fix.any()) or f"({d_model},), a direction that is not zero"
    )
)
def random_rotation(
    d_model: Count,
    *,
    seed: Seed,
    fix: Float[Tensor, " d_model"] | None = None,
    dtype: Real = torch.float32,
) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix `R` (Haar measure); with `fix`, one that leaves that direction where it is.

    **Shapes**: `[d, d]` with `R^T R = I`. **Error**: rounding. **Source**: QR of a Gaussian matrix, signs as in Mezzadri 2007.
    """
    generator = torch.Generator().manual_seed(seed)
    size = d_model if fix is None else d_model - 1
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    q = q * r.diagonal().sign()
    if fix is None:
        return q.to(dtype)
    # An orthonormal basis whose first vector is the fixed direction; rotate within the rest.
    frame = torch.cat([fix.cpu().double()[:, None], torch.eye(d_model, dtype=torch.float64)], dim=1)
    basis = torch.linalg.qr(frame)[0][:, :d_model]
    inside = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), q)
    return (basis @ inside @ basis.T).to(dtype).to(fix.device)


@public
@must(
    lambda rotation: (
        (away := _away(rotation)) <= 1e-4
        or f"orthogonal: R R^T differs from the identity by {away:.2g}"
    )
)
def rotate_basis(model: AnyModel, rotation: Float[Tensor, "d_model d_model"]) -> Anatomy:
    """The same model, as one value, in which every writer `W` became `W R` and every reader `R^T W`.

    The stream turns into `x R`, and `(x R)(R^T W) = x W`: without norms the function is the same, up to rounding. Gains and
    biases of norms are folded into the readers first; a LayerNorm still subtracts the mean over coordinates, which singles
    out the all-ones direction. A gain behind a layer (BERT, Gemma 2, OLMo 2) has no one reader and is refused. **Source**: "A
    Mathematical Framework for Transformer Circuits", no privileged basis; the test by rotation is this book's.
    """
    value = anatomy(model)
    if len(rotation) != value.d_model:
        raise ValueError(
            f"rotate_basis got a rotation of {len(rotation)} dimensions; expected {value.d_model}, the model's d_model."
        )
    R = rotation.to(value.W_E)
    steps = (
        Step(tuple(_turned(sub, R) for sub in step.sublayers), _behind(step.closing, R))
        for step in value.steps
    )
    kept = {
        "W_E": value.W_E @ R,
        "W_pos": _times(value.W_pos, R),
        "steps": tuple(steps),
        "opening": _behind(value.opening, R),
    }
    if (network := value.head) is not None:
        return replace(value, **kept, head=lambda x: network(x @ R.T))
    final, M, shift = _folded(value.final, R)
    return replace(
        value, **kept, final=final, W_U=M @ value.W_U, b_U=_shifted(value.b_U, shift, value.W_U)
    )


def _away(rotation: Tensor) -> float:
    R = finest(rotation)
    return float((R @ R.T - torch.eye(len(R), dtype=R.dtype, device=R.device)).abs().max())


def _folded(norm: Norm | None, R: Tensor) -> tuple[Norm | None, Tensor, Tensor | None]:
    """The norm without gain and bias, and `M`, `shift`: what a reader had from `x` is what it has from `(x R) M + shift`."""
    if norm is None:
        return None, R.T, None
    return (
        replace(norm, gain=None, bias=None),
        R.T if norm.gain is None else R.T * norm.gain,
        norm.bias,
    )


def _times(W: Tensor | None, R: Tensor) -> Any:
    return None if W is None else W @ R


def _shifted(b: Tensor | None, shift: Tensor | None, W: Tensor) -> Tensor | None:
    """The bias of a reader that takes over what the norm before it added."""
    return b if shift is None else shift @ W if b is None else shift @ W + b


def _behind(norm: Norm | None, R: Tensor) -> Norm | None:
    """A norm of what is written: its bias turns, its gain would have to."""
    if norm is not None and norm.gain is not None:
        raise ValueError(
            "rotate_basis got a model with a norm behind its layers, whose gain belongs to the coordinates; expected norms "
            "before layers only, because there the gain can go into what reads. Try a GPT-2, NeoX or Llama."
        )
    return norm and replace(norm, bias=_times(norm.bias, R))


def _turned(sub: Sublayer, R: Tensor) -> Sublayer:
    before, M, shift = _folded(sub.before, R)
    inside, gate = sub.inside, sub.gate
    new: dict[str, Any] = {}
    for name in ("Q", "K", "V") if isinstance(inside, Heads) else ("in", "gate"):
        W = getattr(inside, f"W_{name}", None)
        if W is not None:
            new[f"W_{name}"], new[f"b_{name}"] = (
                M @ W,
                _shifted(getattr(inside, f"b_{name}", None), shift, W),
            )
    back = lambda x: x @ M if shift is None else x @ M + shift  # noqa: E731
    if isinstance(inside, Heads):
        inside = replace(inside, W_O=inside.W_O @ R, **new)
    elif isinstance(inside, Neurons):
        inside = replace(inside, W_out=inside.W_out @ R, b_out=_times(inside.b_out, R), **new)
    else:
        old, weights = inside, {name: W for name, W in new.items() if name.startswith("W")}
        inside = MLP(
            lambda x: old(back(x)) @ R, W_out=_times(getattr(old, "W_out", None), R), **weights
        )
    turned = {"before": before, "after": _behind(sub.after, R), "bias": _times(sub.bias, R)}
    return replace(
        sub, inside=inside, **turned, gate=None if gate is None else lambda x: gate(back(x))
    )
