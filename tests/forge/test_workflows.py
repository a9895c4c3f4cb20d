"""What the forge runs exists here, fits pyproject.toml, and is read by two linters that refuse planted faults."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.__main__ import commands
from tools.check import colab

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
BIN = Path(sys.executable).parent
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def jobs(path: Path) -> dict[str, dict]:
    return yaml.safe_load(path.read_text("utf-8"))["jobs"]


def steps(path: Path) -> list[dict]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def script(path: Path) -> str:
    """All commands of a workflow."""
    return "\n".join(step["run"] for step in steps(path) if "run" in step)


def allowed(version: str) -> bool:
    """Whether pyproject.toml lets this Python in."""
    least, most = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', PROJECT).groups()
    return int(least) <= int(version.split(".")[1]) < int(most)


def asked(text: str) -> dict[str, set[str]]:
    """What a script takes for granted: targets of make, tools, and paths of tests and notebooks."""
    return {
        "target": set(re.findall(r"^(?:.*&& )?make ([a-z-]+)", text, re.M)),
        "tool": set(re.findall(r"-m tools ([a-z-]+)", text)),
        "path": set(
            re.findall(
                r"(?<![\w/=])(?:tests/[\w./]+|book|requirements[\w.-]*\.txt)(?=\s|$|\")", text
            )
        ),
    }


def missing(text: str) -> list[str]:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    wanted = asked(text)
    paths = {path for path in wanted["path"] if not (ROOT / path).exists()}
    return sorted((wanted["target"] - targets) | (wanted["tool"] - commands().keys()) | paths)


def test_there_are_the_four_workflows():
    assert [path.stem for path in WORKFLOWS] == ["ci", "pages", "release", "weekly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_exists(path):
    text = script(path)
    assert any(asked(text).values())
    assert missing(text) == []


@pytest.mark.parametrize(
    "line",
    [
        "make tset",
        "cd x && make bok",
        "python -m tools colb",
        "pytest tests/head",
        "pip install -r requirement.txt",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line):
    if line.startswith("pip"):
        line = line.replace("requirement.txt", "requirements-no.txt")
    assert len(missing(line)) == 1


def test_pythons_are_those_of_the_project():
    matrix = jobs(ROOT / ".github/workflows/ci.yml")["library"]["strategy"]["matrix"]["include"]
    linux = {run["python"] for run in matrix if run["system"].startswith("ubuntu")}
    assert linux == {f"3.{minor}" for minor in range(30) if allowed(f"3.{minor}")}
    assert {run["system"].split("-")[0] for run in matrix} == {"ubuntu", "macos", "windows"}
    named = [
        step.get("with", {}).get("python-version", "") for path in WORKFLOWS for step in steps(path)
    ]
    versions = [version for text in named if "matrix" not in text for version in text.split()]
    versions += re.findall(
        r"^FROM python:(3\.\d+)", (ROOT / ".devcontainer/Dockerfile").read_text("utf-8"), re.M
    )
    assert len(versions) >= 5
    assert all(allowed(version) for version in versions)


@pytest.mark.parametrize("name", ["ci", "weekly"])
def test_every_package_of_the_library_is_tested(name):
    """A package of src with a folder of tests is in the list; figures and claims need the book and `make test`."""
    packages = {
        path.parent.name.lstrip("_") for path in (ROOT / "src/circuitkit").glob("*/__init__.py")
    }
    tested = {
        Path(path).name for path in asked(script(ROOT / f".github/workflows/{name}.yml"))["path"]
    }
    assert {name for name in packages if (ROOT / "tests" / name).is_dir()} - tested <= {
        "figures",
        "claims",
    }


def test_the_list_of_colab_is_read(tmp_path):
    """The step, run on a list in Colab's form: what it writes is a set that `tools colab` reads."""
    [step] = [
        step
        for step in steps(ROOT / ".github/workflows/weekly.yml")
        if step.get("name") == "Colab's own list"
    ]
    (tmp_path / "colab").mkdir()
    address = "https://example.org/whl/cpu/torch-2.11.0%2Bcpu-cp313-cp313-manylinux_2_28_x86_64.whl#sha256=0"
    (tmp_path / "list").write_text(f"numpy==2.1.3\ntorch @ {address}\nplotly==5.24.1\n")
    subprocess.run(["bash", "-c", "curl() { cat list; }\n" + step["run"]], cwd=tmp_path, check=True)
    runtime = colab.read_set(tmp_path / "colab/today.txt")
    assert runtime.packages == {"numpy": "2.1.3", "torch": "2.11.0+cpu", "plotly": "5.24.1"}
    assert runtime.complete
    assert allowed(runtime.python)


def test_every_action_is_pinned_by_a_hash_and_says_its_version():
    found = [
        line
        for path in WORKFLOWS
        for line in path.read_text("utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(found) >= 10
    for line in found:
        assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_a_password_is_kept_nowhere():
    said = [json.dumps(jobs(path)) for path in WORKFLOWS]
    assert not [text for text in said if re.search(r"secrets\.|password", text)]


# --- the two linters -----------------------------------------------------------------------------------------------


def actionlint(folder: Path) -> subprocess.CompletedProcess:
    files = sorted((folder / ".github/workflows").glob("*.yml"))
    command = [BIN / "actionlint", f"-shellcheck={BIN / 'shellcheck'}", "-oneline", *files]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def zizmor(folder: Path) -> subprocess.CompletedProcess:
    command = [
        BIN / "zizmor",
        "--offline",
        "--strict-collection",
        "--format=json",
        "--no-progress",
        folder / ".github",
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_lint_runs_both():
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    assert "actionlint -shellcheck=$(VENV)/bin/shellcheck .github/workflows/*.yml" in recipe
    assert "zizmor --offline --strict-collection --quiet .github" in recipe


@pytest.mark.parametrize(
    ("linter", "file", "old", "new", "told"),
    [
        (actionlint, "ci", "runs-on: ubuntu-latest", "runs-on: ubuntu-lastest", "runner-label"),
        (actionlint, "ci", "${{ matrix.python }})", "${{ matrix.pyhton }})", "pyhton"),
        (actionlint, "pages", "needs: build", "needs: built", "built"),
        (actionlint, "pages", "steps.deployed.outputs", "steps.deploy.outputs", "deploy"),
        (actionlint, "weekly", '"17 4 * * 1"', '"77 4 * * 1"', "CRON"),
        (actionlint, "release", '"${GITHUB_REF_NAME#v}\\""', "$GITHUB_REF_NAME", "shellcheck"),
        (
            zizmor,
            "ci",
            "@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
            "@v7",
            "unpinned-uses",
        ),
        (
            zizmor,
            "ci",
            "make test TORCH=cpu",
            "echo ${{ github.event.pull_request.title }}",
            "template-injection",
        ),
        (zizmor, "ci", "        with:\n          persist-credentials: false\n", "", "artipacked"),
        (zizmor, "ci", "  pull_request:", "  pull_request_target:", "dangerous-triggers"),
        (
            zizmor,
            "weekly",
            "    permissions:\n      contents: read\n",
            "    permissions: write-all\n",
            "excessive-permissions",
        ),
        (
            zizmor,
            "release",
            "          attestations: true",
            "          password: ${{ secrets.TOKEN }}",
            "trusted",
        ),
    ],
)
def test_a_planted_fault_is_refused(tmp_path, linter, file, old, new, told):
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    path = tmp_path / f".github/workflows/{file}.yml"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    done = linter(tmp_path)
    assert done.returncode != 0
    assert told in done.stdout


def test_as_they_are_nothing_is_found(tmp_path):
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    for linter in (actionlint, zizmor):
        done = linter(tmp_path)
        assert (done.returncode, done.stdout.strip().strip("[]")) == (0, ""), (
            done.stdout + done.stderr
        )


# --- forms and the container ---------------------------------------------------------------------------------------


def test_the_form_asks_for_the_page_what_it_says_and_what_was_computed():
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/mistake.yml").read_text("utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    must = [field["id"] for field in form["body"] if field["validations"]["required"]]
    assert must == ["page", "says", "computed"]
    assert all(
        field["type"] in ("input", "textarea") and field["attributes"]["label"]
        for field in form["body"]
    )


def test_the_list_of_a_pull_request_names_what_exists():
    text = (ROOT / ".github/pull_request_template.md").read_text("utf-8")
    assert all(missing(command) == [] for command in re.findall(r"`(make [a-z-]+)`", text))
    assert all((ROOT / path).exists() for path in re.findall(r"`([\w-]+/[\w./-]*)`", text))


def test_the_container_builds_the_book_and_opens_in_its_environment():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    assert missing(container["postCreateCommand"]) == []
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).exists()
    assert container["forwardPorts"] == [
        int(re.search(r"^PORT \?= (\d+)", (ROOT / "Makefile").read_text("utf-8"), re.M)[1])
    ]


def test_folders_that_dependabot_watches_exist():
    watched = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text("utf-8"))["updates"]
    where = {entry["package-ecosystem"]: ROOT / entry["directory"].lstrip("/") for entry in watched}
    marks = {
        "github-actions": ".github/workflows",
        "docker": "Dockerfile",
        "npm": "package.json",
        "pip": "requirements.txt",
    }
    assert where.keys() == marks.keys()
    assert all((where[kind] / mark).exists() for kind, mark in marks.items())
