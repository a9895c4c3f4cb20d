"""pyright finds nothing in the library, and what a reader's editor knows of it is what these scripts say.

`pyright[nodejs]` brings its program and node as wheels, so nothing is fetched when it runs.
"""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).parent / "fixtures"
README = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S)
RULE = re.compile(r"  # (report\w+)$")


def with_types(source: str) -> str:
    """A script, and a question after it for each name that it assigns."""
    targets = [
        t for node in ast.parse(source).body if isinstance(node, ast.Assign) for t in node.targets
    ]
    names = {node.id: None for t in targets for node in ast.walk(t) if isinstance(node, ast.Name)}
    return source + "".join(f"reveal_type({name})\n" for name in names)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, list[dict]]:
    """What pyright says of the library and of the scripts, in one run: by the name of the file."""
    folder = tmp_path_factory.mktemp("scripts")
    for number, block in enumerate(README):
        (folder / f"readme{number}.py").write_text(with_types(block))
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "npm_config_registry"):
        environment[name] = "http://127.0.0.1:9"  # nothing may be fetched
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    command += [
        "src",
        *map(str, sorted(FIXTURES.glob("*.py"))),
        *map(str, sorted(folder.glob("*.py"))),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 100, done.stderr
    found: dict[str, list[dict]] = {}
    for entry in report["generalDiagnostics"]:
        found.setdefault(
            os.path.relpath(entry["file"], ROOT if ROOT in Path(entry["file"]).parents else folder),
            [],
        ).append(entry)
    return found


def revealed(entries: list[dict]) -> dict[int, str]:
    """The type that was asked for, by line."""
    asked = [
        (entry["range"]["start"]["line"], entry["message"])
        for entry in entries
        if entry["severity"] == "information"
    ]
    return {line: re.search(r'is "(.*)"$', message)[1] for line, message in asked}


def test_the_library_has_no_errors(told):
    found = [
        f"{name}:{e['range']['start']['line'] + 1}: {e['message']}"
        for name, es in told.items()
        for e in es
        if name.startswith("src")
    ]
    assert found == []


def test_a_script_is_typed(told):
    entries = told[f"{FIXTURES.relative_to(ROOT)}/script.py"]
    assert [entry["message"] for entry in entries if entry["severity"] != "information"] == []
    lines = (FIXTURES / "script.py").read_text().splitlines()
    wanted = {
        n: line.rpartition("  # ")[2]
        for n, line in enumerate(lines)
        if "reveal_type(" in line and "  # " in line
    }
    assert revealed(entries) == wanted
    assert len(wanted) >= 30


@pytest.mark.parametrize("number", range(len(README)))
def test_the_examples_of_the_readme_are_typed(told, number):
    entries = told[f"readme{number}.py"]
    assert [entry["message"] for entry in entries if entry["severity"] != "information"] == []
    types = revealed(entries)
    assert len(types) == len(re.findall(r"^reveal_type", with_types(README[number]), re.M)) > 2
    assert not [kind for kind in types.values() if re.search(r"\b(Any|Unknown)\b", kind)]


def test_slips_are_underlined_and_nothing_else(told):
    lines = (FIXTURES / "mistakes.py").read_text().splitlines()
    wanted = {n: RULE.search(line)[1] for n, line in enumerate(lines) if RULE.search(line)}
    entries = told[f"{FIXTURES.relative_to(ROOT)}/mistakes.py"]
    assert {
        e["range"]["start"]["line"]: e["rule"] for e in entries if e["severity"] == "error"
    } == wanted
    assert len(wanted) >= 10


def test_nothing_is_excused_without_a_reason():
    """An exception names its rule and says why on its line; whole files are not excused."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line in path.read_text("utf-8").splitlines():
            assert "# type: ignore" not in line, path
            if "pyright:" in line:
                assert re.search(r"# pyright: ignore\[report\w+\]  # \w+ \w+", line), (
                    f"{path}: {line}"
                )


def test_the_settings_loosen_nothing():
    """No rule is switched off; exceptions that are no longer needed are told."""
    block = (
        (ROOT / "pyproject.toml")
        .read_text("utf-8")
        .partition("[tool.pyright]\n")[2]
        .partition("\n[")[0]
    )
    settings = dict(re.findall(r"^(\w+) = (.*?)(?: #.*)?$", block, re.M))
    assert settings == {
        "include": '["src"]',
        "typeCheckingMode": '"standard"',
        "enableTypeIgnoreComments": "false",
        "reportUnnecessaryTypeIgnoreComment": '"error"',
    }


def test_the_front_door_is_said_twice_alike():
    """What an editor imports is what `circuitkit` offers."""
    tree = ast.parse((ROOT / "src/circuitkit/__init__.py").read_text("utf-8"))
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [offered] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert seen == set(ast.literal_eval(offered))
