"""Train the two-layer model from several seeds; see `training_seeds.md`.

`python -m studies.training_seeds train TOKENS FOLDER SEED...` trains each seed into a folder of its own. A run may be interrupted
at any time, and goes on from its last 500 steps. TOKENS is the folder that the scripts `corpus.py` and `tokenizer.py` of
`studies/edition-2/train` fill at their tag. One run of 12,000 steps takes about 20 minutes of one core.

`python -m studies.training_seeds measure FOLDER` measures the shipped model and every finished run of FOLDER, before and after its
training, and writes `src/circuitkit/data/induction/training_seeds.csv`. It takes about a minute for each model. Results are kept in
`FOLDER/measured.json`, so it can be interrupted, and called again when more runs are finished.
"""

import argparse
import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

N_LAYERS, N_HEADS, D_HEAD, D_CONTENT, D_POS, D_VOCAB, N_CTX = 2, 4, 32, 128, 32, 2048, 256
ROWS, REPEATS, WARMUP, DECAY = 8, 0.25, 100, 0.4
RATE_OF_MATRICES, RATE_OF_EMBEDDINGS = 0.02, 3e-3
STEPS, SAVE_EVERY, BOS = 12_000, 500, 0
TARGET = Path(__file__).parents[1] / "src/circuitkit/data/induction/training_seeds.csv"


def sinusoids() -> Tensor:
    """Fixed positions `[n_ctx, d_pos]`: cosines and sines of 16 geometric frequencies, 1.6 to 0.008."""
    exponent = -torch.arange(D_POS // 2, dtype=torch.float64) / (D_POS // 2 - 1)
    frequency = 1.6 * 200.0**exponent
    angle = torch.arange(N_CTX, dtype=torch.float64)[:, None] * frequency
    return (4 * torch.cat([angle.cos(), angle.sin()], dim=1)).float()


class Net(nn.Module):
    """Two layers of attention between W_E and W_U; positions enter queries and keys only."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        width = N_HEADS * D_HEAD

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std)

        self.W_E = normal(D_VOCAB, D_CONTENT, std=0.5)
        self.W_U = normal(D_CONTENT, D_VOCAB, std=0.02)
        self.W_pos = nn.Buffer(sinusoids(), persistent=False)
        self.layers = nn.ModuleList()
        for _ in range(N_LAYERS):
            layer = nn.Module()
            layer.W_Q = normal(D_CONTENT + D_POS, width, std=0.06)
            layer.W_K = normal(D_CONTENT + D_POS, width, std=0.06)
            layer.W_V = normal(D_CONTENT, width, std=0.06)
            layer.W_O = normal(width, D_CONTENT, std=0.03)
            self.layers.append(layer)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `[batch, position, token]`."""
        n_rows, n_positions = tokens.shape
        stream = F.embedding(tokens, self.W_E)
        positions = self.W_pos[:n_positions].expand(n_rows, -1, -1)
        for layer in self.layers:
            read = torch.cat([stream, positions], dim=-1)
            q, k, v = (
                side.unflatten(2, (N_HEADS, D_HEAD)).transpose(1, 2)
                for side in (read @ layer.W_Q, read @ layer.W_K, stream @ layer.W_V)
            )
            z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            stream = stream + z.transpose(1, 2).flatten(2) @ layer.W_O
        return stream @ self.W_U


class Rows:
    """Batches of the recipe: rows of text, a quarter of them with a span that repeats."""

    def __init__(self, folder: Path):
        self.train = np.load(folder / "train.npy")
        counts = np.bincount(self.train, minlength=D_VOCAB).astype(np.float64)
        counts[BOS] = 0
        self.unigram = counts / counts.sum()

    def batch(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Tokens `[rows, n_ctx]` and targets `[rows, n_ctx - 1]`; a target of -100 is not scored."""
        rows, scored = [], []
        for _ in range(ROWS):
            start = rng.integers(0, len(self.train) - N_CTX)
            row = self.train[start : start + N_CTX - 1].astype(np.int64)
            is_scored = np.ones(N_CTX - 1, bool)
            if rng.random() < REPEATS:
                period = int(rng.integers(N_CTX // 8, N_CTX // 2))
                span = row[:period]
                if rng.random() < 0.5:
                    span = rng.choice(D_VOCAB, size=period, p=self.unigram)
                    is_scored[:period] = False
                row = np.resize(span, N_CTX - 1)
            rows.append(np.concatenate([[BOS], row]))
            scored.append(is_scored)
        tokens = torch.from_numpy(np.stack(rows))
        is_left_out = ~torch.from_numpy(np.stack(scored))
        return tokens, tokens[:, 1:].masked_fill(is_left_out, -100)


def optimisers(net: Net) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices of the heads and AdamW for W_E and W_U, each with its highest rate."""
    embeddings = torch.optim.AdamW(
        [net.W_E, net.W_U], lr=RATE_OF_EMBEDDINGS, betas=(0.9, 0.98), weight_decay=0.01
    )
    matrices = torch.optim.Muon(net.layers.parameters(), lr=RATE_OF_MATRICES, weight_decay=0.0)
    return [(embeddings, RATE_OF_EMBEDDINGS), (matrices, RATE_OF_MATRICES)]


def save(net: Net, file: Path) -> None:
    """Write the weights, whole or not at all."""
    unfinished = file.with_suffix(".part")
    save_file(
        {key: value.detach().contiguous() for key, value in net.state_dict().items()}, unfinished
    )
    os.replace(unfinished, file)


def train(tokens: Path, folder: Path, seed: int, steps: int) -> None:
    """Train one model, or go on with it; writes `weights-start`, `weights` and `losses.jsonl`."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # numbers below 1e-38 make a step a third slower
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "weights.safetensors").exists():
        return
    net, rows, rng, step = Net(seed), Rows(tokens), np.random.default_rng(seed), 0
    both = optimisers(net)
    losses: list[float] = []
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt", weights_only=True)
        net.load_state_dict(state["net"])
        for (optimiser, _), saved in zip(both, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        rng.bit_generator.state = json.loads(state["rng"])
        step, losses = state["step"], state["losses"]
    else:
        save(net, folder / "weights-start.safetensors")
    while step < steps:
        scale = min(1.0, (step + 1) / WARMUP, (steps - step) / (DECAY * steps))
        batch, targets = rows.batch(rng)
        loss = F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for optimiser, rate in both:
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        losses.append(loss.item())
        step += 1
        if step % SAVE_EVERY == 0:
            recent = losses[-SAVE_EVERY:]
            print(
                f"seed {seed}, step {step}: loss {math.fsum(recent) / len(recent):.3f}", flush=True
            )
            state = {"net": net.state_dict(), "optimisers": [one.state_dict() for one, _ in both]}
            state |= {"rng": json.dumps(rng.bit_generator.state), "step": step, "losses": losses}
            torch.save(state, folder / "state.part")
            os.replace(folder / "state.part", folder / "state.pt")
    (folder / "losses.jsonl").write_text("".join(f"{loss:.4f}\n" for loss in losses))
    save(net, folder / "weights.safetensors")


def measure(folder: Path) -> None:
    """Measure the shipped model and every finished run, and write the table."""
    import circuitkit as ck
    from studies import seed_measures

    torch.set_num_threads(1)
    cache = folder / "measured.json"
    known: dict[str, Any] = json.loads(cache.read_text()) if cache.exists() else {}
    files: dict[tuple[str, int], Path | None] = {("shipped", 24_000): None}
    for seed in sorted(folder.glob("seed-*/weights.safetensors")):
        name = seed.parent.name.replace("-", " ")
        files[name, STEPS] = seed
        files[name, 0] = seed.parent / "weights-start.safetensors"
    rows = []
    for (name, step), file in files.items():
        key = f"{name}, step {step}"
        if key not in known:
            model = ck.load_model("two-layer") if file is None else seed_measures.load(file)
            known[key] = seed_measures.measure(model)
            if step == STEPS and file is not None:
                known[key] |= seed_measures.birth(file.parent / "losses.jsonl")
            cache.write_text(json.dumps(known))
            print(key, flush=True)
        rows.append({"model": name, "step": step} | rounded(known[key]))
    columns = dict.fromkeys(column for row in rows for column in row)
    with TARGET.open("w", newline="") as table:
        writer = csv.DictWriter(table, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers with four decimals, so that the table is the same on every processor."""
    return {
        name: round(value, 4) + 0.0 if isinstance(value, float) else value
        for name, value in values.items()
    }


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("tokens", type=Path)
    training.add_argument("folder", type=Path)
    training.add_argument("seeds", type=int, nargs="+")
    training.add_argument("--steps", type=int, default=STEPS)
    commands.add_parser("measure").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.folder)
        return
    for seed in arguments.seeds:
        train(arguments.tokens, arguments.folder / f"seed-{seed}", seed, arguments.steps)


if __name__ == "__main__":
    main()
