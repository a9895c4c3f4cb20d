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
where = "{where}"
old = '''{old}'''
new = '''{new}'''
"""


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_entry_fits_the_code(path):
    found = mutants.read(path)
    assert mutants.misfits(found) == []
    assert len({mutant.name for mutant in found}) == len(found)
    for file, _, name in {test.partition("::") for mutant in found for test in mutant.tests}:
        place = (
            mutants.ROOT / file
        )  # a test under another name would stop the whole run before its first fault
        assert place.exists(), file
        assert not name or f"def {name.partition('[')[0]}(" in place.read_text("utf-8"), (
            file,
            name,
        )


def test_killed_survived_and_unchanged_tree(tmp_path, capsys):
    target = mutants.ROOT / "src/circuitkit/figures/_picture.py"
    before = target.read_bytes()
    for place, name, new in (
        ("a", "harmless", '"vmin": 0-largest'),
        ("b", "fatal", '"vmin": 1-largest'),
    ):  # of one length
        entry = LIST.format(name=name, where="signed", old='"vmin": -largest', new=new)
        (tmp_path / f"{place}.toml").write_text(entry)
    assert mutants.main(["--lists", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "a: 0/1\nb: 1/1\n  survived: a: harmless" in printed
    assert "killed 1/2" in printed
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    ("where", "old", "new", "why"),
    [
        ("signed", "no such text", "x", "found 0 times"),
        ("signed", "largest", "x", "found 5 times"),
        ("signed", '"vmin": -largest', '"vmin": -largest', "changes nothing"),
        ("singed", '"vmin": -largest', '"vmin": 0.0', "nothing is called so"),
        (
            "unsigned",
            '"vmin": -largest',
            '"vmin": 0.0',
            "found 0 times",
        ),  # it stands in another function of the file
    ],
)
def test_an_entry_that_does_not_fit_stops_the_run(tmp_path, capsys, where, old, new, why):
    (tmp_path / "a.toml").write_text(LIST.format(name="misfit", where=where, old=old, new=new))
    assert mutants.main(["--lists", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "no longer fit the code" in printed
    assert why in printed


LIBRARY = """
import functools

LIMITS = {"most": 3}

class Head:
    rank = 4

    @functools.cached_property
    def width(self):
        return self.rank - 1

if LIMITS:
    def doubled(x):
        return x * 2
else:
    def doubled(x):
        return x + x
"""


@pytest.mark.parametrize(
    ("where", "old"),
    [
        ("LIMITS", "3"),
        ("Head", "rank = 4"),
        ("Head.rank", "4"),
        ("Head.width", "cached_property"),
        ("Head.width", "- 1"),
        ("doubled", "x * 2"),
        ("doubled", "x + x"),
        ("table.toml", "a = 1"),
    ],
)
def test_a_fault_follows_its_definition_to_another_file(tmp_path, where, old):
    """Two trees with the same definitions in other files, among others of the same name, get the same fault."""
    mutant = mutants.Mutant("p", "n", where, old, "FAULT", ("t",))
    for number, path in enumerate(("src/one/_a.py", "src/two/parts/_b.py")):
        tree = tmp_path / str(number)
        (tree / path).parent.mkdir(parents=True)
        (tree / path).write_text(LIBRARY)
        (tree / "src/table.toml").write_text("a = 1\n")
        (tree / "src/_c.py").write_text(
            "def doubled(x):\n    return 2 * x\n\ndef other():\n    return 4 - 1, LIMITS[3]\n"
        )
        assert mutants.misfits([mutant], tree) == []
        changed, text = mutants.faulty(mutant, tree)
        source = (tree / changed).read_text()
        assert changed == Path("src/table.toml" if where == "table.toml" else path)
        assert text == source.replace(old, "FAULT")


def test_the_same_text_in_two_definitions_of_one_name_is_a_misfit(tmp_path):
    (tmp_path / "src").mkdir()
    for name in "ab":
        (tmp_path / f"src/{name}.py").write_text("def check(x):\n    return x > 0\n")
    [told] = mutants.misfits(
        [mutants.Mutant("p", "n", "check", "x > 0", "x < 0", ("t",))], tmp_path
    )
    assert "check: found 2 times" in told


def test_an_equivalent_mutant_needs_its_reason(capsys):
    survivor = mutants.Mutant("p", "n", "f", "a", "b", ("t",))
    assert mutants.report([survivor], [False], 1.0) == 1
    excused = mutants.Mutant(
        "p", "n", "f", "a", "b", ("t",), equivalent="the branch is for speed only"
    )
    assert mutants.report([survivor] * 19 + [excused], [True] * 19 + [False], 1.0) == 0
    printed = capsys.readouterr().out
    assert "the branch is for speed only" in printed
    assert printed.endswith("killed 19/20 = 95.0% in 1 s; at least 95% are required\n")


def test_too_many_survivors_fail_whatever_their_reasons():
    excused = mutants.Mutant(
        "p", "n", "f", "a", "b", ("t",), equivalent="the branch is for speed only"
    )
    assert mutants.report([excused] * 20, [True] * 18 + [False] * 2, 1.0) == 1
