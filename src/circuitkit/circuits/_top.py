"""The largest entries of a matrix that is never formed whole."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


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


def top_entries(matrix: Any, k: int = 10, *, largest: bool = True, block: int = 512) -> TopEntries:
    """The `k` largest (or smallest) entries of a `FactoredMatrix`, computed `block` rows at a time.

    **Shapes**: a matrix without leading axes. **Error**: exact; memory is `block * columns` numbers, not the product.

    **Source**: this book.

    >>> from transformer_lens import FactoredMatrix
    >>> top_entries(FactoredMatrix(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, -1.0]])), 1).values
    tensor([6.])
    """
    left, right = _factors(matrix, k, left_times_right=True, what="top_entries")
    sign = 1.0 if largest else -1.0
    best = TopEntries(left.new_empty(0), torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.long))
    for first in range(0, left.shape[0], block):
        part = sign * (left[first : first + block] @ right)
        values, places = part.flatten().topk(min(k, part.numel()))
        width = right.shape[1]
        values = torch.cat([best.values, values])
        rows = torch.cat([best.rows, first + (places // width).cpu()])
        columns = torch.cat([best.columns, (places % width).cpu()])
        kept = values.topk(min(k, len(values)))
        best = TopEntries(kept.values, rows[kept.indices.cpu()], columns[kept.indices.cpu()])
    return best._replace(values=sign * best.values)


def top_per_row(matrix: Any, k: int = 10, *, largest: bool = True, block: int = 512) -> TopPerRow:
    """The `k` largest (or smallest) entries of every row of a `FactoredMatrix`, `block` rows at a time.

    For columns instead of rows give `matrix.T`. **Error**: exact.

    **Shapes**: `[row, column]` gives `[row, k]`. **Source**: this book.
    """
    left, right = _factors(matrix, k, left_times_right=False, what="top_per_row")
    parts = [(left[i : i + block] @ right).topk(k, largest=largest) for i in range(0, left.shape[0], block)]
    return TopPerRow(torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts]))


def _factors(matrix: Any, k: int, *, left_times_right: bool, what: str) -> tuple[Tensor, Tensor]:
    left, right = matrix.A, matrix.B
    if left.ndim != 2:
        raise ValueError(
            f"{what} got a matrix of shape {tuple(matrix.shape)}; expected one matrix without leading axes, because "
            "entries of different heads are not on one scale. Choose one head, such as full_ov(model, 'L0H1')."
        )
    most = left.shape[0] * right.shape[1] if left_times_right else right.shape[1]
    if not 1 <= k <= most:
        raise ValueError(
            f"{what} got k={k} for a matrix of shape {tuple(matrix.shape)}; expected 1 to {most}, because there are no "
            "more entries. Write a smaller k."
        )
    return left, right
