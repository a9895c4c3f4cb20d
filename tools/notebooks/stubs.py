"""The reader's copies of the exercise notebooks: the solved ones with the solutions taken out.

    python -m tools stubs            write exercises/*.ipynb from book/exercises/*.ipynb
    python -m tools stubs --check    compare, write nothing

What the tags of a solved cell mean:

- `solution`: functions keep signature and docstring and lose their body, other assignments become `= None`,
  and the words of a prediction stay, `{"word": None}`;
- `uses-solution`: it runs on accepted answers, so in the copy it waits until the checks above have accepted them;
- `copy-code`: text whose code block becomes a cell of the copy, such as a line that writes into the reader's folder;
- any other cell is copied as it is. Outputs are dropped everywhere.

The line that starts with `**Your copy**` in a solved notebook is written here, too; it has a link to Colab where the book
has a home (`tools/publish/home.py`).
"""

import argparse
import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat

from tools.publish.home import ROOT, home

FOLDED = {"hide-input", "hide-output", "hide-cell", "solution", "uses-solution", "copy-code"}
CODE = re.compile(r"\n*```python\n(.*?)\n```\s*$", re.S)
WAITS = 'print("This cell runs on your answer to the exercise above. It waits until the check accepts it.")'
COPY_LINE = re.compile(r"^\*\*Your copy\*\*.*$", re.M)


def copy_line(name: str, root: Path = ROOT) -> str:
    """The line that offers the reader's copy at the head of a solved notebook."""
    here = home(root)
    colab = f"[open it in Colab]({here.colab(f'exercises/{name}')}) or " if here.public else ""
    return f"**Your copy**, the same page without solutions: {colab}[take the file](../../exercises/{name})."


def emptied(source: str) -> str:
    """The code of a solution cell with the solution taken out."""
    lines = source.split("\n")
    kept: list[str] = []
    for node in ast.parse(source).body:
        head = lines[node.lineno - 1 : node.end_lineno]
        if isinstance(node, ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            first_left_out = node.body[0].end_lineno + 1 if documented else node.body[0].lineno
            kept += [
                "",
                *lines[node.lineno - 1 : first_left_out - 1],
                "    raise NotImplementedError",
            ]
        elif isinstance(node, ast.Assign):
            targets = ", ".join(ast.unparse(target) for target in node.targets)
            several = len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple)
            nothing = ", ".join(["None"] * len(node.targets[0].elts)) if several else "None"
            if isinstance(node.value, ast.Dict):  # a prediction: its words stay
                nothing = (
                    "{"
                    + ", ".join(f"{ast.unparse(key)}: None" for key in node.value.keys if key)
                    + "}"
                )
            kept += [f"{targets.strip('()')} = {nothing}  # your turn"]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            kept += head
        else:
            raise ValueError(
                f"a solution cell holds a {type(node).__name__} on line {node.lineno}; expected functions, assignments "
                "and imports. Put anything else into a cell of its own."
            )
    return "\n".join(kept).strip()


def guarded(source: str, checked: list[str]) -> str:
    """Code that runs on accepted answers, made to wait for them; `checked` are the names that checks have judged so far."""
    named = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    used = [name for name in dict.fromkeys(checked) if name in named] or checked[
        -1:
    ]  # a figure of what was found above
    if not used:
        raise ValueError(
            "a cell tagged uses-solution stands before the first check; there is no answer that it could wait for"
        )
    return f"if {' and '.join(used)}:\n{textwrap.indent(source, '    ')}\nelse:\n    {WAITS}"


def stub(solved: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The reader's copy of a solved notebook."""
    cells, checked = [], []
    for cell in solved.cells:
        tags = set(cell.metadata.get("tags", []))
        source = COPY_LINE.sub(
            f"**Solutions**: [the same page, solved](../book/exercises/{name}).", cell.source
        )
        if cell.cell_type == "markdown":
            # Links are written for book/exercises; the copy lies one folder higher.
            source = re.sub(r"\]\(\.\./(?!\.\.)(?!book/)", "](../book/", source)
            if "copy-code" in tags and (block := CODE.search(source)):
                cells.append(nbformat.v4.new_markdown_cell(source[: block.start()]))
                cells[-1]["id"] = f"cell-{len(cells) - 1:02d}"
                new = nbformat.v4.new_code_cell(block[1])
            else:
                new = nbformat.v4.new_markdown_cell(source)
        else:
            checked += re.findall(r"^(\w+) = exercises\.(?:check_|try_|predict)", source, re.M)
            source = emptied(source) if "solution" in tags else source
            source = guarded(source, checked) if "uses-solution" in tags else source
            new = nbformat.v4.new_code_cell(source)
        new["id"] = f"cell-{len(cells):02d}"
        if left := sorted(tags - FOLDED):
            new.metadata["tags"] = left
        cells.append(new)
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=solved.metadata)
    notebook.nbformat_minor = 5
    return notebook


def formatted(text: str, root: Path) -> str:
    """The text of a copy, formatted as `ruff format` does it for the notebooks of this folder."""
    place = root / "exercises" / "copy.ipynb"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(place), "-"]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return run.stdout


def written(root: Path = ROOT) -> dict[Path, str]:
    """Every file this script answers for, with the text it should have."""
    texts = {}
    for path in sorted((root / "book/exercises").glob("*.ipynb")):
        solved = nbformat.read(path, as_version=4)
        if not COPY_LINE.search(solved.cells[0].source):
            raise ValueError(
                f"{path.name}: its first cell has no line that starts with '**Your copy**'; add one"
            )
        solved.cells[0].source = COPY_LINE.sub(
            lambda _, n=path.name: copy_line(n, root), solved.cells[0].source
        )
        texts[path] = nbformat.writes(solved) + "\n"
        copy = nbformat.writes(stub(solved, path.name)) + "\n"
        texts[root / "exercises" / path.name] = formatted(copy, root)
    return texts


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare with the files instead of writing them"
    )
    options = parser.parse_args(arguments)
    texts = written(root)
    extra = sorted(set((root / "exercises").glob("*.ipynb")) - set(texts))
    stale = [
        path
        for path, text in texts.items()
        if not path.is_file() or path.read_text("utf-8") != text
    ]
    for path in stale:
        if not options.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(texts[path], "utf-8")
        print(f"{path.relative_to(root)}: {'differs' if options.check else 'written'}")
    for path in extra:
        print(f"{path.relative_to(root)}: has no solved notebook; delete it")
    return 1 if extra or (options.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
