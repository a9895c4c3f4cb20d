"""Does a gated block with more heads than the layer share fewer pairs, if it starts from random weights or from silent heads?

python -m studies.starts_of_blocks FOLDER [MINUTES]

Addition J of the plan `sharing_in_text.md`. FOLDER has the runs of `training_seeds.py`. Writes `text_starts.csv`, one row a block. Finished blocks are kept in
`/tmp`, so that an interrupted run goes on; no block is begun after MINUTES. About 20 seconds of one core for a block.
"""

from pathlib import Path
from tempfile import gettempdir

import torch
from joblib import Memory

from circuitkit import load_model
from circuitkit.training import fit
from studies import planted_rules as rules
from studies.gates_on_seeds import base_of, measures, write_rows
from studies.seed_measures import load

kept = Memory(Path(gettempdir()) / "starts_of_blocks", verbose=0).cache
TARGETS = ("one-layer", "seed 1", "seed 2", "seed 6", "two-layer")
"""Models whose layer 0 has an excess of at least 3 points."""
PLAIN_STEPS, RATE = 1600, 5e-3
"""Training from random weights without gates."""


def model_of(folder: str, target: str):
    if not target.startswith("seed"):
        return load_model(target)
    return load(Path(folder) / target.replace(" ", "-") / "weights.safetensors")


@kept
def from_random(folder: str, target: str, seed: int) -> rules.Weights:
    """Twice as many heads as the layer, trained from random weights and without gates to write what the layer writes."""
    torch.set_num_threads(1)
    base = base_of(model_of(folder, target))
    generator = torch.Generator().manual_seed(seed)
    w = {}
    for part, scale in (("Q", 0.3), ("K", 0.3), ("V", 1.0), ("O", 0.1)):
        shape = (2 * len(base[part]), *base[part].shape[1:])
        w[part] = scale * base[part].std() * torch.randn(shape, generator=generator)
        w[part].requires_grad_()
    rows, _ = rules.split_rows()

    def loss_at(step: int) -> torch.Tensor:
        x = rules.stream(base, rules.batch(rows, None, 50_000 + 5000 * seed + step))
        with torch.no_grad():
            wanted = rules.layer(base, x)[0]
        error = (rules.layer(w, x)[0] - wanted).square().sum(-1).mean()
        return error / wanted.square().sum(-1).mean()

    def rate(step: int) -> float:
        return RATE * min(1.0, step / 100 + 0.01, 2 * (1 - step / PLAIN_STEPS))

    fit(w.values(), loss_at, PLAIN_STEPS, learning_rate=rate)
    return {part: value.detach() for part, value in w.items()}


def with_gates(w: rules.Weights, seed: int) -> rules.Weights:
    """The same heads; gates have biases only, and a head's gate carries the length of its OV matrix."""
    generator = torch.Generator().manual_seed(seed)
    n, m, _ = w["Q"].shape
    length = rules.ov_length(w)
    block = {part: w[part].clone() for part in "QKVO"}
    for side in ("GQ", "GK"):
        block[side] = 0.002 * torch.randn(n, m, 8, generator=generator)
        block[f"b{side}"] = torch.zeros(n, 8)
        block[f"b{side}"][:, 0] = (length / length.max()).sqrt()
    block["size"] = length.max()
    return block


@kept
def block_row(folder: str, target: str, start: str, alpha: float | None, seed: int) -> dict:
    """One target and one block; without alpha, its start."""
    torch.set_num_threads(1)
    model = model_of(folder, target)
    base = base_of(model)
    if start == "layer":
        w = base
    elif start == "random":
        w = with_gates(from_random(folder, target, seed), seed)
    else:
        w = rules.starting_block(base, seed, halves=start == "halves")
    if alpha is not None:
        w = rules.trained_block(base, None, alpha, w, seed)
    row = {"target": target, "start": start, "alpha": alpha, "seed": seed}
    return row | measures(w, base, model)


def jobs() -> list[tuple]:
    """Targets, starts, penalties and seeds in the order of the plan."""
    arms = [("layer", None, 0)]
    for seed in (0, 1):
        arms += [("random", alpha, seed) for alpha in (None, 0.3, 0.0)]
    arms += [("silent", alpha, seed) for seed in (0, 1) for alpha in (0.3, 0.0)]
    arms += [("halves", 0.0, 0), ("halves", 0.0, 1), ("halves", None, 0), ("halves", 0.3, 0)]
    return [(target, *arm) for arm in arms for target in TARGETS]


if __name__ == "__main__":
    write_rows(jobs(), block_row, "text_starts.csv")
