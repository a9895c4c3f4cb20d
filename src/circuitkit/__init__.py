"""circuitkit: the circuits of a transformer, from its weights and by interventions.

`heads_of(model)` turns the attention heads of a model into one small value. Every tool works on
such values, whether the heads were trained, built by hand, made from MLP neurons, or gated. Models
are transformer-lens's `TransformerBridge` objects.

A module is imported when it is first used, so importing circuitkit loads nothing heavy.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what an editor sees
    from circuitkit import ablation as ablation
    from circuitkit import circuits as circuits
    from circuitkit import conversion as conversion
    from circuitkit import effects as effects
    from circuitkit import figures as figures
    from circuitkit import handmade as handmade
    from circuitkit import heads as heads
    from circuitkit import induction as induction
    from circuitkit import lab_file as lab_file
    from circuitkit import models as models
    from circuitkit import paths as paths
    from circuitkit import reading as reading
    from circuitkit import reports as reports
    from circuitkit import residual as residual
    from circuitkit import skip_trigrams as skip_trigrams
    from circuitkit import superposition as superposition
    from circuitkit import tables as tables
    from circuitkit import training as training
    from circuitkit.ablation import run as run
    from circuitkit.conversion import to_attention_only as to_attention_only
    from circuitkit.effects import attribution as attribution
    from circuitkit.effects import effect as effect
    from circuitkit.heads import Heads as Heads
    from circuitkit.heads import stack as stack
    from circuitkit.lab_file import lab as lab
    from circuitkit.models import list_models as list_models
    from circuitkit.models import load_model as load_model
    from circuitkit.reading import heads_of as heads_of
    from circuitkit.reports import report as report
    from circuitkit.residual import why as why

__version__ = "0.1.0"

MODULES = (
    "ablation",
    "circuits",
    "conversion",
    "effects",
    "figures",
    "handmade",
    "heads",
    "induction",
    "lab_file",
    "models",
    "paths",
    "reading",
    "reports",
    "residual",
    "skip_trigrams",
    "superposition",
    "tables",
    "training",
)
# Other public names, and the module of each.
HOMES = {
    "Heads": "heads",
    "attribution": "effects",
    "effect": "effects",
    "heads_of": "reading",
    "lab": "lab_file",
    "list_models": "models",
    "load_model": "models",
    "report": "reports",
    "run": "ablation",
    "stack": "heads",
    "to_attention_only": "conversion",
    "why": "residual",
}
__all__ = sorted([*MODULES, *HOMES])  # pyright: ignore[reportUnsupportedDunderAll]


def refuse_namesake() -> None:
    """Raise `ImportError` if another project's distribution `circuitkit` is installed as well."""
    try:
        version = metadata.version("circuitkit")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"Another project's distribution, 'circuitkit' {version}, is installed in this "
        "environment. It has the same import name as this library, which is called "
        "'circuitkit-book', so each overwrites files of the other. Uninstall both, install this "
        "library again as its README says, and restart Python:\n"
        "    pip uninstall -y circuitkit circuitkit-book"
    )


if not TYPE_CHECKING:  # an editor would accept every name

    def __getattr__(name: str) -> Any:
        if name in MODULES:
            return import_module(f"circuitkit.{name}")
        if name in HOMES:
            return getattr(import_module(f"circuitkit.{HOMES[name]}"), name)
        raise AttributeError(f"circuitkit has no {name!r}. It has {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


refuse_namesake()
