"""Paths through norms behind a part: BERT's closing norms, and norms on what a layer writes (Gemma 2)."""

import pytest
import torch

from circuitkit.ablation import run
from tests.support.zoo import make


def close(a, b, tolerance):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def through(norm, stream, change):
    """A change of a LayerNorm's input behind the norm, whose divisor is that of `stream`."""
    std = (stream.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return (change - change.mean(-1, keepdim=True)) / std * norm.weight


def zero_head(z, hook):
    z = z.clone()
    z.view(*z.shape[:2], 4, -1)[:, :, 0] = 0
    return z


@torch.no_grad()
@pytest.mark.parametrize("ablated", [[], ["L0H0"]])
def test_a_path_keeps_the_divisors_of_closing_norms(tokens, ablated):
    """What L0H1 writes otherwise goes through two closing norms into the keys of L1H3."""
    model = make("bert")
    hooks = [("blocks.0.attn.hook_z", zero_head)] if ablated else []
    with model.hooks(fwd_hooks=hooks):
        base, cache = model.run_with_cache(tokens)
    other_z = run(model, tokens, without="embed->L0H1").z("L0H1")
    z = cache["blocks.0.attn.hook_z"].view(*other_z.shape[:2], 4, -1)[:, :, 1]
    change = (other_z - z) @ model.blocks[0].attn.W_O[1]
    for norm in ("ln1", "ln2"):
        module = model.blocks[0]._modules[norm].original_component
        change = through(module, cache[f"blocks.0.{norm}.hook_in"], change)
    change_of_keys = change @ model.blocks[1].attn.W_K[3]

    def add_to_keys(k, hook):
        k = k.clone()
        k.view(*k.shape[:2], 4, -1)[:, :, 3] += change_of_keys
        return k

    expected = model.run_with_hooks(
        tokens, fwd_hooks=[*hooks, ("blocks.1.attn.hook_k", add_to_keys)]
    )
    assert (expected - base).abs().max() > 1e-3
    names = [*ablated, "embed->L0H1->L1H3.K"]
    close(run(model, tokens, without=names).logits, expected, 1e-11)


@torch.no_grad()
@pytest.mark.parametrize("ablated", [[], ["L0H0"]])
def test_a_path_has_the_divisor_of_what_its_layer_would_write(tokens, ablated):
    """L2H3 reads L1H1 as it is in a run with the wire "L0H1->L1H1" cut."""
    model = make("gemma2")
    base = run(model, tokens, without=ablated)
    cut = run(model, tokens, without=[*ablated, "L0H1->L1H1"])
    stream = base.stream("L2H3") - base.part("L1H1") + cut.part("L1H1")
    block = model.blocks[2]
    keys = block.attn.k.original_component(block.ln1.original_component(stream))
    values = {}

    def put_keys(k, hook):
        return keys.view_as(k)

    def take_z(z, hook):
        values["z"] = z.view(*z.shape[:2], 4, -1)[:, :, 3].clone()

    def put_z(z, hook):
        z = z.clone()
        z.view(*z.shape[:2], 4, -1)[:, :, 3] = values["z"]
        return z

    hooks = [("blocks.0.attn.hook_z", zero_head)] if ablated else []
    second = [("blocks.2.attn.hook_k", put_keys), ("blocks.2.attn.hook_z", take_z)]
    model.run_with_hooks(tokens, fwd_hooks=hooks + second)
    # heads 2 and 3 share keys, so only the z of head 3 is taken over
    expected = model.run_with_hooks(tokens, fwd_hooks=[*hooks, ("blocks.2.attn.hook_z", put_z)])
    assert (expected - base.logits).abs().max() > 1e-3
    found = run(model, tokens, without=[*ablated, "L0H1->L1H1->L2H3.K"]).logits
    close(found, expected, 1e-5)  # the model's norms are float32
