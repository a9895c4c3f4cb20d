"""Build exercises have many right answers, and none of them is refused."""

import math

import pytest
import torch

from circuitkit_book import exercises


def neuron(w_in, b_in, w_out, stretch=1.0, key=1.0):
    zero = w_in.new_zeros(1)
    W_Q = torch.cat([w_in, zero])[:, None] / key
    W_K = torch.cat([0 * w_in, -key + zero])[:, None]
    W_V = stretch * torch.cat([w_in, -b_in + zero])[:, None]
    return W_Q, b_in / key, W_K, W_V, stretch * b_in, torch.cat([w_out, zero])[None] / stretch


def test_a_neuron_may_share_its_scales_between_matrices_as_it_likes():
    assert exercises.check_neuron_as_head(neuron)
    assert exercises.check_neuron_as_head(
        lambda w_in, b_in, w_out: neuron(w_in, b_in, w_out, -3.0, 0.5)
    )


def test_a_neuron_built_in_float32_is_right():
    assert exercises.check_neuron_as_head(
        lambda *given: [torch.as_tensor(p).float() for p in neuron(*given)]
    )


def test_the_query_of_the_bias_token_is_free():
    def answer(w_in, b_in, w_out):
        W_Q, *rest = neuron(w_in, b_in, w_out)
        return torch.cat([W_Q[:-1], W_Q.new_full((1, 1), 5.0)]), *rest

    assert exercises.check_neuron_as_head(answer)


def test_a_mask_of_large_negative_numbers_is_right():
    def answer(scores):
        hidden = 1 - torch.eye(len(scores))
        hidden[:, 0] = 0
        return (scores - 1e9 * hidden).softmax(-1)

    assert exercises.check_two_places(answer)


def test_an_omega_window_may_be_a_list_or_a_tensor():
    for kind in (tuple, list, torch.tensor):
        assert exercises.check_omega_window(
            lambda n_pos, tolerance, eps, kind=kind: kind(
                [math.log(n_pos / tolerance) / 2, 4 * tolerance / eps]
            )
        )


def two_heads(n, gain, wide=0, second=60.0):
    b, vocab = torch.arange(1, n + 1), 2 * n + 2
    W_Q, W_K, W_V = torch.zeros(3, 2, vocab, n + wide)
    W_O = torch.zeros(2, n + wide, vocab)
    each = torch.eye(n, n + wide)
    W_Q[:, b], W_K[:, b], W_V[:, b] = each, 30 * each, 0.5 * each
    W_K[1, 0, :n] = second
    W_O[:, :n, b + n] = 2 * gain * torch.tensor([1.0, -1.0])[:, None, None] * torch.eye(n)
    return W_Q, W_K, W_V, W_O


def test_two_heads_may_be_wider_and_may_look_harder():
    assert exercises.check_two_heads(two_heads)
    assert exercises.check_two_heads(lambda n, gain: two_heads(n, gain, wide=3, second=200.0))


def test_the_two_heads_may_change_places():
    assert exercises.check_two_heads(
        lambda n, gain: tuple(part.flip(0) for part in two_heads(n, gain))
    )


def test_a_gate_may_score_beyond_its_ends():
    def answer(W_E, query, key, at=3.0, elsewhere=-2.0):
        def reader(token, other):
            wanted = torch.full((len(W_E),), other, dtype=W_E.dtype)
            wanted[token] = at
            solved = torch.linalg.solve(torch.cat([W_E, torch.ones_like(W_E[:, :1])], 1), wanted)
            return solved[:-1], solved[-1]

        return *reader(query, elsewhere), *reader(key, 0.0)

    assert exercises.check_one_pair_gate(answer)


def pseudo_inverses(W_E, W_U):
    return torch.linalg.pinv(W_E), torch.linalg.pinv(W_U)


BUILT = [
    (exercises.check_note_mover, lambda source, target: (source.T, target - source)),
    (exercises.check_turned_stream, lambda R, *W: (W[0] @ R, R.T @ W[1], W[2] @ R, R.T @ W[3])),
    (exercises.check_copying_head, pseudo_inverses),
    (exercises.check_virtual_head, lambda A_1, W_1, A_2, W_2: (A_2 @ A_1, W_1 @ W_2)),
]


@pytest.mark.parametrize(("check", "answer"), BUILT)
def test_matrices_in_float32_or_as_lists_are_right(check, answer):
    assert check(answer)
    assert check(lambda *given: [part.float() for part in answer(*given)])
    assert check(lambda *given: [part.tolist() for part in answer(*given)])


@pytest.mark.parametrize("check", [exercises.check_copying_head, exercises.check_virtual_head])
def test_a_product_in_place_of_two_matrices_is_named(check):
    assert "it returned Tensor; return" in check(lambda *given: torch.eye(3)).message
