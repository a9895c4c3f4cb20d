"""Numbers of a configuration by which a model multiplies values are factors in products of weights."""

import math

import pytest
import torch
import transformers

import circuitkit as ck
from circuitkit.residual import virtual_weights
from tests.support import tiny_models, zoo

ROTARY = zoo.SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 6}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.2, "logits_scaling": 4.0}
CONFIGURATIONS = {
    "granite": ("granite", ROTARY | GRANITE | {"attention_multiplier": 0.3}),
    "cohere": ("cohere", ROTARY | {"logit_scale": -2.0}),
    "gemma": ("gemma", ROTARY),
    "bloom": ("bloom", {"hidden_size": 24, "n_layer": 2, "n_head": 4, "vocab_size": 50}),
}


def build(folder, name):
    kind, settings = CONFIGURATIONS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **settings)
    original = transformers.AutoModelForCausalLM.from_config(config).eval()
    return tiny_models.from_folder(folder, original), original


def centred(x):
    return x - x.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("name", "embedding", "layer", "logits"),
    [
        ("granite", 3.0, 0.2, 1 / 4.0),
        ("cohere", 1.0, 1.0, -2.0),
        ("gemma", math.sqrt(24), 1.0, 1.0),
    ],
)
@torch.no_grad()
def test_full_circuits_are_products_with_the_numbers_of_the_configuration(
    tmp_path, name, embedding, layer, logits
):
    model, original = build(tmp_path, name)
    attention = original.model.layers[1].self_attn
    W_E, W_U = original.model.embed_tokens.weight, original.lm_head.weight.T
    W_Q, W_K, W_V = (getattr(attention, f"{side}_proj").weight.T[:, 6:12] for side in "qkv")
    W_O = attention.o_proj.weight.T[6:12]
    right = embedding * layer * logits * (W_E @ W_V @ W_O @ W_U)
    torch.testing.assert_close(ck.circuits.full_ov(model, "L1H1").AB, right, rtol=1e-4, atol=1e-4)
    copying = torch.linalg.eigvals(right)
    score = copying.real.sum() / copying.abs().sum()
    assert ck.circuits.copying_score(model)["L1H1"] == pytest.approx(float(score), abs=1e-3)
    if name == "gemma":
        scaling = attention.scaling
        tables = ck.circuits.full_qk(model, "L1H1", offset=0).AB
        assert torch.allclose(
            tables, embedding**2 * scaling * (W_E @ W_Q @ W_K.T @ W_E.T), atol=1e-3
        )


@torch.no_grad()
def test_a_head_of_granite_adds_to_the_stream_what_virtual_weights_say(tmp_path):
    """What the next layer reads is compared between two values of z, in transformers."""
    model, original = build(tmp_path, "granite")
    first, second = original.model.layers
    reads = []

    def stream_with(z):
        handles = [
            first.self_attn.o_proj.register_forward_pre_hook(lambda *_: (z,)),
            first.mlp.register_forward_hook(lambda module, given, value: value * 0),
            second.register_forward_pre_hook(lambda module, given: reads.append(given[0])),
        ]
        original(torch.tensor([[3]]))
        for handle in handles:
            handle.remove()
        return reads[-1][0, 0]

    z = torch.zeros(1, 1, 24)
    z[..., 7] = 1  # the second dimension of L0H1
    added = stream_with(z) - stream_with(torch.zeros(1, 1, 24))
    W_K = second.self_attn.k_proj.weight.T[:, 12:18]
    right = (added * second.input_layernorm.weight) @ W_K
    weights = virtual_weights(model, "L0H1", "L1H2.K").AB
    torch.testing.assert_close(weights[1], right, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_norm_behind_the_embedding_of_bloom_acts_on_it(tmp_path):
    model, original = build(tmp_path, "bloom")
    parts, layer = original.transformer, original.transformer.h[0]
    joint = layer.self_attention.query_key_value.weight.view(
        4, 3, 6, 24
    )  # [head, qkv, d_head, d_model]
    embedding = centred(parts.word_embeddings.weight) * parts.word_embeddings_layernorm.weight
    bias = parts.word_embeddings_layernorm.bias[None]
    for name, written in (("embed", embedding), ("embed bias", bias)):
        right = (centred(written) * layer.input_layernorm.weight) @ joint[1, 2].T
        weights = virtual_weights(model, name, "L0H1.V").AB
        torch.testing.assert_close(weights, right, rtol=1e-4, atol=1e-4)


def test_a_multiplier_whose_effect_is_not_known_is_refused_by_name(tmp_path):
    model, _ = build(tmp_path, "cohere")
    model.original_model.config.key_multiplier = 0.5  # Falcon-H1
    for use in (
        lambda: virtual_weights(model, "L0H1", "L1H2.K"),
        lambda: ck.circuits.full_ov(model, "L0H1"),
        lambda: ck.circuits.copying_score(model),
    ):
        with pytest.raises(ValueError, match=r"key_multiplier=0\.5"):
            use()


@pytest.mark.parametrize("place", ["mlp", "unembed", "embed"])
def test_products_with_a_weight_that_is_no_number_are_refused(tmp_path, place):
    model, _ = build(tmp_path, "cohere")
    original = model.original_model
    weight = {
        "mlp": lambda: original.model.layers[0].mlp.down_proj.weight,
        "unembed": lambda: original.lm_head.weight,
        "embed": lambda: original.model.embed_tokens.weight,
    }[place]()
    with torch.no_grad():
        weight[0, 0] = torch.nan
    uses = {
        "mlp": [lambda: virtual_weights(model, "L0 MLP", "L1H0.K")],
        "unembed": [
            lambda: virtual_weights(model, "L0H0", "unembed"),
            lambda: ck.circuits.full_ov(model, "L0H0"),
        ],
        "embed": [
            lambda: virtual_weights(model, "embed", "L0H0.V"),
            lambda: ck.circuits.full_ov(model, "L0H0"),
            lambda: ck.circuits.copying_score(model),
        ],
    }
    for use in uses[place]:
        with pytest.raises(ValueError, match="NaN"):
            use()
