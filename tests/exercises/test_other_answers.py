"""Build exercises have many right answers, and none of them is refused."""

import math

import numpy as np
import pytest
import torch
from torch.linalg import eig, eigvals

from circuitkit_book import exercises


def neuron(w_in, b_in, w_out, stretch=1.0, key=1.0):
    zero = w_in.new_zeros(1)
    W_Q = torch.cat([w_in, zero])[:, None] / key
    W_K = torch.cat([0 * w_in, -key + zero])[:, None]
    W_V = stretch * torch.cat([w_in, -b_in + zero])[:, None]
    return W_Q, b_in / key, W_K, W_V, stretch * b_in, torch.cat([w_out, zero])[None] / stretch


def neuron_with_a_free_bias_token(w_in, b_in, w_out):
    W_Q, *rest = neuron(w_in, b_in, w_out)
    return torch.cat([W_Q[:-1], W_Q.new_full((1, 1), 5.0)]), *rest


def window(n_pos, tolerance, eps):
    return [math.log(n_pos / tolerance) / 2, 4 * tolerance / eps]


def two_heads(n, gain, wide=0, second=60.0):
    b, vocab = torch.arange(1, n + 1), 2 * n + 2
    W_Q, W_K, W_V = torch.zeros(3, 2, vocab, n + wide)
    W_O = torch.zeros(2, n + wide, vocab)
    each = torch.eye(n, n + wide)
    W_Q[:, b], W_K[:, b], W_V[:, b] = each, 30 * each, 0.5 * each
    W_K[1, 0, :n] = second
    W_O[:, :n, b + n] = 2 * gain * torch.tensor([1.0, -1.0])[:, None, None] * torch.eye(n)
    return W_Q, W_K, W_V, W_O


def swapped_heads(n, gain):
    return tuple(part.flip(0) for part in two_heads(n, gain))


def gate_beyond_its_ends(W_E, query, key, at=3.0, elsewhere=-2.0):
    def reader(token, other):
        wanted = torch.full((len(W_E),), other, dtype=W_E.dtype)
        wanted[token] = at
        solved = torch.linalg.solve(torch.cat([W_E, torch.ones_like(W_E[:, :1])], 1), wanted)
        return solved[:-1], solved[-1]

    return *reader(query, elsewhere), *reader(key, 0.0)


def roomy_value_mover(source, target):
    return source.T.repeat(1, 2), (target - source).repeat(2, 1) / 2


def by_hand(loud=100.0, double=1):
    def answer(vocab, n_ctx):
        word, place, note, out = torch.eye(3 * vocab + n_ctx).split([vocab, n_ctx, vocab, vocab])
        values, writes = word.T.repeat(1, double), note.repeat(double, 1)
        first = (loud * place.T.roll(-1, 1), place.T, values, writes)
        return first, (loud * word.T, note.T, word.T, 3 * out)

    return answer


ANSWERS = {
    "neuron as it is": ("neuron_as_head", neuron),
    "neuron with other scales": ("neuron_as_head", lambda *w: neuron(*w, -3.0, 0.5)),
    "neuron in float32": ("neuron_as_head", lambda *w: [part.float() for part in neuron(*w)]),
    "query of the bias token": ("neuron_as_head", neuron_with_a_free_bias_token),
    "window as a tuple": ("omega_window", lambda *given: tuple(window(*given))),
    "window as a list": ("omega_window", window),
    "window as a tensor": ("omega_window", lambda *given: torch.tensor(window(*given))),
    "two heads": ("two_heads", two_heads),
    "two wide, sharp heads": ("two_heads", lambda *given: two_heads(*given, wide=3, second=200.0)),
    "two heads the other way": ("two_heads", swapped_heads),
    "gate beyond its ends": ("one_pair_gate", gate_beyond_its_ends),
    "wide value mover": ("value_mover", roomy_value_mover),
    "soft induction head": ("induction_head", by_hand(40.0, double=2)),
    "sharp induction head": ("induction_head", by_hand(1000.0, double=2)),
}


@pytest.mark.parametrize(("exercise", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_another_right_answer_is_accepted(exercise, answer):
    assert getattr(exercises, f"check_{exercise}")(answer)


def pseudo_inverses(W_E, W_U):
    return torch.linalg.pinv(W_E), torch.linalg.pinv(W_U)


BUILT = [
    (exercises.check_value_mover, lambda source, target: (source.T, target - source)),
    (exercises.check_turned_stream, lambda R, *W: (W[0] @ R, R.T @ W[1], W[2] @ R, R.T @ W[3])),
    (exercises.check_copying_head, pseudo_inverses),
]


@pytest.mark.parametrize(("check", "answer"), BUILT)
def test_matrices_in_float32_or_as_lists_are_right(check, answer):
    assert check(answer)
    assert check(lambda *given: [part.float() for part in answer(*given)])
    assert check(lambda *given: [part.tolist() for part in answer(*given)])


def test_a_product_in_place_of_two_matrices_is_named():
    message = exercises.check_copying_head(lambda *given: torch.eye(3)).message
    assert "It returned Tensor. Return W_V, W_O, in this order." in message


EIGENVALUES = {
    "eigvals": torch.linalg.eigvals,
    "eigvals by name": lambda table: torch.linalg.eigvals(input=table),
    "eigvals imported before": eigvals,
    "eig": lambda table: torch.linalg.eig(table).eigenvalues,
    "eig imported before": lambda table: eig(table)[0],
    "numpy": lambda table: torch.as_tensor(np.linalg.eigvals(table.numpy())),
    "numpy with vectors": lambda table: torch.as_tensor(np.linalg.eig(table.numpy())[0]),
}


@pytest.mark.parametrize("values_of", EIGENVALUES.values(), ids=EIGENVALUES)
def test_the_score_from_the_whole_table_is_refused_for_its_size(values_of):
    def score(values):
        return values.real.sum() / values.abs().sum()

    large = exercises.check_copying_score(
        lambda W_E, W_V, W_O, W_U: score(values_of(W_E @ W_V @ W_O @ W_U))
    )
    assert not large
    assert "it comes from a matrix of width 4. Use a [d_head, d_head] matrix" in large.message
    assert exercises.check_copying_score(
        lambda W_E, W_V, W_O, W_U: score(values_of(W_O @ W_U @ W_E @ W_V))
    )


def test_a_gate_with_a_threshold_along_one_embedding_is_refused():
    def answer(W_E, query, key, side):
        W_GQ, b_GQ, W_GK, b_GK = gate_beyond_its_ends(W_E, query, key, at=1.0, elsewhere=0.0)
        if side == "query":
            W_GQ, b_GQ = 10 * W_E[query] / W_E[query].square().sum(), -9.0
        else:
            W_GK, b_GK = 10 * W_E[key] / W_E[key].square().sum(), -9.0
        return W_GQ, b_GQ, W_GK, b_GK

    for side in ("query", "key"):
        assert not exercises.check_one_pair_gate(lambda *given, side=side: answer(*given, side))
