"""Token diagrams: every arrow leads from its source to its target, in its color, with its label."""

from io import BytesIO

import pytest
from matplotlib.colors import same_color
from PIL import Image

from circuitkit import figures
from circuitkit.figures.token_diagram import drawing

ALT = "L1H3 finds the token after an earlier copy of A"
TOKENS = ["A", " B", "…", "A"]
ROWS = ["embed", "layer 0", "layer 1", "logits"]
BOXES = {("layer 0", 1): "L0H1", ("layer 1", -1): "L1H3"}
ARROWS = [
    (("embed", 0), ("layer 0", 1), "V", "token A"),
    (("layer 0", 1), ("layer 1", -1), "K", "after A"),
    (("embed", -1), ("layer 1", -1), "Q"),
]


def arrows_of(fig):
    """The ends and the color of each arrow that is not a stream, in order."""
    found = [text for text in fig.axes[0].texts if getattr(text, "arrow_patch", None)]
    streams = [text.xyann[0] for text in found if text.xyann[0] == text.xy[0] and text.xy[1] % 1]
    lines = [
        (text.xyann, text.xy, text.arrow_patch.get_edgecolor())
        for text in found
        if not text.xy[1] % 1
    ]
    return streams, lines


def labels_of(fig):
    return {text.get_text(): text.get_position() for text in fig.axes[0].texts if text.get_text()}


def test_arrows_lead_from_source_to_target_in_their_color():
    streams, lines = arrows_of(drawing(TOKENS, BOXES, ARROWS, ROWS))
    assert streams == [0, 1, 3]  # one for each token, and none where tokens are left out
    # (position, row) of both ends, by hand; the last position is 3, layer 0 is row 1
    wanted = [((0, 0), (1, 1), "V"), ((1, 1), (3, 2), "K"), ((3, 0), (3, 2), "Q")]
    assert [line[:2] for line in lines] == [line[:2] for line in wanted]
    for (*_, color), (*_, name) in zip(lines, wanted, strict=True):
        assert same_color(color, figures.COLORS[name])


def test_boxes_and_labels_stand_in_their_places():
    fig = drawing(TOKENS, BOXES, ARROWS, ROWS)
    labels = labels_of(fig)
    assert (labels["L0H1"], labels["L1H3"]) == ((1, 1), (3, 2))
    assert set(labels) == {"L0H1", "L1H3", "token A", "after A"}
    ax = fig.axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["A", "·B", "…", "A"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ROWS


def test_a_label_lies_on_its_arrow():
    """The middle of the label is on the curve that matplotlib draws, within a hundredth of a box."""
    fig = drawing(TOKENS, BOXES, ARROWS, ROWS)
    fig.canvas.draw()
    ax = fig.axes[0]
    (arrow,) = [text for text in ax.texts if getattr(text, "xyann", None) == (1, 1)]
    a, b = (ax.transData.transform(end) for end in (arrow.xyann, arrow.xy))  # in pixels
    bezier = arrow.arrow_patch.get_connectionstyle()(a, b).vertices
    on_curve = bezier[0] / 4 + bezier[1] / 2 + bezier[2] / 4
    label = ax.transData.transform(labels_of(fig)["after A"])
    assert abs(label - on_curve).max() < 0.01


def test_the_picture_has_its_alt_text_its_numbers_and_fits_the_page():
    made = figures.token_diagram(TOKENS, BOXES, ARROWS, alt=ALT)
    assert made.alt == ALT
    assert made.numbers == (
        "arrow V, token A: embed 0 -> layer 0 1",
        "arrow K, after A: layer 0 1 -> layer 1 3",
        "arrow Q: embed 3 -> layer 1 3",
        "box L0H1: layer 0 1",
        "box L1H3: layer 1 3",
    )
    many = figures.token_diagram(["a"] * 12, {}, alt=ALT)
    assert many.width == 688 >= made.width
    width, _ = Image.open(BytesIO(made.png)).size
    assert abs(width - 1.44 * made.width) <= 1


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"no place \('layer 2', 1\). The rows are embed, layer 0"):
        figures.token_diagram(TOKENS, {("layer 2", 1): "L2H0"}, alt=ALT)
    with pytest.raises(ValueError, match="positions are 0 to 3"):
        figures.token_diagram(TOKENS, {("layer 0", 4): "L0H0"}, alt=ALT)
    with pytest.raises(ValueError, match="no color 'blue'. The colors are Q, K, V, accent"):
        figures.token_diagram(TOKENS, {}, [(("embed", 0), ("layer 0", 1), "blue")], alt=ALT)
    with pytest.raises(ValueError, match="does not say what the figure shows"):
        figures.token_diagram(TOKENS, BOXES, alt="circuit")
