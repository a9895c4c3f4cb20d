"""The pairs of code in "Your own model", made from `book/one-line.toml` when the book is built.

`tests/book/test_one_line.py` runs both pieces of every pair; `benchmarks/bench_one_line.py` measures the times.
"""

import tomllib
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "one-line.toml"
PAGE, MARKER = "book/your-model", "<!-- one line: pairs -->"


def code(text: str) -> str:
    return f"```python\n{text.strip()}\n```"


def pairs(data: dict) -> str:
    parts = [code(data["setup"])]
    for task in data["task"]:
        parts.append(f"### {task['title']}")
        parts.append(code(f"# transformer-lens\n{task['theirs']}"))
        parts.append(code(f"# circuitkit: {task['time']} of the time\n{task['ours']}"))
    return "\n\n".join(parts)


def fill(app, docname, source) -> None:
    if docname == PAGE:
        app.env.note_dependency(str(FILE))
        source[0] = source[0].replace(MARKER, pairs(tomllib.loads(FILE.read_text("utf-8"))))


def setup(app) -> None:
    app.connect("source-read", fill)
