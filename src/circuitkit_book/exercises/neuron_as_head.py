"""A SiLU neuron as an attention head."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, normal

Matrices = tuple[Any, ...]


def neuron(
    asks: Tensor,
    b_Q: Any,
    reads: Tensor,
    b_V: Any,
    writes: Tensor,
    key: float = -1.0,
    erased: Any = None,
    token_keys: float = 0.0,
) -> Matrices:
    """Return a head from its query, value and output directions; the last coordinate is the bias token's.

    `erased` is what the value row of the bias token takes back, `b_V` unless it is given.
    """
    zero = torch.zeros(1, dtype=asks.dtype)
    back = b_V if erased is None else erased
    W_Q = torch.cat([asks, zero])[:, None]
    W_K = torch.cat([token_keys + 0 * asks, zero + key])[:, None]
    W_V = torch.cat([reads, zero - back])[:, None]
    W_O = torch.cat([writes, zero])[None]
    return W_Q, b_Q, W_K, W_V, b_V, W_O


def solution(w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Matrices:
    """Score 0 at the token and -y at the bias token, so that the token's weight is sigmoid(y); its value is y."""
    return neuron(w_in, b_in, w_in, b_in, w_out)


def observe(answer: Any, w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor:
    """Compute what the head writes on some tokens and on the bias token, which comes first."""
    wide = len(w_in) + 1
    W_Q, b_Q, W_K, W_V, b_V, W_O = built(
        answer, W_Q=(wide, 1), b_Q=(), W_K=(wide, 1), W_V=(wide, 1), b_V=(), W_O=(1, wide)
    )
    tokens = normal(Generator().manual_seed(4), wide + 1, wide - 1)
    stream = torch.zeros(len(tokens) + 1, wide, dtype=torch.float64)
    stream[0, -1], stream[1:, :-1] = 1.0, tokens
    scores = (stream @ W_Q + b_Q) @ (stream @ W_K).T
    seen = torch.eye(len(stream), dtype=torch.bool)
    seen[:, 0] = True
    pattern = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return pattern @ (stream @ W_V + b_V) @ W_O


def cases(generator: Generator) -> Iterator[Case]:
    """Random neurons with biases of both signs."""
    for d_model, sign in [(2, 1), (3, -1), (4, 1), (6, -1), (7, 1)]:
        yield {
            "w_in": normal(generator, d_model),
            "b_in": sign * (0.5 + normal(generator, 1)[0].abs()),
            "w_out": normal(generator, d_model),
        }


def key_of_wrong_sign(w_in, b_in, w_out):
    """The key has the wrong sign, so the neuron is on where it should be off. If x is large, which position must lose?"""
    return neuron(w_in, b_in, w_in, b_in, w_out, key=1.0)


def keys_are_zero(w_in, b_in, w_out):
    """All keys are 0, so each position gets one half. Which key has to differ?"""
    return neuron(w_in, b_in, w_in, b_in, w_out, key=0.0)


def key_of_the_paper(w_in, b_in, w_out):
    """The key has the paper's factor sqrt(D + 1). Here scores are divided by sqrt(d_head), which is 1."""
    return neuron(w_in, b_in, w_in, b_in, w_out, key=-((len(w_in) + 1) ** 0.5))


def key_too_large(w_in, b_in, w_out):
    """The key of the bias token is too large. The difference of the two scores has to be y itself."""
    return neuron(w_in, b_in, w_in, b_in, w_out, key=-1000.0)


def query_without_bias(w_in, b_in, w_out):
    """The query leaves b_in out. The neuron reads x w_in + b_in."""
    return neuron(w_in, 0.0, w_in, b_in, w_out)


def value_without_bias(w_in, b_in, w_out):
    """The value leaves b_in out. SiLU(y) is sigmoid(y) times y, and y contains b_in."""
    return neuron(w_in, b_in, w_in, 0.0, w_out)


def no_biases(w_in, b_in, w_out):
    """b_in is missing from the query and from the value. The neuron reads x w_in + b_in."""
    return neuron(w_in, 0.0, w_in, 0.0, w_out)


def value_is_1(w_in, b_in, w_out):
    """The value is 1, so the head writes sigmoid(y). A SiLU neuron multiplies it by y."""
    return neuron(w_in, b_in, 0 * w_in, 1.0, w_out)


def bias_token_has_a_value(w_in, b_in, w_out):
    """The bias token has a value, because b_V is added there, too. Which row of W_V can take it back?"""
    return neuron(w_in, b_in, w_in, b_in, w_out, erased=0.0)


def bias_value_doubled(w_in, b_in, w_out):
    """The value of the bias token is doubled instead of taken back. Mind the sign in the last row of W_V."""
    return neuron(w_in, b_in, w_in, b_in, w_out, erased=-b_in)


def biases_in_the_rows(w_in, b_in, w_out):
    """b_in is in the last row of W_V, and b_V is 0. Only the bias token reads that row, but the tokens need b_in."""
    return neuron(w_in, b_in, w_in, 0.0, w_out, erased=-b_in)


def all_biases_in_the_rows(w_in, b_in, w_out):
    """b_in is in the last rows of W_Q and W_V. Only the bias token reads them, but the tokens need b_in."""
    W_Q, _, W_K, W_V, _, W_O = neuron(w_in, 0.0, w_in, 0.0, w_out, erased=-b_in)
    W_Q[-1] = b_in
    return W_Q, 0.0, W_K, W_V, 0.0, W_O


def output_with_w_in(w_in, b_in, w_out):
    """The head writes with w_in. A neuron reads with w_in and writes with w_out."""
    return neuron(w_in, b_in, w_in, b_in, w_in)


def bias_coordinate_written(w_in, b_in, w_out):
    """The head writes into the bias coordinate, so the next layer would take tokens for bias tokens. Its last entry has to be 0."""
    *rest, W_O = solution(w_in, b_in, w_out)
    W_O[0, -1] = 1.0
    return *rest, W_O


def bias_coordinate_first(w_in, b_in, w_out):
    """You take the bias coordinate to be the first. It is the last; the bias token is the first position."""
    W_Q, b_Q, W_K, W_V, b_V, W_O = solution(w_in, b_in, w_out)
    return W_Q.roll(1, 0), b_Q, W_K.roll(1, 0), W_V.roll(1, 0), b_V, W_O.roll(1, 1)


def one_taken_back(w_in, b_in, w_out):
    """The last row of W_V takes back 1 at the bias token. It has to take back b_V, which is added there."""
    return neuron(w_in, b_in, w_in, b_in, w_out, erased=1.0)


EXERCISE = Exercise(
    name="neuron_as_head",
    title="a neuron as a head, by hand",
    section="4-mlps-as-heads/a-neuron-is-a-head#only-two-vectors-for-each-neuron",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("position", "coordinate"),
    mistakes=(
        key_of_wrong_sign, keys_are_zero, key_of_the_paper, key_too_large, query_without_bias,
        value_without_bias, no_biases, value_is_1, bias_token_has_a_value, bias_value_doubled,
        biases_in_the_rows, all_biases_in_the_rows, output_with_w_in, bias_coordinate_written,
        bias_coordinate_first, one_taken_back,
    ),
)  # fmt: skip


def check_neuron_as_head(answer: Any) -> Result:
    r"""Check that `answer(w_in, b_in, w_out)` returns `W_Q, b_Q, W_K, W_V, b_V, W_O` of the head that is a SiLU neuron.

    The stream has one more coordinate, the last, which is 1 at position 0 (the bias token, 0 elsewhere) and 0 at the
    tokens. The head attends to itself and to position 0. It has to write $\\mathrm{SiLU}(x w_{in} + b_{in}) w_{out}$ at
    a token and 0 at the bias token.

    Parameters
    ----------
    answer : function of `w_in` and `w_out [d_model]` and the number `b_in`. `W_Q`, `W_K` and `W_V` are
        `[d_model + 1, 1]`, `W_O` is `[1, d_model + 1]`, and `b_Q` and `b_V` are numbers.

    Source: Huben and Morris 2023, "Attention-Only Transformers and Implementing MLPs with Attention Heads".
    """
    return check(EXERCISE, answer)
