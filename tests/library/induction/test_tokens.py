"""Repeated random tokens, and where a token occurred before."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.induction import repeated_tokens, train
from circuitkit.induction._stream import after_occurrences, earlier_occurrences


def test_by_hand():
    tokens = torch.tensor([[4, 9, 4, 4]])
    assert earlier_occurrences(tokens)[0].int().tolist() == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 0, 0, 0],
        [1, 0, 1, 0],
    ]
    assert after_occurrences(tokens)[0].int().tolist() == [
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 1, 0, 1],
    ]


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
    times=st.integers(1, 3),
    batch=st.sampled_from([1, 5]),
    bos=st.sampled_from([None, 0, 10]),
)
def test_rows_repeat(d_vocab, period, times, batch, bos):
    tokens, span, start = repeated_tokens(d_vocab, period, times=times, batch=batch, bos=bos)
    assert tokens.shape == (batch, start + times * period)
    assert (span, start) == (period, 0 if bos is None else 1)
    assert 0 <= tokens.min() <= tokens.max() < d_vocab
    for row in tokens.tolist():
        assert row[:start] == [bos] * start
        first = row[start : start + period]
        for again in range(times):
            assert row[start + again * period : start + (again + 1) * period] == first
        assert bos not in first
        drawable = d_vocab - (bos is not None)
        assert len(set(first)) == period or period > drawable


def test_every_call_is_seeded_and_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    first, again = repeated_tokens(50, 9).tokens, repeated_tokens(50, 9).tokens
    other = repeated_tokens(50, 9, generator=torch.Generator().manual_seed(1)).tokens
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_and_exclusion():
    weights = torch.tensor([5.0, 0.0, 3.0, 1.0, 1.0, 0.0])
    drawn = set(
        repeated_tokens(6, 3, weights=weights, exclude=[3], batch=40).tokens.flatten().tolist()
    )
    assert drawn == {0, 2, 4}
    rare = repeated_tokens(2, 5, weights=torch.tensor([99.0, 1.0]), batch=200).tokens
    assert 0.95 < (rare == 0).float().mean() < 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 3), "got d_vocab=1; expected an integer of at least 2"),
        ((9, 1), "got period=1; expected an integer of at least 2"),
        ((9, True), "got period=True; expected an integer"),
    ],
)
def test_counts_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        repeated_tokens(*arguments)


def test_a_count_is_an_integer():
    with pytest.raises(ValueError, match="train got steps=3.0; expected an integer of at least 1"):
        train(steps=3.0)


def test_a_span_beyond_the_context_is_refused():
    repeated_tokens(90, 15, bos=0, n_ctx=31)
    with pytest.raises(
        ValueError, match=r"n_ctx=32, period=16, times=2, bos=0; expected a period of at most 15"
    ):
        repeated_tokens(90, 16, bos=0, n_ctx=32)


def test_bad_weights_and_tokens_are_refused():
    with pytest.raises(ValueError, match=r"weights of shape \(3,\).*5 weights, none negative"):
        repeated_tokens(5, 2, weights=torch.ones(3))
    with pytest.raises(ValueError, match="5 weights, none negative"):
        repeated_tokens(5, 2, weights=torch.tensor([1.0, 1.0, -1.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match=r"bos=5, .*expected ids in 0..4"):
        repeated_tokens(5, 2, bos=5)
    with pytest.raises(ValueError, match=r"d_vocab=2, bos=0, exclude=\[1\].*leave a token to draw"):
        repeated_tokens(2, 2, bos=0, exclude=[1])
