"""What a neuron reads, term by term, and the lookup, against slow loops and a case by hand."""

import pytest
import torch
import torch.nn.functional as F

from circuitkit_book.neuron_reading import (
    Lookup,
    activations,
    explained,
    judge_guesses,
    neuron_terms,
)

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.fixture(scope="module")
def model(native):
    return native()


@pytest.mark.parametrize("neuron", ["L0N4", "L1N11"])
def test_the_terms_add_up_to_what_the_activation_function_gets(model, neuron):
    layer, number = int(neuron[1]), int(neuron[3:])
    terms = neuron_terms(model, TOKENS, neuron)
    _, cache = model.run_with_cache(TOKENS)
    reads = cache[f"blocks.{layer}.mlp.in.hook_out"][..., number]
    assert torch.allclose(sum(terms.values()), reads, atol=1e-11)
    found = activations(model, TOKENS, neuron)
    assert torch.allclose(found, F.gelu(reads), atol=1e-11)
    # without one term, the rest is what is read after the wire is cut, up to the changed divisor
    cut = activations(model, TOKENS, neuron, without=f"L0H1->{neuron}")
    assert (cut - found).abs().max() > 1e-3


def test_the_lookup_is_a_mean_over_a_loop():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (6, 9), generator=generator)
    values = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    lookup = Lookup.of(tokens, values, 5, weight=2.0)
    single, pairs = {}, {}
    for row in range(6):
        for place in range(1, 9):
            now, before = int(tokens[row, place]), int(tokens[row, place - 1])
            single.setdefault(now, []).append(float(values[row, place]))
            pairs.setdefault((before, now), []).append(float(values[row, place]))
    everything = float(values[:, 1:].mean())
    for row in range(6):
        for place in range(1, 9):
            now, before = int(tokens[row, place]), int(tokens[row, place - 1])
            of_token = (sum(single[now]) + 2 * everything) / (len(single[now]) + 2)
            pair = pairs[before, now]
            of_pair = (sum(pair) + 2 * of_token) / (len(pair) + 2)
            assert float(lookup.token(tokens)[row, place]) == pytest.approx(of_token)
            assert float(lookup.pair(tokens)[row, place]) == pytest.approx(of_pair)
    unseen = torch.tensor([[4, 4]])
    assert lookup.pair(unseen).tolist()[0] == pytest.approx([everything, everything])


def test_explained_is_one_for_the_truth_and_zero_for_the_mean():
    value = torch.tensor([1.0, 2.0, 6.0])
    assert explained(value, value) == 1
    assert explained(torch.full((3,), 3.0), value) == 0
    assert explained(-value, value) < 0


def test_guesses_are_counted_next_to_the_lookup_and_to_always_off():
    import circuitkit as ck

    model = ck.load_model("two-layer-mlp")
    sentences = ["And the children of Israel shall", "We must expand trade, and we shall"]
    lookup = Lookup(torch.full((2048,), 5.0), torch.full((2048**2,), 5.0))
    table = judge_guesses(model, "L0N486", sentences, [True, True], lookup)
    assert table["on"].tolist()[:2] == ["on", "off"]
    assert table.loc["right"].tolist() == ["", "1", "1", "1", ""]
    table = judge_guesses(model, "L0N486", sentences, [None, False], lookup)
    assert table["your guess"].tolist() == ["", "off", "1"]
    with pytest.raises(ValueError, match="2 sentences and 1 guesses"):
        judge_guesses(model, "L0N486", sentences, [True], lookup)
