"""The verdict in log-odds: against enumeration by logits, on the rows it should ask, and the bounds beyond 16 heads."""

import math
from itertools import product

import pytest
import torch

from circuitkit.superposition import (
    SkipTrigramTask,
    _verdict,
    blind_model,
    hand_specified,
    head_verdict,
    load_original,
    one_head_model,
    two_head_model,
)
from circuitkit.superposition._verdict import (
    greatest,
    least,
    margins,
    positive_places,
    strength,
    worst_margins,
)


def enumerated(heads, residual, completion):
    """Log-odds of every set of heads from the softmax itself, `[set]`, and which heads each holds."""
    sets = [*product((0, 1), repeat=heads.shape[1])]
    odds = []
    for kept in sets:
        logits = residual + sum(heads[:, k] for k, one in enumerate(kept) if one)
        p = logits.softmax(-1).gather(1, completion[:, None])[:, 0]
        odds.append(p.log() - (1 - p).log())
    return torch.stack(odds), torch.tensor(sets)


def drawn(rows, n_heads, n_tokens, seed, size=1.5):
    generator = torch.Generator().manual_seed(seed)
    heads = size * torch.randn(rows, n_heads, n_tokens, generator=generator, dtype=torch.float64)
    heads[: rows // 4] = heads[: rows // 4].round()  # ties and heads that cancel
    heads[: rows // 8, -1] = -heads[: rows // 8, 0]
    residual = torch.randn(rows, n_tokens, generator=generator, dtype=torch.float64)
    return heads, residual, torch.randint(n_tokens, (rows,), generator=generator)


def ends(heads, residual, completion):
    odds, sets = enumerated(heads, residual, completion)
    held = [odds[sets[:, h] == 1] for h in range(heads.shape[1])]
    return torch.stack([o.amin(0) for o in held], 1), torch.stack([o.amax(0) for o in held], 1)


def test_hand_computed():
    # Two heads, two tokens: margins of the only other token 1 and -2, residual 0.5. L is the margin itself.
    m, r = torch.tensor([[[1.0], [-2.0]]]).double(), torch.tensor([[0.5]]).double()
    assert least(m, r)[0].tolist() == [[-0.5, -1.5]]
    assert greatest(m, r)[0].tolist() == [[1.5, -0.5]]
    # Two other tokens with equal margins: the odds are half.
    assert strength(torch.tensor([3.0, 3.0])).item() == pytest.approx(3 - math.log(2))


def test_no_disagreement_with_enumeration_on_more_than_10_000_cells():
    cells = wrong = 0
    for n_heads, n_tokens in ((1, 6), (2, 8), (3, 12), (5, 12), (6, 8), (7, 5), (8, 4)):
        heads, residual, completion = drawn(160, n_heads, n_tokens, seed=n_heads)
        m, r = margins(heads, completion), margins(residual, completion)
        low, high = ends(heads, residual, completion)
        guess = math.log(n_tokens - 1)
        for found, true, at in ((least(m, r)[0], low, 1.0), (greatest(m, r)[0], high, math.log(2))):
            assert torch.allclose(
                found, true, atol=1e-11
            )  # a softmax near 1 loses the digits of 1 - p
            for threshold in (at, 0.0):
                cells += found.numel()
                wrong += int(((found + guess > threshold) != (true + guess > threshold)).sum())
    assert cells > 10_000
    assert wrong == 0


def test_numbers_that_leave_float64_are_added_token_by_token():
    m = torch.tensor([[[-900.0, 0.0], [0.0, -900.0]]]).double()
    r = torch.zeros(1, 2).double()
    assert torch.allclose(least(m, r)[0], torch.tensor(-900 - math.log(2)).double().expand(1, 2))
    assert greatest(m, r)[0].tolist() == [[-900, -900]]


@pytest.mark.parametrize("odds", [True, False])
def test_rows_that_a_bound_decides_are_decided_as_by_trying(odds, monkeypatch):
    heads, residual, completion = drawn(400, 5, 8, seed=3)
    m, r = (
        margins(heads, completion),
        margins(residual - 3 * torch.eye(8)[completion].double(), completion),
    )
    tried, asked = greatest(m, r, odds)[1], []
    whole = _verdict._tried
    monkeypatch.setattr(
        _verdict, "_tried", lambda m, *rest: asked.append(len(m)) or whole(m, *rest)
    )
    for limit in (-2.0, 0.0, 1.0):
        low, high = greatest(m, r, odds, limit=limit)
        assert torch.equal(high <= limit, tried <= limit)
        assert 0 < (tried <= limit).double().mean() < 1
        assert torch.equal(low, high)
        assert bool((high >= tried - 1e-12).all())
    assert 0 < min(asked) < max(asked) < len(m)


@pytest.mark.parametrize("odds", [True, False])
def test_bounds_hold_and_are_as_near_as_proved(odds, monkeypatch):
    for n_heads, n_tokens in ((1, 3), (4, 5), (7, 12), (9, 3)):
        heads, residual, completion = drawn(80, n_heads, n_tokens, seed=n_heads)
        m, r = margins(heads, completion), margins(residual, completion)
        tried = (least(m, r)[0], greatest(m, r, odds)[0])
        monkeypatch.setattr(_verdict, "EXACT", 0)
        (low, high), (less, more) = least(m, r), greatest(m, r, odds)
        monkeypatch.undo()
        assert bool((low <= tried[0] + 1e-12).all() & (tried[0] <= high + 1e-12).all())
        assert bool((less <= tried[1] + 1e-12).all() & (tried[1] <= more + 1e-12).all())
        worst = worst_margins(m, r).amin(-1)
        assert bool(
            (high <= worst + 1e-12).all() & (low >= worst - math.log(n_tokens - 1) - 1e-12).all()
        )
        decided = (
            ((low > 0) | (high <= 0)).double().mean(),
            ((less > 0) | (more <= 0)).double().mean(),
        )
        assert min(decided) > 0.7


def test_forty_heads_that_bounds_decide():
    """Ten copies of four heads at a tenth of their size, and the four: what one head carries cannot change much."""
    model = hand_specified(4, 5, gain=6.0)

    def run(tokens):
        heads, residual = model.run(tokens)
        return torch.cat([heads, 1e-3 * heads.repeat(1, 9, 1, 1)], 1), residual

    verdict = head_verdict(run, model.task, rows=40)
    assert verdict.carries.shape == (40, 5)
    assert verdict.carries.any(0).tolist() == [True] * 4 + [False]
    assert verdict.undecided[:4].max() == 0


def test_only_completions_that_counts_prove_are_asked_for():
    task = SkipTrigramTask(2)  # 0 source, 1 2 destinations, 3 4 completions
    tokens = torch.tensor(
        [[5, 3, 1, 0, 1, 3, 5], [5, 0, 1, 3, 0, 1, 3], [5, 3, 0, 1, 3, 5, 5], [5, 4, 1, 0, 1, 3, 5]]
    )
    assert positive_places(task, tokens, "argmax").tolist() == [
        [0, 4],
        [1, 2],
        [1, 5],
        [2, 3],
        [3, 4],
    ]
    # The first prompt could have used its source for the 3 before it: 1, 3 and 0 stand there in some order.
    assert positive_places(task, tokens, "odds").tolist() == [[1, 2], [1, 5], [2, 3], [3, 4]]


def test_planted_models():
    for made, learnt, carried in (
        (hand_specified(2, 3), 3, 2), (hand_specified(4, 5), 5, 4), (two_head_model(5), 5, 0), (one_head_model(5), 5, 5),
        (hand_specified(5, 5), 5, 5), (blind_model(5), 0, 0),
    ):  # fmt: skip
        verdict = head_verdict(made, made.task, rows=100)
        assert (
            int(verdict.is_learnt.sum()),
            int((verdict.carries.any(0) & verdict.is_learnt).sum()),
        ) == (learnt, carried)
        assert not verdict.undecided.any()
        assert bool((verdict.gain[verdict.carries] > 1).all())


def test_a_nearly_uniform_model_is_not_failed_by_chance():
    """Without a source it tilts by a hundredth of a nat: argmax calls that completing, log-odds do not."""
    made = hand_specified(3, 3)

    def run(tokens):
        tilt = torch.nn.functional.one_hot((tokens + 3).clamp(max=7), 8) * 0.01
        return made.run(tokens)[0], tilt * made.task.is_destination(tokens)[..., None]

    assert head_verdict(run, made.task, rows=50).exactly_one
    assert head_verdict(run, made.task, "argmax", rows=50).quiet.tolist() == [0, 0, 0]


def test_the_gain_is_what_the_threshold_of_the_rows_reach():
    model = load_original(3, 4, 0)
    exact = head_verdict(model, model.task, rows=100, threshold=0.9)
    reached = (exact.gain > 1).float()
    held = (head_verdict(model, model.task, rows=100, threshold=0.9).carried >= 0.9).float()
    assert bool((held <= reached).all())  # carried asks for the top rank as well
