"""What could go wrong when a layer is called twice, and a case by hand."""

import math

import pytest
import torch

from circuitkit.ablation import run
from tests.support.zoo import converted, make


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def hooks_that_run(model, tokens):
    """Each hook by its first name; a hook has several."""
    cache = run(model, tokens).cache
    return [name for name, point in model.hook_dict.items() if name == point.name and name in cache]


@torch.no_grad()
def test_one_wire_by_hand():
    """No norms: the keys of L1H1 without what L0H0 wrote, one position at a time."""
    model = make("native")
    tokens = torch.tensor([[1, 5, 2]])
    base, cut = run(model, tokens), run(model, tokens, without="L0H0->L1H1.K")
    attention = model.blocks[1].attn
    stream = base.cache["blocks.1.hook_in"][0]
    without = stream - base.cache["blocks.0.attn.hook_z"][0, :, 0] @ model.blocks[0].attn.W_O[0]
    q = stream @ attention.W_Q[1] + attention.b_Q[1]
    k = without @ attention.W_K[1] + attention.b_K[1]
    v = stream @ attention.W_V[1] + attention.b_V[1]
    for dst in range(3):
        scores = [float(q[dst] @ k[src]) / math.sqrt(5) for src in range(dst + 1)]
        total = sum(math.exp(score) for score in scores)
        expected = sum(math.exp(scores[src]) / total * v[src] for src in range(dst + 1))
        close(cut.cache["blocks.1.attn.hook_z"][0, dst, 1], expected)
    close(cut.part("L1H0"), base.part("L1H0"))  # the other head reads what it read


def test_a_listener_sees_each_value_once(tokens):
    model = make("native-mlp")
    fired = hooks_that_run(model, tokens)
    seen = {}

    def listen(value, hook):
        seen.setdefault(hook.name, []).append(value.clone())

    with model.hooks(fwd_hooks=[(name, listen) for name in fired]):
        run(model, tokens)
        usual = {name: len(values) for name, values in seen.items()}
        seen.clear()
        names = ["L0H1->L1H3.K", "embed->L0H1->L1H2.V", "embed->L0 MLP->L1H2.Q", "L1H0"]
        cut = run(model, tokens, without=names)
    assert {name: len(values) for name, values in seen.items()} == usual
    close(cut.logits, run(model, tokens, without=names).logits, 0)
    # and it sees what the model goes on with, not what was replaced
    close(seen["blocks.1.attn.o.hook_in"][0], cut.cache["blocks.1.attn.hook_z"], 0)


def test_no_hook_stays_behind(tokens):
    model = make("native-mlp")
    before = {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
    run(model, tokens, without=["L0H1->L1H3.K", "embed->L0 MLP->L1H2.Q"])
    with pytest.raises(ValueError, match="no part is called"):
        run(model, tokens, without="L7H1")
    after = {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
    assert after == before
    assert not model.blocks[1].attn._forward_pre_hooks


def test_a_permanent_hook_acts_in_both_calls(tokens):
    """A gate on the pattern belongs to the model: a wire that adds nothing changes nothing."""
    model = make("gpt2")

    def halve(pattern, hook):
        return pattern / 2

    whole = run(model, tokens)
    point = model.blocks[1].attn.hook_pattern
    handle = point.add_hook(halve, is_permanent=True)
    try:
        gated = run(model, tokens)
        # values of the same tokens: the second call happens, and changes nothing
        close(run(model, tokens, without="L0H1->L1H3.K", patch=tokens).logits, gated.logits)
        assert (gated.logits - whole.logits).abs().max() > 1e-3
    finally:
        handle.hook.remove()
        point.fwd_hooks.remove(handle)


def test_a_key_belongs_to_one_query_head(tokens):
    """Heads 2 and 3 share a key; the wire into L1H3 leaves L1H2 as it was."""
    model = make("native-rotary")
    base, cut = run(model, tokens), run(model, tokens, without="L0H1->L1H3.K")
    close(cut.part("L1H2"), base.part("L1H2"))
    assert (cut.part("L1H3") - base.part("L1H3")).abs().max() > 1e-3


def test_the_cache_of_keys_does_not_grow(tokens):
    model = make("llama")
    cut = run(model, tokens, without="L0H1->L1H3.K")
    assert cut.cache["blocks.2.attn.hook_pattern"].shape[-1] == tokens.shape[1]


def test_the_mode_of_the_model_is_left_as_it_was(tokens):
    model = make("gpt2")
    expected = run(model, tokens, without="L0H1->L1H3.K").logits
    model.train()
    try:
        close(run(model, tokens, without="L0H1->L1H3.K").logits, expected)
        assert model.training
    finally:
        model.eval()


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("L2H0", "no part is called 'L2H0'. The nearest names are L1H0"),
        ("L1H9->L1H0.K", "no part is called 'L1H9'. The nearest names are L1H3"),
        ("L1H0->L0H1.K", "each part must run before the next one"),
        ("L1H0->L1H1.K", "each part must run before the next one"),
        ("L0H1.K->L1H1.K", "the first is a part, not an input"),
        ("L0H1->L1 MLP.Q", "names an input that L1 MLP does not have. It has one input"),
        ("L0H0->L1 bias", "is no wire or path"),
        ("L0H0>>L1H0", "is no name of a part"),
    ],
)
def test_names_that_cannot_be_cut(tokens, without, message):
    with pytest.raises(ValueError, match=message):
        run(make("native-mlp"), tokens, without=without)


EDITED = [
    ("native-mlp", "L0H1->L1H3.K", "blocks.1.ln1.hook_out"),
    ("native-mlp", "L0H1->L1H3.K", "blocks.1.attn.hook_pattern"),
    ("native-mlp", "embed->L0 MLP->L1H3.K", "blocks.0.mlp.hook_pre"),
    ("gpt2", "L0H1->L1H3.K", "blocks.0.attn.o.hook_out"),
    ("gpt2", "L0H1->L1H3.K", "blocks.0.hook_resid_post"),
    ("bert", "L0H1->L1H3.K", "blocks.0.ln1.hook_out"),
    ("gemma2", "L0H1->L1H3.K", "blocks.0.ln1_post.hook_out"),
    ("converted", "embed->L1N5.Q->unembed", "blocks.1.mlp.hook_in"),
    ("converted", "L1N5", "blocks.1.mlp.out.hook_in"),
]


def halve(value, hook):
    return value / 2


def halve_in_place(value, hook):
    value /= 2


def look(value, hook):
    pass


@pytest.mark.parametrize(("name", "wire", "place"), EDITED)
def test_a_temporary_hook_that_changes_values_is_refused_where_wires_are_cut(
    tokens, name, wire, place
):
    """A second call, and what a writer has written, would miss the change."""
    model = converted("native-mlp") if name == "converted" else make(name)
    expected = run(model, tokens, without=wire).logits
    with model.hooks(fwd_hooks=[(place, look)]):
        close(run(model, tokens, without=wire).logits, expected, 0)
    for change in (halve, halve_in_place):
        with model.hooks(fwd_hooks=[(place, change)]), torch.no_grad():
            with pytest.raises(
                ValueError, match=r"The hook at blocks.* changes values.*reset_hook"
            ):
                run(model, tokens, without=wire)
    close(run(model, tokens, without=wire).logits, expected, 0)


def test_a_temporary_hook_acts_as_usual_where_parts_are_ablated(tokens):
    """Then nothing is computed a second time. At the same place it would be refused."""
    model = make("native-mlp")

    def zero(z, hook):
        return torch.cat([torch.zeros_like(z[:, :, :3]), z[:, :, 3:]], dim=2)

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", zero)]):
        cut = run(model, tokens, without="L1H3")
    names = ["L0H0", "L0H1", "L0H2", "L1H3"]
    close(cut.logits, run(model, tokens, without=names).logits)


@pytest.mark.parametrize("bias", ["embed bias", "L0 MLP bias"])
def test_the_bias_of_a_closing_norm_is_cut_by_wires_only(tokens, bias):
    model = make("bert")
    with pytest.raises(ValueError, match=f"'{bias}' is the bias of a norm .* '{bias}->unembed'"):
        run(model, tokens, without=bias)
    cut = run(model, tokens, without=f"{bias}->unembed")
    assert (cut.logits - run(model, tokens).logits).abs().max() > 1e-3


@pytest.mark.parametrize("bias", ["embed bias", "L0 MLP bias"])
def test_a_bias_that_is_not_there_is_no_part(tokens, bias):
    with pytest.raises(ValueError, match="no part is called"):
        run(make("native-mlp"), tokens, without=bias)


def test_a_run_inside_a_hook_of_a_run_is_refused(tokens):
    """Two runs at once, here or in threads, would change each other's hooks."""
    model = make("native-mlp")

    def run_again(value, hook):
        run(model, tokens)

    with model.hooks(fwd_hooks=[("blocks.1.hook_in", run_again)]):
        with pytest.raises(ValueError, match="Another run of this model is under way"):
            run(model, tokens, without="L0H1->L1H3.K")


@pytest.mark.parametrize("removes", ["all hooks of its point", "itself"])
def test_a_hook_that_removes_hooks_during_a_run_leaves_none_behind(tokens, removes):
    model = make("native-mlp")
    wire, place = "L0H1->L1H3.K", "blocks.1.attn.hook_z"
    expected, point = run(model, tokens, without=wire).logits, model.hook_dict[place]
    before = {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
    handles = []

    def remove(value, hook):
        if removes == "itself":
            handles[0].hook.remove()
            point.fwd_hooks.remove(handles[0])
        else:
            hook.remove_hooks()

    handles.append(point.add_hook(remove))
    close(run(model, tokens, without=wire).logits, expected, 0)
    after = {name: len(point._forward_hooks) for name, point in model.hook_dict.items()}
    assert after == before
    assert not point.fwd_hooks
    assert not model.blocks[1].attn._forward_pre_hooks


def test_a_hook_that_removes_a_cut_before_it_acts_is_refused(tokens):
    """Otherwise the logits would be those of the whole model."""
    model = make("native-mlp")
    with model.hooks(fwd_hooks=[("blocks.0.hook_in", lambda value, hook: model.reset_hooks())]):
        with pytest.raises(ValueError, match="were removed before the model came there"):
            run(model, tokens, without="L1H3")
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_the_cache_after_a_cut_is_consistent(tokens):
    """Scores, pattern and z of the cut head fit each other; keys that it does not use are left out."""
    model = make("gpt2")  # in native models the hook of scores shows patterns
    whole, cut = run(model, tokens), run(model, tokens, without="L0H1->L1H3.K")
    with pytest.raises(KeyError, match=r"blocks.1.attn.hook_k is left out .* without cuts"):
        cut.cache["blocks.1.attn.hook_k"]
    with pytest.raises(KeyError, match="left out"):
        cut.cache["k", 1]
    with pytest.raises(KeyError, match="^'no such hook'$"):
        cut.cache.cache_dict["no such hook"]
    assert torch.equal(cut.cache["blocks.0.attn.hook_k"], whole.cache["blocks.0.attn.hook_k"])
    pattern = cut.cache["blocks.1.attn.hook_pattern"]
    close(cut.cache["blocks.1.attn.hook_attn_scores"].softmax(-1), pattern)
    values = whole.cache["blocks.1.attn.hook_v"].view(*tokens.shape, 4, -1)
    z = torch.einsum("bhds,bshe->bdhe", pattern, values)
    close(cut.cache["blocks.1.attn.hook_z"].view_as(z), z)


def test_the_attention_of_a_neuron_is_that_after_a_cut_into_its_gate(tokens):
    model = converted("native-mlp")
    whole, cut = run(model, tokens), run(model, tokens, without=["L0H1->L1N5.Q", "L0H2->L1N6.V"])
    neurons = model.blocks[1].mlp.neurons.neurons
    W_in, b_in = neurons.W_in[:, 5], neurons.b_in[5]
    norm = model.blocks[1].ln2
    x = norm(whole.stream("L1 MLP") - whole.part("L0H1", before="L1 MLP")) @ W_in + b_in
    b, c, _, _ = neurons.terms.coefficients[:, 0]
    for term in (0, 1):
        close(cut.pattern(f"L1N5.{term}"), torch.sigmoid(b[term] * x + c[term]))
        close(cut.pattern(f"L1N6.{term}"), whole.pattern(f"L1N6.{term}"))


def test_the_cache_of_neurons_after_a_cut_is_consistent(tokens):
    model = converted("native-mlp")
    cut = run(model, tokens, without=["L0N3", "L0H1->L1N5.Q"])
    with pytest.raises(KeyError, match="left out"):
        cut.cache["blocks.1.mlp.hook_pre"]
    neurons = model.blocks[1].mlp.neurons.neurons
    for layer in (0, 1):
        z = cut.cache[f"blocks.{layer}.mlp.neurons.hook_z"]
        post = cut.cache[f"blocks.{layer}.mlp.hook_post"]
        close(z.unflatten(-1, (-1, len(neurons.terms))).sum(-1), post)
    assert not cut.cache["blocks.0.mlp.neurons.hook_z"][..., 6:8].any()
