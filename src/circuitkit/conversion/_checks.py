"""Checks on weights before they become heads: shapes, dtypes, finiteness, all problems at once."""

import torch
from torch import Tensor


def check_mlp(
    W_in: Tensor, W_out: Tensor, b_in: Tensor | None, b_out: Tensor | None, W_gate: Tensor | None = None
) -> None:
    """Raise one `ValueError` with everything that is wrong with the parts of an MLP."""
    if W_in.ndim != 2:
        raise ValueError(f"W_in has shape {tuple(W_in.shape)}; expected two axes [d_model, d_mlp]")
    d_model, d_mlp = W_in.shape
    expected = {
        "W_in": (W_in, (d_model, d_mlp), "[d_model, d_mlp]"),
        "W_out": (W_out, (d_mlp, d_model), "[d_mlp, d_model]"),
        "b_in": (b_in, (d_mlp,), "[d_mlp]"),
        "b_out": (b_out, (d_model,), "[d_model]"),
        "W_gate": (W_gate, (d_model, d_mlp), "[d_model, d_mlp]"),
    }
    problems = []
    for name, (tensor, shape, axes) in expected.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            problems.append(f"{name} has shape {tuple(tensor.shape)}; expected {axes} = {shape}, as W_in says")
        if not tensor.is_floating_point():
            problems.append(f"{name} has dtype {tensor.dtype}; expected floating point: call .float() on it")
        elif tensor.dtype != W_in.dtype:
            problems.append(
                f"{name} has dtype {tensor.dtype} and W_in {W_in.dtype}; bring them to one dtype with .to()"
            )
        elif not torch.isfinite(tensor.detach()).all():
            problems.append(f"{name} holds infinite or NaN entries; no bound on the conversion would hold")
    if problems:
        raise ValueError("these weights are no MLP:\n  " + "\n  ".join(problems))
