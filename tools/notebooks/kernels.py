"""A pytest plugin: nbval runs notebooks in kernels that are forked from one warm process.

`CIRCUITKIT_COLD_KERNELS=1`, or a system without forks, leaves every kernel to start by itself.
"""

import os
import uuid

import pytest

from tools.notebooks import warm

NAME = "circuitkit-warm"
RUNNING = "CIRCUITKIT_WARM_KERNELS"


def pytest_configure(config) -> None:
    if hasattr(config, "workerinput"):  # a worker of xdist inherits JUPYTER_PATH
        if NAME in config.workerinput:
            use_warm_kernels(config)
        return
    if RUNNING in os.environ:  # a test starts this run, and its own run has warm kernels already
        use_warm_kernels(config)
        return
    wanted = getattr(config.option, "nbval", False) and config.option.nbval_current_env
    if not wanted or not warm.AVAILABLE or os.environ.get("CIRCUITKIT_COLD_KERNELS"):
        return
    server = warm.Server()
    config.add_cleanup(server.close)
    paths = [server.kernelspec(NAME), os.environ.get("JUPYTER_PATH")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    os.environ[RUNNING] = "1"
    use_warm_kernels(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """A worker reads the command line again, so it is told what this process decided."""
    if node.config.option.nbval_kernel_name == NAME:
        node.workerinput[NAME] = True


def manager_on_sockets(**settings):
    """A manager of a kernel with sockets in the folder of the warm process.

    Two workers that look for free ports at the same time can find the same ones, and then one of the kernels dies.
    """
    from jupyter_client.manager import KernelManager

    folder = os.environ["JUPYTER_PATH"].split(os.pathsep)[0]
    file = os.path.join(folder, f"{uuid.uuid4().hex}.json")
    return KernelManager(transport="ipc", connection_file=file, **settings)


def use_warm_kernels(config) -> None:
    import nbval.kernel

    nbval.kernel.KernelManager = manager_on_sockets
    config.option.nbval_kernel_startup_timeout = 300  # the first one waits for the imports
    config.option.nbval_current_env = False
    config.option.nbval_kernel_name = NAME
