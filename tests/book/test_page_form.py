"""A page in the folder of a chapter has a question, a card, short cells for readers, and numbered figures with captions."""

import re

import nbformat
import pytest
from nbformat import v4

from tools.notebooks.execute import ROOT, notebooks

HIDDEN = {"remove-cell", "remove-input", "hide-input", "hide-cell"}
CARD = re.compile(r"# .+\n\n\*\*Question\.\*\* .+?\n\n\| You will \| You need \| Time \|\n", re.S)
CAPTION = re.compile(r"\*\*Figure (\d+)\. .+?\*\*", re.S)
TABLE = re.compile(r"^\*\*Table (\d+)\. ", re.M)
ALT = re.compile(r'(?:alt|aria-label)="([^"]*)"')
LINES, COLUMNS = 12, 76


def faults(notebook) -> list[str]:
    """One sentence for each fault of a notebook."""
    cells = notebook.cells
    found = [] if CARD.match(cells[0].source) else ["no title, **Question.** and card table"]
    for number, cell in enumerate(cells):
        kind = code_faults if cell.cell_type == "code" else prose_faults
        found += [f"cell {number}: {fault}" for fault in kind(cell)]
    return found + figure_faults(cells) + table_faults(cells)


def code_faults(cell) -> list[str]:
    """Faults of the code and the text output of one cell."""
    lines, found = cell.source.split("\n"), []
    tags = set(cell.metadata.get("tags", []))
    if "check" not in tags and re.search(r"^\s*assert\b", cell.source, re.M):
        found.append("an assert belongs in a cell tagged check and remove-cell")
    if "check" in tags and "remove-cell" not in tags:
        found.append("a cell tagged check needs the tag remove-cell, too")
    if not tags & HIDDEN and len(lines) > LINES:
        found.append(f"{len(lines)} lines, at most {LINES}")
    for line in text_output(cell) if tags & HIDDEN else lines + text_output(cell):
        if len(line) > COLUMNS and "remove-cell" not in tags:
            found.append(f"more than {COLUMNS} columns: {line.strip()[:40]}")
    return found


def text_output(cell) -> list[str]:
    """The lines of text that the page shows: not the plain form of a table or a picture."""
    texts = [output.get("text", "") for output in cell.outputs]
    for output in cell.outputs:
        data = output.get("data", {})
        if not any(kind == "text/html" or kind.startswith("image/") for kind in data):
            texts.append(data.get("text/plain", ""))
    return "\n".join(texts).split("\n")


def prose_faults(cell) -> list[str]:
    """A caption is a cell of its own, so that the page can set it apart."""
    if re.search(r"\n\*\*Figure \d+\.", cell.source):
        return ["a caption is not the beginning of its cell"]
    if CAPTION.match(cell.source) and "\n\n" in cell.source:
        return ["a caption is one paragraph; the text after it is a cell of its own"]
    return []


def alts(cell) -> list[str]:
    """The alt text of each picture in the outputs of a cell."""
    found = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        for kind in (kind for kind in data if kind.startswith("image/")):
            found.append(output.metadata.get(kind, {}).get("alt", ""))
        html = data.get("text/html", "")
        if re.search(r"<(figure|svg|img)\b", html):
            found.append("\n".join(ALT.findall(html)))
    return found


def figure_faults(cells) -> list[str]:
    """Every picture has one caption behind it; captions count from 1 and say something else than the alt text."""
    found, numbers = [], []
    for cell, following in zip(
        cells, [*cells[1:], {"source": "", "cell_type": "raw"}], strict=True
    ):
        text = following["source"] if following["cell_type"] == "markdown" else ""
        caption = CAPTION.match(text)
        for alt in alts(cell):
            if not caption:
                found.append(f"a picture without a caption behind it: {alt[:60]!r}")
            elif not alt:
                found.append(f"Figure {caption[1]} has no alt text: figures.show(fig, alt=...)")
            elif plain(alt) in plain(text):
                found.append(f"Figure {caption[1]}: the caption repeats the alt text")
        if len(alts(cell)) > 1:
            found.append("a cell with several pictures: one caption for each, so one cell for each")
    for cell in cells:
        if cell.cell_type == "markdown" and (caption := CAPTION.match(cell.source)):
            numbers.append(int(caption[1]))
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"figures are numbered {numbers}")
    return found


def table_faults(cells) -> list[str]:
    """Captions of tables count from 1, so that none is lost with the text around it, and each stands below its table."""
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    numbers = [int(number) for text in texts for number in TABLE.findall(text)]
    found = []
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"tables are numbered {numbers}")
    shown = [cell for cell in cells if cell.cell_type == "markdown" or cell.outputs]
    for above, cell in zip(shown, shown[1:], strict=False):
        if cell.cell_type == "markdown" and TABLE.match(cell.source) and not has_table(above):
            found.append(f"no table above the caption: {cell.source[:30]}")
    return found


def has_table(cell) -> bool:
    """Whether a cell shows a table."""
    outputs = cell.get("outputs", [])
    return any("text/html" in output.get("data", {}) for output in outputs)


def plain(text: str) -> str:
    """The words of a text in lower case, without marks."""
    return " ".join(re.findall(r"\w+", text.lower()))


#: Not yet written in this form. A page leaves the list when it is.
WAITING = {f"{chapter}/exercises.ipynb" for chapter in (
    "3-induction-heads",
)}  # fmt: skip
PAGES = {path.relative_to(ROOT / "book").as_posix(): path for path in notebooks()}
PAGES = {name: path for name, path in PAGES.items() if "/" in name and name not in WAITING}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_form_of_a_page(name):
    assert faults(nbformat.read(PAGES[name], as_version=4)) == []


def test_each_fault_of_form_is_found():
    alt = {"image/png": {"alt": "A line from 5 to 2"}}
    picture = v4.new_output("display_data", {"image/png": "iVBO"}, metadata=alt)
    cells = [
        v4.new_markdown_cell("# Title\n\nNo question.\n\n**Figure 1. It falls.**"),
        v4.new_code_cell("assert x < 1", outputs=[v4.new_output("stream", text=77 * "y")]),
        v4.new_code_cell("x", metadata={"tags": ["check"]}),
        v4.new_code_cell(12 * "x = 1\n" + 77 * "z", outputs=[picture, picture]),
        v4.new_markdown_cell("**Figure 2. A line from 5 to 2.** The loss.\n\n**Table 2. More.**"),
        v4.new_markdown_cell("**Table 3. A table that stands elsewhere.**"),
        v4.new_code_cell("draw()", outputs=[picture]),
    ]
    found = "\n".join(faults(v4.new_notebook(cells=cells)))
    expected = ["no title, **Question.**", "not the beginning", "an assert belongs", "columns: yyy"]
    expected += [
        "needs the tag remove-cell",
        "13 lines, at most 12",
        "columns: zzz",
        "one paragraph",
    ]
    expected += [
        "several pictures",
        "repeats the alt",
        "without a caption",
        "figures are numbered [2]",
    ]
    expected += ["tables are numbered [2, 3]", "no table above the caption: **Table 3"]
    assert [words for words in expected if words not in found] == []
