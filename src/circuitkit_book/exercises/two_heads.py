"""Two heads that serve any number of skip-trigrams."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, whole

Matrices = tuple[Tensor, Tensor, Tensor, Tensor]


def build(
    n: int,
    gains: tuple[float, float],
    source_keys: tuple[float, float] = (0.0, 60.0),
    key: float = 30.0,
    shift: int = 0,
    first: int = 1,
) -> Matrices:
    """Return two heads in which each destination attends to itself and writes its completion.

    `gains` and the source's keys are those of head 0 and head 1. `shift` moves the completions, and `first` is the
    first destination.
    """
    vocab, one_hot = 2 * n + 2, torch.eye(n, dtype=torch.float64)
    destinations = torch.arange(first, first + n)
    W_Q, W_K, W_V = torch.zeros(3, 2, vocab, n, dtype=torch.float64)
    W_O = torch.zeros(2, n, vocab, dtype=torch.float64)
    W_Q[:, destinations], W_K[:, destinations] = one_hot, key * one_hot
    W_V[:, destinations] = one_hot
    for head in range(2):
        if source_keys[head]:
            W_K[head, 0] = source_keys[head]
        W_O[head][:, destinations + n + shift] = gains[head] * one_hot
    return W_Q, W_K, W_V, W_O


def solution(n: int, gain: float) -> Matrices:
    """Head 0 always writes the completion; head 1 takes it back, unless it attends to the source."""
    return build(n, (gain, -gain))


def observe(answer: Any, n: int, gain: float, prompt: tuple[int, ...]) -> Tensor:
    """Compute what both heads together write at the last position of the prompt, `[token]`."""
    vocab = 2 * n + 2
    inner = (2, vocab, "d_head")
    W_Q, W_K, W_V, W_O = built(
        answer, W_Q=inner, W_K=inner, W_V=(2, vocab, "d_value"), W_O=(2, "d_value", vocab)
    )
    tokens = list(prompt)
    written = torch.zeros(vocab, dtype=torch.float64)
    for head in range(2):
        attention = (W_K[head][tokens] @ W_Q[head][tokens[-1]]).softmax(0)
        written += attention @ W_V[head][tokens] @ W_O[head]
    return written


def cases(generator: Generator) -> Iterator[Case]:
    """Twelve prompts for two sizes: with and without a source, a destination, and a second destination."""
    for step in range(24):
        n = 2 + step // 6
        b, other = (1 + torch.randperm(n, generator=generator)[:2]).tolist()
        filler, start = n + 1 + whole(generator, n), 2 * n + 1
        prompts = [
            (start, filler, b), (start, 0, b), (start, other, filler, b), (start, 0, other, filler, b),
            (start, 0, b, filler), (start, 0, filler, b, b), (start, b, other, b), (start, other, 0, b),
            (start, b, 0), (start,), (start, 0, start, 0, b), (b, start, filler),
        ]  # fmt: skip
        yield {"n": n, "gain": 4.0 + step % 3, "prompt": prompts[step % 12]}


def source_not_seen(n, gain):
    """Nothing is written, with a source or without. With a source, one head has to attend to it instead."""
    return build(n, (gain, -gain), (0.0, 0.0))


def source_draws_level(n, gain):
    """The source's key only equals that of the destination, so half of the attention stays. Which key has to be larger?"""
    return build(n, (gain, -gain), (0.0, 30.0))


def wrong_head_sees_the_source(n, gain):
    """The completion is lowered where it should be raised. The head that takes back has to attend to the source."""
    return build(n, (gain, -gain), (60.0, 0.0))


def heads_add_up(n, gain):
    """Both heads write with the same sign. Without a source, they have to cancel."""
    return build(n, (gain, gain))


def nothing_taken_back(n, gain):
    """The completion is written with or without a source. Head 1 has to take it back when there is no source."""
    return build(n, (gain, 0.0))


def no_gain(n, gain):
    """The gain is missing. What is written has to be multiplied by `gain`."""
    return build(n, (1.0, -1.0))


def destination_written(n, gain):
    """The destination itself is written. Its completion is n tokens further on: b + n."""
    return build(n, (gain, -gain), shift=-n)


def completion_too_low(n, gain):
    """The completions are one too low. Destination b, from 1 to n, has the completion b + n."""
    return build(n, (gain, -gain), shift=-1)


def completion_too_high(n, gain):
    """The completions are one too high. Destination b, from 1 to n, has the completion b + n."""
    return build(n, (gain, -gain), shift=1)


def destinations_from_0(n, gain):
    """Your destinations begin with token 0. That is the source; destinations are 1 to n."""
    return build(n, (gain, -gain), first=0)


def source_has_a_value(n, gain):
    """The source has a value, so head 1 writes something when it attends to it. Its value has to be 0."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    W_V[1, 0] = 1.0
    return W_Q, W_K, W_V, W_O


def scores_too_small(n, gain):
    """Your scores are too small: a score that is larger by 1 gets only e times the attention. Make the differences 30."""
    return build(n, (gain, -gain), (0.0, 2.0), key=1.0)


def scores_of_10(n, gain):
    """Your scores are too small for full attention: exp(-10) is still visible here. Make the differences 30."""
    return build(n, (gain, -gain), (0.0, 20.0), key=10.0)


EXERCISE = Exercise(
    name="two_heads",
    title="two heads, any number of trigrams",
    section="5-superposition/why-heads-share#two-heads-are-enough",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("written on token",),
    mistakes=(
        source_not_seen, source_draws_level, wrong_head_sees_the_source, heads_add_up,
        nothing_taken_back, no_gain, destination_written, completion_too_low,
        completion_too_high, destinations_from_0, source_has_a_value, scores_too_small,
        scores_of_10,
    ),
)  # fmt: skip


def check_two_heads(answer: Any) -> Result:
    r"""Check that `answer(n, gain)` returns `W_Q, W_K, W_V, W_O` of two heads that serve `n` skip-trigrams.

    Tokens are one-hot: 0 is the source, 1 to n the destinations, n + 1 to 2n their completions, and 2n + 1 begins a
    prompt. Scores are $q \\cdot k$, not divided; the mask is causal. At a destination with a source anywhere before it
    the two heads together have to write `gain` on its completion. Everywhere else they have to write nothing.

    Parameters
    ----------
    answer : function of an integer and a number. `W_Q`, `W_K` and `W_V` are `[2, vocab, d_head]` and `W_O` is
        `[2, d_head, vocab]`, with `vocab = 2n + 2` and any `d_head`.

    Source: this book.
    """
    return check(EXERCISE, answer)
