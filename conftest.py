"""What holds for every test run from the root of the repository: notebooks are timed and run in forks of one process, and
one browser serves all tests."""

pytest_plugins = ("tools.notebooks.times", "tools.notebooks.kernels", "tests.support.one_browser")
