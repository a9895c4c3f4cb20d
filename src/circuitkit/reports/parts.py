"""The parts of a report: each asks one tool of the library about a model and answers in rows.

A row has a name (of a head, a wire, a component), a measure, a value, and where there is one an
interval `low` to `high` and a control: what the same measure gives where there is nothing to find.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit import circuits, conversion, induction, residual, skip_trigrams
from circuitkit.ablation import Run, run
from circuitkit.conversion.convert import find_mlps
from circuitkit.effects import effect
from circuitkit.figures.attention_view import visible
from circuitkit.heads import allowed_pairs, heads_of
from circuitkit.models import load_model
from circuitkit.names import SIDES
from circuitkit.parts import head_names
from circuitkit.rows import after_occurrences, default_rows, earlier_occurrences, repeated_tokens

BEHAVIOURS = (*induction.BEHAVIOURS, "first token")
N_ROWS = 8
STUDENT = 2.36
"""The mean of 8 rows lies within so many standard errors in 95 of 100 cases."""
CLEAR = 0.4
"""A head shows a behaviour if it scores at least this and its interval lies above the control."""
MOST_HEADS = 8
"""At most so many heads are listed, and taken out together, for each behaviour."""
N_WIRES = 200
N_WORDS = 8
N_TRIGRAM_TOKENS = 1024
"""Skip trigrams are searched among so many tokens, the first of the vocabulary."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Parameters
    ----------
    model : the name of a model, which each process loads once, or a `TransformerBridge`
    prompt : token ids
    call : tells calls of `report` apart, because a folder may hold other weights the next time
    """

    model: Any
    prompt: tuple[int, ...]
    call: str

    def load(self) -> Any:
        """Return the model."""
        return loaded(self.model, self.call) if isinstance(self.model, str) else self.model

    def tokens(self) -> Tensor:
        """Return the prompt as token ids `[1, pos]`."""
        return torch.tensor([self.prompt])


@lru_cache(1)
def loaded(name: str, call: str) -> Any:
    """Return a model by name, and keep it until another is asked for."""
    return load_model(name)


def row(
    name: str,
    measure: str,
    value: Any,
    *,
    interval: tuple[Any, Any] = (None, None),
    control: Any = None,
    text: str = "",
) -> Row:
    """Return one row of the table, with six digits of each number."""
    numbers = {"value": value, "low": interval[0], "high": interval[1], "control": control}
    for key, number in numbers.items():
        numbers[key] = None if number is None else float(f"{float(number):.6g}")
    return {"name": name, "measure": measure, **numbers, "text": text}


# What heads do


def behaviour(subject: Subject) -> list[Row]:
    """Score every head on rows that repeat, with an interval over rows and a control."""
    model = subject.load()
    rows = default_rows(model, batch=N_ROWS)
    tables = [induction.scores(model, tokens) for tokens in rows.tokens]
    names = tables[0].names
    scores = torch.stack([table.values for table in tables])  # [row, head, behaviour]
    to_first = torch.zeros_like(earlier_occurrences(rows.tokens))
    to_first[:, 1:, 0] = True
    first_token = attention_to(run(model, rows.tokens), names, to_first)  # [row, head]
    scores = torch.cat([scores, first_token[..., None]], dim=-1)
    mean = scores.mean(0)
    error = STUDENT * scores.std(0) / N_ROWS**0.5
    controls = behaviour_controls(model, names)
    result = []
    for j, kind in enumerate(BEHAVIOURS):
        for i, name in enumerate(names):
            interval = (mean[i, j] - error[i, j], mean[i, j] + error[i, j])
            control = controls[kind][i]
            result.append(row(name, kind, mean[i, j], interval=interval, control=control))
    return result


def behaviour_controls(model: Any, names: tuple[str, ...]) -> dict[str, Float[Tensor, " head"]]:
    """Return what each score is where there is no behaviour.

    Prefix matching and duplicate token: the attention to the same positions when the second span is
    another one. Previous and first token: attention spread evenly. Copying: the score that 5% of
    random heads exceed.
    """
    rows = default_rows(model, batch=N_ROWS)
    generator = torch.Generator().manual_seed(1)
    highest = int(rows.tokens.max()) + 1
    unrelated = repeated_tokens(highest, rows.period, batch=N_ROWS, generator=generator).tokens
    tokens = rows.tokens.clone()
    tokens[:, rows.start + rows.period :] = unrelated[:, : rows.period]
    unrelated_run = run(model, tokens)

    heads = heads_of(model)
    allowed = allowed_pairs(heads.mask, tokens.shape[1])
    even = allowed / allowed.sum(-1, keepdim=True)  # [dst, src]
    random_heads = circuits.random_heads(64, heads.d_model, heads.d_head, seed=1)
    by_chance = circuits.copying_score(random_heads).values.abs().quantile(0.95)
    after, same = after_occurrences(rows.tokens), earlier_occurrences(rows.tokens)
    return {
        "prefix matching": attention_to(unrelated_run, names, after).mean(0),
        "duplicate token": attention_to(unrelated_run, names, same).mean(0),
        "previous token": even.diagonal(-1).mean().expand(len(names)),
        "first token": even[1:, 0].mean().expand(len(names)),
        "copying": by_chance.expand(len(names)),
    }


def attention_to(done: Run, names: tuple[str, ...], marked: Tensor) -> Float[Tensor, "row head"]:
    """Return each head's attention to the marked pairs `[row, dst, src]`, by marked pair."""
    columns = []
    for name in names:
        total = (done.pattern(name).cpu() * marked).sum((1, 2))
        columns.append(total / marked.sum((1, 2)).clamp_min(1))
    return torch.stack(columns, dim=1)


def clear_heads(scores: list[Row]) -> dict[str, list[Row]]:
    """Return the scores of the heads that clearly show each behaviour, strongest first."""
    clear: dict[str, list[Row]] = {kind: [] for kind in BEHAVIOURS}
    for score in sorted(scores, key=lambda score: -score["value"]):
        if score["value"] >= CLEAR and score["low"] > score["control"]:
            clear[score["measure"]].append(score)
    return {kind: rows[:MOST_HEADS] for kind, rows in clear.items()}


def ablation(subject: Subject, kind: str, names: list[str]) -> list[Row]:
    """Ablate some heads, and compare the loss on the second pass with random heads of their layers."""
    model = subject.load()
    result = effect(model, default_rows(model, batch=4), names, draws=10)
    before = result.values[0].mean()
    control = result.controls.median() - before if len(result.controls) else None
    text = ", ".join(names)
    return [
        row(
            kind,
            "loss without",
            result.change,
            interval=result.interval,
            control=control,
            text=text,
        )
    ]


def patterns(subject: Subject, names: list[str]) -> dict[str, Tensor]:
    """Return where some heads attend on the prompt, `[dst, src]` each."""
    done = run(subject.load(), subject.tokens())
    return {name: done.pattern(name)[0].cpu() for name in names}


# What the weights do


def composition(subject: Subject) -> list[Row]:
    """Score the strongest wires between heads, with the score of random heads as control."""
    heads = heads_of(subject.load())
    baseline = circuits.composition_baseline(heads)
    result = []
    for side in SIDES:
        scores = circuits.composition_scores(heads, kind=side).top(N_WIRES)
        for pair in scores:
            wire = f"{pair.replace(', ', '->')}.{side}"
            result.append(row(wire, "composition", scores[pair], control=baseline))
    return sorted(result, key=lambda row: -row["value"])


def words(subject: Subject, layer: int) -> list[Row]:
    """Read from the weights what each head of a layer looks for, and which tokens it raises."""
    model = subject.load()
    spelled = speller(model)
    tokens = list(dict.fromkeys(subject.prompt))[-N_WORDS:]
    result = []
    for name in head_names(model, layer):
        offset = None if heads_of(model)[name].turn is None else 1
        looks_for = circuits.full_qk(model, name, offset=offset)
        raises = circuits.full_ov(model, name)
        for measure, table in (("looks for", looks_for), ("raises", raises)):
            best = ((table.A[tokens] - table.A.mean(0)) @ table.B).topk(4)
            for token, value, ids in zip(tokens, best.values[:, 0], best.indices, strict=True):
                text = f"{spelled(token)} → {' '.join(map(spelled, ids.tolist()))}"
                result.append(row(name, measure, value, text=text))
    return result


def trigrams(subject: Subject, layer: int) -> list[Row]:
    """Find the strongest skip trigrams of each head of a layer."""
    model = subject.load()
    spelled = speller(model)
    special_ids = getattr(model.tokenizer, "all_special_ids", [])
    among = torch.zeros(model.cfg.d_vocab, dtype=torch.bool)
    among[:N_TRIGRAM_TOKENS] = True
    among[list(subject.prompt)] = True
    among[[i for i in special_ids if i < model.cfg.d_vocab]] = False
    result = []
    for name in head_names(model, layer):
        for entry in skip_trigrams.strongest(model, name, 5, among=among).itertuples():
            words = [spelled(i) for i in (entry.source, entry.destination, entry.completion)]
            text = "{} … {} → {}".format(*words)
            result.append(row(name, "skip trigram", entry.strength, text=text))
    return result


# MLPs, and the next token


def heads_per_neuron(model: Any) -> tuple[int, ...]:
    """Return how many heads per neuron are worth a try; none if there is no MLP to convert."""
    try:
        mlp = find_mlps(model)[0]
    except ValueError:
        return ()
    if mlp.is_gated:
        return (4, 8, 16)
    return (1, 2, 3, 5) if "gelu" in mlp.activation else (1,)


@torch.no_grad()
def mlps(subject: Subject, k: int) -> list[Row]:
    """Convert every MLP into attention heads, `k` of them for each neuron."""
    model, tokens = subject.load(), subject.tokens()
    converted = conversion.to_attention_only(model, heads_per_neuron=k)
    text = f"{k} heads per neuron"
    result = []
    for layer in converted.report.itertuples():
        name = f"L{layer.Index} MLP"
        result.append(row(name, "measured error", layer.measured, text=text))
        result.append(row(name, "promised error", layer.bound, text=text))
    before = run(model, tokens).logits.float().log_softmax(-1)
    after = run(converted, tokens).logits.float().log_softmax(-1)
    divergence = (before.exp() * (before - after)).sum(-1).mean().clamp_min(0)
    same_choice = (before.argmax(-1) == after.argmax(-1)).float().mean()
    result.append(row("model", "KL to the original", divergence, text=text))
    result.append(row("model", "same first choice", same_choice, text=text))
    return result


def next_token(subject: Subject) -> list[Row]:
    """Divide the logit of the most likely next token, above the mean logit, into components."""
    model, tokens = subject.load(), subject.tokens()
    spelled = speller(model)
    done = run(model, tokens)
    result = []
    likely = done.logits[0, -1].softmax(-1).topk(5)
    for probability, token in zip(likely.values, likely.indices.tolist(), strict=True):
        result.append(row("next token", "probability", probability, text=spelled(token)))
    shares = residual.why(model, tokens, int(likely.indices[0]))
    shares = shares.top(len(shares), absolute=True)
    for name in shares:
        result.append(row(name, "adds to the logit", shares[name]))
    return result


def speller(model: Any) -> Callable[[int], str]:
    """Return a function that writes a token as a reader sees it, or its number."""
    if model.tokenizer is None:
        return lambda token: f"#{token}"
    return lambda token: visible(model.tokenizer.decode([token]))
