"""Write the address of the repository into every file that names it, or take it out again.

    python -m tools address https://github.com/OWNER/NAME [BRANCH OR TAG]
    python -m tools address none

Pages read the address from _config.yml when the book is built. The other files cannot, so this tool writes them: `BLOCKS`
names the places in Markdown files, and `LINES` the lines of files that other programs read.
"""

import re
import sys
from pathlib import Path
from urllib.parse import urlparse

from tools.publish.home import ROOT, Home

PLACEHOLDER = "https://circuitkit.invalid/circuitkit-book"
INDEX = "https://pypi.org/project/circuitkit-book"
FIRST_PAGE = "book/1-residual-stream/circuit-in-one-picture.ipynb"
#: The part of a Markdown file between two comments: `<!-- address: NAME -->` and `<!-- end of the address -->`.
BLOCK = re.compile(r"(<!-- address: ([\w-]+) -->\n).*?(<!-- end of the address -->)", re.S)
MARKDOWN = ("README.md", "book/install.md")


def badges(place: Home) -> str:
    """The first lines of the README."""
    if not place.public:
        return ""
    tests = f"{place.url}/actions/workflows/ci.yml"
    return (
        f"[![tests]({tests}/badge.svg)]({tests})\n"
        f"[![the package](https://img.shields.io/pypi/v/circuitkit-book)]({INDEX})\n"
        f"[![open the first page in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
        f"({place.colab(FIRST_PAGE)})\n\n"
        f"**[Read the book]({place.pages})**\n"
    )


def library(place: Home) -> str:
    """How the README says to install the library."""
    if not place.public:
        return ""
    return (
        "```sh\npip install circuitkit-book    # on Linux this installs the CUDA build of PyTorch, "
        "unless PyTorch is installed\n```\n"
    )


def clone(place: Home) -> str:
    """How the README and the page on installing get the repository."""
    if not place.public:
        return ""
    name = place.url.rpartition("/")[2]
    return f"```sh\ngit clone {place.url}\ncd {name}\n```\n"


def colab(place: Home) -> str:
    """How the page on installing says to use Colab."""
    if place.public:
        return (
            "Every page with code has a button *Open in Colab*. Run the notebook from the top. Its first cell installs the "
            "wheel and\nthe packages that Colab lacks.\n"
        )
    return """\
This book has no public address yet, so its pages have no links to Colab. A notebook still runs there:

1. Run `make archive`. The file `_build/circuitkit-book.zip` contains a folder `colab` with the notebooks and the wheel.
2. Open a notebook from this folder at [colab.research.google.com](https://colab.research.google.com), and upload the wheel into
   the panel of files.
3. Run the notebook from the top. Its first cell installs the wheel and the packages that Colab lacks.
"""


BLOCKS = {"badges": badges, "library": library, "clone": clone, "colab": colab}
#: By file: the line of an address, and the line that it follows.
LINES = {
    "pyproject.toml": ('Repository = "{}"\n', "[project.urls]\n"),
    "CITATION.cff": ('repository-code: "{}"\n', "license: MIT\n"),
}


def with_blocks(text: str, place: Home) -> str:
    """A Markdown file whose blocks are those of an address."""

    def filled(found: re.Match) -> str:
        if found[2] not in BLOCKS:
            raise ValueError(
                f"The block {found[2]!r} is not known; expected one of {sorted(BLOCKS)}."
            )
        return f"{found[1]}{BLOCKS[found[2]](place)}{found[3]}"

    return BLOCK.sub(filled, text)


def with_line(text: str, place: Home, line: str, after: str) -> str:
    """A file with its line for an address, or without it."""
    text = re.sub(line.replace("{}", '[^"]*'), "", text)
    return text.replace(after, after + line.format(place.url)) if place.public else text


def texts(root: Path, place: Home) -> dict[Path, str]:
    """What each file says when the book has this address."""
    found = {root / name: with_blocks((root / name).read_text("utf-8"), place) for name in MARKDOWN}
    for name, (line, after) in LINES.items():
        found[root / name] = with_line((root / name).read_text("utf-8"), place, line, after)
    settings = (root / "_config.yml").read_text("utf-8")
    settings = re.sub(r"(?m)^  url: \S+$", f"  url: {place.url}", settings)
    found[root / "_config.yml"] = re.sub(
        r"(?m)^  branch: \S+$", f"  branch: {place.branch}", settings
    )
    return found


def read_address(words: list[str]) -> Home:
    """The address and the branch that the command line names."""
    given, *branch = words or [""]
    if given == "none" and not branch:
        return Home(PLACEHOLDER, "main")
    given = given.rstrip("/").removesuffix(".git")
    parts = urlparse(given)
    on_github = parts.scheme == "https" and parts.hostname == "github.com"
    if not on_github or parts.path.count("/") != 2 or len(branch) > 1:
        raise SystemExit(
            f"The address of the repository is {' '.join(words)!r}; expected https://github.com/OWNER/NAME, because the buttons "
            "and the workflows are made for GitHub, and perhaps a branch or tag. The word none takes the address out again."
        )
    return Home(given, *branch or ["main"])


def main() -> None:
    for path, text in texts(ROOT, read_address(sys.argv[1:])).items():
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
