"""Long work, item by item: a bar, a plan, and where items have keys, each is written down by whoever computed it, and never computed twice.

joblib moves the items: `with joblib.parallel_config("dask"):` around a call sends them to a cluster. A worker that dies takes
with it only what it had not finished; an item that fails is reported and stops no other.
"""

import hashlib
import inspect
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from circuitkit._contract import must, public
from circuitkit._state import hooked, settings

SECONDS = 5.0
"""What takes longer than this shows how far it is."""


class Done(NamedTuple):
    """One item: what it gave, or in words what went wrong."""

    key: str
    result: Any
    problem: str | None


@dataclass(frozen=True, eq=False)
class Plan:
    """What long work will take: seconds of one processor core and bytes beside what was given, both estimated.

    **Source**: see `plan` and `report`.
    """

    items: dict[str, tuple[float, float]]
    """Seconds and bytes by key."""
    kept: tuple[str, ...] = ()
    """Keys that are there from an earlier call."""
    took: float = 0.0
    """Processor seconds that finding this out took."""

    @property
    def seconds(self) -> float:
        """All that is still to do, on one core."""
        return sum(
            (seconds for key, (seconds, _) in self.items.items() if key not in self.kept), 0.0
        )

    def __repr__(self) -> str:
        most = max((size for _, size in self.items.values()), default=0)
        lines = [
            f"{len(self.items)} parts, {len(self.kept)} of them kept; about {self.seconds:.3g} s on one core and {most / 2**20:.0f} MiB beside what was given; found out in {self.took:.2g} s"
        ]
        return "\n".join(
            [
                *lines,
                *(
                    f"  {key:<24}{seconds:>8.1f} s{size / 2**20:>8.0f} MiB"
                    for key, (seconds, size) in self.items.items()
                ),
            ]
        )


class _Planned(Exception):
    """Enough was seen of a loop to say what all of it takes."""


_TOTALS: ContextVar[list[int] | None] = ContextVar("totals", default=None)


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a bar once they have taken five seconds; `TQDM_DISABLE=1`, as in stored outputs, keeps it silent."""
    from tqdm.auto import tqdm

    if isinstance(items, list) and len(items) < 2:
        return iter(items)
    if (outer := _TOTALS.get()) is None:
        silent = os.environ.get("TQDM_DISABLE", "0") not in (
            "",
            "0",
        )  # in a notebook tqdm does not look by itself
        return iter(tqdm(items, desc=what, total=total, delay=SECONDS, leave=False, disable=silent))
    items = list(items) if total is None else items
    return _two(items, what, len(items) if isinstance(items, list) else total or 1, outer)


def _two(items: Iterable[Any], what: str, total: int, outer: list[int]) -> Iterator[Any]:
    """Two items, and then what all would take, as often as the loops around this one go round."""
    outer.append(total)
    start = time.process_time()
    for number, item in enumerate(items):
        yield item
        now = time.process_time()
        if number == 1 and total > 2:
            raise _Planned(what, (now - start) * math.prod(outer))
        start = now
    outer.pop()


@public
def plan(function: Callable, *args: Any, **kwargs: Any) -> Plan:
    """What a call would take: two rounds of its first long loop are done, timed and counted up; the rest is not.

    `plan(f, x, k=3)` for `f(x, k=3)`. Any tool that shows a bar can be asked; what has no long loop is done, and measured.
    `took` says what the asking cost: what comes before the loop, and these rounds. Bytes are the most that was taken beside what was there, on the processor and on a GPU (nan where the system does not say).

    **Error**: that of two rounds; a first loop that is not the longest misleads. **Source**: this book.

    >>> from circuitkit.circuits import composition_scores, random_heads
    >>> plan(composition_scores, random_heads(2, 32, 4), random_heads(2, 32, 4, layer=1)).seconds < 5
    True
    """
    token, before, start = _TOTALS.set([]), _taken(fresh=True)[0], time.process_time()
    try:
        function(*args, **kwargs)
        what, seconds = getattr(function, "__name__", "call"), time.process_time() - start
    except _Planned as planned:
        what, seconds = planned.args
    finally:
        _TOTALS.reset(token)
    most = _taken()[1] - before
    return Plan(
        {what: (seconds, most if math.isnan(most) else max(0.0, most))},
        took=time.process_time() - start,
    )


def _taken(fresh: bool = False) -> tuple[int, float]:
    """Bytes that this process holds, and the most it held since it was last asked for a `fresh` start."""
    import torch

    gpu = torch.cuda.is_available()
    if fresh:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", "ascii")
        if gpu:
            torch.cuda.reset_peak_memory_stats()
    there = (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) if gpu else (0, 0)
    try:
        said = Path("/proc/self/status").read_text("ascii")
        now, most = (int(said.split(name)[1].split()[0]) * 1024 for name in ("VmRSS:", "VmHWM:"))
    except (OSError, IndexError):
        now, most = 0, math.nan  # a system that does not say
    return now + there[0], float(most + there[1])


def work(
    function: Callable[..., Any],
    items: Mapping[str, tuple],
    folder: Path | None = None,
    *,
    what: str,
    n_jobs: int | None = None,
) -> Iterator[Done]:
    """`function(*items[key])` for every key, as they are done; what lies in `folder` already is read and not computed.

    Results are numbers, tensors and texts that json can hold. Stored or fresh, they come back as json gives them.
    """
    from joblib import Parallel, delayed

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    jobs: Any = (
        delayed(_one)(function, key, arguments, folder) for key, arguments in items.items()
    )
    one_by_one: Any = {"return_as": "generator_unordered", "batch_size": 1}
    found: Any = Parallel(n_jobs=n_jobs, **one_by_one)(jobs)
    yield from (Done(*one) for one in progress(found, what, len(items)))


_KEPT: ContextVar[Path | None] = ContextVar("kept", default=None)


@public
@must(
    lambda folder: (
        bool(str(folder))
        and not Path(folder).is_file()
        or "a folder, which is made if it is not there"
    )
)
@contextmanager
def kept_in(folder: str | Path) -> Iterator[None]:
    """Inside `with kept_in("study"):` long calls write each item down as it comes, and called again go on where they stopped.

    So do `effect`, `attribution` by patching and `survey`: a set of names taken out of one model on the same rows is run once,
    whoever asks. Models and rows are told apart by their numbers, all of them, versions by theirs; a measure of your own and a
    model with hooks have no name to be kept by and are refused. An item that fails stops
    no other; at the end a `ValueError` names it. Items run through joblib, as those of a `report`. **Source**: this book.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, kept_in(folder):
    ...     pass
    """
    token = _KEPT.set(Path(folder))
    try:
        yield
    finally:
        _KEPT.reset(token)


def each(
    function: Callable[..., Any], items: Mapping[str, tuple], what: str, of: Callable[[], str]
) -> list[Any]:
    """`function(*items[key])` for every key, in their order; inside `kept_in` through `work`, in a folder named by what it is `of`."""
    folder = _KEPT.get()
    if folder is None:
        return [function(*arguments) for arguments in progress([*items.values()], what)]
    done = {one.key: one for one in work(function, items, folder / of(), what=what)}
    if failed := [f"{one.key} ({one.problem})" for one in done.values() if one.problem]:
        raise ValueError(
            f"{what}: {len(failed)} of {len(items)} could not be computed: {'; '.join(failed[:3])}. The others are kept in {folder}: mend these, and call the same again."
        )
    return [done[key].result for key in items]


def fingerprint(model: Any, *asked: Any) -> str:
    """What tells one model, question and version from another: every weight, bit by bit, and the question in words."""
    from circuitkit import __version__

    told = hashlib.sha256(repr((__version__, asked)).encode())
    for part in _told(model):
        told.update(part)
    return told.hexdigest()[:16]


def _told(thing: Any) -> Iterator[Any]:
    """The bytes of all that a model is made of; of a function, of what it holds."""
    import torch

    if isinstance(thing, torch.Tensor):
        yield repr((tuple(thing.shape), thing.dtype)).encode()
        yield thing.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    elif isinstance(thing, torch.nn.Module):
        for name, W in (*thing.named_parameters(), *thing.named_buffers()):
            yield name.encode()
            yield from _told(W)
        for said in (
            getattr(thing, "cfg", None),
            getattr(getattr(thing, "original_model", None), "config", None),
        ):
            plain = {} if said is None else vars(said)
            yield repr(
                sorted(
                    (key, value)
                    for key, value in plain.items()
                    if isinstance(value, (int, float, str, tuple))
                )
            ).encode()
        if hooked(thing, modules=True):
            raise ValueError(
                "a model with hooks on it has no name to be kept by; expected one without. Call model.reset_hooks(), or call this outside kept_in and without out=."
            )
        yield repr(settings(thing)).encode()
        yield from _told(
            [module.terms for module in thing.modules() if hasattr(module, "terms")]
        )  # heads of a neuron
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            yield field.name.encode()
            yield from _told(getattr(thing, field.name))
    elif isinstance(thing, (tuple, list)):
        for one in thing:
            yield from _told(one)
    elif isinstance(thing, np.ndarray):
        yield thing.tobytes()
    elif inspect.ismethod(thing):
        yield repr(
            [
                (name, value)
                for name, value in vars(thing.__self__).items()
                if isinstance(value, (int, float, str))
            ]
        ).encode()
        yield from _told(thing.__self__)
    elif inspect.isfunction(thing):
        yield thing.__qualname__.encode()
        yield from _told([cell.cell_contents for cell in thing.__closure__ or ()])
    elif hasattr(thing, "__dict__"):
        yield from _told([*vars(thing).items()])
    else:
        yield repr(thing).encode()


def set_key(names: Iterable[str]) -> str:
    """A set of names as a key: itself where it is one."""
    some = sorted(names)
    told = some[0] if some else "nothing"
    return (
        told
        if len(some) < 2
        else f"{told} and {len(some) - 1} more {hashlib.sha256(repr(some).encode()).hexdigest()[:16]}"
    )


def place_in(folder: Path, key: str) -> Path:
    """Where the result of an item lies: its key, less what a file may not be called."""
    return folder / (re.sub(r"[^\w.=,+-]+", "_", key) + ".json")


def _one(
    function: Callable[..., Any], key: str, arguments: tuple, folder: Path | None
) -> tuple[str, Any, str | None]:
    place = None if folder is None else place_in(folder, key)
    if place is not None and place.exists():
        with suppress(ValueError):  # a file that was cut off is made again
            return key, json.loads(place.read_text("utf-8")), None
    try:
        text = json.dumps(function(*arguments), default=lambda tensor: tensor.tolist())
    except Exception as problem:
        first = next(iter(str(problem).strip().splitlines()), "")
        return key, None, f"{type(problem).__name__}: {first}"
    if place is not None:
        write(place, text)
    return key, json.loads(text), None


def write(place: Path, text: str) -> None:
    """A file in one step: an interruption leaves the old one, or none."""
    new = place.with_name(f"{place.name}.{os.getpid()}.new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, place)
    except OSError:
        new.unlink(missing_ok=True)
        raise
