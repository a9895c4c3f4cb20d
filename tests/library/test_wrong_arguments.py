"""Each public function with one wrong argument at a time: the library explains it, or a test fails.

A row of `CALLS` is a right call. Wrong values follow from the annotation of the parameter. The
error must be raised by a `raise` of this library, so an error from inside torch is a failure, and
so is a call that returns.
"""

import inspect
import linecache
import traceback
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import matplotlib.pyplot as plt
import pytest
import torch

import circuitkit as ck
from circuitkit.rows import repeated_tokens
from tests.support import tiny_models
from tests.support.pretend_device import moved, pretend_device

pytestmark = pytest.mark.filterwarnings("ignore")
SOURCE = str(Path(ck.__file__).parent)
SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
ALT = "A line rises from 0 to 1 in two steps"


@cache
def model():
    return tiny_models.boot(torch.float32, **SIZES)


@cache
def one_layer_model():
    W, eye = normal(2, 12, 3), torch.eye(12)
    heads = ck.Heads(("L0H0", "L0H1"), W, W, W, W.mT)
    return ck.handmade.bridge_of(heads, eye, eye, n_ctx=9)


@cache
def mlp_model():
    more = {"attn_only": False, "d_mlp": 7, "act_fn": "silu", "normalization_type": "LN"}
    return tiny_models.boot(torch.float32, **SIZES, **more)


def rows():
    return repeated_tokens(23, 6, batch=2, generator=torch.Generator().manual_seed(0))


def tokens():
    return rows().tokens


def normal(*sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))


def figure():
    fig, ax = plt.subplots()
    ax.plot([0, 1], [0, 1])
    plt.close(fig)
    return fig


def trained():
    weight = torch.zeros(2, requires_grad=True)
    return {"parameters": [weight], "loss_function": lambda step: (weight**2).sum()}


# Right values of parameters by name, and for single functions where a name says too little.
SHARED = {
    "model": model,
    "tokens": tokens,
    "rows": rows,
    "alt": lambda: ALT,
    "heads": lambda: ck.heads_of(model()),
    "earlier": lambda: ck.heads_of(model(), ["L0H0", "L0H1"]),
    "later": lambda: ck.heads_of(model(), ["L1H0", "L1H1"]),
    "head": lambda: "L1H2",
    "kind": lambda: "K",
    "W_E": lambda: normal(23, 12),
    "W_U": lambda: normal(12, 23),
    "W_in": lambda: normal(12, 7),
    "W_gate": lambda: normal(12, 7),
    "W_out": lambda: normal(7, 12),
    "V1": lambda: normal(12, 7),
    "V2": lambda: normal(7, 12),
    "b_in": lambda: normal(7),
    "W": lambda: normal(12, 12),
    "W_QK": lambda: normal(12, 12),
    "W_OV": lambda: normal(12, 12),
    "x": lambda: normal(5, 12),
    "mask": lambda: torch.ones(5, 5).tril(),
    "scores": lambda: normal(5, 5),
    "answer": lambda: 3,
    "n_trigrams": lambda: 5,
    "n_heads": lambda: 4,
    "d_model": lambda: 12,
    "n_pos": lambda: 5,
    "seed": lambda: 0,
    "dtype": lambda: torch.float32,
    "activation": lambda: "silu",
    "reach": lambda: 4.0,
    "layer": lambda: 1,
    "n_tokens": lambda: 12,
    "n_ctx": lambda: 8,
    "d_vocab": lambda: 23,
    "period": lambda: 4,
    "steps": lambda: 2,
    "fig": figure,
    "n": lambda: 3,
    "d_head": lambda: 4,
    "dst": lambda: 4,
    "src": lambda: 2,
    "triples": lambda: torch.tensor([[1, 2, 3], [1, 4, 5]]),
    "contexts": lambda: tokens()[:, :5],
}
CALLS = {
    "run": lambda: {"without": "L0H1->L1H2.K"},
    "effect": lambda: {"tokens": rows(), "without": "L1H2", "draws": 2},
    "attribution": lambda: {"tokens": rows()},
    "load_model": lambda: {"name": "zero-layer"},
    "model_card": lambda: {"name": "zero-layer"},
    "checkpoints": lambda: {"name": "zero-layer"},
    "heldout_rows": lambda: {"n": 2},
    "bridge_of": lambda: {"n_ctx": 8},
    "composition_scores": lambda: {"earlier": model()},
    "why": lambda: {"text": tokens()[:1]},
    "lab": lambda: {"text": tokens()[:1]},
    "virtual_weights": lambda: {"writer": "L0H0", "reader": "L1H2.K"},
    "fit": trained,
    "signed": lambda: {"values": normal(3)},
    "score_decomposition": lambda: {"tokens": tokens()[:1]},
    "head_logits": lambda: {
        "model": one_layer_model(),
        "tokens": tokens()[:, :9] % 9,
    },
    "head_verdict": lambda: {
        "model": one_layer_model(),
        "tokens": tokens()[:, :9] % 9,
        "answers": tokens()[:, :9] % 9,
        "control_tokens": tokens()[:, :9] % 9,
        "control_answers": tokens()[:, :9] % 9,
    },
    "attention": lambda: {"tokens": ["a"], "patterns": normal(1, 1, 1), "names": ["L0H0"]},
    "circuit": lambda: {"values": {"L0H1->L1H2.K": 2.0}},
    "to_attention_only": lambda: {"model": mlp_model(), "heads_per_neuron": 2},
    "gate_sum": lambda: {"heads_per_neuron": 4},
}
# What looks like a mistake and is right, or is explained well enough by torch.
TOKEN_FAULTS = ("ids of another tokenizer", "no tokens", "negative ids", "a row that is too long")
FINE = {
    "load_model.device": ("an unknown word",),
    "signed.values": ("one axis more", "integers"),
    "attention.patterns": ("integers",),
    "count_evidence.tokens": (*TOKEN_FAULTS, "one axis more"),  # it knows no model
    "with_bias_token.x": ("one axis more", "NaN"),  # it pads and computes nothing
    "report.model": ("a name",),
    "report.cache": ("an unknown word",),
}
TEXTS = ("alt", "label", "prompt", "title")  # any text is right, but for an alt text of one word
SIGNED = (
    "seed",
    "at",
    "dst",
    "src",
    "first",
    "offset",
    "row",
    "position",
    "answer",
    "versus",
)  # integers that may be negative


def public_functions() -> dict[str, Any]:
    """Every public function by name."""
    functions = {name: getattr(ck, name) for name in ck.HOMES}
    for module in (getattr(ck, name) for name in ck.MODULES):
        for name in getattr(module, "__all__", ()):
            short = name if name not in functions else f"{module.__name__.split('.')[-1]}.{name}"
            if getattr(module, name) not in functions.values():
                functions[short] = getattr(module, name)
    return {name: f for name, f in functions.items() if is_tested(f)}


def is_tested(thing: Any) -> bool:
    """Whether this is a function with parameters, and no context manager."""
    is_generator = inspect.isgeneratorfunction(inspect.unwrap(thing))
    return inspect.isfunction(thing) and not is_generator and bool(parameters(thing))


def parameters(function) -> dict[str, Any]:
    """The annotations of a function by parameter; what an editor alone can read counts as any."""
    signature = inspect.signature(function)
    return {
        p.name: Any if p.annotation is p.empty or isinstance(p.annotation, str) else p.annotation
        for p in signature.parameters.values()
    }


def members(annotation: Any) -> list[Any]:
    """The parts of a union."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return list(get_args(annotation)) if is_union else [annotation]


def wrong_tensors(right: torch.Tensor) -> dict[str, Any]:
    """A tensor with something wrong: its axes, its dtype or a number."""
    wrong: dict[str, Any] = {"one axis more": right[..., None], "complex": right.cfloat()}
    if right.is_floating_point():
        wrong["integers"] = right.long()
        wrong["NaN"] = right.where(torch.arange(right.numel()).view(right.shape) > 0, torch.nan)
    else:
        wrong["real numbers"] = right.double()
    return wrong


def wrong_values(name: str, annotation: Any, right: Any) -> dict[str, Any]:
    """Likely mistakes for a parameter, from its name, its annotation and a right value."""
    kinds = members(annotation)
    wrong: dict[str, Any] = {}
    if name == "model":
        wrong = {"a name": "two-layer", "another module": torch.nn.Linear(2, 2)}
    if isinstance(right, torch.Tensor):
        wrong |= wrong_tensors(right)
    if name == "tokens" and isinstance(right, torch.Tensor):
        wrong |= {"ids of another tokenizer": right + 23, "no tokens": right[..., :0]}
        wrong |= {"negative ids": right - 23, "a row that is too long": torch.cat([right] * 9, -1)}
    if ck.Heads in kinds and str not in kinds:
        wrong |= {"a name of heads": "L0H1", "a model": model()}
    if int in kinds and float not in kinds:
        wrong |= {"a fraction": 1.5} | ({} if name in SIGNED else {"-7": -7})
    if (int in kinds or float in kinds) and str not in kinds:
        wrong |= {"a text": "two"}
    has_words = any(get_origin(kind) is Literal for kind in kinds)
    if (has_words or str in kinds or Sequence[str] in kinds) and name not in TEXTS:
        wrong["an unknown word"] = "no such thing"
    if str in kinds or Sequence[str] in kinds:
        wrong["a list of numbers"] = [0.5]
    if name == "alt":
        wrong["one word"] = "picture"
    return wrong


def outcome(function, arguments: dict[str, Any]) -> str:
    """What a call does: "explained", "silent", or the error that reached the caller."""
    try:
        function(**arguments)
    except (TypeError, ValueError, FileNotFoundError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = linecache.getline(last.filename, last.lineno or 0).strip()
        if last.filename.startswith(SOURCE) and line.startswith("raise"):
            return "explained"
        return f"raw {type(error).__name__} in {last.name}: {error}"
    except Exception as error:
        return f"raw {type(error).__name__}: {error}"
    return "silent"


FUNCTIONS = public_functions()


def right_call(name: str) -> dict[str, Any]:
    """A right call; a function is skipped while a required argument is in neither table."""
    arguments = CALLS[name]() if name in CALLS else {}
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        is_given = parameter.name in arguments or parameter.default is not parameter.empty
        if not is_given and parameter.name not in SHARED:
            pytest.skip(f"no right value for {parameter.name}")
        if not is_given:
            arguments[parameter.name] = SHARED[parameter.name]()
    return arguments


def failures(name: str, most: int) -> list[str]:
    """The wrong arguments that are not explained; of each parameter, at most so many are tried."""
    function, right = FUNCTIONS[name], right_call(name)
    said = outcome(function, right_call(name))
    problems = [] if said == "silent" else [f"the right call: {said}"]
    for parameter, annotation in parameters(function).items():
        wrong = wrong_values(parameter, annotation, right.get(parameter))
        for what in list(wrong)[:most]:
            if what in FINE.get(f"{name}.{parameter}", ()):
                continue
            said = outcome(function, right_call(name) | {parameter: wrong[what]})
            if said != "explained":
                problems.append(f"{parameter}={what}: {said[:200]}")
    return problems


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_is_explained(name):
    assert failures(name, most=2) == []


@pytest.mark.weekly
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_wrong_argument_is_explained(name):
    assert failures(name, most=100) == []


@pytest.fixture
def fresh_models():
    """Models that a test may move."""
    yield
    for make in (model, one_layer_model, mlp_model):
        make.cache_clear()


@pytest.mark.weekly
@pytest.mark.usefixtures("fresh_models")
@pytest.mark.parametrize(
    "name", [name for name, f in FUNCTIONS.items() if "model" in parameters(f)]
)
def test_a_tool_makes_its_tensors_where_the_model_lies(name):
    """The model lies on a pretend device; token ids, as a reader makes them, on the processor."""
    arguments = right_call(name)
    if not isinstance(arguments.get("model"), torch.nn.Module):
        pytest.skip("no model")
    moved(arguments["model"])
    with pretend_device():
        assert outcome(FUNCTIONS[name], arguments) == "silent"
