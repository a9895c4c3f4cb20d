"""Which mistake is it? Compare a wrong answer with every wrong turn, with every two, with changes of the right one, then probe.

Only numbers are compared, so nothing more is said: that an answer gives what a mistake gives, never what stands in its code.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises import changes as _changes
from circuitkit_book.exercises import probes
from circuitkit_book.exercises.answers import Run, close, once, right
from circuitkit_book.exercises.exercise import Case, Exercise, as_tensor

Diagnosis = tuple[str, str]
"""The recognised mistake, two with "and" between them, or nothing; and what to say, nothing where there are only numbers."""


def diagnosis(
    exercise: Exercise, answer: Any, runs: list[Run], expected: list[Tensor]
) -> Diagnosis:
    """Named only if exactly one mistake gives what the answer gives on every case, others than the check's own among them."""
    tried = runs + [Run(exercise, answer, case) for case in exercise.tried[1]]
    tried.reverse()  # the largest cases tell most apart
    if all(run.outcome is None for run in tried):
        return ("", "")

    is_it = partial(_alike, exercise, tried)
    few, same = probes.few(runs, expected), "Your answer gives the same numbers as"
    singles = [mistake for mistake in exercise.mistakes if is_it(mistake.wrong)]
    if len({mistake.name for mistake in singles}) == 1:
        name, advice = singles[0].name, singles[0].advice
        one, then = (
            ("one with this mistake, and others may give them, too", "If it is this one: ")
            if few
            else ("one with this mistake", "")
        )
        return (name, f"{same} {one}: {name}. {then}{advice}")
    if singles:
        told = list(dict.fromkeys(f"{mistake.name}. {mistake.advice}" for mistake in singles))
        return ("", f"{same} each of {len(told)} mistakes by itself. {' Or: '.join(told)}")
    for words, changed in once(
        exercise, _changed, tried[0].case, lambda: [*_changed(exercise, exercise.body, tried)]
    ):
        if is_it(changed):
            return ("", f"{words}." + " Other mistakes may give these numbers, too." * few)
    if said := _changed_result(exercise, tried):
        return ("", said)
    if said := probes.constant(tried):
        return ("", said)
    found = [(one, other) for one, other, wrong in exercise.pairs if is_it(wrong)]
    if found and not few and (several := _several(found))[1]:
        return several
    said = list(dict.fromkeys(probes.remarks(exercise, runs, expected, answer)))
    if found:
        one, other = found[0]
        text = f"The cause cannot be told for certain. One of the ways to get these numbers is two mistakes at once: {one.name}, and {other.name}."
        return ("", " ".join([text, *said[:1]]))
    return ("", " ".join(said[:2]))


def _several(found: list[Any]) -> Diagnosis:
    """Two mistakes at once; where several pairs do the same, only what all of them share is told."""
    one, other = found[0]
    text = "Your answer gives the same numbers as one with two mistakes in it; other ways may lead there, too."
    each = "To each by itself one would say:"
    if len({(one.name, other.name) for one, other in found}) == 1:
        if one.name == other.name:
            return (one.name, f"{text} Both are of one kind: {one.name}. {each} {one.advice}")
        text = f"{text} First: {one.name}. Second: {other.name}. {each} {one.advice} And: {other.advice}"
        return (f"{one.name} and {other.name}", text)
    shared = [mistake for mistake in found[0] if all(mistake in pair for pair in found)]
    if shared:
        return (
            "",
            f"{text} In all pairs that were found one is: {shared[0].name}. To this by itself one would say: {shared[0].advice}",
        )
    return ("", "")


def _outcome(exercise: Exercise, wrong: Callable[..., Any], case: Case) -> Tensor | None:
    """What a wrong answer of our own gives; none when it raises."""
    try:
        value = wrong(**{name: case[name] for name in exercise.asked})
        return as_tensor(value if exercise.observe is None else exercise.observe(value, **case))
    except Exception:  # a wrong turn may not fit these sizes: that is an outcome like any other
        return None


def _alike(exercise: Exercise, tried: list[Run], wrong: Callable[..., Any]) -> bool:
    """The same on every case, two crashes being the same; and on two cases at least there is something to compare."""
    compared = 0
    for run in tried:
        if isinstance(run.error, TimeoutError):
            return False
        theirs = once(
            exercise, wrong, run.case, lambda case=run.case: _outcome(exercise, wrong, case)
        )
        if (theirs is None) != (run.outcome is None):
            return False
        if theirs is not None and run.outcome is not None:
            if not close(run.outcome, theirs):
                return False
            compared += 1
    return compared >= min(2, len(tried))


def _changed(
    exercise: Exercise, body: Callable[..., Any], tried: list[Run]
) -> Iterator[_changes.Change]:
    """The body with something done to its inputs or its parts."""
    case, bare = tried[0].case, exercise.observe is None and {*exercise.asked} == {*exercise.inputs}

    def agreed(**given: Any) -> Any:
        value = body(**given)
        if bare and not close(
            as_tensor(value), torch.as_tensor(exercise.spec(**given), dtype=torch.float64)
        ):
            raise ValueError(
                "not what the specification says: the body may have divided by what became 0"
            )
        return value

    for words, change in _changes.of_inputs(exercise, case):
        yield f"It is what comes out as if {words}", lambda f=change, **given: agreed(**f(given))
    if exercise.observe is not None:
        for words, change in _changes.of_parts(
            exercise, body(**{name: case[name] for name in exercise.asked})
        ):
            yield (
                f"It does what the right one does when {words}",
                lambda f=change, **given: f(body(**given)),
            )


def _changed_result(exercise: Exercise, tried: list[Run]) -> str:
    """The right result with something done to it, which also what was built may show; columns are no such numbers."""
    rights = [right(exercise, run.case) for run in tried]
    if exercise.columns or any(run.outcome is None for run in tried):
        return ""
    outcomes, (case, largest) = [run.outcome for run in tried], (tried[0].case, rights[0])
    for name in (
        n
        for n in exercise.asked
        if isinstance(case[n], Tensor)
        and case[n].shape == largest.shape
        and case[n].is_floating_point()
    ):
        if all(
            close(got, r + run.case[name])
            for got, r, run in zip(outcomes, rights, tried, strict=True)
            if r.shape == run.case[name].shape
        ):
            return f"It is the expected result plus `{name}`."
    for words, change in _changes.of_result(exercise.names, largest):
        try:
            if all(close(got, change(r)) for got, r in zip(outcomes, rights, strict=True)):
                return f"It is the expected result {words}."
        except (RuntimeError, IndexError):  # sizes at which this cannot be done
            continue
    return ""
