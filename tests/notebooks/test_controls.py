"""Every effect that chapters 1 to 3 print has something beside it that it is compared with."""

import json
import re
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[2] / "book"
CHAPTERS = (
    "01-residual-stream",
    "02-qk-and-ov-circuits",
    "03-induction-heads",
    "induction-in-smollm2",
)
#: What takes something out of a model, in the source of a cell.
ACTS = re.compile(
    r"without=|induction\.effect\(|\bsecond\(|\bcosts\(|loss_without\(|fwd_hooks=|\bnats\(\["
)
#: How a control is called where it is printed: drawn or shuffled sets, others of the same kind, random ones, chance.
CONTROL = re.compile(
    r"control|neighbour|shuffled|\bsets\b|\d+ other|all others|\bdrawn?\b|random|chance|any other",
    re.IGNORECASE,
)
#: Cells whose control is a row of what they print, by a piece of their source: at least two parts of one kind, measured alike.
IN_ROWS = {
    'cost = {name: loss_without(name) - whole for name in ("L1H0", "L0H3")}': ("'L1H0'", "'L0H3'"),
    "worth = {wire: nats([wire]) - nats() for wire": ("pos->L0H0.V", "embed->L0H0.V"),
    'two_heads = [f"L0H0->L1H0.{to}" for to in "QKV"]': ("one layer reaches it ever",),
    "by_hand = costs(hand, two_heads)": ("L0H0->L1H0.Q", "L0H0->L1H0.K"),
    'cuts = {"nothing": (), **{name: [name] for name in stack.names}': ("L0H0", "V wires"),
    "def at_rest(cut):": ("L0H0", "L0H1->L1H3.Q"),
    "rise = {w: second([w])[1].second - base for w in wires}": ("L0H3->L1H1.K", "L0H1->L1H3.K"),
    "mine = induction.survey(": (),
}


def printed(cell):
    out = []
    for output in cell.get("outputs", []):
        out.append("".join(output.get("text", [])))
        out.append("".join(output.get("data", {}).get("text/plain", [])))
    return "\n".join(out)


def bare(notebook):
    """Cells that act on a model and print numbers without a control, by their first line."""
    found = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        text = printed(cell) if cell["cell_type"] == "code" else ""
        if not (ACTS.search(source) and re.search(r"\d\.\d|\d%", text)) or CONTROL.search(text):
            continue
        rows = next((rows for piece, rows in IN_ROWS.items() if piece in source), None)
        if rows is None or not all(row in text for row in rows):
            found.append(source.splitlines()[0])
    return found


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_effect_has_its_control_beside_it(name):
    assert bare(json.loads((BOOK / f"{name}.ipynb").read_text("utf-8"))) == []


def planted(source, text):
    return {"cells": [{"cell_type": "code", "source": [source], "outputs": [{"text": [text]}]}]}


def test_an_effect_without_a_control_is_noticed():
    source = 'print(induction.effect(two, rows, "L1H3"))'
    told = "without L1H3 (zero): loss 0.14 -> 9.53, +9.39 [+9.1, +9.7] over 16 rows; "
    assert bare(planted(source, told + "no set of its kind to compare with")) == [source]
    assert bare(planted(source, told + "20 matched sets: 0.20 (0.14 to 0.61), rank 1 of 21")) == []
    assert bare(planted("print(two(rows).mean())", "0.14")) == []
    (piece,) = (piece for piece in IN_ROWS if "worth" in piece)
    assert bare(planted(piece, "embed->L0H0.V: 0.31")) == [piece]
