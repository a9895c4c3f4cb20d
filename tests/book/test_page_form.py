"""Pages in the folders of the chapters have the form that `page_form` describes; each kind of fault is found when it is planted."""

import nbformat
import pytest
from nbformat import v4

from tests.book.page_form import faults
from tools.notebooks.execute import ROOT, notebooks

#: Not yet written in this form. A page leaves the list when it is.
WAITING = {f"{chapter}/exercises.ipynb" for chapter in (
    "3-induction-heads",
)}  # fmt: skip
PAGES = {path.relative_to(ROOT / "book").as_posix(): path for path in notebooks()}
PAGES = {name: path for name, path in PAGES.items() if "/" in name and name not in WAITING}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_form_of_a_page(name):
    assert faults(nbformat.read(PAGES[name], as_version=4)) == []


def sound():
    """A page of one table and one picture."""
    card = "| You will | You need | Time |\n|---|---|---|\n| see it | nothing | 5 minutes |"
    picture = v4.new_output(
        "display_data", {"image/png": "iVBO"}, metadata={"image/png": {"alt": "A line from 5 to 2"}}
    )
    table = v4.new_output("execute_result", {"text/html": "<table>", "text/plain": 90 * "x"})
    return v4.new_notebook(
        cells=[
            v4.new_markdown_cell(f"# Title\n\n**Question.** Does it fall?\n\n{card}\n\nIt does."),
            v4.new_code_cell("table", outputs=[table]),
            v4.new_code_cell("assert x < 1", metadata={"tags": ["check", "remove-cell"]}),
            v4.new_code_cell(20 * "draw()\n", outputs=[picture], metadata={"tags": ["hide-input"]}),
            v4.new_markdown_cell("**Figure 1. The loss falls.** The line is the loss."),
        ]
    )


PLANTED = {
    "no title, **Question.**": lambda cells: cells[0].update(source="# Title\n\nNo question"),
    "an assert belongs": lambda cells: cells[1].update(source="assert x < 1"),
    "needs the tag remove-cell": lambda cells: cells[2].metadata.update(tags=["check"]),
    "13 lines, at most 12": lambda cells: cells[1].update(source=12 * "x = 1\n" + "x"),
    "more than 76 columns: yyy": lambda cells: cells[1].update(
        outputs=[v4.new_output("stream", text=77 * "y")]
    ),
    "more than 76 columns: zzz": lambda cells: cells[1].update(source=77 * "z"),
    "without a caption": lambda cells: cells[4].update(source="Some text."),
    "not the beginning": lambda cells: cells[0].update(
        source=cells[0].source + "\n\n**Figure 1. It falls.**"
    ),
    "one paragraph": lambda cells: cells[4].update(source=cells[4].source + "\n\nMore."),
    "repeats the alt text": lambda cells: cells[4].update(
        source="**Figure 1. A line from 5 to 2.** The loss."
    ),
    "several pictures": lambda cells: cells[3].update(outputs=2 * cells[3].outputs),
    "figures are numbered [2]": lambda cells: cells[4].update(source="**Figure 2. It falls.**"),
}


def test_a_sound_page_has_no_fault():
    assert faults(sound()) == []


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_fault_is_found(words):
    page = sound()
    PLANTED[words](page.cells)
    assert any(words in fault for fault in faults(page)), faults(page)
