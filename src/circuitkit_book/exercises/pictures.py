"""Say it first, then see it: a prediction is noted before anything is measured, and a picture sets it beside what came out."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from circuitkit_book.exercises.checking import Result


def predict(guess: Any, words: Sequence[str]) -> Result:
    """Note a prediction: a number for each of these words. Until it is there, the cells that measure wait.

    >>> predict({"with": 1, "without": 0}, ["with", "without"]).passed
    True
    """
    given, odd = guess if isinstance(guess, Mapping) else {}, ""
    lacking = [
        w
        for w in words
        if not isinstance(given.get(w), (int, float))
        or isinstance(given[w], bool)
        or given[w] != given[w]
    ]
    if lacking:
        form = ", ".join(f'"{word}": ...' for word in words)
        odd = "".join(
            f" {given[word]!r} is no number: 90 % is 0.9."
            for word in lacking
            if isinstance(given.get(word), (str, bool, float))
        )
        for word in (str(w) for w in given if w not in words):
            near = get_close_matches(word, lacking, 1, 0.5)
            odd += f' "{word}" is none of these words' + (
                f': did you mean "{near[0]}"?' if near else "."
            )
        return Result(
            "Prediction",
            False,
            len(lacking) < len(words),
            "",
            f"No prediction yet. Write a number for each: {{{form}}}.{odd}",
            answer=guess,
        )
    said = ", ".join(f"{word} {given[word]:g}" for word in words)
    said += "." + " If they are shares, they lie between 0 and 1: 90 % is 0.9." * any(
        not 0 <= given[word] <= 1 for word in words
    )
    return Result(
        "Prediction",
        True,
        True,
        "",
        f"Noted: {said} Now see.",
        answer={word: float(given[word]) for word in words},
    )


def picture(
    values: Tensor | Mapping[str, float],
    *,
    alt: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    label: str = "",
) -> None:
    """Draw numbers: `{word: number}` as bars, `{name: {word: number}}` as bars in groups, a table `[row, column]` in colours."""
    import matplotlib.pyplot as plt

    from circuitkit import figures

    figures.style()
    fig, ax = plt.subplots(figsize=(6.4, 2.8))
    if isinstance(values, Mapping):
        series = values if isinstance(next(iter(values.values())), Mapping) else {"": values}
        words = list(next(iter(series.values())))
        for i, (name, numbers) in enumerate(series.items()):
            ax.bar(
                [x + 0.8 * (i + 0.5) / len(series) - 0.4 for x in range(len(words))],
                [float(numbers[w]) for w in words],
                0.8 / len(series),
                label=name,
            )
        ax.set_xticks(
            range(len(words)),
            words,
            **(
                {"rotation": 30, "ha": "right"}
                if max(map(len, map(str, words))) * len(words) > 56
                else {}
            ),
        )
        ax.set_ylabel(label)
        if len(series) > 1:
            ax.legend(
                loc="lower right", bbox_to_anchor=(1, 1), ncols=len(series)
            )  # above the bars, never on them
    else:
        table = values.detach().double().numpy()
        image = ax.imshow(
            table,
            aspect="auto",
            **(figures.signed(table) if table.min() < 0 else figures.unsigned(table)),
        )
        for axis, names in ((ax.set_xticks, columns), (ax.set_yticks, rows)):
            if names:
                axis(range(len(names)), names)
        fig.colorbar(image, label=label)
    figures.show(fig, alt=alt)
