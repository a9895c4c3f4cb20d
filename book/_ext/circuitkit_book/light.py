"""A page loads little and shows early: one style sheet, deferred scripts, few icons, pictures of a known size."""

import hashlib
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from PIL import Image

from . import icons

SHEET = "_static/styles/book.css"
LINK = re.compile(r'[ \t]*<link [^>]*rel="stylesheet"[^>]*>\n?')
# No page asks for these: source maps, translations of button texts, templates, thebe, what the joined sheet holds.
UNUSED = (
    "**/*.map",
    "**/*.LICENSE.txt",
    "locales",
    "*webpack-macros.html",
    "sphinx-thebe.*",
    "scripts/fontawesome.js",
    "basic.css",
)


def finish(app, error) -> None:
    if error or app.builder.format != "html":
        return
    root = Path(app.outdir)
    pages = {path: path.read_text("utf-8") for path in sorted(root.rglob("*.html")) if "_static" not in path.parts}
    pages = {path: text for path, text in pages.items() if "<link" in text}
    missing, top = root / f"{app.config.notfound_pagename}.html", app.config.notfound_urls_prefix
    if missing in pages:  # its <base> says where the book begins
        pages[missing] = pages[missing].replace(f'"{top}_static/', '"_static/')
    one_sheet(root, pages)
    with_formulas(root, pages)
    for path, text in pages.items():
        path.write_text(early(lazy(text, path.parent)), "utf-8")
    for pattern in UNUSED:
        for path in root.glob(f"_static/{pattern}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in root.glob("_static/**/*.js"):
        text = path.read_text("utf-8")
        if "sourceMappingURL" in text[-200:]:
            path.write_text(re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "\n", text), "utf-8")


def one_sheet(root: Path, pages: dict[Path, str]) -> None:
    """Join the style sheets that all pages load into one, in their order, and link that instead."""
    lists = [[file_of(link, path) for link in LINK.findall(text)] for path, text in pages.items()]
    common = [file for file in lists[0] if file and all(file in others for others in lists)] if lists else []
    if not common or common == [root / SHEET]:
        return
    scripts = [path.read_text("utf-8") for path in root.glob("_static/scripts/*.js") if path.stem != "fontawesome"]
    css, characters = icons.trim(
        "\n".join(flat(file, root / SHEET) for file in common), icons.used_in([*pages.values(), *scripts])
    )
    (root / SHEET).write_text(css, "utf-8")
    icons.shrink(root / "_static/vendor/fontawesome/webfonts", characters)
    version = hashlib.sha256(css.encode()).hexdigest()[:8]
    for path, text in pages.items():
        place = f"{up(path, root)}{SHEET}?v={version}"
        first = LINK.search(text)
        head = text[: first.start()] + f'  <link rel="stylesheet" href="{place}" />\n'
        rest = LINK.sub(
            lambda found, path=path: "" if file_of(found[0], path) in common else found[0], text[first.start() :]
        )
        pages[path] = head + rest
    for file in common:
        file.unlink()


def with_formulas(root: Path, pages: dict[Path, str]) -> None:
    """MathJax for the pages with a formula and for no other: a glossary term may bring one, a chapter's title must not."""
    lines = re.compile(r"[ \t]*<script>window\.MathJax = .*</script>\n[ \t]*<script [^>]*/mathjax/[^>]*></script>\n")
    giver = next((path for path, text in pages.items() if lines.search(text)), None)
    if giver is None:
        return
    given = lines.search(pages[giver])[0].replace(up(giver, root) + "_static", "{up}_static")
    for path, text in pages.items():
        if 'class="math' not in text:
            pages[path] = lines.sub("", text)
        elif not lines.search(text):
            pages[path] = text.replace("</head>", given.replace("{up}", up(path, root)) + "</head>", 1)


def up(path: Path, root: Path) -> str:
    return "../" * len(path.relative_to(root).parts[:-1])


def file_of(link: str, page: Path) -> Path | None:
    """The file that a style sheet's link names, if it is one of the book's."""
    address = re.search(r'href="([^"?#]+)', link)[1]
    return None if "//" in address else (page.parent / unquote(address)).resolve()


def flat(file: Path, target: Path) -> str:
    """A style sheet with its imports in their places and its addresses as seen from the target's folder."""
    css = re.sub(r'@charset "[^"]*";|/\*.*?\*/', "", file.read_text("utf-8").lstrip("\ufeff"), flags=re.S)
    css = re.sub(r'@import "([^"]+)";', lambda found: flat((file.parent / found[1]).resolve(), target), css)
    if file.parent != target.parent:
        folder = file.parent.relative_to(target.parents[1]).as_posix()
        prefix = up(target, target.parents[1]) + ("" if folder == "." else folder + "/")
        css = re.sub(r"url\((['\"]?)(?!data:|/|#|\.\./)", rf"url(\1{prefix}", css)
    return re.sub(r"\n\s*", "\n", css)


def early(text: str) -> str:
    """Scripts wait for the text; the icons' script is not needed, because the style sheet draws them."""
    text = re.sub(r"[ \t]*<script [^>]*scripts/fontawesome\.js[^>]*></script>\n?", "", text)
    head, end, body = text.partition("</head>")
    # Inline scripts read DOCUMENTATION_OPTIONS at once; it is three hundred bytes.
    head = re.sub(r'<script (?![^>]*(?:defer|async|documentation_options))([^>]*src=")', r"<script defer \1", head)
    return head + end + body


def lazy(text: str, folder: Path) -> str:
    """Width and height on each picture, so that nothing jumps; all but the first load when they come near."""
    seen = []

    def mend(found):
        tag, source = found[0], re.search(r'src="([^"]+)"', found[0])
        if not source or "loading=" in tag or source[1].startswith("data:"):
            return tag
        attributes = size(folder / unquote(source[1])) if "height=" not in tag else ""
        if "ck-picture" in tag and not seen:
            seen.append(tag)
        else:
            attributes += ' loading="lazy"'
        return tag.replace("<img", f"<img{attributes}", 1)

    return re.sub(r"<img\b[^>]*>", mend, text)


def size(path: Path) -> str:
    if path.suffix != ".png" or not path.is_file():
        return ""
    with Image.open(path) as image:
        return f' width="{image.width}" height="{image.height}"'


def setup(app) -> None:
    app.connect("build-finished", finish, priority=900)
