"""`python -m circuitkit report NAME --out FILE.html`: `circuitkit.report` from a command line."""

import argparse
import sys
from pathlib import Path

import circuitkit


def main(arguments: list[str] | None = None) -> int:
    """Write the report that the arguments ask for; return 2 if that fails, and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m circuitkit")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="describe a model on one page and in one table")
    report.add_argument("name", help="a shipped model, or a folder with a Hugging Face model")
    report.add_argument("--from-hub", action="store_true", help="NAME is on the Hugging Face Hub")
    report.add_argument("--out", required=True, type=Path, help="the page to write")
    report.add_argument("--prompt", help="a text whose next token is explained")
    report.add_argument("--cache", type=Path, help="a folder that keeps finished parts")
    given = parser.parse_args(arguments)
    try:
        model = given.name
        if given.from_hub:
            model = circuitkit.load_model(given.name, from_hub=True)
        made = circuitkit.report(model, given.out, prompt=given.prompt, cache=given.cache)
    except (OSError, ValueError) as problem:
        print(problem, file=sys.stderr)  # noqa: T201
        return 2
    print(repr(made))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
