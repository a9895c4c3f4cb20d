"""Induction: repeated tokens, what each head does on them, what its removal costs, and heads made by hand or trained."""

from ._handmade import build_induction_model as build_induction_model
from ._handmade import build_virtual_head_model as build_virtual_head_model
from ._loss import InductionLoss as InductionLoss
from ._loss import in_context_score as in_context_score
from ._loss import induction_loss as induction_loss
from ._loss import losses_by_position as losses_by_position
from ._scores import Scores as Scores
from ._scores import scores as scores
from ._survey import Survey as Survey
from ._survey import stored_survey as stored_survey
from ._survey import survey as survey
from ._tokens import Repeated as Repeated
from ._tokens import after_occurrences as after_occurrences
from ._tokens import earlier_occurrences as earlier_occurrences
from ._tokens import repeated_tokens as repeated_tokens
from ._train import Training as Training
from ._train import train as train
from ._without import paths as paths

__all__ = [
    "InductionLoss",
    "Repeated",
    "Scores",
    "Survey",
    "Training",
    "after_occurrences",
    "build_induction_model",
    "build_virtual_head_model",
    "earlier_occurrences",
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
