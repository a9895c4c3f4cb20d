"""Code that does little but draw is folded; Enter opens it, and the notebook that a reader downloads has it as it is."""

import re

from myst_nb.sphinx_ import SphinxNbRenderer

DRAWS = re.compile(r"\b(?:ax|axes|left|right|fig|plt|figures)(?:\[[^\]]*\])?[.,]")
plain = SphinxNbRenderer.render_nb_cell_code


def draws(source: str, outputs) -> bool:
    """Whether half of a cell's lines draw, and a picture comes of them."""
    lines = [line for line in source.splitlines() if line.strip()]
    drawing = [line for line in lines if DRAWS.search(line)]
    return any("image/png" in out.get("data", {}) for out in outputs) and 2 * len(drawing) >= len(
        lines
    )


def render(self, token) -> None:
    if draws(token.content, self._get_nb_code_cell_outputs(token)[1]):
        metadata = token.meta["metadata"]
        metadata["tags"] = [*metadata.get("tags", []), "hide-input"]
        metadata["mystnb"] = {
            "code_prompt_show": "Show the code that draws this",
            "code_prompt_hide": "Hide the code",
        }
    plain(self, token)


def setup(app) -> None:
    SphinxNbRenderer.render_nb_cell_code = render
