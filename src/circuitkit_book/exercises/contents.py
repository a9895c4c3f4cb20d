"""All exercises, in the order of the book."""

from circuitkit_book.exercises import (
    average_out,
    copying_head,
    copying_score,
    cut_wire,
    find_induction,
    first_share,
    heard_part,
    induction_head,
    k_composition,
    logit_in_parts,
    logit_through_norm,
    mlp_as_heads,
    neuron_as_head,
    norm_gain,
    note_mover,
    omega_window,
    one_pair_gate,
    patch,
    strict_verdict,
    turned_stream,
    two_heads,
    where_they_part,
    without_source,
)  # fmt: skip
from circuitkit_book.exercises.exercise import Exercise

MODULES = (
    logit_in_parts, logit_through_norm, heard_part, note_mover, turned_stream, average_out, first_share,
    copying_head, copying_score, k_composition, find_induction, patch, induction_head, cut_wire,
    where_they_part, neuron_as_head, mlp_as_heads, omega_window, norm_gain, strict_verdict, two_heads,
    without_source, one_pair_gate,
)  # fmt: skip


def catalogue(chapter: int | None = None) -> tuple[Exercise, ...]:
    """Return the exercises of a chapter (1 to 5), or all of them.

    Raises
    ------
    ValueError : the chapter has no exercises

    Examples
    --------
    >>> [exercise.title for exercise in catalogue(2)][:2]
    ['how much goes to the first position', 'a head that copies, by hand']

    Source: this book.
    """
    exercises = [module.EXERCISE for module in MODULES]
    if chapter is not None:
        exercises = [exercise for exercise in exercises if exercise.number[0] == str(chapter)]
    if not exercises:
        raise ValueError(f"Chapter {chapter!r} has no exercises. Chapters 1 to 5 have some.")
    return tuple(exercises)
