"""Pictures, their alt text, the numbers behind them, and step sliders."""

import json
import math
import re
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from circuitkit import figures

ALT = "Loss falls from 3 to 1 in two steps"


def drawn(height=1.0):
    fig, (left, right) = plt.subplots(1, 2, figsize=(3, 2))
    left.plot([0, 1, 2], [3.0, 2.0, height], label="loss")
    left.bar([0, 1], [0.5, 0.25])
    fig.colorbar(right.imshow([[1.0, -1.0], [0.0, 0.5]]))  # a colour bar is no data of its own
    right.scatter([1, 2], [3, 4])
    return fig


def test_a_picture_carries_alt_text_width_and_numbers():
    picture = figures.picture(drawn(), alt=ALT)
    data, metadata = picture._repr_mimebundle_()
    assert metadata["image/png"] == {"alt": ALT, "width": 300}
    assert data["text/plain"].splitlines()[0] == f"Figure: {ALT}"
    assert [line.split(":")[1].strip() for line in picture.numbers] == [
        "line 'loss'",
        "bars",
        "image",
        "points",
    ]
    assert Image.open(BytesIO(data["image/png"])).size == (432, 288)
    assert not plt.get_fignums()


@pytest.mark.parametrize("thing", [plt.Figure, None, "figure"])
def test_what_is_no_figure_is_refused_in_words(thing):
    with pytest.raises(ValueError, match=r"expected a matplotlib figure, because it is drawn"):
        figures.show(thing, alt=ALT)


def test_the_same_figure_gives_the_same_bytes():
    assert figures.picture(drawn(), alt=ALT) == figures.picture(drawn(), alt=ALT)


def test_other_data_gives_other_numbers():
    """What nbval compares: the text must change when the line does, though the alt text stays."""
    assert (
        figures.picture(drawn(1.0), alt=ALT).numbers != figures.picture(drawn(1.1), alt=ALT).numbers
    )


def test_many_lines_are_pooled():
    fig, ax = plt.subplots()
    for slope in range(20):
        ax.plot([0, 1], [0, slope])
    numbers = figures.picture(fig, alt=ALT).numbers
    assert len(numbers) == 12
    assert numbers[-1].startswith("9 more: 18 values, largest 19")


@pytest.mark.parametrize("alt", ["", "  ", "loss", "a loss curve"])
def test_alt_text_must_be_a_sentence(alt):
    fig = plt.figure()
    with pytest.raises(ValueError, match="A figure needs a sentence that states what it shows"):
        figures.picture(fig, alt=alt)
    plt.close(fig)


def test_show_displays(capsys, monkeypatch):
    monkeypatch.setattr(
        InteractiveShell, "_instance", None
    )  # another test may have left a shell that displays
    figures.show(drawn(), alt=ALT)
    assert f"Figure: {ALT}" in capsys.readouterr().out


def reference_mark(values):
    """The definition of `mark` as a slow loop."""
    largest = max(abs(v) for v in values)
    mean = sum(v / largest for v in values) / len(values)
    weighed = sum(math.cos(i * math.sqrt(2)) * v / largest for i, v in enumerate(values)) / len(
        values
    )
    return f"{len(values)} values, largest {largest:.3g}, mean {round(mean, 3):g}, mark {round(weighed, 3):g}"


def test_mark_is_as_defined():
    values = [0.3, -1.7, 2.25, 0.0, 11.0]
    assert figures._picture.mark(values) == reference_mark(values)
    assert figures._picture.mark([-3.0, 1.0]) == reference_mark([-3.0, 1.0])


def test_mark_sees_order_and_scale_but_not_noise():
    values = np.linspace(0.1, 3, 50)
    assert figures._picture.mark(values) != figures._picture.mark(values[::-1])
    assert figures._picture.mark(values) != figures._picture.mark(2 * values)
    assert figures._picture.mark(values) == figures._picture.mark(values * (1 + 1e-7))


def test_mark_of_odd_arrays():
    assert figures._picture.mark([]) == "0 values"
    assert figures._picture.mark([0.0, 0.0]) == "2 values, all 0"
    assert (
        figures._picture.mark([math.nan, 1.0, math.inf])
        == "3 values, 2 not finite; the others: 1 values, largest 1, mean 1, mark 1"
    )
    assert figures._picture.mark([-1e-9, 1.0, -1.0]).split(", ")[2] == "mean 0"


def slider(steps=(0, 10, 20)):
    def draw(step):
        fig, ax = plt.subplots(figsize=(2, 1.5))
        ax.plot([0, 1], [0, step])
        ax.set_ylim(0, 20)
        return fig

    return figures.frames(draw, steps, alt=lambda step: f"At step {step} the line ends at {step}")


def test_frames_hold_every_step_and_show_the_last():
    made = slider()
    text = made._repr_html_()
    data = json.loads(re.search(r'<script type="application/json">(.*)</script>', text)[1])
    assert [frame["step"] for frame in data] == ["0", "10", "20"]
    assert data[0]["alt"] == "At step 0 the line ends at 0"
    assert [bool(frame["src"]) for frame in data] == [True, True, False]
    assert re.findall(
        r'<img class="dark-light" src="data:image/png;base64,\S+" alt="(.*?)" width="200">', text
    ) == ["At step 20 the line ends at 20"]
    assert text.count("<li>training step") == 3
    assert "step 20: Figure: At step 20" in repr(made)
    assert text == slider()._repr_html_()
    assert not plt.get_fignums()


def test_one_frame_is_refused():
    with pytest.raises(ValueError, match=r"steps=\[5\]; expected two steps or more"):
        slider([5])


def test_a_curve_over_a_long_axis_is_marked_by_its_height():
    def numbers(last):
        fig, ax = plt.subplots()
        ax.plot([0, 10_000, 20_000], [4.0, 3.0, last])
        return figures.picture(fig, alt=ALT).numbers

    assert numbers(2.9) != numbers(3.1)


def test_a_path_in_the_plane_is_marked_both_ways():
    fig, ax = plt.subplots()
    ax.plot([0, -1, 0], [0, 1, 2])
    assert [line.split(":")[0] for line in figures.picture(fig, alt=ALT).numbers] == [
        "line",
        "line, across",
    ]


def numbers_of(draw):
    fig, ax = plt.subplots()
    draw(ax)
    return list(figures.picture(fig, alt=ALT).numbers)


def reference(name, values):
    return [f"{name}: {reference_mark(values)}"]


def test_bars_are_marked_by_place_width_and_height():
    numbers = numbers_of(lambda ax: ax.bar([1.0, 4.0], [0.5, -2.0], width=0.25))
    assert numbers == reference("bars", [0.875, 0.25, 0.5, 3.875, 0.25, -2.0])


def test_bars_that_lie_are_marked_by_their_length():
    assert numbers_of(lambda ax: ax.barh([1, 2], [3.0, 5.0])) != numbers_of(
        lambda ax: ax.barh([1, 2], [3.0, 4.0])
    )


def test_points_are_marked_by_both_coordinates():
    assert numbers_of(lambda ax: ax.scatter([1, 2], [3, -7])) == reference("points", [1, 3, 2, -7])


def test_coloured_points_are_marked_by_their_colours():
    assert numbers_of(lambda ax: ax.scatter([1, 2], [3, 4], c=[0.5, -3.0])) == reference(
        "cells", [0.5, -3.0]
    )


def test_an_image_is_marked_row_by_row_and_masked_cells_count_as_missing():
    cells = np.ma.masked_equal([[1.0, -4.0], [2.0, 9.0]], 9.0)
    assert numbers_of(lambda ax: ax.imshow([[1.0, -4.0], [2.0, 3.0]])) == reference(
        "image", [1, -4, 2, 3]
    )
    missing = numbers_of(lambda ax: ax.imshow(cells))[0]
    assert missing == f"image: 4 values, 1 not finite; the others: {reference_mark([1, -4, 2])}"


def test_a_colour_bar_is_no_data_and_panels_are_numbered():
    fig, (left, right) = plt.subplots(1, 2)
    fig.colorbar(left.imshow([[1.0, 2.0]]))
    right.plot([0, 1], [0.0, -3.0], label="loss")
    numbers = figures.picture(fig, alt=ALT).numbers
    assert numbers == (
        f"1: image: {reference_mark([1, 2])}",
        f"2: line 'loss': {reference_mark([0, -3])}",
    )


def test_a_line_back_and_forth_is_marked_across_too():
    numbers = numbers_of(lambda ax: ax.plot([0, -2, 5], [1, 2, 3]))
    assert numbers == reference("line", [1, 2, 3]) + reference("line, across", [0, -2, 5])
    assert len(numbers_of(lambda ax: ax.plot([0, 0, 1], [1, 2, 3]))) == 2
