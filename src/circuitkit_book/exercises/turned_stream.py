"""Exercise 1.6. `answer(R, W_E, W_V, W_O, W_U)` returns the four matrices of the same model in the stream `x @ R`.

**Shapes**: `R [d_model, d_model]` orthogonal, `W_E [vocab, d_model]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]`,
`W_U [d_model, vocab]`; the results have the same shapes. Compared are the stream, which has to be turned by `R`, and
the logits, which have to be the same.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks, normal


def spec(R: Tensor, W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    vocab, d_model = W_E.shape
    out = torch.zeros(vocab, max(vocab, d_model), 2, dtype=torch.float64)
    for token in range(vocab):
        stream = W_E[token] + ((W_E[token] @ W_V) @ W_O)
        for i in range(d_model):
            out[token, i, 0] = torch.dot(stream, R[:, i])
        for word in range(vocab):
            out[token, word, 1] = torch.dot(stream, W_U[:, word])
    return out


def observe(answer, R: Tensor, W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    W_E, W_V, W_O, W_U = built(answer, W_E=W_E.shape, W_V=W_V.shape, W_O=W_O.shape, W_U=W_U.shape)
    (vocab, d_model), stream = W_E.shape, W_E + W_E @ W_V @ W_O
    out = torch.zeros(vocab, max(vocab, d_model), 2, dtype=torch.float64)
    out[:, :d_model, 0], out[:, :vocab, 1] = stream, stream @ W_U
    return out


def _turned(W: Tensor, R: Tensor, how: str) -> Tensor:
    return {
        "as it was": lambda: W, "x R": lambda: W @ R, "x R^T": lambda: W @ R.mT, "R x": lambda: R @ W,
        "R^T x": lambda: R.mT @ W, "x R R": lambda: W @ R @ R,
    }[how]()  # fmt: skip


def body(
    R,
    W_E,
    W_V,
    W_O,
    W_U,
    *,
    R_is="R",
    embedding="x R",
    reads="R^T x",
    writes="x R",
    unembedding="R^T x",
    all_four="",
):
    if all_four:
        embedding = reads = writes = unembedding = all_four
    R = R.mT if R_is == "inverse" else R
    return (
        _turned(W_E, R, embedding),
        _turned(W_V, R, reads),
        _turned(W_O, R, writes),
        _turned(W_U, R, unembedding),
    )


_WRITES = """
    writes = as it was | what the head writes with, W_O, is left as it was | The stream has other coordinates now. What does it have to put there?
    writes = x R^T | what the head writes with, W_O, meets the inverse of R from the right | A writer has to put x R where it used to put x.
    writes = x R R | what the head writes with, W_O, meets R twice | A writer has to put x R where it used to put x.
"""

_READS = """
    reads = as it was | what the head reads with, W_V, is left as it was | The stream has other coordinates now. How does it find again what it used to read?
    reads = x R | what the head reads with, W_V, meets R from the right | For a reader, the axis that belongs to the stream is the first. On which side does it meet R?
    reads = x R^T | what the head reads with, W_V, meets the inverse of R from the right | For a reader, the stream's axis is the first. On which side does it meet R?
    reads = R x | what the head reads with, W_V, meets R from the left | It has to undo R: write down x R times the new one.
"""


EXERCISE = Exercise(
    about="1.6 turn the stream | medium | 15 minutes | 01-residual-stream#no-privileged-basis",
    spec=spec, body=body, axes="d_head < vocab < d_model",
    inputs={
        "R": lambda size, generator, case: torch.linalg.qr(normal(generator, size["d_model"], size["d_model"]))[0],
        "W_E": "vocab d_model", "W_V": "d_model d_head", "W_O": "d_head d_model", "W_U": "d_model vocab",
    },
    observe=observe, parts=("W_E", "W_V", "W_O", "W_U"),
    names=("token", "number", "observed"), columns=("in the stream", "in the logits"),
    choices="""
    R_is = inverse | the stream is turned by the inverse of R | The new stream was to be x R.
    all_four = as it was | nothing is turned | The stream was to be x R. Start with the first that writes into it.
    all_four = x R | R comes from the right everywhere | For a reader, the axis that belongs to the stream is the first. On which side does it meet R?
    all_four = R x | R comes from the left everywhere | For a writer, the axis that belongs to the stream is the last. On which side does it meet R?
    """
    + _WRITES
    + _WRITES.replace("writes =", "embedding =").replace("what the head writes with, W_O,", "the embedding")
    + _READS
    + _READS.replace("reads =", "unembedding =").replace("what the head reads with, W_V,", "the unembedding"),
)  # fmt: skip
check_turned_stream = checks(EXERCISE, __doc__)
