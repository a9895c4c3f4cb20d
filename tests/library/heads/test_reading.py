"""Heads read from models: weights against the state dictionary, patterns against the model's own."""

import dataclasses

import pytest
import torch

import circuitkit as ck
from circuitkit import heads_of
from circuitkit.reading import ARCHITECTURES, layer_heads
from tests.support import tiny_models, zoo

NATIVE = {
    "plain": {},
    "one-head": {"n_heads": 1, "d_head": 7},
    "layer-norm": {"normalization_type": "LN", "attn_only": False},
    "norm-without-gain": {"normalization_type": "LNPre"},
    "encoder": {"attention_dir": "bidirectional"},
    "grouped": {"n_heads": 6, "n_key_value_heads": 2},
    "scale": {"attn_scale": 3.0},
    "no-scale": {"use_attn_scale": False},  # native models divide by sqrt(d_head) all the same
    "cap": {"attn_scores_soft_cap": 2.0},
    "rotary": {"positional_embedding_type": "rotary", "d_head": 6, "rotary_dim": 4},
}
MORE = {  # families that the shared models of the tests leave out
    "gpt-neo": (
        "GPTNeo",
        {
            "hidden_size": 24,
            "num_layers": 2,
            "num_heads": 3,
            "vocab_size": 50,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 16,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "mixtral": (
        "Mixtral",
        {**tiny_models.HUGGING_FACE, "num_key_value_heads": 1, "num_local_experts": 2},
    ),
    "llama3-scaling": (
        "Llama",
        {
            **tiny_models.HUGGING_FACE,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            },
        },
    ),
}


FOUR_LAYERS = zoo.GROUPED | {"num_hidden_layers": 4}
MIXED_WINDOWS = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 4,
    "use_sliding_window": True,
}
# settings that change the mask or the scores: whether the patterns follow them, family, settings
SWITCHES = {
    "bert-decoder": (True, "Bert", zoo.SIZES | {"is_decoder": True}),
    "qwen2-windows": (True, "Qwen2", FOUR_LAYERS | MIXED_WINDOWS),
    "qwen3-windows": (True, "Qwen3", FOUR_LAYERS | MIXED_WINDOWS | {"head_dim": 8}),
    "llama-unused-window": (True, "Llama", FOUR_LAYERS | {"sliding_window": 4}),
    "mistral-no-window": (True, "Mistral", FOUR_LAYERS | {"sliding_window": None}),
    "gpt2-inverse": (True, "GPT2", tiny_models.GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2-no-scale": (False, "GPT2", tiny_models.GPT2 | {"scale_attn_weights": False}),
    "gemma3-both-ways": (
        False,
        "Gemma3Text",
        zoo.SOFT | {"num_hidden_layers": 4, "use_bidirectional_attention": True},
    ),
    "opt-not-causal": (False, "OPT", zoo.OPT | {"is_causal": False}),
    "llama-clipped": (False, "Llama", FOUR_LAYERS | {"clip_qkv": 0.1}),
}


def from_transformers(folder, family, settings):
    import transformers

    config = getattr(transformers, f"{family}Config")(**settings)
    kinds = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel"}
    kinds["Gemma3Text"] = "Gemma3ForCausalLM"
    torch.manual_seed(0)
    original = getattr(transformers, kinds.get(family, f"{family}ForCausalLM"))(config).eval()
    return tiny_models.from_folder(folder, original)


def compare_with_model(model, tokens, tolerance):
    """Patterns, and the sum of all results, layer by layer, against the model's hooks."""
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    close = {"atol": tolerance, "rtol": 0}
    for layer in range(model.cfg.n_layers):
        heads, at = layer_heads(model, layer), f"blocks.{layer}.attn."
        reads, pattern = cache[f"{at}hook_in"], cache[f"{at}hook_pattern"]
        torch.testing.assert_close(heads.pattern(reads).to(pattern), pattern, **close)
        written = heads.results(reads).sum(-3)
        if getattr(model.blocks[layer].attn, "b_O", None) is not None:
            written = written + model.blocks[layer].attn.b_O.detach()
        behind = cache[f"{at}o.hook_out"].view_as(written)
        torch.testing.assert_close(written, behind, **close)


@pytest.mark.parametrize("name", [*zoo.SHAPES])
def test_families_attend_as_the_model_does(name, tokens):
    # transformers takes rotations, norms and the softmax of some families in float32
    compare_with_model(zoo.make(name), tokens, 1e-12 if name in zoo.IN_FLOAT64 else 1e-5)


@pytest.mark.parametrize("changes", NATIVE.values(), ids=NATIVE)
def test_native_models_attend_as_their_heads(boot, tokens, changes):
    # the tables of rotations are float32
    compare_with_model(boot(**changes), tokens, 1e-6 if "rotary" in str(changes) else 1e-12)


@pytest.mark.parametrize(("family", "settings"), MORE.values(), ids=MORE)
def test_more_families_attend_as_the_model_does(tmp_path, tokens, family, settings):
    compare_with_model(from_transformers(tmp_path, family, settings), tokens, 1e-5)


@pytest.mark.parametrize(("is_read", "family", "settings"), SWITCHES.values(), ids=SWITCHES)
def test_settings_that_change_patterns_are_followed_or_refused(
    tmp_path, tokens, is_read, family, settings
):
    """Patterns with another mask or scale than the model's would be silently wrong."""
    model = from_transformers(tmp_path, family, settings)
    if is_read:
        return compare_with_model(model, tokens, 1e-5)
    with pytest.raises(ValueError, match="the configuration of the model says [a-z_]+=.*not read"):
        layer_heads(model, 0).pattern(torch.zeros(3, 24))


def test_every_architecture_in_the_list_is_compared():
    compared = {"TransformerLensNative", "GPTNeoForCausalLM", "MixtralForCausalLM"}
    compared |= {str(zoo.make(name).cfg.architecture) for name in zoo.SHAPES}
    assert compared == set(ARCHITECTURES)


def test_other_architectures_have_weights_and_no_patterns(tmp_path, boot):
    """A model whose scores hold more than is read here never gives a wrong pattern."""
    sizes = {"hidden_size": 24, "n_layer": 2, "n_head": 3, "vocab_size": 50}
    model = from_transformers(tmp_path, "Bloom", sizes)  # its scores depend on distances (ALiBi)
    heads = heads_of(model)
    assert (heads.positions, heads.W_Q.shape) == ("other", (6, 24, 8))
    message = "their weights: BloomForCausalLM is not one of .* circuitkit.reading.ARCHITECTURES"
    with pytest.raises(ValueError, match=message):
        heads.pattern(torch.zeros(3, 24))
    native = boot(positional_embedding_type="rotary", d_head=6)
    native.cfg.rope_scaling = {"rope_type": "linear", "factor": 2.0}
    assert heads_of(native).positions == "other"


def test_joint_matrices_of_gpt2_are_split(tmp_path):
    """Queries, keys and values of GPT-2 are one matrix side by side, stored [in, out]."""
    import transformers

    original = transformers.GPT2LMHeadModel(transformers.GPT2Config(**tiny_models.GPT2)).eval()
    heads = heads_of(tiny_models.from_folder(tmp_path, original))
    attention = original.transformer.h[1].attn
    for place, kind in enumerate("QKV"):
        columns = slice(24 * place + 16, 24 * place + 24)  # the third head of three
        weight, bias = attention.c_attn.weight[:, columns], attention.c_attn.bias[columns]
        assert torch.equal(getattr(heads["L1H2"], f"W_{kind}")[0], weight)
        assert torch.equal(getattr(heads["L1H2"], f"b_{kind}")[0], bias)
    assert torch.equal(heads["L1H2"].W_O[0], attention.c_proj.weight[16:24])


def test_zero_biases_are_left_out(boot):
    model = boot()
    with torch.no_grad():
        for layer in range(2):
            model.blocks[layer].attn.k.bias.zero_()
    assert heads_of(model).b_K is None
    assert heads_of(model).b_Q is not None
    with torch.no_grad():  # one number that is not zero is enough
        model.blocks[1].attn.k.bias[3] = 0.5
    assert (heads_of(model).b_K != 0).sum() == 1


@pytest.mark.parametrize("n_layers", [1, 2])
def test_weights_are_copies(boot, n_layers):
    model = boot(n_layers=n_layers)
    heads = heads_of(model)
    before = heads.W_V.clone()
    assert not heads.W_Q.requires_grad
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(heads.W_V, before)
    heads.W_O.zero_()
    assert heads_of(model).W_O.any()


def test_chosen_heads_are_read_in_the_order_of_their_names(boot):
    model = boot()
    every = heads_of(model)
    for names in (["L1H2", "L0H1"], ["L0H1", "L1H2", "L0H0"]):
        chosen = heads_of(model, names)
        assert chosen.names == tuple(names)
        assert torch.equal(chosen.W_O, every[names].W_O)
    assert heads_of(model, "L1H0").names == ("L1H0",)


def test_layers_that_score_in_different_ways_keep_their_weights():
    """Gemma 3 rotates and looks back in two ways: together its heads have no patterns."""
    model = zoo.make("gemma3")
    heads = heads_of(model)
    assert (len(heads), heads.positions, heads.turn, heads.window) == (12, "other", None, None)
    near = heads_of(model, "L0H1")
    assert (near.positions, near.window) == ("rotary", 5)
    assert torch.equal(near.W_Q, heads["L0H1"].W_Q)
    with pytest.raises(ValueError, match="score in different ways, so take heads of one layer"):
        heads["L0H1"].pattern(torch.zeros(3, 24).double())


def test_a_model_without_layers_has_no_heads(boot):
    with pytest.raises(ValueError, match="no attention heads"):
        heads_of(boot(n_layers=0))


def test_neurons_of_a_converted_model():
    """Heads by name equal the layer's own; with attention heads they share d_model + 1 coordinates."""
    model = zoo.converted("native-mlp")
    neuron = heads_of(model, "L0N3")
    assert neuron.names == ("L0N3.0", "L0N3.1")
    assert (neuron.d_model, neuron.mask, neuron.layers) == (13, "self_or_first", (0.5, 0.5))
    layer = heads_of(model, "L0 MLP")
    assert len(layer) == 40
    assert torch.equal(heads_of(model, ["L0N3.1", "L0N2"]).W_Q, layer[[7, 4, 5]].W_Q)
    mixed = heads_of(model, ["L0H1", "L0N3.1", "L1H2"])
    assert (mixed.layers, mixed.positions, mixed.d_head) == ((0, 0.5, 1), "other", 5)
    attention = heads_of(model)
    assert torch.equal(mixed["L1H2"].W_Q[0, :12], attention["L1H2"].W_Q[0])
    torch.testing.assert_close(mixed["L0N3.1"].OV.AB, layer["L0N3.1"].OV.AB)
    assert not mixed["L0H1"].OV.AB[0, 12].any()


def test_names_that_the_model_does_not_have(boot):
    model = boot()
    for name in ("L0H3", "L7H0", "L0H1->L1H0", "embed", "L0H1.K"):
        with pytest.raises(ValueError, match="no head is called"):
            heads_of(model, name)
    with pytest.raises(ValueError, match="Layer 0 has no neuron-heads.*to_attention_only"):
        heads_of(model, "L0N3")
    with pytest.raises(ValueError, match="no neuron-head is called 'L0N99'"):
        heads_of(zoo.converted("native-mlp"), "L0N99")
    with pytest.raises(TypeError, match="A TransformerBridge is needed, not 'two-layer'"):
        heads_of("two-layer")


def test_weights_that_are_not_finite_are_refused(boot):
    model = boot()
    with torch.no_grad():
        model.blocks[1].attn.q.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="W_Q of layer 1 holds NaN"):
        heads_of(model)


def test_heads_know_their_model():
    heads = heads_of(ck.load_model("two-layer"))
    assert heads.of.startswith("two-layer")
    same = dataclasses.replace(heads["L1H0"], of="another (1234)")
    with pytest.raises(ValueError, match="belong to different models"):
        ck.stack(heads["L0H0"], same)


def test_a_cap_below_one_counts(monkeypatch):
    """Gemma 2 may have any cap; native models write -1 for none."""
    model = zoo.make("gemma2")
    module = model.blocks[0].attn.original_component
    for cap, expected in (0.5, 0.5), (5.0, 5.0), (None, None):
        monkeypatch.setattr(module, "attn_logit_softcapping", cap)
        assert heads_of(model, "L0H1").cap == expected
    module = zoo.make("native").blocks[0].attn.original_component
    assert module.attn_scores_soft_cap == -1
    assert heads_of(zoo.make("native"), "L0H1").cap is None


def at_once(name, *changes):
    """The patterns of L1H1 from weights after changes `(of what, attribute, value)`, and the model's."""
    model = zoo.make.__wrapped__(name)
    ck.run(model, torch.tensor([[3, 7, 11]]))  # the check at first use is over
    attention = model.blocks[1].attn.original_component
    owners = {"cfg": model.cfg, "config": model.original_model.config, "attn": attention}
    if hasattr(attention, "q_norm"):
        owners["q_norm"] = getattr(attention.q_norm, "original_component", attention.q_norm)
    for owner, attribute, value in changes:
        setattr(owners[owner], attribute, value)
    tokens = torch.tensor([[3, 7, 11, 9, 4, 7, 22, 8]])
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    at = "blocks.1.attn.hook_"
    return heads_of(model, "L1H1"), cache[f"{at}in"], cache[f"{at}pattern"][:, 1:2]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", ("cfg", "attn_scores_soft_cap", 0.5)),
        ("gemma2", ("cfg", "attn_scores_soft_cap", None)),
        ("gemma2", ("attn", "attn_logit_softcapping", 0.5)),
        ("mistral", ("attn", "sliding_window", 2)),
        ("mistral", ("config", "sliding_window", 2)),
    ],
)
def test_patterns_follow_the_setting_that_the_model_follows(name, change):
    heads, reads, pattern = at_once(name, change)
    torch.testing.assert_close(heads.pattern(reads).to(pattern), pattern, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", ("cfg", "attention_dir", "bidirectional")),
        ("qwen3", ("q_norm", "variance_epsilon", 50.0)),
    ],
)
def test_patterns_that_are_not_those_of_the_model_are_refused(name, change):
    heads, reads, pattern = at_once(name, change)
    for ask in heads.pattern, heads.scores, heads.results:
        with pytest.raises(ValueError, match="differ by up to .* changed after loading"):
            ask(reads)
    assert heads.results(reads, pattern).isfinite().all()
