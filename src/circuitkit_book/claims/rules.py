"""What every row of the register must satisfy before anything is recomputed."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from circuitkit_book.claims.outcomes import agree, is_number, within_null
from circuitkit_book.claims.register import KINDS, LETTERS, SOURCES, VERDICTS, Claim

TEXTS = ("id", "source", "place", "claim", "computes", "verdict")


def problems(claims: Sequence[Claim]) -> list[str]:
    """All faults of a register, each as a sentence; empty for a sound one."""
    claims = list(claims)
    found = [fault for claim in claims for fault in _row(claim)]
    found += [
        f"claim {id}: {n} rows have this id"
        for id, n in Counter(c.id for c in claims).items()
        if n > 1
    ]
    users = Counter((claim.by, claim.key) for claim in claims if claim.by)
    found += [
        f"{n} rows show the same value, {by} {key}".rstrip()
        for (by, key), n in users.items()
        if n > 1
    ]
    return found


def _row(claim: Claim) -> list[str]:
    found = [f"{name} is empty" for name in TEXTS if not getattr(claim, name).strip()]
    if claim.source not in SOURCES:
        found.append(f"source {claim.source!r} is none of {list(SOURCES)}")
    elif not re.fullmatch(rf"{LETTERS[claim.source]}[1-9]\d*", claim.id):
        found.append(f"ids of {claim.source!r} are {LETTERS[claim.source]!r} and a number")
    if claim.verdict not in VERDICTS:
        found.append(f"verdict {claim.verdict!r} is none of {list(VERDICTS)}")
    if (claim.verdict in ("holds", "definition")) == bool(claim.would_hold.strip()):
        found.append(f"verdict {claim.verdict!r}, and would_hold is {claim.would_hold!r}")
    if not claim.chapter.strip():
        found.append("no page treats it")
    found += [f"the note says {text}, which the row does not compute" for text in _unbound(claim)]
    if claim.verdict != "cannot be checked here" or claim.by or claim.value is not None:
        found += _computed(claim)
    found += _null(claim)
    return [f"claim {claim.id}: {fault}" for fault in found]


def _unbound(claim: Claim) -> list[str]:
    """Decimal numbers of the two explanations that round none of the row's values and are in none of its other texts."""
    elsewhere = f"{claim.claim} {claim.computes} {claim.labels} {claim.value}"
    numbers = _flat([claim.value, claim.said, claim.null])
    computed = [abs(one) for one in numbers if is_number(one)]
    texts = re.findall(r"\d+\.\d+", f"{claim.note} {claim.would_hold}")
    return [
        text
        for text in texts
        if text not in elsewhere
        and not any(
            abs(one - float(text)) <= 0.5001 * 10 ** -len(text.partition(".")[2])
            for one in computed
        )
    ]


def _computed(claim: Claim) -> list[str]:
    if not claim.by or claim.value is None:
        return [f"verdict {claim.verdict!r} needs a computation (by) and its value"]
    found = []
    if "." not in claim.by:
        found.append(f"by {claim.by!r} is not 'module.function'")
    found += _tolerated(claim)
    if claim.labels and not (
        isinstance(claim.value, list) and len(claim.labels) == len(claim.value)
    ):
        found.append(f"{len(claim.labels)} labels do not fit the value {claim.value}")
    if claim.said is not None:
        return found + _said(claim)
    true = [one for one in _flat(claim.value) if isinstance(one, bool)]
    if claim.verdict == "holds" and not all(true):
        found.append("'holds', but the computed answer is no")
    if claim.verdict in ("wrong", "misprint") and true and all(true):
        found.append(f"{claim.verdict!r}, but the computed answer is yes")
    return found


def _null(claim: Claim) -> list[str]:
    """A null that is incomplete, or that contradicts the verdict: an effect is none if its null is as large."""
    given = [claim.null is not None, bool(claim.null_of.strip()), bool(claim.null_by)]
    if any(given) and not all(given):
        return ["null, null_of and null_by belong together"]
    if not any(given) or not isinstance(claim.value, list):
        wrong = any(given) or claim.verdict == "holds without training"
        return ["the row has no list of values with a null"] if wrong else []
    if len(claim.null) != len(claim.value) or any(len(one) not in (0, 2) for one in claim.null):
        return [f"null {claim.null} needs [lowest, highest] or [] for each of {claim.value}"]
    within = within_null(claim)
    if claim.verdict == "holds" and within:
        return [f"'holds', but {value} lies within its null {null}" for value, null in within]
    if claim.verdict == "holds without training" and not within:
        return ["'holds without training', but no value lies within its null"]
    return []


def _tolerated(claim: Claim) -> list[str]:
    """Tolerances that are missing, without a reason, or wider than their reason allows."""
    values, kinds = _flat(claim.value), _flat(claim.kind)
    if unknown := set(kinds) - set(KINDS):
        return [f"kind {unknown.pop()!r} is none of {list(KINDS)}"]
    for name, given in (("kind", kinds), ("tolerance", _flat(claim.tolerance))):
        if 1 < len(given) < len(values):
            return [
                f"{len(given)} entries of {name} for {len(values)} values; expected one, or one for each"
            ]
    if not any(map(is_number, values)) and claim.tolerance:
        return ["only numbers have a tolerance"]
    if (
        any(isinstance(one, float) for one in values)
        and {*kinds} != {"exact"}
        and not max(_flat(claim.tolerance)) > 0
    ):
        return ["a computed number needs a tolerance"]
    limits = [_widest(kind, value) for kind, value in _pairs(kinds, values)]
    said = [] if claim.said is None else _flat(claim.said)
    printed = [max(_printed(one), _widest(kind, one)) for kind, one in _pairs(kinds, said)]
    return [
        f"{name} {given} is wider than {limit:.3g}, the most for {claim.kind!r} or for what a text prints"
        for name, tolerance, most in (
            ("tolerance", claim.tolerance, limits),
            ("said_tolerance", claim.said_tolerance, printed),
        )
        for given, limit in _pairs(_flat(tolerance), most)
        if given > limit * (1 + 1e-9)
    ]


def _pairs(each: list, values: list) -> list[tuple]:
    """Each value with its own setting, or all with the one there is; a longer list of settings loses its end."""
    return list(zip(each if len(each) > 1 else each * len(values), values, strict=False))


def _widest(kind: str, value: Any) -> float:
    """The widest tolerance of a value; answers and texts are compared as they are, and so have no limit."""
    if not is_number(value):
        return math.inf
    return KINDS[kind][1] * (abs(value) if kind == "computed" else max(1.0, abs(value)))


def _printed(value: Any) -> float:
    """Half a unit of the last digit that a text prints: 50 for 500, 0.0005 for 1.278."""
    if not is_number(value) or value == 0:
        return 0.0
    digits = Decimal(repr(value)).normalize()
    return 0.5001 * 10.0 ** int(digits.as_tuple().exponent)


def _said(claim: Claim) -> list[str]:
    value, said = claim.value, claim.said
    if isinstance(value, list):
        value = value[: len(said)] if isinstance(said, list) else value[0]
    agrees = agree(value, said, claim.said_tolerance)
    if claim.verdict == "holds" and not agrees:
        return [f"'holds', but {value} is not within {claim.said_tolerance} of {said}"]
    if claim.verdict in ("wrong", "misprint") and agrees:
        return [f"{claim.verdict!r}, but {value} is within {claim.said_tolerance} of {said}"]
    return []


def _flat(value) -> list:
    return (
        [inner for one in value for inner in _flat(one)]
        if isinstance(value, (list, tuple))
        else [value]
    )
