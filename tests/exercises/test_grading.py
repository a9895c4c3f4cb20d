"""The answers of a class are collected: right ones, named mistakes, and files that do what they should not."""

import csv
import inspect
from pathlib import Path

import nbformat
import pytest
import torch

import circuitkit as ck
from circuitkit_book.__main__ import main
from circuitkit_book.exercises import catalogue
from circuitkit_book.exercises.checking import judge
from circuitkit_book.exercises.exercise import Exercise
from circuitkit_book.grading import Limits, class_page, grade, open_mystery, write_mysteries
from circuitkit_book.grading.grader import Row
from circuitkit_book.grading.mystery_files import judge_mystery, mystery_of, require_same_secret
from circuitkit_book.grading.submissions import functions, submissions

SLOW = ("average_out", "patch", "where_they_part", "without_source")
BY_NAME = {exercise.name: exercise for exercise in catalogue()}
ENDLESS = "import time\nwhile True:\n    time.sleep(0.1)\n"
GREEDY = "import time\nkept = b'x' * 1_500_000_000\ntime.sleep(60)\n"
TALKATIVE = "for i in range(50_000):\n    print('a line that is printed', i)\n"
HOSTILE = {
    "endless": (ENDLESS, "did not end within"),
    "greedy": (GREEDY, "MB of memory"),
    "talkative": (TALKATIVE, "print more than 1 MB"),
    "outside": ("open({outside!r}, 'w').write('x')\n", "writes outside its own folder"),
    "remover": ("import os\nos.remove({victim!r})\n", "writes outside its own folder"),
    "leaver": ("import os\nos._exit(0)\n", "ended by itself (code 0)"),
    "starter": ("import subprocess\nsubprocess.run(['true'])\n", "starts or stops another program"),
    "caller": ("import socket\nsocket.create_connection(('127.0.0.1', 9))\n", "uses the network"),
    "broken": ("def f(:\n", "SyntaxError"),
    "missing": ("import no_such_package\n", "no_such_package"),
}


def file_with(answers: dict[str, str]) -> str:
    """The reader's file with the code of some answers."""
    parts = [f"\n# --- {BY_NAME[name].number} {name}\n{code}\n" for name, code in answers.items()]
    return "# My functions that the checks of the book accepted.\n" + "".join(parts)


def import_of(exercise: Exercise, function) -> str:
    """Code that defines an answer which is one of the exercise's own functions."""
    module = inspect.getmodule(function).__name__
    return f"from {module} import {function.__name__} as {exercise.name}"


def hand_in(folder: Path, student: str, text: str) -> None:
    (folder / student).mkdir(parents=True)
    (folder / student / "my_circuitkit.py").write_text(text, "utf-8")


def rows_by_name(rows: list[Row], student: str) -> dict[str, Row]:
    return {row.name: row for row in rows if row.student == student}


@pytest.fixture(scope="module")
def class_of_students(tmp_path_factory) -> tuple[list[Row], Path, Path]:
    """The rows of a small class, a file that nobody may change, and a file that nobody may make."""
    folder = tmp_path_factory.mktemp("class")
    victim, outside = folder / ".victim", folder / ".outside"
    victim.write_text("as it was", "utf-8")
    score, composition = BY_NAME["copying_score"], BY_NAME["k_composition"]
    ada = {
        "copying_score": import_of(score, score.solution),
        "k_composition": import_of(composition, composition.mistakes[0]),
        "read_part": ENDLESS,
        "value_mover": "def value_mover(source, target):\n    raise NotImplementedError",
        "norm_gain": "def norm_gain(d_model):\n    open('note.txt', 'w').write('mine')\n    raise SystemExit",
    }
    hand_in(folder, "Ada", file_with(ada))
    for student, (code, _) in HOSTILE.items():
        hand_in(folder, student, code.format(victim=str(victim), outside=str(outside)))
    limits = Limits(seconds=8, megabytes=1500)
    return list(grade(folder, seed=7, limits=limits, jobs=2)), victim, outside


def test_every_student_gets_a_row_for_every_exercise(class_of_students):
    rows, *_ = class_of_students
    assert len(rows) == (1 + len(HOSTILE)) * len(catalogue())
    assert {row.memory for row in rows} == {"limited"}
    assert {row.seed for row in rows} == {7}


def test_each_exercise_is_judged_although_another_one_never_ends(class_of_students):
    ada = rows_by_name(class_of_students[0], "Ada")
    assert ada["copying_score"].accepted
    assert ada["k_composition"].outcome == "not accepted"
    assert ada["k_composition"].mistake == BY_NAME["k_composition"].mistakes[0].__name__
    assert ada["read_part"].outcome == "stopped"
    assert ada["value_mover"].outcome == "no answer"
    assert ada["norm_gain"].outcome == "not accepted"
    assert ada["norm_gain"].note.startswith("SystemExit")
    assert ada["patch"].outcome == "no answer"


@pytest.mark.parametrize("student", HOSTILE)
def test_hostile_file_costs_its_student_a_clear_row(class_of_students, student):
    rows, victim, outside = class_of_students
    of_student = rows_by_name(rows, student)
    assert not any(row.accepted for row in of_student.values())
    assert HOSTILE[student][1] in " ".join(row.note for row in of_student.values())
    assert victim.read_text("utf-8") == "as it was"
    assert not outside.exists()


def test_class_page_counts_and_names_nobody(class_of_students):
    rows, *_ = class_of_students
    page = class_page(rows, book="https://book.example")
    assert BY_NAME["k_composition"].mistakes[0].__name__ in page
    assert "https://book.example/book/2-qk-and-ov/" in page
    assert "Ada" not in page
    assert "Ada" in class_page(rows, names=True)


@pytest.mark.parametrize("exercise", catalogue(), ids=lambda exercise: exercise.name)
def test_solution_is_accepted_on_fresh_cases(exercise):
    if exercise.name in SLOW:
        pytest.skip("the weekly test has it")
    assert judge(exercise, exercise.solution, seed=11)


@pytest.mark.parametrize("name", ["logit_in_parts", "copying_score", "cut_wire"])
def test_answer_that_repeats_what_the_notebook_expects_fails_on_fresh_cases(name):
    exercise = BY_NAME[name]

    def repeating():
        results = [exercise.solution(*exercise.given(case)) for case in exercise.all_cases()]
        return lambda *inputs: results.pop(0) if results else torch.zeros(())

    assert judge(exercise, repeating())
    assert not judge(exercise, repeating(), seed=11)


def test_rows_say_that_memory_is_not_limited_where_it_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("circuitkit_book.grading.grader.psutil", None)
    hand_in(tmp_path, "Ada", "")
    rows = list(grade(tmp_path, seed=7, jobs=1, chapters=[2, 2]))
    assert {row.memory for row in rows} == {"not limited"}
    assert [row.name for row in rows] == [exercise.name for exercise in catalogue(2)]
    assert "psutil is missing" in class_page(rows)


@pytest.mark.weekly
@pytest.mark.parametrize("exercise", catalogue(), ids=lambda exercise: exercise.name)
@pytest.mark.parametrize("seed", [1, 123_456, 720_076_637, 2**31 - 1])
def test_every_known_mistake_is_named_alike_on_fresh_cases(exercise, seed):
    assert judge(exercise, exercise.solution, seed)
    for mistake in exercise.mistakes:
        in_notebook, collected = judge(exercise, mistake), judge(exercise, mistake, seed)
        assert (in_notebook.passed, in_notebook.mistake) == (collected.passed, collected.mistake)


def test_notebook_gives_its_functions_and_not_what_its_checks_return(tmp_path):
    cells = [
        "%matplotlib inline\nimport torch\nhalf = 0.5",
        "def read_part(x, W):\n    return helper(x) * half",
        "def helper(x):\n    return x + torch.ones(1)",
        "no_such_name + 1",
        "broken = no_such_name",
        "def broken(:",
        "read_part = exercises.check_read_part(read_part)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = tmp_path / "1.ipynb"
    nbformat.write(notebook, path)
    found = functions(path, ("read_part", "patch"))
    assert list(found) == ["read_part"]
    assert float(found["read_part"]()(torch.ones(1), None)) == 1.0


def test_folder_without_answers_and_doubled_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no answers"):
        submissions(tmp_path)
    with pytest.raises(ValueError, match="There is no folder"):
        submissions(tmp_path / "none")
    (tmp_path / "Ada.py").touch()
    (tmp_path / "Ada.ipynb").touch()
    with pytest.raises(ValueError, match="belong to the same student"):
        submissions(tmp_path)


def test_command_writes_a_table_that_no_spreadsheet_computes(tmp_path, capsys, monkeypatch):
    rows = [
        Row("=1+1", "2.4", "copying_score", "accepted", seed=3),
        Row("Emmy", "2.4", "copying_score", "not accepted", "summed", "-1 is wrong", seed=3),
    ]
    monkeypatch.setattr("circuitkit_book.grading.grade", lambda *args, **given: iter(rows))
    marks = tmp_path / "marks.csv"
    page = tmp_path / "class.html"
    assert main(["grade", str(tmp_path), "--csv", str(marks), "--page", str(page)]) == 0
    with marks.open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["student"] for row in read] == ["'=1+1", "Emmy"]
    assert read[1]["note"] == "'-1 is wrong"
    assert page.is_file()
    assert "marks.csv has 2 rows" in capsys.readouterr().out
    assert main(["grade", str(tmp_path), "--csv", str(tmp_path / "no" / "marks.csv")]) == 2
    assert "in a folder that exists" in capsys.readouterr().err


def test_mystery_is_the_students_own_and_only_its_wire_is_accepted(tmp_path):
    (folder,) = write_mysteries(["Ada Lovelace"], "a secret", tmp_path)
    model, tokens = open_mystery(folder / "mystery.safetensors")
    (answer,) = mystery_of("Ada Lovelace", "a secret").answers()
    (wire,) = answer
    expected = mystery_of("Ada Lovelace", "a secret").answer
    assert int(ck.run(model, tokens).logits[0, -1].argmax()) == expected
    assert int(ck.run(model, tokens, without=wire).logits[0, -1].argmax()) != expected
    assert wire not in (folder / "mystery.html").read_text("utf-8")
    assert judge_mystery("Ada Lovelace", "a secret", f" {wire}\n")[0] == "accepted"
    side = {"Q": "K", "K": "V", "V": "Q"}[wire[-1]]
    assert judge_mystery("Ada Lovelace", "a secret", wire[:-1] + side)[1] == "wrong_side"
    both = judge_mystery("Ada Lovelace", "a secret", f"{wire}, {wire[:-1] + side}")
    assert both[1] == "too_many_wires"
    assert judge_mystery("Ada Lovelace", "a secret", "L0H1")[1] == "no_wire"
    assert judge_mystery("Ada Lovelace", "a secret", "")[0] == "no answer"
    written = f"{wire[:4].lower()} -> {wire[6:]}"
    assert judge_mystery(" Ada Lovelace ", "a secret", written)[0] == "accepted"
    with pytest.raises(ValueError, match="made with another secret"):
        write_mysteries(["Ada Lovelace"], "another secret", tmp_path)
    assert open_mystery(folder / "mystery.safetensors")[1].equal(tokens)
    marks = ["grade", str(tmp_path), "--csv", str(tmp_path / "marks.csv")]
    assert main([*marks, "--secret", "a mistake", "--mysteries", str(tmp_path)]) == 2
    with pytest.raises(ValueError, match=r"has no secret\.key"):
        require_same_secret(folder, "a secret")


def test_names_are_alike_on_every_file_system_and_files_in_every_encoding(tmp_path):
    composed, decomposed = "Chlo\u00e9", "Chloe\u0301"
    (wire,) = next(iter(mystery_of(composed, "a secret").answers()))
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        folder = tmp_path / encoding / decomposed
        folder.mkdir(parents=True)
        (folder / "mystery.txt").write_text(wire, encoding)
        (one,) = submissions(tmp_path / encoding)
        assert judge_mystery(one.student, "a secret", one.mystery)[0] == "accepted"
        with pytest.raises(ValueError, match=r"handed in a mystery\.txt"):
            next(grade(tmp_path / encoding, seed=7))


def test_mysteries_refuse_bad_names_and_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        write_mysteries(["../Ada"], "a secret", tmp_path)
    with pytest.raises(ValueError, match="is given twice"):
        write_mysteries(["Ada", "Ada"], "a secret", tmp_path)
    with pytest.raises(ValueError, match="The secret is empty"):
        write_mysteries(["Ada"], "", tmp_path)
    (tmp_path / "mystery.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="is no mystery"):
        open_mystery(tmp_path / "mystery.safetensors")
