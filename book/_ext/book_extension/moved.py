"""Pages that have moved: each old address leads to the new one until the first release."""

from html import escape
from pathlib import Path

MOVED = {
    "book/3-induction-heads/one-circuit-many-methods": "book/3-induction-heads/one-culprit-many-methods",
    "book/4-mlps-as-heads/omega-transformer": "book/4-mlps-as-heads/omega-construction",
    "book/4-mlps-as-heads/omega-limits": "book/4-mlps-as-heads/appendix-omega",
}
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="0; url={address}">
</head>
<body><p>This page has moved: <a href="{address}">{address}</a>.</p></body>
</html>
"""


def write(app, error) -> None:
    """Write a page at each old address, which leads on; a page that exists there, or one that is missing, is a mistake."""
    if error or app.builder.format != "html":
        return
    for old, new in MOVED.items():
        if old in app.env.found_docs or new not in app.env.found_docs:
            raise ValueError(
                f"book_extension/moved.py leads from {old} to {new}. The first must not be a page, and the second must be one."
            )
        path = Path(app.outdir) / f"{old}.html"
        address = "../" * old.count("/") + f"{new}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(address=escape(address)), "utf-8")


def setup(app) -> None:
    app.connect("build-finished", write)
