"""Exercises of chapter 2, on QK and OV circuits."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Result, check
from circuitkit.exercises._exercise import Case, Exercise, Mistake, built, normal, sizes

_PAGE = "02-qk-and-ov-circuits"


# --- 2.1 the attention pattern -------------------------------------------------------------------------------------


def _pattern_spec(x: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    pos, d_head = x.shape[0], W_Q.shape[1]
    pattern = torch.zeros(pos, pos, dtype=torch.float64)
    for dst in range(pos):
        weights = [
            torch.exp(torch.dot(x[dst] @ W_Q, x[src] @ W_K) / torch.tensor(float(d_head)).sqrt())
            for src in range(dst + 1)
        ]
        for src in range(dst + 1):
            pattern[dst, src] = weights[src] / sum(weights)
    return pattern


def _pattern(x, W_Q, W_K, *, scale=None, mask="before", dim=-1, swap=False):
    """The attention pattern with one thing wrong."""
    q, k = (x @ W_K, x @ W_Q) if swap else (x @ W_Q, x @ W_K)
    scores = q @ k.T / (W_Q.shape[1] ** 0.5 if scale is None else scale)
    future = torch.ones_like(scores).triu(1).bool()
    if mask == "after":
        return scores.softmax(dim).masked_fill(future, 0.0)
    if mask == "zero":
        return scores.masked_fill(future, 0.0).softmax(dim)
    if mask == "past":
        future = future.T
    return scores.softmax(dim) if mask == "none" else scores.masked_fill(future, -torch.inf).softmax(dim)


def _one_ahead(x, W_Q, W_K):
    scores = x @ W_Q @ (x @ W_K).T / W_Q.shape[1] ** 0.5
    return scores.masked_fill(torch.ones_like(scores).triu(2).bool(), -torch.inf).softmax(-1)


def _draw_pattern(generator: torch.Generator, step: int) -> Case:
    pos, d_model, d_head = sizes(generator, step, 3)
    return {
        "x": normal(generator, pos, d_model),
        "W_Q": normal(generator, d_model, d_head),
        "W_K": normal(generator, d_model, d_head),
    }


PATTERN = Exercise(
    number="2.1",
    title="the attention pattern",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#two-parts-that-do-not-touch",
    spec=_pattern_spec,
    draw=_draw_pattern,
    names=("destination", "source"),
    mistakes=(
        Mistake(
            "the scores are not divided by sqrt(d_head)",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, scale=1.0),
            "Without the division the softmax is too sharp, and the sharper the wider the head.",
        ),
        Mistake(
            "the scores are divided by sqrt(d_model)",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, scale=W_Q.shape[0] ** 0.5),
            "A score sums over the d_head numbers of a query, not over the d_model numbers of the stream.",
        ),
        Mistake(
            "the scores are divided by d_head, without the root",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, scale=float(W_Q.shape[1])),
            "The scores of random vectors grow like the root of their length.",
        ),
        Mistake(
            "the mask comes after the softmax",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, mask="after"),
            "The future took its share before it was removed, so the rows no longer sum to 1.",
        ),
        Mistake(
            "masked scores are 0 instead of minus infinity",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, mask="zero"),
            "exp(0) = 1: the future still gets attention. What must vanish after exp?",
        ),
        Mistake(
            "there is no causal mask",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, mask="none"),
            "A destination may look at itself and at what came before it.",
        ),
        Mistake(
            "the mask hides the past instead of the future",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, mask="past"),
            "Rows are destinations. Which triangle is the future of a row?",
        ),
        Mistake(
            "the softmax runs over destinations",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, dim=0),
            "Each destination shares out one unit of attention: rows sum to 1, columns do not.",
        ),
        Mistake(
            "queries and keys are swapped",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, swap=True),
            "The destination asks with W_Q; the source answers with W_K.",
        ),
        Mistake(
            "there is neither mask nor scale",
            lambda x, W_Q, W_K: _pattern(x, W_Q, W_K, mask="none", scale=1.0),
            "Queries, keys and softmax are in place. What else happens to scores before the softmax? Two things.",
        ),
        Mistake(
            "the mask lets one place of the future through",
            lambda x, W_Q, W_K: _one_ahead(x, W_Q, W_K),
            "Which diagonal is the destination itself? What lies above it is the future, all of it.",
        ),
    ),
)


def check_attention_pattern(answer) -> Result:
    """Exercise 2.1. `answer(x, W_Q, W_K)` returns the causal attention pattern of one head.

    **Shapes**: `x [pos, d_model]`, `W_Q` and `W_K [d_model, d_head]`; the result is `[destination, source]`.
    """
    return check(PATTERN, answer)


# --- 2.2 a head is A (x) W -----------------------------------------------------------------------------------------


def _kron_spec(A: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    pos, d_model = A.shape[0], W_V.shape[0]
    W_OV = W_V @ W_O
    big = torch.zeros(pos * d_model, pos * d_model, dtype=torch.float64)
    for dst in range(pos):
        for src in range(pos):
            for out in range(d_model):
                for read in range(d_model):
                    big[dst * d_model + out, src * d_model + read] = A[dst, src] * W_OV[read, out]
    return big


def _draw_kron(generator: torch.Generator, step: int) -> Case:
    pos, d_model, d_head = sizes(generator, step % 4, 3)
    return _kron_case(generator, pos, d_model, d_head)


def _kron_case(generator: torch.Generator, pos: int, d_model: int, d_head: int) -> Case:
    return {
        "A": normal(generator, pos, pos).tril().exp().tril(),
        "W_V": normal(generator, d_model, d_head),
        "W_O": normal(generator, d_head, d_model),
    }


KRONECKER = Exercise(
    number="2.2",
    title="one matrix for the whole head",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#two-parts-that-do-not-touch",
    spec=_kron_spec,
    draw=_draw_kron,
    square=lambda generator: _kron_case(generator, 3, 3, 3),
    names=("row", "column"),
    mistakes=(
        Mistake(
            "W_OV is not transposed",
            lambda A, W_V, W_O: torch.kron(A, (W_V @ W_O).contiguous()),
            "The big matrix multiplies a column, x.flatten(), from the left; W_OV multiplies a row from the right.",
        ),
        Mistake(
            "the two factors are in the wrong order",
            lambda A, W_V, W_O: torch.kron((W_V @ W_O).T.contiguous(), A),
            "x.flatten() runs through the dimensions of position 0 first: positions are the outer blocks.",
        ),
        Mistake(
            "the factors are in the wrong order, and W_OV is not transposed",
            lambda A, W_V, W_O: torch.kron((W_V @ W_O).contiguous(), A),
            "Two things. x.flatten() runs through the dimensions of position 0 first: which factor makes the outer blocks? "
            "And x.flatten() is a column, while W_OV multiplies a row.",
        ),
        Mistake(
            "the pattern is transposed",
            lambda A, W_V, W_O: torch.kron(A.T.contiguous(), (W_V @ W_O).T.contiguous()),
            "A is [destination, source], and the rows of the big matrix are destinations.",
        ),
        Mistake(
            "the product is W_O W_V",
            lambda A, W_V, W_O: torch.kron(A, (W_O @ W_V).T.contiguous()),
            "Rows are read first and written last: x W_V W_O. The other order lives in head space, not in the stream.",
            read="conventions",
        ),
    ),
)


def check_head_as_one_matrix(answer) -> Result:
    """Exercise 2.2. `answer(A, W_V, W_O)` returns the matrix $M$ with $M\\,x_{flat} = (A\\,x\\,W_V W_O)_{flat}$.

    **Shapes**: `A [pos, pos]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]`; the result is square, of
    `pos * d_model` rows, for `x.flatten()` of `x [pos, d_model]`.
    """
    return check(KRONECKER, answer)


# --- 2.3 a head that copies ----------------------------------------------------------------------------------------


def _full_ov(answer, W_E: Tensor, W_U: Tensor) -> Tensor | None:
    d_model = W_E.shape[1]
    matrices = built(answer(W_E, W_U), W_V=(d_model, "d_head"), W_O=("d_head", d_model))
    if matrices is None:
        return None
    W_V, W_O = matrices
    return W_E @ W_V @ W_O @ W_U


def _draw_vocabulary(generator: torch.Generator, step: int) -> Case:
    vocab, d_model = sorted(sizes(generator, step, 2))
    return {"W_E": normal(generator, vocab, d_model), "W_U": normal(generator, d_model, vocab)}


def _pinv_pair(W_E: Tensor, W_U: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.pinv(W_E), torch.linalg.pinv(W_U)


COPYING_HEAD = Exercise(
    number="2.3",
    title="a head that copies, by hand",
    minutes=20,
    difficulty="medium",
    read=f"{_PAGE}#what-a-head-says-the-ov-circuit",
    spec=lambda W_E, W_U: torch.eye(W_E.shape[0], dtype=torch.float64),
    draw=_draw_vocabulary,
    observe=_full_ov,
    tolerance=1e-5,  # of matrices in float32
    names=("source token", "raised token"),
    mistakes=(
        Mistake(
            "the embedding is undone by its transpose",
            lambda W_E, W_U: (W_E.T, W_U.T),
            "A transpose undoes a matrix only when its rows are orthonormal, and these are not. What undoes any "
            "matrix of full rank?",
        ),
        Mistake(
            "the embedding alone is undone by its transpose",
            lambda W_E, W_U: (W_E.T, torch.linalg.pinv(W_U)),
            "Your W_O is right. A transpose undoes a matrix only when its rows are orthonormal; what did you use for W_U?",
        ),
        Mistake(
            "the unembedding alone is undone by its transpose",
            lambda W_E, W_U: (torch.linalg.pinv(W_E), W_U.T),
            "Your W_V is right. A transpose undoes a matrix only when its columns are orthonormal; what did you use for W_E?",
        ),
        Mistake(
            "the head lowers what it sees",
            lambda W_E, W_U: (torch.linalg.pinv(W_E), -torch.linalg.pinv(W_U)),
            "Its eigenvalues are all -1: this is the anti-copying head.",
        ),
        Mistake(
            "the head raises the next token of the vocabulary",
            lambda W_E, W_U: (torch.linalg.pinv(W_E), torch.linalg.pinv(W_U).roll(-1, 0)),
            "Row b of the table has to have its one at column b. Is something shifted by one?",
        ),
        Mistake(
            "the head copies the stream, not the token",
            lambda W_E, W_U: (
                torch.eye(W_E.shape[1], dtype=W_E.dtype),
                torch.eye(W_E.shape[1], dtype=W_E.dtype),
            ),
            "Passing x on unchanged raises b only where W_E W_U does, and nobody has promised that.",
        ),
    ),
)


def check_copying_head(answer) -> Result:
    """Exercise 2.3. `answer(W_E, W_U)` returns `W_V, W_O` whose full OV circuit $W_E W_V W_O W_U$ is the identity.

    **Shapes**: `W_E [vocab, d_model]`, `W_U [d_model, vocab]`, both of full rank, `vocab < d_model`; `W_V
    [d_model, d_head]` and `W_O [d_head, d_model]` with any `d_head`.
    """
    return check(COPYING_HEAD, answer)


# --- 2.4 the copying score -----------------------------------------------------------------------------------------


def _score_spec(W_E: Tensor, W_V: Tensor, W_O: Tensor, W_U: Tensor) -> Tensor:
    table = W_E @ W_V @ W_O @ W_U
    values = torch.linalg.eigvals(table)
    return values.real.sum() / values.abs().sum()


def _draw_score(generator: torch.Generator, step: int) -> Case:
    d_head, d_model, vocab = sorted(sizes(generator, step, 3))
    return _score_case(generator, d_head, d_model, vocab)


def _score_case(generator: torch.Generator, d_head: int, d_model: int, vocab: int) -> Case:
    return {
        "W_E": normal(generator, vocab, d_model),
        "W_V": normal(generator, d_model, d_head),
        "W_O": normal(generator, d_head, d_model),
        "W_U": normal(generator, d_model, vocab),
    }


def _ratio(values: Tensor) -> Tensor:
    return values.real.sum() / values.abs().sum()


def _real_sizes(values: Tensor) -> Tensor:
    return values.real.sum() / values.real.abs().sum()


COPYING_SCORE = Exercise(
    number="2.4",
    title="the copying score without the table",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#what-a-head-says-the-ov-circuit",
    spec=_score_spec,
    draw=_draw_score,
    square=lambda generator: _score_case(generator, 3, 3, 3),
    tolerance=1e-6,
    mistakes=(
        Mistake(
            "singular values instead of eigenvalues",
            lambda W_E, W_V, W_O, W_U: _ratio(torch.linalg.svdvals(W_O @ W_U @ W_E @ W_V)),
            "Singular values are never negative, so the score is always 1. Does the head send a mixture to itself?",
        ),
        Mistake(
            "the eigenvalues are those of W_OV alone",
            lambda W_E, W_V, W_O, W_U: _ratio(torch.linalg.eigvals(W_O @ W_V)),
            "The question is about tokens: what W_E puts in and what W_U reads out belong to it.",
        ),
        Mistake(
            "the absolute value is taken of the sum",
            lambda W_E, W_V, W_O, W_U: (
                torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V).sum().abs()
                / torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V).abs().sum()
            ),
            "A head that lowers what it sees has to score below 0.",
        ),
        Mistake(
            "the diagonal of the table instead of its eigenvalues",
            lambda W_E, W_V, W_O, W_U: (
                (W_E @ W_V @ W_O @ W_U).diagonal().sum() / (W_E @ W_V @ W_O @ W_U).diagonal().abs().sum()
            ),
            "The trace is the sum of the eigenvalues, but the sizes of the diagonal are not the sizes of the "
            "eigenvalues.",
        ),
        Mistake(
            "the sizes are those of the real parts",
            lambda W_E, W_V, W_O, W_U: _real_sizes(torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V)),
            "The size of a complex number counts its imaginary part, too.",
        ),
        Mistake(
            "the share of positive eigenvalues",
            lambda W_E, W_V, W_O, W_U: (torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V).real > 0).double().mean(),
            "That is another number of the chapter, between 0 and 1. The score weighs eigenvalues and goes down to -1.",
        ),
        Mistake(
            "eigenvalues are counted, not weighed",
            lambda W_E, W_V, W_O, W_U: torch.linalg.eigvals(W_O @ W_U @ W_E @ W_V).real.sign().mean(),
            "A tiny eigenvalue should not count as much as a large one.",
        ),
        Mistake(
            "the square matrix is built from the wrong end",
            lambda W_E, W_V, W_O, W_U: _ratio(torch.linalg.eigvals(W_V.T @ W_E.T @ W_U.T @ W_V)),
            "Turn the product around as a whole: AB and BA share eigenvalues when A is the first part and B the rest.",
        ),
    ),
)


def check_copying_score(answer) -> Result:
    """Exercise 2.4. `answer(W_E, W_V, W_O, W_U)` returns $\\sum_i \\operatorname{Re}\\lambda_i / \\sum_i |\\lambda_i|$.

    **Shapes**: `W_E [vocab, d_model]`, `W_V [d_model, d_head]`, `W_O [d_head, d_model]`, `W_U [d_model, vocab]`; the
    result is one number, from the eigenvalues $\\lambda$ of the full OV circuit.
    """
    return check(COPYING_SCORE, answer)


# --- 2.5 composition -----------------------------------------------------------------------------------------------


def _composition_spec(W_OV: Tensor, W_QK: Tensor) -> Tensor:
    # A key of the later head is read from what the earlier one wrote: scores are x_dst W_QK (x_src W_OV)^T.
    product = torch.zeros(W_QK.shape[0], W_OV.shape[0], dtype=torch.float64)
    for i in range(W_QK.shape[0]):
        for j in range(W_OV.shape[0]):
            product[i, j] = sum(W_QK[i, m] * W_OV[j, m] for m in range(W_OV.shape[1]))
    return product.square().sum().sqrt() / (W_QK.square().sum().sqrt() * W_OV.square().sum().sqrt())


def _draw_composition(generator: torch.Generator, step: int) -> Case:
    d_model = 3 + step
    low = 2 + step // 3
    make = [normal(generator, d_model, low) @ normal(generator, low, d_model) for _ in range(2)]
    return {"W_OV": make[0], "W_QK": make[1]}


K_COMPOSITION = Exercise(
    number="2.5",
    title="K-composition",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#heads-in-a-row-three-repairs-to-the-notes",
    spec=_composition_spec,
    draw=_draw_composition,
    mistakes=(
        Mistake(
            "W_QK is not transposed: this is Q-composition",
            lambda W_OV, W_QK: (W_OV @ W_QK).norm() / (W_OV.norm() * W_QK.norm()),
            "The left side of W_QK reads destinations (queries), its right side sources (keys). Which side should "
            "meet what the earlier head wrote?",
        ),
        Mistake(
            "the later head comes first",
            lambda W_OV, W_QK: (W_QK @ W_OV).norm() / (W_OV.norm() * W_QK.norm()),
            "The earlier head writes with the right side of W_OV; that is the side the later head has to meet.",
        ),
        Mistake(
            "W_OV is transposed",
            lambda W_OV, W_QK: (W_OV.T @ W_QK).norm() / (W_OV.norm() * W_QK.norm()),
            "Then the two meet where the early head reads. A row y enters W_OV on its left and leaves it on its right.",
        ),
        Mistake(
            "the norm of the product is not divided by the norms",
            lambda W_OV, W_QK: (W_OV @ W_QK.T).norm(),
            "Large matrices would always compose. A score compares the product with what its factors allow.",
        ),
        Mistake(
            "the largest singular value instead of the Frobenius norm",
            lambda W_OV, W_QK: (
                torch.linalg.matrix_norm(W_OV @ W_QK.T, 2)
                / (torch.linalg.matrix_norm(W_OV, 2) * torch.linalg.matrix_norm(W_QK, 2))
            ),
            "The paper's score counts all directions, not only the strongest.",
        ),
        Mistake(
            "only one factor is divided out",
            lambda W_OV, W_QK: (W_OV @ W_QK.T).norm() / W_QK.norm(),
            "Doubling either head must leave the score as it is.",
        ),
    ),
)


def check_k_composition(answer) -> Result:
    """Exercise 2.5. `answer(W_OV, W_QK)` returns the K-composition score of an early OV and a late QK circuit.

    **Shapes**: both `[d_model, d_model]`; the result is one number between 0 and 1.
    """
    return check(K_COMPOSITION, answer)


# --- 2.6 a virtual head --------------------------------------------------------------------------------------------


def _virtual_spec(A_1: Tensor, W_1: Tensor, A_2: Tensor, W_2: Tensor) -> Tensor:
    x = normal(torch.Generator().manual_seed(3), A_1.shape[0], W_1.shape[0])
    pos, out = A_1.shape[0], torch.zeros(A_1.shape[0], W_1.shape[0], dtype=torch.float64)
    for dst in range(pos):
        for middle in range(pos):
            for src in range(pos):
                out[dst] += A_2[dst, middle] * A_1[middle, src] * ((x[src] @ W_1) @ W_2)
    return out


def _run_virtual(answer, A_1: Tensor, W_1: Tensor, A_2: Tensor, W_2: Tensor) -> Tensor | None:
    matrices = built(answer(A_1, W_1, A_2, W_2), A=tuple(A_1.shape), W=tuple(W_1.shape))
    if matrices is None:
        return None
    A, W = matrices
    return A @ normal(torch.Generator().manual_seed(3), A_1.shape[0], W_1.shape[0]) @ W


def _draw_virtual(generator: torch.Generator, step: int) -> Case:
    pos, d_model = sizes(generator, step, 2, smallest=3)
    patterns = [normal(generator, pos, pos).masked_fill(torch.ones(pos, pos).triu(1).bool(), -torch.inf) for _ in "12"]
    return {
        "A_1": patterns[0].softmax(-1),
        "W_1": normal(generator, d_model, d_model),
        "A_2": patterns[1].softmax(-1),
        "W_2": normal(generator, d_model, d_model),
    }


VIRTUAL_HEAD = Exercise(
    number="2.6",
    title="a virtual head",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#heads-in-a-row-three-repairs-to-the-notes",
    spec=_virtual_spec,
    draw=_draw_virtual,
    observe=_run_virtual,
    tolerance=1e-5,  # of matrices in float32
    names=("destination", "dimension"),
    mistakes=(
        Mistake(
            "the patterns are in the order of the layers",
            lambda A_1, W_1, A_2, W_2: (A_1 @ A_2, W_1 @ W_2),
            "The later head moves what the earlier one has already moved, and patterns act from the left.",
        ),
        Mistake(
            "the OV matrices are in the order of the columns",
            lambda A_1, W_1, A_2, W_2: (A_2 @ A_1, W_2 @ W_1),
            "Rows meet the earlier matrix first: x W_1 W_2. The framework paper, which writes columns, has the "
            "other order.",
            read="conventions",
        ),
        Mistake(
            "both products are turned around",
            lambda A_1, W_1, A_2, W_2: (A_1 @ A_2, W_2 @ W_1),
            "Follow one row of x: which matrix does it meet first, and which pattern moves it last?",
        ),
        Mistake(
            "the patterns are multiplied entry by entry",
            lambda A_1, W_1, A_2, W_2: (A_2 * A_1, W_1 @ W_2),
            "The information goes through a position in the middle; sum over all of them.",
        ),
        Mistake(
            "the two heads are added, not composed",
            lambda A_1, W_1, A_2, W_2: (A_2 + A_1, W_1 + W_2),
            "Heads side by side add up; a virtual head is one head reading what another wrote.",
        ),
    ),
)


def check_virtual_head(answer) -> Result:
    """Exercise 2.6. `answer(A_1, W_1, A_2, W_2)` returns `A, W` of the head that head 2 reading head 1 amounts to.

    **Shapes**: patterns `[pos, pos]`, OV circuits `[d_model, d_model]`; `A` and `W` have the same shapes.
    """
    return check(VIRTUAL_HEAD, answer)


EXERCISES = (PATTERN, KRONECKER, COPYING_HEAD, COPYING_SCORE, K_COMPOSITION, VIRTUAL_HEAD)
