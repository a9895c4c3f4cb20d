"""One warm process from which notebooks are forked: torch, transformer-lens and matplotlib are imported once.

    with warm.Server() as server:
        server.call("tools.notebooks.run:departures", path="book/conventions.ipynb")

A request names a function and its arguments; a fork of the server calls it and sends back what it returns. `kernelspec`
writes a kernel specification whose command is this file, which asks for a fork that is an IPython kernel: nbval and
nbclient use warm kernels without knowing it. A fork has the folder, environment, standard streams, random state and
interrupts of a process started by itself; what it shares with its siblings is what is imported and the seed of string
hashes. A kernel that is asked for with another environment than the server's is started in the ordinary way.
"""

import atexit
import contextlib
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
from typing import Any

# Forks of a process that holds Apple's libraries are not safe; Windows has none.
AVAILABLE = hasattr(os, "fork") and sys.platform != "darwin"
FILE = Path(__file__).resolve()
ROOT = FILE.parents[2]
# No pyplot: when a notebook imports it, it looks for the kernel that will show its figures.
IMPORTED = (
    "numpy",
    "torch",
    "transformer_lens.model_bridge",
    "IPython",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
)
IMPORTED += (
    "nbformat",
    "nbval.plugin",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "beartype.door",
    "jaxtyping",
)
# Variables that may differ from the server's, because nothing reads them before a notebook runs.
MAY_DIFFER = ("PYTEST_", "JPY_", "JUPYTER_", "MPLBACKEND", "PYDEVD_", "PWD", "OLDPWD", "SHLVL", "_")
MAY_DIFFER += ("LINES", "COLUMNS")  # readline sets them in a process that has a terminal's name


class Server:
    """Starts the process, which imports while the caller goes on; ends it when the block is left."""

    def __init__(
        self, environment: dict[str, str] | None = None, imported: tuple[str, ...] = IMPORTED
    ):
        self.environment = os.environ | (environment or {})
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        self.socket = str(Path(self.folder.name) / "socket")
        self.process = None
        if AVAILABLE:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self.socket)
                listener.listen(64)
                self.process = subprocess.Popen(
                    [sys.executable, str(FILE), "serve", str(listener.fileno()), *imported],
                    cwd=self.folder.name,
                    env=self.environment,
                    stdin=subprocess.PIPE,
                    pass_fds=[listener.fileno()],
                )

    def call(self, function: str, **arguments) -> Any:
        """What `module:function(**arguments)` returns in a fork, or where there are no forks in a process of its own."""
        request = {
            "function": function,
            "arguments": arguments,
            "environment": dict(self.environment),
        }
        if self.process is None:
            command, given = [sys.executable, str(FILE), "once"], json.dumps(request)
            answer = subprocess.run(
                command, input=given, env=self.environment, stdout=subprocess.PIPE, text=True
            ).stdout
        else:
            answer = b""
            with (
                contextlib.suppress(ConnectionError),
                ask(self.socket, request, (2, 2, 2)) as connection,
            ):
                answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        if not answer:
            raise RuntimeError(
                f"the process that ran {function} of {arguments} ended without an answer"
            )
        return json.loads(answer)

    def kernelspec(self, name: str) -> str:
        """Write a kernel specification of this name; returns the folder to put into `JUPYTER_PATH`."""
        folder = Path(self.folder.name) / "kernels" / name
        folder.mkdir(parents=True)
        Path(self.folder.name, "environment.json").write_text(json.dumps(dict(self.environment)))
        command = [
            sys.executable,
            "-S",
            "-E",
            str(FILE),
            "kernel",
            self.socket,
            "-f",
            "{connection_file}",
        ]
        (folder / "kernel.json").write_text(
            json.dumps({"argv": command, "display_name": name, "language": "python"})
        )
        return self.folder.name

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(60)
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def ask(path: str, request: dict, streams: tuple[int, int, int]) -> socket.socket:
    """Send a request with the folder of this process and these standard streams; the connection to its fork."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    os.umask(mask := os.umask(0))
    message = json.dumps({"folder": os.getcwd(), "umask": mask} | request).encode()
    socket.send_fds(connection, [len(message).to_bytes(8, "big")], streams)
    connection.sendall(message)
    return connection


# --- in the process that a kernel specification starts -------------------------------------------------------------
def stand_in(path: str, arguments: list[str]) -> int:
    """Ask for a kernel and live as long as it and our parent do: interrupts are handed on, and our end is its end."""
    own, given = json.loads(Path(path).with_name("environment.json").read_text()), dict(os.environ)
    if any(
        own.get(name) != given.get(name) for name in own | given if not name.startswith(MAY_DIFFER)
    ):
        os.execv(sys.executable, [sys.executable, "-m", "ipykernel_launcher", *arguments])
    parent = os.getppid()
    connection = ask(path, {"kernel": arguments, "environment": given}, (0, 1, 2))
    signal.signal(signal.SIGINT, lambda *_: connection.send(b"i"))
    while os.getppid() == parent:
        if select.select([connection], [], [], 1)[0] and not connection.recv(1):
            return 0
    return 1


# --- in the server and its forks -----------------------------------------------------------------------------------
def serve(listener: socket.socket, imported: list[str]) -> None:
    """Fork for each connection, until standard input ends; only forks return."""
    atexit.register(leave)  # the first to be registered is the last to be called
    sys.path.remove(
        str(FILE.parent)
    )  # or else the modules beside this file would be found under their short names
    gc.disable()
    sys.modules["rfc3987_syntax"] = (
        None  # grammars of addresses, seconds to build, which nothing here asks about
    )
    for name in imported:
        importlib.import_module(name)
    del sys.modules["rfc3987_syntax"]
    # What is imported, half a million objects, stays: a fork that looks there for cycles would copy all of it, once in every
    # search and some times at its end, two seconds in all.
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGCHLD, reap)
    while 0 not in select.select([listener, 0], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            return become(connection)
        connection.close()


def leave() -> None:
    """After all else that is done at the end: no object is taken apart, the system takes the memory back at once."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(
            AttributeError, OSError, ValueError
        ):  # none, closed, or nobody reads it
            stream.flush()
    os._exit(0)


def reap(*_) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(connection: socket.socket) -> None:
    """Take on the caller's folder, environment and streams, and do what it asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    head, streams, *_ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as file:
        request = json.loads(file.read(int.from_bytes(head, "big")))
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    threading.Thread(target=watch, args=(connection,), daemon=True).start()
    sys.modules["numpy"].random.seed()  # Python's own generator is seeded anew by every fork
    sys.modules["torch"].seed()
    if "kernel" not in request:
        return answer(request, connection.sendall)
    return kernel(request["kernel"])


def watch(connection: socket.socket) -> None:
    """Hand interrupts on; end with the caller."""
    while connection.recv(1):
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(1)


def kernel(arguments: list[str]) -> None:
    """Be an IPython kernel, as `python -m ipykernel_launcher` is."""
    import ipykernel_launcher
    import matplotlib
    from ipykernel import kernelapp

    sys.argv = [ipykernel_launcher.__file__, *arguments]
    matplotlib.rcParams["backend"] = os.environ.setdefault(
        "MPLBACKEND", "module://matplotlib_inline.backend_inline"
    )
    kernelapp.launch_new_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


def answer(request: dict, send) -> None:
    sys.path.insert(0, str(ROOT))
    module, function = request["function"].split(":")
    value = getattr(importlib.import_module(module), function)(**request["arguments"])
    send(json.dumps(value).encode())


if __name__ == "__main__":
    if sys.argv[1] == "kernel":
        sys.exit(stand_in(sys.argv[2], sys.argv[3:]))
    elif sys.argv[1] == "serve":
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        answers, out = (
            os.fdopen(os.dup(1), "wb"),
            os.dup2(2, 1),
        )  # what the function prints is no part of its answer
        answer(json.loads(sys.stdin.read()), answers.write)
        answers.close()
