"""The reports that the book shows are those of the models that ship."""

import csv
from pathlib import Path

import pytest

import circuitkit as ck

STORED = Path(__file__).resolve().parents[3] / "book" / "_static" / "reports"


@pytest.mark.parametrize("name", ck.list_models())
def test_there_is_a_page_and_a_table(name):
    assert f"<h1>{name}</h1>" in (STORED / f"{name}.html").read_text("utf-8")
    assert f"{name}.html" in (STORED.parents[1] / "reports.md").read_text("utf-8")


def test_the_stored_numbers_are_still_the_models():
    stored = {
        (row["part"], row["name"], row["measure"]): row
        for row in csv.DictReader((STORED / "one-layer.csv").read_text("utf-8").splitlines())
        if row["text"] == ""
    }
    fresh = {
        (row["part"], row["name"], row["measure"]): row
        for row in ck.report("one-layer").rows
        if row["text"] == ""
    }
    assert stored.keys() == fresh.keys()
    assert len(stored) > 20
    for key, row in fresh.items():
        assert float(stored[key]["value"]) == pytest.approx(row["value"], abs=1e-3), key
