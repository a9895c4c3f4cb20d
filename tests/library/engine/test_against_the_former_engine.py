"""Logits and parts with every kind of cut, against the forward loop that the engine replaces."""

import pytest
import torch

import circuitkit as ck
from circuitkit.ablation import run
from circuitkit.parts import part_names
from tests.support import zoo
from tests.support.zoo import converted, make

FEW = ["native-mlp", "gpt2", "llama", "bert"]  # one each: native, biases, grouped queries, closing
NATIVE = ["native", "native-rotary", "native-encoder"]
MANY = [name for name in [*zoo.SHAPES, *NATIVE] if name not in FEW]
FAMILIES = FEW + [pytest.param(name, marks=pytest.mark.weekly) for name in MANY]
CLOSED = ["bert"]  # a path keeps the divisors of closing norms, the former loop renewed them
SETS = [
    ["L0H1"],
    ["embed"],
    ["L0H1->L1H3.Q"],
    ["L0H1->L1H3.K"],
    ["L0H1->L1H3.V"],
    ["L0H1->L1H3"],
    ["L1H3.K"],
    ["L1H2.V", "L1H2.Q"],
    ["embed->L1H2.K"],
    ["L0H1->unembed"],
    ["unembed"],
    ["L0H0->L1H3.K", "L0H1->L1H3.K", "L0H1->L1H2.K", "embed->L0H0.Q"],
]
PATHS = [["embed->L0H1->L1H3.K"], ["embed->L0H1.V->L1H3->unembed"]]
POSITIONS = [["pos"], ["pos->L1H0.Q"]]
BIASES = [["L0 bias"], ["L0 bias->L1H3.K"]]
MLPS = [["L0 MLP"], ["L0 MLP->L1H3.K"], ["L0H1->L1 MLP"], ["L0H1->L1 MLP", "L1H0->L1 MLP"]]
MLP_PATHS = [["embed->L0 MLP->L1H3.V"], ["L0H1->L1 MLP->unembed"]]
NEURONS = [
    ["L0N5"],
    ["L1N5.1"],
    ["L0N3->L1H3.K"],
    ["L0H1->L1N5.V"],
    ["L0H1->L1N5.1.Q"],
    ["L1N5.Q"],
    ["L0N4.0->L1N5.1"],
    ["embed->L0N5->L1H2.K"],
]


def sets_of(model, name):
    parts = part_names(model)
    sets = [*SETS]
    if name not in CLOSED:
        sets += PATHS
    if "pos" in parts:
        sets += POSITIONS
    if "L0 bias" in parts:
        sets += BIASES
    if "mlp" in model.blocks[0]._modules:
        sets += MLPS
        sets += [] if name in CLOSED else MLP_PATHS
    if model.cfg.parallel_attn_mlp:
        sets.remove(["L0H1->L1 MLP", "L1H0->L1 MLP"])  # heads and MLP of a layer run side by side
    return sets


def tolerance_of(name):
    """transformers computes norms or rotations of some families in float32."""
    # 1e-5 of logits of up to about 10
    return 1e-4 if name in zoo.SHAPES and zoo.SHAPES[name][3] > 1e-12 else 1e-11


def close(a, b, tolerance):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def compare(model, tokens, other_tokens, sets, tolerance):
    oracle = ck.anatomy(model)
    other = oracle.run(other_tokens)
    fills = [
        ({}, {}),
        ({"fill": "mean"}, {"fill": "mean"}),
        ({"fill": "resample"}, {"fill": lambda x: x.roll(1, 0)}),
        ({"patch": run(model, other_tokens)}, {"fill": lambda x: x, "source": other}),
        ({"at": [2, 5]}, {"at": [2, 5]}),
    ]
    for without in sets:
        for new, old in fills:
            expected = oracle.run(tokens, without=without, **old).logits
            close(run(model, tokens, without=without, **new).logits, expected, tolerance)


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_and_logits(name, tokens):
    model = make(name)
    expected = ck.anatomy(model).run(tokens)
    found = run(model, tokens)
    assert part_names(model) == expected.model.parts()
    close(found.logits, model(tokens), 0)
    for part in part_names(model):
        close(found.part(part), expected.part(part), tolerance_of(name))
    last = found.cache[f"blocks.{model.cfg.n_layers - 1}.hook_out"]
    close(sum(found.part(part) for part in part_names(model)), last, tolerance_of(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_cuts(name, tokens, other_tokens):
    model = make(name)
    compare(model, tokens, other_tokens, sets_of(model, name), tolerance_of(name))


@pytest.mark.parametrize("name", ["native-mlp", pytest.param("gated", marks=pytest.mark.weekly)])
def test_cuts_of_converted_models(name, tokens, other_tokens):
    model = converted(name)
    compare(model, tokens, other_tokens, sets_of(model, name) + NEURONS, 1e-11)


def test_paths_through_closing_norms_keep_their_divisors(tokens):
    """The alternative of L0H1 enters L1H3 as a share of the stream behind frozen norms."""
    model = make("bert")
    oracle = ck.anatomy(model)
    base, cut = oracle.run(tokens), oracle.run(tokens, without="embed->L0H1")
    place = oracle.find("L0H1")
    z = cut.z(place.sublayer)[:, 1] - base.z(place.sublayer)[:, 1]
    step = oracle.find("L1H3").step
    moved = base._left(place.sublayer, z @ place.sublayer.inside.W_O[1], place.step, step)

    def with_alternative(share):
        return share + moved

    wire = oracle.run(tokens, without="L0H1->L1H3.K", fill=with_alternative)
    found = run(model, tokens, without="embed->L0H1->L1H3.K")
    close(found.logits, wire.logits, 1e-11)


SUMS = [*FAMILIES, "native-mlp, converted", "gated, converted"]


@pytest.mark.parametrize("name", SUMS)
def test_parts_add_up_to_the_last_stream_of_a_run_with_cuts(name, tokens):
    """The check of sums is here and not in each run, where it would compute every part's output."""
    family, _, is_converted = name.partition(", ")
    model = converted(family) if is_converted else make(family)
    names = ["L0H0", "L0H1->L1H3.K", "embed->L0H2.V->L1H1"]
    names += ["L0N5", "L0N3->L1N5.Q"] if is_converted else []
    for how in ({}, {"fill": "mean"}, {"at": [2, 5]}):
        cut = run(model, tokens, without=names, **how)
        last = cut.cache[f"blocks.{model.cfg.n_layers - 1}.hook_out"]
        close(sum(cut.part(part) for part in part_names(model)), last, tolerance_of(family))
