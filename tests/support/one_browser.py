"""A pytest plugin: one headless Chromium for each process that runs tests, and the order in which files are run.

Playwright keeps an event loop running in the process that uses it, and nothing else there can start one meanwhile. So the
browser stays from file to file as long as the next test wants it, and is closed before one that does not. Files that take
long come first, those with a browser side by side, so that two workers end at the same time.
"""

import pytest

_running = []
CUT = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"  # no other machine has a name


@pytest.fixture(scope="module")
def browser():
    """The browser of this process."""
    from playwright.sync_api import sync_playwright

    from tools.check import machine

    if not _running:
        place = machine.browser()
        assert place, "the pages need a browser; `make browser` gets one"
        playwright = sync_playwright().start()
        _running[:] = playwright, playwright.chromium.launch(executable_path=place, args=["--no-sandbox", CUT])
    return _running[1]


def wants_it(item) -> bool:
    """Whether a test uses the browser above, and not one of its own."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("browser")
    return bool(found) and found[-1].func.__module__ == __name__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    if _running and (nextitem is None or (nextitem.path != item.path and not wants_it(nextitem))):
        playwright, running = _running
        running.close()
        playwright.stop()
        _running.clear()
    return result


LONG = ("test_processors.py", "test_every_tool_on_every_model.py", "test_claims.py", "test_fuzz.py", "test_types.py", "test_wheel.py")
"""Files without a browser that would keep one worker busy after the other has ended."""


def pytest_collection_modifyitems(items) -> None:
    with_browser = {item.path for item in items if wants_it(item)}

    def turn(item) -> tuple[bool, ...]:
        return item.path.suffix != ".ipynb", item.path.name not in LONG, item.path not in with_browser

    items.sort(key=turn)
