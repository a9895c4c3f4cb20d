"""The page "How the house is built": its picture and lists are drawn from the code, and its walk runs."""

import doctest
import re

from tools.publish import house


def test_the_page_is_what_the_tool_writes():
    text = house.PAGE.read_text("utf-8")
    assert text == house.filled(text), "python -m tools house"


def test_every_room_is_drawn_and_told():
    there = {path.parent.name for path in house.PACKAGE.glob("*/__init__.py")}
    assert there == {*house.ROOMS}
    for room in there:
        assert f">{room.strip('_')}</text>" in house.picture()
        assert f"**{room.strip('_')}**" in house.rooms()


def test_every_room_says_what_lives_there_and_what_may_be_touched():
    for room in house.ROOMS:
        said = house.says(house.PACKAGE / room / "__init__.py")
        assert len(re.findall(r"[.)](?: |$)", said)) >= 3, said
        assert "may" in said, said


def test_all_arcs_lead_down():
    pairs = [pair for pair in house.imports() if {*pair} <= {*house.ROOMS}]
    assert len(pairs) > 8
    assert [pair for pair in pairs if house.ROOMS.index(pair[0]) > house.ROOMS.index(pair[1])] == []


def test_a_new_import_changes_the_picture(monkeypatch):
    before, imports = house.picture(), house.imports()
    assert ("conversion", "residual") not in imports
    monkeypatch.setattr(house, "imports", lambda: imports | {("conversion", "residual"): 1})
    assert house.picture() != before


def test_the_walk_runs():
    blocks = re.findall(r"```python\n(.*?)```", house.PAGE.read_text("utf-8"), re.S)
    walk = doctest.DocTestParser().get_doctest("\n\n".join(blocks), {}, "house.md", None, 0)
    assert len(walk.examples) >= 12
    failed = doctest.DocTestRunner().run(walk)
    assert failed.failed == 0
