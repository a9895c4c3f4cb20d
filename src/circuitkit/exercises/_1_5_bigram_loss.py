"""Exercise 1.5, the loss of a bigram table."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check


def spec(tokens: Tensor, W_E: Tensor, W_U: Tensor) -> Tensor:
    out = torch.zeros(len(tokens) - 1, dtype=torch.float64)
    for place in range(len(tokens) - 1):
        logits = [torch.dot(W_E[tokens[place]], W_U[:, word]) for word in range(W_U.shape[1])]
        chance = torch.exp(logits[int(tokens[place + 1])]) / sum(torch.exp(logit) for logit in logits)
        out[place] = -torch.log(chance)
    return out


def body(tokens, W_E, W_U, *, chance="log", axis=-1, shift="next", sign=-1, table=False, reduce="", scale=False):
    logits = W_E @ W_U / (W_E.shape[1] ** 0.5 if scale else 1)
    scores = {
        "log": logits.log_softmax(axis), "logits": logits, "chances": logits.softmax(axis),
        "bits": logits.log_softmax(axis) / math.log(2), "one minus": 1 - logits.softmax(axis),
        "exp only": logits.exp(),
    }[chance]  # fmt: skip
    now, following = {
        "next": (tokens[:-1], tokens[1:]), "current": (tokens[:-1], tokens[:-1]), "itself": (tokens, tokens),
        "itself next": (tokens[1:], tokens[1:]), "backwards": (tokens[1:], tokens[:-1]),
        "wrap": (tokens, tokens.roll(-1)), "wrap back": (tokens, tokens.roll(1)), "two on": (tokens[:-2], tokens[2:]),
        "first": (tokens[:1].expand(len(tokens) - 1), tokens[1:]),
        "places": (torch.arange(len(tokens) - 1).clamp_max(len(W_E) - 1), tokens[1:]),
    }[shift]  # fmt: skip
    found = sign * (scores[now][:, following] if table else scores[now, following])
    return found.mean() if reduce == "mean" else found.sum() if reduce == "sum" else found


EXERCISE = Exercise(
    about="1.5 the loss of a bigram table | easy | 10 minutes | 01-residual-stream#a-model-with-no-layers-is-a-table",
    spec=spec, body=body, axes="pos, vocab, d_model", smallest=3,
    inputs={"tokens": "pos < vocab", "W_E": "vocab d_model", "W_U": "d_model vocab"},
    names=("prediction",),
    choices="""
    chance
        logits | logits are taken for log-probabilities | Scores become chances only when they are compared with those of all other tokens.
        chances | probabilities without the logarithm | These are the chances of the right tokens. The loss, in nats, is a logarithm away.
        bits | the loss is in bits | The losses of this book are in nats: the natural logarithm.
        one minus | the loss is taken as 1 minus the probability | The loss is a logarithm: it grows without end as the probability goes to 0.
        exp only | the exponentials are not divided by their sum | Chances sum to 1 over the vocabulary.
    axis = 0 | the softmax runs over current tokens | For each current token the chances of all next tokens sum to 1. Which axis is that?
    shift
        current | the current token is scored instead of the next | The row of a token scores what comes after it. Is something shifted by one?
        itself | each token is scored on itself | The row of a token scores what comes after it, so rows and columns have to be one place apart.
        itself next | each next token is scored on itself | The targets are right. The rows have to be those of the tokens before them.
        backwards | the table is read backwards | Rows are current tokens, columns next tokens. This is how well each token explains the one before it.
        wrap | the last token wraps around to the first | After the last token nothing is known: n tokens make n - 1 predictions.
        wrap back | each token is scored on the one before it, wrapped around | The row of a token scores what comes after it, and n tokens make n - 1 predictions.
        two on | the token after the next is scored | Rows and columns have to be one place apart, not two.
        first | every prediction is made from the first token | Each place has a current token of its own.
        places | positions are taken for tokens | The table is indexed by token numbers: what stands at that place?
    sign = 1 | the sign is missing | A loss is never negative: it is small when the right token was likely.
    table = True | every token is paired with every next one | Two index tensors in one pair of brackets pick entries one by one; one after the other they pick whole rows and columns.
    reduce
        mean | the mean instead of one loss for each prediction | Return the losses one by one, so that one can see where the table does badly.
        sum | the sum instead of one loss for each prediction | Return the losses one by one, so that one can see where the table does badly.
    scale = True | the logits are divided by sqrt(d_model) | Only attention scores are scaled; logits are read as they are.
    """,
)  # fmt: skip


def check_bigram_loss(answer) -> Result:
    """Exercise 1.5. `answer(tokens, W_E, W_U)` returns the loss of each prediction of a model without layers, in nats.

    **Shapes**: `tokens [pos]`, `W_E [vocab, d_model]`, `W_U [d_model, vocab]`; the result is `[pos - 1]`. There are no
    positions and no norm: the stream is `W_E[tokens]`.
    """
    return check(EXERCISE, answer)
