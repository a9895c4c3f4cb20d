r"""Numbered equations: a displayed formula with `\tag{2.1}` can be linked to as `[(2.1)](#eq-2-1)`, also from other pages.

The tag is plain TeX, so Jupyter, Colab and GitHub show the same number.
"""

import re

from docutils import nodes
from sphinx.transforms import SphinxTransform

from . import theme

TAG = re.compile(r"\\tag\{(\d+)\.(\d+)\}")


class NumberedEquations(SphinxTransform):
    default_priority = 800  # before MyST looks for the targets of `#` links, at 879

    def apply(self, **kwargs) -> None:
        for formula in self.document.findall(nodes.math_block):
            found = TAG.search(formula.astext())
            if not found:
                continue
            name = f"eq-{found[1]}-{found[2]}"
            formula["ids"], formula["names"] = [name], [name]
            self.document.note_explicit_target(formula, formula)
            # Where MyST keeps the anchors that other pages may link to.
            anchors = self.env.metadata[self.env.docname].setdefault("myst_slugs", {})
            anchors[name] = (formula.line or 0, name, f"({found[1]}.{found[2]})")
            # Sphinx would wrap a formula with a line break in `split`, where TeX allows no tag.
            if not formula.get("nowrap"):
                text = f"\\[{formula.astext()}\\]"
                formula.children, formula.rawsource = [], text
                formula += nodes.Text(text)
                formula["nowrap"] = True


def reachable(app, pagename, templatename, context, doctree) -> None:
    """On a phone an equation may be wider than the page: let the keyboard reach it to scroll it, and give it a name."""
    formulas = doctree.findall(nodes.math_block) if doctree else []
    context["body"] = theme.EQUATION.sub(
        r'\1 tabindex="0" role="group" aria-label="Equation \2.\3">',
        context.get("body") or "",
        pagename,
        needed=any(name.startswith("eq-") for formula in formulas for name in formula["ids"]),
    )


def setup(app) -> None:
    app.add_transform(NumberedEquations)
    app.connect("html-page-context", reachable)
