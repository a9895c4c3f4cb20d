"""The authors' published models and gated blocks, judged in three ways.

python -m studies.published_blocks FOLDER

FOLDER has the files `toy_model_2H_3ST.st` to `gated_block_8H_5ST.st` of the folder
`gated_attention/experiments/saved_models` of https://github.com/cmathw/gated-attn, commit 55aa0f1. The
files have no licence and are not shipped; the table `published.csv` holds what was measured.
"""

import sys
from itertools import combinations
from pathlib import Path

import torch
from safetensors.torch import load_file

from circuitkit import Heads
from circuitkit.superposition import GatedBlock, record_layer, with_gated_layer
from circuitkit_book.claims.gated import completed_by, necessary_heads
from circuitkit_book.superposition_models import toy_model
from circuitkit_book.superposition_task import SkipTrigramTask, post_recipe, trigram_verdict
from studies.sharing import SIZES, write_table


def original_of(path: Path, n_heads: int, n_trigrams: int):
    """The published toy model."""
    weights = {name.removeprefix("attn."): value for name, value in load_file(path).items()}
    fields = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V")
    heads = Heads(
        tuple(f"L0H{head}" for head in range(n_heads)), **{name: weights[name] for name in fields}
    )
    return toy_model(heads, SkipTrigramTask(n_trigrams))


def block_of(path: Path, n_heads: int, n_trigrams: int) -> GatedBlock:
    """The published gated block. Its values and outputs are normalised as ours are."""
    weights = {name.removeprefix("attn."): value for name, value in load_file(path).items()}
    names = {"W_gate_Q": "W_GQ", "W_gate_K": "W_GK", "b_gate_Q": "b_GQ", "b_gate_K": "b_GK"}
    block = GatedBlock(post_recipe(n_heads), n_heads, 2 * n_trigrams + 2)
    state = block.state_dict()
    for name, value in weights.items():
        if names.get(name, name) in state:
            state[names.get(name, name)] = value.reshape(state[names.get(name, name)].shape)
    block.load_state_dict(state)
    return block.requires_grad_(False)


def row_of(name: str, model, measured: dict) -> dict:
    """What the three forms say about a model."""
    row = {"model": name} | measured
    verdicts = {form: trigram_verdict(model, form=form) for form in ("post", "argmax", "odds")}
    own = verdicts["post"].carries & verdicts["post"].is_learnt  # heads by the post's criterion
    ours = verdicts["argmax"]
    row["weak"] = int((own & (ours.carried < 0.99)).any(0).sum())
    row["without_source"] = int((own & (ours.silent < 0.99)).any(0).sum())
    for form, verdict in verdicts.items():
        row[f"{form}_learnt"] = int(verdict.is_learnt.sum())
        carried = verdict.is_learnt & verdict.carries.any(0)
        row[f"{form}_carried"] = " ".join(str(1 + i) for i in carried.nonzero().flatten().tolist())
    shared = verdicts["post"].is_learnt & ~verdicts["post"].carries.any(0)
    row["shared_necessary"] = " ".join(map(str, necessary_heads(model)[shared].tolist()))
    row["shared_enough"] = " ".join(
        str(fewest_heads(model, trigram)) for trigram in shared.nonzero().flatten().tolist()
    )
    return row


def fewest_heads(model, trigram: int) -> int:
    """The smallest number of heads with which the model completes a trigram, whatever other heads are removed."""
    heads = range(model.cfg.n_heads)
    sets = [set(some) for size in range(len(heads) + 1) for some in combinations(heads, size)]
    right = [some for some in sets if completed_by(model, some)[trigram] >= 0.99]
    robust = [some for some in right if all(more in right for more in sets if some <= more)]
    return min(map(len, robust))


def main() -> None:
    torch.set_num_threads(1)
    folder, rows = Path(sys.argv[1]), []
    for n_heads, n_trigrams in SIZES:
        name = f"toy_model_{n_heads}H_{n_trigrams}ST"
        original = original_of(folder / f"{name}.st", n_heads, n_trigrams)
        bias = float(original.blocks[0].attn.b_V.abs().max())
        measured = {
            "fvu": 0.0,
            "largest_value_bias": round(bias, 1),
            "mean_gate": 1.0,
            "rule_gates": "",
        }
        rows.append(row_of(f"{n_heads}H/{n_trigrams}T original", original, measured))
        path = folder / f"gated_block_{2 * n_heads}H_{n_trigrams}ST.st"
        block = block_of(path, n_heads, n_trigrams)
        x = original.W_E[original.task.sample(2000, seed=1)]
        record = record_layer(original, 0, original.task.sample(2000, seed=1), batch=2000)
        error = (block(x) - record.y).square().sum(-1).mean()
        fvu = float(error / (record.y - record.y.mean((0, 1))).square().sum(-1).mean())
        allowed = torch.ones(11, 11, dtype=torch.bool).tril()
        gate = float(block.gates(x)[..., allowed].mean())
        gated = with_gated_layer(original, 0, block)
        bias = float(block.b_V.abs().max())
        on_rules = block.gates(original.W_E)[:, 1 : 1 + n_trigrams, 0].amax(0)  # the pairs (B, A)
        measured = {
            "fvu": round(fvu, 3),
            "largest_value_bias": round(bias, 1),
            "mean_gate": round(gate, 4),
            "rule_gates": " ".join(f"{number:.2f}" for number in on_rules.tolist()),
        }
        rows.append(row_of(f"{n_heads}H/{n_trigrams}T gated", gated, measured))
    write_table("published.csv", rows)


if __name__ == "__main__":
    main()
