"""Drawings of circuits: every part in its row, every wire from what wrote to what reads, every number seen."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from circuitkit import figures
from circuitkit.figures._circuit import CARD

HOSTILE = """"><b o='1'>a b c --></script>&lt;"""

ALT = "L1H3 finds its key by what L0H1 wrote"
CIRCUIT = {
    "embed->L0H1.V": 1.0,
    "L0H1->L1H3.K": 8.0,
    "L0H0->L1H3.Q": -4.0,
    "embed->L1H3.V": 2.0,
    "L1H3->unembed": 0.1,
    "L0 MLP": 3.0,
    "L0H1": -1.5,
}


class Seen(HTMLParser):
    """Elements, values of attributes, and texts, as a browser reads them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.values, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, tuple(name for name, _ in attributes)))
        self.values += [value for _, value in attributes]

    def handle_data(self, data):
        self.texts.append(data)


def drawn(values, **more):
    text = figures.circuit(values, alt=ALT, **more)._repr_html_()
    return text, ET.fromstring(re.search(r"<svg.*</svg>", text, re.S)[0])


def boxes(svg):
    """Left, top, right and bottom of every part, by its name: a box comes before its name."""
    found, box = {}, None
    for element in svg:
        if element.tag == "rect" and element.get("stroke"):
            x, y, wide, tall = (float(element.get(name)) for name in ("x", "y", "width", "height"))
            box = (x, y, x + wide, y + tall)
        elif (
            element.tag == "text"
            and element.get("font-weight")
            and element.get("text-anchor") is None
        ):
            found[element.text] = box
    return found


def lines(svg):
    """Points, width, style and dashes of every wire, by its name and number."""
    found = []
    for path in svg.iter("path"):
        if (title := path.find("title")) is not None:
            numbers = [float(number) for number in re.findall(r"-?[0-9.]+", path.get("d"))]
            found.append(
                (
                    title.text,
                    numbers,
                    float(path.get("stroke-width")),
                    path.get("style"),
                    path.get("stroke-dasharray"),
                )
            )
    return {text: rest for text, *rest in found}


def points(d, steps=200):
    """Every point of a wire, the curves by de Casteljau."""
    here, out = (0.0, 0.0), []
    for letter, body in re.findall(r"([MLCV])([^MLCV]*)", d):
        given = [float(number) for number in re.findall(r"-?[0-9.]+", body)]
        ends = (
            [here, (here[0], given[0])]
            if letter == "V"
            else [here, *zip(given[::2], given[1::2], strict=True)]
        )
        if letter == "M":
            ends = ends[1:]
        for step in range(steps + 1):
            t, level = step / steps, ends
            while len(level) > 1:
                level = [
                    ((1 - t) * a + t * c, (1 - t) * b + t * e)
                    for (a, b), (c, e) in zip(level, level[1:], strict=False)
                ]
            out.append(level[0])
        here = ends[-1]
    return out


def test_rows_go_up_by_layer_heads_before_the_mlp():
    _, svg = drawn(CIRCUIT)
    tops = {name: box[1] for name, box in boxes(svg).items()}
    assert (
        tops["embed"]
        > tops["L0H0"]
        == tops["L0H1"]
        > tops["L0 MLP"]
        > tops["L1H3"]
        > tops["unembed"]
    )
    assert boxes(svg)["L0H0"][2] < boxes(svg)["L0H1"][0]


def test_a_wire_runs_from_its_writer_to_the_input_it_names():
    _, svg = drawn(CIRCUIT)
    place, wires = boxes(svg), lines(svg)
    for key, number in (
        ("L0H1->L1H3.K", "8.0"),
        ("L0H0->L1H3.Q", "−4.0"),
        ("embed->L1H3.V", "2.0"),
    ):
        points = wires[f"{key}: {number}"][0]
        source, target = (place[name] for name in key[:-2].split("->"))
        assert source[0] < points[0] < source[2]
        assert points[1] == source[1]
        port = {"Q": -0.3, "K": 0, "V": 0.3}[key[-1]] * CARD
        assert points[-3] == pytest.approx(
            (target[0] + target[2]) / 2 + port, abs=0.06
        )  # printed to 0.1
        assert points[-1] == target[3]


def test_wires_that_leave_one_part_stand_side_by_side():
    _, svg = drawn({"L0H1->L1H3.Q": 1.0, "L0H1->L1H3.K": 2.0, "L0H1->L1H3.V": 3.0})
    starts = [
        lines(svg)[f"L0H1->L1H3.{port}: {number}"][0][0]
        for port, number in zip("QKV", ("1.0", "2.0", "3.0"), strict=True)
    ]
    assert starts[0] + 13 < starts[1] < starts[2] - 13
    assert starts[1] == sum(boxes(svg)["L0H1"][::2]) / 2


def test_width_is_strength_colour_is_sign_and_dashes_are_inputs():
    _, svg = drawn(CIRCUIT)
    wires = {key.split(":")[0]: rest[1:] for key, rest in lines(svg).items()}
    assert {key: wide for key, (wide, _, _) in wires.items()} == {
        "L0H1->L1H3.K": 12.0, "L0H0->L1H3.Q": 6.0, "embed->L1H3.V": 3.0, "embed->L0H1.V": 1.5, "L1H3->unembed": 1.0,
    }  # fmt: skip
    assert "#0072B2" in wires["L0H1->L1H3.K"][1]
    assert "#D55E00" in wires["L0H0->L1H3.Q"][1]
    assert "currentColor" in wires["L1H3->unembed"][1]  # a hundredth of the strongest
    dashes = {key[-1]: dash for key, (_, _, dash) in wires.items()}
    assert dashes["V"] == dashes["d"] == "none"
    assert len({dashes["Q"], dashes["K"], "none"}) == 3


def test_a_part_shows_what_it_adds_on_a_scale_of_its_own():
    _, svg = drawn(CIRCUIT)
    leads = {
        float(path.get("stroke-width"))
        for path in svg.iter("path")
        if path.find("title") is None and path.get("style")
    }
    assert leads == {12.0, 6.0}
    assert {"3.0", "−1.5"} <= {text.text for text in svg.iter("text")}


def test_every_number_that_is_not_faint_is_written_once():
    text, svg = drawn(CIRCUIT | {"embed->L0H1->L1H3": 5.0})
    written = [element.text for element in svg.iter("text")]
    assert [written.count(number) for number in ("8.0", "−4.0", "2.0", "1.0", "5.0", "0.1")] == [
        1,
        1,
        1,
        1,
        1,
        0,
    ]
    assert (
        sum(
            title.startswith("embed->L0H1->L1H3: ")
            for title in (path.findtext("title", "") for path in svg.iter("path"))
        )
        == 2
    )
    assert re.findall(r'<th scope="row">(.*?)</th>', text) == [
        key.replace(">", "&gt;") for key in [*CIRCUIT, "embed->L0H1->L1H3"]
    ]


def crowded():
    heads = [f"L{layer}H{head}" for layer in range(3) for head in range(5)]
    wires = {
        f"{one}->{other}.{port}": 1 + i % 5
        for i, (one, other, port) in enumerate(
            (one, other, "QKV"[(i + j) % 3])
            for i, one in enumerate(heads)
            for j, other in enumerate(heads)
            if one[1] < other[1] and (i + j) % 4 == 0
        )
    }
    return wires | {"embed->L2H0.K": 3, "embed->unembed": -2, "L2H1->unembed": 1}


def test_nothing_covers_anything():
    """Parts stand apart, numbers stand apart, and a wire runs through no part."""
    _, svg = drawn(crowded())
    place = boxes(svg)
    pills = [
        tuple(float(rect.get(key)) for key in ("x", "y", "width", "height"))
        for rect in svg.iter("rect")
        if rect.get("height") == "16"
    ]
    assert len(pills) > 10
    for number, (x, y, wide, tall) in enumerate(pills):
        for other, (a, b, broad, high) in enumerate(pills):
            assert (
                number == other
                or x + wide <= a + 0.2
                or a + broad <= x + 0.2
                or y + tall <= b + 0.2
                or b + high <= y + 0.2
            )
    for path in svg.iter("path"):
        if path.find("title") is not None:
            for x, y in points(path.get("d")):
                assert not any(
                    left < x < right and top < y < bottom
                    for left, top, right, bottom in place.values()
                )
    width, height = (float(number) for number in svg.get("viewBox").split()[2:])
    assert all(
        28 <= left < right <= width and 0 <= top < bottom <= height
        for left, top, right, bottom in place.values()
    )


def test_the_text_names_everything_and_changes_with_a_number():
    told = repr(figures.circuit(CIRCUIT, alt=ALT, words={"L0H1": "looks one back"}))
    assert told.splitlines()[:2] == [f"Circuit: {ALT}", "  L0H1: looks one back"]
    assert all(key in told for key in CIRCUIT)
    assert told != repr(
        figures.circuit(CIRCUIT | {"L0H1->L1H3.K": 8.1}, alt=ALT, words={"L0H1": "looks one back"})
    )
    assert told != repr(
        figures.circuit(CIRCUIT | {"L0 MLP": 3.1}, alt=ALT, words={"L0H1": "looks one back"})
    )


def test_the_legend_says_which_lines_there_are():
    text, _ = drawn({"L0H1->L1H3.K": 1.0}, label="nats")
    assert "long dashes" in text
    assert "short dashes" not in text
    assert "Numbers: nats." in text


def test_the_bias_token_and_a_neuron_have_looks_of_their_own():
    _, svg = drawn({"embed->L0N7.Q": 1.0, "bias->L0N7.K": 1.0, "embed->L0H1.V": 1.0})
    rims = {}
    for rect, after in zip(list(svg), list(svg)[1:], strict=False):
        if rect.tag == "rect" and rect.get("stroke"):
            rims[after.text] = (rect.get("rx"), rect.get("stroke-dasharray"))
    assert rims["bias"][1]
    assert rims["embed"][1] is None
    assert rims["L0N7"][0] != rims["L0H1"][0]


@pytest.mark.parametrize(
    ("values", "words", "said"),
    [
        ({}, {}, "a number for each part or wire"),
        ({"L0H1": "two"}, {}, "a finite number for 'L0H1'"),
        ({"L0H1": float("nan")}, {}, "a finite number for 'L0H1', because it is drawn as a width"),
        ({"L0X1": 1.0}, {}, "'L0X1' is no name of a part"),
        ({"L1H3.K": 1.0}, {}, "asks for the input L1H3.K"),
        (
            {"L0H1->unembed": 1.0, "L1H3.K->L2H0.Q": 1.0},
            {},
            "begins at or asks for the input L1H3.K",
        ),
        ({"L1H3->L0H1.K": 1.0}, {}, "runs from L1H3 to L0H1, which does not come later"),
        ({"L0H1->L0H0.K": 1.0}, {}, "runs from L0H1 to L0H0, which does not come later"),
        (
            {"L0H1": 1.0},
            {"L0H2": "a"},
            "words are given for 'L0H2', which is not drawn; drawn are L0H1",
        ),
        ({"L0H1": 1.0}, {"L0H1": 3}, "words by the same names"),
        ({"L0H1": 1.0}, ["a"], "expected a dictionary by name"),
    ],
)
def test_a_mistake_is_refused_in_words(values, words, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        figures.circuit(values, words=words, alt=ALT)


def test_alt_text_must_be_a_sentence():
    with pytest.raises(ValueError, match="A figure needs a sentence"):
        figures.circuit({"L0H1": 1.0}, alt="a circuit")


@pytest.mark.parametrize("what", ["alt", "label", "part", "wire"])
def test_hostile_text_stays_text(what):
    def view(text):
        given = {"alt": "some text of four words", "label": "b", "part": "b", "wire": "b"} | {
            what: text
        }
        words = {"L0H1": given["part"], "L0H1->L1H3.K": given["wire"]}
        return figures.circuit(
            {"L0H1->L1H3.K": 1.0}, alt=given["alt"], label=given["label"], words=words
        )._repr_html_()

    plain, hostile = (
        Seen(view("some text of four words" if what == "alt" else "b")),
        Seen(view(HOSTILE)),
    )
    extra = [element for element in hostile.elements if element not in plain.elements]
    assert extra == []
    assert "script" not in {name for name, _ in hostile.elements}
    if what == "part":  # broken over lines, each escaped
        assert "".join(HOSTILE.split()) in "".join("".join(hostile.texts).split())
    else:
        assert any(HOSTILE in text for text in [*hostile.texts, *filter(None, hostile.values)])


def test_the_same_circuit_gives_the_same_drawing():
    assert drawn(CIRCUIT)[0] == drawn(dict(CIRCUIT))[0]


def test_a_path_runs_through_the_values_of_heads():
    _, svg = drawn({"embed->L0H1->L1H3->unembed": 2.0})
    ends = [path.get("d") for path in svg.iter("path") if path.find("title") is not None]
    place = boxes(svg)
    port = (place["L0H1"][0] + place["L0H1"][2]) / 2 + 0.3 * CARD
    assert len(ends) == 3
    assert sum(f"{port:.1f} {place['L0H1'][3] + 15:g}V" in d for d in ends) == 1
