"""The stored study of a pretrained encoder: its form always, its numbers where the weights are."""

import os
import struct

import numpy as np
import pytest
import torch

from circuitkit.conversion import activation_error, stored_study
from tools.study import real_conversion, real_decoders


def test_the_stored_rows_keep_their_promises():
    rows, provenance = stored_study("minilm")
    assert [row.heads_per_neuron for row in rows] == list(range(1, 9))
    for row in rows:
        assert row.activation_error == activation_error("gelu", row.heads_per_neuron)
        assert 0 < row.measured <= row.bound
        assert 0 <= row.neighbours_kept <= 1
    assert len(provenance["sha256"]) == 64
    assert provenance["sha256"] == real_conversion.SHA256


def test_embeddings_of_a_tiny_encoder_are_masked_means(hugging_face):
    bridge = hugging_face("bert")
    sentences = ["w3 w4 w5", "w6 w7", "w8 w9 w10 w11"]
    found = real_conversion.sentence_embeddings(bridge, bridge.tokenizer, sentences)
    for sentence, row in zip(sentences, found, strict=True):
        ids = torch.tensor([[int(word[1:]) for word in sentence.split()]])
        with torch.no_grad():
            hidden = bridge.original_model.bert(input_ids=ids).last_hidden_state[0]
        mean = hidden.mean(0)
        assert torch.allclose(row, mean / mean.norm(), atol=1e-10)
    rows = real_conversion.encoder_study(bridge, bridge.tokenizer, sentences, counts=(1, 5))
    assert rows[1]["cosine_distance"] < rows[0]["cosine_distance"]
    assert rows[1]["neighbours_kept"] == 1.0


@pytest.mark.real_models
@pytest.mark.skipif(not os.environ.get("CIRCUITKIT_REAL_MODELS"), reason="needs 84 MB of weights: `make real-models`")
@pytest.mark.filterwarnings("ignore")
def test_the_stored_study_is_what_the_weights_give():
    """Promises are exact; what was measured contains rounding, so another processor may move it by a few percent."""
    stored, _ = stored_study("minilm")
    for row, found in zip(stored, real_conversion.study(), strict=True):
        assert found["bound"] == pytest.approx(row.bound, rel=1e-5)
        assert found["neighbours_kept"] == pytest.approx(row.neighbours_kept, abs=0.01)
        if row.heads_per_neuron <= 4:
            assert found["measured"] == pytest.approx(row.measured, rel=0.1)
            assert found["cosine_distance"] == pytest.approx(row.cosine_distance, rel=0.1)


@pytest.mark.parametrize("name", ["smollm2", "whisper"])
def test_the_stored_decoders_keep_their_promises(name):
    rows, provenance = stored_study(name)
    full = [row for row in rows if row.precision == "float32"]
    assert [row.heads_per_neuron for row in full] == list(real_decoders.COUNTS[name])
    for row in full:
        assert 0 < row.measured <= row.bound
        assert 0 <= row.top1 <= 1
        assert row.kl > -1e-9
    assert provenance["sha256"] == real_decoders.PROVENANCE[name]["sha256"]
    assert len(provenance["sha256"]) == 64


def test_a_file_of_ctranslate2_is_read(tmp_path):
    # by hand: version 6, a name, revision 3, two variables; a scalar of int8 and a matrix of float16
    matrix = np.arange(6, dtype=np.float16).reshape(2, 3)
    data = struct.pack("<I", 6) + b"\x04\x00Abc\x00" + struct.pack("<II", 3, 2)
    data += b"\x02\x00n\x00" + struct.pack("<BBI", 0, 1, 1) + b"\x05"
    data += b"\x04\x00w/a\x00" + struct.pack("<BIIBI", 2, 2, 3, 4, 12) + matrix.tobytes()
    (tmp_path / "model.bin").write_bytes(data + struct.pack("<I", 0))
    found = real_decoders.variables(tmp_path / "model.bin")
    assert found["n"] == 5
    assert found["w/a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.real_models
@pytest.mark.skipif(not os.environ.get("CIRCUITKIT_REAL_MODELS"), reason="needs 180 MB of weights: `make real-models`")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["smollm2", "whisper"])
def test_the_stored_decoders_are_what_the_weights_give(name):
    stored, provenance = stored_study(name)
    rows, perplexity = real_decoders.study(name)
    assert perplexity == pytest.approx(provenance["perplexity"], rel=1e-3)
    for row, found in zip(stored, rows, strict=True):
        assert found["bound"] == pytest.approx(row.bound, rel=1e-4)
        assert found["top1"] == pytest.approx(row.top1, abs=0.01)
        assert found["kl"] == pytest.approx(row.kl, rel=0.2, abs=1e-7)
        assert found["perplexity"] == pytest.approx(row.perplexity, rel=1e-2)
