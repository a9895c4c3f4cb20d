"""Any model as one value: `ck.anatomy(model)` reads it, one loop runs it, one grammar names its parts.

The package is called like its main function and can be called in its place. **Shapes**: as `anatomy.anatomy` says.
**Source**: this book.
"""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

from circuitkit.anatomy._address import Address as Address
from circuitkit.anatomy._address import complete as complete
from circuitkit.anatomy._address import join as join
from circuitkit.anatomy._address import read as read
from circuitkit.anatomy._heads import heads as heads
from circuitkit.anatomy._mixed import MixedHeads as MixedHeads
from circuitkit.anatomy._neurons import Neurons as Neurons
from circuitkit.anatomy._norm import Norm as Norm
from circuitkit.anatomy._read import anatomy as anatomy
from circuitkit.anatomy._run import Run as Run
from circuitkit.anatomy._sublayer import Anatomy as Anatomy
from circuitkit.anatomy._sublayer import Step as Step
from circuitkit.anatomy._sublayer import Sublayer as Sublayer
from circuitkit.anatomy._sublayer import from_heads as from_heads
from circuitkit.anatomy._write import to_bridge as to_bridge

__all__ = [
    "Address",
    "Anatomy",
    "MixedHeads",
    "Neurons",
    "Norm",
    "Run",
    "Step",
    "Sublayer",
    "anatomy",
    "complete",
    "from_heads",
    "heads",
    "join",
    "read",
    "to_bridge",
]


class _Room(_ModuleType):
    """A package that reads a model when it is called."""

    def __call__(self, model: _Any) -> Anatomy:
        return anatomy(model)


_sys.modules[__name__].__class__ = _Room
