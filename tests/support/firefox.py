"""Firefox, driven by its own protocol Marionette; every request to the network goes to a proxy that answers nothing and notes it.

Playwright's build of Firefox is not used, because readers do not have it.
"""

import json
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

# Port 0: a free one, which Firefox writes into its profile.
SETTINGS = {
    "marionette.port": 0,
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.allow_hijacking_localhost": True,
}
SECONDS = 60


class Noted(StreamRequestHandler):
    def handle(self):
        """Note the first line of a request, and close the connection."""
        self.server.lines.append(self.rfile.readline().decode(errors="replace").strip())


class Firefox:
    """One window without a display. `asked` has the first line of each request that a page made."""

    def __init__(self, profile: Path):
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        assert program, "Firefox is not installed; run `make firefox`"
        self.proxy = ThreadingTCPServer(("127.0.0.1", 0), Noted)
        self.proxy.lines = []
        threading.Thread(target=self.proxy.serve_forever, daemon=True).start()
        port = self.proxy.server_address[1]
        settings = SETTINGS | {"network.proxy.http_port": port, "network.proxy.ssl_port": port}
        lines = [f"user_pref({json.dumps(key)}, {json.dumps(settings[key])});" for key in settings]
        (profile / "user.js").write_text("\n".join(lines))
        self.process = subprocess.Popen(
            [program, "--headless", "--marionette", "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.count = 0
        self.connect(profile / "MarionetteActivePort")

    def connect(self, port: Path) -> None:
        """Wait until Firefox has started, and begin a session."""
        end = time.monotonic() + SECONDS
        while not (port.is_file() and port.read_text().strip()):
            assert time.monotonic() < end, "Firefox did not start"
            time.sleep(0.1)
        self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())), SECONDS)
        self.stream = self.socket.makefile("rb")
        self.read()  # a greeting
        self.command("WebDriver:NewSession", capabilities={})

    def read(self):
        """The next message: its length in bytes, a colon, and JSON."""
        length = b""
        while (byte := self.stream.read(1)) != b":":
            length += byte
        return json.loads(self.stream.read(int(length)))

    def command(self, name: str, **parameters):
        self.count += 1
        text = json.dumps([0, self.count, name, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(text), text))
        _, number, error, value = self.read()
        assert number == self.count
        assert not error, error
        return value

    def go(self, address: str) -> None:
        self.command("WebDriver:Navigate", url=address)

    def run(self, script: str):
        """What the body of a function returns in the page."""
        return self.command("WebDriver:ExecuteScript", script=script, args=[])["value"]

    def wait_for(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.run(f"return Boolean({expression})"):
            assert time.monotonic() < end, f"this did not become true: {expression}"
            time.sleep(0.1)

    @property
    def asked(self) -> list[str]:
        """Firefox itself asks for its own services, which is not the page's doing."""
        return [
            line for line in self.proxy.lines if "mozilla" not in line and "firefox" not in line
        ]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(SECONDS)
        self.stream.close()
        self.socket.close()
        self.proxy.shutdown()
        self.proxy.server_close()
