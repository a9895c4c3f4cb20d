"""Parts ablated and wires cut, against a forward pass in plain loops that shares no code with it."""

import pytest
import torch

from circuitkit.ablation import run
from circuitkit.parts import part_names
from circuitkit.reading import converted_neurons
from circuitkit_book.induction_by_hand import build_induction_model
from tests.support.slow_tools import forward
from tests.support.zoo import converted, make


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b.to(a), atol=tolerance, rtol=tolerance)


@pytest.fixture(params=["native", "native-mlp", "native-rotary"])
def native(request):
    return make(request.param)


def slow(model, tokens, **without):
    return torch.stack([forward(model, row, **without)[0] for row in tokens])


def test_logits_and_every_part(native, tokens):
    whole = run(native, tokens)
    close(whole.logits, slow(native, tokens))
    for row, ids in enumerate(tokens):
        parts = forward(native, ids)[1]
        assert set(part_names(native)) <= set(parts)
        for name in part_names(native):
            close(whole.part(name)[row], parts[name])


@pytest.mark.parametrize("kind", "QKV")
def test_wires_between_heads(native, tokens, kind):
    for source in ("embed", "L0H1", "L0 bias"):
        cut = run(native, tokens, without=f"{source}->L1H2.{kind}")
        close(cut.logits, slow(native, tokens, cut=[(source, "L1H2", kind)]))


def test_several_wires_at_once(native, tokens):
    wires = [
        ("L0H1", "L1H2", "K"),
        ("L0H0", "L1H2", "K"),
        ("L0H1", "L1H3", "K"),
        ("embed", "L0H0", "Q"),
        ("L0H3", "L1H2", "V"),
    ]
    cut = run(native, tokens, without=[f"{a}->{b}.{kind}" for a, b, kind in wires])
    close(cut.logits, slow(native, tokens, cut=wires))
    every = [("L0H1", "L1H2", kind) for kind in "QKV"]
    close(run(native, tokens, without="L0H1->L1H2").logits, slow(native, tokens, cut=every))


def test_wires_into_the_unembedding_and_an_mlp(native, tokens):
    expected = slow(native, tokens, cut=[("L0H1", "unembed", "")])
    close(run(native, tokens, without="L0H1->unembed").logits, expected)
    if "L1 MLP" in part_names(native):
        expected = slow(native, tokens, cut=[("L0H1", "L1 MLP", ""), ("L1H0", "L1 MLP", "")])
        names = ["L0H1->L1 MLP", "L1H0->L1 MLP"]
        close(run(native, tokens, without=names).logits, expected)


def test_whole_parts(native, tokens):
    for name in part_names(native):
        if name.startswith(("embed", "pos", "L0")):
            close(run(native, tokens, without=name).logits, slow(native, tokens, gone=[name]))
    gone = ["L0H1", "L1H0", "L0H3"]
    close(run(native, tokens, without=gone).logits, slow(native, tokens, gone=gone))


def test_a_converted_model_has_the_parts_of_the_original(tokens):
    """Neurons add up to their MLP, which is the slow loop's up to the error of the conversion."""
    model, heads = make("native-mlp"), converted("native-mlp")
    whole, error = run(heads, tokens), 40 * heads.report.bound.max()
    assert part_names(heads)[7:9] == ("L0N0.0", "L0N0.1")
    for row, ids in enumerate(tokens):
        neurons = sum(whole.part(f"L0N{n}") for n in range(20)) + whole.part("L0 MLP bias")
        close(neurons, whole.part("L0 MLP"))
        close(whole.part("L0 MLP")[row], forward(model, ids)[1]["L0 MLP"], error)
    for wire in (("L0H1", "L1 MLP", ""), ("L0 MLP", "L1H2", "K")):
        name = "->".join(wire[:2]) + (f".{wire[2]}" if wire[2] else "")
        close(run(heads, tokens, without=name).logits, slow(model, tokens, cut=[wire]), error)
    cut = run(heads, tokens, without="L0 MLP").logits
    close(cut, slow(model, tokens, gone=["L0 MLP"]), error)


@pytest.mark.parametrize("kind", ["native-mlp", "gated"])
def test_one_neuron_by_hand(tokens, kind):
    """A neuron-head's share, pattern and cuts, from the matrices of the model."""
    model = converted(kind)
    whole, neurons = run(model, tokens), converted_neurons(model, 1)
    read = whole.read("L1N5")
    shift = 0 if kind == "gated" else neurons.b_in[5]  # a native gated MLP has no biases
    value = read @ neurons.W_in[:, 5] + shift
    gate = read @ neurons.W_gate[:, 5] if kind == "gated" else value
    # a gate is fitted for its own range
    columns = neurons.terms.columns(read)  # [4, neuron, head]
    b, c, a, d = columns[:, 5 if columns.shape[1] > 1 else 0]
    close(whole.pattern("L1N5.1"), torch.sigmoid(gate * b[1] + c[1]))

    def written(value):
        gathered = torch.sigmoid(gate[..., None] * b + c) * (
            value[..., None] * d if kind == "gated" else value[..., None] * a + d
        )
        return gathered[..., None] * neurons.W_out[5]  # [batch, pos, head, d_model]

    close(whole.part("L1N5.1"), written(value)[..., 1, :])
    last = run(model, tokens, without="L1N5.1").stream()
    close(last, whole.stream() - written(value)[..., 1, :])
    stream = whole.stream("L1N5") - whole.part("L0H1")
    changed = model.blocks[1].ln2.original_component(stream) @ neurons.W_in[:, 5] + shift
    cut = run(model, tokens, without="L0H1->L1N5.V")
    close(cut.part("L1N5"), written(changed).sum(-2))
    close(cut.part("L1N4"), whole.part("L1N4"))


def test_fill_and_patch(tokens, other_tokens):
    model = make("native-mlp")
    whole, other = run(model, tokens), run(model, other_tokens)
    for part in ("L0H1", "L0 MLP", "embed"):
        mean = run(model, tokens, without=part, fill="mean").part(part)
        close(mean, whole.part(part).mean(0, keepdim=True).expand_as(mean))
        close(
            run(model, tokens, without=part, fill="resample").part(part),
            whole.part(part).roll(1, 0),
        )
        close(run(model, tokens, without=part, patch=other_tokens).part(part), other.part(part))
    cut = run(model, tokens, without="L0H1->L1H2.V", fill="resample")
    swap = whole.part("L0H1").roll(1, 0) - whole.part("L0H1")
    read = model.blocks[1].ln1.original_component(whole.stream("L1H2") + swap)
    v = read @ model.blocks[1].attn.W_V[2] + model.blocks[1].attn.b_V[2]
    close(cut.z("L1H2"), whole.pattern("L1H2") @ v)
    at = run(model, tokens, without="L0H1", patch=other_tokens, at=[2, 5]).z("L0H1")
    expected = whole.z("L0H1").clone()
    expected[:, [2, 5]] = other.z("L0H1")[:, [2, 5]]
    close(at, expected)


def test_neurons_have_no_keys_and_errors_name_the_nearest(tokens):
    model = converted("native-mlp")
    with pytest.raises(ValueError, match="an input that L1N5 does not have. It has Q, V"):
        run(model, tokens, without="L0H1->L1N5.K")
    with pytest.raises(ValueError, match="no part is called 'L1N77'. The nearest names are L1N7"):
        run(model, tokens, without="L1N77")
    with pytest.raises(ValueError, match="'L1N5' has 2 heads"):
        run(model, tokens).pattern("L1N5")


def test_the_embedding_of_a_hand_made_model_is_what_its_first_layer_reads():
    """A circuit whose parts are known: tokens and positions are one-hot, and L0H0 copies the token before."""
    model = build_induction_model(5, 8)
    tokens = torch.tensor([[3, 1, 4, 3]])
    whole = run(model, tokens)
    close(whole.pattern("L0H0")[0, 2], torch.tensor([0.0, 1, 0, 0]), 1e-3)
    assert whole.logits[0, -1].softmax(-1)[1] > 0.99
    assert run(model, tokens, without="L0H0->L1H0.K").logits[0, -1].softmax(-1)[1] < 0.4
