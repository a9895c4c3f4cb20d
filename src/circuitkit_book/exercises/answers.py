"""Call an answer with everything in hand that may go wrong: time, changed inputs, an untouched stub, odd return values."""

import ctypes
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.exercise import Case, Exercise, as_tensor

SECONDS = 10.0
"""An answer that takes longer for one case is stopped."""


class _TooLong(BaseException):
    """Raised inside an answer that does not end. No `except Exception` of the answer swallows it."""


class Run:
    """One call: what the answer returned and what was observed, or the exception; and the inputs that it changed."""

    def __init__(self, exercise: Exercise, answer: Callable[..., Any], case: Case):
        own = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in case.items()
        }
        self.case, self.value, self.outcome, self.error = case, None, None, None
        self.changed: tuple[str, ...] = ()
        try:
            self.value = within(
                SECONDS, lambda: called(answer, {name: own[name] for name in exercise.asked})
            )
            self.changed = tuple(
                n
                for n in exercise.asked
                if isinstance(own[n], Tensor) and not _same(own[n], case[n])
            )
            seen = self.value
            if exercise.observe is not None and self.value is not None and self.value is not ...:
                seen = exercise.observe(self.value, **case)
            self.outcome = as_tensor(seen)
        except _TooLong:
            self.error = TimeoutError(
                f"it was stopped after {SECONDS:.0f} seconds; does one of its loops never end?"
            )
        except (
            Exception
        ) as error:  # a learner's code may raise anything; what it raised is part of the message
            self.error = error

    @property
    def finite(self) -> bool:
        return self.outcome is not None and bool(self.outcome.isfinite().all())


def once(
    exercise: Exercise, function: Callable[..., Any], case: Case, make: Callable[[], Any]
) -> Any:
    """What a function of our own gives on a case, worked out at the first check: the cases are the same at every one."""
    key = (function, id(case))
    if exercise.known.get(key, (None,))[0] is not case:
        exercise.known[key] = (case, make())
    return exercise.known[key][1]


def right(exercise: Exercise, case: Case) -> Tensor:
    """What the specification says."""
    return once(
        exercise,
        exercise.spec,
        case,
        lambda: torch.as_tensor(exercise.spec(**case), dtype=torch.float64),
    )


def called(answer: Callable[..., Any], given: Case) -> Any:
    """The answer on these inputs: by name, or in their order where it gives them names of its own."""
    try:
        inspect.signature(answer).bind(**given)
    except TypeError:
        return answer(*given.values())
    except ValueError:  # a function without a signature
        return answer(**given)
    return answer(**given)


def accepted(exercise: Exercise, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer as it was checked: float64 in, its own copies, tensors of the inputs' number format out."""

    def tried(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(exercise.asked, args, strict=False)) | kwargs
        floats = [v for v in given.values() if isinstance(v, Tensor) and v.is_floating_point()]
        own = {n: _own(value) for n, value in given.items()}
        kind = exercise.kind or (floats[0].dtype if floats else torch.get_default_dtype())
        return _cast(called(answer, own), kind, bool(exercise.parts))

    tried.__name__ = "accepted"
    tried.__doc__ = f"The accepted answer to exercise {exercise.number}, {exercise.title}."
    return tried


def _own(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    copy = value.detach().clone()
    return copy.double() if copy.is_floating_point() else copy


def _cast(value: Any, kind: torch.dtype, several: bool) -> Any:
    if several and isinstance(value, (tuple, list)):
        return tuple(_cast(part, kind, isinstance(part, tuple)) for part in value)
    tensor = as_tensor(value)
    return value if tensor is None else tensor.to(kind)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def untouched(error: Exception | None) -> bool:
    """Whether it is the stub's own `raise NotImplementedError`; torch raises that error, too, but with a text."""
    return type(error) is NotImplementedError and not error.args


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of a call that is stopped after some seconds."""
    thread, over = ctypes.c_ulong(threading.get_ident()), threading.Event()

    def stop() -> None:
        if not over.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_TooLong))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        return call()
    finally:
        over.set()
        timer.cancel()


def close(got: Tensor | None, expected: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal to what float32 holds, relative to the largest expected magnitude; what is not finite has to be so in both.

    The cases are float64. An answer that went through float32 somewhere is a matter of digits and no mistake.
    """
    if got is None or got.shape != expected.shape:
        return False
    finite = expected[expected.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    return torch.allclose(
        got, expected, rtol=0.0, atol=tolerance * max(largest, 1.0), equal_nan=True
    )
