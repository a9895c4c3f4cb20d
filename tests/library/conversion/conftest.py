"""Tiny models of many architectures with every parameter drawn at random, native ones and Hugging Face ones."""

import math

import pytest
import torch

from tests.support import tiny_models


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "real_models: needs pretrained weights that `make real-models` fetches"
    )


SIZES = {
    "d_model": 12,
    "d_head": 5,
    "n_layers": 2,
    "n_ctx": 13,
    "n_heads": 3,
    "d_vocab": 37,
    "d_mlp": 19,
}
USUAL = {"attn_only": False, "normalization_type": "LN", "init_weights": True}


def _native(dtype=torch.float64, seed=0, **changes):
    return tiny_models.boot(dtype, seed, **SIZES | USUAL | changes)


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(40)}, unk_token="w39"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "w38", "eos_token": "w38", "pad_token": "w38", "unk_token": "w39"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    tokenizer.init_kwargs.update(name_or_path="local", add_bos_token=True)
    return tokenizer


KINDS = {
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 40},
    ),
    "opt": ("OPT", "ForCausalLM", {"ffn_dim": 40, "word_embed_proj_dim": 24}),
    "neox": ("GPTNeoX", "ForCausalLM", {"intermediate_size": 40}),
    "bert": ("Bert", "ForMaskedLM", {"intermediate_size": 40}),
    "llama": ("Llama", "ForCausalLM", {"intermediate_size": 40, "num_key_value_heads": 2}),
}
COMMON = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def _hugging_face(folder, kind, dtype=torch.float64, seed=0, **changes):
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    family, head, settings = KINDS[kind]
    name = f"{family}{head}"
    sizes = settings if kind == "gpt2" else COMMON | settings
    config = getattr(transformers, f"{family}Config")(
        **(
            sizes
            | {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "architectures": [name]}
            | changes
        )
    )
    model = getattr(transformers, name)(config).eval()
    tiny_models.randomise(model, seed, 0.2)
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    return TransformerBridge.boot_transformers(
        str(folder), tokenizer=_tokenizer(), dtype=dtype
    ).eval()


@pytest.fixture
def tokenizer():
    return _tokenizer()


@pytest.fixture(scope="session")
def native():
    return _native


@pytest.fixture
def hugging_face(tmp_path):
    return lambda kind, **settings: _hugging_face(tmp_path, kind, **settings)


@pytest.fixture(scope="session")
def boot_neox(tmp_path_factory):
    return lambda **settings: _hugging_face(tmp_path_factory.mktemp("neox"), "neox", **settings)


@pytest.fixture(scope="session")
def draw():
    """`draw(seed, 3, 5)`: a standard normal float64 tensor."""

    def _draw(seed, *shape, dtype=torch.float64):
        return torch.randn(
            *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        ).to(dtype)

    return _draw


@pytest.fixture(scope="session")
def scalar():
    """Activation functions of one number, written with `math`."""
    root = math.sqrt(2 / math.pi)
    return {
        "silu": lambda x: x / (1 + math.exp(-x)) if x > -700 else 0.0,
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
        "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(root * (x + 0.044715 * x**3))),
        "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)) if x > -400 else 0.0,
    }
