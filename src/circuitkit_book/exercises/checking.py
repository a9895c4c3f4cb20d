"""Judges an answer: compares it with the solution on every case and finds the mistake that it makes.

A wrong answer is compared with each mistake of its exercise. If a mistake gives the same results on
every case, its hint is shown. Otherwise the message states what differs.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises import answers
from circuitkit_book.exercises.answers import Attempt
from circuitkit_book.exercises.exercise import SEED, Case, Exercise, Misfit, close
from circuitkit_book.exercises.reader_file import keep


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a check: true if the answer is right, printed as a message, and called like the accepted answer."""

    exercise: str
    """Number and title."""
    passed: bool
    message: str
    done: bool = True
    """False while there is no answer yet."""
    mistake: str = ""
    """The name of the recognised mistake, if there is one."""
    answer: Any = None
    """The answer that was checked."""
    accepted: Callable[..., Any] | None = None
    """The answer, with float64 copies of its inputs and tensors as its results; None unless it passed."""
    table: Any = None
    """What a short answer is compared with, while there is no answer yet; a page of the book makes a field of it."""

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return wrapped(self.message)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the accepted answer."""
        if self.accepted is None:
            raise ValueError(f"The answer to {self.exercise} is not accepted yet.\n{self.message}")
        return self.accepted(*args, **kwargs)


def wrapped(text: str) -> str:
    """Break long lines between words, so that a message fits a page of the book."""
    lines = text.split("\n")
    return "\n".join(
        textwrap.fill(line, 76, break_long_words=False, break_on_hyphens=False) for line in lines
    )


def check(exercise: Exercise, answer: Any) -> Result:
    """Try an answer on all cases of an exercise, and write it to the reader's file if it is right.

    Parameters
    ----------
    exercise : the exercise
    answer : a function, or the result of an earlier check

    Returns
    -------
    What a reader is told, with the accepted answer if it is right.
    """
    result = judge(exercise, answer)
    if not result:
        return result
    return replace(result, message=result.message + keep(exercise, result.answer))


def judge(exercise: Exercise, answer: Any, seed: int = SEED) -> Result:
    """Try an answer as `check` does, and with another seed also on the cases that it gives. No file is written.

    The cases of the notebook stay, because they were chosen so that they tell all known mistakes apart.
    """
    if isinstance(answer, Result):
        answer = answer.answer
    title = f"Ex {exercise.number}, {exercise.title}"
    if answer is None or answer is ...:
        return Result(title, False, f"{title}: No answer yet.", done=False)
    if not callable(answer):
        text = f"The answer is of type {type(answer).__name__}. Give the function, not its result."
        return Result(title, False, f"{title}: not yet.\n{text}", answer=answer)
    attempts, expected = [], []
    cases = exercise.all_cases()
    if seed != SEED:
        cases += exercise.all_cases(seed)
    for number, case in enumerate(cases):
        trial = answers.attempt(exercise, answer, case, silent=number > 0)
        if trial.is_missing:
            text = "No answer yet. The function returns nothing."
            return Result(title, False, f"{title}: {text}", done=False, answer=answer)
        attempts.append(trial)
        expected.append(right_outcome(exercise, case))
        if isinstance(trial.error, TimeoutError):
            break
    problem, mistake = problem_of(exercise, answer, attempts, expected)
    if problem:
        text = f"{title}: not yet.\n{problem}\nRead again: {place(exercise.section)}"
        return Result(title, False, text, mistake=mistake, answer=answer)
    text = f"{title}: right, on all {len(attempts)} cases."
    return Result(title, True, text, answer=answer, accepted=answers.accepted(exercise, answer))


def right_outcome(exercise: Exercise, case: Case) -> Tensor:
    """Return what a right answer gives on a case."""
    outcome = exercise.outcome(exercise.solution(*exercise.given(case)), case)
    if outcome is None:
        raise TypeError(f"The solution of exercise {exercise.number} returns no numbers.")
    return outcome


def problem_of(
    exercise: Exercise, answer: Any, attempts: list[Attempt], expected: list[Tensor]
) -> tuple[str, str]:
    """Return what is wrong in a few lines, and the name of the mistake; both are empty if the answer is right."""
    for trial, right in zip(attempts, expected, strict=True):
        difference = difference_of(exercise, trial, right)
        if difference:
            hint, mistake = recognised(exercise, attempts)
            hint = hint or relation(attempts, expected)
            lines = [f"On the first wrong case ({describe(trial.case)}): {difference}", hint]
            return "\n".join(line for line in lines if line), mistake
    for trial in attempts:
        if trial.changed:
            names = " and ".join(f"`{name}`" for name in trial.changed)
            text = f"The numbers are right, but your function changes its input {names} in place."
            return f"{text} Write `x = x - r`, not `x -= r`.", "input_changed"
    if exercise.objection is not None:
        return exercise.objection(answer, attempts[0].case), "objection"
    return "", ""


def recognised(exercise: Exercise, attempts: list[Attempt]) -> tuple[str, str]:
    """Return the hints and the names of the mistakes that give what the answer gave on every case."""
    mistakes = [mistake for mistake in exercise.mistakes if is_same(exercise, mistake, attempts)]
    hints = [str(mistake.__doc__) for mistake in mistakes]
    return " Or: ".join(hints), " or ".join(mistake.__name__ for mistake in mistakes)


def is_same(exercise: Exercise, mistake: Callable[..., Any], attempts: list[Attempt]) -> bool:
    """Return whether a mistake gives what the answer gave on every case.

    Where the answer raised an exception, the mistake has to raise the same one.
    """
    for trial in reversed(attempts):  # the largest cases differ most
        wrong = answers.attempt(exercise, mistake, trial.case)
        if wrong.outcome is None and repr(wrong.error) == repr(trial.error):
            continue
        if not close(trial.outcome, wrong.outcome):
            return False
    return True


def relation(attempts: list[Attempt], expected: list[Tensor]) -> str:
    """Return a simple relation between all results and the right ones, if there is one."""
    pairs = [(trial.outcome, right) for trial, right in zip(attempts, expected, strict=True)]
    if all(close(value, -right) for value, right in pairs):
        return "Your result has the opposite sign on every case."
    if all(
        value is not None and value.ndim > 1 and close(value.mT, right) for value, right in pairs
    ):
        return "Your result is transposed: exchange its last two axes."
    if all(value is not None and close(1 / value, right) for value, right in pairs):
        return "Your result is 1 divided by the expected one on every case."
    value, right = pairs[-1]
    largest = right.abs().argmax()
    if value is None or value.shape != right.shape or right.flatten()[largest] == 0:
        return ""
    factor = float(value.flatten()[largest] / right.flatten()[largest])
    if factor and all(close(value, factor * right) for value, right in pairs):
        return f"Your result is {factor:.4g} times the expected one on every case."
    return ""


def difference_of(exercise: Exercise, trial: Attempt, right: Tensor) -> str:
    """Return what is wrong on one case in a sentence; empty if nothing is."""
    error, outcome = trial.error, trial.outcome
    if isinstance(error, TimeoutError):
        return f"{error} Does one of its loops never end?"
    if isinstance(error, Misfit):
        return str(error)
    if error is not None:
        hint = " Create new tensors with dtype=torch.float64." if "dtype" in str(error) else ""
        return f"it raised {type(error).__name__}: {error}.{hint}"
    axes = f" [{', '.join(exercise.axes)}]" if exercise.axes else ""
    if outcome is None:
        return f"it returned {type(trial.returned).__name__}; expected numbers{axes}."
    if outcome.shape != right.shape:
        return f"the shape is {list(outcome.shape)}; expected {list(right.shape)}{axes}."
    if close(outcome, right):
        return ""
    text = largest_difference(exercise, outcome, right)
    if right.isfinite().all() and not outcome.isfinite().all():
        text += " The result contains NaN or infinity. Is something divided by 0?"
    return text


def largest_difference(exercise: Exercise, outcome: Tensor, right: Tensor) -> str:
    """Return where two tensors differ most, with both values."""
    if outcome.ndim == 0:
        return f"the result is {float(outcome):.6g}; expected {float(right):.6g}."
    gap = (outcome - right).abs().nan_to_num(float("inf"))
    if exercise.columns:
        first_wrong = int((gap > 0).any(0).int().argmax())
        gap[:, :first_wrong], gap[:, first_wrong + 1 :] = 0, 0
    place = [int(index) for index in torch.unravel_index(gap.argmax(), gap.shape)]
    axes = exercise.axes or tuple(f"axis {axis}" for axis in range(outcome.ndim))
    words = ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=True))
    if exercise.columns:
        words = f"{axes[0]} {place[0]}: {exercise.columns[place[1]]}"
    value, wanted = float(outcome[tuple(place)]) + 0.0, float(right[tuple(place)]) + 0.0
    return f"the entry [{words}] is {value:.6g}; expected {wanted:.6g}."


def describe(case: Case) -> str:
    """Return the inputs of a case in words: short ones in full, and the shapes of the others."""
    words = []
    for name, value in case.items():
        if isinstance(value, Tensor) and value.ndim == 0:
            words.append(f"{name} = {float(value):.4g}")
        elif isinstance(value, Tensor) and (value.numel() > 24 or value.is_floating_point()):
            words.append(f"{name} {list(value.shape)}")
        elif isinstance(value, Tensor):
            words.append(f"{name} = {value.tolist()}")
        elif isinstance(value, (int, float, tuple)):
            words.append(
                f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
            )
    return ", ".join(words)


def place(section: str) -> str:
    """Return a section in words: `2-qk-and-ov/paths#a-b` is `chapter 2, page "paths", section "a b"`."""
    page, _, heading = section.replace("-", " ").partition("#")
    folder, _, name = page.rpartition("/")
    number = (folder or name).split()[0].lstrip("0")
    where = f'chapter {number}, page "{name}"' if folder else f"chapter {number}"
    return f'{where}, section "{heading}"'
