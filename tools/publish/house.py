"""Draw who imports whom, and write the page "How the house is built" from it.

    python -m tools house

The picture and the lists of rooms in `book/house.md` stand between marks; this draws them again from the imports and the
docstrings of the packages, and a test compares. The prose around them is written by hand.
"""

import ast
import math
import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, PAGE = ROOT / "src/circuitkit", ROOT / "book/house.md"
#: From the roof to the ground. `make lint` keeps every import of the library pointing down this list.
ROOMS = ["exercises", "claims", "report", "figures", "models", "superposition", "conversion", "induction", "circuits", "residual", "anatomy", "_heads"]  # fmt: skip
LEFT, WIDTH, ROW, BOX, LINE = 8, 360, 44, 30, 18


def imports() -> dict[tuple[str, str], int]:
    """How many files of one room import another, those that only an editor reads left out."""
    found: dict[tuple[str, str], int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        known = {
            name for node in running(ast.parse(path.read_text("utf-8"))) for name in rooms_of(node)
        }
        for other in known - {room}:
            found[room, other] = found.get((room, other), 0) + 1
    return found


def running(node: ast.AST):
    """Every import that happens when the code runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from running(child)


def rooms_of(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        names = [name.name for name in node.names]
    elif node.module == "circuitkit":
        names = [f"circuitkit.{name.name}" for name in node.names]
    else:
        names = [node.module or ""] if not node.level else []
    return {name.split(".")[1] for name in names if name.startswith("circuitkit.")}


def floor() -> list[str]:
    """What lies under every room: the files of the package that are no room."""
    return sorted(path.stem for path in PACKAGE.glob("_*.py") if not path.stem.startswith("__"))


def picture() -> str:
    """An arc for every pair of rooms of which one imports the other, from the one above to the one below."""
    rooms = [name for name in ROOMS if (PACKAGE / name).is_dir()]
    height = ROW * (len(rooms) + 2) + LINE + 6
    place = {name: 4 + ROW * (number + 1) for number, name in enumerate(rooms)}
    arcs, told = [], []
    for (above, below), n in sorted(
        imports().items(), key=lambda item: -(place.get(item[0][1], 0) - place.get(item[0][0], 0))
    ):
        if above not in place or below not in place:
            continue
        top, bottom = place[above] + BOX * 0.7, place[below] + BOX * 0.3
        x, reach = LEFT + 132, min(212, 24 + 0.52 * (bottom - top))
        line = f"M{x} {top:.0f} C{x + reach:.0f} {top:.0f} {x + reach:.0f} {bottom:.0f} {x + 7} {bottom:.0f}"
        named = f"{above.strip('_')} imports {below.strip('_')}"
        arcs.append(
            f'<path class="arc" d="{line}" style="stroke-width:{0.8 + math.log2(n + 1) / 2:.1f}"><title>{named}</title></path>'
        )
        arcs.append(f'<path class="tip" d="M{x} {bottom:.0f} l9 -4 v8 z"/>')
        told.append((above, below))
    boxes = [
        box(
            4,
            "circuitkit",
            "door",
            WIDTH - 2 * LEFT,
            "circuitkit: the door, opens a room when asked",
        )
    ]
    boxes += [box(y, name, "room", 132, name.strip("_")) for name, y in place.items()]
    ground = ", ".join(name.strip("_") for name in floor())
    boxes.append(
        box(4 + ROW * (len(rooms) + 1), "floor", "floor", WIDTH - 2 * LEFT, "under all:", ground)
    )
    words = "; ".join(
        f"{a.strip('_')} imports " + ", ".join(b.strip("_") for x, b in told if x == a)
        for a in rooms
        if any(x == a for x, _ in told)
    )
    return (
        f'<svg class="ck-house" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Rooms from the roof to the ground. {escape(words)}.">\n'
        + "\n".join([*arcs, *boxes])
        + "\n</svg>"
    )


def box(y: float, name: str, kind: str, width: int, *lines: str) -> str:
    at = f'x="{LEFT}" y="{y}" width="{width}" height="{BOX + LINE * (len(lines) - 1)}" rx="4"'
    words = (
        f'<text x="{LEFT + 10}" y="{y + 20 + LINE * n}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )
    return f'<rect class="{kind}" {at}/>' + "".join(words)


def says(path: Path) -> str:
    """The first paragraphs of a package's docstring, on one line, without what is for one function alone."""
    text = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("**Shapes**")[0]
    return re.sub(r"\s+", " ", text).strip()


def rooms() -> str:
    """What each room's own first lines say, in the reader's order."""
    order = [name for name in reversed(ROOMS) if (PACKAGE / name).is_dir()]
    return "\n\n".join(
        f"**{name.strip('_')}** (`src/circuitkit/{name}`). {says(PACKAGE / name / '__init__.py')}"
        for name in order
    )


def workshop() -> str:
    """The rooms of `tools/`."""
    return "\n".join(
        f"* `tools/{path.parent.name}`: {says(path)}"
        for path in sorted((ROOT / "tools").glob("*/__init__.py"))
    )


def filled(text: str) -> str:
    """The page with everything between its marks drawn and written anew."""
    for name, make in (("picture", picture), ("rooms", rooms), ("workshop", workshop)):
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{PAGE.name} has no marks {start.strip()} and {end.strip()}")
        text = before + start + make() + end + after
    return text


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(imports())} pairs of rooms")


if __name__ == "__main__":
    main()
