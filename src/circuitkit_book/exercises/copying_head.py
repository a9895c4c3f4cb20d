"""Exercise 2.3. `answer(W_E, W_U)` returns `W_V, W_O` whose full OV circuit $W_E W_V W_O W_U$ is the identity.

**Shapes**: `W_E [vocab, d_model]`, `W_U [d_model, vocab]`, both of full rank, `vocab < d_model`; `W_V
[d_model, d_head]` and `W_O [d_head, d_model]` with any `d_head`.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks


def spec(W_E: Tensor, W_U: Tensor) -> Tensor:
    return torch.eye(W_E.shape[0], dtype=torch.float64)


def observe(answer, W_E: Tensor, W_U: Tensor) -> Tensor:
    W_V, W_O = built(answer, W_V=(W_E.shape[1], "d_head"), W_O=("d_head", W_E.shape[1]))
    return W_E @ W_V @ W_O @ W_U


def _undo(W: Tensor, how: str) -> Tensor:
    left, _, right = torch.linalg.svd(W, full_matrices=False)
    return {
        "pinv": lambda: torch.linalg.pinv(W),
        "transpose": lambda: W.mT,
        "length 1": lambda: (W / W.norm(dim=1, keepdim=True)).mT,
        "length 1 by columns": lambda: (W / W.norm(dim=0, keepdim=True)).mT,
        "square length by rows": lambda: (W / W.square().sum(1, keepdim=True)).mT,
        "square length by columns": lambda: (W / W.square().sum(0, keepdim=True)).mT,
        "orthonormal": lambda: right.mT @ left.mT,
        "loud twice": lambda: W.mT @ torch.linalg.pinv(W @ W.mT) @ torch.linalg.pinv(W @ W.mT),
        "one length": lambda: W.mT / W.square().sum(),
        "norm": lambda: W.mT / W.norm(),
        "ridge": lambda: (
            W.mT @ torch.linalg.inv(W @ W.mT + torch.eye(len(W), dtype=W.dtype))
            if len(W) < W.shape[1]
            else torch.linalg.inv(W.mT @ W + torch.eye(W.shape[1], dtype=W.dtype)) @ W.mT
        ),
    }[how]()


def body(W_E, W_U, *, undo_E="pinv", undo_U="pinv", pair="right", sign=1.0, shift=0, both=""):
    V, O = _undo(W_E, both or undo_E), sign * _undo(W_U, both or undo_U).roll(shift, 0)  # noqa: E741
    eye = torch.eye(W_E.shape[1], dtype=W_E.dtype)
    return {
        "right": lambda: (V, O), "stream": lambda: (eye, sign * eye), "swapped matrices": lambda: (W_U, sign * W_E),
        "exchanged": lambda: (sign * _undo(W_U, "pinv").mT, V.mT), "tied": lambda: (V, sign * V.mT),
    }[pair]()  # fmt: skip


EXERCISE = Exercise(
    about="2.3 a head that copies, by hand | medium | 20 minutes | 02-qk-and-ov-circuits#what-a-head-says-the-ov-circuit",
    spec=spec, body=body, axes="vocab < d_model",
    inputs={"W_E": "vocab d_model", "W_U": "d_model vocab"},
    observe=observe, parts=("W_V", "W_O"),
    names=("source token", "raised token"),
    choices="""
    both = transpose | the embedding is undone by its transpose, and so is the unembedding | A transpose undoes a matrix only when its rows are orthonormal, and these are not. What undoes any matrix of full rank?
    both = orthonormal | both are undone by the nearest orthonormal matrix | The singular values have to be undone, too: divided, not left out.
    undo_E = transpose | the embedding alone is undone by its transpose | A transpose undoes a matrix only when its rows are orthonormal, and these are not. What undoes any matrix of full rank?
    both = ridge | something is added before either is inverted | Both are of full rank: they can be undone exactly.
    both = one length / norm | both are undone by a transpose, divided by one number | One number does not undo a matrix. What does?
    undo_E = length 1 / square length by rows | the embedding is undone by its transpose, divided by lengths | Rows of length 1 are still not at right angles, so a transpose does not undo them. What does?
    undo_E = orthonormal | the embedding is undone without its singular values | They have to be divided out, not left out.
    undo_U = transpose | the unembedding alone is undone by its transpose | A transpose undoes a matrix only when its rows are orthonormal, and these are not. What undoes any matrix of full rank?
    undo_U = length 1 by columns / square length by columns | the unembedding is undone by its transpose, divided by lengths | Rows of length 1 are still not at right angles, so a transpose does not undo them. What does?
    undo_U = orthonormal | the unembedding is undone without its singular values | They have to be divided out, not left out.
    sign = -1.0 | the head lowers what it sees | Its eigenvalues are all -1: this is the anti-copying head.
    shift = -1 / 1 | the head raises a neighbour in the vocabulary | Row b of the table has to have its one at column b. Is something shifted by one?
    pair = stream | the head copies the stream, not the token | Passing x on unchanged raises b only where W_E W_U does, and nobody has promised that.
    pair = exchanged | each matrix is undone at the other's place | The head reads what W_E wrote: which of the two has W_V to undo?
    pair = tied | W_O undoes the embedding instead of the unembedding | What W_O writes is read with W_U.
    pair = swapped matrices | W_U and W_E stand where they have to be undone | W_E W_V should be the identity on tokens: what undoes W_E?
    """,
)  # fmt: skip
check_copying_head = checks(EXERCISE, __doc__)
