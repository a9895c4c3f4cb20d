"""The numbers in the prose are what the stored outputs and the shipped files say."""

import json

import pytest

import circuitkit as ck
from circuitkit_book.exercises.chapters import number_of
from tools.check import numbers_in_prose as checker

NUMBER = number_of("first_share")
TABLE = (
    "<table><caption>Loss by model</caption><tr><th>model</th><th>loss</th></tr>"
    "<tr><th>one-layer</th><td>3.7166</td></tr><tr><th>two-layer</th><td>3.8523</td></tr></table>"
)


@pytest.fixture
def problems(tmp_path):
    """What is wrong with a page of one paragraph, one code cell and its outputs."""
    outputs = [{"text": "share: 28.4%, 2,048 rows\n"}, {"data": {"text/html": TABLE}}]
    code = {"cell_type": "code", "source": "runs = 1_600", "outputs": outputs}

    def check(text, name="page"):
        path = tmp_path / f"{abs(hash(text))}.ipynb"
        cells = [{"cell_type": "markdown", "source": text}, code]
        path.write_text(json.dumps({"cells": cells}), "utf-8")
        return checker.problems(path, name)

    return check


@pytest.mark.parametrize("name", checker.pages())
def test_numbers_of_the_page_are_true_and_bound(name):
    found = checker.problems(checker.pages()[name], name)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        'It has 160<!-- = cfg("two-layer").d_model --> dimensions.',
        "A share of 28 %<!-- = out(r'share: (\\S+),') --> of 2,048<!-- = out(r'(\\S+) rows') -->.",
        "After 1,600<!-- = code(r'runs = (\\S+)') --> runs, 1.6e3<!-- = 1600 --> in all.",
        'The loss is **3.72**<!-- = cell("Loss by model", "one-layer", "loss") -->.',
        'The loss is 3.9<!-- = cell("Loss by model", 1, 1) -->, below 4.5<!-- > 3.85 -->.',
        "Try 40<!-- chosen --> or 50<!-- chosen: twice as slow --> of them.",
        f'The tool of Ex {NUMBER}<!-- = ex("first_share") --> and of {NUMBER}<!-- = ex("first_share") -->.',
        "Twelve or 12 of them in 2021, see chapter 13, `x[14]`, $15$ and [(2.6)](#eq-2-6).",
    ],
)
def test_true_numbers_pass(problems, text):
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("It has 640 rows.", '"640" in page has no binding: put <!-- = expression --> behind it'),
        ("A share of 5 %.", '"5 %" in page has no binding'),
        ("A loss of 0.5.", '"0.5" in page has no binding'),
        ("It has 13<!-- choosen --> rows.", '"13" in page has no binding'),
        ("It has 161<!-- = 160 --> rows.", '"161" is false: = 160, which is 160'),
        ("A share of 29 %<!-- = out(r'share: (\\S+),') -->.", '"29 %" is false'),
        ("The tool of Ex 2.2 finds it.", '"2.2" in page has no binding'),
        (f'See Ex {NUMBER}<!-- = ex("copying_score") -->.', f'"{NUMBER}" is false'),
        ('See Ex 2.2<!-- = ex("first_shar") -->.', "Write its name at its place in CHAPTERS"),
        ("Below 0.3<!-- > 0.31 -->.", '"0.3" is false'),
        ("It has some<!-- = 3 --> rows.", "does not stand behind a number"),
        ("It has 3<!-- = out(r'none (\\d)') --> rows.", '"3" cannot be checked'),
        ('It is 3.7<!-- = cell("Loss", "three-layer", "loss") -->.', "0 places have the row"),
    ],
)
def test_false_or_unbound_numbers_are_reported(problems, text, message):
    assert message in "\n".join(problems(text))


@pytest.mark.parametrize("model", ck.models.list_models())
def test_stored_sizes_are_those_of_the_loaded_model(model):
    loaded, stored = ck.load_model(model).cfg, checker.cfg(model)
    for name in ("n_layers", "d_model", "d_vocab", "n_ctx", "n_heads", "d_head"):
        if loaded.n_layers or name not in ("n_heads", "d_head"):
            assert getattr(stored, name) == getattr(loaded, name), name
