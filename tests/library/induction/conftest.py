"""Tiny models with every parameter drawn at random, and a forward pass in plain loops that can leave paths out."""

import math

import numpy as np
import pytest

from tests.support import tiny_models

SIZES = {
    "d_model": 14,
    "d_head": 5,
    "n_layers": 3,
    "n_ctx": 16,
    "n_heads": 2,
    "d_vocab": 23,
    "d_mlp": 11,
}


def _boot(**changes):
    return tiny_models.boot(size=0.5, **SIZES | changes).requires_grad_(False)


@pytest.fixture(scope="session")
def boot():
    return _boot


@pytest.fixture(scope="session")
def plain():
    """Three layers of attention, biases but no norms."""
    return _boot()


@pytest.fixture(scope="session")
def with_norm():
    """Three layers with LayerNorm and MLPs."""
    return _boot(attn_only=False, normalization_type="LN", seed=1)


class Slow:
    """Native models in numpy float64, one row at a time; heads and paths left out by definition, not by hooks."""

    def __init__(self, model):
        self.w = {name: value.double().numpy() for name, value in model.state_dict().items()}
        self.n_layers, self.n_heads = model.cfg.n_layers, model.cfg.n_heads
        self.kv = model.cfg.n_key_value_heads or model.cfg.n_heads

    def norm(self, x, name):
        if f"{name}.weight" not in self.w:
            return x
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def project(self, x, layer, head, kind):
        at = f"blocks.{layer}.attn.{kind.lower()}"
        count = self.n_heads if kind == "Q" else self.kv
        row = head if kind == "Q" else head * self.kv // self.n_heads
        weight = np.split(self.w[f"{at}.weight"], count)[row]
        return (
            self.norm(x, f"blocks.{layer}.ln1") @ weight.T
            + np.split(self.w[f"{at}.bias"], count)[row]
        )

    def run(self, tokens, heads=(), paths=()):
        """Logits, patterns and values; `heads` are (layer, head), `paths` are (earlier, later, kind)."""
        x = np.stack(
            [
                self.w["embed.weight"][t] + self.w["pos_embed.weight"][i]
                for i, t in enumerate(tokens)
            ]
        )
        wrote, patterns, values = {}, {}, {}
        for layer in range(self.n_layers):
            out = np.split(self.w[f"blocks.{layer}.attn.o.weight"].T, self.n_heads)
            for head in range(self.n_heads):
                here = {}
                for kind in "QKV":
                    cut = [wrote[a] for a, b, k in paths if b == (layer, head) and k == kind]
                    here[kind] = self.project(x - sum(cut, np.zeros_like(x)), layer, head, kind)
                pattern = np.zeros((len(tokens), len(tokens)))
                for dst in range(len(tokens)):
                    score = [
                        here["Q"][dst] @ here["K"][src] / math.sqrt(here["Q"].shape[1])
                        for src in range(dst + 1)
                    ]
                    weight = np.exp(np.array(score) - max(score))
                    pattern[dst, : dst + 1] = weight / weight.sum()
                patterns[layer, head], values[layer, head] = pattern, here["V"]
                wrote[layer, head] = pattern @ here["V"] @ out[head] * ((layer, head) not in heads)
            x = (
                x
                + sum(wrote[layer, head] for head in range(self.n_heads))
                + self.w[f"blocks.{layer}.attn.o.bias"]
            )
            if f"blocks.{layer}.mlp.in.weight" in self.w:
                read = self.norm(x, f"blocks.{layer}.ln2")
                hidden = (
                    read @ self.w[f"blocks.{layer}.mlp.in.weight"].T
                    + self.w[f"blocks.{layer}.mlp.in.bias"]
                )
                hidden = hidden * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(
                    hidden
                )
                x = (
                    x
                    + hidden @ self.w[f"blocks.{layer}.mlp.out.weight"].T
                    + self.w[f"blocks.{layer}.mlp.out.bias"]
                )
        logits = self.norm(x, "ln_final") @ self.w["unembed.weight"].T + self.w["unembed.bias"]
        return logits, patterns, values


@pytest.fixture(scope="session")
def slow():
    return Slow
