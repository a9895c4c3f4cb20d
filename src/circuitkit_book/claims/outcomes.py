"""Recompute a claim's value and compare it with the stored one."""

from importlib import import_module
from numbers import Real
from typing import Any, NamedTuple

from circuitkit_book.claims.register import VERDICTS, Claim, find


class Outcome(NamedTuple):
    """What a recomputation found. `str(outcome)` is a sentence."""

    id: str
    holds: bool
    """True if the recomputed value is the stored one, within the row's tolerance."""
    value: Any
    """The value now."""
    stored: Any
    text: str

    def __str__(self) -> str:
        return self.text


def computation(claim: Claim, by: str = ""):
    """The function that recomputes a claim, by its name in `claim.by` or by another one."""
    by = by or claim.by
    module, _, name = by.partition(".")
    try:
        return getattr(import_module(f"circuitkit_book.claims.{module}"), name)
    except (ImportError, AttributeError) as problem:
        raise ValueError(
            f"claim {claim.id} is computed by {by!r}, which does not exist; expected 'module.function' of "
            f"circuitkit_book/claims/module.py ({problem})"
        ) from problem


def recompute(id: str | Claim) -> Any:
    """A claim's value, computed now. Takes seconds, changes nothing."""
    claim = id if isinstance(id, Claim) else find(id)
    if not claim.by:
        raise ValueError(
            f"claim {claim.id} is {VERDICTS.get(claim.verdict, claim.verdict)}: {claim.note}"
        )
    value = computation(claim)()
    if claim.key:
        if claim.key not in value:
            raise ValueError(
                f"claim {claim.id}: {claim.by} has no entry {claim.key!r}; it has {sorted(value)}"
            )
        value = value[claim.key]
    return value


def recompute_null(id: str | Claim) -> list:
    """The null of a claim, computed now: the lowest and the highest result for each entry of its value.

    >>> recompute_null("N18")[0]
    []
    """
    claim = id if isinstance(id, Claim) else find(id)
    if not claim.null_by:
        raise ValueError(f"claim {claim.id} has no null")
    return computation(claim, claim.null_by)()


def check(id: str | Claim) -> Outcome:
    """Recompute a claim and say whether its stored value still holds.

    >>> print(check("P19"))
    claim P19 holds: recomputed 2, 512, stored 2, 512
    """
    claim = id if isinstance(id, Claim) else find(id)
    value = recompute(claim)
    same = agree(value, claim.value, claim.tolerance)
    text = f"recomputed {shown(value)}, stored {shown(claim.value)}"
    if same:
        return Outcome(
            claim.id,
            True,
            value,
            claim.value,
            f"claim {claim.id} {VERDICTS[claim.verdict]}: {text}",
        )
    why = (
        f"the tolerance is {shown(claim.tolerance)}; either the library changed or the row is stale"
    )
    return Outcome(
        claim.id, False, value, claim.value, f"claim {claim.id} has drifted: {text}; {why}"
    )


def agree(value: Any, expected: Any, tolerance: int | float | list) -> bool:
    """True if two values have the same form, numbers within `tolerance`, everything else equal.

    Lists may have a tolerance for each entry.
    """
    if isinstance(value, (list, tuple)) and isinstance(expected, (list, tuple)):
        each = tolerance if isinstance(tolerance, (list, tuple)) else [tolerance] * len(expected)
        same_length = len(value) == len(expected) == len(each)
        return same_length and all(
            agree(*three) for three in zip(value, expected, each, strict=True)
        )
    if is_number(value) and is_number(expected):
        return value == expected or abs(value - expected) <= tolerance
    return type(value) is type(expected) and value == expected


def within_null(claim: Claim) -> list[tuple[Any, list]]:
    """The entries of a claim's value that lie within their null, each with this null."""
    if claim.null is None:
        return []
    tolerance = claim.tolerance
    each = tolerance if isinstance(tolerance, list) else [tolerance] * len(claim.value)
    return [
        (value, null)
        for value, null, margin in zip(claim.value, claim.null, each, strict=True)
        if null and null[0] - margin <= value <= null[1] + margin
    ]


def is_number(value: Any) -> bool:
    """True for numbers proper: a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def shown(value: Any) -> str:
    """A value in a few characters.

    >>> shown([0.02033526, True, 1e-16])
    '0.0203353, yes, 1e-16'
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
