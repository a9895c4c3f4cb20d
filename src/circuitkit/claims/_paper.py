"""What the paper on attention-only transformers says, recomputed: MLPs as masked heads."""

import torch
import torch.nn.functional as F

from circuitkit import conversion


def gelu_as_silu() -> float:
    """Largest error of SiLU(1.702 x) / 1.702 against GELU."""
    one_head = conversion.generalized_silu(1 / 1.702, 1.702)
    x = torch.linspace(-12, 12, 2_400_001, dtype=torch.float64)
    return float((one_head(x) - F.gelu(x)).abs().max())
