"""Hand-built induction heads do what their docstrings prove."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit_book.induction_by_hand import build_induction_model, head_of


def patterns(model, tokens):
    cache = model.run_with_cache(tokens)[1]
    return [cache[f"blocks.{layer}.attn.hook_pattern"][:, 0] for layer in (0, 1)]


@pytest.mark.parametrize("method", ["k-composition", "pointer"])
def test_the_token_after_the_earlier_copy_is_predicted(method):
    model = build_induction_model(5, 9, method=method)
    tokens = torch.tensor([[3, 1, 4, 0, 3, 1]])
    first, second = patterns(model, tokens)
    assert second[0, 4, 1] == pytest.approx(1, abs=1e-6)
    assert second[0, 5, 2] == pytest.approx(1, abs=1e-6)
    where = {"k-composition": 3, "pointer": 0}[method]
    assert first[0, 4, where] == pytest.approx(1, abs=1e-6)
    logits = model(tokens)[0]
    assert logits[4] == pytest.approx([0, 20, 0, 0, 0], abs=1e-4)
    assert logits[5] == pytest.approx([0, 0, 0, 0, 20], abs=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    n_tokens=st.sampled_from([2, 3, 7]),
    n_ctx=st.sampled_from([5, 11]),
    method=st.sampled_from(["k-composition", "pointer"]),
    sharpness=st.sampled_from([6.0, 12.0, 40.0]),
    seed=st.integers(0, 99),
)
def test_attention_reaches_the_stated_bound(n_tokens, n_ctx, method, sharpness, seed):
    """The stated bound, in float64, on rows where tokens come up to many times."""
    model = build_induction_model(n_tokens, n_ctx, method=method, sharpness=sharpness).double()
    row = torch.randint(
        0, n_tokens, (n_ctx,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    second = patterns(model, torch.tensor([row]))[1][0]
    noise = n_ctx * math.exp(-sharpness)
    for dst in range(n_ctx):
        earlier = [p for p in range(dst) if row[p] == row[dst]]
        if earlier:
            share = 1.0 if method == "k-composition" else 1 / len(earlier)
            bound = 1 - n_ctx * math.exp(-sharpness * (share - 2 * noise))
            assert sum(float(second[dst, p + 1]) for p in earlier) >= bound - 1e-12


def test_the_first_token_does_not_match_itself():
    """L0H0 can only look at itself on position 0; without the correction, L1H0 would answer 3 with 3."""
    model = build_induction_model(4, 6)
    second = patterns(model, torch.tensor([[3, 1, 3]]))[1][0]
    assert second[2] == pytest.approx([0, 1, 0], abs=1e-6)


def test_a_head_compares_and_copies_its_directions():
    a, b = torch.eye(5).split([2, 3])
    compares = [(2 * a[:1], b[1:2]), (5 * a[1:], b[2:])]
    head = head_of("x", 4, compares, (b[1:2], a[:1] + 3 * a[1:]), d_head=3)
    assert head.layers == (4,)
    expected = torch.zeros(5, 5)
    expected[0, 3], expected[1, 4] = 2, 5
    assert torch.allclose(head.QK.AB[0] / head.scale, expected)
    expected = torch.zeros(5, 5)
    expected[3, :2] = torch.tensor([1.0, 3.0])
    assert torch.allclose(head.OV.AB[0], expected)


@pytest.mark.parametrize(
    ("build", "arguments", "words"),
    [
        (build_induction_model, {"n_tokens": 1, "n_ctx": 8}, "n_tokens=1 is too small"),
        (build_induction_model, {"n_tokens": 4, "n_ctx": 1}, "n_ctx=1 is too small"),
        (build_induction_model, {"n_tokens": 4, "n_ctx": 8, "sharpness": 2}, "Choose 5.1 to 1000"),
        (
            build_induction_model,
            {"n_tokens": 4, "n_ctx": 8, "sharpness": 1e4},
            "Choose 5.1 to 1000",
        ),
    ],
)
def test_models_that_would_not_work_are_refused(build, arguments, words):
    with pytest.raises(ValueError, match=words):
        build(**arguments)
