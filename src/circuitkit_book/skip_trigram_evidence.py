"""Chapter 2: the evidence for skip trigrams in a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit.checks import checked, require_at_least, shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["count_evidence"]

Triples = Sequence[Sequence] | Int[Tensor, "_row _column"]
COUNTS = ["n_with", "hits_with", "n_without", "hits_without"]


@checked
def count_evidence(
    triples: Triples, tokens: Int[Tensor, "*row pos"], *, window: tuple[int, int] = (1, 32)
) -> "pd.DataFrame":
    """Count in a text how often completions follow with and without their source.

    Parameters
    ----------
    triples : rows `(source, destination, completion, ...)` of token ids; those of a ranking by
        `circuitkit.skip_trigrams.strongest` are `ranking.values.tolist()`
    tokens : token ids `[pos]` or `[row, pos]`; rows are separate texts
    window : the source lies this many tokens before the destination, (nearest, farthest);
        1 is right before it

    Returns
    -------
    A DataFrame with a row for each triple. `n_with` counts the places with the destination where
    the source occurs within the window before it, and `hits_with` counts those of them that the
    completion follows as the very next token. `n_without` and `hits_without` are the same without
    the source. `share_with` and `share_without` are hits over places, and `z` is the difference of
    the shares in (pooled) standard errors, or 0 where it is undefined.

    Raises
    ------
    ValueError : for a window that is empty, and for a triple that does not begin with three token
        ids

    Notes
    -----
    Error: the counts are exact, and they prove nothing: a source can stand for the topic of a text.
    Source: this book.

    Examples
    --------
    >>> import torch
    >>> text = torch.tensor([7, 1, 5, 2, 9, 5, 3])
    >>> count_evidence([(7, 5, 2)], text, window=(1, 3))[["n_with", "hits_with"]].values.tolist()
    [[1, 1]]
    """
    import pandas as pd  # takes half a second

    nearest, farthest = window
    if not 1 <= nearest <= farthest:
        raise ValueError(
            f"window={window} holds no token. Write (nearest, farthest) with "
            "1 <= nearest <= farthest, such as (1, 32)."
        )
    require_at_least(1, n_tokens=tokens.numel())
    text, length = tokens.flatten(), tokens.shape[-1]
    by_token = text.argsort(
        stable=True
    )  # the places of token 0 from left to right, of token 1, ...
    sorted_text = text[by_token]

    def places_of(token: int) -> Tensor:
        first = torch.searchsorted(sorted_text, token)
        return by_token[first : torch.searchsorted(sorted_text, token, right=True)]

    counts = []
    for triple in triples:
        source, destination, completion = three_tokens(triple)
        sources, place = places_of(source), places_of(destination)
        in_row = place % length
        place, in_row = place[in_row < length - 1], in_row[in_row < length - 1]
        first = torch.searchsorted(sources, place - in_row.clamp_max(farthest))
        last = torch.searchsorted(sources, place - nearest, right=True)
        has_source = last > first
        is_hit = text[place + 1] == completion
        of_places = [has_source, has_source & is_hit, ~has_source, ~has_source & is_hit]
        counts.append([int(chosen.sum()) for chosen in of_places])
    return with_shares(pd.DataFrame(counts, columns=COUNTS))


def three_tokens(triple: Sequence | Tensor) -> tuple[int, ...]:
    """Source, destination and completion, which may be followed by other entries."""
    ids = []
    for entry in triple[:3]:
        if not isinstance(entry, str) and entry >= 0 and entry % 1 == 0:
            ids.append(int(entry))
    if len(ids) < 3:
        raise ValueError(
            f"A triple is {shown(triple)}. It must begin with three token ids: (source, "
            "destination, completion)."
        )
    return tuple(ids)


def with_shares(counts: "pd.DataFrame") -> "pd.DataFrame":
    """Add the shares, and the difference of the shares in standard errors."""
    table = counts.copy()
    table["share_with"] = table["hits_with"] / table["n_with"]
    table["share_without"] = table["hits_without"] / table["n_without"]
    pooled = (table["hits_with"] + table["hits_without"]) / (table["n_with"] + table["n_without"])
    variance = pooled * (1 - pooled) * (1 / table["n_with"] + 1 / table["n_without"])
    difference = table["share_with"] - table["share_without"]
    table["z"] = (difference / variance**0.5).fillna(0.0)
    return table
