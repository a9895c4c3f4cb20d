"""What the book needs from Sphinx beyond Jupyter Book."""

from . import (
    accessible,
    alt_text,
    api,
    claims,
    download,
    equations,
    folded,
    formulas,
    glossary,
    home,
    lab,
    light,
    offline,
    one_line,
    reader_copies,
    search,
    times,
    what_works,
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
    formulas.setup(app)
    glossary.setup(app)
    home.setup(app)
    lab.setup(app)
    one_line.setup(app)
    reader_copies.setup(app)
    search.setup(app)
    times.setup(app)
    what_works.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
