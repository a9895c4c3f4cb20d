"""Whether a head carries a behaviour alone, with every set of other heads."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal, whole


def solution(written: Tensor, residual: Tensor, completion: int, has_source: Tensor) -> Tensor:
    """Try every set of other heads; ask for all of them with a source, and for none of them without."""
    rates = []
    for head in range(written.shape[1]):
        hits = predicted(written, residual, completion, sets_with(head, written))
        always, ever = hits.all(0), hits.any(0)
        rates.append([share(always[has_source]), share(~ever[~has_source])])
    return torch.tensor(rates)


def share(truths: Tensor) -> float:
    """Return how many entries are true, between 0 and 1."""
    return float(truths.double().mean())


def sets_with(head: int, written: Tensor) -> list[tuple[int, ...]]:
    """Return all sets of heads that contain one head, the smallest first."""
    n_heads = written.shape[1]
    others = [index for index in range(n_heads) if index != head]
    return [(head, *rest) for count in range(n_heads) for rest in combinations(others, count)]


def predicted(written: Tensor, residual: Tensor, completion: int, sets: Any) -> Tensor:
    """Return whether the completion has the largest logit, `[set, row]`."""
    logits = [residual + written[:, list(heads)].sum(1) for heads in sets]
    return torch.stack(logits).argmax(-1) == completion


def rates_of(written, residual, completion, has_source, choose):
    """Return the two rates when only the sets `choose(sets)` of each head are tried."""
    rates = []
    for head in range(written.shape[1]):
        sets = choose(sets_with(head, written))
        hits = predicted(written, residual, completion, sets)
        rates.append([share(hits.all(0)[has_source]), share(~hits.any(0)[~has_source])])
    return torch.tensor(rates)


def all_hits(written, residual, completion):
    """Return all predictions, `[head, set, row]`."""
    heads = range(written.shape[1])
    return torch.stack(
        [predicted(written, residual, completion, sets_with(head, written)) for head in heads]
    )


def two_rates(always, quiet, rows_1, rows_2):
    """Return two rates of `[head, row]` truths or shares, each over some rows."""
    first, second = always.double()[:, rows_1].mean(1), quiet.double()[:, rows_2].mean(1)
    return torch.stack([first, second], 1)


def cases(generator: Generator) -> Iterator[Case]:
    """Random heads that mostly help where there is a source."""
    for step, (heads, vocab) in enumerate([(2, 3), (3, 4), (3, 5), (4, 5), (4, 6), (3, 3)]):
        rows = 8 + 2 * step
        has_source = torch.randperm(rows, generator=generator) > 3 + step // 2
        completion = whole(generator, vocab)
        written = 0.7 * normal(generator, rows, heads, vocab)
        written[has_source, :, completion] += 1.2
        residual = 0.7 * normal(generator, rows, vocab)
        residual[~has_source, completion] -= 1.2
        yield {
            "written": written,
            "residual": residual,
            "completion": completion,
            "has_source": has_source,
        }


def no_residual(written, residual, completion, has_source):
    """The residual stream is missing. The logits are the residual stream plus what the heads write."""
    return solution(written, 0 * residual, completion, has_source)


def residual_for_each_head(written, residual, completion, has_source):
    """You add the residual stream once for each head. It enters the logits once."""
    return solution(written + residual[:, None], 0 * residual, completion, has_source)


def all_heads_only(*inputs):
    """You never remove another head, so all heads get the same rates. Try every set of the others."""
    return rates_of(*inputs, choose=lambda sets: sets[-1:])


def alone_only(*inputs):
    """You try only the head alone. Try every set of the other heads."""
    return rates_of(*inputs, choose=lambda sets: sets[:1])


def never_alone(*inputs):
    """You leave out the head alone. The empty set of other heads is a set, too: where does your range begin?"""
    return rates_of(*inputs, choose=lambda sets: sets[1:])


def never_all(*inputs):
    """You leave out the set of all heads. Where does your range end?"""
    return rates_of(*inputs, choose=lambda sets: sets[:-1])


def one_removed(*inputs):
    """You remove one other head at a time. Two heads can do together what neither does alone; try every set."""
    heads = inputs[0].shape[1]
    return rates_of(*inputs, choose=lambda sets: sets[-heads:-1])


def one_kept(*inputs):
    """You keep at most one other head. Any set of the others has to be tried."""
    heads = inputs[0].shape[1]
    return rates_of(*inputs, choose=lambda sets: sets[:heads])


def head_removed_too(*inputs):
    """You remove the head that is judged. Every set has to contain it."""
    return rates_of(*inputs, choose=lambda sets: [heads[1:] for heads in sets])


def averaged(written, residual, completion, has_source):
    """You average over sets. One set decides about a row: use all in the first rate and any in the second."""
    mean = all_hits(written, residual, completion).double().mean(1)
    return two_rates(mean, 1 - mean, has_source, ~has_source)


def some_set(written, residual, completion, has_source):
    """Your first rate asks for some set. The completion has to be predicted with every set: use all."""
    hits = all_hits(written, residual, completion)
    return two_rates(hits.any(1), ~hits.any(1), has_source, ~has_source)


def not_every_set(written, residual, completion, has_source):
    """Your second rate asks that some set is silent. No set may predict the completion: use not any."""
    hits = all_hits(written, residual, completion)
    return two_rates(hits.all(1), ~hits.all(1), has_source, ~has_source)


def how_often_it_fires(written, residual, completion, has_source):
    """Your second rate is how often the completion is predicted. A perfect head has to score 1: subtract it from 1."""
    hits = all_hits(written, residual, completion)
    return two_rates(hits.all(1), hits.any(1), has_source, ~has_source)


def all_rows(written, residual, completion, has_source):
    """Both rates use all rows. Use rows with a source in the first, and rows without in the second."""
    hits, every = all_hits(written, residual, completion), has_source | True
    return two_rates(hits.all(1), ~hits.any(1), every, every)


def second_rate_on_all_rows(written, residual, completion, has_source):
    """Your second rate uses all rows. Use those without a source."""
    hits = all_hits(written, residual, completion)
    return two_rates(hits.all(1), ~hits.any(1), has_source, has_source | True)


def second_rate_with_source(written, residual, completion, has_source):
    """Your second rate uses the rows with a source. It is the control, so use those without."""
    hits = all_hits(written, residual, completion)
    return two_rates(hits.all(1), ~hits.any(1), has_source, has_source)


def rates_exchanged(*inputs):
    """The two rates are exchanged. First the rows with a source, then those without."""
    return solution(*inputs).flip(1)


def positive_logit(written, residual, completion, has_source):
    """You ask for a positive logit. A completion is predicted if its logit is the largest."""
    rates = []
    for head in range(written.shape[1]):
        sets = sets_with(head, written)
        logits = torch.stack([residual + written[:, list(heads)].sum(1) for heads in sets])
        hits = logits[..., completion] > 0
        rates.append([share(hits.all(0)[has_source]), share(~hits.any(0)[~has_source])])
    return torch.tensor(rates)


def alone_and_all_only(*inputs):
    """You try only the head alone and all heads together. Try the sets between them, too."""
    return rates_of(*inputs, choose=lambda sets: [sets[0], sets[-1]])


def first_rate_on_all_rows(written, residual, completion, has_source):
    """Your first rate uses all rows. Use those with a source."""
    hits = all_hits(written, residual, completion)
    return two_rates(hits.all(1), ~hits.any(1), has_source | True, ~has_source)


def sets_without_the_head(*inputs):
    """You also try sets without the head that is judged. Every set has to contain it."""
    heads = range(inputs[0].shape[1])
    every_set = [chosen for count in range(len(heads) + 1) for chosen in combinations(heads, count)]
    return rates_of(*inputs, choose=lambda sets: every_set)


EXERCISE = Exercise(
    name="strict_verdict",
    title="a verdict that can fail",
    section="5-superposition/does-it-work#when-does-a-head-carry-a-rule",
    solution=solution,
    cases=cases,
    axes=("head", "rate"),
    mistakes=(
        no_residual, residual_for_each_head, all_heads_only, alone_only, never_alone, never_all,
        one_removed, one_kept, head_removed_too, averaged, some_set, not_every_set,
        how_often_it_fires, all_rows, second_rate_on_all_rows, second_rate_with_source,
        rates_exchanged, positive_logit, alone_and_all_only, first_rate_on_all_rows,
        sets_without_the_head,
    ),
)  # fmt: skip


def check_strict_verdict(answer: Any) -> Result:
    """Check that `answer(written, residual, completion, has_source)` returns two rates for each head, `[head, 2]`.

    The first rate is the share of rows with a source on which the completion has the largest logit with every set of
    other heads removed. The second is the share of rows without a source on which it has the largest logit with none.

    Parameters
    ----------
    answer : function of `written [row, head, vocab]`, what each head adds to the logits, `residual [row, vocab]`, the
        rest of the logits, `completion`, a token, and `has_source [row]`, true or false.

    Source: this book.
    """
    return check(EXERCISE, answer)
