"""Every cell of the book was executed and stores what it shows; each kind of fault is found when it is planted."""

import nbformat
import pytest
from nbformat import v4

from tests.book.hollow_cells import expects_output, faults
from tools.notebooks.execute import notebooks


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_cell_of_the_book_is_hollow(path):
    assert faults(nbformat.read(path, as_version=4)) == []


def sound():
    """A notebook of three cells: a printed line, a picture and a value."""
    picture = v4.new_output(
        "display_data", {"image/png": "iVBO"}, metadata={"image/png": {"alt": "A falling line"}}
    )
    cells = [
        ("x = 6 * 7\nprint(x)", v4.new_output("stream", text="42\n")),
        ("figures.show(fig, alt='A falling line')", picture),
        ("x / 2", v4.new_output("execute_result", {"text/plain": "21.0"}, execution_count=3)),
    ]
    code = [
        v4.new_code_cell(source, execution_count=count, outputs=[output])
        for count, (source, output) in enumerate(cells, 1)
    ]
    return v4.new_notebook(cells=[v4.new_markdown_cell("# Title"), *code])


PLANTED = {
    "never executed": lambda cell: cell.update(execution_count=None),
    "execution count is 7": lambda cell: cell.update(execution_count=7),
    "none is stored": lambda cell: cell.update(outputs=[]),
    "an error: ValueError": lambda cell: cell.update(
        outputs=[v4.new_output("error", ename="ValueError", evalue="", traceback=[])]
    ),
    "text on stderr": lambda cell: cell.update(
        outputs=[v4.new_output("stream", name="stderr", text="a warning")]
    ),
    "has no alt text": lambda cell: cell.outputs[0].update(
        data={"image/png": "iVBO"}, metadata={"image/png": {}}
    ),
    "nbval-skip skips": lambda cell: cell.metadata.update(tags=["nbval-skip"]),
    "raises-exception skips": lambda cell: cell.metadata.update(tags=["raises-exception"]),
    "NBVAL_IGNORE_OUTPUT skips": lambda cell: cell.update(source="# NBVAL_IGNORE_OUTPUT\nx / 2"),
}


def test_a_sound_notebook_has_no_fault():
    assert faults(sound()) == []


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_fault_is_found(words):
    notebook = sound()
    PLANTED[words](notebook.cells[3])
    (fault,) = faults(notebook)
    assert fault.startswith("code cell 3: ")
    assert words in fault


def test_a_skip_with_a_reason_is_accepted():
    notebook = sound()
    reason = {"reason": "the text of this error differs between Python versions"}
    notebook.cells[3].metadata.update(tags=["raises-exception"], circuitkit=reason)
    assert faults(notebook) == []


def test_a_notebook_without_code_is_found():
    assert faults(v4.new_notebook(cells=[v4.new_markdown_cell("# Title")]))


SPEAKS = ["x", "x[0] @ y", "print(x)", "for x in y:\n    print(x)", "%%capture\nprint(x)"]
SILENT = ["x = 1", "x;", "f(x)", "%matplotlib inline\nx = 2", "def f():\n    print(1)"]


@pytest.mark.parametrize("source", SPEAKS + SILENT)
def test_which_cells_are_expected_to_show_something(source):
    assert expects_output(source) is (source in SPEAKS)
