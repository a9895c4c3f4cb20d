"""Every number, count in words and head name in the prose is bound to a computed value; this finds what is not.

    python -m tools prose-numbers          list what has no binding, and bindings that no longer hold

`book/numbers.toml` binds a quote to one expression for each number in it:

    [[number]]
    page = "02-qk-and-ov-circuits"
    quote = "counts are over the 5.9 million tokens"
    is = "out(r'counted over (\\S+) million')"

Where the quote has marks, what stands between them is bound instead, whatever it is: a number, a count in words
(`half`, `twice`, `three`, `first`), a head's name or a word of an output:

    quote = "«Eight» heads of «270»"
    quote = "The largest part comes from «L1H3»"        is = "name(r'of which .* by (\\S+)')"

An expression may use `out(regex)` (a number in the stored outputs of that page, which the notebook's own run checks),
`name(regex)` (a text in them), `code(regex)` (a number set in its code), `claim(id)` (the value in the claims register,
recomputed by its tests), `cfg(model)`, `card(model)`, `default(function, argument)`, `command(regex)` (a number in
the Makefile, the settings or the tools), `files(pattern)` (how many there are) and arithmetic. The value must round
to what is written; `relation` may instead say `below`, `above` or `about` (within a tenth).

`holds = "expression"` in place of `is` binds a comparison: the sentence says something that is True.

A number that the text chooses itself has `chosen = "category: reason"`, with a category of CHOSEN whose test it passes;
its `quote` may be a list.

Two kinds are bound by themselves: a head's name that stands in an output beside its cell, and a count in words that
stands there, in the code beside it or as a number of the same paragraph. Numbers that say nothing need no binding: 0,
1 and 2 in words, 0 and 1 in digits, years, and labels such as "chapter 2" or "(2.1)". Numbers in code and in formulas
are not prose; formulas have a test of their own. `python -m tools statements` keeps all of them as they were read.
"""

import functools
import inspect
import json
import math
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ROOT / "book" / "numbers.toml"
NUMBER = re.compile(
    r"(?<![\w.^_/#-])[−+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?: ?%)?(?!\w)(?!\.\d)"
)
SAYS_NOTHING = {"0", "1", "+1", "−1", "-1"}
HEAD = re.compile(r"\bL\d+H\d+\b")
_UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
_TENS = {
    "fifteen": 15,
    "sixteen": 16,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "eighty": 80,
    "ninety": 90,
    "hundred": 100,
}
WORDS = {
    **{word: value for value, word in enumerate(_UNITS)},
    **_TENS,
    **{
        f"{ten}-{unit}": _TENS[ten] + i
        for ten in list(_TENS)[2:-1]
        for i, unit in enumerate(_UNITS[:10])
        if i
    },
    **{
        "half": 0.5,
        "third": 1 / 3,
        "thirds": 1 / 3,
        "quarter": 0.25,
        "quarters": 0.25,
        "fifth": 0.2,
        "tenth": 0.1,
    },
    **{"once": 1, "twice": 2, "triples": 3, "first": 1, "second": 2, "fourth": 4},
}
#: Counts that need a binding; smaller ones are as often articles and pronouns.
COUNT = re.compile(
    r"\b(?:"
    + "|".join(word for word, value in WORDS.items() if value > 2)
    + r")\b(?!-layer|-head)",
    re.I,
)
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
    r"\b(?:chapter|place|position|period|word|TransformerLens|block|section|theorem|exercise|claim|remark|appendix|table|figure|dimension|trigram|source"
    r"|python|transformers|version|page|property|part)s? \d[\d.]*(?:(?:,| and| to| or|–) \d[\d.]*)*",
    r"\(?\b(?:19[5-9]\d|20[0-3]\d)[a-z]?\b\)?",  # years
    r"\barXiv[: ]\S+|\bCC BY \S+",
    r"\*\*Time\*\*[^\n]*|\((?:[^()]*, )?\d+ minutes\)|\(\d+\)|\d+ minutes\b|\*(?:easy|medium|hard) · \d+ minutes\*",
]


def text_of(path: Path) -> str:
    """The prose of a page: Markdown cells of a notebook, or the whole of a Markdown file."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
    return text


def prose(text: str) -> str:
    """The text with everything blanked out that is no prose, position by position."""
    text = re.sub(r"\$([−-]?[\d.,]+)\$", r" \1 ", text)  # a formula that is only a number is prose
    for label in LABELS:
        text = re.sub(
            label, lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S | re.M | re.I
        )
    return text


def numbers(text: str) -> list[re.Match]:
    """The numbers of a text that want a binding."""
    return [found for found in NUMBER.finditer(prose(text)) if found[0] not in SAYS_NOTHING]


def pages(root: Path = ROOT) -> dict[str, Path]:
    """The pages of the book by name, such as `02-qk-and-ov-circuits` or `exercises/02-qk-and-ov-circuits`."""
    book = root / "book"
    found = [
        path
        for pattern in ("*.ipynb", "exercises/*.ipynb", "*.md")
        for path in sorted(book.glob(pattern))
    ]
    named = {str(path.relative_to(book).with_suffix("")): path for path in found}
    return named | {
        path.stem: path for path in (root / "README.md", root / "CHANGELOG.md") if path.is_file()
    }


def value_of(written: str) -> tuple[float, float]:
    """A number as it is written, in digits or words, and half a unit of its last digit."""
    if (word := written.lower()) in WORDS:
        return WORDS[word], 0.5 if WORDS[word] >= 1 else 0.05
    plain = written.replace(",", "").replace("−", "-").replace(" ", "")
    scale = 0.01 if plain.endswith("%") else 1.0
    plain = plain.rstrip("%")
    digits = plain.partition("e")[0].partition(".")[2]
    exponent = int(plain.partition("e")[2] or 0)
    return float(plain) * scale, 0.5 * 10.0 ** (exponent - len(digits)) * scale


def agrees(written: str, value: float, relation: str = "") -> bool:
    """Whether the value may be written so; text that is no number may not."""
    try:
        stated, half = value_of(written)
    except ValueError:
        return False
    if relation == "below":
        return value < stated
    if relation == "above":
        return value > stated
    if relation == "about":
        return abs(value - stated) <= 0.1 * abs(stated)
    if relation:
        raise ValueError(
            f"relation is {relation!r}; expected 'below', 'above', 'about' or none at all"
        )
    return abs(value - stated) <= half * (1 + 1e-9)


@dataclass(frozen=True)
class Names:
    """What an expression may use on one page: its outputs and its code."""

    outputs: str
    sources: str

    def out(self, pattern: str, which: int = 0) -> float:
        """The number that `pattern`'s group finds in the stored outputs of the page."""
        found = re.findall(pattern, self.outputs)
        if len(found) <= which:
            raise ValueError(f"no stored output of this page matches {pattern!r} {which + 1} times")
        return value_of(found[which])[0]

    def name(self, pattern: str, which: int = 0) -> str:
        """The text that `pattern`'s group finds in the stored outputs of the page."""
        found = re.findall(pattern, self.outputs)
        if len(found) <= which:
            raise ValueError(f"no stored output of this page matches {pattern!r} {which + 1} times")
        return found[which]

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
            "name": self.name,
            "outputs": self.outputs,
            "sources": self.sources,
            "re": re,
            "code": self.code,
            "claim": claim,
            "command": command,
            "files": lambda pattern: len(list(ROOT.glob(pattern))),
            "megabytes": lambda pattern: (
                sum(path.stat().st_size for path in ROOT.glob(pattern)) / 1e6
            ),
            "text_of": lambda page: text_of(pages()[page]),
            "default": default,
            "cfg": cfg,
            "card": card,
        }
        return ours | {
            "torch": torch,
            "math": math,
            "sum": sum,
            "min": min,
            "max": max,
            "round": round,
            "len": len,
            "abs": abs,
            "all": all,
            "set": set,
            "sorted": sorted,
            "int": int,
            "range": range,
            "float": float,
        }


def outputs_of(path: Path) -> str:
    """All text that the notebook's stored outputs show."""
    if path.suffix != ".ipynb":
        return ""
    return "\n".join(
        shown for cell in json.loads(path.read_text("utf-8"))["cells"] for shown in shown_by(cell)
    )


def shown_by(cell: dict) -> list[str]:
    """The text of each stored output of a cell."""
    return [
        "".join(output.get("text", "")) or "".join(output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", [])
    ]


def sources_of(path: Path) -> str:
    """All code of a notebook."""
    if path.suffix != ".ipynb":
        return ""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def default(function, name: str):
    """The default of a function's argument."""
    return inspect.signature(function).parameters[name].default


def claim(number: str, which: int | None = None) -> float | str:
    """The value of a claim in the register."""
    from circuitkit import claims

    value = claims.find(number).value
    return value if which is None else value[which]


@functools.cache
def _commands() -> str:
    places = [
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *ROOT.glob("tools/*/*.py"),
        *ROOT.glob("tests/pages/*.py"),
    ]
    return "\n".join(path.read_text("utf-8") for path in places if path != Path(__file__).resolve())


def command(pattern: str) -> float:
    """The number that `pattern`'s group finds in what runs: the Makefile, the settings, the tools, the pages' tests."""
    found = re.findall(pattern, _commands())
    if not found:
        raise ValueError(f"no command matches {pattern!r}")
    return value_of(found[0].replace("_", ""))[0]


def card(model: str) -> dict:
    from circuitkit import models

    return models.model_card(model)


@functools.cache
def cfg(model: str):
    from circuitkit import load_model

    return load_model(model).cfg


def bindings(path: Path = NUMBERS) -> list[dict]:
    return tomllib.loads(path.read_text("utf-8"))["number"]


def beside(path: Path, outputs: bool = True) -> list[tuple[str, str]]:
    """Each Markdown cell with the outputs (and code) of the code cells next to it, on both sides."""
    if path.suffix != ".ipynb":
        return [(path.read_text("utf-8"), "")]
    cells = json.loads(path.read_text("utf-8"))["cells"]
    groups: list[list] = []
    for cell in cells:
        if not groups or groups[-1][0] != cell["cell_type"]:
            groups.append([cell["cell_type"], "", ""])
        groups[-1][1] += "".join(cell["source"]) + "\n\n"
        groups[-1][2] += "\n".join(shown_by(cell)) + "\n"
    found = []
    for i, (kind, source, _) in enumerate(groups):
        near = groups[max(i - 1, 0) : i] + groups[i + 1 : i + 2]
        if kind == "markdown":
            found.append(
                (source, "\n".join(shown if outputs else shown + text for _, text, shown in near))
            )
    return found


def unbound_names(path: Path, covered: list[tuple[int, int]]) -> list[str]:
    """Head names and counts in words that nothing beside them shows; `covered` are places with a binding of their own."""
    found, offset = [], 0
    for (text, shown), (_, near) in zip(beside(path), beside(path, outputs=False), strict=True):
        clean = prose(text)
        heads, counts = (
            set(HEAD.findall(shown)),
            {value_of(n)[0] for n in re.findall(r"\d+(?:\.\d+)?", near)},
        )
        for word in [
            *HEAD.finditer(re.sub(r"```.*?```", lambda m: " " * len(m[0]), text, flags=re.S)),
            *COUNT.finditer(clean),
        ]:
            start = word.start() + offset
            around = clean[
                clean.rfind("\n\n", 0, word.start()) + 1 : (clean + "\n\n").find("\n\n", word.end())
            ]
            own = {abs(value_of(number[0])[0]) for number in NUMBER.finditer(around)}
            known = (
                word[0] in heads
                if HEAD.fullmatch(word[0])
                else WORDS[word[0].lower()] in counts | own
            )
            if not known and not any(a <= start < b for a, b in covered):
                line = re.sub(r"\s", " ", text[max(0, word.start() - 40) : word.end() + 40])
                found.append(f"nothing beside it shows {word[0]!r} in '...{line}...'")
        offset += len(text)
    return found


def problems(root: Path = ROOT, bound: list[dict] | None = None) -> list[str]:
    """Everything that is wrong, one line each: a number without a binding, a binding that does not hold."""
    found, bound = [], bindings(root / "book" / "numbers.toml") if bound is None else bound
    by_page = pages(root)
    for entry in bound:
        if entry["page"] not in by_page:
            found.append(f"{entry['page']}: no such page")
    for name, path in by_page.items():
        # Blanks stand for line breaks, so that a quote may run over the end of a line.
        text = re.sub(r"\s", " ", "".join(source for source, _ in beside(path)))
        clean = re.sub(r"\s", " ", prose("".join(source for source, _ in beside(path))))
        names, covered = Names(outputs_of(path), sources_of(path)), []
        for entry in (entry for entry in bound if entry["page"] == name):
            for quote in [entry["quote"]] if isinstance(entry["quote"], str) else entry["quote"]:
                found += [
                    f"{name}: {problem}"
                    for problem in faults(
                        {**entry, "quote": quote}, text, clean, path, names, covered
                    )
                ]
        for number in NUMBER.finditer(clean):
            if number[0] not in SAYS_NOTHING and not any(
                a <= number.start() < b for a, b in covered
            ):
                around = text[max(0, number.start() - 40) : number.end() + 30]
                found.append(f"{name}: no binding for {number[0]!r} in '...{around}...'")
        found += [f"{name}: {problem}" for problem in unbound_names(path, covered)]
    return found


def marked(quote: str) -> tuple[str, list[tuple[int, int]]]:
    """The quote without its marks, and where what they mark stands in it."""
    places, plain = [], quote
    while found := re.search("«(.*?)»", plain):
        plain = plain[: found.start()] + found[1] + plain[found.end() :]
        places.append((found.start(), found.start() + len(found[1])))
    return plain, places


def faults(
    entry: dict, text: str, clean: str, path: Path, names: Names, covered: list[tuple[int, int]]
) -> list[str]:
    """What is wrong with one binding; the places it covers are added to `covered`."""
    quote, places = marked(entry["quote"])
    if text.count(quote) != 1:
        return [f"the quote {quote!r} is there {text.count(quote)} times; expected once"]
    start, end = text.index(quote), text.index(quote) + len(quote)
    if "chosen" in entry:
        covered.append((start, end))
        return [
            f"the quote {quote!r} {problem}"
            for problem in unfounded(entry["chosen"], start, end, text, clean, path)
        ]
    if "holds" in entry:
        covered.append((start, end))
        value, wrong = evaluate(entry["holds"], names)
        return wrong or (
            [] if value is True else [f"{quote!r} does not hold: {entry['holds']} is {value!r}"]
        )
    numbers_in = [n.span() for n in NUMBER.finditer(clean, start, end) if n[0] not in SAYS_NOTHING]
    inside = [(start + a, start + b) for a, b in places] or numbers_in
    expressions = [entry["is"]] if isinstance(entry["is"], str) else entry["is"]
    if len(inside) != len(expressions) or not inside:
        return [
            f"the quote {quote!r} has {[text[a:b] for a, b in inside]} for {len(expressions)} expressions"
        ]
    covered += inside
    found = []
    for (a, b), expression in zip(inside, expressions, strict=True):
        value, wrong = evaluate(expression, names)
        relation = entry.get("relation", "")
        same = (
            value == text[a:b]
            if isinstance(value, str)
            else wrong or agrees(text[a:b], float(value), relation)
        )
        found += (
            wrong
            if wrong or same
            else [f"{quote!r} says {relation} {text[a:b]}, computed {value!s:.8} ({expression})"]
        )
    return found


@functools.cache
def evaluate(expression: str, names: Names) -> tuple:
    """The value of an expression, or why there is none; the same page gives the same value, whatever its prose says."""
    try:
        return eval(expression, {"__builtins__": {}} | names.namespace()), []
    except (
        Exception
    ) as error:  # an expression may fail in any way; which one failed is what matters
        return None, [f"{expression} failed: {error}"]


#: What a text may choose itself, and what must then be true of the paragraph or the page.
CHOSEN = {
    "reader": "belongs to an exercise or a question",
    "example": "is a number of a worked example that comes back in it",
    "source": "is said of a text that is named beside it",
    "package": "is a fact about a package of others that is named beside it",
    "list": "counts what is listed beside it: at least so many commas, full stops, signs or items",
}


def unfounded(chosen: str, start: int, end: int, text: str, clean: str, path: Path) -> list[str]:
    """Why a quote may not be called chosen."""
    category, _, reason = chosen.partition(": ")
    if category not in CHOSEN or len(reason.split()) < 3:
        return [f"is called chosen without a category of {list(CHOSEN)} and a reason: {chosen!r}"]
    around = text[max(0, start - 300) : end + 300]
    written = [n[0] for pattern in (NUMBER, COUNT) for n in pattern.finditer(clean, start, end)]
    values = [abs(value_of(one)[0]) for one in written if one not in SAYS_NOTHING]
    exercise = path.parent.name == "exercises"
    right = {
        "reader": exercise
        or bool(re.search(r"minutes\)|Check yourself|[Tt]ry |<summary>", around)),
        "example": exercise or all(around.count(one) > 1 for one in written),
        "source": bool(
            re.search(r"claim|[Nn]otes|[Pp]aper|[Pp]ost|et al|20[12]\d|Theorem", around)
        ),
        "package": bool(re.search(r"torch|transformers|Python|Node|Playwright|Colab", around)),
        "list": all(
            len(re.findall(r"[,.;:|]|\band\b|\bor\b", around)) + 1 >= value for value in values
        ),
    }
    return (
        [] if right[category] else [f"is called {category!r}, but nothing there {CHOSEN[category]}"]
    )


def main() -> int:
    found = problems()
    print(
        "\n".join(found)
        or f"{len(bindings())} quotes, every number, count and head in the prose is bound"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
