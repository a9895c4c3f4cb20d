"""What holds for every test run from the root of the repository: notebooks are timed against what they promise."""

pytest_plugins = ("tools.notebooks.times",)
