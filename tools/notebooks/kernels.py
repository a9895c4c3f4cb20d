"""A pytest plugin: the kernels in which nbval runs notebooks are forks of one warm process.

nbval is asked for a kernel of this name instead of one of the current environment; it starts, interrupts and stops it as
any other. `CIRCUITKIT_COLD_KERNELS=1`, or a system without forks, leaves every kernel to start by itself.
"""

import os

import pytest

from tools.notebooks import warm

NAME = "circuitkit-warm"


def pytest_configure(config) -> None:
    if hasattr(
        config, "workerinput"
    ):  # a worker of xdist has the environment of the process that started it
        if NAME in config.workerinput:
            take(config)
        return
    asked = getattr(config.option, "nbval", False) and config.option.nbval_current_env
    if not asked or not warm.AVAILABLE or os.environ.get("CIRCUITKIT_COLD_KERNELS"):
        return
    server = warm.Server()
    config.add_cleanup(server.close)
    paths = [server.kernelspec(NAME), os.environ.get("JUPYTER_PATH")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    take(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """A worker reads the command line again, so it is told what this process decided."""
    if node.config.option.nbval_kernel_name == NAME:
        node.workerinput[NAME] = True


def take(config) -> None:
    config.option.nbval_kernel_startup_timeout = 300  # the first one waits for the imports
    config.option.nbval_current_env, config.option.nbval_kernel_name = False, NAME
