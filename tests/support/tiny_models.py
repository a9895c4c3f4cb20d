"""Tiny models with every parameter drawn at random, biases and gains included: native ones and Hugging Face ones."""

import warnings

import torch


def randomise(model, seed=0, size=0.4, bias=0.3):
    """Gains around 1, biases of size `bias`, matrices of size `size`; drawn in float64 in the order of their names."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            vector = 1 + 0.3 * value if name.endswith("weight") else bias * value
            parameter.copy_(vector if parameter.ndim == 1 else size * value)
    return generator


def in_dtype(model, dtype):
    """The model itself, converted; the bridge's own `to` lists every weight once for each weight, which takes longer than all else."""
    model.cfg.dtype = dtype
    model.original_model.to(dtype)
    return torch.nn.Module.to(model, dtype)


def boot(dtype=torch.float64, seed=0, *, size=0.4, bias=True, unembedding_bias=False, **settings):
    """A native model of these settings; transformer-lens gives it an unembedding bias, zero unless asked for."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    usual = {
        "attn_only": True,
        "normalization_type": None,
        "act_fn": "gelu",
        "seed": 0,
        "init_weights": False,
    }
    model = TransformerBridge.boot_native(TransformerBridgeConfig(**{**usual, **settings})).eval()
    in_dtype(model, dtype)
    generator = randomise(model, seed, size, 0.3 * bias)
    if unembedding_bias:
        b_U = model.unembed.original_component.bias
        with torch.no_grad():
            b_U.copy_(0.3 * bias * torch.randn(b_U.shape, generator=generator, dtype=torch.float64))
    return model


HUGGING_FACE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_position_embeddings": 16,
}
GPT2 = {"n_embd": 24, "n_layer": 2, "n_head": 3, "vocab_size": 50, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip


def from_folder(folder, original, noise=0.2):
    """A transformers model moved by random noise, saved to a folder and loaded from there by the library; float32."""
    import circuitkit

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    original.save_pretrained(folder)
    circuitkit.models.load_tokenizer().save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return circuitkit.load_model(str(folder))
