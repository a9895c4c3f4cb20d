"""What the post on feed-forward layers as attention says, recomputed: a large number Omega in place of a mask."""

import math
import warnings
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from circuitkit import Heads, conversion
from circuitkit_book import theorems
from circuitkit_book.claims.numbers import above_the_mlp, below, largest, normal
from circuitkit_book.claims.paper import multiplications_over_the_mlp
from circuitkit_book.omega import OmegaMLP, omega_mlp

N, D = 20, 30
"""The post's own test sizes."""
FORMATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _omega(omega, W_in, W_out, n_ctx, form: Any = "one_layer", **biases) -> OmegaMLP:
    """The post's layer for any Omega, sensible or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return omega_mlp(W_in, W_out, n_ctx=n_ctx, omega=float(omega), form=form, **biases)


def _silu_error(omega, dtype=torch.float64, scale=1.0, form="one_layer") -> float:
    """Largest error of entrywise SiLU by Omega heads on the post's sizes, for inputs rounded to `dtype`."""
    X, eye = scale * normal(0, N, D), torch.eye(D, dtype=dtype)
    X = X.to(dtype)
    return largest(_omega(omega, eye, eye, N, form)(X).double() - F.silu(X.double()))


def _parts(n_pos=5, d_model=8, d_mlp=12):
    """A small MLP with biases: X, W_in, W_out, b_in, b_out."""
    shapes = (n_pos, d_model), (d_model, d_mlp), (d_mlp, d_model), (d_mlp,), (d_model,)
    return [normal(seed, *shape) for seed, shape in enumerate(shapes)]


def activations() -> list[float]:
    """Certified errors: SiLU and GELU with one head, ReLU at sharpness 1000, GELU with five heads."""
    sums = [
        conversion.head_sum("silu"),
        conversion.head_sum("relu", sharpness=1000.0),
        conversion.head_sum("gelu", 1),
        conversion.head_sum("gelu", 5),
    ]
    return [heads.error for heads in sums]


def smallest_error() -> list[str]:
    """The least error over Omega from 2 to 30 000, in each number format, for inputs of standard deviation 4."""
    omegas = [2.0, 3.0, 5.0, 8.0, 10.0, 14.0, 20.0, 25.0, 100.0, 1000.0, 3e4]
    return [
        below(min(_silu_error(omega, dtype, scale=4.0) for omega in omegas)) for dtype in FORMATS
    ]


def stream_growth() -> float:
    """D' / D of the three-layer construction at the sizes of GPT-3, from a one-column stand-in for its weights."""
    d_model, n_ctx = 12288, 2048
    W_in = torch.ones(1, 1).expand(d_model, 4 * d_model)
    return OmegaMLP(W_in, W_in.T, None, None, n_ctx, 20.0, "three_layers").d_stream / d_model


def both_forms() -> list[bool]:
    """Do three attention layers, and the single one of the update, compute the MLP to 1e-11?"""
    X, W_in, W_out, b_in, b_out = _parts()
    exact = F.silu(X @ W_in + b_in) @ W_out + b_out
    made = [
        _omega(20, W_in, W_out, 5, form, b_in=b_in, b_out=b_out)
        for form in ("three_layers", "one_layer")
    ]
    return [largest(layer(X) - exact) < 1e-11 for layer in made]


def head_formula() -> float:
    """softmax(X Q X^T) X V with 1/sqrt(d_head) inside Q, against the library's heads."""
    X, W_Q, W_K, W_V, W_O = (
        normal(0, 6, 8),
        *(normal(seed, 8, 4) for seed in (1, 2, 3)),
        normal(4, 4, 8),
    )
    head = Heads(("H",), W_Q[None], W_K[None], W_V[None], W_O[None], mask="full")
    formula = (X @ (W_Q @ W_K.T / math.sqrt(4)) @ X.T).softmax(-1) @ X @ (W_V @ W_O)
    return largest(head.results(X)[0] - formula)


def biases_in_weights() -> list[bool]:
    """Are the inner and the outer bias reproduced: on the post's position code, then with one column of ones?"""
    X, W_in, W_out, b_in, b_out = _parts()
    inner, outer = F.silu(X @ W_in + b_in) @ W_out, F.silu(X @ W_in) @ W_out + b_out
    with_inner = _omega(20, W_in, W_out, 5, "three_layers", b_in=b_in)
    with_outer = _omega(20, W_in, W_out, 5, "three_layers", b_out=b_out)
    in_code = [largest(with_inner(X) - inner) < 1e-12, largest(with_outer(X) - outer) < 1e-12]
    V1, V2 = theorems.bias_trick(W_in, b_in, W_out)
    got = (F.silu(torch.cat([X, X.new_ones(5, 1)], 1) @ V1) @ V2)[:, :-1]
    return [*in_code, largest(got - inner) < 1e-12, largest(got - inner - b_out) < 1e-12]


def omega_needed() -> list[float]:
    """The post's bound ln(N / eps) for N = 20, eps = 1e-10, and the least Omega at which other tokens weigh eps."""
    eps, low, high = 1e-10, 0.0, 100.0
    eye = torch.eye(1, dtype=torch.float64)
    X = torch.zeros(N, 1, dtype=torch.float64)
    while high - low > 1e-6:
        omega = (low + high) / 2
        layer = OmegaMLP(eye, eye, None, None, N, omega, "one_layer")
        stream = layer.augment(X)
        row = (stream @ layer.self_matrix() @ stream.T)[0]
        low, high = (low, omega) if float(1 - row.softmax(-1)[0]) <= eps else (omega, high)
    return [math.log(N / eps), high]


def omega_above_entries() -> list[bool]:
    """Scores far below -27: is an ordinary head wrong with Omega = 27 and right with 1000; are SiLU heads right with 27?"""
    scale = 100.0
    silu = _silu_error(27, scale=scale) / scale < 1e-14
    X = (
        2 * normal(0, N, D).abs()
    )  # every score is far below zero, so a bias token at -Omega stands out
    scores = -X @ X.T
    small, large = (_shielded(scores, X, range(N), [N], omega) for omega in (27.0, 1000.0))
    return [not small, large, silu]


def _shielded(scores, X, rows, columns, omega: float) -> bool:
    """Do the tokens of an ordinary head keep their output when -Omega stands at these rows and columns?"""
    allowed = torch.ones(len(X) + 1, len(X) + 1, dtype=torch.bool)
    allowed[torch.tensor(rows)[:, None], torch.tensor(columns)] = False
    W_Q, W_K = theorems.mask_as_weights(allowed, omega)
    pattern = (theorems.direct_sum(scores, 0.0) + (W_Q @ W_K.T).double()).softmax(-1)
    return (
        largest((pattern @ theorems.direct_sum(X, 1.0))[:-1, :-1] - scores.softmax(-1) @ X) < 1e-10
    )


def omega_1000() -> list[str]:
    """The error at Omega = 1000 in each number format."""
    return [below(_silu_error(1000, dtype)) for dtype in FORMATS]


def _entry_row(x: float, omega: float = 20.0):
    """The entrywise head on three tokens, the middle one reading x: its row of scores, and its pattern."""
    eye = torch.eye(1, dtype=torch.float64)
    layer = _omega(omega, eye, eye, 3, "three_layers")
    stream = layer.augment(torch.tensor([[-1.0], [x], [2.0]], dtype=torch.float64))
    row = (stream @ layer.entry_matrix(stream.new_tensor([1, 0, 0, 0, 0, 0])) @ stream.T)[1]
    return row, row.softmax(-1)


def row_of_scores() -> list[float]:
    """Scores of a token that reads 0.7 for a token, itself, another token, and the bias token, with Omega = 20."""
    return _entry_row(0.7)[0].tolist()


def row_of_weights() -> list[float]:
    """Attention of a token that reads ln 3 to itself and to the bias token."""
    return _entry_row(math.log(3))[1][[1, 3]].tolist()


def silu_through_the_skip() -> float:
    """Largest error of x - x (1 - sigmoid(x)), computed by the entrywise heads, against SiLU."""
    return _silu_error(20, form="three_layers")


def linear_step() -> list[bool]:
    """Does a head with the value matrix W write X W, and does the skip connection replace X by X W with W - I?"""
    X, W = normal(0, 5, 8), normal(1, 8, 8)
    layer = _omega(20, W, W, 5)
    stream = layer.augment(X)
    pattern = (stream @ layer.self_matrix() @ stream.T).softmax(-1)[:-1, :-1]
    written, replaced = pattern @ X @ W, X + pattern @ X @ (W - torch.eye(8).double())
    return [largest(result - X @ W) < 1e-12 for result in (written, replaced)]


def split_over_heads() -> bool:
    """Is a full-rank linear map the sum of two heads of half the rank?"""
    X, W_in, W_out, _, _ = _parts(d_mlp=8)
    U, S, Vh = torch.linalg.svd(W_in)
    halves = [(U[:, part] * S[part]) @ Vh[part] for part in (slice(0, 4), slice(4, 8))]
    layer = _omega(20, W_in, W_out, 5)
    stream = layer.augment(X)
    pattern = (stream @ layer.self_matrix() @ stream.T).softmax(-1)[:-1, :-1]
    return largest(sum(pattern @ X @ half for half in halves) - X @ W_in) < 1e-12


def shielding_the_bias_token() -> list[bool]:
    """Do ordinary tokens keep their output if the bias row avoids them, and if they avoid the bias column?"""
    X, W = normal(0, 5, 8), normal(1, 8, 8)
    scores = X @ W @ X.T
    return [_shielded(scores, X, [5], range(5), 200.0), _shielded(scores, X, range(5), [5], 200.0)]


def post_test() -> list[float]:
    """The post's own test: N = 20, D = 30, Omega = 1000, float64; largest errors of its three components: the entrywise heads
    through the skip, a linear map by a head that attends to its own token, an ordinary head that ignores the bias token.
    """
    X, W, QK = normal(0, N, D), normal(1, D, D), normal(2, D, D)
    layer = _omega(1000, W, W, N)
    stream = layer.augment(X)
    own = (stream @ layer.self_matrix() @ stream.T).softmax(-1)[:-1, :-1]
    allowed = torch.ones(N + 1, N + 1, dtype=torch.bool)
    allowed[:-1, -1] = False
    shield, keys = theorems.mask_as_weights(allowed, 2 * 1000.0)
    scores = X @ QK @ X.T
    pattern = (theorems.direct_sum(scores, 0.0) + (shield @ keys.T).double()).softmax(-1)
    head = (pattern @ theorems.direct_sum(X, 1.0))[:-1, :-1] @ W - scores.softmax(-1) @ X @ W
    return [_silu_error(1000, form="three_layers"), largest(own @ X @ W - X @ W), largest(head)]


def _deep(
    omega: float | None, seed: int, dtype: torch.dtype = torch.float32, depth: int = 24
) -> float:
    """Relative error of a random stack of MLPs with skips: computed plainly in `dtype`, or by Omega heads."""
    x = y = normal(seed, 8, 8)
    x = x.to(dtype)
    for i in range(depth):
        A, B = normal(seed + 2 * i + 1, 8, 16) / 3, normal(seed + 2 * i + 2, 16, 8) / 12
        y = y + F.silu(y @ A) @ B
        A, B = A.to(dtype), B.to(dtype)
        x = x + (F.silu(x @ A) @ B if omega is None else _omega(omega, A, B, 8)(x))
    return largest(x.double() - y) / largest(y)


def errors_through_layers() -> list[bool]:
    """After 24 layers in float32, median of nine stacks: at Omega = 20 less than 4 times what plain MLPs lose; at 1000 more than ten."""
    plain = [_deep(None, 100 * stack) for stack in range(9)]
    ratio = [
        sorted(_deep(omega, 100 * stack) / loss for stack, loss in enumerate(plain))[4]
        for omega in (20.0, 1000.0)
    ]
    return [ratio[0] < 4, ratio[1] > 10]


def rank_of_scores() -> int:
    """Rank of the position part of the score matrix for 20 tokens."""
    eye = torch.eye(D, dtype=torch.float64)
    return int(torch.linalg.matrix_rank(_omega(20, eye, eye, N).self_matrix()))


def training_hazards() -> list:
    """Trained 300 steps on what it computes: does decay 1 double the error of plain training, Omega then; dropout 0.1, times 10?"""
    (plain, _), (decayed, omega), (dropped, _) = (
        _trained(*how) for how in ((0.0, 0.0), (1.0, 0.0), (0.0, 0.1))
    )
    return [decayed > 2 * plain, round(omega, 1), dropped > 10 * plain]


def _trained(decay: float, dropout: float) -> tuple[float, float]:
    """Root mean square error, and Omega, after AdamW at 1e-3 on all entries of the one-layer form's matrices."""
    n, d, m = 5, 6, 8
    W_in, W_out = (normal(1, d, m) / d**0.5).float(), (normal(2, m, d) / m**0.5).float()
    layer = _omega(20, W_in, W_out, n)
    reads = [torch.cat([column, column.new_zeros(n + 1)]) for column in W_in.T]
    QK = torch.stack([layer.entry_matrix(-read) for read in reads]).requires_grad_()
    OV = torch.stack(
        [F.pad(torch.outer(read, row), (0, n + 1)) for read, row in zip(reads, W_out, strict=True)]
    )
    adam = torch.optim.AdamW([QK, OV.requires_grad_()], lr=1e-3, weight_decay=decay)
    draw = torch.Generator().manual_seed(0)

    def error(batch: int, rate: float) -> torch.Tensor:
        x = torch.randn(batch, n, d, generator=draw)
        stream = torch.stack([layer.augment(row) for row in x])[:, None]
        pattern = (stream @ QK @ stream.mT).softmax(-1)
        if rate:
            pattern = pattern * (torch.rand(pattern.shape, generator=draw) >= rate) / (1 - rate)
        return (
            ((pattern @ stream @ OV).sum(1)[:, :n, :d] - F.silu(x @ W_in) @ W_out).square().mean()
        )

    for _ in range(300):
        adam.zero_grad()
        error(16, dropout).backward()
        adam.step()
    with torch.no_grad():
        places = QK[:, d : d + n, d : d + n]
        own = places.diagonal(dim1=1, dim2=2).mean()
        others = (places.sum((1, 2)).mean() - n * own) / (n * (n - 1))
        return float(error(64, 0.0).sqrt()), float((own - others) / 2)


def cost_of_heads() -> list[float]:
    """At the sizes of GPT-3, multiplications over those of the MLP: three layers with full matrices, with factors of rank N + 1,
    and with the one-hot part as a mask; width over that of the model; the later single layer with whole patterns, with two keys.
    """
    d_model, n_ctx = 12288, 2048
    W_in = torch.ones(1, 1).expand(d_model, 4 * d_model)
    layer = OmegaMLP(W_in, W_in.T, None, None, n_ctx, 20.0, "three_layers")
    width, length, hidden = layer.d_stream, n_ctx + 1, 4 * d_model

    def product(*sizes: int) -> int:  # of matrices of these sizes, from left to right
        return sizes[0] * sum(a * b for a, b in pairwise(sizes[1:]))

    values = product(length, length, width, width)
    full = product(length, width, width, length) + values
    factors = 2 * product(length, width, length) + product(length, length, length)
    # A head that activates an entry: one column of queries, keys and values. Patterns of the linear heads: times what they write.
    entries = hidden * (product(length, 1, length) + product(length, length, 1))
    linear = 2 * product(length, d_model, hidden)
    linear += product(length, length, hidden) + product(length, length, d_model + hidden)
    costs = [layer.n_heads * full, layer.n_heads * factors, entries + linear]
    mlp = 2 * n_ctx * d_model * hidden
    one_layer = multiplications_over_the_mlp(n_ctx, d_model)
    return [*(cost / mlp for cost in costs), width / d_model, *one_layer]


def attention_only_trained() -> list[float]:
    """Loss above a SiLU MLP's of as many numbers: persistent vectors, mean and interval; and of no numbers in its place, mean."""
    return [*above_the_mlp("persistent"), above_the_mlp("nothing")[0]]
