"""What the checks say to answers in a file: accepted, named, pointed at, or numbers only, by chapter.

    python -m tools try-answers FILE.py

The file holds functions. `attention_pattern__no_scale` is an answer to `check_attention_pattern`; what stands behind the two
underscores is a label. Labels that begin with `right` have to be accepted; all others to be refused. A remark that would fit
any wrong answer, such as "right on 3 of 12 cases", does not count as pointing at a mistake.
"""

import argparse
import runpy
import sys
from collections import Counter
from pathlib import Path

import torch

VACUOUS = ("It is right on ", "On each case it is a multiple", "It is nearly right")
"""Remarks that say no more than the numbers do."""

KINDS = ("accepted", "named", "pointed at", "raised or misshapen", "numbers only")


def kind_of(result) -> str:
    """How much a result says."""
    if result.passed:
        return "accepted"
    if result.diagnosis:
        return "named"
    if result.hint and not result.hint.startswith(VACUOUS):
        return "pointed at"
    said = result.message.split("\n")[1] if "\n" in result.message else result.message
    return "raised or misshapen" if any(word in said for word in (" raised ", " shape ", "returned")) else "numbers only"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quiet", action="store_true", help="counts only")
    options = parser.parse_args(arguments)
    from circuitkit import exercises

    torch.set_num_threads(1)
    counts: dict[str, Counter] = {}
    wrong_verdicts = 0
    for name, answer in runpy.run_path(str(options.file)).items():
        exercise, _, label = name.partition("__")
        if not label or not exercise or not callable(answer):
            continue
        check = getattr(exercises, f"check_{exercise}", None)
        if check is None:
            print(f"{name}: there is no check_{exercise}", file=sys.stderr)
            return 2
        result = check(answer)
        kind, right = kind_of(result), label.startswith("right")
        counts.setdefault(result.exercise.split()[1][:1], Counter())["right" if right and result.passed else kind] += 1
        wrong_verdicts += right != result.passed
        if not options.quiet:
            said = result.diagnosis or result.hint or result.message.split("\n")[min(1, result.message.count("\n"))]
            print(f"{result.exercise.split()[1].rstrip(',')} {label}: {kind}: {said}", flush=True)
    for chapter, found in sorted(counts.items()):
        refused = sum(found[kind] for kind in KINDS[1:])
        told = found["named"] + found["pointed at"]
        listed = ", ".join(f"{found[kind]} {kind}" for kind in KINDS)
        print(f"chapter {chapter}: {refused} refused, {told} named or pointed at; {listed}; right accepted {found['right']}")
    print(f"wrong accepted or right refused: {wrong_verdicts}")
    return 1 if wrong_verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
