"""Every public function with every tensor on a pretend device: what it makes, it makes there (`tests/support/elsewhere.py`)."""

import fuzz
import pytest
import torch
from elsewhere import Clash, elsewhere, moved

ROOMS = ("heads", "anatomy", "residual", "circuits", "induction", "conversion", "superposition")
TARGETS = {target.name: target for room in ROOMS for target in fuzz.targets(room)}
del TARGETS["train_gated"]  # it moves a new module, whose parameters can hold a real device's numbers only


@pytest.fixture(scope="module", autouse=True)
def offline():
    with fuzz.offline():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_tool_makes_it_makes_where_its_inputs_are(name):
    given = moved(fuzz.right(TARGETS[name]))
    with elsewhere():
        what, text = fuzz.attempt(TARGETS[name], given)
    assert what == "result", text


def test_a_clash_is_found():
    there = moved(torch.ones(3))
    with elsewhere():
        assert (there + there.new_ones(3) * 2.0).sum().item() == 9.0
        assert torch.equal(there[torch.tensor([1])].cpu(), torch.ones(1))
        with pytest.raises(Clash, match=r"add.*\(3,\)"):
            there + torch.ones(3)
