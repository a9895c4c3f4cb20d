"""Fill the template of a report. What is shown, and how, is in `page.html`, `found.html` and `report.css`."""

from collections import defaultdict
from functools import cache
from math import isnan, log, nan
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import Tensor

from circuitkit.names import parse
from circuitkit.reading import heads_of
from circuitkit.reports import measures, rules
from circuitkit.reports.drawings import circuit, heat_map
from circuitkit.reports.lines import Behaviour, Line, Results
from circuitkit.reports.measures import Subject
from circuitkit.reports.summary import anchor, findings

MOST_CARDS = 100
"""If a model has more heads, the page has cards of those for which the report names something."""
SMALLEST_P = 1e-12
"""Smaller p-values are not told apart: no null is known to be normal so far out."""


def page_of(
    title: str,
    results: Results,
    patterns: dict[str, Tensor],
    problems: dict[str, str],
    subject: Subject,
) -> str:
    """Return the page of a report."""
    model = subject.load()
    names = measures.head_names(model)
    scores = results.get("behaviour", [])
    clear = measures.named_heads(scores)
    strongest = [lines[0].name for lines in clear.values() if lines]
    head = next(iter([*strongest, *names]), "L0H0")
    spelled = measures.speller(model)
    values = {
        "title": title,
        "results": results,
        "problems": problems,
        "found": findings(results),
        "clear": clear,
        "best_of": {line.measure: line for line in sorted(scores, key=lambda line: line.excess)},
        "score_maps": score_maps(scores),
        "pattern_maps": [
            heat_map(name, pattern.float(), "source", "destination")
            for name, pattern in patterns.items()
        ],
        "circuit": circuit_of(results),
        "behaviours": {line.name: kind for kind in reversed(clear) for line in clear[kind]},
        "attention": next((pattern[-1].tolist() for pattern in patterns.values()), []),
        "pattern_head": next(iter(patterns), None),
        "cards": lines_by_head(results, names),
        "n_heads": len(names),
        "head": head,
        "offset": 1 if names and heads_of(model, head).turn is not None else None,
        "model": subject.model if isinstance(subject.model, str) else None,
        "sizes": model.cfg,
        "chance": log(model.cfg.d_vocab),
        "tokens": list(subject.prompt),
        "words": [spelled(token).replace("·", " ") for token in subject.prompt],
        "opening": len(rules.opening_tokens(model)),
        "has_words": model.tokenizer is not None,
        "settings": measures,
        "rules": rules,
        "summary": summary(results),
        "bench": rules.bench_result(),
    }
    return template("page.html").render(values)


def template(name: str) -> jinja2.Template:
    """Return a template of this folder."""
    return environment().get_template(name)


@cache
def environment() -> jinja2.Environment:
    """Make what compiles the templates, each of them once."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    made.filters["anchor"] = anchor
    made.filters["decimal"] = lambda number: "" if isnan(number) else f"{number:z.2f}"
    made.filters["short"] = lambda number: "" if isnan(number) else f"{number:.3g}"
    made.filters["p_value"] = p_value
    return made


def p_value(p: float) -> str:
    """Write a p-value with one digit; none is 0."""
    if isnan(p):
        return ""
    return f"{p:.1g}" if p >= SMALLEST_P else f"< {SMALLEST_P:.0e}"


def summary(results: Results) -> list[tuple]:
    """Return for each kind how many lines were tried and named, the floor, the largest p-value, the strongest."""
    rows = []
    for kind, least in rules.LEAST.items():
        tried = [line for lines in results.values() for line in lines if line.measure == kind]
        named = sorted((line for line in tried if line.named), key=lambda line: -line.value)
        if tried:
            largest = p_value(max((line.p for line in named), default=nan))
            strongest = named[0].name if named else ""
            rows.append((kind, len(tried), len(named), least, largest, strongest))
    return rows


def lines_by_head(results: Results, names: list[str]) -> dict[str, dict[str, list[Line]]]:
    """Return what the report found about each head, by measure.

    Of a large model, heads stay out for which nothing is named except the attention to the first token.
    """
    cards: dict[str, dict[str, list[Line]]] = {name: defaultdict(list) for name in names}
    shown = set(names if len(names) <= MOST_CARDS else ())
    for lines in results.values():
        for line in lines:
            if line.name in cards:
                cards[line.name][line.measure].append(line)
            if line.named and line.measure != Behaviour.FIRST_TOKEN:
                shown.update(line.name.replace("->", " ").replace(".", " ").split())
    return {name: card for name, card in cards.items() if name in shown}


def circuit_of(results: Results) -> dict[str, Any] | None:
    """Return the drawing of the wires of the circuits that the report names, and of its other wires."""
    named = [line for line in results.get("wires", []) if line.named]
    in_circuits = {wire for line in results.get("circuits", []) for wire in line.name.split(", ")}
    # a group has many arrows, so it comes last; of the two measures of prefix matching, the one on
    # rows of different tokens comes first
    order = list(Behaviour)
    named.sort(
        key=lambda line: (
            line.measure == "group wire",
            line.name not in in_circuits,
            line.text not in order,
            -line.value,
        )
    )
    return circuit(named) if named else None


def score_maps(scores: list[Line]) -> list[dict[str, Any]]:
    """Draw the scores of all heads, one picture for each behaviour."""
    maps = []
    for kind in dict.fromkeys(score.measure for score in scores):
        of_kind = {parse(line.name)[0]: line.value for line in scores if line.measure == kind}
        n_layers = 1 + max(head.layer or 0 for head in of_kind)
        n_heads = 1 + max(head.number or 0 for head in of_kind)
        # a layer may have fewer heads than another one, and cells without a head stay empty
        values = torch.full((n_layers, n_heads), nan)
        for head, value in of_kind.items():
            values[head.layer or 0, head.number or 0] = value
        maps.append(heat_map(kind, values, "head", "layer"))
    return maps
