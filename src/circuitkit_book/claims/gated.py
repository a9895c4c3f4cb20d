"""What the post on gated attention blocks says, recomputed on hand-made models, shipped originals and stored tables."""

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit import superposition as sp
from circuitkit.heads import Heads, allowed_pairs
from circuitkit.models import heldout_rows, load_model
from circuitkit.reading import heads_of
from circuitkit_book import pair_sharing
from circuitkit_book import superposition_models as toy
from circuitkit_book.stored_tables import load_results
from circuitkit_book.superposition_task import (
    SkipTrigramTask,
    due_rows,
    post_recipe,
    train_on_task,
    trigram_verdict,
)

SIZES = ((2, 3), (3, 4), (4, 5))


def full_attention_on_the_source() -> float:
    """Largest difference of what each head of an original writes from two destinations, all attention on the source."""
    made = toy.load_original(4, 5, seed=13)
    x = made.W_E[torch.tensor([11, 0, 1, 2])]
    pattern = torch.zeros(4, 4, 4)
    pattern[..., 1] = 1.0
    written = heads_of(made).results(x, pattern=pattern)
    return float((written[:, 2] - written[:, 3]).abs().max())


def any_number() -> list:
    """Trigrams that no head of the hand-made 2-head, 3-trigram model carries; accuracy of two heads on 3, 5, 20, 100."""
    shared = toy.hand_specified(2, 3)
    out: list[float] = [*trigram_verdict(shared).superposed]
    for n in (3, 5, 20, 100):
        made = toy.two_head_model(n)
        tokens = made.task.sample(2000, seed=2)
        due = made.task.states(tokens) == 2
        out.append(float((made(tokens).argmax(-1)[due] == tokens[due] + n).float().mean()))
    return out


def used_sources() -> list:
    """Length of a prompt; share of destinations after some source that something else than the completion follows."""
    task = SkipTrigramTask(5)
    tokens = task.sample(100_000, seed=0)
    after = task.is_destination(tokens) & ((tokens == task.source).cumsum(1) > 0)
    missed = tokens[:, 1:] != tokens[:, :-1] + task.n_trigrams
    return [task.n_ctx, float((after[:, :-1] & missed).sum() / after[:, :-1].sum())]


def gates_by_hand() -> list[float]:
    """Largest error of the stored block's gates against a loop over the formula; mean row sum of its gated patterns."""
    block, x = toy.load_gated().blocks[0].attn.block, torch.eye(12)

    def dot(h: int, i: int, j: int) -> Tensor:
        return (x[i] @ block.W_GQ[h] + block.b_GQ[h]) @ (x[j] @ block.W_GK[h] + block.b_GK[h])

    wanted = torch.tensor(
        [
            [[min(max(float(dot(h, i, j)), 0.0), 1.0) for j in range(12)] for i in range(12)]
            for h in range(12)
        ]
    )
    gates, pattern = block.gates(x), block.pattern(x)
    return [float((gates - wanted).abs().max()), float((gates * pattern).sum(-1).mean())]


def gates_lie_in() -> list:
    """Whether gates stay in [0, 1] in a block whose gate scores are large, and the largest of them."""
    block = sp.GatedBlock(post_recipe(4), 4, 12).requires_grad_(False)
    block.W_GQ.mul_(100)
    gates = block.gates(torch.eye(12))
    return [0 <= float(gates.min()) <= float(gates.max()) <= 1, float(gates.max())]


def two_gates_cost_more() -> list:
    """Whether sharing costs more: the 0.6 norm across heads of one gate at 1, and of two gates at 0.5."""
    one, two = (
        float(torch.linalg.vector_norm(torch.tensor(gates), 0.6))
        for gates in ([1.0, 0.0], [0.5, 0.5])
    )
    return [two > one, one, two]


def penalised_pairs() -> list[float]:
    """Relative error of a fresh block's penalty against the mean over pairs of (sum over heads of gate^0.6)^(1 / 0.6); share of
    pairs of an 11-token prompt that no head can use; their share of the penalty.
    """
    task = SkipTrigramTask(5)
    block = sp.GatedBlock(post_recipe(4), 4, 12).requires_grad_(False)
    x = torch.eye(12)[task.sample(1000, seed=0)]
    gates = block.gates(x)
    z = block.z(x, gates)
    every, causal = block.penalty(gates, z), _causal(block).penalty(gates, z)
    n = task.n_ctx
    usable = n * (n + 1) / 2 / n**2
    wanted = gates.pow(0.6).sum(1).pow(1 / 0.6).mean()
    return [float((every - wanted).abs() / wanted), 1 - usable, float(1 - usable * causal / every)]


def loophole() -> list:
    """Whether shrinking gates by 1000 and growing values by 1000 leaves little: the share, value bias absent, and free."""
    x, left = torch.eye(12)[None], []
    for bias in (False, True):
        block = sp.GatedBlock(post_recipe(4).but(value_bias=bias), 4, 12).requires_grad_(False)
        before = block(x).norm()
        for name, factor in (("W_V", 1000), ("b_V", 1000), ("W_GQ", 0.001), ("b_GQ", 0.001)):
            getattr(block, name).mul_(factor)
        left.append(float(block(x).norm() / before))
    return [left[0] < 0.01, *left]


def initial_weights() -> list:
    """Whether the gate vectors of a fresh block are orthonormal across heads; spread of its other weights, 100 blocks, over that
    of Xavier's normal distribution: Q, K and V, then O, for the tensor of all heads; and the same for the matrix of one head.
    """
    made = [sp.GatedBlock(post_recipe(4), 4, 12, seed=seed) for seed in range(100)]
    flat = made[0].W_GQ.detach().flatten(1)
    reading = torch.stack([torch.stack([one.W_Q, one.W_K, one.W_V]) for one in made])
    writing = torch.stack([one.W_O for one in made])
    n_heads, d_model, d_head = made[0].W_Q.shape
    spread = [float(weights.detach().std()) for weights in (reading, writing)]
    all_heads = [
        2 / (d_model * d_head + n_heads * d_head),
        2 / (d_head * d_model + n_heads * d_model),
    ]
    one_head = 2 / (d_model + d_head)
    ratios = [
        one / variance**0.5
        for one, variance in zip(spread * 2, [*all_heads, one_head, one_head], strict=True)
    ]
    return [bool(torch.allclose(flat @ flat.T, torch.eye(n_heads), atol=1e-5)), *ratios]


def gate_ranks() -> list:
    """Whether the gates of a block with the public settings have fewer dimensions than its heads; the largest rank of the gate
    scores of a head, and of its attention scores.
    """
    block = sp.GatedBlock(post_recipe(4), 4, 12).requires_grad_(False)
    x = torch.eye(12)
    ranks = [
        int(torch.linalg.matrix_rank((x @ A + a[:, None]) @ (x @ B + b[:, None]).mT).max())
        for A, a, B, b in (
            (block.W_GQ, block.b_GQ, block.W_GK, block.b_GK),
            (block.W_Q, block.b_Q, block.W_K, block.b_K),
        )
    ]
    return [ranks[0] < ranks[1], *ranks]


def shared_by_originals() -> list[int]:
    """Trigrams of the post's published 4-head original with a head by the post's form, and all; the fewest heads that complete
    the other one whatever other heads are removed; stored table. Then shipped 4-head originals that keep 0, 1, ... 5 trigrams
    in no single head, each judged now by the post's form.
    """
    post = published_originals()[2]
    counts = shared_trigrams([toy.load_original(4, 5, seed) for seed in range(48)])
    found = [len(numbers(post["post_carried"])), post["post_learnt"]]
    return [*found, *numbers(post["shared_enough"]), *counts]


def published_originals() -> list[dict]:
    """The rows of the post's three trained models; stored table."""
    return [row for row in load_results("published") if row["model"].endswith("original")]


def numbers(entry: object) -> list[int]:
    """An entry of a stored table that has several numbers, or one, or none."""
    return [int(number) for number in str(entry).split()]


def shared_trigrams(made: list[TransformerBridge]) -> list[int]:
    """How many of these models keep 0, 1, ... 5 trigrams in no single head, by the post's form."""
    verdicts = [trigram_verdict(model, form="post") for model in made]
    return torch.bincount(
        torch.tensor([len(verdict.superposed) for verdict in verdicts]), minlength=6
    ).tolist()


def originals_that_share() -> list:
    """Trigrams of the post's three trained models that are in no single head, by its form; stored table. Whether all of ours
    share: of the originals of each size that learnt every trigram, those with one or more in no single head.
    """
    post = [row["post_learnt"] - len(numbers(row["post_carried"])) for row in published_originals()]
    spread = [_spread(heads, trigrams) for heads, trigrams in SIZES]
    return [
        *post,
        not any(counts[0] for counts in spread),
        *(n for counts in spread for n in (sum(counts[1:]), sum(counts))),
    ]


def own_schedule() -> list[int]:
    """Rules of the published blocks with a head, by the post's form and strictly, of all. Then runs of each size with a head
    for every trigram: by the post's form at step 5,000 and where all were followed to, strictly there; of how many; where.
    """
    published = [row for row in load_results("published") if row["model"].endswith("gated")]
    carried = [
        sum(len(numbers(row[f"{form}_carried"])) for row in published)
        for form in ("post", "argmax")
    ]
    rows, last = _post_rows(), max(_post_rows())[1]
    passed = [
        sum(row[f"{form}_carried"] == trigrams for row in rows[heads, step])
        for form, step in (("post", 5000), ("post", last), ("strict", last))
        for heads, trigrams in SIZES
    ]
    n_rules = sum(trigrams for _, trigrams in SIZES)
    return [*carried, n_rules, *passed, len(rows[4, last]), last]


def unexplained() -> list[float]:
    """Share of the original layer's variance that the published blocks miss; the mean of ours where all were followed to."""
    published = [row["fvu"] for row in load_results("published") if "gated" in row["model"]]
    return published + _post_means("fvu", max(_post_rows())[1])


def two_forms() -> list[bool]:
    """Success by the post's form and in log-odds: of two heads that do any number, of one head and the direct path, and of a
    model that never looks at the source.
    """
    made = (toy.two_head_model(5), toy.one_head_model(5), toy.blind_model(3))
    return [
        trigram_verdict(model, form=form).success for model in made for form in ("post", "odds")
    ]


def example_prompts() -> list[int]:
    """Lengths of the five printed prompts, and how many of them complete their own trigram in the eleven tokens of the task."""
    task = SkipTrigramTask(5)
    legal = [
        len(prompt) == task.n_ctx
        and any(
            b == i and c == i + 5
            for b, c, due in zip(prompt, prompt[1:], _due(task, prompt), strict=False)
            if due
        )
        for i, prompt in enumerate(PRINTED, 1)
    ]
    return [*map(len, PRINTED), sum(legal)]


def hand_made() -> list[int]:
    """The published weights: d_head, tokens, trigrams with a head of their own and the shared one, for 2 heads and 3 trigrams;
    then the last two for 4 heads and 5 trigrams.
    """
    found = []
    for made in (published_by_hand(3, [(1, 3), (2, 3)]), published_by_hand(5, FIVE_BY_HAND)):
        verdict = trigram_verdict(made, form="argmax")
        alone = int((verdict.carries.sum(0) == 1).sum())
        found += [made.cfg.d_head, made.task.d_vocab, alone, *verdict.superposed]
    return found[:4] + found[6:]


def published_by_hand(n_trigrams: int, served: list[tuple[int, ...]]) -> TransformerBridge:
    """The post's hand-made weights (its appendix D; `*_MANUAL.st` in the repository cmathw/gated-attn), all biases 0.

    `served` names the destinations of each head. A head writes 2 on the completion of its first one, -2 on that of its
    partner, and 1 on a completion that both share.
    """
    task, n_heads = SkipTrigramTask(n_trigrams), len(served)
    W_Q, W_K = torch.full((2, n_heads, task.d_vocab, 1), -100.0)
    W_V, W_O = torch.zeros(2, n_heads, task.d_vocab, 1)
    W_K[:, task.source] = W_V[:, task.source] = 1.0
    for head, (own, *shared) in enumerate(served):
        W_Q[head, [own, *shared]] = 1.0
        W_O[head, [n_trigrams + b for b in shared]] = 1.0
        W_O[head, n_trigrams + own] = 2.0
        W_O[head, n_trigrams + served[head ^ 1][0]] = -2.0
    names = tuple(f"L0H{head}" for head in range(n_heads))
    return toy.toy_model(Heads(names, W_Q, W_K, W_V, W_O.mT.contiguous(), scale=1.0), task)


FIVE_BY_HAND = [(1, 3), (2, 3), (4,), (5,)]


def and_gates() -> list:
    """Trigrams that no head encodes by the post's form, and those of them that are lost without any of two or more heads: of the
    post's trained models, stored table. The same for each size of our originals, with those that are lost with some one head
    between. Whether a shared trigram of a hand-made model is lost with any one head: two heads share it, three heads share it.
    """
    post = [n for row in published_originals() for n in numbers(row["shared_necessary"])]
    found = [n for heads, trigrams in SIZES for n in shared_and_lost(heads, trigrams)]
    return [
        len(post),
        sum(n >= 2 for n in post),
        *found,
        *(lost_with_any(*size) for size in ((2, 3, None), (3, 4, [(0, 1, 2)]))),
    ]


def shared_and_lost(heads: int, trigrams: int) -> list[int]:
    """Shared trigrams of all originals of a size that learnt theirs; of these, lost with one head or more, and with two or more."""
    config = f"{heads}H{trigrams}T"
    learnt = [row for row in load_results("originals") if row["config"] == config]
    learnt = [row for row in learnt if row["strict_learnt"] == trigrams]
    necessary = []
    for row in learnt:
        made = toy.load_original(heads, trigrams, row["seed"])
        is_shared = ~trigram_verdict(made, form="post").carries.any(0)
        necessary += necessary_heads(made)[is_shared].tolist()
    return [len(necessary), *(sum(n >= least for n in necessary) for least in (1, 2))]


def necessary_heads(made: TransformerBridge) -> Tensor:
    """For each trigram the number of heads without which the model completes it at less than 99% of its places."""
    heads = set(range(made.cfg.n_heads))
    return torch.stack([completed_by(made, heads - {head}) < 0.99 for head in heads]).sum(0)


def completed_by(made: TransformerBridge, heads: set[int]) -> Tensor:
    """Share of the places of each trigram at which these heads and the residual stream complete it."""
    tokens, answers = due_rows(made.task, "post", 300)
    written, residual = sp.head_logits(made, tokens)
    places = answers >= 0
    answer = answers[places]
    right = (written[places][:, sorted(heads)].sum(1) + residual[places]).argmax(-1) == answer
    return torch.stack([right[answer == one].float().mean() for one in answer.unique()])


def lost_with_any(heads: int, trigrams: int, shared: list[tuple[int, ...]] | None) -> bool:
    """Whether the last trigram of a hand-made model, which is shared, is lost with any one head."""
    made = toy.hand_specified(heads, trigrams, shared=shared)
    prompt = torch.tensor([[made.task.bos, 0, trigrams]])
    written, residual = (part[0, -1] for part in sp.head_logits(made, prompt))
    without = [
        (written.sum(0) - written[h] + residual).argmax() == 2 * trigrams for h in range(heads)
    ]
    return not any(without)


def withdrawn() -> float:
    """Largest difference between the logits of two heads and those of one head beside the direct path, 5 trigrams."""
    one, two = toy.one_head_model(5), toy.two_head_model(5)
    tokens = one.task.sample(2000, seed=3)
    return float((one(tokens) - two(tokens)).abs().max())


def loopholes_closed() -> list:
    """The stored block: one head for each trigram; originals with a success of the run chosen by loss: 4H/5T, 3H/4T, 2H/3T; then by the post's form."""
    strict = [n for trigrams in (5, 4, 3) for n in _chosen("gates", trigrams)]
    post = [_chosen("gates", trigrams, form="post")[0] for trigrams in (5, 4, 3)]
    return [one_head_each(toy.load_gated()), *strict, *post]


def one_head_each(made: TransformerBridge) -> bool:
    """Whether a model has learnt every trigram, and exactly one head alone carries each."""
    verdict = trigram_verdict(made)
    return verdict.success and bool((verdict.carries.sum(0) == 1).all())


def with_and_without_penalty() -> list[int]:
    """Runs of each size with a head for every trigram, of how many, with the gate penalty and without it, strictly and by the
    post's form; originals with a strict success of the chosen run, of all: penalty on writes and no gate, 4H/5T; stored tables.
    """
    rows = load_results("no_penalty")
    passed = [
        sum(row[form] for row in rows if (row["heads"], row["penalty"]) == (heads, penalty))
        for form in ("strict", "post")
        for penalty in ("gate", "none")
        for heads, _ in SIZES
    ]
    n_runs = sum((row["heads"], row["penalty"]) == (2, "gate") for row in rows)
    return [*passed, n_runs, *_chosen("writes, no gate", 5)]


def attention_on_the_source() -> list:
    """Whether it is far from full: mean attention on the source where a completion is due, of the head with most in each original
    that learnt every trigram: lowest and highest; the same over 20 random orders of the weights of original 13.
    """
    config = {f"{heads}H{trigrams}T": (heads, trigrams) for heads, trigrams in SIZES}
    learnt = [
        (*config[row["config"]], row["seed"])
        for row in load_results("originals")
        if row["config"] in config and row["strict_learnt"] == config[row["config"]][1]
    ]
    trained = [float(source_attention(toy.load_original(*one)).max()) for one in learnt]
    mixed = [float(source_attention(in_random_order(4, 5, 13, order)).max()) for order in range(20)]
    most = max(trained)
    return [most < 0.6, len(trained), min(trained), most, min(mixed), max(mixed)]


def in_random_order(n_heads: int, n_trigrams: int, seed: int, order: int) -> TransformerBridge:
    """An original of the skip-trigram task with the numbers of each weight matrix of its heads in random order."""
    made = toy.load_original(n_heads, n_trigrams, seed)
    generator = torch.Generator().manual_seed(order)
    for key, weight in made.state_dict().items():
        if ".attn." in key:
            order_now = torch.randperm(weight.numel(), generator=generator)
            weight.copy_(weight.flatten()[order_now].view_as(weight))
    return made


def source_attention(made: TransformerBridge) -> Tensor:
    """Mean attention of each head on the source where a completion is due."""
    tokens = made.task.sample(1000, seed=9)
    due = made.task.states(tokens) == 2
    pattern = heads_of(made).pattern(made.W_E[tokens])
    on_source = (pattern * (tokens == 0)[:, None, None]).sum(-1)
    return on_source.transpose(1, 2)[due].mean(0)


def hand_made_resolved() -> list:
    """The post's hand-made models, 2H/3T and 4H/5T: whether the run chosen by loss succeeds, and how many do, of all; stored table."""
    rows = load_results("by_hand")
    runs = [[row for row in rows if row["heads"] == heads] for heads in (2, 4)]
    chosen = [any(row["strict"] for row in made if row["chosen"]) for made in runs]
    return chosen + [n for made in runs for n in (sum(row["strict"] for row in made), len(made))]


def shared_pairs() -> list[float]:
    """The one-layer model: share of strong pairs on which heads interfere, 300 rows. Stored tables: excess over heads of another
    text with its interval, and the excess in both layers of the two-layer model; power at 1% of the strong pairs and at 5% of positions.
    """
    effects = pair_sharing.pairs_of(text_effects())

    def excess(name: str, layer: int) -> dict:
        wanted = {"model": name, "layer": layer, "level": "pairs", "null": "another text"}
        wanted |= {"kind": "shared", "limit": 0.2}
        rows = load_results("text_sharing")
        return next(row for row in rows if all(row[key] == wanted[key] for key in wanted))

    def power(level: str, planted: float) -> float:
        wanted = {"model": "one-layer", "level": level, "null": "another text"}
        wanted |= {"kind": "constructive", "planted": planted}
        rows = load_results("text_power")
        return next(row["power"] for row in rows if all(row[key] == wanted[key] for key in wanted))

    one = excess("one-layer", 0)
    two = [excess("two-layer", layer) for layer in (0, 1)]
    found = [row["value"] - row["null_mean"] for row in (one, *two)]
    limits = [one["excess_low"], one["excess_high"]]
    shared = pair_sharing.share_of_strong(effects)["shared"]
    return [shared, found[0], *limits, *found[1:], power("pairs", 0.01), power("positions", 0.05)]


def text_effects() -> Tensor:
    """Signed effects of the heads of the one-layer model on 300 rows of held-out text."""
    tokens = heldout_rows(300, 64, seed=1)
    return pair_sharing.signed_effects(load_model("one-layer"), tokens)


def language_model() -> list[float]:
    """The one-layer model: the excess of shared strong pairs in its layer, and in gated blocks at alpha 0, 0.3 and 1; in split heads, and
    in blocks that start from them at alpha 0 and 0.3; the loss recovered at alpha 0.3 and 1; means over seeds, stored table.
    """
    rows = [row for row in load_results("text_blocks") if row["dose"] == 0]

    def mean(start: str, alpha: float | str, column: str = "excess") -> float:
        some = [row[column] for row in rows if row["start"] == start and row["alpha"] == alpha]
        return sum(some) / len(some)

    excess = [mean("layer", ""), *(mean("silent", alpha) for alpha in (0.0, 0.3, 1.0))]
    excess += [mean("halves", alpha) for alpha in ("", 0.0, 0.3)]
    return excess + [mean("silent", alpha, "recovered") for alpha in (0.3, 1.0)]


def low_rank_sparse() -> list[int]:
    """Strict runs, of all, on originals of 2H/3T, 3H/4T and 4H/5T: two heads active, then the same with a price on writing; stored table."""
    runs = [
        _runs(f"lorsa, 6 x heads{price}", trigrams)
        for price in ("", ", price")
        for _, trigrams in SIZES
    ]
    return [n for passed in runs for n in (sum(passed), len(passed))]


def cleaner_heads() -> list[int]:
    """Heads of rank one in layer 1 that look at the place after the last occurrence more cleanly than any of the layer's own
    four, of all that write: after training from principal axes, and from random axes, and of units that are drawn at random.
    First the heads that copy a class, from principal axes; stored table, first seed.
    """
    made, random_axes, units = (
        rank_one_heads(kind)[0] for kind in ("lorsa", "lorsa, random axes", "lorsa, drawn units")
    )
    blocks = (made, random_axes, units)
    return [
        made["classes"],
        *(block[column] for block in blocks for column in ("cleaner", "alive")),
    ]


def rank_one_heads(block: str) -> list[dict]:
    """The rows of one kind of block in layer 1 of the two-layer model, one for each seed; stored table."""
    rows = load_results("language_model")
    return [row for row in rows if (row["layer"], row["block"]) == (1, block)]


def sharing_by_rank() -> list[float]:
    """Share of learnt trigrams that no head carries, originals of rank 1, 2, 3 and 5 without a price; stored table."""
    rows = [
        [row for row in load_results("causes") if row["d_head"] == rank and not row["price"]]
        for rank in (1, 2, 3, 5)
    ]
    return [
        sum(row["shared"] for row in some) / sum(row["learnt"] for row in some) for some in rows
    ]


def other_gates() -> list:
    """Whether gates of trained blocks exceed 1 with ReLU; mean gate with ReLU and tanh over that of clamped blocks; strict runs,
    of all, on 4H/5T originals with ReLU, tanh, a straight-through gate, a binary one, copied weights, and the clamp from the same
    two starts; stored table.
    """
    original, largest, mean = toy.load_original(4, 5, seed=13), {}, {}
    x = original.W_E[original.task.sample(2000, seed=2)]
    pairs = allowed_pairs("causal", x.shape[1])
    functions = {"clamp": sp.GATES.gate, "relu": torch.relu, "relu_tanh": _relu_tanh}
    for name, gate in functions.items():
        runs = train_on_task(original, sp.GATES.but(gate=gate, steps=200), inits=4, seed=1)
        with torch.no_grad():
            gates = torch.stack([block.gates(x) for block in runs.blocks])
        largest[name], mean[name] = float(gates.max()), float(gates[..., pairs].mean())
    stored = [
        _runs(f"gates, {how}", 5)
        for how in ("relu", "relu_tanh", "binary_ste", "binary", "duplicate")
    ]
    stored.append(_runs("gates", 5, inits=2))
    strict = [n for passed in stored for n in (sum(passed), len(passed))]
    return [largest["relu"] > 1 >= largest["clamp"], mean["relu_tanh"] / mean["clamp"], *strict]


PRINTED = (
    (11, 5, 4, 2, 6, 10, 1, 0, 9, 1, 6),
    (11, 6, 0, 8, 7, 10, 2, 7, 1, 3, 2),
    (11, 10, 4, 3, 6, 5, 0, 9, 3, 8, 2),
    (11, 10, 4, 3, 6, 5, 0, 8, 4, 9, 2),
    (11, 6, 5, 10, 0, 7, 5, 10, 2, 10),
)


def _relu_tanh(score: torch.Tensor) -> torch.Tensor:
    return score.relu().tanh()


def _due(task: SkipTrigramTask, prompt: tuple[int, ...]) -> list[bool]:
    return (task.states(torch.tensor([prompt]))[0] == 2).tolist()


def _causal(block: sp.GatedBlock) -> sp.GatedBlock:
    """The same block with its penalty over causal pairs only."""
    other = sp.GatedBlock(block.recipe.but(pairs="causal"), 4, 12).requires_grad_(False)
    other.load_state_dict(block.state_dict())
    return other


def _spread(heads: int, trigrams: int) -> list[int]:
    rows = [row for row in load_results("originals") if row["config"] == f"{heads}H{trigrams}T"]
    learnt = [row for row in rows if row["strict_learnt"] == trigrams]
    return [sum(row["post_distributed"] == k for row in learnt) for k in range(6)]


def _post_rows() -> dict[tuple[int, int], list[dict]]:
    """The runs of each number of heads at each step that all of them have reached, by `(heads, step)`."""
    made: dict[tuple[int, int], list[dict]] = {}
    for row in load_results("post"):
        made.setdefault((row["heads"], row["step"]), []).append(row)
    steps = {
        step
        for _, step in made
        if all(len(made[heads, step]) == len(made[heads, 1000]) for heads, _ in SIZES)
    }
    return {key: rows for key, rows in made.items() if key[1] in steps}


def _post_means(name: str, step: int) -> list[float]:
    rows = [_post_rows()[heads, step] for heads, _ in SIZES]
    return [sum(row[name] for row in some) / len(some) for some in rows]


def _runs(recipe: str, trigrams: int, inits: int = 8) -> list[int]:
    """Of each run with this recipe, from the first starts, 1 if it is a strict success."""
    return [
        row["strict"]
        for row in load_results("recipes")
        if (row["recipe"], row["trigrams"]) == (recipe, trigrams) and row["init"] < inits
    ]


def _chosen(recipe: str, trigrams: int, form: str = "strict") -> list[int]:
    rows = [
        row
        for row in load_results("recipes")
        if (row["recipe"], row["trigrams"]) == (recipe, trigrams)
    ]
    chosen = [row[form] for row in rows if row["chosen"]]
    return [sum(chosen), len(chosen)]
