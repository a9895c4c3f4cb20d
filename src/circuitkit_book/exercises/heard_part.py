"""Exercise 1.3. `answer(x, W)` returns the part of `x` that a head sees which reads `x @ W`.

**Shapes**: `x [pos, d_model]`, `W [d_model, d_head]` of full rank, `d_head < d_model`; the result is `[pos, d_model]`:
the orthogonal projection of each row on the column space of `W`.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks


def spec(x: Tensor, W: Tensor) -> Tensor:
    basis: list[Tensor] = []  # Gram-Schmidt, column by column
    for column in W.T:
        rest = column.clone()
        for direction in basis:
            rest = rest - torch.dot(rest, direction) * direction
        basis.append(rest / torch.dot(rest, rest).sqrt())
    out = torch.zeros_like(x)
    for pos, row in enumerate(x):
        for direction in basis:
            out[pos] += torch.dot(row, direction) * direction
    return out


def body(x, W, *, basis="orthonormal", result="projection"):
    left, size, right = torch.linalg.svd(W, full_matrices=False)
    inverse = torch.linalg.pinv(W)
    reads, writes = {
        "orthonormal": lambda: (left, left.mT), "raw": lambda: (W, W.mT),
        "length 1": lambda: (W / W.norm(dim=0), (W / W.norm(dim=0)).mT),
        "length 1 by rows": lambda: (W / W.norm(dim=1, keepdim=True), (W / W.norm(dim=1, keepdim=True)).mT),
        "whole length": lambda: (W / W.norm(), (W / W.norm()).mT), "singular values": lambda: (left * size, left.mT),
        "row space": lambda: (torch.linalg.qr(W.mT)[0], torch.linalg.qr(W.mT)[0].mT),
        "full": lambda: (torch.eye(len(W), dtype=W.dtype), torch.eye(len(W), dtype=W.dtype)),
        "one short": lambda: (left[:, :-1], left[:, :-1].mT), "first": lambda: (left[:, :1], left[:, :1].mT),
        "raw and Q": lambda: (W, torch.linalg.qr(W)[0].mT), "Gram twice": lambda: (W @ torch.linalg.inv(W.mT @ W), inverse),
    }[basis]()  # fmt: skip
    projection = x @ reads @ writes
    return {
        "projection": lambda: projection, "rest": lambda: x - projection, "mirrored": lambda: 2 * projection - x,
        "seen": lambda: x @ W, "coordinates": lambda: x @ inverse.mT,
        "length 1": lambda: projection / projection.norm(dim=1, keepdim=True),
    }[result]()  # fmt: skip


EXERCISE = Exercise(
    about="1.3 what a head can hear | medium | 15 minutes | 01-residual-stream#heads-read-little-and-write-little",
    spec=spec, body=body, axes="d_head < d_model, pos",
    inputs={"x": "pos d_model", "W": "d_model d_head"},
    names=("position", "dimension"),
    choices="""
    basis = raw | W is taken as if its columns were orthonormal | Project a second time: a projection changes nothing then, yours does. Columns of W are neither of length 1 nor at right angles.
    basis = length 1 | the columns have length 1 but are not at right angles | Where two columns point alike, their common direction is counted twice. Make them orthonormal together.
    basis = length 1 by rows / whole length | W is divided by other lengths than those of its columns | The directions that the head reads are the columns of W, and they need right angles, too.
    basis = singular values | the singular values are still in it | How loud the head hears a direction is not asked, only whether it hears it at all.
    basis = raw and Q | numbers that were read with W are taken for coordinates in another basis | What reads and what writes back have to be the same orthonormal directions.
    basis = Gram twice | the lengths of W's columns are divided out twice | Project a second time: a projection changes nothing then, yours does.
    basis = row space | it is the row space, not the column space | x @ W combines the rows of x with the columns of W. Which of the two spaces lies in the stream?
    basis = full | nothing is lost | You return x as it was. A basis of the column space has d_head vectors; one of all d_model dimensions, such as the full U of a singular value decomposition, keeps everything.
    basis = one short / first | a direction of the basis is missing, or more | The column space has d_head dimensions, all of them.
    result = rest | the part that the head cannot hear | Which part of x has the same product with W as x itself?
    result = mirrored | the unheard part is turned round instead of removed | Subtract it once, not twice.
    result = seen | the numbers that the head sees, not the part of the stream | These are d_head coordinates. Bring them back into the stream, as the part of x that they come from.
    result = coordinates | the way back into the stream is missing | You have the d_head coordinates of the projection. Multiply the directions that they belong to by them.
    """,
)  # fmt: skip
check_heard_part = checks(EXERCISE, __doc__)
