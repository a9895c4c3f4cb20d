"""Tiny models with every parameter drawn at random, biases and gains included."""

import pytest
import torch


def _boot(dtype=torch.float64, seed=0, bias=True, **changes):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {"d_model": 24, "d_head": 5, "n_layers": 2, "n_ctx": 13, "n_heads": 3, "d_vocab": 37, "d_mlp": 29}
    settings = {"attn_only": True, "normalization_type": None, "act_fn": "gelu", "seed": 0}
    cfg = TransformerBridgeConfig(**{**sizes, **settings, **changes})
    model = TransformerBridge.boot_native(cfg).eval().to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim == 1:
                is_gain = name.endswith("weight")
                parameter.copy_(1 + 0.3 * value if is_gain else 0.3 * value * bias)
            else:
                parameter.copy_(0.4 * value)
        # Native models have no unembedding bias; the bridge adds one, as folding a norm would fill it.
        b_U = model.unembed.original_component.bias
        b_U.copy_(0.3 * bias * torch.randn(b_U.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture(scope="session")
def boot():
    return _boot


@pytest.fixture(scope="session")
def plain():
    """Two layers, attention only, no norm, no biases."""
    return _boot(bias=False)


@pytest.fixture(scope="session")
def with_norm():
    """Two layers with LayerNorm, MLPs and every bias non-zero."""
    return _boot(attn_only=False, normalization_type="LN")


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(3))
