"""Exercise 4.6. `answer(d_model)` returns the gain with which RMSNorm keeps the bias token.

**Shapes**: the result is `[d_model + 1]`. With it $\\mathrm{RMSNorm}(X \\oplus [1])$, taken over all `d_model + 1`
coordinates, equals $\\mathrm{RMSNorm}(X) \\oplus [1]$.
"""

import math

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks, normal


def spec(d_model: int) -> Tensor:
    x = _some_rows(d_model)
    wanted = torch.zeros(len(x) + 1, d_model + 1, dtype=torch.float64)
    for pos in range(len(x)):
        length = math.sqrt(sum(float(v) ** 2 for v in x[pos]) / d_model)
        for i in range(d_model):
            wanted[pos, i] = x[pos, i] / length
    wanted[-1, -1] = 1.0
    return wanted


def _some_rows(d_model: int) -> Tensor:
    return normal(torch.Generator().manual_seed(5), 3, d_model)


def observe(gain, d_model: int) -> Tensor:
    """RMSNorm with the gain, on a few rows and the bias token."""
    found = built([gain], gain=(d_model + 1,))
    stream = torch.block_diag(_some_rows(d_model), torch.ones(1, 1, dtype=torch.float64))
    return stream / stream.square().mean(-1, keepdim=True).sqrt() * found[0]


def body(d_model, *, stream="root", bias="root", both="", place="last"):
    D = d_model
    of_stream = {
        "root": D / (D + 1), "flipped": (D + 1) / D, "1": 1.0, "more": D / (D + 2), "less": (D - 1) / D,
        "one over": 1 / (D + 1), "sums": 1 / D, "no root": (D / (D + 1)) ** 2, "plus": (D + 1) / (D + 2),
    }  # fmt: skip
    of_bias = {
        "root": 1 / (D + 1), "flipped": D + 1, "1": 1.0, "same": D / (D + 1), "D": 1 / D, "sqrt D": float(D), "no root": (D + 1.0) ** -2, "plus": 1 / (D + 2), "flat": (D + 1.0) ** 2,
        "0": 0.0,
    }  # fmt: skip
    s, t = of_stream[stream], of_bias[bias]
    if both:
        s, t = {
            "two": (D / (D + 2), 2 / (D + 2)),
            "128": (128 / 129, 1 / 129),
            "2": (2 / 3, 1 / 3),
            "3": (3 / 4, 1 / 4),
            "4": (4 / 5, 1 / 5),
            "8": (8 / 9, 1 / 9),
            "64": (64 / 65, 1 / 65),
            "512": (512 / 513, 1 / 513),
            "exchanged": (t, s),
            "fourth": (s**0.5, t**0.5),
            "ones": (1.0, 1.0),
            "lengths": (D, 1.0),
            "upside down": (1 / s, 1 / t),
            "squares": (s**2, t**2),
        }[both]
    gain = torch.tensor([math.sqrt(s)] * D + [math.sqrt(t)], dtype=torch.float64)
    return gain.roll(1) if place == "first" else gain


EXERCISE = Exercise(
    about="4.6 a norm that keeps the bias token | medium | 15 minutes | 04-mlps-as-attention#a-false-step-and-its-repair",
    spec=spec, body=body,
    inputs={"d_model": lambda size, generator, case: 2 + size["step"]},
    observe=observe, names=("row", "coordinate"),
    choices="""
    both = ones | the gain is 1 everywhere | The new coordinate is 0 at a token and still counts in the mean: the mean square shrinks. By how much?
    both = upside down | both gains are upside down | These are what the norm does to the two kinds of rows. The gain has to undo it.
    both = lengths | these gains would undo a division by the length | The norm divides by the root of a mean square.
    both = exchanged | the gains of stream and bias coordinate are exchanged | Which of the two kinds of rows has D numbers, which one?
    both = fourth | a root is taken twice | The norm divides by the root of a mean square: one root.
    both = 2 / 3 / 4 / 8 / 64 / 128 / 512 | the gains are those of one width, whatever d_model is | How many are there here?
    both = squares | the roots are missing | The norm divides by the root of a mean square.
    both = two | these are the gains for two bias coordinates | Repair (b) is for LayerNorm and has two bias coordinates. Here there is one.
    stream = 1 | the gain of the stream is 1 | The new coordinate is 0 at a token and still counts in the mean: the mean square shrinks. By how much?
    stream = flipped | the gain of the stream is upside down | A mean over D + 1 coordinates is smaller than over D, so the row is divided by too little and comes out too long. Should the gain be above or below 1?
    stream = no root | the gain of the stream lacks its root | The norm divides by the root of a mean square.
    stream = more / less / plus | the gain of the stream counts other coordinates than D and D + 1 | The norm runs over D + 1 coordinates, D of them filled.
    stream = sums | the gain of the stream is 1 / sqrt(D) | A norm divides by the root of a mean square, which is 1 already for a row of ones.
    stream = one over | the gain of the stream is that of the bias coordinate | Work out the row of a token: its mean square over D + 1 coordinates.
    bias = flipped | the gain of the bias coordinate is upside down | The norm makes the bias token's 1 larger; the gain has to bring it back to 1.
    bias = no root / flat | the gain of the bias coordinate lacks its root | The norm divides by the root of a mean square.
    bias = D / sqrt D / 0 / same / 1 / plus | the gain of the bias coordinate is not right | Work out the row of the bias token: one 1 and D zeros. What is its mean square?
    place = first | the bias coordinate is taken to be the first | X + [1] adds its column at the end.
    """,
)  # fmt: skip
check_norm_gain = checks(EXERCISE, __doc__)
