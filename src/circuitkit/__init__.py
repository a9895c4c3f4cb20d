"""circuitkit: reading, composing, converting and judging transformer circuits. Everything is a head.

The book's library. `heads(model)` turns the attention heads of a model into one small value; every other tool works
on such values, whether the heads were trained, built by hand, made from MLP neurons or gated. Sub-packages follow the
reader's path: `heads`, `models`, `residual`, `circuits`, `induction`, `conversion`, `superposition`.

Importing circuitkit imports nothing heavy: transformer-lens, matplotlib and circuitsvis are loaded by the functions
that need them.
"""

from importlib import import_module as _import_module

from circuitkit._identity import refuse_namesake as _refuse_namesake

_refuse_namesake()

_PUBLIC = {
    "Heads": "circuitkit._heads",
    "heads": "circuitkit._heads",
    "stack": "circuitkit._heads",
    "to_attention_only": "circuitkit.conversion",
    "load_model": "circuitkit.models",
    "list_models": "circuitkit.models",
}
_PACKAGES = (
    "models",
    "residual",
    "circuits",
    "induction",
    "conversion",
    "figures",
    "superposition",
    "exercises",
    "claims",
)

__all__ = [*_PUBLIC, *_PACKAGES]
__version__ = "0.1.0"


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(_import_module(_PUBLIC[name]), name)
    elif name in _PACKAGES:
        value = _import_module(f"circuitkit.{name}")
    else:
        raise AttributeError(f"module 'circuitkit' has no attribute {name!r}; it has {sorted(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
