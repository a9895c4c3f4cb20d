"""Rules planted in text: does a language model learn them, and does it share them between its heads?

python -m studies.planted_rules [DOSE ...]

Stage 1 of the plan `sharing_in_text.md`. The one-layer model is trained further on natural rows, in half of which a rule `A ... B -> C` is
planted, for 0, 15, 60 and 240 rules. Writes `planted_rules.csv`, one row a dose. No rule is learned, so no block is judged
on rules. Each model is kept in `/tmp`, so that an interrupted run goes on. One or two minutes of one core each.
"""

import sys
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
from studies.sharing_in_text import N_POS, N_ROWS

kept = Memory(Path(gettempdir()) / "planted_rules", verbose=0).cache
DOSES = {60: (6, 10), 240: (12, 20), 0: (0, 0), 15: (3, 5)}
"""Numbers of sources and destinations for each number of rules, in the order in which they are run."""
STEPS, ROWS_A_STEP, ROWS_A_RULE = 800, 16, 20
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
    """Rows of A, B, C: all pairs of some sources and destinations, with a random completion for each."""
    n_sources, n_destinations = DOSES[dose]
    generator = torch.Generator().manual_seed(6)
    common = heldout_tokens().bincount(minlength=2048).argsort(descending=True)[200:1200]
    mixed = common[torch.randperm(1000, generator=generator)]
    A, B = mixed[:n_sources], mixed[20 : 20 + n_destinations]
    C = mixed[100 : 100 + dose]
    grid = torch.cartesian_prod(A, B) if dose else torch.empty(0, 2, dtype=torch.long)
    return torch.cat([grid, C[:, None]], 1)


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


def batch(rows: torch.Tensor, rules: torch.Tensor, step: int, n: int) -> torch.Tensor:
    """Natural rows, half of them with a rule."""
    generator = torch.Generator().manual_seed(1000 + step)
    chosen = rows[torch.randint(len(rows), (n,), generator=generator)]
    if len(rules):
        some = rules[torch.randint(len(rules), (n // 2,), generator=generator)]
        chosen[: n // 2] = plant(chosen[: n // 2], some, generator)[0]
    return chosen


@kept
def trained(dose: int) -> Weights:
    """The one-layer model, trained further on text with rules."""
    torch.set_num_threads(1)
    w, rules = weights_of("one-layer"), rules_of(dose)
    rows, _ = split_rows()
    for value in w.values():
        value.requires_grad_()

    def loss_at(step: int) -> torch.Tensor:
        return text_loss(w, batch(rows, rules, step, ROWS_A_STEP))

    def rate(step: int) -> float:
        return 1e-3 * min(1.0, 2 * (1 - step / STEPS))

    fit(w.values(), loss_at, STEPS, learning_rate=rate)
    return {key: value.detach() for key, value in w.items()}


# Judging


@torch.no_grad()
def judge(w: Weights, base: Weights, rules: torch.Tensor) -> dict:
    """Which rules are learned, shared, and carried by one head; `w` has the layer, `base` the rest."""
    _, rows = split_rows()
    generator = torch.Generator().manual_seed(7)
    each = rules.repeat_interleave(ROWS_A_RULE, 0)
    chosen = rows[torch.randint(len(rows), (len(each),), generator=generator)]
    planted, key, query = plant(chosen, each, generator)
    without = chosen.clone()
    index = torch.arange(len(each))
    without[index, query] = each[:, 1]
    found = [
        edges(w, base, *parts)
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
    learned = (top.view(shape).double().mean(1) >= 0.8) & (
        quiet.view(shape).double().mean(1) >= 0.8
    )
    row = {"rules": len(rules), "learned": int(learned.sum())}
    row["right"] = float(top.double().mean())
    row["quiet"] = float(quiet.double().mean())
    alone = (carried.view(*shape, -1).double().mean(1) >= 0.9).any(1)
    row["carried"] = int((alone & learned).sum())
    for name, values in (("shared", effects), ("other_token", other)):
        row[name] = by_rule(values, shape, learned)
    by_chance = [
        by_rule(heads_of_other_rules(effects, shape, generator), shape, learned) for _ in range(20)
    ]
    row["null_mean"], row["null_high"] = sum(by_chance) / 20, max(by_chance)
    constructive, destructive = ps.shared(effects.T)
    is_learned = learned.repeat_interleave(ROWS_A_RULE)
    row["constructive"] = float(constructive[is_learned].double().mean()) if learned.any() else None
    row["destructive"] = float(destructive[is_learned].double().mean()) if learned.any() else None
    return row


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


def edges(w, base, tokens, key, query, rules):
    """For each row: is C on top, which heads keep it there with any others cut on the pair, and effects of the heads on this pair
    and on a pair with another token.
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
    w, (_, rows) = trained(dose), split_rows()
    row = {"dose": dose}
    with torch.no_grad():
        row["text_loss"] = float(text_loss(w, rows[:200]))
        row["loss_before"] = float(text_loss(weights_of("one-layer"), rows[:200]))
    return row | (judge(w, w, rules_of(dose)) if dose else {"rules": 0})


# Gated blocks


def starting_block(w: Weights, seed: int) -> Weights:
    """Four heads as in the layer and four silent ones; all gates have biases only."""
    generator = torch.Generator().manual_seed(seed)
    block = {part: w[part].clone() for part in "QKVO"}
    length = ov_length(w)
    n, m, d = w["Q"].shape
    for part in "QKVO":
        fresh = torch.randn(w[part].shape, generator=generator) * w[part].std()
        block[part] = torch.cat([block[part], fresh])
    gate = torch.cat([length / length.max(), torch.full((n,), 0.02)])
    for side in ("GQ", "GK"):
        block[side] = 0.002 * torch.randn(2 * n, m, 8, generator=generator)
        block[f"b{side}"] = torch.zeros(2 * n, 8)
        block[f"b{side}"][:, 0] = gate.sqrt()
    block["size"] = length.max()
    return block


def trained_block(
    base: Weights, rules: torch.Tensor, alpha: float, seed: int, steps: int = STEPS
) -> Weights:
    """A gated block that imitates the layer on text, with or without rules in it."""
    rows, _ = split_rows()
    w = starting_block(base, seed)
    trained_parts = [value.requires_grad_() for key, value in w.items() if key != "size"]
    causal = torch.ones(N_POS, N_POS).tril()

    def terms(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = stream(base, tokens)
        with torch.no_grad():
            target = layer(base, x)[0]
        y, _, gates = layer(w, x)
        error = (y - target).square().sum(-1).mean() / target.square().sum(-1).mean()
        joint = gates.clamp(min=1e-6).pow(0.6).sum(1).pow(1 / 0.6)
        return error, (joint * causal).sum() / causal.sum() / len(tokens)

    def loss_at(step: int) -> torch.Tensor:
        error, penalty = terms(batch(rows, rules, 10_000 + 1000 * seed + step, 8))
        done = step / steps
        weight = 0.1 * alpha if done >= 0.8 else alpha * min(1.0, done / 0.5) ** 2
        return error + weight * penalty

    def rate(step: int) -> float:
        return 2e-3 * min(1.0, step / (0.05 * steps) + 0.01, 2 * (1 - step / steps))

    fit(trained_parts, loss_at, steps, learning_rate=rate)
    return {key: value.detach() for key, value in w.items()}


def write(name: str, rows: list[dict]) -> None:
    table = pd.DataFrame(rows).round(4)
    table.to_csv(DATA / name, index=False, lineterminator="\n")
    print(table.T.to_string())


def main() -> None:
    asked = [int(word) for word in sys.argv[1:]] or list(DOSES)
    run = Parallel(n_jobs=1)
    write("planted_rules.csv", run(delayed(dose_row)(dose) for dose in tqdm(asked)))


if __name__ == "__main__":
    main()
