"""Induction circuits in which several heads do the same job, and models without such a group.

    python -m studies.bench.redundant

In 20 models, two or three previous-token heads write the same note, and each of them is enough. In ten
others there is no group: one head writes the note and the others scramble it, or all scramble it, or
the weights are random. A report is right if it names the planted group into the induction head, or no
group where there is none. What a group carries is measured here on other rows, by `network.run`: all of its
heads are cut together, and each alone.
"""

import functools

import torch

import circuitkit as ck
from studies.bench import measure
from studies.bench.load import configuration
from studies.bench.make import random_model
from studies.bench.network import Cut, Head, Sizes, Weights, bridge_state, rounded
from studies.bench.plant import LEVELS, Planted, notes

SEED = 7000
GROUP = "group wire"


def models() -> dict[str, tuple[Sizes, functools.partial]]:
    """Return recipes by name; those whose names begin with "group" have a group."""
    recipes = {}
    for number in range(20):
        n_layers = 2 + number % 2
        norm = number // 2 % 2 == 1
        sizes = Sizes(n_layers, 4 + number % 3, 68, 16, 40, norm)
        options = {"layers": (0, n_layers - 1), "n_alike": 2 + number // 4 % 2}
        recipe = functools.partial(notes, sizes, level=LEVELS[number % 3], **options)
        recipes[f"group {number}"] = (sizes, recipe)
    for number in range(10):
        sizes = Sizes(2, 5, 68, 16, 40, number % 2 == 1)
        level = LEVELS[number % 3]
        if number < 5:
            recipe = functools.partial(notes, sizes, level=level, n_scrambled=2)
        elif number < 8:
            recipe = functools.partial(notes, sizes, level=level, broken=True, n_alike=2)
        else:
            recipe = functools.partial(random_model, sizes, 2.0)
        recipes[f"no group {number}"] = (sizes, recipe)
    return recipes


def bridge_of(weights: Weights, sizes: Sizes):
    """Return the model as a bridge without tokenizer."""
    from transformer_lens.model_bridge.sources.native import boot

    kinds = sizes._asdict()
    kinds["normalization_type"] = "LN" if kinds.pop("norm") else None
    bridge = boot(configuration(kinds | {"n_ctx": 64}), model_name="redundant")
    state = bridge_state(weights, sizes.norm)
    bridge.load_state_dict({key: tensor.float() for key, tensor in state.items()})
    return bridge.eval().requires_grad_(False)


def head_of(name: str) -> Head:
    """Return the layer and the number of a head."""
    layer, number = name[1:].split("H")
    return int(layer), int(number)


def judged(name: str, planted: Planted, sizes: Sizes) -> dict[str, object]:
    """Return what a report names of a model, and what its groups carry by our own measure."""
    weights = rounded(planted.weights)
    table = ck.report(bridge_of(weights, sizes)).table
    is_named = table["named"].eq(True)
    groups = sorted(set(table["name"][is_named & table["measure"].eq(GROUP)]))
    circuits = list(table["name"][is_named & table["measure"].eq("induction")])
    rows = measure.Rows(sizes.d_vocab, SEED)
    place = measure.PATTERNS.index("prefix matching")
    whole = measure.attention_scores(weights, sizes.norm, rows)

    @functools.cache
    def lost(heads: tuple[Head, ...], to: Head, side: str) -> float:
        """Return which share of prefix matching is lost without some wires into one input."""
        left = measure.attention_scores(weights, sizes.norm, rows, Cut(heads, to, side))
        return float(1 - left[to][place] / whole[to][place])

    planted_group = {head for head, _, _ in planted.wires} if len(planted.wires) > 1 else set()
    result = {"model": name, "planted": sorted(planted_group), "named": groups}
    result["circuit"] = circuits
    verdicts = []
    for group in groups:
        writers, reader = group.split("->")
        heads = tuple(head_of(writer) for writer in writers.split(" + "))
        to, side = reader.split(".")
        together = lost(heads, head_of(to), side)
        alone = [lost((head,), head_of(to), side) for head in heads]
        is_true = together >= measure.WIRE[1] and max(alone) < measure.WIRE[1]
        verdicts.append((round(together, 2), [round(value, 2) for value in alone], is_true))
    result["measured"] = verdicts
    if planted_group:
        to = planted.wires[0][1]
        heads = tuple(sorted(planted_group))
        together = lost(heads, to, "K")
        alone = [lost((head,), to, "K") for head in heads]
        result["truth"] = (round(together, 2), [round(value, 2) for value in alone])
    return result


def main() -> None:
    """Make all models and print what is named."""
    torch.set_grad_enabled(False)
    for number, (name, (sizes, recipe)) in enumerate(models().items()):
        planted = recipe(seed=SEED + number)
        print(judged(name, planted, sizes), flush=True)


if __name__ == "__main__":
    main()
