"""What `keep` leaves of a model, against hooks of transformer-lens that replace everything else."""

import re
from functools import partial

import pytest
import torch

import circuitkit as ck
from circuitkit.ablation import run
from tests.support import zoo
from tests.support.zoo import converted, make

FEW = ["native-mlp", "gpt2", "llama", "gemma2"]  # native, biases, grouped queries, norms behind
REST = [name for name in ("native", "native-rotary", *zoo.SHAPES) if name not in FEW]
FAMILIES = [*FEW, *(pytest.param(name, marks=pytest.mark.weekly) for name in REST)]
FILLS = ["zero", "mean", "resample", "patch"]


def close(name, a, b):
    """Norms or rotations of some families are computed in float32."""
    tolerance = 1e-4 if name in {*zoo.SHAPES} - {*zoo.IN_FLOAT64} else 1e-11
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def recorded(model, tokens, hooks):
    """What hooks see in the untouched model."""
    seen = {}

    def look(value, hook):
        seen[hook.name] = value.clone()

    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(name, look) for name in hooks])
    return seen


def filled(value, other, fill):
    """The value by which a test replaces one."""
    if fill == "zero":
        return torch.zeros_like(value)
    if fill == "mean":
        return value.mean(0, keepdim=True).expand_as(value)
    return value[[2, 0, 1]] if fill == "resample" else other


def logits_with_only(model, tokens, kept, new):
    """Logits if each hook gives its values at the kept places and new ones at all others.

    `kept` and `new` are by hook; the places are heads or neurons, and `new` has an axis for them.
    """

    def put_in(value, hook):
        replaced = new[hook.name].reshape(value.shape).clone()
        places = replaced.view(*value.shape[:2], kept[hook.name]["of"], -1)
        now = value.reshape(places.shape)
        for place in kept[hook.name]["stay"]:
            places[:, :, place] = now[:, :, place]
        return replaced

    with torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=[(name, put_in) for name in kept])


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", FAMILIES)
def test_all_other_heads_are_replaced(name, fill, tokens, other_tokens):
    model = make(name)
    stay = {0: [1], 1: [3, 0], 2: []}
    layers = range(len(model.blocks))
    kept = {f"blocks.{i}.attn.hook_z": {"of": 4, "stay": stay[i]} for i in layers}
    kept = {str(model.hook_dict[hook].name): places for hook, places in kept.items()}
    values, others = (recorded(model, rows, kept) for rows in (tokens, other_tokens))
    new = {hook: filled(values[hook], others[hook], fill) for hook in kept}
    expected = logits_with_only(model, tokens, kept, new)
    how = {"patch": other_tokens} if fill == "patch" else {"fill": fill}
    found = run(model, tokens, keep=["L0H1", "L1H3", "L1H0"], **how).logits
    close(name, found, expected)
    assert (expected - run(model, tokens).logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["native-mlp", "gpt2", "llama"])
def test_all_other_neurons_are_replaced(name, tokens):
    model = make(name)
    d_mlp = model.blocks[0].mlp.out.original_component.weight.numel() // model.cfg.d_model
    stay = {0: [2, 7], 1: [5], 2: []}
    layers = range(len(model.blocks))
    kept = {f"blocks.{i}.mlp.out.hook_in": {"of": d_mlp, "stay": stay[i]} for i in layers}
    kept = {str(model.hook_dict[hook].name): places for hook, places in kept.items()}
    values = recorded(model, tokens, kept)
    new = {hook: filled(values[hook], None, "mean") for hook in kept}
    expected = logits_with_only(model, tokens, kept, new)
    found = run(model, tokens, keep=["L0N2", "L0N7", "L1N5"], fill="mean").logits
    close(name, found, expected)
    assert (expected - run(model, tokens).logits).abs().max() > 1e-3


@torch.no_grad()
def logits_if_it_reads(model, tokens, streams):
    """Logits if L1H3 makes its queries, keys and values of these streams, by hooks."""
    block, z_of = model.blocks[1], {}
    has_norm_in_front = "ln1" in block._modules and "output" not in str(block.ln1.name)

    def put_in(value, hook, side):
        read = streams[side]
        read = block.ln1.original_component(read) if has_norm_in_front else read
        return getattr(block.attn, side).original_component(read).view_as(value)

    def take_out(z, hook):
        z_of["L1H3"] = z.reshape(*z.shape[:2], 4, -1)[:, :, 3].clone()

    def put_z(z, hook):
        z = z.clone()
        z.view(*z.shape[:2], 4, -1)[:, :, 3] = z_of["L1H3"]
        return z

    hooks = [(f"blocks.1.attn.hook_{side}", partial(put_in, side=side)) for side in streams]
    model.run_with_hooks(tokens, fwd_hooks=[*hooks, ("blocks.1.attn.hook_z", take_out)])
    # of this run only L1H3 counts, because a family may share keys and values among heads
    return model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", put_z)])


@pytest.mark.parametrize("name", FAMILIES)
def test_all_other_wires_from_heads_into_the_reader_are_cut(name, tokens):
    model = make(name)
    whole = run(model, tokens)
    wrote = {head: whole.part(f"L0H{head}", before="L1H3") for head in range(4)}
    without_heads = whole.stream("L1H3") - sum(wrote.values())
    streams = {
        "q": without_heads + wrote[2],
        "k": without_heads + wrote[1] + wrote[2],
        "v": without_heads + wrote[2],
    }
    expected = logits_if_it_reads(model, tokens, streams)
    found = run(model, tokens, keep=["L0H1->L1H3.K", "L0H2->L1H3"]).logits
    close(name, found, expected)
    assert (expected - whole.logits).abs().max() > 1e-3


def test_wires_into_other_readers_and_from_other_kinds_stay():
    """By the definition, and by names alone: the model has two layers of four heads and MLPs."""
    model, tokens = make("native-mlp"), torch.tensor([[3, 7, 1, 9], [5, 5, 8, 2]])
    for kept, replaced in {
        "L0 MLP->L1H2.Q": ["L0 MLP->L1H2.K", "L0 MLP->L1H2.V"],
        "L1 MLP->unembed": ["L0 MLP->unembed"],
        "L0 MLP": ["L1 MLP"],
        "L0H3->L0 MLP": ["L0H0->L0 MLP", "L0H1->L0 MLP", "L0H2->L0 MLP"],
    }.items():
        found = run(model, tokens, keep=kept).logits
        assert torch.equal(found, run(model, tokens, without=replaced).logits), kept
    both = run(model, tokens, keep="L0H3->L0 MLP", without="L1 MLP").logits
    names = ["L1 MLP", "L0H0->L0 MLP", "L0H1->L0 MLP", "L0H2->L0 MLP"]
    assert torch.equal(both, run(model, tokens, without=names).logits)


def test_a_converted_neuron_stays_with_all_of_its_heads():
    model, tokens = converted("native-mlp"), torch.tensor([[3, 7, 1, 9], [5, 5, 8, 2]])
    others = [f"L{layer}N{n}" for layer in range(2) for n in range(20) if (layer, n) != (0, 5)]
    expected = run(model, tokens, without=others).logits
    torch.testing.assert_close(run(model, tokens, keep="L0N5").logits, expected)
    expected = run(model, tokens, without=[*others, "L0N5.0"]).logits
    torch.testing.assert_close(run(model, tokens, keep="L0N5.1").logits, expected)


def test_a_model_with_all_heads_kept_is_whole(tokens):
    model = make("gpt2")
    kept = ck.heads_of(model).names
    assert torch.equal(run(model, tokens, keep=kept, fill="mean").logits, run(model, tokens).logits)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"keep": []}, "keep is empty.* without=ck.heads_of(model).names"),
        ({"keep": ["L0H1", "L0 MLP"]}, "different kinds, such as 'L0H1' and 'L0 MLP'"),
        ({"keep": ["L0H1", "L0H1->L1H3.K"]}, "different kinds, such as 'L0H1' and 'L0H1->L1H3.K'"),
        ({"keep": ["L0H1->L1H3.K", "L0 MLP->L1H3.K"]}, "different kinds"),
        ({"keep": "embed"}, "keep takes heads, MLPs and neurons, .*not 'embed'"),
        ({"keep": "L1H3.K"}, "not 'L1H3.K'. Name what is replaced in without="),
        ({"keep": "embed->L0H1->L1H3"}, "not 'embed->L0H1->L1H3'"),
        ({"keep": "L0 bias"}, "not 'L0 bias'"),
        ({"keep": "L0H9"}, "no part is called 'L0H9'"),
        ({"keep": "L1H0->L0H1.K"}, "is no wire or path"),
        ({"keep": ["L0H1", "L0H2"], "without": "L0H2"}, "'L0H2' is in keep and in without"),
    ],
)
def test_what_stays_is_clear(names, message, tokens):
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        run(make("gpt2"), tokens, **names)


def test_keep_is_a_name_or_a_list_of_names(tokens):
    with pytest.raises(TypeError, match=re.escape("keep is a name such as 'L0H1' or a list")):
        run(make("gpt2"), tokens, keep={"L0H1": 0})
    with pytest.raises(TypeError, match=re.escape("It expects keep to be a string or")):
        run(make("gpt2"), tokens, keep=3)
