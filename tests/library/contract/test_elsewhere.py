"""Every public function with every tensor on a pretend device: what it makes, it makes there (`tests/support/elsewhere.py`).

The same on a real one: `python -m pytest tests -m cuda`, which is skipped where there is none.
"""

import pytest
import torch

from tests.support import fuzz
from tests.support.elsewhere import Clash, elsewhere, moved

TARGETS = {
    name: target
    for name, target in fuzz.targets().items()
    if not target.call.__module__.startswith(
        (
            "circuitkit.models",
            "circuitkit_book.exercises",
            "circuitkit_book.claims",
            "circuitkit.figures",
        )
    )
}
pytestmark = pytest.mark.weekly


@pytest.fixture(scope="module", autouse=True)
def offline():
    with fuzz.offline():
        yield


def given(name):
    """Arguments that give a result on the processor."""
    try:
        found = fuzz.right(TARGETS[name])
    except fuzz.NotDerived as missing:
        pytest.skip(f"no right value follows from {missing}")
    if fuzz.attempt(TARGETS[name], found)[0] != "result":
        pytest.skip("the arguments that follow from the annotations do not go together")
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_new_tensors_stay_on_the_device_of_the_input(name):
    arguments = moved(given(name))
    with elsewhere():
        what, text = fuzz.attempt(TARGETS[name], arguments)
    assert what == "result", text


@pytest.mark.parametrize(
    "name", sorted({*TARGETS} - {"Heads.to", "ToyModel.to", "random_rotation"})
)  # which are asked for float64 here
def test_a_device_without_float64_gets_no_float64(name):
    arguments = moved(given(name), coarse=True)
    with elsewhere(coarse=True):
        what, text = fuzz.attempt(TARGETS[name], arguments)
    assert what == "result", text


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="way out: a machine with a GPU")
@pytest.mark.parametrize("name", TARGETS)
def test_on_a_gpu(name):
    what, text = fuzz.attempt(TARGETS[name], moved(given(name), "cuda"))
    assert what == "result", text


def test_a_clash_is_found():
    there = moved(torch.ones(3))
    with elsewhere():
        assert (there + there.new_ones(3) * 2.0).sum().item() == 9.0
        assert torch.equal(there[torch.tensor([1])].cpu(), torch.ones(1))
        with pytest.raises(Clash, match=r"add.*\(3,\)"):
            there + torch.ones(3)
    with elsewhere(coarse=True), pytest.raises(Clash, match="_to_copy.*float64"):
        there.double()


def asked(work):
    """How often the work waits for the device."""
    with elsewhere() as rules:
        work()
    return rules.asked


def test_a_wait_is_counted():
    there = moved(torch.ones(3))
    assert asked(lambda: [there.sum() for _ in range(5)]) == 0
    assert asked(lambda: [float(there.sum()) for _ in range(5)]) == 5
    assert asked(lambda: there.nonzero()) == 1
