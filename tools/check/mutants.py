"""Plant faults in the files of the library that changed in the last week, and print those that no test notices.

    python -m tools mutants                         40 faults, drawn with the number of this week
    python -m tools mutants --number 100 --seed 3

mutmut makes every small change of the code that it knows and runs each test once to see which functions it calls. That
takes most of the time, and one change takes the time of the tests that call the changed function. So a number of changes
is drawn instead of all of them (over 10,000), from the functions that some test calls.
"""

import argparse
import datetime
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUTMUT = str(Path(sys.executable).with_name("mutmut"))
NOTHING = "no mutant has this name"


def changed_modules() -> set[str]:
    """The modules of the library whose files were changed by a commit of the last week and still exist."""
    command = [
        "git",
        "log",
        "--since=1 week ago",
        "--name-only",
        "--format=",
        "--",
        "src/circuitkit/",
    ]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {name for name in names.split() if name.endswith(".py") and (ROOT / name).exists()}
    paths = [Path(name).relative_to("src").with_suffix("") for name in files]
    return {".".join(path.parts).removesuffix(".__init__") for path in paths}


def make_all() -> dict[str, str]:
    """Make all changes and run all tests once; returns the module of each change by its name."""
    done = subprocess.run([MUTMUT, "run", NOTHING], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if "nothing matches" not in done.stderr:  # this is how mutmut ends when it has made all changes
        raise SystemExit(f"mutmut could not make its changes or run the tests:\n{done.stderr}")
    command = [MUTMUT, "results", "--all", "true"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *(([\w.]+)\.x[^.\s]+__mutmut_\d+): ", listed, re.M)
    return dict(found)


def main() -> int:
    year, week, _ = datetime.date.today().isocalendar()
    parser = argparse.ArgumentParser(prog=sys.argv[0], description=__doc__.split("\n")[0])
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=100 * year + week)
    options = parser.parse_args()
    changed = changed_modules()
    names = sorted(name for name, module in make_all().items() if module in changed)
    drawn = random.Random(options.seed).sample(names, min(options.number, len(names)))
    print(f"{len(drawn)} of {len(names)} changes, drawn with the seed {options.seed}", flush=True)
    if drawn:
        subprocess.run([MUTMUT, "run", *drawn], cwd=ROOT, check=True)
    return 0
