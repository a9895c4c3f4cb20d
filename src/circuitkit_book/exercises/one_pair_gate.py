"""A gate of rank one that opens for one pair of tokens."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, normal, whole

Gate = tuple[Any, Any, Any, Any]


def solution(W_E: Tensor, query: int, key: int) -> Gate:
    """Solve for a direction and a bias that give 1 at one token and 0 at all others, on each side."""
    return *reader(W_E, query), *reader(W_E, key)


def reader(
    W_E: Tensor, token: int, at: float = 1.0, elsewhere: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return a direction and a bias that give `at` at one token and `elsewhere` at all others."""
    wanted = torch.full((len(W_E),), elsewhere, dtype=W_E.dtype)
    wanted[token] = at
    ones = torch.ones(len(W_E), 1, dtype=W_E.dtype)
    solved = torch.linalg.solve(torch.cat([W_E, ones], 1), wanted)
    return solved[:-1], solved[-1]


def observe(answer: Any, W_E: Tensor, query: int, key: int) -> Tensor:
    """Compute the gate between all tokens, cut off at 0 and 1, `[query, key]`."""
    d_model = W_E.shape[1]
    W_GQ, b_GQ, W_GK, b_GK = built(answer, W_GQ=(d_model,), b_GQ=(), W_GK=(d_model,), b_GK=())
    return torch.outer(W_E @ W_GQ + b_GQ, W_E @ W_GK + b_GK).clamp(0, 1)


def cases(generator: Generator) -> Iterator[Case]:
    """Random embeddings with one token more than dimensions.

    From the third case on, those of the pair are short. A threshold on x @ W_E[token] then opens at longer tokens, too.
    """
    for d_model in (2, 3, 4, 5, 7, 8):
        W_E = normal(generator, d_model + 1, d_model)
        query, key = whole(generator, d_model + 1), whole(generator, d_model + 1)
        if d_model > 3:
            W_E[[query, key]] /= 4
        yield {"W_E": W_E, "query": query, "key": key}


def exchanged(W_E, query, key):
    """Query and key are exchanged. The token that attends enters through W_GQ."""
    return solution(W_E, key, query)


def query_twice(W_E, query, key):
    """Both sides read the query token. The key side has to read the key token."""
    return solution(W_E, query, query)


def key_twice(W_E, query, key):
    """Both sides read the key token. The query side has to read the query token."""
    return solution(W_E, key, key)


def signs(W_E, query, key):
    """Each side is -1 at other tokens, and two negative numbers give a positive one. Make it 0 there."""
    return *reader(W_E, query, elsewhere=-1.0), *reader(W_E, key, elsewhere=-1.0)


def key_always(W_E, query, key):
    """The key side is 1 at all tokens. It has to be 1 at one token and 0 at the others."""
    return *reader(W_E, query), *reader(W_E, key, elsewhere=1.0)


def biases_dropped(W_E, query, key):
    """The biases are solved for and not returned. With them each side is 0 at the other tokens."""
    (W_GQ, b_GQ), (W_GK, b_GK) = reader(W_E, query), reader(W_E, key)
    return W_GQ, 0 * b_GQ, W_GK, 0 * b_GK


def biases_of_wrong_sign(W_E, query, key):
    """Both biases have the wrong sign. A bias is added."""
    (W_GQ, b_GQ), (W_GK, b_GK) = reader(W_E, query), reader(W_E, key)
    return W_GQ, -b_GQ, W_GK, -b_GK


def side_by_pinv(W_E, token):
    """Return the best direction without a bias."""
    return torch.linalg.pinv(W_E)[:, token], W_E.new_zeros(())


def no_bias(W_E, query, key):
    """You solve without a bias. There is one token more than dimensions, so add a column of ones to W_E."""
    return *side_by_pinv(W_E, query), *side_by_pinv(W_E, key)


def rows_of_the_inverse(W_E, query, key):
    """You take rows of the inverse. W_E times the inverse is the identity, so a token is a column of the inverse."""
    inverse = torch.linalg.inv(torch.cat([W_E, torch.ones_like(W_E[:, :1])], 1))
    return inverse[query, :-1], inverse[query, -1], inverse[key, :-1], inverse[key, -1]


def ones_in_front(W_E, query, key):
    """Your column of ones comes first, but you take the last number for the bias. Which one belongs to the ones?"""
    inverse = torch.linalg.inv(torch.cat([torch.ones_like(W_E[:, :1]), W_E], 1))
    return inverse[:-1, query], inverse[-1, query], inverse[:-1, key], inverse[-1, key]


def embeddings(W_E, query, key):
    """You read along the embeddings. Embeddings are not orthogonal; solve for 1 at one token and 0 at the others."""
    zero = W_E.new_zeros(())
    return W_E[query], zero, W_E[key], zero


def unit_embeddings(W_E, query, key):
    """You read along embeddings of length 1, which are not orthogonal. Solve for 1 at one token and 0 at the others."""
    zero = W_E.new_zeros(())
    return W_E[query] / W_E[query].norm(), zero, W_E[key] / W_E[key].norm(), zero


def scaled_embeddings(W_E, query, key):
    """You read along the embeddings, scaled to 1 at the token. They are not orthogonal; solve for 0 at the others."""
    zero = W_E.new_zeros(())
    return W_E[query] / W_E[query].square().sum(), zero, W_E[key] / W_E[key].square().sum(), zero


def query_always(W_E, query, key):
    """The query side is 1 at all tokens. It has to be 1 at one token and 0 at the others."""
    return *reader(W_E, query, elsewhere=1.0), *reader(W_E, key)


def query_bias_dropped(W_E, query, key):
    """The bias of the query side is solved for and not returned. With it the side is 0 at the other tokens."""
    (W_GQ, b_GQ), (W_GK, b_GK) = reader(W_E, query), reader(W_E, key)
    return W_GQ, 0 * b_GQ, W_GK, b_GK


def key_bias_dropped(W_E, query, key):
    """The bias of the key side is solved for and not returned. With it the side is 0 at the other tokens."""
    (W_GQ, b_GQ), (W_GK, b_GK) = reader(W_E, query), reader(W_E, key)
    return W_GQ, b_GQ, W_GK, 0 * b_GK


EXERCISE = Exercise(
    name="one_pair_gate",
    title="a gate for one pair",
    section="5-superposition/the-gated-block#a-gate-in-four-lines",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("query token", "key token"),
    mistakes=(
        exchanged, query_twice, key_twice, signs, key_always, biases_dropped,
        biases_of_wrong_sign, no_bias, rows_of_the_inverse, ones_in_front, embeddings,
        unit_embeddings, scaled_embeddings, query_always, query_bias_dropped, key_bias_dropped,
    ),
)  # fmt: skip


def check_one_pair_gate(answer: Any) -> Result:
    """Check that `answer(W_E, query, key)` returns `W_GQ, b_GQ, W_GK, b_GK` of a gate that opens for one pair only.

    The gate is cut off at 0 and 1. It has to be 1 when token `query` attends to token `key`, and 0 for all other pairs.

    Parameters
    ----------
    answer : function of `W_E [vocab, d_model]` with `vocab = d_model + 1`, and two tokens. `W_GQ` and `W_GK` are
        `[d_model]`, `b_GQ` and `b_GK` are numbers.

    Source: this book.
    """
    return check(EXERCISE, answer)
