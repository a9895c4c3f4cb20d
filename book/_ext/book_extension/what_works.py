"""The tables of the page "What works on what", made from `tests/library/what_works.toml` when the book is built.

`tests/library/test_every_tool_on_every_model.py` checks every cell of that file.
"""

import importlib
import tomllib
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).resolve().parents[3] / "tests/library/what_works.toml"
PAGE = "book/what-works"
PACKAGES = {
    "heads": "Heads",
    "ablation": "Runs",
    "effects": "Effects",
    "residual": "The residual stream",
    "circuits": "QK and OV circuits",
    "paths": "Paths",
    "skip_trigrams": "Skip trigrams",
    "induction": "Induction",
    "conversion": "MLPs as attention",
    "superposition": "Superposition",
}
NOT_YET = "It does not work yet: a test waits for it."


def letters(data: dict) -> dict[str, str]:
    """A letter for each reason that is used, in the order of the table."""
    used = [reason for tool in data["tool"] for reason in tool.get("no", {})]
    if any(data["failing"].values()):
        used.append("not_yet")
    unique = list(dict.fromkeys(used))
    return {reason: chr(ord("a") + i) for i, reason in enumerate(unique)}


def target(reason: str) -> str:
    return f"no-{reason.replace('_', '-')}"


def cell(data: dict, tool: dict, kind: str) -> str:
    """A tick, or the letter of a reason, linked to it."""
    reason = None
    for why, kinds in tool.get("no", {}).items():
        if kind in kinds:
            reason = why
    if kind in data["failing"].get(tool["name"], ()):
        reason = "not_yet"
    if reason is None:
        return "✓"
    return f"[{letters(data)[reason]}](#{target(reason)})"


def link(tool: dict) -> str:
    """The tool's name, linked to the reference. The build warns if the link leads nowhere."""
    import circuitkit

    name, package = tool["name"], tool["room"]
    home = f"circuitkit.{package}"
    importlib.import_module(home)
    at_top = name in circuitkit.__all__
    if at_top and not isinstance(getattr(circuitkit, name), ModuleType):
        home = "circuitkit"
    return f"{{py:obj}}`{name} <{home}.{name}>`"


def table(data: dict) -> str:
    kinds = data["kinds"]
    lines = ["```{table}", ":class: ck-works", ""]
    lines.append("| | " + " | ".join(short for short, _ in kinds.values()) + " |")
    lines.append("|---" * (len(kinds) + 1) + "|")
    package = None
    for tool in data["tool"]:
        if tool["room"] != package:
            package = tool["room"]
            lines.append(f"| **{PACKAGES[package]}** |" + " |" * len(kinds))
        cells = " | ".join(cell(data, tool, kind) for kind in kinds)
        lines.append(f"| {link(tool)} *{tool['says']}* | {cells} |")
    lines.append("```")
    return "\n".join(lines)


def reasons(data: dict) -> str:
    parts = []
    for reason, letter in letters(data).items():
        text = data["reasons"].get(reason, NOT_YET)
        parts.append(f"({target(reason)})=\n**{letter}.** {text}")
    return "\n\n".join(parts)


def kinds(data: dict) -> str:
    return "\n".join(f"* **{short}**: {text}." for short, text in data["kinds"].values())


def fill(app, docname, source) -> None:
    if docname != PAGE:
        return
    app.env.note_dependency(str(FILE))
    data = tomllib.loads(FILE.read_text("utf-8"))
    for name, make in (("table", table), ("reasons", reasons), ("kinds", kinds)):
        source[0] = source[0].replace(f"<!-- what works: {name} -->", make(data))


def setup(app) -> None:
    app.connect("source-read", fill)
