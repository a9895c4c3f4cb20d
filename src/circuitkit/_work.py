"""A progress bar for loops that may take long."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

SECONDS = 5.0
"""What takes longer than this shows how far it is."""


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a bar once they have taken five seconds; `TQDM_DISABLE=1` keeps it silent."""
    from tqdm.auto import tqdm

    if isinstance(items, list) and len(items) < 2:
        return iter(items)
    # in a notebook tqdm does not look by itself
    silent = os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    return iter(tqdm(items, desc=what, total=total, delay=SECONDS, leave=False, disable=silent))
