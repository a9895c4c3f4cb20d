"""Tiny models with every parameter drawn at random, and a slow forward pass that shares nothing with the library."""

import math

import pytest
import torch

from tests.support import tiny_models

SIZES = {
    "d_model": 22,
    "d_head": 4,
    "n_layers": 2,
    "n_ctx": 11,
    "n_heads": 3,
    "d_vocab": 37,
    "d_mlp": 29,
}


def _boot(**changes):
    return tiny_models.boot(**SIZES | changes)


MODELS = {
    "attention only": {},
    "no biases": {"bias": False},
    "LN": {"attn_only": False, "normalization_type": "LN"},
    "LN, final RMS": {"attn_only": False, "normalization_type": "LN", "final_rms": True},
    "LNPre": {"attn_only": False, "normalization_type": "LNPre"},
    "RMS, gated, rotary": {
        "attn_only": False,
        "normalization_type": "RMS",
        "gated_mlp": True,
        "act_fn": "silu",
        "positional_embedding_type": "rotary",
    },
    "no layers": {"n_layers": 0},
}
# transformer-lens computes an RMS norm, and a norm without gain, in float32 whatever the model's dtype.
TOLERANCE = {"LN, final RMS": 2e-6, "LNPre": 2e-6, "RMS, gated, rotary": 1e-5}


@pytest.fixture(scope="session")
def boot():
    return _boot


@pytest.fixture(scope="session", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def model(kind):
    return _boot(**MODELS[kind])


@pytest.fixture(scope="session")
def tolerance(kind):
    return TOLERANCE.get(kind, 1e-12)


@pytest.fixture(scope="session")
def plain():
    return _boot()


@pytest.fixture(scope="session")
def with_norm():
    return _boot(**MODELS["LN"])


@pytest.fixture(scope="session")
def tokens():
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory):
    """A random GPT-2 saved to a folder and loaded from there; float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    original = GPT2LMHeadModel(GPT2Config(**tiny_models.GPT2)).eval()
    return tiny_models.from_folder(tmp_path_factory.mktemp("gpt2"), original)


def normalise(x, kind, weights, name, final_rms=False):
    """`(normalised row, divisor)`, number by number; the divisor is None without a norm."""
    if kind is None:
        return x, None
    values = x.tolist()
    if not (kind == "RMS" or final_rms):
        mean = sum(values) / len(values)
        values = [value - mean for value in values]
    divisor = math.sqrt(sum(value**2 for value in values) / len(values) + 1e-5)
    out = torch.tensor([value / divisor for value in values], dtype=x.dtype)
    out = out * weights.get(f"{name}.weight", 1.0) + weights.get(f"{name}.bias", 0.0)
    return out, divisor


def rotate(x, position):
    """Pairs (2i, 2i+1) turned by position / 10000^(2i / d_head); the angle in float32, as transformer-lens has it."""
    out = x.clone()
    for i in range(0, len(x), 2):
        angle = torch.tensor(float(position)) * (1.0 / 10000 ** torch.tensor(i / len(x)))
        c, s = angle.cos().item(), angle.sin().item()
        out[i], out[i + 1] = x[i] * c - x[i + 1] * s, x[i + 1] * c + x[i] * s
    return out


def activation(name, value):
    value = value.item()
    return (
        value / (1 + math.exp(-value))
        if name == "silu"
        else value * (1 + math.erf(value / math.sqrt(2))) / 2
    )


@pytest.fixture(scope="session")
def slow():
    """`slow(model, row)`: the parts of one row by name, the final divisors and the logits, position by position."""

    def run(model, row):
        w, cfg = {name: t.detach() for name, t in model.state_dict().items()}, model.cfg
        d, kind, n_pos = cfg.d_head, cfg.normalization_type, len(row)
        parts = {"embed": torch.stack([w["embed.weight"][t] for t in row])}
        if "pos_embed.weight" in w:
            parts["pos"] = w["pos_embed.weight"][:n_pos].clone()
        x = sum(parts.values())
        for layer in range(cfg.n_layers):
            p, heads = f"blocks.{layer}.", []
            y = [normalise(row, kind, w, p + "ln1")[0] for row in x]
            for h in range(cfg.n_heads):
                rows = slice(h * d, h * d + d)
                q, k, v = (
                    [
                        w[f"{p}attn.{part}.weight"][rows] @ at + w[f"{p}attn.{part}.bias"][rows]
                        for at in y
                    ]
                    for part in "qkv"
                )
                if "pos_embed.weight" not in w:
                    q, k = ([rotate(at, i) for i, at in enumerate(side)] for side in (q, k))
                out = []
                for dst in range(n_pos):
                    grown = [
                        math.exp(float(q[dst] @ k[src]) / math.sqrt(d)) for src in range(dst + 1)
                    ]
                    z = sum(g / sum(grown) * v[src] for src, g in enumerate(grown))
                    out.append(w[p + "attn.o.weight"][:, rows] @ z)
                heads.append(torch.stack(out))
                parts[f"L{layer}H{h}"] = heads[-1]
            bias = w[p + "attn.o.bias"]
            if bias.any():
                parts[f"L{layer} bias"] = bias.expand(n_pos, -1)
            x = x + sum(heads) + bias
            if not cfg.attn_only:
                rows = []
                for at in x:
                    at = normalise(at, kind, w, p + "ln2")[0]
                    inside = w[p + "mlp.in.weight"] @ at + w.get(p + "mlp.in.bias", 0.0)
                    gated = w[p + "mlp.gate.weight"] @ at if cfg.gated_mlp else inside
                    act = torch.tensor([activation(cfg.act_fn, g) for g in gated], dtype=x.dtype)
                    mid = act * inside if cfg.gated_mlp else act
                    rows.append(w[p + "mlp.out.weight"] @ mid + w.get(p + "mlp.out.bias", 0.0))
                parts[f"L{layer} MLP"] = torch.stack(rows)
                x = x + parts[f"L{layer} MLP"]
        final = [normalise(at, kind, w, "ln_final", cfg.final_rms) for at in x]
        logits = torch.stack([w["unembed.weight"] @ at for at, _ in final])
        return parts, [divisor for _, divisor in final], logits

    return run
