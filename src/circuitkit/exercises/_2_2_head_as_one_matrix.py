"""Exercise 2.2, one matrix for the whole head."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(A: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    pos, d_model = A.shape[0], W_V.shape[0]
    W_OV = W_V @ W_O
    big = torch.zeros(pos * d_model, pos * d_model, dtype=torch.float64)
    for dst in range(pos):
        for src in range(pos):
            for out in range(d_model):
                for read in range(d_model):
                    big[dst * d_model + out, src * d_model + read] = A[dst, src] * W_OV[read, out]
    return big


def body(A, W_V, W_O, *, order="A first", turned=True, pattern="A", product="VO", form="kron"):
    W = {
        "VO": lambda: W_V @ W_O, "OV": lambda: W_O @ W_V, "V": lambda: W_V, "O": lambda: W_O,
        "turned each": lambda: W_V.mT @ W_O.mT, "V O^T": lambda: W_V @ W_O.mT,
    }[product]()  # fmt: skip
    W = W.mT.contiguous() if turned else W.contiguous()
    A = {"A": A, "transposed": A.mT.contiguous(), "ones": torch.ones_like(A), "eye": torch.eye(len(A), dtype=A.dtype)}[pattern]
    if form == "four axes":
        return torch.einsum("ij,ab->iajb", A, W)
    if form == "flattened wrong":
        return torch.einsum("ij,ab->ijab", A, W).reshape(len(A) * len(W), -1)
    return torch.kron(A, W) if order == "A first" else torch.kron(W, A)


EXERCISE = Exercise(
    about="2.2 one matrix for the whole head | medium | 15 minutes | 02-qk-and-ov-circuits#two-parts-that-do-not-touch",
    spec=spec, body=body, axes="pos, d_model, d_head",
    inputs={
        "A": lambda size, generator, case: normal(generator, size["pos"], size["pos"]).exp().tril(),
        "W_V": "d_model d_head", "W_O": "d_head d_model",
    },
    trials=8, names=("row", "column"),
    choices="""
    turned = False | W_OV is not transposed | The big matrix multiplies a column, x.flatten(), from the left; W_OV multiplies a row from the right.
    order = W first | the two factors are in the wrong order | x.flatten() runs through the dimensions of position 0 first: positions are the outer blocks.
    pattern
        transposed | the pattern is transposed | A is [destination, source], and the rows of the big matrix are destinations.
        ones | the pattern is left out: every block is W_OV | How much of each source goes to each destination?
        eye | the pattern is left out: no position looks at another | How much of each source goes to each destination?
    product
        OV | the product is W_O W_V | Rows are read first and written last: x W_V W_O. The other order lives in head space, not in the stream.
        V | W_O is left out | A head reads with W_V and writes with W_O.
        O | W_V is left out | A head reads with W_V and writes with W_O.
        turned each | each factor is transposed, but their order is kept | The transpose of a product turns the order round.
        V O^T | W_O is transposed | x W_V W_O: both stand on the right of x as they are.
    form
        four axes | it has four axes | The rows are pairs of destination and dimension, the columns pairs of source and dimension: reshape.
        flattened wrong | the axes are flattened in the wrong order | A row is a destination with a dimension. Which two axes belong together before you reshape?
    """,
)  # fmt: skip


def check_head_as_one_matrix(answer) -> Result:
    """Exercise 2.2. `answer(A, W_V, W_O)` returns the matrix $M$ with $M\\,x_{flat} = (A\\,x\\,W_V W_O)_{flat}$.

    **Shapes**: `A [pos, pos]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]`; the result is square, of
    `pos * d_model` rows, for `x.flatten()` of `x [pos, d_model]`.
    """
    return check(EXERCISE, answer)
