"""The contract at the public door: what every argument may be is said once, in the signature, and checked there.

`@public` stands above every function and class that is exported; a class is guarded at its constructor, at every method
whose name has no underscore, and at `__call__` and `__getitem__`. An argument is described by its annotation: a class
(`Heads`), a `Literal`, a jaxtyping array, or a kind from here (`k: Count`, `model: Model`), `| None` included. Arrays are
finite, integers arrive as int64 and axes of one name are equal in all arguments, without a line for it;
`Annotated[Float[Tensor, "..."], AS_IT_IS]` lets NaN through. What holds between arguments is a rule below `@public`, such as
`@ids("tokens")` or `@must(lambda k, n: k <= n or f"k of at most {n}")`, whose function names the arguments and gives True or
what was expected. A new kind is `Annotated[int, kind(test, "what is expected", "why", "what to write")]`; `{name}` is the
argument. In the body the arguments are right: check there only what the model or the numbers turn out to be.

beartype does the checking (`is_bearable` on the annotation, `Is` for the tests of the kinds), jaxtyping the axes; this
module adds the words. An argument that was left at its default is not checked.
"""

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import numpy as np
from beartype.door import is_bearable
from beartype.vale import Is
from jaxtyping import AbstractArray, jaxtyped

from circuitkit._state import is_bridge, is_finite


@dataclass(frozen=True, eq=False)
class Words:
    """How a refusal speaks of a kind, and the test that a value must pass."""

    expected: str
    why: str = ""
    instead: str = ""
    test: Callable[[Any], bool] = bool

    def __call__(self, value: Any) -> bool:
        return self.test(value)

    def __repr__(self) -> str:
        return self.expected


_WORDS: dict[Any, Words] = {}
MOST = 2**31 - 1
"""The largest count: more is a slip, and would fill a memory before it fails."""


def kind(test: Callable[[Any], bool], expected: str, why: str = "", instead: str = "") -> Any:
    """A test and its words, to stand behind a type: `Annotated[int, kind(...)]`."""
    words = Words(expected, why, instead, test)
    validator = Is[words]
    _WORDS[validator] = words
    return validator


def whole(least: int, most: int = MOST, why: str = "it counts something", instead: str = "") -> Any:
    """Whole numbers from `least` to `most`; truth values are none."""
    limit = (
        f"an integer of at least {least}" if most == MOST else f"an integer from {least} to {most}"
    )
    example = instead or f"Write for example {{name}}={max(least, min(most, 8))}."
    return kind(lambda n: not isinstance(n, bool) and least <= n <= most, limit, why, example)


def number(
    low: float | int,
    high: float | int,
    expected: str,
    why: str,
    example: float | int,
    *,
    above: bool = False,
) -> Any:
    """Finite numbers between `low` and `high`; with `above`, `low` itself is left out. Truth values are none."""
    inside = lambda x: (
        not isinstance(x, bool)
        and math.isfinite(x)
        and low <= x <= high
        and not (above and x == low)
    )
    return kind(inside, expected, why, f"Write for example {{name}}={example:g}.")


def _all(items: Any, wanted: type | tuple[type, ...], least: int = 0) -> bool:
    """A sequence, at least so long, of these and of no truth values."""
    plain = (
        isinstance(items, Sequence) and not isinstance(items, (str, bytes)) and len(items) >= least
    )
    return plain and all(isinstance(item, wanted) and not isinstance(item, bool) for item in items)


def _is_tensor(value: Any) -> bool:
    """torch is not imported for the question: what is drawn may come from numpy alone."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def _works(function: Callable, value: Any) -> bool:
    try:
        return bool(function(value))
    except (TypeError, ValueError, RuntimeError, AssertionError):
        return False


def _is_device(to: Any) -> bool:
    import torch

    return isinstance(to, torch.device) or (
        isinstance(to, str) and _works(lambda to: torch.empty(0, device=to).device, to)
    )


def _is_whole(array: Any) -> bool:
    return not (array.is_floating_point() or array.is_complex() or str(array.dtype) == "torch.bool")


def _are_triples(rows: Any) -> bool:
    if _is_tensor(rows):
        return rows.ndim == 2 and rows.shape[1] >= 3 and _is_whole(rows)
    return _all(rows, (tuple, list)) and all(
        _all(row[:3], int, 3) and min(row[:3]) >= 0 for row in rows
    )


def _is_model(model: Any) -> bool:
    """Whether `circuitkit.anatomy` reads it: a bridge, a value read before, a toy or hand-made model, a gated one, a choice of several."""
    parts = ("heads", "W_E", "W_U"), ("block", "original"), ("models", "model")
    known = is_bridge(model) or type(model).__name__ == "Anatomy"
    return known or any(all(hasattr(model, name) for name in names) for names in parts)


def sizes(model: Any) -> tuple[int, int]:
    """How many tokens a model knows, and how many positions it reads."""
    while not hasattr(model, "cfg") and not hasattr(model, "W_E"):
        model = model.model if hasattr(model, "models") else model.original
    cfg = getattr(model, "cfg", model)
    return getattr(cfg, "d_vocab", len(model.W_E) if hasattr(model, "W_E") else 0), getattr(
        cfg, "n_ctx", None
    ) or MOST


AS_IT_IS = kind(lambda array: True, "any numbers")
"""Behind an array's annotation: entries may be NaN or infinite."""
Count = Annotated[int, whole(1)]
Several = Annotated[int, whole(2)]
Natural = Annotated[
    int,
    whole(
        0,
        why="it counts something, or says which, counted from 0",
        instead="Write for example {name}=0.",
    ),
]
Token = Annotated[
    int,
    whole(
        0,
        why="tokens are known by their ids",
        instead="Write {name}=model.to_single_token(' king').",
    ),
]
Draws = Annotated[int, whole(1, 10**8, "rows are drawn and kept")]
Seed = Annotated[int, whole(0, 2**62, "it seeds a generator")]
Integer = Annotated[int, whole(-MOST, MOST, "it is a position")]
Finite = Annotated[
    float | int,
    number(-math.inf, math.inf, "a finite number", "nothing can be computed without one", 1),
]
Positive = Annotated[
    float | int,
    number(0, math.inf, "a positive, finite number", "its size means something", 1, above=True),
]
NonNegative = Annotated[
    float | int, number(0, math.inf, "a finite number, 0 or more", "it has no sign", 0)
]
LearningRate = Annotated[
    float | int,
    number(0, 10, "a number above 0 and at most 10", "larger steps diverge", 0.01, above=True),
]
Fraction = Annotated[float | int, number(0, 1, "a number from 0 to 1", "it is a share", 0.5)]
Share = Annotated[
    float | int,
    number(0, 1, "a number above 0 and at most 1", "it is a share of something", 0.5, above=True),
]
Limit = Annotated[
    float | int,
    kind(lambda x: not isinstance(x, bool) and x > 0, "a positive number", "a range is promised"),
]
_is_names = lambda names: isinstance(names, str) or _all(names, str)  # noqa: E731
Names = Annotated[
    Sequence[str], kind(_is_names, "a list of names", "parts are chosen by name", "Write ['L0H1'].")
]
PartName = Annotated[
    str,
    kind(
        bool, "a name", "parts are addressed by name", "Write 'L0H1', or 'L0H1->L1H3.K' for a wire."
    ),
]
_is_head = lambda head: not isinstance(head, bool)  # noqa: E731
HeadName = Annotated[
    str | int, kind(_is_head, "one name or number", "one head is asked about", "Write 'L0H0'.")
]
_heads = (
    "a name, a number among all heads, or a list of these",
    "heads are chosen by name or number, and (1, 3) could be two heads or head 3 of layer 1",
    "Write 'L1H3', or ['L0H1', 'L0H3'] for two.",
)
_are_heads = lambda h: (
    _all([h], (str, int))
    or (_all(h, (str, int)) and not (isinstance(h, tuple) and len(h) == 2 and _all(h, int)))
)
HeadNames = Annotated[str | int | Sequence[str | int], kind(_are_heads, *_heads)]
_is_vocabulary = lambda v: (
    2 <= v <= MOST if isinstance(v, int) else _all(v, str, 2) and len({*v}) == len(v)
)
_tokens = (
    "an integer of at least 2, or the tokens themselves, each once",
    "it counts the tokens",
    "Write for example {name}=8.",
)
Vocabulary = Annotated[int | Sequence[str], kind(_is_vocabulary, *_tokens)]
_triples = (
    "rows (source, destination, completion, ...) of token ids",
    "a triple has three tokens",
    "Write [(7, 5, 2)].",
)
Triples = Annotated[Any, kind(_are_triples, *_triples)]
_factors = lambda m: all(_is_tensor(getattr(m, side, None)) for side in "AB")  # noqa: E731
Factored = Annotated[
    Any,
    kind(_factors, "a FactoredMatrix", "it is never formed whole", "Write full_ov(model, 'L0H1')."),
]
_are_numbers = lambda values: _works(
    lambda v: np.asarray(v.detach().cpu().double() if _is_tensor(v) else v).dtype.kind in "iuf",
    values,
)
Numbers = Annotated[
    Any,
    kind(
        _are_numbers, "numbers", "they are drawn", "Write a tensor, an array or a list of numbers."
    ),
]
_is_figure = lambda fig: hasattr(fig, "savefig") and not isinstance(fig, type)  # noqa: E731
Figure = Annotated[
    Any,
    kind(_is_figure, "a matplotlib figure", "it is drawn", "Write fig, ax = plt.subplots() first."),
]
Name = Annotated[
    str,
    kind(
        lambda n: bool(n.strip()),
        "a name",
        "a model is looked up by it",
        "circuitkit.list_models() has some.",
    ),
]
_make = "Make one with circuitkit.load_model(name), or TransformerBridge.boot_transformers(...) for a Hugging Face model; "
_make += "transformer-lens 4 replaced HookedTransformer by TransformerBridge."
_bridge = "a transformer-lens TransformerBridge", "its weights are read and it is run", _make
_WIDE = ("torch.float32", "torch.float64")
_is_place = lambda to: (
    _is_device(to) or type(to).__name__ == "dtype" or _is_tensor(to) or isinstance(to, bool)
)
_is_real = lambda d: getattr(d, "is_floating_point", None) is True  # noqa: E731
if TYPE_CHECKING:
    import torch
    from transformer_lens.model_bridge import TransformerBridge

    Model = TransformerBridge
    AnyModel = HasHeads = Any
    Device = torch.device | str
    Place = torch.dtype | torch.device | torch.Tensor | str | bool
    Real = Trained = torch.dtype
else:
    Device = Annotated[
        Any,
        kind(_is_device, "a torch device of this machine", "weights are put there", "Write 'cpu'."),
    ]
    Place = Annotated[
        Any,
        kind(
            _is_place,
            "a dtype, a device or a tensor",
            "numbers are moved there",
            "Write torch.float64.",
        ),
    ]
    Real = Annotated[
        Any,
        kind(
            _is_real, "a floating-point dtype", "fractions are kept in it", "Write torch.float32."
        ),
    ]
    Trained = Annotated[
        Any,
        kind(
            lambda d: str(d) in _WIDE,
            "torch.float32 or torch.float64",
            "training amplifies rounding",
        ),
    ]
    Model = Annotated[Any, kind(is_bridge, *_bridge)]
    AnyModel = Annotated[
        Any, kind(_is_model, *_bridge)
    ]  # or whatever else circuitkit.anatomy reads
    _has_heads = lambda model: (
        _is_model(model) or type(getattr(model, "heads", None)).__name__ == "Heads"
    )
    HasHeads = Annotated[Any, kind(_has_heads, *_bridge)]  # or what carries its own

_CLASSES = {
    "Heads": Words(
        "Heads",
        "weights are read",
        "Write circuitkit.heads_of(model), or heads[['L0H0']] for some; stack(*list_of_heads) for several.",
    ),
    "Recipe": Words(
        "a Recipe", "it says what is trained and how", "Write GATES or GATES.but(steps=500)."
    ),
    "Repeated": Words(
        "what repeated_tokens(...) returns",
        "each pass is known",
        "Write repeated_tokens(d_vocab, period).",
    ),
    "bool": Words("True or False", "it switches something on or off", "Write {name}=True."),
    "str": Words("a text", "it is taken by its letters", "Put it in quotes."),
    "Mapping": Words(
        "a dictionary by name", "parts and wires have names", "Write {'L0H1->L1H3.K': 2.1}."
    ),
    "Callable": Words("a function", "it is called", "Give the function itself, not its result."),
}


T = TypeVar("T")


class Rule(NamedTuple):
    """What must hold between some arguments: of their values `test` gives True, or what was expected in words."""

    names: tuple[str, ...]
    test: Callable[..., Any]

    def __call__(self, thing: T) -> T:
        """As a decorator, below `@public`."""
        anything: Any = thing
        anything.__rules__ = (self, *vars(anything).get("__rules__", ()))
        return thing


def must(test: Callable[..., Any], *names: str) -> Rule:
    """A rule about the arguments that a function names, the first not None: `must(lambda k, n: k <= n or f"1 to {n}")`."""
    return Rule(names or tuple(inspect.signature(test).parameters), test)


def ids(tokens: str = "tokens", model: str = "model", least: int = 1) -> Rule:
    """Token ids that this model can read: some, of its vocabulary, and no longer than its context."""

    def readable(rows: Any, model: Any) -> Any:
        rows = getattr(rows, "tokens", rows)
        if not _is_tensor(rows):
            return True
        d_vocab, n_ctx = sizes(model)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < d_vocab:
            return f"ids in 0..{d_vocab - 1}, the model's vocabulary. Use its own tokenizer: model.to_tokens(text)"
        return (
            _is_whole(rows)
            and rows.ndim in (1, 2)
            and rows.numel() > 0
            and least <= rows.shape[-1] <= n_ctx
        ) or (
            f"[batch, pos] with at least {least} position{'s' * (least > 1)} in a row and at most {n_ctx}, the model's context. "
            f"Make the integers with model.to_tokens(text); one row is {tokens}[None]"
        )

    return Rule((tokens, model), readable)


def reads(weights: str, x: str = "x") -> Rule:
    """A stream that an object's own weights `[..., d_model, any]` can be multiplied with."""

    def fits(x: Any, owner: Any) -> Any:
        W = getattr(owner, weights)
        return (
            x.numel() > 0 and (x.shape[-1], x.dtype, x.device) == (W.shape[-2], W.dtype, W.device)
        ) or (
            f"[..., pos, d_model] with d_model={W.shape[-2]}, {W.dtype}, on {W.device}, as {weights} is, and a position and a coordinate or more. Bring them together with .to()"
        )

    return Rule((x, "self"), fits)


def one_stream(earlier: str = "earlier", later: str = "later") -> Rule:
    """Two stacks of heads, neither empty, that read and write vectors of one size."""
    why = "because both must live in one residual stream. Take both from the same model"
    one = lambda a, b: (
        len(a) > 0 < len(b)
        and a.d_model == b.d_model
        and len({a.of, b.of} - {""}) < 2
        or f"at least one on either side, of one d_model and one model, {why}"
    )
    return Rule((earlier, later), one)


def one_dtype(*names: str) -> Rule:
    """Arrays (or heads) that are multiplied with each other: of one dtype, on one device."""

    def alike(*arrays: Any) -> Any:
        seen = {
            (a.dtype, a.device) for a in (getattr(a, "W_V", a) for a in arrays) if _is_tensor(a)
        }
        return (
            len(seen) < 2
            or "one dtype on one device, because they are multiplied. Bring them together with .to()"
        )

    return Rule(names, alike)


def given(name: str, value: Any, *, array: bool = False) -> str:
    """What was given, in words: an array by its shape and dtype, a short value as it is, anything else by its type."""
    if _is_tensor(value):
        bad = value.is_floating_point() and not value.is_meta and not is_finite(value)
        more = (
            " on the meta device"
            if value.is_meta
            else ", with NaN or infinite entries"
            if bad
            else ""
        )
        if str(value.dtype) == "torch.int64" and value.numel() > 1:
            more = f", from {int(value.min())} to {int(value.max())}"
        return f"{name} of shape {tuple(value.shape)}, {value.dtype}{more}"
    if type(value).__name__ == "Repeated":
        return given(f"{name}.tokens", value.tokens)
    if type(value).__name__ == "Heads":
        return (
            f"{name} with {len(value)} heads of d_model {value.d_model} in {value.W_V.dtype}"
            + f", read from {value.of!r}" * bool(value.of)
        )
    plain = (
        int,
        float,
        complex,
        str,
        bytes,
        types.NoneType,
        *(() if array else (list, tuple, dict)),
    )
    if isinstance(value, plain) and len(repr(value)) < 80:
        return f"{name}={value!r}"
    return (
        f"{name}={value.__name__}"
        if isinstance(value, type)
        else f"{name} as a {type(value).__qualname__}"
    )


def place_of(key: str | int, names: Sequence[str], what: str = "head") -> int:
    """The place of one of these by its name, or by its number, which may count from the end."""
    if isinstance(key, int) and -len(names) <= key < len(names):
        return key % len(names)
    if isinstance(key, int):
        raise ValueError(f"{what} index {key} is out of range for {len(names)} {what}s")
    if key not in names:
        shown = ", ".join(names[:24]) + (f", ... ({len(names)} in all)" if len(names) > 24 else "")
        raise ValueError(f"no {what} is called {key!r}; the {what}s are: {shown}")
    return names.index(key)


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _bare(hint: Any) -> Any:
    """An annotation without its tests, as a reader of `help` wants it."""
    arms = [get_args(arm)[0] if get_origin(arm) is Annotated else arm for arm in _arms(hint)]
    return arms[0] if len(arms) == 1 else functools.reduce(lambda one, two: one | two, arms)


def _array(hint: Any) -> Any:
    """The jaxtyping part of an annotation, or None."""
    arms = [get_args(arm)[0] if get_origin(arm) is Annotated else arm for arm in _arms(hint)]
    return next(
        (arm for arm in arms if isinstance(arm, type) and issubclass(arm, AbstractArray)), None
    )


def _array_words(array: Any, value: Any, sizes: dict[str, int]) -> Words:
    axes, dtype = array.dim_str.split(), array.dtype.__name__
    numbers = {"Int": "integers", "Float": "floating-point numbers", "Bool": "truth values"}.get(
        dtype, "numbers"
    )
    known = ", ".join(f"{axis}={sizes[axis]}" for axis in dict.fromkeys(axes) if axis in sizes)
    expected = f"a torch tensor of {numbers} [{', '.join(axes)}]{' with ' * bool(known)}{known}"
    if (
        isinstance(value, (list, tuple))
        and len({len(row) for row in value if hasattr(row, "__len__")}) > 1
    ):
        return Words(
            expected,
            "all rows have one length",
            "Give rows one at a time, row[None], or cut them to one length.",
        )
    if not _is_tensor(value):
        made = (
            "torch.tensor([ids]) for a list, model.to_tokens(text) for text"
            if dtype == "Int"
            else "torch.tensor(values)"
        )
        return Words(expected, "it is computed with position by position", f"Write {made}.")
    if not is_bearable(value, array.dtype[array.array_type, "..."]):
        cast = {"Int": "long", "Bool": "bool"}.get(dtype, "float")
        return Words(
            expected,
            "other numbers mean something else here",
            f"Write {{name}}.{cast}() if they are what is meant.",
        )
    one = " One row is {name}[None]." if value.ndim + 1 == len(axes) else ""
    return Words(expected, "axes of one name have one size", f"Bring it to that shape.{one}")


def _words(hint: Any, value: Any, sizes: dict[str, int]) -> Words:
    """What an annotation asks for, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if len(_arms(hint)) > 1:
        each = [_words(arm, value, sizes) for arm in _arms(hint) if arm is not types.NoneType]
        expected = [words.expected for words in each] + ["None"] * (types.NoneType in _arms(hint))
        return Words(" or ".join(dict.fromkeys(expected)), each[0].why, each[0].instead)
    if (array := _array(hint)) is not None:
        return _array_words(array, value, sizes)
    if origin is Annotated:
        return next(_WORDS[part] for part in arguments if part in _WORDS)
    if origin is Literal:
        return Words(
            f"one of {list(arguments)}",
            "nothing else is defined",
            f"Write {{name}}={arguments[0]!r}.",
        )
    if origin in (tuple, Sequence):
        inner = _words(arguments[0], value, sizes)
        fixed = origin is tuple and ... not in arguments
        many = f"{len(arguments)} of them, each" if fixed else "a list or tuple, each entry"
        return Words(f"{many} {inner.expected}", inner.why)
    name = getattr(origin or hint, "__name__", str(hint))
    return _CLASSES.get(name, Words(f"a {name}"))


def _all_hold(value: Any, hint: Any) -> bool:
    """What beartype leaves open: of a long sequence it asks one item, so here all are asked. A truth value is no integer."""
    if isinstance(value, bool):
        return hint is not int
    if isinstance(value, type):  # which can be called, but makes an object
        return all(Callable not in (arm, get_origin(arm)) for arm in _arms(hint))
    if not isinstance(value, Sequence):
        return True
    kinds = {arm: [item for item in get_args(arm) if item is not ...] for arm in _arms(hint)}
    kinds = {
        arm: items[0]
        for arm, items in kinds.items()
        if get_origin(arm) in (tuple, Sequence) and len(items) == 1
    }
    others = [arm for arm in _arms(hint) if arm not in kinds and _array(arm) is None]
    if not kinds or any(is_bearable(value, arm) for arm in others):
        return True
    return not isinstance(value, (str, bytes)) and any(
        all(is_bearable(one, item) and _all_hold(one, item) for one in value)
        for item in kinds.values()
    )


class _Parameter(NamedTuple):
    name: str
    hint: Any
    default: Any
    several: bool
    array: Any
    may_be_nan: bool
    plain_axes: bool

    def plain(self, value: Any) -> Any:
        """NumPy's scalars as Python's, lists as tuples and any integers as int64, where these are asked for."""
        if isinstance(value, np.generic):
            return value.item()
        if (
            self.array is not None
            and self.array.dtype.__name__ == "Int"
            and _is_tensor(value)
            and _is_whole(value)
        ):
            return value.long()
        pair = isinstance(value, list) and any(get_origin(arm) is tuple for arm in _arms(self.hint))
        return tuple(value) if pair else value

    def wrong(self, value: Any, bearable: bool, sizes: dict[str, int]) -> str | None:
        """What is wrong with a value, as one sentence; the sizes of its axes are kept for the next argument."""
        if not bearable or not _all_hold(value, self.hint):
            words = _words(self.hint, value, sizes)
            because = f", because {words.why}" if words.why else ""
            text = f"{given(self.name, value, array=self.array is not None)}; expected {words.expected}{because}. {words.instead}"
            return text.replace("{name}", self.name).rstrip()
        if self.array is None or not _is_tensor(value):
            return None
        if self.plain_axes:
            sizes.update(zip(self.array.dim_str.split(), value.shape, strict=True))
        if not value.is_meta and (
            self.may_be_nan or not value.is_floating_point() or is_finite(value)
        ):
            return None
        return f"{given(self.name, value)}; expected finite numbers, because no result would mean anything. Look where they come from."


def _parameters(function: Callable) -> dict[str, _Parameter]:
    """What is known of each annotated argument; an annotation whose name is unknown here is left alone."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        if isinstance(hint, str):
            try:
                hint = eval(
                    hint, function.__globals__
                )  # our own source, as typing.get_type_hints does it
            except NameError:
                continue
        if hint in (inspect.Parameter.empty, Any):
            continue
        array = _array(hint)
        nan = any(AS_IT_IS in get_args(arm) for arm in _arms(hint))
        axes = array is not None and all(axis.isidentifier() for axis in array.dim_str.split())
        several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        found[name] = _Parameter(name, hint, parameter.default, several, array, nan, axes)
    return found


def _problems(
    known: dict[str, _Parameter], rules: tuple[Rule, ...], bound: inspect.BoundArguments
) -> list[str]:
    """Everything that is wrong with the arguments of a call; on the way they are made plain."""
    wrong, sizes, arguments = [], {}, bound.arguments
    with (
        jaxtyped("context")
        if any(parameter.array for parameter in known.values())
        else nullcontext()
    ):
        for name, parameter in known.items():
            if name not in arguments or (value := arguments[name]) is parameter.default:
                continue
            if not parameter.several:
                value = arguments[name] = parameter.plain(value)
            # Asked here and not in a function of its own, which may have axes of its own when jaxtyping watches this module.
            asked = [
                (item, is_bearable(item, parameter.hint))
                for item in (value if parameter.several else [value])
            ]
            wrong += [text for item, good in asked if (text := parameter.wrong(item, good, sizes))]
    if rules and not wrong:
        bound.apply_defaults()
        for names, test in rules:
            values = [bound.arguments[name] for name in names]
            if values[0] is None or not isinstance(expected := test(*values), str):
                continue
            shown = [
                given(name, value)
                for name, value in zip(names, values, strict=True)
                if name not in ("model", "self")
            ]
            wrong.append(f"{', '.join(shown) or given(names[0], values[0])}; expected {expected}.")
    return wrong


_TRUSTED = ContextVar("trusted", default=False)


@contextmanager
def trusted() -> Iterator[None]:
    """Inside, nothing is checked: for a loop that gives the same arguments again and again, and shall not wait for a device."""
    before = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(before)


def _autocast() -> Any:
    """A context without autocast where it is on: what is promised holds in the model's own precision."""
    torch = sys.modules.get("torch")
    on = (
        []
        if torch is None
        else [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    )
    return torch.autocast(on[0], enabled=False) if torch is not None and on else None


def _guarded(function: Callable, what: str, rules: tuple[Rule, ...]) -> Any:
    signature, known = inspect.signature(function), {}
    if all(
        parameter.annotation is inspect.Parameter.empty
        for parameter in signature.parameters.values()
    ):
        return function

    @functools.wraps(function)
    def door(*args: Any, **kwargs: Any) -> Any:
        if _TRUSTED.get():
            return function(*args, **kwargs)
        if (coarse := _autocast()) is not None:
            with coarse:
                return door(*args, **kwargs)
        if not known:
            known.update(_parameters(inspect.unwrap(function)))
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(
                f"{what} could not take these arguments: {problem}. Write {what}{plain}"
            ) from None
        if wrong := _problems(known, rules, bound):
            raise ValueError("\n".join(f"{what} got {text}" for text in wrong))
        return function(*bound.args, **bound.kwargs)

    bare = [p.replace(annotation=_bare(p.annotation)) for p in signature.parameters.values()]
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in bare if p.name != "self"])
    seen = {"__door__": True, "__signature__": signature.replace(parameters=bare)}
    vars(door).update(seen)
    door.__annotations__ = {name: _bare(hint) for name, hint in function.__annotations__.items()}
    return door


def public(thing: T) -> T:
    """Check the arguments of a function, or of a class's constructor and methods, against their annotations and rules."""
    anything: Any = thing
    rules = vars(thing).get("__rules__", ())
    if not isinstance(thing, type):
        return _guarded(
            anything, anything.__qualname__.rpartition("<locals>.")[2].lstrip("_"), rules
        )
    for name, member in list(vars(thing).items()):
        if (
            inspect.isfunction(member)
            and not hasattr(member, "__door__")
            and (name in ("__init__", "__call__", "__getitem__") or not name.startswith("_"))
        ):
            what = thing.__name__ if name == "__init__" else f"{thing.__name__}.{name}"
            there = inspect.signature(member).parameters.keys()
            setattr(
                thing,
                name,
                _guarded(member, what, tuple(rule for rule in rules if there >= {*rule.names})),
            )
    thing.__annotations__ = {
        name: _bare(hint) for name, hint in vars(thing).get("__annotations__", {}).items()
    }
    return thing
