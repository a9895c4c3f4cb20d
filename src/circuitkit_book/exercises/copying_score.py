"""Exercise 2.4. `answer(W_E, W_V, W_O, W_U)` returns $\\sum_i \\operatorname{Re}\\lambda_i / \\sum_i |\\lambda_i|$,
from a `[d_head, d_head]` matrix.

**Shapes**: `W_E [vocab, d_model]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]`, `W_U [d_model, vocab]`; the
result is one number, from the eigenvalues $\\lambda$ of the full OV circuit.
"""

from unittest.mock import patch

import torch
from torch import Tensor

from circuitkit_book.exercises.answers import called
from circuitkit_book.exercises.checking import Exercise, checks


def spec(W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    table = W_E @ W_V @ W_O @ W_U
    values = torch.linalg.eigvals(table)
    return values.real.sum() / values.abs().sum()


def body(
    W_E, W_V, W_O, W_U, *, matrix="small", values="eigen", above="real", below="abs", ratio="ratio"
):
    square = {
        "small": lambda: W_O @ W_U @ W_E @ W_V, "OV": lambda: W_O @ W_V, "unembed": lambda: W_U @ W_E,
        "turned": lambda: W_V.mT @ W_E.mT @ W_U.mT @ W_V,
        "symmetric": lambda: (W_O @ W_U @ W_E @ W_V + (W_O @ W_U @ W_E @ W_V).mT) / 2,
        "no W_U": lambda: W_O @ W_E.mT @ W_E @ W_V, "no W_E": lambda: W_O @ W_U @ W_U.mT @ W_V,
        "neighbours": lambda: W_V.mT @ W_U @ W_E @ W_O.mT, "neighbours turned": lambda: W_O @ W_E.mT @ W_U.mT @ W_V, "stream": lambda: W_O @ W_U @ W_U.mT @ W_E.mT @ W_E @ W_V,
        "squared": lambda: torch.linalg.matrix_power(W_O @ W_U @ W_E @ W_V, 2), "Gram": lambda: (W_O @ W_U @ W_E @ W_V).mT @ (W_O @ W_U @ W_E @ W_V),
        "table": lambda: W_E @ W_V @ W_O @ W_U,
    }["table" if values in ("diagonal", "entries") else matrix]()  # fmt: skip
    found = {
        "eigen": lambda: torch.linalg.eigvals(square), "singular": lambda: torch.linalg.svdvals(square) + 0j,
        "symmetric": lambda: torch.linalg.eigvalsh(square) + 0j, "diagonal": lambda: square.diagonal() + 0j,
        "small diagonal": lambda: square.diagonal() + 0j, "entries": lambda: square.flatten() + 0j,
    }[values]()  # fmt: skip
    top = {
        "real": lambda: found.real.sum(), "size of sum": lambda: found.sum().abs(),
        "abs real": lambda: found.real.abs().sum(), "positive": lambda: found.real.clamp_min(0).sum(), "imaginary": lambda: found.imag.abs().sum(),
        "largest": lambda: found[found.abs().argmax()].real, "greatest": lambda: found.real.max(),
        "top": lambda: found[found.abs().argmax()].real / found.abs().max() * found.abs().sum(),
    }[above]()  # fmt: skip
    bottom = {
        "abs": lambda: found.abs().sum(), "real": lambda: found.real.abs().sum(),
        "norm": lambda: found.abs().square().sum().sqrt(),
        "count": lambda: torch.tensor(float(len(found)), dtype=torch.float64), "max": lambda: found.abs().max(), "singular": lambda: torch.linalg.svdvals(square).sum(),
        "frobenius": lambda: torch.linalg.matrix_norm(square), "root count": lambda: torch.tensor(len(found) ** 0.5, dtype=torch.float64),
        "entries": lambda: square.abs().sum(), "negative": lambda: found.real.clamp_max(0).abs().sum(), "size of sum": lambda: found.sum().abs(),
        "none": lambda: torch.ones((), dtype=torch.float64),
    }[below]()  # fmt: skip
    if ratio in ("positive", "counted"):
        signs = (found.real > 0).double() if ratio == "positive" else found.real.sign()
        return signs.mean()
    if ratio == "each":
        return (found.real / found.abs()).mean()
    return (top / bottom + 1) / 2 if ratio == "unit" else top / bottom


def way(answer, case) -> str:
    with (
        patch.object(torch.linalg, "eigvals", wraps=torch.linalg.eigvals) as one,
        patch.object(torch.linalg, "eig", wraps=torch.linalg.eig) as other,
    ):
        value = called(answer, {name: tensor.clone() for name, tensor in case.items()})
    widths = [
        call.args[0].shape[-1] for call in (*one.call_args_list, *other.call_args_list) if call.args
    ]
    asked = case["W_V"].shape[1]
    if max(widths, default=0) > asked:
        return f"The number is right, but it comes from a matrix of width {max(widths)}; a [d_head, d_head] matrix is asked for, here of width {asked}."
    if isinstance(value, torch.Tensor) and value.is_complex():
        return "The number is right, but complex, with an imaginary part of 0. A real number is asked for."
    return ""


EXERCISE = Exercise(
    about="2.4 the copying score without the table | medium | 15 minutes | 02-qk-and-ov-circuits#what-a-head-says-the-ov-circuit",
    spec=spec, body=body, way=way, axes="d_head < d_model < vocab",
    inputs={"W_E": "vocab d_model", "W_V": "d_model d_head", "W_O": "d_head d_model", "W_U": "d_model vocab"},
    choices="""
    matrix = OV | the eigenvalues are those of W_OV alone | The question is about tokens: what W_E puts in and what W_U reads out belong to it.
    matrix = unembed | the head is left out | W_U W_E is the path past the head. Where do W_V and W_O come in?
    matrix = turned / symmetric | it is the score of another small matrix | AB and BA share eigenvalues when A is the first part of the product and B all the rest.
    matrix = neighbours / neighbours turned / stream | it is the score of another small matrix | AB and BA share eigenvalues when A is the first part of the product and B all the rest.
    matrix = squared | it is the score of a square of the matrix | Squares of eigenvalues forget the sign. Once through the head is asked.
    matrix = no W_U / no W_E | one of embedding and unembedding stands in for the other | They are two matrices here.
    matrix = Gram | numbers without a sign are summed, so the score is always 1 | These numbers have no sign. Does the head send a mixture to itself, or to its opposite?
    values = singular | numbers without a sign are summed, so the score is always 1 | These numbers have no sign. Does the head send a mixture to itself, or to its opposite?
    values = symmetric | the matrix is taken to be symmetric | `eigvalsh` reads one triangle only; this matrix has two. Use `eigvals`.
    values = diagonal / small diagonal | the diagonal instead of the eigenvalues | The trace is the sum of the eigenvalues, but the sizes of the diagonal are not the sizes of the eigenvalues.
    values = entries | the entries of the table instead of its eigenvalues | Most of the table is about other tokens. Which numbers say that a mixture is sent to itself?
    above = size of sum / abs real / positive | nothing can become negative | A head that lowers what it sees has to score below 0: negative ones count against it.
    above = imaginary | the imaginary parts are summed | They say that the head turns something round in a plane. Which part of a number has a sign that means copying?
    above = largest / top / greatest | only the largest eigenvalue is counted | The score sums over all of them.
    below = real | the sizes are those of the real parts | The size of a complex number counts its imaginary part, too.
    below = singular | the sum is divided by singular values | The sizes are those of the eigenvalues.
    below = norm | the root of the summed squares instead of the summed sizes | The sizes are summed as they are, without squares.
    below = count / none | the sum is not divided by the eigenvalues' sizes | A large head would score more than a small one. What is between -1 and 1 always?
    below = frobenius / entries / root count | the sum is divided by another size than the eigenvalues' | Below stand the sizes of the eigenvalues, summed.
    below = negative / size of sum | the sum is divided by a part of the sizes, or by the size of the sum | Below stand all sizes, each taken before they are summed.
    ratio = positive | the share of positive eigenvalues | That is another number of the chapter, between 0 and 1. The score weighs eigenvalues and goes down to -1.
    ratio = counted | eigenvalues are counted, not weighed | A tiny eigenvalue should not count as much as a large one.
    ratio = each | each eigenvalue is divided by its own size, then averaged | A tiny eigenvalue should not count as much as a large one: sum first, divide afterwards.
    ratio = unit | the score is moved to between 0 and 1 | The score lies between -1 and 1.
    """,
)  # fmt: skip
check_copying_score = checks(EXERCISE, __doc__)
