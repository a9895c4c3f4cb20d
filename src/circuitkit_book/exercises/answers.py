"""Calls a reader's answer on one case. The answer may raise, print, not end, or change its inputs."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.exercise import Case, Exercise, as_tensor

SECONDS = 10.0
"""An answer that takes longer for one case is stopped."""


class TooLong(BaseException):
    """Raised inside an answer that does not end. It is no `Exception`, so that answers do not catch it."""


@dataclass
class Attempt:
    """What an answer gave on one case."""

    case: Case
    returned: Any = None
    outcome: Tensor | None = None
    """What is compared with the right outcome; None if there are no numbers."""
    error: BaseException | None = None
    changed: tuple[str, ...] = ()
    """Names of the inputs that the answer changed in place."""

    @property
    def is_missing(self) -> bool:
        """Whether there is no answer yet: nothing is returned, or the copy's `raise` is still there.

        torch raises `NotImplementedError`, too, but always with a text.
        """
        if isinstance(self.error, NotImplementedError):
            return not self.error.args
        return self.error is None and (self.returned is None or self.returned is ...)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the code inside after some seconds.

    It uses a signal, which exists in the main thread of Linux and macOS. Elsewhere there is no limit.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not in_main_thread:
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TooLong

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def attempt(
    exercise: Exercise, answer: Callable[..., Any], case: Case, *, silent: bool = True
) -> Attempt:
    """Call an answer on copies of the inputs of one case."""
    result = Attempt(case)
    values = exercise.given(case)
    try:
        with time_limit(SECONDS), redirect_stdout(StringIO()) if silent else nullcontext():
            result.returned = answer(*values)
        if not result.is_missing:
            result.outcome = exercise.outcome(result.returned, case)
    except TooLong:
        result.error = TimeoutError(f"It was stopped after {SECONDS:.0f} seconds.")
    except Exception as error:  # the message shows whatever a reader's code raises
        result.error = error
    result.changed = tuple(
        name
        for name, value in zip(exercise.arguments, values, strict=True)
        if isinstance(value, Tensor) and not torch.equal(value, case[name])
    )
    return result


def accepted(exercise: Exercise, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return the answer in the form in which it was checked: float64 copies in, tensors of the inputs' dtype out."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(exercise.arguments, args, strict=False)) | kwargs
        dtype = torch.get_default_dtype()
        for name, value in given.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                dtype = value.dtype
                given[name] = value.detach().double()
        returned = answer(*exercise.given(given))
        return cast(returned, dtype, exercise.several)

    call.__name__ = exercise.name
    call.__doc__ = f"The accepted answer to exercise {exercise.number}, {exercise.title}."
    return call


def cast(returned: Any, dtype: torch.dtype, several: bool) -> Any:
    """Return what an answer returned as tensors of one dtype."""
    if several and isinstance(returned, (tuple, list)):
        return tuple(cast(part, dtype, isinstance(part, tuple)) for part in returned)
    tensor = as_tensor(returned)
    return returned if tensor is None else tensor.to(dtype)
