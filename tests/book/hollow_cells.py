"""Find cells that nbval would accept without having compared anything.

nbval compares stored outputs with fresh ones. It is silent about a cell that was never executed, that stores no output,
or that asks to be skipped. This check reads the stored notebook only.
"""

import ast
import re

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
    if skips and not cell.metadata.get("circuitkit", {}).get("reason"):
        found.append(f"{skips[0]} skips the comparison without metadata.circuitkit.reason")
    for output in cell.outputs:
        found += output_faults(output)
    return found


def output_faults(output) -> list[str]:
    if output.output_type == "error":
        return [f"its output is an error: {output.ename}"]
    if output.get("name") == "stderr":
        return ["its output has text on stderr, perhaps a warning"]
    pictures = [kind for kind in output.get("data", {}) if kind.startswith("image/")]
    without = [kind for kind in pictures if not output.metadata.get(kind, {}).get("alt")]
    return [f"{kind} has no alt text: use figures.show(fig, alt=...)" for kind in without]


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
