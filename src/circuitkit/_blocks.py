"""Work on thin factors in blocks: what they multiply to is never formed whole, and fits in the memory that is free."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._work import progress

_BLOCK = 2**22
"""Numbers in a block: larger ones are no faster, because they leave the cache."""
_SIDE = 128
"""Dimensions of a tile of a Gram matrix: fewer lie on both sides of the diagonal for nothing, fewer still are products too thin."""
_TILE = 2**26
"""Numbers of thin factors that are kept at once, on either side."""
_CANCELS = 2.0**-9
"""Below this share of its terms, a sum of products has lost too much to rounding: the pair is multiplied out."""


@dataclass(frozen=True, eq=False)
class Thin:
    r"""Matrices told by their Gram matrices $A^\top B$, which are symmetric, from thin factors `[n, any, d_model]`: rows `R` are `Thin(R, R)`."""

    A: Tensor
    B: Tensor

    @cached_property
    def turned(self) -> Float[Tensor, "n any any"]:
        """`B A^T`: small, with the traces of the Gram matrices and of their squares."""
        return self.B @ self.A.mT

    @property
    def squares(self) -> Float[Tensor, " n"]:
        """Squared norms of what they stand for."""
        return self.turned.diagonal(dim1=1, dim2=2).sum(1)


def room(like: Tensor) -> int:
    """Bytes that one call may take beside what it was given: half of what is free where `like` lies."""
    if like.is_cuda:
        return torch.cuda.mem_get_info(like.device)[0] // 2
    try:
        return (
            int(Path("/proc/meminfo").read_text("ascii").split("MemAvailable:")[1].split()[0]) * 512
        )
    except (OSError, IndexError):
        return 2**31  # a system that does not say


def require_room(what: str, numbers: int, like: Tensor, instead: str) -> None:
    """A `ValueError` before, not a full memory after, when so many numbers like these do not fit."""
    needed, most = numbers * like.element_size(), room(like)
    if needed > most:
        raise ValueError(
            f"{what} would need {needed / 2**30:.3g} GiB; expected at most {most / 2**30:.3g}, half of the memory that is free, because "
            f"what it returns or compares is kept at once. {instead}."
        )


def pieces(n: int, each: int, most: int | None = None) -> list[slice]:
    """The numbers from 0 to `n` in blocks, as large as fit when each takes so many numbers."""
    step = max(1, (most or _BLOCK) // max(1, each))
    return [slice(first, first + step) for first in range(0, n, step)]


def tiles(
    n: int, m: int, each: int, left: Callable[[slice], Thin], right: Callable[[slice], Thin]
) -> Iterator[tuple[tuple[slice, slice], Thin, Thin]]:
    """All pairs of `n` by `m` stacks of `each` numbers in tiles: where a tile lies, and the factors, made when it is its turn."""
    for rows in progress(pieces(n, each, _TILE), "tiles of heads"):
        one = left(rows)
        yield from (
            ((rows, columns), one, right(columns))
            for columns in progress(pieces(m, each, _TILE), "tiles")
        )


def thin(
    outer: Float[Tensor, "n rank d_model"],
    inner: Float[Tensor, "n any rank"],
    *,
    spans: bool = False,
) -> Thin:
    """`inner @ outer`: `outer`, and `inner.T @ inner` times it.

    Where that would cancel, or where it is asked what the rows span, both are a triangle times `outer`, and nothing is squared.
    """
    core = inner.mT @ inner
    made = Thin(outer, core @ outer)
    cancels = (
        made.squares
        < _CANCELS
        * core.flatten(1).norm(dim=1)
        * torch.linalg.vector_norm(outer, dim=(1, 2)).square()
    )
    mode = "reduced" if inner.requires_grad else "r"  # only the first has a gradient
    return (
        Thin(*2 * [torch.linalg.qr(inner, mode=mode).R @ outer]) if spans or cancels.any() else made
    )


def product_norms(
    left: Thin, right: Thin, wanted: Bool[Tensor, "left right"] | None = None
) -> Float[Tensor, "left right"]:
    """Frobenius norm of `left[i] @ right[j].T` for wanted pairs, by the cheaper of two routes; 0 for others where it was skipped.

    The cheap one is wrong by rounding where a product is far smaller than its factors: such pairs take the other. So do all
    where a gradient is asked for; that of a product of 0 is 0.
    """
    (n, d_left, d_model), (m, d_right, _) = left.A.shape, right.A.shape
    out = left.A.new_zeros(n, m)
    wanted = torch.ones_like(out, dtype=torch.bool) if wanted is None else wanted
    asks = torch.is_grad_enabled() and any(
        some.requires_grad for some in (left.A, left.B, right.A, right.B)
    )
    if 2 * d_left * d_right > d_model and not asks:
        out = gram_products([left], [right], wanted)
        one, other = (
            (some.turned * some.turned.mT).sum((1, 2)).sqrt() for some in (left, right)
        )  # norms of the Gram matrices
        wanted = wanted & (out < _CANCELS * one[:, None] * other)
    asked = wanted.cpu()
    side = max(1, int((_BLOCK / (d_left * d_right)) ** 0.5))
    for rows in progress(pieces(n, 1, side), "pairs of heads"):
        for columns in pieces(m, 1, side):
            if asked[rows, columns].any():
                one, other = (
                    A[rows].flatten(0, 1) @ B[columns].flatten(0, 1).T
                    for A, B in ((left.A, right.A), (left.B, right.B))
                )
                exact = (
                    (one * other).unflatten(0, (-1, d_left)).unflatten(2, (-1, d_right)).sum((1, 3))
                )
                out[rows, columns] = torch.where(wanted[rows, columns], exact, out[rows, columns])
    if out.requires_grad:
        nothing = out <= 0
        out.register_hook(lambda slope: slope.masked_fill(nothing, 0))
    return out.clamp_min_(0).sqrt_()


@torch.no_grad()
def gram_products(
    lefts: Sequence[Thin], rights: Sequence[Thin], wanted: Bool[Tensor, "left right"] | None = None
) -> Float[Tensor, "left right"]:
    r"""$\langle G_i, G_j\rangle$ of all Gram matrices on the left and on the right: $\|R_i R_j^\top\|_F^2$ for rows that stand for themselves.

    Only tiles on and above the diagonal are formed, and a band of rows only as far as a pair of it is `wanted`. **Error**: rounding, of the size of the factors.
    """
    d_model = lefts[0].A.shape[-1]
    n, m = (sum(len(some.A) for some in stacks) for stacks in (lefts, rights))
    out = lefts[0].A.new_zeros(n, m)
    bands = [(slice(0, n), slice(0, m))] if wanted is None else _bands(wanted.cpu())
    side = max(8, min(_SIDE, int((4 * _BLOCK / (n + m)) ** 0.5)) // 8 * 8)
    tiles, held = pieces(d_model, 1, side), [out.new_empty(k * side * side) for k in (n, m)]
    for rows, columns in progress(
        [(one, other) for i, one in enumerate(tiles) for other in tiles[: i + 1]],
        "products of heads",
    ):
        a, b = (
            _grams(stacks, rows, columns, some)
            for stacks, some in zip((lefts, rights), held, strict=True)
        )
        for one, other in bands:
            out[one, other].addmm_(a[one], b[other].T, alpha=1 if rows == columns else 2)
    return out


def _grams(
    stacks: Sequence[Thin], rows: slice, columns: slice, held: Tensor
) -> Float[Tensor, "head tile"]:
    """One tile of all Gram matrices, written where the last one was: fresh memory costs as much as a quarter of the work."""
    parts = [(some.A[..., rows].mT, some.B[..., columns]) for some in stacks]
    sizes, high, wide = [len(A) for A, _ in parts], parts[0][0].shape[1], parts[0][1].shape[2]
    out = held[: sum(sizes) * high * wide].view(-1, high, wide)
    for (A, B), some in zip(parts, out.split(sizes), strict=True):
        torch.bmm(A, B, out=some)
    return out.flatten(1)


def _bands(wanted: Bool[Tensor, "left right"]) -> list[tuple[slice, slice]]:
    """An eighth of the rows at a time (48 at least, for speed), with the columns from the first to the last that one of them wants."""
    bands = (
        (rows, wanted[rows].any(0).nonzero().flatten().tolist())
        for rows in pieces(len(wanted), 1, max(48, -(-len(wanted) // 8)))
    )
    return [(rows, slice(columns[0], columns[-1] + 1)) for rows, columns in bands if columns]


def row_directions(
    wide: Float[Tensor, "*head rows d_model"],
) -> Float[Tensor, "*head rank d_model"]:
    """Orthonormal rows that span the same space; rows beyond the rank are 0."""
    _, values, rows = torch.linalg.svd(wide, full_matrices=False)
    smallest = values[..., :1] * max(wide.shape[-2:]) * torch.finfo(wide.dtype).eps
    return rows * (values > smallest)[..., None]


def joint_rows(n: int, each: int, make: Callable[[slice], Tensor]) -> Float[Tensor, "rank d_model"]:
    """Orthonormal rows that span those of `n` stacks of `each` numbers, a tile at a time: of what came before, its triangle is kept."""
    found = make(slice(0, 0)).flatten(0, 1)
    for some in progress(pieces(n, each, _TILE), "tiles of heads"):
        found = torch.linalg.qr(torch.cat([found, make(some).flatten(0, 1)]), mode="r").R
    rows = row_directions(found)
    return rows[rows.any(1)]


def largest_entries(
    left: Float[Tensor, "row rank"],
    right: Float[Tensor, "rank column"],
    k: int,
    block: int | None = None,
) -> tuple[Float[Tensor, " k"], Int[Tensor, " k"], Int[Tensor, " k"]]:
    """The `k` largest entries of a product with their rows and columns, a block of rows at a time.

    They stand in the `k` rows with the largest maxima, so that only these are searched.
    """
    width = right.shape[1]
    best = left.new_empty(0), *2 * [torch.empty(0, dtype=torch.long, device=left.device)]
    for rows in progress(
        pieces(len(left), 1, max(1, _BLOCK // width) if block is None else block), "rows"
    ):
        part = left[rows] @ right
        tops = part.amax(1).topk(min(k, len(part))).indices
        values, places = part[tops].flatten().topk(min(k, len(tops) * width))
        found = values, rows.start + tops[places // width], places % width
        best = tuple(torch.cat(pair) for pair in zip(best, found, strict=True))
        kept = best[0].topk(min(k, len(best[0]))).indices
        best = tuple(column[kept] for column in best)
    return best[0], best[1], best[2]
