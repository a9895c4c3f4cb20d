"""Random heads, and tiny models with every parameter drawn at random, biases and gains included."""

import math

import pytest
import torch

from circuitkit import Heads
from tests.support import tiny_models

SIZES = {
    "d_model": 24,
    "d_head": 5,
    "n_layers": 2,
    "n_ctx": 13,
    "n_heads": 3,
    "d_vocab": 37,
    "d_mlp": 29,
}


@pytest.fixture(scope="session")
def boot():
    return lambda **changes: tiny_models.boot(**SIZES | changes)


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def draw():
    """`draw(n, d_model, d_head, ...)`: float64 heads with random weights and biases."""

    def make(n, d_model, d_head, *, seed=0, bias=True, layer=0, prefix="", **fields):
        g = torch.Generator().manual_seed(seed)
        random = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
        biases = {f"b_{kind}": random(n, d_head) for kind in "QKV"} if bias else {}
        return Heads(
            names=tuple(f"{prefix}L{layer}H{i}" for i in range(n)),
            W_Q=random(n, d_model, d_head),
            W_K=random(n, d_model, d_head),
            W_V=random(n, d_model, d_head),
            W_O=random(n, d_head, d_model),
            layers=(layer,) * n,
            **biases,
            **fields,
        )

    return make


@pytest.fixture(scope="session")
def slow():
    """One head on one row, one number at a time: `slow(head, x)` gives its scores, pattern and result as lists."""

    def product(row, matrix, bias):
        columns = range(matrix.shape[1])
        return [
            sum(float(row[i]) * float(matrix[i][j]) for i in range(len(row))) + bias[j]
            for j in columns
        ]

    def allowed(mask, dst, src):
        return {"causal": src <= dst, "full": True, "self_or_first": src in (0, dst)}[mask]

    def one(head, x):
        (W_Q,), (W_K,), (W_V,), (W_O,) = head.W_Q, head.W_K, head.W_V, head.W_O
        width, n_pos = W_Q.shape[1], len(x)
        biases = [
            [0.0] * width if b is None else b[0].tolist() for b in (head.b_Q, head.b_K, head.b_V)
        ]
        q, k, v = (
            [product(row, matrix, bias) for row in x]
            for matrix, bias in zip((W_Q, W_K, W_V), biases, strict=True)
        )
        scores, pattern, result = [], [], []
        for dst in range(n_pos):
            scores.append(
                [
                    sum(a * b for a, b in zip(q[dst], k[s], strict=True)) / head.scale
                    for s in range(n_pos)
                ]
            )
            top = max(s for src, s in enumerate(scores[-1]) if allowed(head.mask, dst, src))
            grown = [
                math.exp(s - top) * allowed(head.mask, dst, src) for src, s in enumerate(scores[-1])
            ]
            pattern.append([value / sum(grown) for value in grown])
            z = [sum(pattern[-1][src] * v[src][d] for src in range(n_pos)) for d in range(width)]
            result.append(product(z, W_O, [0.0] * W_O.shape[1]))
        return scores, pattern, result

    return one
