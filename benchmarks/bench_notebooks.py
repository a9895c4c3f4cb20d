"""How long each notebook runs in a fresh kernel, as a part of the seconds that its page promises."""

from functools import partial

from reference import in_reference_seconds

from tools.notebooks.execute import ROOT, execute, notebooks
from tools.notebooks.promises import promise

OTHERS = 60
"""Seconds for a page that promises none."""

if __name__ == "__main__":
    for path in notebooks():
        said = promise(path)
        taken = in_reference_seconds(partial(execute, path))
        name = path.relative_to(ROOT / "book").with_suffix("").as_posix()
        print(
            f"{name}-of-its-promise {taken / (said.seconds if said else OTHERS):.2f} 1", flush=True
        )
