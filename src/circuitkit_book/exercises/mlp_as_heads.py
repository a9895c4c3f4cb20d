"""An MLP as the sum of its neurons' heads."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator
from torch.nn.functional import silu

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, normal


def solution(x, W_in, b_in, W_out, b_out, terms):
    """Sum the heads of all neurons, term by term, and add the output bias once."""
    reads = x @ W_in + b_in  # [pos, neuron]
    gathered = torch.zeros_like(reads)
    for b, c, a, d in terms:
        gathered += torch.sigmoid(b * reads + c) * (a * reads + d)
    return gathered @ W_out + b_out


def cases(generator: Generator) -> Iterator[Case]:
    """Random layers and random terms."""
    for pos, d_model, d_mlp, k in [
        (2, 3, 4, 2),
        (3, 4, 5, 2),
        (4, 2, 6, 3),
        (5, 7, 3, 4),
        (4, 4, 4, 4),
    ]:
        yield {
            "x": normal(generator, pos, d_model),
            "W_in": normal(generator, d_model, d_mlp),
            "b_in": normal(generator, d_mlp),
            "W_out": normal(generator, d_mlp, d_model),
            "b_out": normal(generator, d_model),
            "terms": normal(generator, k, 4),
        }


def sum_of_heads(head, x, W_in, b_in, W_out, b_out, terms):
    """Return the layer in which a head of a neuron writes `head(reads, b, c, a, d)`."""
    reads = x @ W_in + b_in
    return sum(head(reads, *term) for term in terms) @ W_out + b_out


def no_output_bias(x, W_in, b_in, W_out, b_out, terms):
    """b_out is missing. No head adds it, so add it at the end."""
    return solution(x, W_in, b_in, W_out, 0 * b_out, terms)


def output_bias_for_each_term(x, W_in, b_in, W_out, b_out, terms):
    """You add b_out for each term. It belongs to the layer, so add it once."""
    return solution(x, W_in, b_in, W_out, len(terms) * b_out, terms)


def no_input_bias(x, W_in, b_in, W_out, b_out, terms):
    """b_in is missing. A neuron reads x W_in + b_in."""
    return solution(x, W_in, 0 * b_in, W_out, b_out, terms)


def queries_without_bias(x, W_in, b_in, W_out, b_out, terms):
    """The attention leaves b_in out. Attention and value both use x W_in + b_in."""
    b, c, a, d = terms.T
    y, reads = (x @ W_in)[..., None], (x @ W_in + b_in)[..., None]
    return (torch.sigmoid(b * y + c) * (a * reads + d)).sum(-1) @ W_out + b_out


def values_without_bias(x, W_in, b_in, W_out, b_out, terms):
    """The value leaves b_in out. Attention and value both use x W_in + b_in."""
    b, c, a, d = terms.T
    y, reads = (x @ W_in)[..., None], (x @ W_in + b_in)[..., None]
    return (torch.sigmoid(b * reads + c) * (a * y + d)).sum(-1) @ W_out + b_out


def no_c(*inputs):
    """The offset c is missing. The score is b y + c."""
    return sum_of_heads(lambda y, b, c, a, d: torch.sigmoid(b * y) * (a * y + d), *inputs)


def no_d(*inputs):
    """The offset d is missing. The value is a y + d."""
    return sum_of_heads(lambda y, b, c, a, d: torch.sigmoid(b * y + c) * a * y, *inputs)


def d_outside(*inputs):
    """You add d outside of the attention. Put brackets around the value: weight * (a y + d)."""
    return sum_of_heads(lambda y, b, c, a, d: torch.sigmoid(b * y + c) * a * y + d, *inputs)


def d_inside_a(*inputs):
    """Your value is a (y + d). It has to be a y + d."""
    return sum_of_heads(lambda y, b, c, a, d: torch.sigmoid(b * y + c) * a * (y + d), *inputs)


def c_inside_b(*inputs):
    """Your score is b (y + c). It has to be b y + c."""
    return sum_of_heads(lambda y, b, c, a, d: torch.sigmoid(b * (y + c)) * (a * y + d), *inputs)


def no_sigmoid(*inputs):
    """The sigmoid is missing. The score is not yet a weight."""
    return sum_of_heads(lambda y, b, c, a, d: (b * y + c) * (a * y + d), *inputs)


def reordered(x, W_in, b_in, W_out, b_out, terms, order):
    """Return the layer when the columns of terms are read in another order."""
    return solution(x, W_in, b_in, W_out, b_out, terms[:, order])


def alphabetical(*inputs):
    """You read the columns of terms as a, b, c, d. They are b, c (of the score), a, d (of the value)."""
    return reordered(*inputs, order=[1, 2, 0, 3])


def slopes_first(*inputs):
    """You read the columns of terms as b, a, c, d. They are b, c (of the score), a, d (of the value)."""
    return reordered(*inputs, order=[0, 2, 1, 3])


def value_first(*inputs):
    """You read the columns of terms as a, d, b, c. They are b, c (of the score), a, d (of the value)."""
    return reordered(*inputs, order=[2, 3, 0, 1])


def offsets_first(*inputs):
    """You read the columns of terms as c, b, d, a. The slopes come first: b, c (of the score), a, d (of the value)."""
    return reordered(*inputs, order=[1, 0, 3, 2])


def first_term_only(x, W_in, b_in, W_out, b_out, terms):
    """Only the first term is used. Is your `return` inside the loop?"""
    return solution(x, W_in, b_in, W_out, b_out, terms[:1])


def last_term_only(x, W_in, b_in, W_out, b_out, terms):
    """Only the last term is used. Does your loop overwrite the sum? Use +=."""
    return solution(x, W_in, b_in, W_out, b_out, terms[-1:])


def one_after_another(x, W_in, b_in, W_out, b_out, terms):
    """You apply the terms one after another. Each head reads y itself, and their outputs add up."""
    y = x @ W_in + b_in
    for b, c, a, d in terms:
        y = torch.sigmoid(b * y + c) * (a * y + d)
    return y @ W_out + b_out


def only_silu(x, W_in, b_in, W_out, b_out, terms):
    """You compute a SiLU layer. The rows of terms say which heads there are."""
    return silu(x @ W_in + b_in) @ W_out + b_out


def not_written(x, W_in, b_in, W_out, b_out, terms):
    """You return one number for each neuron. Multiply by W_out and add b_out."""
    eye = torch.eye(len(b_in), dtype=x.dtype)
    return solution(x, W_in, b_in, eye, 0 * b_in, terms)


def silu_for_sigmoid(*inputs):
    """Your weight is SiLU(b y + c). The attention weight of a head is a sigmoid."""
    return sum_of_heads(lambda y, b, c, a, d: silu(b * y + c) * (a * y + d), *inputs)


def terms_averaged(x, W_in, b_in, W_out, b_out, terms):
    """You average the terms. The heads of a neuron add up."""
    summed = solution(x, W_in, b_in, W_out, 0 * b_out, terms)
    return summed / len(terms) + b_out


def sigmoid_of_y(*inputs):
    """Your weight is sigmoid(y) in every term. Each term has a score of its own: sigmoid(b y + c)."""
    return sum_of_heads(lambda y, b, c, a, d: torch.sigmoid(y) * (a * y + d), *inputs)


EXERCISE = Exercise(
    name="mlp_as_heads",
    title="an MLP as a sum of heads",
    section="4-mlps-as-heads/activations#several-heads-for-one-neuron",
    solution=solution,
    cases=cases,
    axes=("position", "coordinate"),
    mistakes=(
        no_output_bias, output_bias_for_each_term, no_input_bias, queries_without_bias,
        values_without_bias, no_c, no_d, d_outside, d_inside_a, c_inside_b, no_sigmoid,
        alphabetical, slopes_first, value_first, offsets_first, first_term_only, last_term_only,
        one_after_another, only_silu, not_written, silu_for_sigmoid, terms_averaged,
        sigmoid_of_y,
    ),
)  # fmt: skip


def check_mlp_as_heads(answer: Any) -> Result:
    r"""Check that `answer(x, W_in, b_in, W_out, b_out, terms)` returns the MLP as the sum of its neurons' heads.

    A row $(b, c, a, d)$ of `terms` is one head of every neuron. If the neuron reads $y$, the head attends to itself
    with weight $\\sigma(by + c)$ and its value there is $ay + d$.

    Parameters
    ----------
    answer : function of `x [pos, d_model]`, `W_in [d_model, d_mlp]`, `b_in [d_mlp]`, `W_out [d_mlp, d_model]`,
        `b_out [d_model]` and `terms [k, 4]`. It returns `[pos, d_model]`.

    Source: this book.
    """
    return check(EXERCISE, answer)
