"""The stored study of a pretrained encoder: its form always, its numbers where the weights are."""

from circuitkit.conversion import activation_error, stored_study


def test_the_stored_rows_keep_their_promises():
    rows, provenance = stored_study("minilm")
    assert [row.heads_per_neuron for row in rows] == list(range(1, 9))
    for row in rows:
        assert row.activation_error == activation_error("gelu", row.heads_per_neuron)
        assert 0 < row.measured <= row.bound
        assert 0 <= row.neighbours_kept <= 1
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
