"""Write the readers' copies of the exercise notebooks: exercises/CHAPTER.ipynb, from book/CHAPTER/exercises.ipynb.

    python -m tools stubs

What the tags of a solved cell mean:

- `solution`: functions keep their signature and docstring and lose their body, other assignments become `= None`, and
  the words of a prediction stay, `{"word": None}`;
- `uses-solution`: the cell runs on accepted answers, so in the copy it waits until the checks above have accepted them;
- `copy-code`: Markdown whose code block becomes a cell of the copy, such as a line that writes into the reader's folder.

Any other cell is copied as it is. Outputs are dropped. The page of the solved notebook offers the copy as a button.
"""

import ast
import posixpath
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
DROPPED_TAGS = {"hide-input", "hide-output", "hide-cell", "solution", "uses-solution", "copy-code"}
CODE = re.compile(r"\n*```python\n(.*?)\n```\s*$", re.S)
CHECK = re.compile(r"^(\w+) = exercises\.(?:check_|try_|predict)", re.M)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")
WAITS = 'print("This cell runs on your answer to the exercise above. It waits until the check accepts it.")'


def without_solution(source: str) -> str:
    """The code of a solution cell with the solution taken out."""
    lines = source.split("\n")
    parts = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            parts += ["", *without_body(node, lines)]
        elif isinstance(node, ast.Assign):
            parts.append(f"{without_value(node)}  # your turn")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            parts += lines[node.lineno - 1 : node.end_lineno]
        else:
            raise ValueError(
                f"a solution cell holds a {type(node).__name__} on line {node.lineno}; expected functions, "
                "assignments and imports. Put anything else into a cell of its own."
            )
    return "\n".join(parts).strip()


def without_body(function: ast.FunctionDef, lines: list[str]) -> list[str]:
    """The signature and the docstring of a function."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    end = first.end_lineno if has_docstring else first.lineno - 1
    return [*lines[function.lineno - 1 : end], "    raise NotImplementedError"]


def without_value(assignment: ast.Assign) -> str:
    """An assignment of `None` to the same names; the words of a prediction stay."""
    target = assignment.targets[0]
    if isinstance(assignment.value, ast.Dict):
        words = (f"{ast.unparse(key)}: None" for key in assignment.value.keys if key)
        return f"{ast.unparse(target)} = {{{', '.join(words)}}}"
    if isinstance(target, ast.Tuple):
        return f"{ast.unparse(target).strip('()')} = {', '.join(['None'] * len(target.elts))}"
    return f"{ast.unparse(target)} = None"


def waiting(source: str, checked: list[str]) -> str:
    """Code that runs on accepted answers, made to wait for them; `checked` names the checks above it."""
    names = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    used = [name for name in dict.fromkeys(checked) if name in names] or checked[-1:]
    if not used:
        raise ValueError("a cell tagged uses-solution has no check above it that it could wait for")
    return f"if {' and '.join(used)}:\n{textwrap.indent(source, '    ')}\nelse:\n    {WAITS}"


def copied_markdown(cell, chapter: str) -> list[nbformat.NotebookNode]:
    """A Markdown cell of the copy, and the code cell that its code block becomes."""

    def from_the_copy(link: re.Match) -> str:
        return f"](../{posixpath.normpath(f'book/{chapter}/{link[1]}')})"

    source = LINK.sub(from_the_copy, cell.source)
    block = CODE.search(source) if "copy-code" in cell.metadata.get("tags", []) else None
    if block is None:
        return [nbformat.v4.new_markdown_cell(source)]
    text = nbformat.v4.new_markdown_cell(source[: block.start()])
    return [text, nbformat.v4.new_code_cell(block[1])]


def copied_code(cell, checked: list[str]) -> nbformat.NotebookNode:
    """A code cell of the copy; the names of its checks are added to `checked`."""
    tags = cell.metadata.get("tags", [])
    checked += CHECK.findall(cell.source)
    source = without_solution(cell.source) if "solution" in tags else cell.source
    if "uses-solution" in tags:
        source = waiting(source, checked)
    return nbformat.v4.new_code_cell(source)


def reader_copy(solved: nbformat.NotebookNode, chapter: str) -> nbformat.NotebookNode:
    """The reader's copy of a solved notebook."""
    cells, checked = [], []
    for cell in solved.cells:
        if "check" in cell.metadata.get("tags", []):
            continue  # it checks what the solved page says
        code = cell.cell_type == "code"
        new = [copied_code(cell, checked)] if code else copied_markdown(cell, chapter)
        tags = sorted(set(cell.metadata.get("tags", [])) - DROPPED_TAGS)
        if tags:
            new[-1].metadata["tags"] = tags
        cells += new
    solved_page = f"../book/{chapter}/exercises.ipynb"
    cells[0].source += f"\n\n**Solutions**: [the same page, solved]({solved_page})."
    for position, cell in enumerate(cells):
        cell["id"] = f"cell-{position:02d}"
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=solved.metadata)
    notebook.nbformat_minor = 5
    return notebook


def formatted(text: str, path: Path) -> str:
    """The text of a notebook after `ruff format`."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def written(root: Path = ROOT) -> dict[Path, str]:
    """The text that every reader's copy should have."""
    texts = {}
    for path in sorted(root.glob("book/[1-9]-*/exercises.ipynb")):
        chapter = path.parent.name
        copy = root / "exercises" / f"{chapter}.ipynb"
        solved = nbformat.read(path, as_version=4)
        texts[copy] = formatted(nbformat.writes(reader_copy(solved, chapter)) + "\n", copy)
    return texts


def main() -> int:
    for path, text in written().items():
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"{path.relative_to(ROOT)}: written")
    return 0
