"""The claims register: what the sources and the framework paper say, recomputed, with a verdict for each.

A row of `claims.toml` names the function here that computes it. Rows may be added; a verdict changes only with the value
that it rests on.
"""

from circuitkit.claims._check import Outcome as Outcome
from circuitkit.claims._check import check as check
from circuitkit.claims._check import recompute as recompute
from circuitkit.claims._register import Claim as Claim
from circuitkit.claims._register import find as find
from circuitkit.claims._register import load as load
from circuitkit.claims._rules import problems as problems

__all__ = ["Claim", "Outcome", "check", "find", "load", "problems", "recompute"]
