"""Compute the parts of a report, and write them as one page and one table."""

import csv
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
import torch
from tqdm import tqdm

from circuitkit.bridge import Model
from circuitkit.checks import checked, require_bridge
from circuitkit.reading import attention_layers
from circuitkit.reports import measures, rules
from circuitkit.reports.comparison import compared, require_same_heads
from circuitkit.reports.lines import Behaviour, Line, Results
from circuitkit.reports.measures import Subject
from circuitkit.reports.page import page_of
from circuitkit.reports.showcase import prompt_ids, without_heads
from circuitkit.reports.wires import WIRED, circuits, wires

Jobs = dict[str, tuple]
"""For each part of a report, the function that computes it and its arguments behind the subject."""
COLUMNS = ("part", *(field.name for field in fields(Line)))


@dataclass(frozen=True, eq=False)
class ModelReport:
    """A finished report, which a notebook shows as a page.

    Parameters
    ----------
    title : the name of the model
    table : all numbers, a DataFrame with the columns `part`, `name`, `measure`, `value`, `low`,
        `high`, `control`, `p`, `named` and `text`; `named` is None for a row that no rule decides.
        No two rows have the same part, name, measure and text
    problems : what could not be computed, and why, by part
    html : the page, one file that opens without a network

    Notes
    -----
    Source: see `report`.
    """

    title: str
    table: pd.DataFrame
    problems: dict[str, str]
    html: str

    def compared_with(self, other: "ModelReport") -> pd.DataFrame:
        """Compare this report, line by line, with that of another model with the same heads.

        Parameters
        ----------
        other : the report of a checkpoint, of a fine-tuned or a quantized copy of the model

        Returns
        -------
        The lines that differ. `change` says that a line *appears* (only the other report names
        it), *vanishes* (only this report names it), *rises* or *falls* (its 95% intervals in the two
        reports have no number in common). A line without an interval can only appear or vanish.

        Raises
        ------
        ValueError : if the models have other heads

        Notes
        -----
        Both reports use the same random tokens, so intervals that lie apart are a cautious sign of a
        difference. Source: this book.

        Examples
        --------
        >>> result = report("zero-layer")
        >>> len(result.compared_with(result))
        0
        """
        require_same_heads(self.table, other.table)
        return compared(self.table, other.table)

    def __repr__(self) -> str:
        lines = [f"Report of {self.title}: {len(self.table)} numbers"]
        for part, problem in self.problems.items():
            lines.append(f"  not computed: {part}: {problem}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        style = "width:100%;height:40rem;border:1px solid"
        page = escape(self.html)
        return f'<iframe title="{escape(self.title)}" srcdoc="{page}" style="{style}"></iframe>'


@checked
def report(
    model: str | Path | Model,
    out: str | Path | None = None,
    *,
    prompt: str | None = None,
    cache: str | Path | None = None,
) -> ModelReport:
    """Apply the tools of this library to a model, and write the results as one page and one table.

    The report scores heads by behaviour, with intervals and controls; ablates the heads that show
    a behaviour, and cuts the wires into them; reads words and skip trigrams from QK and OV
    circuits; converts MLPs into heads; and divides the logit of the next token after the prompt
    into components. A part that fails is named on the page, and the others are computed.

    Heads, wires and skip trigrams are named if their measure on random tokens exceeds that on
    shuffled tokens by a floor, and if the p-value of this passes the procedure of Benjamini and
    Hochberg over all lines of a kind. At most 5% of the named lines are expected to be false, as
    far as the null is a normal distribution. Circuits follow from the wires. The last section of
    the page says how often these rules were right on small models whose circuits are known.

    Parameters
    ----------
    model : a name or folder that `load_model` takes, or a `TransformerBridge`
    out : where the page is written, a name that ends in `.html`; the table is written with the same
        name and `.csv`. If it is None, nothing is written
    prompt : the text whose next token is examined
    cache : a folder in which finished parts are kept, so that a report that was stopped continues

    Returns
    -------
    A `ModelReport`, whose `table` holds all numbers.

    Raises
    ------
    ValueError : if the page cannot be written at `out`, or the prompt does not fit the model

    Notes
    -----
    Parts are computed through joblib: inside `joblib.parallel_config("dask")` or
    `joblib.parallel_config(n_jobs=2)` they run in other processes, which load the model by its
    name. Error: that of each tool. Source: Benjamini and Hochberg 1995, "Controlling the False
    Discovery Rate"; the measures and their nulls are this book's.

    Examples
    --------
    >>> result = report("zero-layer")
    >>> list(result.table["part"].unique())
    ['next token', 'repeats']
    """
    if out is not None:
        require_page(Path(out))
    subject = subject_of(model, prompt)
    fingerprint = None if cache is None else fingerprint_of(subject)
    results, problems = computed(first_jobs(subject), subject, cache, fingerprint)
    scores = rules.decided(results).get("behaviour", [])
    more_results, more_problems = computed(later_jobs(scores), subject, cache, fingerprint)
    measures.random_text.cache_clear()  # it holds the model
    patterns = more_results.pop("patterns", {})
    results = rules.decided(results | more_results)
    problems |= more_problems
    if "repeats" in results:
        results["repeats"] += measures.unexplained_repeats(results["repeats"], scores)
    if "wires" in results:
        results["circuits"] = circuits(scores, results["wires"])

    results = {part: numbered(lines) for part, lines in results.items()}
    title = title_of(model)
    html = page_of(title, results, patterns, problems, subject)
    result = ModelReport(title, table_of(results), problems, html)
    if out is not None:
        Path(out).write_text(result.html, "utf-8")
        # texts are quoted, because a token may be a carriage return, which would end a row
        csv_file = Path(out).with_suffix(".csv")
        result.table.to_csv(csv_file, index=False, quoting=csv.QUOTE_NONNUMERIC)
    return result


def require_page(out: Path) -> None:
    """Raise a `ValueError` if no page can be written there."""
    if out.suffix != ".html" or out.is_dir():
        raise ValueError(f"out={str(out)!r} is no name of a page. Write a name that ends in .html.")
    if not out.parent.is_dir():
        raise ValueError(f"There is no folder {str(out.parent)!r}. Make it first.")


def title_of(model: str | Path | Model) -> str:
    """Return the name of a model, or of the folder that holds it."""
    if isinstance(model, str | Path):
        name = str(model)
    else:
        name = getattr(model.cfg, "model_name", None) or type(model).__name__
    is_path = Path(name).is_absolute() or Path(name).is_dir()
    return Path(name).name if is_path else name


def subject_of(model: str | Path | Model, prompt: str | None) -> Subject:
    """Return the model and its prompt."""
    # a path means a folder, even where a shipped model has the same name
    name_or_model = str(model.absolute()) if isinstance(model, Path) else model
    subject = Subject(name_or_model, (), os.urandom(8).hex())
    bridge = subject.load()
    require_bridge(bridge)
    return replace(subject, prompt=tuple(prompt_ids(bridge, prompt)))


def first_jobs(subject: Subject) -> Jobs:
    """Return the parts that need nothing but the model, quick ones first."""
    model = subject.load()
    layers = attention_layers(model)
    jobs: Jobs = {"next token": (measures.next_token,), "repeats": (measures.repeats,)}
    if layers:
        jobs["behaviour"] = (measures.behaviour,)
    for k in measures.heads_per_neuron(model):
        jobs[f"mlps {k}"] = (measures.mlps, k)
    for layer in layers:
        jobs[f"words L{layer}"] = (measures.words, layer)
        jobs[f"trigrams L{layer}"] = (measures.trigrams, layer)
    return jobs


def later_jobs(scores: list[Line]) -> Jobs:
    """Return the parts that follow the heads which the scores name."""
    jobs: Jobs = {}
    strongest = []
    clear = measures.named_heads(scores)
    for kind, lines in clear.items():
        if lines:
            names = [line.name for line in lines]
            jobs[f"ablation {kind}"] = (measures.ablation, kind, names[: measures.MOST_HEADS])
            strongest.append(names[0])
            if kind == Behaviour.PREFIX_MATCHING:
                jobs["next token without"] = (without_heads, names[: measures.MOST_HEADS])
    if strongest:
        jobs["patterns"] = (measures.patterns, list(dict.fromkeys(strongest)))
    readers = readers_of_wires(scores)
    if readers:
        alike = {str(kind): [line.name for line in clear[kind]] for kind in WIRED}
        jobs["wires"] = (wires, readers, alike)
    return jobs


def readers_of_wires(scores: list[Line]) -> dict[str, list[str]]:
    """Return the heads into which wires are tried, with the behaviours of their patterns."""
    readers: dict[str, list[str]] = {}
    for kind, lines in measures.named_heads(scores).items():
        for line in lines:
            if kind in WIRED and line.excess >= rules.CLEAR:
                readers.setdefault(line.name, []).append(kind)
            elif kind == Behaviour.COPYING:
                readers.setdefault(line.name, [])
    return readers


def computed(
    jobs: Jobs, subject: Subject, cache: Any, fingerprint: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the results of all parts by name, and what went wrong, by name."""
    compute = compute_part
    if cache is not None:
        # the model itself is not hashed at each call, its fingerprint stands for it
        compute = joblib.Memory(cache, verbose=0).cache(compute_part, ignore=["subject"])
    # joblib has no types, and pyright takes batch_size for a string from its default
    workers = joblib.Parallel(
        return_as="generator",
        batch_size=1,  # pyright: ignore[reportArgumentType]
    )
    attempts: Any = workers(
        joblib.delayed(attempt)(compute, job, subject, fingerprint) for job in jobs.values()
    )
    # TQDM_DISABLE=1 hides the bar, which appears only if a report takes more than five seconds
    attempts = tqdm(attempts, desc="report", total=len(jobs), delay=5, leave=False)
    results, problems = {}, {}
    for part, (result, problem) in zip(jobs, attempts, strict=True):
        if problem:
            problems[part] = problem
        else:
            results[part] = result
    return results, problems


def attempt(
    compute: Callable, job: tuple, subject: Subject, fingerprint: str | None
) -> tuple[Any, str]:
    """Return the result of a part, and the first line of the error if there was one."""
    try:
        return compute(job, subject, fingerprint), ""
    except Exception as problem:  # one part that fails must not stop the others
        return None, f"{type(problem).__name__}: {problem}".splitlines()[0]


def compute_part(job: tuple, subject: Subject, fingerprint: str | None) -> Any:
    """Return the result of one part."""
    function, *arguments = job
    return function(subject, *arguments)


def fingerprint_of(subject: Subject) -> str:
    """Return what tells one model, prompt and version of this library from another."""
    from circuitkit import __version__

    model = subject.load()
    if any(not hook.is_permanent for point in model.hook_dict.values() for hook in point.fwd_hooks):
        raise ValueError(
            "The model has hooks, which a cache cannot tell from others. "
            "Call model.reset_hooks() first, or leave cache out."
        )
    weights = {
        name: weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        for name, weight in model.state_dict().items()
    }
    settings = repr(sorted((key, str(value)) for key, value in vars(model.cfg).items()))
    return str(joblib.hash((__version__, subject.prompt, settings, weights)))


def numbered(lines: list[Line]) -> list[Line]:
    """Add (2), (3) and so on to the texts of lines that differ only in tokens that are spelled alike.

    Examples
    --------
    >>> lines = [Line("L0H0", "raises", value, text="a → b") for value in (2.0, 1.0)]
    >>> [line.text for line in numbered(lines)]
    ['a → b', 'a → b (2)']
    """
    count: Counter = Counter()
    result = []
    for line in lines:
        key = line.name, line.measure, line.text
        count[key] += 1
        is_first = count[key] == 1
        result.append(line if is_first else replace(line, text=f"{line.text} ({count[key]})"))
    return result


def table_of(results: Results) -> pd.DataFrame:
    """Return all lines of all parts as one table."""
    rows = [{"part": part, **vars(line)} for part, lines in results.items() for line in lines]
    return pd.DataFrame(rows, columns=list(COLUMNS))
