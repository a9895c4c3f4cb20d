"""Exercise 4.1, the two weights of a neuron."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(x: Tensor) -> Tensor:
    rows = []
    for value in x.tolist():
        itself, bias = math.exp(0.0), math.exp(-value)
        rows.append([itself / (itself + bias), bias / (itself + bias)])
    return torch.tensor(rows, dtype=torch.float64)


def body(x, *, itself=0.0, bias=-1.0, shares="softmax", axis=-1, columns="both", scale=1.0, turned=False):
    scores = torch.stack([itself * x, bias * x], -1) * scale
    found = {
        "softmax": lambda: scores.softmax(axis), "none": lambda: scores, "exp": lambda: scores.exp(),
        "sigmoid": lambda: scores.sigmoid(), "log": lambda: scores.log_softmax(-1),
        "linear": lambda: scores / scores.sum(-1, keepdim=True),
    }[shares]()  # fmt: skip
    a, b = found.unbind(-1)
    first, second = {
        "both": (a, b), "exchanged": (b, a), "bias twice": (b, b), "itself twice": (a, a), "written": (x * a, b),
        "both written": (x * a, x * b), "rest of 1": (a, a - 1),
    }[columns]  # fmt: skip
    found = torch.stack([first, second], -1)
    return {"first": found[..., 0], "second": found[..., 1]}.get(str(turned), found.mT if turned else found)


EXERCISE = Exercise(
    about="4.1 the two weights of a neuron | easy | 5 minutes | 04-mlps-as-attention#one-neuron-is-one-head",
    spec=spec, body=body,
    inputs={"x": lambda size, generator, case: 2 * normal(generator, 3 + size["step"])},
    names=("token", "place"),
    choices="""
    bias = 0.0 | both scores are 0 | The score of the bias token is -x.
    itself = 1.0 | the scores stand 2x apart (x and -x, for instance) | Only the difference of two scores counts, and here it is 2x. Which of the two scores has to be 0?
    columns
        exchanged | the two weights are exchanged | A neuron that reads a large positive number is on: where should it look? The paper's sketch of the proof has this slip, too: the score -x belongs to the bias token.
        bias twice | both columns hold the weight on the bias token | 1 - sigmoid(x) and sigmoid(-x) are two names of one number; the post has this slip in print. The weights of a row sum to 1.
        itself twice | both columns hold the weight on itself | The weights of a row sum to 1.
        written | the first column is what the head writes | Asked are the weights. What the head writes is the weight times the value, one step later.
        both written | both columns are multiplied by x | Asked are the weights. What the head writes is the weight times the value, one step later.
        rest of 1 | the second column is negative | The weights of a row sum to 1: what is left of 1?
    axis = 0 | the softmax runs over the tokens | Each token shares out its own attention, among two places. Over which axis do the weights sum to 1?
    shares
        none | these are the scores, without the softmax | The scores are right. Attention is what the softmax makes of them.
        exp | the exponentials are not divided by their sum | The weights of a row sum to 1.
        sigmoid | each score goes through a sigmoid of its own | Two scores compete in one softmax: only their difference counts.
        log | the logarithm of the softmax is returned | Weights lie between 0 and 1.
        linear | the scores are divided by their sum, without exp | A softmax takes the exponential first.
    scale
        0.7071067811865476 | the scores are divided by sqrt(2) | The root that heads divide by is that of d_head, not of the number of keys. What is d_head here?
        1.702 | the scores are multiplied by 1.702 | That number belongs to GELU; here the neuron is SiLU.
    turned
        True | places stand in rows, tokens in columns | The result is [token, 2].
        first | only the weight on itself is returned | Return both, side by side.
        second | only the weight on the bias token is returned | Return both, side by side.
    """,
)  # fmt: skip


def check_two_weights(answer) -> Result:
    """Exercise 4.1. `answer(x)` returns how a neuron-head shares its attention, `[token, 2]`: itself, bias token.

    **Shapes**: `x [token]` is what the neuron reads at each token, before its activation.
    """
    return check(EXERCISE, answer)
