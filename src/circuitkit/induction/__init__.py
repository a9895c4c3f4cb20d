"""Induction: repeated tokens, what each head does on them, what its removal costs, and heads that are trained.

A measure lives here beside the rows that it is taken on. Measures may be added; what a part or a wire is worth is asked in
one way only, by its name, and never without what others like it are worth.
"""

from circuitkit.induction._effect import attribution, effect, paths
from circuitkit.induction._made import train
from circuitkit.induction._scores import (
    InductionLoss,
    in_context_score,
    induction_loss,
    losses_by_position,
    scores,
    stored_survey,
    stored_zoo,
    survey,
)
from circuitkit.induction._stream import Repeated, repeated_tokens

__all__ = [
    "InductionLoss", "Repeated", "attribution", "effect",
    "in_context_score", "induction_loss", "losses_by_position", "paths", "repeated_tokens", "scores", "stored_survey",
    "stored_zoo", "survey", "train",
]  # fmt: skip
