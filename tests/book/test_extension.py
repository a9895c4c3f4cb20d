"""The functions of the book's extension on small inputs: signs, sizes of pictures, meanings, anchors."""

import sys

import pytest
from PIL import Image

from tools.check.numbers_in_prose import ROOT

sys.path.insert(0, str(ROOT / "book/_ext"))
from book_extension import claims, equations, light


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (-0.25, "−0.25"),
        (-3, "−3"),
        (1.5e-7, "1.5e-7"),
        (-12345.6, "−12\u202f346"),
        (0.123456, "0.1235"),
        (True, "yes"),
        (False, "no"),
        ([-1, 2.5], "−1, 2.5"),
        ("a < b", "a &lt; b"),
    ],
)
def test_a_number_of_the_register_keeps_its_sign_and_size(value, written):
    assert claims.number(value) == written


def test_a_number_below_its_tolerance_is_0_and_one_above_is_not():
    assert claims.number(-1e-6, 1e-5) == "0 (to 1e-5)"
    assert claims.number(-2e-5, 1e-5) == "−2e-5"


def test_a_null_is_its_two_ends_in_their_order():
    assert claims.null_range([-0.2, 0.3]) == "−0.2 to 0.3"
    assert claims.null_range([0.5, 0.5]) == "0.5"


def test_words_of_a_claim_become_code_and_links():
    said = claims.prose("see `a<b` and P21")
    assert said == 'see <code>a&lt;b</code> and <a href="#p21">P21</a>'
    assert claims.address("a/b#c") == "a/b.html#c"
    assert claims.address("a/b") == "a/b.html"


def test_a_picture_keeps_its_shape(tmp_path):
    Image.new("RGB", (300, 120)).save(tmp_path / "one.png")
    assert light.size(tmp_path / "one.png") == ' width="300" height="120"'
    assert light.size(tmp_path / "one.png", 150) == ' height="60"'
    assert 'height="60"' in light.lazy('<img src="one.png" width="150">', tmp_path)
    first = '<img class="ck-picture" src="one.png">'
    once, twice = light.lazy(first * 2, tmp_path).split("<img")[1:]
    assert ("lazy" in once, "lazy" in twice) == (False, True)


def test_an_equation_has_the_name_of_its_own_number():
    context = {"body": '<div class="math notranslate nohighlight" id="eq-3-12">'}
    equations.reachable(None, "", "", context, None)
    assert 'id="eq-3-12" tabindex="0" role="group" aria-label="Equation 3.12"' in context["body"]


def test_a_picture_that_is_wide_has_a_box_of_its_width():
    link = '<a class="ck-picture x" href="a"><img src="a.png" width="{}"></a>'
    assert light.wide(link.format(951)).startswith('<div class="ck-pan" style="--ck-natural: 951">')
    assert light.wide(link.format(950)) == link.format(950)
