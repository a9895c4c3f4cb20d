"""What the build changes in the HTML, scripts and styles that the theme, Sphinx and its extensions write.

Every pattern on their text is here. A piece that has to be there and is not stops the build, because a new version of the
theme writes it in another way: the message says which piece is missing, where, and from which versions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

PACKAGES = ("sphinx-book-theme", "pydata-sphinx-theme", "Sphinx")


class ThemeChangedError(ValueError):
    """A page does not contain what the theme used to write."""


@dataclass(frozen=True)
class Piece:
    """Text that is not ours and that the build replaces or reads."""

    what: str
    """What it is, in words, for the message."""
    pattern: re.Pattern

    def sub(
        self,
        new: str | Callable,
        text: str,
        page: str,
        *,
        needed: bool = True,
        count: int = 0,
    ) -> str:
        """The text with the piece replaced; an error if the page needs it and does not have it."""
        text, found = self.pattern.subn(new, text, count=count)
        if needed and not found:
            raise self.missing(page)
        return text

    def first(self, text: str, page: str) -> re.Match:
        """Where the piece is first; an error if the page does not have it."""
        found = self.pattern.search(text)
        if found is None:
            raise self.missing(page)
        return found

    def missing(self, page: str) -> ThemeChangedError:
        versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
        return ThemeChangedError(
            f"{page or 'A page'} has no {self.what}. Nothing in it matches {self.pattern.pattern!r}, with {versions}. If a "
            "new version writes this in another way, correct the pattern in book/_ext/book_extension/theme.py."
        )


def literal(what: str, text: str) -> Piece:
    """A piece that is always the same text."""
    return Piece(what, re.compile(re.escape(text)))


def as_is(text: str) -> Callable:
    """A replacement in which no backslash has a meaning."""
    return lambda found: text


# docutils and Sphinx, in the body of a page
CITATION_LIST = literal("list of citations", '<div role="list" class="citation-list">')
CITATION = literal("role of a citation", ' role="doc-biblioentry"')
SIGNATURE = Piece(
    "signature on several lines",
    re.compile(r"\n<dl>\n((?:<dd><em class=\"sig-param\">.*?</dd>\n)+)</dl>\n", re.S),
)
PARAMETER = literal("parameter of a signature", "<dd><em")
PARAMETER_END = literal("end of a parameter", "</em>,</dd>")
EQUATION = Piece(
    "numbered equation",
    re.compile(r'(<div class="math notranslate nohighlight" id="eq-(\d+)-(\d+)")>'),
)
SUMMARY = Piece("summary of a fold", re.compile(r"(?<=<summary>)[^<]+(?=</summary>)"))
PICTURE = Piece(
    "picture that an output shows",
    re.compile(r'<a class="ck-picture [^>]*>\s*<img [^>]*>\s*</a>'),
)
IMAGE = Piece("image", re.compile(r"<img\b[^>]*>"))
SOURCE = Piece("address of an image", re.compile(r'src="([^"]+)"'))
WIDTH = Piece("width of an image", re.compile(r' width="(\d+)"'))
PNG = Piece("picture inside the text", re.compile(r'data:image/png;base64,([\w+/=]{2000,})"'))

# the head, which the theme and sphinxext.opengraph write
STYLE_SHEET = Piece(
    "link to a style sheet", re.compile(r'[ \t]*<link [^>]*rel="stylesheet"[^>]*>\n?')
)
ADDRESS = Piece("address of a style sheet", re.compile(r'href="([^"?#]+)'))
HEAD_END = literal("end of the head", "</head>")
VIEWPORT = Piece("viewport", re.compile(r'(<meta name="viewport"[^>]*>)(.*)', re.S))
VIEWPORT_AGAIN = Piece("second viewport", re.compile(r'\s*<meta name="viewport"[^>]*>'))
SHARED_ADDRESS = Piece(
    "address or picture of the page for other pages",
    re.compile(r'<meta property="og:(url|image[:\w]*)"[^>]*>\n?'),
)
NO_THEME_YET = literal("theme of a page before its script runs", 'data-theme="auto"')
THEME_OF_READER = literal(
    "script that reads the theme",
    'dataset.theme = localStorage.getItem("theme") || "auto";',
)
ICON_SCRIPT = Piece(
    "script of the icons",
    re.compile(r"[ \t]*<script [^>]*scripts/fontawesome\.js[^>]*></script>\n?"),
)
OPTIONS = Piece(
    "script of the options",
    re.compile(r"<script [^>]*documentation_options\.js[^>]*></script>"),
)
SCRIPT = Piece(
    "script that is not deferred",
    re.compile(r'<script (?![^>]*(?:defer|async))([^>]*src=")'),
)
SEARCH_SCRIPTS = Piece(
    "script of Sphinx's search",
    re.compile(
        r'[ \t]*<script [^>]*src="(?:_static/)?(?:searchtools|language_data|searchindex)\.js[^>]*></script>\n?'
    ),
)

# the frame of a page, the scripts and the styles of the theme
TOGGLE = literal(
    "button that opens the pages of a chapter",
    '<summary><span class="toctree-toggle"',
)
SCROLLS = Piece(
    "question what scrolls",
    re.compile(
        r',"complete"===document\.readyState\?(\w+)\(\):window\.addEventListener\("load",\1\)'
    ),
)
ICON_FONTS = Piece(
    "icon font",
    re.compile(
        r'url\(([^)]*/fa-[\w-]+)\.woff2\) format\("woff2"\),url\([^)]*\.ttf\) format\("truetype"\)'
    ),
)
