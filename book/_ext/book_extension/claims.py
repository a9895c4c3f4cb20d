"""The claims register as a page: counts, and a table for each source that needs no script; `claims.js` filters it."""

import json
import re
from collections import Counter
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlencode

import jinja2
from docutils.nodes import make_id

PAGE = "book/claims"
COUNTS, ROWS = "<!-- claims: counts -->", "<!-- claims: rows -->"
SUMMARY = "<!-- claims: summary -->"
BOOK = Path(__file__).resolve().parents[2]


def register():
    """The rows, the sources and the verdicts; imports nothing heavy."""
    from circuitkit_book.claims import load
    from circuitkit_book.claims.register import SOURCES, VERDICTS

    claims = load()
    return (
        claims,
        {key: name for key, name in SOURCES.items() if any(c.source == key for c in claims)},
        VERDICTS,
    )


def anchor(claim) -> str:
    return claim.id.lower()


def section_of(title: str) -> str:
    """The anchor of a heading on the page, where an apostrophe is typeset curved and leaves no trace in the anchor."""
    return make_id(title.replace("'", ""))


def short(source: str) -> str:
    """`Huben 2023` of `Huben 2023, No Really, ...`, and `A reader's notes` of the notes."""
    return re.split(r", | on the |: ", source)[0]


def summary() -> str:
    """How many claims are checked and what came out, in three sentences for the introduction."""
    claims = register()[0]
    found = Counter(claim.verdict for claim in claims)
    computed = sum(bool(claim.by) for claim in claims)
    in_setting = found["holds in the source's setting"]
    untrained = found["holds without training"]
    same = (
        f" For {untrained} other{'s' * (untrained > 1)}, the result agrees with the claim, but it is the same for "
        "models that have learnt nothing."
    )
    return (
        f"The register lists {len(claims)} claims of our sources, and the tests compute {computed} of them again. "
        f"Of all claims, {found['holds']} hold.{same if untrained else ''} Another {in_setting} hold in the setting of "
        f"their source and not in ours, {are(found['too strong'], 'too strong')}, {are(found['wrong'], 'wrong')}, "
        f"{are(found['misprint'], 'misprints', 'a misprint')}, "
        f"{are(found['definition'], 'definitions that differ', 'a definition that differs')} from ours, and "
        f"{found['cannot be checked here']} cannot be checked here."
    )


def are(count: int, many: str, one: str = "") -> str:
    """`1 is a misprint`, `7 are misprints`."""
    return f"1 is {one or many}" if count == 1 else f"{count} are {many}"


def tables(part: str, *arguments) -> str:
    """A macro of `claims.html`, written with the register."""
    claims, sources, verdicts = register()
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent))
    environment.filters |= {"id": make_id, "section": section_of, "short": short, "prose": prose}
    environment.filters |= {"lines": lines, "links": links}
    names = {"claims": claims, "sources": sources, "verdicts": verdicts}
    template = environment.get_template("claims.html", globals=names)
    return f"```{{raw}} html\n{getattr(template.module, part)(*arguments)}\n```"


def rows() -> str:
    """A heading and a table for each source."""
    return "\n\n".join(
        f"## {name}\n\n{tables('table', key)}" for key, name in register()[1].items()
    )


def links(claim) -> list[str]:
    """The page that treats a claim, the lab that shows it, and the functions that compute it and its null."""
    title = title_of(claim.chapter)
    page = [f'<a href="{address(claim.chapter)}">{escape(title)}</a>'] if title else []
    if claim.lab:
        state = urlencode(claim.lab, quote_via=quote)
        # `claims.js` joins them, because bootstrap takes every address with a hash for the name of a section.
        page.append(
            f'<a class="ck-see" href="lab.html" data-state="{escape(state)}">See it in the lab</a>'
        )
    return page + [f"<code>{escape(by)}</code>" for by in (claim.by, claim.null_by) if by]


def listed(value) -> list:
    """A list as it is, and one value as a list of one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def lines(claim) -> list[tuple[str, list[str]]]:
    """The numbers, one to a line: what it is, the value here, its null, and what the text says."""
    here, said = listed(claim.value), listed(claim.said)
    tolerance = (
        claim.tolerance if isinstance(claim.tolerance, list) else [claim.tolerance] * len(here)
    )
    found = []
    for i, value in enumerate(here):
        cells = [f"<strong>{number(value, tolerance[i])}</strong>"]
        if claim.null:
            cells.append(null_range(claim.null[i]))
        if said:
            cells.append(number(said[i]) if i < len(said) else "")
        found.append((claim.labels[i] if claim.labels else "", cells))
    return found


def null_range(null: list) -> str:
    """`0.02 to 0.05`, one number if both ends look the same, and nothing for an entry without a null."""
    ends = list(dict.fromkeys(number(end) for end in null))
    return " to ".join(ends)


def number(value, tolerance: float = 0) -> str:
    """A value as a reader wants it: four digits, words for truth values, nothing below its tolerance."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(number(one, tolerance) for one in value)
    if not isinstance(value, (int, float)):
        return escape(str(value))
    if tolerance and abs(value) < tolerance:
        return f"0 (to {tolerance:.0e})".replace("e-0", "e-")
    if isinstance(value, int) or value == int(value) or abs(value) >= 1000:
        text = f"{value:,.0f}".replace(",", "\u202f")  # narrow spaces between thousands
    else:
        text = f"{value:.4g}".replace("e-0", "e-")
    return text.replace("-", "\u2212", 1) if text.startswith("-") else text


def prose(text: str) -> str:
    """Text with `code`, and `claim P2` as a link."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\b([EHPNGA]\d+)\b", lambda m: f'<a href="#{m[1].lower()}">{m[1]}</a>', text)


def address(chapter: str) -> str:
    page, _, place = chapter.partition("#")
    return f"{page}.html#{place}" if place else f"{page}.html"


@cache
def title_of(chapter: str) -> str:
    """The title of the page that treats a claim; empty if the page is not there."""
    path = BOOK / f"{chapter.partition('#')[0]}.ipynb"
    if path.is_file():
        cells = json.loads(path.read_text("utf-8"))["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    elif path.with_suffix(".md").is_file():
        text = path.with_suffix(".md").read_text("utf-8")
    else:
        return ""
    return re.search(r"^# (.+)$", text, re.M)[1].strip()


def fill(app, docname, source) -> None:
    source[0] = source[0].replace(SUMMARY, summary()) if SUMMARY in source[0] else source[0]
    if docname != PAGE:
        return
    app.env.note_dependency(str(files("circuitkit_book.claims") / "claims.toml"))
    title_of.cache_clear()
    source[0] = source[0].replace(COUNTS, tables("counts")).replace(ROWS, rows())


def name_rows(app, doctree) -> None:
    """Rows are targets: `[P2](claims.md#p2)` in a chapter is a link like any other, checked at the build."""
    if app.env.docname == PAGE:
        slugs = app.env.metadata[PAGE].setdefault("myst_slugs", {})
        for claim in register()[0]:
            slugs[anchor(claim)] = (1, anchor(claim), f"claim {claim.id}")


def scripts(app, pagename, templatename, context, doctree) -> None:
    if pagename == PAGE:
        app.add_css_file("claims.css")
        app.add_css_file("lab/lab.css")
        app.add_js_file("claims.js", loading_method="defer")


def setup(app) -> None:
    app.connect("source-read", fill)
    app.connect("doctree-read", name_rows)
    app.connect("html-page-context", scripts)
