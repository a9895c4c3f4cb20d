"""What the post on feed-forward layers as attention says, recomputed: the Omega construction."""

import torch

from circuitkit import conversion


def stream_growth() -> float:
    """D' / D of the three-layer construction at the sizes of GPT-3, from a one-column stand-in for its weights."""
    d_model, n_ctx = 12288, 2048
    W_in = torch.empty(1, 1).expand(d_model, 4 * d_model)
    built = conversion.OmegaMLP(W_in, W_in.T, None, None, n_ctx, omega=20.0, form="three_layers")
    return built.d_stream / d_model
