"""Judge an answer: try it on every case, and when it is wrong, find out which mistake it is."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from circuitkit.exercises._exercise import Case, Exercise, Misfit, Mistake


@dataclass(frozen=True)
class Result:
    """What came out. It is true when the answer is right, and it prints what to do next when it is not."""

    exercise: str
    """Number and title."""
    passed: bool
    done: bool
    """False while the answer is still the untouched stub."""
    diagnosis: str
    """Name of the recognised mistake; empty when the answer is right or the mistake is not in the catalogue."""
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message


@dataclass(frozen=True)
class _Fault:
    """How one case went wrong."""

    case: Case
    text: str
    got: Any
    expected: Tensor


class _NotDone(Exception):
    """The stub was left as it is, or the answer returns nothing; the text says what to do."""


_REPLACE = "Replace the stub and run this cell again."
_RETURN = "Your function returned nothing (None). Does it end with `return`?"


def check(exercise: Exercise, answer: Any) -> Result:
    """Try `answer` on all cases of `exercise` and say what came out."""
    title = f"Exercise {exercise.number}, {exercise.title}"
    if answer is None or answer is ...:
        return _not_done(title, _REPLACE)
    if exercise.observe is None and not callable(answer):
        text = f"{title}: not yet.\nIt got {type(answer).__name__}; expected a function. Give the function itself, not a result."
        return Result(title, False, True, "", text)
    fault, cases = None, list(exercise.cases())
    try:
        for case in cases:
            if fault := _fault(exercise, answer, case):
                break
    except _NotDone as why:
        return _not_done(title, str(why))
    if fault is None:
        return Result(title, True, True, "", f"{title}: right, on all {len(cases)} cases.")
    mistake = _recognised(exercise, answer, cases)
    parts = [f"{title}: not yet.", fault.text]
    if mistake is not None:
        parts += [f"Likely mistake: {mistake.name}. {mistake.advice}"]
    elif hint := _resemblance(exercise, answer, fault, cases):
        parts += [hint]
    parts += [f"Read again: {_place((mistake and mistake.read) or exercise.read)}"]
    return Result(title, False, True, mistake.name if mistake else "", "\n".join(parts))


def _place(read: str) -> str:
    """A section in words: `02-qk-and-ov-circuits#a-b` is chapter 2, "a b"."""
    page, _, section = read.partition("#")
    name = f"chapter {int(page[:2])}" if page[:2].isdigit() else f"the page on {page}"
    return f'{name}, "{section.replace("-", " ")}" ({page}.ipynb)' if section else f"{name} ({page}.ipynb)"


def _not_done(title: str, advice: str) -> Result:
    return Result(title, False, False, "", f"{title}: not done yet. {advice}")


def _run(exercise: Exercise, answer: Any, case: Case) -> Any:
    """The outcome on one case, or the exception that it raised."""
    try:
        return exercise.outcome(answer, case)
    except NotImplementedError as error:
        raise _NotDone(_REPLACE) from error
    except Exception as error:  # a learner's code may raise anything; what it raised is part of the message
        return error


def _fault(exercise: Exercise, answer: Any, case: Case) -> _Fault | None:
    """What is wrong on this case, `None` when nothing is; raises `_NotDone` for an untouched stub."""
    expected = torch.as_tensor(exercise.spec(**case), dtype=torch.float64)
    got = _run(exercise, answer, case)
    where = f"On the smallest failing case ({_describe(case)})" if case else "Your answer"
    if isinstance(got, Misfit):
        return _Fault(case, f"{where} {got}", got, expected)
    if isinstance(got, Exception):
        return _Fault(case, f"{where} it raised {type(got).__name__}: {got}{_remark(got)}", got, expected)
    if got is None or got is ...:
        raise _NotDone(_RETURN if got is None else _REPLACE)
    tensor = _as_tensor(got)
    if tensor is None:
        kind = type(got).__name__
        return _Fault(case, f"{where} it gave {kind}; expected {_wanted(exercise, expected)}", got, expected)
    if tensor.shape != expected.shape:
        text = f"{where} it gave shape {tuple(tensor.shape)}; expected {_wanted(exercise, expected)}"
        return _Fault(case, text, tensor, expected)
    if not _close(tensor, expected, _tolerance(exercise, got)):
        return _Fault(case, f"{where} {_difference(exercise, tensor, expected)}", tensor, expected)
    return None


def _remark(error: Exception) -> str:
    """What to do about an exception that says too little to a beginner."""
    if isinstance(error, TypeError) and "keyword argument" in str(error):
        return ". Inputs come by name: leave the first line of the stub as it was."
    if "dtype" in str(error):
        return ". The inputs are float64: what you make yourself needs dtype=torch.float64, too."
    return ""


def _as_tensor(got: Any) -> Tensor | None:
    if isinstance(got, Tensor) and got.is_complex() and not got.imag.abs().gt(1e-6).any():
        got = got.real
    if isinstance(got, Tensor):
        return got.detach().to("cpu", torch.float64)
    try:
        return torch.as_tensor(got, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None


def _tolerance(exercise: Exercise, got: Any) -> float:
    """The exercise's own; wider for an answer that went through float32, which is a matter of digits and no mistake."""
    coarse = isinstance(got, Tensor) and got.is_floating_point() and got.dtype != torch.float64
    return max(exercise.tolerance, 1e-5) if coarse else exercise.tolerance


def _close(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    if got.shape != expected.shape:
        return False
    finite = expected[expected.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    return torch.allclose(got, expected, rtol=0.0, atol=tolerance * max(largest, 1.0), equal_nan=True)


def _recognised(exercise: Exercise, answer: Any, cases: list[Case]) -> Mistake | None:
    """The first catalogued mistake that gives what the answer gives, on every case and on the square one."""
    square = exercise.square_case()
    tried = cases + ([square] if square is not None else [])
    outcomes = [_run(exercise, answer, case) for case in tried]
    for mistake in exercise.mistakes:
        wrong = [_run(exercise, mistake.wrong, case) for case in tried]
        pairs = list(zip(outcomes, wrong, strict=True))
        if not any(isinstance(a, Exception) for a in (outcomes[-1], wrong[-1])) and all(
            _alike(a, b, _tolerance(exercise, a)) for a, b in pairs
        ):
            return mistake
    return None


def _alike(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two outcomes are the same; two crashes are, whatever they say."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return isinstance(one, Exception) and isinstance(other, Exception)
    one, other = _as_tensor(one), _as_tensor(other)
    return one is not None and other is not None and _close(one, other, tolerance)


def _resemblance(exercise: Exercise, answer: Any, fault: _Fault, cases: list[Case]) -> str:
    """A remark when the mistake is in no catalogue but the result still looks like the right one."""
    got, expected = fault.got, fault.expected
    if not isinstance(got, Tensor):
        return ""
    if not got.isfinite().all():
        return "Some entries are not finite: is a row masked altogether, or something divided by zero?"
    if got.ndim == 2 and _close(got.mT, expected, 1e-8):
        return "It is the transpose of the expected result."
    if got.shape != expected.shape:
        return ""
    given = torch.cat([_flat(_run(exercise, answer, case)) for case in cases])
    wanted = torch.cat([_flat(exercise.spec(**case)) for case in cases])
    if given.shape != wanted.shape or not given.isfinite().all():
        return ""
    factor = ((given * wanted).sum() / wanted.square().sum()).item()
    if factor and not math.isclose(factor, 1, rel_tol=1e-6) and _close(given, factor * wanted, 1e-8):
        return f"It is {factor:.4g} times the expected result: a sign or a constant is missing."
    if (gap := (given - wanted).abs().max()) < 1e-2 * wanted.abs().max():
        return f"It is nearly right, to {gap:.1g} on all cases. What is only approximately 0, 1 or equal?"
    return ""


def _flat(outcome: Any) -> Tensor:
    """An outcome as a row of numbers; without any when it is no tensor."""
    tensor = None if isinstance(outcome, Exception) else _as_tensor(outcome)
    return torch.zeros(0, dtype=torch.float64) if tensor is None else tensor.flatten()


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
    axes = exercise.names if len(exercise.names) == got.ndim else [f"axis {i}" for i in range(got.ndim)]
    words = [f"{axis} {index}" for axis, index in zip(axes, place, strict=True)]
    if exercise.columns:
        words[-1] = exercise.columns[place[-1]]
    spot = ", ".join(words)
    return f"entry [{spot}] is {got[tuple(place)].item():.6g}; expected {expected[tuple(place)].item():.6g}"


def _wanted(exercise: Exercise, expected: Tensor) -> str:
    axes = f" [{', '.join(exercise.names)}]" if len(exercise.names) == expected.ndim else ""
    return "a number" if expected.ndim == 0 else f"shape {tuple(expected.shape)}{axes}"


def _describe(case: Case) -> str:
    """The inputs by name: values of what is short, shapes of the rest."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in case.items())


def _shown(value: Any) -> str:
    """A few whole numbers as they are, a larger tensor by its shape, anything else by its value."""
    if not isinstance(value, Tensor):
        return f"= {value!r}"
    if value.ndim == 0:
        return f"= {value.item():.4g}"
    if value.ndim == 1 and value.numel() <= 12 and value.dtype == torch.int64:
        return f"= {value.tolist()}"
    return str(tuple(value.shape))
