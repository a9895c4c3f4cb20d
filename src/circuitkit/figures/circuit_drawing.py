"""A circuit as a drawing: the residual stream, the parts that read and write it, and their wires.

Parts stand in rows, the first layer at the bottom. Between two rows lies a band of the residual
stream. A wire leaves a part at its top, crosses the bands, passes other rows beside their parts,
and enters its reader at the bottom, at Q, K or V.
"""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from circuitkit.checks import checked
from circuitkit.figures.pictures import NEGATIVE, POSITIVE, check_alt
from circuitkit.names import Name, parse

CARD, GAP = 86, 16  # width of a part, and the room beside it
STUB = 15  # height between a part and a band
STREAM = 28  # width of the standing part of the stream
WIDEST = 12  # of a wire; the others in proportion
FAINT, NUMBERED = (
    0.03,
    0.1,
)  # shares of the strongest wire: grey below one, no number below the other
BEHIND_WHITE = "#A34700"  # an orange on which white letters can be read
GREY = 'stroke="currentColor" stroke-opacity="0.45"'
PORTS = {"Q": -0.3, "K": 0.0, "V": 0.3, "": 0.0}  # where inputs lie, in shares of a part's width
DASHES = {"Q": (0.8, 2, 0.6, 2), "K": (1.2, 5, 0.4, 2.5)}  # dash and gap: share of width, length
LEGEND = {
    "Q": "short dashes go into queries (what a head looks for)",
    "K": "long dashes into keys (what it is found by)",
    "V": "full lines into values (what it passes on)",
}
ON_NUMBERS = (0.5, 0.38, 0.62, 0.26, 0.74, 0.14, 0.86)  # places of a number, in shares of a band


class Wire(NamedTuple):
    """One line of the drawing. A path has several lines with the same `key`."""

    key: str
    source: str
    target: str
    port: str


class Card(NamedTuple):
    """A part in its place: its middle, its top and bottom, and its row from below."""

    x: float
    top: float
    bottom: float
    row: int
    kind: str


class Plan(NamedTuple):
    """The places of everything: parts by name, and the bands of the stream by the row below."""

    cards: dict[str, Card]
    bands: dict[int, tuple[float, float]]
    width: float
    height: float


@dataclass(frozen=True, eq=False)
class Circuit:
    """A drawing of a circuit.

    `values` are numbers of parts, wires and paths; `label` says what a number is, and `alt` what
    the drawing shows.
    """

    values: dict[str, float]
    alt: str
    label: str = ""

    def like(self, key: str) -> dict[str, float]:
        """The numbers of parts, or those of wires and paths: what `key` is compared with."""
        is_part = "->" not in key
        return {k: v for k, v in self.values.items() if ("->" not in k) == is_part}

    def share(self, key: str) -> float:
        """The magnitude of a number, as a share of the largest of its kind."""
        return abs(self.values[key]) / largest_of(self.like(key))

    def number(self, key: str) -> str:
        """A number with as many decimals as the largest of its kind needs."""
        return shown(self.values[key], largest_of(self.like(key)))

    def width(self, key: str) -> float:
        """The width of a line: its strength."""
        return max(1.0, WIDEST * self.share(key))

    def colour(self, key: str) -> str:
        """The style of a line: blue adds, orange takes away, and a weak one is grey."""
        if self.share(key) < FAINT:
            return "stroke:currentColor;opacity:0.35"
        if self.values[key] > 0:
            return f"stroke:var(--ck-adds,{POSITIVE})"
        return f"stroke:var(--ck-takes,{NEGATIVE})"

    def wires(self) -> list[Wire]:
        """Every line to draw, weak ones first."""
        wires = []
        for key in sorted(self.like("->"), key=self.share):
            chain = chain_of(key)
            for source, target in zip(chain[:-1], chain[1:], strict=True):
                port = target.side or ("V" if target.kind in "HN" else "")
                wires.append(Wire(key, str(source), str(target.part), port))
        return wires

    def __repr__(self) -> str:
        lines = [f"Circuit: {self.alt}"]
        if self.label:
            lines.append(f"  numbers: {self.label}")
        for kind, values in (("parts", self.like("")), ("wires", self.like("->"))):
            if values:
                shown_values = ", ".join(f"{key} {self.number(key)}" for key in values)
                lines.append(f"  {kind}: {shown_values}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        ports = {wire.port for wire in self.wires()}
        dashes = "".join(f"; {LEGEND[port]}" for port in "QKV" if port in ports)
        numbers = html.escape(f"Numbers: {self.label}.") if self.label else ""
        rows = ""
        for key, value in self.values.items():
            cells = (
                f'<th scope="row">{html.escape(key)}</th><td>{shown(value, abs(value) or 1.0)}</td>'
            )
            rows += f"<tr>{cells}</tr>"
        return (
            f'<figure class="ck-circuit" style="overflow-x:auto;margin:1rem 0">{to_svg(self)}'
            f'<figcaption style="font-size:0.85rem">{numbers} Grey is the residual stream: each '
            "part reads from the band below it and adds to the band above it. Blue adds, orange "
            f"takes away, and width is strength{dashes}.</figcaption>"
            "<details><summary>The same as a table</summary><table><thead><tr>"
            f'<th scope="col">part or wire</th>'
            f'<th scope="col">{html.escape(self.label) or "number"}</th>'
            f"</tr></thead><tbody>{rows}</tbody></table></details></figure>"
        )


@checked
def circuit(
    values: Mapping[str, float],
    *,
    alt: str,
    label: str = "",
) -> Circuit:
    """Draw a circuit from numbers by name.

    Parameters
    ----------
    values : numbers of parts, wires and paths, such as `{"L0H1->L1H3.K": 2.1, "L1H3": 9.3}`. The
        number of a part is what it adds to the stream. A path runs through values
    alt : a sentence for readers who cannot see the drawing
    label : what a number is, with its unit

    Raises
    ------
    ValueError : for a text that is no name, a number that is not finite, a wire that runs
        backwards

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> circuit({"L0H1->L1H3.K": 2.1}, alt="L1H3 finds its key by what L0H1 wrote")
    Circuit: L1H3 finds its key by what L0H1 wrote
      wires: L0H1->L1H3.K 2.1
    """
    if not values:
        raise ValueError("There is nothing to draw. Give numbers by name: {'L0H1->L1H3.K': 2.1}.")
    numbers = {key: float(value) for key, value in values.items()}
    for key, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"The number of {key!r} is {number}, and a width must be finite.")
    # Rounded, because the order decides what is drawn on top, on every processor in the same way.
    digits = 4 - math.floor(math.log10(largest_of(numbers)))
    numbers = {key: round(number, digits) for key, number in numbers.items()}
    drawing = Circuit(numbers, check_alt(alt), " ".join(label.split()))
    cards = plan_of(drawing).cards
    for wire in drawing.wires():
        if cards[wire.source].row >= cards[wire.target].row:
            raise ValueError(
                f"{wire.key!r} runs backwards: {wire.target} does not come after {wire.source}. "
                "Write the writer first, then the reader."
            )
    return drawing


def chain_of(key: str) -> tuple[Name, ...]:
    """The parts of a name, of which only a reader may have an input."""
    chain = parse(key)
    for name in chain:
        if name.side and (name is chain[0] or name.layer is None):
            raise ValueError(
                f"{key!r} begins with the input {name}, or {name} has no inputs. Draw parts such "
                "as 'L1H3' and wires such as 'L0H1->L1H3.K'."
            )
    return chain


def row_of(name: Name) -> tuple[int | float, int]:
    """A sort key of a part's row: embeddings, then heads and then MLPs of each layer, the output."""
    if name.layer is not None:
        return (name.layer, int(name.kind in ("N", "MLP", "MLP bias")))
    if name.kind == "unembed":
        return (math.inf, 2)
    return (math.inf, 1) if name.kind in ("unembed bias", "norm bias") else (-1, 0)


def plan_of(drawing: Circuit) -> Plan:
    """Find a place for everything, from the top row downwards."""
    names = {name.part for key in drawing.values for name in chain_of(key)}
    rows: dict[tuple, list[Name]] = {}
    for name in sorted(names, key=lambda name: (row_of(name), name.order)):
        rows.setdefault(row_of(name), []).append(name)
    places = list(rows)
    row_by_name = {str(name): places.index(row_of(name)) for name in names}
    ends = [(row_by_name[wire.source], row_by_name[wire.target]) for wire in drawing.wires()]
    room = max(2, *map(len, rows.values())) * (CARD + GAP)
    cards, bands, y = {}, {}, 2.0
    for number, place in reversed(list(enumerate(places))):
        if place != (math.inf, 2):  # above the unembedding is no stream
            n_crossing = sum(source <= number < target for source, target in ends)
            bands[number] = (y, y + 26 + 14 * (n_crossing > 0) + 9 * min(n_crossing, 6))
            y = bands[number][1] + STUB
        has_ports = any(name.kind in "HN" for name in rows[place])
        bottom = y + 26 + 14 * has_ports
        for i, name in enumerate(rows[place]):
            x = STREAM + GAP / 2 + room * (i + 0.5) / len(rows[place])
            cards[str(name)] = Card(x, y, bottom, number, name.kind)
        y = bottom + STUB
    if places[0] != (-1, 0):  # the lowest parts read a stream whose sources are not drawn
        bands[-1] = (y, y + 26)
        y += 26
    return Plan(cards, bands, STREAM + GAP + room, y + 2)


def to_svg(drawing: Circuit) -> str:
    """The drawing: the stream and the wires below, the parts and the numbers above."""
    plan, wires = plan_of(drawing), drawing.wires()
    below = stream_svg(plan)
    above = ""
    for name, card in plan.cards.items():
        below += leads_svg(name, card, drawing, any(wire.source == name for wire in wires))
        above += part_svg(name, card) + part_number_svg(name, card, drawing)
    taken: list[tuple[float, float, float]] = []
    # The strongest wires have the first choice of a place for their number.
    for number in reversed(range(len(wires))):
        wire, legs = wires[number], legs_of(number, wires, plan)
        below += wire_svg(wire, legs, plan, drawing)
        is_last = all(later.key != wire.key for later in wires[number + 1 :])
        if is_last and drawing.share(wire.key) >= NUMBERED:
            above += wire_number_svg(wire, legs, drawing, taken)
    return (
        f'<svg viewBox="0 0 {plan.width:g} {plan.height:g}" width="{plan.width:g}" '
        f'style="max-width:100%;height:auto" role="img" aria-label="{html.escape(drawing.alt)}" '
        f'font-family="sans-serif" text-anchor="middle" fill="currentColor">{below}{above}</svg>'
    )


def stream_svg(plan: Plan) -> str:
    """The standing part of the residual stream, and its bands."""
    low = max(end for _, end in plan.bands.values())
    high = min(start for start, _ in plan.bands.values())
    boxes: list[tuple[float, float, float, float]] = [(0.0, high, STREAM, low - high)]
    for start, end in plan.bands.values():
        boxes.append((STREAM, start, plan.width - STREAM, end - start))
    svg = ""
    for x, y, width, height in boxes:
        svg += (
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            'fill="currentColor" fill-opacity="0.1"/>'
        )
    turned = f"translate({STREAM / 2 + 4:g} {(low + high) / 2:g}) rotate(-90)"
    return svg + text_svg(0, 0, "residual stream →", 11, f' transform="{turned}"')


def legs_of(number: int, wires: list[Wire], plan: Plan) -> list[tuple[float, float, float, float]]:
    """The way of a wire through each band, from below: `(x, y)` where it enters and leaves."""
    wire = wires[number]
    source, target = plan.cards[wire.source], plan.cards[wire.target]
    x = source.x + start_of(number, wires, plan)
    alike = [i for i, other in enumerate(wires) if other[1:] == wire[1:]]
    aside = 8 * (alike.index(number) - (len(alike) - 1) / 2)
    end = target.x + PORTS[wire.port] * CARD + aside
    lane = 3 * (number % 3 - 1)  # wires in one gap lie side by side
    legs = []
    for row in range(source.row + 1, target.row + 1):
        cards = [card for card in plan.cards.values() if card.row == row]
        low = min(card.top for card in plan.cards.values() if card.row == row - 1) - STUB
        goal = end
        if row < target.row:
            gaps = [card.x + side * (CARD + GAP) / 2 for card in cards for side in (-1, 1)]
            goal = min(gaps, key=lambda gap, x=x: abs(gap - (x + end) / 2)) + lane
        legs.append((x, low, goal, cards[0].bottom + STUB))
        x = goal
    return legs


def start_of(number: int, wires: list[Wire], plan: Plan) -> float:
    """Where a wire leaves its part, from the middle: in the order of the readers' places."""

    def reader_place(i: int) -> tuple[float, int]:
        return (plan.cards[wires[i].target].x + PORTS[wires[i].port] * CARD, i)

    siblings = [i for i, wire in enumerate(wires) if wire.source == wires[number].source]
    place = sorted(siblings, key=reader_place).index(number)
    return (place - (len(siblings) - 1) / 2) * min(14, 66 / len(siblings))


def wire_svg(wire: Wire, legs: list[tuple], plan: Plan, drawing: Circuit) -> str:
    """A wire: width is strength, colour is sign, dashes are the input."""
    way = f"M{legs[0][0]:g} {plan.cards[wire.source].top:g}"
    for x, y, goal, end in legs:
        middle = (y + end) / 2
        way += f"L{x:.1f} {y:g}C{x:.1f} {middle:g},{goal:.1f} {middle:g},{goal:.1f} {end:g}"
    width = drawing.width(wire.key)
    dashes = "none"
    if wire.port in DASHES:
        share, least, gap, least_gap = DASHES[wire.port]
        dashes = f"{share * width + least:.1f} {gap * width + least_gap:.1f}"
    title = html.escape(f"{wire.key}: {drawing.number(wire.key)}")
    return (
        f'<path d="{way}V{plan.cards[wire.target].bottom:g}" fill="none" '
        f'style="{drawing.colour(wire.key)}" stroke-width="{width:.1f}" '
        f'stroke-dasharray="{dashes}"><title>{title}</title></path>'
    )


def wire_number_svg(wire: Wire, legs: list[tuple], drawing: Circuit, taken: list[tuple]) -> str:
    """The number of a wire on the wire, where no other number stands; none where there is no room."""
    words = drawing.number(wire.key)
    half = 3.1 * len(words) + 5  # of the width of the number's box
    for x, y, goal, end in reversed(legs):
        for t in ON_NUMBERS:
            # the point of the Bezier curve that `wire_svg` draws
            across = x + (goal - x) * t * t * (3 - 2 * t)
            up = y + (end - y) * (t**3 + 1.5 * t * (1 - t))
            if any(abs(across - a) <= half + b and abs(up - c) <= 16 for a, c, b in taken):
                continue
            taken.append((across, up, half))
            fill = POSITIVE if drawing.values[wire.key] > 0 else BEHIND_WHITE
            if drawing.share(wire.key) < FAINT:
                fill = "#595959"
            box = (
                f'<rect x="{across - half:.1f}" y="{up - 8:.1f}" width="{2 * half:.1f}" '
                f'height="16" rx="8" fill="{fill}"/>'
            )
            return box + text_svg(across, up + 4, words, 11, ' style="fill:#fff"')
    return ""


def leads_svg(name: str, card: Card, drawing: Circuit, has_wires: bool) -> str:
    """The leads by which a part reads, and the one to the stream above, as wide as its number."""
    ports = [""] if card.row > 0 or card.kind == "MLP" else []
    if card.kind in ("H", "N"):
        ports = ["Q", "K", "V"]
    svg = ""
    for port in ports:
        svg += f'<path d="M{card.x + PORTS[port] * CARD:g} {card.bottom:g}v{STUB}" {GREY}/>'
    if card.kind == "unembed":
        return svg
    if name in drawing.values:
        lead = f'd="M{card.x:g} {card.top:g}v-{STUB + 6}"'
        width = f'stroke-width="{drawing.width(name):.1f}"'
        return svg + f'<path {lead} {width} style="{drawing.colour(name)}"/>'
    return svg if has_wires else svg + f'<path d="M{card.x:g} {card.top:g}v-{STUB}" {GREY}/>'


def part_number_svg(name: str, card: Card, drawing: Circuit) -> str:
    """The number of a part beside its lead, over the wires that leave there."""
    if name not in drawing.values or card.kind == "unembed":
        return ""
    background = "var(--pst-color-background,var(--jp-layout-color0,#fff))"
    halo = f"paint-order:stroke;stroke:{background};stroke-width:4px"
    style = f' text-anchor="start" font-weight="bold" style="{halo}"'
    return text_svg(card.x + WIDEST / 2 + 4, card.top - 3, drawing.number(name), 11, style)


def part_svg(name: str, card: Card) -> str:
    """A part: heads have round corners, neurons rounder ones, MLPs none, and biases a dashed rim."""
    corner = {"H": 8, "N": 19, "MLP": 0}.get(card.kind, 4)
    is_head = card.kind in ("H", "N")
    dashes = ' stroke-dasharray="4 3"' if "bias" in card.kind else ""
    svg = (
        f'<rect x="{card.x - CARD / 2:g}" y="{card.top:g}" width="{CARD}" '
        f'height="{card.bottom - card.top:g}" rx="{corner}" fill="currentColor" '
        f'fill-opacity="{0 if is_head else 0.08}" stroke="currentColor" '
        f'stroke-opacity="0.7"{dashes}/>'
    )
    svg += text_svg(card.x, card.top + 17, name, 12.5, ' font-weight="bold"')
    for port in "QKV" if is_head else "":
        svg += text_svg(card.x + PORTS[port] * CARD, card.bottom - 4, port, 9)
    return svg


def text_svg(x: float, y: float, words: str, size: float, style: str = "") -> str:
    """Words in the drawing."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{style}>{html.escape(words)}</text>'


def largest_of(values: Mapping[str, float]) -> float:
    """The largest magnitude, or 1 if all are 0."""
    return max(map(abs, values.values())) or 1.0


def shown(value: float, largest: float) -> str:
    """A number with as many decimals as the largest one needs, and with a true minus sign."""
    digits = min(3, max(0, 1 - math.floor(math.log10(largest))))
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")
