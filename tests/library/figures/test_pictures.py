"""Pictures, their alt text, the numbers behind them, sliders, and effects."""

import math
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from circuitkit import figures
from circuitkit.figures.pictures import mark

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
    names = [line.split(":")[1].strip() for line in picture.numbers]
    assert names == ["line 'loss'", "bars", "image", "points"]
    assert Image.open(BytesIO(data["image/png"])).size == (432, 288)
    assert not plt.get_fignums()


def test_the_same_figure_gives_the_same_bytes_and_other_data_other_numbers():
    """A test of a notebook compares the numbers, which must change though the alt text stays."""
    first = figures.picture(drawn(), alt=ALT)
    assert figures.picture(drawn(), alt=ALT) == first
    assert figures.picture(drawn(1.1), alt=ALT).numbers != first.numbers


def test_show_displays(capsys, monkeypatch):
    monkeypatch.setattr(InteractiveShell, "_instance", None)  # of another test
    figures.show(drawn(), alt=ALT)
    assert f"Figure: {ALT}" in capsys.readouterr().out


def reference_mark(values):
    """The definition of `mark` as a slow loop."""
    n, largest = len(values), max(abs(v) for v in values)
    mean = round(sum(v / largest for v in values) / n, 3)
    weighted = sum(math.cos(i * math.sqrt(2)) * v / largest for i, v in enumerate(values))
    fingerprint = round(weighted / n, 3)
    return f"{n} values, largest {largest:.3g}, mean {mean:g}, mark {fingerprint:g}"


def test_mark_is_as_defined():
    for values in ([0.3, -1.7, 2.25, 0.0, 11.0], [-3.0, 1.0]):
        assert mark(values) == reference_mark(values)
    assert mark([]) == "0 values"
    assert mark([0.0, 0.0]) == "2 values, all 0"
    some = mark([math.nan, 1.0, math.inf])
    assert some == f"3 values, 2 not finite; the others: {reference_mark([1.0])}"
    assert mark([-1e-9, 1.0, -1.0]).split(", ")[2] == "mean 0"  # no negative zero


def test_mark_sees_order_and_scale_but_not_noise():
    values = np.linspace(0.1, 3, 50)
    assert mark(values) != mark(values[::-1])
    assert mark(values) != mark(2 * values)
    assert mark(values) == mark(values * (1 + 1e-7))


def numbers_of(draw):
    fig, ax = plt.subplots()
    draw(ax)
    return list(figures.picture(fig, alt=ALT).numbers)


@pytest.mark.parametrize(
    ("draw", "values"),
    [
        (lambda ax: ax.bar([1.0, 4.0], [0.5, -2.0], width=0.25),
         {"bars": [0.875, 0.25, 0.5, 3.875, 0.25, -2.0]}),
        (lambda ax: ax.scatter([1, 2], [3, -7]), {"points": [1, 3, 2, -7]}),
        (lambda ax: ax.scatter([1, 2], [3, 4], c=[0.5, -3.0]), {"cells": [0.5, -3.0]}),
        (lambda ax: ax.imshow([[1.0, -4.0], [2.0, 3.0]]), {"image": [1, -4, 2, 3]}),
        (lambda ax: ax.plot([0, 10, 20], [1, -2, 3], label="a"), {"line 'a'": [1, -2, 3]}),
        (lambda ax: ax.plot([0, -2, 5], [1, 2, 3]),
         {"line": [1, 2, 3], "line, across": [0, -2, 5]}),
    ],
)  # fmt: skip
def test_each_kind_of_thing_is_described_by_its_numbers(draw, values):
    assert numbers_of(draw) == [f"{name}: {reference_mark(v)}" for name, v in values.items()]
