"""Where and when an answer is wrong, found without any catalogue: regions, cases, ignored inputs, factors."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from circuitkit_book.exercises.answers import Run, close
from circuitkit_book.exercises.changes import POWERS
from circuitkit_book.exercises.exercise import Case, Exercise, sizes_of


def remarks(exercise: Exercise, runs: list[Run], expected: list[Tensor], answer) -> Iterator[str]:
    """Whatever can be said about a wrong answer that resembles no known mistake, the most telling first."""
    wrong = [
        i
        for i, (run, right) in enumerate(zip(runs, expected, strict=True))
        if not close(run.outcome, right)
    ]
    yield from _not_finite(exercise, runs, expected)
    yield from _factor(exercise, runs, expected)
    yield from _shape(exercise, runs, expected)
    places = (
        _where(exercise, [runs[i] for i in wrong], [expected[i] for i in wrong])
        if len(wrong) > min(3, len(runs) / 2)
        else ()
    )
    yield from _kept(exercise, runs, expected)
    yield from (
        places if exercise.observe is not None else ()
    )  # what was built shows itself by where it fails
    yield from _laws(exercise, runs, answer)
    yield from places  # none are left where they were told before
    if 0 < len(wrong) < len(runs):
        yield from _when(exercise, [run.case for run in runs], wrong)
        yield f"It is right on {len(runs) - len(wrong)} of {len(runs)} cases. What is special about the one above?"


def _when(exercise: Exercise, cases: list[Case], wrong: list[int]) -> Iterator[str]:
    """The kind of case on which it fails: one that the exercise names, or a whole number that is asked with."""
    found = [
        (words, [i for i, case in enumerate(cases) if holds(**case)])
        for words, holds in exercise.kinds.items()
    ]
    for name in (n for n in exercise.asked if isinstance(cases[0][n], int)):
        found += [
            (f"`{name}` is {value}", [i for i, case in enumerate(cases) if case[name] == value])
            for value in {case[name] for case in cases}
        ]
    for words, inside in sorted(found, key=lambda one: len(one[1])):
        if (
            set(wrong) <= set(inside)
            and len(inside) < len(cases)
            and 2 * len(wrong) >= len(inside) > 1
        ):
            yield f"It is wrong on {len(wrong)} of the {len(inside)} cases where {words}, and right on all others."
            return


def _pairs(runs: list[Run], expected: list[Tensor]) -> list[tuple[Tensor, Tensor]] | None:
    """Results and right results, when all are numbers of the right shape."""
    both = [
        (run.outcome, right)
        for run, right in zip(runs, expected, strict=True)
        if run.outcome is not None
    ]
    alike = len(both) == len(runs) and all(one.shape == other.shape for one, other in both)
    return both if alike and both else None


def _axes(exercise: Exercise, ndim: int) -> list[str]:
    return (
        list(exercise.names) if len(exercise.names) == ndim else [f"axis {i}" for i in range(ndim)]
    )


def _not_finite(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    for run, right in zip(runs, expected, strict=True):
        if run.outcome is None or run.finite or not right.isfinite().all():
            continue
        odd = ~run.outcome.isfinite()
        spots = (
            ""
            if run.outcome.shape != right.shape
            else f" {_region([odd], exercise, [right]) or ''}".rstrip()
        )
        yield f"Some entries are not finite{spots}. Is a row masked altogether, something divided by zero, or the logarithm of 0 taken?"
        return


def _factor(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    """One factor on all cases, or one that goes with a size."""
    both = _pairs(runs, expected)
    if both is None or not all(one.isfinite().all() for one, _ in both):
        return
    factors = [
        float((one * right).sum() / right.square().sum().clamp_min(1e-300)) for one, right in both
    ]
    if any(
        not close(one, f * right, 1e-6) or abs(f) < 1e-9
        for f, (one, right) in zip(factors, both, strict=True)
    ):
        offsets = [float((one - right).mean()) for one, right in both]
        fits = all(
            close(one, right + o, 1e-6) for o, (one, right) in zip(offsets, both, strict=True)
        )
        if fits and max(offsets) - min(offsets) < 1e-6 and both[0][0].numel() > 1:
            yield f"It is the expected result plus {offsets[0]:.4g}, everywhere. Where does this constant come from?"
        return
    if max(factors) - min(factors) < 1e-5:
        yield f"It is {factors[0]:.4g} times the expected result. Where does this factor come from?"
        return
    for axis in sizes_of(exercise, runs[0].case):
        found = [sizes_of(exercise, run.case)[axis] for run in runs]
        for power, words in POWERS:
            for shift, less in ((0, ""), (-1, " - 1")):
                if all(
                    math.isclose(f, max(n + shift, 0.5) ** power, rel_tol=1e-5)
                    for f, n in zip(factors, found, strict=True)
                ):
                    yield f"It is the expected result {words} {axis}{less}. Is a sum a mean, or the other way round?"
                    return


def _shape(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    run, right = runs[-1], expected[-1]
    if run.outcome is None or run.outcome.shape == right.shape:
        return
    have, want, axes = list(run.outcome.shape), list(right.shape), _axes(exercise, right.ndim)
    if have != want and sorted(have) == sorted(want):
        yield f"Your result has the expected sizes in another order: expected is [{', '.join(axes)}]."
    elif len(have) < len(want):
        lost = [axis for axis, size in zip(axes, want, strict=True) if size not in have]
        yield f"An axis is gone, by the sizes {', '.join(lost) or 'one of ' + ', '.join(axes)}. Over what did you sum, or what did you pick?"
    elif len(have) > len(want):
        yield f"There is an axis too many: expected is [{', '.join(axes) or 'one number'}]. What is to be summed, or picked?"
    else:
        words = {size: name for name, size in sizes_of(exercise, run.case).items()}
        yield f"You return [{', '.join(words.get(n, str(n)) for n in have)}]; expected is [{', '.join(axes)}]."


_EFFECTS = (
    ("stays as it is", 1.0),
    ("is twice as large", 2.0),
    ("is four times as large", 4.0),
    ("is half as large", 0.5),
    ("changes its sign", -1.0),
)


def _laws(exercise: Exercise, runs: list[Run], answer) -> Iterator[str]:
    """What an input does to the right result and not to this one: both are run on three cases, as they are and changed."""
    ours = [
        (run.case, run.outcome, Run(exercise, exercise.body, run.case).outcome) for run in runs[-3:]
    ]
    if any(mine is None or right is None or mine.shape != right.shape for _, mine, right in ours):
        return

    def moved(name: str, change) -> list[tuple[Tensor, ...]]:
        """This result and the right one, before and after; nothing where one of them has no such result."""
        found = []
        for before, mine, right in ours:
            case = before | {name: change(before[name])}
            if exercise.observe is not None and not close(
                Run(exercise, exercise.body, case).outcome, exercise.spec(**case)
            ):
                return []  # what was drawn to fit together, such as orthonormal rows, does so no more
            after = [Run(exercise, one, case).outcome for one in (answer, exercise.body)]
            if any(
                one is None or mine is None or one.shape != mine.shape or not one.isfinite().all()
                for one in after
            ):
                return []
            found.append((mine, after[0], right, after[1]))
        return found

    few = 3 * len(_values([mine for _, mine, _ in ours])) < len(
        _values([right for *_, right in ours])
    )
    for name in exercise.asked:
        value, how = runs[-1].case[name], exercise.inputs[name]
        if isinstance(value, (int, float)):
            least, most = (end(run.case[name] for run in runs) for end in (min, max))
            yield from (
                ()
                if few
                else _reach(
                    exercise,
                    "",
                    f"`{name}`",
                    moved(name, lambda v, a=least, b=most: b if v == a else a),
                )
            )
        if not isinstance(value, Tensor) or value.dtype == torch.bool:
            continue
        if value.is_floating_point():
            yield from (
                ()
                if few
                else _reach(
                    exercise,
                    "",
                    f"`{name}`",
                    moved(name, lambda v: 1.7 * v.flip(tuple(range(v.ndim))) + 0.3),
                )
            )
            for words, change in (
                ("is twice as large", lambda v: 2 * v),
                ("changes its sign", torch.neg),
            ):
                yield from _effect(f"When `{name}` {words}", moved(name, change))
            whole, other = moved(name, lambda v: v + v.flip(-1)), moved(name, lambda v: v.flip(-1))
            gaps = (
                [
                    [w[i + 1] - w[i] - o[i + 1] for w, o in zip(whole, other, strict=True)]
                    for i in (0, 2)
                ]
                if len(whole) == len(other)
                else []
            )
            if (
                gaps
                and gaps[0]
                and all(g.abs().max() < 1e-6 for g in gaps[1])
                and all(g.abs().max() > 1e-3 for g in gaps[0])
            ):
                yield f"The right result of a sum of two `{name}` is the sum of their results; yours is not."
        whole = (
            moved(name, lambda v: 1.7 * v.flip(tuple(range(v.ndim))) + 0.3)
            if exercise.observe and value.is_floating_point()
            else []
        )
        if whole and all(close(w[3], w[2]) for w in whole):
            continue  # the right result never changes with it: that yours does at one end says nothing
        for axis in range(value.ndim):
            word = (
                how.split()[axis]
                if isinstance(how, str)
                else f"entry along axis {axis}"
                if value.is_floating_point()
                else "token"
            )
            for at, end in (
                ((-1, "last"), (0, "first"))
                if all(case[name].shape[axis] > 1 for case, *_ in ours)
                else ()
            ):
                yield from (
                    ()
                    if few
                    else _reach(
                        exercise,
                        end,
                        f"`{name}` at its {end} {word}",
                        moved(name, lambda v, a=axis, i=at: _other(v, a, i)),
                    )
                )


def _other(value: Tensor, axis: int, at: int) -> Tensor:
    out = value.clone()
    part = out.select(axis, at)
    part.copy_(
        1.7 * part + 0.3 if value.is_floating_point() else torch.where(part > 0, part - 1, part + 1)
    )
    return out


def _effect(when: str, found: list[tuple[Tensor, ...]]) -> Iterator[str]:
    """Which factor the right result takes on every case, if this one takes it on none."""
    kinds = [
        [
            words
            for words, f in _EFFECTS
            if found and all(close(w[i + 1], f * w[i], 1e-6) for w in found)
        ]
        for i in (0, 2)
    ]
    factor = dict(_EFFECTS).get(kinds[1][0]) if kinds[1] else None
    if factor is not None and not any(close(w[1], factor * w[0], 1e-4) for w in found):
        yield f"{when}, the right result {kinds[1][0]}; yours {kinds[0][0] if kinds[0] else 'does not'}."


def _reach(
    exercise: Exercise, end: str, what: str, found: list[tuple[Tensor, ...]]
) -> Iterator[str]:
    """Whether the result depends on a part of an input, and where, if that holds on every case."""
    far = [[(w[i + 1] - w[i]).abs() for w in found] for i in (0, 2)]
    none = [bool(found) and all(gap.max() < 1e-7 for gap in gaps) for gaps in far]
    some = [bool(found) and all(gap.max() > 1e-4 for gap in gaps) for gaps in far]
    if none[0] and some[1]:
        yield f"Your result stays as it is when only {what} is changed; the right one changes."
    elif some[0] and none[1] and end:
        yield f"Your result changes when only {what} is changed; the right one stays as it is."
    for i, axis in (
        enumerate(_axes(exercise, found[0][0].ndim)) if some[0] and some[1] and end else ()
    ):
        cut = [
            [gap.narrow(i, 0 if end == "last" else 1, gap.shape[i] - 1) for gap in gaps]
            for gaps in far
        ]
        if all(c.numel() and m.max() > 1e-4 and c.max() < 1e-7 for m, c in zip(*cut, strict=True)):
            yield f"When only {what} is changed, the right result changes at the {end} {axis} alone; yours elsewhere, too."


def _values(found: Sequence[Tensor | None]) -> set[float]:
    """The different numbers of all cases: where they are few, as signs and counts are, they tell little of what they depend on."""
    return {
        round(v, 9) + 0.0
        for one in found
        if one is not None
        for v in one.nan_to_num().flatten().tolist()
    }


def few(runs: list[Run], expected: list[Tensor]) -> bool:
    """Whether fewer numbers came out than should: signs, counts and level scores tell two mistakes from two others by chance."""
    found, whole = _values([run.outcome for run in runs]), _values(expected)
    return 5 * len(found) < 4 * len(whole) or all(value == round(value) for value in found)


def constant(runs: list[Run]) -> str:
    """That one number came out everywhere, on every case: too little to tell mistakes apart."""
    values = _values([run.outcome for run in runs])
    if len(values) != 1 or not all(run.finite for run in runs):
        return ""
    return (
        f"Every number that comes out is {values.pop():g}, on every case. What does it depend on?"
    )


def _kept(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    """Laws that this result keeps on every case and the right one on none; and where numbers are returned, the other way round."""
    both = _pairs(runs, expected)
    if both is None or exercise.columns or not all(run.finite for run in runs):
        return
    ndim, returned = both[0][1].ndim, exercise.observe is None
    laws = [("is nowhere negative", lambda v: (v > -1e-9).all())]
    for axis, word in enumerate(_axes(exercise, ndim)):
        laws += [
            (
                f"sums to {n} over {word}",
                lambda v, a=axis, n=n: (
                    v.shape[a] > 1 and close(v.sum(a), torch.full_like(v.sum(a), n), 1e-6)
                ),
            )
            for n in (0, 1)
        ]
        laws += [
            (
                f"is the same at every {word}",
                lambda v, a=axis: v.shape[a] > 1 and close(v, v.narrow(a, 0, 1).expand_as(v), 1e-6),
            )
        ]
    if ndim == 2:
        laws += [("is symmetric", lambda v: len(v) > 1 and close(v, v.mT, 1e-6))]
        laws += (
            [("is 0 above the diagonal (in the future)", lambda v: not v.triu(1).any())]
            if returned
            else []
        )
    for words, holds in laws:
        mine, right = ([bool(holds(pair[i])) for pair in both] for i in (0, 1))
        if returned and all(right) and not all(mine):
            yield f"The right result {words}; yours not on every case."
        elif all(mine) and not any(right):
            yield f"Your result {words} on every case, the right one on none."
    zero = [right.abs() < 1e-9 for _, right in both]
    if not returned and any(z.any() for z in zero) and not all(z.all() for z in zero):
        good = [
            all(close(v[m], right[m]) for (v, right), m in zip(both, masks, strict=True))
            for masks in (zero, [~z for z in zero])
        ]
        yield from (
            [
                "Where the right result is 0, yours is 0 as well; where it is not 0, yours is not always right."
            ]
            if good[0]
            else ()
        )
        yield from (
            [
                "Where the right result is not 0, yours is right; where it is 0, yours is not always 0."
            ]
            if good[1]
            else ()
        )
    ranks = [[int(torch.linalg.matrix_rank(v)) for v in pair] for pair in both] if ndim == 2 else []
    if ranks and all(mine < right for mine, right in ranks):
        yield f"As a matrix your result has a lower rank than the right one, on the largest case {ranks[-1][0]} instead of {ranks[-1][1]}."


def _where(exercise: Exercise, runs: list[Run], expected: list[Tensor]) -> Iterator[str]:
    both = _pairs(runs, expected)
    if both is None or both[0][1].ndim == 0:
        return
    masks = [
        (one - right).abs().nan_to_num(math.inf) > 1e-6 * max(1.0, right.abs().max().item())
        for one, right in both
    ]
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

    named = list(enumerate(axes))[
        : -1 if exercise.columns else None
    ]  # columns are told by their own names
    for i, axis in named:
        add(f"at the first {axis}", lambda m, i=i: along(m, i, lambda p, n: p == 0))
        add(f"at the last {axis}", lambda m, i=i: along(m, i, lambda p, n: p == n - 1))
        for k in range(1, 4) if len({m.shape[i] for m in masks}) == 1 else ():
            add(f"at {axis} {k}", lambda m, i=i, k=k: along(m, i, lambda p, n, k=k: p == k))
    if masks[0].ndim == 2 and all(m.shape[0] == m.shape[1] for m in masks):
        add("on the diagonal", lambda m: torch.eye(len(m), dtype=torch.bool))
        add(
            "directly above the diagonal",
            lambda m: torch.ones_like(m).triu(1) & ~torch.ones_like(m).triu(2),
        )
        add(
            "directly below the diagonal",
            lambda m: torch.ones_like(m).tril(-1) & ~torch.ones_like(m).tril(-2),
        )
        add("above the diagonal", lambda m: torch.ones_like(m).triu(1))
        add("below the diagonal", lambda m: torch.ones_like(m).tril(-1))
        add("off the diagonal", lambda m: ~torch.eye(len(m), dtype=torch.bool))
    for i, axis in named:
        add(f"behind the first {axis}", lambda m, i=i: along(m, i, lambda p, n: p > 0))
        add(f"before the last {axis}", lambda m, i=i: along(m, i, lambda p, n: p < n - 1))
    for words, inside in regions:
        holds = all(not (mask & ~region).any() for mask, region in zip(masks, inside, strict=True))
        full = 2 * sum(int(mask.sum()) for mask in masks) >= sum(
            int((r & o).sum()) for r, o in zip(inside, open_, strict=True)
        )
        if (
            holds
            and full
            and any(
                bool((~region & free).any()) for region, free in zip(inside, open_, strict=True)
            )
        ):
            return words
    return ""
