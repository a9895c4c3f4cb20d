"""Train what this chapter converts: an MLP, untied neuron-heads and attention with persistent vectors, with equal numbers.

    python -m tools matched-training              twelve runs of 1,000 steps, some six processor minutes; writes the curves
    python -m tools matched-training --only mlp --seed 0     one of them; the others stay as they are

A decoder of two layers reads characters of the book's held-out text: 64 coordinates, 4 heads, 64 places, pre-LayerNorm,
learned positions. The last tenth of the text is kept for validation. The second half of each layer is one of

    mlp          SiLU(x W_in + b) W_out, 256 neurons: as heads, one each, whose queries and values are tied;
    untied       neuron-heads with queries and values of their own: sigmoid(x W_Q + b) (x W_V) W_O, 170 of them;
    persistent   nothing: its numbers are persistent keys and values, 256 for each layer, in the attention's own softmax
                 (Sukhbaatar et al. 2019, the all-attention layer; theirs also limits how far back a head looks);
    nothing      nothing, and fewer numbers: what the others must beat.

Adam, 16 rows a step, the same batches for all kinds of one seed, rate 3e-3 with 40 steps of warm-up and a cosine to 3e-4.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from tools.study import manifest

TARGET = Path(__file__).resolve().parents[2] / "src/circuitkit/conversion/data/trained.json"
SEEDS = 3
KINDS = ("mlp", "untied", "persistent", "nothing")
D, HEADS, N_CTX, ROWS, D_MLP, STEPS, EVERY = 64, 4, 64, 16, 256, 1000, 50


class Persistent(nn.Module):
    """Causal attention whose softmax also holds `extra` keys and values that no token wrote."""

    def __init__(self, extra: int):
        super().__init__()
        self.qkv, self.out, self.extra = nn.Linear(D, 3 * D), nn.Linear(D, D), extra
        self.sizes = (D // HEADS) ** 0.5, max(1, extra) ** 0.5  # as in their paper: what is trained is that much smaller
        self.keys, self.values = (nn.Parameter(torch.randn(HEADS, extra, D // HEADS) / size) for size in self.sizes)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = torch.cat([q @ self.keys.mT * self.sizes[0], scores.masked_fill(hidden, -math.inf)], -1) / math.sqrt(D // HEADS)
        pattern = scores.softmax(-1)
        z = pattern[..., : self.extra] @ (self.values * self.sizes[1]) + pattern[..., self.extra :] @ v
        return self.out(z.transpose(1, 2).flatten(-2))


class Neurons(nn.Module):
    """An MLP, or neuron-heads whose queries and values are trained apart."""

    def __init__(self, kind: str):
        super().__init__()
        n = D_MLP if kind == "mlp" else 2 * D_MLP // 3
        self.asks, self.holds = nn.Linear(D, n), nn.Linear(D, n, bias=False) if kind == "untied" else None
        self.writes = nn.Linear(n, D)

    def forward(self, x):
        q = self.asks(x)
        return self.writes(q.sigmoid() * (q if self.holds is None else self.holds(x)))


class Decoder(nn.Module):
    def __init__(self, kind: str, n_vocab: int):
        super().__init__()
        self.embed, self.places = nn.Embedding(n_vocab, D), nn.Parameter(0.1 * torch.randn(N_CTX, D))
        extra = D_MLP if kind == "persistent" else 0
        kinds = [[Persistent(extra)] + [Neurons(kind)] * (kind in ("mlp", "untied")) for _ in range(2)]
        self.sublayers = nn.ModuleList(part for layer in kinds for part in layer)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in self.sublayers)
        self.last, self.unembed = nn.LayerNorm(D), nn.Linear(D, n_vocab)
        nn.init.normal_(self.embed.weight, std=0.1)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=part.in_features**-0.5)

    def forward(self, ids):
        x = self.embed(ids) + self.places[: ids.shape[1]]
        for norm, sublayer in zip(self.norms, self.sublayers, strict=True):
            x = x + sublayer(norm(x))
        return self.unembed(self.last(x))


def texts() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Training and validation characters as numbers; rare ones are one number."""
    from circuitkit import models

    text = " ".join(item["text"] for item in models.heldout_text())
    common = {c: i for i, c in enumerate(sorted(c for c in set(text) if text.count(c) > 20), 1)}
    ids = torch.tensor([common.get(c, 0) for c in text])
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:], len(common) + 1


def loss_of(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def train(kind: str, seed: int, steps: int = STEPS, until: int | None = None) -> dict:
    """Validation losses at step 0 and every 50 steps. `until` stops early and changes nothing before."""
    seen, kept, n_vocab = texts()
    torch.manual_seed(seed)
    model = Decoder(kind, n_vocab)
    draw = torch.Generator().manual_seed(seed)
    adam = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    held = kept[: len(kept) // (N_CTX + 1) * (N_CTX + 1)].view(-1, N_CTX + 1)[:160]
    curve, began = [], time.process_time()
    for step in range(steps + 1):
        if step % EVERY == 0 or step == until:
            with torch.no_grad():
                curve.append([step, round(float(loss_of(model, held)), 4)])
        if step in (steps, until):
            break
        rate = 3e-4 + 2.7e-3 * (1 + math.cos(math.pi * step / steps)) / 2
        adam.param_groups[0]["lr"] = rate * min(1, (step + 1) / 40)
        first = torch.randint(len(seen) - N_CTX, (ROWS, 1), generator=draw)
        adam.zero_grad(set_to_none=True)
        loss_of(model, seen[first + torch.arange(N_CTX + 1)]).backward()
        adam.step()
    numbers = sum(p.numel() for p in model.parameters())
    return {"kind": kind, "seed": seed, "numbers": numbers, "curve": curve, "seconds": round(time.process_time() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--seed", type=int, choices=range(SEEDS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(SEEDS) if args.seed is None else [args.seed]:
        for kind in [args.only] if args.only else KINDS:
            row = train(kind, seed)
            print({**row, "curve": row["curve"][-1]}, flush=True)
            held = json.loads(TARGET.read_text())["rows"] if TARGET.exists() else []
            rows = {(one["seed"], one["kind"]): one for one in [*held, row]}
            about = {"text": "characters of the book's held-out text", "layers": 2, "d_model": D, "n_ctx": N_CTX, "rows": ROWS, "steps": STEPS}
            TARGET.write_text(json.dumps({"provenance": about, "rows": [rows[key] for key in sorted(rows)]}) + "\n")
    manifest.write("conversion")


if __name__ == "__main__":
    main()
