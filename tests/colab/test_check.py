"""The Colab check: the known package sets pass, and whatever would change or break a runtime is refused."""

import importlib.metadata
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import nbformat
import pytest

from tools.check import colab as colab_check
from tools.check.colab import (
    PackageSet,
    difference,
    judged,
    planned,
    printed,
    read_set,
    released,
    run_notebook,
    stub,
    uploaded,
)
from tools.notebooks.setup_cell import BEGINS, locked
from tools.publish.home import Home
from tools.publish.wheel import seal

ROOT = Path(__file__).resolve().parents[2]
SETS = sorted((ROOT / "colab").glob("*.txt"))
HEAD = "# python: 3.12.13\n# date: today\n# origin: made up\n# complete: yes\n"


def runtime(complete=True, **packages):
    return PackageSet(
        "made up", "3.12.13", complete, {name.replace("_", "-"): v for name, v in packages.items()}
    )


def item(name, version="1.0", *requires):
    return {"name": name, "version": version, "requires_dist": list(requires)}


def wheel(folder, name, version, *requires, code=""):
    """The smallest wheel that pip accepts."""
    inside = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name.removesuffix('_book')}.py", code)
        archive.writestr(
            f"{inside}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        )
        archive.writestr(
            f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{inside}/RECORD", "")
    return path


# --- the sets ------------------------------------------------------------------------------------------------------


def test_three_sets_are_known():
    assert [path.stem for path in SETS] == ["2026.01", "2026.04", "2026.08"]


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_set_is_a_whole_package_list_or_says_that_it_is_not(path):
    known = read_set(path)
    assert {"torch", "numpy", "transformers", "ipykernel"} <= known.packages.keys()
    assert known.complete == (len(known.packages) > 600)
    assert known.python.startswith("3.1")


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_on_every_set_the_installed_versions_change_nothing_and_miss_nothing(path):
    names = ["circuitkit-book", *(line.partition("==")[0] for line in locked())]
    found = {name: importlib.metadata.metadata(name) for name in names}
    plan = [
        item(name, data["Version"], *(data.get_all("Requires-Dist") or ()))
        for name, data in found.items()
    ]
    assert judged(read_set(path), plan)[0] == []


def test_what_counts_as_never_imported_is_never_imported():
    package = Path(
        importlib.metadata.distribution("transformer-lens").locate_file("transformer_lens")
    )
    sources = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    assert "import jaxtyping" in sources or "from jaxtyping" in sources
    for name in colab_check.UNUSED:
        assert f"import {name.replace('-', '_')}" not in sources
        assert f"from {name.replace('-', '_')}" not in sources


def test_a_set_without_its_origin_is_refused(tmp_path):
    path = tmp_path / "2026.05.txt"
    path.write_text(HEAD.replace("# origin: made up\n", "") + "numpy==2\n")
    with pytest.raises(ValueError, match=r"2026\.05\.txt does not say its origin"):
        read_set(path)


# --- the install ---------------------------------------------------------------------------------------------------


def test_a_preinstalled_package_that_would_be_replaced_is_a_fault():
    faults, _ = judged(runtime(jaxtyping="0.2.0"), [item("jaxtyping", "0.3.11")])
    assert faults == ["jaxtyping 0.2.0 is preinstalled and would be replaced by 0.3.11"]


def test_a_requirement_that_is_not_there_is_a_fault():
    faults, _ = judged(
        runtime(numpy="2.0.2"), [item("transformer-lens", "4.3.0", "wandb>=0.13.5", "numpy>=1.26")]
    )
    assert faults == ["wandb is missing, and transformer-lens needs it"]


def test_in_a_partial_set_it_is_a_remark():
    faults, remarks = judged(
        runtime(complete=False), [item("transformer-lens", "4.3.0", "wandb>=0.13.5")]
    )
    assert (faults, remarks) == ([], ["not known whether these are there: wandb"])


def test_an_older_version_is_a_fault_unless_it_is_tried():
    plan = [item("transformer-lens", "4.3.0", "transformers>=5.9.0", "numpy>=2.1")]
    faults, remarks = judged(runtime(transformers="5.0.0", numpy="2.0.2"), plan)
    assert faults == ["numpy 2.0.2 where transformer-lens asks for >=2.1"]
    assert remarks == ["transformers 5.0.0 where transformer-lens asks for >=5.9.0"]


def test_requirements_of_other_pythons_and_extras_do_not_count():
    plan = [
        item(
            "x",
            "1",
            "a; python_version < '3.12'",
            "b; extra == 'more'",
            "c; python_version >= '3.12'",
        )
    ]
    assert judged(runtime(), plan)[0] == ["c is missing, and x needs it"]


def test_pip_is_asked_and_a_conflicting_set_is_refused(tmp_path):
    for name in ("lens", "shapes"):
        wheel(tmp_path, name, "2.0", *(["numpy>=2.5"] if name == "lens" else []))
    wheel(tmp_path, "numpy", "2.6")
    asked = ["--no-index", "-f", str(tmp_path), "lens==2.0", "shapes==2.0"]
    good, bad = runtime(numpy="2.5"), runtime(numpy="2.0", shapes="1.0")
    plan, _ = planned(good, ["--no-deps", *asked], tmp_path / "good")
    assert {entry["name"]: entry["version"] for entry in plan} == {"lens": "2.0", "shapes": "2.0"}
    assert judged(good, plan)[0] == []
    plan, _ = planned(bad, ["--no-deps", *asked], tmp_path / "bad")
    assert judged(bad, plan)[0] == [
        "shapes 1.0 is preinstalled and would be replaced by 2.0",
        "numpy 2.0 where lens asks for >=2.5",
    ]
    plan, _ = planned(
        bad, asked, tmp_path / "resolved"
    )  # without --no-deps pip would also replace numpy
    assert "numpy 2.0 is preinstalled and would be replaced by 2.6" in judged(bad, plan)[0]


# --- the notebooks -------------------------------------------------------------------------------------------------

NETWORK = """\
import urllib.request
try:
    urllib.request.urlopen("http://192.0.2.1", timeout=2)
except OSError as error:
    print(error)"""


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """A Python that sees the packages of this one, wheels for the setup cell, and the stub of google.colab."""
    folder = tmp_path_factory.mktemp("colab")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "these.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wheels = folder / "wheels"
    wheels.mkdir()
    for line in locked():
        name, _, version = line.partition("==")
        wheel(wheels, name.replace("-", "_"), version)
    ours = wheel(folder, "circuitkit_book", "9.9", code="answer = 42")
    here = Home("https://circuitkit.invalid/x", "main", "9.9", seal(ours))
    return here, ours, (folder / "env" / "bin" / "python", wheels, stub(folder / "stubs"))


def written(folder, *cells):
    """A notebook with a setup cell and these (source, stored output) pairs."""
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BEGINS, execution_count=1)])
    for source, text in cells:
        output = nbformat.v4.new_output("stream", name="stdout", text=text)
        page.cells.append(nbformat.v4.new_code_cell(source, outputs=[output], execution_count=2))
    path = folder / "page.ipynb"
    nbformat.write(page, path)
    return path


def run(colab, path, route=uploaded, *more):
    """The cell of that route; this Python sees the real library and transformer-lens, so the wheel is always installed."""
    here, ours, places = colab
    source, beside = route(here, ours, *more)
    always = source.replace('importlib.util.find_spec("circuitkit") is None', "True")
    assert always != source
    return run_notebook(path, always, *places, beside)


def test_a_notebook_runs_as_on_colab_from_the_uploaded_wheel_without_a_network(colab, tmp_path):
    told = "colab_check: the network is cut"
    listed = "['circuitkit_book-9.9-py3-none-any.whl']\n"
    cells = ("import os\nprint(os.listdir())", listed), (NETWORK, f"<urlopen error {told}>\n")
    faults, said, _ = run(colab, written(tmp_path, *cells))
    assert faults == []
    assert said.endswith("circuitkit-book 9.9 | ready\n")


def test_or_from_the_release_at_the_home_of_the_book(colab, tmp_path):
    cell = ("import os\nprint(os.listdir())", "[]\n")
    faults, said, _ = run(colab, written(tmp_path, cell), released, tmp_path)
    assert faults == []
    assert said.endswith("circuitkit-book 9.9 | ready\n")


def test_another_output_is_a_fault(colab, tmp_path):
    (fault,), _, _ = run(colab, written(tmp_path, ("print(6 * 7)", "41\n")))
    assert fault == "code cell 2 prints something else: stored 'stdout: 41', fresh 'stdout: 42'"


def test_a_wheel_that_is_not_the_sealed_one_is_a_fault(colab, tmp_path):
    here, ours, places = colab
    faults, _, _ = run((here._replace(seal="0" * 64), ours, places), written(tmp_path))
    assert "The book's library is not installed, for one of three likely reasons" in faults[0]


def test_a_slow_setup_cell_is_a_fault(colab, tmp_path, monkeypatch):
    monkeypatch.setattr(colab_check, "SETUP_SECONDS", 0.01)
    (fault,), _, _ = run(colab, written(tmp_path))
    assert "of processor time, more than 0.01" in fault


def test_pictures_are_left_out_and_texts_are_not():
    def cell(text, picture):
        data = {"text/plain": text, "image/png": picture}
        return nbformat.v4.new_code_cell(
            outputs=[nbformat.v4.new_output("display_data", data=data)]
        )

    assert printed(cell("a", "x")) == printed(cell("a", "y"))
    assert printed(cell("a", "x")) != printed(cell("b", "x"))
    assert difference(["a\nb"], ["a\nc"]) == "stored 'b', fresh 'c'"
