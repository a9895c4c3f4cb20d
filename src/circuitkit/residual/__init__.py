"""The residual stream: what every part of a model adds to it, reads from it, keeps in it and deletes from it."""

from circuitkit.residual._attribution import LogitAttribution as LogitAttribution
from circuitkit.residual._attribution import logit_attribution as logit_attribution
from circuitkit.residual._decompose import Decomposition as Decomposition
from circuitkit.residual._decompose import decompose as decompose
from circuitkit.residual._memory import MemoryScores as MemoryScores
from circuitkit.residual._memory import memory_scores as memory_scores
from circuitkit.residual._rotate import random_rotation as random_rotation
from circuitkit.residual._rotate import rotate_basis as rotate_basis
from circuitkit.residual._subspaces import principal_angles as principal_angles
from circuitkit.residual._subspaces import reading_basis as reading_basis
from circuitkit.residual._subspaces import subspace_overlap as subspace_overlap
from circuitkit.residual._subspaces import writing_basis as writing_basis
from circuitkit.residual._toy import ToyModel as ToyModel
from circuitkit.residual._toy import train_toy_models as train_toy_models
from circuitkit.residual._virtual_weights import components as components
from circuitkit.residual._virtual_weights import virtual_weight_table as virtual_weight_table
from circuitkit.residual._virtual_weights import virtual_weights as virtual_weights

__all__ = [
    "Decomposition",
    "LogitAttribution",
    "MemoryScores",
    "ToyModel",
    "components",
    "decompose",
    "logit_attribution",
    "memory_scores",
    "principal_angles",
    "random_rotation",
    "reading_basis",
    "rotate_basis",
    "subspace_overlap",
    "train_toy_models",
    "virtual_weight_table",
    "virtual_weights",
    "writing_basis",
]
