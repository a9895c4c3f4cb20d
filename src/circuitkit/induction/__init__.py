"""Induction: repeated tokens, what each head does on them, what its removal costs, and heads made by hand or trained.

A measure lives here beside the rows that it is taken on. Measures may be added; what a part or a wire is worth is asked
in one way only, by its name, and never without what others like it are worth.
"""

from ._effect import attribution as attribution
from ._effect import effect as effect
from ._effect import paths as paths
from ._handmade import build_induction_model as build_induction_model
from ._handmade import build_virtual_head_model as build_virtual_head_model
from ._loss import InductionLoss as InductionLoss
from ._loss import in_context_score as in_context_score
from ._loss import induction_loss as induction_loss
from ._loss import losses_by_position as losses_by_position
from ._scores import scores as scores
from ._survey import stored_survey as stored_survey
from ._survey import survey as survey
from ._tokens import Repeated as Repeated
from ._tokens import repeated_tokens as repeated_tokens
from ._train import train as train

__all__ = [
    "InductionLoss",
    "Repeated",
    "attribution",
    "build_induction_model",
    "build_virtual_head_model",
    "effect",
    "in_context_score",
    "induction_loss",
    "losses_by_position",
    "paths",
    "repeated_tokens",
    "scores",
    "stored_survey",
    "survey",
    "train",
]
