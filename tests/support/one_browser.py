"""A pytest plugin: one headless Chromium for each process that runs tests, and the order in which files are run.

Playwright keeps an event loop running in the process that uses it, and nothing else there can start one meanwhile. So the
browser stays from file to file as long as the next test wants it, and is closed before one that does not. Files that take
long come first, those with a browser side by side, so that two workers end at the same time.

Under load Chromium now and then stops drawing a tab for good, and a call that waits for such a tab has no limit of its own.
A browser that is found in that state, or that a test waits for too long, is ended; the test has one more try with a new one.
"""

import threading
from contextlib import suppress

import psutil
import pytest
from _pytest.runner import runtestprotocol

_running = []
_stuck = pytest.StashKey[bool]()
CUT = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"  # no other machine has a name
LONGEST = 300
"""Seconds that one test may hold the browser; the longest takes 35 where nothing is in its way."""
DRAWS = """() => new Promise(done => {
    requestAnimationFrame(() => requestAnimationFrame(() => done(true)));
    setTimeout(() => done(false), 10_000);
})"""


@pytest.fixture(scope="module")
def browser():
    """The browser of this process."""
    from playwright.sync_api import sync_playwright

    from tools.check import machine

    if not _running:
        place = machine.browser()
        assert place, "the pages need a browser; `make browser` gets one"
        before = set(psutil.Process().children())
        playwright = sync_playwright().start()
        driver = set(psutil.Process().children()) - before
        _running[:] = (
            playwright,
            playwright.chromium.launch(executable_path=place, args=["--no-sandbox", CUT]),
            driver,
        )
    return _running[1]


def wants_it(item) -> bool:
    """Whether a test uses the browser above, and not one of its own."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("browser")
    return bool(found) and found[-1].func.__module__ == __name__


def draws(browser) -> bool:
    """Whether a browser is there and every open tab of it still draws."""
    from playwright.sync_api import Error

    tabs = [tab for context in browser.contexts for tab in context.pages]
    try:
        return browser.is_connected() and all(tab.evaluate(DRAWS) for tab in tabs)
    except Error:  # it was ended meanwhile, or the tab has crashed
        return False


def end() -> None:
    """Close the browser and what drives it."""
    playwright, running, _ = _running
    running.close()
    playwright.stop()
    _running.clear()


def kill() -> None:
    """End every process of the browser: whatever waits for it gets an error at once."""
    for driver in _running[2] if _running else ():
        for process in driver.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if not wants_it(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(2):
        item.stash[_stuck] = False
        patience = threading.Timer(LONGEST, kill)
        patience.start()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        patience.cancel()
        if not item.stash[_stuck]:
            break
        item.session._setupstate.teardown_exact(None)  # what stands on the old browser
        if _running:
            kill()
            end()
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and _running and wants_it(item):
        item.stash[_stuck] = item.stash[_stuck] or not draws(_running[1])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    if _running and (nextitem is None or (nextitem.path != item.path and not wants_it(nextitem))):
        end()
    return result


LONG = (
    "test_processors.py",
    "test_every_tool_on_every_model.py",
    "test_claims.py",
    "test_fuzz.py",
    "test_types.py",
    "test_wheel.py",
)
"""Files without a browser that would keep one worker busy after the other has ended."""


def pytest_collection_modifyitems(items) -> None:
    with_browser = {item.path for item in items if wants_it(item)}

    def turn(item) -> tuple[bool, ...]:
        return (
            item.path.suffix != ".ipynb",
            item.path.name not in LONG,
            item.path not in with_browser,
        )

    items.sort(key=turn)
