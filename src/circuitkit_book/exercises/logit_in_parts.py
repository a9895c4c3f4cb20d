"""Exercise 1.1. `answer(parts, W_U, token)` returns what each component adds to the token's logit above the mean.

**Shapes**: `parts [component, d_model]` at one position, `W_U [d_model, vocab]`, `token` an integer; the result is
`[component]`. The mean is taken over the vocabulary.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks


def spec(parts: Tensor, W_U: Tensor, token: int) -> Tensor:
    out = torch.zeros(parts.shape[0], dtype=torch.float64)
    for component, part in enumerate(parts):
        logits = [torch.dot(part, W_U[:, word]) for word in range(W_U.shape[1])]
        out[component] = logits[token] - sum(logits) / len(logits)
    return out


def body(parts, W_U, token, *, reference="vocab", column="column", form="logits"):
    logits = parts @ (W_U if column != "transposed" else W_U.mT)
    own = parts @ W_U[token] if column == "row" else logits[:, token]
    if form in ("softmax", "log_softmax", "softmax, mean"):
        logits = logits.softmax(-1) if form != "log_softmax" else logits.log_softmax(-1)
        own, reference = (
            logits[:, token],
            "none" if reference == "vocab" and form != "softmax, mean" else reference,
        )
    average = {
        "vocab": lambda: logits.mean(1), "added": lambda: -logits.mean(1), "none": lambda: 0 * own,
        "components": lambda: own.mean(), "others": lambda: (logits.sum(1) - own) / (W_U.shape[1] - 1),
        "dims": lambda: parts @ W_U.mean(0), "entries": lambda: parts @ W_U.mean().expand(W_U.shape[0]),
        "whole": lambda: logits.sum(0).mean(), "share": lambda: logits.sum(0).mean() / len(parts),
        "sum": lambda: logits.sum(1), "max": lambda: logits.max(1).values, "stream": lambda: parts.mean(1), "axis": lambda: parts.sum(1) * W_U[:, token].mean(),
    }[reference]()  # fmt: skip
    found = own - average
    if form == "all":
        return logits - logits.mean(1, keepdim=True) if reference == "vocab" else logits
    return found


EXERCISE = Exercise(
    about="1.1 a logit in parts | easy | 10 minutes | 01-residual-stream#the-stream-is-a-sum",
    spec=spec, body=body, axes="component, d_model, vocab",
    inputs={"parts": "component d_model", "W_U": "d_model vocab", "token": "< vocab"},
    names=("component",),
    choices="""
    reference = none | the mean over the vocabulary is not subtracted | A component that raises all logits alike says nothing about this token. What does it add to an average one?
    reference = added | the mean over the vocabulary is added, not subtracted | Above the mean: what is left of a logit when the mean is taken away?
    reference = components | the mean over the components is subtracted | Compare tokens, not components: each part is held against what the same part gives to the average token.
    reference = others | the token is left out of the mean | The reference is the mean over the whole vocabulary, the token itself included.
    reference = dims / entries / stream / axis | another mean is subtracted than that over the vocabulary | Nothing is averaged in the stream or in W_U as a whole: first read logits from the part, then compare tokens.
    reference = whole | the mean logit of the whole stream is subtracted from every part | Then it is subtracted once for each component. Which mean belongs to one part?
    reference = share | each part loses an equal share of the mean | The sum comes out right, the parts do not: a component brings its own mean along.
    reference = sum | the sum over the vocabulary is subtracted, not the mean | The reference is an average token. What is the sum divided by?
    reference = max | the largest logit is subtracted, not the mean | The reference is the average token, not the best one.
    column = transposed / row | a row of W_U is taken instead of a column | W_U is [d_model, vocab]. Along which axis do the tokens lie?
    form = softmax / softmax, mean | a softmax is taken of each part | Logits add up over components; probabilities do not. Stay with logits.
    form = log_softmax | a log-softmax is taken of each part | The logarithm of the normaliser does not split into components. The plain mean over the vocabulary does.
    form = all | the logits of all tokens are returned | Each component has a logit for every token here. Which column is asked for?
    """,
)  # fmt: skip
check_logit_in_parts = checks(EXERCISE, __doc__)
