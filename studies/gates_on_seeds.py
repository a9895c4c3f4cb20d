"""Does a gated block carry each effect with fewer heads than the layer that it replaces? Layer 0 of several two-layer models.

python -m studies.gates_on_seeds FOLDER [MINUTES]

Addition H of the plan `sharing_in_text.md`. FOLDER has the runs of `training_seeds.py`. Writes `text_targets.csv`, one row a block. Finished blocks are kept in
`/tmp`, so that an interrupted run goes on; no block is begun after MINUTES. Half a minute of one core for a block.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir

import pandas as pd
import torch
from joblib import Memory
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from circuitkit_book import pair_sharing as ps
from studies import planted_rules as rules
from studies.seed_measures import load
from studies.sharing_in_text import N_MATCHED

kept = Memory(Path(gettempdir()) / "gates_on_seeds", verbose=0).cache
FIRST, LATER = range(1, 6), (6, 7)


def parts_of(model, layer: int) -> rules.Weights:
    attention = model.blocks[layer].attn
    return {part: getattr(attention, f"W_{part}").detach().clone() for part in "QKVO"}


@torch.no_grad()
def loss(
    base: rules.Weights, second: rules.Weights | None, rows: torch.Tensor, written: torch.Tensor
):
    """The loss on text if layer 0 writes this; `second` is the layer behind it, if there is one."""
    x = rules.stream(base, rows) + written
    if second is not None:
        x = x + rules.layer(second, x)[0]
    logits = x[:, :-1] @ base["U"]
    return float(cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


@torch.no_grad()
def effects_of(w: rules.Weights, base: rules.Weights, rows: torch.Tensor, toward: torch.Tensor):
    """Effects at pairs, open gates on a pair, and heads that write at least 1% of the sum of mean lengths."""
    W_V, W_O = rules.used(w)
    parts, n_open, lengths = [], 0.0, torch.zeros(len(W_V))
    for tokens, directions in zip(rows.split(50), toward.split(50), strict=True):
        x = rules.stream(base, tokens)
        _, pattern, gates = rules.layer(w, x)
        read = torch.einsum("rim,hdm->hrid", directions, W_O)
        v = torch.einsum("rpm,hmd->hrpd", x[:, :-1], W_V)
        moved = torch.einsum("hrid,hrjd->hrij", read, v)
        parts.append(ps.pairs_of(pattern.transpose(0, 1)[:, :, :-1, :-1] * moved))
        is_open = gates.expand_as(pattern)[..., :-1, :-1] > 0.05
        n_open += float(ps.pairs_of(is_open.transpose(0, 1).double()).sum(0).mean()) * len(tokens)
        lengths += rules.written_by_heads(w, x).norm(dim=-1).sum((0, 2))
    live = int((lengths >= 0.01 * lengths.sum()).sum())
    return torch.cat(parts, 1), n_open / len(rows), live


def start_of(base: rules.Weights, arm: str, seed: int) -> rules.Weights:
    """The layer with open gates, the layer without gates, or two halves of each head."""
    if arm in ("layer", "writes"):
        return {part: base[part].clone() for part in "QKVO"}
    block = rules.starting_block(base, seed, halves=arm.startswith("halves"))
    if arm.startswith("halves"):
        return block
    n = len(base["Q"])
    return {key: value if key == "size" else value[:n].clone() for key, value in block.items()}


def base_of(model) -> rules.Weights:
    """The embeddings and layer 0."""
    base = {"E": model.W_E, "pos": model.W_pos, "U": model.W_U}
    return {key: value.detach().clone() for key, value in base.items()} | parts_of(model, 0)


@kept
def block_row(folder: str, seed: int, arm: str, alpha: float | None) -> dict:
    """One target and one arm; without alpha, the start itself."""
    torch.set_num_threads(1)
    model = load(Path(folder) / f"seed-{seed}" / "weights.safetensors")
    base = base_of(model)
    w = start_of(base, arm, seed)
    if alpha is not None:
        w = rules.trained_block(base, None, alpha, w, seed, on_writes=arm == "writes")
    return {"seed": seed, "arm": arm, "alpha": alpha} | measures(w, base, model)


def measures(w: rules.Weights, base: rules.Weights, model) -> dict:
    """Live heads, open gates, the loss, and the shared strong pairs with the null of another text."""
    _, rows = rules.split_rows()
    second = parts_of(model, 1) if len(model.blocks) > 1 else None
    toward = ps.next_token_directions(model, rows, 0)
    effects, n_open, live = effects_of(w, base, rows, toward)
    generator = torch.Generator().manual_seed(1)
    draws = [ps.share_of_strong(ps.other_text(effects, generator)) for _ in range(N_MATCHED)]
    null = pd.DataFrame(draws)["shared"]
    shared = ps.share_of_strong(effects)["shared"]
    strong = effects.flatten(1)[:, ps.strongest(effects)]
    several = strong.abs().sum(0).square() / strong.square().sum(0)
    some = rows[:200]
    with torch.no_grad():
        x = rules.stream(base, some)
        y, by_block = rules.layer(base, x)[0], rules.layer(w, x)[0]
    mean = y.mean((0, 1)).expand_as(y)
    ablated, whole, block = (loss(base, second, some, part) for part in (mean, y, by_block))
    row = {"live": live, "open": n_open, "loss": block}
    row |= {"recovered": (ablated - block) / (ablated - whole)}
    row |= {"shared": shared, "null": null.mean(), "excess": shared - null.mean()}
    return row | {"heads": float(several.mean())}


def jobs() -> list[tuple]:
    """Seeds, arms and penalties in the order of the plan."""
    order = [(seed, "layer", None) for seed in FIRST]
    for arm, alpha in (("gates", 0.3), ("gates", 0.0)):
        order += [(seed, arm, alpha) for seed in FIRST]
    order += [(seed, "halves", alpha) for seed in FIRST for alpha in (None, 0.3)]
    order += [(seed, "writes", 0.3) for seed in FIRST]
    order += [(seed, "gates", 1.0) for seed in FIRST]
    for seed in LATER:
        order += [(seed, "layer", None), (seed, "gates", 0.3), (seed, "gates", 0.0)]
    return order


def write_rows(jobs: list[tuple], row_of: Callable[..., dict], name: str) -> None:
    """Make the row of each job, and write the table after each; FOLDER and MINUTES are read from the command line."""
    folder = sys.argv[1]
    minutes = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    end = time.monotonic() + 60 * minutes
    rows = []
    for job in tqdm(jobs):
        if time.monotonic() > end:
            break
        rows.append(row_of(folder, *job))
        table = pd.DataFrame(rows).round(4)
        table.to_csv(rules.DATA / name, index=False, lineterminator="\n")
        print(rows[-1], flush=True)


if __name__ == "__main__":
    write_rows(jobs(), block_row, "text_targets.csv")
