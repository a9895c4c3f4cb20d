"""The stored study of a pretrained encoder: its form always, its numbers where the weights are."""

import os

import pytest
import torch

from circuitkit.conversion import activation_error, stored_encoder_study
from tools.study import real_conversion


def test_the_stored_rows_keep_their_promises():
    rows, provenance = stored_encoder_study()
    assert [row.heads_per_neuron for row in rows] == list(range(1, 9))
    for row in rows:
        assert row.activation_error == activation_error("gelu", row.heads_per_neuron)
        assert 0 < row.measured <= row.bound
        assert 0 <= row.neighbours_kept <= 1
    assert len(provenance["sha256"]) == 64
    assert provenance["sha256"] == real_conversion.SHA256


def test_embeddings_of_a_tiny_encoder_are_masked_means(hugging_face):
    from circuitkit.conversion._real import encoder_study, sentence_embeddings

    bridge = hugging_face("bert")
    sentences = ["w3 w4 w5", "w6 w7", "w8 w9 w10 w11"]
    found = sentence_embeddings(bridge, bridge.tokenizer, sentences)
    for sentence, row in zip(sentences, found, strict=True):
        ids = torch.tensor([[int(word[1:]) for word in sentence.split()]])
        with torch.no_grad():
            hidden = bridge.original_model.bert(input_ids=ids).last_hidden_state[0]
        mean = hidden.mean(0)
        assert torch.allclose(row, mean / mean.norm(), atol=1e-10)
    rows = encoder_study(bridge, bridge.tokenizer, sentences, counts=(1, 5))
    assert rows[1].cosine_distance < rows[0].cosine_distance
    assert rows[1].neighbours_kept == 1.0


@pytest.mark.real_models
@pytest.mark.skipif(not os.environ.get("CIRCUITKIT_REAL_MODELS"), reason="needs 84 MB of weights: `make real-models`")
@pytest.mark.filterwarnings("ignore")
def test_the_stored_study_is_what_the_weights_give():
    """Promises are exact; what was measured contains rounding, so another processor may move it by a few percent."""
    stored, _ = stored_encoder_study()
    for row, found in zip(stored, real_conversion.study(), strict=True):
        assert found["bound"] == pytest.approx(row.bound, rel=1e-5)
        assert found["neighbours_kept"] == pytest.approx(row.neighbours_kept, abs=0.01)
        if row.heads_per_neuron <= 4:
            assert found["measured"] == pytest.approx(row.measured, rel=0.1)
            assert found["cosine_distance"] == pytest.approx(row.cosine_distance, rel=0.1)
