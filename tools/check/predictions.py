r"""Predictions that a reader makes before she sees the answer: how a page states them, and whether what it says is true.

A prediction is a paragraph that begins with **Predict.**, a list of choices, and a comment, which no page shows:

    **Predict.** How likely is `or` without the wire?

    - about 0.7
    - about 0.3
    - below 0.01

    <!-- predict
    right: 3
    when: out(r"\n(0\.\d+)\n") < 0.01
    likely: 2
    why: one wire of 48 looks like a small part of the model
    -->

`when` is true of the stored outputs if the choice `right` is. `likely` is the wrong answer that we expect from a good student, and
`why` is her reason. A prediction of a number has no list. Instead of `right` and `when` it has `number`, an expression, and `likely`
is then a number:

    <!-- predict
    number: cell("P(or)", "no wire", 0)
    likely: 0.3
    why: one wire of 48 looks like a small part of the model
    -->

The expressions are those of `numbers_in_prose`. The output that answers has the tag `hide-output`: it is the first one so tagged
after the comment.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.check import numbers_in_prose as numbers

COMMENT = re.compile(r"<!-- predict\n(.*?)\n-->", re.S)
CHOICE = re.compile(r"^[-*] ", re.M)
KEYS = {"choice": {"right", "when", "likely", "why"}, "number": {"number", "likely", "why"}}


@dataclass(frozen=True)
class Prediction:
    """What a comment says, with its expressions computed."""

    choices: int
    right: int | None
    likely: str
    why: str
    number: float | None = None
    holds: bool = True


def fields(comment: str) -> dict[str, str]:
    """The lines of a comment by their keys."""
    lines = [line.partition(":") for line in comment.split("\n")]
    return {key.strip(): value.strip() for key, _, value in lines}


def read(comment: str, choices: int, names: numbers.Names) -> Prediction:
    """A prediction from the text between `<!-- predict` and `-->`; the error says what is wrong with it."""
    found = fields(comment)
    kind = "choice" if choices else "number"
    if found.keys() != KEYS[kind]:
        raise ValueError(
            f"a prediction of a {kind} has the lines {sorted(found)}; expected {sorted(KEYS[kind])}"
        )
    if kind == "number":
        value = float(numbers.value(found["number"], names))
        return Prediction(0, None, found["likely"], found["why"], number=value)
    right, likely = int(found["right"]), int(found["likely"])
    if not (1 <= right <= choices and 1 <= likely <= choices and right != likely):
        raise ValueError(
            f"`right: {right}` and `likely: {likely}` must be two different choices of the {choices}"
        )
    holds = bool(numbers.value(found["when"], names))
    return Prediction(choices, right, str(likely), found["why"], holds=holds)


def predictions(path: Path) -> list[tuple[int, Prediction]]:
    """The predictions of a page, each with the place of its cell."""
    names, found = numbers.Names(path), []
    for place, cell in enumerate(numbers.cells_of(path)):
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        for comment in COMMENT.finditer(text):
            block = text[: comment.start()].rstrip().split("\n\n")[-1]
            found.append((place, read(comment[1], len(CHOICE.findall(block)), names)))
    return found


def problems(path: Path) -> list[str]:
    """What is wrong with the predictions of a page, one line each."""
    cells = numbers.cells_of(path)
    try:
        made = predictions(path)
    except Exception as error:  # any mistake in a comment is the writer's to see
        return [f"{path.name}: {error}"]
    found = []
    ends = [place for place, _ in made[1:]] + [len(cells)]
    for (place, prediction), end in zip(made, ends, strict=False):
        if not prediction.holds:
            found.append(f"{path.name}, cell {place}: the stored outputs contradict `when`")
        hidden = [
            cell["metadata"]
            for cell in cells[place + 1 : end]
            if "hide-output" in cell["metadata"].get("tags", [])
        ]
        if not hidden:
            found.append(
                f"{path.name}, cell {place}: no cell after it has the tag hide-output, so the answer is visible"
            )
        elif not hidden[0].get("jupyter", {}).get("outputs_hidden"):
            found.append(
                f"{path.name}, cell {place}: set jupyter.outputs_hidden of the answer, so that Jupyter folds it, too"
            )
    return found
