"""What the book needs from Sphinx beyond Jupyter Book."""

import gc
from importlib import import_module

MODULES = ["accessible", "offline", "light", "alt_text", "page", "api", "claims", "equations"]
MODULES += [
    "answers",
    "predictions",
    "exercises",
    "glossary",
    "home",
    "lab",
    "moved",
    "one_line",
    "search",
    "what_works",
    "without_solutions",
    "questions",
    "reports",
]


def setup(app):
    gc.disable()  # the trees of all pages live until the build ends; searching them for garbage took 40% of its time
    for name in MODULES:
        import_module(f"book_extension.{name}").setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
