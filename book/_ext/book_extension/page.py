"""The form of a page: the card under its title, the buttons of a notebook, captions, and the words on folded cells."""

import json
import re
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup
from docutils import nodes
from sphinx import addnodes
from tools.publish.home import home

from .without_solutions import LEFT_OUT

CAPTION = re.compile(r"(Figure|Table) \d+\.")
NUMBER = re.compile(r"\s*(?:[−+-]?\d[\d,.]*(?:e[+-]?\d+)?\s?%?|NaN|inf|)\s*")
QUESTION = re.compile(r"Question\.")
LIMITS = {"What this page does not show", "Sources"}
SHORT = 24  # letters of code that stay on one line of a sentence
TRUST = "book/intro.html#trust"
#: What a folded cell says, by the tag that folds it.
FOLDS = {
    "tag_solution": ("Show the solution", "Hide the solution"),
    "tag_method": ("Show the code of this function", "Hide the code"),
    "tag_numbers": ("Show the numbers", "Hide the numbers"),
    "tag_hide-output": ("Show the {type}", "Hide the {type}"),
    "tag_hide-input": ("Show the code that draws this", "Hide the code"),
}


def read(app, doctree) -> None:
    """Give a page its form, before Sphinx collects the files that the page offers."""
    captions(doctree)
    words_on_folds(doctree)
    numbers_to_the_right(doctree)
    for code in doctree.findall(nodes.literal):
        if len(code.astext()) <= SHORT:
            code["classes"].append("ck-short")
    title = doctree.next_node(nodes.title)
    if title is None:
        return
    card, last = as_card(title.parent)
    source = Path(app.env.doc2path(app.env.docname))
    if source.suffix == ".ipynb":
        fold_limits(doctree)
        box = buttons(app.env, source)
        if card is None:
            title.parent.insert(title.parent.index(last) + 1, box)
        else:
            card.append(box)


def captions(doctree) -> None:
    """Mark the paragraphs that begin with **Figure 1.** or **Table 1.**"""
    for paragraph in doctree.findall(nodes.paragraph):
        if begins_with(paragraph, CAPTION):
            is_table = paragraph.astext().startswith("Table")
            paragraph["classes"] += ["ck-caption", *["ck-below-table"] * is_table]


def words_on_folds(doctree) -> None:
    """Say what a folded cell holds."""
    for cell in doctree.findall(nodes.container):
        for tag in FOLDS:
            if tag in cell["classes"]:
                cell["prompt_show"], cell["prompt_hide"] = FOLDS[tag]
                break


def fold_limits(doctree) -> None:
    """Fold what a page does not show and its sources into one block."""
    found = [
        one
        for one in doctree.findall(nodes.section)
        if one.next_node(nodes.title).astext() in LIMITS
    ]
    if not found:
        return
    parent = found[0].parent
    opening = '<details class="ck-limits"><summary>Limits and sources</summary>'
    parent.insert(parent.index(found[0]), nodes.raw("", opening, format="html"))
    parent.insert(parent.index(found[-1]) + 1, nodes.raw("", "</details>", format="html"))


def begins_with(paragraph, pattern) -> bool:
    """Whether a paragraph begins with strong words of this pattern."""
    first = next((child for child in paragraph.children if child.astext()), None)
    return isinstance(first, nodes.strong) and bool(pattern.match(first.astext()))


def as_card(section):
    """Turn the table below the question into the card of the page; return the card and what it follows."""
    title = section.next_node(nodes.title)
    paragraphs = [child for child in section.children if isinstance(child, nodes.paragraph)]
    question = next((child for child in paragraphs if begins_with(child, QUESTION)), None)
    if question is None:
        return None, title
    question["classes"].append("ck-question")
    table = question.next_node(siblings=True, descend=False)
    heads = [entry.astext() for entry in table.findall(nodes.entry)]
    if heads[:1] != ["You will"]:
        return None, question
    rows = list(table.findall(nodes.row))
    items = nodes.definition_list()
    for name, entry in zip(heads, rows[1].children, strict=False):
        meaning = nodes.definition("", *entry.children)
        items += nodes.definition_list_item("", nodes.term("", name), meaning)
    card = nodes.container("", items, classes=["ck-card"])
    table.replace_self(card)
    return card, card


def buttons(env, source: Path):
    """Colab, the source, the notebook as a file, the exercises of the chapter, and the mark of a checked page."""
    folder, _, name = env.docname.rpartition("/")
    chapter = folder.rpartition("/")[2]
    up = "../" * env.docname.count("/")
    is_exercises = name == "exercises"
    colab = home().colab(f"exercises/{chapter}.ipynb" if is_exercises else f"{env.docname}.ipynb")
    links = [f'<a class="ck-button" href="{escape(colab)}">Open in Colab</a>'] if colab else []
    if there := home().source(f"{env.docname}.ipynb"):
        links.append(f'<a class="ck-button" href="{escape(there)}">Source</a>')
    notebook = f"{up}_sources/{env.docname}.ipynb"
    words = "Download with solutions" if is_exercises else "Download notebook"
    box = nodes.container(classes=["ck-buttons"])
    if is_exercises:
        copy = addnodes.download_reference(
            "", "", reftarget=f"/exercises/{chapter}.ipynb", classes=["ck-button"]
        )
        copy += nodes.inline("", "Download to work on")
        box += nodes.paragraph("", "", copy)
    if not (is_exercises and LEFT_OUT):
        links.append(f'<a class="ck-button" href="{notebook}" download>{words}</a>')
    if f"{folder}/exercises" in env.found_docs and not is_exercises:
        links.append('<a class="ck-button" href="exercises.html">Exercises</a>')
    if number := checks(source):
        many = "statements" if number > 1 else "statement"
        text = f"<span aria-hidden='true'>✓</span> {number} {many} checked"
        links.append(f'<a class="ck-checked" href="{up}{TRUST}">{text}</a>')
    box += nodes.raw("", "\n".join(links), format="html")
    return box


def numbers_to_the_right(doctree) -> None:
    """Mark the columns of a DataFrame that hold numbers."""
    for raw in doctree.findall(nodes.raw):
        if 'class="dataframe"' not in raw.astext():
            continue
        page = BeautifulSoup(raw.astext(), "html.parser")
        rows = [row.find_all(["th", "td"], recursive=False) for row in page.find_all("tr")]
        for column in zip(*(reversed(row) for row in rows), strict=False):
            values = [cell.get_text() for cell in column if cell.find_parent("tbody")]
            if all(map(NUMBER.fullmatch, values)):
                for cell in column:
                    cell["class"] = "ck-number"
        raw.clear()
        raw += nodes.Text(str(page))


def checks(source: Path) -> int:
    """The number of cells that check what the page says; the page itself does not show them."""
    cells = json.loads(source.read_text("utf-8"))["cells"]
    return sum("check" in cell["metadata"].get("tags", []) for cell in cells)


def with_version(app, config) -> None:
    """Say in the foot of each page which version of the library wrote its numbers."""
    from circuitkit import __version__

    foot = config.html_theme_options.get("extra_footer", "")
    config.html_theme_options["extra_footer"] = f"{foot}<p>circuitkit {__version__}</p>"


def setup(app) -> None:
    app.connect("doctree-read", read, priority=100)
    app.connect("config-inited", with_version)
