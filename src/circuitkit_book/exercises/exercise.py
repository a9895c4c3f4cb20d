"""What an exercise consists of, and helpers that the exercises share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.chapters import number_of

Case = dict[str, Any]
"""Named inputs of one trial, such as `{"x": ..., "W_Q": ...}`."""
SEED = 20
"""The seed of the cases on which a notebook tries an answer. Whoever collects answers takes another one."""


@dataclass(frozen=True, eq=False)
class Exercise:
    """One exercise: a solution, the cases on which answers are tried, and the mistakes that are recognised."""

    name: str
    """The name of the reader's function, such as `copying_score`, which is in the list of `chapters.py`."""
    title: str
    section: str
    """The section that teaches it, as `page#anchor`."""
    solution: Callable[..., Any]
    """A right answer. An answer gets the inputs that are named in its signature, in this order."""
    cases: Callable[[torch.Generator], Iterable[Case]]
    """The trials, the smallest first. A case may hold more than the answer gets."""
    mistakes: tuple[Callable[..., Any], ...]
    """Wrong answers. The docstring of each is the hint for a reader whose answer gives the same results."""
    axes: tuple[str, ...] = ()
    """Names of the axes of what is compared, for messages."""
    columns: tuple[str, ...] = ()
    """What each entry of the last axis is, where these are different things. Later ones follow from earlier ones."""
    observe: Callable[..., Any] | None = None
    """Computes what is compared, from what the answer returned and the case. An exercise with many right answers (build
    a head that ...) compares what the returned weights do."""
    several: bool = False
    """Whether an answer returns several tensors."""
    objection: Callable[..., str] | None = None
    """Called with a right answer and a case: what is wrong with the way in which the answer is computed, or nothing."""

    @property
    def number(self) -> str:
        """Chapter and place, such as `2.1`."""
        return number_of(self.name)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The inputs that an answer gets, in order."""
        return tuple(signature(self.solution).parameters)

    def all_cases(self, seed: int = SEED) -> list[Case]:
        """The same cases at every call with the same seed."""
        return list(self.cases(torch.Generator().manual_seed(seed)))

    def given(self, case: Case) -> list[Any]:
        """Copies of the inputs that an answer gets."""
        values = [case[name] for name in self.arguments]
        return [value.clone() if isinstance(value, Tensor) else value for value in values]

    def outcome(self, returned: Any, case: Case) -> Tensor | None:
        """What is compared, in float64; None if the answer did not return numbers."""
        if self.observe is not None:
            returned = self.observe(returned, **case)
        return as_tensor(returned)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Return standard normal float64 numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def whole(generator: torch.Generator, below: int) -> int:
    """Return a random integer from 0 to `below - 1`."""
    return int(torch.randint(below, (), generator=generator))


def orthonormal_rows(generator: torch.Generator, count: int, width: int) -> Tensor:
    """Return random orthonormal rows, `[count, width]`."""
    return torch.linalg.qr(normal(generator, width, count))[0].mT


class Misfit(ValueError):
    """What was built has the wrong form; the text states what was given and what was expected."""


def built(answer: Any, **shapes: tuple[int | str, ...]) -> list[Tensor]:
    """Return what a build-by-hand answer returned, as float64 tensors of the shapes asked for.

    A name in a shape stands for a size that the answer chooses: `W_V=(5, "d_head"), W_O=("d_head", 5)`.
    """
    if not isinstance(answer, (tuple, list)) or len(answer) != len(shapes):
        is_group = isinstance(answer, (tuple, list))
        given = f"{len(answer)} values" if is_group else type(answer).__name__
        raise Misfit(f"It returned {given}. Return {', '.join(shapes)}, in this order.")
    sizes: dict[str, int] = {}
    tensors = []
    for (name, shape), part in zip(shapes.items(), answer, strict=True):
        tensor = as_tensor(part)
        if tensor is None:
            raise Misfit(f"{name} is of type {type(part).__name__}. Return a tensor.")
        if shape == () and tensor.numel() == 1:
            tensor = tensor.reshape(())
        wanted = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)
        if not fits(tensor.shape, wanted):
            listed = ", ".join(map(str, wanted))
            hint = ""
            if fits(tensor.shape[::-1], wanted):
                hint = question_about(name, dict(zip(shapes, answer, strict=True)), shapes)
            raise Misfit(f"{name} has shape {list(tensor.shape)}; expected [{listed}].{hint}")
        if not tensor.isfinite().all():
            raise Misfit(f"{name} contains NaN or infinity. Is something divided by 0?")
        for size, length in zip(shape, tensor.shape, strict=True):
            if isinstance(size, str):
                sizes[size] = length
        tensors.append(tensor)
    return tensors


def question_about(
    name: str, parts: dict[str, Any], shapes: dict[str, tuple[int | str, ...]]
) -> str:
    """Return a question about a tensor whose axes are the other way round, for a message."""
    tensors = {key: as_tensor(part) for key, part in parts.items()}
    for other, second in tensors.items():
        first = tensors[name]
        if first is None or second is None or shapes[other] == shapes[name]:
            continue
        if fits(second.shape, shapes[name]) and fits(first.shape, shapes[other]):
            return f" Did you exchange {name} and {other}, or transpose both?"
    return " Is it transposed?"


def fits(shape: Iterable[int], wanted: tuple[int | str, ...]) -> bool:
    """Return whether a shape is the wanted one; a name in `wanted` stands for any size."""
    lengths = tuple(shape)
    if len(lengths) != len(wanted):
        return False
    pairs = zip(lengths, wanted, strict=True)
    return all(isinstance(size, str) or size == length for length, size in pairs)


def as_tensor(value: Any) -> Tensor | None:
    """Return numbers of any kind as a float64 tensor: tensors, arrays, lists, lists of tensors."""
    if isinstance(value, (list, tuple)) and any(isinstance(part, (Tensor, list)) for part in value):
        rows = [as_tensor(part) for part in value]
        tensors = [row for row in rows if row is not None]
        if len(tensors) < len(rows) or any(row.shape != tensors[0].shape for row in tensors):
            return None
        return torch.stack(tensors)
    is_python = isinstance(value, (float, list, tuple))  # Python's numbers are float64
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64 if is_python else None)
    except (TypeError, ValueError, RuntimeError):
        return None
    if tensor.is_complex():
        return None if tensor.imag.abs().gt(1e-6).any() else tensor.real.double()
    return tensor.detach().cpu().double()


def close(value: Tensor | None, expected: Tensor | None) -> bool:
    """Return whether two results agree to 1e-5 of the largest expected magnitude.

    The cases are float64. An answer that computes in float32 is accepted.
    """
    if value is None or expected is None or value.shape != expected.shape:
        return False
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    tolerance = 1e-5 * max(largest, 1.0)
    return torch.allclose(value, expected, rtol=0.0, atol=tolerance, equal_nan=True)
