"""Break the lines of every notebook's cells that are wider than a page; what they compute stays the same.

    python -m tools columns [book/05-attention-superposition.ipynb ...]

A line of 88 columns fits a page of 1280 pixels. A wider one is broken where it says least: behind a comma of its outermost
brackets, before an operator, between words of a text, with parentheses around it where Python wants some; a remark behind it
goes above it. The syntax tree stays the same, so outputs do too and no cell has to run again.
"""

import ast
import io
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools.notebooks.gate import MOST_COLUMNS, TEXT, plain_python

BEFORE = {
    "for": 1,
    "if": 1,
    "else": 1,
    "and": 1,
    "or": 2,
    "|": 4,
    "+": 5,
    "-": 5,
    "*": 7,
    "/": 7,
    "@": 7,
    "<": 9,
    ">": 9,
    "==": 9,
    "!=": 9,
    "<=": 9,
}
SHORT = 15  # lines; a cell that grew longer has its lines filled
WORDS = 12  # columns of a text that are worth a line of their own


@dataclass(frozen=True)
class Break:
    """Where a line may end: before `start`, and the indent of what follows from `end` on."""

    cost: float
    start: int
    end: int
    indent: int
    quotes: tuple[str, str] = (
        "",
        "",
    )  # what a broken text gets at its new end and its new beginning


def tokens(source: str) -> list[tokenize.TokenInfo]:
    """The tokens of a cell; since Python 3.12 a text with values in it is many, here it is one again."""
    found, deep, first = [], 0, None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            deep, first = deep + 1, first if deep else token
        elif name == "FSTRING_END":
            deep -= 1
            if not deep:
                lines = source.splitlines()[first.start[0] - 1 : token.end[0]]
                text = lines[0][first.start[1] : token.end[1]] if len(lines) == 1 else ""
                found.append(
                    tokenize.TokenInfo(tokenize.STRING, text, first.start, token.end, token.line)
                )
        elif not deep:
            found.append(token)
    return found


def words(token: tokenize.TokenInfo) -> list[tuple[int, str, str]]:
    """Places behind a blank of a text, outside of its values, with the quotes to put there."""
    text = token.string
    quote = next((text.index(q) for q in ('"""', "'''", '"', "'") if q in text[:5]), 0)
    prefix, mark = text[:quote], text[quote]
    if text[quote : quote + 3] == mark * 3:
        return []
    blanks = " " if " " in text else "/"  # an address is broken behind a slash
    found, deep = [], 0
    formats = "f" in prefix.lower()
    for at in range(quote + 1, len(text) - 1):
        if formats and text[at] in "{}":
            deep += 1 if text[at] == "{" else -1
        if text[at] in blanks and not deep and at + 2 < len(text):
            found.append((at + 1, mark, prefix + mark))
    return found


def breaks(source: str, row: int) -> list[Break]:
    """The ways to break one line, in brackets."""
    line = source.splitlines()[row - 1]
    own = len(line) - len(line.lstrip())
    stack: list[
        tuple[int, int, bool]
    ] = []  # of each open bracket: row, column behind it, whether it looks something up
    found, target = [], False
    all_tokens = [
        t
        for t in tokens(source)
        if t.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE)
    ]
    for before, token, after in zip(
        [None, *all_tokens], all_tokens, [*all_tokens[1:], None], strict=False
    ):
        here = token.start[0] == row == token.end[0] and after is not None
        if (
            here
            and stack
            and token.string in BEFORE
            and before
            and before.end[0] == row
            and not unary(before)
        ):
            found.append(
                place(BEFORE[token.string], stack, row, own, before.end[1], token.start[1])
            )
        if token.string in "([{" and token.type == tokenize.OP:
            looked_up = token.string == "[" and before is not None and not unary(before)
            stack.append((token.start[0], token.end[1], looked_up))
        elif token.string in ")]}" and token.type == tokenize.OP:
            stack.pop()
        target = (target or token.string in ("for", "lambda")) and token.string not in ("in", ":")
        if not here or not stack:
            continue
        same = after.start[0] == row and after.type not in (tokenize.COMMENT, tokenize.NL)
        inside = 9 * any(looked_up for *_, looked_up in stack)
        if token.string == "," and same:
            found.append(place(inside + 20 * target, stack, row, own, token.end[1], after.start[1]))
        elif token.string in ("(", "[", "{") and same and after.string not in ")]}":
            found.append(Break(7 + inside + 6 * len(stack), token.end[1], after.start[1], own + 4))
        elif token.type == tokenize.STRING:
            if same and after.type == tokenize.STRING:
                found.append(place(1, stack, row, own, token.end[1], after.start[1]))
            for at, end, begin in words(token):
                if min(at, len(token.string) - at) < WORDS:
                    continue
                one = place(5, stack, row, own, token.start[1] + at, token.start[1] + at)
                named = before is not None and before.string == "="
                indent = (
                    token.start[1] if token.start[1] <= 28 else own + 4 if named else one.indent
                )
                cost = one.cost if " " in token.string else 40
                found.append(Break(cost, one.start, one.end, min(indent, 40), (end, begin)))
    return found


def joined(source: str, row: int) -> str:
    """The cell with the text that ends a line and its rest on the next as one, so that both are broken anew."""
    lines = source.splitlines()
    found = [
        token
        for token in tokens(source)
        if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    ]
    for token, after in zip(found, found[1:], strict=False):
        both = token.type == after.type == tokenize.STRING and token.start[0] == token.end[0] == row
        if (
            both
            and after.start[0] == row + 1 == after.end[0]
            and len(words(after))
            and token.string[-1] == after.string[-1]
        ):
            formats = "f" if "f" in token.string[0] + after.string[0] else ""
            if formats and not (token.string[0] == after.string[0] == "f"):
                return source
            lines[row - 1 : row + 1] = [
                lines[row - 1][: token.end[1] - 1] + lines[row][after.start[1] + len(formats) + 1 :]
            ]
            return joined("\n".join(lines), row)
    return source


def unary(before) -> bool:
    return (
        before.type == tokenize.OP
        and before.string not in ")]}"
        or before.string in ("return", "in", "assert", "lambda", "print")
    )


def place(cost: float, stack, row: int, own: int, start: int, end: int) -> Break:
    opened, column, _ = stack[-1]
    inner = sum(1 for where, *_ in stack if where == row)
    indent = column if opened == row else own
    return Break(cost + 6 * inner + max(0, indent - 30) / 4, start, end, indent)


def broken(source: str, row: int, width: int) -> str:
    """The cell with one line of it broken once, in the way that costs least."""
    lines = source.splitlines()
    line = lines[row - 1]
    comment = next(
        (t for t in tokens(source) if t.type == tokenize.COMMENT and t.start[0] == row), None
    )
    own = " " * (len(line) - len(line.lstrip()))
    if comment and line[: comment.start[1]].strip():
        lines[row - 1 : row] = [own + comment.string, line[: comment.start[1]].rstrip()]
    elif comment:
        at = line.rfind(" ", 0, width + 1)
        lines[row - 1 : row] = [line[:at], own + "# " + line[at + 1 :]]
    else:
        ways = [
            one
            for one in breaks(source, row)
            if one.start + len(one.quotes[0]) <= width and one.end > len(own)
        ]
        stated = line.startswith(own + "assert ") and (" and " in line or " or " in line)
        dear = not ways or stated or min(one.cost for one in ways) >= 12 and not line.endswith(",")
        if dear and (wrapped := parenthesised(source, row)) != source:
            return wrapped
        if not ways:
            raise ValueError(f"no way to break {line!r}")

        def price(one: Break) -> float:
            rest = len(line) - one.end + one.indent + len(one.quotes[1])
            empty = width - one.start
            return (
                one.cost
                + empty / 8
                + 8 * max(0, -(-(rest - width) // 50))
                + 20 * (one.indent >= one.start)
            )

        best = min(ways, key=price)
        lines[row - 1 : row] = [
            line[: best.start].rstrip(" " if not best.quotes[0] else "") + best.quotes[0],
            " " * best.indent + best.quotes[1] + line[best.end :],
        ]
    return "\n".join(lines)


def parenthesised(source: str, row: int) -> str:
    """The cell with parentheses around what stands free in this line: a condition, a value, a message."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(plain_python(source))):
        if not isinstance(node, ast.stmt) or node.lineno != row:
            continue
        values = [getattr(node, name, None) for name in ("test", "value", "msg")]
        for value in values:
            if not isinstance(value, ast.expr) or value.lineno != row or value.end_lineno != row:
                continue
            raw = lines[row - 1].encode()
            text = raw[value.col_offset : value.end_col_offset].decode()
            if raw[: value.col_offset].rstrip().endswith(b"(") or len(text) < 30:
                continue
            if not isinstance(
                value,
                ast.BoolOp
                | ast.Compare
                | ast.BinOp
                | ast.Constant
                | ast.JoinedStr
                | ast.IfExp
                | ast.Tuple,
            ):
                continue
            lines[row - 1] = (
                raw[: value.col_offset] + b"(" + text.encode() + b")" + raw[value.end_col_offset :]
            ).decode()
            return "\n".join(lines)
    return source


def code_lines(source: str) -> int:
    return sum(1 for line in source.splitlines() if not TEXT.fullmatch(line))


def shorter(source: str, width: int) -> str:
    """The cell with lines inside of brackets joined where that fits, until it is short enough."""
    row = len(source.splitlines()) - 1
    while row > 0 and code_lines(source) > SHORT:
        lines = source.splitlines()
        before, after = lines[row - 1], lines[row].lstrip()
        inside = any(
            first.type == tokenize.NL
            and first.start[0] == row
            and first.line.strip()
            and first.string
            for first in tokens(source)
        )
        if inside and "#" not in before + after and not TEXT.fullmatch(lines[row]):
            if after[:1] in ")]}":
                both = before.removesuffix(",") + after
            else:
                both = before + ("" if before[-1] in "([{" else " ") + after
            if len(both) <= width and not before.lstrip().startswith("#"):
                source = "\n".join([*lines[: row - 1], both, *lines[row + 1 :]])
        row -= 1
    return source


def narrow(source: str, width: int = MOST_COLUMNS) -> str:
    """The cell with no line wider than this."""
    now = source
    for _ in range(400):
        wide = next(
            (row for row, line in enumerate(now.splitlines(), 1) if len(line) > width), None
        )
        if wide is None:
            break
        now = broken(joined(now, wide), wide, width)
    now = shorter(now, width)
    if ast.dump(ast.parse(plain_python(now))) != ast.dump(ast.parse(plain_python(source))):
        raise ValueError(f"this would no longer be the same:\n{now}")
    return now


def main() -> int:
    from tools.notebooks.execute import ROOT, notebooks

    for path in [Path(name) for name in sys.argv[1:]] or notebooks(ROOT):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.source = narrow(cell.source)
        text = nbformat.writes(notebook) + "\n"
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"{path.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
