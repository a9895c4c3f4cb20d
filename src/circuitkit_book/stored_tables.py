"""Tables of the long experiments of chapters 4 and 5, which the pages read from stored files."""

from typing import TYPE_CHECKING, Any, Literal

from circuitkit.checks import checked
from circuitkit.data import stored

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load_results", "stored_study"]


@checked
def stored_study(
    name: Literal[
        "minilm",
        "smollm2",
        "whisper",
        "trained",
        "pairs",
        "neurons_text",
        "neurons_bag",
        "neurons_planted",
    ],
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """The stored results of a study of converted models, and where they came from.

    Parameters
    ----------
    name : `"minilm"`, a sentence encoder, or `"smollm2"` and `"whisper"`, decoders, with a row for
        each number of heads per neuron; `"trained"`, small decoders trained with an MLP or
        something in its place; `"pairs"`, attention heads with the wires of some neurons cut;
        `"neurons_text"`, neurons predicted by weights and by a lookup; `"neurons_bag"`, the same
        neurons, predicted by a bag of earlier tokens; `"neurons_planted"`, the rank of neurons whose
        job is known

    Returns
    -------
    rows : a DataFrame. `bound` and `activation_error` are promised in exact arithmetic, `measured`
        is the largest error of an MLP output entry; `kl` is in nats per token, `top1` the share of
        places with the same most likely token, `seconds` and `memory` are relative to the original
    provenance : models, texts and scripts

    Notes
    -----
    Source: the scripts in `studies/edition-2/study` and `studies/neurons`.

    Examples
    --------
    >>> stored_study("whisper")[0].precision[0]
    'float32'
    """
    import pandas as pd

    table = stored("conversion", f"{name}.json")
    return pd.DataFrame(table["rows"]), table["provenance"]


@checked
def load_results(name: str) -> list[dict[str, Any]]:
    """A stored table of a study of attention superposition, as one dictionary for each row.

    Parameters
    ----------
    name : `"originals"`, `"causes"`, `"post"`, `"recipes"`, `"coherent"`, `"language_model"`,
        `"thresholds"`, `"published"`, `"by_hand"`, `"pairs"`,
        `"constant_alpha"`, `"no_penalty"`, `"text_sharing"`, `"text_power"`, `"text_toys"`,
        `"text_causal"`, `"text_blocks"`, `"text_targets"`, `"text_checks"`, `"planted_rules"`,
        `"planted_control"`, `"planted_counted"`, `"planted_rows"`, `"text_starts"` or `"guess_heads"`

    Raises
    ------
    ValueError : if there is no such table

    Notes
    -----
    Source: `studies/edition-2/study/superposition_*.py` and the files of `studies`, which
    `manifest.json` names for each table.

    Examples
    --------
    >>> load_results("originals")[0]["config"]
    '2H3T'
    """
    return stored("superposition", f"{name}.csv")
