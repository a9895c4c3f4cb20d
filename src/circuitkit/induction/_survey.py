"""A model's induction heads and what they are worth: computed for any model, or stored for one that is too large to ship."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Fraction, Several, must, public
from circuitkit._stored import hashes, manifest, stored
from circuitkit._work import each
from circuitkit.anatomy import anatomy, read
from circuitkit.anatomy._sublayer import fingerprint
from circuitkit.induction._effect import Effect
from circuitkit.induction._loss import InductionLoss, induction_loss
from circuitkit.induction._scores import KINDS, Scores, default_rows, scores


@dataclass(frozen=True, eq=False)
class Survey:
    """Scores of all heads, and the induction loss with three groups of heads taken out. **Source**: see `survey`."""

    scores: Scores
    """Every head on the default rows."""
    groups: dict[str, tuple[str, ...]]
    """`"induction"`: heads whose prefix matching reaches the threshold; `"previous token"` and `"random"`: as many."""
    losses: dict[str, InductionLoss]
    """Under `"nothing"` the whole model; under a group's name the model without that group."""
    provenance: dict[str, Any]
    """Where the weights came from; empty unless the survey was stored."""
    heads: dict[str, Float[Tensor, " head"]]
    """Numbers by head, in the order of the scores: what each way of asking says that replacing it would cost; empty unless stored."""
    seconds: dict[str, float]
    """Processor seconds that each way of asking took, on one machine in one hour."""
    effects: dict[str, Effect]
    """Cuts of its wires beside drawn sets, whose names are not kept; empty unless stored (`tools/study/real_circuit.py`)."""
    more: dict[str, Any]
    """What else that study found, by its pieces: `"saturated"`, `"sizes"`, `"groups"`, `"sinks"`, `"norms"`; empty unless stored."""


@public
def survey(model: AnyModel, *, threshold: Fraction = 0.4, batch: Count = 8, period: Several = 64) -> Survey:
    """Find a model's induction heads and previous-token heads, take each group out, and measure.

    Induction heads have a prefix matching of at least `threshold` (the best one if there is none). The other groups hold as
    many: heads with the highest previous-token score, and random other heads, drawn with seed 0 from the layers of the
    induction heads if those have enough. **Error**: as `scores` and `induction_loss`. **Cost**: five forward passes.
    **Source**: "In-context Learning and Induction Heads", ablation of heads; the three groups are this book's.

    >>> from circuitkit.induction import build_induction_model
    >>> result = survey(build_induction_model(20, 16))
    >>> result.groups["induction"], round(result.losses["induction"].accuracy, 2)
    (('L1H0',), 0.09)
    """
    rows = default_rows(model, period=period, batch=batch)
    found = scores(model, rows)
    k = max(1, int((found.prefix_matching >= threshold).sum()))
    chosen = {
        "induction": tuple(name for name, _ in found.top("prefix_matching", k)),
        "previous token": tuple(name for name, _ in found.top("previous_token", k)),
    }
    chosen["random"] = _others(found.names, chosen, k)
    taken = {"nothing": (), **chosen}
    told = each(lambda group: induction_loss(model, rows, without=group), {name: (taken[name],) for name in taken}, "survey", lambda: fingerprint(anatomy(model), rows.tokens.tolist(), chosen))
    losses = {name: InductionLoss(*one) for name, one in zip(taken, told, strict=True)}
    return Survey(found, chosen, losses, {}, {}, {}, {}, {})


def _others(names: tuple[str, ...], chosen: dict[str, tuple[str, ...]], k: int) -> tuple[str, ...]:
    """`k` heads in no group so far, near the induction heads if there are enough."""
    left = [name for name in names if not any(name in group for group in chosen.values())]
    layers = {read(name)[0].layer for name in chosen["induction"]}
    near = [name for name in left if read(name)[0].layer in layers]
    pool = near if len(near) >= k else left
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(0))[:k].tolist()
    return tuple(pool[i] for i in sorted(order))


_KNOWN = tuple(sorted(name.removesuffix(".json") for name in hashes(manifest("induction")) if name.endswith(".json")))
_computed = f"one of {[*_KNOWN]}: only these were computed beforehand. Write survey(circuitkit.load_model(name)) for another model"


@public
@must(lambda name: name in _KNOWN or _computed)
@cache
def stored_survey(name: str = "smollm2-135m") -> Survey:
    """The survey of a model whose weights do not ship with the book, as `make real-models` last computed and compared it.

    **Source**: `tools/study/real_induction.py`.

    >>> stored_survey().provenance["model"]
    'SmolLM2-135M-Instruct'
    """
    table = stored("induction", f"{name}.json")
    return Survey(
        Scores(tuple(table["names"]), **{kind: torch.tensor(table["scores"][kind]) for kind in KINDS}),
        {group: tuple(names) for group, names in table["groups"].items()},
        {group: InductionLoss(*values) for group, values in table["losses"].items()},
        table["provenance"],
        {how: torch.tensor(one["values"]) for how, one in table["heads"].items()},
        {how: one["seconds"] for how, one in table["heads"].items()},
        {
            name: Effect(one["done"], one["measure"], (tuple(one["cut"]),), torch.tensor(one["values"]))
            for name, one in table["effects"].items()
        },
        table["more"],
    )


@public
def stored_zoo() -> list[dict[str, Any]]:
    """Sixteen small models, eight seeds on each of two tasks: how their accuracy rose, and what is left without each wire.

    Accuracy by ten steps is their `"curve"`, the whole model's `"whole"`; under `"Q"`, `"K"`, `"V"` all wires of a kind
    between the layers are replaced by their mean, under a wire's name that one. **Source**: `tools/study/zoo.py`.

    >>> sorted({one["task"] for one in stored_zoo()})
    ['different', 'recurring']
    """
    return stored("induction", "zoo.jsonl")
