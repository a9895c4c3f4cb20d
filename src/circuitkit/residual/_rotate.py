"""No privileged basis: the same model in a rotated residual stream."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Real, Seed, must, public
from circuitkit._heads import Heads
from circuitkit._precision import finest
from circuitkit.anatomy import Anatomy, Neurons, Norm, anatomy
from circuitkit.anatomy._sublayer import MLP, Step, Sublayer


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
