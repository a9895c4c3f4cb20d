"""Long work, item by item: each has a key, is written down by whoever computed it, and is never computed twice.

joblib moves the items: `with joblib.parallel_config("dask"):` around a call sends them to a cluster. A worker that dies takes
with it only what it had not finished; an item that fails is reported and stops no other.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 5.0
"""What takes longer than this shows how far it is."""


class Done(NamedTuple):
    """One item: what it gave, or in words what went wrong."""

    key: str
    result: Any
    problem: str | None


def progress(items: Iterable, what: str, total: int | None = None) -> Iterator:
    """The items, with a bar once they have taken five seconds; `TQDM_DISABLE=1`, as in stored outputs, keeps it silent."""
    from tqdm.auto import tqdm

    return iter(tqdm(items, desc=what, total=total, delay=SECONDS, leave=False))


def work(
    function: Callable[..., Any], items: Mapping[str, tuple], folder: Path | None = None, *, what: str, n_jobs: int | None = None
) -> Iterator[Done]:
    """`function(*items[key])` for every key, as they are done; what lies in `folder` already is read and not computed.

    Results are numbers and texts that json can hold. Stored or fresh, they come back as json gives them.
    """
    from joblib import Parallel, delayed

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    jobs: Any = (delayed(_one)(function, key, arguments, folder) for key, arguments in items.items())
    one_by_one: Any = {"return_as": "generator_unordered", "batch_size": 1}
    found: Any = Parallel(n_jobs=n_jobs, **one_by_one)(jobs)
    yield from (Done(*one) for one in progress(found, what, len(items)))


def place_in(folder: Path, key: str) -> Path:
    """Where the result of an item lies: its key, less what a file may not be called."""
    return folder / (re.sub(r"[^\w.=,+-]+", "_", key) + ".json")


def _one(function: Callable[..., Any], key: str, arguments: tuple, folder: Path | None) -> tuple[str, Any, str | None]:
    place = None if folder is None else place_in(folder, key)
    if place is not None and place.exists():
        return key, json.loads(place.read_text("utf-8")), None
    try:
        text = json.dumps(function(*arguments))
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
