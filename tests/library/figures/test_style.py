"""The colours: readable on the page, apart for colour-blind readers, and white at zero."""

import itertools

import matplotlib
import numpy as np
import pytest

from circuitkit import figures
from circuitkit.figures.pictures import PALETTE

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
PROTANOPIA = np.array(
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
)


def linear(colour):
    value = np.array(matplotlib.colors.to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("colour", PALETTE)
def test_lines_stand_out_from_the_background(colour):
    """WCAG asks for 3 to 1 for graphics."""
    assert 1.05 / (luminance(colour) + 0.05) >= 3


@pytest.mark.parametrize(
    "eye", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["typical", "deuteranopia", "protanopia"]
)
def test_the_first_three_colours_differ_for_every_eye(eye):
    seen = [eye @ linear(colour) for colour in PALETTE[:3]]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(np.sqrt(one.clip(0)) - np.sqrt(other.clip(0))) > 0.2


def test_the_signed_scale_is_white_at_zero_orange_below_and_blue_above():
    scale = figures.signed([-1.0, 4.0])
    assert (scale["vmin"], scale["vmax"]) == (-4.0, 4.0)
    red, _, blue, _ = scale["cmap"](0.25)
    assert red > blue
    red, _, blue, _ = scale["cmap"](0.75)
    assert red < blue
    assert min(scale["cmap"](0.5)) > 0.98
    assert figures.signed([-3.0, -2.0])["vmax"] == 3.0
    assert figures.signed([0.0])["vmax"] == 1.0


@pytest.mark.parametrize("values", [[1.0, float("nan")], []])
def test_values_without_a_colour_are_refused(values):
    with pytest.raises(ValueError, match="needs finite values"):
        figures.signed(values)


def test_style_sets_the_colours():
    with matplotlib.rc_context():
        assert figures.style() == PALETTE
        assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"] == list(PALETTE)
        assert matplotlib.rcParams["figure.facecolor"] == "#FFFFFF"
