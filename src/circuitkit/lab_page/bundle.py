"""The scripts of a page with a model; `circuitkit_book.lab_data` has those that only the book's pages load, and their data.

The modules of this folder become classic scripts, because a page that is opened as a file may read no other file. A page loads
`start.js`. When the lab starts, it loads `parts.js`, `lab.js` and `engine.js` (one after the other, so that none of them blocks
the page), the tokenizer (`text.js`) and the weights (`models/NAME.js`), which are the bytes of the library's own files.
"""

import base64
import gzip
import json
import re
from html import escape
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
# The module that each script is made for. `parts` is all that `lab.js` needs, and `lab` is `lab.js` alone.
SCRIPTS = {"start": "start.js", "parts": "lab.js", "lab": "lab.js", "engine": "worker.js"}
IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.M)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) )|^export \{[^}]*\};\n", re.M)
COMMENT = re.compile(
    r"^[ \t]*/\*\*(?:(?!\*/)[\s\S])*\*/[ \t]*\n|/\*\* @type \{.*?\} \*/ ?|^[ \t]*// .*\n|[ \t]+// [^\n\"'`]*$|^[ \t]+",
    re.M,
)
NAME = re.compile(r"^(?:async )?(?:function|class|const|let) ([\w$]+)", re.M)


def modules(entry: str) -> list[Path]:
    """A module and all that it imports, each after what it needs."""
    found: list[Path] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(
                f"the modules of the lab import each other in a circle: {' -> '.join((*above, name))}"
            )
        path = SOURCES / name
        if path not in found:
            for other in IMPORT.findall(path.read_text("utf-8")):
                visit(other, (*above, name))
            found.append(path)

    visit(entry, ())
    return found


def joined(entry: str) -> tuple[list[str], list[str]]:
    """The modules for one scope, without imports and exports, and the names that they declare; a name declared by two is refused."""
    parts, names = [], {}
    for path in modules(entry):
        text = EXPORT.sub("", IMPORT.sub("", path.read_text("utf-8")))
        if left := re.search(r"^(?:import|export)\b.*", text, re.M):
            raise ValueError(f"{path.name}: {left[0]!r} is in a form that the build does not know")
        for name in NAME.findall(text):
            if names.setdefault(name, path.name) != path.name:
                raise ValueError(f"{path.name} and {names[name]} of the lab both declare {name}")
        parts.append(COMMENT.sub("", text))  # a reader who wants to read has the sources
    return parts, [name for name in names if names[name] != entry]


def alone(entry: str) -> str:
    """A script that holds a module and all that it imports."""
    texts, _ = joined(entry)
    return "(() => {\n" + '"use strict";\n' + "\n".join(texts) + "})();\n"


def script(name: str) -> str:
    """One of the scripts."""
    if name == "start":
        return alone(SCRIPTS[name])
    texts, shared = joined(SCRIPTS[name])
    given = f"{{ {', '.join(shared)} }}"
    if name == "engine":
        # the text of a function, which only a worker reads as code
        code = "\n".join([*texts[:-1], f"if (parts) return {given};\n", texts[-1]])
        return delivered(name, f'(parts) => {{\n"use strict";\n{code}return Bench;\n}}')
    if name == "parts":
        code = '"use strict";\n' + "\n".join(texts[:-1])
        return f'circuitLab.deliver("parts", (() => {{\n{code}return {given};\n}})());\n'
    code = f'"use strict";\nconst {given} = parts;\n{texts[-1]}'
    return f'circuitLab.deliver("lab", ((parts) => {{\n{code}return {{ open }};\n}}));\n'


def delivered(name: str, value: object) -> str:
    """A script that hands a value to the page."""
    return f"circuitLab.deliver({json.dumps(name)}, {json.dumps(value, ensure_ascii=True, separators=(',', ':'))});\n"


def byte_pairs(bpe: dict) -> dict[str, list]:
    """A byte-level tokenizer as `tokenizer.js` reads it, from the model in a tokenizer's file."""
    ids = bpe["vocab"]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in bpe["merges"]]
    merges = [ids[part] for pair in pairs for part in pair]
    return {"vocab": sorted(ids, key=ids.get), "merges": merges}


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} in the lab</title>
<style>
{style}
</style>
<script>
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
{scripts}
</script>
</head>
<body>
<main>
<h1>{title}</h1>
<circuit-lab data-own><noscript><p>The lab needs JavaScript.</p></noscript></circuit-lab>
</main>
<script type="text/plain" id="ck-lab-file">{weights}</script>
</body>
</html>
"""
# No request leaves a page that is one file, whatever stands in it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; worker-src blob:; img-src data:"


def one_file(title: str, weights: bytes) -> str:
    """A page with one model, which opens without a network."""
    style = "\n".join((SOURCES / name).read_text("utf-8") for name in ("page.css", "lab.css"))
    return PAGE.format(
        policy=POLICY,
        title=escape(title),
        style=style,
        scripts="".join(script(name) for name in ("start", "parts", "lab", "engine")),
        weights=base64.b64encode(gzip.compress(weights, mtime=0)).decode(),
    )
