"""The claims of the register on a null: on a model that has learnt nothing, or on parts that a claim does not name.

A row of `claims.toml` names a function here (`null_by`) if its claim says what training did to a model, or what one part of a
trained model does. Its verdict would be worthless if the same number came out without training, or for any other part. The
other rows need no null, or cannot have one:

* Identities, constructions, counts and settings hold for any weights: most rows of E, N, P and H, and G1 to G10.
* Some rows have their baseline among their values: E4, E14, N9, N13, N14, N22, G25.
* Some compare trained models with each other, or judge models built for the purpose: N20, N23, P23, H21, G13, G24, G28.
* Some rest on stored tables of long trainings without the weights: G12, G14, G17, G22, G26, G29, A1, A3.

A function returns one entry for each entry of the row's value: the lowest and the highest number over the nulls, or nothing
where the entry states no effect. Untrained models have the random weights of the training scripts, and they are the stronger
null for losses, because weights in random order predict worse than chance. Other heads and wires of the same trained model are
the stronger null for what one head or wire does, because they have learnt as much. The heads of the toy models are compared
with themselves after their weights were put in random order, and a block is compared with blocks that had no penalty.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from circuitkit import circuits, effects, induction, models
from circuitkit import superposition as sp
from circuitkit.reading import heads_of
from circuitkit_book import pair_sharing, skip_trigram_bugs
from circuitkit_book import superposition_models as toy
from circuitkit_book.claims import framework, gated, notes
from circuitkit_book.claims.shipped import model, repeats, second_pass
from circuitkit_book.superposition_task import train_on_task

Range = list
"""`[lowest, highest]`, or `[]` for an entry without a null."""
SEEDS = range(10)
INITIAL_SIZE = {
    "embed": 0.5,
    "unembed": 0.02,
    "q": 0.06,
    "k": 0.06,
    "v": 0.06,
    "o": 0.03,
}
"""Standard deviations at the start of the training, as in `studies/edition-2/train/model.py`."""
EARLY = ("L0H0", "L0H1", "L0H2", "L0H3")
LATE = ("L1H0", "L1H1", "L1H2", "L1H3")


# Models that have learnt nothing


@cache
def untrained(name: str, seed: int) -> Any:
    """A shipped attention-only model with the weights of an untrained one; positions have coordinates of their own."""
    made = models.load_model(name)
    generator = torch.Generator().manual_seed(seed)
    for key, weight in made.state_dict().items():
        size = INITIAL_SIZE.get(key.split(".")[-2])
        if size and key.endswith("weight"):
            used = weight != 0
            weight[used] = size * torch.randn(int(used.sum()), generator=generator)
    return made


def span(results: Iterable[list]) -> list[Range]:
    """The lowest and the highest of each entry over several results.

    >>> span([[0.5, 3], [0.25, 4]])
    [[0.25, 0.5], [3, 4]]
    """
    return [[min(column), max(column)] for column in zip(*results, strict=True)]


def bigram_table() -> list[Range]:
    """E9 on ten untrained zero-layer models."""
    return span(framework.bigram_table(untrained("zero-layer", seed)) for seed in SEEDS)


def heads_of_other_texts() -> list[Range]:
    """G30 with the effects of each head taken from another row, ten draws; the stored entries have their null in them."""
    effects = pair_sharing.pairs_of(gated.text_effects())
    generator = torch.Generator().manual_seed(0)
    drawn = [pair_sharing.other_text(effects, generator) for _ in SEEDS]
    return [
        *span([pair_sharing.share_of_strong(one)["shared"]] for one in drawn),
        *[[] for _ in range(7)],
    ]


def copying_heads() -> list[Range]:
    """E11 on the heads of ten untrained one-layer models."""
    scores = [
        score for seed in SEEDS for score in framework.copying_heads(untrained("one-layer", seed))
    ]
    return [[min(scores), max(scores)]] * len(EARLY)


def term_importance() -> list[Range]:
    """E13 on ten untrained two-layer models."""
    return span(framework.term_importance(untrained("two-layer", seed)) for seed in SEEDS)


def deletion() -> list[Range]:
    """N3 on ten untrained two-layer models."""
    return [[], [], *span(notes.deletion(untrained("two-layer", seed))[2:] for seed in SEEDS)]


def random_repeats() -> list[Range]:
    """E17 on the models without an induction head: two trained ones with fewer layers, and ten untrained ones."""
    without = [model("zero-layer"), model("one-layer")]
    without += [untrained("two-layer", seed) for seed in SEEDS]
    predictable, _, second, accuracy = span(framework.random_repeats(one) for one in without)
    return [predictable, [], second, accuracy]


def originals_in_random_order() -> list[Range]:
    """G11 on the same 48 originals, with the weights of the heads in random order."""
    made = [gated.in_random_order(4, 5, seed, order=seed) for seed in range(48)]
    return [[], [], [], *span([gated.shared_trigrams(made)])]


def without_penalty() -> list[Range]:
    """G23: the verdict on eight blocks that imitate the same original and have no reason to close a gate."""
    original, recipe = toy.load_original(4, 5, seed=13), sp.GATES.but(penalty="none")
    blocks = train_on_task(original, recipe, inits=8, seed=1).blocks
    verdicts = [gated.one_head_each(sp.with_gated_layer(original, 0, block)) for block in blocks]
    return [[min(verdicts), max(verdicts)], *[[]] * 9]


def cleaner_heads_untrained() -> list[Range]:
    """A2: the heads of rank one before training, three seeds; stored table."""
    start, random_axes = (
        gated.rank_one_heads(f"{block}, untrained") for block in ("lorsa", "lorsa, random axes")
    )
    columns = ((start, "classes"), (start, "cleaner"), (random_axes, "cleaner"))
    found = [[row[column] for row in rows] for rows, column in columns]
    classes, cleaner, from_random = ([min(one), max(one)] for one in found)
    return [classes, cleaner, [], from_random, [], [], []]


# Parts of the trained models that a claim does not name


def others(all_names: Iterable[str], named: str) -> list[str]:
    """All names but one."""
    return [name for name in all_names if name != named]


def costs(kind: str) -> Range:
    """Nats lost on repeats when another wire of this kind is cut than the one from L0H1 into L1H3."""
    wires = [f"{early}->{late}.{kind}" for early in EARLY for late in LATE]
    wires = others(wires, f"L0H1->L1H3.{kind}")
    lost = [second_pass(wire).second - second_pass().second for wire in wires]
    return [min(lost), max(lost)]


def scores_and_signals() -> list[Range]:
    """E15: Q scores in ten untrained models, minus the baseline; the cost of the other wires into queries."""
    stacks = [heads_of(untrained("two-layer", seed)) for seed in SEEDS]
    tables = [circuits.composition_scores(one, side="Q", above_baseline=True) for one in stacks]
    scores = torch.stack([table.values for table in tables])
    scores = scores[~scores.isnan()]
    return [[], [], [], [float(scores.min()), float(scores.max())], costs("Q")]


def induction_circuit() -> list[Range]:
    """E16: scores of the other heads of the model, and the cost of its other wires of the same kind."""
    table = induction.scores(model("two-layer"), repeats())
    looks_back = [table[name, "previous token"] for name in others([*EARLY, *LATE], "L0H1")]
    matches = [table[name, "prefix matching"] for name in others([*EARLY, *LATE], "L1H3")]
    scores = [[min(looks_back), max(looks_back)], [min(matches), max(matches)]]
    return [[], scores[0], [], scores[1], costs("K"), costs("Q"), costs("V")]


def induction_eigenvalues() -> list[Range]:
    """E18: the match for the 15 other pairs of heads, and the OV circuits of the seven other heads."""
    pairs = [(early, late) for early in EARLY for late in LATE if (early, late) != ("L0H1", "L1H3")]
    matches = [framework.match_score(early, late) for early, late in pairs]
    table = circuits.copying_score(model("two-layer"))
    copies = [table[name] for name in others([*EARLY, *LATE], "L1H3")]
    return [[], [min(matches), max(matches)], [min(copies), max(copies)]]


def matching_tokens() -> list[Range]:
    """N24: the same share for the 15 other pairs of heads."""
    pairs = [(early, late) for early in EARLY for late in LATE if (early, late) != ("L0H1", "L1H3")]
    shares = [notes.share_that_match(early, late) for early, late in pairs]
    return [[], [min(shares), max(shares)], []]


@cache
def losses_before() -> Range:
    """Loss on repeats at the earlier checkpoints of the two-layer model, before its induction head forms."""
    before = [models.load_model("two-layer", step=step) for step in (0, 1000, 3000)]
    losses = [induction.induction_loss(two, repeats()).second for two in before]
    return [min(losses), max(losses)]


def birth_of_induction() -> list[Range]:
    """E19 at step 5700: prefix matching of the seven other heads, and the loss at earlier checkpoints."""
    table = induction.scores(models.load_model("two-layer", step=5700), repeats())
    matches = [table[name, "prefix matching"] for name in others([*EARLY, *LATE], "L1H3")]
    return [[], [], [], [min(matches), max(matches)], losses_before(), []]


def loss_falls() -> list[Range]:
    """N16: the loss at earlier checkpoints."""
    return [[], [], losses_before(), losses_before(), [], []]


def wires_cut() -> list[Range]:
    """N15: all wires into one kind of input cut, but for those into L1H3."""
    two = model("two-layer")
    found = []
    for kind in framework.KINDS:
        cut = [wire for wire in effects.wires(two, kind) if "L1H3" not in wire]
        loss = second_pass(*cut).second
        found.append([loss, loss])
    return [*found, []]


def what_is_copied() -> list[Range]:
    """N17: accuracy without layer 0 in an input of another head of layer 1."""
    results = [notes.what_is_copied(into=head) for head in others(LATE, "L1H3")]
    _, _, without_values, without_keys = span(results)
    return [[], [], without_values, without_keys]


def dursley() -> list[Range]:
    """N18: attention of the seven other heads from the second ` D` to the token after the first."""
    two = model("two-layer")
    pieces = two.to_str_tokens(notes.DURSLEYS)
    first, second = (i for i, piece in enumerate(pieces) if piece == " D")
    cache = two.run_with_cache(two.to_tokens(notes.DURSLEYS))[1]
    patterns = [cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in (0, 1)]
    looks = torch.cat(patterns)[:-1, second, first + 1]  # the last head is L1H3
    return [[], [], [float(looks.min()), float(looks.max())], []]


# Skip trigrams that are put together at random


def exchanged_sources() -> list[Range]:
    """E10: the same triples in held-out text after their sources are exchanged, in twenty random orders."""
    triples = framework.strongest_of_l0h0()
    found = []
    for seed in range(20):
        order = torch.randperm(len(triples), generator=torch.Generator().manual_seed(seed)).tolist()
        mixed = [(triples[i][0], *triple[1:]) for i, triple in zip(order, triples, strict=True)]
        found.append(framework.supported_by_heldout_text(mixed))
    return [[], [], *span(found)]


def exchanged_completions() -> list[Range]:
    """E12: the same crossings after their wrong completions are exchanged, in ten random orders."""
    counted = skip_trigram_bugs.shipped_statistics()
    crossings = skip_trigram_bugs.crossings_of(counted.words, counted.occurring)
    found = []
    for seed in SEEDS:
        order = torch.randperm(len(crossings), generator=torch.Generator().manual_seed(seed))
        mixed = crossings.clone()
        mixed[:, 2] = crossings[order, 2]
        worst, unseen = framework.twenty_worst(mixed)
        found.append([bool(worst[-1, 0] > 0.3), float(worst[0, 0]), float(unseen[-1, 0])])
    above, largest, unseen = span(found)
    return [above, largest, [], unseen]
