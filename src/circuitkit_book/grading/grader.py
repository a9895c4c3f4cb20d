"""Runs the answers of a class, one process for each student, with limits that are watched from outside."""

import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from circuitkit_book.exercises.contents import catalogue
from circuitkit_book.grading.mystery_files import judge_mystery
from circuitkit_book.grading.submissions import Submission, submissions
from circuitkit_book.grading.worker import work

try:
    import psutil
except ImportError:
    psutil = None

MEGABYTE = 2**20
WATCH = 0.5
"""Seconds between two looks at the memory of a process."""


@dataclass(frozen=True)
class Limits:
    """What the answer to one exercise may use."""

    seconds: float = 60.0
    megabytes: float = 3000.0
    """Memory of the process, with torch and the models in it (resident size)."""
    printed: int = MEGABYTE
    """Bytes of output; what comes later is thrown away."""


@dataclass(frozen=True)
class Row:
    """What became of one exercise of one student."""

    student: str
    exercise: str
    """The number, such as `2.4`."""
    name: str
    outcome: str
    """accepted, not accepted, no answer, stopped, or not read."""
    mistake: str = ""
    """The name of the recognised mistake."""
    note: str = ""
    seconds: float = 0.0
    memory: str = "limited"
    """"limited", or "not limited" where the memory of a process cannot be read."""
    seed: int = 0

    @property
    def accepted(self) -> bool:
        return self.outcome == "accepted"


def grade(
    folder: Path,
    *,
    seed: int,
    limits: Limits = Limits(),
    jobs: int = 0,
    secret: str = "",
    chapters: Sequence[int] = (),
) -> Iterator[Row]:
    """Run the answers of all students in a folder, and yield a row for each student and exercise.

    Parameters
    ----------
    folder : it holds one folder for each student, with her `my_circuitkit.py` or her notebooks, or one file for each
    seed : the seed of the fresh cases; an answer is tried on them and on the cases of the notebook
    limits : for one exercise
    jobs : the number of students whose answers run at the same time; 0 for one on each processor
    secret : the secret with which the mysteries of the students were made; without it they are not judged
    chapters : the chapters whose exercises run; all of them if it is empty

    Raises
    ------
    ValueError : the folder has no answers, there is no such chapter, or a student handed in a mystery and there is
        no secret

    Source: this book.
    """
    students = submissions(Path(folder))
    with_mystery = [one.student for one in students if one.mystery]
    if with_mystery and not secret:
        raise ValueError(
            f"{with_mystery[0]!r} handed in a mystery.txt. Give the secret with which the mysteries were made."
        )
    chosen = sorted(set(chapters)) or [None]
    names = [exercise.name for chapter in chosen for exercise in catalogue(chapter)]
    context = process_context()
    threads = ThreadPoolExecutor(jobs or os.cpu_count() or 1)
    with threads:
        done = [threads.submit(rows_of, one, names, context, seed, limits) for one in students]
        for one, rows in zip(students, done, strict=True):
            yield from rows.result()
            if secret:
                outcome, mistake, note = judge_mystery(one.student, secret, one.mystery)
                yield Row(one.student, "mystery", "mystery", outcome, mistake, note, seed=seed)


def process_context() -> Any:
    """Return how processes are started: as forks of one that has imported torch, where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # joblib's, when the fork server ends
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["circuitkit_book.grading.worker"])
    return context


def rows_of(
    student: Submission, names: list[str], context: Any, seed: int, limits: Limits
) -> list[Row]:
    """Run the answers of one student to some exercises. After an exercise that had to be stopped, a new process goes on with the next."""
    numbers = {exercise.name: exercise.number for exercise in catalogue()}
    memory = "limited" if psutil else "not limited"
    rows: list[Row] = []

    def add(name: str, outcome: str, mistake: str = "", note: str = "", seconds: float = 0) -> None:
        number = numbers[name]
        rows.append(
            Row(student.student, number, name, outcome, mistake, note, seconds, memory, seed)
        )

    waiting = list(names)
    while waiting:
        trial = run_process(student, waiting, context, seed, limits)
        for message in trial.finished:
            waiting.remove(message["row"])
            add(
                message["row"], *(message[key] for key in ("outcome", "mistake", "note", "seconds"))
            )
        if not trial.reason:
            break
        if trial.at:
            waiting.remove(trial.at)
            add(trial.at, "stopped", note=trial.reason, seconds=trial.seconds)
            continue
        for name in waiting:
            add(name, "not read", note=f"While the file was read: {trial.reason}")
        break
    return rows


@dataclass
class Trial:
    """What one process gave."""

    finished: list[dict[str, Any]]
    at: str = ""
    """The exercise at which it is; empty while the files are read."""
    reason: str = ""
    """Why it was stopped; empty if it came to the end."""
    seconds: float = 0.0


def run_process(
    student: Submission, names: list[str], context: Any, seed: int, limits: Limits
) -> Trial:
    """Run the answers to some exercises in a process of their own, in an empty folder."""
    messages, messages_in = context.Pipe(duplex=False)
    output, output_in = context.Pipe(duplex=False)
    files = [str(path.resolve()) for path in student.files]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        arguments = (messages_in, output_in, files, names, seed, folder)
        process = context.Process(target=work, args=arguments, daemon=True)
        process.start()
        messages_in.close()
        output_in.close()
        printed = Printed(output)
        trial = watch(process, messages, len(names), limits)
        process.kill()
        process.join()
        printed.join()
    if printed.n_bytes > limits.printed and trial.finished:
        most = limits.printed / MEGABYTE
        first = trial.finished[0]
        first["note"] = f"{first['note']} The answers print more than {most:g} MB.".strip()
    return trial


class Printed(threading.Thread):
    """Counts what a process prints, and throws it away, so that the process never waits."""

    def __init__(self, output: Connection):
        super().__init__(daemon=True)
        self.output = output
        self.n_bytes = 0
        self.start()

    def run(self) -> None:
        """Read until the process has ended."""
        while block := os.read(self.output.fileno(), MEGABYTE):
            self.n_bytes += len(block)
        self.output.close()


def watch(process: Any, messages: Connection, n_names: int, limits: Limits) -> Trial:
    """Read what a process says until it has finished all exercises, has ended, or uses more than it may."""
    trial = Trial([])
    began = time.monotonic()
    while len(trial.finished) < n_names:
        try:
            if messages.poll(WATCH):
                message = json.loads(messages.recv_bytes(MEGABYTE))
                began = time.monotonic()
                if "row" in message:
                    trial.finished.append(message)
                else:
                    trial.at = message["begins"]
        except (EOFError, OSError, ValueError, KeyError):
            process.join(WATCH)
            trial.reason = f"The process ended by itself (code {process.exitcode})."
            break
        trial.reason = over_limits(process, time.monotonic() - began, limits)
        if trial.reason:
            break
    trial.seconds = round(time.monotonic() - began, 1)
    return trial


def over_limits(process: Any, seconds: float, limits: Limits) -> str:
    """Return which limit a process has passed, in a sentence; empty if none."""
    if seconds > limits.seconds:
        return f"It did not end within {limits.seconds:g} seconds."
    if psutil is None:
        return ""
    try:
        megabytes = psutil.Process(process.pid).memory_info().rss / MEGABYTE
    except psutil.Error:  # it has just ended
        return ""
    if megabytes > limits.megabytes:
        return f"It used more than {limits.megabytes:g} MB of memory."
    return ""
