"""The residual stream: what every part of a model adds to it, reads from it, keeps in it and deletes from it.

Each file answers one question about a sum over parts, and another may come in beside them. None of them says what a model is
or names its parts: that is anatomy's.
"""

from circuitkit.residual._decompose import decompose, logit_attribution, memory_scores
from circuitkit.residual._toy import ToyModel, train_toy_models
from circuitkit.residual._weights import (
    components,
    principal_cosines,
    random_rotation,
    rotate_basis,
    subspace_overlap,
    virtual_weight_table,
    virtual_weights,
)

__all__ = [
    "ToyModel", "components", "decompose", "logit_attribution", "memory_scores", "principal_cosines", "random_rotation", "rotate_basis",
    "subspace_overlap", "train_toy_models", "virtual_weight_table", "virtual_weights",
]  # fmt: skip
