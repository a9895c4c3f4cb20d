"""Every number in the book's prose is bound to a value that is computed; this finds the ones that are not.

    python -m tools prose-numbers          list numbers without a binding, and bindings that no longer hold

`book/numbers.toml` binds a quote to one expression for each number in it:

    [[number]]
    page = "02-qk-and-ov-circuits"
    quote = "counts are over the 5.9 million tokens"
    is = "out(r'counted over (\\S+) million')"

An expression may use `out(regex)` (a number in the stored outputs of that page, which the notebook's own run checks),
`code(regex)` (a number set in its code), `claim(id)` (the value in the claims register, recomputed by its tests),
`cfg(model)`, `card(model)`, `default(function, argument)` and arithmetic. The
value must round to what is written; `relation` may instead say `below`, `above` or `about` (within a tenth).

A number that the text chooses itself, such as the input of a worked example, has `chosen = "the reason"` in place of `is`.

Numbers that say nothing about a result need no binding: 0 and 1, years, and labels such as "chapter 2" or "(2.1)".
Numbers in code and in formulas are not prose.
"""

import functools
import inspect
import json
import math
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ROOT / "book" / "numbers.toml"
NUMBER = re.compile(r"(?<![\w.^_/#-])[−+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?: ?%)?(?!\w)(?!\.\d)")
SAYS_NOTHING = {"0", "1", "+1", "−1", "-1"}
LABELS = [
    r"```.*?```",
    r"`[^`]*`",
    r"\$\$.*?\$\$",
    r"\$[^$\n]*\$",
    r"^#[^\n]*$",  # headings
    r"<!--.*?-->|</?[a-zA-Z][^>]*>",
    r"\[\(?\d[\d.]*\)?\]\([^)]*\)",  # a link whose text is a number: an equation
    r"\]\([^)]*\)|https?://\S+",
    r"^\s*\d+\. |\| \d+\. |\bhead \d+\b|\b1, 2, 3 and so on\b",  # numbered lists, and other counting
    r"\*\*\d+\.\**",
    r"\b(?:chapter|layer|place|position|period|word|TransformerLens|block|section|theorem|exercise|claim|remark|appendix|table|figure|dimension|trigram|source"
    r"|step|python|version|page|property|part)s? \d[\d.]*(?:(?:,| and| to| or|–) \d[\d.]*)*",
    r"\(?\b(?:19[5-9]\d|20[0-3]\d)[a-z]?\b\)?",  # years
    r"\barXiv[: ]\S+|\bCC BY \S+",
    r"\*\*Time\*\*[^\n]*|\((?:[^()]*, )?\d+ minutes\)|\(\d+\)|\d+ minutes\b|\*(?:easy|medium|hard) · \d+ minutes\*",
]


def text_of(path: Path) -> str:
    """The prose of a page: Markdown cells of a notebook, or the whole of a Markdown file."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return text


def prose(text: str) -> str:
    """The text with everything blanked out that is no prose, position by position."""
    text = re.sub(r"\$([−-]?[\d.,]+)\$", r" \1 ", text)  # a formula that is only a number is prose
    for label in LABELS:
        text = re.sub(label, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S | re.M | re.I)
    return text


def numbers(text: str) -> list[re.Match]:
    """The numbers of a text that want a binding."""
    return [found for found in NUMBER.finditer(prose(text)) if found[0] not in SAYS_NOTHING]


def pages(root: Path = ROOT) -> dict[str, Path]:
    """The pages of the book by name, such as `02-qk-and-ov-circuits` or `exercises/02-qk-and-ov-circuits`."""
    book = root / "book"
    found = [path for pattern in ("*.ipynb", "exercises/*.ipynb", "*.md") for path in sorted(book.glob(pattern))]
    return {str(path.relative_to(book).with_suffix("")): path for path in found}


def value_of(written: str) -> tuple[float, float]:
    """A number as it is written, and half a unit of its last digit."""
    plain = written.replace(",", "").replace("−", "-").replace(" ", "")
    scale = 0.01 if plain.endswith("%") else 1.0
    plain = plain.rstrip("%")
    digits = plain.partition("e")[0].partition(".")[2]
    exponent = int(plain.partition("e")[2] or 0)
    return float(plain) * scale, 0.5 * 10.0 ** (exponent - len(digits)) * scale


def agrees(written: str, value: float, relation: str = "") -> bool:
    """Whether the value may be written so."""
    stated, half = value_of(written)
    if relation == "below":
        return value < stated
    if relation == "above":
        return value > stated
    if relation == "about":
        return abs(value - stated) <= 0.1 * abs(stated)
    if relation:
        raise ValueError(f"relation is {relation!r}; expected 'below', 'above', 'about' or none at all")
    return abs(value - stated) <= half * (1 + 1e-9)


class Names:
    """What an expression may use on one page."""

    def __init__(self, path: Path):
        self.outputs, self.sources = outputs_of(path), sources_of(path)

    def out(self, pattern: str, which: int = 0) -> float:
        """The number that `pattern`'s group finds in the stored outputs of the page."""
        found = re.findall(pattern, self.outputs)
        if len(found) <= which:
            raise ValueError(f"no stored output of this page matches {pattern!r} {which + 1} times")
        return value_of(found[which])[0]

    def code(self, pattern: str) -> float:
        """The number that `pattern`'s group finds in the code of the page: a choice made there, not a result."""
        found = re.findall(pattern, self.sources)
        if not found:
            raise ValueError(f"no code of this page matches {pattern!r}")
        return value_of(found[0].replace("_", ""))[0]

    def namespace(self) -> dict:
        import torch

        import circuitkit as ck

        ours = {
            "ck": ck,
            "out": self.out,
            "code": self.code,
            "claim": claim,
            "default": default,
            "cfg": cfg,
            "card": card,
        }
        return ours | {"torch": torch, "math": math, "sum": sum, "min": min, "max": max, "round": round, "len": len}


@functools.lru_cache(maxsize=1)
def _names(path: Path, changed: int) -> dict:
    return Names(path).namespace()


def names_of(path: Path) -> dict:
    """The names of a page, read once for all its expressions."""
    return _names(path, path.stat().st_mtime_ns)


def outputs_of(path: Path) -> str:
    """All text that the notebook's stored outputs show."""
    if path.suffix != ".ipynb":
        return ""
    shown = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            shown.append("".join(output.get("text", "")) or "".join(output.get("data", {}).get("text/plain", "")))
    return "\n".join(shown)


def sources_of(path: Path) -> str:
    """All code of a notebook."""
    if path.suffix != ".ipynb":
        return ""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def default(function, name: str):
    """The default of a function's argument."""
    return inspect.signature(function).parameters[name].default


def claim(number: str, which: int | None = None) -> float:
    """The value of a claim in the register."""
    from circuitkit import claims

    value = claims.find(number).value
    return value if which is None else value[which]


def card(model: str) -> dict:
    from circuitkit import models

    return models.model_card(model)


@functools.cache
def cfg(model: str):
    from circuitkit import load_model

    return load_model(model).cfg


def bindings(path: Path = NUMBERS) -> list[dict]:
    return tomllib.loads(path.read_text("utf-8"))["number"]


def problems(root: Path = ROOT, bound: list[dict] | None = None) -> list[str]:
    """Everything that is wrong, one line each: a number without a binding, a binding that does not hold."""
    found, bound = [], bindings(root / "book" / "numbers.toml") if bound is None else bound
    by_page = pages(root)
    for entry in bound:
        if entry["page"] not in by_page:
            found.append(f"{entry['page']}: no such page")
    for name, path in by_page.items():
        # Blanks stand for line breaks, so that a quote may run over the end of a line.
        text = re.sub(r"\s", " ", text_of(path))
        clean = re.sub(r"\s", " ", prose(text_of(path)))
        covered: set[int] = set()
        for entry in (entry for entry in bound if entry["page"] == name):
            found += [f"{name}: {problem}" for problem in faults(entry, text, clean, path, covered)]
        for number in NUMBER.finditer(clean):
            if number[0] not in SAYS_NOTHING and number.start() not in covered:
                around = text[max(0, number.start() - 40) : number.end() + 30]
                found.append(f"{name}: no binding for {number[0]!r} in '...{around}...'")
    return found


def faults(entry: dict, text: str, clean: str, path: Path, covered: set[int]) -> list[str]:
    """What is wrong with one binding; the numbers it covers are added to `covered`."""
    quote = entry["quote"]
    if text.count(quote) != 1:
        return [f"the quote {quote!r} is there {text.count(quote)} times; expected once"]
    start = text.index(quote)
    if "chosen" in entry:
        covered |= {n.start() for n in NUMBER.finditer(clean, start, start + len(quote))}
        return [] if len(entry["chosen"].split()) > 3 else [f"the quote {quote!r} is called chosen without a reason"]
    inside = [n for n in NUMBER.finditer(clean, start, start + len(quote)) if n[0] not in SAYS_NOTHING]
    expressions = [entry["is"]] if isinstance(entry["is"], str) else entry["is"]
    if len(inside) != len(expressions) or not inside:
        return [f"the quote {quote!r} has numbers {[n[0] for n in inside]} for {len(expressions)} expressions"]
    covered |= {n.start() for n in inside}
    wrong = []
    for number, expression in zip(inside, expressions, strict=True):
        try:
            value = float(eval(expression, {"__builtins__": {}} | names_of(path)))
        except Exception as error:  # an expression may fail in any way; which one failed is what matters
            wrong.append(f"{quote!r}: {expression} failed: {error}")
            continue
        if not agrees(number[0], value, entry.get("relation", "")):
            wrong.append(f"{quote!r} says {entry.get('relation', '')} {number[0]}, computed {value:.6g} ({expression})")
    return wrong


def main() -> int:
    found = problems()
    print("\n".join(found) or f"{len(bindings())} quotes, every number in the prose is bound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
