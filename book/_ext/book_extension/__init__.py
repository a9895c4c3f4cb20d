"""What the book needs from Sphinx beyond Jupyter Book."""

from . import (
    accessible,
    alt_text,
    api,
    claims,
    colab_links,
    equations,
    glossary,
    home,
    lab,
    light,
    offline,
    one_line,
    page,
    search,
    what_works,
)

MODULES = (
    accessible, offline, light, alt_text, page, api, claims, colab_links, equations, glossary, home, lab, one_line,
    search, what_works,
)  # fmt: skip


def setup(app):
    for module in MODULES:
        module.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
