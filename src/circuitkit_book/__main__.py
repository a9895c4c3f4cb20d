"""`python -m circuitkit_book`: collect the answers of a class, and make a mystery for each student."""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for; return 2 if that fails, and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m circuitkit_book")
    commands = parser.add_subparsers(dest="command", required=True)
    grade = commands.add_parser("grade", help="run the answers of a class again, and write a table")
    grade.add_argument("folder", type=Path, help="one folder or one file for each student")
    grade.add_argument("--csv", required=True, type=Path, help="the table to write")
    grade.add_argument("--page", type=Path, help="a page about the class to write")
    grade.add_argument("--names", action="store_true", help="the page names the students")
    grade.add_argument("--book", default="", help="the address of the book, for links on the page")
    grade.add_argument("--secret", default="", help="the secret of the mysteries")
    grade.add_argument(
        "--mysteries", type=Path, help="their folder, to see that the secret is right"
    )
    grade.add_argument("--chapter", type=int, action="append", default=[], help="only this chapter")
    grade.add_argument("--seed", type=int, help="of the fresh cases; drawn if it is left out")
    grade.add_argument("--seconds", type=float, default=60.0, help="limit for one exercise")
    grade.add_argument("--megabytes", type=float, default=3000.0, help="limit of the memory")
    grade.add_argument("--jobs", type=int, default=0, help="students at the same time")
    mysteries = commands.add_parser("mysteries", help="make a model with a circuit per student")
    mysteries.add_argument("names", type=Path, help="a text file with one name in each line")
    mysteries.add_argument("--secret", required=True, help="a text that students do not know")
    mysteries.add_argument("--out", required=True, type=Path, help="the folder to write to")
    given = parser.parse_args(arguments)
    try:
        if given.command == "grade":
            run_grade(given)
        else:
            run_mysteries(given)
    except (OSError, ValueError) as problem:
        print(problem, file=sys.stderr)  # noqa: T201
        return 2
    return 0


def run_grade(given: argparse.Namespace) -> None:
    """Write the table, and the page if there is to be one, and print one line for each student."""
    from circuitkit_book.grading import Limits, class_page, grade, write_csv
    from circuitkit_book.grading.mystery_files import require_same_secret
    from circuitkit_book.grading.tables import write_whole

    for path in filter(None, (given.csv, given.page)):
        if path.is_dir() or not path.parent.is_dir():
            raise ValueError(
                f"{str(path)!r} cannot be written. Give a file in a folder that exists."
            )
    if given.mysteries:
        require_same_secret(given.mysteries, given.secret)
    seed = int.from_bytes(os.urandom(4)) // 2 if given.seed is None else given.seed
    limits = Limits(given.seconds, given.megabytes)
    given_to = {"limits": limits, "jobs": given.jobs, "secret": given.secret}
    rows = list(grade(given.folder, seed=seed, chapters=given.chapter, **given_to))
    write_csv(rows, given.csv)
    if given.page:
        write_whole(class_page(rows, names=given.names, book=given.book), given.page)
    for student in dict.fromkeys(row.student for row in rows):
        counts = Counter(row.outcome for row in rows if row.student == student)
        words = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        print(f"{student}: {words}")  # noqa: T201
    print(f"{given.csv} has {len(rows)} rows. The seed of the fresh cases was {seed}.")  # noqa: T201


def run_mysteries(given: argparse.Namespace) -> None:
    """Write the mysteries of a list of names."""
    from circuitkit_book.grading import write_mysteries
    from circuitkit_book.grading.submissions import read_any

    if not given.names.is_file():
        raise ValueError(
            f"There is no file {str(given.names)!r}. Give one with a name in each line."
        )
    lines = read_any(given.names).splitlines()
    folders = write_mysteries([line for line in lines if line.strip()], given.secret, given.out)
    print(f"{given.out} has a mystery for each of {len(folders)} students.")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
