"""No page transfers more than three megabytes from a host that compresses, and nothing is loaded twice."""

import random
from collections import Counter
from urllib.parse import urlparse

import pytest
from browser_tools import HTML, pages, read_to_its_end

from tools.publish.lighthouse import served

MOST = 3_000_000


def loaded(browser, address: str) -> list[tuple[str, int]]:
    """What the browser fetches for a page that is read to its end: path and bytes of each answer, from its own log."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, service_workers="block")
    page, paths, sizes = context.new_page(), {}, Counter()
    log = context.new_cdp_session(page)
    log.send("Network.enable")
    log.on("Network.responseReceived", lambda event: paths.update({event["requestId"]: event["response"]["url"]}))
    log.on("Network.loadingFinished", lambda event: sizes.update({event["requestId"]: int(event["encodedDataLength"])}))
    page.goto(address, wait_until="load")
    read_to_its_end(page)
    page.wait_for_load_state("networkidle")
    context.close()
    return [(urlparse(url).path, sizes[request]) for request, url in paths.items() if url.startswith("http")]


@pytest.mark.parametrize("name", pages())
def test_a_page_is_light_and_loads_nothing_twice(browser, name):
    assert HTML.is_dir(), "the book is not built; run `make book` first"
    with served(HTML) as address:
        found = loaded(browser, f"{address}/{name}")
    total = sum(size for _, size in found)
    assert total > 100_000  # the log was read
    assert total <= MOST, sorted(found, key=lambda item: -item[1])[:5]
    assert [path for path, count in Counter(path for path, _ in found).items() if count > 1] == []


def test_a_heavy_page_is_noticed(browser, tmp_path):
    (tmp_path / "heavy.js").write_text("//" + random.Random(0).randbytes(MOST).hex())
    (tmp_path / "page.html").write_text(
        "<!doctype html><title>t</title><link rel=icon href=data:,><script src=heavy.js></script>"
    )
    with served(tmp_path) as address:
        assert sum(size for _, size in loaded(browser, f"{address}/page.html")) > MOST
