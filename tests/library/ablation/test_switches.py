"""The public switches of a bridge change nothing that this package computes."""

import pytest
import torch

import circuitkit as ck
from tests.support.zoo import make

#: Queries, keys and values from one matrix and from three; the other families are tested weekly.
FAMILIES = ("gpt2", "gemma2")
OTHERS = [
    pytest.param(name, marks=pytest.mark.weekly)
    for name in ("neox-parallel", "llama", "qwen3", "phi")
]
SWITCHES = ("attn_result", "split_qkv_input", "attn_in", "hook_mlp_in")
ROWS = torch.tensor([[3, 7, 11, 3, 7, 11], [22, 8, 5, 22, 8, 5]])
CUTS = ("L1H2", "L1 MLP", "L0H1->L1H2.K", "L1H2.V", "embed->L0H2->L1H3.Q", "L0H1->L2 MLP")


def results(model):
    """A number of every tool that runs a model."""
    whole = ck.run(model, ROWS)
    head, scores = whole.pattern("L2H1"), ck.induction.scores(model, ROWS, without="L0H1->L1H2.V")
    values = {cut: ck.run(model, ROWS, without=cut).logits for cut in CUTS}
    values |= {
        "patch": ck.run(model, ROWS, without="L1H2.K", patch=ROWS.flip(0), at=[2]).logits,
        "effect": ck.effect(model, ROWS, "L0H1->L1H2.K", draws=2).values,
        "attribution": ck.attribution(model, ROWS, fill="mean").values,
        "scores": scores.values,
        "decompose": ck.residual.decompose(model, ROWS).values,
        "part": whole.part("L1H2", before="L2H0"),
        "read": whole.read("L2H0"),
        "pattern": head,
        "cache": whole.cache["blocks.1.attn.hook_k"],
        "score": ck.paths.score_decomposition(model, ROWS[:1], "L2H1", 4, 2).values,
    }
    return values


@pytest.fixture(scope="module", params=[*FAMILIES, *OTHERS])
def off(request):
    """A model with all switches off, and its numbers."""
    model = make(request.param)
    return model, results(model)


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_changes_no_number(off, switch):
    model, expected = off
    set_switch = getattr(model, f"set_use_{switch}")
    set_switch(True)
    try:
        found = results(model)
        block = model.blocks[1]
        still_on = block._use_hook_mlp_in if switch == "hook_mlp_in" else getattr(block.attn.config, f"use_{switch}")  # fmt: skip
        assert still_on
        assert getattr(model.cfg, f"use_{switch}")
    finally:
        set_switch(False)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6, msg=name)


def test_a_switch_is_on_again_after_an_error():
    model = make("gpt2")

    def fail(value, hook):
        raise RuntimeError("stop")

    model.cfg.use_split_qkv_input = True  # written directly
    hook = model.blocks[1].hook_in.add_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="stop"):
            ck.run(model, ROWS)
        assert model.cfg.use_split_qkv_input
    finally:
        hook.hook.remove()
        model.blocks[1].hook_in.fwd_hooks.remove(hook)
        model.set_use_split_qkv_input(False)


def test_a_hook_that_needs_a_switch_is_not_passed_over():
    model = make("llama")
    model.set_use_split_qkv_input(True)
    model.blocks[1].attn.hook_k_input.add_hook(lambda value, hook: value * 0)
    try:
        with pytest.raises(ValueError, match="acts only with use_split_qkv_input"):
            ck.run(model, ROWS)
    finally:
        model.reset_hooks()
        model.set_use_split_qkv_input(False)
