"""Compare nine methods on models whose wires are known, for the page "One culprit, many methods".

Attribution patching has two rows, because its slope can be taken at the whole model and at the cut one.

    python -m studies.methods.compare

The methods are the cells of the page with the tag `method`; this script runs these cells and calls their functions, so
what is measured is what the page shows. It writes `src/circuitkit/data/induction/methods.json`. One thread needs a
few minutes. `python -m tools manifest` then records the new hash.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import nbformat
import pandas as pd
import torch

import circuitkit as ck
from circuitkit_book.induction_by_hand import build_induction_model
from circuitkit_book.induction_training import train_induction_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "book/3-induction-heads/one-culprit-many-methods.ipynb"
RESULT = ROOT / "src/circuitkit/data/induction/methods.json"

SEEDS = (0, 1, 2)
ROWS_FOR_CUTS = 100
"""The seed of the rows on which the known wires are found; no method sees these rows."""
KNOWN_SHARE = 0.01
"""A wire is known if each of three replacements takes at least this share of the margin."""
SHARES = [(i + 0.5) / 8 for i in range(8)]


class Case(NamedTuple):
    """A model, the rows that the methods get, and its known wires."""

    name: str
    seed: int
    model: Any
    rows: Any
    other: torch.Tensor
    known: list[str]


# The functions of the page


def method_cells() -> list[str]:
    """The sources of the page's cells with the tag `method`."""
    cells = nbformat.read(PAGE, as_version=4).cells
    return [cell.source for cell in cells if "method" in cell.metadata.get("tags", [])]


def page_functions() -> SimpleNamespace:
    """The functions that the page's method cells define."""
    names = {"ck": ck, "pd": pd, "torch": torch, "partial": functools.partial}
    for source in method_cells():
        exec(source, names)
    return SimpleNamespace(**names)


page = page_functions()


def methods(case: Case) -> dict[str, Callable[[], pd.Series]]:
    """Each method by its name; calling it gives a score for each wire."""
    model, rows, other = case.model, case.rows, case.other
    heads, wires = ck.heads_of(model).names, page.wires_of(model)

    def resampled(names: Any) -> pd.Series:
        return page.margin_lost(model, rows, names, patch=ck.run(model, other))

    def of_heads(**replacement: Any) -> pd.Series:
        lost = page.margin_lost(model, rows, heads, **replacement)
        return page.wires_from_heads(model, lost)

    return {
        "zero ablation": lambda: of_heads(fill="zero"),
        "mean ablation": lambda: of_heads(fill="mean"),
        "resample ablation": lambda: page.wires_from_heads(model, resampled(heads)),
        "path ablation": lambda: resampled(wires),
        "attribution, s = 0": lambda: page.estimate(model, rows, other, [0.0]),
        "attribution, s = 1": lambda: page.estimate(model, rows, other, [1.0]),
        "integrated gradients": lambda: page.estimate(model, rows, other, SHARES),
        "composition scores": lambda: page.composition(model),
        "QK pairs": lambda: page.wires_from_pairs(model, page.qk_pairs(model, rows)),
        "logit attribution": lambda: page.wires_from_heads(
            model, page.logit_attribution(model, rows)
        ),
    }


# The models


def draw(model: Any, seed: int, period: int, batch: int, **choices: Any) -> tuple[Any, Any]:
    """Rows that repeat, and rows of the same length in which nothing repeats."""
    generator = torch.Generator().manual_seed(seed)
    choices |= {"batch": batch, "generator": generator}
    rows = ck.induction.repeated_tokens(model.cfg.d_vocab, period, **choices)
    twice = ck.induction.repeated_tokens(model.cfg.d_vocab, 2 * period, **choices)
    return rows, twice.tokens[:, : rows.tokens.shape[1]]


def hidden(method: str, seed: int) -> tuple[Any, str]:
    """A hand-built model among random heads, and the name of its one important wire.

    Each layer has four heads. The scores of a random head have a standard deviation of about 1, and
    what it writes has about 0.3 times the length of a token embedding.
    """
    built = build_induction_model(40, n_ctx=32, method=method)
    two = ck.heads_of(built)
    generator = torch.Generator().manual_seed(seed)
    writer, reader = torch.randint(4, (2,), generator=generator).tolist()
    d_model, d_head = two.W_Q.shape[1:]
    sizes = {"Q": 0.5**0.5, "K": 0.5**0.5, "V": d_head**-0.5, "O": 0.3 * d_model**-0.5}
    weights = {}
    for side, size in sizes.items():
        of_two = getattr(two, f"W_{side}")
        of_all = size * torch.randn(8, *of_two.shape[1:], generator=generator)
        of_all[writer], of_all[4 + reader] = of_two[0], of_two[1]
        weights[f"W_{side}"] = of_all
    names = tuple(f"L{layer}H{head}" for layer in range(2) for head in range(4))
    heads = ck.Heads(names, **weights, layers=(0,) * 4 + (1,) * 4)
    model = ck.handmade.bridge_of(heads, built.W_E, built.W_U, built.W_pos)
    side = "K" if method == "k-composition" else "Q"
    return model, f"L0H{writer}->L1H{reader}.{side}"


def cuts(model: Any, rows: Any, other: torch.Tensor) -> pd.DataFrame:
    """For every wire, the share of the margin that a cut takes, with three replacements."""
    whole = float(page.margin(model(rows.tokens), rows))
    wires = page.wires_of(model)
    replacements = {"zero": {"fill": "zero"}, "mean": {"fill": "mean"}, "other": {"patch": other}}
    lost = {how: page.margin_lost(model, rows, wires, **r) for how, r in replacements.items()}
    return pd.DataFrame(lost) / whole


def largest_attention(model: Any, rows: Any) -> float:
    """The mean attention to the right source, of the head of layer 1 where it is largest.

    The destinations are those of the margin: the second half of the rows except the last position.
    """
    run, back = ck.run(model, rows.tokens), rows.period - 1
    heads = [name for name in ck.heads_of(model).names if name.startswith("L1")]
    of_head = [run.pattern(head).diagonal(-back, dim1=-2, dim2=-1) for head in heads]
    right = [attention[:, -back - 1 : -1] for attention in of_head]
    return max(float(attention.mean()) for attention in right)


def facts_about(model: Any, rows: Any, other: torch.Tensor, known: list[str] | None = None) -> dict:
    """The known wires of a model, and how much of the margin they and the other wires carry.

    Without `known`, the known wires are those that every replacement confirms.
    """
    table = cuts(model, rows, other)
    if known is None:
        known = list(table.index[table.min(axis=1) >= KNOWN_SHARE])
    whole = float(page.margin(model(rows.tokens), rows))
    together = ck.run(model, rows.tokens, without=known, patch=other).logits
    return {
        "known": known,
        "smallest known": float(table.loc[known].min(axis=None)),
        "all known": 1 - float(page.margin(together, rows)) / whole,
        "largest other": float(table.drop(known).abs().max(axis=None)),
        "attention": largest_attention(model, rows),
    }


def trained_cases() -> tuple[list[Case], list[dict]]:
    """Three models with two heads in each layer, trained from three seeds."""
    cases, facts = [], []
    for seed in SEEDS:
        training = train_induction_model(2, n_heads=2, batch=32, seed=seed)
        model = training.model.to(torch.float32)
        about = facts_about(model, *draw(model, ROWS_FOR_CUTS, 20, 16))
        cases.append(Case("trained", seed, model, *draw(model, seed, 20, 16), about["known"]))
        facts.append({"model": "trained", "seed": seed} | about)
    return cases, facts


def shipped_cases() -> tuple[list[Case], list[dict]]:
    """The two-layer model of the book, with three seeds of the rows."""
    model = ck.load_model("two-layer")
    frequency = ck.models.corpus_statistics().unigram.float()
    settings = {"period": 64, "batch": 8, "bos": 0, "weights": frequency}
    about = facts_about(model, *draw(model, ROWS_FOR_CUTS, **settings))
    rows = [draw(model, seed, **settings) for seed in SEEDS]
    cases = [Case("shipped", seed, model, *rows[seed], about["known"]) for seed in SEEDS]
    return cases, [{"model": "shipped", "seed": ROWS_FOR_CUTS} | about]


def hidden_cases(name: str, method: str) -> tuple[list[Case], list[dict]]:
    """A hand-built model, with three seeds of the random heads around it."""
    cases, facts = [], []
    for seed in SEEDS:
        model, wire = hidden(method, seed)
        about = facts_about(model, *draw(model, ROWS_FOR_CUTS, 16, 16), known=[wire])
        cases.append(Case(name, seed, model, *draw(model, seed, 16, 16), [wire]))
        facts.append({"model": name, "seed": seed} | about)
    return cases, facts


# Measures


def precision(scores: pd.Series, known: list[str]) -> float:
    """Precision at the number of known wires; scores that differ by less than rounding are equal."""
    largest = max(float(scores.abs().max()), 1e-30)
    return page.precision((scores / largest).astype("float64"), known)


def random_wires(n_wires: int, n_known: int) -> dict[str, float]:
    """The mean and the spread of the precision of wires chosen at random."""
    share = n_known / n_wires
    variance = share * (1 - share) * (n_wires - n_known) / ((n_wires - 1) * n_known)
    return {"precision": share, "spread": variance**0.5}


def compared(case: Case) -> list[dict]:
    """One row for each method, and one for random wires."""
    label = {"model": case.name, "seed": case.seed}
    table = [
        label | {"method": name, "precision": precision(method(), case.known)}
        for name, method in methods(case).items()
    ]
    chance = random_wires(len(page.wires_of(case.model)), len(case.known))
    return [*table, label | {"method": "random wires"} | chance]


def rounded(value: Any) -> Any:
    """A result with three decimals."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return round(float(value), 3) if isinstance(value, float) else value


def main() -> None:
    """Compare all methods on all models and write the result."""
    torch.set_num_threads(1)
    groups = [
        hidden_cases("previous token", "k-composition"),
        hidden_cases("pointer", "pointer"),
        trained_cases(),
        shipped_cases(),
    ]
    scores = [row for cases, _ in groups for case in cases for row in compared(case)]
    facts = [fact for _, group in groups for fact in group]
    result = rounded({"known": facts, "scores": scores})
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
