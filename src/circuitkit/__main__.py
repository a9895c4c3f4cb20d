"""`python -m circuitkit report NAME --out FILE.html`: what `circuitkit.report` does, from a command line."""

import argparse
import sys
from pathlib import Path

import circuitkit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m circuitkit",
        description=circuitkit.__doc__.partition("\n")[0] if circuitkit.__doc__ else None,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser(
        "report", help="all that the library can say about a model, as one page and one table"
    )
    one.add_argument(
        "name", help="a shipped model, a folder with a Hugging Face model, or a name on the hub"
    )
    one.add_argument(
        "--out",
        required=True,
        type=Path,
        help="where the page goes; a stopped report goes on when called again",
    )
    one.add_argument("--prompt", help="the text whose next token is taken apart")
    one.add_argument(
        "--plan",
        action="store_true",
        help="only say what would be computed, with seconds and bytes",
    )
    given = parser.parse_args(arguments)
    try:
        made = circuitkit.report(given.name, given.out, prompt=given.prompt, plan=given.plan)
    except (OSError, ValueError) as problem:
        print(problem, file=sys.stderr)  # noqa: T201
        return 2
    print(repr(made))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
