"""What holds for every test run from the root of the repository: annotations are checked, notebooks are timed and run in
forks of one process, and one browser serves all tests."""

import os

os.environ.setdefault("TQDM_DISABLE", "1")  # notebooks store no progress bars
pytest_plugins = (
    "tests.support.checked_shapes",
    "tools.notebooks.times",
    "tools.notebooks.kernels",
    "tests.support.one_browser",
)
