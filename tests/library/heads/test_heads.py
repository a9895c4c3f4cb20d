"""What `Heads` computes: by hand, against loops, and by law."""

import dataclasses
import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit import Heads, stack
from circuitkit.heads import Mask, Rotary, allowed_pairs, norm_divisor

TENSORS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")


def close(a, b, tolerance=1e-12):
    # 1e-12: float64, sums of at most a hundred terms of size one
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def same(a, b):
    for name in ("names", "layers", "scale", "mask", "positions"):
        assert getattr(a, name) == getattr(b, name), name
    for name in TENSORS:
        assert torch.equal(getattr(a, name), getattr(b, name)), name


def random(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotary(gain=1.0):
    angles = torch.tensor([1.0, 0.25], dtype=torch.float64)
    return Rotary(torch.tensor([[0, 2], [1, 3]]), angles, gain)


def test_by_hand():
    # d_head is 4, so scores are halved: the second row scores (0, 2 ln 3 / 2) and its softmax is
    # (1/4, 3/4)
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
    # the row of QK reads the query's coordinate, the column the key's
    close(head.QK.AB, [[[0.0, 1.0], [0.0, 0.0]]])
    close(head.OV.AB, [[[0.0, 10.0], [0.0, 0.0]]])


def test_masks_by_hand():
    yes, no = True, False
    assert allowed_pairs("full", 3).tolist() == [[yes] * 3] * 3
    assert allowed_pairs("causal", 3).tolist() == [[yes, no, no], [yes, yes, no], [yes, yes, yes]]
    expected = [[yes, no, no], [yes, yes, no], [yes, no, yes]]
    assert allowed_pairs("self_or_first", 3).tolist() == expected


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.permutations([1, 2, 3, 5]),
    bias=st.booleans(),
    mask=st.sampled_from(get_args(Mask)),
    scale=st.sampled_from([0.0, 3.5]),
    cap=st.sampled_from([None, 0.7]),
    window=st.sampled_from([None, 1, 2, 9]),
    seed=st.integers(0, 99),
)
def test_against_loops(draw, slow, sizes, bias, mask, scale, cap, window, seed):
    n, d_model, d_head, n_pos = sizes
    more = {"mask": mask, "scale": scale, "cap": cap, "window": window}
    heads = draw(n, d_model, d_head, seed=seed, bias=bias, **more)
    x = random(seed, 2, n_pos, d_model)
    scores, pattern, results = heads.scores(x), heads.pattern(x), heads.results(x)
    assert scores.shape == pattern.shape == (2, n, n_pos, n_pos)
    for row in range(2):
        expected = slow(heads, x[row])
        for value, reference in zip((scores, pattern, results), expected, strict=True):
            close(value[row], reference)
    assert heads.scale == (scale or math.sqrt(d_head))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), rotates=st.sampled_from([None, 1.0, 1.3]), has_norms=st.booleans())
def test_rotated_and_normalised_queries_and_keys_against_loops(
    draw, slow, seed, rotates, has_norms
):
    more = {}
    if has_norms:
        more |= {"gain_Q": random(seed + 20, 3, 6), "gain_K": random(seed + 21, 3, 6)}
        more |= {"norm_eps": 1e-2}
    if rotates is not None:
        more |= {"turn": rotary(rotates), "positions": "rotary"}
    heads, x = draw(3, 5, 6, seed=seed, **more), random(seed + 30, 5, 5)
    _, pattern, results = slow(heads, x)
    close(heads.pattern(x), pattern, 1e-11)
    close(heads.results(x), results, 1e-11)
    for row, head in enumerate(heads):
        close(head.pattern(x)[0], pattern[row], 1e-11)
    close(heads[::-1].pattern(x), pattern.flip(0), 1e-11)


def test_a_rotation_by_hand():
    x = torch.tensor([[1.0, 0.0, 2.0, 5.0, 9.0]], dtype=torch.float64).expand(3, 5)
    quarter = Rotary(torch.tensor([[0, 1]]), torch.tensor([math.pi / 2], dtype=torch.float64))
    close(quarter(x), [[1, 0, 2, 5, 9], [0, 1, 2, 5, 9], [-1, 0, 2, 5, 9]])
    close(quarter(x[:1], torch.tensor([3])), [[0, -1, 2, 5, 9]])
    doubled = dataclasses.replace(quarter, gain=2.0)
    close(doubled(x[:1]), [[2, 0, 2, 5, 9]])


def test_a_rotated_product_at_a_distance_is_the_score(draw):
    heads = draw(4, 5, 4, bias=False, turn=rotary(1.2), positions="rotary")
    x = random(7, 6, 5)
    scores = heads.scores(x) * heads.scale
    for dst, src in ((3, 3), (4, 1), (5, 4)):
        distance = torch.full((5,), dst - src)
        keys = heads.turn(heads.W_K, torch.zeros(5).long())
        product = heads.turn(heads.W_Q, distance) @ keys.mT
        close(x[dst] @ product @ x[src], scores[:, dst, src], 1e-11)


def test_a_norm_over_the_layer_by_hand(draw):
    """The mean square is taken over all heads together, and needs all of them."""
    heads = draw(2, 5, 2, norm_eps=0.0, norm_over=2)
    x = torch.tensor([[[1.0, 1.0]], [[3.0, 5.0]]])  # [head, pos, d_head]; the mean square is 9
    close(norm_divisor(heads, x), [[[3.0]]])
    with pytest.raises(ValueError, match="all 2 heads of a layer together, and these are 1"):
        heads[0].pattern(random(1, 4, 5))


@settings(max_examples=15, deadline=None)
@given(sizes=st.permutations([2, 3, 5, 7]), seed=st.integers(0, 99))
def test_qk_and_ov_are_the_circuits(draw, sizes, seed):
    """Row vectors: x_dst QK x_src^T is the score times the scale, and x OV is what is moved."""
    n, d_model, d_head, n_pos = sizes
    heads, x = draw(n, d_model, d_head, seed=seed, bias=False), random(seed, n_pos, d_model)
    assert heads.QK.A.shape == (n, d_model, d_head)  # kept as factors
    scores = heads.scores(x)
    moved = heads.results(x, torch.eye(n_pos, dtype=x.dtype).expand(n, -1, -1))
    for h in range(n):
        close(moved[h], x @ heads.OV.AB[h])
        close(scores[h], x @ heads.QK.AB[h] @ x.T / math.sqrt(d_head))


def test_a_given_pattern_is_used_as_it_is(draw):
    heads, x = draw(3, 7, 2), random(1, 5, 7)
    close(heads.results(x, heads.pattern(x)), heads.results(x))
    frozen = torch.rand(3, 5, 5, dtype=torch.float64)
    values = torch.stack([x @ heads.W_V[h] + heads.b_V[h] for h in range(3)])
    close(heads.results(x, frozen), frozen @ values @ heads.W_O)


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(5)), seed=st.integers(0, 99))
def test_permuting_heads_or_the_positions_of_a_full_head(draw, order, seed):
    heads, x = draw(5, 7, 2, seed=seed, mask="full"), random(seed, 5, 7)
    moved = heads[[f"L0H{i}" for i in order]]
    assert moved.names == tuple(f"L0H{i}" for i in order)
    close(moved.results(x), heads.results(x)[list(order)])
    same(moved[list(heads.names)], heads)
    close(heads.results(x[list(order)]), heads.results(x)[:, list(order)])


def test_names_lists_numbers_and_slices(draw):
    heads = stack(draw(3, 7, 2, layer=0), draw(3, 7, 2, layer=1, seed=1))
    assert heads.names == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")
    chosen = heads["L1H0"]
    assert isinstance(chosen, Heads)
    assert (len(chosen), chosen.names, chosen.layers) == (1, ("L1H0",), (1,))
    assert torch.equal(chosen.W_Q, heads.W_Q[3:4])
    assert torch.equal(chosen.b_V, heads.b_V[3:4])
    assert chosen.W_Q.data_ptr() == heads.W_Q[3].data_ptr()  # a view
    for key in (3, -3, ["L1H0"], slice(3, 4)):
        same(heads[key], chosen)
    same(heads[("L1H2", "L0H0")], heads[[5, 0]])
    assert heads[["L1H2", "L0H1"]].layers == (1, 0)
    assert heads[::2].names == ("L0H0", "L0H2", "L1H1")
    assert len(heads[[]]) == 0
    assert [head.names for head in heads] == [(name,) for name in heads.names]


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(0, 5))
def test_stack_undoes_slicing(draw, cut):
    heads = draw(5, 7, 2, scale=1.5, mask="full")
    same(stack(heads[:cut], heads[cut:]), heads)
    same(stack(*heads), heads)


def test_stack_fills_absent_biases_with_zeros(draw):
    plain, biased = draw(2, 7, 3, bias=False, prefix="a"), draw(3, 7, 3, seed=1)
    both, x = stack(plain, biased), random(1, 5, 7)
    assert not both.b_Q[:2].any()
    close(both.results(x), torch.cat([plain.results(x), biased.results(x)]))
    assert stack(plain, draw(1, 7, 3, bias=False, seed=2)).b_K is None


def test_stacks_join_norms_and_rotations(draw):
    more = {"norm_eps": 1e-6, "turn": rotary()}
    first = draw(2, 5, 4, gain_Q=random(1, 2, 4), **more)
    second = draw(3, 5, 4, layer=1, **more)  # no gain: 1
    both, x = stack(first, second), random(5, 6, 5)
    close(both.pattern(x), torch.cat([first.pattern(x), second.pattern(x)]), 1e-11)
    close(both.to(torch.float32).pattern(x.float()), both.pattern(x).float(), 1e-5)
    with pytest.raises(ValueError, match="differ in norm_eps"):
        stack(first, dataclasses.replace(second, norm_eps=None))
    over_layer = (draw(2, 5, 4, layer=layer, norm_eps=0.0, norm_over=2) for layer in (0, 1))
    with pytest.raises(ValueError, match="differ in the layer over which queries and keys"):
        stack(*over_layer)
    with pytest.raises(ValueError, match="differ in their rotation"):
        stack(first, dataclasses.replace(second, turn=rotary(2.0)))


def test_stack_refuses_what_differs(draw):
    with pytest.raises(TypeError, match="stack: missing a required argument: 'first'"):
        stack()
    heads = draw(2, 7, 3)
    with pytest.raises(ValueError, match=r"differ in d_model \(7, 5\) cannot be stacked"):
        stack(heads, draw(2, 5, 3, prefix="b"))
    for name, value in (("mask", "full"), ("scale", 1.0), ("cap", 3.0), ("window", 2)):
        with pytest.raises(ValueError, match=f"differ in {name}"):
            stack(heads, draw(2, 7, 3, prefix="b", **{name: value}))
    with pytest.raises(ValueError, match="belong to different models"):
        stack(heads, draw(2, 7, 3, prefix="b", of="B"), draw(2, 7, 3, prefix="c", of="C"))


@pytest.mark.usefixtures("as_a_reader")
def test_keys_that_name_no_head(draw):
    heads = draw(3, 5, 2)
    with pytest.raises(ValueError, match="no head is called 'L0H9'. The nearest.* L0H2"):
        heads["L0H9"]
    with pytest.raises(IndexError, match="no head number 3; the stack has 3 heads"):
        heads[3]
    with pytest.raises(TypeError, match=r"heads\[1, 2\] does not say.*heads\['L1H3'\]"):
        heads[1, 2]
    for key in (True, 1.5, None, [1.5]):
        with pytest.raises(TypeError, match="name or number, not"):
            heads[key]


@pytest.mark.usefixtures("as_a_reader")
def test_streams_patterns_and_sides_that_do_not_fit(draw):
    heads, x = draw(2, 5, 3), random(1, 3, 4, 5)
    for wrong in (x[0, 0], x[..., :4], x.float()):
        with pytest.raises(ValueError, match=r"These heads read a stream \[..., pos, 5\] of torch"):
            heads.results(wrong)
    right = torch.ones(2, 4, 4, dtype=x.dtype)
    assert heads.results(x, right).shape == (3, 2, 4, 5)
    for wrong in (right[:1], right[0], right.expand(5, 2, 4, 4), right.float(), right.bool()):
        with pytest.raises(ValueError, match=r"need the shape \(3, 2, 4, 4\), which is .*float64"):
            heads.results(x, wrong)
    for wrong in ("O", "q"):
        with pytest.raises(ValueError, match="A side of a head is 'Q', 'K' or 'V', not"):
            heads.side(wrong, x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names": ("A", "B", "A")}, "a unique name and a layer for each of its 3"),
        ({"layers": (0, 1)}, "a unique name and a layer for each of its 3"),
        ({"W_Q": torch.zeros(7, 2)}, r"expects W_Q to be .*\[head, d_model, d_head\]"),
        (
            {"W_O": torch.zeros(3, 7, 2)},
            r"W_O=.*\(3, 7, 2\).*\[head = 3, d_head = 2, d_model = 7\]",
        ),
        ({"b_V": torch.zeros(3, 1)}, r"b_V=.*\(3, 1\).*\[head = 3, d_head = 2\]"),
        ({"W_K": torch.zeros(3, 7, 2)}, "dtypes .*torch.float32.*torch.float64"),
    ],
    ids=str,
)
def test_heads_that_do_not_fit_together(draw, change, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(draw(3, 7, 2), **change)


def test_heads_of_nan_and_streams_with_nan_are_refused(draw):
    heads, x = draw(2, 8, 4), torch.zeros(3, 8, dtype=torch.float64)
    pattern = heads.pattern(x)
    with pytest.raises(ValueError, match="W_O, given to Heads, holds NaN or infinite"):
        dataclasses.replace(heads, W_O=heads.W_O / 0)
    with pytest.raises(ValueError, match="pattern that was given to these heads holds NaN"):
        heads.results(x, pattern / 0)
    x[1, 1] = torch.nan
    for read in (heads.pattern, heads.scores, heads.results, lambda x: heads.side("V", x)):
        with pytest.raises(ValueError, match="stream that was given to these heads holds NaN"):
            read(x)


def test_patterns_of_unknown_heads_are_refused(draw):
    for positions in ("rotary", "other"):
        heads, x = draw(2, 5, 3, positions=positions), random(1, 4, 5)
        for compute in (heads.scores, heads.pattern, heads.results):
            with pytest.raises(ValueError, match=f"{positions!r}.*A run of the model has them"):
                compute(x)
        # a pattern from elsewhere is fine
        assert heads.results(x, torch.ones(2, 4, 4, dtype=x.dtype)).shape == (2, 4, 5)


def test_heads_never_change(draw):
    with pytest.raises(dataclasses.FrozenInstanceError):
        draw(2, 5, 3).mask = "full"
