"""What a report asks of a model: each part is a question to one room of the library, answered in rows."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from circuitkit import circuits, conversion, induction, residual, skip_trigrams
from circuitkit._heads import Heads
from circuitkit.anatomy import Anatomy, anatomy, read
from circuitkit.anatomy._read import measured
from circuitkit.conversion.convert import find_mlps
from circuitkit.figures.attention_view import visible
from circuitkit.heads import heads_of
from circuitkit.induction._scores import default_rows
from circuitkit.induction._stream import after_occurrences, earlier_occurrences, look
from circuitkit.models import load_model

KINDS = {
    "induction": "prefix_matching",
    "previous token": "previous_token",
    "duplicate": "duplicate_token",
    "copying": "copying",
    "sink": "",
}
"""Behaviours of heads, and what `induction.scores` calls them."""
ROWS, DRAWS, WORDS, AMONG, MOST = 8, 10, 8, 1024, 8
STUDENT = 2.36
"""Of 8 rows: how many standard errors hold the mean in 95 of 100 cases."""


class Asked(NamedTuple):
    """What every part is given."""

    model: Any
    """A name, which each process loads once, or the model itself."""
    prompt: tuple[int, ...]
    call: str
    """Tells one call of `report` from another, between which the weights of a folder may change."""


@lru_cache(1)
def _loaded(name: str, call: str) -> Any:
    return load_model(name)


def model_of(asked: Asked) -> Any:
    return _loaded(asked.model, asked.call) if isinstance(asked.model, str) else asked.model


def row(
    name: str,
    measure: str,
    value: Any,
    low: Any = None,
    high: Any = None,
    control: Any = None,
    text: str = "",
) -> dict[str, Any]:
    """One line of the table; `control` is what the same measure gives where there is nothing to find."""
    numbers = {"value": value, "low": low, "high": high, "control": control}
    return {
        "name": name,
        "measure": measure,
        **{key: None if x is None else float(f"{float(x):.6g}") for key, x in numbers.items()},
        "text": text,
    }


# --- what a head does ------------------------------------------------------------------------------------------------


@torch.no_grad()
def behaviour(asked: Asked) -> list[dict]:
    """Five scores of every head with an interval over rows, each beside the same where nothing repeats, or by chance."""
    model = model_of(asked)
    rows = default_rows(model, batch=ROWS)
    each = [induction.scores(model, one[None]) for one in rows.tokens]
    other = induction.repeated_tokens(
        int(rows.tokens.max()) + 1,
        rows.period,
        batch=ROWS,
        generator=torch.Generator().manual_seed(1),
    ).tokens
    fresh = rows.tokens.clone()
    fresh[:, rows.start + rows.period :] = other[:, : rows.period]
    after, same = after_occurrences(rows.tokens), earlier_occurrences(rows.tokens)
    back, first = torch.zeros_like(same), torch.zeros_like(same)
    back.diagonal(-1, 1, 2).fill_(True)
    first[:, 1:, 0] = True
    sinks, even_back, even_first = _looked(model, rows.tokens, [first], (back, first))
    by_place = _looked(model, fresh, [after, same])
    found = {
        kind: torch.stack([getattr(one, column) for one in each]) if column else sinks
        for kind, column in KINDS.items()
    }
    beside = {
        "induction": by_place[0],
        "duplicate": by_place[1],
        "previous token": even_back,
        "sink": even_first,
    }
    some = heads_of(model)
    chance = (
        circuits.copying_score(circuits.random_heads(64, some.d_model, some.d_head, seed=1))
        .values.abs()
        .quantile(0.95)
    )
    out = []
    for kind, values in found.items():
        error = STUDENT * values.std(0) / ROWS**0.5
        control = beside[kind].mean(0) if kind in beside else chance.expand(values.shape[1])
        for i, name in enumerate(each[0].names):
            mean = values[:, i].mean()
            out.append(row(name, kind, mean, mean - error[i], mean + error[i], control[i]))
    return out


def _looked(
    model: Any, tokens: Tensor, places: list[Tensor], even: tuple[Tensor, ...] = ()
) -> list[Tensor]:
    """Mean attention `[row, head]` at some places, then what it would be if each token looked at all it sees alike."""
    found: dict[int, list[Tensor]] = {}

    def see(layer: int, pattern: Tensor, values: Tensor, W_O: Tensor, rows: slice) -> None:
        alike = torch.ones_like(
            pattern
        )  # a weight of 0 may be an underflow: only what comes later tells what is never seen
        alike = alike if pattern.triu(1 + rows.start).any() else alike.tril(rows.start)
        alike = alike / alike.sum(-1, keepdim=True)
        pairs = [(pattern, mask.to(pattern)) for mask in places] + [
            (alike, mask.to(pattern)) for mask in even
        ]
        some = [
            (A * mask[:, None, rows]).sum((2, 3)) / mask.sum((1, 2)).clamp_min(1)[:, None]
            for A, mask in pairs
        ]
        found[layer] = (
            [one + more for one, more in zip(found[layer], some, strict=True)]
            if rows.start
            else some
        )

    look("report", model, tokens, see)
    return [
        torch.cat(columns, dim=1).cpu()
        for columns in zip(*(found[layer] for layer in sorted(found)), strict=True)
    ]


def groups(scores: list[dict]) -> dict[str, list[str]]:
    """For each behaviour the heads that show it: above 0.4 and clear of the control, at most eight."""
    clear = [one for one in scores if one["value"] >= 0.4 and one["low"] > one["control"]]
    best = {
        kind: sorted(
            (one for one in clear if one["measure"] == kind), key=lambda one: -one["value"]
        )
        for kind in KINDS
    }
    return {kind: [one["name"] for one in some[:MOST]] for kind, some in best.items() if some}


def worth(asked: Asked, kind: str, names: list[str]) -> list[dict]:
    """What taking these heads out costs on the second pass, beside drawn sets from the same layers."""
    model = model_of(asked)
    found = induction.effect(model, default_rows(model, batch=4), names, draws=DRAWS)
    control = found.controls.median() - found.values[0].mean() if len(found.controls) else None
    return [
        row(
            kind,
            "loss without",
            found.change,
            *found.interval,
            control,
            f"{', '.join(names)}. {found}",
        )
    ]


def patterns(asked: Asked, names: list[str]) -> dict[str, list]:
    """Where some heads look on the prompt."""
    done = anatomy(model_of(asked)).run(torch.tensor([asked.prompt]))
    return {name: done.pattern(name)[0].mul(1000).round().div(1000).tolist() for name in names}


# --- what the weights say --------------------------------------------------------------------------------------------


def composition(asked: Asked, kind: Any) -> list[dict]:
    """The strongest wires between heads, beside the score of heads that have nothing to do with each other."""
    stack = heads_of(model_of(asked))
    scores = circuits.composition_scores(stack, kind=kind).top(200)
    baseline = circuits.composition_baseline(stack)
    return [
        row(f"{pair.replace(', ', '->')}.{kind}", "composition", scores[pair], control=baseline)
        for pair in scores
    ]


def words(asked: Asked, layer: int) -> list[dict]:
    """What heads of a layer look for from some tokens of the prompt, and which tokens they raise when they look at them."""
    model, value = model_of(asked), anatomy(model_of(asked))
    chosen, spelled = list(dict.fromkeys(asked.prompt))[-WORDS:], speller(model)
    rows = []
    for name in _in_layer(value, layer):
        for measure, table in (
            ("looks for", circuits.full_qk(model, name, offset=_offset(heads_of(model, name)))),
            ("raises", circuits.full_ov(model, name)),
        ):
            best = ((table.A[chosen] - table.A.mean(0)) @ table.B).topk(4)
            for token, values, ids in zip(
                chosen, best.values.tolist(), best.indices.tolist(), strict=True
            ):
                rows.append(
                    row(
                        name,
                        measure,
                        values[0],
                        text=f"{spelled(token)} → {' '.join(map(spelled, ids))}",
                    )
                )
    return rows


def trigrams(asked: Asked, layer: int) -> list[dict]:
    """The strongest skip trigrams of a layer's heads among the first tokens of the vocabulary and those of the prompt."""
    model, value = model_of(asked), anatomy(model_of(asked))
    among, spelled = torch.zeros(value.d_vocab, dtype=torch.bool), speller(model)
    among[:AMONG] = True
    among[list(asked.prompt)] = True
    among[
        [
            i
            for i in getattr(getattr(model, "tokenizer", None), "all_special_ids", [])
            if i < len(among)
        ]
    ] = False
    rows = []
    for name in _in_layer(value, layer):
        for one in skip_trigrams.strongest(model, name, 5, among=among):
            text = f"{spelled(one.source)} … {spelled(one.destination)} → {spelled(one.completion)}"
            rows.append(row(name, "skip trigram", one.strength, text=text))
    return rows


def _in_layer(value: Anatomy, layer: int) -> list[str]:
    return [name for name in value.head_names if read(name)[0].layer == layer]


def _offset(head: Heads) -> int | None:
    return None if head.turn is None else 1


# --- what MLPs cost, and where a logit comes from --------------------------------------------------------------------


def counts(asked: Asked) -> tuple[int, ...]:
    """Heads per neuron that are worth asking for; none where there is no MLP to convert."""
    try:
        found = find_mlps(model_of(asked))[0]
    except (AttributeError, ValueError):
        return ()
    return (4, 8, 16) if found.is_gated else (1, 2, 3, 5) if "gelu" in found.activation else (1,)


@torch.no_grad()
def mlps(asked: Asked, k: int) -> list[dict]:
    """Every MLP as heads, so many a neuron: what each layer is wrong by, and what the model then says of the prompt."""
    model, tokens = model_of(asked), torch.tensor([asked.prompt])
    twin = conversion.to_attention_only(model, heads_per_neuron=k)
    with measured(model, twin):
        log, other = (one(tokens).float().log_softmax(-1) for one in (model, twin))
    said = f"{k} heads a neuron"
    rows = [
        row(f"L{one.layer} MLP", "wrong by", one.measured, text=said) for one in twin.report.layers
    ]
    rows += [
        row(f"L{one.layer} MLP", "promised", one.bound + one.rounding, text=said)
        for one in twin.report.layers
    ]
    rows.append(
        row(
            "model",
            "KL to the original",
            (log.exp() * (log - other)).sum(-1).mean().clamp_min(0),
            text=said,
        )
    )
    rows.append(
        row(
            "model",
            "same first choice",
            (log.argmax(-1) == other.argmax(-1)).float().mean(),
            text=said,
        )
    )
    return rows


@torch.no_grad()
def logits(asked: Asked) -> list[dict]:
    """What each part adds to the logit of the model's own next token, over the mean of all logits."""
    model, tokens = model_of(asked), torch.tensor([asked.prompt])
    said, spelled = anatomy(model).run(tokens).logits, speller(model)
    shares = residual.why(model, tokens, int(said[0, -1].argmax()))
    rows = [
        row("next token", "probability", p, text=spelled(i))
        for p, i in zip(*(x.tolist() for x in said[0, -1].softmax(-1).topk(5)), strict=True)
    ]
    return rows + [
        row(name, "adds to the logit", value)
        for name, value in zip(shares.names, shares.values.tolist(), strict=True)
    ]


def speller(model: Any) -> Callable[[int], str]:
    """A token as a reader sees it; its number where there is no tokenizer."""
    decode = getattr(getattr(model, "tokenizer", None), "decode", None)
    return (lambda i: f"#{i}") if decode is None else lambda i: visible(decode([i]))


def layers(asked: Asked) -> Iterator[int]:
    yield from sorted({read(name)[0].layer or 0 for name in anatomy(model_of(asked)).head_names})
