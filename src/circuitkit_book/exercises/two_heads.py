"""Exercise 5.3: two heads that serve any number of skip-trigrams."""

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
    """The wrong head attends to the source, so the completion is lowered. The head that takes back has to attend to it."""
    return build(n, (gain, -gain), (60.0, 0.0))


def both_heads_see_the_source(n, gain):
    """Both heads attend to the source, so nothing is written. The head that guesses has to stay at the destination."""
    return build(n, (gain, -gain), (60.0, 60.0))


def heads_add_up(n, gain):
    """Both heads write with the same sign. Without a source, they have to cancel."""
    return build(n, (gain, gain))


def nothing_taken_back(n, gain):
    """The completion is written with or without a source. Head 1 has to take it back when there is no source."""
    return build(n, (gain, 0.0))


def twice_taken_back(n, gain):
    """Head 1 takes back twice what head 0 writes. Without a source, they have to cancel."""
    return build(n, (gain, -2 * gain))


def no_guess(n, gain):
    """Head 0 writes nothing. It has to write the completion always."""
    return build(n, (0.0, -gain))


def signs_exchanged(n, gain):
    """Both signs are wrong: with a source the completion is lowered. Head 0 has to raise it."""
    return build(n, (-gain, gain))


def no_gain(n, gain):
    """The gain is missing. What is written has to be multiplied by `gain`."""
    return build(n, (1.0, -1.0))


def gain_of_head_0(n, gain):
    """Only head 0 is multiplied by the gain. Without a source, the heads have to cancel."""
    return build(n, (gain, -1.0))


def gain_of_head_1(n, gain):
    """Only head 1 is multiplied by the gain. Without a source, the heads have to cancel."""
    return build(n, (1.0, -gain))


def gain_squared(n, gain):
    """The gain enters twice. Multiply only one of the matrices by it."""
    return build(n, (gain**2, -(gain**2)))


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


def completions_reversed(n, gain):
    """The completions are in reverse order. Destination b has the completion b + n."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    return W_Q, W_K, W_V, W_O.flip(1)


def source_has_a_value(n, gain):
    """The source has a value, so head 1 writes something when it attends to it. Its value has to be 0."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    W_V[1, 0] = 1.0
    return W_Q, W_K, W_V, W_O


def one_value_for_all(n, gain):
    """All destinations share one value, so all completions are written at once. Each needs a direction of its own."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    return (
        W_Q,
        W_K,
        W_V @ torch.full((n, n), 1 / n, dtype=W_V.dtype),
        W_O.sum(1, keepdim=True).expand_as(W_O),
    )


def any_destination(n, gain):
    """A destination attends to all destinations, so it mixes their completions. Each query has to match its own key."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    W_Q[:, 1 : n + 1] = 1.0 / n
    return W_Q, W_K, W_V, W_O


def completions_ask(n, gain):
    """Queries and keys belong to the completions. The prediction is made at the destination, token b."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    return W_Q.roll(n, 1), W_K.roll(n, 1), W_V.roll(n, 1), W_O


def first_trigram_only(n, gain):
    """The source's key beats only that of the first destination. It needs a number for each of the n queries."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    W_K[:, 0, 1:] = 0.0
    return W_Q, W_K, W_V, W_O


def start_for_source(n, gain):
    """You take the token that begins a prompt for the source. The source is token 0."""
    W_Q, W_K, W_V, W_O = solution(n, gain)
    W_K[:, -1], W_K[:, 0] = W_K[:, 0].clone(), 0.0
    return W_Q, W_K, W_V, W_O


def scores_too_small(n, gain):
    """Your scores are too small: a score that is larger by 1 gets only e times the attention. Make the differences 30."""
    return build(n, (gain, -gain), (0.0, 2.0), key=1.0)


def scores_of_10(n, gain):
    """Your scores are too small for full attention: exp(-10) is still visible here. Make the differences 30."""
    return build(n, (gain, -gain), (0.0, 20.0), key=10.0)


def scores_of_5(n, gain):
    """Your scores are too small for full attention: exp(-5) is still visible here. Make the differences 30."""
    return build(n, (gain, -gain), (0.0, 10.0), key=5.0)


EXERCISE = Exercise(
    number="5.3",
    name="two_heads",
    title="two heads, any number of trigrams",
    section="05-attention-superposition#two-heads-do-any-number",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("written on token",),
    mistakes=(
        source_not_seen, source_draws_level, wrong_head_sees_the_source, both_heads_see_the_source,
        heads_add_up, nothing_taken_back, twice_taken_back, no_guess, signs_exchanged, no_gain,
        gain_of_head_0, gain_of_head_1, gain_squared, destination_written, completion_too_low,
        completion_too_high, destinations_from_0, completions_reversed, source_has_a_value,
        one_value_for_all, any_destination, completions_ask, first_trigram_only, start_for_source,
        scores_too_small, scores_of_10, scores_of_5,
    ),
)  # fmt: skip


def check_two_heads(answer: Any) -> Result:
    r"""Exercise 5.3: `answer(n, gain)` returns `W_Q, W_K, W_V, W_O` of two heads that serve `n` skip-trigrams.

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
