"""Text from outside stays text: whatever tokens, names, alt texts and labels say, the HTML has the same elements."""

import json
import re
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.cbook import is_math_text

from circuitkit import figures
from circuitkit.figures import _attention
from circuitkit.figures._attention import heatmap

HOSTILE = """"><b o='1'>a b c --></script>&lt;"""
PLAIN = "some text of four words"
PATTERN = np.array([[1.0, 0.0], [0.25, 0.75]])


class Seen(HTMLParser):
    """Elements with the names of their attributes, the values of attributes, the texts, and the comments."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.values, self.texts, self.comments = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, tuple(name for name, _ in attributes)))
        self.values += [value for _, value in attributes]

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        self.comments.append(data)


def view(**changed):
    given = {"token": "a", "name": "L0H0", "alt": PLAIN} | changed
    return figures.attention(
        [given["token"], "b"], PATTERN, [given["name"]], alt=given["alt"]
    )._repr_html_()


def slider(**changed):
    given = {"alt": PLAIN, "label": "step", "line": "loss", "step": "one"} | changed

    def draw(step):
        fig, ax = plt.subplots(figsize=(1, 1))
        ax.plot([0, 1], [0, 1], label=given["line"])
        return fig

    return figures.frames(
        draw, [given["step"], "two"], alt=lambda step: given["alt"], label=given["label"]
    )


@pytest.mark.parametrize(("what", "times"), [("token", 2), ("name", 2), ("alt", 1)])
def test_an_attention_view_keeps_hostile_text_as_text(what, times):
    """A token is the source of both rows, and the first of the two labels a row; the table has a column for the head."""
    plain, hostile = Seen(view()), Seen(view(**{what: HOSTILE}))
    assert hostile.elements == plain.elements
    shown = [text for text in hostile.texts if HOSTILE.replace(" ", "·") in text or HOSTILE in text]
    assert len([text for text in shown if not text.startswith("{")]) == times
    values = {value for value in hostile.values if value and HOSTILE in value}
    expected = (
        {f"Pattern of {HOSTILE}", f"Pattern of {HOSTILE}, as in the table below"}
        if what == "name"
        else set()
    )
    assert values == expected


@pytest.mark.parametrize("what", ["alt", "label", "line", "step"])
def test_a_slider_keeps_hostile_text_as_text(what):
    plain, made = Seen(slider()._repr_html_()), slider(**{what: HOSTILE})
    hostile = Seen(made._repr_html_())
    assert hostile.elements == plain.elements
    assert len(hostile.comments) == len(plain.comments) == 2
    everywhere = " ".join(
        [*hostile.texts, *map(str, hostile.values), *map(html_text, hostile.comments)]
    )
    assert HOSTILE in everywhere
    if what == "alt":
        assert hostile.values.count(HOSTILE) == 1
        assert sum(text == f"step one: {HOSTILE}" for text in hostile.texts) == 1


def html_text(comment):
    """A comment as it was before it was escaped."""
    parsed = Seen(f"<p>{comment}</p>")
    return "".join(parsed.texts)


def test_the_data_of_a_slider_cannot_close_its_script():
    text = slider(alt=HOSTILE)._repr_html_()
    assert text.count("</script>") == text.count("<script")
    data = json.loads(re.search(r'<script type="application/json">(.*)</script>', text)[1])
    assert [frame["alt"] for frame in data] == [HOSTILE, HOSTILE]


def test_the_title_of_a_heatmap_is_an_attribute():
    assert f"{HOSTILE}" in Seen(heatmap(PATTERN, 1.0, HOSTILE)).values


@pytest.fixture
def drawn(monkeypatch):
    """The figure that the large still picture is made of."""
    kept = []
    monkeypatch.setattr(_attention, "to_png", lambda fig, colours: kept.append(fig) or b"")

    def _drawn(tokens, pattern, name="L0H0", largest=1.0, causal=False):
        html = _attention.pattern_image(tokens, np.array(pattern), name, largest, causal)
        return kept[-1].axes[0], html

    return _drawn


def test_a_dollar_opens_no_formula(drawn):
    ax, html = drawn(["$x$", "b"], PATTERN, "head $y$")
    labels = [label.get_text() for label in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    texts = [*labels, ax.get_title(loc="left")]
    assert [text.replace("\\$", "$") for text in texts] == ["$x$", "b", "$x$", "b", "head $y$"]
    assert not any(is_math_text(text) for text in texts)
    assert 'alt="Pattern of head $y$, as in' in html


def test_destinations_go_down_and_sources_across(drawn):
    ax, _ = drawn(["a ", "b", "c"], [[1, 0, 0], [-0.5, 0.5, 0.25], [0.1, 0.2, 0.7]], largest=2.0)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("source", "destination")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a·", "b", "c"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a·", "b", "c"]
    (image,) = ax.images
    np.testing.assert_array_equal(
        image.get_array(), [[1, 0, 0], [-0.5, 0.5, 0.25], [0.1, 0.2, 0.7]]
    )
    assert not np.ma.getmaskarray(image.get_array()).any()
    assert image.get_clim() == (-2.0, 2.0)
    assert ax.yaxis_inverted()  # the first token at the top


def test_a_causal_head_hides_what_it_cannot_see(drawn):
    ax, _ = drawn(["a", "b", "c"], np.eye(3), causal=True)
    hidden = np.ma.getmaskarray(ax.images[0].get_array())
    assert hidden.tolist() == [[False, True, True], [False, False, True], [False, False, False]]
