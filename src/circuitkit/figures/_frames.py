"""A step slider over pictures drawn beforehand: it needs no kernel, and shows the last step when still."""

import hashlib
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from circuitkit._contract import must, public

from ._picture import Picture, in_page, pictured, to_json


@dataclass(frozen=True)
class Frames:
    """Pictures along an axis: one for each of `steps`, `label` what a step is ("training step")."""

    steps: tuple[int | float | str, ...]
    pictures: tuple[Picture, ...]
    label: str

    def __repr__(self) -> str:
        return "\n".join(
            f"{self.label} {step}: {picture!r}" for step, picture in zip(self.steps, self.pictures, strict=True)
        )

    def _repr_html_(self) -> str:
        last = self.pictures[-1]
        shown = [
            # The last picture is in the page already; the script takes its source from there.
            {"alt": picture.alt, "src": "" if picture is last else in_page(picture.png), "step": str(step)}
            for step, picture in zip(self.steps, self.pictures, strict=True)
        ]
        data = to_json(shown)
        name = "ck-" + hashlib.sha256(data.encode()).hexdigest()[:12]
        words = "".join(
            f"<li>{html.escape(f'{self.label} {step}: {picture.alt}')}"
            f"<!-- {html.escape('; '.join(picture.numbers))} --></li>"
            for step, picture in zip(self.steps, self.pictures, strict=True)
        )
        return (
            f'<figure class="ck-frames" id="{name}" data-label="{html.escape(self.label)}">'
            f'<img class="dark-light" src="{in_page(last.png)}" alt="{html.escape(last.alt)}" width="{last.width}">'
            f'<div class="ck-slider"></div>'
            f"<details><summary>Every step in words</summary><ul>{words}</ul></details>\n"
            f'<script type="application/json">{data}</script>\n'
            f'<script>{files("circuitkit.figures").joinpath("frames.js").read_text("utf-8")}circuitkitFrames("{name}");</script>'
            f"</figure>"
        )


_still = "two steps or more, because one picture does not move. Use show(fig, alt=...) for one"


@public
@must(lambda steps: len(steps) > 1 or _still)
def frames(
    draw: Callable[..., Any],
    steps: Sequence[int | float | str],
    *,
    alt: Callable[..., str],
    label: str = "training step",
) -> Frames:
    """Draw one matplotlib figure per step and put a slider under them.

    `draw(step)` returns a figure, `alt(step)` the sentence that says what it shows. Keep the axis limits, or the eye follows
    the axes.
    """
    pictures = []
    for step in steps:
        fig = draw(step)
        if not hasattr(fig, "savefig"):
            raise ValueError(f"draw(step) returned a {type(fig).__name__}; expected a matplotlib figure. End it with return fig.")
        pictures.append(pictured(fig, alt(step), colours=64))
    return Frames(tuple(steps), tuple(pictures), label)
