r"""Predictions that a reader makes before she sees the answer: how a page states them, and whether what it says is true.

A prediction is a paragraph that begins with **Predict.**, a list of choices, and a comment, which no page shows, in this order and with
nothing between list and comment:

    **Predict.** How likely is `or` without the wire?

    - about 0.7
    - about 0.3
    - below 0.01

    <!-- predict
    value: out(r"\n(0\.\d+)\n")
    1: x > 0.6
    2: 0.2 < x < 0.4
    3: x < 0.01
    likely: 2
    why: one wire of 48 looks like a small part of the model
    -->

`value` is an expression of `numbers_in_prose`, and `x` stands for what it gives. Each choice has a condition, and exactly one of them
holds: that choice is right. `likely` is the wrong answer that we expect from a good student, and `why` is her reason. A prediction of
a number has no list and no conditions, and its `likely` is a number:

    <!-- predict
    value: cell("P(or)", "no wire", 0)
    likely: 0.3
    why: one wire of 48 looks like a small part of the model
    -->

A prediction of several numbers has a table for its value, the columns of which are found as by `cell`, and its `likely` is a list:

    <!-- predict
    value: column("measured", "measured")
    likely: 0, 0, 0.5, 0.3
    why: a head that looks only at the first token seems to do nothing
    -->

The output that answers has the tag `hide-output`: it is the first one so tagged after the comment.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tools.check import numbers_in_prose as numbers

COMMENT = re.compile(r"<!-- predict\n(.*?)\n-->", re.S)
CHOICE = re.compile(r"^[-*] ", re.M)


@dataclass(frozen=True)
class Prediction:
    """What a comment says, with its expressions computed."""

    choices: int
    right: int | None
    """The choice whose condition holds, counted from 1; None for a number."""
    number: float | None
    """What is right if there are no choices."""
    numbers: dict[str, float] | None
    """What is right if several numbers are asked for, each by its name."""
    likely: str
    why: str


def fields(comment: str) -> dict[str, str]:
    """The lines of a comment by their keys."""
    lines = [line.partition(":") for line in comment.split("\n")]
    return {key.strip(): value.strip() for key, _, value in lines}


def read(comment: str, choices: int, names: numbers.Names) -> Prediction:
    """A prediction from the text between `<!-- predict` and `-->`; the error says what is wrong with it."""
    found = fields(comment)
    places = [str(place) for place in range(1, choices + 1)]
    expected = ["value", *places, "likely", "why"]
    if list(found) != expected:
        raise ValueError(
            f"a prediction with {choices} choices has the lines {list(found)}; expected {expected}. "
            "Nothing may lie between the list and the comment."
        )
    x = numbers.value(found["value"], names)
    if isinstance(x, dict):
        expected = [round(float(word), 9) for word in found["likely"].split(",")]
        if choices or len(expected) != len(x) or expected == list(x.values()):
            raise ValueError(
                f"`likely: {found['likely']}` must be {len(x)} numbers that are not all right; {x} is right"
            )
        return Prediction(0, None, None, x, found["likely"], found["why"])
    if not choices:
        return Prediction(0, None, float(x), None, found["likely"], found["why"])
    holds = [place for place in places if numbers.value(found[place], names, x=x)]
    if len(holds) != 1:
        raise ValueError(f"x is {x}, and the conditions of the choices {holds} hold; expected one")
    if found["likely"] not in places or found["likely"] == holds[0]:
        raise ValueError(f"`likely: {found['likely']}` must be a wrong choice; {holds[0]} is right")
    return Prediction(choices, int(holds[0]), None, None, found["likely"], found["why"])


def predictions(path: Path) -> list[tuple[int, Prediction]]:
    """The predictions of a page, each with the place of its cell."""
    names, found = numbers.Names(path), []
    for place, cell in enumerate(numbers.cells_of(path)):
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        for comment in COMMENT.finditer(text):
            block = text[: comment.start()].rstrip().split("\n\n")[-1]
            try:
                found.append((place, read(comment[1], len(CHOICE.findall(block)), names)))
            except Exception as error:
                raise ValueError(f"cell {place}: {error}") from error
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
    for (place, _), end in zip(made, ends, strict=False):
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
