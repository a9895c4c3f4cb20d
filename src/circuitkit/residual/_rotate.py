"""No privileged basis: the same model in a rotated residual stream."""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, Model, Real, Seed, must, public


@public
@must(lambda fix, d_model: fix.shape == (d_model,) and bool(fix.any()) or f"({d_model},), a direction that is not zero")
def random_rotation(
    d_model: Count, *, seed: Seed, fix: Float[Tensor, " d_model"] | None = None, dtype: Real = torch.float32
) -> Float[Tensor, "d_model d_model"]:
    """A random orthogonal matrix `R` (Haar measure); with `fix`, one that leaves that direction where it is.

    **Shapes**: `[d, d]` with `R^T R = I`. **Error**: rounding. **Source**: the QR decomposition of a Gaussian
    matrix, with the signs of Mezzadri 2007.
    """
    generator = torch.Generator().manual_seed(seed)
    size = d_model if fix is None else d_model - 1
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    q = q * r.diagonal().sign()
    if fix is None:
        return q.to(dtype)
    # An orthonormal basis whose first vector is the fixed direction; rotate within the rest.
    frame = torch.cat([fix.double()[:, None], torch.eye(d_model, dtype=torch.float64)], dim=1)
    basis = torch.linalg.qr(frame)[0][:, :d_model]
    inside = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), q)
    return (basis @ inside @ basis.T).to(dtype)


def _is_rotation(rotation: Tensor, model: Any) -> Any:
    d, R = model.cfg.d_model, rotation.double()
    away = (R @ R.T - torch.eye(len(R), dtype=R.dtype)).abs().max().item()
    return (len(R) == d and away <= 1e-4) or f"({d}, {d}) = [d_model, d_model], orthogonal: R R^T differs from the identity by {away:.2g}"


_native = "a native bridge (boot_native, load_model of a shipped model): others store weights in another layout"


@public
@must(lambda model: type(model.original_model).__name__ == "NativeModel" or _native)
@must(_is_rotation, "rotation", "model")
def rotate_basis(model: Model, rotation: Float[Tensor, "d_model d_model"]) -> Any:
    """A copy of a native bridge in which every writer `W` became `W R` and every reader `R^T W`.

    The stream turns into `x R`, and every inner product a reader takes is unchanged: `(x R)(R^T W) = x W`. So without
    norms the function is the same, up to rounding. Gains of norms are folded into the readers first (they are tied to
    the coordinates); a LayerNorm still subtracts the mean over coordinates, which singles out the all-ones direction.

    **Source**: "A Mathematical Framework for Transformer Circuits", the residual stream has no privileged basis;
    the test by rotation is this book's.
    """
    bridge = model
    state = dict(bridge.state_dict())
    out = dict(state)
    for layer in range(bridge.cfg.n_layers):
        prefix = f"blocks.{layer}."
        readers = {"ln1": ["attn.q", "attn.k", "attn.v"], "ln2": ["mlp.in", "mlp.gate"]}
        for norm, names in readers.items():
            _fold(out, prefix + norm, [prefix + name for name in names if f"{prefix}{name}.weight" in out])
    _fold(out, "ln_final", ["unembed"])
    for name, value in out.items():
        if name.endswith(("q.weight", "k.weight", "v.weight", "in.weight", "gate.weight", "unembed.weight")):
            out[name] = value @ rotation.to(value)  # stored [out, d_model]
        elif name.endswith((".o.weight", "mlp.out.weight")):
            out[name] = rotation.to(value).T @ value  # stored [d_model, in]
        elif name.endswith(("embed.weight", ".o.bias", "mlp.out.bias")):
            out[name] = value @ rotation.to(value)
    rotated = copy.deepcopy(bridge)
    rotated.load_state_dict(out, strict=True)
    return rotated


def _fold(state: dict[str, Tensor], norm: str, readers: list[str]) -> None:
    """Move a norm's gain and bias into the linear maps that read from it."""
    gain, bias = state.get(f"{norm}.weight"), state.get(f"{norm}.bias")
    for reader in readers:
        weight = state[f"{reader}.weight"]
        if bias is not None and f"{reader}.bias" not in state and bias.any():
            why = f"the bias of {norm} cannot be folded into {reader}, which has none (a gated MLP behind a LayerNorm)"
            raise ValueError(f"{why}; expected readers with biases, norms without, or RMS norms.")
        if bias is not None and f"{reader}.bias" in state:
            state[f"{reader}.bias"] = state[f"{reader}.bias"] + weight @ bias
        if gain is not None:
            state[f"{reader}.weight"] = weight * gain
    if gain is not None:
        state[f"{norm}.weight"] = torch.ones_like(gain)
    if bias is not None:
        state[f"{norm}.bias"] = torch.zeros_like(bias)
