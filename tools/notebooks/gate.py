"""Refuse a notebook whose green test would prove nothing.

    python -m tools gate book/01-residual-stream.ipynb

Comparison with a fresh run (nbval) is silent about a cell that was stored without being run, and about a cell that is
excused. This check reads the stored file alone and names every such fault.
"""

import ast
import html
import io
import json
import re
import sys
import tokenize
from pathlib import Path

import nbformat

MOST_BYTES = 1_500_000
MOST_STATEMENTS = 15
MOST_LINES = 20  # of code, which hold what 15 of 120 columns held
MOST_COLUMNS = 88  # fit a page of 1280 pixels
# A line that goes on with words, those of an alt text say, is no code, nor is a remark, nor an empty one.
TEXT = re.compile(r"""\s*(?:#.*|[fr]?(?:"[^"\n]*"|'[^'\n]*')[,)\]]*)?""")
MODULES = {
    "torch",
    "numpy",
    "np",
    "math",
    "ck",
    "circuitkit",
    "circuits",
    "residual",
    "induction",
    "conversion",
    "superposition",
    "models",
    "figures",
}
TALKS = {"print", "display", "show"}  # a top-level call to one of these leaves an output
TAGS = {
    "hide-cell",
    "hide-input",
    "hide-output",
    "solution",
    "uses-solution",
}  # and those of the comparison, which need a reason
MARKER = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)", re.M)


def faults(path: Path) -> list[str]:
    """Everything that makes the stored notebook hollow, one sentence each; empty for a sound one."""
    found = []
    if path.stat().st_size > MOST_BYTES:
        found.append(
            f"the file has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are allowed"
        )
    notebook = nbformat.read(path, as_version=4)
    number = 0
    for position, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        number += 1
        found += [f"cell {position}: {fault}" for fault in cell_faults(cell, number)]
    if not number:
        found.append("there is no code cell")
    return found


def cell_faults(cell, number: int) -> list[str]:
    """The faults of the `number`-th code cell."""
    found = []
    if not cell.source.strip():
        return ["the cell is empty"]
    lines = cell.source.splitlines()
    code, stated = sum(not TEXT.fullmatch(line) for line in lines), statements(cell.source)
    if code > MOST_LINES or stated > MOST_STATEMENTS:
        found.append(
            f"{stated} statements in {code} lines of code; at most {MOST_STATEMENTS} in {MOST_LINES}: "
            "move what is used twice to src/"
        )
    if (widest := max(map(len, lines))) > MOST_COLUMNS:
        found.append(
            f"{widest} columns; at most {MOST_COLUMNS} fit a page: python -m tools columns {{NOTEBOOK}}"
        )
    if cell.execution_count is None:
        found.append("never executed")
    elif cell.execution_count != number:
        found.append(
            f"count is {cell.execution_count}, not {number}: not run from the top in a fresh kernel"
        )
    if expects_output(cell.source) and not cell.outputs:
        found.append("an output is expected and none is stored")
    for output in cell.outputs:
        found += output_faults(output)
    found += hidden(cell)
    if excused(cell):
        told = cell.metadata.get("circuitkit", {})
        if len(str(told.get("reason", "")).split()) < 4:
            found.append(
                f"excused from comparison ({excused(cell)}) without metadata.circuitkit.reason in words"
            )
        if plain(str(told.get("fact", ""))) not in asserted(cell.source):
            found.append(
                f"excused from comparison ({excused(cell)}), and metadata.circuitkit.fact is {told.get('fact')!r}: state there "
                "a fact that the cell still asserts, outside of any other statement"
            )
    return found


def statements(source: str) -> int:
    """The lines of a cell, each counted once however often it is broken."""
    found = tokenize.generate_tokens(io.StringIO(plain_python(source) + "\n").readline)
    return sum(token.type == tokenize.NEWLINE for token in found)


def hidden(cell) -> list[str]:
    """What keeps a result from the reader, or makes one up: tags, cell magics, patched modules, printed constants."""
    others = [
        tag for tag in cell.metadata.get("tags", []) if tag not in TAGS and tag not in excused(cell)
    ]
    found = [
        f"the tag {tag!r} is none of {sorted(TAGS)}: the page would not show the cell as it is"
        for tag in others
    ]
    if cell.source.lstrip().startswith("%%"):
        found.append(
            f"{cell.source.split()[0]} takes the cell's output away, or runs something else than Python"
        )
    for node in ast.walk(ast.parse(plain_python(cell.source))):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Attribute) and ast.unparse(t.value) in MODULES for t in targets):
            found.append(f"{ast.unparse(node)!r} changes a module for all cells")
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" and node.args:
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if len(words) == len(node.args) and re.search(
                r"(?<!\w)\d+(?:\.\d+)?(?!\w)", " ".join(map(str, words))
            ):
                found.append(f"{ast.unparse(node)} prints a number that the cell did not compute")
    return found


def plain(expression: str) -> str:
    """An expression as Python prints it; one that cannot be read, or says nothing about a value, is empty."""
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return ""
    return ast.unparse(node) if any(isinstance(part, ast.Name) for part in ast.walk(node)) else ""


def asserted(source: str) -> set[str]:
    """The asserts of a cell that nothing encloses, and what `and` joins in them."""
    tests = [
        node.test for node in ast.parse(plain_python(source)).body if isinstance(node, ast.Assert)
    ]
    joined = [
        part
        for test in tests
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
        for part in test.values
    ]
    return {ast.unparse(test) for test in tests + joined}


def output_faults(output) -> list[str]:
    if output.output_type == "error":
        return [f"the output is an error: {output.ename}"]
    if output.get("name") == "stderr":
        return ["the output has text on stderr (a warning?), which differs between machines"]
    data, metadata = output.get("data", {}), output.get("metadata", {})
    found = [
        f"the output is a widget ({kind}), which needs a kernel"
        for kind in data
        if "widget" in kind
    ]
    for kind in data:
        if kind.startswith("image/") and not (alt := metadata.get(kind, {}).get("alt")):
            found.append(f"{kind} without alt text: use circuitkit.figures.show(fig, alt=...)")
        elif kind.startswith("image/") and alt not in data.get("text/plain", ""):
            found.append(f"{kind} has the alt text {alt!r}, and its text says something else")
    if 'class="ck-attention"' in data.get("text/html", "") and not redrawn(data):
        found.append("the attention view is not what the library draws from the data in it")
    return found


def redrawn(data) -> bool:
    """Whether page, still and text of an attention view come from the one payload that it holds."""
    import numpy

    from circuitkit.figures._attention import Attention

    page = data["text/html"]
    held = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.S)[1])
    alt = html.unescape(re.search(r"<figcaption>(.*?)</figcaption>", page, re.S)[1])
    values = {name: held[name] for name in ("first", "largest")} | {
        "patterns": numpy.array(held["patterns"])
    }
    view = Attention(tokens=tuple(held["tokens"]), names=tuple(held["names"]), alt=alt, **values)
    return view._repr_html_() == page and repr(view) == data.get("text/plain")


def excused(cell) -> str:
    """The markers that take a cell out of the comparison."""
    tags = [
        tag
        for tag in cell.metadata.get("tags", [])
        if tag.startswith("nbval-") or tag == "raises-exception"
    ]
    return ", ".join(tags + MARKER.findall(cell.source))


def plain_python(source: str) -> str:
    """A cell without its magics."""
    return re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.M)


def expects_output(source: str) -> bool:
    """Whether the cell prints, shows, or ends in a value that is not a call (a call may return None)."""
    body = ast.parse(plain_python(source)).body
    loops = [inner for node in body if isinstance(node, (ast.For, ast.With)) for inner in node.body]
    for statement in body + loops:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            if getattr(called, "id", getattr(called, "attr", None)) in TALKS:
                return True
    if not body or not isinstance(body[-1], ast.Expr) or source.rstrip().endswith(";"):
        return False
    value = body[-1].value
    return not isinstance(value, ast.Call) and not (
        isinstance(value, ast.Constant) and value.value in (None, ...)
    )


def main() -> int:
    wrong = {path: faults(Path(path)) for path in sys.argv[1:]}
    for path, found in wrong.items():
        for fault in found:
            print(f"{path}: {fault}")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
