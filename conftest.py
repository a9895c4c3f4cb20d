"""What holds for every test run from the root of the repository: notebooks are timed, and one browser serves all tests."""

pytest_plugins = ("tools.notebooks.times", "tests.support.one_browser")
