"""Kernels forked from one warm process, which has imported torch and transformer-lens once for all notebooks.

`Server.kernelspec` writes a kernel specification whose command is this file. That command asks the warm process for a
fork, which becomes an IPython kernel with the folder, environment and standard streams of the command. The command then
hands interrupts on to the fork, and each of the two ends when the other one does.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# A fork of a process that holds Apple's libraries is not safe, and Windows has no fork.
AVAILABLE = hasattr(os, "fork") and sys.platform != "darwin"
FILE = str(Path(__file__).resolve())
IMPORTED = (
    "numpy",
    "torch",
    "transformer_lens.model_bridge",
    "matplotlib.figure",  # not pyplot: when that is imported, it looks for the kernel that will show its figures
    "matplotlib.backends.backend_agg",
    "beartype.door",
    "jaxtyping",
    "circuitkit.effects",
    "circuitkit.figures",
    "circuitkit.models",
    "circuitkit.runs",
    "circuitkit_book.exercises",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.debugger",  # half of the time that a kernel would need to start
    "sqlite3",
)
# The C library keeps large blocks that were freed: a page that is given back is cleared again before its next use.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
NO_WARNING = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # of the debugger, about breakpoints


class Server:
    """Starts the warm process, which imports while the caller goes on; `close` ends it."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.socket = str(Path(self.folder.name) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.socket)
            listener.listen(64)
            self.process = subprocess.Popen(
                [sys.executable, "-P", FILE, "serve", str(listener.fileno())],
                cwd=self.folder.name,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env=KEEP_MEMORY | NO_WARNING | os.environ,
            )

    def kernelspec(self, name: str) -> str:
        """Write a kernel specification of this name; returns the folder to put into `JUPYTER_PATH`."""
        folder = Path(self.folder.name) / "kernels" / name
        folder.mkdir(parents=True)
        # -S and -E make this command start quickly; it needs no packages.
        command = [
            sys.executable,
            "-S",
            "-E",
            FILE,
            "kernel",
            self.socket,
            "-f",
            "{connection_file}",
        ]
        spec = {"argv": command, "display_name": name, "language": "python"}
        (folder / "kernel.json").write_text(json.dumps(spec))
        return self.folder.name

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)
        self.folder.cleanup()


# --- in the process that a kernel specification starts ---------------------------------------------------
def ask_for_kernel(path: str, arguments: list[str]) -> int:
    """Ask the warm process for a kernel, hand interrupts on to it, and end when it or our parent ends."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    signal.signal(signal.SIGINT, lambda *_: connection.send(b"interrupt"))
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([connection], [], [], 1)
        if readable:  # the kernel sends nothing: the connection is closed
            return 0
    return 1


# --- in the warm process and its forks -------------------------------------------------------------------
def serve(listener: socket.socket) -> None:
    """Fork for each connection, until standard input is closed; only forks return."""
    atexit.register(
        os._exit, 0
    )  # called last: the memory goes back at once, and no object is taken apart
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    do_once()
    gc.freeze()  # a fork that searched what is imported for cycles would copy all of it
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes forks that ended
    while True:
        readable, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in readable:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            become_kernel(connection)
            return
        connection.close()


def do_once() -> None:
    """Do what most notebooks would do for the first time: read the held-out text, draw, and print a table."""
    import matplotlib
    import pandas
    from matplotlib.figure import Figure

    from circuitkit import models
    from circuitkit.figures import pictures

    models.heldout_tokens()
    models.load_model("one-layer")("A text")
    with matplotlib.rc_context():
        pictures.style()
        fig = Figure(layout="constrained")
        axes = fig.subplots()
        axes.plot([0, 1], label="a curve")
        axes.set(title="a title", xlabel="$\\log_{10} x$")  # mathematics has a parser of its own
        axes.legend(title="curves", fontsize=9)
        pictures.to_png(fig, colours=255)
    table = pandas.DataFrame({"a column": [0.5]})
    table.to_html(), str(table)


def become_kernel(connection: socket.socket) -> None:
    """Take on the caller's folder, environment and streams, and be an IPython kernel until it ends."""
    import ipykernel_launcher
    import matplotlib
    import numpy
    import pandas
    import torch
    from ipykernel import kernelapp

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    request = json.loads(message)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    backend = os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    matplotlib.rcParams["backend"] = backend
    # when pandas was imported, there was no kernel, and it took a terminal's width for the limit of a table
    pandas.set_option("display.max_columns", 20)
    numpy.random.seed()  # Python's own generator is seeded anew in every fork, these two are not
    torch.seed()
    threading.Thread(target=watch, args=[connection], daemon=True).start()
    sys.argv = [ipykernel_launcher.__file__, *request["arguments"]]
    parent = f"--IPKernelApp.parent_handle={os.getppid()}"
    kernelapp.launch_new_instance(argv=[*request["arguments"], parent])


def watch(connection: socket.socket) -> None:
    """Hand interrupts on; end with the command that asked for this kernel."""
    while connection.recv(16):
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "kernel":
        sys.exit(ask_for_kernel(sys.argv[2], sys.argv[3:]))
    serve(socket.socket(fileno=int(sys.argv[2])))
