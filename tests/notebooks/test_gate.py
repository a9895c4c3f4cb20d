"""The gate refuses every fault that is kept as a notebook under tests/fixtures/notebooks, and passes the sound one."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools.notebooks import columns
from tools.notebooks import gate as notebook_gate
from tools.notebooks.execute import notebooks

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/notebooks"
MOST_EXCUSED = 0  # cells of the whole book that are excused from comparison; one that must be has its reason and its fact

# Faults that the stored file shows by itself, with words of the message.
HOLLOW = {
    "never-executed": "never executed",
    "counts-out-of-order": "count is 7, not 3",
    "output-missing": "an output is expected and none is stored",
    "error-output": "the output is an error: ZeroDivisionError",
    "excused-without-reason": "excused from comparison (nbval-ignore-output)",
    "skipped-by-comment": "excused from comparison (NBVAL_SKIP)",
    "picture-without-alt": "image/png without alt text",
    "warning-in-output": "text on stderr",
}
# Faults that only a fresh run shows: nbval must fail.
STALE = ("stale-text", "stale-picture", "stale-attention")


def nbval(path: Path) -> subprocess.CompletedProcess:
    """Strict nbval on one notebook, as `make test` runs it; the file is copied out of tests/fixtures first."""
    sanitize = f"--nbval-sanitize-with={ROOT / 'tests/notebooks/sanitize.cfg'}"
    options = [
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=60",
        sanitize,
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            str(path),
            *options,
            f"--rootdir={path.parent}",
            "-c",
            "/dev/null",
        ],
        cwd=path.parent,
        capture_output=True,
        text=True,
    )


def test_every_fixture_is_used():
    assert {path.stem for path in FIXTURES.glob("*.ipynb")} == {"sound", *HOLLOW, *STALE}


def test_the_sound_notebook_passes_both(tmp_path):
    assert notebook_gate.faults(FIXTURES / "sound.ipynb") == []
    result = nbval(Path(shutil.copy(FIXTURES / "sound.ipynb", tmp_path)))
    assert result.returncode == 0, result.stdout
    assert "4 passed" in result.stdout


@pytest.mark.parametrize("name", HOLLOW)
def test_a_hollow_notebook_is_refused(name):
    found = notebook_gate.faults(FIXTURES / f"{name}.ipynb")
    assert any(HOLLOW[name] in fault for fault in found), found


@pytest.mark.parametrize("name", STALE)
def test_a_stale_notebook_is_refused(name, tmp_path):
    """These look sound as files: the comparison with a fresh run is what refuses them."""
    assert notebook_gate.faults(FIXTURES / f"{name}.ipynb") == []
    result = nbval(Path(shutil.copy(FIXTURES / f"{name}.ipynb", tmp_path)))
    assert result.returncode == 1, result.stdout
    assert "1 failed" in result.stdout


def test_a_large_notebook_is_refused(tmp_path):
    notebook = json.loads((FIXTURES / "sound.ipynb").read_text())
    notebook["cells"][0]["source"] = ["x" * notebook_gate.MOST_BYTES]
    (tmp_path / "large.ipynb").write_text(json.dumps(notebook))
    assert any(
        "bytes; at most 1,500,000" in fault
        for fault in notebook_gate.faults(tmp_path / "large.ipynb")
    )


def test_a_long_cell_is_refused(tmp_path):
    notebook = json.loads((FIXTURES / "sound.ipynb").read_text())
    notebook["cells"][3]["source"] = ["x = 1\n"] * 16
    (tmp_path / "long.ipynb").write_text(json.dumps(notebook))
    assert any(
        "16 statements in 16 lines of code" in fault
        for fault in notebook_gate.faults(tmp_path / "long.ipynb")
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = [\n" + "    1,\n" * 19 + "]", "1 statements in 21 lines of code; at most 15 in 20"),
        ("x = [\n" + "    1,\n" * 18 + "]", ""),
        ("x = 1\n\n# a remark\n" * 15, ""),
        ("x = (\n" + '    "words "\n' * 30 + ")", ""),
        (f"x = {'1' * 85}", "89 columns; at most 88"),
        (f"x = {'1' * 84}", ""),
    ],
)
def test_how_much_a_cell_may_hold(source, told):
    found = notebook_gate.cell_faults(nbformat.v4.new_code_cell(source, execution_count=1), 1)
    assert (told in found[0] and len(found) == 1) if told else found == []


SAME = [
    "assert first['one of the names'] > 0.85 and second['another of the names'] < 0.06 and third['name'] > 0.7",
    "values = {name: function(argument, other_argument) for name, argument in pairs if argument is not None}  # told",
    "print(f'{name}: the largest of {len(values)} values is {max(values):.2f}, and the least {min(values)!r:>9s}', end='')",
    "figures.show(fig, alt='Words ' 'and many more words, which say what the figure shows and do not end before a line does')",
    "if True:\n    # a remark that is so long that no page shows it on one line, and therefore goes on on another one\n    x = 1",
    "x = first_of_the_names + second_of_the_names * third_of_the_names - fourth_of_the_names / fifth_of_the_names",
]


@pytest.mark.parametrize("source", SAME)
def test_a_wide_line_is_broken_and_says_the_same(source):
    made = columns.narrow(source)
    assert max(map(len, source.splitlines())) > 88 >= max(map(len, made.splitlines()))
    assert ast.unparse(ast.parse(made)) == ast.unparse(ast.parse(source))
    assert columns.narrow(made) == made
    assert made.count("told") == source.count("told")


def test_a_line_that_cannot_be_broken_is_told():
    with pytest.raises(ValueError, match="no way to break"):
        columns.narrow(f"x = {'1' * 90}")


REASON = "the error text differs between Python versions"


def changed(name: str, folder: Path, change) -> list[str]:
    """The faults of a fixture after a change to its JSON."""
    notebook = json.loads((FIXTURES / f"{name}.ipynb").read_text())
    change(notebook)
    (folder / "changed.ipynb").write_text(json.dumps(notebook))
    return notebook_gate.faults(folder / "changed.ipynb")


@pytest.mark.parametrize(
    ("source", "fact", "sound"),
    [
        ("x = 3\nassert x > 2", "x > 2", True),
        ("x = 3\nassert x > 2 and x < 5", "x<5", True),
        ("x = 3\nassert x > 2", "", False),
        ("x = 3\nassert x > 2", None, False),
        ("x = 3\nassert x > 2", "x > 1", False),
        ("x = 3", "x > 2", False),
        ("x = 3\nassert True", "True", False),
        ("x = 3\nif x > 9:\n    assert x > 2", "x > 2", False),
        ("x = 3\ntry:\n    assert x > 2\nfinally:\n    pass", "x > 2", False),
        ("x = 3\nassert x > 2", "training differs between processors", False),
    ],
)
def test_an_excused_cell_states_a_fact_that_it_asserts(tmp_path, source, fact, sound):
    def excuse(notebook):
        cell = notebook["cells"][3]
        cell["metadata"]["circuitkit"] = {"reason": REASON} | (
            {} if fact is None else {"fact": fact}
        )
        cell["source"] = source.splitlines(keepends=True)

    assert (changed("excused-without-reason", tmp_path, excuse) == []) is sound


def figure(notebook) -> dict:
    """The first output of a notebook that is an attention view."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if "ck-attention" in "".join(output.get("data", {}).get("text/html", "")):
                return output["data"]
    raise LookupError("no attention view")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r'"patterns":\[\[\[1.0,', '"patterns":[[[0.5,'),
        (r'"tokens":\["', '"tokens":["another '),
        (r'"largest":1.0', '"largest":2.0'),
        (r"<figcaption>", "<figcaption>Nothing "),
        (r'data-mark="\d+ values', 'data-mark="7 values'),
    ],
    ids=["a weight", "a token", "the scale", "the caption", "a fingerprint"],
)
def test_an_attention_view_with_another_payload_is_refused(tmp_path, old, new):
    def replace(notebook):
        page = "".join(figure(notebook)["text/html"])
        figure(notebook)["text/html"] = (after := re.sub(old, new, page, count=1))
        assert after != page

    assert changed("sound", tmp_path, lambda notebook: None) == []
    assert any(
        "not what the library draws" in fault for fault in changed("sound", tmp_path, replace)
    )


def test_an_alt_text_that_its_output_does_not_have_is_refused(tmp_path):
    def replace(notebook):
        for cell in notebook["cells"]:
            for output in cell.get("outputs", []):
                for kind, told in output.get("metadata", {}).items():
                    if kind.startswith("image/"):
                        told["alt"] = "It is the other way round."

    assert any("says something else" in fault for fault in changed("sound", tmp_path, replace))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", False),
        ("x", True),
        ("x[0] @ y", True),
        ("x;", False),
        ("f(x)", False),
        ("print(x)", True),
        ("figures.show(fig, alt='A sentence about it')\ny = 2", True),
        ("%matplotlib inline\nx = 2", False),
        ("if colab:\n    %pip install x", False),
        ("def f():\n    print(1)", False),
    ],
)
def test_which_cells_are_expected_to_say_something(source, expected):
    assert notebook_gate.expects_output(source) is expected


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.name)
def test_the_book_has_no_hollow_notebook(path):
    assert notebook_gate.faults(path) == []


def test_few_cells_of_the_book_are_excused():
    import nbformat

    cells = [
        cell
        for path in notebooks()
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]
    assert sum(bool(notebook_gate.excused(cell)) for cell in cells) <= MOST_EXCUSED


@pytest.mark.parametrize(
    ("source", "tags", "words"),
    [
        ("print('accuracy 0.97')", [], "prints a number that the cell did not compute"),
        ("for x in (1, 2):\n    print('loss', 3)", [], "prints a number"),
        (
            "import torch\ntorch.allclose = lambda *a: True\nprint(torch)",
            [],
            "changes a module for all cells",
        ),
        ("%%capture\nprint(x)", [], "%%capture takes the cell's output away"),
        ("print(x)", ["remove-cell"], "the tag 'remove-cell' is none of"),
        ("print('step  1st  2nd', x)", ["hide-input"], ""),
    ],
)
def test_nothing_is_hidden_or_made_up(source, tags, words):
    cell = nbformat.v4.new_code_cell(source, metadata={"tags": tags}, execution_count=1)
    found = notebook_gate.hidden(cell)
    assert (words in " ".join(found)) if words else found == []


def test_a_print_in_a_loop_is_expected_to_say_something():
    assert notebook_gate.expects_output("for x in y:\n    print(x)")
