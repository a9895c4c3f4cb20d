"""Random heads, and one head computed by loops."""

import math

import pytest
import torch

from circuitkit import Heads


@pytest.fixture(scope="session")
def draw():
    """`draw(n, d_model, d_head, ...)`: float64 heads with random weights and biases."""

    def make(n, d_model, d_head, *, seed=0, bias=True, layer=0, prefix="", **fields):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

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


def normalized(row, gain, eps, head):
    if eps is not None:
        row = row / (row.pow(2).mean() + eps).sqrt()
    return row if gain is None else row * gain[head]


def dot(q, k, heads, dst, src):
    """The product of a query and a key; pairs of rotated dimensions are complex numbers."""
    if heads.turn is None:
        return float(q @ k)
    total = 0.0
    planes = heads.turn.planes.tolist()
    for (i, j), angle in zip(planes, heads.turn.angles.tolist(), strict=True):
        at_query = complex(q[i], q[j]) * complex(math.cos(dst * angle), math.sin(dst * angle))
        at_key = complex(k[i], k[j]) * complex(math.cos(src * angle), math.sin(src * angle))
        total += heads.turn.gain**2 * (at_query * at_key.conjugate()).real
    rotated = [dimension for plane in planes for dimension in plane]
    return total + sum(float(q[i] * k[i]) for i in range(heads.d_head) if i not in rotated)


@pytest.fixture(scope="session")
def slow():
    """Scores, patterns and results of all heads on one row, one pair of tokens at a time."""

    def bias(heads, kind, head):
        value = getattr(heads, f"b_{kind}")
        return 0.0 if value is None else value[head]

    def is_allowed(heads, dst, src):
        by_mask = {"causal": src <= dst, "full": True, "self_or_first": src in (0, dst)}
        is_near = heads.window is None or dst - src < heads.window
        return by_mask[heads.mask] and is_near

    def compute(heads, x):
        n_pos = len(x)
        scores = torch.zeros(len(heads), n_pos, n_pos, dtype=torch.float64)
        pattern, results = torch.zeros_like(scores), torch.zeros(len(heads), n_pos, x.shape[1])
        results = results.double()
        for head in range(len(heads)):
            q, k, v = (
                x @ getattr(heads, f"W_{kind}")[head] + bias(heads, kind, head) for kind in "QKV"
            )
            for dst in range(n_pos):
                query = normalized(q[dst], heads.gain_Q, heads.norm_eps, head)
                for src in range(n_pos):
                    key = normalized(k[src], heads.gain_K, heads.norm_eps, head)
                    score = dot(query, key, heads, dst, src) / heads.scale
                    if heads.cap is not None:
                        score = heads.cap * math.tanh(score / heads.cap)
                    scores[head, dst, src] = score
                sources = [src for src in range(n_pos) if is_allowed(heads, dst, src)]
                weights = [math.exp(scores[head, dst, src]) for src in sources]
                for src, weight in zip(sources, weights, strict=True):
                    pattern[head, dst, src] = weight / sum(weights)
                    moved = v[src] @ heads.W_O[head]
                    results[head, dst] += weight / sum(weights) * moved
        return scores, pattern, results

    return compute
