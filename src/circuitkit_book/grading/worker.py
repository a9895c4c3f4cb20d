"""The process that runs the answers of one student. It gets names and numbers, and sends lines of JSON."""

import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from circuitkit_book.exercises.checking import judge
from circuitkit_book.exercises.contents import catalogue
from circuitkit_book.grading.guard import Guard
from circuitkit_book.grading.submissions import functions

NOTE = 300
"""The most letters that a note has."""


def work(
    messages: Connection,
    output: Connection,
    files: list[str],
    names: list[str],
    seed: int,
    folder: str,
) -> None:
    """Run the answers to some exercises, and send what becomes of each.

    Parameters
    ----------
    messages : gets a line before and after every exercise
    output : gets everything that is printed
    files : the files of the student
    names : the exercises, in order
    seed : the seed of the fresh cases
    folder : an empty folder, in which the answers may write
    """
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.chdir(folder)
    torch.set_num_threads(1)
    guard = Guard(Path(folder))

    def send(**values: Any) -> None:
        messages.send_bytes(json.dumps(values).encode())

    send(begins="")
    answers: dict[str, Any] = {}
    problems = []
    for path in map(Path, files):
        try:
            found = functions(path, tuple(names))
        except (Exception, SystemExit) as error:  # whatever a student's file raises
            problems.append(guard.refused or f"{path.name} does not run: {in_words(error)}")
            continue
        answers = found | answers  # the first file counts
    nothing = {"outcome": "no answer", "mistake": "", "note": ""}
    if problems:
        nothing = {"outcome": "not read", "mistake": "", "note": " ".join(problems)}
    by_name = {exercise.name: exercise for exercise in catalogue()}
    for name in names:
        guard.refused = ""
        send(begins=name)
        began = time.perf_counter()
        values = outcome(by_name[name], answers[name], seed) if name in answers else nothing
        if guard.refused:
            values = {"outcome": "not accepted", "mistake": "", "note": guard.refused}
        send(row=name, seconds=round(time.perf_counter() - began, 2), **values)


def outcome(exercise: Any, get_answer: Any, seed: int) -> dict[str, str]:
    """Return what becomes of one answer."""
    try:
        answer = get_answer()
    except (Exception, SystemExit) as error:  # whatever a student's code raises
        note = f"It does not run: {in_words(error)}"
        return {"outcome": "not accepted", "mistake": "", "note": note}
    try:
        result = judge(exercise, answer, seed)
    except SystemExit as error:
        return {"outcome": "not accepted", "mistake": "", "note": in_words(error)}
    if not result.done:
        return {"outcome": "no answer", "mistake": "", "note": ""}
    if result:
        return {"outcome": "accepted", "mistake": "", "note": ""}
    _, _, reason = result.message.partition("\n")
    reason = reason.partition("\nRead again:")[0]
    return {"outcome": "not accepted", "mistake": result.mistake, "note": short(reason)}


def in_words(error: BaseException) -> str:
    """Return the kind and the text of an error in one line."""
    return short(f"{type(error).__name__}: {error}")


def short(text: str) -> str:
    """Return a text in one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= NOTE else line[: NOTE - 3] + "..."
