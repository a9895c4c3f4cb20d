"""All exercises of the book, in reading order: every file of this folder whose name begins with a number is one."""

import re
from importlib import import_module
from pkgutil import iter_modules

from circuitkit._contract import Count, public
from circuitkit.exercises._exercise import Exercise


@public
def catalogue(chapter: Count | None = None) -> tuple[Exercise, ...]:
    """The exercises of one chapter (1 to 5), or of all, with their minutes, difficulty and known mistakes.

    >>> [exercise.title for exercise in catalogue(2)][:2]
    ['how much goes to the first place', 'a head that copies, by hand']
    """
    from circuitkit import exercises

    names = sorted(module.name for module in iter_modules(exercises.__path__) if re.match(r"_\d_\d_", module.name))
    found = [import_module(f"circuitkit.exercises.{name}").EXERCISE for name in names]
    chosen = tuple(e for e in found if chapter is None or e.number.startswith(f"{chapter}."))
    if not chosen:
        have = sorted({e.number.split(".")[0] for e in found})
        raise ValueError(f"no exercises in chapter {chapter!r}; there are exercises in chapters {', '.join(have)}")
    return chosen
