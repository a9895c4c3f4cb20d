"""The attention of each head to the token after the earlier copy."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit.bridge import Model
from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import patterns, shipped


def solution(model: Model, tokens: Tensor, period: int, start: int) -> Tensor:
    """Sum the attention of each destination in the second pass to the token after its copy."""
    _, cache = model.run_with_cache(tokens)
    scores = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)
    for layer in range(model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0]  # [head, dst, src]
        for dst in range(start + period, start + 2 * period):
            copy = dst - period
            scores[layer] += pattern[:, dst, copy + 1] / period
    return scores


def cases(generator: Generator) -> Iterator[Case]:
    """Repeated spans; from the third case on, a token stands twice in the span, and the opening token once."""
    names = ("two-layer", "two-layer-mlp", "one-layer", "two-layer")
    for step, (period, name) in enumerate(zip((5, 7, 9, 12), names, strict=True)):
        span = torch.randint(1, 2048, (period,), generator=generator)
        if step > 1:
            span[3], span[2] = span[1], 0
        start = 1 - step % 2
        opening = torch.zeros(start, dtype=torch.long)
        tokens = torch.cat([opening, span, span])[None]
        yield {"model": shipped(name), "tokens": tokens, "period": period, "start": start}


def second_pass(period, start):
    """Return the destinations of the second pass."""
    return torch.arange(start + period, start + 2 * period)


def attention(model, tokens, dst, src):
    """Return the mean attention from each destination to its source, `[layer, head]`."""
    dst, src = dst[src >= 0], src[src >= 0]
    return patterns(model, tokens)[..., dst, src].mean(-1)


def at_copy(model, tokens, period, start):
    """You measure the attention to the earlier copy. An induction head attends to the token after it."""
    dst = second_pass(period, start)
    return attention(model, tokens, dst, dst - period)


def before_copy(model, tokens, period, start):
    """You measure the attention to the token before the earlier copy. Which token follows the copy?"""
    dst = second_pass(period, start)
    return patterns(model, tokens)[..., dst, dst - period - 1].mean(-1)


def two_after_copy(model, tokens, period, start):
    """Your source is one position too late. The copy is `period` positions back, and the source is the next token."""
    dst = second_pass(period, start)
    return attention(model, tokens, dst, dst - period + 2)


def previous_token(model, tokens, period, start):
    """You measure the attention to the previous token. Which token followed the earlier copy?"""
    dst = second_pass(period, start)
    return attention(model, tokens, dst, dst - 1)


def both_passes(model, tokens, period, start):
    """You include the first pass, in which nothing has been repeated yet."""
    dst = torch.arange(start, start + 2 * period)
    return attention(model, tokens, dst, dst - period + 1)


def first_left_out(model, tokens, period, start):
    """You leave out the first destination of the second pass. It begins at `start + period`."""
    dst = second_pass(period, start)[1:]
    return attention(model, tokens, dst, dst - period + 1)


def last_left_out(model, tokens, period, start):
    """You leave out the last destination. The second pass ends before `start + 2 * period`."""
    dst = second_pass(period, start)[:-1]
    return attention(model, tokens, dst, dst - period + 1)


def start_ignored(model, tokens, period, start):
    """You ignore `start`: the span begins at position `start`, not at 0."""
    return solution(model, tokens, period, 0)


def summed(model, tokens, period, start):
    """You sum over destinations. A perfect induction head has to score 1, so take the mean."""
    return solution(model, tokens, period, start) * period


def divided_by_all_positions(model, tokens, period, start):
    """You divide by the number of all positions. How many destinations does the second pass have?"""
    return solution(model, tokens, period, start) * period / tokens.shape[1]


def largest(model, tokens, period, start):
    """You take the largest attention. The mean over the second pass is asked for."""
    dst = second_pass(period, start)
    return patterns(model, tokens)[..., dst, dst - period + 1].amax(-1)


def all_pairs(model, tokens, period, start):
    """You pair every destination with every source. Index with both lists at once: pattern[:, dst, src]."""
    dst = second_pass(period, start)
    return patterns(model, tokens)[..., dst, :][..., dst - period + 1].mean((-1, -2))


def axes_exchanged(model, tokens, period, start):
    """Destinations and sources are exchanged. `hook_pattern` is [row, head, destination, source]."""
    dst = second_pass(period, start)
    return patterns(model, tokens)[..., dst - period + 1, dst].mean(-1)


def one_destination_too_early(model, tokens, period, start):
    """Your destinations begin one position too early. The second pass begins at `start + period`."""
    dst = torch.arange(start + period - 1, start + 2 * period)
    return attention(model, tokens, dst, dst - period + 1)


EXERCISE = Exercise(
    name="find_induction",
    title="find the induction head",
    section="3-induction-heads/induction-in-a-trained-model#find-the-heads",
    solution=solution,
    cases=cases,
    axes=("layer", "head"),
    mistakes=(
        at_copy, before_copy, two_after_copy, previous_token, both_passes, first_left_out,
        last_left_out, start_ignored, summed, divided_by_all_positions, largest, all_pairs,
        axes_exchanged, one_destination_too_early,
    ),
)  # fmt: skip


def check_find_induction(answer: Any) -> Result:
    """Check that `answer(model, tokens, period, start)` returns how much each head attends like an induction head.

    Parameters
    ----------
    answer : function of a model, `tokens [1, pos]`, which hold a span of `period` tokens at position `start` and the
        same span again directly after it. It returns `[layer, head]`: the mean, over the second pass, of the
        attention to the token after the copy one period back.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
    """
    return check(EXERCISE, answer)
