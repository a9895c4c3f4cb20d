"""What holds for every test run from the root of the repository: annotations are checked, notebooks are timed and run in
forks of one process, and one browser serves all tests."""

pytest_plugins = (
    "tests.support.checked_shapes",
    "tools.notebooks.times",
    "tools.notebooks.kernels",
    "tests.support.one_browser",
)
