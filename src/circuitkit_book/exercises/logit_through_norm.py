"""Exercise 1.2. `answer(parts, gain, W_U, token, eps)` splits the logit that is read through a LayerNorm.

**Shapes**: `parts [component, d_model]`, `gain [d_model]`, `W_U [d_model, vocab]`, `token` an integer, `eps` the
number added to the variance; the result is `[component]`. The norm's bias is zero here.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks, normal


def spec(parts: Tensor, gain: Tensor, W_U: Tensor, token: int, eps: float) -> Tensor:
    components, d_model = parts.shape
    total = [sum(parts[c, i] for c in range(components)) for i in range(d_model)]
    mean = sum(total) / d_model
    scale = (sum((number - mean) ** 2 for number in total) / d_model + eps) ** 0.5
    out = torch.zeros(components, dtype=torch.float64)
    for c in range(components):
        own = sum(parts[c]) / d_model
        for i in range(d_model):
            out[c] += (parts[c, i] - own) / scale * gain[i] * W_U[i, token]
    return out


def body(
    parts,
    gain,
    W_U,
    token,
    eps,
    *,
    centre="own",
    scale="var",
    eps_at="inside",
    measure="whole",
    gain_at="after",
    tokens="",
):
    total = parts.sum(0)
    if gain_at == "before":
        parts, total = parts * gain, total * gain
    measured = {"whole": total, "parts": parts, "mean": parts.mean(0), "all": parts.flatten()}[
        measure
    ]
    mean = measured.mean(-1, keepdim=True)
    square = {
        "var": lambda: (measured - mean).square().mean(-1), "sample": lambda: measured.var(-1), "std": lambda: measured.var(-1),
        "sum": lambda: (measured - mean).square().sum(-1), "rms": lambda: measured.square().mean(-1),
        "length": lambda: measured.square().sum(-1),
        "none": lambda: torch.ones_like(mean[..., 0]), "no root": lambda: (measured - mean).square().mean(-1),
    }[scale]()  # fmt: skip
    added = (
        {"inside": eps, "outside": 0.0, "none": 0.0, "squared": eps**2, "minus": -eps}[eps_at]
        if scale != "std"
        else 0.0
    )
    divisor = square + added
    divisor = (
        divisor
        if scale == "no root"
        else torch.ones_like(square)
        if scale == "none"
        else divisor.sqrt()
    )
    divisor = divisor + eps if eps_at == "outside" else divisor
    centred = {
        "own": lambda: parts - parts.mean(1, keepdim=True), "whole": lambda: parts - total.mean(),
        "share": lambda: parts - total.mean() / len(parts), "parts": lambda: parts - parts.mean(0),
        "none": lambda: parts, "gained": lambda: parts - (parts * gain).mean(1, keepdim=True) / gain,
    }[centre]()  # fmt: skip
    scaled = centred / (divisor[:, None] if measure == "parts" else divisor)
    scaled = {
        "after": scaled * gain, "before": scaled, "none": scaled, "plus": scaled * (1 + gain), "added": scaled + gain,
    }[gain_at]  # fmt: skip
    logits = scaled @ W_U
    found = scaled @ W_U[token] if tokens == "row" else logits[:, token]
    return {
        "mean": found - logits.mean(1), "all": logits, "sum": found.sum(), "softmax": logits.softmax(-1)[:, token],
    }.get(tokens, found)  # fmt: skip


EXERCISE = Exercise(
    about="1.2 the same through a LayerNorm | medium | 15 minutes | 01-residual-stream#with-a-norm",
    spec=spec, body=body, axes="component, d_model, vocab", smallest=3,
    inputs={
        "parts": "component d_model", "gain": lambda size, generator, case: normal(generator, size["d_model"]) + 1,
        "W_U": "d_model vocab", "token": "< vocab", "eps": lambda size, generator, case: 0.01 * (1 + size["step"] % 3),
    },
    names=("component",),
    choices="""
    centre = none | the parts are not centred | The norm subtracts the mean over the coordinates, and the mean of a sum is the sum of the means.
    centre = whole | the mean of the whole stream is subtracted from every part | So it is subtracted once for each component. What must you take from each part so that the sum is right?
    centre = share | each part loses an equal share of the mean | The sum comes out right, the parts do not: a part without a mean of its own loses something, too. Whose mean does each part bring along?
    centre = gained | the parts are centred after the gain, not before | The norm centres and divides; the gain multiplies what comes out.
    centre = parts | the mean over the components is subtracted | A LayerNorm knows nothing of components: it averages over the coordinates of one vector.
    scale = sample | the variance is divided by d_model - 1 | torch's var and std are those of a sample unless told otherwise; a LayerNorm divides by d_model.
    scale = sum | the squares are summed, not averaged | A length sums the squares, a variance averages them: a factor of sqrt(d_model) lies between.
    scale = std | it is the plain torch.std | It differs from the model's divisor in two ways: torch.std divides the squares by d_model - 1 unless told otherwise, and eps is missing.
    scale = length / rms | the divisor is taken before centring | A LayerNorm measures the stream after its mean is gone, and averages the squares.
    scale = no root | the variance instead of its root | A stream twice as long has four times the variance. What divides a length out?
    scale = none | nothing is divided | Centring and gain are there, but the divisor is missing: one number, made from the whole sum.
    eps_at = none | eps is forgotten | The model adds a small number to the variance, under the root; without it the parts do not sum to its logit.
    eps_at = outside | eps is added outside of the root | It is added to the variance, before the root is taken.
    eps_at = squared / minus | eps is squared or subtracted | It is added to the variance as it is.
    measure = parts | each part is divided by its own length | The model normalises once, the sum. Which single number does it divide by, for all parts alike?
    measure = mean / all | something else is measured than the sum of the parts | The stream is the sum of the parts, one vector. What does the norm see?
    gain_at = none | the gain is forgotten | After dividing, a LayerNorm multiplies each coordinate by a learned number.
    gain_at = before | the gain comes before the norm | First centre and divide; the gain multiplies what comes out.
    gain_at = plus / added | the gain is added to something, not multiplied as it is | Here the number itself multiplies the coordinate.
    tokens = mean | the mean over the vocabulary is subtracted | That was the exercise before. This time the parts are to sum to the logit itself.
    tokens = row | the token's row of W_U is taken instead of its column | W_U is [d_model, vocab]. Along which axis do the tokens lie?
    tokens = all | the logits of all tokens are returned | Each component has a logit for every token here. Which column is asked for?
    tokens = softmax | a softmax is taken of each part | Logits add up over components; probabilities do not.
    """,
)  # fmt: skip
check_logit_through_norm = checks(EXERCISE, __doc__)
