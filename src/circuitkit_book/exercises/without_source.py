"""How often a toy model completes, with its sources and without them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit.bridge import Model
from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import toy


def solution(model: Model, tokens: Tensor) -> Tensor:
    """Choose the due places first, then count hits in the prompts as they are and without sources."""
    due = model.task.states(tokens) == 2
    return rates(model, tokens, without(model, tokens), due)


def without(model: Model, tokens: Tensor) -> Tensor:
    """Return the prompts in which the token that begins a prompt replaces every source."""
    return tokens.masked_fill(tokens == 0, 2 * model.task.n_trigrams + 1)


def rates(model: Model, tokens: Tensor, changed: Tensor, places: Tensor, offset: int = 0) -> Tensor:
    """Return the share of places at which the completion has the largest logit, in both kinds of prompts."""
    completions = tokens + model.task.n_trigrams + offset
    hits = [model(prompts).argmax(-1) == completions for prompts in (tokens, changed)]
    return torch.stack([hit[places].double().mean() for hit in hits])


def cases(generator: Generator) -> Iterator[Case]:
    """Prompts of the task. From the third case on, some tokens are random, so that a completion does not always follow."""
    for step in range(8):
        task = toy(step).task
        tokens = task.sample(40 + 5 * step, seed=30 + step)
        if step > 1:
            other = torch.randint(2 * task.n_trigrams + 2, tokens.shape, generator=generator)
            replaced = torch.rand(tokens.shape, generator=generator) < 0.3
            tokens = torch.where(replaced, other, tokens)
        yield {"model": toy(step), "tokens": tokens}


def due_places(model, tokens):
    """Return the places at which a completion is due."""
    return model.task.states(tokens) == 2


def all_destinations(model, tokens):
    """You count every destination. Count those where a completion is due: `model.task.states(tokens) == 2`."""
    places = model.task.is_destination(tokens)
    return rates(model, tokens, without(model, tokens), places)


def all_positions(model, tokens):
    """You count every position. Count those where a completion is due: `model.task.states(tokens) == 2`."""
    return rates(model, tokens, without(model, tokens), torch.ones_like(tokens).bool())


def waiting_too(model, tokens):
    """You count places with state 1, too. A completion is due where the state is 2."""
    return rates(model, tokens, without(model, tokens), model.task.states(tokens) > 0)


def places_after_the_change(model, tokens):
    """You choose the places after the change. Without a source no completion is due, so choose them before."""
    first = rates(model, tokens, tokens, due_places(model, tokens))[0]
    changed = without(model, tokens)
    return torch.stack([first, rates(model, tokens, changed, due_places(model, changed))[1]])


def second_rate_of_0(model, tokens):
    """Your second rate is always 0. Are the places chosen after the change, when nothing is due?"""
    return solution(model, tokens) * torch.tensor([1.0, 0.0])


def place_before(model, tokens):
    """You read the prediction one place too early. The logits at a place predict the token that follows it."""
    places, completions = due_places(model, tokens), tokens + model.task.n_trigrams
    prompts = (tokens, without(model, tokens))
    hits = [model(prompt).argmax(-1).roll(1, 1) == completions for prompt in prompts]
    return torch.stack([hit[places].double().mean() for hit in hits])


def destination_itself(model, tokens):
    """You look for the destination itself. Its completion is b + n."""
    places = due_places(model, tokens)
    return rates(model, tokens, without(model, tokens), places, -model.task.n_trigrams)


def completion_too_high(model, tokens):
    """Your completion is one too high. The completion of destination b is b + n."""
    return rates(model, tokens, without(model, tokens), due_places(model, tokens), 1)


def probability(model, tokens):
    """You return a mean probability. Count how often the completion has the largest logit."""
    n, places = model.task.n_trigrams, due_places(model, tokens)
    right = (tokens + n).clamp_max(2 * n + 1)[..., None]
    prompts = (tokens, without(model, tokens))
    chances = [model(prompt).softmax(-1).gather(-1, right)[..., 0] for prompt in prompts]
    return torch.stack([chance[places].double().mean() for chance in chances])


def first_source_only(model, tokens):
    """You replace only the first source of a prompt. A prompt may hold several."""
    is_first = (tokens == 0) & ((tokens == 0).cumsum(1) == 1)
    changed = tokens.masked_fill(is_first, 2 * model.task.n_trigrams + 1)
    return rates(model, tokens, changed, due_places(model, tokens))


def not_changed(model, tokens):
    """Both rates are the same, because nothing was replaced. Do you run the changed prompts?"""
    return rates(model, tokens, tokens, due_places(model, tokens))


def filler(model, tokens):
    """You put token 2n in the place of the source. Put 2n + 1 there."""
    changed = tokens.masked_fill(tokens == 0, 2 * model.task.n_trigrams)
    return rates(model, tokens, changed, due_places(model, tokens))


def averaged_by_prompt(model, tokens):
    """You average prompts. All places count equally, whatever prompt they belong to."""
    places = due_places(model, tokens)
    with_places = places.any(1)
    completions = tokens + model.task.n_trigrams
    shares = []
    for prompts in (tokens, without(model, tokens)):
        hits = (model(prompts).argmax(-1) == completions) & places
        shares.append((hits.sum(1) / places.sum(1))[with_places].double().mean())
    return torch.stack(shares)


def counts(model, tokens):
    """You return counts. Divide by the number of places where a completion is due."""
    return solution(model, tokens) * due_places(model, tokens).sum()


def divided_by_all_positions(model, tokens):
    """You divide by the number of all positions. Divide by the number of places where a completion is due."""
    return solution(model, tokens) * due_places(model, tokens).double().mean()


def exchanged(model, tokens):
    """The two rates are exchanged. First the prompts as they are."""
    return solution(model, tokens).flip(0)


def completion_too_low(model, tokens):
    """Your completion is one too low. The completion of destination b is b + n."""
    return rates(model, tokens, without(model, tokens), due_places(model, tokens), -1)


def difference(model, tokens):
    """You return the difference of the two rates. Return both rates, first the one with sources."""
    first, second = solution(model, tokens)
    return first - second


EXERCISE = Exercise(
    name="without_source",
    title="take the source away",
    section="5-superposition/appendix#what-the-authors-own-check-does",
    solution=solution,
    cases=cases,
    axes=("rate",),
    mistakes=(
        all_destinations, all_positions, waiting_too, places_after_the_change, second_rate_of_0,
        place_before, destination_itself, completion_too_high, probability, first_source_only,
        not_changed, filler, averaged_by_prompt, counts, divided_by_all_positions, exchanged,
        completion_too_low, difference,
    ),
)  # fmt: skip


def check_without_source(answer: Any) -> Result:
    """Check that `answer(model, tokens)` returns how often a toy model completes, with its sources and without.

    Parameters
    ----------
    answer : function of a toy model and `tokens [prompt, pos]`. It returns two numbers: the share of the places where
        a completion is due (`model.task.states(tokens) == 2`) at which the completion has the largest of
        `model(tokens)`, and the same share, at the same places, after token 2n + 1 has replaced every source.

    Source: this book.
    """
    return check(EXERCISE, answer)
