"""Say it first, then see it: a prediction is noted before anything is measured, and a picture sets it beside what came out."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from circuitkit._contract import public
from circuitkit.exercises._check import Result


@public
def predict(guess: Mapping[str, Any] | None, *words: str) -> Result:
    """Note a prediction: a number for each of these words. Until it is there, the cells that measure wait.

    >>> predict({"with": 1, "without": 0}, "with", "without").passed
    True
    """
    lacking = [word for word in words if not isinstance((guess or {}).get(word), (int, float))]
    if lacking:
        form = ", ".join(f'"{word}": ...' for word in words)
        return Result("Prediction", False, guess is not None, "", f"No prediction yet. Write a number for each: {{{form}}}", answer=guess)
    said = ", ".join(f"{word} {guess[word]:g}" for word in words)
    return Result("Prediction", True, True, "", f"Noted: {said}. Now see.", answer={word: float(guess[word]) for word in words})


@public
def picture(values: Any, *, alt: str, rows: Sequence[str] = (), columns: Sequence[str] = (), label: str = "") -> None:
    """Draw numbers: `{word: number}` as bars, `{name: {word: number}}` as bars in groups, a table `[row, column]` in colours."""
    import matplotlib.pyplot as plt

    from circuitkit import figures

    figures.style()
    fig, ax = plt.subplots(figsize=(6.4, 2.8))
    if isinstance(values, Mapping):
        series = values if isinstance(next(iter(values.values())), Mapping) else {"": values}
        words = list(next(iter(series.values())))
        for i, (name, numbers) in enumerate(series.items()):
            ax.bar([x + 0.8 * (i + 0.5) / len(series) - 0.4 for x in range(len(words))], [float(numbers[w]) for w in words], 0.8 / len(series), label=name)
        ax.set_xticks(range(len(words)), words)
        ax.set_ylabel(label)
        if len(series) > 1:
            ax.legend()
    else:
        table = torch.as_tensor(values).detach().double().numpy()
        image = ax.imshow(table, aspect="auto", **(figures.signed(table) if table.min() < 0 else figures.unsigned(table)))
        for axis, names in ((ax.set_xticks, columns), (ax.set_yticks, rows)):
            if names:
                axis(range(len(names)), names)
        fig.colorbar(image, label=label)
    figures.show(fig, alt=alt)
