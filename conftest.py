"""Plugins of every test run: notebooks run in forks of one process, and pages in one browser."""

import gc
import os

import pytest

gc.disable()  # until all is imported: nothing of that is ever thrown away
os.environ.setdefault("TQDM_DISABLE", "1")  # notebooks store no progress bars
pytest_plugins = (
    "tools.notebooks.kernels",
    "tests.support.site",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is loaded by now, a million objects, stays: the search for cycles looks at what tests make, and ten times less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
