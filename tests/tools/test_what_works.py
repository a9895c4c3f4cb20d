"""The page "What works on what" is what the tool writes from the table that the tests check."""

from tools.publish import what_works


def test_the_page_is_what_the_tool_writes():
    assert what_works.PAGE.read_text("utf-8") == what_works.page(), "python -m tools what-works"


def test_a_cell_that_fails_and_one_without_meaning_have_no_tick():
    table = what_works.read()
    tool = {"name": "heads", "room": "heads", "says": "", "no": {"one_layer": ["toy"]}}
    table = {**table, "tool": [tool], "failing": {"heads": ["llama"]}}
    assert [what_works.cell(table, tool, kind) for kind in ("mlp", "toy", "llama")] == [
        "✓",
        "[a](#no-one-layer)",
        "[b](#no-not-yet)",
    ]


def test_every_letter_leads_to_a_sentence():
    text, table = what_works.page(), what_works.read()
    for reason, letter in what_works.letters(table).items():
        assert f"(no-{reason.replace('_', '-')})=\n**{letter}.** " in text
    assert text.count("✓") + text.count("](#no-") == len(table["tool"]) * len(table["kinds"])
