"""The largest entries of a matrix that is never formed whole."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._blocks import largest_entries
from circuitkit._contract import Count, Factored, must, public


class TopEntries(NamedTuple):
    """Entries of a matrix, largest first.

    `values[i]` is the entry at `[rows[i], columns[i]]`. **Source**: see `top_entries`.
    """

    values: Float[Tensor, " k"]
    rows: Int[Tensor, " k"]
    columns: Int[Tensor, " k"]


class TopPerRow(NamedTuple):
    """For every row its largest entries, largest first.

    `values[r, i]` is the entry at `[r, columns[r, i]]`. **Source**: see `top_per_row`.
    """

    values: Float[Tensor, "row k"]
    columns: Int[Tensor, "row k"]


_one = must(lambda matrix: matrix.A.ndim == matrix.B.ndim == 2 or "one matrix without leading axes, as full_ov(model, 'L0H1')")
_in_all = must(lambda k, matrix: k <= (n := matrix.A.shape[0] * matrix.B.shape[1]) or f"1 to {n}, because there are no more entries. Write a smaller k")
_in_a_row = must(lambda k, matrix: k <= (n := matrix.B.shape[1]) or f"1 to {n}, because there are no more entries in a row. Write a smaller k")


@public
@_one
@_in_all
def top_entries(matrix: Factored, k: Count = 10, *, largest: bool = True, block: Count | None = None) -> TopEntries:
    """The `k` largest (or smallest) entries of a `FactoredMatrix`, computed `block` rows at a time (left out: what a cache holds).

    **Shapes**: a matrix without leading axes. **Error**: exact; memory is `block * columns` numbers, not the product.

    **Source**: this book.

    >>> from transformer_lens import FactoredMatrix
    >>> top_entries(FactoredMatrix(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, -1.0]])), 1).values
    tensor([6.])
    """
    sign = 1 if largest else -1
    values, rows, columns = largest_entries(sign * matrix.A, matrix.B, k, block)
    return TopEntries(sign * values, rows, columns)


@public
@_one
@_in_a_row
def top_per_row(matrix: Factored, k: Count = 10, *, largest: bool = True, block: Count = 512) -> TopPerRow:
    """The `k` largest (or smallest) entries of every row of a `FactoredMatrix`, `block` rows at a time.

    For columns instead of rows give `matrix.T`. **Error**: exact.

    **Shapes**: `[row, column]` gives `[row, k]`. **Source**: this book.
    """
    left, right = matrix.A, matrix.B
    parts = [(left[i : i + block] @ right).topk(k, largest=largest) for i in range(0, left.shape[0], block)]
    return TopPerRow(torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts]))
