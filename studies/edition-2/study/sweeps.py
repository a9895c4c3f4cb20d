"""Sweeps over seeds and settings: joblib does the work, one tidy table holds the results, an interrupted sweep goes on."""

import csv
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PART, PARTS = "part", "parts"


def sweep(
    function: Callable[..., dict | list[dict]],
    settings: Sequence[dict],
    path: Path | str,
    *,
    n_jobs: int = 1,
    progress: bool = True,
) -> list[dict[str, str]]:
    """Call `function(**setting)` for every setting and keep what it returns in one CSV table; returns the table.

    `function` gives one dict of figures or a list of them (one for each initialisation, say); each becomes a row with
    the setting's columns first and two counters, `part` of `parts`. A setting's rows are written in one go as soon as
    it is done. Called again on the same path, it computes only what is missing: complete settings are kept, a half
    written one is computed again. When all are there the rows are put into the order of `settings`.

    Jobs run through joblib: `with joblib.parallel_config("dask"): sweep(...)` moves them to a cluster, unchanged; then
    `n_jobs` is ignored. A bar is drawn on stderr if that is a terminal.

    **Source**: this book.
    """
    from joblib import Parallel, delayed

    path = Path(path)
    columns = _setting_columns(settings)
    header, complete, torn = _read(path)
    if header is not None and header[: len(columns)] != columns:
        why = f"its columns begin {header[: len(columns)]}, the settings have {columns}"
        raise ValueError(f"{path} holds another sweep: {why}. Give a new path, or delete the file.")
    done = {tuple(row[name] for name in columns) for row in complete}
    if torn:
        _write(path, header, complete)  # drop the half-written setting before anything is appended
    missing = [setting for setting in settings if _key(setting, columns) not in done]
    bar = Bar(len(settings), len(settings) - len(missing)) if progress else None
    if missing:
        jobs = (delayed(_guarded)(function, setting) for setting in missing)
        n = None if n_jobs == 1 else n_jobs
        finished: Any = Parallel(n_jobs=n, return_as="generator_unordered")(jobs)
        for setting, results in finished:
            rows = [
                {**{k: str(v) for k, v in setting.items()}, PART: str(i), PARTS: str(len(results)), **_text(result)}
                for i, result in enumerate(results)
            ]
            header = header or list(rows[0])
            if any(list(row) != header for row in rows):
                raise ValueError(
                    f"setting {setting} gave columns {list(rows[0])}; the table has {header}. Return the same keys."
                )
            _append(path, header, rows)
            complete += rows
            if bar:
                bar.step()
    order = {_key(setting, columns): i for i, setting in enumerate(settings)}
    kept = [row for row in complete if tuple(row[name] for name in columns) in order]
    kept.sort(key=lambda row: (order[tuple(row[name] for name in columns)], int(row[PART])))
    others = [row for row in complete if tuple(row[name] for name in columns) not in order]
    _write(path, header, kept + others)
    return kept


def load_table(path: Path | str) -> list[dict[str, str]]:
    """A finished sweep's rows. A table that was interrupted or damaged raises a `ValueError` that says where.

    **Source**: this book.
    """
    header, complete, torn = _read(Path(path))
    if header is None:
        raise ValueError(f"{path} is not a sweep table: it is missing or empty. Run the sweep that writes it.")
    if torn:
        raise ValueError(f"{path} is half written: {torn}. Call sweep(...) with the same settings to complete it.")
    return complete


def _setting_columns(settings: Sequence[dict[str, Any]]) -> list[str]:
    if not settings:
        raise ValueError("sweep got no settings; expected a list with one dict of arguments for each call")
    columns = list(settings[0])
    if any(list(setting) != columns for setting in settings):
        raise ValueError("all settings need the same keys in the same order, because they become the table's columns")
    keys = [_key(setting, columns) for setting in settings]
    if len(set(keys)) != len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(
            f"setting {dict(zip(columns, twice, strict=True))} is given twice; a sweep runs each setting once"
        )
    return columns


def _key(setting: dict[str, Any], columns: list[str]) -> tuple[str, ...]:
    return tuple(str(setting[name]) for name in columns)


def _text(result: dict[str, Any]) -> dict[str, str]:
    return {key: format(value, ".7g") if isinstance(value, float) else str(value) for key, value in result.items()}


def _guarded(function: Callable, setting: dict[str, Any]) -> tuple[dict, list[dict]]:
    try:
        result = function(**setting)
    except Exception as error:
        raise RuntimeError(f"the sweep stopped at {setting}: {type(error).__name__}: {error}") from error
    results = result if isinstance(result, list) else [result]
    keys = [[*row, *setting, PART, PARTS] for row in results if isinstance(row, dict)]
    if not len(keys) == len(results) > 0 or any(len(names) != len({*names}) for names in keys):
        raise ValueError(f"setting {setting} gave {results}; expected dicts of figures, no key twice, none {PART!r} or {PARTS!r}")
    return setting, results


def _read(path: Path) -> tuple[list[str] | None, list[dict[str, str]], str]:
    """`(header, rows of complete settings, what is half written)`; damage that is not an interruption raises."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; expected the path of a table, such as {path / 'table.csv'}")
    if not path.exists() or path.stat().st_size == 0:
        return None, [], ""
    text = path.read_text("utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    torn = "the last line has no end" if whole != text else ""
    lines = list(csv.reader(io.StringIO(whole)))
    if not lines:
        return None, [], torn
    header = lines[0]
    if PART not in header or PARTS not in header:
        raise ValueError(f"{path} is not a sweep table: its first line is {','.join(header)[:80]!r}")
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            why = f"{path} line {number} has {len(line)} of {len(header)} columns and is not the last one: no interrupted write"
            raise ValueError(f"{why}. Delete that line and call sweep(...) again; it will be computed anew.")
    rows = [dict(zip(header, line, strict=True)) for line in lines[1:]]
    names = header[: header.index(PART)]
    groups: dict[tuple, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    complete = []
    for key, group in groups.items():
        if len(group) == int(group[0][PARTS]):
            complete += group
        else:
            torn = f"setting {dict(zip(names, key, strict=True))} has {len(group)} of {group[0][PARTS]} rows"
    return header, complete, torn


def _append(path: Path, header: list[str], rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        file.write(_lines(header, rows, head=new))
        file.flush()
        os.fsync(file.fileno())


def _write(path: Path, header: list[str] | None, rows: list[dict[str, str]]) -> None:
    """Replace the table in one step, so that an interruption leaves either the old or the new one."""
    if header is None:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(_lines(header, rows, head=True))
    os.replace(temporary, path)


def _lines(header: list[str], rows: list[dict[str, str]], head: bool) -> str:
    out = io.StringIO()
    table = csv.DictWriter(out, header, lineterminator="\n")
    if head:
        table.writeheader()
    table.writerows(rows)
    return out.getvalue()


class Bar:
    """A progress bar on a terminal; silent anywhere else, so stored outputs never hold one."""

    def __init__(self, total: int, done: int = 0, stream: Any = None, width: int = 30) -> None:
        self.total, self.done, self.width = total, done, width
        self.stream = sys.stderr if stream is None else stream
        self._draw()

    def step(self, done: int | None = None) -> None:
        self.done = self.done + 1 if done is None else done
        self._draw()

    def _draw(self) -> None:
        if not self.stream.isatty():
            return
        full = self.width * self.done // max(self.total, 1)
        end = "\n" if self.done >= self.total else ""
        self.stream.write(f"\r[{'#' * full}{'.' * (self.width - full)}] {self.done}/{self.total}{end}")
        self.stream.flush()
