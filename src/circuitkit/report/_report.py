"""`ck.report(model)`: every part by its key, kept as it comes, joined in one page and one table."""

import csv
import io
import operator
import os
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

from circuitkit._contract import AnyModel, Name, must, public, sizes
from circuitkit._heads import Heads
from circuitkit._work import Plan, fingerprint, place_in, work, write
from circuitkit.anatomy import Anatomy, anatomy
from circuitkit.models import list_models
from circuitkit.report import _parts
from circuitkit.report._page import COLUMNS, page

VERSION = 2
"""Grows when a part gives something else than before: what was kept is then computed again."""
TEXT = "When Mary and John went to the store, John gave a drink to Mary. When Mary and John went to the school, John gave a book to"


@dataclass(frozen=True, eq=False)
class ModelReport:
    """A finished report: in a notebook, the page itself. **Source**: see `report`."""

    title: str
    parts: dict[str, Any]
    """By key, what each part gave: rows of the table, or patterns."""
    problems: dict[str, str]
    """By key, what could not be computed and why."""
    html: str
    """The page: one file that opens without a network."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table: `part`, `name`, `measure`, `value`, its interval `low` to `high`, its `control`, `text`."""
        return [
            {"part": key, **one}
            for key, some in self.parts.items()
            if isinstance(some, list)
            for one in some
        ]

    @property
    def csv(self) -> str:
        """The table as text."""
        out = io.StringIO()
        table = csv.DictWriter(out, list[str](COLUMNS), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        return out.getvalue()

    def __repr__(self) -> str:
        failed = "".join(
            f"\n  not computed: {key}: {problem}" for key, problem in self.problems.items()
        )
        return f"{self.title}: {len(self.parts)} parts, {len(self.rows)} rows{failed}"

    def _repr_html_(self) -> str:
        return f'<iframe title="{escape(self.title)}" srcdoc="{escape(self.html)}" style="width:100%;height:40rem;border:1px solid"></iframe>'


def _is_page(out: Any) -> Any:
    place = Path(out)
    if place.is_dir():
        return f"a file: {str(out)!r} is a folder. Write a name in it that ends in .html"
    if not place.parent.is_dir():
        return f"a file in a folder that is there: {str(place.parent)!r} is none. Make it first"
    return (
        place.suffix == ".html"
        or f"a file that ends in .html, because the page is put there, with its table and its parts beside it; not {str(out)!r}"
    )


@public
@must(_is_page, "out")
def report(
    model: AnyModel | Name | Path,
    out: str | Path | None = None,
    *,
    prompt: str | None = None,
    plan: bool = False,
) -> ModelReport | Plan:
    """Everything that the library can say about a model, as one page and one table.

    Heads by behaviour, each score with an interval over rows and a control; what the heads that show one are worth,
    beside drawn ones; composition with its baseline; words of QK and OV circuits; skip trigrams; MLPs as heads, error
    against heads per neuron; the parts of the next token's logit after `prompt`.
    `model`: a name that `load_model` takes, or a model. `out`: where the page goes; the table lies beside it as `.csv`,
    and every part in a folder `.parts` as soon as it is done, by model, part and version: called again, it goes on.
    A part that fails is named and stops no other. `plan=True` computes nothing and says what it would take. Parts run
    through joblib: inside `joblib.parallel_config("dask")` (or `n_jobs=2`) they leave this process; give a name then.
    **Error**: that of each tool. **Source**: this book.

    >>> report("zero-layer", plan=True).items.keys() >= {"logits"}
    True
    """
    start, asked = time.process_time(), _asked(model, prompt)
    title = (
        asked.model
        if isinstance(asked.model, str)
        else getattr(getattr(model, "cfg", None), "model_name", None) or type(model).__name__
    )
    title = Path(title).name if Path(title).is_dir() else title
    folder = (
        None
        if out is None
        else Path(out).with_suffix(".parts")
        / fingerprint(_parts.model_of(asked), VERSION, asked.prompt)
    )
    items = _items(asked)
    if plan:
        kept = [key for key in items if folder is not None and place_in(folder, key).exists()]
        speed = _speed()
        return Plan(
            {key: _cost(asked, key, speed) for key in items},
            tuple(kept),
            time.process_time() - start,
        )
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    try:
        _collect(items, folder, found, problems)
        chosen = _parts.groups(found.get("behaviour", []))
        later: dict[str, tuple] = {
            f"worth {kind}": (_parts.worth, asked, kind, names) for kind, names in chosen.items()
        }
        if shown := list(dict.fromkeys(names[0] for names in chosen.values())):
            later["patterns"] = (_parts.patterns, asked, shown)
        _collect(later, folder, found, problems)
        order = {key: found[key] for key in [*items, *later] if key in found}
        made = ModelReport(
            title,
            order,
            problems,
            page(
                title,
                order,
                problems,
                _parts.speller(_parts.model_of(asked)),
                asked.prompt,
                _again(asked, chosen),
            ),
        )
        if out is not None:
            write(Path(out), made.html)
            write(Path(out).with_suffix(".csv"), made.csv)
    except OSError as problem:
        raise OSError(
            f"the report of {title} could not be written: {problem.strerror or problem}. What was done, {len(found)} of {len(items)} parts or "
            f"more, is kept in {folder}: free some space, or correct the place, and call the same again."
        ) from problem
    return made


def _collect(
    items: dict[str, tuple], folder: Path | None, found: dict[str, Any], problems: dict[str, str]
) -> None:
    for key, result, problem in work(operator.call, items, folder, what="report"):
        if problem is None:
            found[key] = result
        else:
            problems[key] = problem


def as_name(path: Path) -> str:
    """A folder as a string; one that is called like a shipped model gets its whole path."""
    return str(path.absolute() if str(path) in list_models() else path)


def _asked(model: Any, prompt: str | None) -> _parts.Asked:
    asked = _parts.Asked(
        as_name(model) if isinstance(model, Path) else model, (), os.urandom(8).hex()
    )
    own = _parts.model_of(asked)
    value = anatomy(own)
    if getattr(own, "tokenizer", None) is None:
        if prompt is not None:
            raise ValueError(
                "report got a prompt, and the model has no tokenizer; expected none of the two or both. Save the tokenizer beside the weights: tokenizer.save_pretrained(folder)."
            )
        tokens = torch.randint(
            value.d_vocab, (min(24, value.n_ctx),), generator=torch.Generator().manual_seed(0)
        ).tolist()
    else:
        tokens = (
            own.to_tokens(TEXT, truncate=True)
            if prompt is None
            else own.to_tokens(prompt, truncate=False)
        )[0].tolist()
    if not 0 < len(tokens) <= value.n_ctx:
        raise ValueError(
            f"report got a prompt of {len(tokens)} tokens; expected 1 to {value.n_ctx}, what the model reads. Write another prompt=."
        )
    return asked._replace(prompt=tuple(tokens))


def _again(asked: _parts.Asked, chosen: dict[str, list[str]]) -> dict[str, str]:
    """What stands in the lines that repeat a section: this model, these tokens and rows, heads that are there."""
    own = _parts.model_of(asked)
    value, rows = anatomy(own), _parts.default_rows(own)
    head = next((names[0] for names in chosen.values()), next(iter(value.head_names), "L0H0"))
    turned = value.head_names and value[head].turn is not None
    specials = getattr(getattr(own, "tokenizer", None), "all_special_ids", [])
    return {
        "model": f"ck.load_model({asked.model!r})"
        if isinstance(asked.model, str)
        else "...  # the model that was given",
        "tokens": f"torch.tensor([{[*asked.prompt]}])",
        "rows": f"ck.induction.repeated_tokens({sizes(own)[0]}, {rows.period}, batch={{}}, bos={int(rows.tokens[0, 0]) if rows.start else None})",
        "head": head,
        "offset": ", offset=1" * bool(turned),
        "names": repr(next(iter(chosen.values()), [head])),
        "k": str(next(iter(_parts.counts(asked)[-1:]), 1)),
        "d_vocab": str(value.d_vocab),
        "specials": repr([i for i in specials if i < value.d_vocab]),
    }


def _items(asked: _parts.Asked) -> dict[str, tuple]:
    """The parts that need nothing but the model, quick ones first."""
    items: dict[str, tuple] = {"logits": (_parts.logits, asked)}
    layers = list(_parts.layers(asked))
    if layers:
        items |= {"behaviour": (_parts.behaviour, asked)}
        items |= {
            f"composition {kind}": (_parts.composition, asked, kind)
            for kind in "KQV"
            if len(layers) > 1
        }
    items |= {f"mlps {k}": (_parts.mlps, asked, k) for k in _parts.counts(asked)}
    for name, function in ("words", _parts.words), ("trigrams", _parts.trigrams):
        items |= {f"{name} L{layer}": (function, asked, layer) for layer in layers}
    return items


def _cost(asked: _parts.Asked, key: str, speed: float) -> tuple[float, float]:
    """Seconds on one core and bytes: products counted, at the speed that this machine shows."""
    value: Anatomy = anatomy(_parts.model_of(asked))
    some = [sub.inside for sub in value.sublayers]
    n, d = (
        len(value.head_names),
        max((stack.d_head for stack in some if isinstance(stack, Heads)), default=0),
    )
    D, V, here = value.d_model, value.d_vocab, max(1, n // max(1, len(list(_parts.layers(asked)))))
    inside = sum(
        W.numel() for stack in some for W in vars(stack).values() if isinstance(W, torch.Tensor)
    )
    forward, rows = 2.0 * inside + 2.0 * D * V, 130 * _parts.ROWS
    tables, among = 8.0 * here * V * D * d, min(V, _parts.AMONG)
    operations, numbers = {
        "logits": (forward * len(asked.prompt), len(asked.prompt) * (V + D * (n + 9))),
        "behaviour": (3 * forward * rows + 25.0 * n * _parts.ROWS * d**3, rows * 4 * D),
        "composition": (2.0 * n * D * D * (2 * d + n), 2 * n * D * d + 3 * n * n),
        "mlps": (8 * forward * len(asked.prompt), inside + len(asked.prompt) * V),
        "words": (tables, 4 * V * d),
        "trigrams": (tables + here * among * V * (2.0 * d + 40), 4 * V * d + 2**24),
    }[key.split()[0]]
    return operations / speed + 0.05, 4.0 * numbers


def _speed() -> float:
    """Products and sums that one core does in a second of its own time: half of what a product of matrices reaches."""
    a, start = torch.ones(384, 384), time.process_time()
    for _ in range(8):
        a = a @ a / 384
    return 8 * 384**3 / (time.process_time() - start)
