"""Weekly: every page in both themes and at both widths, pictures on phones."""

import pytest
from playwright.sync_api import expect

from tests.support.site import DESKTOP, PHONE, pages

pytestmark = pytest.mark.weekly

PICTURE_WIDTHS = """[...document.querySelectorAll(".ck-pan")].map(box => {
    const drawn = box.querySelector("svg, img");
    const share = drawn.getBoundingClientRect().width / box.style.getPropertyValue("--ck-natural");
    return [drawn.tagName, share];
})"""


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", pages())
def test_page_is_accessible_and_fits_in_every_theme_and_width(open_page, site, name, theme, width):
    opened = open_page(f"{site}/{name}", width=width, theme=theme)
    assert opened.page.evaluate("document.documentElement.dataset.theme") == theme
    opened.read()
    assert opened.problems == []
    assert opened.too_wide() == []
    assert opened.accessibility_faults() == []


@pytest.mark.parametrize("address", ["book/claims.html?verdict=wrong", "search.html?q=softmax"])
def test_what_is_found_is_accessible(open_page, site, address):
    opened = open_page(f"{site}/{address}")
    opened.read()
    assert opened.accessibility_faults() == []


@pytest.mark.parametrize(
    "name", ["3-induction-heads/why-two-layers", "4-mlps-as-heads/omega-construction"]
)
def test_pictures_on_a_phone_stay_large_enough_to_read(open_page, site, name):
    opened = open_page(f"{site}/book/{name}.html")
    opened.read()
    shares = opened.page.evaluate(PICTURE_WIDTHS)
    smallest = {"svg": 0.77, "IMG": 0.49}
    assert shares
    assert [share for kind, share in shares if not smallest[kind] <= share < 1.01] == []


def test_home_page_shows_the_narrow_picture_on_a_phone(open_page, site):
    page = open_page(f"{site}/book/intro.html").page
    picture = page.locator("article img.ck-picture").first
    assert picture.evaluate("image => image.currentSrc").endswith("home-phone.png")


def test_paper_is_light_when_the_screen_is_dark(open_page, site):
    page = open_page(f"{site}/book/lab.html", theme="dark").page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
