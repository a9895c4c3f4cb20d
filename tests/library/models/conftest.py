"""Every shipped model loaded once, and the shipped files read without the library."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import circuitkit
from circuitkit import data as store

DATA = Path(circuitkit.__file__).parent / "data/models"
NAMES = ("zero-layer", "one-layer", "two-layer", "two-layer-mlp")


@pytest.fixture(scope="session")
def data():
    return DATA


@pytest.fixture(scope="session")
def manifest():
    return json.loads((DATA / "manifest.json").read_text())


@pytest.fixture(scope="session", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="session")
def model(name):
    return circuitkit.load_model(name)


@pytest.fixture(scope="session")
def heldout(manifest):
    """Token ids of the held-out text, `<|endoftext|>` (0) before each passage, by the tokenizer file alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DATA / "tokenizer.json"))
    lines = (DATA / "heldout.jsonl").read_text().splitlines()
    return torch.tensor(
        [t for line in lines for t in (0, *tokenizer.encode(json.loads(line)["text"]).ids)]
    )


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Links to the shipped data in a folder of the test, which the library reads instead."""
    folder = tmp_path / "models"
    folder.mkdir()
    for path in DATA.iterdir():
        (folder / path.name).symlink_to(path)
    monkeypatch.setattr(store, "DATA", tmp_path)
    return folder


@pytest.fixture(scope="session")
def sha256():
    return lambda path: hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def stored_logits(manifest):
    """`stored_logits(name, rows, dtype)`: a forward pass written from the stored file alone, in plain torch.

    Attention-only models hold content and positions apart: queries and keys read both, values read content only.
    """
    from safetensors.torch import load_file
    from torch.nn import functional as F

    def attention(q, k, v, n_heads):
        split = lambda t: t.unflatten(-1, (n_heads, -1)).transpose(1, 2)  # noqa: E731
        out = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
        return out.transpose(1, 2).flatten(2)

    def run(name, rows, dtype=torch.float32, step=None):
        entry = manifest["models"][name]
        sizes, key = entry["sizes"], str(step) if step is not None else list(entry["files"])[-1]
        w = {k: v.to(dtype) for k, v in load_file(DATA / entry["files"][key]["file"]).items()}
        w |= {
            k: v * w[f"{k}.scale"] for k, v in w.items() if f"{k}.scale" in w
        }  # 8 bits and a scale
        x, positions = w["W_E"][rows], w["W_pos"][: rows.shape[1]]
        if not sizes["mlp"]:
            positions = positions.expand(len(rows), -1, -1)
            for i in range(sizes["n_layers"]):
                W = {kind: w[f"layers.{i}.W_{kind}"] for kind in "QKVO"}
                seen = torch.cat([x, positions], dim=-1)
                x = (
                    x
                    + attention(seen @ W["Q"], seen @ W["K"], x @ W["V"], sizes["n_heads"]) @ W["O"]
                )
            return x @ w["W_U"]
        norm = lambda x, at: F.layer_norm(x, x.shape[-1:], w[f"{at}.weight"], w[f"{at}.bias"])  # noqa: E731
        linear = lambda x, at: x @ w[f"{at}.weight"].T + w[f"{at}.bias"]  # noqa: E731
        x = x + positions
        for i in range(sizes["n_layers"]):
            p = f"layers.{i}."
            y = norm(x, p + "ln1")
            x = x + linear(attention(*(linear(y, p + k) for k in "qkv"), sizes["n_heads"]), p + "o")
            x = x + linear(F.gelu(linear(norm(x, p + "ln2"), p + "fc_in")), p + "fc_out")
        return norm(x, "ln_final") @ w["W_U"]

    return run
