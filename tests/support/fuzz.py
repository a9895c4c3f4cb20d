"""Every public function, called with one argument spoilt at a time.

    PYTHONPATH=.:src:tests/support python tests/support/fuzz.py             the table of outcomes
    PYTHONPATH=.:src:tests/support python tests/support/fuzz.py circuits    one package, with every outcome that is not clear

What is called is read from the packages: every name they export, the constructors of classes that are made by hand, and
every public method. What is right and what is wrong for an argument is said *here*, by its name, and not read from the
library: an annotation that promises nothing is found out. A name that is not in these tables fails the test.

An outcome is *clear* (a ValueError or TypeError raised in the library itself), a *result* (where this table says that the
value means something), *raw* (any other error, from wherever, or no end within a few seconds) or *silent* (a result where
the table says that the value means nothing).
"""

import importlib
import inspect
import math
import os
import pkgutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import tiny_models
import torch

import circuitkit
from tools.check.public_names import records

#: Every package of the library, and what stands at its front door.
PACKAGES = [
    "heads",
    *sorted(
        found.name
        for found in pkgutil.iter_modules(circuitkit.__path__)
        if not found.name.startswith("_")
    ),
]
#: Results: the library makes them, nobody calls their constructors. Tuples are results, too.
RECORDS = set(
    [
        "Attention",
        "Circuit",
        "Claim",
        "Exercise",
        "Frames",
        "GatedLayer",
        "GatedModel",
        "GatedRuns",
        "LayerReport",
        "Mistake",
        "MixedHeads",
        "ModelReport",
        "Neurons",
        "Norm",
        "OmegaMLP",
        "PathLogits",
        "Picture",
        "Report",
        "Result",
        "Run",
        "Scores",
        "Survey",
        "Effect",
        "Training",
        "Verdict",
    ]
)
#: Joints between the library's own modules: methods without an underscore that only other modules of it call.
JOINTS = {
    "Norm": {"at", "each", "join", "only", "take", "to"},
    "Run": {"bias_of", "read_by", "z"},
    "Anatomy": {"bias_name", "few_neurons", "head_name", "linear_head", "taken"},
    "HeadSum": {"columns", "errors"},
    "Result": {"__call__"},  # what a reader's own function is called with is the reader's
}
SECONDS = 8.0  # of work, not on the clock
SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}


# --- what there is to call -----------------------------------------------------------------------------------------


class Target(NamedTuple):
    package: str
    name: str
    call: Callable[..., Any]
    """The function; a method wants its object under the name `self`."""

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        found = inspect.signature(self.call).parameters
        return {n: p for n, p in found.items() if n != "self" and p.kind is not p.VAR_KEYWORD}


def exported(package: str) -> dict[str, Any]:
    if package == "heads":
        return {
            name: getattr(circuitkit, name)
            for name in ("Heads", "heads", "stack", "plan", "kept_in")
        }
    module = importlib.import_module(f"circuitkit.{package}")
    found = {name: getattr(module, name) for name in module.__all__}
    if package == "conversion":
        from circuitkit.anatomy import Neurons
        from circuitkit.anatomy._heads import MixedHeads
        from circuitkit.conversion._model import AttentionOnlyBridge

        found |= {
            "AttentionOnlyBridge": AttentionOnlyBridge,
            "Neurons": Neurons,
            "MixedHeads": MixedHeads,
        }
    return found | {kind.__name__: kind for kind in records().get(f"circuitkit.{package}", ())}


def methods(kind: type) -> Iterator[tuple[str, Callable]]:
    inner = kind.__name__ in (
        "Neurons",
        "MixedHeads",
    )  # what the loop over all models calls by the thousand asks nothing
    for name, member in vars(kind).items():
        if inner and not hasattr(member, "__door__"):
            continue
        named = name in ("__call__", "__getitem__") or not name.startswith("_")
        if inspect.isfunction(member) and named and name not in JOINTS.get(kind.__name__, ()):
            yield name, member


def targets(package: str) -> list[Target]:
    found = []
    for name, thing in exported(package).items():
        if inspect.isclass(thing):
            if issubclass(thing, Warning):
                continue
            by_hand = (
                not issubclass(thing, tuple)
                and name not in RECORDS
                and name != "AttentionOnlyBridge"
            )
            found += [Target(package, name, thing)] if by_hand else []
            found += [
                Target(package, f"{name}.{method}", function) for method, function in methods(thing)
            ]
        elif callable(thing):
            found.append(Target(package, name, thing))
    return [target for target in found if target.parameters]


# --- what is right -------------------------------------------------------------------------------------------------


@cache
def model() -> Any:
    return tiny_models.boot(torch.float32, **SIZES)


@cache
def broken(value: float) -> Any:
    """One weight is no number, as after a training that diverged."""
    made = tiny_models.boot(torch.float32, **SIZES)
    with torch.no_grad():
        made.blocks[1].attn.W_V[0, 0, 0] = value
    return made


@cache
def foreign() -> Any:
    """Another width, another vocabulary, another context."""
    return tiny_models.boot(
        torch.float32, **SIZES | {"d_model": 10, "d_vocab": 5, "n_ctx": 6, "n_layers": 1}
    )


@cache
def with_mlp() -> Any:
    return tiny_models.boot(
        torch.float32, **SIZES, attn_only=False, normalization_type="LN", d_mlp=7, act_fn="silu"
    )


@cache
def converted() -> Any:
    return circuitkit.to_attention_only(with_mlp(), heads_per_neuron=1)


@cache
def heads(first: int = 0, last: int = 6) -> Any:
    return circuitkit.heads(model())[first:last]


@cache
def run() -> Any:
    return circuitkit.induction.train(
        1, steps=2, d_vocab=8, n_ctx=8, batch=4, d_content=8, d_head=4, d_pos=2
    )


@cache
def toy() -> Any:
    return circuitkit.superposition.hand_specified(2, 2)


def task() -> Any:
    return circuitkit.superposition.SkipTrigramTask(2)


@cache
def recipe() -> Any:
    return circuitkit.superposition.GATES.but(steps=2, batch=4, n_prompts=8)


@cache
def block(d_model: int = 6) -> Any:
    return circuitkit.superposition.GatedBlock(recipe(), 2, d_model)


@cache
def record() -> Any:
    rows = normal(4, 5, 6)
    return circuitkit.superposition._layer.LayerRecord(rows, rows + 0.1, 2)


@cache
def verdict() -> Any:
    return circuitkit.superposition.head_verdict(toy(), task(), rows=5)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(rows: int = 2, n: int = 8, d_vocab: int = 7) -> torch.Tensor:
    return torch.randint(d_vocab, (rows, n), generator=torch.Generator().manual_seed(0))


def matrix() -> Any:
    from transformer_lens import FactoredMatrix

    return FactoredMatrix(normal(5, 2), normal(2, 6))


def figure(step: int = 0) -> Any:
    from matplotlib.figure import Figure

    made = Figure()
    made.add_subplot().plot([0, 1, step])
    return made


def sentence(step: int = 0) -> str:
    return f"A line from nothing to {step} in two steps"


@cache
def paths() -> Any:
    return circuitkit.circuits.path_logits(model(), tokens())


@cache
def whole() -> Any:
    return circuitkit.anatomy(model())


@cache
def small() -> Any:
    return circuitkit.anatomy.from_heads(
        circuitkit.circuits.random_heads(2, 6, 2), torch.eye(6), torch.eye(6), normal(4, 6)
    )


def norm() -> Any:
    return circuitkit.anatomy.Norm(normal(6))


@cache
def exercise() -> Any:
    return circuitkit.exercises.catalogue(2)[0]


def folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp())


def _figure_of(seed: int) -> dict:
    return {"square": seed**2}


def cached(model: Any) -> Any:
    return model.run_with_cache(tokens())[1]


#: The object that a method is called on.
SELF: dict[str, Callable[[], Any]] = {
    "Anatomy": whole,
    "Norm": lambda: norm().freeze(normal(5, 6)),
    "Run": lambda: whole().run(tokens()),
    "AttentionOnlyBridge": converted,
    "Composition": lambda: circuitkit.circuits.composition_scores(
        heads(0, 3), heads(3, 6), baseline="analytic"
    ),
    "CorpusStatistics": lambda: circuitkit.models._corpus.CorpusStatistics(
        torch.ones(3).long(), torch.ones(3, 3).long()
    ),
    "Decomposition": lambda: circuitkit.residual.decompose(model(), tokens()),
    "Exercise": exercise,
    "GatedBlock": block,
    "GatedModel": lambda: circuitkit.superposition.load_gated(),
    "GatedRuns": lambda: circuitkit.superposition.train_gated(toy(), recipe(), inits=1),
    "HeadSum": lambda: circuitkit.conversion.head_sum("gelu"),
    "Heads": heads,
    "MaskedHead": lambda: circuitkit.conversion._paper.MaskedHead(
        normal(4, 4), normal(4, 4), torch.ones(5, 5)
    ),
    "MixedHeads": lambda: circuitkit.heads(converted()),
    "Neurons": lambda: circuitkit.conversion.neuron_heads(normal(4, 3), normal(3, 4)),
    "OmegaMLP": lambda: circuitkit.conversion.omega_mlp(
        normal(4, 3).double(), normal(3, 4).double(), n_ctx=5
    ),
    "PathLogits": paths,
    "Recipe": recipe,
    "ScoreDecomposition": lambda: circuitkit.circuits.score_decomposition(
        model(), tokens(), "L1H0", 3, 2
    ),
    "Scores": lambda: circuitkit.induction.scores(model(), tokens()),
    "SkipTrigramTask": task,
    "ToyModel": toy,
    "Training": run,
    "Verdict": verdict,
}

#: A right value for an argument, by its name or by the name of the function and its own.
GOOD: dict[str, Callable[[], Any]] = {
    "Address.input": lambda: "K",
    "Address.kind": lambda: "H",
    "Address.layer": lambda: 1,
    "Address.number": lambda: 2,
    "Address.term": lambda: None,
    "Anatomy.find.name": lambda: "L0H1",
    **{
        f"{name}.neurons": lambda: False
        for name in ("Anatomy.groups", "Anatomy.parts", "Run.shares", "Run.score_sides")
    },
    "Anatomy.gain": lambda: 2.0,
    "Anatomy.head": lambda: None,
    "Anatomy.run.base": lambda: None,
    "Anatomy.run.source": lambda: None,
    "Anatomy.run.at": lambda: (1,),
    "effect.at": lambda: (1,),
    "effects.found": lambda: {
        "a cut": circuitkit.induction.effect(model(), tokens(), "L0H1", draws=1)
    },
    "Anatomy.run.edit": lambda: lambda sub, z: z,
    "effect.fill": lambda: "zero",
    "attribution.fill": lambda: "zero",
    "Anatomy.run.fill": lambda: "mean",
    "Anatomy.run.grad": lambda: False,
    "Anatomy.run.watch": lambda: None,
    "Anatomy.__getitem__.names": lambda: ["L0H1"],
    "Anatomy.steps": lambda: small().steps,
    "Norm.bound.W": lambda: normal(6, 3),
    "Norm.bound.b": lambda: normal(3),
    "Norm.fold.W": lambda: normal(6, 3),
    **{f"Norm.{name}.x": lambda: normal(5, 6) for name in ("freeze", "linear", "__call__")},
    "Run.part.name": lambda: "L0H1",
    "Run.pattern.head": lambda: "L0H1",
    "Run.score_sides.head": lambda: "L1H0",
    "Run.shares.W": lambda: normal(12, 3),
    "Sublayer.before": norm,
    "Sublayer.bias": lambda: normal(6),
    "Sublayer.gate": lambda: None,
    "W_pos": lambda: normal(4, 6),
    "after": norm,
    "b_U": lambda: normal(6),
    "before": lambda: 1,
    "complete.known": lambda: ["L0H0", "L1H0"],
    "complete.text": lambda: "L0",
    "final": norm,
    "from_heads.gate": lambda: None,
    "from_heads.heads": lambda: circuitkit.circuits.random_heads(2, 6, 2),
    "inside": lambda: circuitkit.circuits.random_heads(2, 6, 2),
    "join.parts": lambda: "L0H1",
    "opening": norm,
    "pos": lambda: 2,
    "read.text": lambda: "L0H1",
    "to_bridge.model": small,
    "to_bridge.n_ctx": lambda: 4,
    "V1": lambda: normal(4, 3),
    "V2": lambda: normal(3, 4),
    "W": lambda: normal(4, 4),
    "W_E": lambda: torch.eye(6),
    "W_K": lambda: normal(2, 6, 3),
    "W_O": lambda: normal(2, 3, 6),
    "W_OV": lambda: normal(4, 4),
    "W_Q": lambda: normal(2, 6, 3),
    "W_QK": lambda: normal(4, 4),
    "W_U": lambda: torch.eye(6),
    "W_V": lambda: normal(2, 6, 3),
    "W_gate": lambda: normal(4, 3),
    "W_in": lambda: normal(4, 3),
    "W_out": lambda: normal(3, 4),
    "a": lambda: torch.linalg.qr(normal(5, 2))[0],
    "HeadSum.a": lambda: (1.0,),
    "a1": lambda: 1.5,
    "a2": lambda: 0.5,
    "accuracy": lambda: 0.5,
    "activation": lambda: "silu",
    "gated_neuron_heads.activation": lambda: "sigmoid",
    "activation_error.activation": lambda: "gelu",
    "head_sum.activation": lambda: "gelu",
    "neuron_heads.activation": lambda: "gelu",
    "alpha": lambda: 0.3,
    "alpha_tail": lambda: 0.1,
    "alpha_warmup": lambda: 0.1,
    "alt": lambda: sentence(),
    "frames.alt": lambda: sentence,
    "among": lambda: torch.ones(23, dtype=torch.bool),
    "answer": lambda: lambda *a, **k: None,
    "logit_attribution.answer": lambda: tokens() + 1,
    "largest_paths.answer": lambda: 3,
    "largest_paths.tokens": lambda: tokens()[0],
    "args": lambda: torch.float64,
    "at": lambda: -1,
    "b": lambda: torch.linalg.qr(normal(5, 3))[0],
    "HeadSum.b": lambda: (1.0,),
    "b_K": lambda: normal(2, 3),
    "b_Q": lambda: normal(2, 3),
    "b_V": lambda: normal(2, 3),
    "b_gate": lambda: normal(3),
    "b_in": lambda: normal(3),
    "b_out": lambda: normal(4),
    "back": lambda: (1, 2),
    "baseline": lambda: "analytic",
    "batch": lambda: 4,
    "Recipe.batch": lambda: 4,
    "biases": lambda: True,
    "block": lambda: 2,
    "replacing.block": lambda: block(12),
    "bos": lambda: 0,
    "by_path": lambda: False,
    "HeadSum.c": lambda: (0.0,),
    "cache": lambda: cached(converted()),
    "case": lambda: next(exercise().cases()),
    "chapter": lambda: 2,
    "checkpoints": lambda: (1,),
    "claims": lambda: circuitkit.claims.load()[:1],
    "contexts": lambda: tokens(3, 5),
    "cosine": lambda: True,
    "d_content": lambda: 8,
    "HeadSum.d": lambda: (0.0,),
    "d_gate": lambda: 1,
    "d_value": lambda: 1,
    "d_head": lambda: 2,
    "Recipe.d_head": lambda: 1,
    "d_model": lambda: 6,
    "d_pos": lambda: 2,
    "d_vocab": lambda: 8,
    "density": lambda: torch.tensor([0.2, 0.4]),
    "device": lambda: "cpu",
    "discount": lambda: 0.75,
    "distance": lambda: 1,
    "draw": lambda: figure,
    "dst": lambda: 3,
    "dtype": lambda: torch.float64,
    "earlier": lambda: heads(0, 3),
    "early": lambda: 2,
    "embed": lambda: normal(3, 12),
    "eps": lambda: 1e-5,
    "error": lambda: "mse",
    "HeadSum.error": lambda: 0.0,
    "generalized_silu.error": lambda: 0.01,
    "exclude": lambda: (1,),
    "expansion": lambda: 2,
    "fig": figure,
    "fill": lambda: "mean",
    "against": lambda: "layers",
    "how": lambda: "gradient",
    "measure": lambda: "loss",
    "keep": lambda: ["L0H1"],
    "draws": lambda: 2,
    "points": lambda: 1,
    "first": lambda: 0,
    "first_pass": lambda: 1,
    "fix": lambda: torch.ones(6),
    "form": lambda: "one_layer",
    "letter": lambda: "A",
    "claim": lambda: "nothing helps",
    "function": lambda: _figure_of,
    "gain": lambda: 4.0,
    "gate": lambda: "clamp",
    "groups": lambda: (0, 1),
    "cap": lambda: 3.0,
    "q": lambda: normal(6, 5, 4),
    "Heads.scores_of.k": lambda: normal(6, 5, 4),
    "Heads.pattern_of.scores": lambda: normal(6, 5, 5),
    "turn": lambda: None,
    "norm_Q": lambda: None,
    "norm_K": lambda: None,
    "gate_range": lambda: 4.0,
    "stored_study.model": lambda: "minilm",
    "to_attention_only.gate_range": lambda: 4.0,
    "generator": lambda: torch.Generator().manual_seed(0),
    "head": lambda: "L0H1",
    "score_decomposition.head": lambda: "L1H0",
    "Neurons.index.head": lambda: "L0N1",
    "read_neuron.head": lambda: "L0N1",
    "heads": heads,
    "Neurons.pattern.heads": lambda: ["L0N0", 1],
    "LayerRecord.heads": lambda: circuitkit.circuits.random_heads(2, 6, 2),
    "ToyModel.heads": lambda: circuitkit.circuits.random_heads(2, 6, 2),
    "heads_or_model": heads,
    "Heads.by_head.name": lambda: "W_K",
    "Heads.QK_at.distance": lambda: 1,
    "heads_per_neuron": lambda: 4,
    "gated_neuron_heads.heads_per_neuron": lambda: None,
    "to_attention_only.heads_per_neuron": lambda: 1,
    "id": lambda: "2.19",
    "importance": lambda: 0.9,
    "init": lambda: "xavier",
    "inits": lambda: 1,
    "into": lambda: "L1H0",
    "k": lambda: 2,
    "key": lambda: "token",
    "Decomposition.__getitem__.key": lambda: "L0H1",
    "Heads.__getitem__.key": lambda: ["L0H1", 2],
    "MixedHeads.__getitem__.key": lambda: ["L0H1", 2],
    "MixedHeads.index.key": lambda: "L0H1",
    "Heads.index.key": lambda: "L0H1",
    "kind": lambda: "K",
    "Scores.top.kind": lambda: "copying",
    "label": lambda: "step",
    "largest": lambda: True,
    "attention.largest": lambda: 2.0,
    "late": lambda: 6,
    "later": lambda: heads(3, 6),
    "layer": lambda: 0,
    "layers": lambda: (0, 1),
    "post_norm_layers.layers": lambda: [[SELF["MaskedHead"]()]],
    "left": lambda: normal(2, 3),
    "like": lambda: normal(2),
    "likelihood": lambda: torch.ones(23, 23),
    "limit": lambda: 2.0,
    "lr": lambda: 0.01,
    "lr_warmup": lambda: 0.1,
    "mask": lambda: torch.ones(5, 5),
    "Heads.mask": lambda: "causal",
    "Heads.of": lambda: "mine",
    "matrix": matrix,
    "max_error": lambda: None,
    "max_order": lambda: 1,
    "method": lambda: "pointer",
    "min_together": lambda: 0.0,
    "model": model,
    "to_attention_only.model": with_mlp,
    "literal_stream.model": converted,
    "read_neuron.model": converted,
    "most": lambda: 100,
    "n": lambda: 4,
    "n_ctx": lambda: 8,
    "LayerRecord.n_heads": lambda: 2,
    "load_original.n_heads": lambda: 4,
    "n_extra": lambda: 1,
    "n_features": lambda: 4,
    "n_heads": lambda: 2,
    "n_hidden": lambda: 2,
    "n_jobs": lambda: 1,
    "n_layers": lambda: 1,
    "n_noise": lambda: 3,
    "n_pos": lambda: 5,
    "n_prompts": lambda: 8,
    "n_signals": lambda: 3,
    "n_trigrams": lambda: 2,
    "load_original.n_trigrams": lambda: 5,
    "name": lambda: "L0",
    "checkpoints.name": lambda: "zero-layer",
    "load_model.name": lambda: "zero-layer",
    "model_card.name": lambda: "zero-layer",
    "stored_survey.name": lambda: "smollm2-135m",
    "stored_study.name": lambda: "minilm",
    "load_results.name": lambda: "post",
    "AttentionOnlyBridge.route.name": lambda: "literal",
    "PathLogits.__getitem__.name": lambda: "L0H1",
    "PathLogits.order.name": lambda: "L0H1",
    "PathLogits.stream.name": lambda: "L0H1",
    "Scores.__getitem__.name": lambda: "L0H1",
    "names": lambda: ("A", "B"),
    "PathLogits.sum.names": lambda: ["L0H1", "direct"],
    "loss_of_paths.names": lambda: ["L0H1", "direct"],
    "negatives": lambda: task().negatives(30, 0),
    "neurons": lambda: 1,
    "logit_attribution.neurons": lambda: True,
    "path_logits.neurons": lambda: True,
    "score_decomposition.neurons": lambda: True,
    "noise": lambda: 0.5,
    "norm": lambda: lambda x: x,
    "normalise": lambda: True,
    "occurring": lambda: ((1, 2, 3),),
    "offset": lambda: None,
    "omega": lambda: 18.0,
    "original": toy,
    "GatedBlock.original": lambda: None,
    "out_of": lambda: "L0H0",
    "output_scale": lambda: "none",
    "pairs": lambda: "all",
    "train_toy_models.pairs": lambda: "independent",
    "parts": heads,
    "out": lambda: folder() / "new.html",
    "kept_in.folder": lambda: folder() / "kept",
    "plan.function": lambda: dict.fromkeys("a").copy,
    "load_model.layers": lambda: None,
    "plan": lambda: True,
    "prompt": lambda: "the king",
    "path": lambda: folder() / "new.csv",
    "paths": paths,
    "pattern": lambda: torch.ones(6, 5, 5) / 5,
    "patterns": lambda: torch.ones(2, 3, 3) / 3,
    "penalty": lambda: "gate",
    "period": lambda: 3,
    "positions": lambda: "absolute",
    "power": lambda: 0.6,
    "probe": lambda: tokens(1, 4),
    "progress": lambda: lambda *_: None,
    "query": lambda: "token",
    "reach": lambda: 4.0,
    "read": lambda: normal(13).double(),
    "reader": lambda: "unembed",
    "recipe": recipe,
    "residual": lambda: True,
    "right": lambda: 1.0,
    "rotation": lambda: torch.linalg.qr(normal(12, 12))[0],
    "row": lambda: 0,
    "rows": lambda: 5,
    "induction_loss.rows": lambda: circuitkit.induction.repeated_tokens(23, 4),
    "run": toy,
    "scale": lambda: 1.0,
    "scale_free": lambda: True,
    "scores": lambda: normal(5, 5),
    "seed": lambda: 3,
    "seeds": lambda: 1,
    "settings": lambda: [{"seed": 0}, {"seed": 1}],
    "share": lambda: 1,
    "shared": lambda: [],
    "sharpness": lambda: 40.0,
    "head_sum.sharpness": lambda: None,
    "neuron_heads.sharpness": lambda: None,
    "to_attention_only.sharpness": lambda: None,
    "skip": lambda: 1,
    "post_norm_layers.skip": lambda: True,
    "src": lambda: 2,
    "step": lambda: 0,
    "load_model.step": lambda: None,
    "steps": lambda: 2,
    "frames.steps": lambda: [1, 2],
    "stream": lambda: normal(6, 13).double(),
    "tail_factor": lambda: 0.1,
    "target_l1": lambda: 1.0,
    "target_rms": lambda: 1.0,
    "task": task,
    "threshold": lambda: 0.9,
    "top_k": lambda: 1,
    "top_k_warmup": lambda: 0.5,
    "times": lambda: 2,
    "tokens": tokens,
    "corpus_evidence.tokens": lambda: tokens(1, 30)[0],
    "literal_stream.tokens": lambda: tokens()[0],
    "attention.tokens": lambda: ["a", "b", "c"],
    "head_verdict.form": lambda: "odds",
    "head_verdict.tokens": lambda: task().sample(60, 0),
    "tolerance": lambda: 1e-6,
    "trigram": lambda: 1,
    "triples": lambda: torch.tensor([[1, 2, 3], [1, 4, 5]]),
    "uncheckable_at_most": lambda: 8,
    "unigram": lambda: torch.ones(23),
    "value_bias": lambda: "free",
    "values": lambda: [0.5, 1.0],
    "guess": lambda: None,
    "predict.words": lambda: ["a"],
    "columns": lambda: ["a", "b"],
    "picture.rows": lambda: ["a", "b"],
    "picture.values": lambda: torch.eye(2),
    "toolkit.keep": lambda: False,
    "circuit.values": lambda: {"L0H1->L1H3.K": 2.1},
    "words": lambda: {"L1H3": "looks back"},
    "versus": lambda: tokens() + 2,
    "vocab": lambda: 5,
    "weights": lambda: torch.ones(8),
    "width": lambda: 1,
    "window": lambda: 8,
    "report.prompt": lambda: None,  # its model has no tokenizer
    "record_layer.heads": lambda: ["L0H1"],
    "corpus_evidence.window": lambda: (1, 4),
    "without": lambda: ["L0H1"],
    "replacing.without": lambda: (0,),
    "GatedBlock.forward.without": lambda: (0,),
    "writer": lambda: "L0H1",
    "x": lambda: normal(5, 12),
    "y": lambda: normal(4, 5, 6),
    "LayerRecord.x": lambda: normal(4, 5, 6),
    **{
        f"GatedBlock.{m}.x": lambda: normal(2, 5, 6)
        for m in ["gates", "pattern", "mixed", "results", "forward", "penalty"]
    },
    **{
        f"{c}.{m}.x": lambda: normal(5, 4)
        for c in ("Neurons", "MaskedHead")
        for m in ("__call__", "literal", "pattern", "measured_reach")
    },
    **{
        f"OmegaMLP.{m}.x": lambda: normal(4, 4).double()
        for m in ("__call__", "error_bound", "augment")
    },
    "post_norm_layers.x": lambda: normal(5, 4),
    "GatedModel.run.tokens": lambda: tokens(2, 8, 12),
    **{
        f"{name}.tokens": lambda: tokens(2, 8, 6)
        for name in [
            "ToyModel.run",
            "ToyModel.logits",
            "ToyModel.__call__",
            "GatedRuns.run",
            "GatedRuns.__call__",
            "SkipTrigramTask.states",
        ]
    },
    "GatedModel.__call__.tokens": lambda: tokens(2, 8, 12),
}

#: Arguments that are left out of the right call, because they exclude another one or need another kind of model.
LEFT_OUT = {
    "effect": {"keep"},
    "Address": {"term"},
    "gated_neuron_heads": {"heads_per_neuron", "max_error", "gate_range"},
    "to_attention_only": {"max_error", "sharpness", "gate_range"},
    "head_sum": {"max_error", "sharpness"},
    "neuron_heads": {"max_error", "sharpness"},
    "gate_sum": {"max_error"},
    "full_qk": {"offset"},
    "load_model": {"step", "device", "layers"},
    "plan": {"args", "kwargs"},
    "Recipe": {"n_prompts"},
    "GatedBlock": {"original"},
    "attention": {"names"},
    "copying_score": {"model"},
    "repeated_tokens": {"n_ctx"},
    "head_verdict": {"tokens", "negatives"},
    "theorem7": {"like"},
}


# --- what is wrong -------------------------------------------------------------------------------------------------


def _list_of(value: Any) -> Any:
    return [value]


WRONG: dict[str, dict[str, Callable[[Any], Any]]] = {
    "count": {
        "-1": lambda _: -1, "0": lambda _: 0, "-2**70": lambda _: -(2**70), "2**70": lambda _: 2**70, "10**12": lambda _: 10**12,
        "2.5": lambda _: 2.5, "nan": lambda _: math.nan, "inf": lambda _: math.inf, "True": lambda _: True, "text": lambda _: "3",
        "None": lambda _: None, "list": lambda _: [3], "tensor": lambda _: torch.tensor([1.5]), "object": lambda _: object(),
        "int8": lambda _: np.int8(2),
    },
    "number": {
        "nan": lambda _: math.nan, "inf": lambda _: math.inf, "-inf": lambda _: -math.inf, "-1": lambda _: -1.0, "0": lambda _: 0.0,
        "1e30": lambda _: 1e30, "True": lambda _: True, "text": lambda _: "1", "None": lambda _: None, "complex": lambda _: 1j,
        "list": lambda _: [1.0], "tensor": lambda _: torch.ones(3), "float16": lambda good: np.float16(good),
    },
    "flag": {
        "None": lambda _: None, "0": lambda _: 0, "1": lambda _: 1, "text": lambda _: "yes", "list": lambda _: [], "nan": lambda _: math.nan,
    },
    "word": {
        "unknown": lambda _: "nonsense", "empty": lambda _: "", "None": lambda _: None, "1": lambda _: 1, "True": lambda _: True,
        "list": lambda good: [good], "case": lambda good: good.swapcase(), "bytes": lambda _: b"token", "nan": lambda _: math.nan,
    },
    "name": {
        "unknown": lambda _: "L9H9", "empty": lambda _: "", "None": lambda _: None, "-99": lambda _: -99, "2**70": lambda _: 2**70,
        "1.5": lambda _: 1.5, "True": lambda _: True, "several": lambda good: [good, "L9H9"], "none": lambda _: [], "bytes": lambda _: b"L0H0",
        "nan": lambda _: math.nan, "object": lambda _: object(), "nearly": lambda _: "L0N1.99", "dict": lambda _: {}, "pair": lambda _: (0, 1),
    },
    "names": {
        "unknown": lambda _: ["L9H9"], "None": lambda _: None, "3": lambda _: 3, "numbers": lambda _: [1.5], "bytes": lambda _: [b"L0H0"],
        "nested": lambda good: [good], "nan": lambda _: [math.nan], "object": lambda _: object(), "truth": lambda _: [True],
    },
    "text": {"None": lambda _: None, "1": lambda _: 1, "list": lambda _: ["a"], "bytes": lambda _: b"a", "nan": lambda _: math.nan},
    "ids": {
        "list": lambda good: good.tolist(), "None": lambda _: None, "text": lambda _: "In the beginning", "array": lambda good: good.numpy(),
        "float": lambda good: good.float(), "nan": lambda good: good.float() * math.nan, "bool": lambda good: good > 0,
        "complex": lambda good: good.cfloat(), "negative": lambda good: good - 10, "huge": lambda good: good + 2**40,
        "empty": lambda good: good[..., :0], "no rows": lambda good: good[:0], "extra axis": lambda good: good[None],
        "two more axes": lambda good: good[None, None], "no axis": lambda good: good.flatten()[0], "too long": lambda good: good.repeat(*[1] * (good.ndim - 1), 40),
        "int8": lambda good: good.to(torch.int8), "int16": lambda good: good.to(torch.int16), "int32": lambda good: good.int(),
        "uint8": lambda good: good.to(torch.uint8), "one less": lambda good: good[0],
    },
    "array": {
        "list": lambda good: good.tolist(), "None": lambda _: None, "text": lambda _: "W", "array": lambda good: good.detach().numpy(),
        "integers": lambda good: good.long(), "bool": lambda good: good > 0, "complex": lambda good: good.cfloat(),
        "nan": lambda good: good * math.nan, "inf": lambda good: good / 0.0, "extra axis": lambda good: good[None],
        "no axis": lambda good: good.flatten()[0], "empty": lambda good: good[..., :0], "longer": lambda good: torch.cat([good, good[..., :1]], -1),
        "no rows": lambda good: good[:0], "float16": lambda good: good.half(), "bfloat16": lambda good: good.bfloat16(), "float64": lambda good: good.double(),
        "int8": lambda good: good.to(torch.int8), "negative": lambda good: -good.abs() - 1,
    },
    "truths": {
        "list": lambda good: good.tolist(), "None": lambda _: None, "float": lambda good: good.float(), "extra axis": lambda good: good[None],
        "longer": lambda good: torch.cat([good, good[..., :1]], -1), "empty": lambda good: good[..., :0], "none": lambda good: good & False,
    },
    "model": {
        "None": lambda _: None, "text": lambda _: "two-layer", "module": lambda _: torch.nn.Linear(2, 2), "dict": lambda _: {},
        "class": lambda good: type(good), "heads": lambda _: heads(), "tensor": lambda _: normal(2, 2), "3": lambda _: 3,
        "foreign": lambda _: foreign(), "converted": lambda _: converted(), "plain": lambda _: model(), "not a number": lambda _: broken(math.nan), "infinite": lambda _: broken(math.inf),
    },
    "heads": {
        "None": lambda _: None, "text": lambda _: "L0H0", "model": lambda _: model(), "list": lambda good: [good], "tensor": lambda _: normal(2, 3),
        "foreign": lambda _: circuitkit.heads(foreign()), "none": lambda good: good[:0], "3": lambda _: 3, "class": lambda good: type(good),
    },
    "made": {
        "None": lambda _: None, "text": lambda _: "x", "3": lambda _: 3, "list": lambda _: [], "class": lambda good: type(good),
        "tensor": lambda _: normal(2), "model": lambda _: model(), "nan": lambda _: math.nan,
    },
    "function": {
        "None": lambda _: None, "text": lambda _: "f", "3": lambda _: 3, "list": lambda _: [], "tensor": lambda _: normal(2),
    },
    "sequence": {
        "None": lambda _: None, "3": lambda _: 3, "nan": lambda _: [math.nan], "texts": lambda _: ["a"], "none in it": lambda _: [None],
        "negative": lambda _: [-5], "huge": lambda _: [2**70], "object": lambda _: object(), "truth": lambda _: [True], "nested": lambda _: [[1]],
    },
    "dtype": {
        "None": lambda _: None, "text": lambda _: "float32", "3": lambda _: 3, "class": lambda _: float, "array": lambda _: np.float32,
        "int8": lambda _: torch.int8, "bool": lambda _: torch.bool, "complex": lambda _: torch.complex64, "float16": lambda _: torch.float16,
    },
    "path": {"None": lambda _: None, "3": lambda _: 3, "folder": lambda _: folder(), "empty": lambda _: "", "list": lambda _: []},
    "anything": {
        "None": lambda _: None, "text": lambda _: "x", "3": lambda _: 3, "nan": lambda _: math.nan, "list": lambda _: [], "object": lambda _: object(),
        "tensor": lambda _: normal(2, 3), "raises": lambda _: (lambda **_: 1 / 0), "returns nothing": lambda _: (lambda **_: None),
        "no arguments": lambda _: (lambda: 1), "class": lambda _: int, "inf": lambda _: (lambda **_: torch.full((3, 3), math.inf)),
    },
}  # fmt: skip

#: The kind of each argument, by the same names as in GOOD.
KINDS = {
    "count": """draws points Address.layer Address.number Address.term before pos batch d_content d_gate d_value share top_k d_head d_model d_pos d_vocab expansion first_pass heads_per_neuron inits k most n n_ctx n_extra
        n_features n_heads n_hidden n_layers n_noise n_pos n_prompts n_signals n_trigrams period rows steps times width window block
        distance vocab seeds early late layer row dst src offset max_order step skip trigram first bos chapter seed
        n_jobs neurons uncheckable_at_most largest_paths.answer""",
    "number": """Anatomy.gain cap a1 a2 accuracy alpha alpha_tail alpha_warmup discount eps gain gate_range importance limit lr lr_warmup top_k_warmup noise max_error
        min_together omega power reach right scale sharpness tail_factor target_l1 target_rms threshold tolerance
        attention.largest HeadSum.error generalized_silu.error""",
    "flag": """toolkit.keep plan Anatomy.run.grad Anatomy.groups.neurons Anatomy.parts.neurons Run.shares.neurons Run.score_sides.neurons biases by_path cosine largest normalise residual scale_free post_norm_layers.skip
        logit_attribution.neurons path_logits.neurons score_decomposition.neurons""",
    "word": """letter against how measure Address.input Address.kind Anatomy.run.fill activation baseline error fill form gate init kind method output_scale pairs penalty positions query key value_bias Heads.mask
        Heads.by_head.name checkpoints.name load_model.name model_card.name stored_survey.name load_results.name AttentionOnlyBridge.route.name id""",
    "name": """Anatomy.find.name Run.part.name join.parts read.text head writer reader into out_of Decomposition.__getitem__.key Heads.__getitem__.key Heads.index.key MixedHeads.__getitem__.key MixedHeads.index.key PathLogits.__getitem__.name
        PathLogits.order.name PathLogits.stream.name Scores.__getitem__.name""",
    "names": "record_layer.heads columns picture.rows predict.words Anatomy.__getitem__.names names without keep Neurons.pattern.heads",
    "text": "Heads.of prompt claim complete.text label alt name device HeadSum.activation generalized_silu.activation",
    "ids": "tokens contexts probe negatives versus logit_attribution.answer",
    "array": """Norm.bound.b Sublayer.bias W_pos b_U V1 V2 W W_E W_K W_O W_OV W_Q W_QK W_U W_V W_gate W_in W_out a b b_K b_Q b_V b_gate b_in b_out density embed fix left like likelihood
        q Heads.scores_of.k Heads.pattern_of.scores mask pattern read rotation scores stream unigram weights x y""",
    "truths": "among",
    "model": "model",
    "heads": "heads earlier later heads_or_model parts",
    "made": """effects.found Anatomy.run.base Anatomy.run.source Sublayer.before after final inside opening matrix paths task recipe run original replacing.block generator cache case fig draw args at values words patterns induction_loss.rows
        settings claims turn norm_Q norm_K""",
    "function": "Anatomy.head Anatomy.run.edit Anatomy.run.watch Sublayer.gate from_heads.gate function norm progress frames.alt",
    "sequence": """Anatomy.run.at effect.at Anatomy.steps complete.known back checkpoints exclude layers triples occurring shared attention.tokens corpus_evidence.window HeadSum.a HeadSum.b HeadSum.c
        HeadSum.d frames.steps replacing.without GatedBlock.forward.without groups""",
    "dtype": "dtype",
    "path": "path out folder",
    "anything": "answer guess",
}
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names.split()}


def lookup(table: dict[str, Any], target: str, name: str) -> Any:
    """The entry of `target.name`, else that of `name`; KeyError where there is none."""
    return table[f"{target}.{name}"] if f"{target}.{name}" in table else table[name]


#: Values that mean something after all: for a kind, a label and the arguments (a star: every argument of that kind).
LEGAL: dict[str, dict[str, str]] = {
    "count": {
        "0": """Address.layer Address.number before pos seed layer row src max_order skip_trigrams.distance Heads.QK_at.distance Heads.allowed.n_pos largest_paths.answer bos first neurons step uncheckable_at_most rate.k memory_scores.skip""",
        "-1": "attention.first neurons n_jobs Heads.QK_at.distance",
        "list": "seeds",
        "10**12": "seed",
        "int8": "*",
    },
    "number": {
        "0": """Anatomy.gain survey.threshold a1 a2 alpha alpha_tail alpha_warmup lr_warmup top_k_warmup noise tail_factor eps min_together right error HeadSum.error
            generalized_silu.error accuracy gated_neuron_heads.max_error""",
        "-1": "Anatomy.gain a1 a2 right",
        "1e30": """cap Recipe.lr a1 a2 right gain alpha noise eps limit min_together omega head_sum.sharpness neuron_heads.sharpness scale target_l1 target_rms
            HeadSum.error generalized_silu.error attention.largest gated_neuron_heads.max_error
            gated_neuron_heads.gate_range HeadSum.reach""",
        # Gated by a sigmoid, a neuron is one head and exact: what is allowed does not matter.
        "inf": "gated_neuron_heads.gate_range HeadSum.reach",
        "float16": "*",
    },
    "ids": {
        "int8": "*", "int16": "*", "int32": "*", "uint8": "*",
        "one less": "path_logits.tokens score_decomposition.tokens SkipTrigramTask.is_destination.tokens",
        "extra axis": "corpus_evidence.tokens SkipTrigramTask.is_destination.tokens",
        "two more axes": "SkipTrigramTask.is_destination.tokens",
        "no axis": "SkipTrigramTask.is_destination.tokens",
        # What only compares tokens, or has no context, has no limit to them.
        "negative": "after_occurrences.tokens earlier_occurrences.tokens SkipTrigramTask.is_destination.tokens",
        "huge": "after_occurrences.tokens earlier_occurrences.tokens corpus_evidence.tokens SkipTrigramTask.is_destination.tokens",
        "too long": """after_occurrences.tokens earlier_occurrences.tokens corpus_evidence.tokens head_verdict.tokens
            negatives SkipTrigramTask.is_destination.tokens SkipTrigramTask.states.tokens ToyModel.run.tokens ToyModel.logits.tokens
            GatedModel.run.tokens GatedRuns.run.tokens ToyModel.__call__.tokens GatedModel.__call__.tokens
            GatedRuns.__call__.tokens""",
        "empty": "SkipTrigramTask.is_destination.tokens after_occurrences.tokens earlier_occurrences.tokens",
        "no rows": """SkipTrigramTask.is_destination.tokens SkipTrigramTask.states.tokens after_occurrences.tokens
            earlier_occurrences.tokens""",
    },
    "array": {
        "float64": "*", "float16": "*", "bfloat16": "*",
        # A virtual head has no circuit of its own: its scores are NaN, and so is its pattern.
        "nan": "Norm.freeze.x Norm.linear.x Norm.__call__.x Heads.W_Q Heads.W_K q Heads.scores_of.k Heads.pattern_of.scores",
        "inf": "Norm.freeze.x Norm.linear.x Norm.__call__.x q Heads.scores_of.k Heads.pattern_of.scores",
        "negative": """Norm.bound.b Sublayer.bias W_pos b_U Heads.results.pattern q Heads.scores_of.k Heads.pattern_of.scores V1 V2 W W_E W_K W_O W_OV W_Q W_QK W_U W_V W_gate W_in W_out b_K b_Q b_V b_gate b_in b_out embed fix left like read
            scores stream x y""",
        "extra axis": """Norm.freeze.x Norm.linear.x Norm.__call__.x Norm.fold.W Run.shares.W Heads.side.x Heads.pattern_of.scores HeadSum.__call__.x layer_norm.x rms_norm.x with_bias_token.x like Heads.scores.x Heads.pattern.x
            Heads.results.x Neurons.__call__.x Neurons.literal.x Neurons.pattern.x
            Neurons.measured_reach.x GatedBlock.gates.x GatedBlock.pattern.x GatedBlock.mixed.x
            GatedBlock.results.x GatedBlock.forward.x OmegaMLP.__call__.x OmegaMLP.error_bound.x""",
        "no axis": "HeadSum.__call__.x like",
        "no rows": "full_ov.embed stream with_bias_token.x Norm.freeze.x like left layer_norm.x rms_norm.x HeadSum.__call__.x GateSum.__call__.gate",
        "empty": "Norm.fold.W Run.shares.W HeadSum.__call__.x like left layer_norm.x rms_norm.x with_bias_token.x",
        "longer": """Norm.fold.W Run.shares.W from_heads.W_U HeadSum.__call__.x layer_norm.x rms_norm.x with_bias_token.x like left density""",
    },
    "text": {"None": "prompt"},
    "path": {"None": "out", "folder": "folder"},
    "names": {"3": "Anatomy.__getitem__.names", "unknown": "columns picture.rows predict.words"},  # a number of a head
    "name": {"unknown": "join.parts read.text", "nearly": "join.parts read.text", "none": "Heads.__getitem__.key full_ov.head full_qk.head"},  # a list of no heads gives no heads
    "word": {"case": "find.id check.id recompute.id"},  # figures have no case
    "truths": {"none": ""},
    "model": {
        "foreign": """anatomy.model heads.model components.model virtual_weights.model virtual_weight_table.model full_qk.model
            survey.model report.model""",
        "text": "report.model",  # a name
        "converted": "*",
        "plain": "*",
    },
    "heads": {
        "foreign": "reading_basis.heads writing_basis.heads heads_or_model parts",
        "none": "reading_basis.heads writing_basis.heads heads_or_model parts",
        "model": "heads_or_model",
    },
    "made": {
        "model": "inside",
        "tensor": "values args",
        "3": "mark.values signed.values unsigned.values at",
        "nan": "mark.values",
        "list": "mark.values problems.claims",
    },
    "sequence": {
        "texts": "frames.steps complete.known",
        "negative": "HeadSum.a HeadSum.b HeadSum.c HeadSum.d",
        "huge": "HeadSum.a HeadSum.b HeadSum.c HeadSum.d",
    },
    "dtype": {"float16": "*"},
    "anything": dict.fromkeys(
        ["None", "text", "3", "nan", "list", "object", "tensor", "raises", "returns nothing", "no arguments", "class", "inf"], "*"
    ),
}  # fmt: skip


#: What is not tried, and why.
NOT_TRIED = {
    ("frames", "draw", "model"): "a model is a function: what it raises is its own",
    ("plan", "args", "*"): "the asked function's own arguments, which it refuses itself",
    ("plan", "kwargs", "*"): "the same",
    ("plan", "function", "model"): "a model is a function: what it raises is its own",
}


def legal(target: Target, name: str, kind: str, label: str) -> bool:
    """Whether a result is an answer to this value."""
    parameter = target.parameters[name]
    if label == "None" and parameter.default is None:
        return True
    names = LEGAL.get(kind, {}).get(label, "").split()
    return "*" in names or name in names or f"{target.name}.{name}" in names


# --- the calls -----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    target: Target
    argument: str
    label: str
    what: str
    """`clear`, `result`, `raw` or `silent`; the right call gives `right`."""
    text: str


class _TooLong(BaseException):
    pass


def _ring(*_: Any) -> None:
    raise _TooLong


def right(target: Target) -> dict[str, Any]:
    """Keyword arguments that mean something; `self` among them for a method."""
    out = LEFT_OUT.get(target.name, set())
    given = {
        name: lookup(GOOD, target.name, name)() for name in target.parameters if name not in out
    }
    if "." in target.name:
        given["self"] = SELF[target.name.partition(".")[0]]()
    return given


def attempt(target: Target, given: dict[str, Any]) -> tuple[str, str]:
    """What a call came to: `result`, `clear` or `raw`, and the words."""
    given = dict(given)
    first = [given.pop("self")] if "self" in given else []
    for parameter in target.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL and parameter.name in given:
            first.append(given.pop(parameter.name))
    signal.signal(signal.SIGVTALRM, _ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = target.call(*first, **given)
            if inspect.isgenerator(result):
                result = list(result)
            if hasattr(result, "__enter__") and target.name.endswith("route"):
                with result:
                    pass
            if isinstance(result, circuitkit.exercises.Result) and result.passed:
                return "silent", "the answer passed"
            return "result", repr(type(result))
    except _TooLong:
        return "raw", f"no end within {SECONDS} s"
    except Exception as error:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        frames = traceback.extract_tb(error.__traceback__)
        inside = (
            os.path.dirname(circuitkit.__file__) + os.sep
        )  # a clone may be called circuitkit as well
        ours = (
            frames[-1].filename.startswith(inside)
            and isinstance(error, (ValueError, TypeError))
            and len(str(error)) > 30
        )
        text = f"{type(error).__name__}: {error}"
        return ("clear" if ours or isinstance(error, FileNotFoundError) else "raw"), text
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def outcomes(target: Target) -> Iterator[Outcome]:
    """The right call, then every argument spoilt in every way of its kind."""
    what, text = attempt(target, right(target))
    yield Outcome(target, "", "", "right" if what == "result" else "raw", text)
    for name in target.parameters:
        kind = lookup(KIND_OF, target.name, name)
        for label, spoil in WRONG[kind].items():
            if (target.name, name, label) in NOT_TRIED or (target.name, name, "*") in NOT_TRIED:
                continue
            given = right(target)
            good = given[name] if name in given else lookup(GOOD, target.name, name)()
            try:
                given[name] = spoil(good)
            except Exception:
                continue  # this cannot be done to a value of that kind
            what, text = attempt(target, given)
            if what == "result" and not legal(target, name, kind, label):
                what = "silent"
            yield Outcome(target, name, label, what, text)


@contextmanager
def offline() -> Iterator[None]:
    """What is slow the first time is loaded, and for a while nothing waits for a network."""
    from circuitkit.models import _load

    circuitkit.load_model("zero-layer"), model(), converted(), matrix(), figure()
    with patch.multiple(_load, _reachable=lambda *_: False, _cached=lambda *_: False):
        yield


@offline()
def main() -> None:
    print(
        f"{'package':<16}"
        + "".join(f"{word:>10}" for word in ("calls", "clear", "results", "raw", "silent"))
    )
    together: Counter[str] = Counter()
    details = []
    for package in sys.argv[1:] or PACKAGES:
        found = [outcome for target in targets(package) for outcome in outcomes(target)]
        count = Counter(outcome.what for outcome in found)
        count["calls"] = sum(n for what, n in count.items() if what != "right")
        print(
            f"{package:<16}"
            + "".join(
                f"{count[word]:>10}" for word in ("calls", "clear", "result", "raw", "silent")
            ),
            flush=True,
        )
        together += count
        details += [outcome for outcome in found if outcome.what in ("raw", "silent")]
    print(
        f"{'together':<16}"
        + "".join(f"{together[word]:>10}" for word in ("calls", "clear", "result", "raw", "silent"))
    )
    if sys.argv[1:]:
        for outcome in details:
            print(
                f"{outcome.what:<7}{outcome.target.name}.{outcome.argument} [{outcome.label}] {outcome.text[:150]!r}"
            )


if __name__ == "__main__":
    main()
