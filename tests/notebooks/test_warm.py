"""Forks of the warm process are like processes started by themselves: same outputs, own folder, streams and luck."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager

from tools.notebooks import execute as execute_notebooks
from tools.notebooks import warm
from tools.notebooks.execute import ENVIRONMENT, ROOT

pytestmark = pytest.mark.skipif(
    not warm.AVAILABLE, reason="this system has no forks: every kernel starts by itself"
)

# What a notebook could see of the process that it runs in.
PROBE = """
import locale, os, signal, sys
print(os.listdir("."), sys.path, sys.argv[1:2], __name__)
print({name: value for name, value in sorted(os.environ.items()) if not name.startswith("JPY_")})
print(os.umask(0o022), [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)], locale.getlocale())
print(sys.stdin, sys.flags.optimize, sys.getrecursionlimit(), os.getsid(0) == os.getpid())
===
import torch, numpy, matplotlib
import matplotlib.pyplot as plt
print(torch.get_num_threads(), torch.rand(3, generator=torch.Generator()), torch.get_default_dtype())
print(torch.backends.cpu.get_cpu_capability(), torch.is_grad_enabled(), numpy.geterr())
print(plt.get_backend(), plt.isinteractive(), sorted(matplotlib.rcParams.items()))
===
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
import transformer_lens.model_bridge.sources.native
config = TransformerBridgeConfig(d_model=8, d_head=4, n_layers=1, n_heads=2, n_ctx=4, d_vocab=5, attn_only=True, seed=1)
TransformerBridge.boot_native(config)(torch.tensor([[1, 2, 3]]))
===
plt.plot([1, 3, 2]); plt.show()
display({"text/plain": "shown"}, raw=True)
===
%matplotlib inline
lines = plt.plot([1, 2])
===
import subprocess
subprocess.run([sys.executable, "-c", "print('child')"], check=True, capture_output=True).stdout
===
1 / 0
"""
LUCK = "import random, numpy, tempfile, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item(), tempfile.mktemp())"


@pytest.fixture(scope="module")
def server():
    with warm.Server(ENVIRONMENT) as server:
        server.call("textwrap:dedent", text="when this returns, it has imported what it imports")
        yield server


@pytest.fixture(scope="module")
def warm_python(server):
    """A kernel manager whose kernels are forks."""
    spec = json.loads(
        (Path(server.kernelspec("warm-test")) / "kernels/warm-test/kernel.json").read_text()
    )

    class WarmPython(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(**spec)

    return WarmPython


def page(folder, *sources, tags=()):
    path = folder / "page.ipynb"
    cells = [
        nbformat.v4.new_code_cell(source.strip(), metadata={"tags": list(tags)})
        for source in sources
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_fork_sees_what_a_kernel_of_its_own_sees(tmp_path, warm_python):
    path = page(tmp_path, *PROBE.split("==="), tags=["raises-exception"])
    warm, own = (
        execute_notebooks.execute(path, *manager).splitlines() for manager in ([warm_python], [])
    )
    assert len(warm) == len(own)
    assert [pair for pair in zip(warm, own, strict=True) if pair[0] != pair[1]] == []


@pytest.mark.parametrize("name", ["conventions", "exercises/05-attention-superposition"])
def test_a_notebook_of_the_book_has_the_stored_bytes(name, warm_python):
    path = ROOT / f"book/{name}.ipynb"
    assert execute_notebooks.execute(path, warm_python) == path.read_text("utf-8")


def test_it_is_a_fork_and_every_fork_has_its_own_luck(tmp_path, warm_python):
    sources = "import sys\n'transformer_lens.model_bridge' in sys.modules", LUCK
    one, two = (
        [
            cell.outputs[0]
            for cell in nbformat.reads(
                execute_notebooks.execute(page(tmp_path, *sources), warm_python), 4
            ).cells
        ]
        for _ in range(2)
    )
    assert one[0].data["text/plain"] == "True"
    for first, second in zip(one[1].text.split(), two[1].text.split(), strict=True):
        assert first != second


def test_another_environment_has_a_kernel_of_its_own(tmp_path, warm_python, monkeypatch):
    """What is read when Python or torch starts cannot be changed in a fork."""
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    path = page(tmp_path, "import sys\n'torch' in sys.modules, hash('a word')")
    assert execute_notebooks.execute(path, warm_python) == execute_notebooks.execute(path)
    assert "(False, " in execute_notebooks.execute(path, warm_python)


@pytest.fixture
def kernel(server, monkeypatch):
    """A running warm kernel and its client."""
    monkeypatch.setenv("JUPYTER_PATH", server.folder.name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if not Path(server.folder.name, "kernels/warm-kernel").exists():
        server.kernelspec("warm-kernel")
    manager = KernelManager(kernel_name="warm-kernel")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def said(client, source) -> str:
    """What a cell prints."""
    texts = []
    client.execute_interactive(
        source, output_hook=lambda m: texts.append(m["content"].get("text", "")), timeout=60
    )
    return "".join(texts)


def ended(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_an_interrupt_reaches_the_cell_and_the_kernel_goes_on(kernel):
    manager, client = kernel
    said(client, "x = 3")
    # A kernel that stops on an error throws away what it is asked in the moment after it.
    asked = client.execute("print('begun', flush=True)\nwhile True: pass", stop_on_error=False)
    while client.get_iopub_msg(timeout=60)["content"].get("text") != "begun\n":
        pass
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != asked:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert said(client, "print(x)") == "3\n"


@pytest.mark.parametrize("now", [True, False])
def test_the_fork_ends_with_its_kernel(kernel, now):
    manager, client = kernel
    pid = int(said(client, "import os; print(os.getpid())"))
    assert pid != manager.provisioner.process.pid
    manager.shutdown_kernel(now=now)
    assert ended(pid)


def test_a_kernel_that_dies_is_seen_to_be_dead(kernel):
    manager, client = kernel
    client.execute("import os; os._exit(3)")
    for _ in range(100):
        if not manager.is_alive():
            return
        time.sleep(0.1)
    raise AssertionError("the process that stands in for the kernel lives on")


def test_a_call_returns_what_the_function_returns(server):
    assert server.call("textwrap:indent", text="a\nb", prefix="> ") == "> a\n> b"


def test_without_forks_a_call_has_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(warm, "AVAILABLE", False)
    with warm.Server(ENVIRONMENT) as server:
        assert server.process is None
        assert server.call("textwrap:indent", text="a\nb", prefix="> ") == "> a\n> b"
        with pytest.raises(RuntimeError, match="ended without an answer"):
            server.call("textwrap:nothing")


def test_a_call_whose_process_dies_is_told(server, capfd):
    with pytest.raises(
        RuntimeError, match=r"the process that ran os:_exit of .* ended without an answer"
    ):
        server.call("os:_exit", status=1)
    assert server.call("textwrap:dedent", text=" a") == "a"


def test_the_server_ends_with_the_block_and_leaves_no_folder():
    with warm.Server(
        ENVIRONMENT, ("numpy", "torch")
    ) as server:  # ends as one that imports more, seconds earlier
        folder, process = server.folder.name, server.process
        assert os.path.exists(server.socket)
    assert process.returncode is not None
    assert not os.path.exists(folder)


def run_nbval(folder, *options, **environment) -> str:
    """pytest with the plugin that `make test` loads, on the notebooks of a folder."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            ".",
            "--nbval",
            "--nbval-current-env",
            "-q",
            "-p",
            "tools.notebooks.kernels",
        ]
        + ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("workers", "environment", "is_warm"),
    [("1", {}, True), ("0", {"CIRCUITKIT_COLD_KERNELS": "1"}, False)],
)
def test_nbval_runs_in_forks_unless_told_otherwise(tmp_path, workers, environment, is_warm):
    page(tmp_path, f"import sys\nassert ('transformer_lens' in sys.modules) is {is_warm}")
    assert "1 passed" in run_nbval(tmp_path, "-n", workers, **environment)


def test_make_test_loads_the_plugin(pytestconfig):
    assert "tools.notebooks.kernels" in (ROOT / "conftest.py").read_text()
    if pytestconfig.option.nbval and not os.environ.get("CIRCUITKIT_COLD_KERNELS"):
        assert pytestconfig.option.nbval_kernel_name == "circuitkit-warm"
