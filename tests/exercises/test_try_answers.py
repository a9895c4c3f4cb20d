"""The tool that shows a file of answers to the checks tells right from wrong, and named from pointed at."""

import dataclasses
import runpy
from pathlib import Path

from circuitkit.exercises import check_k_composition
from tools.check import try_answers

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = """
def k_composition__right(W_OV, W_QK):
    return (W_OV @ W_QK.T).norm() / (W_OV.norm() * W_QK.norm())

def k_composition__queries(W_OV, W_QK):
    return (W_OV @ W_QK).norm() / (W_OV.norm() * W_QK.norm())

def k_composition__negative(W_OV, W_QK):
    return -(W_OV @ W_QK.T).norm() / (W_OV.norm() * W_QK.norm())

def k_composition__crash(W_OV, W_QK):
    return W_OV[100]
"""


def test_each_kind_of_reply_is_counted(tmp_path, capsys):
    path = tmp_path / "answers.py"
    path.write_text(ANSWERS)
    assert try_answers.main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "queries: named: W_QK is not transposed" in printed
    assert "negative: pointed at: It is the expected result with the opposite sign" in printed
    assert "chapter 2: 3 refused, 2 named or pointed at" in printed
    assert "right accepted 1" in printed


def test_a_remark_that_fits_any_wrong_answer_points_at_nothing():
    told = dataclasses.replace(
        check_k_composition(lambda W_OV, W_QK: 0.5),
        diagnosis="",
        hint="It is right on 3 of 12 cases. What?",
    )
    assert try_answers.kind_of(told) == "numbers only"
    assert (
        try_answers.kind_of(
            dataclasses.replace(told, hint="It is the expected result with the opposite sign.")
        )
        == "pointed at"
    )


def test_a_right_answer_under_a_wrong_label_fails_the_run(tmp_path):
    path = tmp_path / "answers.py"
    path.write_text(ANSWERS.replace("__right", "__wrong"))
    assert try_answers.main([str(path), "--quiet"]) == 1


def test_an_unknown_exercise_is_told(tmp_path, capsys):
    path = tmp_path / "answers.py"
    path.write_text("def no_such__thing():\n    pass\n")
    assert try_answers.main([str(path)]) == 2
    assert "there is no check_no_such" in capsys.readouterr().err


def test_the_tables_of_the_trials_add_up():
    trials = runpy.run_path(str(ROOT / "book/_ext/circuitkit_book/trials.py"))
    made = trials["table"](
        "trial,chapter,named,pointed at\nfirst,1,3,4\nfirst,2,5,6\nsecond,1,1,0\n"
    )
    assert made.count("| chapter | named | pointed at |") == 2
    assert "| all | 8 | 10 |" in made
    assert "| all | 275 | 200 | 28 | 32 | 10 | 5 | 46 | 40 |" in trials["table"](
        trials["FILE"].read_text("utf-8")
    )


def test_the_instructors_read_the_same_tables():
    trials = runpy.run_path(str(ROOT / "book/_ext/circuitkit_book/trials.py"))
    assert trials["table"](trials["FILE"].read_text("utf-8")) in (
        ROOT / "exercises/instructors.md"
    ).read_text("utf-8")
