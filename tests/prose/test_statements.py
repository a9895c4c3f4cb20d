"""The list of statements is the book's, a changed statement is named, and planted slips of the pen are noticed."""

import json

import pytest

from tools.check import statements, text_faults
from tools.check.statements import ROOT, differences, said


def test_the_pages_state_what_was_read():
    assert differences() == [], (
        "if you meant it: python -m tools statements --write, and read the diff"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("The error is 0.3 %.", "The error is 0.2 %."),
        ("as in layer 0", "as in layer 1"),
        ("It takes twice the time.", "It takes three times the time."),
        ("L1H3 looks back.", "L0H3 looks back."),
        ("more than the others", "less than the others"),
        ("It never falls.", "It falls."),
        ("It does not copy.", "It does copy."),
        ("through the keys", "through the values"),
        ("a loss in nats", "a loss in bits"),
        ("at most $n e^{-x}$", "at most $n e^{x}$"),
        ("with `n_ctx=64`", "with `n_ctx=46`"),
        ("the first head", "the last head"),
        ("is $x W_K$", "is $x W_k$"),
        (r"is $a \; b$. So", r"is $a \; c$. So"),
        ("one writes, one reads", "one reads, one writes"),
        ("before the norm", "after the norm"),
        ("(2.1) by K-composition", "(2.1) by V-composition"),
        ("columns that end in `.V`", "columns that end in `.K`"),
        ("the Q wires cost a lot", "the V wires cost a lot"),
    ],
)
def test_a_changed_fact_changes_the_line(before, after):
    assert said(before) != said(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Three heads look back.", "Three of the heads look behind them."),
        ("See [claim 1.2](claims.md#a)", "See [claim 1.2](claims.html#b)"),
        ("A loss.\nIt falls.", "A loss. It falls."),
        ("A figure shows it.", "The picture has it."),
    ],
)
def test_rewording_leaves_the_line_alone(before, after):
    assert said(before) == said(after)


def test_a_difference_stands_under_its_heading(tmp_path):
    text_faults.copy(tmp_path)
    path = tmp_path / "book" / "intro.md"
    path.write_text(path.read_text("utf-8") + "\n## A new section\n\nIt has two parts.\n", "utf-8")
    assert {"+## A new section", "+two"} <= set(differences(tmp_path))


def test_alt_texts_are_statements(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": "# Page\n\nTwo heads."},
        {
            "cell_type": "code",
            "source": "1",
            "outputs": [{"data": {"text/plain": "Figure: Loss falls to 3\n  line: 4 values"}}],
        },
    ]
    (tmp_path / "page.ipynb").write_text(json.dumps({"cells": cells}))
    assert statements.of_page(tmp_path / "page.ipynb") == ["## Page", "two", "falls · 3"]


def test_a_row_of_the_register_is_kept_with_its_verdict_and_tolerance():
    kept = (ROOT / statements.KEPT).read_text("utf-8").splitlines()
    row = kept[kept.index("## 0.13 caveat") :]
    assert row[1:4] == ["value [5.796, 3.82, 3.715]", "tolerance 0.01", "kind measured"]


# --- slips of the pen ------------------------------------------------------------------------------------------------
def test_every_planted_slip_fits_the_text():
    faults = text_faults.read([text_faults.FAULTS])
    assert len(faults) >= 60
    for fault in faults:
        path = text_faults.place(fault, ROOT)
        assert text_faults.plant(fault, path.read_text("utf-8"), path.suffix)


def test_the_list_alone_notices_enough_slips(capsys):
    """Which of them a value notices takes a minute to compute: `make text-faults`."""
    faults = text_faults.read([text_faults.FAULTS])
    assert text_faults.report(faults, text_faults.try_all(faults, values=False)) == 0, (
        capsys.readouterr().out
    )


def test_a_slip_that_fits_no_text_is_named():
    with pytest.raises(ValueError, match=r"README: 'no such text' is there 0 times; expected once"):
        text_faults.plant(text_faults.Fault("word", "README", "no such text", "x"), "text", ".md")


def test_too_few_noticed_slips_fail(capsys):
    fault = text_faults.Fault("word", "README", "one", "two")
    assert text_faults.report([fault] * 5, ["value", "quote", "list", "list", ""]) == 0
    assert text_faults.report([fault] * 5, ["value", "value", "list", "", ""]) == 1
    assert "word: 3/5, 2 of them by a value, 0 by a quote" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("quote", "old", "new", "now"),
    [
        ("30 layers of «9» heads", "of 9 heads", "of 12 heads", "30 layers of «12» heads"),
        ("by «L1H3», always", "L1H3", "L0H3", "by «L0H3», always"),
        ("a row in «four»", "It saw a row in four.", "It saw a row in three.", "a row in «three»"),
        ("«two» of «three» heads", "two of three", "most", "«two» of «three» heads"),
        ("30 layers", "by L1H3", "by L0H3", "30 layers"),
    ],
)
def test_a_binding_follows_a_slip_as_a_careless_author_would_let_it(quote, old, new, now):
    page = "It has 30 layers of 9 heads. Found by L1H3, always. It saw a row in four. Here two of three heads."
    entry = {"page": "README", "quote": quote, "is": "1"}
    assert (
        text_faults.follow(entry, text_faults.Fault("word", "README", old, new), page)["quote"]
        == now
    )
