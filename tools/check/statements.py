"""Keep what the prose states, where a slip of the pen would change a fact; `--write` after you meant a change.

    python -m tools statements            what differs from tests/prose/statements.txt
    python -m tools statements --write    write the list anew: its diff is what a reviewer reads

The list has a line for every sentence of every page that counts, orders, compares, denies or names: its numbers, formulas,
units, counts in words, heads, layers and comparisons, in order, and nothing else. Rewording leaves it alone; `twice`
for `three times`, `keys` for `values` or a lost `not` does not. It holds what `book/numbers.toml` does not bind to a
value, so it knows that a statement changed and not whether it is true. The alt texts of figures and the rows of the
claims register are in it, too.
"""

import argparse
import difflib
import functools
import json
import re
import sys
import tomllib
from pathlib import Path

from tools.check.prose_numbers import ROOT, WORDS, pages, shown_by

KEPT = "tests/prose/statements.txt"
CLAIMS = "src/circuitkit/claims/claims.toml"
COUNTS = {*WORDS} - {"one", "a"} | {
    *(
        "both",
        "none",
        "dozen",
        "dozens",
        "hundreds",
        "thousands",
        "million",
        "millions",
        "billion",
        "half",
        "halves",
    )
}
ORDER = "before after earlier later previous next last early late above below left right over under between beside inside outside"
COMPARED = (
    "more most less least fewer fewest larger largest smaller smallest higher highest lower lowest longer longest shorter "
    "shortest better best worse worst stronger strongest weaker weakest faster slower narrower wider cheaper dearer equal "
    "same different near nearly almost hardly far about exactly roughly only up down rises rise rose falls fall fell raises "
    "raise lowers lower increases decreases grows shrinks gains loses positive negative high low large small strong weak "
    "single double enough too twofold"
)
DENIED = (
    "not no never nothing nobody nowhere neither nor cannot without unless all every each always any some many few often "
    "seldom rarely sometimes usually everything everywhere everybody true false right wrong exact holds fails"
)
NAMED = (
    "query queries key keys value values source sources destination destinations row rows column columns rank nat nats bit bits percent % second "
    "seconds minute minutes hour hours day days MB GB megabytes float64 float32 float16 bfloat16 encoder decoder "
    "embedding unembedding causal linear even odd upper minimum maximum mean median product ratio root "
    "first-layer second-layer one-layer two-layer zero-layer training held-out validation"
)
DOES = (
    "reads read writes write wrote copies copy deletes adds add subtracts subtract multiplies divides divided orthogonal "
    "parallel random real repeated trained gelu relu silu swiglu softmax sigmoid tanh layernorm rmsnorm opening previous-token "
    "january february april june july august september october november december"
)
PLAIN = sorted(
    {*COUNTS, *(" ".join((ORDER, COMPARED, DENIED, NAMED, DOES)).split())}, key=len, reverse=True
)
SAID = re.compile(
    r"\$\$.+?\$\$|\$[^$\n]+\$|`[^`\n]*[\d=><+*/-][^`\n]*`"  # formulas, and code that says a number
    r"|(?:[QKV]- and )?\b[QKV]-composition\b|\.?\b[QKV]\b|\bL\d+[HN]\d+\b|[−+-]?\d[\d,.]*\d(?:e-?\d+)?|[−+-]?\d|%"
    r"|\b(?:" + "|".join(map(re.escape, PLAIN)) + r")\b",
    re.S | re.I,
)
SENTENCE = re.compile(r"(?<=[.?!:;|])\s+|\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )")


def said(text: str) -> list[str]:
    """A line for each sentence that states something: what it states, in order."""
    text = re.sub(
        r"\]\([^)]*\)|https?://\S+|<!--.*?-->|</?[a-z][a-z0-9]*(?:\s[^<>]*)?>",
        " ",
        text,
        flags=re.S,
    )
    # A formula is one piece, whatever signs of the end of a sentence stand in it.
    text = re.sub(
        r"\$\$.+?\$\$|\$[^$\n]+\$|`[^`\n]*`", lambda m: re.sub(r"\s+", "\0", m[0]), text, flags=re.S
    )
    lines = [
        " · ".join(_plain(token) for token in SAID.findall(part)) for part in SENTENCE.split(text)
    ]
    return [line for line in lines if line]


def _plain(token: str) -> str:
    """A word in small letters; a formula or code as it is, on one line."""
    token = re.sub(r"[\s\0]+", " ", token)
    return token if token[0] in "$`" else token.lower().strip(",.")


def of_page(path: Path) -> list[str]:
    """The statements of a page: its Markdown, and the alt texts of its figures, under their headings."""
    return list(_of_page(path.read_text("utf-8"), path.suffix))


@functools.lru_cache(256)  # slips are planted in one page at a time
def _of_page(text: str, suffix: str) -> tuple[str, ...]:
    if suffix != ".ipynb":
        parts = [text]
    else:
        parts = []
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "markdown":
                parts.append("".join(cell["source"]))
            else:
                parts += [
                    alt
                    for text in shown_by(cell)
                    for alt in re.findall(r"^(?:Figure|Attention): (.*)", text, re.M)
                ]
    found = []
    for piece in re.split(r"^(?=#+ )", "\n\n".join(parts), flags=re.M):
        heading, _, rest = piece.partition("\n") if piece.startswith("#") else ("", "", piece)
        found += ([f"## {heading.lstrip('# ')}"] if heading else []) + said(rest)
    return tuple(found)


def of_claims(path: Path) -> list[str]:
    """The statements of the register: verdict, numbers and tolerances of each row, and what its texts state."""
    return list(_of_claims(path.read_text("utf-8")))


@functools.lru_cache(8)
def _of_claims(text: str) -> tuple[str, ...]:
    found = []
    for row in tomllib.loads(text)["claim"]:
        numbers = {
            name: row[name]
            for name in ("said", "said_tolerance", "value", "tolerance", "kind")
            if name in row
        }
        found += [
            f"## {row['id']} {row['verdict']}",
            *(f"{name} {value}" for name, value in numbers.items()),
        ]
        found += said(
            "\n\n".join(
                [
                    row["place"],
                    row["claim"],
                    row["computes"],
                    *row.get("labels", ()),
                    row.get("note", ""),
                ]
            )
        )
    return tuple(found)


def statements(root: Path = ROOT) -> list[str]:
    """Every line of the list."""
    found = []
    for name, path in pages(root).items():
        found += [f"# {name}", *of_page(path), ""]
    return [*found, "# claims.toml", *of_claims(root / CLAIMS)]


def differences(root: Path = ROOT) -> list[str]:
    """What the pages say now and the list does not, and the reverse, each under its page and heading."""
    kept = (root / KEPT).read_text("utf-8").splitlines()
    return [
        line
        for line in difflib.unified_diff(
            kept, statements(root), "kept", "said now", n=1, lineterm=""
        )
        if not line.startswith("@@")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the list anew; read its diff")
    if parser.parse_args().write:
        (ROOT / KEPT).write_text("\n".join(statements()) + "\n", "utf-8")
    found = differences()
    print("\n".join(found) or f"{len(statements())} lines, as they were read")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
