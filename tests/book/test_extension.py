"""The functions of the book's extension on small inputs: signs, sizes of pictures, meanings, anchors."""

import sys
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document
from PIL import Image

from tools.check.numbers_in_prose import ROOT

sys.path.insert(0, str(ROOT / "book/_ext"))
from book_extension import claims, equations, lab, light, moved
from book_extension import page as form


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


def test_limits_and_sources_become_one_block_and_other_sections_stay_outside():
    titles = ["Summary", "What this page does not show", "Sources"]
    doctree = new_document("page")
    page = nodes.section("", nodes.title("", "Page"))
    page += [nodes.section("", nodes.title("", title)) for title in titles]
    doctree += page
    form.fold_limits(doctree)
    kinds = [one.astext() if isinstance(one, nodes.raw) else one[0].astext() for one in page[1:]]
    opening = '<details class="ck-limits"><summary>Limits and sources</summary>'
    assert kinds == [titles[0], opening, *titles[1:], "</details>"]


def test_an_old_address_leads_to_the_new_page_and_may_not_be_a_page_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(moved, "MOVED", {"book/a/old": "book/b/new"})
    builder = SimpleNamespace(format="html")
    env = SimpleNamespace(found_docs={"book/b/new"})
    app = SimpleNamespace(builder=builder, env=env, outdir=tmp_path)
    moved.write(app, None)
    assert 'url=../../book/b/new.html"' in (tmp_path / "book/a/old.html").read_text("utf-8")
    env.found_docs.add("book/a/old")
    with pytest.raises(ValueError, match="must not be a page"):
        moved.write(app, None)


PAGE = "book/1-residual-stream/circuit-in-one-picture"


@pytest.mark.parametrize(
    ("until", "opened"),
    [
        ("3 wires", {"cuts": 3, "until": "after you have cut three wires"}),
        ("2 heads", {"cuts": 2, "until": "after you have switched off two heads"}),
        ("prediction 2", {"key": f"circuitkit:prediction:{PAGE[5:]}:2"}),
        ("answer The second wire", {"key": f"circuitkit:answer:{PAGE[5:]}:The second wire"}),
    ],
)
def test_a_comment_says_what_opens_the_panels_of_a_lab(until, opened):
    found = lab.held(f"task: Cut it.\nclosed: wires, score\nuntil: {until}", PAGE)
    assert found["task"] == "Cut it."
    assert found["panels"] == ["wires", "score"]
    assert found | opened == found
    assert lab.held("task: Cut it.\ntext: Mr. D", PAGE)["text"] == "Mr. D"


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        (
            "task: Cut it.\nclosed: wires",
            "expected task, perhaps text, and perhaps closed and until",
        ),
        ("closed: wires", "expected task"),
        ("task: Cut it.\nclosed: wire\nuntil: 3 wires", "no panel 'wire'"),
        ("task: Cut it.\nclosed: wires\nuntil: 9 tries", "nothing opens a lab `until: 9 tries`"),
        ("task: Cut it.\nclosed: wires\nuntil: answer The third wire", "nothing opens a lab"),
    ],
)
def test_a_comment_that_nothing_opens_is_refused(comment, message):
    with pytest.raises(ValueError, match=message):
        lab.held(comment, PAGE)


def test_a_lab_says_how_much_its_model_loads():
    sizes = {preset: lab.megabytes(preset) for preset in ("dursley", "before", "neuron", "gate")}
    assert sizes == {"dursley": "1.8", "before": "1.1", "neuron": "2.5", "gate": "0.1"}
    assert 'data-size="2.5"' in lab.element("neuron", "lab.html")
