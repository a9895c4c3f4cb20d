"""An attribution graph adds up to the logit, and its flows are the ablations of a model that is frozen by hand."""

import pytest
import torch

import circuitkit as ck
from circuitkit import models
from circuitkit_book import attribution_graph as ag

ROUNDING = 1e-8  # sums of some thousand float64 terms of size 100
TEXT, ANSWER = "Every evening Mr. Dorling went to Mr. D", 300


@pytest.fixture(scope="module")
def model():
    return ck.load_model("two-layer-mlp").double()


@pytest.fixture(scope="module")
def activations(model):
    return ag.layer_inputs_and_outputs(model, models.heldout_rows(16, 64))


@pytest.fixture(scope="module")
def transcoders(activations):
    flat = [(x.flatten(0, 1), y.flatten(0, 1)) for x, y in activations]
    return {layer: ag.random_transcoder(*flat[layer], latents=64, active=6) for layer in (0, 1)}


@pytest.fixture(scope="module")
def graph(model, transcoders):
    return ag.attribution_graph(model, model.to_tokens(TEXT), ANSWER, transcoders)


def frozen_logit(model, transcoders, without):
    """The logit of the answer, with everything held fixed by hand and one head left out."""
    with torch.no_grad():
        _, cache = model.run_with_cache(model.to_tokens(TEXT))

    def norm(x, name):
        module = model.get_submodule(name).original_component
        centred = x - x.mean(-1, keepdim=True)
        return centred / cache[f"{name}.hook_scale"][0] * module.weight + module.bias

    stream = cache["blocks.0.hook_in"][0]
    for layer, block in enumerate(model.blocks):
        at = f"blocks.{layer}"
        read = norm(stream, f"{at}.ln1")
        stream = stream + block.attn.b_O
        for head in range(model.cfg.n_heads):
            if without == f"L{layer}H{head}":
                continue
            value = read @ model.W_V[layer, head] + model.b_V[layer, head]
            pattern = cache[f"{at}.attn.hook_pattern"][0, head]
            stream = stream + pattern @ value @ model.W_O[layer, head]
        coder = transcoders[layer]
        real = cache[f"{at}.ln2.hook_out"][0]
        error = cache[f"{at}.mlp.hook_out"][0] - coder(real)
        on = coder.encode(real) > 0
        latents = (norm(stream, f"{at}.ln2") @ coder.W_enc + coder.b_enc) * on
        stream = stream + latents @ coder.W_dec + coder.b_dec + error
    logits = norm(stream, "ln_final")[-1] @ model.W_U + model.b_U
    return float(logits[ANSWER] - logits.mean())


def test_the_sources_add_up_to_the_logit_of_the_model(model, graph):
    with torch.no_grad():
        logits = model(model.to_tokens(TEXT))[0, -1]
    parts = ("embed", "pos", "L0 error", "L1 error")
    total = sum(graph.of_part(part) for part in parts) + graph.constant
    assert total == pytest.approx(float(logits[ANSWER] - logits.mean()), abs=ROUNDING)
    assert abs(graph.of_part("L0 error")) > 0.1  # the errors count in this sum


@pytest.mark.parametrize("head", ["L0H1", "L0H3", "L1H2"])
def test_the_flow_through_a_head_is_missing_in_a_frozen_model_without_it(
    model, transcoders, graph, head
):
    whole = frozen_logit(model, transcoders, None)
    fall = whole - frozen_logit(model, transcoders, head)
    assert abs(fall) > 0.01
    assert graph.of_part(head) == pytest.approx(fall, abs=ROUNDING)


def test_the_edges_out_of_a_node_add_up_to_its_flow(graph):
    out = sum(graph.inflow(target) for target in graph.reads)
    assert torch.allclose(out, graph.outflow, atol=ROUNDING)


def test_a_transcoder_that_was_trained_is_better_than_the_mean(activations):
    x, y = (value[:, 1:].flatten(0, 1) for value in activations[1])
    coder = ag.train_transcoder(x, y, latents=64, active=8, steps=80)
    assert ag.unexplained(coder(x), y) < 0.8
    assert int((coder.encode(x) > 0).sum(-1).max()) <= 8


def test_a_random_dictionary_with_a_latent_for_each_row_has_no_error():
    x, y = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0)).double()
    coder = ag.random_transcoder(x, y, latents=400, active=400)
    assert ag.unexplained(coder(x), y) < 1e-3  # the small term on the diagonal


def test_a_replaced_mlp_that_writes_the_same_changes_nothing(model):
    tokens = model.to_tokens(TEXT)
    _, y = ag.layer_inputs_and_outputs(model, tokens)[0]
    same = ag.replaced_logits(model, tokens, {0: lambda x: y})
    without = ag.replaced_logits(model, tokens, {}, without="L1H2")
    assert torch.allclose(same, model(tokens).detach(), atol=ROUNDING)
    assert torch.allclose(without, ck.run(model, tokens, "L1H2").logits, atol=ROUNDING)


def test_wires_of_an_early_head_lead_to_every_later_reader(model):
    wires = ag.wires_of(model, "L0H1")
    assert len(wires) == len(set(wires)) == 2 + 4 * 3 + 1


def test_a_missing_transcoder_is_named(model, transcoders):
    with pytest.raises(ValueError, match=r"transcoders for the layers \[0\]"):
        ag.attribution_graph(model, model.to_tokens(TEXT), ANSWER, {0: transcoders[0]})


def test_too_many_active_latents_are_refused():
    x = torch.zeros(4, 2)
    with pytest.raises(ValueError, match="from 1 to the number of latents, 3"):
        ag.train_transcoder(x, x, latents=3, active=4)
