"""The pattern of a head whose keys do not read an earlier head."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal


def solution(x: Tensor, r: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    """Take r out of what the keys read; attend to positions up to the destination."""
    queries, keys = x @ W_Q, (x - r) @ W_K
    pattern = torch.zeros(len(x), len(x), dtype=x.dtype)  # [dst, src]
    for dst in range(len(x)):
        scores = keys[: dst + 1] @ queries[dst] / W_Q.shape[1] ** 0.5
        pattern[dst, : dst + 1] = scores.softmax(0)
    return pattern


def cases(generator: Generator) -> Iterator[Case]:
    """Random streams and matrices."""
    for pos, d_model, d_head in [(3, 4, 2), (4, 5, 3), (6, 4, 2), (5, 7, 4), (4, 4, 4)]:
        yield {
            "x": normal(generator, pos, d_model),
            "r": normal(generator, pos, d_model),
            "W_Q": normal(generator, d_model, d_head),
            "W_K": normal(generator, d_model, d_head),
        }


def scaled_scores(x, r, W_Q, W_K):
    """Return the right scores before the mask."""
    return (x @ W_Q) @ ((x - r) @ W_K).T / W_Q.shape[1] ** 0.5


def future(scores):
    """Return where a source is later than its destination."""
    return torch.ones_like(scores).triu(1).bool()


def attend(scores):
    """Return the causal pattern of scores."""
    return scores.masked_fill(future(scores), -torch.inf).softmax(-1)


def nothing_cut(x, r, W_Q, W_K):
    """Nothing is cut: this is the pattern of the whole model. What do the keys read without r?"""
    return solution(x, 0 * r, W_Q, W_K)


def keys_read_r(x, r, W_Q, W_K):
    """Your keys read r alone. Take r out of the stream."""
    return solution(x, x - r, W_Q, W_K)


def queries_cut_too(x, r, W_Q, W_K):
    """Your queries do not read r either. Only the keys have to lose it."""
    return solution(x - r, 0 * r, W_Q, W_K)


def queries_cut_instead(x, r, W_Q, W_K):
    """You cut the wire into the queries. The source's keys have to lose r, and the queries keep it."""
    return attend(((x - r) @ W_Q) @ (x @ W_K).T / W_Q.shape[1] ** 0.5)


def queries_and_keys_exchanged(x, r, W_Q, W_K):
    """Queries and keys are exchanged. Rows are destinations, and a destination uses W_Q."""
    keys = (x - r) @ W_K
    return attend(keys @ (x @ W_Q).T / W_Q.shape[1] ** 0.5)


def matrices_exchanged(x, r, W_Q, W_K):
    """W_Q and W_K are exchanged. A destination uses W_Q, and a source uses W_K."""
    return solution(x, r, W_K, W_Q)


def cut_after_softmax(x, r, W_Q, W_K):
    """You subtract patterns. The softmax is not linear, so r has to go before it."""
    return nothing_cut(x, r, W_Q, W_K) - keys_read_r(x, r, W_Q, W_K)


def not_divided(x, r, W_Q, W_K):
    """The scores are not divided by sqrt(d_head)."""
    return solution(x, r, W_Q * W_Q.shape[1] ** 0.5, W_K)


def divided_by_root_of_d_model(x, r, W_Q, W_K):
    """You divide the scores by sqrt(d_model). A query has d_head numbers, so divide by sqrt(d_head)."""
    return solution(x, r, W_Q * (W_Q.shape[1] / W_Q.shape[0]) ** 0.5, W_K)


def divided_by_d_head(x, r, W_Q, W_K):
    """You divide the scores by d_head. Divide by its square root."""
    return solution(x, r, W_Q / W_Q.shape[1] ** 0.5, W_K)


def no_mask(x, r, W_Q, W_K):
    """Your attention looks at later tokens: entries above the diagonal must be 0. Is the causal mask missing?"""
    return scaled_scores(x, r, W_Q, W_K).softmax(-1)


def keys_not_transposed(x, r, W_Q, W_K):
    """You multiply queries and keys without a transpose. The scores are the queries times the transposed keys."""
    return attend((x @ W_Q) @ ((x - r) @ W_K) / W_Q.shape[1] ** 0.5)


def mask_after_softmax(x, r, W_Q, W_K):
    """You mask after the softmax, so the rows do not sum to 1. Mask the scores with -inf before it."""
    return scaled_scores(x, r, W_Q, W_K).softmax(-1).tril()


def masked_with_zero(x, r, W_Q, W_K):
    """You mask scores with 0. exp(0) is 1, so later tokens still get attention; use -inf."""
    return scaled_scores(x, r, W_Q, W_K).tril().softmax(-1)


def diagonal_masked(x, r, W_Q, W_K):
    """Your mask hides the destination itself, so the first row has nothing left. Use triu(1), not triu(0)."""
    scores = scaled_scores(x, r, W_Q, W_K)
    return scores.masked_fill(torch.ones_like(scores).triu().bool(), -torch.inf).softmax(-1)


def softmax_over_destinations(x, r, W_Q, W_K):
    """Your softmax runs over destinations. Each destination distributes its attention, so rows have to sum to 1."""
    scores = scaled_scores(x, r, W_Q, W_K)
    return scores.masked_fill(future(scores), -torch.inf).softmax(0)


def past_masked(x, r, W_Q, W_K):
    """Your mask hides earlier tokens instead of later ones. Mask where the source is later than the destination."""
    scores = scaled_scores(x, r, W_Q, W_K)
    return scores.masked_fill(future(scores).T, -torch.inf).softmax(-1)


def no_softmax(x, r, W_Q, W_K):
    """The softmax is missing: these are masked scores. A pattern is the softmax of each row of scores."""
    scores = scaled_scores(x, r, W_Q, W_K)
    return scores.masked_fill(future(scores), -torch.inf)


EXERCISE = Exercise(
    name="cut_wire",
    title="cut one wire",
    section="3-induction-heads/induction-in-a-trained-model#cut-one-wire",
    solution=solution,
    cases=cases,
    axes=("destination", "source"),
    mistakes=(
        nothing_cut, keys_read_r, queries_cut_too, queries_cut_instead,
        queries_and_keys_exchanged, matrices_exchanged, cut_after_softmax, not_divided,
        divided_by_root_of_d_model, divided_by_d_head, no_mask, keys_not_transposed,
        mask_after_softmax, masked_with_zero, diagonal_masked, softmax_over_destinations,
        past_masked, no_softmax,
    ),
)  # fmt: skip


def check_cut_wire(answer: Any) -> Result:
    """Check that `answer(x, r, W_Q, W_K)` returns a head's causal pattern when its keys do not read `r`.

    Parameters
    ----------
    answer : function of the stream `x [pos, d_model]`, which contains `r [pos, d_model]`, the output of an earlier
        head, and `W_Q` and `W_K [d_model, d_head]`. The queries still read all of `x`. It returns
        `[destination, source]`.

    Source: this book.
    """
    return check(EXERCISE, answer)
