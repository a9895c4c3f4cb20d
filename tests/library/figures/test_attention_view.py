"""The attention view: complete when still, the same on every machine, and clear about wrong sizes."""

import gzip
import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from circuitkit import figures
from circuitkit.figures import attention_view

TOKENS = ["<bos>", " the", " cat\n", "</script>"]
PATTERN = np.array(
    [[1, 0, 0, 0], [0.75, 0.25, 0, 0], [0.125, 0.5, 0.375, 0], [0.1, 0.2, 0.3, 0.4]],
)
ALT = "Each token looks at the one before it"


def view(noise=0.0, tokens=TOKENS, names=("L0H0", "L0H1"), alt=ALT):
    pattern = PATTERN + noise * np.tril(np.ones((4, 4)))
    return figures.attention(tokens, np.stack([pattern, PATTERN**2]), names, alt=alt)


def one_head(pattern):
    return figures.attention(["a", "b", "c"][: len(pattern)], [pattern], ["L0H0"], alt=ALT)


def data_of(view):
    text = view._repr_html_()
    return json.loads(re.search(r'<script type="application/json">(.*)</script>', text)[1])


def rows_of(text):
    """The cells of the first table."""
    table = re.search(r"<table>(.*?)</table>", text, re.S)[1]
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr>")[1:]]


def test_noise_in_the_sixth_digit_changes_nothing():
    assert view()._repr_html_() == view(noise=1e-6)._repr_html_()
    identity = re.compile(r'id="(ck-[0-9a-f]{12})"')
    assert identity.search(view()._repr_html_())[1] != identity.search(view(1e-3)._repr_html_())[1]


def test_the_data_for_the_live_view_are_the_numbers():
    data = data_of(view())
    np.testing.assert_allclose(data["patterns"][0], PATTERN, atol=5e-5)
    assert data["names"] == ["L0H0", "L0H1"]
    assert data["tokens"] == ["<bos>", "·the", "·cat↵", "</script>"]
    assert (data["first"], data["largest"], data["causal"]) == (0, 1.0, True)
    ahead = one_head([[1.0, 0.2], [0.0, 1.0]])
    assert data_of(ahead)["causal"] is False


def test_the_table_names_the_source_of_largest_magnitude():
    rows = rows_of(view()._repr_html_())
    assert rows[0] == ["destination", "L0H0", "L0H1"]
    assert rows[2] == ["·the (1)", "&lt;bos&gt; (0) 0.75", "&lt;bos&gt; (0) 0.56"]
    assert rows[3] == ["·cat↵ (2)", "·the (1) 0.50", "·the (1) 0.25"]
    near_tie = [[1, 0, 0], [0.5, -0.75, 0], [0.3331, 0.3334, 0.3335]]
    rows = rows_of(one_head(near_tie)._repr_html_())
    assert [cells[1] for cells in rows[1:]] == ["a (0) 1.00", "b (1) -0.75", "a (0) 0.33"]


def test_the_heatmap_has_every_cell_in_its_shade():
    text = one_head([[1.0, 0.0], [-0.5, 0.5]])._repr_html_()
    cells = re.findall(r'fill="(#\w+)" fill-opacity="(.*?)" d="(.*?)"', text)
    assert sorted(cells) == [
        ("#0072B2", "0.50", "M1 1h1v1h-1z"),
        ("#0072B2", "1.00", "M0 0h1v1h-1z"),
        ("#D55E00", "0.50", "M0 1h1v1h-1z"),
    ]


def test_full_colour_is_one_or_the_largest_weight_of_either_sign():
    for pattern, largest in (
        ([[3.0, 0.0], [-4.0, 0.5]], 4.0),
        ([[0.3, 0.0], [0.4, 0.5]], 1.0),
        ([[0.3, 0.0], [-0.4, 0.2]], 0.4),
    ):
        assert data_of(one_head(pattern))["largest"] == largest


def test_the_first_head_is_chosen_by_name():
    patterns, names = np.stack([PATTERN] * 3), ["L0H0", "L0H1", "L1H0"]
    assert figures.attention(TOKENS, patterns, names, alt=ALT, first="L0H1").first == 1
    with pytest.raises(ValueError, match=r"no head 'L9H9'. The heads are L0H0, L0H1, L1H0"):
        figures.attention(TOKENS, patterns, names, alt=ALT, first="L9H9")


@pytest.mark.parametrize(
    ("tokens", "patterns", "names", "message"),
    [
        (["a"], [PATTERN], ["a"], r"1 tokens and 4 positions"),
        ([], PATTERN[None, :0, :0], ["a"], r"have the shape \(1, 0, 0\)"),
        (TOKENS, PATTERN, ["a"], r"Patterns are \[head, dst, src\]"),
        (TOKENS, [PATTERN, PATTERN], ["a", "a"], r"Each of the 2 heads needs a name of its own"),
        (TOKENS, [np.where(PATTERN > 0, PATTERN, -np.inf)], ["a"], r"pattern after the softmax"),
    ],
)
def test_wrong_sizes_are_explained(tokens, patterns, names, message):
    with pytest.raises(ValueError, match=message):
        figures.attention(tokens, patterns, names, alt=ALT)


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes."""

    def __init__(self, text):
        super().__init__()
        self.names = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.names.append((tag, tuple(name for name, _ in attributes)))


HOSTILE = """"><b o='1'>a b c --></script>&lt;$x$"""


@pytest.mark.parametrize("what", ["tokens", "names", "alt"])
def test_hostile_text_stays_text(what):
    plain = {"tokens": [*"abcd"], "names": ["x", "y"], "alt": ALT}
    hostile = plain | {what: HOSTILE if what == "alt" else [HOSTILE, *plain[what][1:]]}
    text = view(**hostile)._repr_html_()
    assert Elements(text).names == Elements(view(**plain)._repr_html_()).names
    assert text.count("</script>") == text.count("<script")


def test_nothing_is_loaded_from_another_host():
    text = view()._repr_html_()
    assert re.findall(r"<script[^>]*>", text) == ['<script type="application/json">']
    assert "//" not in re.sub(r"base64,[^\"]+", "", text)


def test_a_running_notebook_gets_the_still_view_and_all_that_makes_it_live(monkeypatch):
    still = view()._repr_html_()
    monkeypatch.delenv(attention_view.STILL)
    live = view()._repr_html_()
    added = live.removeprefix(still.removesuffix("</figure>")).removesuffix("</figure>")
    assert f"{still.removesuffix('</figure>')}{added}</figure>" == live
    packed = re.search(r'<script type="text/plain" class="ck-packed">([\w+/=]+)</script>', added)[1]
    script = Path(find_spec("circuitsvis").origin).with_name("dist") / "cdn/iife.js"
    assert gzip.decompress(b64decode(packed)) == script.read_bytes()
    assert "://" not in added
    assert len(added) < 500_000  # three at once pass the server of notebooks: 3 MB in 3 seconds


def test_a_running_notebook_without_circuitsvis_shows_the_still_view(monkeypatch):
    still = view()._repr_html_()
    monkeypatch.delenv(attention_view.STILL)
    monkeypatch.setattr(attention_view, "find_spec", lambda name: None)
    assert view()._repr_html_() == still


def colours(view):
    """Whether a colour fills an area of the large picture; a palette of 64 may be off by two."""
    stored = re.search(r'class="ck-still[^>]*base64,([^"]+)"', view._repr_html_())[1]
    image = Image.open(BytesIO(b64decode(stored))).convert("RGB")
    areas = [colour for count, colour in image.getcolors(1 << 20) if count > 10_000]
    return lambda named: any(np.abs(np.subtract(named, area)).max() <= 2 for area in areas)


def test_the_large_picture_shows_the_first_head_in_its_colours():
    """1 is dark blue, -1 dark orange, 0 white, and what a causal head cannot see is grey."""
    causal = colours(one_head([[1.0, 0.0], [-1.0, 0.0]]))
    for named in ((0, 67, 107), (143, 59, 0), (255, 255, 255), (237, 237, 237)):
        assert causal(named), named
    assert colours(one_head([[2.0, 0.0], [1.0, 0.0]]))((0, 114, 178))  # half of the largest
