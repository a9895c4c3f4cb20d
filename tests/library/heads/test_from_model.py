"""Heads read off models: the weights against the state dictionary, what they compute against the model's own hooks."""

import types

import pytest
import torch

from circuitkit import Heads, heads_of
from tests.support import tiny_models


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b.to(a), atol=tolerance, rtol=tolerance)


def check_against_model(model, tokens, tolerance=1e-12):
    """Pattern, results and the sum of results, layer by layer, against the model's hooks."""
    stack = heads_of(model)
    n, per = model.cfg.n_layers, model.cfg.n_heads
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    for layer in range(n):
        part = stack[layer * per : (layer + 1) * per]
        assert part.layers == (layer,) * per
        norm = f"blocks.{layer}.ln1.hook_out"
        x = cache[norm if norm in cache else f"blocks.{layer}.hook_resid_pre"]
        close(part.pattern(x), cache[f"blocks.{layer}.attn.hook_pattern"], tolerance)
        bias = getattr(model, "b_O", None)
        total = part.results(x).sum(-3) + (0 if bias is None else bias[layer].detach())
        close(total, cache[f"blocks.{layer}.hook_attn_out"], tolerance)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_heads": 1, "d_head": 7},
        {"normalization_type": "LN", "attn_only": False},
        {"normalization_type": "LNPre"},
        {"attention_dir": "bidirectional"},
        {"n_heads": 6, "n_key_value_heads": 2},
        {"attn_scale": 3.0},
        {"use_attn_scale": False},  # native models divide by sqrt(d_head) all the same
        {"attn_scores_soft_cap": 2.0},
    ],
    ids=lambda changes: ",".join(map(str, changes)) or "plain",
)
def test_computes_what_the_model_computes(boot, tokens, changes):
    check_against_model(boot(**changes), tokens)


def test_weights_are_the_models_own(boot):
    """Element by element from the state dictionary, where a linear map is stored [out, in]."""
    model, d = boot(), 5
    state, stack = model.state_dict(), heads_of(model)
    assert stack.names == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")
    assert stack.layers == (0, 0, 0, 1, 1, 1)
    assert (stack.scale, stack.mask, stack.positions) == (
        pytest.approx(5**0.5),
        "causal",
        "absolute",
    )
    assert stack.W_Q.shape == stack.W_K.shape == stack.W_V.shape == (6, 24, 5)
    assert stack.W_O.shape == (6, 5, 24)
    for layer in range(2):
        for h in range(3):
            row, prefix = 3 * layer + h, f"blocks.{layer}.attn."
            for kind in "QKV":
                weight, bias = (
                    state[f"{prefix}{kind.lower()}.{part}"] for part in ("weight", "bias")
                )
                for j in range(d):
                    assert torch.equal(getattr(stack, f"W_{kind}")[row, :, j], weight[h * d + j])
                    assert getattr(stack, f"b_{kind}")[row, j] == bias[h * d + j]
            for j in range(d):
                assert torch.equal(stack.W_O[row, j], state[prefix + "o.weight"][:, h * d + j])


def test_grouped_keys_and_values_are_repeated(boot):
    model = boot(n_heads=6, n_key_value_heads=2)
    stack, weight = heads_of(model), model.state_dict()["blocks.1.attn.k.weight"]
    assert len(stack) == 12
    for query_head in range(6):
        group = query_head // 3
        assert torch.equal(stack[f"L1H{query_head}"].W_K[0], weight[5 * group : 5 * group + 5].T)


def test_zero_biases_are_left_out(boot):
    model = boot()
    with torch.no_grad():
        for layer in range(2):
            model.blocks[layer].attn.k.bias.zero_()
    stack = heads_of(model)
    assert stack.b_K is None
    assert stack.b_Q is not None
    with torch.no_grad():  # one number that is not zero is enough
        model.blocks[1].attn.k.bias[3] = 0.5
        model.blocks[0].attn.q.bias[0] = 0.0
    assert (heads_of(model).b_K != 0).sum() == 1
    assert heads_of(model).b_Q is not None


@pytest.mark.parametrize("n_layers", [1, 2])
def test_weights_are_copies(boot, n_layers):
    model = boot(n_layers=n_layers)
    stack = heads_of(model)
    before = stack.W_V.clone()
    assert not any(
        getattr(stack, name).requires_grad for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q")
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(stack.W_V, before)
    stack.W_O.zero_()
    assert heads_of(model).W_O.any()


def test_no_layers_no_heads(boot):
    stack = heads_of(boot(n_layers=0))
    assert (len(stack), stack.names, stack.d_model, stack.d_head) == (0, (), 24, 5)


def test_masks_and_positions(boot):
    assert heads_of(boot(attention_dir="bidirectional")).mask == "full"
    assert heads_of(boot(positional_embedding_type="rotary", d_head=4)).positions == "rotary"
    assert heads_of(boot(attn_scores_soft_cap=5.0)).cap == 5.0


def test_layers_that_score_in_different_ways(tmp_path):
    """Gemma 3 has layers that turn and look back in two ways: its heads are kept together, their patterns are not known."""
    from tests.support import zoo

    stack = heads_of(zoo.make("gemma3"))
    assert (len(stack), stack.positions, stack.turn, stack.window) == (12, "other", None, None)
    with pytest.raises(ValueError, match="these heads do not score by QK alone"):
        stack.pattern(torch.zeros(3, 24, dtype=torch.float64))


def test_an_object_with_heads_of_its_own(draw):
    mine = draw(2, 5, 3)
    assert heads_of(types.SimpleNamespace(heads=mine)) is mine


def test_not_a_bridge():
    class HookedTransformer(torch.nn.Module):
        pass

    with pytest.raises(
        ValueError, match=r"heads got model='two-layer'; expected a transformer-lens Transformer"
    ):
        heads_of("two-layer")
    with pytest.raises(
        ValueError, match=r"got model as a Linear; .*circuitkit\.load_model\(name\)"
    ):
        heads_of(torch.nn.Linear(2, 3))
    with pytest.raises(
        ValueError, match="transformer-lens 4 replaced HookedTransformer by TransformerBridge"
    ):
        heads_of(HookedTransformer())


def test_gpt2(tmp_path, tokens):
    """Queries, keys and values of GPT-2 are one matrix side by side, stored [in, out]; float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    original = GPT2LMHeadModel(GPT2Config(**tiny_models.GPT2)).eval()
    model = tiny_models.from_folder(tmp_path, original)
    stack = heads_of(model)
    assert stack.names == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")
    for layer in range(2):
        attention = original.transformer.h[layer].attn
        for h in range(3):
            head = stack[f"L{layer}H{h}"]
            for at, kind in enumerate("QKV"):
                columns = slice(24 * at + 8 * h, 24 * at + 8 * h + 8)
                assert torch.equal(
                    getattr(head, f"W_{kind}")[0], attention.c_attn.weight[:, columns]
                )
                assert torch.equal(getattr(head, f"b_{kind}")[0], attention.c_attn.bias[columns])
            assert torch.equal(head.W_O[0], attention.c_proj.weight[8 * h : 8 * h + 8])
    check_against_model(model, tokens, tolerance=1e-5)
    with torch.no_grad():
        close(model(tokens), original(tokens).logits, 1e-5)


def test_a_checkpoint_without_biases(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    grouped = {"num_attention_heads": 4, "num_key_value_heads": 2}
    original = LlamaForCausalLM(LlamaConfig(**tiny_models.HUGGING_FACE | grouped)).eval()
    stack = heads_of(tiny_models.from_folder(tmp_path, original))
    assert isinstance(stack, Heads)
    assert (len(stack), stack.b_Q, stack.positions, stack.d_head) == (8, None, "rotary", 6)
    attention = original.model.layers[1].self_attn
    assert torch.equal(stack["L1H3"].W_Q[0], attention.q_proj.weight[18:].T)
    assert torch.equal(
        stack["L1H3"].W_V[0], attention.v_proj.weight[6:].T
    )  # the second group of keys and values
    assert stack.scale == pytest.approx(6**0.5)


def test_gpt_neo_does_not_scale_its_scores(tmp_path, tokens):
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        hidden_size=24,
        num_layers=1,
        num_heads=3,
        vocab_size=50,
        attention_types=[[["global"], 1]],
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    stack = heads_of(tiny_models.from_folder(tmp_path, GPTNeoForCausalLM(config).eval()))
    assert stack.scale == 1.0
