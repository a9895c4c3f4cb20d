"""What `Heads` computes: by hand, against loops, and by law."""

import dataclasses
import math
import re
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit import Heads, stack
from circuitkit.heads import Mask, allowed_pairs

TENSORS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")


def close(a, b):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=1e-12, rtol=1e-12)


def same(a, b):
    assert (a.names, a.layers, a.scale, a.mask, a.positions) == (
        b.names,
        b.layers,
        b.scale,
        b.mask,
        b.positions,
    )
    for name in TENSORS:
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        assert one is None or torch.equal(one, other), name


def stream(n_pos, d_model, seed=1, *batch):
    return torch.randn(
        *batch, n_pos, d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def test_by_hand():
    # d_head is 4, so scores are halved: the second row scores (0, 2 ln 3 / 2) and its softmax is (1/4, 3/4).
    W_Q, W_K, W_V, W_O = torch.zeros(4, 1, 2, 4, dtype=torch.float64).unbind(0)
    W_O = W_O.transpose(1, 2).clone()
    W_Q[0, 0, 0] = 1.0  # the query is the first coordinate
    W_K[0, 1, 0] = 1.0  # the key is the second
    W_V[0, 0, 3] = 1.0  # the value is the first, in another dimension of the head
    W_O[0, 3, 1] = 10.0  # written, ten times, to the second
    head = Heads(("L0H0",), W_Q, W_K, W_V, W_O)
    x = torch.tensor([[1.0, 0.0], [1.0, 2 * math.log(3)]], dtype=torch.float64)
    assert head.scale == 2.0
    close(head.scores(x), [[[0.0, math.log(3)], [0.0, math.log(3)]]])
    close(head.pattern(x), [[[1.0, 0.0], [0.25, 0.75]]])
    close(head.results(x), [[[0.0, 10.0], [0.0, 10.0]]])
    x[0, 0] = 3.0
    close(head.results(x), [[[0.0, 30.0], [0.0, 10 * (0.25 * 3 + 0.75 * 1)]]])
    close(
        head.QK.AB, [[[0.0, 1.0], [0.0, 0.0]]]
    )  # the row reads the query's coordinate, the column the key's
    close(head.OV.AB, [[[0.0, 10.0], [0.0, 0.0]]])


def test_masks_by_hand():
    yes, no = True, False
    assert allowed_pairs("full", 3).tolist() == [[yes] * 3] * 3
    assert allowed_pairs("causal", 3).tolist() == [[yes, no, no], [yes, yes, no], [yes, yes, yes]]
    assert allowed_pairs("self_or_first", 3).tolist() == [
        [yes, no, no],
        [yes, yes, no],
        [yes, no, yes],
    ]


def test_unknown_mask():
    with pytest.raises(
        ValueError, match=r"mask='diagonal'; expected one of \['causal', 'full', 'self_or_first'\]"
    ):
        allowed_pairs("diagonal", 3)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.permutations([1, 2, 3, 5, 7]),
    bias=st.booleans(),
    mask=st.sampled_from(get_args(Mask)),
    scale=st.sampled_from([None, 1.0, 3.5]),
    seed=st.integers(0, 99),
)
def test_against_loops(draw, slow, sizes, bias, mask, scale, seed):
    n, d_model, d_head, n_pos, batch = sizes
    stack_ = draw(n, d_model, d_head, seed=seed, bias=bias, mask=mask, scale=scale)
    x = stream(n_pos, d_model, seed, batch)
    scores, pattern, results = stack_.scores(x), stack_.pattern(x), stack_.results(x)
    assert scores.shape == pattern.shape == (batch, n, n_pos, n_pos)
    assert results.shape == (batch, n, n_pos, d_model)
    for row in range(min(batch, 2)):
        for at, head in enumerate(stack_):
            for fast, expected in zip((scores, pattern, results), slow(head, x[row]), strict=True):
                close(fast[row, at], expected)
    assert stack_.scale == (math.sqrt(d_head) if scale is None else scale)


@settings(max_examples=15, deadline=None)
@given(sizes=st.permutations([2, 3, 5, 7]), seed=st.integers(0, 99))
def test_qk_and_ov_are_the_circuits(draw, sizes, seed):
    """Row vectors: x_dst QK x_src^T is the score times the scale, and x OV is what is moved."""
    n, d_model, d_head, n_pos = sizes
    heads, x = draw(n, d_model, d_head, seed=seed, bias=False), stream(n_pos, d_model, seed)
    assert heads.QK.AB.shape == heads.OV.AB.shape == (n, d_model, d_model)
    assert heads.QK.A.shape == (n, d_model, d_head)  # kept as factors
    scores, moved = (
        heads.scores(x),
        heads.results(x, torch.eye(n_pos, dtype=x.dtype).expand(n, -1, -1)),
    )
    for h in range(n):
        for i in range(n_pos):
            close(moved[h, i], x[i] @ heads.OV.AB[h])
            for j in range(n_pos):
                close(scores[h, i, j], x[i] @ heads.QK.AB[h] @ x[j] / math.sqrt(d_head))


def test_a_given_pattern_is_used_as_it_is(draw):
    heads, x = draw(3, 7, 2), stream(5, 7)
    close(heads.results(x, heads.pattern(x)), heads.results(x))
    frozen = torch.rand(3, 5, 5, dtype=torch.float64)
    values = torch.stack([x @ heads.W_V[h] + heads.b_V[h] for h in range(3)])
    close(
        heads.results(x, frozen),
        torch.stack([frozen[h] @ values[h] @ heads.W_O[h] for h in range(3)]),
    )


def test_pattern_rows_are_distributions_and_causal(draw):
    heads, x = draw(3, 7, 2), stream(11, 7)
    pattern = heads.pattern(x)
    close(pattern.sum(-1), torch.ones(3, 11))
    assert (pattern >= 0).all()
    assert (pattern.triu(1) == 0).all()


@settings(max_examples=15, deadline=None)
@given(cut=st.integers(0, 9), seed=st.integers(0, 99))
def test_causality(draw, cut, seed):
    """Nothing before a position changes when it and what follows are replaced."""
    heads, x = draw(3, 7, 2, seed=seed), stream(10, 7, seed)
    other = torch.cat([x[:cut], stream(10 - cut, 7, seed + 1)])
    assert torch.equal(heads.pattern(x)[:, :cut], heads.pattern(other)[:, :cut])
    close(heads.results(x)[:, :cut], heads.results(other)[:, :cut])


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(5)), seed=st.integers(0, 99))
def test_permuting_the_positions_of_a_full_head(draw, order, seed):
    heads, x = draw(3, 7, 2, seed=seed, mask="full"), stream(5, 7, seed)
    close(heads.results(x[list(order)]), heads.results(x)[:, list(order)])


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(5)), seed=st.integers(0, 99))
def test_permuting_heads(draw, order, seed):
    heads, x = draw(5, 7, 2, seed=seed), stream(3, 7, seed)
    moved = heads[[f"L0H{i}" for i in order]]
    assert moved.names == tuple(f"L0H{i}" for i in order)
    close(moved.pattern(x), heads.pattern(x)[list(order)])
    close(moved.results(x), heads.results(x)[list(order)])
    same(moved[list(heads.names)], heads)


def test_rotating_the_stream(draw):
    """Readers R^T W and writers W R: the pattern stays, the results turn with the stream."""
    heads, x = draw(3, 7, 2), stream(5, 7)
    R = torch.linalg.qr(stream(7, 7, 9))[0]
    turned = dataclasses.replace(
        heads, W_Q=R.T @ heads.W_Q, W_K=R.T @ heads.W_K, W_V=R.T @ heads.W_V, W_O=heads.W_O @ R
    )
    close(turned.pattern(x @ R), heads.pattern(x))
    close(turned.results(x @ R), heads.results(x) @ R)


def test_names_lists_indices_and_slices(draw):
    heads = stack(draw(3, 7, 2, layer=0), draw(3, 7, 2, layer=1, seed=1))
    assert len(heads) == 6
    assert heads.names == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")
    one = heads["L1H0"]
    assert isinstance(one, Heads)
    assert (len(one), one.names, one.layers) == (1, ("L1H0",), (1,))
    assert torch.equal(one.W_Q, heads.W_Q[3:4])
    assert torch.equal(one.b_V, heads.b_V[3:4])
    same(heads[3], one)
    same(heads[-3], one)
    same(heads[["L1H0"]], one)
    same(heads[3:4], one)
    same(heads[("L1H2", 0)], heads[[5, 0]])
    assert heads[["L1H2", "L0H1"]].layers == (1, 0)
    assert heads[::2].names == ("L0H0", "L0H2", "L1H1")
    assert len(heads[[]]) == 0
    assert heads.index("L1H1") == 4
    assert heads.index(-1) == 5
    assert [head.names for head in heads] == [(name,) for name in heads.names]
    assert repr(heads) == (
        "Heads([L0H0, L0H1, L0H2, L1H0, L1H1, L1H2], n=6, d_model=7, d_head=2, mask='causal')"
    )


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(0, 5))
def test_stack_undoes_slicing(draw, cut):
    heads = draw(5, 7, 2, scale=1.5, mask="full")
    same(stack(heads[:cut], heads[cut:]), heads)
    same(stack(*heads), heads)
    same(stack(heads), heads)


def test_stack_fills_absent_biases_with_zeros(draw):
    plain, biased, x = draw(2, 7, 3, bias=False, prefix="a"), draw(3, 7, 3, seed=1), stream(5, 7)
    both = stack(plain, biased)
    assert both.b_Q.shape == (5, 3)
    assert not both.b_Q[:2].any()
    close(both.results(x), torch.cat([plain.results(x), biased.results(x)]))
    assert stack(plain, draw(1, 7, 3, bias=False, seed=2)).b_K is None


def test_to_moves_every_tensor(draw):
    moved = draw(2, 5, 3).to(torch.float32)
    assert {getattr(moved, name).dtype for name in TENSORS} == {torch.float32}
    assert moved.names == ("L0H0", "L0H1")


def test_frozen(draw):
    with pytest.raises(dataclasses.FrozenInstanceError):
        draw(2, 5, 3).mask = "full"


def test_an_unknown_name_lists_the_names(draw):
    with pytest.raises(
        ValueError, match=r"no head is called 'L9H9'; the heads are: L0H0, L0H1, L0H2$"
    ):
        draw(3, 5, 2)["L9H9"]
    with pytest.raises(
        ValueError, match=r"no head is called 'L9H9'; .*, L0H23, \.\.\. \(30 in all\)$"
    ):
        draw(30, 5, 2)[["L0H1", "L9H9"]]


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_out_of_range(draw, index):
    with pytest.raises(ValueError, match=f"head index {index} is out of range for 3 heads"):
        draw(3, 5, 2)[index]


@pytest.mark.usefixtures("as_a_reader")
def test_heads_that_do_not_fit_list_every_problem(draw):
    good = draw(3, 7, 2)
    with pytest.raises(ValueError, match="Heads got W_V of shape") as caught:
        dataclasses.replace(
            good,
            names=("A", "B", "A"),
            W_K=good.W_K[:2],
            W_O=good.W_O.transpose(1, 2),
            b_V=good.b_V[:, :1],
            layers=(0, 1),
            mask="diagonal",
            positions="learned",
        )
    for line in (
        "W_V of shape (3, 7, 2), torch.float64; expected a torch tensor of floating-point numbers [group, d_model, d_head] with "
        "group=2, d_model=7, d_head=2",
        "W_O of shape (3, 7, 2), torch.float64; expected a torch tensor of floating-point numbers [head, d_head, d_model]",
        "b_K of shape (3, 2), torch.float64; expected a torch tensor of floating-point numbers [group, d_head]",
        "b_V of shape (3, 1), torch.float64; expected a torch tensor of floating-point numbers [group, d_head]",
        "mask='diagonal'; expected one of ['causal', 'full', 'self_or_first']",
        "positions='learned'; expected one of ['absolute', 'rotary', 'other']",
    ):
        assert f"Heads got {line}" in str(caught.value)
    assert str(caught.value).count("\n") == 5
    with pytest.raises(
        ValueError, match=r"names=\('A', 'B', 'A'\).*unique(.|\n)*layers=\(0, 1\).*3 entries"
    ):
        dataclasses.replace(good, names=("A", "B", "A"), layers=(0, 1))


@pytest.mark.usefixtures("as_a_reader")
def test_too_few_axes_do_not_hide_the_other_problems(draw):
    good = draw(1, 7, 2)
    with pytest.raises(ValueError, match="Heads got W_Q") as caught:
        dataclasses.replace(good, W_Q=good.W_Q[0], mask="diagonal", layers=(0, 1))
    assert (
        "W_Q of shape (7, 2), torch.float64; expected a torch tensor of floating-point numbers [head, d_model"
        in str(caught.value)
    )
    assert "One row is W_Q[None]" in str(caught.value)
    assert "mask='diagonal'" in str(caught.value)


def test_the_same_head_twice(draw):
    with pytest.raises(ValueError, match=r"names=\('L0H1', 'L0H1'\).*unique"):
        draw(3, 5, 2)[["L0H1", "L0H1"]]


def test_stack_refuses_what_differs(draw):
    with pytest.raises(ValueError, match="stack needs at least one Heads; got none"):
        stack()
    parts = draw(2, 7, 3), draw(2, 5, 3, prefix="b")
    with pytest.raises(
        ValueError, match=r"cannot stack heads whose d_model differ: \[7, 5\]; keep them apart"
    ):
        stack(*parts)
    for name, value, shown in (
        ("mask", "full", "'causal', 'full'"),
        ("scale", 1.0, "1.73.*, 1.0"),
        ("positions", "rotary", "'absolute', 'rotary'"),
    ):
        with pytest.raises(
            ValueError, match=rf"cannot stack heads whose {name} differ: \[{shown}\]"
        ):
            stack(parts[0], draw(2, 7, 3, prefix="b", **{name: value}))


@pytest.mark.parametrize(
    ("positions", "why"), [("rotary", "rotate queries and keys"), ("other", "do not score by QK")]
)
def test_scores_that_these_matrices_do_not_hold_are_refused(draw, positions, why):
    heads, x = draw(2, 5, 3, positions=positions), stream(4, 5)
    message = re.escape(
        f"(positions={positions!r}); expected positions='absolute'. Read their pattern from the model's"
    )
    for call in (heads.scores, heads.pattern, heads.results):
        with pytest.raises(ValueError, match=f"these heads {why}.*{message}.*run_with_cache"):
            call(x)
    assert heads.results(x, torch.ones(2, 4, 4, dtype=x.dtype)).shape == (
        2,
        4,
        5,
    )  # a pattern from elsewhere is fine
