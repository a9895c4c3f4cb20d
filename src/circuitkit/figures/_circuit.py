"""A circuit as a drawing: the residual stream as a bus, parts in rows by layer, wires by input, all by address."""

import html
import math
import textwrap
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from circuitkit._contract import _works, must, public
from circuitkit.figures._picture import NEGATIVE, POSITIVE, check_alt, mark

CARD, GAP, STUB, STREAM = (
    86,
    16,
    15,
    28,
)  # widths of a part and the room beside it, a lead, the standing stream
WIDEST, FAINT, NAMED = 12, 0.03, 0.1
"""How wide the strongest wire is drawn, the others in proportion; below these shares of it a wire is grey, and has a number only beside words."""
BEHIND = "#A34700"
"""Orange behind white letters."""
DASHES = {"Q": (0.8, 2, 0.6, 2), "K": (1.2, 5, 0.4, 2.5)}
"""What goes into queries and keys: a dash, then a gap, each a share of the wire's width and a length; values run through."""
GREY = 'stroke="currentColor" stroke-opacity="0.45"'
PORTS = {"Q": -0.3, "K": 0.0, "V": 0.3, "": 0.0}
SAID = {
    "Q": "short dashes go into queries (what a head looks for)",
    "K": "long dashes into keys (what it is found by)",
    "V": "full lines into values (what it passes on)",
}


#: One line of the drawing; a path gives several.
Wire = namedtuple("Wire", "key source target port value")
#: A part in its place: middle, top and bottom, its row from below, and what kind it is.
Card = namedtuple("Card", "x top bottom row kind")
#: Where everything stands: parts by name, bands of the stream by the row below them, and the size of the drawing.
Plan = namedtuple("Plan", "cards bands width height")


@dataclass(frozen=True, eq=False)
class Circuit:
    """A drawing of a circuit.

    `values` are numbers of parts, wires and paths, `words` stand at them; `label`: what a number is; `alt`: the finding.
    """

    values: dict[str, float]
    words: dict[str, str]
    alt: str
    label: str = ""

    def __repr__(self) -> str:
        lines = [f"  {key}: {text}" for key, text in self.words.items()]
        for kind, held in zip(("parts", "wires"), _split(self.values), strict=True):
            lines += [f"  {kind} {', '.join(held)}: {mark(list(held.values()))}"] if held else []
        return "\n".join([f"Circuit: {self.alt}", *lines])

    def _repr_html_(self) -> str:
        used = {wire.port for wire in _wires(self.values)}
        said = [
            "Grey is the residual stream: each part reads from the band below it and adds to the band above it.",
            "Blue adds, orange takes away, and width is strength",
        ]
        said[1] += "".join(f"; {SAID[port]}" for port in "QKV" if port in used) + "."
        rows = "".join(
            f'<tr><th scope="row">{html.escape(key)}</th><td>{_number(value, [value])}</td></tr>'
            for key, value in self.values.items()
        )
        numbers = html.escape(f"Numbers: {self.label}.") if self.label else ""
        return (
            f'<figure class="ck-circuit" style="overflow-x:auto;margin:1rem 0">{_svg(self)}'
            f'<figcaption style="font-size:0.85rem">{numbers} {" ".join(said)}</figcaption>'
            f'<details><summary>The same as a table</summary><table><thead><tr><th scope="col">part or wire</th>'
            f'<th scope="col">{html.escape(self.label) or "number"}</th></tr></thead><tbody>{rows}</tbody></table></details></figure>'
        )


def _known(values: Any, words: Any) -> Any:
    if not values or not all(isinstance(text, str) for pair in words.items() for text in pair):
        return "{'L0H1->L1H3.K': 2.1}, a number for each part or wire, and words by the same names, because each is drawn by its name"
    wrong = [
        key
        for key, value in values.items()
        if not isinstance(key, str) or not _works(lambda v: math.isfinite(float(v)), value)
    ]
    return not wrong or f"a finite number for {wrong[0]!r}, because it is drawn as a width"


@public
@must(_known)
def circuit(
    values: Mapping[str, Any], *, alt: str, words: Mapping[str, Any] = {}, label: str = ""
) -> Circuit:
    """A drawing of a circuit from numbers by address: `{"L0H1->L1H3.K": 2.1, "L1H3": 9.3}`.

    A part's number is what it adds to the stream, and the width of its lead upwards; a wire runs from what a part wrote to an
    input of a later one; a path runs through values; `bias` is the bias token of neuron-heads. `words` are written at any
    part or wire, `label` says what a number is, `alt` states the finding. **Error**: `ValueError` for an address that is
    none, and for a wire that runs back. **Source**: this book.

    >>> circuit({"L0H1->L1H3.K": 2.1}, alt="L1H3 finds its key by what L0H1 wrote")
    Circuit: L1H3 finds its key by what L0H1 wrote
      wires L0H1->L1H3.K: 1 values, largest 2.1, mean 1, mark 1
    """
    numbers = {key: float(value) for key, value in values.items()}
    finest = 4 - math.floor(
        math.log10(_largest(list(numbers.values())))
    )  # what two processors agree on decides what is drawn over what
    numbers = {key: round(value, finest) for key, value in numbers.items()}
    cards = _plan(numbers, {}).cards
    for wire in _wires(numbers):
        if cards[wire.source].row >= cards[wire.target].row:
            raise ValueError(
                f"{wire.key!r} runs from {wire.source} to {wire.target}, which does not come later. Write what is written first, then what reads it."
            )
    if unknown := [key for key in words if key not in {*numbers, *cards}]:
        raise ValueError(
            f"words are given for {unknown[0]!r}, which is not drawn; drawn are {', '.join({**cards, **numbers})}."
        )
    return Circuit(numbers, dict(words), check_alt(alt), " ".join(label.split()))


def _split(values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The numbers of parts, and those of wires and paths."""
    wires = {key: value for key, value in values.items() if ">" in key}
    return {key: value for key, value in values.items() if key not in wires}, wires


def _chain(key: str) -> Any:
    from circuitkit.anatomy._address import (
        read,
    )  # the grammar only; it is asked for when something is drawn

    chain = read(key)
    if wrong := [part for part in chain if part.input and (part is chain[0] or part.layer is None)]:
        raise ValueError(
            f"{key!r} begins at or asks for the input {wrong[0]}; a drawing has parts such as 'L1H3' and wires such as 'L0H1->L1H3.K'."
        )
    return chain


def _wires(values: Mapping[str, float]) -> list[Wire]:
    """Every line to draw, weak ones first."""
    lines = []
    for key, value in sorted(_split(values)[1].items(), key=lambda item: abs(item[1])):
        chain = _chain(key)
        for source, target in zip(chain[:-1], chain[1:], strict=True):
            port = target.input or ("V" if target.kind in "HN" else "")
            lines.append(Wire(key, str(source.part), str(target.part), port, value))
    return lines


def _plan(values: Mapping[str, float], words: Mapping[str, str]) -> Plan:
    """Rows from below: what is there before a layer, heads and then neurons or MLP of each layer, the unembedding."""
    rows: dict[tuple, dict] = {}
    for part in (end.part for key in values for end in _chain(key)):
        last = {"unembed": 2, "unembed bias": 1, "norm bias": 1}.get(part.kind, 0)
        row = (
            (math.inf, last)
            if last
            else (-1, 0)
            if part.layer is None
            else (part.layer, part.kind in ("N", "MLP", "MLP bias"))
        )
        rows.setdefault(row, {})[str(part)] = part
    places = sorted(rows)
    at = {name: number for number, row in enumerate(places) for name in rows[row]}
    ways = [(at[wire.source], at[wire.target]) for wire in _wires(values)]
    width = STREAM + GAP + max(2, *map(len, rows.values())) * (CARD + GAP)
    cards, bands, y = {}, {}, 2.0
    for number, row in reversed([*enumerate(places)]):
        if row != (math.inf, 2):
            crossing = sum(source <= number < target for source, target in ways)
            bands[number] = (y, y + 26 + bool(crossing) * 14 + min(crossing, 6) * 9)
            y = bands[number][1] + STUB
        inputs = 14 * any(part.kind in "HN" for part in rows[row].values())
        bottom = (
            y
            + 26
            + inputs
            + 12 * max(len(textwrap.wrap(words.get(name, ""), 15)) for name in rows[row])
        )
        for place, (name, part) in enumerate(
            sorted(rows[row].items(), key=lambda item: item[1].order)
        ):
            x = STREAM + GAP / 2 + (width - STREAM - GAP) * (place + 0.5) / len(rows[row])
            cards[name] = Card(x, y, bottom, number, part.kind)
        y = bottom + STUB
    if places[0] != (-1, 0):
        bands[-1] = (y, y := y + 26)
    return Plan(cards, bands, width, y + 2)


def _legs(wire: Wire, plan: Plan, start: Any, aside: Any, lane: Any) -> list[tuple]:
    """The way of a wire through each band, from below; between two bands it passes a row beside its parts."""
    source, target = plan.cards[wire.source], plan.cards[wire.target]
    x, end, legs = source.x + start, target.x + PORTS[wire.port] * CARD + aside, []
    for row in range(source.row + 1, target.row + 1):
        cards = [card for card in plan.cards.values() if card.row == row]
        beside = [card.x + side * (CARD + GAP) / 2 for card in cards for side in (-1, 1)]
        goal = (
            end
            if row == target.row
            else min(beside, key=lambda gap: abs(gap - (x + end) / 2)) + lane
        )
        low = min(card.top for card in plan.cards.values() if card.row == row - 1) - STUB
        legs.append((x, low, goal, cards[0].bottom + STUB))
        x = goal
    return legs


def _svg(drawn: Circuit) -> str:
    plan, wires = _plan(drawn.values, drawn.words), _wires(drawn.values)
    parts, values = ([*held.values()] for held in _split(drawn.values))
    low, high = (
        max(band[1] for band in plan.bands.values()),
        min(band[0] for band in plan.bands.values()),
    )
    stream = [
        (0.0, high, STREAM, low - high),
        *((STREAM, y, plan.width - STREAM, end - y) for y, end in plan.bands.values()),
    ]
    below = "".join(
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="currentColor" fill-opacity="0.1"/>'
        for x, y, w, h in stream
    )
    below += _text(
        0,
        0,
        "residual stream →",
        11,
        f' transform="translate({STREAM / 2 + 4:g} {(low + high) / 2:g}) rotate(-90)"',
    )
    below += "".join(_leads(name, card, drawn, parts) for name, card in plan.cards.items())
    above = "".join(
        _box(name, card, drawn) + _told(name, card, drawn, parts)
        for name, card in plan.cards.items()
    )
    ports = [(wire.source, wire.target, wire.port) for wire in wires]
    taken: list[tuple] = []
    side_by_side = sorted(
        range(len(wires)),
        key=lambda i: (plan.cards[wires[i].target].x + PORTS[wires[i].port] * CARD, i),
    )
    for number in reversed(
        range(len(wires))
    ):  # the strongest have the first choice of a place for their number
        wire, alike = wires[number], [i for i, port in enumerate(ports) if port == ports[number]]
        beside = [i for i in side_by_side if wires[i].source == wire.source]
        start = (beside.index(number) - (len(beside) - 1) / 2) * min(14, 66 / len(beside))
        legs = _legs(
            wire,
            plan,
            start,
            8 * (alike.index(number) - (len(alike) - 1) / 2),
            3 * (number % 3 - 1),
        )
        below += _line(wire, legs, plan, values)
        told = wire.key in drawn.words or abs(wire.value) >= NAMED * _largest(values)
        if told and number == max(i for i, other in enumerate(wires) if other.key == wire.key):
            above += _pill(wire, legs, drawn, values, taken)
    return (
        f'<svg viewBox="0 0 {plan.width:g} {plan.height:g}" width="{plan.width:g}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="{html.escape(drawn.alt)}" font-family="sans-serif" text-anchor="middle" fill="currentColor">{below}{above}</svg>'
    )


def _line(wire: Wire, legs: list[tuple], plan: Plan, values: list[float]) -> str:
    way = f"M{legs[0][0]:g} {plan.cards[wire.source].top:g}"
    for x, y, goal, end in legs:
        middle = (y + end) / 2
        way += f"L{x:.1f} {y:g}C{x:.1f} {middle:g},{goal:.1f} {middle:g},{goal:.1f} {end:g}"
    wide = _width(wire.value, values)
    share, least, gap, room = DASHES.get(wire.port, (0, 0, 0, 0))
    dash = f"{share * wide + least:.1f} {gap * wide + room:.1f}" if share else "none"
    return (
        f'<path d="{way}V{plan.cards[wire.target].bottom:g}" fill="none" style="{_colour(wire.value, values)}" stroke-width="{wide:.1f}" '
        f'stroke-dasharray="{dash}"><title>{html.escape(f"{wire.key}: {_number(wire.value, values)}")}</title></path>'
    )


def _pill(
    wire: Wire, legs: list[tuple], drawn: Circuit, values: list[float], taken: list[tuple]
) -> str:
    """The number of a wire on the wire, where no other number stands; none where there is no room."""
    words = f"{drawn.words.get(wire.key, '')} {_number(wire.value, values)}".strip()
    half = 3.1 * len(words) + 5
    for x, y, goal, end in reversed(legs):
        for t in (0.5, 0.38, 0.62, 0.26, 0.74, 0.14, 0.86):
            across = x + (goal - x) * t * t * (3 - 2 * t)
            up = y + (end - y) * (t**3 + 1.5 * t * (1 - t))
            if all(
                abs(across - other) > half + room or abs(up - there) > 16
                for other, there, room in taken
            ):
                taken.append((across, up, half))
                faint = abs(wire.value) < FAINT * _largest(values)
                fill = "#595959" if faint else POSITIVE if wire.value > 0 else BEHIND
                box = f'<rect x="{across - half:.1f}" y="{up - 8:.1f}" width="{2 * half:.1f}" height="16" rx="8" fill="{fill}"/>'
                return box + _text(across, up + 4, words, 11, ' style="fill:#fff"')
    return ""


def _leads(name: str, card: Card, drawn: Circuit, parts: list[float]) -> str:
    """What a part reads by, and its way up to the stream, as wide as its number."""
    ports = "QKV" if card.kind in ("H", "N") else " " * (card.row > 0 or card.kind == "MLP")
    made = "".join(
        f'<path d="M{card.x + PORTS[port.strip()] * CARD:g} {card.bottom:g}v{STUB}" {GREY}/>'
        for port in ports
    )
    value = drawn.values.get(name)
    if card.kind == "unembed":
        return made
    if value is None:
        return (
            made
            if any(wire.source == name for wire in _wires(drawn.values))
            else made + f'<path d="M{card.x:g} {card.top:g}v-{STUB}" {GREY}/>'
        )
    lead = f'd="M{card.x:g} {card.top:g}v-{STUB + 6}" stroke-width="{_width(value, parts):.1f}"'
    return made + f'<path {lead} style="{_colour(value, parts)}"/>'


def _told(name: str, card: Card, drawn: Circuit, parts: list[float]) -> str:
    """A part's number at its way up, over the wires that leave there."""
    if name not in drawn.values or card.kind == "unembed":
        return ""
    halo = "paint-order:stroke;stroke:var(--pst-color-background,var(--jp-layout-color0,#fff));stroke-width:4px"
    where = f' text-anchor="start" font-weight="bold" style="{halo}"'
    return _text(
        card.x + WIDEST / 2 + 4, card.top - 3, _number(drawn.values[name], parts), 11, where
    )


def _box(name: str, card: Card, drawn: Circuit) -> str:
    """A part: heads have round corners, neuron-heads rounder ones, an MLP none, and a bias a rim of dashes."""
    corner = {"H": 8, "N": 19, "MLP": 0}.get(card.kind, 4)
    head, dash = card.kind in ("H", "N"), ' stroke-dasharray="4 3"' * ("bias" in card.kind)
    made = (
        f'<rect x="{card.x - CARD / 2:g}" y="{card.top:g}" width="{CARD}" height="{card.bottom - card.top:g}" rx="{corner}" '
        f'fill="currentColor" fill-opacity="{0 if head else 0.08}" stroke="currentColor" stroke-opacity="0.7"{dash}/>'
    )
    lines = enumerate(textwrap.wrap(drawn.words.get(name, ""), 15))
    made += _text(card.x, card.top + 17, name, 12.5, ' font-weight="bold"')
    made += "".join(
        _text(card.x, card.top + 29 + 12 * number, line, 10.5) for number, line in lines
    )
    return made + "".join(
        _text(card.x + PORTS[port] * CARD, card.bottom - 4, port, 9) for port in "QKV" * head
    )


def _text(x: Any, y: Any, words: str, size: Any, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{more}>{html.escape(words)}</text>'


def _largest(values: list[float]) -> float:
    return max(map(abs, values)) or 1.0


def _width(value: float, values: list[float]) -> float:
    return max(1.0, WIDEST * abs(value) / _largest(values))


def _colour(value: float, values: list[float]) -> str:
    if abs(value) < FAINT * _largest(values):
        return "stroke:currentColor;opacity:0.35"
    return (
        f"stroke:var(--ck-adds,{POSITIVE})" if value > 0 else f"stroke:var(--ck-takes,{NEGATIVE})"
    )


def _number(value: float, values: list[float]) -> str:
    """A number with as many decimals as the largest one asks for, and a true minus."""
    digits = min(3, max(0, 1 - math.floor(math.log10(_largest(values)))))
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
