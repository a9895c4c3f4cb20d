"""What a conversion does to pretrained models, and training in its place: the stored results behind chapter 4's tables."""

from typing import Any, Literal, NamedTuple

from circuitkit._contract import public
from circuitkit._stored import stored


class EncoderRow(NamedTuple):
    """One line of the study of a sentence encoder, for one number of heads a neuron. **Source**: see `stored_study`."""

    heads_per_neuron: int
    activation_error: float
    """Promised: the largest error of the activation."""
    bound: float
    """Promised: the largest error of any MLP output entry, over all layers."""
    measured: float
    """The largest such error seen, over all layers."""
    cosine_distance: float
    """1 - mean cosine between the sentence embeddings before and after."""
    neighbours_kept: float
    """Share of sentences whose nearest other sentence stays the same."""


class DecoderRow(NamedTuple):
    """One line of the study of a decoder on held-out text, for one number of heads a neuron.

    **Source**: see `stored_study`.
    """

    heads_per_neuron: float
    """On average; 0 is the original itself, in another precision."""
    precision: str
    """The precision that this model runs in. The model it is compared with runs in float32."""
    activation_error: float
    bound: float
    """Promised in exact arithmetic: the largest error of any MLP output entry, over all layers and all inputs."""
    measured: float
    """The largest such error seen on the probe, rounding included."""
    kl: float
    """Kullback-Leibler divergence from the original's predictions, nats a token."""
    top1: float
    """Share of places whose most likely next token stays the same."""
    perplexity: float
    seconds: float
    """Processor time over that of the original, in the same run."""
    memory: float = 0.0
    """Bytes alive beside the weights at the peak of one pass, over those of the original."""
    rounding: float = 0.0
    """Promised on the probe for rounding, in this precision."""


class TrainedRow(NamedTuple):
    """One small decoder trained with an MLP or with what may stand in its place.

    **Source**: see `stored_study`.
    """

    kind: str
    """`"mlp"`, `"untied"` neuron-heads, `"persistent"` vectors, or `"nothing"`."""
    seed: int
    numbers: int
    """Trained parameters."""
    curve: list[list[float]]
    """`[step, validation loss]`, nats a character."""
    seconds: float


class CutRow(NamedTuple):
    """What an attention head gives the right place when wires of neurons into it are cut.

    **Source**: see `stored_study`.
    """

    model: str
    head: str
    ranked: str
    """What named the pairs of neurons: their share of the `"score"`, or of what it is `"above other places"`."""
    cut: str
    """`"nothing"`, the `"named"` neurons' wires, or those of as many drawn ones of a kind."""
    values: list[float]
    """Attention on each row of tokens; of drawn neurons, the mean over rows for each draw."""


_KINDS: dict[str, Any] = {"minilm": EncoderRow, "trained": TrainedRow, "pairs": CutRow}


@public
def stored_study(name: Literal["minilm", "smollm2", "whisper", "trained", "pairs"]) -> tuple[list[Any], dict[str, Any]]:
    """The rows stored for a pretrained model or a study of one, and where they came from.

    `EncoderRow`, `DecoderRow` (SmolLM2, Whisper), `TrainedRow`, or `CutRow`. **Source**: the scripts of these studies in `tools/study`.

    >>> stored_study("whisper")[0][0].precision
    'float32'
    """
    table = stored("conversion", f"{name}.json")
    return [_KINDS.get(name, DecoderRow)(**row) for row in table["rows"]], table["provenance"]
