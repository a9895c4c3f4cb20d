"""The exercises of each chapter, in the order of its page: the one list in which an exercise is registered.

An exercise with a check has the name of its file, which is also the name of the reader's function: `first_share` is in
`first_share.py`, and its check is `check_first_share`. The name of any other exercise is free: a prediction, the model
that is not what it seems, the report. Numbers are places in this list.
"""

CHAPTERS = (
    (
        "logit_in_parts",
        "logit_through_norm",
        "read_part",
        "value_mover",
        "zero_or_mean",
        "turned_stream",
        "average_out",
        "bias_in_disguise",
    ),
    (
        "head_needed_most",
        "first_share",
        "copying_head",
        "copying_score",
        "k_composition",
        "head_that_copies",
    ),
    (
        "second_pass",
        "find_induction",
        "patch",
        "induction_head",
        "cut_wire",
        "four_models",
    ),
    (
        "heads_of_a_neuron",
        "where_they_part",
        "neuron_as_head",
        "mlp_as_heads",
        "omega_window",
        "norm_gain",
        "one_wrong_neuron",
    ),
    (
        "half_of_a_pair",
        "strict_verdict",
        "two_heads",
        "without_source",
        "one_pair_gate",
        "model_that_cheats",
        "report_of_a_model",
    ),
)


def number_of(name: str) -> str:
    """Return the number of an exercise, such as `2.2`.

    Raises
    ------
    ValueError : the list has no such exercise

    Examples
    --------
    >>> number_of(CHAPTERS[1][0])
    '2.1'
    """
    for chapter, names in enumerate(CHAPTERS, 1):
        if name in names:
            return f"{chapter}.{names.index(name) + 1}"
    raise ValueError(
        f"The exercise {name!r} is in no chapter. Write its name at its place in CHAPTERS, in chapters.py."
    )
