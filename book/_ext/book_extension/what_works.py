"""The tables of "What works on which model" in "Your own model", made from `tests/library/what_works.toml`.

`tests/library/test_every_tool_on_every_model.py` checks every tool on every kind of model.
"""

import tomllib
from pathlib import Path

FILE = Path(__file__).resolve().parents[3] / "tests/library/what_works.toml"
PAGE = "book/your-model"


def link(tool: dict) -> str:
    """The tool's name, linked to the reference. The build warns if the link leads nowhere."""
    import circuitkit

    name, module = tool["name"], tool["module"]
    home = "circuitkit" if name in circuitkit.__all__ else f"circuitkit.{module}"
    return f"{{py:obj}}`{name} <{home}.{name}>`"


def tools(data: dict) -> str:
    """A row for each tool: its name and what it computes."""
    lines = ["| Tool | What it computes |", "|---|---|"]
    lines += [f"| {link(tool)} | {tool['says']} |" for tool in data["tool"]]
    return "\n".join(lines)


def reasons(data: dict) -> str:
    """A line for each reason, with the tools that do not apply and the kinds of model."""
    found = {}
    for tool in data["tool"]:
        for reason, kinds in tool.get("no", {}).items():
            names = ", ".join(data["kinds"][kind][0] for kind in kinds)
            found.setdefault(reason, []).append(f"`{tool['name']}` ({names})")
    lines = [
        f"* {data['reasons'][reason]} This concerns {', '.join(tools)}."
        for reason, tools in found.items()
    ]
    return "\n".join(lines)


def kinds(data: dict) -> str:
    return "\n".join(f"* *{short}*: {text}" for short, text in data["kinds"].values())


def fill(app, docname, source) -> None:
    if docname != PAGE:
        return
    app.env.note_dependency(str(FILE))
    data = tomllib.loads(FILE.read_text("utf-8"))
    for name, make in (("tools", tools), ("reasons", reasons), ("kinds", kinds)):
        source[0] = source[0].replace(f"<!-- what works: {name} -->", make(data))


def setup(app) -> None:
    app.connect("source-read", fill)
