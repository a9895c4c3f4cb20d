"""Rows of repeated random tokens, and where a token occurred before."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.rows import (
    Repeated,
    after_occurrences,
    earlier_occurrences,
    repeated_tokens,
    require_repeating,
    second_pass,
    token_losses,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=7, max_size=7), min_size=1, max_size=3))
def test_occurrences_against_loops(rows):
    before, after = (f(torch.tensor(rows)) for f in (earlier_occurrences, after_occurrences))
    for row, tokens in enumerate(rows):
        for dst in range(7):
            for src in range(7):
                assert before[row, dst, src] == (src < dst and tokens[src] == tokens[dst])
                assert after[row, dst, src] == (1 <= src <= dst and tokens[src - 1] == tokens[dst])


@settings(max_examples=60, deadline=None)
@given(
    d_vocab=st.sampled_from([11, 13, 40]),
    period=st.integers(2, 17),
    batch=st.sampled_from([1, 5]),
    bos=st.sampled_from([None, 0, 10]),
)
def test_a_span_comes_twice_and_its_tokens_differ(d_vocab, period, batch, bos):
    rows = repeated_tokens(d_vocab, period, batch=batch, bos=bos)
    start = 0 if bos is None else 1
    assert rows.tokens.shape == (batch, start + 2 * period)
    assert (rows.period, rows.start) == (period, start)
    for row in rows.tokens.tolist():
        span = row[start : start + period]
        assert row[:start] == [bos] * start
        assert row[start + period :] == span
        assert set(span) <= set(range(d_vocab)) - {bos}
        assert len(set(span)) == period or period > d_vocab - start


def test_equal_calls_give_equal_rows_and_leave_the_global_seed_alone():
    before = torch.get_rng_state()
    first, again = repeated_tokens(50, 9).tokens, repeated_tokens(50, 9).tokens
    drawn = repeated_tokens(50, 9, generator=torch.Generator().manual_seed(1)).tokens
    assert torch.equal(first, again)
    assert not torch.equal(first, drawn)
    assert torch.equal(before, torch.get_rng_state())


def test_tokens_are_drawn_as_often_as_their_weights_say():
    weights = torch.tensor([5.0, 0.0, 3.0, 1.0, 0.0])
    drawn = repeated_tokens(5, 3, weights=weights, batch=40).tokens
    assert set(drawn.flatten().tolist()) == {0, 2, 3}
    rare = repeated_tokens(2, 5, weights=torch.tensor([99.0, 1.0]), batch=200).tokens
    assert 0.95 < (rare == 0).float().mean() < 1


def test_losses_and_accuracy_of_the_second_pass_by_hand():
    """Three tokens; the model puts logit 1 on the token after the current one, modulo 3."""
    rows = Repeated(torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 1, 0, 1, 1]]), 3, 0)
    logits = torch.eye(3)[(rows.tokens + 1) % 3]
    right = math.log(math.e + 2) - 1
    wrong = right + 1
    torch.testing.assert_close(
        token_losses(logits, rows.tokens),
        torch.tensor([[right] * 5, [right, wrong, wrong, right, wrong]]),
    )
    losses, accuracy = second_pass(logits, rows)
    torch.testing.assert_close(losses, torch.tensor([right, (right + wrong) / 2]))
    assert accuracy.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"period": 1}, "period=1 is too small"),
        ({"weights": torch.ones(3)}, "weights must be 5 numbers"),
        ({"weights": torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0])}, "at least 0"),
        ({"weights": torch.zeros(5)}, "no token to draw"),
        ({"bos": 5}, "bos=5 is not a token"),
    ],
)
def test_rows_that_cannot_be_drawn_are_explained(arguments, words):
    with pytest.raises(ValueError, match=words):
        repeated_tokens(5, **{"period": 2} | arguments)


def test_rows_made_by_hand_must_repeat():
    tokens = torch.tensor([[9, 1, 2, 3, 1, 2, 3]])
    require_repeating(Repeated(tokens, 3, 1))
    for period, start in ((3, 0), (2, 1), (4, 1)):
        with pytest.raises(ValueError, match=rf"same {period} tokens from position {start}"):
            require_repeating(Repeated(tokens, period, start))


def test_losses_of_half_precision_logits_are_not_rounded_to_half_precision():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator).bfloat16()
    tokens = torch.randint(7, (2, 5), generator=generator)
    losses = token_losses(logits, tokens)
    expected = -logits.double().log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(losses.double(), expected, atol=1e-5, rtol=1e-5)
