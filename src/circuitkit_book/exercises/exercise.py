"""What an exercise is, and all of them: one body with labelled choices, a specification in plain loops, inputs drawn by named axes."""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from itertools import combinations
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor

Case = dict[str, Any]
"""Named inputs of one trial, such as `{"x": ..., "W_Q": ...}`."""


@dataclass(frozen=True)
class Mistake:
    """One wrong turn, or two, and what to tell whoever took it."""

    name: str
    """What was done, in a few words, such as `the scores are not divided by sqrt(d_head)`."""
    advice: str
    """One or two sentences that lead on without giving the solution away."""
    turned: Mapping[str, Any]
    """The choices that are turned, such as `{"scale": "none"}`."""
    wrong: Callable[..., Any]
    """The body with these choices: whoever gives the same results on every trial made this mistake."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: `spec` says what is right, `inputs` what to try it on, and `choices` where one may turn wrong."""

    about: str
    """Number, title, difficulty, minutes and the section that teaches it: `2.1 the attention pattern | easy | 10 minutes |
    02-qk-and-ov-circuits#two-parts-that-do-not-touch`."""
    spec: Callable[..., Tensor]
    """The right result for one case, written to be obviously right: plain loops, no library function of ours."""
    body: Callable[..., Any]
    """An answer whose keyword-only arguments are the choices; it is right by default."""
    choices: str
    """A wrong turn on each line: `choice = value | what was done | a sentence that leads on`. Values of which the same is to
    be said stand together: `choice = 0 / 2 | ...`."""
    inputs: dict[str, Any]
    """How to draw each input: axes (`"pos d_model"`: normal numbers), `"pos < vocab"` (whole numbers below a size), a
    number, or a function of sizes, generator and the inputs drawn before."""
    axes: str = ""
    """All axes, such as `"pos, d_head < d_model"`; sizes are pairwise different, and ascend where `<` says so."""
    observe: Callable[..., Any] | None = None
    """What is compared, from what the answer returned and the case. An exercise with many right answers (build a head
    that ...) observes what the answer does, not what it is."""
    parts: tuple[str, ...] = ()
    """Names of the things that a build exercise returns, such as `("W_V", "W_O")`."""
    kinds: Mapping[str, Callable[..., bool]] = field(default_factory=dict)
    """Kinds of cases in words, to say on which an answer fails."""
    trials: int = 12
    smallest: int = 2
    """Smallest size of an axis."""
    names: tuple[str, ...] = ()
    """Names of the result's axes, for messages: `("destination", "source")`."""
    columns: tuple[str, ...] = ()
    """What each entry of the last axis is, where they are different things: `("place it looks at", "token it says")`."""
    way: Callable[[Any, Case], str] | None = None
    """What is wrong with the way to right numbers, where the text asks for a way: a sentence, or nothing."""
    kind: torch.dtype | None = None
    """Number format of an accepted answer's results; that of its inputs unless given."""

    @property
    def number(self) -> str:
        """Chapter and place, such as `2.1`."""
        return self.about.split()[0]

    @property
    def title(self) -> str:
        return self._told[0].partition(" ")[2]

    @property
    def difficulty(self) -> str:
        """`easy`, `medium` or `hard`."""
        return self._told[1]

    @property
    def minutes(self) -> int:
        return int(self._told[2].split()[0])

    @property
    def read(self) -> str:
        """The section that teaches it, as `page#anchor`."""
        return self._told[3]

    @property
    def _told(self) -> list[str]:
        return [part.strip() for part in self.about.split("|")]

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The inputs that the answer gets, in order."""
        kinds = inspect.signature(self.body).parameters.values()
        return tuple(p.name for p in kinds if p.kind is not inspect.Parameter.KEYWORD_ONLY)

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Every wrong turn by itself."""
        found, right = [], inspect.signature(self.body).parameters
        for line in filter(None, map(str.strip, self.choices.splitlines())):
            turn, name, advice = (part.strip() for part in line.split("|"))
            choice, _, values = turn.partition(" = ")
            for value in values.split(" / "):
                turned = {choice: _read(value, right[choice].default)}
                found.append(Mistake(name, advice, turned, partial(self.body, **turned)))
        return tuple(found)

    @cached_property
    def pairs(self) -> tuple[tuple[Mistake, Mistake, Callable[..., Any]], ...]:
        """Every two wrong turns at different choices, and the body that takes both."""
        return tuple(
            (one, other, partial(self.body, **{**one.turned, **other.turned}))
            for one, other in combinations(self.mistakes, 2)
            if not set(one.turned) & set(other.turned)
        )

    def cases(self, seed: int = 20) -> Iterator[Case]:
        """The same cases at every call, the smallest first."""
        generator = torch.Generator().manual_seed(seed + sum(map(ord, self.number + self.title)))
        for step in range(self.trials):
            yield self._drawn(
                _sizes(self.axes, generator, step // 2, self.smallest), generator, step
            )

    def square_cases(self) -> list[Case]:
        """Cases whose sizes are all equal. A transposed matrix that crashes on the others gets through here."""
        generator, found = torch.Generator().manual_seed(7), []
        for size in (3, 4, 5) if self.axes else ():
            found.append(self._drawn(dict.fromkeys(_listed(self.axes), size), generator, size))
        return found

    @cached_property
    def tried(self) -> tuple[list[Case], list[Case]]:
        """What a check tries: the cases, and those of other sizes and seeds on which mistakes are told apart. Drawn once."""
        return [*self.cases()], self.square_cases() + [*self.cases(seed=77)][-3:]

    @cached_property
    def known(self) -> dict[Any, Any]:
        """What our own functions gave on them, by function and case."""
        return {}

    def _drawn(self, sizes: dict[str, int], generator: torch.Generator, step: int) -> Case:
        case: Case = {}
        for name, how in self.inputs.items():
            if callable(how):
                case[name] = how(sizes | {"step": step}, generator, case)
            elif isinstance(how, str):
                axes, _, below = how.partition("<")
                shape = tuple(sizes[axis] for axis in axes.split())
                whole = (
                    torch.randint(sizes[below.strip()], shape, generator=generator)
                    if below
                    else None
                )
                case[name] = (
                    normal(generator, *shape) if whole is None else whole if shape else int(whole)
                )
            else:
                case[name] = how
        return case


def catalogue(chapter: int | None = None) -> tuple[Exercise, ...]:
    """The exercises of one chapter (1 to 5), or of all, with their minutes, difficulty and known mistakes.

    >>> [exercise.title for exercise in catalogue(2)][:2]
    ['how much goes to the first place', 'a head that copies, by hand']
    """
    from circuitkit_book import exercises

    modules = [
        import_module(f"circuitkit_book.exercises.{module.name}")
        for module in iter_modules(exercises.__path__)
    ]
    found = [module.EXERCISE for module in modules if hasattr(module, "EXERCISE")]
    found.sort(key=lambda exercise: exercise.number)
    chosen = tuple(e for e in found if chapter is None or e.number.startswith(f"{chapter}."))
    if not chosen:
        have = sorted({e.number.split(".")[0] for e in found})
        raise ValueError(
            f"no exercises in chapter {chapter!r}; there are exercises in chapters {', '.join(have)}"
        )
    return chosen


def sizes_of(exercise: Exercise, case: Case) -> dict[str, int]:
    """The sizes of the axes in a case."""
    found: dict[str, int] = {}
    for name, how in exercise.inputs.items():
        if isinstance(how, str) and isinstance(case[name], Tensor):
            found |= dict(zip(how.split("<")[0].split(), case[name].shape, strict=True))
    return found


def _read(value: str, right: Any) -> Any:
    """A wrong value: a word where the right one is a word, else a number, a truth value, or a word again."""
    try:
        return value if isinstance(right, str) else ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value


def _listed(axes: str) -> list[str]:
    return axes.replace("<", " ").replace(",", " ").split()


def _sizes(axes: str, generator: torch.Generator, growth: int, smallest: int) -> dict[str, int]:
    """Pairwise different sizes: they make a transposed matrix or a swapped axis an error instead of a coincidence."""
    count = len(_listed(axes))
    pool = torch.randperm(count + growth, generator=generator)[:count].sort().values + smallest
    drawn = [int(size) for size in pool[torch.randperm(count, generator=generator)]]
    found: dict[str, int] = {}
    for group in axes.split(",") if axes else ():
        chain = _listed(group)
        found |= dict(zip(chain, sorted(drawn[: len(chain)]), strict=True))
        drawn = drawn[len(chain) :]
    return found


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal float64 numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class Misfit(ValueError):
    """What was built has the wrong form; the text says what was given and what was expected."""


def built(answer: Any, **shapes: tuple[int | str, ...]) -> list[Tensor]:
    """What a build-by-hand answer returned, as float64 tensors of the shapes asked for.

    A name in a shape stands for one size of the answer's choosing, such as `W_V=(5, "d_head"), W_O=("d_head", 5)`.
    """
    names = ", ".join(shapes)
    if not isinstance(answer, (tuple, list)) or len(answer) != len(shapes):
        count = (
            f"{len(answer)} things" if isinstance(answer, (tuple, list)) else type(answer).__name__
        )
        raise Misfit(f"it returned {count}; return {names}, in this order")
    chosen: dict[str, int] = {}
    tensors = []
    for (name, shape), part in zip(shapes.items(), answer, strict=True):
        tensor = as_tensor(part)
        if tensor is None:
            raise Misfit(f"{name} is {type(part).__name__}; expected numbers")
        tensor = tensor.reshape(()) if shape == () and tensor.numel() == 1 else tensor
        wanted = [chosen.get(size, size) if isinstance(size, str) else size for size in shape]

        def fits(have: Any, wanted: list[Any] = wanted) -> bool:
            return len(have) == len(wanted) and all(
                isinstance(size, str) or size == n for size, n in zip(wanted, have, strict=True)
            )

        if not fits(tensor.shape):
            listed = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
            turned = tensor.ndim == 2 and fits(tensor.mT.shape)
            hint = ": is it transposed?" if turned else ""
            raise Misfit(f"{name} has shape {tuple(tensor.shape)}; expected ({listed}){hint}")
        if not tensor.isfinite().all():
            raise Misfit(f"{name} holds numbers that are not finite: is something divided by zero?")
        chosen |= {
            size: have
            for size, have in zip(shape, tensor.shape, strict=True)
            if isinstance(size, str)
        }
        tensors.append(tensor)
    return tensors


def as_tensor(got: Any) -> Tensor | None:
    """Numbers of any kind as a float64 tensor: tensors, arrays, lists, lists of tensors, factored matrices."""
    got = getattr(got, "AB", got)
    if isinstance(got, (list, tuple)) and any(
        isinstance(part, (Tensor, list, tuple)) for part in got
    ):
        rows = [as_tensor(part) for part in got]
        if (
            any(row is None for row in rows)
            or len({row.shape for row in rows if row is not None}) > 1
        ):
            return None
        return torch.stack([row for row in rows if row is not None])
    try:
        plain = isinstance(got, (float, list, tuple))  # Python's numbers are float64
        tensor = torch.as_tensor(got, dtype=torch.float64 if plain else None).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        return None
    if tensor.is_complex():
        return None if tensor.imag.abs().gt(1e-6).any() else tensor.real.double()
    return tensor.double()
