"""A neuron and its head are one thing in two forms: the tables of the head are the rows of the neuron."""

import pytest
import torch

import circuitkit as ck
from circuitkit.residual import virtual_weights


@pytest.fixture(scope="module")
def two_forms(native):
    original = native(act_fn="silu", normalization_type=None)
    return original, ck.to_attention_only(original, heads_per_neuron=1)


@pytest.mark.parametrize("neuron", ["L0N3", "L1N18"])
def test_the_qk_table_of_a_neuron_head_is_the_input_row_of_the_neuron(two_forms, neuron):
    original, converted = two_forms
    table = ck.circuits.full_qk(converted, neuron).AB
    row = virtual_weights(original, "embed", neuron).AB[:, 0]
    # minus what the neuron reads, as the score for the bias token, which is the last column; 0 elsewhere
    assert torch.allclose(table[:-1, -1], -row, atol=1e-12)
    assert not table[:, :-1].any()
    assert not table[-1].any()


@pytest.mark.parametrize("neuron", ["L0N3", "L1N18"])
def test_the_ov_table_of_a_neuron_head_is_both_rows_of_the_neuron(two_forms, neuron):
    original, converted = two_forms
    table = ck.circuits.full_ov(converted, neuron).AB
    read = virtual_weights(original, "embed", neuron).AB
    written = virtual_weights(original, neuron, "unembed").AB
    assert torch.allclose(table[:-1, :-1], read @ written, atol=1e-12)
    # the row of the bias token takes the bias of the value away again
    layer, number = int(neuron[1]), int(neuron[3:])
    b_in = original.blocks[layer].mlp.b_in[number]
    assert torch.allclose(table[-1, :-1], -b_in * written[0], atol=1e-12)
    assert not table[:, -1].any()


def test_tools_that_run_give_the_same_numbers_in_both_forms(two_forms):
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    both = [ck.residual.logit_attribution(model, tokens, 7, neurons=True) for model in two_forms]
    neurons = [name for name in both[0].names if "N" in name]
    assert len(neurons) == 2 * two_forms[0].cfg.d_mlp
    for name in neurons:
        assert torch.allclose(both[0][name], both[1][name], atol=1e-10)
    wire = "L0N3->L1H2.V"
    cut = [ck.run(model, tokens, without=wire).logits for model in two_forms]
    assert torch.allclose(*cut, atol=1e-10)
    assert (cut[0] - two_forms[0](tokens)).abs().max() > 1e-3
