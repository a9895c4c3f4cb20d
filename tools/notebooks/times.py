"""A pytest plugin: sum what each notebook's cells take and print it beside what the notebook promises.

Nothing fails here: seconds depend on what else the machine does. `make bench` holds the promises to a ratio.

The durations are nbval's, one report a cell, so they include starting the kernel and comparing outputs. Under xdist the
reports of all workers reach the process that the user started, and only that one adds them up.
"""

from collections import defaultdict
from pathlib import Path

from tools.notebooks.promises import promise


class NotebookTimes:
    def __init__(self, root: Path):
        self.root, self.seconds = root, defaultdict(float)

    def pytest_runtest_logreport(self, report) -> None:
        name = report.nodeid.split("::")[0]
        if name.endswith(".ipynb"):
            self.seconds[name] += report.duration

    def promised(self, name: str) -> int | None:
        """The promised seconds; `None` where there are none, or none that can be read, which another test refuses."""
        try:
            said = promise(self.root / name)
        except ValueError:
            return None
        return said and said.seconds

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.seconds:
            terminalreporter.section("seconds that notebooks took")
        for name, taken in sorted(self.seconds.items()):
            said = self.promised(name)
            terminalreporter.line(
                f"{taken:6.1f}  {name}" + (f" (promised: {said})" if said else "")
            )


def pytest_configure(config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist only runs tests
        config.pluginmanager.register(NotebookTimes(config.rootpath), "notebook-times")
