"""The claims register as a page: counts, and a table for each source that needs no script; `claims.js` filters it."""

import json
import re
from collections import Counter
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

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


def counts() -> str:
    claims, sources, verdicts = register()
    found = Counter((claim.source, claim.verdict) for claim in claims)
    head = "".join(
        f'<th scope="col" role="columnheader">{badge(verdict, name)}</th>'
        for verdict, name in verdicts.items()
    )
    lines = [
        line(
            f'<a href="#{section_of(name)}">{escape(short(name))}</a>',
            {verdict: found[key, verdict] for verdict in verdicts},
        )
        for key, name in sources.items()
    ]
    total = Counter(claim.verdict for claim in claims)
    lines.append(line("All", {verdict: total[verdict] for verdict in verdicts}))
    return raw(
        '<div class="ck-scroll"><table class="ck-counts" role="table"><caption>Claims of each text by verdict</caption>'
        f'<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Text</th>{head}'
        '<th scope="col" role="columnheader">all</th></tr></thead>'
        f'<tbody role="rowgroup">{"".join(lines)}</tbody></table></div>'
        + controls(claims, sources, verdicts)
    )


def summary() -> str:
    """How many claims are checked and what came out, in three sentences for the introduction."""
    claims = register()[0]
    found = Counter(claim.verdict for claim in claims)
    computed = sum(bool(claim.by) for claim in claims)
    in_setting = found["holds in the source's setting"]
    untrained = found["holds without training"]
    return (
        f"The register lists {len(claims)} claims of our sources, and the tests compute {computed} of them again. "
        f"Of all claims, {found['holds']} hold. For {untrained} other, the result agrees with the claim, but it is the "
        f"same for models that have learnt nothing. Another {in_setting} hold in the setting of their source and not "
        f"in ours, {found['too strong']} are too strong, {found['wrong']} are wrong, and "
        f"{found['cannot be checked']} cannot be checked."
    )


def line(name: str, numbers: dict[str, int]) -> str:
    """A row of the counts; the verdict of a cell is its label where the row is shown as a card."""
    numbers = {**numbers, "all": sum(numbers.values())}
    cells = "".join(
        f'<td role="cell" data-label="{escape(verdict)}" class="{"" if number else "ck-none"}">{number or "–"}</td>'
        for verdict, number in numbers.items()
    )
    return f'<tr role="row"><th scope="row" role="rowheader">{name}</th>{cells}</tr>'


def controls(claims, sources, verdicts) -> str:
    """The filters; hidden until the script that makes them work is there."""
    options = "".join(
        f'<option value="{key}">{escape(short(name))}</option>' for key, name in sources.items()
    )
    boxes = "".join(
        f'<label><input type="checkbox" name="verdict" value="{make_id(key)}" checked> {name}</label>'
        for key, name in verdicts.items()
    )
    return (
        '<form id="ck-filter" class="ck-filter" aria-label="Filter the claims" hidden>'
        '<label class="ck-field">Words <input type="search" name="words" placeholder="LayerNorm" autocomplete="off"></label>'
        f'<label class="ck-field">Text <select name="source"><option value="">all</option>{options}</select></label>'
        f'<fieldset><legend>Verdict</legend>{boxes}</fieldset><p><output role="status">{len(claims)} claims</output> '
        '<button type="reset">Show all</button></p></form>'
    )


def rows() -> str:
    claims, sources, _ = register()
    return "\n\n".join(
        f"## {name}\n\n" + raw(table(name, [claim for claim in claims if claim.source == key]))
        for key, name in sources.items()
    )


def table(name: str, claims) -> str:
    # The roles keep a table a table where a narrow page shows its rows as cards.
    return (
        f'<table class="ck-claims" role="table" aria-label="Claims of {escape(short(name))}">'
        '<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Id</th>'
        '<th scope="col" role="columnheader">Claim</th><th scope="col" role="columnheader">Computed here</th>'
        '<th scope="col" role="columnheader">Verdict</th></tr></thead>'
        f'<tbody role="rowgroup">{"".join(row(claim) for claim in claims)}</tbody></table>'
    )


def row(claim) -> str:
    from circuitkit_book.claims.register import VERDICTS

    title = title_of(claim.chapter)
    more = [f'<a href="{address(claim.chapter)}">{escape(title)}</a>'] if title else []
    more += [f"<code>{escape(by)}</code>" for by in (claim.by, claim.null_by) if by]
    links = f'<p class="ck-links">{" · ".join(more)}</p>' if more else ""
    texts = [("ck-would", claim.would_hold), ("ck-note", claim.note)]
    note = "".join(f'<p class="{name}">{prose(text)}</p>' for name, text in texts if text)
    return (
        f'<tr role="row" class="ck-claim" id="{anchor(claim)}" data-source="{claim.source}" '
        f'data-verdict="{make_id(claim.verdict)}"><th scope="row" role="rowheader">'
        f'<a href="#{anchor(claim)}" aria-label="Claim {claim.id}, link to this row">{claim.id}</a></th>'
        f'<td role="cell" class="ck-what"><p>{prose(claim.claim)}</p><p class="ck-place">{escape(claim.place)}</p>{note}'
        f"{links}</td>"
        f'<td role="cell" class="ck-how"><p>{prose(claim.computes)}</p>{values(claim)}</td>'
        f'<td role="cell" class="ck-judged">{badge(claim.verdict, VERDICTS[claim.verdict])}</td></tr>'
    )


def badge(verdict: str, name: str) -> str:
    return f'<span class="ck-verdict" data-verdict="{make_id(verdict)}">{name}</span>'


def values(claim) -> str:
    """The numbers, one to a line: what it is, the value here, its null, and what the text says."""
    if claim.value is None:
        return ""
    here = claim.value if isinstance(claim.value, list) else [claim.value]
    said = (
        claim.said if isinstance(claim.said, list) else [] if claim.said is None else [claim.said]
    )
    tolerance = (
        claim.tolerance if isinstance(claim.tolerance, list) else [claim.tolerance] * len(here)
    )
    labels = claim.labels or [""] * len(here)
    lines = []
    for i, value in enumerate(here):
        name = f'<th scope="row">{prose(labels[i])}</th>' if labels[i] else "<td></td>"
        cells = [f"<strong>{number(value, tolerance[i])}</strong>"]
        if claim.null:
            cells.append(null_range(claim.null[i]))
        if said:
            cells.append(number(said[i]) if i < len(said) else "")
        lines.append(f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    columns = ["here", *(["null"] if claim.null else []), *(["source"] if said else [])]
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    head = f"<thead><tr><td></td>{head}</tr></thead>" if len(columns) > 1 else ""
    about = f'<p class="ck-null">Null: {prose(claim.null_of)}.</p>' if claim.null else ""
    return f'<table class="ck-values">{head}<tbody>{"".join(lines)}</tbody></table>{about}'


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


def raw(html: str) -> str:
    return f"```{{raw}} html\n{html}\n```"


def fill(app, docname, source) -> None:
    source[0] = source[0].replace(SUMMARY, summary()) if SUMMARY in source[0] else source[0]
    if docname != PAGE:
        return
    app.env.note_dependency(str(files("circuitkit_book.claims") / "claims.toml"))
    title_of.cache_clear()
    source[0] = source[0].replace(COUNTS, counts()).replace(ROWS, rows())


def name_rows(app, doctree) -> None:
    """Rows are targets: `[P2](claims.md#p2)` in a chapter is a link like any other, checked at the build."""
    if app.env.docname == PAGE:
        slugs = app.env.metadata[PAGE].setdefault("myst_slugs", {})
        for claim in register()[0]:
            slugs[anchor(claim)] = (1, anchor(claim), f"claim {claim.id}")


def scripts(app, pagename, templatename, context, doctree) -> None:
    if pagename == PAGE:
        app.add_css_file("claims.css")
        app.add_js_file("claims.js", loading_method="defer")


def setup(app) -> None:
    app.connect("source-read", fill)
    app.connect("doctree-read", name_rows)
    app.connect("html-page-context", scripts)
