"""Gated blocks on the layer of the one-layer language model: how many pairs are shared before and after?

python -m studies.gates_in_text

The addition to the plan `sharing_in_text.md`. Writes `text_blocks.csv`, one row a block, and the layer itself. Each block is kept in `/tmp`, so
that an interrupted run goes on. About one minute of one core for each block.
"""

from pathlib import Path
from tempfile import gettempdir

import pandas as pd
import torch
from joblib import Memory, Parallel, delayed
from tqdm import tqdm

from circuitkit_book import pair_sharing as ps
from studies import planted_rules as planted
from studies.sharing import write_table

kept = Memory(Path(gettempdir()) / "gates_in_text", verbose=0).cache
ALPHAS, SEEDS = (0.3, 0.0), (0, 1)


@torch.no_grad()
def effects_of(w: planted.Weights, base: planted.Weights, rows: torch.Tensor) -> torch.Tensor:
    """The signed effects of the heads of a layer or a block at pairs, `[head, row, pair]`."""
    centred = (base["U"] - base["U"].mean(1, keepdim=True)).T
    W_V, W_O = planted.used(w)
    parts = []
    for part in rows.split(50):
        x = planted.stream(base, part)
        _, pattern, _ = planted.layer(w, x)
        read = torch.einsum("rim,hdm->hrid", centred[part[:, 1:]], W_O)
        v = torch.einsum("rpm,hmd->hrpd", x[:, :-1], W_V)
        moved = torch.einsum("hrid,hrjd->hrij", read, v)
        parts.append(ps.pairs_of(pattern.transpose(0, 1)[:, :, :-1, :-1] * moved))
    return torch.cat(parts, 1)


@torch.no_grad()
def judged(w: planted.Weights, base: planted.Weights) -> dict:
    """Loss recovered, open gates, and shared pairs with their null."""
    _, rows = planted.split_rows()
    text = rows[:300]
    x = planted.stream(base, text)
    y, _, gates = planted.layer(w, x)
    target = planted.layer(base, x)[0]
    none, own, now = (
        float(planted.text_loss(base, text, written))
        for written in (torch.zeros_like(x), target, y)
    )
    row = {"recovered": (none - now) / (none - own)}
    if gates.dim():
        causal = torch.ones(text.shape[1], text.shape[1]).tril().bool()
        is_open = (gates > 0.05)[:, :, causal]
        row["open_gates"] = float(is_open.sum(1).double().mean())
        row["live_heads"] = int((is_open.double().mean((0, 2)) > 0.001).sum())
    else:
        row |= {"open_gates": len(w["Q"]), "live_heads": len(w["Q"])}
    effects = effects_of(w, base, rows)
    generator = torch.Generator().manual_seed(8)
    nulls = [ps.share_of_strong(ps.other_text(effects, generator)) for _ in range(20)]
    nulls = pd.DataFrame(nulls)["shared"]
    row |= ps.share_of_strong(effects)
    return row | {"null_mean": nulls.mean(), "null_high": nulls.quantile(0.975)}


@kept
def block_row(alpha: float, seed: int) -> dict:
    """A block, trained on natural rows."""
    torch.set_num_threads(1)
    base = planted.weights_of("one-layer")
    w = planted.trained_block(base, planted.rules_of(0), alpha, seed)
    return {"block": "gates", "alpha": alpha, "seed": seed} | judged(w, base)


def main() -> None:
    base = planted.weights_of("one-layer")
    rows = [{"block": "layer", "alpha": 0.0, "seed": 0} | judged(base, base)]
    jobs = [(alpha, seed) for seed in SEEDS for alpha in ALPHAS]
    rows += Parallel(n_jobs=1)(delayed(block_row)(*job) for job in tqdm(jobs))
    table = (
        pd.DataFrame(rows)
        .round(4)
        .sort_values(["block", "alpha", "seed"], ascending=[False, True, True])
    )
    print(table.to_string())
    write_table("text_blocks.csv", table.to_dict("records"))


if __name__ == "__main__":
    main()
