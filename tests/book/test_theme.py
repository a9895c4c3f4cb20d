"""A page that the theme writes in another way stops the build with a message."""

import ast
import re
import sys
from importlib.metadata import version

import pytest

from tools.check.numbers_in_prose import ROOT

sys.path.insert(0, str(ROOT / "book/_ext"))
from book_extension import accessible, equations, light, theme

#: What the build changes on every page, as the theme writes it.
PAGE = """<html data-theme="auto">
<head><meta name="viewport" content="a"><meta name="viewport" content="b">
<script>document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";</script>
<script src="_static/scripts/fontawesome.js?digest=1"></script>
<script src="_static/documentation_options.js?v=1"></script>
<script src="_static/other.js"></script>
</head><body><summary><span class="toctree-toggle"></span></summary></body></html>"""


@pytest.fixture
def early(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/documentation_options.js").write_text(r"const OPTIONS = '\d';", "utf-8")
    return lambda text: light.early(text, tmp_path, "book/lab.html")


def test_a_page_as_the_theme_writes_it_is_changed(early):
    text = early(PAGE)
    assert "fontawesome" not in text
    assert r"<script>const OPTIONS = '\d';</script>" in text
    assert '<script defer src="_static/other.js">' in text
    assert text.count("viewport") == 1
    assert '"auto"' not in text
    assert '<summary aria-label="Its pages"><span class="toctree-toggle">' in text


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('data-theme="auto"', "data-theme", "theme of a page before its script runs"),
        ('"viewport"', '"view"', "viewport"),
        ('getItem("theme") ||', 'getItem("theme") ??', "script that reads the theme"),
        ("fontawesome.js", "icons.js", "script of the icons"),
        ("documentation_options", "options", "script of the options"),
        ('<script src="', '<script defer src="', "script that is not deferred"),
        ("toctree-toggle", "toggle", "button that opens the pages of a chapter"),
        ("</head>", "", "end of the head"),
    ],
)
def test_what_the_theme_writes_differently_is_named_with_page_and_version(early, old, new, what):
    with pytest.raises(theme.ThemeChangedError) as caught:
        early(PAGE.replace(old, new))
    message = str(caught.value)
    assert message.startswith(f"book/lab.html has no {what}. Nothing in it matches ")
    assert f"sphinx-book-theme {version('sphinx-book-theme')}" in message
    assert "correct the pattern in book/_ext/book_extension/theme.py" in message


def test_the_tree_of_a_page_says_which_pieces_its_body_needs():
    from docutils import nodes
    from sphinx import addnodes

    lines = addnodes.desc_parameterlist(multi_line_parameter_list=True)
    formula = nodes.math_block(ids=["eq-2-1"])
    for call, node, what in (
        (accessible.fix, nodes.citation(), "list of citations"),
        (accessible.fix, lines, "signature on several lines"),
        (equations.reachable, formula, "numbered equation"),
    ):
        context = {"body": "<p>nothing of it</p>"}
        call(None, "book/api/heads", "", context, nodes.section())
        tree = nodes.section()
        tree += node
        with pytest.raises(theme.ThemeChangedError, match=f"book/api/heads has no {what}"):
            call(None, "book/api/heads", "", context, tree)


def test_no_other_module_has_a_regular_expression_on_html():
    elsewhere = []
    for path in sorted(ROOT.glob("book/_ext/book_extension/*.py")):
        calls = (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if type(n) is ast.Call)
        for call in calls:
            of = ast.unparse(call.func)
            pattern = call.args[0].value if call.args and type(call.args[0]) is ast.Constant else ""
            if of.startswith("re.") and re.search(r"<\\?/?[a-z]+[ >\\]", str(pattern)):
                elsewhere.append(f"{path.name}: {pattern}")
    assert [line for line in elsewhere if not line.startswith("theme.py")] == []
    assert len(elsewhere) > 5  # the search finds those of theme.py
