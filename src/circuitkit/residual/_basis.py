"""No privileged basis: the angles between subspaces that heads read and write, and the same model in a rotated stream."""

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._blocks import Thin, joint_rows, product_norms, tiles
from circuitkit._contract import AnyModel, Count, Real, Seed, must, one_dtype, one_stream, public
from circuitkit._heads import Heads
from circuitkit._precision import finest, full_precision
from circuitkit.anatomy import Anatomy, Neurons, Norm, anatomy
from circuitkit.anatomy._sublayer import MLP, Step, Sublayer

Kind = Literal["Q", "K", "V"]


@public
def reading_basis(heads: Heads, kind: Kind = "V") -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can read through its queries, keys or values: `x W` sees the column space of `W` alone.

    **Shapes**: `[head, d_model, d_head]`. **Error**: rounding. **Source**: "A Mathematical Framework for Transformer
    Circuits", subspaces and bandwidth.
    """
    name: Any = f"W_{kind}"
    return torch.linalg.qr(full_precision(heads.by_head(name)))[0]


@public
def writing_basis(heads: Heads) -> Float[Tensor, "head d_model d_head"]:
    """Orthonormal basis of what each head can write, the row space of `W_O`.

    **Shapes**: `[head, d_model, d_head]`. **Error**: rounding. **Source**: as `reading_basis`.
    """
    return torch.linalg.qr(full_precision(heads.W_O).transpose(-2, -1))[0]


@public
@one_stream()
@one_dtype("earlier", "later")
def subspace_overlap(earlier: Heads, later: Heads, kind: Kind = "V") -> Float[Tensor, "earlier later"]:
    """Share of each later head's reading subspace that each earlier head can write to, between 0 and 1.

    Mean squared cosine of the principal angles, `||A^T B||_F^2 / d_head` of the later head; times `d_head`, their projection
    kernel. Two random subspaces score `d_head / d_model` (of the earlier head), however strongly they are used. Memory: a GiB
    beside the heads. **Shapes**: `[earlier, later]`. **Error**: rounding. **Source**: this book; angles: Bjorck and Golub 1973.
    """
    out = earlier.W_O.new_zeros(len(earlier), len(later), dtype=full_precision(earlier.W_O[:0]).dtype)
    each = earlier.d_model * max(earlier.d_head, later.d_head)
    makers = (lambda rows: Thin(*2 * [writing_basis(earlier[rows]).mT])), (lambda rows: Thin(*2 * [reading_basis(later[rows], kind).mT]))
    for where, written, read in tiles(len(earlier), len(later), each, *makers):
        out[where] = product_norms(written, read)
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
    written = joint_rows(len(earlier), earlier.W_O[:1].numel(), lambda some: full_precision(earlier[some].W_O))
    read = joint_rows(len(later), later.W_O[:1].numel(), lambda some: full_precision(later[some].by_head(name).mT))
    return torch.linalg.svdvals(written @ read.T).clamp(max=1)


@public
@must(lambda fix, d_model: fix.shape == (d_model,) and bool(fix.any()) or f"({d_model},), a direction that is not zero")
def random_rotation(
    d_model: Count, *, seed: Seed, fix: Float[Tensor, " d_model"] | None = None, dtype: Real = torch.float32
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
@must(lambda rotation: (away := _away(rotation)) <= 1e-4 or f"orthogonal: R R^T differs from the identity by {away:.2g}")
def rotate_basis(model: AnyModel, rotation: Float[Tensor, "d_model d_model"]) -> Anatomy:
    """The same model, as one value, in which every writer `W` became `W R` and every reader `R^T W`.

    The stream turns into `x R`, and `(x R)(R^T W) = x W`: without norms the function is the same, up to rounding. Gains and
    biases of norms are folded into the readers first; a LayerNorm still subtracts the mean over coordinates, which singles
    out the all-ones direction. A gain behind a layer (BERT, Gemma 2, OLMo 2) has no one reader and is refused. **Source**: "A
    Mathematical Framework for Transformer Circuits", no privileged basis; the test by rotation is this book's.
    """
    value = anatomy(model)
    if len(rotation) != value.d_model:
        raise ValueError(f"rotate_basis got a rotation of {len(rotation)} dimensions; expected {value.d_model}, the model's d_model.")
    R = rotation.to(value.W_E)
    steps = (Step(tuple(_turned(sub, R) for sub in step.sublayers), _behind(step.closing, R)) for step in value.steps)
    kept = {"W_E": value.W_E @ R, "W_pos": _times(value.W_pos, R), "steps": tuple(steps), "opening": _behind(value.opening, R)}
    if (network := value.head) is not None:
        return replace(value, **kept, head=lambda x: network(x @ R.T))
    final, M, shift = _folded(value.final, R)
    return replace(value, **kept, final=final, W_U=M @ value.W_U, b_U=_shifted(value.b_U, shift, value.W_U))


def _away(rotation: Tensor) -> float:
    R = finest(rotation)
    return float((R @ R.T - torch.eye(len(R), dtype=R.dtype, device=R.device)).abs().max())


def _folded(norm: Norm | None, R: Tensor) -> tuple[Norm | None, Tensor, Tensor | None]:
    """The norm without gain and bias, and `M`, `shift`: what a reader had from `x` is what it has from `(x R) M + shift`."""
    if norm is None:
        return None, R.T, None
    return replace(norm, gain=None, bias=None), R.T if norm.gain is None else R.T * norm.gain, norm.bias


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
            new[f"W_{name}"], new[f"b_{name}"] = M @ W, _shifted(getattr(inside, f"b_{name}", None), shift, W)
    back = lambda x: x @ M if shift is None else x @ M + shift  # noqa: E731
    if isinstance(inside, Heads):
        inside = replace(inside, W_O=inside.W_O @ R, **new)
    elif isinstance(inside, Neurons):
        inside = replace(inside, W_out=inside.W_out @ R, b_out=_times(inside.b_out, R), **new)
    else:
        old, weights = inside, {name: W for name, W in new.items() if name.startswith("W")}
        inside = MLP(lambda x: old(back(x)) @ R, W_out=_times(getattr(old, "W_out", None), R), **weights)
    turned = {"before": before, "after": _behind(sub.after, R), "bias": _times(sub.bias, R)}
    return replace(sub, inside=inside, **turned, gate=None if gate is None else lambda x: gate(back(x)))
