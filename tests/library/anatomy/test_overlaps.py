"""A name that another name covers is not subtracted a second time."""

import pytest
import torch

import circuitkit as ck

COVERED = {
    "an input and a wire into it": ("L1H3.K", ["L1H3.K", "L0H1->L1H3.K"]),
    "an input and a path into it": ("L1H3.K", ["L1H3.K", "embed->L0H1->L1H3.K"]),
    "a wire and a path that ends in it": (
        "L0H1->L1H3.K",
        ["L0H1->L1H3.K", "embed->L0H1->L1H3.K"],
    ),
    "a wire into all inputs and into one": ("L0H1->L1H3", ["L0H1->L1H3", "L0H1->L1H3.V"]),
}


@pytest.fixture(scope="module")
def anatomy():
    return ck.anatomy(ck.load_model("two-layer").to(torch.float64))


@pytest.mark.parametrize("case", COVERED)
def test_a_covered_name_changes_no_logit(anatomy, case):
    wide, names = COVERED[case]
    tokens = torch.tensor([[5, 17, 300, 5, 17, 44]])
    expected = anatomy.run(tokens, without=wide).logits
    assert not torch.allclose(expected, anatomy.run(tokens).logits)
    for order in (names, names[::-1]):
        torch.testing.assert_close(anatomy.run(tokens, without=order).logits, expected)
