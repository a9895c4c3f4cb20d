"""A set of names means all of them at once: a test for each pair of kinds."""

import pytest
import torch

from circuitkit.ablation import run
from circuitkit.reading import converted_neurons
from tests.support.slow_tools import forward
from tests.support.zoo import converted, make

COVERED = {
    "a name and itself": ("L0H1->L1H3.K", "L0H1->L1H3.K"),
    "part and wire": ("L0H1", "L0H1->L1H3.K"),
    "part and path that begins there": ("L0H1", "L0H1->L0 MLP->L1H3.K"),
    "part and path through it": ("L0 MLP", "L0H1->L0 MLP->L1H3.K"),
    "part and its input": ("L1H3", "L1H3.K"),
    "part and wire into it": ("L1H3", "L0H1->L1H3.K"),
    "input and wire": ("L1H3.K", "L0H1->L1H3.K"),
    "input and path": ("L1H3.K", "embed->L0H1->L1H3.K"),
    "input in the middle and path": ("L0 MLP->L1H3.K", "L0H1->L0 MLP->L1H3.K"),
    "wire and one of its sides": ("L0H1->L1H3", "L0H1->L1H3.K"),
    "wire and path": ("L0H1->L1H3.K", "embed->L0H1->L1H3.K"),
    "wire to the end and path": ("L1H3->unembed", "L0H1->L1H3->unembed"),
    "path and longer path": ("L0H1->L0 MLP->L1H3.K", "embed->L0H1->L0 MLP->L1H3.K"),
    "path and one of its sides": ("embed->L0H1->L1H3.K", "embed->L0H1.Q->L1H3.K"),
    "unembedding and wire": ("unembed", "L0H1->unembed"),
}
COVERED_NEURONS = {
    "MLP and neuron": ("L0 MLP", "L0N5"),
    "MLP and its bias": ("L0 MLP", "L0 MLP bias"),
    "MLP and wire of a neuron": ("L0 MLP", "L0N5->L1H3.K"),
    "MLP and neuron's input": ("L1 MLP", "L1N5.Q"),
    "neuron and its head": ("L0N5", "L0N5.1"),
    "neuron and wire of its head": ("L0N5", "L0N5.1->L1H3.K"),
    "neuron and path through it": ("L0N5", "embed->L0N5->L1H3.K"),
    "neuron and its input": ("L1N5", "L1N5.Q"),
    "neuron's input and its head's": ("L1N5.Q", "L1N5.1.Q"),
    "neuron's input and wire": ("L1N5.Q", "L0H1->L1N5.Q"),
    "neuron's input and path": ("L1N5.V", "embed->L0H1->L1N5.1.V"),
    "MLP's wire and neuron's": ("L0H1->L1 MLP", "L0H1->L1N5.Q"),
    "MLP's wire and path": ("L0H1->L1 MLP", "embed->L0H1->L1N5"),
    "wire into neuron and into its head": ("L0H1->L1N5", "L0H1->L1N5.1.V"),
    "wire of MLP and of neuron": ("L0 MLP->L1H3.K", "L0N5->L1H3.K"),
    "wire of MLP and of its bias": ("L0 MLP->L1H3.K", "L0 MLP bias->L1H3.K"),
    "wire of neuron and of its head": ("L0N5->L1H3.K", "L0N5.0->L1H3.K"),
    "wire of neuron and path": ("L0N5->L1H3.K", "embed->L0N5->L1H3.K"),
    "path through MLP and neuron": ("embed->L0 MLP->L1H3.K", "embed->L0N5->L1H3.K"),
    "path through neuron and head": ("embed->L0N5->L1H3.K", "embed->L0N5.1.Q->L1H3.K"),
}


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


# With `at`, the second name changes later positions through a head, and there it is not covered
REACHES_LATER = {
    "part and its input",
    "part and wire into it",
    "input and path",
    "wire and path",
    "wire to the end and path",
    "path and longer path",
    "neuron's input and path",
    "MLP's wire and path",
}


HOW = ("zero", "mean", "resample", "patch")


def pairs(names):
    """Every name with one way to fill what is cut at every change, and with the other ways weekly."""
    for i, name in enumerate(names):
        for j, how in enumerate(HOW):
            yield pytest.param(name, how, marks=[] if i % 4 == j else [pytest.mark.weekly])


def require_covered(model, tokens, other_tokens, how, cover, covered):
    fill = {"patch": other_tokens} if how == "patch" else {"fill": how}
    alone = run(model, tokens, without=cover, **fill).logits
    close(run(model, tokens, without=[cover, covered], **fill).logits, alone)
    alone = run(model, tokens, without=cover).logits
    close(run(model, tokens, without=[covered, cover]).logits, alone)
    # the test can fail: the covered name alone does something else
    other = run(model, tokens, without=covered).logits
    assert cover == covered or (other - alone).abs().max() > 1e-4


def require_covered_at_positions(model, tokens, pair, reaches_later):
    alone, both = (run(model, tokens, without=n, at=[2, 5]).logits for n in (pair[0], pair))
    if reaches_later:
        assert (both - alone).abs().max() > 1e-4
    else:
        close(both, alone)


@pytest.mark.parametrize(("name", "how"), [*pairs(COVERED)])
def test_a_covered_name_changes_nothing(name, how, tokens, other_tokens):
    model = make("native-mlp")
    require_covered(model, tokens, other_tokens, how, *COVERED[name])
    require_covered_at_positions(model, tokens, COVERED[name], name in REACHES_LATER)


@pytest.mark.parametrize(("name", "how"), [*pairs(COVERED_NEURONS)])
def test_a_covered_neuron_changes_nothing(name, how, tokens, other_tokens):
    model = converted("native-mlp")
    require_covered(model, tokens, other_tokens, how, *COVERED_NEURONS[name])
    require_covered_at_positions(model, tokens, COVERED_NEURONS[name], name in REACHES_LATER)


# Names that do not cover each other: each against a forward pass in plain loops


def slow(model, tokens, **changes):
    return torch.stack([forward(model, row, **changes)[0] for row in tokens])


def slow_paths(model, tokens, changes, writer, cut_for_writer, reader, kind):
    """Every row with `changes`, and with a writer that `reader` finds as `cut_for_writer` leaves it."""
    logits = []
    for row in tokens:
        cut = [*changes.get("cut", ()), *cut_for_writer]
        other = forward(model, row, cut=cut, gone=changes.get("gone", ()))[1][writer]
        instead = {(writer, reader, kind): other}
        logits.append(forward(model, row, **changes, instead=instead)[0])
    return torch.stack(logits)


def test_two_paths_through_one_writer(tokens):
    model = make("native-mlp")
    found = run(model, tokens, without=["embed->L0H1->L1H3.K", "pos->L0H1.V->L1H3.K"])
    cut = [("embed", "L0H1", kind) for kind in "QKV"] + [("pos", "L0H1", "V")]
    close(found.logits, slow_paths(model, tokens, {}, "L0H1", cut, "L1H3", "K"))


def test_path_and_part(tokens):
    model = make("native-mlp")
    found = run(model, tokens, without=["L0H0", "embed->L0 MLP->L1H3.K"])
    cut = [("embed", "L0 MLP", "")]
    expected = slow_paths(model, tokens, {"gone": ["L0H0"]}, "L0 MLP", cut, "L1H3", "K")
    close(found.logits, expected)


def test_path_and_wire_into_its_writer(tokens):
    """The writer misses both: the wire for everyone, the path for one reader."""
    model = make("native-mlp")
    found = run(model, tokens, without=["pos->L0H1.K", "embed->L0H1.V->L1H3.K"])
    changes = {"cut": [("pos", "L0H1", "K")]}
    cut = [("embed", "L0H1", "V")]
    close(found.logits, slow_paths(model, tokens, changes, "L0H1", cut, "L1H3", "K"))


def test_path_and_another_wire_into_its_reader(tokens):
    model = make("native-mlp")
    found = run(model, tokens, without=["L0H2->L1H3.K", "embed->L0H1.V->L1H3.K"])
    changes = {"cut": [("L0H2", "L1H3", "K")]}
    cut = [("embed", "L0H1", "V")]
    close(found.logits, slow_paths(model, tokens, changes, "L0H1", cut, "L1H3", "K"))


def test_parts_and_wires_that_do_not_touch(tokens):
    model = make("native-mlp")
    wires = [("L0H1", "L1H3", "K"), ("L0H2", "L1H3", "K"), ("L0H2", "L1 MLP", "")]
    names = ["L0H0", "L1H1", "L0H1->L1H3.K", "L0H2->L1H3.K", "L0H2->L1 MLP"]
    expected = slow(model, tokens, cut=wires, gone=["L0H0", "L1H1"])
    close(run(model, tokens, without=names).logits, expected)


def test_a_long_path(tokens):
    """Each part of a chain is computed with the one before it as the path leaves it."""
    model = make("native-mlp")
    found = run(model, tokens, without="embed->L0H1->L0 MLP->L1H3.K")
    logits = []
    for row in tokens:
        head = forward(model, row, cut=[("embed", "L0H1", kind) for kind in "QKV"])[1]["L0H1"]
        mlp = forward(model, row, instead={("L0H1", "L0 MLP", ""): head})[1]["L0 MLP"]
        logits.append(forward(model, row, instead={("L0 MLP", "L1H3", "K"): mlp})[0])
    close(found.logits, torch.stack(logits))


def test_inputs_of_a_neuron_and_of_one_of_its_heads(tokens):
    """Head 1 of the neuron misses both wires, head 0 only the neuron's."""
    model = converted("native-mlp")
    found = run(model, tokens, without=["L0H0->L1N3.Q", "L0H1->L1N3.1.Q"])
    base = run(model, tokens)
    neurons = converted_neurons(model, 1)
    norm = model.blocks[1].ln2.original_component
    stream = base.cache["blocks.1.ln2.hook_in"]
    missing = [base.part("L0H0"), base.part("L0H0") + base.part("L0H1")]
    value = (norm(stream) @ neurons.W_in + neurons.b_in)[..., 3]
    gathered = 0
    for term in range(2):
        query = (norm(stream - missing[term]) @ neurons.W_in + neurons.b_in)[..., 3]
        b, c, a, d = neurons.terms.terms[term]
        gathered = gathered + torch.sigmoid(b * query + c) * (a * value + d)
    close(found.part("L1N3"), gathered[..., None] * neurons.W_out[3])


def test_wires_of_one_neuron_and_of_another(tokens):
    model = converted("native-mlp")
    both = run(model, tokens, without=["L0N3->L1H3.K", "L0N4.1->L1H3.K"])
    base = run(model, tokens)
    stream = base.cache["blocks.1.hook_in"] - base.part("L0N3") - base.part("L0N4.1")
    key = model.blocks[1].attn.k.original_component(model.blocks[1].ln1.original_component(stream))
    scores = torch.einsum("bqd,bkd->bqk", base.cache["blocks.1.attn.hook_q"][:, :, 3], key.view(*key.shape[:2], 4, 5)[:, :, 3])  # fmt: skip
    mask = torch.ones(11, 11, dtype=torch.bool).triu(1)
    pattern = (scores / 5**0.5).masked_fill(mask, -torch.inf).softmax(-1)
    z = pattern @ base.cache["blocks.1.attn.hook_v"][:, :, 3]
    close(both.cache["blocks.1.attn.hook_z"][:, :, 3], z)


def test_path_and_wire_into_the_same_input_of_its_writer(tokens):
    model = make("native-mlp")
    found = run(model, tokens, without=["pos->L0H1.V", "embed->L0H1.V->L1H3.K"])
    changes = {"cut": [("pos", "L0H1", "V")]}
    cut = [("embed", "L0H1", "V")]
    close(found.logits, slow_paths(model, tokens, changes, "L0H1", cut, "L1H3", "K"))


def test_two_paths_of_which_one_goes_on(tokens):
    """The MLP finds L0H1 without the embedding; for L1H3 it finds it without positions, too."""
    model = make("native-mlp")
    names = ["embed->L0H1.V->L0 MLP", "pos->L0H1.V->L0 MLP->L1H3.K"]
    found = run(model, tokens, without=names)
    logits = []
    for row in tokens:
        cuts = [("embed", "L0H1", "V")], [("embed", "L0H1", "V"), ("pos", "L0H1", "V")]
        head, head_of_path = (forward(model, row, cut=cut)[1]["L0H1"] for cut in cuts)
        mlp = forward(model, row, instead={("L0H1", "L0 MLP", ""): head_of_path})[1]["L0 MLP"]
        instead = {("L0H1", "L0 MLP", ""): head, ("L0 MLP", "L1H3", "K"): mlp}
        logits.append(forward(model, row, instead=instead)[0])
    close(found.logits, torch.stack(logits))
