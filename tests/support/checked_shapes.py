"""A pytest plugin: every annotation in the library is checked at every call while the tests run.

As `--jaxtyping-packages=circuitkit,beartype.beartype` checks them, and the same checks, but a function none of whose
annotations holds an array gets beartype's check alone. jaxtyping would bind its arguments a second time and keep a memory
of sizes that no annotation names, which takes four times as long, and most calls are of such functions. A function within a
function is made anew at each call of that, a hundred thousand times in a run; its checks are written once.
"""

import functools
import inspect
import sys
import threading
from importlib.machinery import PathFinder
from typing import Any, get_args, get_type_hints

from beartype import beartype
from jaxtyping import AbstractArray, _import_hook, config, jaxtyped

PACKAGE = "circuitkit"


def of_arrays(hint: Any) -> bool:
    """Whether an annotation holds an array's type, however deep."""
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(
        map(of_arrays, get_args(hint))
    )


def names_sizes(function: Any) -> bool:
    """Whether an annotation of a function says something about the sizes of an array, or cannot be read here."""
    try:
        return any(map(of_arrays, get_type_hints(function, include_extras=True).values()))
    except (
        Exception
    ):  # a name that is imported for type checkers alone: jaxtyping knows what to do with it
        return True


_written: dict[Any, Any] = {}
_turn = threading.local()


def checked(thing: Any) -> Any:
    """A function, or a class made by `dataclass`, that checks what it is given and what it returns."""
    if not inspect.isfunction(thing) or "<locals>" not in thing.__qualname__:
        return _checked(thing)
    if not (hints := thing.__annotations__):
        return thing
    if any(isinstance(hint, str) for hint in hints.values()):  # read in the function's own module
        return _checked(thing)
    key = thing.__code__, *hints.items()
    if key not in _written:

        @functools.wraps(thing)
        def next_one(*args, **kwargs):
            return _turn.stack[-1](*args, **kwargs)

        _written[key] = _checked(next_one)
    asking = _written[key]

    @functools.wraps(thing)
    def function(*args, **kwargs):
        if config.jaxtyping_disable:
            return thing(*args, **kwargs)
        if not hasattr(_turn, "stack"):
            _turn.stack = []
        _turn.stack.append(thing)
        try:
            return asking(*args, **kwargs)
        finally:
            _turn.stack.pop()

    return function


def _checked(thing: Any) -> Any:
    if hasattr(vars(thing).get("__init__"), "__door__"):
        return thing  # a public class: its door asks first, and in words
    if not inspect.isfunction(thing) or names_sizes(thing):
        return jaxtyped(thing, typechecker=beartype)
    if (asking := beartype(thing)) is thing:
        return thing

    @functools.wraps(thing)
    def function(*args, **kwargs):
        return (thing if config.jaxtyping_disable else asking)(*args, **kwargs)

    return function


class Checker(_import_hook.Typechecker):
    """Puts `checked` where jaxtyping puts itself with a checker of types."""

    def __init__(self):
        super().__init__(f"{__name__}.checked")
        self.lookup[self.hash] = checked

    def get_ast(self):
        decorator = super().get_ast()  # jaxtyping.jaxtyped(typechecker=...lookup[hash])
        return decorator.keywords[0].value


def install() -> None:
    """Watch what is imported from now on."""
    if PACKAGE in sys.modules:
        raise RuntimeError(f"{PACKAGE} was imported before its annotations could be watched")
    sys.meta_path.insert(0, _import_hook._JaxtypingFinder([PACKAGE], PathFinder, Checker()))


install()
