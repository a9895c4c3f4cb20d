"""Drawings of circuits: every part in its row, every wire from writer to reader, every number shown."""

import re
import xml.etree.ElementTree as ET

import pytest

from circuitkit import figures
from circuitkit.figures.circuit_drawing import CARD

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


def drawn(values, **more):
    text = figures.circuit(values, alt=ALT, **more)._repr_html_()
    return text, ET.fromstring(re.search(r"<svg.*</svg>", text, re.S)[0])


def boxes(svg):
    """Left, top, right and bottom of every part by name. The box of a part comes before its name."""
    places, box = {}, None
    for element in svg:
        if element.tag == "rect" and element.get("stroke"):
            x, y, wide, tall = (float(element.get(key)) for key in ("x", "y", "width", "height"))
            box = (x, y, x + wide, y + tall)
        is_name = element.get("font-weight") and element.get("text-anchor") is None
        if element.tag == "text" and is_name:
            places[element.text] = box
    return places


def wires(svg):
    """The path element of every wire, by its name and number."""
    paths = [path for path in svg.iter("path") if path.find("title") is not None]
    return {path.findtext("title"): path for path in paths}


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?[0-9.]+", text)]


def points(d, steps=200):
    """Every point of a wire, its curves by de Casteljau."""
    place, out = (0.0, 0.0), []
    for letter, body in re.findall(r"([MLCV])([^MLCV]*)", d):
        given = numbers_in(body)
        pairs = list(zip(given[::2], given[1::2], strict=False))
        ends = [place, *([(place[0], given[0])] if letter == "V" else pairs)]
        if letter == "M":
            ends = ends[1:]
        for step in range(steps + 1):
            t, level = step / steps, ends
            while len(level) > 1:
                following = zip(level, level[1:], strict=False)
                level = [((1 - t) * a + t * c, (1 - t) * b + t * e) for (a, b), (c, e) in following]
            out.append(level[0])
        place = ends[-1]
    return out


def test_rows_go_up_by_layer_heads_before_the_mlp():
    places = boxes(drawn(CIRCUIT)[1])
    tops = {name: box[1] for name, box in places.items()}
    assert tops["embed"] > tops["L0H0"] == tops["L0H1"] > tops["L0 MLP"]
    assert tops["L0 MLP"] > tops["L1H3"] > tops["unembed"]
    assert places["L0H0"][2] < places["L0H1"][0]


@pytest.mark.parametrize(
    ("key", "number"),
    [("L0H1->L1H3.K", "8.0"), ("L0H0->L1H3.Q", "−4.0"), ("embed->L1H3.V", "2.0")],
)
def test_a_wire_runs_from_its_writer_to_the_input_it_names(key, number):
    _, svg = drawn(CIRCUIT)
    way = numbers_in(wires(svg)[f"{key}: {number}"].get("d"))
    source, target = (boxes(svg)[name] for name in key[:-2].split("->"))
    assert source[0] < way[0] < source[2]
    assert way[1] == source[1]
    port = {"Q": -0.3, "K": 0, "V": 0.3}[key[-1]] * CARD
    middle = (target[0] + target[2]) / 2
    assert way[-3] == pytest.approx(middle + port, abs=0.06)  # printed to 0.1
    assert way[-1] == target[3]


def test_wires_that_leave_one_part_lie_side_by_side():
    _, svg = drawn({"L0H1->L1H3.Q": 1.0, "L0H1->L1H3.K": 2.0, "L0H1->L1H3.V": 3.0})
    starts = {name[:12]: numbers_in(path.get("d"))[0] for name, path in wires(svg).items()}
    assert starts["L0H1->L1H3.Q"] + 13 < starts["L0H1->L1H3.K"] < starts["L0H1->L1H3.V"] - 13


def test_width_is_strength_colour_is_sign_and_dashes_are_inputs():
    paths = {name.split(":")[0]: path for name, path in wires(drawn(CIRCUIT)[1]).items()}
    widths = {name: float(path.get("stroke-width")) for name, path in paths.items()}
    assert widths == {
        "L0H1->L1H3.K": 12.0, "L0H0->L1H3.Q": 6.0, "embed->L1H3.V": 3.0, "embed->L0H1.V": 1.5,
        "L1H3->unembed": 1.0,
    }  # fmt: skip
    assert "#0072B2" in paths["L0H1->L1H3.K"].get("style")
    assert "#D55E00" in paths["L0H0->L1H3.Q"].get("style")
    assert "currentColor" in paths["L1H3->unembed"].get("style")  # 0.1 is weak beside 8
    dashes = {name[-1]: path.get("stroke-dasharray") for name, path in paths.items()}
    assert dashes["V"] == dashes["d"] == "none"
    assert len({dashes["Q"], dashes["K"], "none"}) == 3


def test_parts_have_a_scale_of_their_own():
    _, svg = drawn(CIRCUIT)
    leads = [path for path in svg.iter("path") if path.find("title") is None and path.get("style")]
    assert {float(path.get("stroke-width")) for path in leads} == {12.0, 6.0}
    assert {"3.0", "−1.5"} <= {text.text for text in svg.iter("text")}


def test_every_number_that_is_not_weak_is_written_once():
    values = CIRCUIT | {"embed->L0H1->L1H3": 5.0}
    text, svg = drawn(values)
    written = [element.text for element in svg.iter("text")]
    numbers = ("8.0", "−4.0", "2.0", "1.0", "5.0", "0.1")
    assert [written.count(number) for number in numbers] == [1, 1, 1, 1, 1, 0]
    rows = re.findall(r'<th scope="row">(.*?)</th>', text)
    assert rows == [key.replace(">", "&gt;") for key in values]


def test_a_path_runs_through_the_values_of_heads():
    _, svg = drawn({"embed->L0H1->L1H3->unembed": 2.0})
    ways = [path.get("d") for path in svg.iter("path") if path.find("title") is not None]
    left, _, right, bottom = boxes(svg)["L0H1"]
    assert len(ways) == 3
    assert sum(f"{(left + right) / 2 + 0.3 * CARD:.1f} {bottom + 15:g}V" in d for d in ways) == 1


def crowded():
    heads = [f"L{layer}H{head}" for layer in range(3) for head in range(5)]
    values = {"embed->L2H0.K": 3, "embed->unembed": -2, "L2H1->unembed": 1}
    for i, writer in enumerate(heads):
        for j, reader in enumerate(heads):
            if writer[1] < reader[1] and (i + j) % 4 == 0:
                values[f"{writer}->{reader}.{'QKV'[(i + j) % 3]}"] = 1 + (i + j) % 5
    return values


def test_nothing_covers_anything():
    """Parts lie apart, numbers lie apart, and a wire runs through no part."""
    _, svg = drawn(crowded())
    places = boxes(svg)
    pills = []
    for rect in svg.iter("rect"):
        if rect.get("height") == "16":
            x, y, wide = (float(rect.get(key)) for key in ("x", "y", "width"))
            pills.append((x, y, x + wide, y + 16))
    assert len(pills) > 10
    for a in pills:
        for b in pills:
            apart = a[2] <= b[0] + 0.2 or b[2] <= a[0] + 0.2 or abs(a[1] - b[1]) >= 15.8
            assert a is b or apart
    for path in wires(svg).values():
        for x, y in points(path.get("d")):
            for left, top, right, bottom in places.values():
                assert not (left < x < right and top < y < bottom)
    width, height = numbers_in(svg.get("viewBox"))[2:]
    for left, top, right, bottom in places.values():
        assert 28 <= left < right <= width
        assert 0 <= top < bottom <= height


def test_the_description_gives_the_number_of_every_part_and_wire():
    values = {"L1H3": -9.34, "L0 MLP": 0.0, "L0H1->L1H3.K": 0.0864, "L0H0->L1H3.V": 0.0041}
    assert repr(figures.circuit(values, alt=ALT, label="logits")).splitlines() == [
        f"Circuit: {ALT}",
        "  numbers: logits",
        "  parts: L1H3 −9.3, L0 MLP 0.0",
        "  wires: L0H1->L1H3.K 0.086, L0H0->L1H3.V 0.004",
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "There is nothing to draw"),
        ({"L0H1": float("nan")}, "The number of 'L0H1' is nan"),
        ({"L0X1": 1.0}, "'L0X1' is no name of a part"),
        ({"L1H3.K": 1.0}, "begins with the input L1H3.K"),
        ({"L0H1->unembed": 1.0, "L1H3.K->L2H0.Q": 1.0}, "begins with the input L1H3.K"),
        ({"L1H3->L0H1.K": 1.0}, "runs backwards: L0H1 does not come after L1H3"),
        ({"L0H1->L0H0.K": 1.0}, "runs backwards: L0H0 does not come after L0H1"),
    ],
)
def test_a_mistake_is_explained(values, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        figures.circuit(values, alt=ALT)
    with pytest.raises(ValueError, match="does not say what the figure shows"):
        figures.circuit({"L0H1": 1.0}, alt="a circuit")


HOSTILE = """"><b o='1'>a b c --></script>&lt;"""


def test_hostile_text_stays_text():
    text = figures.circuit(
        {"L0H1->L1H3.K": 1.0},
        alt=HOSTILE,
        label=HOSTILE,
    )._repr_html_()
    assert "<b" not in text
    assert "</script" not in text
    assert ET.fromstring(text.replace("&nbsp;", " ")).tag == "figure"
