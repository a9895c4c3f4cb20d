"""The stored list of asserts notices whatever takes one away, weakens it, or stops it from running or from failing."""

import textwrap

import nbformat
import pytest

from tools.notebooks import asserts
from tools.notebooks.execute import notebooks

SOUND = """
def below(x, power):
    assert x < 10**power
    return f"< 1e{power}"

values = [0.1, 0.2]
for value in values:
    assert 0 < value < 0.5
figures.show(fig, alt="It falls.")
print(below(0.02, -1))
assert max(values) == 0.2
"""
LAST = "assert max(values) == 0.2"


def notebook(folder, source, **metadata):
    path = folder / "page.ipynb"
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, metadata=metadata)]), path
    )
    return path


def indented(before: str, after: str = "") -> str:
    """The sound cell with its last line inside a statement."""
    return SOUND.replace(LAST, f"{before}\n{textwrap.indent(LAST, '    ')}{after}")


def test_the_stored_list_is_that_of_the_notebooks():
    found = asserts.differences(asserts.LIST.read_text("utf-8"), asserts.listed())
    assert not found, "\n".join(
        ["run `python -m tools asserts --write` and read its diff:", *found]
    )


def test_every_notebook_is_listed_and_every_chapter_asserts():
    table = asserts.listed()
    assert len(table) == len(notebooks())
    assert all(
        any("assert " in entry for entry in found)
        for name, found in table.items()
        if "/" not in name
    )


def test_entries_are_in_order_with_their_headers(tmp_path):
    assert asserts.entries(notebook(tmp_path, SOUND)) == [
        "def below(x, power) > assert x < 10 ** power",
        "for value in values > assert 0 < value < 0.5",
        "alt='It falls.'",
        "below(0.02, -1)",
        "assert max(values) == 0.2",
    ]


PLANTED = {
    "removed": SOUND.replace(LAST, ""),
    "commented out": SOUND.replace(LAST, "# " + LAST),
    "a bound weakened": SOUND.replace("< 0.5", "< 0.9"),
    "or True": SOUND.replace(LAST, LAST + " or True"),
    "a tuple, which is true": SOUND.replace(LAST, "assert (max(values) == 0.2, 'largest')"),
    "another comparison": SOUND.replace(LAST, LAST.replace("==", "<=")),
    "bound of a helper's call": SOUND.replace("below(0.02, -1)", "below(0.02, 0)"),
    "helper without its assert": SOUND.replace("    assert x < 10**power\n", ""),
    "alt text reversed": SOUND.replace("It falls.", "It rises."),
    "try": indented("try:", "\nexcept AssertionError:\n    pass"),
    "try, in the handler": indented("try:\n    pass\nexcept ValueError:"),
    "if False": indented("if False:"),
    "else": indented("if values:\n    pass\nelse:"),
    "suppress": indented("import contextlib\nwith contextlib.suppress(AssertionError):"),
    "in a function that nobody calls": indented("def check():"),
    "in a loop over nothing": indented("for _ in ():"),
    "in a while loop": indented("while False:"),
    "in a class": indented("class Check:"),
    "in a match": indented("match values:\n  case []:"),
    "behind a continue": SOUND.replace("    assert 0 <", "    continue\n    assert 0 <"),
    "behind exit": SOUND.replace(LAST, "exit()\n" + LAST),
    "behind a magic of the cell": "%%capture\n" + SOUND,
    "order exchanged": SOUND.replace(LAST, "").replace(
        "values = [0.1, 0.2]", f"values = [0.1, 0.2]\n{LAST}"
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_noticed(tmp_path, planted):
    stored = asserts.written({"page": asserts.entries(notebook(tmp_path, SOUND))})
    assert asserts.differences(stored, {"page": asserts.entries(notebook(tmp_path, SOUND))}) == []
    assert asserts.differences(
        stored, {"page": asserts.entries(notebook(tmp_path, PLANTED[planted]))}
    )


@pytest.mark.parametrize("tag", ["nbval-ignore-output", "nbval-skip", "raises-exception"])
def test_a_cell_that_becomes_excused_is_noticed(tmp_path, tag):
    plain = asserts.entries(notebook(tmp_path, SOUND))
    excused = asserts.entries(notebook(tmp_path, SOUND, tags=[tag]))
    assert [entry.removeprefix(f"excused ({tag}) > ") for entry in excused] == plain
    assert excused != plain


def test_writing_the_list_anew_shows_what_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(asserts, "LIST", tmp_path / "asserts.toml")
    pages = {"page": asserts.entries(notebook(tmp_path, SOUND))}
    monkeypatch.setattr(asserts, "listed", lambda: pages)
    assert asserts.main([]) == 1
    assert not asserts.LIST.exists()
    assert asserts.main(["--write"]) == 0
    assert asserts.main([]) == 0
    pages = {"page": asserts.entries(notebook(tmp_path, PLANTED["a bound weakened"]))}
    capsys.readouterr()
    assert asserts.main([]) == 1
    told = capsys.readouterr().out
    assert '-  "for value in values > assert 0 < value < 0.5",' in told
    assert '+  "for value in values > assert 0 < value < 0.9",' in told
