"""Predictions that a reader writes down before a measurement, and pictures of what was measured."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from circuitkit_book.exercises.checking import Result


def is_number(value: Any) -> bool:
    """Return whether a value is a number, and not NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


def predict(guess: Any, words: Sequence[str]) -> Result:
    """Note a prediction: a number for each word.

    Parameters
    ----------
    guess : numbers by word; `None` stands for a number that is missing
    words : the words that are asked for

    Returns
    -------
    A result that passed if every word has a number. Its `answer` holds the numbers.

    Examples
    --------
    >>> predict({"with": 1, "without": 0}, ["with", "without"]).passed
    True

    Source: this book.
    """
    given = guess if isinstance(guess, Mapping) else {}
    missing = [word for word in words if not is_number(given.get(word))]
    if missing:
        form = ", ".join(f'"{word}": ...' for word in words)
        text = f"No answer yet. Write a number for each word: {{{form}}}.{remarks(given, words)}"
        done = len(missing) < len(words)
        return Result("Prediction", False, text, done=done, answer=guess)
    numbers = {word: float(given[word]) for word in words}
    listed = ", ".join(f"{word} {number:g}" for word, number in numbers.items())
    text = f"Your prediction is {listed}."
    if any(not 0 <= number <= 1 for number in numbers.values()):
        text += " Write a share as a number between 0 and 1: 90% is 0.9."
    return Result("Prediction", True, text, answer=numbers)


def remarks(given: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return what is wrong with the entries of a prediction."""
    text = ""
    for word, value in given.items():
        if word not in words:
            near = get_close_matches(str(word), list(words), 1, 0.5)
            question = f'; did you mean "{near[0]}"?' if near else "."
            text += f' "{word}" is not one of the words{question}'
        elif value is not None and not is_number(value):
            text += f" {value!r} is not a number: write 90% as 0.9."
    return text


def picture(
    values: Tensor | Mapping[str, Any],
    *,
    alt: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    label: str = "",
) -> None:
    """Draw numbers as bars, or a table in colours.

    Parameters
    ----------
    values : `{word: number}` for bars, `{name: {word: number}}` for groups of bars, or a table `[row, column]`
    alt : what the picture shows, for readers who do not see it
    rows, columns : names for the rows and columns of a table
    label : what the numbers are

    Source: this book.
    """
    import matplotlib.pyplot as plt

    from circuitkit import figures

    figures.style()
    fig, ax = plt.subplots(figsize=(6.4, 2.8))
    if isinstance(values, Mapping):
        is_grouped = isinstance(next(iter(values.values())), Mapping)
        draw_bars(ax, values if is_grouped else {"": values})
        ax.set_ylabel(label)
    else:
        table = values.detach().double().numpy()
        has_signs = table.min() < 0
        colours = figures.signed(table) if has_signs else {"cmap": "Blues", "vmin": 0.0}
        image = ax.imshow(table, aspect="auto", **colours)
        if columns:
            ax.set_xticks(range(len(columns)), columns)
        if rows:
            ax.set_yticks(range(len(rows)), rows)
        fig.colorbar(image, label=label)
    figures.show(fig, alt=alt)


def draw_bars(ax: Any, series: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw one group of bars for each word, with one bar for each series."""
    words = list(next(iter(series.values())))
    width = 0.8 / len(series)
    for index, (name, numbers) in enumerate(series.items()):
        places = [place + width * (index + 0.5) - 0.4 for place in range(len(words))]
        ax.bar(places, [float(numbers[word]) for word in words], width, label=name)
    is_crowded = max(len(str(word)) for word in words) * len(words) > 56
    slope = {"rotation": 30, "ha": "right"} if is_crowded else {}
    ax.set_xticks(range(len(words)), words, **slope)
    if len(series) > 1:  # the legend lies above the bars
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(series))
