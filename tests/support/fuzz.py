"""Call every public function with wrong arguments that are derived from its annotations.

What is right and what is wrong for an argument follows from its annotation: a kind of `circuitkit._contract` (KINDS), a
class (OBJECTS), an array with named axes (SIZES), a `Literal`, a flag. A new function needs no line here. RIGHT holds the few
arguments whose annotation says too little; a function without a right call is skipped and counted.

A wrong value has to be *refused*: a ValueError or TypeError of the library's own, in words. ODD values may also give a result,
but never an error from deep inside.
"""

import collections.abc
import importlib
import inspect
import math
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin
from unittest.mock import patch

import numpy as np
import torch
from jaxtyping import AbstractArray

import circuitkit as ck
from circuitkit import _contract
from tests.support import tiny_models

SECONDS = 8.0  # of processor time for one call
NAN, INF = math.nan, math.inf
SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
AXES = {"d_model": 12, "d_head": 4, "head": 6, "batch": 2, "pos": 8, "d_vocab": 23}


class NotDerived(Exception):
    """No right value follows from an annotation."""


# --- objects that functions take ------------------------------------------------------------------------------------


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def tokens(rows: int = 2, n: int = 8, d_vocab: int = 6) -> torch.Tensor:
    return torch.randint(d_vocab, (rows, n), generator=torch.Generator().manual_seed(0))


@cache
def model(**changes: Any) -> Any:
    return tiny_models.boot(torch.float32, **SIZES | changes)


@cache
def diverged() -> Any:
    """A model with one weight that is not a number."""
    made = tiny_models.boot(torch.float32, **SIZES)
    with torch.no_grad():
        made.blocks[1].attn.W_V[0, 0, 0] = NAN
    return made


@cache
def converted() -> Any:
    return ck.to_attention_only(model(attn_only=False, d_mlp=7, act_fn="silu"), heads_per_neuron=1)


@cache
def toy() -> Any:
    return ck.superposition.hand_specified(2, 2)


@cache
def recipe() -> Any:
    return ck.superposition.GATES.but(steps=2, batch=4, n_prompts=8)


def folder() -> Path:
    return Path(tempfile.mkdtemp())


def figure() -> Any:
    from matplotlib.figure import Figure

    made = Figure()
    made.add_subplot().plot([0, 1])
    return made


def factored() -> Any:
    from transformer_lens import FactoredMatrix

    return FactoredMatrix(normal(5, 2), normal(2, 6))


#: What a class is made by, for arguments of that class and for calls of its methods.
OBJECTS: dict[str, Callable[[], Any]] = {
    "Anatomy": lambda: ck.anatomy(model()),
    "CorpusStatistics": lambda: ck.models.CorpusStatistics(
        torch.ones(3).long(), torch.ones(3, 3).long()
    ),
    "Exercise": lambda: ck.exercises.catalogue(2)[0],
    "GatedBlock": lambda: ck.superposition.GatedBlock(recipe(), 2, 12),
    "GatedRuns": lambda: ck.superposition.train_gated(toy(), recipe(), inits=1),
    "Generator": lambda: torch.Generator().manual_seed(0),
    "HeadSum": lambda: ck.conversion.head_sum("gelu"),
    "Heads": lambda: ck.heads_of(model()),
    "MaskedHead": lambda: ck.conversion.MaskedHead(
        normal(12, 12), normal(12, 12), torch.ones(8, 8)
    ),
    "Neurons": lambda: ck.conversion.neuron_heads(normal(12, 3), normal(3, 12)),
    "Norm": lambda: ck.anatomy.Norm(normal(12)).freeze(normal(5, 12)),
    "OmegaMLP": lambda: ck.conversion.omega_mlp(
        normal(12, 3).double(), normal(3, 12).double(), n_ctx=8
    ),
    "Path": lambda: folder() / "new",
    "PathLogits": lambda: ck.paths.path_logits(model(), tokens()),
    "Recipe": recipe,
    "Repeated": lambda: ck.induction.repeated_tokens(23, 4),
    "Run": lambda: ck.anatomy(model()).run(tokens()),
    "SkipTrigramTask": lambda: ck.superposition.SkipTrigramTask(2),
    "InductionTraining": lambda: ck.induction.train_induction_model(
        1, steps=2, d_vocab=8, n_ctx=8, batch=4
    ),
    "Verdict": lambda: ck.superposition.head_verdict(toy(), rows=5),
    "dtype": lambda: torch.float32,
}  # fmt: skip


@cache
def made(name: str) -> Any:
    return OBJECTS[name]()


# --- kinds of the contract: right values, then wrong ones -----------------------------------------------------------

NO_CUDA = [] if torch.cuda.is_available() else ["cuda"]
KINDS: dict[str, tuple[list, list]] = {
    "Count": ([2, 1, np.int64(3)], [0, -1, True, 2.0, 2**31, "1", None, NAN]),
    "Natural": ([1, 0], [-1, False, 0.0, 2**40]),
    "Token": ([1, 50_000], [-1, " king", 2.0, None]),
    "Several": ([2], [1, True]),
    "Seed": ([0, 2**32, 2**62], [-1, 2**63, True, None]),
    "Draws": ([2, 10**8], [0, 10**8 + 1]),
    "Integer": ([1, -3, 0], [2.0, True, 2**31]),
    "Finite": ([1.5, -1.5, 0, np.float32(1)], [NAN, INF, -INF, True, "1", 1j, None]),
    "Positive": ([1.0, 1e-9, 3], [0, 0.0, -1, NAN, INF, True]),
    "NonNegative": ([0.5, 0, 5], [-1e-9, NAN, INF, False]),
    "LearningRate": ([1e-3, 10], [0, 11, INF]),
    "Fraction": ([0.5, 0, 1], [-0.1, 1.1, NAN, True]),
    "Share": ([0.5, 1], [0, 1.1, NAN]),
    "Limit": ([1.0, INF], [0.0, -1.0, NAN, True, "1"]),
    "HeadName": (["L1H0", 3, -1], [True, 1.5, None, ["L0H0"], b"L0H0"]),
    "HeadNames": (
        [["L0H1"], "L0H0", 3, ["L0H0", 1], [1, 3], (1,), ()],
        [(1, 3), True, [True], ["L0H0", True], [1.5], [["L0H0"]], {}, object()],
    ),
    "PartName": (["L0H1", "embed->L1H0.K"], ["", 3, None, ["L0H0"], b"L0H0"]),
    "Names": ([["L0H1"], "L0H0", ()], [3, [3], [b"L"], None, object()]),
    "Vocabulary": ([8, ["a", "b"]], [1, True, "ab", ["a"], ["a", "a"], [1, 2], None]),
    "Triples": (
        [[(1, 2, 3)], torch.ones(2, 5).long(), [], [(1, 2, 3, 0.5)]],
        [[(1, 2)], torch.ones(2, 3), torch.ones(3).long(), [1], None, [(1, 2, -3)]],
    ),
    "Numbers": (
        [[1, 2], 2.5, torch.ones(2), np.ones(3)],
        ["a", None, object(), [[1], [1, 2]], [1j]],
    ),
    "Name": (["zero-layer", "two-layer"], ["", " ", None, 3]),
    "Device": (["cpu", torch.device("cpu")], ["nowhere", "cpu:x", *NO_CUDA, 3, None]),
    "Place": ([torch.float64, "cpu", torch.ones(1)], ["nowhere", 3, [], NAN]),
    "Real": ([torch.float64, torch.float16], [torch.int64, "float", None]),
    "Trained": ([torch.float32], [torch.float16, torch.int64]),
}
#: Kinds that are whole models or figures: they are made when they are first needed.
MODELS: dict[str, Callable[[], Any]] = {
    "Model": model,
    "AnyModel": model,
    "HasHeads": model,
    "Factored": factored,
    "Figure": figure,
}  # fmt: skip
NO_MODEL = ["two-layer", None, torch.nn.Linear(2, 2), {}, torch.ones(2, 2), 3]
PLAIN = {bool: True, int: 2, float: 0.5, str: "L0H1"}
NOT_PLAIN = {
    bool: [1, None, "yes", []],
    int: ["3", True, 2.5, NAN],
    float: ["1", 1j, [1.0]],
    str: [3, ["a"], b"a", NAN],
}
#: Arguments whose annotation says too little for a right call, by function and name or by name alone.
RIGHT: dict[str, Callable[[], Any]] = {
    "answer": lambda: lambda *arguments, **named: None,
    "logit_attribution.answer": lambda: tokens() + 1,
    "anatomy.model": model,
    "alt": lambda: "A line from nothing to one in two steps",
    "back": lambda: (1, 2),
    "n_ctx": lambda: 8,
    "early": lambda: 2,
    "late": lambda: 6,
    "id": lambda: "2.6",
    "frames.steps": lambda: [1, 2],
    "frames.alt": lambda: lambda step: f"A line from nothing to {step} in two steps",
    "steps": lambda: 2,
    "Anatomy.steps": lambda: made("Anatomy").steps,
    "heads_per_neuron": lambda: 1,
    "gate_sum.activation": lambda: "silu",
    "to_attention_only.model": lambda: model(attn_only=False, d_mlp=7, act_fn="silu"),
    "Neurons.index.head": lambda: "L0N1",
    "effect.without": lambda: ["L0H1"],
    "earlier": lambda: made("Heads")[0:3],
    "later": lambda: made("Heads")[3:6],
    "rotation": lambda: torch.eye(12),
    "triples": lambda: torch.tensor([[1, 2, 3], [1, 4, 5]]),
    "k": lambda: 2,
    "Heads.scores_of.k": lambda: normal(6, 5, 4),
    "virtual_weights.reader": lambda: "unembed",
    "gate_sum.heads_per_neuron": lambda: 4,
    "mask": lambda: torch.ones(4, 4),
    "Heads.mask": lambda: "causal",
    "load_results.name": lambda: "post",
    "stored_survey.name": lambda: "smollm2-135m",
    "load_original.n_heads": lambda: 4,
    "load_original.n_trigrams": lambda: 5,
    "Address.kind": lambda: "embed",
    "claims": lambda: ck.claims.load()[:1],
    "found": lambda: {"a cut": ck.effect(model(), tokens(), "L0H1", draws=1)},
    "circuit.values": lambda: {"L0H1->L1H3.K": 2.1},
    "predict.words": lambda: ["a"],
    "draw": lambda: figure,
    "norm": lambda: torch.nn.Identity(),
    "patterns": lambda: torch.ones(1, 1, 1),
    **{f"Norm.{name}": lambda: normal(12, 12) for name in ("bound.W", "fold.W")},
    **{f"Norm.{name}.x": lambda: normal(5, 12) for name in ("freeze", "linear", "__call__")},
    **{f"OmegaMLP.{name}.x": lambda: normal(8, 12).double() for name in ("__call__", "augment")},
    **{
        f"{name}.name": lambda: "zero-layer" for name in ("checkpoints", "load_model", "model_card")
    },
}


# --- what an annotation says ----------------------------------------------------------------------------------------


def arms(hint: Any) -> list[Any]:
    """The parts of a union, without None."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [part for part in parts if part is not types.NoneType]


def kind_of(hint: Any) -> str | None:
    """The name of a kind in `circuitkit._contract`."""
    for name in (*KINDS, *MODELS):
        if getattr(_contract, name) is hint or getattr(_contract, name) == hint:
            return name
    return None


def bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def is_array(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


def array(hint: Any) -> torch.Tensor:
    """A tensor of this dtype and these axes; an axis without a known size has 4."""
    sizes = [AXES.get(axis.strip("*#"), 4) for axis in hint.dim_str.split() if axis != "..."]
    if hint.dtype.__name__ == "Int":
        return tokens(1, math.prod(sizes)).reshape(sizes)
    made = normal(*sizes)
    return made > 0 if hint.dtype.__name__ == "Bool" else made


def right_value(hint: Any) -> Any:
    """A value that an annotation allows."""
    hint = arms(hint)[0]
    if (kind := kind_of(hint)) is not None:
        return MODELS[kind]() if kind in MODELS else KINDS[kind][0][0]
    hint = bare(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if is_array(hint):
        return array(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is Literal:
        return arguments[0]
    if origin in (tuple, list, collections.abc.Sequence):
        return tuple(right_value(part) for part in arguments if part is not ...)
    name = getattr(origin or hint, "__name__", "")
    if name not in OBJECTS:
        raise NotDerived(str(hint))
    return made(name)


def wrong_arrays(hint: Any, may_be_nan: bool) -> Iterator[Any]:
    good = array(hint)
    if good.is_floating_point() and not may_be_nan:
        yield good * NAN
    yield from ("W", None, good.tolist(), good.numpy(), good.cfloat())
    if good.dtype != torch.bool:
        yield good > 0
    if "..." not in hint.dim_str and "*" not in hint.dim_str:
        yield good[None]


def wrong_values(hint: Any) -> list[Any]:
    """Values that an annotation excludes, the most telling one first; nothing where it excludes nothing."""
    parts = arms(hint)
    if Any in parts or hint is inspect.Parameter.empty:
        return []
    if len(parts) > 1:
        return [object()]
    (part,) = parts
    optional = part is not hint
    kind = kind_of(part)
    if kind is not None:
        found = NO_MODEL if kind in MODELS else KINDS[kind][1]
    elif is_array(bare(part)):
        found = wrong_arrays(bare(part), _contract.AS_IT_IS in get_args(part))
    elif part in NOT_PLAIN:
        found = NOT_PLAIN[part]
    elif get_origin(part) is Literal:
        found = ["nonsense", "", 1j, [get_args(part)[0]], b"token", NAN, None]
    elif get_origin(part) in (tuple, collections.abc.Sequence):
        inner = [value for value in wrong_values(get_args(part)[0]) if value is not None]
        found = [3, NAN, object(), None, *([value] for value in inner)]
    else:
        found = [object(), None, 1j]
    return [value for value in found if not (optional and value is None)]


def odd_values(value: Any) -> Iterator[Any]:
    """Values of the right type that may or may not mean something here."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        yield from (0, -1, 10**12, 2**70, np.int8(2))
    elif isinstance(value, float):
        yield from (0.0, -1.0, 1e30, INF, np.float16(0.5))
    elif isinstance(value, str):
        yield from ("", "L9H9", "nonsense", value.swapcase())
    elif isinstance(value, torch.Tensor) and value.ndim:
        yield from (
            value[:0],
            value[..., :0],
            value[None],
            -value.abs() - 1 if value.dtype != torch.bool else ~value,
        )
        yield from (
            torch.cat([value, value], -1),
            value.flatten()[0],
            value.repeat_interleave(40, -1),
        )
        yield from (
            (value.half(), value.double())
            if value.is_floating_point()
            else (value.to(torch.int16),)
        )
    elif inspect.isfunction(value):
        yield from (None, "x", 3, NAN, object(), torch.ones(2, 3), lambda **_: 1 / 0, lambda: 1)
    elif hasattr(value, "cfg"):
        yield from (model(d_model=10, d_vocab=5, n_ctx=6, n_layers=1), converted(), diverged())


# --- what there is to call ------------------------------------------------------------------------------------------


class Target(NamedTuple):
    name: str
    call: Callable[..., Any]

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """All arguments but `self`, with their annotations as objects."""
        function = self.call.__init__ if inspect.isclass(self.call) else self.call
        function, found = inspect.unwrap(function), {}
        for name, parameter in inspect.signature(function).parameters.items():
            hint = parameter.annotation
            if isinstance(hint, str):
                try:
                    hint = eval(hint, function.__globals__)
                except NameError:
                    hint = Any
            if name != "self" and parameter.kind in (0, 1, 3):  # no *args and no **kwargs
                found[name] = parameter.replace(annotation=hint)
        return found


@cache
def targets() -> dict[str, Target]:
    """Every function that a package exports, and every constructor and method that checks its arguments."""
    found, classes = {}, {}
    packages = [info.name for info in pkgutil.iter_modules(ck.__path__) if info.name[0] != "_"]
    for package in ["", *sorted(packages)]:
        module = importlib.import_module(f"circuitkit.{package}".rstrip("."))
        for name in getattr(module, "__all__", ()):  # names and parts export nothing
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                found[name] = Target(name, thing)
    for name, module in sorted(sys.modules.items()):
        if name.startswith("circuitkit"):
            own = [thing for thing in vars(module).values() if inspect.isclass(thing)]
            classes |= {kind.__name__: kind for kind in own if kind.__module__ == name}
    for kind in classes.values():
        for name, member in vars(kind).items():
            if not hasattr(member, "__door__"):
                continue
            where = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
            found[where] = Target(where, kind if name == "__init__" else member)
    return {name: target for name, target in sorted(found.items()) if target.parameters}


def right(target: Target) -> dict[str, Any]:
    """Keyword arguments of a call that means something; `self` among them for a method."""
    given = {}
    if "." in target.name:
        owner = target.name.partition(".")[0]
        if owner not in OBJECTS:
            raise NotDerived(owner)
        given["self"] = made(owner)
    for name, parameter in target.parameters.items():
        own = RIGHT.get(f"{target.name}.{name}", RIGHT.get(name))
        if own is not None:
            given[name] = own()
        elif parameter.default is inspect.Parameter.empty:
            given[name] = right_value(parameter.annotation)
    return given


# --- calls ----------------------------------------------------------------------------------------------------------


class _TooLong(BaseException):
    pass


def _ring(*_: Any) -> None:
    raise _TooLong


def _of_the_library(error: Exception) -> bool:
    """Whether an error was raised in the library itself, and speaks."""
    if not isinstance(error, (ValueError, TypeError)):
        return isinstance(error, FileNotFoundError)
    file = traceback.extract_tb(error.__traceback__)[-1].filename
    return file.startswith(os.path.dirname(ck.__file__) + os.sep) and len(str(error)) > 30


def attempt(target: Target, given: dict[str, Any]) -> tuple[str, str]:
    """What a call came to: `result`, `refused` or `raw` (any other error, or no end), and the words."""
    given = dict(given)
    first = [given.pop("self")] if "self" in given else []
    signal.signal(signal.SIGVTALRM, _ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = target.call(*first, **given)
            if inspect.isgenerator(result):
                result = list(result)
            return "result", repr(type(result))
    except _TooLong:
        return "raw", f"no end within {SECONDS} s"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return ("refused" if _of_the_library(error) else "raw"), text
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def faults(target: Target, most: int | None = None) -> list[str]:
    """Wrong values that were not refused, and with `most=None` also odd ones that crashed."""
    found, given = [], right(target)
    for name, parameter in target.parameters.items():
        for value in wrong_values(parameter.annotation)[:most]:
            if value is parameter.default:
                continue
            what, text = attempt(target, given | {name: value})
            if what != "refused" or name not in text:
                found.append(f"{name}={str(value)[:60]}: {what}: {text[:200]}")
        if most is None:
            for value in odd_values(given.get(name, parameter.default)):
                what, text = attempt(target, given | {name: value})
                if what == "raw":
                    found.append(f"{name}={str(value)[:60]}: {what}: {text[:200]}")
    return found


@contextmanager
def offline() -> Iterator[None]:
    """Load what is slow the first time; then nothing waits for a network."""
    from circuitkit.models import _load

    ck.load_model("zero-layer"), model(), converted(), factored(), figure()
    with patch.multiple(_load, _reachable=lambda *_: False, _cached=lambda *_: False):
        yield
