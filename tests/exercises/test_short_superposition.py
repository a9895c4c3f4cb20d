"""The short answers of chapter 5, computed in another way than the checks do."""

import torch

from circuitkit import superposition as sp
from circuitkit_book import exercises


def completes(s: float) -> bool:
    """Whether the published design with s on C3 completes all trigrams, by its logits."""
    written = torch.tensor([[2.0, -2.0, s], [-2.0, 2.0, s]])
    active = {0: [0], 1: [1], 2: [0, 1]}
    return all(
        written[heads].sum(0).argmax() == own and written[heads].sum(0).max() > 1
        for own, heads in active.items()
    )


def test_the_limits_of_the_shared_write_are_where_the_model_fails():
    assert completes(0.51)
    assert completes(1.99)
    assert not completes(0.49)
    assert not completes(2.01)
    assert exercises.check_shared_write([0.5, 2])
    assert "residual stream" in exercises.check_shared_write([0, 2]).message


def test_gates_and_penalties_are_what_the_library_computes():
    gates = torch.outer(torch.tensor([0.5, 2, -1]), torch.tensor([1, 0.4]))
    assert exercises.check_six_gates(sp.GATES.gate(gates).flatten().tolist())
    thirds = torch.full((3,), 1 / 3)
    assert exercises.check_three_gates(float(torch.linalg.vector_norm(thirds, 0.6)))
    writes = torch.tensor([2.0, -1.0])
    assert exercises.check_cancelling_writes(float(torch.linalg.vector_norm(writes, 0.6)))
    assert exercises.check_n_subsets(2**11)


def test_no_answer_and_a_wrong_answer_are_told_apart():
    assert "No answer yet" in exercises.check_three_gates(None).message
    assert "power 1 / 0.6" in exercises.check_three_gates(1.55).message
