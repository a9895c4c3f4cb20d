"""Every number in the prose is bound to a computed value, and the check that says so can fail."""

import json

import pytest

from tools.check import prose_numbers
from tools.check.prose_numbers import agrees, numbers, problems


def written(text):
    return [found[0] for found in numbers(text)]


def book(folder, prose, outputs="", bindings=""):
    """A book of one page with some prose, one stored output, and bindings."""
    (folder / "book").mkdir(exist_ok=True)
    cells = [
        {"cell_type": "markdown", "source": prose},
        {
            "cell_type": "code",
            "source": "n = 7",
            "outputs": [{"output_type": "stream", "text": outputs}],
        },
    ]
    (folder / "book/page.ipynb").write_text(json.dumps({"cells": cells}))
    (folder / "book/numbers.toml").write_text(bindings or "number = []")
    return folder


def bind(quote, expression, relation=""):
    more = f'relation = "{relation}"\n' if relation else ""
    return f"[[number]]\npage = 'page'\nquote = '{quote}'\nis = '''{expression}'''\n{more}"


def test_every_number_in_the_book_is_bound_and_holds():
    assert problems() == []


def test_a_fault_that_makes_text_of_a_number_is_noticed(tmp_path):
    """More than half of what, more than a third of what: the mark then holds two words, and no number."""
    assert not agrees("a third", 0.5)
    assert not agrees("a third", 1 / 3)
    held = book(
        tmp_path,
        "It is more than a third of what it was.",
        "more than 0.5 of it",
        bind("more than [a third] of", "out(r'more than (\\S+) of')"),
    )
    assert problems(held)


def test_a_number_without_a_binding_is_found(tmp_path):
    assert "no binding for '0.93'" in problems(book(tmp_path, "It reaches 0.93 of them."))[0]


def test_a_binding_holds_when_the_output_rounds_to_what_is_written(tmp_path):
    bound = bind("reaches 0.93 of", r"out(r'rate (\S+)')")
    assert problems(book(tmp_path, "It reaches 0.93 of them.", "rate 0.9312\n", bound)) == []
    assert (
        "says  0.93, computed 0.9412"
        in problems(book(tmp_path, "It reaches 0.93 of them.", "rate 0.9412\n", bound))[0]
    )


def test_a_quote_that_has_gone_is_found(tmp_path):
    bound = bind("reaches 0.93 of", "0.93")
    assert "is there 0 times" in problems(book(tmp_path, "It fails.", "", bound))[0]


def test_an_output_that_has_gone_is_found(tmp_path):
    bound = bind("reaches 0.93 of", r"out(r'rate (\S+)')")
    assert (
        "no stored output of this page matches"
        in problems(book(tmp_path, "It reaches 0.93 of them.", "", bound))[0]
    )


def test_a_number_set_in_code_can_be_bound(tmp_path):
    assert (
        problems(book(tmp_path, "We take 7 of them.", "", bind("take 7 of", r"code(r'n = (\d+)')")))
        == []
    )
    assert (
        problems(book(tmp_path, "We take 8 of them.", "", bind("take 8 of", r"code(r'n = (\d+)')")))
        != []
    )


def test_two_numbers_want_two_expressions(tmp_path):
    assert (
        "for 1 expressions"
        in problems(book(tmp_path, "It is 3 of 4.", "", bind("is 3 of 4", "3")))[0]
    )


def test_layers_and_steps_are_numbers_like_others(tmp_path):
    assert (
        "no binding for '17'" in problems(book(tmp_path, "All lie in layer 17, not in layer 0."))[0]
    )


@pytest.mark.parametrize(
    ("quote", "expression", "right"),
    [
        ("«Seven» heads", r"out(r'of (\d+) heads')", True),
        ("«Seven» heads", r"out(r'of (\d+) heads') + 1", False),
        ("heads, «half» of", r"out(r'share (\S+)')", True),
        ("heads, «half» of", r"out(r'share (\S+)') / 2", False),
        ("the first is «L1H3»", r"name(r'first (\S+)')", True),
        ("the first is «L1H3»", r"name(r'last (\S+)')", False),
    ],
)
def test_what_stands_between_marks_is_bound(tmp_path, quote, expression, right):
    prose, outputs = (
        "Seven heads, half of them: the first is L1H3.",
        "of 7 heads share 0.5 first L1H3 last L0H0\n",
    )
    found = [
        line
        for line in problems(book(tmp_path, prose, outputs, bind(quote, expression)))
        if "computed" in line
    ]
    assert (not found) is right


@pytest.mark.parametrize(
    ("expression", "right"),
    [("out(r'a (.)') > out(r'b (.)')", True), ("False", False), ("1", False)],
)
def test_a_comparison_holds_or_not(tmp_path, expression, right):
    bound = bind("a is above b", expression).replace("is = ", "holds = ")
    assert (
        any(
            "does not hold" in line
            for line in problems(book(tmp_path, "a is above b", "a 3 b 2", bound))
        )
        is not right
    )


def test_a_head_and_a_count_are_bound_by_what_stands_beside_them(tmp_path):
    assert problems(book(tmp_path, "Seven heads, L1H3 first.", "L1H3")) == []
    assert "nothing beside it shows 'L1H3'" in problems(book(tmp_path, "L1H3 is first.", "L0H3"))[0]
    assert "nothing beside it shows 'eight'" in problems(book(tmp_path, "Two of eight.", "L0H3"))[0]
    assert (
        problems(
            book(tmp_path, "Some 8 % and eight more.", "0.08", bind("Some 8 %", "out(r'(.*)')"))
        )
        != []
    )


@pytest.mark.parametrize(
    ("prose", "chosen", "wrong"),
    [
        ("Three are: a, b, c.", "list: what is named", None),
        ("Thirty are: a, b, c.", "list: what is named", "is called 'list', but nothing there"),
        ("Try 30 of them.", "reader: a setting to try", None),
        ("There are 30 of them.", "reader: a setting to try", "is called 'reader', but"),
        ("With 30, that makes 30.", "example: comes back in it", None),
        ("With 30, that makes 40.", "example: comes back in it", "is called 'example', but"),
        ("The paper says 30.", "source: the paper's number", None),
        ("It says 30.", "source: the paper's number", "is called 'source', but"),
        ("torch has 30 MB.", "package: the size of torch", None),
        ("It has 30 MB.", "package: the size of it", "is called 'package', but"),
        ("It says 30.", "because I say so", "without a category of"),
        ("Try 30 of them.", "reader: so", "without a category of"),
    ],
)
def test_a_number_is_chosen_with_a_category_that_fits(tmp_path, prose, chosen, wrong):
    bound = f"[[number]]\npage = 'page'\nquote = '{prose}'\nchosen = \"{chosen}\"\n"
    found = problems(book(tmp_path, prose, "", bound))
    assert (wrong in found[0]) if wrong else found == []


@pytest.mark.parametrize(
    ("relation", "value", "holds"),
    [("below", 0.04, True), ("below", 0.06, False), ("above", 0.06, True), ("above", 0.04, False)]
    + [("about", 0.054, True), ("about", 0.06, False), ("", 0.0549, True), ("", 0.056, False)],
)
def test_what_is_written_may_be_a_bound(relation, value, holds):
    assert agrees("0.05", value, relation) is holds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5.9", 5.928),
        ("30%", 0.3),
        ("70 %", 0.7),
        ("100,000", 1e5),
        ("−0.10", -0.1),
        ("1.4e-3", 1.39e-3),
    ],
)
def test_numbers_are_read_as_they_are_written(text, value):
    assert written(f"It is {text} here.") == [text]
    assert agrees(text, value)


@pytest.mark.parametrize(
    "text",
    [
        "see chapter 2 and section 3 to 5",
        "as in [(2.1)](#eq-2-1)",
        "Elhage et al. 2021",
        "`x[3]` and $x_3 + 4$",
        "L1H3",
        "0 or 1",
    ],
)
def test_labels_formulas_and_code_say_nothing(text):
    assert written(text) == []


def test_a_formula_that_is_only_a_number_counts():
    assert written("a cosine of $-0.1$ and $2x$ and $2048$ rows") == ["-0.1", "2048"]


def test_the_command_fails_when_a_binding_does(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prose_numbers, "problems", lambda: ["page: no binding for '3'"])
    assert prose_numbers.main() == 1
    assert "no binding" in capsys.readouterr().out
