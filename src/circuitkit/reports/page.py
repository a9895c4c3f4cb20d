"""Fill the template of a report, and draw its figures. What is shown, and how, is in `page.html`."""

from collections import defaultdict
from math import isnan
from pathlib import Path

import jinja2
import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from torch import Tensor

from circuitkit import figures
from circuitkit.figures.pictures import Picture, in_page
from circuitkit.names import parse
from circuitkit.reading import heads_of
from circuitkit.reports import measures, rules
from circuitkit.reports.lines import Line, Results
from circuitkit.reports.measures import Subject


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
        "clear": clear,
        "score_picture": score_picture(scores) if scores else None,
        "pattern_picture": pattern_picture(patterns) if patterns else None,
        "cards": lines_by_head(results, names),
        "head": head,
        "offset": 1 if names and heads_of(model, head).turn is not None else None,
        "model": subject.model if isinstance(subject.model, str) else None,
        "tokens": list(subject.prompt),
        "prompt": "".join(map(spelled, subject.prompt)).replace("·", " "),
        "settings": measures,
        "rules": rules,
        "summary": summary(results),
        "bench": bench_totals(),
    }
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["drawing"] = circuit_drawing
    environment.filters["image"] = image
    environment.filters["short"] = lambda number: "" if isnan(number) else f"{number:.3g}"
    return environment.get_template("page.html").render(values)


def summary(results: Results) -> list[tuple]:
    """Return how many lines of each kind were tried and named, the floor, and the largest p-value."""
    rows = []
    for kind, least in rules.LEAST.items():
        tried = [line for lines in results.values() for line in lines if line.measure == kind]
        named = [line.p for line in tried if line.named]
        largest = f"{max(named):.1g}" if named else ""
        if tried:
            rows.append((kind, len(tried), len(named), least, largest))
    return rows


def bench_totals() -> dict[str, int]:
    """Return the number of models of the bench, and the verdicts on lines of all kinds."""
    bench = rules.bench_result()
    totals = {"models": bench["models"]}
    for verdict in ("right", "false", "missed", "unclear"):
        totals[verdict] = sum(counts[verdict] for counts in bench["kinds"].values())
    return totals


def lines_by_head(results: Results, names: list[str]) -> dict[str, dict[str, list[Line]]]:
    """Return what the report found about each head, by measure."""
    cards: dict[str, dict[str, list[Line]]] = {name: defaultdict(list) for name in names}
    for lines in results.values():
        for line in lines:
            if line.name in cards:
                cards[line.name][line.measure].append(line)
    return cards


def circuit_drawing(lines: list[Line], label: str) -> Markup:
    """Draw components with their values."""
    values = {line.name: line.value for line in lines if not line.name.endswith("bias")}
    alt = f"The largest values, {label}: {', '.join(values)}"
    return image(figures.circuit(values, alt=alt, label=label))


def image(picture: Picture) -> Markup:
    """Return a picture as an element of the page."""
    tag = Markup('<img src="{}" alt="{}" width="{}">')
    return tag.format(in_page(picture.png), picture.alt, picture.width)


def score_picture(scores: list[Line]) -> Picture:
    """Draw the scores of all heads, one panel for each behaviour."""
    heads = {score.name: parse(score.name)[0] for score in scores}
    n_layers = 1 + max(head.layer or 0 for head in heads.values())
    n_heads = 1 + max(head.number or 0 for head in heads.values())
    # a layer may have fewer heads than another one, and cells without a head stay empty
    panels = {score.measure: np.ma.masked_all((n_layers, n_heads)) for score in scores}
    for score in scores:
        head = heads[score.name]
        panels[score.measure][head.layer, head.number] = score.value
    best = max(scores, key=lambda score: score.value)
    alt = (
        f"Scores of every head, one panel for each of {', '.join(panels)}; the largest is "
        f"{best.measure} of {best.name}, {best.value:.2f}"
    )
    return panel_picture(panels, "head", "layer", alt)


def pattern_picture(patterns: dict[str, Tensor]) -> Picture:
    """Draw attention patterns side by side."""
    panels = {name: pattern.float().numpy() for name, pattern in patterns.items()}
    alt = f"Attention patterns of {', '.join(panels)} on the prompt, destinations as rows"
    return panel_picture(panels, "source", "destination", alt)


def panel_picture(panels: dict[str, np.ndarray], x_label: str, y_label: str, alt: str) -> Picture:
    """Draw heat maps side by side, on one scale from -1 to 1, with labelled axes."""
    with matplotlib.rc_context():
        figures.style()
        fig = Figure(figsize=(2.1 * len(panels), 2.6), layout="constrained")
        axes = np.atleast_1d(fig.subplots(1, len(panels)))
        for ax, (title, values) in zip(axes, panels.items(), strict=True):
            colors = figures.signed(np.ma.compressed(values), 1.0)
            ax.imshow(values, aspect="auto", **colors)
            ax.set(title=title, xlabel=x_label)
            ax.locator_params(integer=True)
        axes[0].set_ylabel(y_label)
        return figures.picture(fig, alt=alt)
