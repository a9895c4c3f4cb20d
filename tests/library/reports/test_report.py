"""`ck.report`: its numbers are those of the tools, a part that fails stops no other, and the page opens by itself."""

import ast
import html
import math
import os
import re
import shutil
import signal
import threading
import warnings
from pathlib import Path

import joblib
import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup

import circuitkit as ck
from circuitkit.__main__ import main
from circuitkit.reports import document, measures, page, rules, showcase, wires
from circuitkit.reports.lines import Behaviour, Line
from circuitkit.reports.logits import Unembedding
from tests.support import tiny_models

STORED = Path(__file__).resolve().parents[3] / "book" / "_static" / "reports"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def made(folder):
    return ck.report("two-layer", folder / "two.html")


@pytest.fixture(scope="module")
def of_one_layer(folder):
    return ck.report("one-layer", folder / "one.html")


@pytest.fixture(scope="module")
def of_mlps():
    return ck.report("two-layer-mlp")


TINY = {"d_model": 12, "d_head": 4, "n_layers": 1, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}


def line(report, part, name, measure):
    table = report.table
    chosen = (table["part"] == part) & (table["name"] == name) & (table["measure"] == measure)
    (row,) = table[chosen].to_dict("records")
    return row


def test_scores_by_hand(made):
    """From transformer-lens patterns, by a loop over rows: each row has a period of its own."""
    model, periods = ck.load_model("two-layer"), torch.linspace(33, 64, 16).int().tolist()
    rows = rules.random_rows(model)
    _, cache = model.run_with_cache(rows.tokens)
    seen = torch.cat([cache["pattern", 0], cache["pattern", 1]], dim=1)
    expected = {kind: [] for kind in rules.ATTENTION}
    for pattern, tokens, period in zip(seen, rows.tokens, periods, strict=True):
        assert tokens[1 : 1 + period].equal(tokens[1 + period : 1 + 2 * period])
        second = range(1 + period, 1 + 2 * period)
        later = range(2, len(tokens))
        expected["prefix matching"].append(
            sum(pattern[:, t, t - period + 1] for t in second) / period
        )
        expected["duplicate token"].append(sum(pattern[:, t, t - period] for t in second) / period)
        expected["previous token"].append(sum(pattern[:, t, t - 1] for t in later) / len(later))
        expected["first token"].append(sum(pattern[:, t, 0] for t in later) / len(later))
    for kind, by_row in expected.items():
        by_row = torch.stack(by_row)
        for i, name in enumerate(ck.heads_of(model).names):
            row, error = line(made, "behaviour", name, kind), by_row[:, i].std() / 16**0.5
            assert row["value"] == pytest.approx(float(by_row[:, i].mean()), abs=2e-5)
            assert row["high"] - row["low"] == pytest.approx(float(2 * 2.13 * error), abs=2e-5)


def test_every_line_has_a_key_of_its_own(made, of_one_layer, of_mlps):
    """In the reports of all shipped models; in two of them, different tokens are spelled alike."""
    n_alike = 0
    reports = [ck.report("zero-layer"), of_one_layer, made, of_mlps]
    assert [report.title for report in reports] == ck.list_models()
    for report in reports:
        keys = report.table[["part", "name", "measure", "text"]]
        assert not keys.duplicated().any(), report.title
        n_alike += keys["text"].str.endswith(" (2)").sum()
    assert n_alike > 1


def named(report, measure):
    table = report.table
    return list(table["name"][(table["measure"] == measure) & (table["named"] == True)])  # noqa: E712


def test_the_shipped_two_layer_model_has_its_induction_head_and_its_wires(made):
    row = line(made, "behaviour", "L1H3", "prefix matching")
    assert row["low"] > 0.7 > 0.1 > row["control"]
    assert named(made, "prefix matching") == named(made, "copying") == ["L1H3"]
    assert named(made, "previous token") == ["L0H1"]
    assert {"L0H1->L1H3.K", "L0H1->L1H3.Q"} <= set(named(made, "wire"))
    (circuit,) = named(made, "induction")
    assert "L0H1->L1H3.K" in circuit.split(", ")
    ablated = line(made, "ablation prefix matching", "prefix matching", "loss without")
    assert ablated["low"] > 4 * abs(ablated["control"])


def test_no_head_of_a_one_layer_model_is_said_to_do_induction(of_one_layer):
    assert named(of_one_layer, "prefix matching") == []
    assert "so no induction head was found" in of_one_layer.html
    assert not any("prefix matching" in part for part in of_one_layer.table["part"])


@pytest.mark.parametrize(
    ("norm", "std"),
    [
        (None, 0.02),
        ("LN", 0.15),
        pytest.param(None, 0.15, marks=pytest.mark.weekly),
        pytest.param("LN", 0.02, marks=pytest.mark.weekly),
    ],
)
def test_nothing_is_named_in_a_model_with_random_weights(norm, std):
    config = {"d_model": 32, "d_head": 8, "n_layers": 2, "n_ctx": 64, "n_heads": 4, "d_vocab": 50}
    model = tiny_models.boot(torch.float32, normalization_type=norm, **config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, std, generator=generator)
    report = ck.report(model)
    assert not report.problems
    assert not report.table["named"].eq(True).any()


def test_a_cut_wire_is_what_run_computes_without_it():
    """With one row, the mean over rows and positions is a constant; `run` is given the same one."""
    model = ck.load_model("two-layer")
    rows = rules.random_rows(model)
    done = ck.run(model, rows.tokens)
    weights = {"prefix matching": rules.excess_weights(rows, "prefix matching")}
    unembedding = Unembedding.of(done, rows.tokens.unique())
    reader = wires.Reader(unembedding, weights, "L1H3")
    pattern = done.pattern("L1H3")[:, None]
    score = rules.attention_score(pattern, rows, "prefix matching")
    assert reader.whole["prefix matching"] == pytest.approx(float(score.excess), abs=1e-5)
    written = done.part("L0H1", before="L1H3")
    zero = ck.run(model, rows.tokens, without="L0H1->L1H3.K")
    without = rules.attention_score(zero.pattern("L1H3")[:, None], rows, "prefix matching")
    lost = reader.lost("K", reader.without(written), rows.tokens)["prefix matching"]
    assert lost == pytest.approx(1 - float(without.excess / score.excess), abs=1e-4)


def test_the_procedure_of_benjamini_and_hochberg():
    assert rules.largest_accepted([]) == rules.largest_accepted([0.06]) == 0
    assert rules.largest_accepted([0.04, 0.03]) == 0.04  # 0.03 alone would not pass
    # their example of 1995, section 3: four of these fifteen hypotheses are rejected
    p = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    p += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert rules.largest_accepted(p) == p[3]


def test_the_terms_of_the_logit_add_up(made):
    model = ck.load_model("two-layer")
    logits = model(model.to_tokens(showcase.TEXT))[0, -1].double()
    terms = made.table[made.table["measure"] == "adds to the logit"]["value"]
    assert terms.sum() == pytest.approx(float(logits.max() - logits.mean()), abs=1e-3)


def test_the_page_counts_what_was_tried_and_named(made):
    written = BeautifulSoup(made.html, "html.parser")
    counts = {row.th.next: row("td") for row in written.select("#tested tbody tr")}
    limits = {row.th.text: row("td") for row in written.select("#rules table")[0]("tr")[1:]}
    for kind in (*Behaviour, "wire", "skip trigram"):
        lines = made.table[made.table["measure"] == kind]
        is_named = lines["named"] == True  # noqa: E712
        found = lines["p"][is_named]
        strongest = lines[is_named].sort_values("value", ascending=False)["name"].head(1)
        tried, told = [cell.text for cell in counts[kind.capitalize()]]
        assert tried == str(len(lines)), kind
        assert told == ": ".join([str(len(found)), *strongest]), kind
        largest = limits[kind][1].text
        if found.empty:
            assert largest == "", kind
        elif found.max() < 1e-12:
            assert largest == "< 1e-12", kind
        else:
            assert float(largest) == float(f"{found.max():.0e}"), kind


def cells_of(svg):
    """The value of each cell that a heat map shades, by row and column, negative in the class fall."""
    cells = {}
    for path in BeautifulSoup(svg, "html.parser").select("g path"):
        sign = 1 if path["class"] == ["rise"] else -1
        for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", path["d"]):
            cells[int(row), int(column)] = sign * float(path["fill-opacity"])
    return cells


def test_rows_of_the_pictures_are_layers_and_destinations():
    lines = [Line(f"L{k}H{h}", "copying", k / 2 + h / 10) for k in range(2) for h in range(3)]
    lines[1] = Line("L0H1", "copying", -0.3)
    draw = page.template("drawings.html").module.heat_map
    (scores,) = map(draw, page.score_maps(lines[:-1]))  # layer 1 has two heads
    assert cells_of(scores) == {(0, 1): -0.3, (0, 2): 0.2, (1, 0): 0.5, (1, 1): 0.6}
    assert ">← layer<" in scores
    assert ">head 0 to 2 →<" in scores
    weights = torch.tensor([[1.0, 0.0], [0.24, 0.76]])
    pattern = draw(page.heat_map("L1H2", weights, "source", "destination"))
    assert cells_of(pattern) == {(0, 0): 1.0, (1, 0): 0.2, (1, 1): 0.8}
    assert ">← destination<" in pattern


def test_the_drawing_of_a_circuit_has_the_named_wires_and_their_numbers(made):
    drawing = BeautifulSoup(made.html, "html.parser").select_one("#found svg")
    table = made.table
    is_named = (table["measure"] == "wire") & (table["named"] == True)  # noqa: E712
    wires_named = table[is_named & (table["text"] == "prefix matching")].to_dict("records")
    expected = [f"{row['name'][-1]}{row['value']:.0%}" for row in wires_named]
    assert sorted(group.text for group in drawing.select("g")) == sorted(expected)
    assert [text.text for text in drawing.select(".name")] == ["L1H3", "L0H0", "L0H1"]


def sentences_of(report):
    found = BeautifulSoup(report.html, "html.parser").select("#found li")
    return [" ".join(item.text.split()) for item in found]


def test_the_first_sentences_say_what_was_found(made, of_one_layer, of_mlps):
    repeats, head, wire = sentences_of(made)
    first, second = [
        line(made, "repeats", "model", f"loss on the {n} pass")["value"]
        for n in ("first", "second")
    ]
    right = line(made, "repeats", "model", "predicts repeats")
    assert repeats.startswith("The model predicts repeats: if a span of 64 random tokens")
    assert f"right at {right['value']:.0%} of the positions of the second pass" in repeats
    assert f"is {first:.2f} nats on the first pass and {second:.2f} on the second" in repeats
    assert (
        f"nats on random tokens, where the same probability for all tokens would give {math.log(2048):.2f}"
        in " ".join(made.html.split())
    )
    score = line(made, "behaviour", "L1H3", "prefix matching")["value"]
    assert head.startswith("Head L1H3 attends to the token that followed an earlier copy")
    assert "induction head" in head
    assert f"{score:.0%} of its attention" in head
    assert wire.startswith("Head L1H3 needs what L0H1 writes")
    assert "of its attention to the token that followed an earlier copy is lost" in wire
    _, head, text = sentences_of(of_mlps)
    assert "induction head" in head
    told = line(of_mlps, "next token without", "L1H2", "probability without")
    assert f"{told['value']:.2g} without L1H2" in text
    repeats, head, _ = sentences_of(of_one_layer)
    assert repeats.startswith("The model does not predict repeats")
    assert "No head was found that does induction: none of 4 heads" in head
    _, only = sentences_of(ck.report("zero-layer"))
    assert "the model predicts" in only


def test_repeats_that_no_head_explains_and_heads_that_replace_each_other_have_a_sentence():
    """The lines are made up, and only the words are tested."""
    lines = [
        Line("model", "loss on the first pass", 5.0),
        Line("model", "loss on the second pass", 2.0),
        Line("model", "predicts repeats", 0.6, control=0, named=True),
        Line("model", "repeats not explained", 0.6),
        Line(
            "L0H0 + L0H1->L1H2.K",
            "group wire",
            0.9,
            control=0.1,
            named=True,
            text="prefix matching",
        ),
    ]
    subject = measures.Subject("zero-layer", (0, 1), "")
    results = {"repeats": lines[:4], "wires": lines[4:], "circuits": []}
    written = page.page_of("title", results, {}, {}, subject)
    repeats, group = sentences_of(document.ModelReport("title", None, {}, written))
    assert "no head that we test explains" in repeats
    assert group.startswith(
        "Head L1H2 needs what L0H0, L0H1 write, and one of them can replace another"
    )
    assert (
        "its keys, 90% of its attention to the token that followed an earlier copy is lost" in group
    )
    drawing = BeautifulSoup(written, "html.parser").select_one("#found svg")
    assert [text.text for text in drawing.select(".name")] == ["L1H2", "L0H0", "L0H1"]
    assert [group.text for group in drawing.select("g")] == ["K", "Ktogether 90%"]


def test_a_copying_head_is_said_to_copy_before_its_skip_trigram_and_a_loss_can_fall():
    """The lines are made up, and only the words are tested."""
    shown = ("prefix matching", "copying")
    scores = [Line("L0H0", kind, 0.9, control=0.1, named=kind in shown) for kind in Behaviour]
    trigram = Line("L0H0", "skip trigram", 3.0, control=0.2, named=True, text="a … b → a")
    loss = Line("prefix matching", "loss without", -1.5, control=-0.5, text="L0H0")
    results = {"behaviour": scores, "ablation prefix matching": [loss], "trigrams L0": [trigram]}
    subject = measures.Subject("zero-layer", (0, 1), "")
    written = page.page_of("title", results, {}, {}, subject)
    head, rule = sentences_of(document.ModelReport("title", None, {}, written))
    assert "the loss on the second pass falls by 1.50 nats" in head
    assert rule.startswith("Head L0H0 copies")
    assert "For example, if the current token is b and a came" in rule
    text = " ".join(BeautifulSoup(written, "html.parser").text.split())
    assert "A negative change means that the model predicts" in text


def test_every_link_of_a_page_leads_to_a_line(made, of_one_layer, of_mlps):
    for report in (made, of_one_layer, of_mlps, ck.report("zero-layer")):
        written = BeautifulSoup(report.html, "html.parser")
        ids = [element["id"] for element in written.select("[id]")]
        assert len(ids) == len(set(ids))
        links = {link["href"].removeprefix("#") for link in written.select("a[href]")}
        assert links <= set(ids)
        assert links


def test_a_p_value_is_never_zero():
    assert [page.p_value(p) for p in (0.0, 1e-13, 0.0123, math.nan)] == [
        "< 1e-12",
        "< 1e-12",
        "0.01",
        "",
    ]


def test_the_title_is_no_path(tmp_path):
    model = tiny_models.boot(torch.float32, **TINY)
    model.cfg.model_name = str(tmp_path / "mine")
    assert document.title_of(model) == "mine"
    assert document.title_of(tmp_path) == document.title_of(str(tmp_path)) == tmp_path.name
    assert document.title_of("two-layer") == "two-layer"
    model.cfg.model_name = "somebody/mine"  # a name of the Hub
    assert document.title_of(model) == "somebody/mine"


def test_without_a_tokenizer_the_prompt_repeats_and_the_page_begins_with_words():
    model = tiny_models.boot(torch.float32, **TINY)
    ids = showcase.prompt_ids(model, None)
    assert len(ids) == 16
    assert ids[9:] == ids[:7]
    assert len(set(ids)) == 9
    report = ck.report(model)
    text = BeautifulSoup(report.html, "html.parser").select_one("#next-token p").text
    assert text.startswith(
        "After a row of 16 random tokens, most of which come twice, the model predicts #"
    )
    *_, last = sentences_of(report)
    assert last.startswith("Nothing else was found: the report tested 42 statements")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused():
    tokenizer = ck.load_model("two-layer").tokenizer
    model = tiny_models.boot(torch.float32, **TINY | {"n_ctx": 64})
    model.tokenizer = tokenizer
    with pytest.raises(ValueError, match="but this model has the tokens 0 to 22"):
        ck.report(model)


def test_the_divergence_of_a_converted_model_is_from_the_original_to_it():
    model = ck.load_model("two-layer-mlp")
    # sharper predictions, so that the two directions differ
    model.unembed.original_component.weight.data.mul_(10)
    tokens = model.to_tokens(showcase.TEXT)
    lines = measures.mlps(measures.Subject(model, tuple(tokens[0].tolist()), ""), 1)
    (told,) = [line.value for line in lines if line.measure == "KL to the original"]
    converted = ck.to_attention_only(model, heads_per_neuron=1)
    p, q = (m(tokens)[0].detach().double().log_softmax(-1) for m in (model, converted))
    there, back = (float((x.exp() * (x - y)).sum(-1).mean()) for x, y in ((p, q), (q, p)))
    assert told == pytest.approx(there, rel=0.01)
    assert told != pytest.approx(back, rel=0.05)


def test_mlps_as_heads_err_by_no_more_than_promised(of_mlps):
    assert not of_mlps.problems
    table = of_mlps.table
    errors = table[table["measure"] == "measured error"]
    promises = table[table["measure"] == "promised error"]
    assert len(errors) == len(promises) == 8
    assert (errors["value"].to_numpy() <= promises["value"].to_numpy()).all()


def test_the_page_gives_the_largest_error_of_any_layer():
    """Two layers of one conversion, the second with twice the error of the first."""
    shown = ("measured error", "promised error", "KL to the original", "same first choice")
    values = {name: [0.125, 0.25] if "error" in name else [0.375] for name in shown}
    lines = [
        Line(f"L{layer} MLP", name, value, text="2 heads per neuron")
        for name, some in values.items()
        for layer, value in enumerate(some)
    ]
    subject = measures.Subject("zero-layer", (0, 1), "")
    written = page.page_of("title", {"mlps 2": lines}, {}, {}, subject)
    row = BeautifulSoup(written, "html.parser").select_one("#mlps tbody tr")
    assert [cell.text for cell in row.find_all("td")] == ["0.25", "0.25", "0.375", "0.375"]


def test_the_table_on_disk_is_the_table_of_the_report(made, folder):
    table = pd.read_csv(folder / "two.csv", keep_default_na=False)
    assert list(table) == list(document.COLUMNS)
    assert len(table) == len(made.table)
    assert all(math.isfinite(value) for value in table["value"])
    assert {path.name for path in folder.iterdir()} >= {"two.html", "two.csv"}
    assert not [path for path in folder.iterdir() if path.is_dir()]


def read(name):
    numbers = dict.fromkeys(("p", "control", "low", "high"), [""])
    return pd.read_csv(STORED / f"{name}.csv", keep_default_na=False, na_values=numbers)


@pytest.mark.parametrize("name", ck.list_models())
def test_there_is_a_stored_page(name):
    assert f"<h1>{name}</h1>" in (STORED / f"{name}.html").read_text("utf-8")
    assert f"{name}.html" in (STORED.parents[1] / "models-and-heads.ipynb").read_text("utf-8")


def test_a_report_that_is_made_now_has_the_stored_lines(made):
    """So `test_by_hand.py`, which computes the stored lines again, is about the code."""
    stored, now = read("two-layer"), made.table
    key = ["part", "name", "measure", "text"]
    assert now[key].to_dict("records") == stored[key].to_dict("records")
    assert now["named"].map(str).tolist() == [str(named or None) for named in stored["named"]]
    for column in ("value", "low", "high", "control"):
        found, expected = now[column].to_numpy(float), stored[column].to_numpy(float)
        assert found == pytest.approx(expected, rel=2e-3, abs=2e-4, nan_ok=True)
    # on the scale of the logarithm, where small ones differ
    found, expected = (table["p"].clip(lower=1e-300).map(math.log) for table in (now, stored))
    assert list(found) == pytest.approx(list(expected), rel=0.02, abs=0.02, nan_ok=True)


def test_the_stored_numbers_of_one_layer_are_still_those_of_the_model(of_one_layer):
    stored, now = read("one-layer"), of_one_layer.table
    columns = ["part", "name", "measure"]
    numbers = now["text"] == ""  # ties among words and trigrams may be broken in another way
    assert stored[columns].equals(now[columns])
    difference = (stored["value"] - now["value"])[numbers].abs()
    assert len(difference) > 20
    assert difference.max() < 1e-3


@pytest.mark.weekly
def test_finished_parts_are_read_from_the_cache_and_failed_ones_are_computed(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise IndexError("list index out of range")

    monkeypatch.setattr(measures, "tested_trigrams", fails)
    first = ck.report("one-layer", cache=tmp_path)
    assert first.problems == {"trigrams L0": "IndexError: list index out of range"}
    assert "trigrams L0</b>: IndexError" in first.html
    assert {"behaviour", "words L0", "next token"} <= set(first.table["part"])
    monkeypatch.undo()
    monkeypatch.setattr(ck.circuits, "full_ov", fails)
    monkeypatch.setattr(measures, "copying", fails)
    second = ck.report("one-layer", cache=tmp_path)
    assert second.problems == {}
    kept = second.table[second.table["part"] != "trigrams L0"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, first.table)


def test_a_cache_tells_changed_weights_and_hooks_apart(tmp_path):
    config = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
    model = tiny_models.boot(torch.float32, **config)
    first = ck.report(model, cache=tmp_path)
    assert not first.problems
    model.blocks[0].attn.o.weight.data.mul_(0.5)
    second = ck.report(model, cache=tmp_path)
    assert not second.table["value"].equals(first.table["value"])
    model.add_hook("blocks.0.hook_in", lambda x, hook: x)
    with pytest.raises(ValueError, match="hooks, which a cache cannot tell"):
        ck.report(model, cache=tmp_path)


@pytest.mark.weekly
def test_a_folder_is_read_again_in_every_report(tmp_path):
    """Under one name in one process: the weights of a folder change between two reports."""
    import transformers
    from safetensors.torch import load_file, save_file

    config = transformers.GPT2Config(
        **tiny_models.GPT2 | {"vocab_size": 4096}, architectures=["GPT2LMHeadModel"]
    )
    tiny_models.from_folder(tmp_path / "gpt2", transformers.GPT2LMHeadModel(config))
    first = ck.report(tmp_path / "gpt2")
    weights = load_file(tmp_path / "gpt2" / "model.safetensors")
    bias = next(w for name, w in weights.items() if name.endswith("h.0.ln_1.bias"))
    bias[3] += 0.5
    save_file(weights, tmp_path / "gpt2" / "model.safetensors", metadata={"format": "pt"})
    second = ck.report(str(tmp_path / "gpt2"))
    assert first.title == second.title == "gpt2"
    assert not second.table["value"].equals(first.table["value"])
    assert f"model = ck.load_model({str(tmp_path / 'gpt2')!r})" in html.unescape(second.html)
    shutil.rmtree(tmp_path / "gpt2")


def code_behind(report, key):
    """What the code under a section gives when it is run: the value of its last line."""
    (shown,) = re.findall(
        rf'<section id="{key}">.*?<pre tabindex="0">(.*?)</pre>', report.html, re.DOTALL
    )
    names = {}
    *before, last = ast.parse(html.unescape(shown)).body
    exec(compile(ast.Module(before, []), "code", "exec"), names)
    return eval(compile(ast.Expression(last.value), "code", "eval"), names), names


def test_the_code_behind_a_section_computes_its_numbers(made, of_mlps):
    ablated, names = code_behind(made, "behaviour")
    told = line(made, "behaviour", "L1H3", "prefix matching")["value"]
    assert float(names["score"].values.mean()) == pytest.approx(told, abs=2e-5)
    assert ablated.sets[0] == ("L1H3",)
    terms, names = code_behind(made, "next-token")
    told = line(made, "next token", "L1H3", "adds to the logit")["value"]
    assert terms["L1H3"] == pytest.approx(told, abs=1e-3)
    assert float(names["pattern"].sum()) == pytest.approx(names["tokens"].shape[1], abs=1e-3)
    assert len(code_behind(made, "heads")[0]) >= 1
    code_behind(of_mlps, "mlps")


@pytest.mark.parametrize(
    ("name", "out", "says"),
    [
        ("no-such-model", "x.html", "no-such-model"),
        ("./nowhere", "x.html", "nowhere"),
        ("one-layer", "x.txt", "ends in .html"),
        ("one-layer", "none/x.html", "Make it first"),
    ],
)
def test_a_bad_name_is_one_clear_sentence(tmp_path, capsys, name, out, says):
    assert main(["report", name, "--out", str(tmp_path / out)]) == 2
    told = capsys.readouterr().err.strip()
    assert says in told
    assert "Traceback" not in told
    assert not [*tmp_path.iterdir()]


@pytest.mark.weekly
def test_the_command_makes_the_same_page(of_one_layer, tmp_path, capsys):
    assert main(["report", "one-layer", "--out", str(tmp_path / "one.html")]) == 0
    assert (tmp_path / "one.html").read_bytes().decode() == of_one_layer.html
    assert "Report of one-layer: " in capsys.readouterr().out


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="this model reads at most 256"):
        ck.report("one-layer", prompt="the " * 300)


def test_the_page_loads_nothing(made):
    assert not re.search(r'(?:src|href)="(?!#|data:)', made.html)


def test_tokens_of_a_model_are_text_and_not_markup(monkeypatch):
    monkeypatch.setattr(measures, "visible", lambda text: "<script>x</script>")
    monkeypatch.setattr(measures, "N_MORE", 0)
    assert "<script>x" not in ck.report("one-layer").html


@pytest.mark.weekly
def test_a_report_on_a_cluster_survives_a_killed_worker(made, tmp_path):
    """Two processes of a dask cluster, one of which is killed while it works: the numbers are the same."""
    distributed = pytest.importorskip("distributed", reason="pip install dask distributed")

    def kill(worker):
        while not [*tmp_path.rglob("output.pkl")]:
            threading.Event().wait(0.01)
        os.kill(worker, signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ports, event loops and lost connections of the cluster
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        )
        with cluster, distributed.Client(cluster) as client, joblib.parallel_config("dask"):
            thread = threading.Thread(target=kill, args=([*client.run(os.getpid).values()][0],))
            thread.start()
            report = ck.report("two-layer", cache=tmp_path)
            thread.join()
    assert not report.problems
    pd.testing.assert_frame_equal(report.table, made.table, rtol=1e-5)


def test_wires_are_tried_into_heads_that_copy_or_exceed_their_control_by_much():
    scores = [
        Line("L1H0", "prefix matching", 0.5, control=0.05, named=True),
        Line("L1H1", "prefix matching", 0.35, control=0.0, named=True),  # less than 0.4
        Line("L1H2", "first token", 0.9, control=0.1, named=True),
        Line("L1H3", "duplicate token", 0.9, control=0.1, named=False),
        Line("L1H0", "previous token", 0.6, control=0.1, named=True),
        Line("L1H1", "copying", 0.3, control=0.0, named=True),
        Line("L1H2", "copying", 0.9, control=0.1, named=False),
    ]
    readers = document.readers_of_wires(scores)
    assert readers == {"L1H0": ["prefix matching", "previous token"], "L1H1": []}


def test_a_circuit_has_the_named_wires_of_a_head_that_copies():
    scores = [Line("L1H3", "copying", 0.9, named=True), Line("L1H2", "copying", 0.1, named=False)]
    found = [
        ("L0H1->L1H3.K", "prefix matching", 0.9, True),
        ("L0H2->L1H3.K", "prefix matching", 0.3, False),
        ("L0H0->L1H3.Q", "prefix matching", 0.4, True),
        ("L0H1->L1H3.K", "previous token", 0.8, True),
        ("L0H1->L1H2.K", "prefix matching", 0.7, True),
        ("L0H4->L1H2.V", "copying", 0.6, True),
    ]
    lines = [
        Line(name, "wire", value, p=0.01, named=named, text=pattern)
        for name, pattern, value, named in found
    ]
    assert wires.circuits(scores, lines) == [
        Line("L0H1->L1H3.K, L0H0->L1H3.Q", "induction", 0.4, p=0.01, named=True),
        Line("L0H4->L1H2.V", "virtual head", 0.6, p=0.01, named=True),
    ]
