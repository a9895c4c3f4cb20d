"""Refuses what an answer has no reason to do. It catches accidents and simple pranks, and is no sandbox."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
}
"""Events of Python that change files, with the number of their paths."""
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.startfile")  # fmt: skip
NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo")


class Guard:
    """Refuses to change files outside a folder, to start or stop programs, and to use the network.

    It listens to the events that Python reports to `sys.addaudithook`, so code that goes past Python is not seen.
    """

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.refused = ""
        """What was refused first, in a sentence."""
        sys.addaudithook(self)

    def __call__(self, event: str, args: Sequence[Any]) -> None:
        """Raise an error if an event is refused."""
        if event == "open":
            path, mode, flags = args
            if is_write(mode, flags):
                self.require_inside([path])
        elif event in CHANGES:
            self.require_inside(args[: CHANGES[event]])
        elif event in PROGRAMS:
            self.refuse("It starts or stops another program, which is refused.")
        elif event in NETWORK:
            self.refuse("It uses the network, which is refused.")

    def require_inside(self, paths: Sequence[Any]) -> None:
        """Raise an error unless all paths are inside the folder."""
        for path in paths:
            if not isinstance(path, (str, bytes, os.PathLike)) or os.fspath(path) == os.devnull:
                continue
            place = Path(os.fsdecode(path)).resolve()
            if not place.is_relative_to(self.folder):
                self.refuse("It writes outside its own folder, which is refused.")

    def refuse(self, sentence: str) -> None:
        """Note what was refused, and raise an error."""
        self.refused = self.refused or sentence
        raise PermissionError(sentence)


def is_write(mode: Any, flags: Any) -> bool:
    """Return whether a file is opened so that it can be changed."""
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & WRITES)
