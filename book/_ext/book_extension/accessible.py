"""Fixes for the markup that Sphinx and docutils write, for readers who listen to the page, and of what they leave unread."""

import re


def fix(app, pagename, templatename, context, doctree) -> None:
    body = context.get("body") or ""
    # docutils calls a bibliography a list, although its entries have a role that a list may not contain.
    body = body.replace(
        '<div role="list" class="citation-list">', '<div class="citation-list">'
    ).replace(' role="doc-biblioentry"', "")
    # A signature that Sphinx cannot take apart, for the sake of a default value, keeps its marks for names without their modules.
    body = re.sub(
        r'<span class="pre">[^<]*~[^<]*',
        lambda found: re.sub(r"~(?:\w+\.)+(?=\w)", "", found[0]),
        body,
    )
    # A signature on several lines is written as a definition list of definitions without terms.
    body = re.sub(
        r"\n<dl>\n((?:<dd><em class=\"sig-param\">.*?</dd>\n)+)</dl>\n",
        lines_of_signature,
        body,
        flags=re.S,
    )
    # Markdown does not read what stands in a line of HTML.
    context["body"] = re.sub(
        r"(?<=<summary>)[^<]+(?=</summary>)", lambda found: as_written(found[0]), body
    )


def lines_of_signature(found) -> str:
    return (
        found[1]
        .replace("<dd><em", '<span class="ck-parameter"><em')
        .replace("</em>,</dd>", "</em>,</span>")
    )


MARKS = (
    (r"`([^`]+)`", r"<code>\1</code>"),
    (r"\$([^$]+)\$", r'<span class="math notranslate nohighlight">\\(\1\\)</span>'),
    (r"\[([^\]]+)\]\((#[^)]+)\)", r'<a href="\2">\1</a>'),
    (r"\*(\w[^*]*)\*", r"<em>\1</em>"),
)


def as_written(text: str) -> str:
    """A line of Markdown: code, formulas, links and stress, none inside another."""
    for pattern, html in MARKS:
        pieces = re.split(r"(<(code|span|a)\b.*?</\2>)", text)
        pieces[::3] = [re.sub(pattern, html, piece) for piece in pieces[::3]]
        text = "".join(piece for i, piece in enumerate(pieces) if i % 3 != 2)
    return text


def setup(app) -> None:
    app.connect("html-page-context", fix)
