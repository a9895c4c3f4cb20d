"""Plugins of every test run: notebooks run in forks of one process, and pages in one browser."""

import gc
import os

import pytest

gc.disable()  # while modules are imported and tests collected: nothing of that can be freed
os.environ.setdefault("TQDM_DISABLE", "1")  # notebooks store no progress bars
os.environ.setdefault("CIRCUITKIT_STILL", "1")  # and no page of the lab
pytest_plugins = (
    "tools.notebooks.kernels",
    "tests.support.site",
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Search for garbage only among the objects that tests make, and ten times less often than usual."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()
