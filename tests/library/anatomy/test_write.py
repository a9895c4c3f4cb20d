"""An anatomy of heads as a bridge and back."""

import dataclasses
import math

import pytest
import torch

import circuitkit as ck
from circuitkit.anatomy import from_heads, to_bridge
from circuitkit.circuits import random_heads
from tests.support import tiny_models
from tests.support.zoo import make


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b.to(a), atol=tolerance, rtol=tolerance)


SIZES = {
    "d_model": 12,
    "d_head": 5,
    "n_heads": 4,
    "n_layers": 2,
    "n_ctx": 12,
    "d_vocab": 50,
    "unembedding_bias": True,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalization_type": "LN"},
        {"normalization_type": "LNPre"},
        {"attention_dir": "bidirectional"},
        {"attn_scores_soft_cap": 2.0, "output_logits_soft_cap": 3.0},
    ],
    ids=lambda changes: ",".join(changes) or "plain",
)
def test_there_and_back(changes, tokens):
    model = tiny_models.boot(**SIZES, **changes)
    again = to_bridge(ck.anatomy(model))
    with torch.no_grad():
        close(
            again(tokens),
            model(tokens),
            1e-6 if changes.get("normalization_type") == "LNPre" else 1e-12,
        )
    for name, value in model.state_dict().items():
        close(again.state_dict()[name], value)
    assert not any(parameter.requires_grad for parameter in again.parameters())
    assert (
        again.state_dict()["embed.weight"].data_ptr()
        != model.state_dict()["embed.weight"].data_ptr()
    )


def test_by_hand():
    """Another divisor of scores moves into the queries; a model without positions gets a table of zeros."""
    heads = dataclasses.replace(
        random_heads(2, 6, 3), scale=1.0, b_Q=torch.ones(2, 3), b_V=torch.ones(2, 3)
    )
    bridge = to_bridge(from_heads(heads, torch.eye(6), torch.eye(6)), n_ctx=4)
    state = bridge.state_dict()
    close(state["blocks.0.attn.q.weight"], torch.cat([W.T for W in heads.W_Q]) * math.sqrt(3), 1e-6)
    close(state["blocks.0.attn.q.bias"], torch.full((6,), math.sqrt(3)), 1e-6)
    assert not state["pos_embed.weight"].any()
    x = torch.eye(6)[[1, 5, 2]]
    close(bridge(torch.tensor([[1, 5, 2]]))[0], x + heads.results(x).sum(0), 1e-5)


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    to_bridge(from_heads(random_heads(2, 6, 3), torch.eye(6), torch.eye(6)), n_ctx=4)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("native-mlp", "L0 MLP is no layer of attention heads\n  L1 MLP is no layer"),
        ("native-rotary", "queries and keys are rotated"),
        (
            "neox-parallel",
            "L0 MLP is no layer of attention heads.*\n.*\n.*\n  layers run side by side",
        ),
    ],
)
def test_what_a_native_bridge_cannot_hold_is_refused(name, message):
    with pytest.raises(
        ValueError, match=f"cannot write this model as a native bridge:\n  {message}"
    ):
        to_bridge(ck.anatomy(make(name)))


def test_what_heads_cannot_be_written():
    heads, eye = random_heads(2, 6, 3), torch.eye(6)
    plain = from_heads(heads, eye, eye)
    with pytest.raises(ValueError, match="give the number of positions"):
        to_bridge(plain)
    with pytest.raises(ValueError, match="give the number of positions"):
        to_bridge(from_heads(heads, eye, eye, eye), n_ctx=7)
    with pytest.raises(ValueError, match="it has no layers"):
        to_bridge(dataclasses.replace(plain, steps=()), n_ctx=3)
    uneven = ck.stack(heads, random_heads(1, 6, 3, layer=1))
    with pytest.raises(ValueError, match=r"layers differ in their heads: \[2, 1\]"):
        to_bridge(from_heads(uneven, eye, eye), n_ctx=3)
    with pytest.raises(ValueError, match="heads have the mask 'self_or_first'"):
        to_bridge(from_heads(dataclasses.replace(heads, mask="self_or_first"), eye, eye), n_ctx=3)
    with pytest.raises(ValueError, match="heads are gated"):
        to_bridge(from_heads(heads, eye, eye, gate=torch.zeros_like), n_ctx=3)
