"""Every page of the built book, opened once in a browser at the width of a phone."""

import pytest

from tests.support.site import pages

OTHERS = ["search.html", "genindex.html", "404.html"]


@pytest.mark.parametrize("name", [*pages(), *OTHERS])
def test_page_loads_without_errors_outside_requests_or_sideways_scroll(open_page, site, name):
    opened = open_page(f"{site}/{name}")
    opened.read()
    assert opened.page.title()
    assert opened.problems == []
    assert opened.missing_images() == []
    assert opened.too_wide() == []
    assert opened.page.locator("mjx-merror").count() == 0, "a formula is not valid TeX"


FAULTS = {
    "console error": "<script>console.error('broken')</script>",
    "exception": "<script>undefinedName()</script>",
    "another host": "<script>fetch('https://example.org/x').catch(() => 0)</script>",
    "missing image": "<img src='none.png' alt='A picture'>",
    "900 px wide": "<div style='width: 900px'>wide</div>",
    "faint text": "<p style='color: #bbb; background: #fff'>faint</p>",
    "none": "<p>Nothing is wrong here.</p>",
}
PAGE = (
    "<!doctype html><html lang='en'><head><title>t</title><link rel='icon' href='data:,'></head>"
    "<body><main><h1>Title</h1>{}</main></body></html>"
)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(open_page, tmp_path, fault):
    (tmp_path / "page.html").write_text(PAGE.format(FAULTS[fault]))
    opened = open_page((tmp_path / "page.html").as_uri())
    opened.page.wait_for_timeout(100)
    found = {
        "console error": opened.problems,
        "exception": opened.problems,
        "another host": opened.problems,
        "missing image": opened.missing_images(),
        "900 px wide": opened.too_wide(),
        "faint text": opened.accessibility_faults(),
    }
    if fault == "none":
        assert not any(found.values())
    else:
        assert found[fault]
