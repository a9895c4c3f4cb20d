"""What holds for every test run from the root of the repository: annotations are checked, notebooks are timed and run in
forks of one process, and one browser serves all tests."""

import gc
import os

os.environ.setdefault("TQDM_DISABLE", "1")  # notebooks store no progress bars
pytest_plugins = (
    "tests.support.checked_shapes",
    "tools.notebooks.times",
    "tools.notebooks.kernels",
    "tests.support.one_browser",
)


def pytest_collection_finish() -> None:
    """What is loaded by now, a million objects, stays: the search for cycles looks at what tests make, and ten times less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
