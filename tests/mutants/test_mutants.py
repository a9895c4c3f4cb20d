"""The lists of mutants fit the code, and the runner tells a killed mutant from a survivor and from a misfit."""

from pathlib import Path

import pytest

from tools.check import mutants

LISTS = sorted(Path(__file__).parent.glob("*.toml"))
LIST = """
tests = ["tests/figures/test_style.py"]
chapter = "all"
[[mutant]]
name = "{name}"
file = "src/circuitkit/figures/_style.py"
old = '''{old}'''
new = '''{new}'''
"""


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_entry_fits_the_code(path):
    found = mutants.read(path)
    assert mutants.misfits(found) == []
    assert len({mutant.name for mutant in found}) == len(found)
    assert all((mutants.ROOT / test.split("::")[0]).exists() for mutant in found for test in mutant.tests)


def test_killed_survived_and_unchanged_tree(tmp_path, capsys):
    target = mutants.ROOT / "src/circuitkit/figures/_style.py"
    before = target.read_bytes()
    (tmp_path / "a.toml").write_text(LIST.format(name="fatal", old='"vmin": -largest', new='"vmin": 0.0'))
    (tmp_path / "b.toml").write_text(
        LIST.format(name="harmless", old='"lines.linewidth": 2', new='"lines.linewidth": 3')
    )
    assert mutants.main(["--lists", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "a: 1/1\nb: 0/1\n  survived: b: harmless" in printed
    assert "killed 1/2" in printed
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("no such text", "x", "found 0 times"),
        ("largest", "x", "found"),
        ('"vmin": -largest', '"vmin": -largest', "changes nothing"),
    ],
)
def test_an_entry_that_does_not_fit_stops_the_run(tmp_path, capsys, old, new, why):
    (tmp_path / "a.toml").write_text(LIST.format(name="misfit", old=old, new=new))
    assert mutants.main(["--lists", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "no longer fit the code" in printed
    assert why in printed


def test_an_equivalent_mutant_needs_its_reason(capsys):
    survivor = mutants.Mutant("p", "n", "f", "a", "b", ("t",))
    assert mutants.report([survivor], [False], 1.0) == 1
    excused = mutants.Mutant("p", "n", "f", "a", "b", ("t",), equivalent="the branch is for speed only")
    assert mutants.report([survivor] * 19 + [excused], [True] * 19 + [False], 1.0) == 0
    printed = capsys.readouterr().out
    assert "the branch is for speed only" in printed
    assert printed.endswith("killed 19/20 = 95.0% in 1 s; at least 95% are required\n")


def test_too_many_survivors_fail_whatever_their_reasons():
    excused = mutants.Mutant("p", "n", "f", "a", "b", ("t",), equivalent="the branch is for speed only")
    assert mutants.report([excused] * 20, [True] * 18 + [False] * 2, 1.0) == 1
