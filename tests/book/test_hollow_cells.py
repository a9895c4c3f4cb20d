"""Every cell of the book was executed and stores what it shows.

nbval compares stored outputs with fresh ones. It accepts without a comparison a cell that was never executed, that stores
no output, or that asks to be skipped. These tests read the stored notebooks only.
"""

import ast
import re

import nbformat
import pytest
from nbformat import v4

from tools.notebooks.execute import notebooks

SKIP_COMMENT = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)", re.M)
MAGIC = re.compile(r"^([ \t]*)[%!].*$", re.M)
PRINTS = {"print", "display", "show"}


def faults(notebook) -> list[str]:
    """One sentence for each fault of a notebook."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = [] if cells else ["the notebook has no code cell"]
    for number, cell in enumerate(cells, 1):
        found += [f"code cell {number}: {fault}" for fault in cell_faults(cell, number)]
    return found


def cell_faults(cell, number: int) -> list[str]:
    found = []
    if cell.execution_count is None:
        found.append("it was never executed")
    elif cell.execution_count != number:
        found.append(f"its execution count is {cell.execution_count}; execute it from the top")
    if expects_output(cell.source) and not cell.outputs:
        found.append("an output is expected and none is stored")
    skips = SKIP_COMMENT.findall(cell.source)
    skips += [tag for tag in cell.metadata.get("tags", []) if re.match("nbval-|raises-", tag)]
    if skips:
        found.append(f"{skips[0]} skips the comparison")
    for output in cell.outputs:
        if output.output_type == "error":
            found.append(f"its output is an error: {output.ename}")
        elif output.get("name") == "stderr":
            found.append("its output has text on stderr, perhaps a warning")
        elif any("widget" in kind for kind in output.get("data", {})):
            found.append("its output is a widget, perhaps a progress bar")
    return found


def expects_output(source: str) -> bool:
    """Whether a cell prints or shows something, or ends in a value (a call may return None)."""
    body = ast.parse(MAGIC.sub(r"\1pass", source)).body
    inner = [node for one in body if isinstance(one, ast.For | ast.With) for node in one.body]
    values = [node.value for node in body + inner if isinstance(node, ast.Expr)]
    calls = [value.func for value in values if isinstance(value, ast.Call)]
    if any(getattr(call, "id", getattr(call, "attr", "")) in PRINTS for call in calls):
        return True
    if not body or not isinstance(body[-1], ast.Expr) or source.rstrip().endswith(";"):
        return False
    return not isinstance(body[-1].value, ast.Call)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_cell_of_the_book_is_hollow(path):
    assert faults(nbformat.read(path, as_version=4)) == []


def test_each_kind_of_hollow_cell_is_found():
    error = v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    warning = v4.new_output("stream", name="stderr", text="a warning")
    bar = v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}})
    cells = [
        v4.new_code_cell("x = 1", execution_count=None),
        v4.new_code_cell("x = 1", execution_count=7),
        v4.new_code_cell("%%capture\nfor x in y:\n    print(x)", execution_count=3),
        v4.new_code_cell("f(x)", execution_count=4, outputs=[error]),
        v4.new_code_cell("f(x)", execution_count=5, outputs=[warning]),
        v4.new_code_cell("f(x)", execution_count=6, metadata={"tags": ["raises-exception"]}),
        v4.new_code_cell("# NBVAL_IGNORE_OUTPUT\nx = 1", execution_count=7),
        v4.new_code_cell("f(x)", execution_count=8, outputs=[bar]),
        v4.new_code_cell("x;", execution_count=9),  # this one is sound
    ]
    expected = ["never executed", "execution count is 7", "none is stored", "an error: ValueError"]
    expected += [
        "text on stderr",
        "raises-exception skips",
        "NBVAL_IGNORE_OUTPUT skips",
        "a widget",
    ]
    found = faults(v4.new_notebook(cells=cells))
    assert len(found) == len(expected)
    for number, (fault, words) in enumerate(zip(found, expected, strict=True), 1):
        assert fault.startswith(f"code cell {number}: ")
        assert words in fault
