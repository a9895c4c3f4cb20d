"""A page in the folder of a chapter is in the table of contents and in the chapter's own table, in the same order."""

import re

import nbformat
import pytest

from tools.notebooks.execute import ROOT

CHAPTERS = sorted(path.parent for path in ROOT.glob("book/[1-9]-*/index.md"))
CARD = re.compile(
    r"^\| You will \| You need \| Time \|\n\|[-|]+\|\n\| (.+?) \| .+ \| (.+?) \|", re.M
)
ROW = re.compile(r"^\| \[.+?\]\(([\w-]+)\.ipynb\) \| .+ \| (.+?) \|$", re.M)


def faults(folder, contents: str) -> list[str]:
    """What to write where a page of a chapter is not listed, or is listed with another time."""
    lines = re.findall(rf"- file: book/{folder.name}/(\S+)", contents)
    rows = dict(ROW.findall(folder.joinpath("index.md").read_text("utf-8")))
    found = []
    for path in sorted(folder.glob("*.ipynb")):
        name, first = path.stem, nbformat.read(path, as_version=4).cells[0].source
        if name not in lines:
            line = f"          - file: book/{folder.name}/{name}"
            found.append(f"Write the line of {path.name} at its place in _toc.yml:\n{line}")
        if name.startswith("appendix") or name == "exercises":
            continue  # test_exercise_pages.py adds up the minutes of an exercise page
        title, (says, time) = re.match(r"# (.+)", first)[1], CARD.search(first).groups()
        if rows.get(name) != time:
            row = f"| [{title}]({path.name}) | {says} | {time} |"
            found.append(f"Write its row at its place in book/{folder.name}/index.md:\n{row}")
    if not found and (order := [name for name in lines if name in rows]) != list(rows):
        found.append(f"Write the rows of book/{folder.name}/index.md in the order {order}.")
    return found


@pytest.mark.parametrize("folder", CHAPTERS, ids=lambda folder: folder.name)
def test_the_pages_of_the_chapter_are_listed(folder):
    found = faults(folder, ROOT.joinpath("_toc.yml").read_text("utf-8"))
    assert not found, "\n".join(found)


def test_a_page_that_is_not_listed_is_found_with_the_lines_to_write(tmp_path):
    folder = tmp_path / "2-circuits"
    folder.mkdir()
    rows = "| Page | You learn to | Time |\n|---|---|---|\n"
    rows += "| [One](one.ipynb) | see | 5 minutes |\n| [Two](two.ipynb) | see | 5 minutes |\n"
    folder.joinpath("index.md").write_text(rows, "utf-8")
    contents = "".join(f"- file: book/2-circuits/{name}\n" for name in ("two", "one"))
    for name, time in (("one", 5), ("two", 6), ("three", 7)):
        card = f"# {name}\n\n| You will | You need | Time |\n|---|---|---|\n| see | x | {time} minutes |"
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(card)])
        nbformat.write(page, folder / f"{name}.ipynb")
    found = faults(folder, contents)
    assert [fault.split("\n")[1] for fault in found] == [
        "          - file: book/2-circuits/three",
        "| [three](three.ipynb) | see | 7 minutes |",
        "| [two](two.ipynb) | see | 6 minutes |",
    ]
    folder.joinpath("three.ipynb").unlink()
    right = rows.replace("(two.ipynb) | see | 5", "(two.ipynb) | see | 6")
    folder.joinpath("index.md").write_text(right, "utf-8")
    assert faults(folder, contents) == [
        "Write the rows of book/2-circuits/index.md in the order ['two', 'one']."
    ]
