"""The error-help page: each wrong code gives the quoted symptom, each right code runs."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from circuitkit.models import _load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "book/errors.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"(?m)^## (.+)\n((?:(?!^## ).*\n?)+)", PAGE))
FENCE = r"```{}\n(.*?)```"
NAMESAKE, OTHER_PYTHON = (
    "Another project owns the short name",
    "The notebook runs in another Python",
)
RUN_HERE = [title for title in SECTIONS if title not in (NAMESAKE, OTHER_PYTHON)]


def symptom(title: str) -> str:
    (text,) = re.findall(FENCE.format("text"), SECTIONS[title], re.S)
    return text


def code(title: str, kind: str) -> str:
    """The Python under the word **Wrong** or **Right**."""
    part = SECTIONS[title].split(f"**{kind}**")[1].split("**Right**")[0]
    return re.findall(FENCE.format("python"), part, re.S)[0]


def shown(source: str) -> str:
    """What a reader sees: what is printed, then the error."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "a cell", "exec"), {})
        except Exception as error:
            return f"{printed.getvalue()}{type(error).__name__}: {error}"
    return printed.getvalue()


def quoted(text: str, seen: str) -> bool:
    """Whether the page's words are in what is seen; three dots stand for anything, white space does not count."""
    words = [re.escape(" ".join(part.split())) for part in text.split("...")]
    return re.search(".*".join(words), " ".join(seen.split())) is not None


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """The reader of the hub's section has no network and nothing stored."""
    monkeypatch.setattr(_load, "_reachable", lambda *_: False)
    monkeypatch.setattr(_load, "_cached", lambda _: False)


def test_there_are_at_least_ten():
    assert len(SECTIONS) >= 10


@pytest.mark.parametrize("title", SECTIONS)
def test_each_has_symptom_cause_wrong_and_right(title):
    body = SECTIONS[title]
    places = [body.index(word) for word in ("```text", "**Cause.**", "**Wrong**", "**Right**")]
    assert places == sorted(places)


@pytest.mark.parametrize("title", RUN_HERE)
def test_the_wrong_code_shows_the_symptom(title):
    assert quoted(symptom(title), shown(code(title, "Wrong"))), shown(code(title, "Wrong"))


@pytest.mark.parametrize("title", RUN_HERE)
def test_the_right_code_runs_and_the_symptom_is_gone(title):
    seen = shown(code(title, "Right"))
    assert not quoted(symptom(title), seen)
    assert "Error:" not in seen


def python(source: str, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", source],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    return done.stderr


def test_the_namesake_is_refused_in_these_words(tmp_path):
    info = tmp_path / "circuitkit-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: circuitkit\nVersion: 9.9\n")
    seen = python(
        "import circuitkit", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    )
    assert quoted(symptom(NAMESAKE), seen)
    (commands,) = re.findall(FENCE.format("sh"), SECTIONS[NAMESAKE], re.S)
    assert commands.splitlines()[0] in seen
    assert set(commands.splitlines()[1:]) <= set((ROOT / "README.md").read_text().splitlines())


def test_another_python_does_not_know_the_library():
    seen = python(code(OTHER_PYTHON, "Wrong"), "-I", "-S")
    assert quoted(symptom(OTHER_PYTHON), seen)
    assert shown(code(OTHER_PYTHON, "Right")).strip() == sys.executable


def test_the_comparison_can_fail():
    assert quoted("one ... three", "zero one two\n  three four")
    assert not quoted("one ... three", "one two four")
    assert not quoted("ValueError: expected 3", "ValueError: expected 4")
