"""Sets of names that pass the same parts, against a recursion over parts without code of the library."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import circuitkit as ck
from circuitkit.ablation import run
from tests.support.slow_cuts import SlowModel, SlowRun
from tests.support.zoo import make

ROWS, OTHERS = torch.randint(50, (2, 3, 8), generator=torch.Generator().manual_seed(4))


@functools.cache
def slow(kind):
    return SlowModel(make(kind), kind)


@st.composite
def paths(draw, model):
    """A wire or a path of up to four parts, with or without a letter at each head."""
    steps = sorted(set(model.step.values()))
    chosen = sorted(draw(st.sets(st.sampled_from(steps), min_size=2, max_size=4)))
    places = []
    for place, step in enumerate(chosen):
        alike = [p for p, s in model.step.items() if s == step]
        part = draw(st.sampled_from([p for p in alike if place == 0 or not p.endswith("bias")]))
        letters = ["", ".Q", ".K", ".V"] if place and "H" in part else [""]
        places.append(part + draw(st.sampled_from(letters)))
    return places


@st.composite
def sets_of_names(draw, model):
    """Some paths, and some of what they pass: their ends, their parts and their inputs."""
    names = []
    for path in draw(st.lists(paths(model), min_size=1, max_size=2)):
        ends = range(1, len(path) - 1)
        related = ["->".join([path[i].partition(".")[0], *path[i + 1 :]]) for i in ends]
        related += [p for p in path if p != "unembed"]
        names += ["->".join(path), *draw(st.lists(st.sampled_from(related), max_size=2))]
    return names


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_set_of_names_replaces_what_its_definition_says(kind, data):
    names = data.draw(sets_of_names(slow(kind)))
    how = data.draw(st.sampled_from(["zero", "mean", "resample", "patch"]))
    at = data.draw(st.none() | st.lists(st.integers(0, 7), min_size=1, max_size=2))
    source = {"zero": None, "patch": OTHERS}.get(how, ROWS)
    source = None if source is None else SlowRun(slow(kind), source)
    expected = SlowRun(slow(kind), ROWS, names, how, source, at).logits()
    more = {"patch": OTHERS} if how == "patch" else {"fill": how}
    found = run(make(kind), ROWS, without=names, at=at, **more).logits
    close = 1e-9 if kind == "gpt2" else 1e-4
    torch.testing.assert_close(found, expected, atol=close * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("path", "other", "change"),
    [
        ("embed->L0H1->L1H3.K", "L0H1->L1H3.K", 0.1278),
        ("embed->L0H1->L1H3.K", "L1H3.K", 0.1253),
        ("embed->L0H1->L1H3.K", "L0H1", 0.1552),
        ("L0H1->L1H3->unembed", "L1H3", 0.0827),
        ("L0H1->L1H3->unembed", "L1H3->unembed", 0.0827),
    ],
)
def test_a_path_acts_at_later_positions_than_what_it_passes(path, other, change):
    """Values of an own forward pass, on the shipped model with MLPs."""
    model = ck.load_model("two-layer-mlp")
    rows = torch.randint(1, 2000, (3, 9), generator=torch.Generator().manual_seed(0))
    both, alone = (run(model, rows, without=names, at=[3, 5]).logits for names in ([path, other], other))  # fmt: skip
    assert float((both - alone).abs().max()) == pytest.approx(change, abs=1e-4)


def test_nothing_is_left_to_divide():
    """Without the embedding, Gemma's layers write nothing."""
    model, names = make("gemma2"), ["L0H0->L0 MLP->L1H0", "embed->L0H0", "embed"]
    expected = SlowRun(slow("gemma2"), ROWS, names).logits()
    torch.testing.assert_close(run(model, ROWS, without=names).logits, expected)
