"""A report as one file: own style, light and dark, a field that finds a head, and beside each figure the lines that make it."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from circuitkit.anatomy import read
from circuitkit.figures import circuit
from circuitkit.figures.attention_view import heatmap, table
from circuitkit.report._parts import groups

COLUMNS = ("part", "name", "measure", "value", "low", "high", "control", "text")
_STYLE, _SCRIPT = (
    "\n" + Path(__file__).with_name(f"page.{kind}").read_text("utf-8") for kind in ("css", "js")
)
_LINES = {
    "logits": "tokens = {tokens}\nanswer = int(model(tokens)[0, -1].argmax())\nck.why(model, tokens, answer)",
    "behaviour": "rows = {rows8}\neach = [ck.induction.scores(model, one[None]) for one in rows.tokens]\ntorch.stack([one.prefix_matching for one in each]).mean(0)",
    "worth": "ck.induction.effect(model, {rows4}, {names}, draws=10)",
    "composition": "ck.circuits.composition_scores(model, kind='K', above_baseline=True).top(10)",
    "mlps": "twin = ck.to_attention_only(model, heads_per_neuron={k})\nprint(twin.report)",
    "words": "ov = ck.circuits.full_ov(model, '{head}')\nqk = ck.circuits.full_qk(model, '{head}'{offset})\ntokens = {tokens}\n((ov.A[tokens[0, -1]] - ov.A.mean(0)) @ ov.B).topk(4)",
    "trigrams": "tokens = {tokens}\namong = torch.arange({d_vocab}) < 1024\namong[tokens[0]] = True\namong[{specials}] = False\nck.skip_trigrams.strongest(model, '{head}', 5, among=among)",
    "patterns": "run = ck.anatomy(model).run({tokens})\nrun.pattern('{head}')",
}


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.3g}"


def _table(caption: str, columns: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{one[0]}</th>{"".join(f"<td>{cell}</td>" for cell in one[1:])}</tr>'
        for one in rows
    )
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(keys: str, title: str, words: str, inside: str, again: dict[str, str]) -> str:
    key, *_ = keys.split()
    lines = "import torch, circuitkit as ck\nmodel = {model}\n" + "\n".join(
        _LINES[key] for key in keys.split()
    )
    lines = escape(lines.format_map(again | {f"rows{n}": again["rows"].format(n) for n in (4, 8)}))
    return f'<section id="{key}"><h2>{title}</h2><p>{words}</p>{inside}<details><summary>The lines that make it</summary><pre tabindex="0">{lines}</pre></details></section>'


def page(
    name: str,
    parts: dict[str, Any],
    problems: dict[str, str],
    spelled: Callable[[int], str],
    prompt: tuple[int, ...],
    again: dict[str, str],
) -> str:
    """The whole file; `again` has what the lines that repeat a section need."""
    pick = lambda part: [
        one for key, some in parts.items() if key.split()[0] == part for one in some
    ]
    text = "".join(map(spelled, prompt)).replace("·", " ")
    body = [
        _next(again, pick("logits"), text),
        _behaviour(again, pick("behaviour"), pick("worth")),
        _patterns(again, parts.get("patterns", {}), spelled, prompt),
    ]
    body += [
        _composition(again, pick("composition")),
        _mlps(again, pick("mlps")),
        _heads(again, parts, pick),
    ]
    failed = "".join(
        f"<li><b>{escape(key)}</b>: {escape(problem)}</li>" for key, problem in problems.items()
    )
    failed = (
        f'<section id="problems"><h2>What could not be computed</h2><ul>{failed}</ul></section>'
        if failed
        else ""
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(name)}: circuits</title><style>{_STYLE}</style></head><body><main><h1>{escape(name)}</h1>"
        f"<p>Made by <code>circuitkit.report</code>: {len(parts)} parts{f', {len(problems)} could not be computed' if problems else ''}. Every number is also a line of the table that lies beside this file.</p>"
        f'<p><label>Find a head <input id="find" placeholder="L1H3" autocomplete="off"></label> <span id="found" role="status"></span></p>'
        f"{''.join(body)}{failed}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _next(again: dict[str, str], rows: list[dict], text: str) -> str:
    if not rows:
        return ""
    said = ", ".join(
        f"{escape(one['text'])} {one['value']:.2f}" for one in rows if one["name"] == "next token"
    )
    shares = sorted(
        (one for one in rows if one["name"] != "next token"), key=lambda one: -abs(one["value"])
    )[:12]
    drawn = {one["name"]: one["value"] for one in shares if not one["name"].endswith("bias")}
    figure = (
        circuit(
            drawn,
            alt=f"The parts that add most to the next token's logit: {', '.join(drawn)}",
            label="logits over the mean logit",
        )._repr_html_()
        if drawn
        else ""
    )
    words = f"After <q>{escape(text)}</q> the model expects {said}. Its first choice's logit, over the mean of all logits, is a sum over parts; these are the largest."
    listed = _table(
        "Largest parts of the logit",
        ["part", "adds"],
        [[escape(one["name"]), _number(one["value"])] for one in shares],
    )
    return _section("logits", "Where the next token comes from", words, figure + listed, again)


def _behaviour(again: dict[str, str], rows: list[dict], worth: list[dict]) -> str:
    if not rows:
        return ""
    kinds = list(dict.fromkeys(one["measure"] for one in rows))
    maps = ""
    for kind in kinds:
        some = [one for one in rows if one["measure"] == kind]
        grid: dict[int, list[float]] = {}
        for one in some:
            grid.setdefault(read(one["name"])[0].layer or 0, []).append(one["value"])
        square = np.zeros((max(len(grid), *map(len, grid.values())),) * 2)
        for y, values in enumerate(grid.values()):
            square[y, : len(values)] = values
        maps += f"<figure>{heatmap(square, 1.0, f'{kind}: layers downwards, heads across')}<figcaption>{kind}</figcaption></figure>"
    best = sorted(
        (one for one in rows if one["value"] > (one["control"] or 0)), key=lambda one: -one["value"]
    )
    shown = [one for kind in kinds for one in [b for b in best if b["measure"] == kind][:8]]
    cells = [
        [
            f'<a href="#{one["name"]}">{one["name"]}</a>',
            one["measure"],
            _number(one["value"]),
            f"{one['low']:.2f} to {one['high']:.2f}",
            _number(one["control"]),
        ]
        for one in shown
    ]
    made = f'<div class="maps">{maps}</div>' + _table(
        "The strongest heads by behaviour",
        ["head", "behaviour", "score", "95 % over rows", "control"],
        cells,
    )
    if not groups(rows):
        made += "<p>No head shows one of them clearly, with a score of 0.4 or more that is above its control in 95 of 100 cases: so none was taken out.</p>"
    if worth:
        told = [
            [
                one["name"],
                escape(one["text"].partition(". ")[0]),
                _number(one["value"]),
                f"{one['low']:.2f} to {one['high']:.2f}",
                _number(one["control"]),
            ]
            for one in worth
        ]
        made += _table(
            "Loss on the second pass when these are taken out, in nats",
            ["behaviour", "heads", "change", "95 % over rows", "median of 10 drawn sets"],
            told,
        )
    words = (
        "Five scores of every head on rows of random tokens that come twice. The control of induction and duplicate is the same measure on rows "
        "that do not repeat; of previous token and sink, attention spread evenly; of copying, what 5 % of random heads exceed."
    )
    return _section("behaviour worth", "Heads by behaviour", words, made, again)


def _patterns(
    again: dict[str, str],
    found: dict[str, list],
    spelled: Callable[[int], str],
    prompt: tuple[int, ...],
) -> str:
    if not found:
        return ""
    shown = np.array([*found.values()])
    maps = "".join(
        f"<figure>{heatmap(one, 1.0, f'Attention of {head}')}<figcaption>{head}</figcaption></figure>"
        for head, one in zip(found, shown, strict=True)
    )
    listed = f'<details><summary>As a table</summary><div class="wide" tabindex="0">{table([spelled(i) for i in prompt], shown, [*found])}</div></details>'
    return _section(
        "patterns",
        "Where they look",
        "The strongest head of each behaviour on the prompt: destinations downwards, sources across.",
        f'<div class="maps">{maps}</div>{listed}',
        again,
    )


def _composition(again: dict[str, str], rows: list[dict]) -> str:
    if not rows:
        return ""
    best = sorted(rows, key=lambda one: one["control"] - one["value"])[:10]
    drawn = {one["name"]: one["value"] - one["control"] for one in best}
    figure = circuit(
        drawn,
        alt=f"The strongest wires between heads, from {best[0]['name']} on",
        label="score minus baseline",
    )._repr_html_()
    listed = _table(
        "The strongest wires",
        ["wire", "score", "baseline"],
        [[escape(one["name"]), _number(one["value"]), _number(one["control"])] for one in best],
    )
    return _section(
        "composition",
        "How heads feed each other",
        "Composition scores from the weights alone. The baseline is the score of random heads of these shapes.",
        figure + listed,
        again,
    )


def _mlps(again: dict[str, str], rows: list[dict]) -> str:
    if not rows:
        return ""
    kinds = list(dict.fromkeys(one["text"] for one in rows))
    told = []
    for kind in kinds:
        some = [one for one in rows if one["text"] == kind]
        worst = {
            measure: max(one["value"] for one in some if one["measure"] == measure)
            for measure in ("wrong by", "promised")
        }
        rest = {one["measure"]: one["value"] for one in some if one["name"] == "model"}
        told.append(
            [
                kind,
                *map(_number, worst.values()),
                *(_number(rest[key]) for key in ("KL to the original", "same first choice")),
            ]
        )
    made = _table(
        "MLPs as attention heads",
        [
            "conversion",
            "largest error of a layer",
            "promised",
            "KL on the prompt, nats",
            "same first choice",
        ],
        told,
    )
    return _section(
        "mlps",
        "What the MLPs cost as heads",
        "Every neuron as attention heads: the more heads a neuron, the smaller the error.",
        made,
        again,
    )


def _heads(again: dict[str, str], parts: dict[str, Any], pick: Callable[[str], list[dict]]) -> str:
    by_head: dict[str, dict[str, list]] = {}
    for one in [*pick("behaviour"), *pick("words"), *pick("trigrams")]:
        by_head.setdefault(one["name"], {}).setdefault(one["measure"], []).append(one)
    wires = pick("composition")
    cards = ""
    for head in sorted(by_head, key=lambda one: read(one)[0].order):
        some = by_head[head]
        scores = ", ".join(
            f"{kind} {found[0]['value']:.2f}"
            for kind, found in some.items()
            if found[0]["control"] is not None
        )
        inside = ""
        if "raises" in some:
            pairs = zip(
                *(
                    [one["text"].partition(" → ") for one in some[kind]]
                    for kind in ("looks for", "raises")
                ),
                strict=True,
            )
            cells = [[escape(a[0]), escape(a[2]), escape(b[2])] for a, b in pairs]
            inside += _table(
                f"Words of {head}, from embeddings alone", ["at", "looks for", "raises"], cells
            )
        if "skip trigram" in some:
            inside += _table(
                f"Skip trigrams of {head}",
                ["source … destination → completion", "strength"],
                [[escape(one["text"]), _number(one["value"])] for one in some["skip trigram"]],
            )
        fed = [
            f"{escape(one['name'])} {one['value'] - one['control']:.3f}"
            for one in wires
            if head
            in (one["name"].partition("->")[0], one["name"].partition("->")[2].partition(".")[0])
        ][:6]
        inside += f"<p>Wires, score minus baseline: {', '.join(fed)}</p>" if fed else ""
        cards += f'<article id="{head}" data-head="{head}"><details><summary><b>{head}</b> {scores}</summary>{inside}</details></article>'
    return (
        _section(
            "words trigrams",
            "Every head",
            "Words are read from embeddings and weights alone: what positions and earlier heads add is left out.",
            cards,
            again,
        )
        if cards
        else ""
    )
