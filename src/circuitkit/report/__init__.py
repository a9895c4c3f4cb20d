"""A report of any model in one call: what its heads do, how they feed each other, what its weights say in words.

It joins the tools of the other rooms and computes nothing of its own: a formula belongs into the room whose question it
answers. A part may be added (`_parts.py`); how it looks is said in `_page.py`.

The package is called like its main function and can be called in its place. **Shapes**: as `report.report` says.
**Source**: this book.
"""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

from circuitkit.report._report import report

__all__ = ["report"]


class _Room(_ModuleType):
    """A package that reports on a model when it is called."""

    def __call__(self, *args: _Any, **kwargs: _Any) -> _Any:
        return report(*args, **kwargs)


_sys.modules[__name__].__class__ = _Room
