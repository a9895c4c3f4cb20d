"""The skip-trigram task against a plain loop, against exact probabilities, and its errors."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit_book.superposition_task import SkipTrigramTask


def plain_loop(n_trigrams: int, n_ctx: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """One prompt and the positions of completed destinations, written from the task's description alone."""
    vocabulary = 2 * n_trigrams + 2
    prompt, completed = [vocabulary - 1], []
    waiting = False
    while len(prompt) < n_ctx:
        token = rng.randrange(1, vocabulary) if waiting else rng.randrange(vocabulary)
        prompt.append(token)
        if token == 0:
            waiting = True
        elif waiting and 1 <= token <= n_trigrams:
            completed.append(len(prompt) - 1)
            waiting = False
            if len(prompt) < n_ctx:
                prompt.append(token + n_trigrams)
    return prompt, completed


def test_states_of_a_prompt_worked_out_by_hand():
    task = SkipTrigramTask(3)  # source 0, destinations 1-3, completions 4-6, beginning 7
    prompt = torch.tensor([[7, 2, 0, 4, 3, 6, 1, 0, 1, 4, 0]])
    # beginning, destination, source, another token, destination, completion; a destination
    # without an unused source; then a whole trigram and a source
    assert task.states(prompt).tolist() == [[0, 0, 1, 1, 2, 0, 0, 1, 2, 0, 1]]
    assert (task.source, list(task.destinations), list(task.completions), task.bos) == (
        0,
        [1, 2, 3],
        [4, 5, 6],
        7,
    )


@pytest.mark.parametrize(
    "n_trigrams",
    [pytest.param(1, marks=pytest.mark.weekly), 3, pytest.param(5, marks=pytest.mark.weekly)],
)
def test_same_distribution_as_the_plain_loop(n_trigrams):
    """Token frequencies at each position, pairs of neighbours, and completed trigrams, within 5 standard errors."""
    n, task = 20_000, SkipTrigramTask(n_trigrams)
    rng = random.Random(5)
    slow, completed = zip(*(plain_loop(n_trigrams, task.n_ctx, rng) for _ in range(n)), strict=True)
    slow, fast, v = torch.tensor(slow), task.sample(4 * n, seed=6), task.d_vocab

    def compare(a, b):
        share = (a.sum() + b.sum()) / (len(a) + len(b))
        error = math.sqrt(max(share * (1 - share), 1e-4) * (1 / len(a) + 1 / len(b)))
        assert abs(a.double().mean() - b.double().mean()) < 5 * error

    for pos in range(task.n_ctx):
        for token in range(v):
            compare((slow[:, pos] == token).double(), (fast[:, pos] == token).double())
    for first in range(v):
        for second in range(v):
            pair = [(t[:, 4] == first) & (t[:, 5] == second) for t in (slow, fast)]
            compare(pair[0].double(), pair[1].double())
    for k in (0, 1, 2):
        times = torch.tensor([len(places) == k for places in completed]).double()
        compare(times, ((task.states(fast) == 2).sum(1) == k).double())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(4, 13), st.integers(0, 10**6))
def test_laws_of_every_task(n_trigrams, n_ctx, seed):
    task = SkipTrigramTask(n_trigrams, n_ctx)
    tokens = task.sample(50, seed)
    assert tokens.shape == (50, n_ctx)
    assert (tokens[:, 0] == task.bos).all()
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < task.d_vocab
    states = task.states(tokens)
    forced = states[:, :-1] == 2
    assert (tokens[:, 1:][forced] == tokens[:, :-1][forced] + n_trigrams).all()
    assert not (tokens[:, 1:][states[:, :-1] == 1] == task.source).any()
    assert torch.equal(tokens, task.sample(50, seed))
    assert not torch.equal(task.sample(100, seed), task.sample(100, seed + 1))
    negatives = task.negatives(50, seed)
    assert not (negatives == task.source).any()
    assert task.is_destination(negatives[:, :-1]).any(1).all()
    assert (task.states(negatives) == 0).all()


def test_negatives_are_the_tasks_own_prompts_without_a_source():
    """Their tokens agree with sampled prompts that happen to hold no source and some destination."""
    task = SkipTrigramTask(3)
    sampled = task.sample(200_000, 1)
    kept = sampled[(sampled != 0).all(1) & task.is_destination(sampled[:, :-1]).any(1)]
    negatives = task.negatives(40_000, 2)
    for token in range(task.d_vocab):
        a, b = (kept[:, 1:] == token).double().mean(0), (negatives[:, 1:] == token).double().mean(0)
        assert (a - b).abs().max() < 5 * math.sqrt(0.25 * (1 / len(kept) + 1 / len(negatives)))


def test_impossible_tasks_and_foreign_tokens_are_refused():
    with pytest.raises(ValueError, match="0 trigrams and 3 positions.*n_trigrams >= 1"):
        SkipTrigramTask(0, n_ctx=3)
    with pytest.raises(ValueError, match="tokens 0 to 7, and these prompts hold 0 to 9"):
        SkipTrigramTask(3).states(torch.tensor([[7, 0, 9]]))
