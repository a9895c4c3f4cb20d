"""A browser that stops does not stop the tests: what waits for it ends, and has one more try with a new one."""

import subprocess
import sys

ROOT_OPTIONS = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "tests.support.one_browser",
    "-c",
    "/dev/null",
    "--rootdir",
]
STUCK = """
import pytest
from tests.support import one_browser

one_browser.LONGEST, one_browser.DRAWS = 6, one_browser.DRAWS.replace("10_000", "1_000")
tries = dict.fromkeys(["waits", "always", "frames", "wrong", "leaves"], 0)
EVER = "new Promise(() => {})"

@pytest.fixture(scope="module")
def shared(browser):
    context = browser.new_context()
    yield context
    context.close()

def counted(name):
    tries[name] += 1
    return tries[name]

def test_waits_once(shared):
    page = shared.new_page()
    if counted("waits") == 1:
        page.evaluate(EVER)

def test_waits_always(shared):
    counted("always")
    shared.new_page().evaluate(EVER)

def test_draws_no_frame_once(shared):
    page = shared.new_page()
    if counted("frames") == 1:
        page.evaluate("window.requestAnimationFrame = () => 0")
        raise ValueError("no frame")

def test_is_wrong(shared):
    counted("wrong")
    assert shared.new_page().evaluate("1 + 1") == 3

@pytest.fixture
def leaves(browser):
    context = browser.new_context()
    page = context.new_page()
    yield page
    if counted("leaves") == 1:
        page.evaluate(EVER)
    context.close()

def test_stops_while_it_is_left(leaves):
    assert leaves.evaluate("1 + 1") == 2

def test_the_browser_is_there(shared):
    assert shared.new_page().evaluate("1 + 1") == 2

def test_tries():
    assert tries == {"waits": 2, "always": 2, "frames": 2, "wrong": 1, "leaves": 2}
"""


def test_what_waits_for_a_browser_that_stopped_is_tried_once_more(tmp_path, request):
    file = tmp_path / "test_stuck.py"
    file.write_text(STUCK)
    root = request.config.rootpath
    command = [sys.executable, "-m", "pytest", *ROOT_OPTIONS, str(tmp_path), str(file)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=280)
    assert "2 failed, 5 passed" in done.stdout, done.stdout
    assert "FAILED" in done.stdout
    assert [
        line.split("::")[1].split(" ")[0]
        for line in done.stdout.splitlines()
        if line.startswith("FAILED")
    ] == [
        "test_waits_always",
        "test_is_wrong",
    ]
