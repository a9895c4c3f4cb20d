"""The claims register: what the sources and the framework paper say, recomputed, with a verdict for each.

A row of `claims.toml` names the function here that computes it. Rows may be added; a verdict changes only with the value
that it rests on.
"""

from circuitkit_book.claims.outcomes import Outcome as Outcome
from circuitkit_book.claims.outcomes import check as check
from circuitkit_book.claims.outcomes import recompute as recompute
from circuitkit_book.claims.outcomes import recompute_null as recompute_null
from circuitkit_book.claims.register import Claim as Claim
from circuitkit_book.claims.register import find as find
from circuitkit_book.claims.register import load as load
from circuitkit_book.claims.rules import problems as problems

__all__ = ["Claim", "Outcome", "check", "find", "load", "problems", "recompute", "recompute_null"]
