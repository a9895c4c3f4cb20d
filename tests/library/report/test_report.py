"""`ck.report`: its numbers are the tools', it is kept and goes on, a failing part is alone, and the page opens by itself."""

import ast
import csv
import html
import io
import math
import re
import resource
import subprocess
import sys

import pytest
import torch

import circuitkit as ck
from circuitkit.__main__ import main
from circuitkit.report import _parts, _report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def made(folder):
    return ck.report("two-layer", folder / "two.html")


def value(report, part, name, measure):
    (one,) = [
        row
        for row in report.rows
        if (row["part"], row["name"], row["measure"]) == (part, name, measure)
    ]
    return one


def patterns_of(tokens):
    _, cache = ck.load_model("two-layer").run_with_cache(tokens)
    return torch.cat([cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(2)], dim=1)


def test_scores_by_hand(made):
    """Read off transformer-lens patterns: one period less one back, one back, one period back, the first token."""
    model = ck.load_model("two-layer")
    period = 64
    rows = ck.induction.repeated_tokens(
        model.cfg.d_vocab, period, batch=8, bos=model.tokenizer.bos_token_id
    )
    seen, n = patterns_of(rows.tokens), rows.tokens.shape[1]
    wanted = {"induction": [], "previous token": [], "sink": []}
    for row in range(8):
        second = range(rows.start + period, n)
        wanted["induction"].append(sum(seen[row, :, t, t - period + 1] for t in second) / period)
        wanted["previous token"].append(sum(seen[row, :, t, t - 1] for t in range(1, n)) / (n - 1))
        wanted["sink"].append(sum(seen[row, :, t, 0] for t in range(1, n)) / (n - 1))
    names = [f"L{layer}H{head}" for layer in range(2) for head in range(model.cfg.n_heads)]
    for kind, by_row in wanted.items():
        by_row = torch.stack(by_row)
        for i, name in enumerate(names):
            one, mean, error = (
                value(made, "behaviour", name, kind),
                by_row[:, i].mean(),
                by_row[:, i].std() / 8**0.5,
            )
            assert one["value"] == pytest.approx(float(mean), abs=2e-5)
            assert one["high"] - one["low"] == pytest.approx(float(2 * 2.36 * error), abs=2e-5)
    even = sum(1 / (t + 1) for t in range(1, n)) / (n - 1)
    assert value(made, "behaviour", "L0H0", "sink")["control"] == pytest.approx(even, abs=1e-5)


def test_the_control_of_induction_is_on_rows_that_do_not_repeat(made):
    one = value(made, "behaviour", "L1H3", "induction")
    assert one["low"] > 0.7 > 0.1 > one["control"]
    taken = value(made, "worth induction", "induction", "loss without")
    assert taken["low"] > 4 * abs(taken["control"])


def test_shares_are_those_of_the_tool_and_add_up(made):
    model = ck.load_model("two-layer")
    logits = model(model.to_tokens(_report.TEXT))[0, -1].double()
    shares = [row["value"] for row in made.rows if row["measure"] == "adds to the logit"]
    assert sum(shares) == pytest.approx(float(logits.max() - logits.mean()), abs=1e-3)


def test_wires_stand_beside_their_baseline(made):
    heads = ck.heads_of(ck.load_model("two-layer"))
    found = ck.circuits.composition_scores(heads[["L0H1"]], heads[["L1H3"]], "K")
    one = value(made, "composition K", "L0H1->L1H3.K", "composition")
    assert one["value"] == pytest.approx(found["L0H1", "L1H3"], rel=1e-4)
    assert one["control"] == pytest.approx(ck.circuits.composition_baseline(heads), rel=1e-4)


def test_mlps_as_heads_get_better_with_heads(folder):
    found = ck.report("two-layer-mlp", folder / "mlp.html")
    assert not found.problems
    costs = [row for row in found.rows if row["measure"] == "wrong by"]
    assert costs
    promised = {
        (row["name"], row["text"]): row["value"]
        for row in found.rows
        if row["measure"] == "promised"
    }
    assert all(0 <= row["value"] <= promised[row["name"], row["text"]] for row in costs)


def test_the_table_is_the_report(made, folder):
    rows = [*csv.DictReader(io.StringIO((folder / "two.csv").read_text()))]
    assert [*rows[0]] == ["part", "name", "measure", "value", "low", "high", "control", "text"]
    assert len(rows) == len(made.rows)
    assert all(math.isfinite(float(row["value"])) for row in rows)


def test_a_second_call_computes_nothing(made, folder, monkeypatch):
    for name in ("behaviour", "composition", "words", "trigrams", "logits", "worth", "patterns"):
        monkeypatch.setattr(_parts, name, lambda *_: 1 / 0)
    again = ck.report("two-layer", folder / "two.html")
    assert again.rows == made.rows
    assert again.html == made.html
    assert not again.problems
    planned = ck.report("two-layer", folder / "two.html", plan=True)
    assert set(planned.kept) == set(planned.items)
    assert planned.seconds == 0


def test_one_failing_part_is_named_and_alone_and_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(_parts, "trigrams", lambda *_: [][0])
    first = ck.report("one-layer", tmp_path / "one.html")
    assert first.problems == {"trigrams L0": "IndexError: list index out of range"}
    assert "trigrams L0</b>: IndexError" in first.html
    assert {"behaviour", "words L0", "logits"} <= first.parts.keys()
    monkeypatch.undo()
    second = ck.report("one-layer", tmp_path / "one.html")
    assert second.problems == {}
    assert second.parts["behaviour"] == first.parts["behaviour"]


def test_another_model_under_the_same_name_is_another_report(tmp_path):
    model = ck.load_model("one-layer")
    first = ck.report(model, tmp_path / "x.html")
    model.blocks[0].attn.W_O.data.mul_(0.5)
    second = ck.report(model, tmp_path / "x.html")
    assert first.rows != second.rows
    assert len([*(tmp_path / "x.parts").iterdir()]) == 2


def test_a_report_by_name_is_of_the_weights_that_are_there_now(tmp_path):
    """In one process, under one name: a folder whose weights changed, if only a little."""
    import shutil

    import transformers
    from safetensors.torch import load_file, save_file

    from tests.support import tiny_models

    config = transformers.GPT2Config(
        **tiny_models.GPT2 | {"vocab_size": 4096}, architectures=["GPT2LMHeadModel"]
    )
    tiny_models.from_folder(tmp_path / "gpt2", transformers.GPT2LMHeadModel(config))
    first = ck.report(tmp_path / "gpt2", tmp_path / "x.html")
    W = load_file(tmp_path / "gpt2" / "model.safetensors")
    bias = next(w for name, w in W.items() if name.endswith("h.0.ln_1.bias"))
    bias[3] += 0.5
    save_file(W, tmp_path / "gpt2" / "model.safetensors", metadata={"format": "pt"})
    second = ck.report(str(tmp_path / "gpt2"), tmp_path / "x.html")
    assert first.title == second.title == "gpt2"
    assert second.rows != first.rows
    assert second.rows == ck.report(ck.load_model(tmp_path / "gpt2")).rows
    assert f"model = ck.load_model({str(tmp_path / 'gpt2')!r})" in html.unescape(second.html)
    shutil.rmtree(tmp_path / "gpt2")


def lines(report, key):
    """What the lines under a section give when they are run: the last one's value."""
    (shown,) = re.findall(
        rf'<section id="{key}">.*?<pre tabindex="0">(.*?)</pre>', report.html, re.DOTALL
    )
    body, room = ast.parse(html.unescape(shown)).body, {}
    exec(compile(ast.Module(body[:-1], []), "lines", "exec"), room)
    last = body[-1]
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "lines", "eval"), room), room
    exec(compile(ast.Module([last], []), "lines", "exec"), room)
    return None, room


def test_the_lines_under_a_section_make_its_numbers(made, folder):
    worth, room = lines(made, "behaviour")
    induction = torch.stack([one.prefix_matching for one in room["each"]]).mean(0).flatten()
    for i, name in enumerate(ck.heads_of(room["model"]).names):
        assert float(induction[i]) == pytest.approx(
            value(made, "behaviour", name, "induction")["value"], abs=2e-5
        )
    group = worth.done.partition(" ")[2].partition(" (")[0].split(", ")
    key = next(
        kind for kind, names in _parts.groups(made.parts["behaviour"]).items() if names == group
    )
    assert worth.change == pytest.approx(
        value(made, f"worth {key}", key, "loss without")["value"], abs=1e-4
    )
    shares, _ = lines(made, "logits")
    told = {row["name"]: row["value"] for row in made.rows if row["measure"] == "adds to the logit"}
    assert float(shares.values[shares.names.index("L1H3"), 0, -1]) == pytest.approx(
        told["L1H3"], abs=1e-3
    )
    wires, _ = lines(made, "composition")
    assert "L0H1, L1H3" in wires.names
    pattern, room = lines(made, "patterns")
    assert float(pattern.sum()) == pytest.approx(room["run"].tokens.shape[1], abs=1e-3)
    trigrams, room = lines(made, "words")
    assert len(trigrams.entries if hasattr(trigrams, "entries") else trigrams) >= 1
    mlp = ck.report("two-layer-mlp", folder / "mlp.html")
    _, room = lines(mlp, "mlps")
    key = [part for part in mlp.parts if part.startswith("mlps")][-1]
    for row in room["twin"].report.layers:
        promised = value(mlp, key, f"L{row.layer} MLP", "promised")
        assert row.bound + row.rounding == pytest.approx(promised["value"], rel=1e-3)


def test_a_plan_computes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(_parts, "behaviour", lambda *_: 1 / 0)
    plan = ck.report("two-layer", tmp_path / "x.html", plan=True)
    assert not [*tmp_path.iterdir()]
    assert plan.seconds > 0
    assert all(size > 0 for _, size in plan.items.values())
    assert "behaviour" in repr(plan)


@pytest.mark.weekly
def test_a_full_disk_is_one_sentence_and_what_was_done_is_kept(tmp_path):
    """Files may have 4,000 bytes: small parts fit, the first large one does not."""
    code = (
        "import resource, sys, circuitkit.__main__ as m; import circuitkit as ck; ck.load_model('one-layer')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        f"sys.exit(m.main(['report', 'one-layer', '--out', {str(tmp_path / 'x.html')!r}]))"
    )
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(
        r"the report of one-layer could not be written: .*kept in .*call the same again\.\n",
        done.stderr,
    ), done.stderr
    assert len([*(tmp_path / "x.parts").rglob("*.json")]) >= 1
    assert not [*(tmp_path / "x.parts").rglob("*.new")]


@pytest.mark.parametrize(
    ("name", "out", "says"),
    [
        ("no-such-model", "x.html", r"no folder called 'no-such-model'"),
        ("./nowhere", "x.html", r"no folder called './nowhere'"),
        ("one-layer", "x.txt", r"a file that ends in .html"),
        (
            "one-layer",
            "none/x.html",
            r"a file in a folder that is there: .*none. is none. Make it first",
        ),
    ],
)
def test_a_bad_name_is_one_clear_sentence(tmp_path, capsys, name, out, says):
    assert main(["report", name, "--out", str(tmp_path / out)]) == 2
    told = capsys.readouterr().err.strip()
    assert re.search(says, told)
    assert "Traceback" not in told
    assert not [*tmp_path.iterdir()]


def test_the_command_makes_the_same_page(made, folder, tmp_path, capsys):
    assert main(["report", "two-layer", "--out", str(tmp_path / "two.html")]) == 0
    assert (tmp_path / "two.html").read_text() == made.html
    assert "two-layer: " in capsys.readouterr().out


def test_the_page_asks_nobody_and_finds_a_head(made, folder, browser):
    assert not re.search(r'(?:src|href)="(?!#)', made.html)
    asked, page = [], browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.on("request", lambda request: asked.append(request.url))
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((folder / "two.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.fill("#find", "L1H3")
    shown = page.evaluate(
        "[...document.querySelectorAll('article')].filter(e => !e.hidden).map(e => e.id)"
    )
    assert shown == ["L1H3"]
    assert page.inner_text("#found") == "1 heads"
    assert len(asked) == 1
    assert not errors
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    page.close()


def test_words_of_a_model_are_no_markup(monkeypatch):
    monkeypatch.setattr(_parts, "visible", lambda text: "<script>x</script>")
    assert "<script>x" not in ck.report("one-layer").html


def test_it_works_where_there_is_no_tokenizer(request):
    from tests.support import tiny_models

    model = tiny_models.boot(
        torch.float32, d_model=12, d_head=4, n_layers=2, n_ctx=16, n_heads=3, d_vocab=23
    )
    found = ck.report(model)
    assert not found.problems
    assert "#" in found.html
