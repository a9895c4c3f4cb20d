"""What the notes on the framework say, recomputed on the shipped models."""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F

from circuitkit import (
    circuits,
    effects,
    handmade,
    induction,
    models,
    paths,
    residual,
    run,
)
from circuitkit.heads import stack
from circuitkit.names import SIDES
from circuitkit.reading import heads_of
from circuitkit_book import (
    induction_by_hand,
    induction_training,
    skip_trigram_bugs,
)
from circuitkit_book.claims.framework import KINDS
from circuitkit_book.claims.shipped import (
    model,
    product,
    relative,
    repeats,
    second_pass,
    token,
    unigram,
)
from circuitkit_book.feature_toys import sample_features, train_toy_models
from circuitkit_book.residual_stream import deletion_scores, random_rotation, rotate_basis
from circuitkit_book.superposition_models import one_head_model


def setting() -> bool:
    """Whether the three attention-only models have at most two layers, no MLPs, no norms and no biases."""
    shipped = [model(name) for name in ("zero-layer", "one-layer", "two-layer")]
    small = all(
        one.cfg.attn_only and one.cfg.n_layers <= 2 and one.cfg.normalization_type is None
        for one in shipped
    )
    biases = (
        value
        for one in shipped
        for name, value in one.state_dict().items()
        if name.endswith("bias")
    )
    return small and not any(bool(value.any()) for value in biases)


def additivity() -> list:
    """Whether both are additive: how far f(x + y) misses f(x) + f(y), relative to its size: the heads of layer 0, and an MLP."""
    layer, block = heads_of(model("two-layer"))[:4], model("two-layer-mlp").blocks[0].mlp
    g = torch.Generator().manual_seed(0)
    missed = []
    for f, width in ((layer.results, layer.d_model), (block, model("two-layer-mlp").cfg.d_model)):
        x, y = torch.randn(2, 1, 12, width, generator=g)
        with torch.no_grad():
            missed.append(relative(f(x + y) - f(x) - f(y), f(x + y)))
    return [max(missed) < 1e-5, *missed]


def deletion(two: Any = None) -> list:
    """Rank of the OV matrices; the highest deletion score of a head of layer 1, its pair, and the cosine of the two."""
    two = model("two-layer") if two is None else two
    rows = models.heldout_rows(16)
    largest = deletion_scores(two, rows).top(1)
    later, earlier = largest.names[0].split(", ")
    pair = f"{later} of {earlier}"
    rank = int(torch.linalg.matrix_rank(heads_of(model("two-layer", exact=True)).OV.AB).max())
    written = residual.decompose(two, rows)  # without the first token, as in the scores
    late, early = (torch.as_tensor(written[name])[:, 1:] for name in (later, earlier))
    cosine = torch.cosine_similarity(late, early, dim=-1)
    return [rank, pair, float(largest.values[0]), float(cosine.mean())]


def opposite_features() -> list[float]:
    """Cosine between two features that never occur together, in a toy that stores four in two dimensions, mean of 2 pairs; least
    share of two such features that is missed if they have opposite directions, and the same direction.
    """
    trained = train_toy_models(
        torch.full((8,), 0.3), n_features=4, n_hidden=2, pairs="anticorrelated", steps=1000
    )
    best = trained.W[trained.loss.argmin()]
    unit = best / best.norm(dim=-1, keepdim=True)
    x = sample_features(
        torch.tensor([0.3]), 2, 10_000, "anticorrelated", torch.Generator().manual_seed(0)
    )[0]
    missed = []
    for sign in (-1.0, 1.0):
        line = torch.tensor([1.0, sign])
        read = torch.relu(torch.outer(x @ line, line))
        read = read * (read * x).sum() / read.square().sum()  # the best scale
        missed.append(float((read - x).square().sum() / x.square().sum()))
    return [float((unit[0] @ unit[1] + unit[2] @ unit[3]) / 2), *missed]


def rotated_stream() -> float:
    """Largest change of a logit of the two-layer model when its stream is turned at random, float64."""
    two, rows = model("two-layer", exact=True), models.heldout_rows(1, 64)
    rotation = random_rotation(two.cfg.d_model, seed=1)
    return float((rotate_basis(two, rotation)(rows) - two(rows)).abs().max())


def pattern_formula() -> list[float]:
    """Largest error of L0H0's pattern: scaled and masked, without the scale, without the mask."""
    cache, head = _one_head()
    x, wanted = cache["blocks.0.hook_resid_pre"][0], cache["blocks.0.attn.hook_pattern"][0, 0]
    scores = x @ product(head.QK)[0] @ x.T
    future = torch.ones_like(scores).triu(1).bool()
    variants = (
        (scores / head.scale).masked_fill(future, -torch.inf),
        scores.masked_fill(future, -torch.inf),
    )
    return [float((s.softmax(-1) - wanted).abs().max()) for s in (*variants, scores / head.scale)]


def kronecker_product() -> float:
    """(A x W_OV) as one large matrix, applied to the stream, against what L0H0 wrote; relative error, float64."""
    cache, head = _one_head()
    x, pattern = cache["blocks.0.hook_resid_pre"][0], cache["blocks.0.attn.hook_pattern"][0, 0]
    wrote = cache["blocks.0.attn.hook_z"][0, :, 0] @ head.W_O[0]
    large = torch.kron(pattern, product(head.OV)[0].T.contiguous()) @ x.flatten()
    return relative(large.view_as(wrote) - wrote, wrote)


def current_token_only() -> float:
    """Largest difference between the zero-layer model's logits on real text and rows of W_E W_U, float64."""
    zero, rows = model("zero-layer", exact=True), models.heldout_rows(4, 64)
    return float((zero(rows) - (zero.W_E @ zero.W_U)[rows]).abs().max())


def crossings() -> list[float]:
    """Over 4,000 crossings of two triples: wrong completion above the heads' median; preferred by heads; by the model; and
    the same for these completions dealt out again at random.
    """
    one, counted = model("one-layer"), skip_trigram_bugs.shipped_statistics()
    context = models.heldout_rows(20, 6, seed=3)[:1]
    rows = skip_trigram_bugs.find_bugs(
        one, counted.words, context, 1, occurring=counted.occurring
    ).crossings
    generator = torch.Generator().manual_seed(0)
    sample = rows[torch.randperm(len(rows), generator=generator)[:4000]]
    split = paths.path_logits(
        one, torch.cat([context.expand(len(sample), -1), sample[:, :2]], dim=1)
    )
    by_heads, whole = split.sum(list(heads_of(one).names), at=-1), split.sum(at=-1)
    right, out = sample[:, [3]], []
    for wrong in (sample[:, [2]], sample[torch.randperm(len(sample), generator=generator)][:, [2]]):
        out.append((by_heads.gather(1, wrong)[:, 0] > by_heads.median(-1).values).float().mean())
        out += [
            (part.gather(1, wrong) > part.gather(1, right)).float().mean()
            for part in (by_heads, whole)
        ]
    return [float(share) for share in out]


def content_times_place() -> list:
    """Second over first singular value of L0H1's attention factors, words by places; tokens back: places alone, real text."""
    one = model("one-layer", exact=True)
    head, place = heads_of(one)["L0H1"], 200
    query = (one.W_E[token("one-layer", " king")] + one.W_pos[place]) @ head.W_Q[0]
    keys = (one.W_E[:, None] + one.W_pos[place - 63 : place + 1]) @ head.W_K[0]
    factors = keys @ query / head.scale
    values = torch.linalg.svdvals((factors - factors.max()).exp())
    places = product(circuits.full_qk(one, "L0H1", query="position", key="position"))[
        place, : place + 1
    ]
    places = places + product(circuits.full_qk(one, "L0H1", key="position"))[:, : place + 1]
    alone = (unigram().double() @ places.softmax(-1)).flip(0)
    rows = models.heldout_rows(16)
    pattern = (
        model("one-layer").run_with_cache(rows)[1]["blocks.0.attn.hook_pattern"][:, 1, 64:].mean(0)
    )
    real = torch.stack([pattern.diagonal(64 - back).mean() for back in range(8)])
    return [float(values[1] / values[0]), int(alone.argmax()), int(real.argmax())]


def third_token() -> float:
    """Largest change of L0H0's scores between other tokens when one token of the context is replaced, float64."""
    one = model("one-layer", exact=True)
    tokens = one.to_tokens("The king and the queen of")
    changed = tokens.clone()
    changed[0, 3] = token("one-layer", " old")
    scores = [
        heads_of(one)["L0H0"].scores(one.run_with_cache(t)[1]["blocks.0.hook_resid_pre"])[0, 0]
        for t in (tokens, changed)
    ]
    kept = [i for i in range(tokens.shape[1]) if i != 3]
    return float((scores[0] - scores[1])[kept][:, kept].abs().max())


def virtual_head_model(n_tokens: int, n_ctx: int):
    """L0H0 carries the previous token, and L1H0 copies what it carries: the two compose through values."""
    sizes = [n_tokens, n_ctx, n_tokens, n_tokens]
    token, position, carried, output = torch.eye(sum(sizes)).split(sizes)
    size, one_back = max(n_ctx, n_tokens), (40.0 * position[1:], position[:-1])
    first = induction_by_hand.head_of("L0H0", 0, [one_back], (token, carried), size)
    second = induction_by_hand.head_of("L1H0", 1, [one_back], (carried, output), size)
    return handmade.bridge_of(stack(first, second), token, output.T, position)


def three_wires() -> list[str]:
    """Which composition score is not zero in three models built by hand: notes, pointer arithmetic, a virtual head."""
    n_words = 6
    built = [
        induction_by_hand.build_induction_model(n_words, n_ctx=12),
        induction_by_hand.build_induction_model(n_words, n_ctx=12, method="pointer"),
        virtual_head_model(n_words, n_ctx=12),
    ]
    stacks = [heads_of(one) for one in built]
    return [
        "".join(
            kind
            for kind in SIDES
            if circuits.composition_scores(stack, side=kind)["L0H0", "L1H0"] > 0
        )
        for stack in stacks
    ]


def factored_differently() -> list:
    """Whether the V score with W_V is the head's own; L0H3 to L1H0 before and after a new factoring: W_V alone, W_OV."""
    stack = heads_of(model("two-layer", exact=True))
    early, late = stack["L0H3"], stack["L1H0"]
    U, S, Vh = torch.linalg.svd(late.W_V, full_matrices=False)
    turn = Vh.mT * (torch.logspace(-1, 1, late.d_head, dtype=S.dtype) / S)[:, None]
    again = dataclasses.replace(late, W_V=late.W_V @ turn, W_O=torch.linalg.inv(turn) @ late.W_O)
    written = product(early.OV)[0]
    loose = [
        float((written @ b.W_V[0]).norm() / (written.norm() * b.W_V[0].norm()))
        for b in (late, again)
    ]
    tight = [circuits.composition_scores(early, b, "V")["L0H3", "L1H0"] for b in (late, again)]
    return [abs(loose[0] - loose[1]) < 1e-6, *loose, *tight]


def chance_scores() -> list[float]:
    """Composition score of random heads with d_model 64, 160 and 768."""
    sizes = ((64, 16), (160, 32), (768, 64))
    return [circuits.composition_baseline(circuits.random_heads(1, m, d)) for m, d in sizes]


def wires_cut() -> list[float]:
    """Loss on the second pass with all wires into queries, into keys and into values cut, and with none, in nats."""
    two = model("two-layer")
    return [
        *(second_pass(*effects.wires(two, kind)).second for kind in KINDS),
        second_pass().second,
    ]


def loss_falls() -> list:
    """Whether it falls to less than a third within these steps, and further: loss on the second pass at steps 4200, 5700 and
    24000 of training; loss on held-out text at the first two; in nats.
    """
    rows = models.heldout_rows(16, seed=2)
    steps = [models.load_model("two-layer", step=step) for step in (4200, 5700)]
    before, after = (induction.induction_loss(two, repeats()).second for two in steps)
    text = [float(two(rows, return_type="loss")) for two in steps]
    falls = before > 3 * after > 9 * second_pass().second
    return [falls, before, after, second_pass().second, *text]


def what_is_copied(into: str = "L1H3") -> list:
    """Whether copying needs layer 0 in the values of L1H3: accuracy on the second pass, whole, without it, without it in the keys."""
    two = model("two-layer")
    cuts = [(), *(effects.wires(two, kind, into=into) for kind in KINDS[:0:-1])]
    whole, no_values, no_keys = (second_pass(*cut).accuracy for cut in cuts)
    return [no_values < 0.5 * whole, whole, no_values, no_keys]


DURSLEYS = "Mr. Dursley had a neighbour who disliked Mr. Dursley"


def dursley() -> list:
    """Whether L1H3 looks behind the first ` D` from the second; the piece it finds, how much, and what the model says."""
    two = model("two-layer")
    shown = two.to_str_tokens(DURSLEYS)
    logits, cache = two.run_with_cache(two.to_tokens(DURSLEYS))
    here = max(i for i, piece in enumerate(shown) if piece == " D")
    looks = cache["blocks.1.attn.hook_pattern"][0, 3, here]
    place = int(looks[1:].argmax()) + 1
    says = two.to_string(logits[0, here].argmax()[None])
    return [
        shown[place - 1] == " D" and says == shown[place],
        shown[place],
        float(looks[place]),
        says,
    ]


def norm_outside() -> list[float]:
    """Relative error of the stream as a sum with norms outside it; how far a norm on the stream misses the sum."""
    mlp, rows = model("two-layer-mlp", exact=True), models.heldout_rows(2, 64)
    split = residual.decompose(mlp, rows)
    final = mlp.run_with_cache(rows)[1]["blocks.1.hook_resid_post"]
    norm = torch.nn.functional.layer_norm
    total = split.values.sum(0)
    whole = norm(total, total.shape[-1:])
    apart = torch.stack([norm(part, part.shape[-1:]) for part in split.values]).sum(0)
    return [relative(total - final, final), relative(apart - whole, whole)]


def second_way() -> list:
    """Whether the pointer circuit continues repeats as the notes' circuit does, and the wire it composes through."""
    rows = induction.repeated_tokens(20, 16, batch=8)
    built = [
        induction_by_hand.build_induction_model(20, 32, method=method)
        for method in ("k-composition", "pointer")
    ]
    said = [one(rows.tokens)[:, 16:-1].argmax(-1) for one in built]
    return [torch.equal(*said) and torch.equal(said[0], rows.tokens[:, 17:]), three_wires()[1]]


def cut_by_kind() -> list[float]:
    """What cutting all wires into values, into queries and into keys adds to the loss of the two-layer model, in nats: on the
    second pass, then on held-out text.
    """
    two, rows = model("two-layer"), models.heldout_rows(64, seed=2)
    cuts = [(), *(tuple(effects.wires(two, kind)) for kind in ("V", "Q", "K"))]
    repeated = [second_pass(*cut).second for cut in cuts]
    logits = [run(two, rows, without=cut).logits[:, :-1] for cut in cuts]
    text = [float(F.cross_entropy(one.flatten(0, 1), rows[:, 1:].flatten())) for one in logits]
    return [loss - whole for whole, *rest in (repeated, text) for loss in rest]


def one_layer_fails() -> list[bool]:
    """Whether a two-layer model learns to repeat and a one-layer model with four heads does not, 150 steps each."""
    deep, flat = (
        induction_training.train_induction_model(2, steps=150, batch=32),
        induction_training.train_induction_model(1, n_heads=4, steps=150, batch=32),
    )
    return [float(deep.accuracy[-10:].mean()) > 0.9, float(flat.accuracy[-10:].mean()) < 0.3]


def matching_tokens() -> list:
    """Whether most match: share of tokens that as a query of L1H3 prefer themselves as a key: noted by L0H1, and straight from the embedding."""
    shares = [share_that_match("L0H1", "L1H3"), share_that_match(None, "L1H3")]
    return [shares[0] > 0.9, *shares]


def share_that_match(early: str | None, late: str) -> float:
    """Share of tokens that as a query of `late` prefer themselves as a key: as `early` wrote them, or as they are embedded."""
    two = model("two-layer")
    stack, W_E = heads_of(two), two.W_E.detach()
    written = W_E if early is None else W_E @ product(stack[early].OV)[0]
    scores = (W_E @ stack[late].W_Q[0]) @ (written @ stack[late].W_K[0]).T
    return float((scores.argmax(1) == torch.arange(len(W_E))).float().mean())


def neurons() -> float:
    """Neurons of the MLPs of the model that has some, over d_model."""
    cfg = model("two-layer-mlp").cfg
    return cfg.d_mlp / cfg.d_model


def sparse_features() -> list[int]:
    """Mistakes in reading 10,000 random directions, of which 100 are active, in 2,500, 3,000, 4,096 and 8,192 dimensions."""
    found = []
    for d_model in (2500, 3000, 4096, 8192):
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(10_000, d_model, generator=generator)
        directions /= directions.norm(dim=1, keepdim=True)
        read = directions @ directions[:100].sum(0) > 0.5
        found.append(int((~read[:100]).sum() + read[100:].sum()))
    return found


def effect_of_a_source() -> list[float]:
    """Largest difference, relative to its size, between what a unit of attention to one source adds to the logits of two
    destinations, all heads of the one-layer model, float64; accuracy of one head and the direct path on 5 trigrams of a source.
    """
    one = model("one-layer", exact=True)
    x = one.run_with_cache(one.to_tokens("The king and the queen of"))[1]["blocks.0.hook_resid_pre"]
    heads = heads_of(one)
    pattern, source = heads.pattern(x[0]), torch.zeros(x.shape[1], dtype=x.dtype)
    source[2] = 1.0
    added = heads.results(x[0], pattern=pattern * source)[:, 4:6] @ one.W_U
    first, second = (added / pattern[:, 4:6, 2, None]).unbind(1)
    return [relative(first - second, first), _one_head_and_bigrams()]


def _one_head_and_bigrams() -> float:
    """Accuracy of one head and the direct path after a source, on 5 skip trigrams of one source."""
    made = one_head_model(5)
    tokens = made.task.sample(2000, seed=3)
    due = made.task.states(tokens) == 2
    return float((made(tokens).argmax(-1)[due] == tokens[due] + 5).float().mean())


def _one_head():
    """The cache of the one-layer model on a short sentence, and its head L0H0, float64."""
    one = model("one-layer", exact=True)
    return one.run_with_cache(one.to_tokens("The king and the queen of"))[1], heads_of(one)["L0H0"]
