"""The built pages against their sources: what the extension writes is what stands in the register, the glossary, the notebooks and the docstrings."""

import hashlib
import importlib
import inspect
import io
import json
import re
import tomllib
from base64 import b64decode
from collections import Counter
from functools import cache
from html import unescape
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from PIL import Image

from tests.support.site import HTML, ROOT, pages

CLAIMS = tomllib.loads((ROOT / "src/circuitkit_book/claims/claims.toml").read_text("utf-8"))[
    "claim"
]
NOTEBOOKS = [name for name in pages() if (ROOT / name).with_suffix(".ipynb").is_file()]


@cache
def html(name):
    return (HTML / name).read_text("utf-8")


@cache
def cells(name):
    return json.loads((ROOT / name).with_suffix(".ipynb").read_text("utf-8"))["cells"]


def source(name):
    """The Markdown of a page."""
    path = (ROOT / name).with_suffix(".md")
    if path.is_file():
        return path.read_text("utf-8")
    return "\n\n".join(
        "".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "markdown"
    )


def letters(text):
    """Letters and digits of a text or of Markdown, to compare words and not markup."""
    return re.sub(r"[\W_]+", "", text)


def said(markup):
    """The letters and digits that a reader sees of some HTML, without the meanings of terms."""
    without = re.sub(r'<span class="ck-definition".*?</span></span>', "", markup, flags=re.S)
    return letters(unescape(re.sub(r"<!--.*?-->|<[^>]+>", " ", without, flags=re.S)))


# The claims page


@cache
def claims_page():
    return BeautifulSoup(html("book/claims.html"), "html.parser")


@cache
def row_of(id):
    return claims_page().find("tr", id=id.lower())


def as_value(text):
    """What a cell of the claims page says: a truth value, a text, or numbers."""
    if text in ("yes", "no"):
        return text == "yes"
    plain = text.replace("\u2212", "-").replace("\u202f", "")
    try:
        return [float(part.split(" (to ")[0]) for part in plain.split(", ")]
    except ValueError:
        return text


def agrees(text, value, tolerance=0.0):
    """Whether a cell gives a value to four digits, or to its tolerance where it is written as 0."""
    if isinstance(value, (bool, str)):
        return as_value(text) == value
    values, numbers = value if isinstance(value, list) else [value], as_value(text)
    return len(values) == len(numbers) and all(
        abs(a - b) <= max(6e-4 * abs(b), tolerance if a == 0 else 0)
        for a, b in zip(numbers, values, strict=True)
    )


@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS if "value" in claim], ids=lambda claim: claim["id"]
)
def test_a_row_of_the_claims_page_has_the_numbers_of_the_register(claim):
    def listed(name):
        given = claim.get(name)
        return [] if given is None else given if isinstance(given, list) else [given]

    values, stated, null = listed("value"), listed("said"), claim.get("null")
    table = row_of(claim["id"]).find(class_="ck-values")
    heads = [head.get_text() for head in table.select("thead th")]
    assert heads in ([], ["here", *["null"] * bool(null), *["source"] * bool(stated)])
    rows = table.tbody.find_all("tr")
    assert len(rows) == len(values)
    for i, row in enumerate(rows):
        first, *found = [cell.get_text() for cell in row.find_all(["th", "td"])]
        assert letters(first) == letters(claim["labels"][i] if claim.get("labels") else "")
        tolerance = claim.get("tolerance", 0.0)
        assert agrees(
            found.pop(0), values[i], tolerance[i] if isinstance(tolerance, list) else tolerance
        )
        if null:
            ends = found.pop(0).split(" to ")
            assert (
                agrees(ends[0], null[i][0]) and agrees(ends[-1], null[i][1])
                if null[i]
                else ends == [""]
            )
        if stated:
            text = found.pop(0)
            assert agrees(text, stated[i]) if i < len(stated) else text == ""
        assert found == []


def test_a_row_of_the_claims_page_has_the_words_and_the_verdict_of_the_register():
    rows = claims_page().select("tr.ck-claim")
    assert sorted(row["id"] for row in rows) == sorted(claim["id"].lower() for claim in CLAIMS)
    for claim in CLAIMS:
        row = row_of(claim["id"])
        what, how = row.find(class_="ck-what"), row.find(class_="ck-how")
        fields = [(what.p, "claim"), (what.find(class_="ck-place"), "place"), (how.p, "computes")]
        fields += [
            (what.find(class_="ck-would"), "would_hold"),
            (what.find(class_="ck-note"), "note"),
        ]
        for cell, field in fields:
            assert letters(cell.get_text() if cell else "") == letters(claim.get(field, "")), (
                claim["id"],
                field,
            )
        assert row.find(class_="ck-judged").get_text(strip=True) == claim["verdict"]
        assert row["data-source"] == claim["source"]
        codes = [code.get_text() for code in row.select(".ck-links code")]
        assert codes == [claim[key] for key in ("by", "null_by") if key in claim]
        links = [
            link["href"].removesuffix(".html") for link in row.select(".ck-links a:not(.ck-see)")
        ]
        assert bool(row.select(".ck-see")) == ("lab" in claim)
        assert [link.replace(".html#", "#") for link in links] == [claim["chapter"]] * (
            "chapter" in claim
        )
        for link in [*what.select("p:not(.ck-links) a"), *how.select("a")]:
            assert link["href"] == f"#{link.get_text().lower()}"


def test_the_counts_of_claims_are_those_of_the_register():
    head, *rows = claims_page().select(".ck-counts tr")
    verdicts = [cell.get_text(strip=True) for cell in head.find_all("th")][1:-1]
    keys = [*dict.fromkeys(claim["source"] for claim in CLAIMS), None]
    found = [
        [int(cell.get_text().replace("–", "0")) for cell in row.find_all("td")] for row in rows
    ]
    for row, key in zip(found, keys, strict=True):
        own = Counter(claim["verdict"] for claim in CLAIMS if key in (None, claim["source"]))
        assert row == [*(own[verdict] for verdict in verdicts), own.total()]


#: The words that say in the introduction how many claims have a verdict.
SENTENCE = {
    "holds": r"Of all claims, (\d+) holds?\b",
    "holds without training": r"For (\d+) others?, the result agrees with the claim",
    "holds in the source's setting": r"Another (\d+) holds? in the setting of their source",
    "too strong": r"(\d+) (?:is|are) too strong",
    "wrong": r"(\d+) (?:is|are) wrong",
    "misprint": r"(\d+) (?:is a misprint|are misprints)",
    "definition": r"(\d+) (?:is a definition that differs|are definitions that differ)",
    "cannot be checked here": r"(\d+) cannot be checked here",
}


def test_the_introduction_counts_the_claims_of_every_verdict():
    page = BeautifulSoup(html("book/intro.html"), "html.parser")
    item = next(item for item in page.find_all("li") if item.get_text().startswith("Claims."))
    told = " ".join(item.get_text().split())
    lists, computed = re.search(r"lists (\d+) claims.* compute (\d+) of", told).groups()
    assert (int(lists), int(computed)) == (len(CLAIMS), sum("by" in claim for claim in CLAIMS))
    found = {verdict: re.search(words, told) for verdict, words in SENTENCE.items()}
    counts = {verdict: int(one[1]) for verdict, one in found.items() if one}
    assert counts == Counter(claim["verdict"] for claim in CLAIMS)
    assert not re.search(r"\b1 (?:are|hold|others)\b", told)


def test_a_word_of_the_register_links_to_a_claim_where_it_is_its_name_and_no_part_of_another():
    ids = {claim["id"] for claim in CLAIMS}
    cells = claims_page().select(".ck-what p:not(.ck-links), .ck-how p, .ck-values th[scope=row]")
    linked = 0
    for cell in cells:
        links = [link.get_text() for link in cell.find_all("a")]
        assert links == [word for word in re.split(r"\W+", cell.get_text()) if word in ids]
        linked += len(links)
    assert linked > 10


# The glossary


def glossary():
    """The meaning of each term, from the notebook."""
    text = source("book/notation.html").split(":::{glossary}\n")[1].split(":::")[0].strip("\n")
    found = {}
    for entry in text.split("\n\n"):
        lines = entry.split("\n")
        meaning = " ".join(line for line in lines if line.startswith(" "))
        meaning = re.sub(r"\{term\}`([^`<]+?)(?: <[^`]*)?`", r"\1", meaning)
        found |= {line.lower(): letters(meaning) for line in lines if not line.startswith(" ")}
    return found


GLOSS = re.compile(
    r'<span class="ck-gloss"><a href="([^"#]*)#([^"]+)" aria-describedby="([^"]+)">(.*?)</a>'
    r'<span class="ck-definition" role="tooltip" id="([^"]+)">(.*?)</span></span>(?!</span>)',
    re.S,
)


def test_a_term_is_explained_as_the_longest_term_that_begins_there():
    terms, checked = [*glossary()], 0
    for name in pages():
        for found in GLOSS.finditer(html(name)):
            after = html(name)[found.end() :].partition("<")[0]
            text = re.sub(r"[\s-]+", " ", unescape(found[4] + after)).lower()
            plain = {term: term.replace("-", " ") for term in terms}
            begins = [
                term for term, words in plain.items() if re.match(rf"{re.escape(words)}s?\b", text)
            ]
            assert begins, (name, found[4])
            anchor = letters(found[2]).lower()
            assert anchor == letters(f"term-{max(begins, key=len)}"), (name, text[:60])
            checked += len(begins) > 1
    assert checked > 5


def test_a_term_is_explained_once_on_a_page_with_its_own_meaning_and_links_to_its_entry():
    meanings, seen = glossary(), set()
    for name in pages():
        once, ids = [], []
        for page, anchor, label, term, shown, meaning in GLOSS.findall(html(name)):
            words = re.sub(r"\s+", " ", term.lower())
            tries = [
                words,
                words.removesuffix("s"),
                words.replace("-", " "),
                words.replace("-", " ").removesuffix("s"),
            ]
            key = next(one for one in tries if one in meanings)
            assert letters(unescape(re.sub(r"<[^>]+>", "", meaning))) == meanings[key], (name, term)
            assert letters(anchor).lower() == letters(f"term-{key}"), (name, term)
            assert f'<dt id="{anchor}">' in html("book/notation.html")
            assert (HTML / name).parent.joinpath(page).resolve() == HTML / "book/notation.html"
            assert label == shown
            once.append(meanings[key])
            ids.append(shown)
        assert len(once) == len(set(once)), name
        assert len(ids) == len(set(ids)) == html(name).count('class="ck-gloss"'), name
        seen |= set(once)
    assert len(seen) > len(set(meanings.values())) / 2


# Pictures


def stored_pictures(name):
    """Width and alt text of every picture that the outputs of a notebook store, by the picture."""
    found = {}
    for cell in cells(name):
        for output in cell.get("outputs", []):
            if data := output.get("data", {}).get("image/png"):
                meta = output["metadata"].get("image/png", {})
                found[hashlib.sha256(b64decode("".join(data))).hexdigest()] = meta
    return found


@cache
def shape(path):
    with Image.open(io.BytesIO(path.read_bytes())) as image:
        return image.size


def test_pictures_keep_their_shape_their_width_and_their_words():
    compared = 0
    for name in pages():
        stored = stored_pictures(name) if name in NOTEBOOKS else {}
        first = True
        for tag in re.findall(r"<img\b[^>]*>", html(name)):
            found = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
            if not found["src"].endswith(".png"):
                continue
            path = (HTML / name).parent / unquote(found["src"])
            width, height = shape(path)
            assert abs(int(found["height"]) - int(found["width"]) * height / width) <= 0.5, (
                name,
                tag,
            )
            is_first = first and "ck-picture" in tag
            assert (found.get("loading") == "lazy") != is_first, (name, tag)
            first = first and not is_first
            if meta := stored.get(hashlib.sha256(path.read_bytes()).hexdigest()):
                assert unescape(found["alt"]) == meta["alt"], name
                if "width" in meta:
                    assert f"width: {meta['width']}px" in found["style"], name
                compared += 1
        for natural, inside in re.findall(
            r'<div class="ck-pan" style="--ck-natural: (\d+)">(.*?)</div>', html(name), re.S
        ):
            assert f' width="{natural}"' in inside
    assert compared > 50


# Equations, captions, folds and buttons


def test_equations_have_the_anchors_of_their_tags_and_links_lead_to_the_number_they_say():
    links = 0
    for name in pages():
        tags = re.findall(r"\\tag\{(\d+\.\d+)\}", source(name))
        places = re.findall(
            r'<div class="math[^"]*" id="eq-(\d+)-(\d+)"([^>]*)>(.*?)</div>', html(name), re.S
        )
        assert [f"{a}.{b}" for a, b, *_ in places] == tags, name
        for a, b, attributes, formula in places:
            assert f'aria-label="Equation {a}.{b}"' in attributes
            assert f"\\tag{{{a}.{b}}}" in formula
        for page, a, b, text in re.findall(
            r'<a [^>]*href="([^"#]*)#eq-(\d+)-(\d+)"[^>]*>(.*?)</a>', html(name), re.S
        ):
            assert said(text) == f"{a}{b}", name
            target = (HTML / name).parent / page if page else HTML / name
            assert f'id="eq-{a}-{b}"' in target.read_text("utf-8")
            links += 1
    assert links > 5


def test_captions_are_marked_and_those_of_tables_belong_below_them():
    for name in pages():
        wanted = re.findall(r"^\*\*((?:Figure|Table) \d+)\.", source(name), re.M)
        found = re.findall(
            r'<p class="(ck-caption[^"]*)"><strong>((?:Figure|Table) \d+)\.', html(name)
        )
        assert [label for _, label in found] == wanted, name
        assert ["ck-below-table" in classes for classes, _ in found] == [
            label.startswith("Table") for label in wanted
        ]


WORDS = {
    "solution": ("Show the solution", "Hide the solution"),
    "method": ("Show the code of this function", "Hide the code"),
    "hide-input": ("Show the code that draws this", "Hide the code"),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_folded_cell_says_what_it_holds_and_a_page_offers_its_own_files(name):
    tags_of = [cell["metadata"].get("tags", []) for cell in cells(name)]
    wanted = []
    for tags in tags_of:
        if "remove-cell" in tags:
            continue
        if {"hide-input", "hide-cell"} & {*tags} and "hide-output" not in tags:
            wanted.append(next(words for tag, words in WORDS.items() if tag in tags))
        elif (
            "hide-output" in tags
        ):  # the answer of a prediction; its picture has a second fold for the code
            parts = ["source"] * ("hide-input" in tags) + ["output"]
            parts = ["numbers"] * len(parts) if "numbers" in tags else parts
            wanted += [(f"Show the {part}", f"Hide the {part}") for part in parts]
    shown, hidden = (
        re.findall(rf'<p class="{state} admonition-title">(.*?)</p>', html(name))
        for state in ("collapsed", "expanded")
    )
    pairs = [*zip(shown, hidden, strict=True)]
    assert [words for words in pairs if words[0] != "Show code cell output"] == wanted
    buttons = html(name).split('<div class="ck-buttons')[1].split("</div>")[0]
    links = re.findall(r'href="([^"]+)"', buttons)
    anchors = re.findall(r"<a ([^>]*)>(.*?)</a>", buttons, re.S)
    files = [
        (re.search(r'href="([^"]+)"', at)[1], words) for at, words in anchors if " download" in at
    ]
    solved = {}
    for link, words in files:
        text = (HTML / name).parent.joinpath(unquote(link)).read_text("utf-8")
        tags = [cell["metadata"].get("tags", []) for cell in json.loads(text)["cells"]]
        solved[re.sub(r"<.*?>", "", words)] = any("solution" in one for one in tags)
    if name.endswith("exercises.html"):
        assert solved == {"Download to work on": False, "Download with solutions": True}
    else:
        assert [*solved] == ["Download notebook"]
    up = "../" * name.count("/")
    assert f"{up}_sources/{name.removesuffix('.html')}.ipynb" in links
    has_exercises = (ROOT / name).with_name("exercises.ipynb").is_file() and not name.endswith(
        "exercises.html"
    )
    assert ("exercises.html" in links) == has_exercises
    for link in links:
        path = (HTML / name).parent / unquote(link.split("#")[0])
        assert path.is_file(), link
    heads, rows = re.search(
        r"^\| (You will.*) \|\n\|[-|]+\|\n\| (.*) \|$", source(name), re.M
    ).groups()
    card = html(name).split('<div class="ck-card')[1].split("</dl>")[0]
    items = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", card, re.S)
    assert [term for term, _ in items] == heads.split(" | ")
    plain = re.sub(r"\]\([^)]*\)", "", rows)
    assert [said(meaning) for _, meaning in items] == [letters(row) for row in plain.split(" | ")]


def is_number(text):
    text = text.strip().removesuffix("%").replace("\u2212", "-").replace(",", "").strip()
    try:
        return not text or float(text) is not None
    except ValueError:
        return False


def test_columns_of_numbers_are_marked_and_others_are_not():
    columns = Counter()
    for name in NOTEBOOKS:
        for markup in re.findall(
            r'<table border="1" class="dataframe">.*?</table>', html(name), re.S
        ):
            if "colspan" in markup:
                continue
            body = markup.split("<tbody>")[1]
            rows = [
                re.findall(r"<t[hd]([^>]*)>(.*?)</t[hd]>", row, re.S)
                for row in body.split("</tr>")[:-1]
            ]
            for column in zip(*(reversed(row) for row in rows), strict=False):
                numbers = all(is_number(unescape(text)) for _, text in column)
                assert {"ck-number" in attributes for attributes, _ in column} == {numbers}, (
                    name,
                    column,
                )
                columns[numbers] += 1
    assert min(columns.values()) > 20


# The search


def test_the_search_finds_every_section_and_term_with_the_words_that_stand_there():
    text = (HTML / "_static/search-index.js").read_text("utf-8")
    index = json.loads(text.removeprefix("const searchIndex = ").rstrip(";\n"))
    assert {page[0] for page in index} >= set(pages())
    meanings = glossary()
    for address, title, places in index:
        page = html(address)
        assert said(re.search(r"<h1>(.*?)</h1>", page, re.S)[1]) == letters(title), address
        assert [place[0] for place in places if place[3] == 0] == re.findall(
            r'<section [^>]*?id="([^"]+)"', page
        ), address
        if address == "book/notation.html":
            found = {place[1].lower(): place[2] for place in places if place[3] == 1}
            assert found.keys() <= meanings.keys()
            assert {meanings[term] for term in found} == {*meanings.values()}
            for term, meaning in found.items():
                pieces = [letters(piece) for piece in meaning.split("…")]
                assert all(piece in meanings[term] for piece in pieces), term
        starts = [page.index(f'id="{place[0]}"') for place in places]
        for (anchor, heading, content, kind), start in zip(places, starts, strict=True):
            end = min((other for other in starts if other > start), default=len(page))
            here = said(page[start - 5 : end].partition(">")[2])
            is_name = bool(re.match(r"circuitkit(_book)?\.", anchor))
            assert kind == (2 if is_name else anchor.startswith("term-")), (address, anchor)
            if kind == 0:
                assert here.startswith(letters(heading.replace("…", ""))) or "…" in heading, (
                    address,
                    anchor,
                )
            if kind == 2:
                assert heading == anchor.removeprefix("circuitkit."), address
            elif address not in ("book/claims.html", "book/lab.html") and "/api/" not in address:
                longest = max(re.split("…|\n", content), key=len)
                has_key = re.search(r"[a-z]{3}\d{4}[a-z]", letters(longest))  # of a citation
                assert has_key or letters(longest) in here, (address, anchor)


# The reference


MODULES = sorted(
    f"circuitkit.{path.stem}" for path in (ROOT / "book/api").glob("*.md") if path.stem != "course"
)


def sections_of(doc):
    """The parts of a numpy docstring by heading, without the examples."""
    pieces = re.split(r"^(\w+)\n-{3,}\n", doc, flags=re.M)
    return {"": pieces[0]} | dict(zip(pieces[1::2], pieces[2::2], strict=True))


def names_of(signature):
    """The parameters that a signature on a page shows."""
    names = re.findall(r'<span class="n">(.*?)</span></span>', signature)
    return [said(name).lstrip("*") for name in names]


def missing(heading, text, here):
    """What a section of a docstring says and the page does not."""
    if heading == "Parameters":
        entries = re.findall(r"^(\S.*?) : (.*(?:\n .*)*)", text, re.M)
        pairs = [(one, words) for given, words in entries for one in given.split(", ")]
        there = [(letters(one), letters(words)) for one, words in pairs]
        patterns = [re.escape(one) + ".{0,200}?" + re.escape(words) for one, words in there]
        patterns.append(f"Parameters{letters(pairs[0][0])}")
        return [pattern for pattern in patterns if not re.search(pattern, here)]
    if heading == "Returns":
        pieces = [f"Returns{text}"]
    else:
        pieces = re.split(r"\n(?=\S)", text.strip()) if heading == "Raises" else text.split("\n\n")
    return [piece for piece in pieces if ">>>" not in piece and letters(piece) not in here]


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_gives_the_signature_and_the_words_of_every_docstring(module):
    page = html(f"book/api/{module.rpartition('.')[2]}.html")
    package = importlib.import_module(module)
    described = [name for name in package.__all__ if f'id="{module}.{name}"' in page]
    assert not [
        name for name in set(package.__all__) - {*described} if callable(getattr(package, name))
    ]
    for name in described:
        thing = getattr(package, name)
        start = page.index(f'id="{module}.{name}"')
        end = page.find('<dt class="sig sig-object py"', start)
        signature, _, rest = page[start : end if end > 0 else len(page)].partition("</dt>")
        if inspect.isfunction(thing):
            wanted = [letters(one) for one in inspect.signature(thing).parameters]
            assert [one for one in names_of(signature) if one in wanted][: len(wanted)] == wanted
        for heading, text in sections_of(inspect.getdoc(thing) or "").items():
            if heading != "Examples":
                assert missing(heading, text, said(rest)) == [], (name, heading)


def test_a_name_in_the_reference_links_to_itself():
    for name in pages():
        if name.startswith("book/api"):
            for anchor, text in re.findall(
                r'<a class="reference internal" href="[^"]*#(circuitkit[\w.]+)" title="[^"]*">(.*?)</a>',
                html(name),
                re.S,
            ):
                assert said(text).endswith(letters(anchor.rpartition(".")[2])), (name, anchor)


# Tables of "Your own model", and the lab


WORKS = tomllib.loads((ROOT / "tests/library/what_works.toml").read_text("utf-8"))


def test_the_tools_and_kinds_of_model_are_those_that_are_tested():
    page = html("book/your-model.html")
    rows = re.findall(
        r'<tr class="row-[^"]*"><td><p><a [^>]*href="api/(\w+)\.html#([\w.]+)".*?>(.*?)</a></p></td>\s*<td>(.*?)</td>',
        page,
        re.S,
    )
    rows = [(anchor.rpartition(".")[2], said(name), said(words)) for _, anchor, name, words in rows]
    assert rows == [
        (tool["name"], letters(tool["name"]), letters(tool["says"])) for tool in WORKS["tool"]
    ]
    for short, text in WORKS["kinds"].values():
        assert letters(f"{short}: {text}") in said(page)


def test_each_reason_names_every_tool_and_kind_of_model_that_it_concerns():
    items = re.findall(
        r"<li><p>((?:(?!</li>).)*?This concerns .*?)</p>", html("book/your-model.html"), re.S
    )
    wanted = []
    for reason, text in WORKS["reasons"].items():
        tools = [
            f"{tool['name']} ({', '.join(WORKS['kinds'][kind][0] for kind in tool['no'][reason])})"
            for tool in WORKS["tool"]
            if reason in tool.get("no", {})
        ]
        wanted.append(letters(f"{text} This concerns {', '.join(tools)}"))
    assert sorted(said(item) for item in items) == sorted(wanted)


def test_the_code_under_each_label_is_that_of_the_library_that_it_names():
    seen = said(html("book/your-model.html"))
    for task in tomllib.loads((ROOT / "book/one-line.toml").read_text("utf-8"))["task"]:
        both = f"{task['title']}transformer-lens{task['theirs']}circuitkit: {task['time']} of the time{task['ours']}"
        assert letters(both) in seen, task["title"]


def test_the_lab_stands_where_a_page_asks_for_it_and_knows_where_its_own_page_is():
    for name in pages():
        asked = re.findall(r"<!-- lab: ([\w-]+) -->", source(name))
        link = r"^\[[^\]]*\]\([^)]*(?:lab\.md#lab-([\w-]+)|born-in-your-tab\.md)\)$"
        asked += [preset or "birth" for preset in re.findall(link, source(name), re.M)]
        found = []
        for kind, attributes in re.findall(r"<circuit-(lab|toy|birth|day)([^>]*)>", html(name)):
            told = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
            found.append(told.get("data-preset", kind))
            if kind == "lab":
                assert (HTML / name).parent.joinpath(
                    told["data-page"]
                ).resolve() == HTML / "book/lab.html"
                assert ("data-linked" in told) == (name == "book/lab.html")
                assert ("data-home" in told) == (name == "book/intro.html")
                at_once = name in ("book/intro.html", "book/lab.html") or name.count("/") == 2
                assert ("data-auto" in told) == at_once
            if kind == "birth":
                page = (HTML / name).parent.joinpath(told["data-page"]).resolve()
                assert page == HTML / "book/born-in-your-tab.html"
                assert ("data-later" in told) == (name != "book/born-in-your-tab.html")
        assert found == asked, name
        assert ("lab/start.js" in html(name)) == any(one != "toy" for one in found)
        for kind in ("toy", "birth", "day"):
            at_once = kind in found and "data-later" not in html(name)
            assert (f"lab/{kind}.js" in html(name)) == at_once


def test_every_page_has_one_style_sheet_first_and_scripts_that_wait():
    for name in pages():
        head = html(name).partition("</head>")[0]
        assert head.count('name="viewport"') == 1, name
        assert "thebe" not in head
        sheets = re.findall(r'<link [^>]*rel="stylesheet"[^>]*href="([^"?]+)', head)
        assert sheets[0] == "../" * name.count("/") + "_static/styles/book.css"
        waits = [
            bool(re.search(r"\b(defer|async)\b", tag))
            for tag in re.findall(r"<script [^>]*src=[^>]*>", head)
        ]
        assert waits
        assert all(waits), name
        assert 'role="doc-biblioentry"' not in html(name)
        assert not re.search(r"<summary>[^<]*\$", html(name))
