"""What an exercise is: a slow specification, inputs to try, and the mistakes people make."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from circuitkit._contract import public

Case = dict[str, Any]
"""Named inputs of one trial, such as `{"x": ..., "W_Q": ...}`."""


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give, and what to tell them."""

    name: str
    """What was done, in a few words, such as `the scores are not divided by sqrt(d_head)`."""
    wrong: Any
    """The wrong answer itself: whoever gives the same results on every trial made this mistake."""
    advice: str
    """One or two sentences that lead on without giving the solution away."""
    read: str = ""
    """The section to read, when it is another one than the exercise's."""


@public
@dataclass(frozen=True)
class Exercise:
    """One exercise: `spec` says what is right, `draw` what to try it on, `mistakes` what usually goes wrong."""

    number: str
    """Chapter and place, such as `2.1`."""
    title: str
    minutes: int
    difficulty: str
    """`easy`, `medium` or `hard`."""
    read: str
    """The section that teaches it, as `page#anchor`, such as `02-qk-and-ov-circuits#two-parts-that-do-not-touch`."""
    spec: Callable[..., Tensor]
    """The right result for one case, written to be obviously right: plain loops, no library function of ours."""
    draw: Callable[[torch.Generator, int], Case]
    """One case from a generator and a step 0, 1, 2, ...: small first, then larger, all sizes pairwise different."""
    mistakes: tuple[Mistake, ...]
    observe: Callable[..., Any] | None = None
    """What is compared, from the answer and the case; the answer's return value unless given. An exercise with many
    right answers (build a head that ...) observes what the answer does, not what it is."""
    square: Callable[[torch.Generator], Case] | None = None
    """A case whose sizes are all equal. A transposed matrix that crashes on the other cases gets through here."""
    trials: int = 12
    tolerance: float = 1e-8
    """Largest difference allowed, relative to the largest expected magnitude (the cases are float64)."""
    names: tuple[str, ...] = field(default=())
    """Names of the result's axes, for messages: `("destination", "source")`."""
    columns: tuple[str, ...] = field(default=())
    """What each entry of the last axis is, where they are different things: `("place it looks at", "token it says")`."""

    def cases(self) -> Iterator[Case]:
        """The same cases at every call, the smallest first."""
        generator = torch.Generator().manual_seed(20 + sum(map(ord, self.number + self.title)))
        for step in range(self.trials):
            yield self.draw(generator, step)

    def square_case(self) -> Case | None:
        return None if self.square is None else self.square(torch.Generator().manual_seed(7))

    def outcome(self, answer: Any, case: Case) -> Any:
        """What the answer gives on a case; its own copies of the tensors, so that it cannot spoil the next trial."""
        own = {name: value.clone() if isinstance(value, Tensor) else value for name, value in case.items()}
        return (self.observe or _call)(answer, **own)


def _call(answer: Callable[..., Any], **case: Any) -> Any:
    return answer(**case)


def sizes(generator: torch.Generator, step: int, count: int, smallest: int = 2) -> list[int]:
    """`count` pairwise different sizes from `smallest` up, growing with `step`, in random order.

    Distinct sizes make a transposed matrix or a swapped axis an error instead of a coincidence.
    """
    pool = torch.randperm(count + step, generator=generator)[:count].sort().values + smallest
    return [int(size) for size in pool[torch.randperm(count, generator=generator)]]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal float64 numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Misfit(ValueError):
    """What was built has the wrong form; the text says what was given and what was expected."""


def built(answer: Any, **shapes: tuple[int | str, ...]) -> list[Tensor] | None:
    """What a build-by-hand answer returned, as float64 tensors of the shapes asked for; `None` for an untouched stub.

    A name in a shape stands for one size of the answer's choosing, such as `W_V=(5, "d_head"), W_O=("d_head", 5)`.
    """
    if answer is None or answer is ...:
        return None
    names = ", ".join(shapes)
    if not isinstance(answer, (tuple, list)) or len(answer) != len(shapes):
        count = f"{len(answer)} things" if isinstance(answer, (tuple, list)) else type(answer).__name__
        raise Misfit(f"it returned {count}; return {names}, in this order")
    chosen: dict[str, int] = {}
    tensors = []
    for (name, shape), part in zip(shapes.items(), answer, strict=True):
        tensor = torch.as_tensor(part).detach().to("cpu", torch.float64)
        tensor = tensor.reshape(()) if shape == () and tensor.numel() == 1 else tensor
        wanted = [chosen.get(size, size) if isinstance(size, str) else size for size in shape]
        if tensor.ndim != len(shape) or any(
            size != have for size, have in zip(wanted, tensor.shape, strict=True) if not isinstance(size, str)
        ):
            listed = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
            raise Misfit(f"{name} has shape {tuple(tensor.shape)}; expected ({listed})")
        chosen |= {size: have for size, have in zip(shape, tensor.shape, strict=True) if isinstance(size, str)}
        tensors.append(tensor)
    return tensors
