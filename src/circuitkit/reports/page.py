"""Fill the template of a report: choose what is shown, round it, and draw the figures."""

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from torch import Tensor

from circuitkit import figures
from circuitkit.figures.pictures import Picture
from circuitkit.heads import heads_of
from circuitkit.names import parse
from circuitkit.reports import parts
from circuitkit.reports.parts import Row, Subject
from circuitkit.rows import default_rows

Results = dict[str, list[Row]]
N_TERMS = 12
N_WIRES = 10


def page_of(
    title: str,
    results: Results,
    patterns: dict[str, Tensor],
    problems: dict[str, str],
    subject: Subject,
) -> str:
    """Return the page of a report."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["base64"] = lambda png: base64.b64encode(png).decode()
    values = {"title": title, "problems": problems, "patterns": None}
    values |= next_token_section(results.get("next token", []))
    values |= behaviour_section(results)
    values |= composition_section(results)
    values |= {"conversions": conversion_rows(results), "heads": head_cards(results)}
    if patterns:
        values["patterns"] = pattern_picture(patterns)
    values |= code_values(subject, values["clear_rows"])
    return environment.get_template("page.html").render(values)


def short(number: float | None) -> str:
    """Return three digits of a number."""
    return "" if number is None else f"{number:.3g}"


def interval(row: Row) -> str:
    """Return an interval in words."""
    return f"{row['low']:.2f} to {row['high']:.2f}"


def of_measure(rows: Iterable[Row], measure: str) -> list[Row]:
    """Return the rows of one measure."""
    return [row for row in rows if row["measure"] == measure]


def of_parts(results: Results, kind: str) -> list[Row]:
    """Return the rows of all parts of a kind, for example of the words of all layers."""
    chosen = [rows for part, rows in results.items() if part.startswith(kind)]
    return [row for rows in chosen for row in rows]


# Sections


def next_token_section(rows: list[Row]) -> dict[str, Any]:
    """Return the likely next tokens, and the largest terms of the logit of the first."""
    terms = of_measure(rows, "adds to the logit")
    largest = sorted(terms, key=lambda row: -abs(row["value"]))[:N_TERMS]
    drawn = {row["name"]: row["value"] for row in largest if not row["name"].endswith("bias")}
    alt = f"The components that add most to the next token's logit: {', '.join(drawn)}"
    return {
        "likely": of_measure(rows, "probability"),
        "terms": [[row["name"], short(row["value"])] for row in largest],
        "term_figure": circuit_figure(drawn, alt, "logits above the mean logit"),
    }


def behaviour_section(results: Results) -> dict[str, Any]:
    """Return the scores as a figure, the heads that clearly show a behaviour, and ablations."""
    scores = results.get("behaviour", [])
    clear = parts.clear_heads(scores)
    clear_rows = []
    for kind, names in clear.items():
        by_name = {row["name"]: row for row in of_measure(scores, kind)}
        for row in (by_name[name] for name in names):
            numbers = [short(row["value"]), interval(row), short(row["control"])]
            clear_rows.append([head_link(row["name"]), kind, *numbers])
    ablations = []
    for row in of_parts(results, "ablation"):
        numbers = [short(row["value"]), interval(row), short(row["control"])]
        ablations.append([row["name"], row["text"], *numbers])
    return {
        "n_rows": parts.N_ROWS,
        "clear_score": parts.CLEAR,
        "scores": score_picture(scores) if scores else None,
        "clear_rows": clear_rows,
        "missing": [kind for kind, names in clear.items() if not names],
        "ablations": ablations,
    }


def composition_section(results: Results) -> dict[str, Any]:
    """Return the wires whose score is furthest above the baseline."""
    wires = strongest_wires(results)[:N_WIRES]
    excess = {row["name"]: row["value"] - row["control"] for row in wires}
    alt = f"The strongest wires between heads: {', '.join(excess)}"
    return {
        "wires": [[row["name"], short(row["value"]), short(row["control"])] for row in wires],
        "wire_figure": circuit_figure(excess, alt, "score minus baseline"),
    }


def strongest_wires(results: Results) -> list[Row]:
    """Return all scored wires, the one furthest above its baseline first."""
    wires = of_parts(results, "composition")
    return sorted(wires, key=lambda row: row["control"] - row["value"])


def conversion_rows(results: Results) -> list[list[str]]:
    """Return one line for each conversion of the MLPs."""
    lines = []
    for rows in (rows for part, rows in results.items() if part.startswith("mlps")):
        worst = []
        for measure in ("measured error", "promised error"):
            worst.append(max(row["value"] for row in of_measure(rows, measure)))
        (divergence,) = of_measure(rows, "KL to the original")
        (same_choice,) = of_measure(rows, "same first choice")
        numbers = [*worst, divergence["value"], same_choice["value"]]
        lines.append([divergence["text"], *map(short, numbers)])
    return lines


def head_cards(results: Results) -> list[dict[str, Any]]:
    """Return what the report says about each head."""
    scores = results.get("behaviour", [])
    names = dict.fromkeys(row["name"] for row in [*scores, *of_parts(results, "words")])
    words, trigrams = of_parts(results, "words"), of_parts(results, "trigrams")
    wires = strongest_wires(results)
    return [
        {
            "name": name,
            "scores": ", ".join(
                f"{row['measure']} {row['value']:.2f}" for row in scores if row["name"] == name
            ),
            "words": word_rows([row for row in words if row["name"] == name]),
            "trigrams": [
                [row["text"], short(row["value"])] for row in trigrams if row["name"] == name
            ],
            "wires": ", ".join(
                f"{row['name']} {row['value'] - row['control']:.3f}"
                for row in [row for row in wires if name in heads_named(row["name"])][:6]
            ),
        }
        for name in sorted(names, key=lambda name: parse(name)[0].order)
    ]


def heads_named(wire: str) -> list[str]:
    """Return the two heads of a wire."""
    return [str(name.part) for name in parse(wire)]


def word_rows(rows: list[Row]) -> list[list[str]]:
    """Return for each token what a head looks for from it, and what it raises there."""
    looks_for = of_measure(rows, "looks for")
    raises = of_measure(rows, "raises")
    lines = []
    for query, output in zip(looks_for, raises, strict=True):
        token, _, wanted = query["text"].partition(" → ")
        lines.append([token, wanted, output["text"].partition(" → ")[2]])
    return lines


def head_link(name: str) -> Markup:
    """Return a link to the card of a head."""
    return Markup('<a href="#{0}">{0}</a>').format(name)


def code_values(subject: Subject, clear_rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return what the code behind the sections needs: the model, rows, tokens, and a head."""
    model = subject.load()
    rows = default_rows(model)
    bos = int(rows.tokens[0, 0]) if rows.start else None
    names = parts.head_names(model)
    clear = [Markup.striptags(Markup(row[0])) for row in clear_rows]
    head = next(iter([*clear, *names]), "L0H0")
    is_rotary = names and heads_of(model)[head].turn is not None
    by_name = isinstance(subject.model, str)
    return {
        "load": f"ck.load_model({subject.model!r})" if by_name else "...  # the model",
        "prompt": "".join(map(parts.speller(model), subject.prompt)).replace("·", " "),
        "tokens": f"torch.tensor([{list(subject.prompt)}])",
        "rows": f"ck.induction.repeated_tokens({model.cfg.d_vocab}, {rows.period}, bos={bos})",
        "head": head,
        "offset": ", offset=1" if is_rotary else "",
        "k": max(parts.heads_per_neuron(model), default=1),
    }


# Figures


def circuit_figure(values: dict[str, float], alt: str, label: str) -> Markup:
    """Return a drawing of components or wires."""
    if not values:
        return Markup("")
    return Markup(figures.circuit(values, alt=alt, label=label)._repr_html_())


def score_picture(scores: list[Row]) -> Picture:
    """Draw the scores of all heads, one panel for each behaviour."""
    layers: dict[int, int] = {}
    for row in of_measure(scores, parts.BEHAVIOURS[0]):
        layer = parse(row["name"])[0].layer
        layers[layer] = layers.get(layer, 0) + 1
    shape = (len(layers), max(layers.values()))
    panels = {}
    for kind in parts.BEHAVIOURS:
        grid = np.full(shape, np.nan)  # [layer, head]
        for row in of_measure(scores, kind):
            (name,) = parse(row["name"])
            grid[list(layers).index(name.layer), name.number] = row["value"]
        panels[kind] = grid
    best = max(scores, key=lambda row: row["value"])
    alt = (
        f"Scores of every head, one panel for each of {', '.join(panels)}; the largest is "
        f"{best['measure']} of {best['name']}, {best['value']:.2f}"
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
        for number, (title, values) in enumerate(panels.items()):
            ax = fig.add_subplot(1, len(panels), number + 1)
            ax.imshow(values, aspect="auto", **figures.signed(np.nan_to_num(values), 1.0))
            ax.set(title=title, xlabel=x_label, ylabel=y_label if number == 0 else "")
            ax.xaxis.get_major_locator().set_params(integer=True)
            ax.yaxis.get_major_locator().set_params(integer=True)
        return figures.picture(fig, alt=alt)
