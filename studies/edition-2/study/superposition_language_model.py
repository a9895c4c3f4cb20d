"""Replacement blocks in the place of both attention layers of the shipped two-layer language model.

    python -m tools superposition-language-model --out data/superposition

Trains blocks on what one attention layer (4 heads) reads and writes and judges them alike. *Gates* and *writes*: 8
heads from noisy copies of the 4, with a penalty on open gates or on what heads write. *Lorsa*: 256 heads of rank one,
8 on a query-key circuit, the 18 or 32 longest writes of a position kept, from principal or from random axes of what
each head writes. With them come the same start untrained, and drawn units: trained queries and keys, random reads and
writes. Writes `language_model.csv`, one row a block: unexplained variance before and after training, loss with the
block in place on text and on the second half of repeated random tokens, how many heads have to go until half of the
induction is lost, and how many heads look at one place more cleanly than any head of the original. Text for training
comes from the first four fifths of the held-out text, for judging from the last fifth. Interrupted, it goes on where
it was.
"""

import argparse
import copy
import time
from functools import partial
from pathlib import Path

import torch

import circuitkit
from circuitkit.induction import repeated_tokens
from circuitkit.models._corpus import heldout_tokens
from circuitkit.superposition import record_layer, replacing, train_gated
from circuitkit.superposition._block import Recipe
from tools.study.sweeps import sweep

POS, TEXT, REPEATED = 128, 480, 120
COPIES = Recipe(
    expansion=2, d_head=32, d_gate=8, value_bias="none", normalise=False, init="duplicate", error="variance", penalty="none",
    alpha=0.0, alpha_warmup=0.5, alpha_tail=0.2, lr=2e-3, lr_warmup=0.05, cosine=True, steps=250, batch=8, n_prompts=8,
)  # fmt: skip
UNITS = COPIES.but(
    expansion=64, d_value=1, share=8, gate="none", value_bias="free", init="pca", noise=0.05, top_k=16, top_k_warmup=0.4,
    lr=1e-3, steps=250,
)  # fmt: skip
OWN = COPIES.but(expansion=1, gate="none", noise=0.0, value_bias="free", steps=1, lr=1e-12)  # the layer itself, so that one judge serves it too
KINDS = {
    "no penalty": lambda layer: COPIES,
    "writes": lambda layer: COPIES.but(penalty="write_norm", alpha=0.1),
    "gates": lambda layer: COPIES.but(penalty="gate", pairs="causal", alpha=1.0),
    "lorsa": lambda layer: UNITS.but(top_k=(32, 18)[layer]),
    "lorsa, random axes": lambda layer: UNITS.but(top_k=(32, 18)[layer], init="axes"),
}


def rows_of(tokens: torch.Tensor, n: int, seed: int) -> torch.Tensor:
    start = torch.randint(len(tokens) - POS, (n,), generator=torch.Generator().manual_seed(seed))
    rows = tokens[start[:, None] + torch.arange(POS - 1)]
    return torch.cat([torch.zeros(n, 1, dtype=rows.dtype), rows], 1)


@torch.no_grad()
def loss(model, tokens: torch.Tensor, hooks=(), first: int = 0) -> float:
    logits = model.run_with_hooks(tokens, fwd_hooks=list(hooks))[:, first:-1]
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, first + 1 :].flatten()))


def heads_to_break(lost, order: list[int], most: float) -> int:
    """The fewest heads, in this order, without which half of what the layer does for induction is lost; by halving."""
    low, high = 0, len(order)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if lost(order[:middle]) >= most / 2 else (middle, high)
    return high


@torch.no_grad()
def looks(block, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each head the share of what it collects at `target[dst]` (-1 for none), by how strongly it writes there; and how often it writes.

    A head of rank one collects `pattern * value`, a number for each source; others `pattern * |value W_O|`.
    """
    W_V, b_V, W_O = block.weights()
    rank_one, at = W_V.shape[-1] == 1, (target >= 0).nonzero().flatten()
    total = hit = count = 0.0
    for row in x.split(1):
        v = torch.einsum("...pm,hmd->...hpd", row, W_V) + b_V[:, None]
        strength = v.abs()[..., 0] if rank_one else (v @ W_O).norm(dim=-1)
        seen = block.pattern(row) if block.recipe.gate == "none" else block.gates(row) * block.pattern(row)
        seen = seen.repeat_interleave(block.recipe.share, 1)[:, :, at]
        write = block.mixed(row).norm(dim=-1)[:, :, at]
        collected = seen * strength[:, :, None]
        share = collected.gather(-1, target[at].expand(seen.shape[:2] + (len(at),))[..., None])[..., 0] / collected.sum(-1).clamp(min=1e-9)
        hit, total, count = hit + (write * share).sum((0, 2)), total + write.sum((0, 2)), count + (write > 0).sum((0, 2))
    return hit / total.clamp(min=1e-9), count / (len(x) * len(at))


@torch.no_grad()
def classes(model, block, layer: int, top: int = 10, needed: int = 3) -> int:
    """Heads of rank one that copy one class: of the ten tokens they collect most and the ten they raise most, three are the same."""
    if block.weights()[0].shape[-1] > 1:
        return 0
    W_V, _, W_O = block.weights()
    E = model.W_E - model.W_E.mean(1, keepdim=True)
    read, write = (E / E.norm(dim=1, keepdim=True)) @ W_V[..., 0].T, model.W_U.T @ W_O[:, 0].T  # [token, head]
    first, second = (part.topk(top, 0).indices.T for part in (read, write))
    return int(((first[:, :, None] == second[:, None]).any(-1).sum(-1) >= needed).sum())


def judge(layer: int, kind: str, seed: int, steps: int = 0) -> list[dict]:
    torch.set_num_threads(1)
    model = circuitkit.load_model("two-layer")
    held, n = heldout_tokens(), model.cfg.n_heads
    cut = len(held) * 4 // 5
    text, twice = rows_of(held[cut:], 24, 1), repeated_tokens(model.cfg.d_vocab, 60, batch=12, bos=0)
    again, first = twice.tokens, twice.start + twice.period
    whole, silent = loss(model, again, (), first), loss(model, again, silence(layer), first)
    fresh, repeats = record_layer(model, layer, text[:8]), record_layer(model, layer, again)
    place = torch.arange(again.shape[1])
    target = place - 1 if layer == 0 else torch.where(place >= first, place - twice.period + 1, -1)
    own = train_gated(fresh, OWN).block
    best = float(looks(own, repeats.x, target)[0].max())

    def describe(name: str, block, start: float, seconds: float) -> dict:
        hooks = replacing(model, layer, block)
        with torch.no_grad():
            out = torch.cat([block(part) for part in fresh.x.split(4)])
            fvu = float((out - fresh.y).square().sum() / (fresh.y - fresh.y.mean((0, 1))).square().sum())
            z = torch.cat([block.mixed(part).norm(dim=-1) for part in repeats.x.split(2)]) * block.weights()[2].norm(dim=(1, 2))[:, None]
            order = z[:, :, first:].mean((0, 2)).argsort(descending=True).tolist()
            active = (z > 0.02 * z.sum(1, keepdim=True)).sum(1).float().mean()
            opened = 0.0
            if block.n_heads <= 2 * n:
                seen = (block.pattern(fresh.x) if block.recipe.gate == "none" else block.gates(fresh.x) * block.pattern(fresh.x)) > 0.1
                opened = float(seen.sum(1)[seen.any(1)].float().mean())
        base = loss(model, again, hooks, first)
        need = heads_to_break(lambda some: loss(model, again, replacing(model, layer, block, tuple(some)), first) - base, order, silent - base)
        score, often = looks(block, repeats.x, target)
        alive = often > 0.01
        return {
            "block": name, "heads": block.n_heads, "top_k": block.recipe.top_k or 0, "start": round(start, 4), "fvu": round(fvu, 4),
            "loss": round(loss(model, text, hooks), 4), "induction_loss": round(base, 4),
            "recovered": round((silent - base) / (silent - whole), 4), "writing": round(float(active), 2), "on_a_pair": round(opened, 2), "to_break": need,
            "alive": int(alive.sum()), "best_look": round(float(score[alive].max()), 4), "original_look": round(best, 4),
            "cleaner": int((score[alive] > best).sum()), "classes": classes(model, block, layer), "cpu_seconds": round(seconds),
        }  # fmt: skip

    if kind == "original":
        return [describe("original", own, 0.0, 0.0)]
    recipe = KINDS[kind](layer).but(steps=steps or KINDS[kind](layer).steps)
    # A fifth of the rows are repeated random tokens: on text alone a block has little reason to learn induction.
    more = repeated_tokens(model.cfg.d_vocab, 63, batch=REPEATED, bos=0, generator=torch.Generator().manual_seed(5 + seed)).tokens
    rows = torch.cat([rows_of(held[:cut], TEXT, 100 + seed)[:, :127], more])
    record = record_layer(model, layer, rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(6 + seed))])
    out = []
    if "lorsa" in kind:  # the same start with nothing learnt
        begun = train_gated(record, recipe.but(steps=1, lr=1e-9, noise=0.0), seed=seed)
        out.append(describe(f"{kind}, untrained", begun.block, begun.start, 0.0))
    begin = time.process_time()
    made = train_gated(record, recipe, seed=seed)
    out.append(describe(kind, made.block, made.start, time.process_time() - begin))
    if kind == "lorsa":
        out.append(describe("lorsa, drawn units", drawn(made.block, seed), made.start, 0.0))
    return out


@torch.no_grad()
def drawn(block, seed: int):
    """The control of single units: the same queries and keys, what each reads and writes drawn at random, as long as before."""
    other, generator = copy.deepcopy(block), torch.Generator().manual_seed(seed)
    for part in (other.W_V, other.W_O):
        at_random = torch.randn(part.shape, generator=generator)
        part.copy_(at_random * part.norm(dim=(1, 2), keepdim=True) / at_random.norm(dim=(1, 2), keepdim=True))
    return other


def silence(layer: int):
    return [(f"blocks.{layer}.attn.hook_z", lambda z, hook: z * 0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    parser.add_argument("--steps", type=int, default=0, help="for a try: so many steps for every block")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS)[1:], choices=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    plan = [(layer, "original", 0) for layer in (0, 1)]
    plan += [(layer, kind, seed) for seed in range(args.seeds) for kind in args.kinds for layer in (1, 0)]
    settings = [{"layer": layer, "kind": kind, "seed": seed} for layer, kind, seed in plan]
    sweep(partial(judge, steps=args.steps), settings, args.out / "language_model.csv")


if __name__ == "__main__":
    main()
