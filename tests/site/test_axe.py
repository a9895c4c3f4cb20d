"""Accessibility rules of axe-core, on three different pages; the weekly tests check all pages."""

import pytest

KINDS = {
    "home": "book/intro.html",
    "chapter": "book/1-residual-stream/circuit-in-one-picture.html",
    "exercises": "book/1-residual-stream/exercises.html",
    "lab": "book/lab.html",
    "claims": "book/claims.html?verdict=wrong",
    "search": "search.html?q=softmax",
}


SOME = ["home", "chapter", "lab"]
OTHERS = [pytest.param(kind, marks=pytest.mark.weekly) for kind in KINDS if kind not in SOME]


@pytest.mark.parametrize("kind", [*SOME, *OTHERS])
def test_page_has_no_serious_accessibility_fault(open_page, site, kind):
    opened = open_page(f"{site}/{KINDS[kind]}")
    opened.read()
    assert opened.accessibility_faults() == []
