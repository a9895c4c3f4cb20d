"""What the book needs from Sphinx beyond Jupyter Book: no other host, alt text, and docstrings as they are written.

sphinx-codeautolink 0.19, which would link the names in code cells to the reference, was tried and is not used. It reads a
cell as plain Python, so it warns of every setup cell (`%pip`), and a warning ends this build; and it looks each name up with
`getattr` and lets any error but AttributeError pass, so the build stops at `transformer_lens.HookedTransformer`, which that
library answers with an ImportError. Both are to be mended there.
"""

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
    formulas.setup(app)
    glossary.setup(app)
    home.setup(app)
    lab.setup(app)
    reader_copies.setup(app)
    search.setup(app)
    times.setup(app)
    trials.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
