r"""Numbers in the prose are bound in place to stored outputs and shipped files; this finds false and unbound ones.

An HTML comment directly behind a number names its expression, and no page shows it:

    The stream has 160<!-- = cfg("two-layer").d_model --> dimensions, an error below 0.01<!-- > out(r"error (\S+)") -->.

`=` says that the value rounds to what is written, `<` and `>` compare what is written with the value. A number that the
text chooses itself has `<!-- chosen -->` or `<!-- chosen: reason -->`. Decimals, percentages and integers above 12 need
a comment; years, labels such as "chapter 13", code, formulas, links and headings do not. No notebook runs for this.

An expression may use `out(regex)`, `cell(text, row, column)` and `column(text, column)` (stored outputs of the page),
`code(regex)` (its code), `cfg(model)` and `card(model)` (shipped models), `claim(id)`, `ex(name)` (the number of an exercise),
`data("file.json")`, `seeds(statement, column)` and
`seeds_number(model, step, measure)` (the table of training seeds), arithmetic, and `abs len max min round sum`.
"""

import functools
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

from bs4 import BeautifulSoup

from circuitkit_book.exercises.chapters import number_of

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "src/circuitkit/data/models"
CLAIMS = ROOT / "src/circuitkit_book/claims/claims.toml"
NUMBER = r"(?<![\w.,^_/#-])[−+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?: ?%)?(?!\w)(?!\.\d)"
COMMENT = r"[*_$]*<!-- (?:chosen\b|[=<>] )"
BOUND = re.compile(rf"({NUMBER})?[*_$]*<!-- ([=<>]) (.+?) -->", re.S)
# The choices of a prediction (`tools/check/predictions.py`) are guesses.
CHOICES = r"(?:^[-*] [^\n]*\n(?: [^\n]*\n)*)+\n<!-- predict\n.*?-->"
NOT_PROSE = [
    CHOICES,
    r"```.*?```|`[^`]*`",
    r"\$\$.*?\$\$|\$[^$\n]*\$",
    r"^#[^\n]*$",
    r"<!--.*?-->|</?[a-zA-Z][^>]*>",
    r"\[\(?\d[\d.]*\)?\]\([^)]*\)|\]\([^)]*\)|https?://\S+",
    r"^\s*\d+\. |\*\*\d+\.\**",
    r"\b(?:chapter|section|theorem|claim|table|figure|version|python|torch|transformer-lens|page|head"
    r"|position)s? \d[\d.]*(?:(?:,| and| to| or|–) \d[\d.]*)*",
    r"\b(?:19|20)\d\d[a-z]?\b|\barXiv[: ]\S+|\bCC BY \S+|\b\d+ minutes\b|\*\*Time\*\*[^\n]*",
]


def written(text: str) -> tuple[float, float]:
    """A number as it is written and half a unit of its last digit: `28 %`, `2,048`, `−0.10`, `1.4e-3`."""
    plain = text.replace(",", "").replace("−", "-").replace(" ", "")
    scale = 0.01 if plain.endswith("%") else 1.0
    digits, _, exponent = plain.rstrip("%").partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return float(plain.rstrip("%")) * scale, half * scale


def holds(text: str, relation: str, value: float) -> bool:
    """Whether the number in the text stands in this relation to the value."""
    number, half = written(text)
    if relation == "=":
        return abs(number - value) <= half * (1 + 1e-9)
    return number < value if relation == "<" else number > value


def only_one(found: list, what: str):
    """The one thing found; the error says what was looked for."""
    if len(found) != 1:
        raise ValueError(f"{len(found)} places have {what}, expected one")
    return found[0]


@functools.cache
def cells_of(path: Path) -> list[dict]:
    """The cells of a notebook; a Markdown file is one Markdown cell."""
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        return json.loads(text)["cells"]
    return [{"cell_type": "markdown", "source": text}]


class Names:
    """What an expression can use: the stored outputs and the code of its page, and the shipped files."""

    def __init__(self, path: Path):
        cells = cells_of(path)
        shown = [output for cell in cells for output in cell.get("outputs", [])]
        kinds = [
            {"text/plain": output.get("text", ""), **output.get("data", {})} for output in shown
        ]
        self.printed = "\n".join("".join(kind.get("text/plain", "")) for kind in kinds)
        self.html = ["".join(kind.get("text/html", "")) for kind in kinds]
        self.sources = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")

    def out(self, pattern: str, which: int = 0) -> float:
        """The number in the first group of `pattern` in the printed outputs of the page."""
        return written(re.findall(pattern, self.printed)[which])[0]

    def code(self, pattern: str) -> float:
        """The number in the first group of `pattern` in the code of the page."""
        return written(re.findall(pattern, self.sources)[0].replace("_", ""))[0]

    @functools.cached_property
    def tables(self) -> list[tuple[str, list[list[str]]]]:
        """What each output with a table says, and the entries of the table, line by line."""
        pages = [BeautifulSoup(shown, "html.parser") for shown in self.html if "<table" in shown]
        return [
            (
                page.get_text(),
                [
                    [entry.get_text().strip() for entry in line.find_all(["th", "td"])]
                    for line in page.find("table").find_all("tr")
                ],
            )
            for page in pages
        ]

    def lines(self, text: str) -> list[list[str]]:
        """The entries of the one table that says `text`, line by line."""
        tables = [lines for said, lines in self.tables if text in said]
        return only_one(tables, f"a table with the text {text!r}")

    def column(self, text: str, column: str) -> dict[str, float]:
        """The numbers of a column by the names of their rows."""
        head, *lines = self.lines(text)
        at = head.index(column)
        return {line[0]: written(line[at])[0] for line in lines}

    def cell(self, text: str, row: str | int, column: str | int) -> float:
        """A number in a table: the one output that says `text`, and the names or places of row and column."""
        lines = self.lines(text)
        at = column if isinstance(column, int) else lines[0].index(column)
        rows = [line for line in lines[1:] if line[0] == row]
        line = lines[row + 1] if isinstance(row, int) else only_one(rows, f"the row {row!r}")
        return written(re.search(NUMBER, line[at])[0])[0]


@functools.cache
def data(name: str):
    """A JSON file of the shipped data."""
    return json.loads((DATA / name).read_text("utf-8"))


def card(model: str) -> dict:
    """The record of a shipped model: sizes, training, measured losses."""
    return data("manifest.json")["models"][model]


def cfg(model: str) -> SimpleNamespace:
    """The sizes of a shipped model under the names that transformer-lens uses."""
    sizes = card(model)["sizes"]
    width = sizes["d_content"] + (0 if sizes["mlp"] else sizes["d_pos"])
    return SimpleNamespace(**sizes, d_model=width)


@functools.cache
def claims() -> list[dict]:
    """The rows of the register of claims."""
    return tomllib.loads(CLAIMS.read_text("utf-8"))["claim"]


def claim(number: str, which: int | None = None):
    """The registered value of a claim; `which` picks from a list."""
    values = [row["value"] for row in claims() if row["id"] == number]
    value = only_one(values, f"the id {number}")
    return value if which is None else value[which]


def seeds(statement: str, column: str = "holds") -> float:
    """A column of `training_seeds.counts` for a statement: by default, in how many new seeds it holds."""
    from circuitkit_book import training_seeds

    return float(training_seeds.counts().loc[statement, column])


def seeds_number(model: str, step: int, measure: str) -> float:
    """A measure of a model in the table of training seeds."""
    from circuitkit_book import training_seeds

    return float(training_seeds.stored_seeds().loc[(model, step), measure])


def ex(name: str) -> float:
    """The number of an exercise by its name in the list of `chapters.py`: 2.2 for `ex("first_share")`."""
    return float(number_of(name))


SHARED = {
    "data": data,
    "seeds": seeds,
    "seeds_number": seeds_number,
    "ex": ex,
    "card": card,
    "cfg": cfg,
    "claim": claim,
}
ARITHMETIC = {"abs": abs, "len": len, "max": max, "min": min, "round": round, "sum": sum}


def value(expression: str, names: Names, **more):
    """What an expression gives for a page; `more` has further names that it may use."""
    own = {"out": names.out, "code": names.code, "cell": names.cell, "column": names.column}
    own |= more
    return eval(expression, {"__builtins__": {}} | SHARED | ARITHMETIC | own)


def false_numbers(text: str, names: Names) -> list[str]:
    """The comments of a text that do not agree with their numbers."""
    found = []
    for number, relation, expression in BOUND.findall(text):
        if not number:
            found.append(f"the comment `{relation} {expression}` does not stand behind a number")
            continue
        try:
            is_so = value(expression, names)
        except Exception as error:  # any mistake in an expression is the writer's to see
            found.append(f'"{number}" cannot be checked: {expression} fails with {error!r}')
            continue
        if not holds(number, relation, is_so):
            found.append(f'"{number}" is false: {relation} {expression}, which is {is_so}')
    return found


def unbound_numbers(text: str) -> list[str]:
    """The numbers of a text that need a comment and have none."""
    prose = text
    for kind in NOT_PROSE:
        blank = functools.partial(re.sub, r"[^\n]", " ")
        prose = re.sub(kind, lambda hit: blank(hit[0]), prose, flags=re.S | re.M | re.I)  # noqa: B023
    found = [
        hit for hit in re.finditer(NUMBER, prose) if not re.match(r"[−+-]?(\d|1[0-2])$", hit[0])
    ]
    return [hit[0] for hit in found if not re.match(COMMENT, text[hit.end() :])]


def problems(path: Path, name: str) -> list[str]:
    """What is wrong with the numbers of a page, one line each."""
    names, found = Names(path), []
    for cell in cells_of(path):
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            found += [f"in {name} {fault}" for fault in false_numbers(text, names)]
            found += [
                f'"{number}" in {name} has no binding: put <!-- = expression --> behind it, or <!-- chosen -->.'
                for number in unbound_numbers(text)
            ]
    return found


@functools.cache
def pages() -> dict[str, Path]:
    """The pages that readers see, by their path in the repository."""
    patterns = ["README.md", "CHANGELOG.md", "book/*.md", "book/*.ipynb"]
    patterns += ["book/[1-9]-*/*.md", "book/[1-9]-*/*.ipynb"]
    found = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return {path.relative_to(ROOT).as_posix(): path for path in found}
