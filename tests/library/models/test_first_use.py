"""When a model is first used, the bridge is compared with the model that it wraps."""

import copy
import re

import pytest
import torch
import transformers

import circuitkit as ck
from circuitkit.bridge import copy_model
from circuitkit.first_use import Verdict, verdict_on
from tests.support import tiny_models, zoo

ROWS = torch.tensor([[3, 7, 11, 9, 4, 7], [22, 8, 5, 30, 8, 5]])
GPT2 = tiny_models.GPT2 | {"n_head": 4}
ROTARY = zoo.SIZES | {"num_hidden_layers": 2, "num_key_value_heads": 4, "head_dim": 6}
BLOOM = {"hidden_size": 24, "n_layer": 2, "n_head": 4, "vocab_size": 50}
MPT = {"d_model": 24, "n_layers": 2, "n_heads": 4, "vocab_size": 50, "max_seq_len": 16}
OPT = zoo.OPT | {"num_hidden_layers": 2}
# name: (type of the model in transformers, its settings)
FAULTY = {
    "gpt2": ("gpt2", GPT2 | {"scale_attn_weights": False}),
    "gpt2-inverse": (
        "gpt2",
        GPT2 | {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    ),
    "bigcode": ("gpt_bigcode", GPT2 | {"scale_attn_weights": False}),
    "bloom": ("bloom", BLOOM),
    "bloom-post-norm": ("bloom", BLOOM | {"apply_residual_connection_post_layernorm": True}),
    "mpt": ("mpt", MPT),
    "cohere": ("cohere", ROTARY | {"logit_scale": 0.25}),
    "granite": ("granite", ROTARY | {"logits_scaling": 3.0}),
    "granite-residual": ("granite", ROTARY | {"residual_multiplier": 0.2}),
    "bitnet": ("bitnet", ROTARY),
    "opt-350m": ("opt", OPT | {"word_embed_proj_dim": 12, "do_layer_norm_before": False}),
    "opt-post-norm": ("opt", OPT | {"do_layer_norm_before": False}),
    "opt-no-last-norm": ("opt", OPT | {"_remove_final_layer_norm": True}),
    "openai-gpt": ("openai-gpt", GPT2),
    "nanochat": ("nanochat", ROTARY),
    "modernbert": ("modernbert-decoder", zoo.SIZES | {"num_hidden_layers": 2, "pad_token_id": 0}),
}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads a model of `FAULTY`, with the model of transformers that it was saved from."""
    loaded = {}

    def load_one(name):
        if name not in loaded:
            kind, settings = FAULTY[name]
            torch.manual_seed(0)
            config = transformers.AutoConfig.for_model(kind, **settings)
            original = transformers.AutoModelForCausalLM.from_config(config).eval()
            folder = tmp_path_factory.mktemp("model")
            loaded[name] = tiny_models.from_folder(folder, original), original
        return loaded[name]

    return load_one


@torch.no_grad()
def logits_with_hook(original, module, hook, before=False):
    """Logits of transformers with a hook of torch."""
    add = module.register_forward_pre_hook if before else module.register_forward_hook
    handle = add(hook)
    try:
        return original(ROWS).logits
    finally:
        handle.remove()


# Right models


def right(names):
    few = ["gpt2", "llama", "gemma2", "bert", "opt", "native-mlp"]
    return [n if n in few else pytest.param(n, marks=pytest.mark.weekly) for n in names]


NATIVE = ["native", "native-mlp", "native-rotary", "native-encoder"]


@pytest.mark.parametrize("name", right([*zoo.SHAPES, *NATIVE]))
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.bfloat16, marks=pytest.mark.weekly)]
)
def test_a_right_model_passes(name, dtype):
    verdict = verdict_on(zoo.make(name, dtype))
    reason = {"gemma2": "they are capped at 8", "bert": "a network (mlm_head) computes them"}
    assert verdict == Verdict(unembedding=reason.get(name, ""))


@pytest.mark.parametrize("name", ["native-mlp", "gated"])
def test_a_converted_model_passes(name):
    assert verdict_on(zoo.converted(name)) == Verdict()


def test_a_model_with_a_gated_layer_passes():
    from circuitkit.superposition import GATES, GatedBlock, with_gated_layer

    for name, d_model in (("native-mlp", 12), ("llama", 24)):
        block = GatedBlock(GATES, n_heads=4, d_model=d_model).double()
        model = with_gated_layer(zoo.make(name), 1, block)
        assert verdict_on(model) == Verdict(), name


def test_a_model_made_by_hand_passes():
    W = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    heads = ck.Heads(("L0H0", "L1H0"), W, W, W, W.mT.contiguous(), layers=(0, 1))
    model = ck.handmade.bridge_of(heads, torch.eye(8), torch.eye(8), n_ctx=4)
    assert verdict_on(model) == Verdict()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_folded_and_edited_weights_pass(name):
    """A joint matrix of queries, keys and values is out of date as soon as its parts change."""
    model = zoo.make.__wrapped__(name)
    model.enable_compatibility_mode()
    with torch.no_grad():
        model.blocks[1].attn.q.original_component.weight.mul_(1.5)
        model.blocks[0].attn.v.original_component.weight[3] = 0
    assert verdict_on(model) == Verdict()


def test_a_layer_that_is_said_to_be_parallel_and_is_not():
    model = zoo.make.__wrapped__("llama")
    assert ck.run(model, ROWS, without="L0H1->L1 MLP").logits.isfinite().all()
    model.cfg.parallel_attn_mlp = True
    with pytest.raises(ValueError, match="parallel_attn_mlp is True"):
        ck.run(model, ROWS, without="L0H1->L1 MLP")
    assert ck.run(model, ROWS, without="L0H1").logits.isfinite().all()


# Wrong models


TOOLS = {
    "run": lambda model: ck.run(model, ROWS),
    "head": lambda model: ck.run(model, ROWS, without="L1H2"),
    "mlp": lambda model: ck.run(model, ROWS, without="L1 MLP"),
    "wire": lambda model: ck.run(model, ROWS, without="L0H1->L1H2.K"),
    "wire-to-mlp": lambda model: ck.run(model, ROWS, without="L0H1->L1 MLP"),
    "wire-to-end": lambda model: ck.run(model, ROWS, without="L0H1->unembed"),
    "read": lambda model: ck.run(model, ROWS).read("L1H2"),
    "effect": lambda model: ck.effect(model, ROWS, "L1H2", draws=1),
    "attribution": lambda model: ck.attribution(model, ROWS),
    "scores": lambda model: ck.induction.scores(model, ROWS),
    "decompose": lambda model: ck.residual.decompose(model, ROWS),
    "why": lambda model: ck.why(model, ROWS[0], 5),
    "weights": lambda model: ck.residual.virtual_weights(model, "L0H1", "L1H2.K"),
    "copying": lambda model: ck.circuits.copying_score(model),
    "convert": lambda model: ck.to_attention_only(model, heads_per_neuron=5),
    "heads": lambda model: ck.heads_of(model),
}
ALL = set(TOOLS)
RUNS = ALL - {"weights", "copying", "heads"}
STREAM = {"wire", "wire-to-mlp", "wire-to-end", "decompose", "why"}
POST_NORM = STREAM | {"read", "weights", "convert"}
REFUSED = {
    "gpt2": RUNS,
    "gpt2-inverse": RUNS,
    "bigcode": RUNS,
    "bloom": STREAM | {"mlp", "convert"},
    "bloom-post-norm": STREAM | {"mlp", "convert"},
    "mpt": STREAM | {"mlp", "convert"},
    "cohere": {"why"},
    "granite": {"why"},
    "granite-residual": STREAM,
    "bitnet": {"wire", "convert"},
    "opt-350m": POST_NORM | {"scores", "copying"},
    "opt-post-norm": RUNS,
    "opt-no-last-norm": RUNS,
    "openai-gpt": POST_NORM,
    "nanochat": STREAM | {"convert"},
    "modernbert": {"why", "convert"},
}


#: Each resembles another one.
ALIKE = {
    "gpt2-inverse",
    "bigcode",
    "bloom-post-norm",
    "mpt",
    "granite",
    "opt-post-norm",
    "openai-gpt",
}


def seldom(names):
    return [pytest.param(n, marks=pytest.mark.weekly) if n in ALIKE else n for n in names]


@pytest.mark.parametrize("name", seldom(REFUSED))
def test_what_would_be_wrong_is_refused_and_the_rest_works(name, load):
    refused = set()
    for tool, use in TOOLS.items():
        try:
            use(load(name)[0])
        except ValueError:  # any other error is a bug
            refused.add(tool)
    assert refused == REFUSED[name]


@pytest.mark.parametrize("name", seldom(["gpt2", "gpt2-inverse", "bigcode"]))
def test_scores_that_are_not_scaled_are_another_model(name, load):
    model, original = load(name)
    with torch.no_grad():
        ours, theirs = (m.log_softmax(-1) for m in (model(ROWS), original(ROWS).logits))
    assert (ours - theirs).abs().max() > 0.1
    message = r"log-probabilities differ by up to .* nats.* says scale_attn_weights=False"
    with pytest.raises(ValueError, match=message):
        ck.run(model, ROWS)


@pytest.mark.parametrize("name", seldom(["bloom", "bloom-post-norm", "mpt"]))
def test_where_an_mlp_returns_the_stream_heads_can_be_removed(name, load):
    model, original = load(name)
    attention = original.transformer.blocks[1].attn if name == "mpt" else original.transformer.h[1].self_attention  # fmt: skip
    output = attention.out_proj if name == "mpt" else attention.dense

    def without_head(module, given):
        z = given[0].clone()
        z[..., 12:18] = 0
        return (z, *given[1:])

    right = logits_with_hook(original, output, without_head, before=True)
    torch.testing.assert_close(ck.run(model, ROWS, "L1H2").logits, right, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="its module returns the residual stream"):
        ck.run(model, ROWS, "L1 MLP")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cohere", "multiplied by 0.25 (logit_scale=0.25"),
        ("granite", "multiplied by 0.3333 (logits_scaling=3.0"),
        ("modernbert", "a network lies between the last norm and the unembedding"),
        ("opt-350m", "a projection lies between"),
    ],
)
def test_logits_that_are_no_sum_name_the_reason(name, message, load):
    with pytest.raises(ValueError, match=re.escape(message)):
        ck.why(load(name)[0], ROWS[0], 5)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("granite-residual", "layer 0 of this model does not simply add its output"),
        ("openai-gpt", "what its attn writes is not what the stream gains"),
        ("opt-350m", "what its attn writes is not what the stream gains"),
        ("nanochat", "its last norm is used in other places as well"),
    ],
)
def test_a_stream_that_is_no_sum_names_the_reason(name, reason, load):
    assert reason in verdict_on(load(name)[0]).stream
    with pytest.raises(ValueError, match=reason):
        ck.residual.decompose(load(name)[0], ROWS)


def test_an_mlp_whose_hooks_are_those_of_another_model_cannot_be_removed():
    """In a deep copy of OPT, the hooks of an MLP still belong to the first model."""
    first = zoo.make.__wrapped__("opt")  # the twin holds only weak references to its hooks
    twin = copy.deepcopy(first)
    with pytest.raises(ValueError, match="does not show what it writes"):
        ck.run(twin, ROWS, without="L1 MLP")


# Small differences


def test_a_setting_known_to_differ_is_refused_however_small_the_difference(tmp_path):
    for kind, settings in (
        ("gpt2", GPT2 | {"scale_attn_weights": False, "initializer_range": 0.001}),
        ("gemma3_text", ROTARY | {"attn_logit_softcapping": 50.0, "initializer_range": 0.001}),
    ):
        config = transformers.AutoConfig.for_model(kind, **settings)
        original = transformers.AutoModelForCausalLM.from_config(config).eval()
        folder = tmp_path / kind
        model = tiny_models.from_folder(folder, original, noise=0)
        with torch.no_grad():
            ours, theirs = (m.log_softmax(-1) for m in (model(ROWS), original(ROWS).logits))
        assert (ours - theirs).abs().max() < 1e-5
        with pytest.raises(ValueError, match="transformer-lens does not follow"):
            ck.run(model, ROWS)


def test_patterns_are_compared_where_logits_do_not_differ(load, monkeypatch):
    from circuitkit import first_use

    model = copy.deepcopy(load("gpt2")[0])
    for point in ("W_O", "b_O"):  # without outputs of attention, the logits are the same
        with torch.no_grad():
            for block in model.blocks:
                getattr(block.attn, point).zero_()
    monkeypatch.setattr(first_use, "known_difference", lambda model: "")
    assert "the patterns of layer 0 differ by up to 0." in verdict_on(model).logits


def test_the_patterns_of_every_family_are_compared():
    """Each family is computed in transformers, once outside of the check and once in it."""
    from circuitkit.bridge import unwrapped
    from circuitkit.comparison import keeping_patterns

    for name in ("gpt2", "llama", "gemma2", "neox-parallel", "opt", "bert"):
        model, patterns = zoo.make(name), {}
        with torch.no_grad(), keeping_patterns(model, patterns), unwrapped(model):
            model.original_model(ROWS)
        ours = ck.run(model, ROWS)
        assert list(patterns) == [0, 1, 2], name
        for layer, right in patterns.items():
            torch.testing.assert_close(right[:, 1], ours.pattern(f"L{layer}H1"), rtol=0, atol=1e-5)


def test_the_verdict_in_autocast_is_that_outside(load):
    right, wrong = (copy.deepcopy(load(name)[0]) for name in ("cohere", "gpt2"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [verdict_on(model) for model in (right, wrong)]
    assert inside == [verdict_on(load(name)[0]) for name in ("cohere", "gpt2")]
    assert not inside[0].logits
    assert inside[1].logits


# Hooks that the attention of transformers does not read


@pytest.mark.filterwarnings("ignore:A hook on .* returned a modified tensor")
@pytest.mark.parametrize("hook", ["hook_pattern", "hook_attn_scores"])
@pytest.mark.parametrize("name", ["opt", "bert", "gpt2"])
@torch.no_grad()
def test_a_hook_that_would_change_nothing_but_the_report_is_refused(name, hook):
    # a model of its own: removing permanent hooks removes those of the bridge of BERT and OPT, too
    model = zoo.make.__wrapped__(name)
    before = model(ROWS)
    looked, place = [], f"blocks.1.attn.{hook}"
    model.add_hook(place, lambda value, hook: looked.append(1), is_permanent=True)
    ck.run(model, ROWS)
    assert looked
    model.add_hook(place, lambda value, hook: value * 0.5, is_permanent=True)
    if torch.equal(model(ROWS), before):
        assert name != "gpt2"
        with pytest.raises(ValueError, match="only shows there"):
            ck.run(model, ROWS)
    else:
        assert name == "gpt2"
        assert torch.equal(ck.run(model, ROWS).logits, model(ROWS))


# Processed weights


@pytest.mark.parametrize("first_look", ["load_model", "run"])
def test_processed_weights_are_compared_with_the_model_before(first_look, tmp_path):
    """transformer-lens folds norms into weights, also where the stream takes their output (BLOOM)."""
    config = transformers.AutoConfig.for_model("bloom", **FAULTY["bloom-post-norm"][1])
    original = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = tiny_models.from_folder(tmp_path, original)
    if first_look == "run":
        model = copy.deepcopy(model)  # which load_model has not seen
        ck.run(model, ROWS)
    model.enable_compatibility_mode(disable_warnings=True)
    with torch.no_grad():
        ours, before = (m.log_softmax(-1) for m in (model(ROWS), original(ROWS).logits))
    assert (ours - before).abs().max() > 0.1
    for use in (ck.run, ck.heads_of):
        with pytest.raises(ValueError, match="enable_compatibility_mode has changed"):
            use(*((model, ROWS) if use is ck.run else (model,)))


def test_changes_of_processed_weights_are_the_users_own():
    for is_checked in (True, False):
        model = copy_model(zoo.make("gpt2"))
        ck.run(model, ROWS)
        model.enable_compatibility_mode(disable_warnings=True)
        if is_checked:
            ck.run(model, ROWS)
        with torch.no_grad():
            model.blocks[1].attn.q.original_component.weight.mul_(1.5)
        ck.run(model, ROWS)


# What it costs and what it leaves


def test_it_runs_at_most_three_times_and_is_remembered():
    model, passes = zoo.make.__wrapped__("gpt2"), []
    model.embed.original_component.register_forward_hook(lambda *_: passes.append(1))
    ck.heads_of(model)
    assert 2 <= len(passes) <= 3
    passes.clear()
    ck.run(model, ROWS)
    ck.run(model, ROWS)
    assert len(passes) == 2
    with torch.no_grad():
        model.blocks[0].mlp.out.original_component.weight.mul_(2)
    ck.run(model, ROWS)
    assert len(passes) > 4
    passes.clear()
    model.cfg.attn_scores_soft_cap = 7.0
    ck.run(model, ROWS)
    assert len(passes) > 2


def test_it_leaves_random_numbers_hooks_and_modules_as_they_are():
    model = zoo.make.__wrapped__("gpt2")
    model.blocks[0].attn.q.original_component.weight.data.mul_(2)  # the joint matrix is out of date
    seen = []
    model.blocks[0].hook_in.add_hook(lambda value, hook: seen.append(1), is_permanent=True)
    model.blocks[1].attn.hook_z.add_hook(lambda value, hook: value * 3)  # would change the logits
    modules = dict(model.original_model.named_modules())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert verdict_on(model) == Verdict()
    assert torch.equal(torch.rand(3), expected)
    assert seen == []
    after = dict(model.original_model.named_modules())
    assert list(after) == list(modules)
    assert all(after[name] is modules[name] for name in after)
    model(ROWS)
    assert seen == [1]


# Parts that cannot be told apart


def tiny(folder, kind, **settings):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **settings)
    original = transformers.AutoModelForCausalLM.from_config(config).eval()
    return tiny_models.from_folder(folder, original)


def test_an_embedding_together_with_positions_is_not_replaced(tmp_path):
    sizes = {"vocab_size": 50, "d_model": 24, "ffn_dim": 20, "num_layers": 2}
    more = {"attention_heads": 4, "max_position_embeddings": 16}
    model = tiny(tmp_path, "xglm", **sizes, **more)
    with pytest.raises(ValueError, match="'embed' cannot be replaced .* positions"):
        ck.run(model, ROWS, without="embed")
    run = ck.run(model, ROWS, without="embed->unembed")
    assert run.logits.isfinite().all()


def test_a_model_without_heads_runs(tmp_path):
    settings = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 4}
    model = tiny(tmp_path, "mamba", **settings)
    with torch.no_grad():
        torch.testing.assert_close(ck.run(model, ROWS).logits, model(ROWS))
    with pytest.raises(ValueError, match="no attention heads"):
        ck.heads_of(model)
    with pytest.raises(ValueError, match="does not show what its block writes"):
        ck.residual.decompose(model, ROWS)


def test_latent_attention_is_refused_by_every_tool(tmp_path):
    """Its values are wider than its keys, as in DeepSeek V2 and V3."""
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 8}
    widths = {"q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    model = tiny(tmp_path, "deepseek_v2", **sizes, **heads, **widths, first_k_dense_replace=2)
    for tool in (
        lambda: ck.run(model, ROWS, without="L0H1", fill="mean"),
        lambda: ck.heads_of(model),
        lambda: ck.why(model, ROWS[0], 7),
        lambda: ck.induction.scores(model),
        lambda: ck.residual.virtual_weights(model, "L0H1", "L1H1.K"),
        lambda: ck.circuits.full_ov(model, "L0H1"),
    ):
        with pytest.raises(ValueError, match="Layer 0 of this model .* has latent attention"):
            tool()
