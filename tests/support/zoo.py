"""Tiny random models of every shape, made once for the session."""

import functools
import tempfile

import torch

from tests.support import tiny_models

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "vocab_size": 50,
    "max_position_embeddings": 32,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
}
OPT = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 40}
SOFT = GROUPED | {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 10}
SOFTCAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
OPT |= {"word_embed_proj_dim": 24, "vocab_size": 50, "max_position_embeddings": 32}
# name: (type of the model in transformers, its settings)
SHAPES = {
    "gpt2": ("gpt2", tiny_models.GPT2 | {"n_head": 4, "n_layer": 3}),
    "neox-parallel": ("gpt_neox", SIZES | {"rotary_pct": 0.5}),
    "neox-no-bias": ("gpt_neox", SIZES | {"rotary_pct": 0.5, "attention_bias": False}),
    "neox-serial": ("gpt_neox", SIZES | {"use_parallel_residual": False}),
    "llama": ("llama", GROUPED | {"attention_bias": True}),
    "llama-yarn": ("llama", GROUPED | {"rope_parameters": YARN}),
    "qwen2": ("qwen2", GROUPED),
    "qwen3": ("qwen3", GROUPED | {"head_dim": 8}),
    "gemma1": ("gemma", GROUPED | {"num_key_value_heads": 1, "head_dim": 8}),
    "gemma2": ("gemma2", SOFT | SOFTCAPS),
    "gemma3": ("gemma3_text", SOFT | {"sliding_window_pattern": 2}),
    "mistral": ("mistral", GROUPED | {"sliding_window": 5}),
    "phi": ("phi", SIZES | {"partial_rotary_factor": 0.67}),  # 4 of 6 dimensions
    "opt": ("opt", OPT),
    "bert": ("bert", SIZES),
    "olmo2": ("olmo2", GROUPED),
}
#: Elsewhere transformers takes norms, rotations or (OPT) the softmax in float32.
IN_FLOAT64 = ("gpt2", "neox-parallel", "neox-no-bias", "neox-serial", "bert")
NATIVE = {"d_model": 12, "d_head": 5, "n_heads": 4, "n_layers": 2, "n_ctx": 12, "d_vocab": 50}


@functools.cache
def make(name, dtype=torch.float64):
    """A model of this shape, every parameter moved by random noise."""
    import transformers

    if name in SHAPES:
        kind, settings = SHAPES[name]
        config = transformers.AutoConfig.for_model(kind, **settings)
        auto = (
            transformers.AutoModelForMaskedLM
            if name == "bert"
            else transformers.AutoModelForCausalLM
        )
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_models.from_folder(folder, auto.from_config(config).eval())
            return tiny_models.in_dtype(model, dtype)
    more = {
        "native": {},
        "native-mlp": {"attn_only": False, "d_mlp": 20, "normalization_type": "LN"},
        "native-rotary": {
            "positional_embedding_type": "rotary",
            "n_key_value_heads": 2,
            "d_head": 6,
        },
        "native-encoder": {"attention_dir": "bidirectional", "normalization_type": "LNPre"},
    }
    return tiny_models.boot(dtype, **(NATIVE | more[name]))


@functools.cache
def converted(name, dtype=torch.float64):
    """A model whose MLPs became heads: two a neuron, eight where it is gated."""
    import circuitkit

    if name == "native-mlp":
        return circuitkit.to_attention_only(make(name, dtype), heads_per_neuron=2)
    gated = {"attn_only": False, "gated_mlp": True, "act_fn": "silu", "normalization_type": "LN"}
    model = tiny_models.boot(dtype, **NATIVE, d_mlp=20, **gated)
    return circuitkit.to_attention_only(model, heads_per_neuron=8)
