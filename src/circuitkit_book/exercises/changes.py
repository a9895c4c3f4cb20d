"""Changes that a right answer may have suffered, whatever the exercise: of what goes in, of what is built, of what comes out.

Each change is a sentence with a function. An answer that equals a changed right one on every case is told the sentence.
"""

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from circuitkit_book.exercises.exercise import Case, Exercise, as_tensor

POWERS = (
    (1, "times"),
    (-1, "divided by"),
    (0.5, "times the root of"),
    (-0.5, "divided by the root of"),
)
Change = tuple[str, Callable[..., Any]]


def of_inputs(exercise: Exercise, case: Case) -> Iterator[Change]:
    """What may have happened to an input: `change(case)` gives the inputs that the answer seems to have used."""
    given = {name: case[name] for name in exercise.asked}
    tensors = [n for n, v in given.items() if isinstance(v, Tensor) and v.is_floating_point()]
    kinds = {n: exercise.inputs[n] for n in given}
    for one, other in combinations(given, 2):
        if type(given[one]) is type(given[other]) and _alike(
            given[one], given[other], kinds[one], kinds[other]
        ):
            yield (
                f"`{one}` and `{other}` were exchanged",
                lambda c, a=one, b=other: c | {a: c[b], b: c[a]},
            )
    for name in tensors:
        for words, change in _tensor_inputs(given[name]):
            yield f"`{name}` {words}", lambda c, n=name, f=change: c | {n: f(c[n])}
    for name in (n for n, v in given.items() if isinstance(v, (int, float))):
        for words, change in _numbers(given[name]):
            yield f"`{name}` {words}", lambda c, n=name, f=change: c | {n: f(c[n])}


def _alike(one: Any, other: Any, how: Any, other_how: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            one.dtype == other.dtype
            and one.ndim == other.ndim
            and (one.shape == other.shape or how != other_how)
        )
    return isinstance(one, int)


def _tensor_inputs(value: Tensor) -> Iterator[Change]:
    yield "were left out (all zeros)", torch.zeros_like
    yield "were all ones", torch.ones_like
    yield "had the opposite sign", torch.neg
    yield "had only positive entries (its absolute value)", torch.abs
    if value.ndim == 2:
        yield "were transposed", lambda v: v.mT
    for axis in range(value.ndim):
        yield (
            f"were the same everywhere along axis {axis}: its average",
            lambda v, a=axis: v.mean(a, keepdim=True).expand_as(v),
        )
        yield (
            f"were the same everywhere along axis {axis}: its first",
            lambda v, a=axis: v.narrow(a, 0, 1).expand_as(v),
        )
        yield f"were centred along axis {axis}", lambda v, a=axis: v - v.mean(a, keepdim=True)
        yield f"had length 1 along axis {axis}", lambda v, a=axis: v / v.norm(dim=a, keepdim=True)
        yield f"were turned back to front along axis {axis}", lambda v, a=axis: v.flip(a)
        for step, words in ((1, "later"), (-1, "earlier")):
            yield (
                f"stood one place {words} along axis {axis} (rolled)",
                lambda v, a=axis, s=step: v.roll(s, a),
            )
    yield from _scaled(value, "were")


def _numbers(value: int | float) -> Iterator[Change]:
    yield "were 0", lambda v: type(v)(0)
    yield "were 1", lambda v: type(v)(1)
    yield "were one larger", lambda v: v + 1
    yield "were one smaller", lambda v: v - 1
    if isinstance(value, float):
        yield "were squared", lambda v: v**2
        yield "were its square root", lambda v: abs(v) ** 0.5
        yield "were half as large", lambda v: v / 2
        yield "were twice as large", lambda v: v * 2


def _scaled(value: Tensor, verb: str) -> Iterator[Change]:
    for axis in range(value.ndim):
        for power, words in POWERS:
            yield (
                f"{verb} {words.replace('times', 'multiplied by')} the size of axis {axis}",
                lambda v, a=axis, p=power: v * v.shape[a] ** p,
            )


def of_parts(exercise: Exercise, parts: Any) -> Iterator[Change]:
    """What may have happened to one of the things that were built: `change(parts)`."""
    if not exercise.parts or not isinstance(parts, (tuple, list)):
        return
    names = exercise.parts
    for i, j in combinations(range(len(names)), 2):
        yield (
            f"{names[i]} and {names[j]} are exchanged",
            lambda p, a=i, b=j: _put(_put(p, a, p[b]), b, p[a]),
        )
        yield (
            f"{names[i]} and {names[j]} are both twice what they should be",
            lambda p, a=i, b=j: _put(_put(p, a, 2 * p[a]), b, 2 * p[b]),
        )
        yield (
            f"{names[i]} and {names[j]} both have the wrong sign",
            lambda p, a=i, b=j: _put(_put(p, a, -p[a]), b, -p[b]),
        )
    for i, name in enumerate(names):
        part = as_tensor(parts[i])
        for words, change in () if part is None else _built(part):
            yield (
                f"{name} {words}",
                lambda p, i=i, f=change: _put(p, i, f(torch.as_tensor(p[i], dtype=torch.float64))),
            )


def _built(value: Tensor) -> Iterator[Change]:
    yield "has the wrong sign", torch.neg
    yield "is zero", torch.zeros_like
    yield "is twice what it should be", lambda v: 2 * v
    yield "is half of what it should be", lambda v: v / 2
    if value.ndim >= 2:
        yield "is transposed", lambda v: v.mT
    for axis in range(value.ndim):
        for at, end in ((0, "first"), (-1, "last")):
            yield (
                f"is 0 at its {end} place along axis {axis}",
                lambda v, a=axis, e=at: _without(v, a, e),
            )
        for step, words in ((1, "late"), (-1, "early")):
            yield (
                f"stands one place too {words} along axis {axis}",
                lambda v, a=axis, s=step: v.roll(s, a),
            )
    yield from _scaled(value, "is")


def _without(value: Tensor, axis: int, place: int) -> Tensor:
    out = value.clone()
    out.select(axis, place).zero_()
    return out


def _put(parts: Any, index: int, value: Any) -> tuple[Any, ...]:
    return (*parts[:index], value, *parts[index + 1 :])


def of_result(names: tuple[str, ...], right: Tensor) -> Iterator[Change]:
    """What may have happened to the result: `change(right)` is what the answer seems to have returned."""
    axes = [names[i] if len(names) == right.ndim else f"axis {i}" for i in range(right.ndim)]
    yield "with the opposite sign", torch.neg
    yield "without its sign (the absolute value)", torch.abs
    yield "cut off below 0", lambda v: v.clamp_min(0)
    yield "cut off at 0 and 1", lambda v: v.clamp(0, 1)
    yield "subtracted from 1", lambda v: 1 - v
    yield "upside down (one over it)", lambda v: 1 / v
    yield "squared", torch.square
    yield "under a square root", torch.sqrt
    yield "after another exp", torch.exp
    yield "after another logarithm", torch.log
    yield "in another base: bits for nats", lambda v: v / math.log(2)
    yield "through a sigmoid", torch.sigmoid
    yield "made into 0 and 1 (above 0 or not)", lambda v: (v > 0).double()
    if right.ndim == 2:
        yield f"transposed: {axes[0]} and {axes[1]} are exchanged", lambda v: v.mT
        yield "without what lies above the diagonal", torch.tril
        yield "without what lies below the diagonal", torch.triu
        yield "without diagonal and above", lambda v: v.tril(-1)
        yield "reduced to its diagonal", lambda v: v.diagonal()
    if right.ndim:
        yield "added up to one number", torch.sum
        yield "averaged to one number", torch.mean
        yield "divided by the sum of all its entries", lambda v: v / v.sum()
        yield "minus the mean of all its entries", lambda v: v - v.mean()
        yield "flattened", torch.flatten
    for i, axis in enumerate(axes):
        yield f"at the first {axis} alone", lambda v, a=i: v.select(a, 0)
        yield f"at the last {axis} alone", lambda v, a=i: v.select(a, -1)
        yield f"summed over {axis}", lambda v, a=i: v.sum(a)
        yield f"averaged over {axis}", lambda v, a=i: v.mean(a)
        yield f"minus its mean over {axis}", lambda v, a=i: v - v.mean(a, keepdim=True)
        yield f"divided by its sum over {axis}", lambda v, a=i: v / v.sum(a, keepdim=True)
        yield f"divided by its length along {axis}", lambda v, a=i: v / v.norm(dim=a, keepdim=True)
        yield f"after a softmax over {axis}", lambda v, a=i: v.softmax(a)
        yield f"after a log-softmax over {axis}", lambda v, a=i: v.log_softmax(a)
        yield (
            f"averaged over {axis}, the same at every {axis}",
            lambda v, a=i: v.mean(a, keepdim=True).expand_as(v),
        )
        yield f"added up step by step along {axis}", lambda v, a=i: v.cumsum(a)
        yield f"back to front along {axis}", lambda v, a=i: v.flip(a)
        yield f"without its first {axis}", lambda v, a=i: v.narrow(a, 1, v.shape[a] - 1)
        yield f"without its last {axis}", lambda v, a=i: v.narrow(a, 0, v.shape[a] - 1)
        for step, words in ((1, "late"), (-1, "early")):
            yield f"one {axis} too {words}, wrapped around", lambda v, a=i, s=step: v.roll(s, a)
            yield (
                f"one {axis} too {words}",
                lambda v, a=i, s=step: _without(v.roll(s, a), a, 0 if s > 0 else -1),
            )
