"""What the framework paper says, recomputed on the shipped models."""

import math
from functools import cache
from typing import Any, Literal

import torch

from circuitkit import circuits, induction, models, paths, residual, skip_trigrams
from circuitkit.reading import heads_of
from circuitkit_book import path_importance, skip_trigram_bugs
from circuitkit_book.bigrams import bigram_log_probs
from circuitkit_book.claims.shipped import model, product, relative, repeats, second_pass, unigram
from circuitkit_book.residual_stream import random_rotation, rotate_basis, subspace_overlap
from circuitkit_book.skip_trigram_evidence import count_evidence

KINDS: tuple[Literal["Q", "K", "V"], ...] = ("Q", "K", "V")


def stream_is_a_sum() -> float:
    """Relative error of embedding + positions + heads + MLPs against the final stream, the worse of two models."""
    rows = models.heldout_rows(2, 64)
    errors = []
    for name in ("two-layer", "two-layer-mlp"):
        exact = model(name, exact=True)
        final = exact.run_with_cache(rows)[1]["blocks.1.hook_resid_post"]
        errors.append(relative(residual.decompose(exact, rows).values.sum(0) - final, final))
    return max(errors)


def virtual_weight() -> float:
    """What L0H1 adds to the keys of L1H3, read off the stream, against its z times the virtual weight."""
    two, rows = model("two-layer", exact=True), models.heldout_rows(1, 64)
    z = two.run_with_cache(rows)[1]["blocks.0.attn.hook_z"][:, :, 1]
    written = torch.as_tensor(residual.decompose(two, rows)["L0H1"])
    through_stream = written @ heads_of(two)["L1H3"].W_K[0]
    direct = z @ residual.virtual_weights(two, "L0H1", "L1H3.K").AB
    return relative(direct - through_stream, through_stream)


def norm_and_basis() -> list:
    """Largest change of a logit when the stream of the model with LayerNorm is turned; whether fixing (1, ..., 1) ends it."""
    exact, rows = model("two-layer-mlp", exact=True), models.heldout_rows(1, 64)
    ones = torch.ones(exact.cfg.d_model, dtype=torch.float64)
    changes = []
    for fix in (None, ones):
        rotation = random_rotation(exact.cfg.d_model, seed=2, fix=fix)
        rotated = rotate_basis(exact, rotation)
        changes.append(float((rotated(rows) - exact(rows)).abs().max()))
    return [changes[0], changes[1] < 1e-9]


def small_subspaces() -> list[float]:
    """Mean overlap of what layer 0 writes with what queries, keys and values of layer 1 read; what chance would give."""
    stack = heads_of(model("two-layer"))
    found = [float(subspace_overlap(stack[:4], stack[4:], kind).values.mean()) for kind in KINDS]
    writable = int(
        (stack.W_O.abs().amax((0, 1)) > 0).sum()
    )  # the other dimensions hold positions, which values ignore
    return [*found, stack.d_head / stack.d_model, stack.d_head / writable]


def heads_add_up() -> float:
    """The heads of a layer one by one, summed, against all of them concatenated and multiplied by one W_O."""
    two, rows = model("two-layer", exact=True), models.heldout_rows(2, 64)
    cache = two.run_with_cache(rows)[1]
    together = cache["blocks.1.attn.hook_z"].flatten(2) @ two.W_O[1].flatten(0, 1)
    apart = heads_of(two)[4:].results(cache["blocks.1.hook_resid_pre"]).sum(1)
    return relative(apart - together, together)


def kronecker_products() -> float:
    """(A2 x W2)(A1 x W1) as large matrices against (A2 A1) x (W1 W2), for the heads of the induction circuit."""
    two = model("two-layer", exact=True)
    cache = two.run_with_cache(two.to_tokens("Mr. D said"))[1]
    first, second = (
        cache[f"blocks.{layer}.attn.hook_pattern"][0, h] for layer, h in ((0, 1), (1, 3))
    )
    parts = heads_of(two)
    early, late = (product(parts[name].OV)[0] for name in ("L0H1", "L1H3"))
    large = torch.kron(second, late.T.contiguous()) @ torch.kron(first, early.T.contiguous())
    small = torch.kron(second @ first, (early @ late).T.contiguous())
    return relative(large - small, small)


def low_rank() -> list:
    """Whether no QK or OV matrix of the shipped models exceeds rank d_head; d_head, d_model and the largest rank."""
    stacks = [
        heads_of(model(name, exact=True)) for name in ("one-layer", "two-layer", "two-layer-mlp")
    ]
    largest = max(
        int(torch.linalg.matrix_rank(part.AB).max())
        for stack in stacks
        for part in (stack.QK, stack.OV)
    )
    return [
        all(largest <= stack.d_head for stack in stacks),
        stacks[1].d_head,
        stacks[1].d_model,
        largest,
    ]


def frozen_paths() -> float:
    """Largest error of the sum of all paths against the logits, over the largest logit, float64."""
    two, rows = model("two-layer", exact=True), models.heldout_rows(2, 64)
    shares, logits = paths.path_logits(two, rows), two(rows)
    return float((sum(shares.values()) - logits).abs().max() / logits.abs().max())


def bigram_table(zero: Any = None) -> list:
    """Whether the table is near the bigrams: correlation with corpus log-probabilities of common bigrams, share of equal first choices, KL in nats."""
    zero = model("zero-layer") if zero is None else zero
    counts = models.corpus_statistics()
    table, bigram = (zero.W_E @ zero.W_U).log_softmax(-1), bigram_log_probs(counts.bigram).float()
    often, share = counts.bigram >= 20, unigram() / unigram().sum()
    correlation = torch.corrcoef(torch.stack([table[often], bigram[often]]))[0, 1]
    agree = (share * (table.argmax(1) == bigram.argmax(1))).sum()
    divergence = (share[:, None] * bigram.exp() * (bigram - table)).sum()
    return [bool(correlation > 0.98), float(correlation), float(agree), float(divergence)]


def skip_trigrams_in_text() -> list[float]:
    """Of L0H0's 300 strongest skip trigrams: share the text bears out, and share beyond three standard errors; in the
    training text, then in held-out text.
    """
    found = strongest_of_l0h0()
    in_training = skip_trigram_bugs.shipped_statistics().evidence.loc[found]
    return [*supported(in_training), *supported_by_heldout_text(found)]


@cache
def strongest_of_l0h0() -> list[tuple[int, ...]]:
    """Source, destination and completion of its 300 strongest skip trigrams of frequent words."""
    one = model("one-layer")
    likelihood = bigram_log_probs(models.corpus_statistics().bigram).exp().float()
    given = skip_trigram_bugs.shipped_statistics().provenance
    words = [one.tokenizer.decode([i]).strip() for i in range(one.cfg.d_vocab)]
    common = [
        word.isalpha() and n >= given["min_token"]
        for word, n in zip(words, unigram().tolist(), strict=True)
    ]
    found = skip_trigrams.strongest(
        one, "L0H0", given["per_head"], unigram=unigram(), likelihood=likelihood,
        among=torch.tensor(common), window=given["window"], min_together=given["min_together"],
    )  # fmt: skip
    return [tuple(row) for row in found[skip_trigrams.TRIPLE].values.tolist()]


def supported_by_heldout_text(triples: list[tuple[int, ...]]) -> list[float]:
    """The two shares of `supported` in the held-out text."""
    return supported(count_evidence(triples, models.heldout_tokens()))


def supported(evidence: Any) -> list[float]:
    """Share of triples whose completion is likelier after the source; share beyond three standard errors. Triples that do
    not occur in the text are left out.
    """
    has_cases = (evidence["n_with"] > 0) & (evidence["hits_with"] + evidence["hits_without"] > 0)
    evidence = evidence[has_cases]
    likelier = evidence["share_with"] > evidence["share_without"]
    return [float(likelier.mean()), float((evidence["z"] > 3).mean())]


def copying_heads(one: Any = None) -> list[float]:
    """Eigenvalue copying scores of the four heads of the one-layer model."""
    return circuits.copying_score(model("one-layer") if one is None else one).values.tolist()


def made_up_words() -> list:
    """Whether the twenty worst crossings get more than 0.3; the largest probability, and the direct path's share of it; the
    twentieth probability among crossings whose wrong completion never follows its destination.
    """
    counted = skip_trigram_bugs.shipped_statistics()
    crossings = skip_trigram_bugs.crossings_of(counted.words, counted.occurring)
    worst, unseen = twenty_worst(crossings)
    return [bool(worst[-1, 0] > 0.3), float(worst[0, 0]), float(worst[0, 1]), float(unseen[-1, 0])]


def twenty_worst(crossings: torch.Tensor) -> list[torch.Tensor]:
    """The twenty largest probabilities of a wrong completion, and those by the direct path; then the same for completions
    that follow their destination nowhere in the training text. Two contexts choose 80 crossings, and all contexts judge them.
    """
    one, contexts = model("one-layer"), models.heldout_rows(20, 6, seed=3)
    triples = torch.unique(crossings[:, :3], dim=0)
    rows = triples[:, [0, 1, 2, 2]]  # the fourth, the right completion, is not needed
    ranking = skip_trigram_bugs.mean_probabilities(one, rows, contexts[:2])[:, 0]
    occurs = models.corpus_statistics().bigram[triples[:, 1], triples[:, 2]] > 0
    found = []
    for scores in (ranking, ranking.masked_fill(occurs, 0.0)):
        best = rows[scores.topk(80).indices]
        judged = skip_trigram_bugs.mean_probabilities(one, best, contexts)[:, [0, 2]]
        found.append(judged[judged[:, 0].topk(20).indices])
    return found


def term_importance(two: Any = None) -> list[float]:
    """Loss of the two-layer model with paths through at most 0, 1 and 2 heads, patterns frozen, in nats."""
    two = model("two-layer") if two is None else two
    return path_importance.term_importance(two, models.heldout_rows(6))["kept"].tolist()


def chance_composition() -> list[float]:
    """Composition score of unrelated heads of the two-layer model's shape, and 1 / sqrt(d_model)."""
    stack = heads_of(model("two-layer"))
    return [circuits.composition_baseline(stack), 1 / math.sqrt(stack.d_model)]


def scores_and_signals() -> list:
    """The pair with the highest K-composition and what its wire carries in nats; L0H1->L1H3.Q, above chance and carried."""
    stack = heads_of(model("two-layer"))
    above = {
        kind: circuits.composition_scores(stack, side=kind, above_baseline=True)
        for kind in KINDS[:2]
    }
    early, late = above["K"].top(1).names[0].split(", ")
    whole = second_pass().second
    loud, quiet = f"{early}->{late}.K", "L0H1->L1H3.Q"
    excess = above["Q"]["L0H1", "L1H3"]
    return [
        loud,
        second_pass(loud).second - whole,
        quiet,
        excess,
        second_pass(quiet).second - whole,
    ]


def induction_circuit() -> list:
    """Best previous-token head and induction head with their scores; nats lost when the wire into the keys is cut."""
    table = induction.scores(model("two-layer"), repeats())
    (early,) = table.select(behaviour="previous token").top(1)
    (late,) = table.select(behaviour="prefix matching").top(1)
    looks_back, matches = table[early, "previous token"], table[late, "prefix matching"]
    lost = [second_pass(f"{early}->{late}.{kind}").second - second_pass().second for kind in "KQV"]
    return [early, looks_back, late, matches, *lost]


def random_repeats(two: Any = None) -> list:
    """Whether repetition makes random tokens predictable: loss on random tokens the first time and the second time, in nats, and accuracy the second time."""
    two = model("two-layer") if two is None else two
    result = induction.induction_loss(two, repeats())
    return [result.second < 0.1 * result.first, *result[:2], result.accuracy]


def induction_eigenvalues() -> list:
    """Whether both are near 1: eigenvalue scores of L1H3 of the match between query token and noted token, and of its OV circuit."""
    matches, copies = (
        match_score("L0H1", "L1H3"),
        circuits.copying_score(model("two-layer"))["L1H3"],
    )
    return [min(matches, copies) > 0.95, matches, copies]


def match_score(early: str, late: str) -> float:
    """Eigenvalue score of the table of query tokens of one head by the tokens that an earlier head wrote."""
    two = model("two-layer")
    stack, W_E = heads_of(two), two.W_E.detach()
    noted = W_E @ stack[early].W_V[0] @ stack[early].W_O[0]
    match = (noted @ stack[late].W_K[0]).T @ (
        W_E @ stack[late].W_Q[0]
    )  # its eigenvalues are those of the table
    values = torch.linalg.eigvals(match)
    return float(values.real.sum() / values.abs().sum())


def birth_of_induction() -> list[float]:
    """At steps 4200 and 5700: prefix matching of L1H3, loss on the second pass, loss on held-out text."""
    rows, out = models.heldout_rows(16, seed=2), []
    for step in (4200, 5700):
        two = models.load_model("two-layer", step=step)
        matching = induction.scores(two, repeats())["L1H3", "prefix matching"]
        text = float(two(rows, return_type="loss"))
        out += [matching, induction.induction_loss(two, repeats()).second, text]
    return out
