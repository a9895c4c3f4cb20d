"""The stored study of a pretrained encoder: its form always, its numbers where the weights are."""

import os
import struct

import numpy as np
import pytest
import torch
from tools.study import matched_training, neuron_pairs, real_conversion, real_decoders

from circuitkit import load_model, to_attention_only
from circuitkit.circuits import score_decomposition
from circuitkit.conversion import activation_error, stored_study


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
@pytest.mark.skipif(
    not os.environ.get("CIRCUITKIT_REAL_MODELS"),
    reason="needs 84 MB of weights: `make real-models`",
)
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
    assert len(rows) == len(real_decoders.ways(name))
    for row, way in zip(rows, real_decoders.ways(name), strict=True):
        assert 0 <= row.measured <= row.bound + row.rounding
        assert 0 <= row.top1 <= 1
        assert row.kl > -1e-9
        assert row.precision == ("bfloat16" if way.startswith("bfloat16") else "float32")
        assert not way.isdigit() or row.heads_per_neuron == int(way)
    assert provenance["sha256"] == real_decoders.PROVENANCE[name]["sha256"]
    assert len(provenance["sha256"]) == 64


def test_what_was_asked_of_smollm2_is_reached():
    rows, _ = stored_study("smollm2")
    _, eight, sixteen, mixed, plain, ours = rows
    assert eight.kl <= 3e-4
    assert eight.top1 >= 0.99
    assert sixteen.kl <= 1e-7
    assert sixteen.top1 >= 0.999
    assert sixteen.seconds <= 1.35
    assert max(row.memory for row in rows) <= 1
    assert mixed.heads_per_neuron <= 17
    assert mixed.bound <= 0.2
    assert mixed.kl <= 1e-7
    assert ours.kl <= 2 * plain.kl


def test_bytes_alive_by_hand():
    layer = torch.nn.Linear(1000, 1000)
    with torch.no_grad(), real_decoders.Alive(layer) as counted:
        x = torch.ones(100, 1000)
        layer(x)  # is freed at once
        y = layer(x) + 1  # the sum stands beside what it is made of
        x.add_(1)
    assert (counted.most, counted.now) == (3 * 400_000, 2 * 400_000)
    del x, y
    assert counted.now == 0


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
@pytest.mark.skipif(
    not os.environ.get("CIRCUITKIT_REAL_MODELS"),
    reason="needs 180 MB of weights: `make real-models`",
)
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


def test_the_trained_decoders_are_matched_and_begin_as_stored():
    rows, about = stored_study("trained")
    assert {(row.kind, row.seed) for row in rows} == {
        (kind, seed) for kind in matched_training.KINDS for seed in range(3)
    }
    numbers = {row.kind: row.numbers for row in rows}
    assert max(numbers[kind] for kind in ("mlp", "untied", "persistent")) < 1.01 * min(
        numbers[kind] for kind in ("mlp", "untied", "persistent")
    )
    assert numbers["nothing"] < 0.5 * numbers["mlp"]
    assert all(
        [step for step, _ in row.curve] == list(range(0, about["steps"] + 1, 50)) for row in rows
    )
    for kind in ("untied", "persistent"):
        again = matched_training.train(kind, 1, until=50)
        (stored,) = (row for row in rows if (row.kind, row.seed) == (kind, 1))
        assert again["numbers"] == stored.numbers
        for (_, loss), (_, told) in zip(again["curve"], stored.curve[:2], strict=True):
            assert loss == pytest.approx(told, abs=0.02)


def test_persistent_attention_by_loops():
    torch.manual_seed(0)
    layer, x = matched_training.Persistent(5), torch.randn(1, 3, matched_training.D)
    q, k, v = (
        part[0].unflatten(-1, (matched_training.HEADS, -1)) for part in layer.qkv(x).chunk(3, -1)
    )
    size, z = q.shape[-1], torch.zeros_like(q)
    keys, values = layer.keys * size**0.5, layer.values * 5**0.5
    for head in range(matched_training.HEADS):
        for at in range(3):
            seen = torch.cat([keys[head], k[: at + 1, head]])
            weights = (seen @ q[at, head] / size**0.5).softmax(0)
            z[at, head] = weights @ torch.cat([values[head], v[: at + 1, head]])
    assert torch.allclose(layer(x)[0], layer.out(z.flatten(-2)), atol=1e-5)


def agrees(found, told, stored, about):
    """A study made anew beside what is stored: the same pairs, and cuts that do the same."""
    for how in neuron_pairs.HOW:
        assert told[how]["neurons"] == pytest.approx(about[how]["neurons"], abs=0.05)
        assert [pair[:2] for pair in told[how]["best"][:3]] == [
            pair[:2] for pair in about[how]["best"][:3]
        ]
    for row, kept in zip(found, stored, strict=True):
        assert (row["head"], row["ranked"], row["cut"]) == (kept.head, kept.ranked, kept.cut)
        if row["cut"] in ("nothing", "named"):
            assert row["values"] == pytest.approx(kept.values, abs=0.03)


def test_the_pairs_of_the_shipped_model_are_those_of_the_whole_table():
    model = to_attention_only(load_model("two-layer-mlp"), heads_per_neuron=1)
    named_on, judged_on = (
        neuron_pairs.rows_of(model, seed, 24, batch, opening=0).tokens
        for seed, batch in ((20, 4), (21, 8))
    )
    told, found = neuron_pairs.study(model, "L1H2", named_on, judged_on, draws=2)
    rows, about = stored_study("pairs")
    stored = [row for row in rows if row.model == "two-layer-mlp"]
    agrees(found, told, stored, about["two-layer-mlp L1H2"])

    tables = {src: 0 for src in (neuron_pairs.SRC, *neuron_pairs.WRONG)}
    for row in named_on:
        for src in tables:
            parts = score_decomposition(model, row, "L1H2", neuron_pairs.DST, src, neurons=True)
            tables[src] = tables[src] + parts.table / len(named_on)
    some = [i for i, name in enumerate(parts.components) if name.startswith("L0N")]
    right, *wrong = (table[some][:, some] for table in tables.values())
    for how, table in (("score", right), ("above other places", right - sum(wrong) / len(wrong))):
        assert told[how]["neurons"] == pytest.approx(float(table.sum()), abs=0.01)
        assert told[how]["named"] == pytest.approx(
            float(table.flatten().topk(100).values.sum()), rel=1e-3
        )
        for asks, offers, share in told[how]["best"]:
            assert float(table[int(asks[3:]), int(offers[3:])]) == pytest.approx(share, abs=1e-3)


def test_drawn_neurons_are_others_of_their_layer_and_near_in_size():
    pool = {f"L{layer}N{i}": float(i) for layer in (0, 1) for i in range(50)}
    names = ["L0N0", "L0N1", "L1N25"]
    for seed in range(10):
        for how in neuron_pairs.CONTROLS:
            found = neuron_pairs.drawn(names, pool, how, torch.Generator().manual_seed(seed))
            assert len({*found, *names}) == 6
            assert how == "any" or [one[:2] for one in found] == ["L0", "L0", "L1"]
            assert how != "same layer and size" or all(
                abs(pool[one] - pool[name]) <= neuron_pairs.NEAR + 2
                for one, name in zip(found, names, strict=True)
            )


def test_every_cut_of_pairs_stands_beside_its_controls():
    rows, about = stored_study("pairs")
    for model, head in {(row.model, row.head) for row in rows}:
        some = {
            (row.ranked, row.cut): row.values
            for row in rows
            if (row.model, row.head) == (model, head)
        }
        assert set(some) == {("", "nothing")} | {
            (how, cut) for how in neuron_pairs.HOW for cut in ("named", *neuron_pairs.CONTROLS)
        }
        assert all(
            len(values) == (20 if cut in neuron_pairs.CONTROLS else 8)
            for (_, cut), values in some.items()
        )
        assert about[f"{model} {head}"]["pairs"] == about[f"{model} {head}"]["parts"] ** 2
    assert about["sha256"] == real_decoders.PROVENANCE["smollm2"]["sha256"]


@pytest.mark.real_models
@pytest.mark.skipif(
    not os.environ.get("CIRCUITKIT_REAL_MODELS"),
    reason="needs 93 MB of weights: `make real-models`",
)
@pytest.mark.filterwarnings("ignore")
def test_the_stored_pairs_are_what_the_weights_give():
    model = to_attention_only(
        load_model(str(neuron_pairs.WEIGHTS)), heads_per_neuron=8, probe=torch.arange(8)[None]
    )
    named_on, judged_on = (
        neuron_pairs.rows_of(model, seed, 24, batch).tokens for seed, batch in ((20, 4), (21, 8))
    )
    rows, about = stored_study("pairs")
    told, found = neuron_pairs.study(model, "L18H6", named_on, judged_on, draws=1)
    agrees(found, told, [row for row in rows if row.head == "L18H6"], about["smollm2 L18H6"])
