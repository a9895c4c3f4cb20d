"""Judge an answer: try it on every case, say what came out, and hand the accepted answer back for later cells."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.answers import Run, accepted, close, right, untouched
from circuitkit_book.exercises.diagnosis import diagnosis
from circuitkit_book.exercises.exercise import Exercise, Misfit
from circuitkit_book.exercises.exercise import built as built
from circuitkit_book.exercises.exercise import normal as normal
from circuitkit_book.exercises.toolkits import keep, name_of


@dataclass(frozen=True)
class Result:
    """What came out. It is true when the answer is right, prints what to do next when not, and is called like the answer."""

    exercise: str
    """Number and title."""
    passed: bool
    done: bool
    """False while the answer is still the untouched stub."""
    diagnosis: str
    """Name of the recognised mistake; empty when the answer is right or the mistake was not recognised."""
    message: str
    hint: str = ""
    """What was found out about a mistake, recognised or not."""
    answer: Any = None
    """The answer that was checked."""
    accepted: Callable[..., Any] | None = None
    """The answer in the form its exercise promises: tensors out, inputs untouched; none unless it passed."""

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.accepted is None:
            raise ValueError(
                f"{self.exercise}: not accepted yet, so there is nothing to run.\n{self.message}"
            )
        return self.accepted(*args, **kwargs)


_REPLACE = "Replace the stub and run this cell again."
_RETURN = "Your function returned nothing (None). Does it end with `return`?"


def check(exercise: Exercise, answer: Any) -> Result:
    """Try `answer` on all cases of `exercise` and say what came out."""
    answer = answer.answer if isinstance(answer, Result) else answer
    title = f"Exercise {exercise.number}, {exercise.title}"
    if answer is None or answer is ...:
        return Result(title, False, False, "", f"{title}: not done yet. {_REPLACE}", answer=answer)
    if not callable(answer):
        kind = type(answer).__name__
        text = f"{title}: not yet.\nIt got {kind}; expected a function. Give the function itself, not a result."
        return Result(title, False, True, "", text, answer=answer)
    runs, expected, first, said = [], [], None, ""
    for case in exercise.tried[0]:
        run = Run(exercise, answer, case)
        if untouched(run.error) or (run.error is None and (run.value is None or run.value is ...)):
            why = _RETURN if run.error is None and run.value is None else _REPLACE
            return Result(title, False, False, "", f"{title}: not done yet. {why}", answer=answer)
        runs.append(run)
        expected.append(right(exercise, case))
        if not said and (said := _fault(exercise, run, expected[-1])):
            first = run
        if isinstance(run.error, TimeoutError):
            break
    name, hint = "", ""
    if first is None:
        changed = sorted({name for run in runs for name in run.changed})
        if exercise.way is not None and (said := exercise.way(answer, runs[-1].case)):
            return Result(title, False, True, "", f"{title}: not yet.\n{said}", said, answer)
        if not changed:
            text = f"{title}: right, on all {len(runs)} cases."
            return Result(
                title,
                True,
                True,
                "",
                text + keep(exercise, answer),
                answer=answer,
                accepted=accepted(exercise, answer),
            )
        name = "an input is changed in place"
        said = f"The numbers are right, but your function changes its input `{'`, `'.join(changed)}` in place."
        hint = "Whoever calls it finds other numbers afterwards: write `x = x - r`, not `x -= r`, and do not assign to x[...]."
    elif not isinstance(first.error, TimeoutError):
        name, hint = diagnosis(exercise, answer, runs, expected)
    parts = [f"{title}: not yet.", said, hint, f"Read again: {_place(exercise.read)}"]
    return Result(title, False, True, name, "\n".join(part for part in parts if part), hint, answer)


def checks(exercise: Exercise, says: str | None) -> Callable[[Any], Result]:
    """The check of an exercise, named after its file, with what a reader is told about the answer."""

    def check_(answer: Any) -> Result:
        return check(exercise, answer)

    check_.__name__ = check_.__qualname__ = f"check_{name_of(exercise)}"
    check_.__doc__ = says
    vars(check_)["exercise"] = exercise
    return check_


def _place(read: str) -> str:
    """A section in words: `02-qk-and-ov-circuits#a-b` is chapter 2, "a b"."""
    page, _, section = read.partition("#")
    name = f"chapter {int(page[:2])}" if page[:2].isdigit() else f"the page on {page}"
    return (
        f'{name}, "{section.replace("-", " ")}" ({page}.ipynb)'
        if section
        else f"{name} ({page}.ipynb)"
    )


def _fault(exercise: Exercise, run: Run, expected: Tensor) -> str:
    """What is wrong on this case; empty when nothing is."""
    where = f"On the smallest failing case ({_describe(exercise, run)})"
    if isinstance(run.error, (Misfit, TimeoutError)):
        return f"{where} {run.error}"
    if run.error is not None:
        return f"{where} it raised {type(run.error).__name__}: {run.error}{_remark(run.error)}"
    if run.outcome is None:
        return f"{where} it gave {type(run.value).__name__}; expected {_wanted(exercise, expected)}"
    if run.outcome.shape != expected.shape:
        return f"{where} it gave shape {tuple(run.outcome.shape)}; expected {_wanted(exercise, expected)}"
    if not close(run.outcome, expected):
        return f"{where} {_difference(exercise, run.outcome, expected)}"
    return ""


def _remark(error: Exception) -> str:
    """What to do about an exception that says too little to a beginner."""
    if "dtype" in str(error):
        return ". The inputs are float64: what you make yourself needs dtype=torch.float64, too."
    return ""


def _describe(exercise: Exercise, run: Run) -> str:
    words = []
    for name in exercise.inputs:
        value = run.case[name]
        if isinstance(value, Tensor):
            short = value.ndim == 1 and not value.is_floating_point() and len(value) <= 24
            words.append(f"{name} = {value.tolist()}" if short else f"{name} {tuple(value.shape)}")
        else:
            told = repr(value)
            short = (
                f"{value:.4g}"
                if isinstance(value, float)
                else told
                if "\n" not in told
                else f"a {type(value).__name__}"
            )
            words.append(f"{name} = {short}")
    return ", ".join(words)


def _wanted(exercise: Exercise, expected: Tensor) -> str:
    if expected.ndim == 0:
        return "one number"
    axes = f" [{', '.join(exercise.names)}]" if exercise.names else ""
    return f"shape {tuple(expected.shape)}{axes}"


def _difference(exercise: Exercise, got: Tensor, expected: Tensor) -> str:
    """Where the two differ most, in the exercise's own words for the axes."""
    if got.ndim == 0:
        return f"it gave {got.item():.6g}; expected {expected.item():.6g}"
    gap = (got - expected).abs().nan_to_num(math.inf)
    if exercise.columns:  # each depends on those before it, so the first wrong one is the cause
        wrong = gap > 1e-5 * expected.abs().max().clamp_min(1)
        column = wrong.flatten(0, -2).any(0).int().argmax()
        gap = wrong * (torch.arange(wrong.shape[-1]) == column).double()
    place = [int(i) for i in torch.unravel_index(gap.argmax(), gap.shape)]
    axes = (
        exercise.names
        if len(exercise.names) == got.ndim
        else [f"axis {i}" for i in range(got.ndim)]
    )
    words = [f"{axis} {index}" for axis, index in zip(axes, place, strict=True)]
    if exercise.columns:
        words[-1] = exercise.columns[place[-1]]
    return f"entry [{', '.join(words)}] is {got[tuple(place)].item():.6g}; expected {expected[tuple(place)].item():.6g}"
