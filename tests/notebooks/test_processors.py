"""Outputs do not depend on the processor: a fragile notebook is caught, and those of the book agree on one more each commit."""

import platform
import subprocess
from contextlib import nullcontext

import nbformat
import pytest

from tools.notebooks import processors
from tools.notebooks.cold_runs import label
from tools.notebooks.execute import execute, notebooks

TODAY = processors.of_this_commit(processors.processors())
HEAD = "import torch\ntorch.set_num_threads(1)\nx = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))"
FRAGILE = {
    "too many digits": "print((x @ x).sum().item())",
    "a comparison at its edge": "print((x @ x).softmax(-1).sum(0).tolist() <= {edge})",
    "rounding as a result": "print(f'{float((x.exp().log() - x).abs().max()):.1e}')",
    "an assert without a margin": "assert (x @ x).sum().item() == {sum!r}",
    "chaos": "y = x[0, 0].double().abs() / 9\nfor _ in range(200):\n    y = (4 * y * (1 - y)).exp().log()\nprint(f'{float(y):.3f}')",
}
ROBUST = "print(f'{float((x @ x).sum()):.3g}')\nassert (x.exp().log() - x).abs().max() < 1e-5"


@pytest.fixture(scope="module")
def server():
    with processors.start(processors.Processor("this one")) as server:
        yield server


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A notebook with fragile cells between robust ones, executed here."""
    import torch

    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    values = {"sum": (x @ x).sum().item(), "edge": (x @ x).softmax(-1).sum(0).tolist()}
    cells = [HEAD, ROBUST]
    for source in FRAGILE.values():
        cells += [
            source.replace("{sum!r}", repr(values["sum"])).replace("{edge}", repr(values["edge"])),
            ROBUST,
        ]
    path = tmp_path_factory.mktemp("planted") / "page.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path
    )
    path.write_text(execute(path))
    return path


def differing(found: list[str]) -> set[int]:
    return {int(line.split(":")[0].removeprefix("cell ")) for line in found}


def test_there_are_seven_and_each_has_its_name():
    made = processors.processors()
    assert len({processor.name for processor in made}) == 7
    assert sum("seed" in processor.name for processor in made) == 3
    assert [
        p.arguments["seed"] for p in processors.processors([7, 8]) if p.arguments.get("seed")
    ] == [7, 8]


def test_nothing_differs_on_this_very_processor(server, planted):
    assert processors.run(server, processors.Processor("this one"), planted)[0] == []


def test_fragile_cells_are_caught_and_robust_ones_are_not(server, planted):
    """Each seed may miss one; three do not. The cells between them, which print few digits, stay."""
    found = [
        line
        for p in processors.processors()
        if "seed" in p.name
        for line in processors.run(server, p, planted)[0]
    ]
    assert differing(found) == {2 + 2 * place for place in range(len(FRAGILE))}
    assert any("AssertionError" in line for line in found)


def test_an_assert_that_never_runs_is_told(server, tmp_path):
    path = tmp_path / "page.ipynb"
    cells = ["for _ in ():\n    assert 1 < 2", "def f():\n    assert 2 < 3", "f()"]
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path
    )
    assert processors.run(server, processors.Processor("this one"), path)[0] == [
        "cell 0: assert: never ran: assert 1 < 2"
    ]


def test_a_run_that_dies_is_told(server, tmp_path):
    path = tmp_path / "page.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os\nos._exit(1)")]), path
    )
    (line,) = processors.run(server, processors.Processor("this one"), path)[0]
    assert "ended without an answer" in line


def test_a_run_that_is_cut_off_is_told_as_such_and_tried_again(server, planted, tmp_path, capsys):
    path, log = tmp_path / "page.ipynb", tmp_path / "log.jsonl"
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import time\ntime.sleep(60)")]),
        path,
    )
    short = processors.Processor("this one", {}, {"seconds": 2})
    start = lambda _: nullcontext(server)  # noqa: E731
    assert processors.matrix([short], [path], processors.Log(log), 1, start) == 1
    told = capsys.readouterr().out
    assert "this one, page.ipynb: DID NOT END" in told
    assert "After 2 seconds a run is cut off." in told
    assert "DIFFERS" not in told
    assert not log.exists()


def test_two_threads_are_two(server, planted, tmp_path):
    threads = next(p for p in processors.processors() if p.name == "two threads")
    path = tmp_path / "page.ipynb"
    cells = [
        nbformat.v4.new_code_cell(HEAD),
        nbformat.v4.new_code_cell("assert torch.get_num_threads() == 2"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert processors.run(server, threads, path)[0] == []


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="vector code of Intel's processors"
)
def test_torch_has_the_vector_code_that_was_asked_for():
    for processor in processors.processors():
        if asked := processor.environment.get("ATEN_CPU_CAPABILITY"):
            with processors.start(processor, "numpy", "torch") as server:
                assert server.call("torch.backends.cpu:get_cpu_capability").lower() == asked


def test_the_processor_changes_with_the_commit_or_else_with_the_day(monkeypatch):
    made, turns = processors.processors(), iter(range(100))
    monkeypatch.setattr(
        processors.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 0, stdout=f"{next(turns)}\n"),
    )
    assert sorted(processors.of_this_commit(made).name for _ in made) == sorted(
        one.name for one in made
    )

    def no_history(command, **_):
        raise subprocess.CalledProcessError(128, command)

    monkeypatch.setattr(processors.subprocess, "run", no_history)
    monkeypatch.setattr(processors.time, "time", lambda: 86400.0 * next(turns))
    assert sorted(processors.of_this_commit(made).name for _ in made) == sorted(
        one.name for one in made
    )


def test_a_clone_without_history_takes_the_processor_of_its_commit(tmp_path, monkeypatch):
    """As the workflows check out: one commit, whose number is always the same."""
    git = lambda *words: subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words],
        check=True,
        capture_output=True,
    )
    full, found = tmp_path / "full", set()
    git("init", "-q", str(full))
    for i in range(12):
        git("-C", str(full), "commit", "-q", "--allow-empty", "-m", str(i))
        git("clone", "-q", "--depth", "1", full.as_uri(), str(tmp_path / f"shallow{i}"))
        monkeypatch.setattr(processors, "ROOT", tmp_path / f"shallow{i}")
        one = processors.of_this_commit(processors.processors()).name
        monkeypatch.setattr(processors, "ROOT", full)
        assert processors.of_this_commit(processors.processors()).name == one
        found.add(one)
    assert (
        len(found) > 2
    )  # of seven; that twelve hashes give two at most has a chance below one in a hundred thousand


def test_the_command_names_notebook_processor_and_cell(server, planted, capsys):
    assert (
        processors.main(
            [str(planted), "--seeds", "1", "--only", "seed"], start=lambda _: nullcontext(server)
        )
        == 1
    )
    told = capsys.readouterr().out
    assert "last bit, seed 1, page.ipynb: DIFFERS" in told
    assert "  cell 2: output: stdout: " in told
    assert "1 notebooks x 1 processors: 1 of 1 runs differ or did not end" in told


def test_a_stopped_matrix_goes_on_where_it_was(server, planted, tmp_path, monkeypatch):
    one, log = processors.Processor("this one"), tmp_path / "made" / "log.jsonl"
    first = processors.Log(log).run(server, one, planted)
    assert first["found"] == []
    assert first["notebook"] == "page.ipynb"
    assert first["commit"]
    log.write_text(log.read_text() + '{"processor": "this one", "noteb')  # killed while it wrote
    ran = []
    monkeypatch.setattr(
        processors, "run", lambda *which: ran.append(which) or (["cell 1: differs"], 2.0)
    )
    again = processors.Log(log)
    assert again.run(server, one, planted) == first
    assert not ran
    other = tmp_path / "page.ipynb"
    other.write_text(planted.read_text().replace("torch.randn", "a5" * 32))
    sealed = again.run(server, one, other)
    other.write_text(planted.read_text().replace("torch.randn", "b6" * 32))
    assert again.run(server, one, other) == sealed  # another seal is the same text
    assert len(ran) == 1
    other.write_text(planted.read_text() + "\n")
    assert again.run(server, one, other)["found"] == ["cell 1: differs"]  # another text runs again
    assert again.run(server, processors.Processor("other"), planted)["seconds"] == 2
    assert len(ran) == 3


@pytest.fixture(scope="module")
def todays(server):
    """The warm process above, unless this processor wants other variables when torch is loaded."""
    with processors.start(TODAY) if TODAY.environment else nullcontext(server) as server:
        yield server


@pytest.mark.parametrize("path", notebooks(), ids=label)
def test_the_book_agrees_on_the_processor_of_this_commit(todays, path):
    found, _ = processors.run(todays, TODAY, path)
    assert not found, f"on a processor with {TODAY.name}: " + "; ".join(found)
