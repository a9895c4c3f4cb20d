"""Where the book lives: `repository` in _config.yml, and every place that is made from it.

    python -m tools home              write them: README, CITATION.cff, pyproject.toml, setup cells, copies of the exercises
    python -m tools home --seal       first take the seal of the library's sources, which the setup cells check
    python -m tools home --release    first pin this version: its tag becomes `repository.branch`, and its sources are sealed

An address under `.invalid` is a placeholder: nobody can own it. While it is one, no page says where the book lives, the
book has no buttons that lead there, the setup cell asks no address, and `--release` refuses.
"""

import argparse
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

ROOT = Path(__file__).resolve().parents[2]
SETTING = re.compile(r"^repository:\n  url: (\S+)\n  branch: (\S+)$", re.M)
BRANCH = re.compile(r"^(repository:\n  url: \S+\n  branch: )(\S+)($)", re.M)
SEAL = re.compile(r'^(\[tool\.circuitkit\]\nseal = ")(\w*)(")', re.M)
COLAB = "https://colab.research.google.com/github/"
NO_LINKS = """\
*The book has no public address yet*: `repository.url` in `_config.yml` is a placeholder, so there are no badges. Once it is
the book's real home, `python -m tools home` puts them here and the address wherever it belongs."""


def is_placeholder(url: str) -> bool:
    return (urlparse(url).hostname or "").endswith(".invalid")


class Home(NamedTuple):
    """The address of the repository, the branch or tag that links open, and the version with the seal of its sources."""

    url: str
    branch: str
    version: str
    seal: str

    @property
    def public(self) -> bool:
        return not is_placeholder(self.url)

    @property
    def pages(self) -> str:
        """Where GitHub shows the book's pages; empty while nobody knows."""
        owner, _, name = urlparse(self.url).path.strip("/").partition("/")
        return f"https://{owner.lower()}.github.io/{name}/" if self.public else ""

    @property
    def tag(self) -> str:
        return f"v{self.version}"

    @property
    def wheel(self) -> str:
        """The name of the wheel of this version."""
        return f"circuitkit_book-{self.version}-py3-none-any.whl"

    def colab(self, path: str) -> str:
        """The address at which Colab opens a notebook of the repository."""
        return f"{COLAB}{self.url.removeprefix('https://github.com/')}/blob/{self.branch}/{path}"


def home(root: Path = ROOT) -> Home:
    """Read the settings."""
    found = SETTING.search((root / "_config.yml").read_text("utf-8"))
    if found is None:
        raise ValueError(
            "_config.yml has no `repository:` with `url` and `branch` below it; every address needs both"
        )
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    here = Home(
        found[1].rstrip("/"),
        found[2],
        project["project"]["version"],
        project["tool"]["circuitkit"]["seal"],
    )
    if here.public and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", here.url):
        raise ValueError(
            f"repository.url is {here.url}; expected https://github.com/owner/name, which Colab can open"
        )
    return here


def between(text: str, mark: str, new: str) -> str:
    """The text with what stands between two marks replaced."""
    text, count = re.subn(
        rf"(?<=<!-- {mark} -->\n).*?(?=\n<!-- /{mark} -->)", lambda _: new, text, flags=re.S
    )
    if count != 1:
        raise ValueError(
            f"README.md has {count} places between <!-- {mark} --> and <!-- /{mark} -->; expected one"
        )
    return text


def readme(text: str, here: Home, chapters: list[str]) -> str:
    links = " ·\n".join(
        f"[chapter {int(name[:2])}]({here.colab(f'book/{name}')})" for name in chapters
    )
    install = f'"circuitkit-book @ git+{here.url}@{here.tag}"' if here.public else here.wheel
    address = f",\n  url    = {{{here.url}}}" if here.public else ""
    cite = (
        "```bibtex\n@software{circuitkit,\n  title  = {circuitkit: transformer circuits you can run},\n"
        f"  author = {{{{The circuitkit authors}}}},\n  year   = {{2026}}{address}\n}}\n```"
    )
    text = between(text, "colab", links if here.public else NO_LINKS)
    return between(between(text, "install", f"```sh\npip install {install}\n```"), "cite", cite)


def citation(text: str, here: Home) -> str:
    line = f'repository-code: "{here.url}"\n' if here.public else ""
    return re.sub(r"^(repository-code: .*\n)?(?=keywords:)", line, text, flags=re.M)


def metadata(text: str, here: Home) -> str:
    line = f'Repository = "{here.url}"\n' if here.public else ""
    return re.sub(
        r"^(\[project\.urls\]\n(?:#.*\n)*)(?:Repository = .*\n)?", rf"\1{line}", text, flags=re.M
    )


def written(root: Path = ROOT) -> dict[Path, str]:
    """Every text with an address, as it should be; notebooks have their own writers."""
    here = home(root)
    chapters = [path.name for path in sorted((root / "book").glob("[0-9]*.ipynb"))]
    changes = {
        "README.md": lambda text: readme(text, here, chapters),
        "CITATION.cff": lambda text: citation(text, here),
        "pyproject.toml": lambda text: metadata(text, here),
    }
    return {
        root / name: change((root / name).read_text("utf-8")) for name, change in changes.items()
    }


def set_line(path: Path, setting: re.Pattern, value: str) -> None:
    path.write_text(setting.sub(rf"\g<1>{value}\g<3>", path.read_text("utf-8")), "utf-8")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    from tools.notebooks import setup_cell, stubs
    from tools.publish import wheel

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seal", action="store_true", help="take the seal of the sources")
    parser.add_argument("--release", action="store_true", help="pin this version")
    options = parser.parse_args(arguments)
    here = home(root)
    if options.release and not here.public:
        print(
            f"repository.url in _config.yml is a placeholder, {here.url}. A release needs the book's real home there."
        )
        return 1
    if options.release:
        set_line(root / "_config.yml", BRANCH, here.tag)
    if options.release or options.seal:
        with tempfile.TemporaryDirectory() as folder:
            set_line(root / "pyproject.toml", SEAL, wheel.seal(wheel.build(Path(folder), root)))
    for path, text in written(root).items():
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"{path.name}: written")
    return setup_cell.main(root) or stubs.main([], root)


if __name__ == "__main__":
    sys.exit(main())
