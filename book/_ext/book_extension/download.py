"""The download button of a notebook page saves the notebook, instead of showing its JSON.

A book that is read from the file system opens it in a new tab: browsers save nothing that no server sent.
"""

import re
from pathlib import Path

BUTTON = re.compile(
    r'(<a href="[^"]*\.ipynb" )(target="_blank"\s+class="[^"]*btn-download-source-button[^"]*"\s+title=)"[^"]*"'
)


def finish(app, error) -> None:
    if error or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        text = path.read_text("utf-8")
        if "btn-download-source-button" in text:
            changed = BUTTON.sub(r'\1download \2"Download this notebook with its outputs"', text)
            path.write_text(changed, "utf-8")


def setup(app) -> None:
    app.connect("build-finished", finish)
