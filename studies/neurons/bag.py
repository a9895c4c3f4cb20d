"""Do weights explain more of a neuron than a bag of earlier tokens does? The plan is the addition in `plan-text.md`.

`python -m studies.neurons.bag FOLDER` takes about 12 minutes of one core, keeps each finished part in FOLDER, and
writes `src/circuitkit/data/conversion/neurons_bag.json`. With a second argument, `terms` or `bags`, it makes only these
parts, so that both can run at the same time.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import circuitkit as ck
from circuitkit.residual import reader_matrix
from circuitkit_book.neuron_reading import explained
from circuitkit_book.stored_tables import stored_study
from studies.neurons.text import (
    BATCH,
    FIRST,
    extension,
    heldout,
    interval,
    regressed,
    terms_of_layer,
    unit,
)

RESULT = Path(__file__).resolve().parents[2] / "src/circuitkit/data/conversion/neurons_bag.json"
NEAR = 8  # positions of the near window
RIDGE = (300.0, 3000.0, 30000.0)
PENALTIES = (1e-7, 1e-6, 1e-5)
LEARNING_RATE, EPOCHS = 0.1, 40
D_VOCAB = 2048


def kept(path: Path, make: Callable):
    """The stored result of a part of the study, made at the first call."""
    if not path.exists():
        torch.save(make(), path)
    return torch.load(path)


# What came before


def earlier_sums(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of `[row, pos, ...]` over the 8 positions before each position, and over all earlier ones."""
    sums = F.pad(values.cumsum(1), (0, 0, 1, 0))  # sums[i] is the sum over positions before i
    n_pos = values.shape[1]
    start = (torch.arange(n_pos) - NEAR).clamp_min(0)
    return sums[:, :n_pos] - sums[:, start], sums[:, :n_pos]


def features(rows: Tensor) -> Tensor:
    """The columns of the ridge regression `[row, pos, 3 * token]`, without the first positions."""
    one_hot = F.one_hot(rows, D_VOCAB).float()
    near, everything = earlier_sums(one_hot)
    n_earlier = torch.arange(rows.shape[1]).clamp_min(1)[:, None]
    return torch.cat([one_hot, near, everything / n_earlier], -1)[:, FIRST:]


def scales(rows: Tensor) -> Tensor:
    """The standard deviation of each of the three groups of columns, repeated for its columns."""
    columns = features(rows[:: len(rows) // BATCH])
    groups = columns.flatten(0, 1).view(-1, 3, D_VOCAB)
    return groups.var(0).mean(-1).sqrt().repeat_interleave(D_VOCAB)


# Two fits


def ridge(rows: Tensor, parts: list[slice], values: Tensor) -> Tensor:
    """Predictions of all neurons on the second and the third part, `[penalty, row, pos, neuron]`."""
    fit, middle, test = parts
    scale, n = scales(rows[fit]), 3 * D_VOCAB
    gram, cross = torch.zeros(n, n), torch.zeros(n, values.shape[-1])
    mean = values[fit, FIRST:].mean((0, 1))
    for batch, value in zip(rows[fit].split(20), values[fit, FIRST:].split(20), strict=True):
        x = (features(batch) / scale).flatten(0, 1)
        gram.addmm_(x.T, x)
        cross.addmm_(x.T, (value - mean).flatten(0, 1))
    diagonal, solutions = gram.diagonal().clone(), []
    for penalty in RIDGE:
        gram.diagonal().copy_(diagonal + penalty)
        factor = torch.linalg.cholesky(gram)
        solutions.append(torch.cholesky_solve(cross, factor))
    new = torch.cat([rows[middle], rows[test]])
    found = []
    for batch in new.split(20):
        x = features(batch) / scale
        found.append(torch.stack([mean + x @ solution for solution in solutions]))
    return torch.cat(found, 1)


class BagThroughGELU:
    """GELU of numbers for the position, the current token, the one before, the 8 before and all so far."""

    def __init__(self, n_pos: int, n_neurons: int) -> None:
        self.tables = torch.zeros(4, D_VOCAB, n_neurons, requires_grad=True)
        self.position = torch.zeros(n_pos, n_neurons, requires_grad=True)

    def __call__(self, rows: Tensor, before: Tensor) -> Tensor:
        """Predictions `[row, pos, neuron]`; the two windows read the rows `before`."""
        current, previous, near, everything = self.tables
        near, _ = earlier_sums(near[before])
        everything = everything[before].cumsum(1)
        n_seen = torch.arange(1, rows.shape[1] + 1)[:, None]
        n_near = (n_seen - 1).clamp(1, NEAR)
        read = current[rows[:, FIRST:]] + previous[rows[:, FIRST - 1 : -1]]
        windows = self.position + near / n_near + everything / n_seen
        return F.gelu(read + windows[:, FIRST:])


def through_gelu(
    rows: Tensor, before: Tensor, parts: list[slice], values: Tensor, report: bool = False
) -> Tensor:
    """Predictions on the second and the third part, the penalty and epoch of each neuron chosen on the third."""
    fit, middle, test = parts
    spread = values[fit, FIRST:].flatten(0, 1).var(0)
    judged = values[test, FIRST:]
    best = torch.full((values.shape[-1],), -torch.inf)
    chosen = torch.zeros(0)
    for penalty in PENALTIES:
        bag = BagThroughGELU(rows.shape[1], values.shape[-1])
        optimizer = torch.optim.Adam([bag.tables, bag.position], lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, EPOCHS)
        generator = torch.Generator().manual_seed(0)
        for epoch in range(EPOCHS):
            order = torch.randperm(fit.stop, generator=generator)
            for batch in order.split(18):
                error = bag(rows[batch], before[batch]) - values[batch, FIRST:]
                loss = (error.square().mean((0, 1)) / spread).sum()
                loss = loss + penalty * bag.tables.square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
            if epoch % 4 != 3:
                continue
            with torch.no_grad():
                new = torch.cat([bag(rows[p], before[p]) for p in (middle, test)])
            error = (new[middle.stop - middle.start :] - judged).square().mean((0, 1))
            score = 1 - error / judged.flatten(0, 1).var(0, correction=0)
            if report:
                print(penalty, epoch + 1, round(float(score.mean()), 3), flush=True)
            chosen = torch.where(score > best, new, chosen) if len(chosen) else new
            best = torch.maximum(best, score)
    return chosen


def bag_of(rows: Tensor, parts: list[slice], values: Tensor, report: bool = False) -> Tensor:
    """Both predictions of the rival, `[fit, row, pos, neuron]`."""
    linear = ridge(rows, parts, values)
    n_middle = parts[1].stop - parts[1].start
    error = (linear[:, n_middle:] - values[parts[2], FIRST:]).square().mean((1, 2))
    best = error.argmin(0)
    if report:
        print("ridge", best.bincount(minlength=len(RIDGE)).tolist(), flush=True)
    linear = torch.stack([linear[b, :, :, i] for i, b in enumerate(best.tolist())], -1)
    return torch.stack([linear, through_gelu(rows, rows, parts, values, report)])


# The study


@torch.no_grad()
def with_even_attention(model, rows: Tensor, neurons: list[int]) -> Tensor:
    """Activations of neurons of layer 0 if its heads attend evenly to all positions up to the current one."""
    mlp, heads = model.blocks[0].mlp, ck.heads_of(model)
    W = reader_matrix(model, "L0 MLP")[:, neurons]
    found = []
    for batch in rows.split(BATCH):
        run = ck.run(model, list(batch))
        start = run.parts(before="L0H0")
        stream = start["embed"] + start["pos"]
        read, written = run.recording.frozen("blocks.0.ln1").apply(stream), 0
        for name in [f"L0H{h}" for h in range(model.cfg.n_heads)]:
            written = written + read @ heads[name].W_V[0] @ heads[name].W_O[0]
        n_seen = torch.arange(1, rows.shape[1] + 1)[:, None]
        norm = run.recording.frozen("blocks.0.ln2")
        bias = norm.bias @ mlp.W_in[:, neurons] + mlp.b_in[neurons]
        total = (stream + written.cumsum(1) / n_seen) @ W
        found.append(F.gelu(total / norm.scale.mean() + bias))
    return torch.cat(found)


@torch.no_grad()
def activations_of(model, rows: Tensor, names: list[str]) -> Tensor:
    """The activations of some neurons, `[row, pos, neuron]`."""
    found = []
    for batch in rows.split(BATCH):
        run = ck.run(model, list(batch))
        values = [run.recording.neurons_z(layer) for layer in range(2)]
        found.append(torch.stack([values[int(n[1])][..., int(n[3:])] for n in names], -1))
    return torch.cat(found)


def of_sample(model, rows: Tensor, parts: list[slice], names: list[str], extended: Tensor) -> dict:
    """What lookup and terms predict of the neurons of a sample."""
    layer, neurons = int(names[0][1]), [int(name[3:]) for name in names]
    terms = terms_of_layer(model, rows, layer, neurons, extended)
    units = [unit(terms, i, rows, parts, D_VOCAB)[2] for i in range(len(neurons))]
    return {
        kind: torch.stack([one[kind] for one in units], -1)
        for kind in ("lookup, pair", "weights, tokens")
    }


def r2(columns: list[Tensor], values: Tensor, n_middle: int) -> float:
    """R² on the third part of a regression that is fitted on the second one."""
    known = torch.stack([x[:n_middle].flatten() for x in columns], -1)
    new = torch.stack([x[n_middle:].flatten() for x in columns], -1)
    judged = values[n_middle:].flatten()
    return explained(regressed(known, values[:n_middle].flatten(), new), judged)


def line_of(found: dict, bags: Tensor, null: Tensor, index: int, n_middle: int) -> dict:
    """The R² of each regression for one neuron."""
    other = (index + 1) % null.shape[-1]
    pair, terms = found["lookup, pair"][..., index], found["weights, tokens"][..., index]
    another = found["weights, tokens"][..., other]
    bag, values = list(bags[..., index]), found["values"][..., index]
    columns = {
        "lookup": [pair],
        "lookup, bag": [pair, *bag],
        "lookup, terms": [pair, terms],
        "lookup, bag, terms": [pair, *bag, terms],
        "lookup, bag, terms of another": [pair, *bag, another],
        "lookup, bag of another row": [pair, null[..., index]],
    }
    line = {name: r2(used, values, n_middle) for name, used in columns.items()}
    return (
        line
        | {"ridge alone": explained(bag[0][n_middle:], values[n_middle:])}
        | {"through GELU alone": explained(bag[1][n_middle:], values[n_middle:])}
    )


def summary_of(lines: list[dict]) -> dict:
    """Means over the neurons of a sample, with intervals for their differences."""
    table = {name: torch.tensor([line[name] for line in lines]) for name in lines[0]}
    bag, terms = table["lookup, bag"], table["lookup, terms"]
    found = {name: round(float(value.mean()), 3) for name, value in table.items()}
    for name, value in {
        "terms beyond the bag": table["lookup, bag, terms"] - bag,
        "terms minus bag": terms - bag,
        "terms beyond the lookup": terms - table["lookup"],
        "bag beyond the lookup": bag - table["lookup"],
        "null of the terms": table["lookup, bag, terms of another"] - bag,
        "null of the bag": table["lookup, bag of another row"] - table["lookup"],
    }.items():
        found[name] = [round(x, 2) + 0.0 for x in (float(value.mean()), *interval(value))]
    return found


def main() -> None:
    torch.set_num_threads(1)
    folder, only = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(exist_ok=True)
    model, (rows, parts) = ck.load_model("two-layer-mlp"), heldout()
    n_middle = parts[1].stop - parts[1].start
    study, _ = stored_study("neurons_text")
    samples = study.groupby(["layer", "sample"], sort=False).neuron.apply(list).to_dict()

    found = {}
    if only != ["bags"]:
        extended = kept(folder / "extended.pt", lambda: extension(model, rows[parts[0]]))
        for key, names in samples.items():
            path = folder / f"terms-{key[0]}-{key[1].split()[0]}.pt"
            found[key] = kept(path, partial(of_sample, model, rows, parts, names, extended))
        if only == ["terms"]:
            return

    first = [int(name[3:]) for name in samples[0, "random"]]
    names = [name for sample in samples.values() for name in sample]
    even = kept(folder / "even.pt", lambda: with_even_attention(model, rows, first))
    values = kept(folder / "values.pt", lambda: activations_of(model, rows, names))
    values = torch.cat([even, values], -1)
    bags = kept(folder / "bags.pt", lambda: bag_of(rows, parts, values))
    judged = torch.cat([values[p, FIRST:] for p in parts[1:]])
    n_even = len(first)
    control = [r2(list(bags[..., i]), judged[..., i], n_middle) for i in range(n_even)]
    control = [round(x, 4) for x in control]
    print("control", sum(control) / len(control), sorted(control)[:6], flush=True)
    far = torch.cat([rows[p].roll((p.stop - p.start) // 2, 0) for p in parts])
    null = kept(
        folder / "null.pt",
        lambda: through_gelu(rows, far, parts, values[..., n_even:].contiguous()),
    )
    if only == ["bags"]:
        return
    bags, judged = bags[..., n_even:], judged[..., n_even:]

    lines, summary, start = [], [], 0
    for (layer, sample), names in samples.items():
        one, place = found[layer, sample], {"layer": layer, "sample": sample}
        end = start + len(names)
        one["values"] = judged[..., start:end]
        arguments = one, bags[..., start:end], null[..., start:end]
        numbers = [line_of(*arguments, i, n_middle) for i in range(len(names))]
        start = end
        for name, line in zip(names, numbers, strict=True):
            lines.append(place | {"neuron": name} | {k: round(v, 4) for k, v in line.items()})
        summary.append(place | summary_of(numbers))
        print(json.dumps(summary[-1]), flush=True)
    provenance = {
        "script": "studies/neurons/bag.py",
        "plan": "studies/neurons/plan-text.md",
        "model": "two-layer-mlp",
        "control": control,
        "summary": summary,
    }
    RESULT.write_text(json.dumps({"provenance": provenance, "rows": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
