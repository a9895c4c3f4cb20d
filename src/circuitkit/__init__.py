"""circuitkit: reading, composing, converting and judging transformer circuits. Everything is a head.

The book's library. `heads_of(model)` turns the attention heads of a model into one small value; every other tool works
on such values, whether the heads were trained, built by hand, made from MLP neurons or gated. Sub-packages follow the
reader's path: `heads`, `anatomy`, `models`, `residual`, `circuits`, `induction`, `conversion`, `superposition`.

Importing circuitkit imports nothing heavy: transformer-lens, matplotlib and circuitsvis are loaded by the functions
that need them.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from circuitkit._identity import refuse_namesake as _refuse_namesake

_refuse_namesake()

__all__ = [
    "Heads", "heads_of", "stack", "to_attention_only", "load_model", "list_models", "anatomy", "models", "residual",
    "circuits", "induction", "conversion", "figures", "superposition", "exercises", "claims", "report", "plan", "kept_in",
    "ablation", "run", "training", "handmade",
]  # fmt: skip
__version__ = "0.1.0"

if TYPE_CHECKING:  # what an editor sees; at run time a name is imported when it is first asked for
    from circuitkit import (
        ablation,
        circuits,
        claims,
        conversion,
        exercises,
        figures,
        handmade,
        induction,
        models,
        residual,
        superposition,
        training,
    )
    from circuitkit._work import kept_in, plan
    from circuitkit.ablation import run
    from circuitkit.anatomy import anatomy
    from circuitkit.conversion import to_attention_only
    from circuitkit.heads import Heads, heads_of, stack
    from circuitkit.models import list_models, load_model
    from circuitkit.report import report
else:
    _HOMES = {
        "Heads": "heads",
        "heads_of": "heads",
        "stack": "heads",
        "to_attention_only": "conversion",
        "load_model": "models",
        "plan": "_work",
        "kept_in": "_work",
        "list_models": "models",
        "run": "ablation",
    }

    def __getattr__(name: str):
        if name not in __all__:
            raise AttributeError(
                f"module 'circuitkit' has no attribute {name!r}; it has {sorted(__all__)}"
            )
        module = _import_module(f"circuitkit.{_HOMES.get(name, name)}")
        globals()[name] = value = getattr(module, name) if name in _HOMES else module
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
