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
OPT = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 40,
    "word_embed_proj_dim": 24,
}
SOFT = {"head_dim": 8, "sliding_window": 5, "query_pre_attn_scalar": 10}
# name: (class, configuration, settings, largest logit error in float64)
# 1e-12 where the original computes in float64; elsewhere transformers takes norms, rotations or (OPT) the softmax in float32.
SHAPES = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**tiny_models.GPT2, "n_head": 4, "n_layer": 3},
        1e-12,
    ),
    "neox-parallel": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SIZES, "rotary_pct": 0.5}, 1e-12),
    "neox-no-bias": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**SIZES, "rotary_pct": 0.5, "attention_bias": False},
        1e-12,
    ),
    "neox-serial": (
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**SIZES, "use_parallel_residual": False},
        1e-12,
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "attention_bias": True}, 1e-5),
    "llama-yarn": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "rope_parameters": YARN}, 1e-5),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, 1e-5),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}, 1e-5),
    "gemma1": (
        "GemmaForCausalLM",
        "GemmaConfig",
        {**GROUPED, "num_key_value_heads": 1, "head_dim": 8},
        1e-5,
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, **SOFT, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
        1e-5,
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**GROUPED, **SOFT, "sliding_window_pattern": 2},
        1e-5,
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 5}, 1e-5),
    "phi": ("PhiForCausalLM", "PhiConfig", {**SIZES, "partial_rotary_factor": 0.5}, 1e-6),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**OPT, "vocab_size": 50, "max_position_embeddings": 32},
        1e-6,
    ),
    "bert": ("BertForMaskedLM", "BertConfig", SIZES, 1e-12),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED, 1e-5),
}


@functools.cache
def make(name, dtype=torch.float64):
    """A model of this shape, every parameter moved by random noise."""
    import transformers

    if name in SHAPES:
        model, config, settings, _ = SHAPES[name]
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            original = getattr(transformers, model)(
                getattr(transformers, config)(**settings)
            ).eval()
            return tiny_models.from_folder(folder, original).to(dtype)
    sizes = {"d_model": 12, "d_head": 5, "n_heads": 4, "n_layers": 2, "n_ctx": 12, "d_vocab": 50}
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
    return tiny_models.boot(dtype, **{**sizes, **more[name]})


@functools.cache
def converted(name, dtype=torch.float64):
    """A model whose MLPs became heads: two a neuron, eight where it is gated."""
    import circuitkit

    if name == "native-mlp":
        return circuitkit.to_attention_only(make(name, dtype), heads_per_neuron=2)
    sizes = {
        "d_model": 12,
        "d_head": 5,
        "n_heads": 4,
        "n_layers": 2,
        "n_ctx": 12,
        "d_vocab": 50,
        "d_mlp": 20,
    }
    gated = tiny_models.boot(
        dtype, **sizes, attn_only=False, gated_mlp=True, act_fn="silu", normalization_type="LN"
    )
    return circuitkit.to_attention_only(gated, heads_per_neuron=8)
