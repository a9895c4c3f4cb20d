"""Exercise 2.5. `answer(W_OV, W_QK)` returns the K-composition score of an early OV and a late QK circuit.

**Shapes**: both `[d_model, d_model]`; the result is one number between 0 and 1.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks, normal


def spec(W_OV: Tensor, W_QK: Tensor) -> Tensor:
    # A key of the later head is read from what the earlier one wrote: scores are x_dst W_QK (x_src W_OV)^T.
    product = torch.zeros(W_QK.shape[0], W_OV.shape[0], dtype=torch.float64)
    for i in range(W_QK.shape[0]):
        for j in range(W_OV.shape[0]):
            product[i, j] = sum(W_QK[i, m] * W_OV[j, m] for m in range(W_OV.shape[1]))
    return product.square().sum().sqrt() / (W_QK.square().sum().sqrt() * W_OV.square().sum().sqrt())


def body(W_OV, W_QK, *, product="K", norm="frobenius", divide="both", above="norm", ratio="score"):
    size = {
        "frobenius": torch.linalg.matrix_norm, "spectral": lambda W: torch.linalg.matrix_norm(W, 2),
        "nuclear": lambda W: torch.linalg.matrix_norm(W, "nuc"), "sum": lambda W: W.abs().sum(),
        "max": lambda W: W.abs().max(), "mean": lambda W: W.abs().mean(),
    }[norm]  # fmt: skip
    both = {
        "K": lambda: W_OV @ W_QK.mT, "Q": lambda: W_OV @ W_QK, "later first": lambda: W_QK @ W_OV,
        "OV transposed": lambda: W_OV.mT @ W_QK, "entries": lambda: W_OV * W_QK,
        "entries transposed": lambda: W_OV * W_QK.mT, "three": lambda: W_OV @ W_QK.mT @ W_OV.mT,
        "sum": lambda: W_OV + W_QK, "symmetric": lambda: W_OV @ (W_QK + W_QK.mT) / 2, "symmetric OV": lambda: (W_OV + W_OV.mT) @ W_QK.mT / 2, "gram": lambda: W_OV.mT @ W_OV @ W_QK.mT,
    }[product]()  # fmt: skip
    below = {
        "both": lambda: size(W_OV) * size(W_QK), "none": lambda: torch.ones((), dtype=torch.float64),
        "QK": lambda: size(W_QK), "OV": lambda: size(W_OV), "sum": lambda: size(W_OV) + size(W_QK),
        "d_model": lambda: torch.tensor(len(W_OV), dtype=torch.float64),
        "squares": lambda: (size(W_OV) * size(W_QK)) ** 2, "root": lambda: (size(W_OV) * size(W_QK)).abs().sqrt(), "above": lambda: size(W_OV) * size(W_QK) / size(both), "twice": lambda: size(W_OV) ** 2 * size(W_QK),
    }[divide]()  # fmt: skip
    values = torch.linalg.svdvals(both)
    top = {
        "norm": lambda: size(both), "spectral": lambda: values[0], "nuclear": lambda: values.sum(), "max": lambda: both.abs().max(), "others": lambda: size(both) * below / torch.linalg.matrix_norm(W_OV, 2) / torch.linalg.matrix_norm(W_QK, 2), "trace": lambda: both.trace(),
        "trace size": lambda: both.trace().abs(), "sum": both.sum,
    }[above]()  # fmt: skip
    score = (
        values[0] / (values.sum() if ratio == "share" else values.norm())
        if ratio in ("share", "share of squares")
        else top / below
    )
    width, rank = len(W_OV), int(torch.linalg.matrix_rank(W_OV))
    return {
        "baseline": lambda: score * width**0.5, "minus baseline": lambda: score - width**-0.5, "rank": lambda: score / rank**0.5, "all": lambda: score / rank,
        "times rank": lambda: score * rank**0.5, "mean": lambda: (score + size(W_OV @ W_QK) / below) / 2, "minus Q": lambda: score - size(W_OV @ W_QK) / below,
        "over Q": lambda: size(both) / size(W_OV @ W_QK), "largest": lambda: torch.maximum(score, size(W_OV @ W_QK) / below),
    }.get(ratio, lambda: score)()  # fmt: skip


EXERCISE = Exercise(
    about="2.5 K-composition | easy | 10 minutes | 02-qk-and-ov-circuits#heads-in-a-row",
    spec=spec, body=body,
    inputs={
        "W_OV": lambda size, generator, case: _low_rank(size["step"], generator),
        "W_QK": lambda size, generator, case: _low_rank(size["step"], generator),
    },
    choices="""
    product = Q | W_QK is not transposed: this is Q-composition | The left side of W_QK reads destinations (queries), its right side sources (keys). Which side should meet what the earlier head wrote?
    product = later first | the later head comes first | The earlier head writes with the right side of W_OV; that is the side the later head has to meet.
    product = OV transposed | W_OV meets W_QK with the side it reads with | A row y enters W_OV on its left and leaves it on its right.
    product = entries / entries transposed | the matrices are multiplied entry by entry | `*` multiplies entries; heads in a row are a matrix product, `@`.
    product = three | the earlier head enters twice | The earlier head's output comes in at the keys, once.
    product = sum | the matrices are added | Heads side by side add up; heads in a row multiply.
    product = symmetric / symmetric OV | one of the matrices is made symmetric | Their sides are different things: what is read, and what is written or asked.
    product = gram | the earlier head enters twice | The earlier head's output comes in at the keys, once.
    above = spectral / nuclear / max / others | the product is measured in another way than the two matrices below it | One norm for all three: Frobenius.
    above = trace / trace size / sum | a sum with signs stands above: the product's trace (an inner product of the two matrices), or the sum of its entries | Entries of both signs cancel in a sum. Frobenius squares first.
    ratio = baseline / minus baseline | the score is held against that of random matrices | The score itself is asked for. What random matrices score is another number.
    ratio = share / share of squares | it is the share of the largest singular value of the product | How even the product is, is another question. How large is it beside its factors?
    ratio = rank / times rank / all | the rank of the matrices comes in | The score is a quotient of three norms.
    ratio = mean / minus Q / over Q / largest | Q-composition comes in, too | K-composition alone is asked for.
    norm = spectral | the largest singular value instead of the Frobenius norm | The paper's score counts all directions, not only the strongest.
    norm = nuclear / sum / mean / max | something else is measured than the Frobenius norm | Frobenius squares, sums, and takes the root.
    divide = none | the norm of the product is not divided by the norms | Large matrices would always compose. A score compares the product with what its factors allow.
    divide = QK / OV | only one of the two norms is divided out | Doubling either head must leave the score as it is.
    divide = above | the norm of the product is squared, those below are not | Frobenius squares, sums, and takes the root.
    divide = twice | the norm of W_OV is divided out twice | How often does the earlier head come in?
    divide = sum / d_model / squares / root | the product is divided by something else than the two norms | Doubling either head must leave the score as it is.
    """,
)  # fmt: skip


def _low_rank(step: int, generator: torch.Generator) -> Tensor:
    d_model, low = 3 + step, 2 + step // 3
    return normal(generator, d_model, low) @ normal(generator, low, d_model)


check_k_composition = checks(EXERCISE, __doc__)
