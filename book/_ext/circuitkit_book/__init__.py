"""What the book needs from Sphinx beyond Jupyter Book: no other host, alt text, and docstrings as they are written."""

from . import (
    accessible,
    alt_text,
    api,
    claims,
    download,
    equations,
    folded,
    glossary,
    home,
    lab,
    light,
    offline,
    reader_copies,
    search,
    times,
    trials,
)


def setup(app):
    accessible.setup(app)
    offline.setup(app)
    light.setup(app)
    alt_text.setup(app)
    api.setup(app)
    claims.setup(app)
    download.setup(app)
    equations.setup(app)
    folded.setup(app)
    glossary.setup(app)
    home.setup(app)
    lab.setup(app)
    reader_copies.setup(app)
    search.setup(app)
    times.setup(app)
    trials.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
