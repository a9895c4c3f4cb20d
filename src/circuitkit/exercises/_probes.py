"""Where and when an answer is wrong, found without any catalogue: regions, cases, ignored inputs, factors."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from circuitkit.exercises._changes import POWERS
from circuitkit.exercises._exercise import Exercise, sizes_of
from circuitkit.exercises._run import Run, close


def remarks(exercise: Exercise, runs: list[Run], expected: list[Tensor], answer) -> Iterator[str]:
    """Whatever can be said about a wrong answer that resembles no known mistake, the most telling first."""
    wrong = [i for i, (run, right) in enumerate(zip(runs, expected, strict=True)) if not close(run.outcome, right)]
    yield from _not_finite(exercise, runs, expected)
    yield from _factor(exercise, runs, expected)
    yield from _shape(exercise, runs, expected)
    if exercise.observe is None:  # else what is compared is not what was returned
        yield from _ignored(exercise, runs, expected, answer)
        yield from _rows(exercise, runs, expected)
    if 2 * len(wrong) > len(runs):  # a place is read off a few cases by chance
        yield from _where(exercise, [runs[i] for i in wrong], [expected[i] for i in wrong])
    if 0 < len(wrong) < len(runs):
        yield f"It is right on {len(runs) - len(wrong)} of {len(runs)} cases. What is special about the one above?"


def _pairs(runs: list[Run], expected: list[Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    """Results and right results, when all are numbers of the right shape."""
    both = [(run.outcome, right) for run, right in zip(runs, expected, strict=True) if run.outcome is not None]
    alike = len(both) == len(runs) and all(one.shape == other.shape for one, other in both)
    return both if alike and both else None


def _axes(exercise: Exercise, ndim: int) -> list[str]:
    return list(exercise.names) if len(exercise.names) == ndim else [f"axis {i}" for i in range(ndim)]


def _not_finite(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    for run, right in zip(runs, expected, strict=True):
        if run.outcome is None or run.finite or not right.isfinite().all():
            continue
        odd = ~run.outcome.isfinite()
        spots = "" if run.outcome.shape != right.shape else f" {_region([odd], exercise, [right]) or ''}".rstrip()
        yield f"Some entries are not finite{spots}. Is a row masked altogether, something divided by zero, or the logarithm of 0 taken?"
        return


def _factor(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    """One factor on all cases, or one that goes with a size."""
    both = _pairs(runs, expected)
    if both is None or not all(one.isfinite().all() for one, _ in both):
        return
    factors = [float((one * right).sum() / right.square().sum().clamp_min(1e-300)) for one, right in both]
    if any(not close(one, f * right, 1e-6) or abs(f) < 1e-9 for f, (one, right) in zip(factors, both, strict=True)):
        offsets = [float((one - right).mean()) for one, right in both]
        fits = all(close(one, right + o, 1e-6) for o, (one, right) in zip(offsets, both, strict=True))
        if fits and max(offsets) - min(offsets) < 1e-6 and both[0][0].numel() > 1:
            yield f"It is the expected result plus {offsets[0]:.4g}, everywhere. Where does this constant come from?"
        return
    if max(factors) - min(factors) < 1e-5:
        yield f"It is {factors[0]:.4g} times the expected result: a sign or a constant is missing."
        return
    for axis in sizes_of(exercise, runs[0].case):
        found = [sizes_of(exercise, run.case)[axis] for run in runs]
        for power, words in POWERS:
            for shift, less in ((0, ""), (-1, " - 1")):
                if all(math.isclose(f, max(n + shift, 0.5) ** power, rel_tol=1e-5) for f, n in zip(factors, found, strict=True)):
                    yield f"It is the expected result {words} {axis}{less}. Is a sum a mean, or the other way round?"
                    return
    if both[0][1].ndim:  # of a number that is always true
        yield "On each case it is a multiple of the expected result, but not always the same. What depends on the case?"


def _shape(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    run, right = runs[-1], expected[-1]
    if run.outcome is None or run.outcome.shape == right.shape:
        return
    have, want, axes = list(run.outcome.shape), list(right.shape), _axes(exercise, right.ndim)
    if have != want and sorted(have) == sorted(want):
        yield f"The axes are in another order: expected is [{', '.join(axes)}]."
    elif len(have) < len(want):
        lost = [axis for axis, size in zip(axes, want, strict=True) if size not in have]
        yield f"An axis is gone: {', '.join(lost) or 'one of ' + ', '.join(axes)}. Over what did you sum, or what did you pick?"
    elif len(have) > len(want):
        yield f"There is an axis too many: expected is [{', '.join(axes) or 'one number'}]. What is to be summed, or picked?"
    else:
        sizes = sizes_of(exercise, run.case)
        words = {size: name for name, size in sizes.items()}
        yield f"You return [{', '.join(words.get(n, str(n)) for n in have)}]; expected is [{', '.join(axes)}]."


def _ignored(exercise: Exercise, runs: list[Run], expected: list[Tensor], answer) -> Iterator[str]:
    """An input that was changed and moved the right result, but not this one, whose numbers are as many as the right ones."""
    one, other = runs[-1], runs[-2]
    if 5 * len(_values([run.outcome for run in runs])) < 4 * len(_values(expected)):
        return
    for name in exercise.asked:
        value = one.case[name]
        if isinstance(value, Tensor) and value.is_floating_point():
            changed = one.case | {name: value.flip(tuple(range(value.ndim))) * 1.7 + 0.3}
        elif other.case[name] != value if not isinstance(value, Tensor) else False:
            changed = one.case | {name: other.case[name]}
        else:
            continue
        mine, right = Run(exercise, answer, changed).outcome, Run(exercise, exercise.body, changed).outcome
        if mine is not None and right is not None and close(one.outcome, mine, 1e-12) and not close(right, expected[-1], 1e-6):
            yield f"Your result did not change when `{name}` was changed, the right one did. Where does `{name}` come in?"


def _values(found: Sequence[Tensor | None]) -> set[float]:
    """The different numbers of all cases: where they are few, as signs and counts are, they tell little of what they depend on."""
    return {round(v, 9) + 0.0 for one in found if one is not None for v in one.nan_to_num().flatten().tolist()}


def constant(runs: list[Run]) -> str:
    """That one number came out everywhere, on every case: too little to tell mistakes apart."""
    values = _values([run.outcome for run in runs])
    if len(values) != 1 or not all(run.finite for run in runs):
        return ""
    return f"Every number that comes out is {values.pop():g}, on every case. What does it depend on?"


def _rows(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    """Laws that the right result keeps and this one does not."""
    both = _pairs(runs, expected)
    if both is None:
        return
    axes = _axes(exercise, both[0][1].ndim)
    for axis, word in enumerate(axes):
        kept = all(close(right.sum(axis), torch.ones_like(right.sum(axis)), 1e-6) for _, right in both)
        if kept and not all(close(one.sum(axis), torch.ones_like(one.sum(axis)), 1e-4) for one, _ in both):
            yield f"The right result sums to 1 over {word}, yours does not everywhere."
    past = both[0][1].ndim == 2 and all(not right.triu(1).any() for _, right in both)
    if past and any(one.triu(1).abs().max() > 1e-6 for one, _ in both if min(one.shape) > 1):
        yield "The right result is 0 above the diagonal (in the future), yours is not."
    if all((right >= 0).all() for _, right in both) and any((one < -1e-6).any() for one, _ in both):
        yield "The right result is nowhere negative, yours is."


def _where(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    both = _pairs(runs, expected)
    if both is None or both[0][1].ndim == 0:
        return
    masks = [(one - right).abs().nan_to_num(math.inf) > 1e-6 * max(1.0, right.abs().max().item()) for one, right in both]
    if found := _region(masks, exercise, [right for _, right in both]):
        yield f"Where it fails, it is wrong only {found}."


def _region(masks: list[Tensor], exercise: Exercise, expected: list[Tensor]) -> str:
    """The smallest simple region that holds all marks of all cases, in words; empty when there is none.

    What is 0 or 1 anyway, such as the first row of a causal pattern, is no sign that an answer is right there.
    """
    open_ = [(right.abs() > 1e-6) & ((right - 1).abs() > 1e-6) for right in expected]
    axes = _axes(exercise, masks[0].ndim)
    regions: list[tuple[str, list[Tensor]]] = []

    def add(words: str, make) -> None:
        regions.append((words, [make(mask) for mask in masks]))

    def along(mask: Tensor, axis: int, chosen) -> Tensor:
        places = torch.arange(mask.shape[axis])
        shape = [-1 if i == axis else 1 for i in range(mask.ndim)]
        return chosen(places, mask.shape[axis]).reshape(shape).expand_as(mask)

    named = list(enumerate(axes))[: -1 if exercise.columns else None]  # columns are told by their own names
    for i, axis in named:
        add(f"at the first {axis}", lambda m, i=i: along(m, i, lambda p, n: p == 0))
        add(f"at the last {axis}", lambda m, i=i: along(m, i, lambda p, n: p == n - 1))
        for k in range(1, 4) if len({m.shape[i] for m in masks}) == 1 else ():
            add(f"at {axis} {k}", lambda m, i=i, k=k: along(m, i, lambda p, n, k=k: p == k))
    if masks[0].ndim == 2 and all(m.shape[0] == m.shape[1] for m in masks):
        add("on the diagonal", lambda m: torch.eye(len(m), dtype=torch.bool))
        add("directly above the diagonal", lambda m: torch.ones_like(m).triu(1) & ~torch.ones_like(m).triu(2))
        add("directly below the diagonal", lambda m: torch.ones_like(m).tril(-1) & ~torch.ones_like(m).tril(-2))
        add("above the diagonal", lambda m: torch.ones_like(m).triu(1))
        add("below the diagonal", lambda m: torch.ones_like(m).tril(-1))
        add("off the diagonal", lambda m: ~torch.eye(len(m), dtype=torch.bool))
    for i, axis in named:
        add(f"behind the first {axis}", lambda m, i=i: along(m, i, lambda p, n: p > 0))
        add(f"before the last {axis}", lambda m, i=i: along(m, i, lambda p, n: p < n - 1))
    for words, inside in regions:
        holds = all(not (mask & ~region).any() for mask, region in zip(masks, inside, strict=True))
        full = 2 * sum(int(mask.sum()) for mask in masks) >= sum(int((r & o).sum()) for r, o in zip(inside, open_, strict=True))
        if holds and full and any(bool((~region & free).any()) for region, free in zip(inside, open_, strict=True)):
            return words
    return ""
