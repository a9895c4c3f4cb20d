"""The residual stream: what every part of a model adds to it, reads from it, keeps in it and deletes from it.

Each file answers one question about a sum over parts, and another may come in beside them. None of them says what a model
is or names its parts: that is anatomy's.
"""

from circuitkit.residual._attribution import logit_attribution as logit_attribution
from circuitkit.residual._decompose import decompose as decompose
from circuitkit.residual._memory import memory_scores as memory_scores
from circuitkit.residual._rotate import random_rotation as random_rotation
from circuitkit.residual._rotate import rotate_basis as rotate_basis
from circuitkit.residual._subspaces import subspace_overlap as subspace_overlap
from circuitkit.residual._toy import ToyModel as ToyModel
from circuitkit.residual._toy import train_toy_models as train_toy_models
from circuitkit.residual._virtual_weights import components as components
from circuitkit.residual._virtual_weights import virtual_weight_table as virtual_weight_table
from circuitkit.residual._virtual_weights import virtual_weights as virtual_weights

__all__ = [
    "ToyModel",
    "components",
    "decompose",
    "logit_attribution",
    "memory_scores",
    "random_rotation",
    "rotate_basis",
    "subspace_overlap",
    "train_toy_models",
    "virtual_weight_table",
    "virtual_weights",
]
