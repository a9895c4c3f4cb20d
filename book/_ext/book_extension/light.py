"""A page loads little and shows early: one short style sheet, deferred scripts, few icons, pictures in files and of a known size."""

import base64
import hashlib
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from PIL import Image

from . import icons, styles, theme

SHEET = "_static/styles/book.css"
# What the theme means by "auto".
AT_ONCE = (
    'dataset.theme = localStorage.getItem("theme") || '
    '(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");'
)
WHOLE = 950  # pixels
# No page asks for these: source maps, translations of button texts, templates, thebe, what the joined sheet holds.
UNUSED = (
    "**/*.map",
    "**/*.LICENSE.txt",
    "locales",
    "*webpack-macros.html",
    "sphinx-thebe.*",
    "scripts/fontawesome.js",
    "basic.css",
    "documentation_options.js",
)


def finish(app, error) -> None:
    if error or app.builder.format != "html":
        return
    root = Path(app.outdir)
    pages = {
        path: path.read_text("utf-8")
        for path in sorted(root.rglob("*.html"))
        if "_static" not in path.parts
    }
    pages = {path: text for path, text in pages.items() if "<link" in text}
    missing, top = root / f"{app.config.notfound_pagename}.html", app.config.notfound_urls_prefix
    if missing in pages:  # its <base> says where the book begins
        absolute = theme.literal("address from the top", f'"{top}_static/')
        pages[missing] = absolute.sub('"_static/', pages[missing], missing.name)
    calm(root / "_static/scripts/pydata-sphinx-theme.js")
    one_sheet(root, pages)
    for path, text in pages.items():
        name = path.relative_to(root).as_posix()
        text = wide(lazy(filed(text, path, root), path.parent), name)
        path.write_text(early(text, root, name), "utf-8")
    for pattern in UNUSED:
        for path in root.glob(f"_static/{pattern}"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def one_sheet(root: Path, pages: dict[Path, str]) -> None:
    """Join the style sheets into one, first those of all pages in their order, and link that instead."""
    links = theme.STYLE_SHEET.pattern
    lists = [[file_of(link, path) for link in links.findall(text)] for path, text in pages.items()]
    own = dict.fromkeys(file for files in lists for file in files if file)
    common = sorted(own, key=lambda file: not all(file in files for files in lists))
    if not common or common == [root / SHEET]:
        return
    scripts = [
        path.read_text("utf-8")
        for path in root.glob("_static/**/*.js")
        if path.stem != "fontawesome"
    ]
    css = "\n".join(flat(file, root / SHEET) for file in common)
    css = styles.prune(icons.as_woff(css), styles.words_of([*pages.values(), *scripts]))
    (root / SHEET).write_text(css, "utf-8")
    icons.shrink(root / "_static/vendor/fontawesome/webfonts", icons.characters_of(css))
    version = hashlib.sha256(css.encode()).hexdigest()[:8]
    for path, text in pages.items():
        place = f"{up(path, root)}{SHEET}?v={version}"
        first = theme.STYLE_SHEET.first(text, path.relative_to(root).as_posix())
        head = text[: first.start()] + f'  <link rel="stylesheet" href="{place}" />\n'
        rest = links.sub(
            lambda found, path=path: "" if file_of(found[0], path) in common else found[0],
            text[first.start() :],
        )
        pages[path] = head + rest
    for file in common:
        file.unlink()


def up(path: Path, root: Path) -> str:
    return "../" * len(path.relative_to(root).parts[:-1])


def file_of(link: str, page: Path) -> Path | None:
    """The file that a style sheet's link names, if it is one of the book's."""
    address = theme.ADDRESS.first(link, page.name)[1]
    return None if "//" in address else (page.parent / unquote(address)).resolve()


def flat(file: Path, target: Path) -> str:
    """A style sheet with its imports in their places and its addresses as seen from the target's folder."""
    css = re.sub(
        r'@charset "[^"]*";|/\*.*?\*/', "", file.read_text("utf-8").lstrip("\ufeff"), flags=re.S
    )
    css = re.sub(
        r'@import "([^"]+)";', lambda found: flat((file.parent / found[1]).resolve(), target), css
    )
    if file.parent != target.parent:
        folder = file.parent.relative_to(target.parents[1]).as_posix()
        prefix = up(target, target.parents[1]) + ("" if folder == "." else folder + "/")
        css = re.sub(r"url\((['\"]?)(?!data:|/|#|\.\./)", rf"url(\1{prefix}", css)
    return re.sub(r"\n\s*", "\n", css)


def calm(script: Path) -> None:
    """The theme asks each block of code, after each change of the page, whether it scrolls, and so has all of them laid out; `wide.js` asks those that a reader sees."""
    text = theme.SCROLLS.sub("", script.read_text("utf-8"), script.name)
    script.write_text(text, "utf-8")


def filed(text: str, page: Path, root: Path) -> str:
    """Pictures that a notebook wrote into its text become files: a phone reads the words before they come."""

    def fix(found):
        data = base64.b64decode(found[1])
        place = root / "_images" / f"{hashlib.sha256(data).hexdigest()}.png"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
        return f'{up(page, root)}_images/{place.name}"'

    return theme.PNG.sub(fix, text, page.name, needed=False)


def early(text: str, root: Path, page: str) -> str:
    """Scripts wait for the text, but for what others read at once and for the theme; the style sheet draws the icons."""
    text = theme.ICON_SCRIPT.sub("", text, page)
    options = (root / "_static/documentation_options.js").read_text("utf-8")
    end = theme.HEAD_END.first(text, page)
    head, body = text[: end.start()], text[end.end() :]
    # The theme gives no name to the button that opens the list of a chapter.
    named = '<summary aria-label="Its pages"><span class="toctree-toggle"'
    body = theme.TOGGLE.sub(named, body, page)
    head = theme.VIEWPORT.sub(
        lambda found: found[1] + theme.VIEWPORT_AGAIN.sub("", found[2], page, needed=False),
        head,
        page,
        count=1,
    )
    # Else the page is drawn in no theme, without frames and colours, and again when the theme's script has run.
    head = theme.NO_THEME_YET.sub('data-theme="light"', head, page, count=1)
    head = theme.THEME_OF_READER.sub(AT_ONCE, head, page, count=1)
    head = theme.OPTIONS.sub(theme.as_is(f"<script>{options}</script>"), head, page)
    head = theme.SCRIPT.sub(r"<script defer \1", head, page)
    return head + end[0] + body


def lazy(text: str, folder: Path) -> str:
    """Width and height on each picture, so that nothing jumps; all but the first load when they come near."""
    seen = []

    def fix(found):
        tag, source = found[0], theme.SOURCE.pattern.search(found[0])
        if not source or "loading=" in tag or source[1].startswith("data:"):
            return tag
        wide = theme.WIDTH.pattern.search(tag)
        attributes = (
            size(folder / unquote(source[1]), wide and int(wide[1])) if "height=" not in tag else ""
        )
        if "ck-picture" in tag and not seen:
            seen.append(tag)
        else:
            attributes += ' loading="lazy"'
        return tag.replace("<img", f"<img{attributes}", 1)

    return theme.IMAGE.sub(fix, text, folder.name, needed=False)


def wide(text: str, page: str = "") -> str:
    """Pictures in outputs say how wide they are meant, for below a share of it their words are too small, and have a box to
    scroll in; one that a phone shows nearly at that share is better seen whole."""

    def fix(found):
        width = theme.WIDTH.pattern.search(found[0])
        whole = not width or int(width[1]) <= WHOLE
        return (
            found[0]
            if whole
            else f'<div class="ck-pan" style="--ck-natural: {width[1]}">{found[0]}</div>'
        )

    return theme.PICTURE.sub(fix, text, page, needed='<a class="ck-picture' in text)


def size(path: Path, wide: int | None = None) -> str:
    """The size of a picture, or its height where a width is given."""
    if path.suffix != ".png" or not path.is_file():
        return ""
    with Image.open(path) as image:
        if wide:
            return f' height="{round(wide * image.height / image.width)}"'
        return f' width="{image.width}" height="{image.height}"'


def setup(app) -> None:
    # A term of the glossary brings formulas to a page that has none; `formulas.js` loads MathJax where there are some.
    app.set_html_assets_policy("always")
    app.connect("build-finished", finish, priority=900)
