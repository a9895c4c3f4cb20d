"""The code of README and "Your own model" runs and shows what these pages say."""

import contextlib
import functools
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

import circuitkit as ck
from circuitkit.reports import measures
from tests.support import tiny_models

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGE = (ROOT / "book/your-model.md").read_text("utf-8")
OWN_MODEL, ERRORS = PAGE.split("## Errors and what to do\n")
SECTIONS = dict(re.findall(r"(?m)^### (.+)\n((?:(?!^### ).*\n?)+)", ERRORS))
NAMESAKE = "Another project has the same import name"
OTHER_PYTHON = "The notebook runs in another Python"
RUN_HERE = [title for title in SECTIONS if title not in (NAMESAKE, OTHER_PYTHON)]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def shown(code: str, names: dict | None = None) -> str:
    """What a reader sees: what the code prints, then its error."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "a cell", "exec"), {} if names is None else names)
        except Exception as error:
            return f"{printed.getvalue()}{type(error).__name__}: {error}"
    return printed.getvalue()


def quoted(text: str, seen: str) -> bool:
    """Whether the page's words are in what is seen; three dots stand for anything."""
    words = [re.escape(" ".join(part.split())) for part in text.split("...")]
    return re.search(".*".join(words), " ".join(seen.split())) is not None


@pytest.fixture(scope="module")
def made_parts(tmp_path_factory):
    """A folder for the parts of reports."""
    return tmp_path_factory.mktemp("parts")


@pytest.fixture
def quick_reports(monkeypatch, made_parts):
    """Parts of reports are computed once, and without skip trigrams, which nothing here looks at."""
    monkeypatch.setattr(measures, "trigrams_by_weights", lambda text, name: [])
    monkeypatch.setattr(measures, "tested_trigrams", lambda text, candidates: [])
    monkeypatch.setattr(ck, "report", functools.partial(ck.report, cache=made_parts))


@pytest.mark.usefixtures("quick_reports")
@pytest.mark.parametrize("code", blocks(README, "python"))
def test_readme_examples_print_what_their_comments_say(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    promised = [line.split("#")[1] for line in code.splitlines() if line.startswith("print(")]
    assert shown(code).splitlines() == [text.split(":")[0].strip() for text in promised]
    written = re.findall(r'"(\w+\.html)"', code)
    assert [name for name in written if "L1H3" not in (tmp_path / name).read_text("utf-8")] == []


@pytest.mark.usefixtures("quick_reports")
@pytest.mark.filterwarnings("ignore")
def test_your_own_model_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    seen = "".join(shown(code, names) for code in blocks(OWN_MODEL, "python"))
    assert "Error" not in seen
    assert "numbers" in seen
    assert names["scores"][names["best"], "prefix matching"] > 0
    assert not names["report"].problems
    assert not names["logits"].equal(names["model"](names["rows"].tokens))
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["mine", "mine.csv", "mine.html", "my-lab.html"]
    assert {"L1H3", "L0H1", "L0H1->L1H3.K"} <= set(names["changed"]["name"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Llama", "Gemma", "Qwen2", "GPTNeoX", "Phi"])
def test_your_own_model_says_which_families_have_a_first_token(kind, tmp_path):
    sizes = tiny_models.HUGGING_FACE | {"vocab_size": 4096, "bos_token_id": 0, "eos_token_id": 0}
    if kind == "Gemma":
        sizes |= {"head_dim": 8, "num_key_value_heads": 3, "pad_token_id": 0}
    architecture = f"{kind}ForCausalLM"
    config = getattr(transformers, f"{kind}Config")(**sizes, architectures=[architecture])
    model = tiny_models.from_folder(tmp_path / kind, getattr(transformers, architecture)(config))
    (sentence,) = re.findall(r"[^.:]* have one in front,[^.]*", " ".join(OWN_MODEL.split()))
    with_one, without = sentence.split(" have one in front,")
    said = kind.removeprefix("GPT") in with_one
    assert said or kind.removeprefix("GPT") in without
    assert bool(model.to_tokens("In the beginning")[0, 0] == 0) == said


def symptom(title: str) -> str:
    return blocks(SECTIONS[title], "text")[0]


def part(title: str, kind: str) -> str:
    """The code under the word **Wrong** or **Right**."""
    text = SECTIONS[title].split(f"**{kind}**")[1].split("**Right**")[0]
    return blocks(text, "python")[0]


@pytest.mark.parametrize("title", RUN_HERE)
def test_wrong_code_shows_the_symptom_and_right_code_does_not(title):
    wrong, right = shown(part(title, "Wrong")), shown(part(title, "Right"))
    assert quoted(symptom(title), wrong), wrong
    assert not quoted(symptom(title), right)
    assert "Error:" not in right


def python(code: str, *options: str, **environment: str) -> str:
    """What another Python writes to its error output."""
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | environment
    ).stderr


def test_importing_the_namesake_gives_the_message_of_the_page(tmp_path):
    info = tmp_path / "circuitkit-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: circuitkit\nVersion: 9.9\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    seen = python("import circuitkit", PYTHONPATH=path)
    first_command = blocks(SECTIONS[NAMESAKE], "sh")[0].splitlines()[0]
    assert quoted(symptom(NAMESAKE), seen)
    assert first_command in seen


def test_another_python_gives_the_message_of_the_page():
    assert quoted(symptom(OTHER_PYTHON), python(part(OTHER_PYTHON, "Wrong"), "-I", "-S"))
    assert shown(part(OTHER_PYTHON, "Right")).strip() == sys.executable


def test_links_and_pictures_of_the_readme_exist():
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert [name for name in targets if "://" not in name and not (ROOT / name).exists()] == []
