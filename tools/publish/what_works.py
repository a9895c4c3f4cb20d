"""Write the page "What works on what" from the table that the tests check.

    python -m tools what-works

The table is `tests/anatomy/what_works.toml`; `tests/anatomy/test_every_tool_on_every_model.py` calls every tool on every
kind of model and compares each cell with plain loops. This writes `book/what-works.md`; a test compares the two.
"""

import importlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/anatomy/what_works.toml"
PAGE = ROOT / "book/what-works.md"
ROOMS = {
    "heads": "Heads",
    "anatomy": "Anatomy",
    "residual": "The residual stream",
    "circuits": "QK and OV circuits",
    "induction": "Induction",
    "conversion": "MLPs as attention",
    "superposition": "Superposition",
}
NOT_YET = "It does not work yet: a test waits for it."

TEXT = """# What works on what

Every tool of the library that takes a model, and every kind of model that it can be given. A tick is a promise that a test
keeps: it calls the tool on a small model of that kind, with random weights, and compares the answer with plain loops over
the weights that share no code with the library. Where a question has no meaning for a kind of model, a letter says why, and
the tool says it too, in words, when it is asked.

{table}

## Where there is no tick

{reasons}

## Scores by family

Whether a score that is taken apart is the score that the model really uses was asked of many families, on random weights,
in float32: the sum of the table beside the score, the score beside the logarithm of the model's own attention, and the
logits beside the model's own, each relative to the largest of its kind. Here is what was measured, rounded up.

```none
family    table   score   logits   score in float64     (asked: 1e-5)
GPT-2     8e-7    2e-6    3e-7     1e-14
NeoX      3e-7    2e-6    4e-7     1e-14
Llama     3e-7    2e-6    7e-7     6e-7
Qwen2     2e-7    1e-6    7e-7     5e-7
Qwen3     2e-7    4e-6    2e-6     2e-6
Gemma 2   3e-7    8e-7    5e-7     5e-7
Gemma 3   2e-7    2e-6    6e-7     7e-7
Mistral   3e-7    2e-6    5e-7     5e-7
Phi       2e-7    1e-6    3e-7     3e-7
```

The last column is the floor: from Llama on, transformers computes norms, rotations or the softmax in float32 whatever the
model's dtype is, and no comparison with such a model comes closer. `tests/circuits/test_families.py` holds the bounds, and
prints such a table when it is run as a script.

## The kinds of model

{kinds}

What any of these becomes is one value, [`circuitkit.anatomy(model)`](api/anatomy.md), and [the way from there](house.md) is
the same for all of them.
"""


def read() -> dict:
    return tomllib.loads(TABLE.read_text("utf-8"))


def letters(table: dict) -> dict[str, str]:
    """A letter for each reason that stands in the table, in the order of the table."""
    used = [reason for tool in table["tool"] for reason in tool.get("no", {})]
    used += ["not_yet"] if any(table["failing"].values()) else []
    return {reason: chr(ord("a") + number) for number, reason in enumerate(dict.fromkeys(used))}


def cell(table: dict, tool: dict, kind: str) -> str:
    """A tick, or the letter of a sentence below."""
    if kind in table["failing"].get(tool["name"], ()):
        reason = "not_yet"
    else:
        reason = next(
            (reason for reason, kinds in tool.get("no", {}).items() if kind in kinds), None
        )
    return "✓" if reason is None else f"[{letters(table)[reason]}](#no-{reason.replace('_', '-')})"


def link(tool: dict) -> str:
    """The tool's name, linked to its place in the reference."""
    import circuitkit

    module = importlib.import_module(
        "circuitkit" if tool["room"] == "heads" else f"circuitkit.{tool['room']}"
    )
    top = tool["name"] in circuitkit.__all__ and not isinstance(
        getattr(circuitkit, tool["name"]), type(module)
    )
    home = "circuitkit" if top else module.__name__
    assert hasattr(importlib.import_module(home), tool["name"]), f"{home} has no {tool['name']}"
    return f"{{py:obj}}`{tool['name']} <{home}.{tool['name']}>`"


def grid(table: dict) -> str:
    kinds = table["kinds"]
    lines = ["```{table}", ":class: ck-works", ""]
    lines += [
        "| | " + " | ".join(short for short, _ in kinds.values()) + " |",
        "|---" * (len(kinds) + 1) + "|",
    ]
    room = None
    for tool in table["tool"]:
        if tool["room"] != room:
            room = tool["room"]
            lines.append(f"| **{ROOMS[room]}** |" + " |" * len(kinds))
        cells = " | ".join(cell(table, tool, kind) for kind in kinds)
        lines.append(f"| {link(tool)} *{tool['says']}* | {cells} |")
    return "\n".join([*lines, "```"])


def page() -> str:
    table = read()
    reasons = [
        f"(no-{reason.replace('_', '-')})=\n**{letter}.** {table['reasons'].get(reason, NOT_YET)}"
        for reason, letter in letters(table).items()
    ]
    kinds = [f"* **{short}**: {text}." for short, text in table["kinds"].values()]
    return TEXT.format(table=grid(table), reasons="\n\n".join(reasons), kinds="\n".join(kinds))


def main() -> None:
    PAGE.write_text(page(), "utf-8")
    table = read()
    cells = len(table["tool"]) * len(table["kinds"])
    none = sum(len(kinds) for tool in table["tool"] for kinds in tool.get("no", {}).values())
    no = {
        (tool["name"], kind)
        for tool in table["tool"]
        for kinds in tool.get("no", {}).values()
        for kind in kinds
    }
    waiting = sum(
        (name, kind) not in no for name, kinds in table["failing"].items() for kind in kinds
    )
    print(
        f"{PAGE.relative_to(ROOT)}: {cells} cells, {cells - none} with a meaning, {cells - none - waiting} of them work"
    )


if __name__ == "__main__":
    main()
