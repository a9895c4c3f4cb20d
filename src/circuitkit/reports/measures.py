"""The parts of a report: each asks one tool of the library about a model and answers in lines."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from typing import cast

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit import circuits, conversion, residual
from circuitkit.ablation import run
from circuitkit.bridge import Model, submodules
from circuitkit.conversion.convert import find_mlps
from circuitkit.effects import divergence, effect
from circuitkit.figures.attention_view import visible
from circuitkit.first_use import require_sum_of_logits
from circuitkit.models import load_model
from circuitkit.parts import head_names
from circuitkit.reading import heads_of
from circuitkit.reports import rules
from circuitkit.reports.lines import Behaviour, Line
from circuitkit.reports.logits import (
    AT_FIRST,
    N_FIRST_TRIALS,
    Candidate,
    Measured,
    Text,
    Unembedding,
    copying,
    lowered_p,
    n_sources,
    tested_trigrams,
    trigrams_by_weights,
    trigrams_in_text,
)
from circuitkit.residual import unembedding_matrix, writer_matrix
from circuitkit.rows import Rows, default_rows, one_pass, second_pass, token_losses

UNEXPLAINED = "The model predicts repeats, and no head that we test explains it."
MOST_HEADS = 8
"""At most so many heads are listed, and taken out together, for each behaviour."""
N_WORDS = 8
N_TRIGRAMS = 8
N_MORE = 128
"""So many further skip trigrams of all heads of a layer are measured, if by weights they are strong."""


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Parameters
    ----------
    model : the name of a model, which each process loads once, or a `TransformerBridge`
    prompt : token ids
    call : tells calls of `report` apart, because a folder may hold other weights the next time
    """

    model: str | Model
    prompt: tuple[int, ...]
    call: str

    def load(self) -> Model:
        """Return the model."""
        if isinstance(self.model, str):
            return loaded(self.model, self.call)
        return self.model

    def tokens(self) -> Rows:
        """Return the prompt as one row of token ids."""
        return Rows.of(torch.tensor([self.prompt]))


@lru_cache(1)
def loaded(name: str, call: str) -> TransformerBridge:
    """Return a model by name, and keep it until another is asked for."""
    return load_model(name)


# What heads do


@torch.no_grad()
def behaviour(subject: Subject) -> list[Line]:
    """Score every head on random rows that repeat, with an interval, a control and a p-value."""
    model = subject.load()
    rows = rules.random_rows(model)
    with model.hooks(fwd_hooks=[AT_FIRST]):
        done = run(model, Rows.of(rows.tokens))
    unembedding = Unembedding.of(done, rows.tokens.unique())
    lines: dict[str, list[Line]] = {kind: [] for kind in Behaviour}
    for layer in range(len(model.blocks)):
        names = head_names(model, layer)
        if not names:
            continue
        pattern = done.recording.patterns(layer).cpu()
        for kind in rules.ATTENTION:
            score = rules.attention_score(pattern, rows, kind)
            columns = score.values.mT, score.null.mean((0, 1)), rules.attention_p(score, kind)
            for name, *numbers in zip(names, *columns, strict=True):
                lines[kind].append(scored(name, kind, *numbers))
        for number, name in enumerate(names):
            logits = unembedding.logits_by_source(name)
            raises = copying(unembedding, logits)
            lowers = copying(unembedding, -logits)
            p = lowered_p(unembedding, logits, pattern[:, number])
            lowers = lowers._replace(p=torch.maximum(lowers.p, p))
            lines[Behaviour.COPYING].append(scored(name, Behaviour.COPYING, *raises))
            lines[Behaviour.SUPPRESSION].append(scored(name, Behaviour.SUPPRESSION, *lowers))
    return [line for of_kind in lines.values() for line in of_kind]


def scored(
    name: str, kind: str, values: Tensor, control: Tensor | float = nan, p: Tensor | float = nan
) -> Line:
    """Return the line of a score that was measured on several random rows."""
    mean = values.mean()
    error = rules.STUDENT * values.std() / len(values) ** 0.5
    interval = float(mean - error), float(mean + error)
    return Line(name, kind, float(mean), *interval, float(control), float(p))


def named_heads(scores: list[Line]) -> dict[str, list[Line]]:
    """Return the scores of the heads that the report names for each behaviour, strongest first."""
    heads: dict[str, list[Line]] = {kind: [] for kind in Behaviour}
    for score in sorted(scores, key=lambda score: -score.value):
        if score.named:
            heads[score.measure].append(score)
    return heads


def repeats(subject: Subject) -> list[Line]:
    """Measure the loss on both passes of random rows that repeat, and on the prompt if it is text.

    The model predicts repeats if its first choice is right on the second pass; the control is the first.
    """
    model = subject.load()
    rows = default_rows(model, batch=rules.N_ROWS)
    length = str(rows.period)
    logits = run(model, rows).logits
    first, by_chance = one_pass(logits, rows, rows.start)
    second, accuracy = second_pass(logits, rows)
    gain = accuracy - by_chance
    error = gain.std() / len(gain) ** 0.5
    p = rules.upper_tail(gain.mean() - rules.LEAST["predicts repeats"], error)
    result = [
        scored("model", "loss on the first pass", first),
        scored("model", "loss on the second pass", second),
        replace(scored("model", "predicts repeats", accuracy, by_chance.mean(), p), text=length),
    ]
    if model.tokenizer is not None and len(subject.prompt) > 1:
        text = run(model, subject.tokens())
        losses = token_losses(text.logits, text.tokens)
        result.append(Line("model", "loss on the text", float(losses.mean())))
    return result


def unexplained_repeats(repeats: list[Line], scores: list[Line]) -> list[Line]:
    """Return a line that says so if a model predicts repeats, and no head matches prefixes."""
    if any(score.named and score.measure == Behaviour.PREFIX_MATCHING for score in scores):
        return []
    return [
        replace(line, measure="repeats not explained", text=UNEXPLAINED)
        for line in repeats
        if line.named
    ]


def ablation(subject: Subject, kind: str, names: list[str]) -> list[Line]:
    """Ablate some heads, and compare the loss on the second pass with random heads of their layers."""
    model = subject.load()
    result = effect(model, default_rows(model, batch=4), names, draws=10)
    control = float(result.controls.median())
    text = ", ".join(names)
    return [Line(kind, "loss without", result.change, *result.interval, control, text=text)]


def patterns(subject: Subject, names: list[str]) -> dict[str, Tensor]:
    """Return where some heads attend on the prompt, `[dst, src]` each."""
    done = run(subject.load(), subject.tokens())
    return {name: done.pattern(name)[0].cpu() for name in names}


# What the weights do


@torch.no_grad()
def words(subject: Subject, layer: int) -> list[Line]:
    """Read from the weights what each head of a layer looks for, and which tokens it raises."""
    model = subject.load()
    spelled = speller(model)
    tokens = list(dict.fromkeys(subject.prompt))[-N_WORDS:]
    heads = heads_of(model, head_names(model, layer))
    embedding = writer_matrix(model, "embed")
    # as in `full_qk` and `full_ov`, but for a few destinations and sources only
    above_mean = embedding[tokens] - embedding.mean(0)
    queries, W_K = above_mean @ heads.W_Q / heads.scale, heads.W_K
    if heads.turn is not None:
        # where positions turn queries and keys, the key is one position before the query
        queries = heads.turn(queries, torch.ones_like(queries[0, :, 0]).long())
        W_K = heads.turn(W_K, torch.zeros_like(W_K[0, :, 0]).long())
    written = circuits.written(model, heads)
    values = {
        "looks for": queries @ W_K.mT @ embedding.mT,
        "raises": above_mean @ heads.W_V @ written @ unembedding_matrix(model),
    }
    result = []
    for number, name in enumerate(heads.names):
        for measure, table in values.items():
            best = table[number].topk(4)
            for token, value, ids in zip(tokens, best.values[:, 0], best.indices, strict=True):
                found = " ".join(map(spelled, ids.tolist()))
                text = f"{spelled(token)} → {found}"
                result.append(Line(name, measure, float(value), text=text))
    return result


@lru_cache(1)
def random_text(subject: Subject) -> Text:
    """Return what the layers of a model have in common, and keep it until another report asks."""
    model = subject.load()
    special_ids = set(getattr(model.tokenizer, "all_special_ids", []))
    among = torch.tensor([i for i in range(model.cfg.d_vocab) if i not in special_ids])
    return Text.of(model, among, rules.opening_tokens(model))


@torch.no_grad()
def trigrams(subject: Subject, layer: int) -> list[Line]:
    """Find the strongest skip trigrams of each head of a layer by weights; measure them in text.

    Each head has `N_TRIGRAMS` candidates, and its share of `N_MORE` more if by weights they reach the
    floor. The first line says what was looked through.
    """
    model = subject.load()
    if "mlm_head" in submodules(model):
        # a network computes the logits, and what a head writes is far from what it makes of this
        require_sum_of_logits(model)
    spelled = speller(model)
    text = random_text(subject).before(layer)
    names, n_tokens = head_names(model, layer), len(text.unembedding.ids)
    n_more = N_MORE // len(names)
    candidates = []
    for name in names:
        found = trigrams_by_weights(text, name)
        more = [pair for pair in found[N_TRIGRAMS:][:n_more] if pair[0] >= text.floor]
        candidates += [candidate for _, candidate in found[:N_TRIGRAMS] + more]
    what = (
        f"{n_sources(n_tokens):,} sources, {n_tokens:,} destinations and {n_tokens:,} completions"
    )
    what += " (those whose completion an MLP adds are not looked for)"
    lines = [Line(f"L{layer}", "looked through", n_sources(n_tokens) / n_tokens, text=what)]
    tested = list(zip(candidates, tested_trigrams(text, candidates), strict=True))
    lines += [trigram_line("skip trigram", *pair, spelled) for pair in tested]
    clear = [candidate for candidate, measured in tested if measured.p < rules.FALSE_SHARE]
    if clear:
        total = trigrams_in_text(text, clear, N_FIRST_TRIALS, total=True)
        for candidate, measured in zip(clear, total, strict=True):
            without_p = measured._replace(p=nan)
            lines.append(trigram_line("total effect", candidate, without_p, spelled))
    return lines


def trigram_line(
    measure: str, trigram: Candidate, measured: Measured, spelled: Callable[[int], str]
) -> Line:
    """Return the line of a skip trigram, with its tokens as text."""
    name, *ids = trigram
    text = "{} … {} → {}".format(*map(spelled, ids))
    return Line(name, measure, measured.value, control=measured.control, p=measured.p, text=text)


# MLPs, and the next token


def heads_per_neuron(model: Model) -> tuple[int, ...]:
    """Return how many heads per neuron are worth a try; none if there is no MLP to convert."""
    try:
        mlp = find_mlps(model)[0]
    except ValueError:
        return ()
    if mlp.is_gated:
        return (4, 8, 16)
    return (1, 2, 3, 5) if "gelu" in mlp.activation else (1,)


@torch.no_grad()
def mlps(subject: Subject, k: int) -> list[Line]:
    """Convert every MLP into attention heads, `k` of them for each neuron."""
    model, tokens = subject.load(), subject.tokens()
    bridge = cast(TransformerBridge, model)  # `report` has checked it
    converted = conversion.to_attention_only(bridge, heads_per_neuron=k)
    text = f"{k} heads per neuron"
    result = []
    for layer in converted.report.itertuples():
        name = f"L{layer.Index} MLP"
        result.append(Line(name, "measured error", layer.measured, text=text))
        result.append(Line(name, "promised error", layer.bound, text=text))

    before, after = run(model, tokens), run(converted, tokens)
    kl = divergence(before, after).clamp_min(0)
    same_choice = (before.logits.argmax(-1) == after.logits.argmax(-1)).float().mean()
    result.append(Line("model", "KL to the original", float(kl), text=text))
    result.append(Line("model", "same first choice", float(same_choice), text=text))
    return result


def next_token(subject: Subject) -> list[Line]:
    """Divide the logit of the most likely next token, above the mean logit, into components."""
    model, tokens = subject.load(), subject.tokens()
    spelled = speller(model)
    done = run(model, tokens)
    result = []
    likely = done.logits[0, -1].softmax(-1).topk(5)
    for probability, token in zip(likely.values, likely.indices.tolist(), strict=True):
        result.append(Line("next token", "probability", float(probability), text=spelled(token)))
    shares = residual.why(model, tokens, int(likely.indices[0]))
    shares = shares.top(len(shares), absolute=True)
    return result + [Line(name, "adds to the logit", float(shares[name])) for name in shares]


def speller(model: Model) -> Callable[[int], str]:
    """Return a function that writes a token as a reader sees it, or its number."""
    if model.tokenizer is None:
        return lambda token: f"#{token}"
    return lambda token: visible(model.tokenizer.decode([token]))
