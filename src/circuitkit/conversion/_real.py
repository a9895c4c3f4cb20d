"""What a conversion does to a pretrained sentence encoder: the study behind chapter 4's stored table."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.conversion._convert import to_attention_only


class EncoderRow(NamedTuple):
    """One line of the study, for one number of heads a neuron.

    **Source**: see `stored_encoder_study`.
    """

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


def sentence_embeddings(bridge: Any, tokenizer: Any, sentences: Sequence[str]) -> Float[Tensor, "sentence d_model"]:
    """Mean over real tokens of the encoder's last hidden state, normalised, 16 sentences at a time."""
    parts = []
    for first in range(0, len(sentences), 16):
        batch = tokenizer(
            list(sentences[first : first + 16]), padding=True, truncation=True, max_length=96, return_tensors="pt"
        )
        encoder = getattr(bridge.original_model, "bert", bridge.original_model)
        with torch.no_grad():
            hidden = encoder(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        mask = batch.attention_mask[..., None].to(hidden)
        parts.append((hidden * mask).sum(1) / mask.sum(1))
    return torch.nn.functional.normalize(torch.cat(parts), dim=-1)


def encoder_study(
    bridge: Any, tokenizer: Any, sentences: Sequence[str], counts: Sequence[int] = range(1, 9)
) -> list[EncoderRow]:
    """Convert the encoder with each number of heads per neuron and compare its sentence embeddings with the original's."""
    exact, rows = sentence_embeddings(bridge, tokenizer, sentences), []
    for k in counts:
        converted = to_attention_only(bridge, heads_per_neuron=k)
        found = sentence_embeddings(converted, tokenizer, sentences)
        kept = (_neighbours(found) == _neighbours(exact)).double().mean()
        layers = converted.report.layers
        rows.append(
            EncoderRow(
                k,
                layers[0].activation_error,
                converted.report.bound,
                max(layer.measured for layer in layers),
                float((0.5 * (found.double() - exact.double()).square().sum(-1)).mean()),
                float(kept),
            )
        )
    return rows


def _neighbours(embeddings: Tensor) -> Tensor:
    return (embeddings @ embeddings.T).fill_diagonal_(-2).argmax(-1)


def stored_encoder_study() -> tuple[list[EncoderRow], dict]:
    """The rows `tools/study/real_conversion.py` stored, and where the weights came from.

    **Source**: `tools/study/real_conversion.py`.
    """
    table = json.loads(files("circuitkit.conversion").joinpath("data/minilm.json").read_text())
    return [EncoderRow(**row) for row in table["rows"]], table["provenance"]
