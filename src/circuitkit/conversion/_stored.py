"""What a conversion does to pretrained models: the stored results behind chapter 4's tables."""

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
    rounding: float = 0.0
    """Promised on the probe for rounding, in this precision."""


@public
def stored_study(name: Literal["minilm", "smollm2", "whisper"]) -> tuple[list[Any], dict[str, Any]]:
    """The rows stored for a pretrained model, `EncoderRow` or `DecoderRow`, and where its weights came from.

    **Source**: `tools/study/real_conversion.py` and `tools/study/real_decoders.py`.

    >>> stored_study("whisper")[0][0].precision
    'float32'
    """
    table = stored("conversion", f"{name}.json")
    kind = EncoderRow if name == "minilm" else DecoderRow
    return [kind(**row) for row in table["rows"]], table["provenance"]
