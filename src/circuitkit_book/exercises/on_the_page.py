"""Short answers as fields of a page: what `book/_static/answers.js` needs to give the replies of the checks.

Names and words are in the page as hashes, and what is shown with the right word is sealed with it, so that a look at the source of
the page gives nothing away.
"""

import base64
import inspect
from importlib import import_module
from itertools import cycle
from typing import Any

from circuitkit_book.exercises.short_answers import ALMOST, UNKNOWN_NAME, Table

MODULES = [f"short_{name}" for name in ("stream", "qk_ov", "induction", "mlp", "superposition")]
PRIME, STARTS = 0x01000193, (0x811C9DC5, 0x9747B28C)


def mark(title: str, text: str) -> str:
    """A 64-bit FNV-1a hash of an answer, in two halves, as hexadecimal digits; the title makes it that of one exercise."""
    halves = []
    for half in STARTS:
        for byte in f"{title}\n{text}".encode():
            half = ((half ^ byte) * PRIME) % 2**32
        halves.append(f"{half:08x}")
    return "".join(halves)


def sealed(text: str, key: str) -> str:
    """A text that only somebody who knows the key can read at a glance."""
    mixed = bytes(a ^ b for a, b in zip(text.encode(), cycle(key.encode()), strict=False))
    return base64.b64encode(mixed).decode()


def field(table: Table) -> dict[str, Any]:
    """What a page needs to judge one short answer."""
    title = table.title
    shown = {"kind": table.kind, "title": title}
    if table.kind == "numbers":
        numbers = [float(number) for number in table.right]
        hints = [[hint, [float(n) for n in wrong]] for hint, wrong in table.hints.items()]
        return shown | {"right": numbers, "hints": hints}
    shown |= {"right": mark(title, table.right)}
    shown |= {"hints": {mark(title, wrong): hint for wrong, hint in table.hints.items()}}
    if table.kind == "name":
        return shown | {"unknown": UNKNOWN_NAME}
    folded = table.right.strip().lower()
    texts = {"why": sealed(table.why, folded), "almost": sealed(ALMOST.format(table.right), folded)}
    return shown | {"folded": mark(title, folded)} | texts


def fields() -> dict[str, dict[str, Any]]:
    """The fields of all short answers that are compared with a table, by the name of the check."""
    found = {}
    for name in MODULES:
        module = import_module(f"circuitkit_book.exercises.{name}")
        for check_name, check in inspect.getmembers(module, inspect.isfunction):
            if check_name.startswith("check_") and len(inspect.signature(check).parameters) == 1:
                table = check(None).table
                if table is not None:
                    found[check_name] = field(table)
    return found
