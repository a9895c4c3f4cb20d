"""What heads add to logits in a model of the shape of Gemma 2, which has a norm behind attention, by own torch."""

import math

import pytest
import torch

import circuitkit as ck
from circuitkit.reports import logits, wires
from tests.support import zoo

N_HEADS, D_HEAD, CAP, LAYER = 4, 8, 5.0, 1
TOKENS = torch.tensor([[7, 3, 41, 7, 3, 12, 30, 8], [5, 9, 9, 22, 5, 17, 2, 49]])


def norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + weight)


@pytest.fixture(scope="module")
def model():
    return zoo.make("gemma2")


@pytest.fixture(scope="module")
def seen(model):
    """Values, the sum of the heads, and the last stream, from hooks of torch in the model of transformers."""
    original, found = model.original_model.model, {}
    attention = original.layers[LAYER].self_attn
    hooks = [
        attention.v_proj.register_forward_hook(lambda *a: found.update(v=a[-1].detach())),
        attention.o_proj.register_forward_hook(lambda *a: found.update(out=a[-1].detach())),
        original.norm.register_forward_hook(lambda *a: found.update(last=a[1][0].detach())),
    ]
    model.original_model(TOKENS)
    for hook in hooks:
        hook.remove()
    return found


def weights(model):
    layer = model.original_model.model.layers[LAYER]
    by_head = {}
    for side, name in (("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj")):
        W = getattr(layer.self_attn, name).weight.detach().T.unflatten(1, (-1, D_HEAD))
        by_head[side] = W.repeat_interleave(N_HEADS // W.shape[1], 1)  # [d_model, head, d_head]
    by_head["O"] = layer.self_attn.o_proj.weight.detach().T.unflatten(0, (N_HEADS, D_HEAD))
    return by_head, layer


@pytest.mark.parametrize("head", range(N_HEADS))
def test_what_a_head_would_add_to_the_logits_passes_the_norm_behind_attention(model, seen, head):
    W, layer = weights(model)
    ids = TOKENS.unique()
    value = seen["v"].unflatten(-1, (-1, D_HEAD))[:, :, head // 2]
    size = (seen["out"].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    written = value @ W["O"][head] / size * (1 + layer.post_attention_layernorm.weight)
    size = (seen["last"].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    written = written / size * (1 + model.original_model.model.norm.weight)
    unembed = model.original_model.lm_head.weight.T[:, ids]
    expected = (written @ (unembed - unembed.mean(1, keepdim=True))).detach()

    name = f"L{LAYER}H{head}"
    unembedding = logits.Unembedding.of(ck.run(model, TOKENS), ids)
    torch.testing.assert_close(
        unembedding.logits_by_source(name), expected, atol=1e-4, rtol=1e-4, check_dtype=False
    )
    assert wires.Reader(unembedding, {}, name).raised.equal(ids[expected.argmax(-1)])


@pytest.mark.parametrize("head", range(N_HEADS))
def test_skip_trigrams_by_weights_know_the_cap_and_the_norm_behind_attention(model, head):
    W, layer = weights(model)
    among = torch.arange(3, 50, 2)
    original = model.original_model
    embedding = original.model.embed_tokens.weight.detach()[among] * math.sqrt(24)
    embedding = norm(embedding, layer.input_layernorm.weight.detach())
    query, key, value = (embedding @ W[side][:, head] for side in "QKV")
    scores = CAP * torch.tanh(query @ key.T / math.sqrt(10) / CAP)
    weight = scores.exp()
    attention = weight / (weight + 31 * weight.mean(1, keepdim=True))  # among 31 typical tokens
    score = (weight / weight.mean(1, keepdim=True)).log()
    W_O = W["O"][head] * (1 + layer.post_attention_layernorm.weight.detach())
    unembed = original.lm_head.weight.detach().T[:, among]
    W_O = W_O * (1 + original.model.norm.weight.detach())
    added = (value - value.mean(0)) @ W_O @ (unembed - unembed.mean(1, keepdim=True))
    text = logits.Text.of(model, among, []).before(LAYER)
    for divisor in logits.divisors(
        text.unembedding.done, f"L{LAYER}H{head}", text.unembedding.norm
    ):
        added = added / divisor.mean()
    strength = attention.T[:, :, None] * added[:, None]  # [source, destination, completion]
    rank = strength * (1 + 0.01 * score.clamp_min(0).T[:, :, None])
    best = rank.flatten().topk(6).indices
    ids = torch.stack(torch.unravel_index(best, rank.shape), 1)
    found = logits.trigrams_by_weights(text, f"L{LAYER}H{head}")[:6]
    assert [list(candidate[1:]) for _, candidate in found] == among[ids].tolist()
    expected = strength.flatten()[best]
    torch.testing.assert_close(
        torch.tensor([pair[0] for pair in found]), expected, rtol=1e-3, atol=1e-5, check_dtype=False
    )
