"""Drawings of circuits: every part in its row, every wire from writer to reader, every number shown."""

import re
from io import BytesIO

import pytest
from matplotlib.colors import same_color, to_rgba
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from circuitkit import figures
from circuitkit.figures.circuit_drawing import HALF_HEIGHT, HALF_WIDTH, HIGH, PORTS, drawing

ALT = "L1H3 finds its key by what L0H1 wrote"
PARTS = {"L0 MLP": 3.0, "L0H1": -1.5}
WIRES = {
    "embed->L0H1.V": 1.0,
    "L0H1->L1H3.K": 8.0,
    "L0H0->L1H3.Q": -4.0,
    "embed->L1H3.V": 2.0,
    "L1H3->unembed": 0.1,
}


def axes(parts=PARTS, wires=WIRES):
    return drawing(parts, wires, "logits").axes[0]


def boxes(ax):
    """The middle of each part's box by name, read from the words in the box."""
    places = {}
    for text in ax.texts:
        if text.get_text() and text.get_zorder() == 6 and text.get_text() not in "QKV":
            name = re.sub(r" [−\d.]+$", "", text.get_text())
            x, y = text.get_position()
            places[name] = (x, round(y / HIGH))
    return places


def arrows(ax):
    """Start, end and patch of the arrow of each wire, the strongest first."""
    found = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    return [
        (text.xyann, text.xy, text.arrow_patch) for text in found[1:]
    ]  # the first is the stream


def labels(ax):
    return {text.get_text(): text.get_position() for text in ax.texts if text.get_zorder() == 4}


def test_rows_go_up_by_layer_heads_before_the_mlp():
    rows = {name: y for name, (_, y) in boxes(axes()).items()}
    assert rows == {"embed": 0, "L0H0": 1, "L0H1": 1, "L0 MLP": 2, "L1H3": 3, "unembed": 4}
    ax = axes()
    middles = {
        round(patch.get_x() + HALF_WIDTH, 6)
        for patch in ax.patches
        if isinstance(patch, FancyBboxPatch)
    }
    assert middles == {round(x, 6) for x, _ in boxes(ax).values()}


def test_a_wire_runs_from_the_top_of_its_writer_to_the_input_it_names():
    ax = axes()
    places = boxes(ax)
    strongest_first = sorted(WIRES, key=lambda key: -abs(WIRES[key]))
    for key, ((x, y), (x2, y2), _) in zip(strongest_first, arrows(ax), strict=True):
        source, target = key.split("->")
        target, _, port = target.partition(".")
        assert abs(x - places[source][0]) < HALF_WIDTH
        assert y == pytest.approx(HIGH * places[source][1] + HALF_HEIGHT)
        assert x2 == pytest.approx(places[target][0] + PORTS.get(port, 0.0))
        assert y2 == pytest.approx(HIGH * places[target][1] - HALF_HEIGHT)


def test_width_is_strength_color_is_the_input_and_dashes_are_the_sign():
    patches = [patch for *_, patch in arrows(axes())]
    widths = [patch.get_linewidth() for patch in patches]
    assert widths == pytest.approx([7.0, 3.5, 1.75, 0.875, 0.8])  # of 8, -4, 2, 1 and 0.1
    for patch, name in zip(patches, "KQVV", strict=False):
        assert same_color(patch.get_edgecolor(), figures.COLORS[name])
    assert same_color(patches[-1].get_edgecolor(), "#9AA0A6")  # 0.1 is weak beside 8
    assert [patch.get_linestyle() for patch in patches].count("solid") == 4
    assert patches[1].get_linestyle() != "solid"


def test_the_shade_of_a_box_is_its_number():
    ax = axes()
    faces = {tuple(round(part, 6) for part in patch.get_facecolor()) for patch in ax.patches}
    wanted = [("white", 1), ("#0072B2", 0), ("#0072B2", 0.4), ("#D55E00", 0.2)]
    assert faces == {tuple(round(part, 6) for part in to_rgba(*face)) for face in wanted}
    words = {text.get_text() for text in ax.texts}
    assert {"L0 MLP 3.0", "L0H1 −1.5", "embed", "logits"} <= words


def test_every_number_that_is_not_weak_is_written_once_on_its_arrow():
    assert set(labels(axes())) == {"8.0", "−4.0", "2.0", "1.0"}
    ax = axes({}, {"L0H1->L1H3.K": 2.0})
    ((start, end, _),) = arrows(ax)
    middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
    assert labels(ax)["2.0"] == pytest.approx(middle)


def test_a_path_runs_through_the_values_of_heads():
    found = arrows(axes({}, {"embed->L0H1->L1H3->unembed": 2.0}))
    assert [end[0] - 1.5 for _, end, _ in found] == pytest.approx([0.22, 0.22, 0.0])


def test_two_paths_through_one_wire_lie_side_by_side():
    found = arrows(axes({}, {"embed->L0H1->L1H3": 2.0, "L0H1->L1H3.V": 1.0}))
    ends = [end[0] for _, end, _ in found if end[1] > 1.5 * HIGH]
    assert ends[1] - ends[0] > 0.05


def test_numbers_cover_neither_boxes_nor_each_other():
    heads = [f"L{layer}H{head}" for layer in range(3) for head in range(5)]
    wires = {"embed->L2H0.K": 3.0, "embed->unembed": -2.0, "L2H1->unembed": 1.0}
    for i, writer in enumerate(heads):
        for j, reader in enumerate(heads):
            if writer[1] < reader[1] and (i + j) % 4 == 0:
                wires[f"{writer}->{reader}.{'QKV'[(i + j) % 3]}"] = 1.0 + (i + j) % 5
    ax = axes({}, wires)
    ax.figure.canvas.draw()
    numbers = [text.get_window_extent() for text in ax.texts if text.get_zorder() == 4]
    solid = [patch.get_window_extent() for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    assert len(numbers) > 10
    for i, number in enumerate(numbers):
        assert not any(number.overlaps(other) for other in [*numbers[:i], *solid])


def test_the_picture_has_its_alt_text_its_numbers_and_fits_the_page():
    values = {"L1H3": -9.34, "L0 MLP": 0.0, "L0H1->L1H3.K": 0.0864, "L0H0->L1H3.V": 0.0041}
    made = figures.circuit(values, alt=ALT, label="logits")
    assert made.alt == ALT
    assert made.numbers == (
        "numbers: logits",
        "parts: L1H3 −9.3, L0 MLP 0.0",
        "wires: L0H1->L1H3.K 0.086, L0H0->L1H3.V 0.004",
    )
    many = figures.circuit({f"L0H{head}->L1H0.Q": 1.0 for head in range(9)}, alt=ALT)
    assert many.width == 688 >= made.width
    assert Image.open(BytesIO(made.png)).width == pytest.approx(1.44 * made.width, abs=1)


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
