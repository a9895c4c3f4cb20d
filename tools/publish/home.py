"""The address of the book's repository: `repository.url` and `repository.branch` in _config.yml, and nowhere else.

An address under `.invalid` is a placeholder, because nobody can own it. While it is one, no page names an address and no
link to Colab is written.
"""

import functools
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

import yaml

ROOT = Path(__file__).resolve().parents[2]


def is_placeholder(url: str) -> bool:
    return (urlparse(url).hostname or "").endswith(".invalid")


class Home(NamedTuple):
    """The address of the repository, and the branch or tag that links open."""

    url: str
    branch: str

    @property
    def public(self) -> bool:
        return not is_placeholder(self.url)

    @property
    def pages(self) -> str:
        """Where GitHub shows the book's pages; empty while the address is a placeholder."""
        owner, _, name = urlparse(self.url).path.strip("/").partition("/")
        return f"https://{owner.lower()}.github.io/{name}/" if self.public else ""

    def colab(self, path: str) -> str:
        """The address at which Colab opens a notebook of the repository; empty while there is none."""
        if not self.public:
            return ""
        name = urlparse(self.url).path.strip("/")
        return f"https://colab.research.google.com/github/{name}/blob/{self.branch}/{path}"

    def source(self, path: str) -> str:
        """The address at which GitHub shows a file of the repository; empty while there is none."""
        return f"{self.url}/blob/{self.branch}/{path}" if self.public else ""

    @property
    def answer_form(self) -> str:
        """The address of the form for answers to open questions; empty while there is none."""
        return f"{self.url}/issues/new?template=answer.yml" if self.public else ""


def home(root: Path = ROOT) -> Home:
    """Read the address."""
    return read((root / "_config.yml").read_text("utf-8"))


@functools.cache  # a build asks twice for each page
def read(text: str) -> Home:
    settings = yaml.safe_load(text)["repository"]
    return Home(settings["url"].rstrip("/"), settings["branch"])
