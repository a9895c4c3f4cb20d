"""Any model as one value: `ck.anatomy(model)` reads it, one loop runs it, one grammar names its parts.

What is a model is asked here and nowhere else. A new kind of model is a reader in `_read.py`, a new name a line of the
grammar; what a circuit means may not come in.

The package is called like its main function and can be called in its place. **Shapes**: as `anatomy.anatomy` says.
**Source**: this book.
"""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

from circuitkit.anatomy._address import join, read
from circuitkit.anatomy._neurons import Neurons
from circuitkit.anatomy._read import anatomy
from circuitkit.anatomy._run import Run
from circuitkit.anatomy._sublayer import Anatomy, Norm, from_heads
from circuitkit.anatomy._write import to_bridge

__all__ = [
    "Anatomy",
    "Neurons",
    "Norm",
    "Run",
    "anatomy",
    "from_heads",
    "join",
    "read",
    "to_bridge",
]


class _Room(_ModuleType):
    """A package that reads a model when it is called."""

    def __call__(self, model: _Any) -> Anatomy:
        return anatomy(model)


_sys.modules[__name__].__class__ = _Room
