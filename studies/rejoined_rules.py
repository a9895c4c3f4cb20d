"""Why do gated blocks not rejoin halved heads on planted rules?

python -m studies.rejoined_rules [rows | silent]

Additions L, M and N of the plan `sharing_in_text.md`, on the model of dose 60 of `planted_rules.py`. Writes `planted_control.csv`: one row a draw of rows for the unchanged layer, and one
row a block that starts from halves of each head. `rows`: writes `planted_rows.csv` instead, in which rules are judged row by row and by the position of the key. `silent`: writes
`planted_counted.csv`, blocks from four heads and four silent ones, with error and penalty counted once more at the rules. Finished blocks are kept in `/tmp`. About ten minutes of one core, and four for `rows`.
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import pandas as pd
import torch
from joblib import Memory
from tqdm import tqdm

from circuitkit.training import fit
from studies import planted_rules as rules

kept = Memory(Path(gettempdir()) / "rejoined_rules", verbose=0).cache
DOSE, ALPHA = 60, 0.3
VARIANTS = {
    "as before": {},
    "more rules": {"n_rule": 48},
    "more steps": {"steps": 3 * rules.STEPS},
    "counted at rules": {"n_rule": 48, "at_rules": True},
}
"""What differs from `planted_rules.trained_block`."""


@kept
def block_of(
    seed: int,
    n_rule: int = 8,
    steps: int = rules.STEPS,
    at_rules: bool = False,
    alpha: float = ALPHA,
    halves: bool = True,
):
    """A block from halves of each head (or from four heads and four silent ones), as `planted_rules.trained_block`.

    With `n_rule` rows that have a rule in each step; if `at_rules`, the error and the penalty at the pairs of the rules are counted once more.
    """
    torch.set_num_threads(1)
    base, planted, (rows, _) = rules.target(DOSE)[0], rules.rules_of(DOSE), rules.split_rows()
    w = rules.starting_block(base, seed, halves=halves)
    trained = [value.requires_grad_() for key, value in w.items() if key != "size"]
    causal = torch.ones(rules.N_POS, rules.N_POS).tril()
    with_rule = torch.arange(rules.N_TEXT, rules.N_TEXT + n_rule)

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(11_000 + 1000 * seed + step)
        chosen = torch.randint(len(rows), (rules.N_TEXT + n_rule,), generator=generator)
        natural, other = rows[chosen].split((rules.N_TEXT, n_rule))
        some = planted[torch.randint(len(planted), (n_rule,), generator=generator)]
        tokens, key, query = rules.plant(other, some, generator)
        x = rules.stream(base, torch.cat([natural, tokens]))
        with torch.no_grad():
            wanted = rules.layer(base, x)[0]
        y, _, gates = rules.layer(w, x)
        error, size = (part.square().sum(-1) for part in (y - wanted, wanted))
        joint = gates.clamp(min=1e-6).pow(0.6).sum(1).pow(1 / 0.6)
        relative = error.mean() / size.mean()
        penalty = (joint * causal).sum() / causal.sum() / len(x)
        if at_rules:
            relative = relative + error[with_rule, query].mean() / size[with_rule, query].mean()
            penalty = penalty + joint[with_rule, query, key].mean()
        return relative + rules.weight_of_penalty(alpha, step / steps) * penalty

    rate = partial(rules.rate_of_block, steps=steps)
    fit(trained, loss_at, steps, learning_rate=rate)
    return {key: value.detach() for key, value in w.items()}


def judged(variant: str, seed: int, w: rules.Weights) -> dict:
    """How many of the layer's rules with a head have one in the block, and how their effect is split between the halves of that head."""
    base, planted, (_, rows) = rules.target(DOSE)[0], rules.rules_of(DOSE), rules.split_rows()
    layer, block = rules.judge(base, base, planted), rules.judge(w, base, planted)
    together = rules.judge(w, base, planted, merged=True)
    alone, learned = layer["alone"], layer["learned"]
    shape = (len(planted), rules.ROWS_A_RULE)
    halves = block["effects"].view(*shape, 2, -1)[alone]  # [rule, row, half, head]
    carrier = layer["carriers"][alone].double().argmax(1)
    index = torch.arange(len(carrier))
    sizes = halves[index, :, :, carrier].abs()
    smaller = sizes.amin(-1).sum(1) / sizes.sum((1, 2))
    row = {"variant": variant, "seed": seed, "recovered": rules.recovered(w, base, rows[:200])}
    row |= {"learned": int((block["learned"] & learned).sum()), "of": int(alone.sum())}
    row |= {"one_head": int((block["alone"] & alone).sum())}
    row |= {"halves_as_one": int((together["alone"] & alone).sum())}
    return row | {"smaller_half": float(smaller.median()), "rejoined": int((smaller < 0.1).sum())}


def again(seed: int) -> dict:
    """The unchanged layer on other rows: how many rules have a head, and how many of those that had one before."""
    base, planted = rules.target(DOSE)[0], rules.rules_of(DOSE)
    before, after = rules.judge(base, base, planted), rules.judge(base, base, planted, seed=seed)
    row = {"variant": "layer, other rows", "seed": seed, "recovered": 1.0}
    row |= {"learned": int((after["learned"] & before["learned"]).sum())}
    row |= {"of": int(before["alone"].sum())}
    return row | {"one_head": int((after["alone"] & before["alone"]).sum())}


# Row by row

EARLY, LATE, N_EACH = 15, 24, 60
"""Keys up to `EARLY` and behind `LATE`; rows of each rule."""


@kept
def study_block(start: str, alpha: float, seed: int) -> rules.Weights:
    """A block of the additions D (from silent heads) and G (from halves)."""
    torch.set_num_threads(1)
    base = rules.target(DOSE)[0]
    w = rules.starting_block(base, seed, halves=start == "halves")
    return rules.trained_block(base, rules.rules_of(DOSE), alpha, w, seed)


@torch.no_grad()
def on_rows(w: rules.Weights):
    """For each rule and row: which heads carry the rule in this row, the effects of the heads, and the position of the key."""
    base, planted, (_, rows) = rules.target(DOSE)[0], rules.rules_of(DOSE), rules.split_rows()
    generator = torch.Generator().manual_seed(47)
    each = planted.repeat_interleave(N_EACH, 0)
    chosen = rows[torch.randint(len(rows), (len(each),), generator=generator)]
    tokens, key, query = rules.plant(chosen, each, generator)
    parts = [
        rules.edges(w, base, *part)
        for part in zip(*(p.split(100) for p in (tokens, key, query, each)), strict=True)
    ]
    _, carried, effects, _ = (torch.cat(part) for part in zip(*parts, strict=True))
    shape = (len(planted), N_EACH)
    return carried.view(*shape, -1), effects.view(*shape, -1), key.view(shape)


def often(carried: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """The rules that one head carries in at least 90% of some rows `[rule, row]`."""
    counts = (carried & where[..., None]).sum(1)
    return (counts >= 0.9 * where.sum(1, keepdim=True)).any(-1)


def guessed(which: torch.Tensor, groups: torch.Tensor) -> float:
    """How often the commonest half of a group in the first half of the rows is right in the other half; `[rule, row]`."""
    middle = which.shape[1] // 2
    n = int(groups.max()) + 1
    known, asked = groups[:, :middle].flatten(), groups[:, middle:].flatten()
    of_second = torch.zeros(n).index_add(0, known, which[:, :middle].flatten().float())
    most = of_second > 0.5 * known.bincount(minlength=n)
    return float((most[asked] == which[:, middle:].flatten()).double().mean())


def row_by_row(start: str, alpha: float | None, seed: int, w: rules.Weights) -> dict:
    """Rules of the layer that a head, or in each row some head, carries; and what tells which of two halves is open."""
    base, planted = rules.target(DOSE)[0], rules.rules_of(DOSE)
    layer = rules.judge(base, base, planted)
    alone, learned = layer["alone"], layer["learned"]
    carried, effects, key = on_rows(w)
    some = carried.any(-1).double().mean(1) >= 0.9
    row = {"start": start, "alpha": alpha, "seed": seed}
    row |= {"of": int(alone.sum()), "learned": int(learned.sum())}
    whole = torch.ones_like(key, dtype=torch.bool)
    for name, where in (("one_head", whole), ("early", key <= EARLY), ("late", key > LATE)):
        row[name] = int((often(carried, where) & alone).sum())
    row |= {"some_head": int((some & alone).sum())}
    row |= {"some_of_learned": int((some & learned).sum())}
    if start != "halves":
        return row
    carrier = layer["carriers"][alone].double().argmax(1)
    index = torch.arange(len(carrier))
    sizes = effects[alone].unflatten(-1, (2, -1))[index, :, :, carrier].abs()
    row["one_half"] = float((sizes.amax(-1) >= 0.9 * sizes.sum(-1)).double().mean())
    # heads whose halves both work somewhere
    which = sizes.argmax(-1)
    divided = torch.zeros(layer["carriers"].shape[1], dtype=torch.bool)
    for head in carrier.unique().tolist():
        share = which[carrier == head].double().mean()
        divided[head] = 0.1 < share < 0.9
    of_divided = divided[carrier]
    row["divided"] = int(of_divided.sum())
    if not of_divided.any():
        return row
    which, heads = which[of_divided], carrier[of_divided][:, None].expand(-1, N_EACH)
    place = key[alone][of_divided] // 4
    source, target = (planted[alone][of_divided][:, c, None].expand(-1, N_EACH) for c in (0, 1))
    row["by_head"] = guessed(which, heads)
    row["by_key_position"] = guessed(which, 100 * heads + place)
    row["by_source"] = guessed(which, 2048 * heads + source)
    return row | {"by_destination": guessed(which, 2048 * heads + target)}


def write_counted() -> None:
    """How many of the rules that the layer has learned have a head in it, and in blocks from silent heads."""
    base, planted, (_, rows) = rules.target(DOSE)[0], rules.rules_of(DOSE), rules.split_rows()
    learned, found = rules.judge(base, base, planted)["learned"], []
    for alpha, seed in tqdm([(None, 0), *rules.ARMS]):
        w = base
        if alpha is not None:
            variant = VARIANTS["counted at rules"]
            w = block_of(seed, **variant, alpha=alpha, halves=False)
        block = rules.judge(w, base, planted)
        row = {"alpha": alpha, "seed": seed, "recovered": rules.recovered(w, base, rows[:200])}
        row |= {"original": int(learned.sum()), "kept": int((block["learned"] & learned).sum())}
        row |= {"could": int((block["could"] & learned).sum())}
        found.append(row | {"one_head": int((block["alone"] & learned).sum())})
        table = pd.DataFrame(found).round(4)
        table.to_csv(rules.DATA / "planted_counted.csv", index=False, lineterminator="\n")
    print(table.to_string())


def write_rows() -> None:
    base = rules.target(DOSE)[0]
    found = [row_by_row("layer", None, 0, base)]
    found += [row_by_row("halves", None, 0, rules.starting_block(base, 0, halves=True))]
    jobs = [(start, alpha, seed) for start in ("halves", "silent") for alpha, seed in rules.ARMS]
    for job in tqdm(jobs):
        found.append(row_by_row(*job, study_block(*job)))
        table = pd.DataFrame(found).round(4)
        table.to_csv(rules.DATA / "planted_rows.csv", index=False, lineterminator="\n")
    print(table.T.to_string())


def main() -> None:
    torch.set_num_threads(1)
    if "rows" in sys.argv:
        write_rows()
        return
    if "silent" in sys.argv:
        write_counted()
        return
    rows = [again(seed) for seed in (17, 27, 37)]
    start = rules.starting_block(rules.target(DOSE)[0], 0, halves=True)
    rows.append(judged("halves", 0, start))
    jobs = [(variant, seed) for seed in (0, 1) for variant in VARIANTS]
    for variant, seed in tqdm(jobs):
        rows.append(judged(variant, seed, block_of(seed, **VARIANTS[variant])))
        table = pd.DataFrame(rows).round(4)
        table.to_csv(rules.DATA / "planted_control.csv", index=False, lineterminator="\n")
    print(table.to_string())


if __name__ == "__main__":
    main()
