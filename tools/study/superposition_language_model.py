"""Gated blocks in the place of one attention layer of the shipped two-layer language model.

    python -m tools superposition-language-model --out data/superposition

Trains a block of 8 heads on what the second attention layer (4 heads) reads and writes, once without a penalty and
twice with the penalty on what heads write. The block starts from noisy copies of the original heads, and writes `language_model.csv`: unexplained variance, loss with the block in place, heads
open on the pairs that carry attention, and how much induction is lost when one head is left out. Rows for training come
from the first four fifths of the held-out text and, a quarter of them, repeated random tokens; rows for judging from
the last fifth, and other repeated tokens.
"""

import argparse
import csv
import time
from pathlib import Path

import torch

import circuitkit
from circuitkit.induction import repeated_tokens
from circuitkit.models._corpus import heldout_tokens
from circuitkit.superposition import record_layer, replacing, train_gated
from circuitkit.superposition._recipe import Recipe

LAYER, POS = 1, 128
BASE = Recipe(
    expansion=2, d_head=32, d_gate=8, value_bias="none", normalise=False, init="duplicate", error="variance",
    penalty="write_norm", alpha_warmup=0.5, alpha_tail=0.2, lr=2e-3, lr_warmup=0.05, cosine=True, steps=400, batch=8, n_prompts=8,
)  # fmt: skip


def rows_of(tokens: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    start = torch.randint(len(tokens) - POS, (n,), generator=torch.Generator().manual_seed(seed))
    rows = tokens[start[:, None] + torch.arange(POS - 1)]
    return torch.cat([torch.zeros(n, 1, dtype=rows.dtype), rows], 1)


@torch.no_grad()
def loss(model, tokens: torch.Tensor, hooks=(), first: int = 0) -> float:
    logits = model.run_with_hooks(tokens, fwd_hooks=list(hooks))[:, first:-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, first + 1 :].flatten()))


def zero_heads(layer: int, heads: list[int]):
    def hook(z, hook):
        z = z.clone()
        z[:, :, heads] = 0
        return z

    return [(f"blocks.{layer}.attn.hook_z", hook)]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--steps", type=int, default=BASE.steps)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = circuitkit.load_model("two-layer")
    held = heldout_tokens()
    cut = len(held) * 4 // 5
    # A quarter of the rows are repeated random tokens: on text alone the block has little reason to learn induction.
    repeats = repeated_tokens(model.cfg.d_vocab, 63, batch=80, bos=0, generator=torch.Generator().manual_seed(5)).tokens
    mixed = torch.cat([rows_of(held[:cut], 240, 0)[:, :127], repeats])
    record = record_layer(model, LAYER, mixed[torch.randperm(320, generator=torch.Generator().manual_seed(6))])
    text = rows_of(held[cut:], 24, 1)
    twice = repeated_tokens(model.cfg.d_vocab, 60, batch=12, bos=0)
    again, first = twice.tokens, twice.start + twice.period
    fresh = record_layer(model, LAYER, text[:8])
    n = model.cfg.n_heads

    def describe(
        name: str, alpha: float, hooks, without, n_heads: int, fvu: float, opened: float, seconds: float
    ) -> dict:
        base = loss(model, again, hooks, first)
        lost = [loss(model, again, without(head), first) - base for head in range(n_heads)]
        rise = sorted((max(value, 0.0) for value in lost), reverse=True)
        return {
            "block": name, "alpha": alpha, "heads": n_heads, "fvu": round(fvu, 3), "loss": round(loss(model, text, hooks), 3),
            "induction_loss": round(base, 3), "largest_rise": round(rise[0], 3),
            "share_of_largest": round(rise[0] / max(sum(rise), 1e-9), 3), "second_rise": round(rise[1], 3),
            "open_heads": round(opened, 2), "cpu_seconds": round(seconds),
        }  # fmt: skip

    heads = circuitkit.heads(model)[[f"L{LAYER}H{h}" for h in range(n)]]
    busy = heads.pattern(fresh.x).amax(1) > 0.1  # pairs to which some head of the original pays attention
    count = float((heads.pattern(fresh.x) > 0.1).sum(1)[busy].float().mean())
    out = [describe("original", 0, (), lambda h: zero_heads(LAYER, [h]), n, 0.0, count, 0)]
    silent = zero_heads(LAYER, list(range(n)))
    out.append(describe("layer left out", 0, silent, lambda h: silent, n, 1.0, 0.0, 0))
    for alpha in (0.0, 0.1, 0.4):
        recipe = BASE.but(alpha=alpha, steps=args.steps)
        start = time.process_time()
        with torch.enable_grad():
            layer = train_gated(record, recipe, seed=0)
        seconds, block = time.process_time() - start, layer.block
        squared = (block(fresh.x) - fresh.y).square().sum()
        fvu = float(squared / (fresh.y - record.y.mean((0, 1))).square().sum())
        passed = (block.gates(fresh.x) * block.pattern(fresh.x)) > 0.1
        busy_block = passed.any(1)
        opened = float(passed.sum(1)[busy_block].float().mean()) if busy_block.any() else 0.0
        out.append(describe(
            "gated", alpha, replacing(model, LAYER, block), lambda h, b=block: replacing(model, LAYER, b, (h,)),
            block.n_heads, fvu, opened, seconds,
        ))  # fmt: skip
        print(out[-1], flush=True)
    with (args.out / "language_model.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(out[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(out)
    print(*out, sep="\n")


if __name__ == "__main__":
    main()
