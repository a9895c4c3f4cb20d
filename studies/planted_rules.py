"""Rules planted in text that no sum can solve: does a language model share them between its heads, and does a gated block separate them?

python -m studies.planted_rules [doses] [blocks]

Additions D, E and G of the plan `sharing_in_text.md`. `doses`: the one-layer model is trained further on natural rows, and on rows in which a rule `A ... B -> C` is
planted, for 15, 60 and 240 rules; writes `planted_rules.csv`, one row a dose. `blocks`: gated blocks on the layers that share rules, on the layer of the
shipped model, and on layers whose heads were split into halves; writes `text_blocks.csv`. Each model is kept in `/tmp`, so that an interrupted run goes on.
One to four minutes of one core for a dose, half a minute for a block.
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import pandas as pd
import torch
from joblib import Memory, Parallel, delayed
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from circuitkit import load_model
from circuitkit.models import heldout_tokens
from circuitkit.training import fit
from circuitkit_book import pair_sharing as ps
from studies.sharing import DATA
from studies.sharing_in_text import N_MATCHED, N_POS, N_ROWS

kept = Memory(Path(gettempdir()) / "planted_rules", verbose=0).cache
DOSES = {15: 3, 60: 12, 240: 48}
"""The number of sources for each number of rules."""
DESTINATIONS = 5
STEPS, ROWS_A_RULE = 800, 20
N_TEXT, N_RULE, N_QUIET = 8, 48, 16
"""Rows of text, with a rule, and with B but without A, in each step."""
ARMS = ((0.3, 0), (0.0, 0), (0.3, 1), (0.0, 1))
"""The penalties and seeds of most blocks."""
NEAREST, FARTHEST = 2, 40
Weights = dict[str, torch.Tensor]


# Rows and rules


def split_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of held-out text for training and for judging."""
    tokens = heldout_tokens()
    whole = len(tokens) // (N_POS - 1)
    rows = tokens[: whole * (N_POS - 1)].view(whole, N_POS - 1)
    rows = rows[torch.randperm(whole, generator=torch.Generator().manual_seed(0))]
    rows = torch.cat([torch.zeros(whole, 1, dtype=torch.long), rows], 1)
    return rows[N_ROWS:], rows[:N_ROWS]


def rules_of(dose: int) -> torch.Tensor:
    """Rows of A, B, C: all pairs of some sources and five destinations, with completions that no sum of an A and a B can give."""
    generator = torch.Generator().manual_seed(6)
    common = heldout_tokens().bincount(minlength=2048).argsort(descending=True)[200:1200]
    mixed = common[torch.randperm(1000, generator=generator)]
    a, b = torch.cartesian_prod(torch.arange(DOSES[dose]), torch.arange(DESTINATIONS)).T
    return torch.stack([mixed[a], mixed[100 + b], mixed[200 + (a + b) % DESTINATIONS]], 1)


def plant(rows: torch.Tensor, rules: torch.Tensor, generator: torch.Generator):
    """The rows with one rule each at random places, and the places of A and B."""
    n = len(rows)
    offset = torch.randint(NEAREST, FARTHEST + 1, (n,), generator=generator)
    query = 1 + offset + (torch.rand(n, generator=generator) * (N_POS - 2 - offset)).long()
    key = query - offset
    planted, index = rows.clone(), torch.arange(n)
    for place, column in ((key, 0), (query, 1), (query + 1, 2)):
        planted[index, place] = rules[:, column]
    return planted, key, query


# The model, as functions of its weights


def weights_of(name: str) -> Weights:
    model = load_model(name)
    attention = model.blocks[0].attn
    weights = {"E": model.W_E, "pos": model.W_pos, "U": model.W_U}
    weights |= {f"{part}": getattr(attention, f"W_{part}") for part in "QKVO"}
    return {key: value.detach().clone() for key, value in weights.items()}


def pattern_of(w: Weights, x: torch.Tensor) -> torch.Tensor:
    q, k = (torch.einsum("rpm,hmd->rhpd", x, w[part]) for part in "QK")
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1)


def layer(w: Weights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the layer writes, the (gated) pattern, and the gates."""
    pattern = pattern_of(w, x)
    gates = gates_of(w, x) if "GQ" in w else torch.ones(())
    W_V, W_O = used(w)
    v = torch.einsum("rpm,hmd->rhpd", x, W_V)
    return torch.einsum("rhpd,hdm->rpm", (gates * pattern) @ v, W_O), gates * pattern, gates


def gates_of(w: Weights, x: torch.Tensor) -> torch.Tensor:
    q = torch.einsum("rpm,hmd->rhpd", x, w["GQ"]) + w["bGQ"][:, None]
    k = torch.einsum("rpm,hmd->rhpd", x, w["GK"]) + w["bGK"][:, None]
    return (q @ k.mT).clamp(0, 1)


def used(w: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    """W_V and W_O; in a block, each head's OV matrix has the length `size`."""
    if "size" not in w:
        return w["V"], w["O"]
    return w["V"], w["O"] * (w["size"] / ov_length(w))[:, None, None]


def ov_length(w: Weights) -> torch.Tensor:
    """The Frobenius norm of each W_V W_O, from the small Gram matrices."""
    return torch.einsum("hij,hij->h", w["V"].mT @ w["V"], w["O"] @ w["O"].mT).sqrt()


def stream(w: Weights, tokens: torch.Tensor) -> torch.Tensor:
    return w["E"][tokens] + w["pos"][: tokens.shape[1]]


def text_loss(
    w: Weights, tokens: torch.Tensor, written: torch.Tensor | None = None
) -> torch.Tensor:
    x = stream(w, tokens)
    y = layer(w, x)[0] if written is None else written
    logits = (x + y)[:, :-1] @ w["U"]
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def batch(rows: torch.Tensor, rules: torch.Tensor | None, step: int) -> torch.Tensor:
    """Natural rows for a block, and as many with a rule if there are rules."""
    generator = torch.Generator().manual_seed(1000 + step)
    natural = rows[torch.randint(len(rows), (N_TEXT,), generator=generator)]
    if rules is None:
        return natural
    other = rows[torch.randint(len(rows), (N_TEXT,), generator=generator)]
    some = rules[torch.randint(len(rules), (N_TEXT,), generator=generator)]
    return torch.cat([natural, plant(other, some, generator)[0]])


def loss_on_rules(
    w: Weights, rows: torch.Tensor, rules: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """The loss at B on rows with a rule, and 0.3 times the loss at B on rows without A."""
    n = N_RULE + N_QUIET
    natural = rows[torch.randint(len(rows), (n,), generator=generator)]
    some = rules[torch.randint(len(rules), (n,), generator=generator)]
    planted, key, query = plant(natural, some, generator)
    quiet = torch.arange(N_RULE, n)
    for place in (key[quiet], query[quiet] + 1):
        planted[quiet, place] = natural[quiet, place]
    index = torch.arange(n)
    losses = cross_entropy(at(w, w, planted, query)[0], planted[index, query + 1], reduction="none")
    return losses[:N_RULE].mean() + 0.3 * losses[N_RULE:].mean()


@kept
def trained(dose: int, steps: int) -> Weights:
    """The one-layer model, trained further on text and on rows with rules."""
    torch.set_num_threads(1)
    w, rules = weights_of("one-layer"), rules_of(dose)
    rows, _ = split_rows()
    for value in w.values():
        value.requires_grad_()

    def loss_at(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 + step)
        natural = rows[torch.randint(len(rows), (N_TEXT,), generator=generator)]
        return text_loss(w, natural) + loss_on_rules(w, rows, rules, generator)

    def rate(step: int) -> float:
        return 2e-3 * min(1.0, step / 50 + 0.02, 2 * (1 - step / steps))

    fit(w.values(), loss_at, steps, learning_rate=rate)
    return {key: value.detach() for key, value in w.items()}


def target(dose: int) -> tuple[Weights, int]:
    """The model of one dose; with twice the steps if it learned fewer than half of the rules."""
    w = trained(dose, STEPS)
    if judge(w, w, rules_of(dose))["learned"].double().mean() >= 0.5:
        return w, STEPS
    return trained(dose, 2 * STEPS), 2 * STEPS


# Judging


@torch.no_grad()
def judge(
    w: Weights, base: Weights, rules: torch.Tensor, seed: int = 7, merged: bool = False
) -> dict:
    """Which rules are learned and carried by one head, and the effects on their pairs; `w` has the layer, `base` the rest.

    `seed` chooses the rows. If `merged`, the two halves of a head count as one head.
    """
    _, rows = split_rows()
    generator = torch.Generator().manual_seed(seed)
    each = rules.repeat_interleave(ROWS_A_RULE, 0)
    chosen = rows[torch.randint(len(rows), (len(each),), generator=generator)]
    planted, key, query = plant(chosen, each, generator)
    without = chosen.clone()
    index = torch.arange(len(each))
    without[index, query] = each[:, 1]
    found = [
        edges(w, base, *parts, merged)
        for parts in zip(*(p.split(100) for p in (planted, key, query, each)), strict=True)
    ]
    top, carried, effects, other = (torch.cat(parts) for parts in zip(*found, strict=True))
    logits = torch.cat(
        [
            at(w, base, part, q)[0]
            for part, q in zip(without.split(100), query.split(100), strict=True)
        ]
    )
    quiet = logits.argmax(-1) != each[:, 2]
    shape = (len(rules), ROWS_A_RULE)
    right = top.view(shape).double().mean(1)
    learned = (right >= 0.8) & (quiet.view(shape).double().mean(1) >= 0.8)
    carriers = carried.view(*shape, -1).double().mean(1) >= 0.9
    alone = carriers.any(1) & learned
    found = {"learned": learned, "alone": alone, "effects": effects, "other": other}
    found |= {"carriers": carriers}
    # no head can carry a rule that is right less often
    found |= {"could": learned & (right >= 0.9)}
    return found | {"right": top.double().mean(), "quiet": quiet.double().mean()}


def counts(found: dict) -> dict:
    """How many rules are learned, carried by one head, and shared as pairs; with the nulls."""
    learned, effects = found["learned"], found["effects"]
    shape, generator = (len(learned), ROWS_A_RULE), torch.Generator().manual_seed(8)
    by_chance = [
        by_rule(heads_of_other_rules(effects, shape, generator), shape, learned) for _ in range(20)
    ]
    row = {"rules": len(learned), "learned": int(learned.sum())}
    row |= {"right": float(found["right"]), "quiet": float(found["quiet"])}
    row |= {"could": int(found["could"].sum()), "carried": int(found["alone"].sum())}
    row |= {"shared": by_rule(effects, shape, learned)}
    row |= {"other_token": by_rule(found["other"], shape, learned)}
    return row | {"null_mean": sum(by_chance) / 20, "null_high": max(by_chance)}


def by_rule(effects: torch.Tensor, shape: tuple[int, int], learned: torch.Tensor) -> int:
    """Learned rules whose pair is shared in at least half of the rows."""
    constructive, destructive = ps.shared(effects.T)
    often = (constructive | destructive).view(shape).double().mean(1) >= 0.5
    return int((often & learned).sum())


def heads_of_other_rules(effects: torch.Tensor, shape: tuple[int, int], generator: torch.Generator):
    """Each head's effects come from the rows of another rule."""
    grouped = effects.view(*shape, -1)
    orders = [torch.randperm(shape[0], generator=generator) for _ in range(effects.shape[1])]
    mixed = [grouped[order, :, head] for head, order in enumerate(orders)]
    return torch.stack(mixed, -1).view_as(effects)


def at(w: Weights, base: Weights, tokens: torch.Tensor, query: torch.Tensor):
    """The logits at the query, the gated pattern, and the stream."""
    x = stream(base, tokens)
    y, pattern, _ = layer(w, x)
    index = torch.arange(len(tokens))
    return (x + y)[index, query] @ base["U"], pattern, x


def edges(w, base, tokens, key, query, rules, merged=False):
    """For each row: is C on top, which heads (or, if `merged`, pairs of halves) keep it there with any others cut on the pair, and
    effects of the heads on this pair and on a pair with another token.
    """
    logits, pattern, x = at(w, base, tokens, query)
    index = torch.arange(len(tokens))
    C = rules[:, 2]
    W_V, W_O = used(w)

    def moved(place):
        z = torch.einsum("rm,hmd->rhd", x[index, place], W_V)
        return pattern[index, :, query, place][..., None] * torch.einsum("rhd,hdm->rhm", z, W_O)

    writes = moved(key)
    U = base["U"]
    toward = (U - U.mean(1, keepdim=True)).T[C]
    effects = torch.einsum("rhm,rm->rh", writes, toward)
    elsewhere = 1 + (key % (query - 1).clamp(min=1))
    elsewhere = torch.where(elsewhere == key, (key - 1).clamp(min=1), elsewhere)
    other = torch.einsum("rhm,rm->rh", moved(elsewhere), toward)
    if merged:
        writes = writes.unflatten(1, (2, -1)).sum(1)
    added = writes @ U
    margins = added.gather(-1, C[:, None, None].expand(-1, added.shape[1], 1)) - added
    rest = logits - added.sum(1)
    base_margin = rest.gather(-1, C[:, None]) - rest
    negative = margins.clamp(max=0)
    worst = margins + negative.sum(1, keepdim=True) - negative + base_margin[:, None]
    worst.scatter_(-1, C[:, None, None].expand(-1, worst.shape[1], 1), 1.0)
    return logits.argmax(-1) == C, worst.amin(-1) > 0, effects, other


@kept
def dose_row(dose: int) -> dict:
    torch.set_num_threads(1)
    (w, steps), (_, rows) = target(dose), split_rows()
    with torch.no_grad():
        losses = [float(text_loss(one, rows[:200])) for one in (w, weights_of("one-layer"))]
    row = {"dose": dose, "steps": steps, "text_loss": losses[0], "loss_before": losses[1]}
    return row | counts(judge(w, w, rules_of(dose)))


# Gated blocks


def starting_block(w: Weights, seed: int, halves: bool = False) -> Weights:
    """Four heads as in the layer and four silent ones, or two halves of each head; all gates have biases only."""
    generator = torch.Generator().manual_seed(seed)
    block = {part: w[part].clone() for part in "QKVO"}
    length = ov_length(w)
    n, m, d = w["Q"].shape
    for part in "QKVO":
        fresh = torch.randn(w[part].shape, generator=generator) * w[part].std()
        block[part] = torch.cat([block[part], block[part] if halves else fresh])
    own = length / length.max()
    gate = torch.cat([own / 2, own / 2] if halves else [own, torch.full((n,), 0.02)])
    for side in ("GQ", "GK"):
        block[side] = 0.002 * torch.randn(2 * n, m, 8, generator=generator)
        block[f"b{side}"] = torch.zeros(2 * n, 8)
        block[f"b{side}"][:, 0] = gate.sqrt()
    block["size"] = length.max()
    return block


def weight_of_penalty(alpha: float, done: float) -> float:
    """Return the weight of the penalty after this share of the training: it rises to alpha, and is a tenth of it at the end."""
    return 0.1 * alpha if done >= 0.8 else alpha * min(1.0, done / 0.5) ** 2


def rate_of_block(step: int, steps: int) -> float:
    """Return the learning rate of a block."""
    return 2e-3 * min(1.0, step / (0.05 * steps) + 0.01, 2 * (1 - step / steps))


def trained_block(
    base: Weights,
    rules: torch.Tensor | None,
    alpha: float,
    start: Weights,
    seed: int,
    on_writes: bool = False,
    steps: int = STEPS,
) -> Weights:
    """A gated block that imitates the layer on text, with or without rules in it.

    The penalty is on gates, or on what heads write to the same dimension of the stream.
    """
    rows, _ = split_rows()
    w = {key: value.clone() for key, value in start.items()}
    trained_parts = [value.requires_grad_() for key, value in w.items() if key != "size"]
    causal = torch.ones(N_POS, N_POS).tril()

    def terms(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = stream(base, tokens)
        with torch.no_grad():
            target = layer(base, x)[0]
        y, _, gates = layer(w, x)
        error = (y - target).square().sum(-1).mean() / target.square().sum(-1).mean()
        if on_writes:
            written = written_by_heads(w, x).abs().clamp(min=1e-6)
            joint = written.pow(0.6).sum(1).pow(1 / 0.6)
            return error, joint.mean() / target.abs().mean()
        joint = gates.clamp(min=1e-6).pow(0.6).sum(1).pow(1 / 0.6)
        return error, (joint * causal).sum() / causal.sum() / len(tokens)

    def loss_at(step: int) -> torch.Tensor:
        error, penalty = terms(batch(rows, rules, 10_000 + 1000 * seed + step))
        return error + weight_of_penalty(alpha, step / steps) * penalty

    rate = partial(rate_of_block, steps=steps)
    fit(trained_parts, loss_at, steps, learning_rate=rate)
    return {key: value.detach() for key, value in w.items()}


def written_by_heads(w: Weights, x: torch.Tensor) -> torch.Tensor:
    """What each head writes `[row, head, pos, d_model]`."""
    _, pattern, _ = layer(w, x)
    W_V, W_O = used(w)
    v = torch.einsum("rpm,hmd->rhpd", x, W_V)
    return torch.einsum("rhpd,hdm->rhpm", pattern @ v, W_O)


@torch.no_grad()
def recovered(w: Weights, base: Weights, rows: torch.Tensor) -> float:
    """The share of the loss that the layer saves, compared with its mean, and that the block saves, too."""
    x = stream(base, rows)
    y, by_block = layer(base, x)[0], layer(w, x)[0]
    mean = y.mean((0, 1)).expand_as(y)
    ablated, whole, block = (float(text_loss(base, rows, part)) for part in (mean, y, by_block))
    return (ablated - block) / (ablated - whole)


@torch.no_grad()
def effects_on_text(w: Weights, base: Weights, rows: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The signed effects of a layer or a block at pairs, and how many gates are above 0.05 on a causal pair."""
    U = base["U"] - base["U"].mean(1, keepdim=True)
    W_V, W_O = used(w)
    parts, n_open = [], 0.0
    for tokens in rows.split(50):
        x = stream(base, tokens)
        _, pattern, gates = layer(w, x)
        read = torch.einsum("rim,hdm->hrid", U.T[tokens[:, 1:]], W_O)
        v = torch.einsum("rpm,hmd->hrpd", x[:, :-1], W_V)
        moved = torch.einsum("hrid,hrjd->hrij", read, v)
        parts.append(ps.pairs_of(pattern.transpose(0, 1)[:, :, :-1, :-1] * moved))
        is_open = gates.expand_as(pattern)[..., :-1, :-1] > 0.05
        n_open += float(ps.pairs_of(is_open.transpose(0, 1).double()).sum(0).mean()) * len(tokens)
    return torch.cat(parts, 1), n_open / len(rows)


def sharing_on_text(w: Weights, base: Weights) -> dict:
    """Shared strong pairs, the null of another text, the loss recovered, and open gates."""
    _, rows = split_rows()
    effects, n_open = effects_on_text(w, base, rows)
    generator = torch.Generator().manual_seed(1)
    shared = ps.share_of_strong(effects)["shared"]
    drawn = [
        ps.share_of_strong(ps.other_text(effects, generator))["shared"] for _ in range(N_MATCHED)
    ]
    row = {"recovered": recovered(w, base, rows[:200]), "open": n_open, "shared": shared}
    null = pd.Series(drawn)
    row |= {"null_mean": null.mean(), "null_low": null.min(), "null_high": null.max()}
    return row | {"excess": shared - null.mean()}


@kept
def block_row(start: str, dose: int, alpha: float | None, seed: int) -> dict:
    """A block on the layer of the shipped model (dose 0) or of one with rules; without alpha, its start."""
    torch.set_num_threads(1)
    base, rules = (target(dose)[0], rules_of(dose)) if dose else (weights_of("one-layer"), None)
    w = base if start == "layer" else starting_block(base, seed, halves=start == "halves")
    if alpha is not None:
        w = trained_block(base, rules, alpha, w, seed)
    row = {"start": start, "dose": dose, "alpha": alpha, "seed": seed} | sharing_on_text(w, base)
    if dose:
        learned = judge(base, base, rules)["learned"]
        found = judge(w, base, rules)
        row |= {"original": int(learned.sum()), "kept": int((found["learned"] & learned).sum())}
        row |= {"one_head": int((found["alone"] & learned).sum())}
    return row


def block_jobs(doses: pd.DataFrame) -> list[tuple]:
    """Starts, doses, penalties and seeds; blocks on rules only where the original shares more than a tenth."""
    shares = 1 - doses.carried / doses.learned
    passed = [dose for dose in (60, 240, 15) if dose in set(doses.dose[shares > 0.1])]
    jobs = [("layer", dose, None, 0) for dose in (0, *passed)]
    jobs += [("silent", 0, alpha, seed) for alpha in (0.3, 0.0, 1.0, 0.1) for seed in (0, 1)]
    jobs += [("silent", dose, alpha, seed) for dose in passed for alpha, seed in ARMS]
    for dose in (0, 60):
        jobs += [("halves", dose, None, 0)]
        jobs += [("halves", dose, alpha, seed) for alpha, seed in ARMS]
    return jobs


def write(name: str, rows: list[dict]) -> None:
    table = pd.DataFrame(rows).round(4)
    table.to_csv(DATA / name, index=False, lineterminator="\n")
    print(table.T.to_string())


def main() -> None:
    what = sys.argv[1:] or ["doses", "blocks"]
    run = Parallel(n_jobs=1)
    if "doses" in what:
        write("planted_rules.csv", run(delayed(dose_row)(dose) for dose in tqdm(DOSES)))
    if "blocks" in what:
        jobs = block_jobs(pd.read_csv(DATA / "planted_rules.csv"))
        write("text_blocks.csv", run(delayed(block_row)(*job) for job in tqdm(jobs)))


if __name__ == "__main__":
    main()
