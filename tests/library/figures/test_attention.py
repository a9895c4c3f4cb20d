"""The attention view: deterministic, escaped, complete when still, and clear about wrong sizes."""

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from circuitkit import figures

TOKENS = ["<bos>", " the", " cat\n", "</script>"]
PATTERN = np.array(
    [[1, 0, 0, 0], [0.75, 0.25, 0, 0], [0.125, 0.5, 0.375, 0], [0.1, 0.2, 0.3, 0.4]],
)
ALT = "Each token looks at the one before it"


@pytest.fixture
def view():
    return figures.attention(TOKENS, np.stack([PATTERN, PATTERN**2]), ["L0H0", "L0H1"], alt=ALT)


def payload(view):
    return json.loads(
        re.search(r'<script type="application/json">(.*)</script>', view._repr_html_())[1]
    )


class Table(HTMLParser):
    """Reads the rows of the first table by itself."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.open = [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.open = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.open = self.open and tag not in ("td", "th")

    def handle_data(self, data):
        if self.open:
            self.rows[-1][-1] += data


def test_the_same_data_gives_the_same_bytes_and_other_data_another_id(view):
    again = figures.attention(TOKENS, np.stack([PATTERN, PATTERN**2]), ["L0H0", "L0H1"], alt=ALT)
    other = figures.attention(TOKENS, np.stack([PATTERN, PATTERN**3]), ["L0H0", "L0H1"], alt=ALT)
    name = re.compile(r'id="(ck-[0-9a-f]{12})"')
    assert view._repr_html_() == again._repr_html_()
    assert name.search(view._repr_html_())[1] != name.search(other._repr_html_())[1]


def test_noise_in_the_sixth_digit_changes_nothing(view):
    noise = 1e-6 * np.tril(np.ones((4, 4)))
    noisy = figures.attention(
        TOKENS, np.stack([PATTERN + noise, PATTERN**2]), ["L0H0", "L0H1"], alt=ALT
    )
    assert noisy._repr_html_() == view._repr_html_()


def test_the_payload_carries_the_numbers(view):
    data = payload(view)
    np.testing.assert_allclose(data["patterns"][0], PATTERN, atol=5e-5)
    assert data["names"] == ["L0H0", "L0H1"]
    assert data["tokens"] == ["<bos>", "·the", "·cat↵", "</script>"]
    assert (data["first"], data["largest"], data["causal"]) == (0, 1.0, True)


def test_a_token_cannot_close_the_script(view):
    text = view._repr_html_()
    assert text.count("</script>") == text.count("<script")
    assert "&lt;/script&gt; (3)" in text


def test_the_table_names_the_strongest_source_of_each_row(view):
    rows = Table(view._repr_html_()).rows
    assert rows[0] == ["destination", "L0H0", "L0H1"]
    assert rows[2] == ["·the (1)", "<bos> (0) 0.75", "<bos> (0) 0.56"]
    assert rows[3] == ["·cat↵ (2)", "·the (1) 0.50", "·the (1) 0.25"]
    assert rows[4] == ["</script> (3)", "</script> (3) 0.40", "</script> (3) 0.16"]


def test_the_strongest_source_has_the_largest_magnitude():
    rows = Table(
        figures.attention(["a", "b"], [[0.25, 0.0], [0.5, -0.75]], alt=ALT)._repr_html_()
    ).rows
    assert [cells[1] for cells in rows[1:]] == ["a (0) 0.25", "b (1) -0.75"]


def test_near_ties_go_to_the_first_source():
    row = [[1, 0, 0], [0.5, 0.5, 0], [0.3331, 0.3334, 0.3335]]
    rows = Table(figures.attention(["a", "b", "c"], row, alt=ALT)._repr_html_()).rows
    assert [cells[1] for cells in rows[1:]] == ["a (0) 1.00", "a (0) 0.50", "a (0) 0.33"]


def test_the_still_heatmap_has_every_cell_in_its_shade():
    text = figures.attention(["a", "b"], [[1.0, 0.0], [-0.5, 0.5]], alt=ALT)._repr_html_()
    cells = {
        (colour, opacity): path
        for colour, opacity, path in re.findall(
            r'fill="(#\w+)" fill-opacity="(.*?)" d="(.*?)"', text
        )
    }
    assert cells == {
        ("#0072B2", "1.00"): "M0 0h1v1h-1z",
        ("#D55E00", "0.50"): "M0 1h1v1h-1z",
        ("#0072B2", "0.50"): "M1 1h1v1h-1z",
    }


def test_values_of_either_sign_use_their_own_scale():
    view = figures.attention(["a", "b"], [[3.0, 0.0], [-4.0, 0.5]], alt=ALT)
    assert view.largest == payload(view)["largest"] == 4.0
    assert figures.attention(["a", "b"], [[0.3, 0.0], [0.4, 0.5]], alt=ALT).largest == 1.0
    assert (
        figures.attention(["a", "b"], [[0.3, 0.0], [0.4, 0.5]], alt=ALT, largest=0.5).largest == 0.5
    )
    assert (
        payload(figures.attention(["a", "b"], [[1.0, 0.2], [0.0, 1.0]], alt=ALT))["causal"] is False
    )


def test_tensors_lists_and_one_head_are_taken():
    tensor = torch.tensor(PATTERN, requires_grad=True)
    same = [
        figures.attention(TOKENS, data, alt=ALT)._repr_html_()
        for data in (tensor, PATTERN, PATTERN.tolist(), PATTERN[None])
    ]
    assert len(set(same)) == 1
    assert "head 0" in same[0]


def test_the_first_head_by_name_or_number():
    patterns = np.stack([PATTERN, PATTERN, PATTERN])
    names = ["L0H0", "L0H1", "L1H0"]
    assert figures.attention(TOKENS, patterns, names, alt=ALT, first="L0H1").first == 1
    assert figures.attention(TOKENS, patterns, names, alt=ALT, first=-1).first == 2
    with pytest.raises(
        ValueError, match=r"no head is called 'L9H9'; the heads are: L0H0, L0H1, L1H0"
    ):
        figures.attention(TOKENS, patterns, names, alt=ALT, first="L9H9")


@pytest.mark.parametrize(
    ("tokens", "patterns", "names", "message"),
    [
        (
            ["a"],
            PATTERN,
            None,
            r"tokens=\['a'\].*expected 4 tokens, one for every position.*shape \(4, 4\)",
        ),
        (TOKENS, PATTERN[:3], None, r"as many destinations as sources"),
        ([], PATTERN[:0, :0], None, r"as many destinations as sources, and at least one"),
        (TOKENS, PATTERN, ["a", "b"], r"expected 1 names, each once"),
        (TOKENS, [PATTERN, PATTERN], ["a", "a"], r"expected 2 names, each once"),
        (TOKENS, PATTERN[0], None, r"expected patterns \[head, dst, src\] or \[dst, src\]"),
        (
            TOKENS,
            np.where(PATTERN > 0, PATTERN, -np.inf),
            None,
            r"finite weights; pass the pattern after the softmax",
        ),
    ],
)
def test_wrong_sizes_are_explained(tokens, patterns, names, message):
    with pytest.raises(ValueError, match=message):
        figures.attention(tokens, patterns, names, alt=ALT)


def test_two_faults_are_reported_together():
    with pytest.raises(ValueError, match=r"4 tokens, one for every.*; 1 names"):
        figures.attention(["a"], PATTERN, ["x", "y"], alt=ALT)


def what_github_keeps(text: str) -> str:
    """The view without what a strict preview takes out: scripts, drawings, classes and ids."""
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", "", text, flags=re.S)
    return re.sub(r' (?:class|id|style|role|data-[\w-]+|aria-[\w-]+)="[^"]*"', "", text)


def test_without_scripts_and_drawings_a_picture_its_words_and_the_table_remain(view):
    kept = what_github_keeps(view._repr_html_())
    assert "<figcaption>" + ALT in kept
    assert 'alt="Pattern of L0H0, as in the table below" width="460" height="460">' in kept
    assert len(Table(kept).rows) == 1 + len(TOKENS)
    assert "circuitkit" not in kept


def still(view) -> Image.Image:
    data = re.search(r'class="ck-still[^>]*base64,([^"]+)"', view._repr_html_())[1]
    return Image.open(BytesIO(b64decode(data))).convert("RGB")


def test_the_still_picture_shows_the_first_head_in_its_colours():
    """A weight of one is dark blue, minus one dark orange, nothing white, and the future of a causal head grey."""
    causal = colours(figures.attention(["a", "b"], [[1.0, 0.0], [-1.0, 0.0]], alt=ALT))
    for named in ((0, 67, 107), (143, 59, 0), (255, 255, 255), (237, 237, 237)):
        assert causal(named), named
    half = colours(figures.attention(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], alt=ALT, largest=2.0))
    assert not half((0, 67, 107))
    assert half((0, 114, 178))


def colours(view):
    """Whether a colour fills an area of the still picture; a palette of 64 may be off by two."""
    areas = [colour for count, colour in still(view).getcolors(1 << 20) if count > 10_000]
    return lambda named: any(
        max(abs(a - b) for a, b in zip(named, area, strict=True)) <= 2 for area in areas
    )


def test_a_still_picture_leaves_the_style_of_other_figures_alone(view):
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert still(view).size == (662, 662)
    assert dict(matplotlib.rcParams) == before


def test_a_dollar_in_a_token_is_no_formula():
    odd = figures.attention(["$", "x_$"], [[1.0, 0.0], [0.5, 0.5]], ["head $"], alt=ALT)
    assert still(odd).size == (662, 662)


def test_no_network_is_touched(view, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a figure opened a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    assert "<figure" in view._repr_html_()
