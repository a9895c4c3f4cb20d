"""Composition scores and virtual heads."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit import heads_of
from circuitkit.circuits import composition_scores, random_heads, virtual_head


def slow_score(early, late, kind):
    """One pair, matrices multiplied out, numbers squared one by one."""
    ov = early.W_V[0] @ early.W_O[0]
    qk = late.W_Q[0] @ late.W_K[0].T
    second = {"Q": qk, "K": qk.T, "V": late.W_V[0] @ late.W_O[0]}[kind]
    size = lambda matrix: math.sqrt(sum(float(v) ** 2 for row in matrix for v in row))  # noqa: E731
    return size(ov @ second) / (size(ov) * size(second))


def reparametrised(stack, seed=0):
    """The same functions: an invertible change of basis inside each head."""
    generator = torch.Generator().manual_seed(seed)
    change = torch.randn(
        len(stack), stack.d_head, stack.d_head, generator=generator, dtype=stack.W_Q.dtype
    )
    change = change + 3 * torch.eye(stack.d_head, dtype=stack.W_Q.dtype)
    inverse = torch.linalg.inv(change)
    return dataclasses.replace(
        stack,
        W_Q=stack.W_Q @ change,
        W_K=stack.W_K @ inverse.mT,
        W_V=stack.W_V @ change,
        W_O=inverse @ stack.W_O,
    )


def one_dimensional(layer, read, key, value, write):
    column = lambda v: torch.tensor(v, dtype=torch.float64)[None, :, None]  # noqa: E731
    return dataclasses.replace(
        random_heads(1, 2, 1, layer=layer).to(torch.float64),
        W_Q=column(read),
        W_K=column(key),
        W_V=column(value),
        W_O=column(write).mT,
    )


def test_by_hand():
    # The earlier head writes along the first axis; the later head's key lies at 60 degrees to it, its query on it,
    # and its value across it.
    early = one_dimensional(0, [1.0, 0.0], [1.0, 0.0], [0.0, 5.0], [2.0, 0.0])
    late = one_dimensional(1, [3.0, 0.0], [0.5, math.sqrt(0.75)], [0.0, 1.0], [1.0, 1.0])
    for kind, score in (("Q", 1.0), ("K", 0.5), ("V", 0.0)):
        assert composition_scores(early, late, kind).score.item() == pytest.approx(score, abs=1e-15)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from("QKV"),
    d_early=st.sampled_from([1, 2, 5]),
    d_late=st.sampled_from([1, 3, 7]),
    d_model=st.sampled_from([11, 13]),
    seed=st.integers(0, 99),
)
def test_equals_slow_loop(kind, d_early, d_late, d_model, seed):
    early = random_heads(2, d_model, d_early, seed=seed).to(torch.float64)
    late = random_heads(3, d_model, d_late, layer=1, seed=seed + 1).to(torch.float64)
    result = composition_scores(early, late, kind, baseline="analytic")
    assert result.score.shape == (2, 3)
    for i, a in enumerate(early):
        for j, b in enumerate(late):
            assert result.score[i, j].item() == pytest.approx(slow_score(a, b, kind), abs=1e-12)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_equals_transformer_lens(boot, kind):
    model = boot(n_layers=3)
    stack = heads_of(model)
    result = composition_scores(stack, stack, kind)
    theirs = model.all_composition_scores(kind).scores.reshape(9, 9)
    torch.testing.assert_close(result.score, theirs, rtol=1e-10, atol=1e-12)
    assert result.possible.sum() == 27
    assert (result.score[~result.possible] == 0).all()
    assert (result.excess[~result.possible] == 0).all()


@pytest.mark.parametrize("scale_free", [False, True])
@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_same_function_same_score(kind, scale_free):
    early = random_heads(2, 17, 3).to(torch.float64)
    late = random_heads(2, 17, 4, layer=1, seed=1).to(torch.float64)
    before = composition_scores(early, late, kind, scale_free=scale_free).score
    after = composition_scores(
        reparametrised(early), reparametrised(late, 1), kind, scale_free=scale_free
    ).score
    torch.testing.assert_close(before, after, rtol=0, atol=1e-12)


def test_value_matrix_alone_would_depend_on_the_parametrisation():
    # What the notes write, W_V of the later head instead of W_OV: not a property of the head.
    early = random_heads(1, 17, 3).to(torch.float64)
    late = random_heads(1, 17, 4, layer=1, seed=1).to(torch.float64)

    def loose(a, b):
        ov = a.W_V[0] @ a.W_O[0]
        return ((ov @ b.W_V[0]).norm() / (ov.norm() * b.W_V[0].norm())).item()

    assert abs(loose(early, late) - loose(early, reparametrised(late))) > 1e-3


def test_scale_free_ignores_gains():
    early = random_heads(1, 17, 3).to(torch.float64)
    late = random_heads(1, 17, 4, layer=1, seed=1).to(torch.float64)
    gains = torch.tensor([100.0, 1.0, 0.01], dtype=torch.float64)
    rows = torch.linalg.qr(early.W_O[0].T).Q.T
    plain = dataclasses.replace(early, W_V=torch.linalg.qr(early.W_V[0]).Q[None], W_O=rows[None])
    scaled = dataclasses.replace(plain, W_O=(gains[:, None] * rows)[None])
    weighted = [composition_scores(heads, late, "K").score.item() for heads in (plain, scaled)]
    free = [
        composition_scores(heads, late, "K", scale_free=True).score.item()
        for heads in (plain, scaled)
    ]
    assert abs(weighted[0] - weighted[1]) > 1e-2
    assert free[0] == pytest.approx(free[1], abs=1e-12)
    # Reference: principal angles between the row space of W_O and the column space of W_K.
    angles = torch.linalg.svdvals(rows @ torch.linalg.qr(late.W_K[0]).Q)
    assert free[0] == pytest.approx(
        (angles.square().sum().sqrt() / math.sqrt(3 * 4)).item(), abs=1e-12
    )


def test_scale_free_ranks_a_deficient_head():
    early = random_heads(1, 17, 3).to(torch.float64)
    late = random_heads(1, 17, 4, layer=1, seed=1).to(torch.float64)
    poor = dataclasses.replace(
        early, W_O=torch.cat([early.W_O[:, :1], early.W_O[:, :1], early.W_O[:, :1]], dim=1)
    )
    direction = early.W_O[0, 0] / early.W_O[0, 0].norm()
    reference = (torch.linalg.qr(late.W_K[0]).Q.T @ direction).norm() / 2
    assert composition_scores(poor, late, "K", scale_free=True).score.item() == pytest.approx(
        reference.item(), abs=1e-12
    )


def test_silent_head_scores_zero():
    early = random_heads(2, 17, 3)
    early = dataclasses.replace(early, W_O=early.W_O * torch.tensor([0.0, 1.0])[:, None, None])
    score = composition_scores(early, random_heads(2, 17, 3, layer=1), "V").score
    assert (score[0] == 0).all()
    assert (score[1] > 0).all()


def test_permutation():
    early, late = random_heads(4, 17, 3), random_heads(3, 17, 3, layer=1, seed=1)
    result = composition_scores(early, late, "Q").score
    swapped = composition_scores(early[[2, 0, 3, 1]], late[[1, 2, 0]], "Q").score
    torch.testing.assert_close(swapped, result[[2, 0, 3, 1]][:, [1, 2, 0]], rtol=1e-5, atol=0)


def test_mixed_layers_out_of_order():
    stack = dataclasses.replace(random_heads(4, 17, 3), layers=(2, 0, 1, 0))
    result = composition_scores(stack, stack, "K")
    for i in range(4):
        for j in range(4):
            expected = stack.layers[i] < stack.layers[j]
            assert bool(result.possible[i, j]) is expected
            assert (result.score[i, j].item() > 0) is expected
    assert len(result.strongest(99)) == 5
    assert result.strongest(1)[0][2] == pytest.approx(result.excess[result.possible].max().item())


@pytest.mark.parametrize("d_model", [19, 50])  # by Gram matrices, and multiplied out
def test_in_small_blocks(monkeypatch, d_model):
    from circuitkit import _blocks
    from circuitkit.circuits._composition import _read, _written

    monkeypatch.setattr(_blocks, "_BLOCK", 10)
    early, late = random_heads(7, d_model, 5), random_heads(5, d_model, 4, layer=1)
    small = _blocks.product_norms(_written(early, torch.float32), _read(late, "K", torch.float32))
    torch.testing.assert_close(
        small,
        torch.linalg.matrix_norm(early.W_V[:, None] @ early.W_O[:, None] @ late.W_K @ late.W_Q.mT),
        rtol=1e-5,
        atol=0,
    )
    writes, reads = early.W_O, late.W_K
    lefts, rights = (writes[:3], writes[3:, :2]), (reads[:1].mT, reads[1:, :, :3].mT)
    stacks = _blocks.gram_products(
        [_blocks.Thin(A, A) for A in lefts], [_blocks.Thin(B, B) for B in rights]
    )
    for i in range(7):
        for j in range(5):
            product = writes[i, : 5 if i < 3 else 2] @ reads[j, :, : 4 if j < 1 else 3]
            assert stacks[i, j].item() == pytest.approx(product.square().sum().item(), rel=1e-5)


def test_what_cancels_is_multiplied_out():
    """Heads that write where nobody reads, but for a ten-thousandth of it, on no axis: Gram matrices alone see rounding."""
    early, late = random_heads(3, 40, 6), random_heads(3, 40, 6, layer=1, seed=1)
    turn = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(2))).Q
    inside = (torch.arange(40) < 20).float()
    early = dataclasses.replace(early, W_O=early.W_O * (inside + 1e-4 * (1 - inside)) @ turn)
    late = dataclasses.replace(late, W_K=turn.T @ (late.W_K * (1 - inside)[:, None]))
    score = composition_scores(early, late, "K").score
    exact = composition_scores(early.to(torch.float64), late.to(torch.float64), "K").score
    assert exact.max() < 1e-4
    torch.testing.assert_close(
        score.double(), exact, rtol=2e-2, atol=0
    )  # 6e-8 of the factors, over 1e-4


@pytest.mark.parametrize("kind", "QKV")
def test_what_cancels_inside_a_head_is_not_squared(kind):
    """The first matrix of each head is large where the second does not look: of its Gram matrix, rounding alone would be left."""
    turn = torch.linalg.qr(
        torch.randn(3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ).Q
    large = torch.tensor(
        [1e4, 1.0, 1.0], dtype=torch.float64
    )  # in a direction that is no coordinate's: scale alone costs nothing
    steep, gentle = ((turn * large**power @ turn.T).float() for power in (1, -2))
    early, late = random_heads(3, 12, 3), random_heads(2, 12, 3, layer=1, seed=1)
    early = dataclasses.replace(early, W_V=early.W_V @ steep, W_O=gentle @ early.W_O)
    late = dataclasses.replace(
        late,
        W_Q=late.W_Q @ steep,
        W_K=late.W_K @ gentle,
        W_V=late.W_V @ gentle,
        W_O=steep @ late.W_O,
    )
    score = composition_scores(early, late, kind).score
    exact = composition_scores(early.to(torch.float64), late.to(torch.float64), kind).score
    torch.testing.assert_close(
        score.double(), exact, rtol=1e-2, atol=0
    )  # 6e-8 of the factors, times 1e4


def test_baselines():
    early, late = random_heads(30, 48, 4, seed=5), random_heads(30, 48, 6, layer=1, seed=6)
    result = composition_scores(early, late, "V")
    assert result.baseline == pytest.approx(
        1 / math.sqrt(48), rel=0.04
    )  # a mean lies below the root mean square
    assert result.baseline == pytest.approx(result.score.mean().item(), rel=0.02)
    assert composition_scores(early, late, "V").baseline == result.baseline
    assert composition_scores(early, late, "V", seed=3).baseline != result.baseline
    assert composition_scores(early, late, "V", baseline="analytic").baseline == pytest.approx(
        1 / math.sqrt(48)
    )
    torch.testing.assert_close(result.excess, result.score - result.baseline)


@pytest.mark.parametrize("kind", ["K", "V"])
def test_rotated_baseline_is_the_mean_over_rotations(kind):
    """Half of the coordinates are written by nobody, as positions are; the reading head looks mostly at those."""
    early = random_heads(2, 12, 3).to(torch.float64)
    early = dataclasses.replace(early, W_O=early.W_O * (torch.arange(12) < 7))
    late = random_heads(2, 12, 4, layer=1, seed=1).to(torch.float64)
    late = dataclasses.replace(
        late, W_K=late.W_K * torch.where(torch.arange(12) < 7, 0.3, 1.0)[:, None]
    )
    result = composition_scores(early, late, kind, baseline="rotated")
    generator, squares = torch.Generator().manual_seed(0), []
    for _ in range(2000):
        turn = torch.eye(12, dtype=torch.float64)
        q, r = torch.linalg.qr(torch.randn(7, 7, generator=generator, dtype=torch.float64))
        turn[:7, :7] = q * r.diagonal().sign()  # without the signs the rotations are not uniform
        ov = early.W_V[0] @ early.W_O[0] @ turn
        second = late.W_K[0] @ late.W_Q[0].T if kind == "K" else late.W_V[0] @ late.W_O[0]
        squares.append(((ov @ second).norm() / (ov.norm() * second.norm())).square())
    assert result.baseline[0].item() == pytest.approx(
        torch.stack(squares).mean().sqrt().item(), rel=0.02
    )


def test_virtual_head_is_the_two_in_a_row():
    early = dataclasses.replace(
        random_heads(2, 11, 3).to(torch.float64), b_V=torch.randn(2, 3, dtype=torch.float64)
    )
    late = random_heads(3, 11, 5, layer=2, seed=1).to(torch.float64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    soft = lambda n: torch.randn(n, 6, 6, generator=generator, dtype=torch.float64).softmax(-1)  # noqa: E731
    first, second = soft(2), soft(3)
    virtual = virtual_head(early, late)
    assert virtual.names == tuple(f"L0H{i}->L2H{j}" for i in range(2) for j in range(3))
    assert virtual.layers == (2,) * 6
    assert virtual.d_head == 3
    for row, (i, j) in enumerate((i, j) for i in range(2) for j in range(3)):
        moved = first[i] @ (x @ early.W_V[i] + early.b_V[i]) @ early.W_O[i]
        expected = second[j] @ moved @ late.W_V[j] @ late.W_O[j]
        got = virtual[row].results(x, (second[j] @ first[i])[None])[0]
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(
            virtual.OV.AB[row], early.OV.AB[i] @ late.OV.AB[j], rtol=0, atol=1e-12
        )


def test_virtual_head_with_the_narrow_head_last():
    early = dataclasses.replace(
        random_heads(2, 11, 5).to(torch.float64), b_V=torch.randn(2, 5, dtype=torch.float64)
    )
    late = random_heads(1, 11, 2, layer=1, seed=1).to(torch.float64)
    virtual = virtual_head(early, late)
    assert virtual.d_head == 2
    torch.testing.assert_close(virtual.OV.AB[1], early.OV.AB[1] @ late.OV.AB[0], rtol=0, atol=1e-12)
    expected = early.b_V[1] @ early.W_O[1] @ late.OV.AB[0]
    torch.testing.assert_close(virtual.b_V[1] @ virtual.W_O[1], expected, rtol=0, atol=1e-12)


def test_virtual_head_has_no_pattern_of_its_own():
    virtual = virtual_head(random_heads(1, 11, 3), random_heads(1, 11, 3, layer=1))
    assert virtual.pattern(torch.ones(4, 11)).isnan().any()


def test_three_layers_in_a_row():
    first, second, third = (
        random_heads(1, 11, 3, layer=layer, seed=layer).to(torch.float64) for layer in range(3)
    )
    chain = virtual_head(virtual_head(first, second), third)
    torch.testing.assert_close(
        chain.OV.AB[0], first.OV.AB[0] @ second.OV.AB[0] @ third.OV.AB[0], rtol=0, atol=1e-12
    )
    assert chain.names == ("L0H0->L1H0->L2H0",)


EARLY, LATE = random_heads(2, 8, 2), random_heads(2, 8, 2, layer=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: composition_scores(EARLY, LATE, "O"), ["kind='O'", "['Q', 'K', 'V']", "kind='Q'"]),
        (
            lambda: composition_scores(LATE, EARLY),
            ["L1H0 (layer 1)", "lower layer", "Swap", "dataclasses.replace"],
        ),
        (
            lambda: virtual_head(LATE, EARLY),
            ["virtual_head", "every earlier head in a lower layer", "Swap"],
        ),
        (
            lambda: composition_scores(EARLY, random_heads(1, 9, 2, layer=1)),
            ["d_model 8", "d_model 9", "same model"],
        ),
        (
            lambda: composition_scores(EARLY, LATE, baseline="none"),
            ["'none'", "'rotated'", "baseline='random'"],
        ),
        (lambda: composition_scores(EARLY[[]], LATE), ["earlier with 0 heads", "at least one"]),
    ],
)
def test_messages(call, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    for words in said:
        assert words in str(error.value)


def test_a_model_instead_of_heads():
    with pytest.raises(
        ValueError, match=r"got later=\{\}; expected Heads.*circuitkit.heads\(model\)"
    ):
        composition_scores(EARLY, {})


@pytest.mark.parametrize("scale_free", [False, True])
@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_gradients_are_those_of_finite_differences(kind, scale_free):
    # d_head 4 and 5 at d_model 9: without gradients the scores come from Gram matrices, which is the route that has none.
    early, late = (
        random_heads(2, 9, d, layer=i, seed=i).to(torch.float64) for i, d in enumerate((4, 5))
    )
    names = ("W_Q", "W_K", "W_V", "W_O")
    weights = [
        getattr(one, name).clone().requires_grad_() for one in (early, late) for name in names
    ]

    def score(*given):
        pair = [
            dataclasses.replace(one, **dict(zip(names, some, strict=True)))
            for one, some in zip((early, late), (given[:4], given[4:]), strict=True)
        ]
        return composition_scores(*pair, kind, scale_free=scale_free, baseline="analytic").score

    torch.testing.assert_close(
        score(*weights),
        composition_scores(early, late, kind, scale_free=scale_free).score,
        rtol=0,
        atol=1e-12,
    )
    assert torch.autograd.gradcheck(score, weights, check_undefined_grad=False, fast_mode=True)
    felt = torch.autograd.grad(score(*weights).sum(), weights, materialize_grads=True)
    assert all(
        float(some.abs().max()) > 1e-3 for some in (felt[3], felt[4 + "QKV".index(kind)])
    )  # what is written, what is read


def test_a_pair_out_of_order_and_a_product_of_zero_have_no_slope():
    one, two = (
        random_heads(2, 12, 3).to(torch.float64),
        random_heads(2, 12, 3, layer=1, seed=1).to(torch.float64),
    )
    both = dataclasses.replace(
        one,
        names=one.names + two.names,
        layers=(0, 0, 1, 1),
        **{
            name: torch.cat([getattr(one, name), getattr(two, name)])
            for name in ("W_Q", "W_K", "W_V", "W_O")
        },
    )
    W_O, W_V = both.W_O.clone(), both.W_V.clone()
    W_O[:, :, 6:] = 0
    W_V[3, :6] = 0  # the last head reads what nobody writes
    W_O.requires_grad_()
    found = composition_scores(
        dataclasses.replace(both, W_O=W_O, W_V=W_V),
        dataclasses.replace(both, W_O=W_O, W_V=W_V),
        "V",
    )
    assert found.score[:2, 3].abs().max() == 0
    (slope,) = torch.autograd.grad(found.excess.sum(), W_O)
    assert slope.isfinite().all()
    assert slope[0].abs().max() > 1e-3
