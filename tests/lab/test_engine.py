"""The numbers of the lab, out of a real browser, against PyTorch and the library's own tokenizer."""

import random
from functools import cache

import numpy as np
import pytest
import torch
from lab_tools import ask, logits

import circuitkit
from circuitkit import anatomy, circuits, models

# The lab computes in double precision, and so does PyTorch here: its own float32 is off by up to 1.5e-4 on these rows.
TOLERANCE = 1e-4
HEADS = [f"L{layer}H{head}" for layer in (0, 1) for head in range(4)]
WIRES = [f"L0H{a}->L1H{b}.{kind}" for b in range(4) for kind in "QKV" for a in range(4)]
SOME = [
    ["L0H1", "L1H3"],
    ["L0H0->L1H3.K", "L0H1->L1H3.Q"],
    ["L0H2", "L0H2->L1H0.V", "L1H1", "L0H1->L1H3.K"],
    [*WIRES[:24], "L1H2"],
]
HOSTILE = {
    "nothing": "",
    "emoji": "😀👩\u200d👧 é n\u0303 🇸🇪",
    "control": "a\x00b\x07\x1b[31m\x85\ufeff \u2028x\u00a0 y\r\n\t \n\x7f",
    "letters": "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=10_000)),
    "one letter": "a" * 10_000,
    "blanks": " " * 400 + "x  y",
    "markup": "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;",
    "start": "<|endoftext|>x<|endoftext|><|endoftext",
    "apostrophes": "don't WE'LL I'm 's 've'd",
    "numbers": "١٢٣ ⅷ ² ½ x2y 3.14",
    "scripts": "नमस्ते ไทย 日本語 \u202eabc\u202c",
    "low": "".join(map(chr, range(1, 0x3000))),
}


@cache
def load_model(name: str, step: int | None = None):
    return circuitkit.load_model(name, step=step).double()


@pytest.fixture(scope="module")
def page(browser, address):
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    yield page
    page.close()


@cache
def rows(n: int, n_ctx: int) -> tuple[list[str], torch.Tensor]:
    """Held-out passages as texts that the tokenizer cuts into just so many tokens, and those tokens."""
    tokenizer, found = load_model("two-layer").tokenizer, []
    for row in models.heldout_rows(4 * n, n_ctx - 1, seed=7):
        text = tokenizer.decode(row[1:])
        ids = [0, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        if 0 not in ids[1:] and "\ufffd" not in text and len(ids) >= n_ctx - 2:
            found.append((text, ids[: n_ctx - 2]))
    assert len(found) >= n
    return [text for text, _ in found[:n]], torch.tensor([ids for _, ids in found[:n]])


def off(
    page, name: str, text: str, tokens: torch.Tensor, cuts=(), fill="zero", model=None, edit=None
) -> float:
    """How far the lab's logits are from PyTorch's, over all positions of one text."""
    bridge = model or load_model(name.partition("-step")[0])
    (answer,) = ask(page, ("run", setting(name, text, cuts=list(cuts), fill=fill, all=True)))
    ours = logits(answer)[: len(tokens)]
    theirs = (
        anatomy(bridge).run(tokens[None], without=cuts if edit is None else (), edit=edit).logits[0]
    )
    assert [token["id"] for token in answer["tokens"]][: len(tokens)] == tokens.tolist()
    return float(np.abs(ours - theirs.numpy()).max())


def setting(model: str, text: str, **more) -> dict:
    return {"model": model, "text": text, "cuts": [], "fill": "zero", "at": -1, "answer": -1} | more


def test_the_tokenizer_agrees_on_every_held_out_row_and_on_hostile_text(page):
    texts = [row["text"] for row in models.heldout_text()] + list(HOSTILE.values())
    tokenizer = load_model("two-layer").tokenizer
    theirs = [[0, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    ours = ask(page, *(("ids", text) for text in texts))
    assert [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b] == []


def test_tokens_look_like_those_of_the_library(page):
    text = "Mr. Dursley, naïve: x\ty"
    (answer,) = ask(page, ("run", setting("two-layer", text)))
    shown = load_model("two-layer").to_str_tokens(text)
    pairs = [(token["text"], theirs) for token, theirs in zip(answer["tokens"], shown, strict=True)]
    assert [pair for pair in pairs if pair[0] != pair[1] and "\ufffd" not in pair[1]] == []


def test_logits_of_fifty_held_out_rows(page):
    model, found = load_model("two-layer"), rows(50, 34)
    assert (
        max(
            off(page, "two-layer", text, ids, model=model) for text, ids in zip(*found, strict=True)
        )
        < TOLERANCE
    )


@pytest.mark.parametrize(
    "cuts", [*([name] for name in [*HEADS, *WIRES]), *SOME], ids=lambda cuts: "+".join(cuts)[:40]
)
def test_logits_with_something_out(page, cuts):
    texts, ids = rows(50, 34)
    at = (hash_of(cuts)) % 50
    assert off(page, "two-layer", texts[at], ids[at], cuts) < TOLERANCE


def hash_of(cuts) -> int:
    return sum(map(ord, "".join(cuts)))


@pytest.mark.parametrize(
    "name", ["one-layer", "zero-layer", "two-layer-step05000", "two-layer-step00000"]
)
def test_logits_of_the_other_models(page, name):
    texts, ids = rows(50, 34)
    model, _, step = name.partition("-step")
    bridge = load_model(model, step=int(step) if step else None)
    cuts = {"one-layer": ["L0H0"], "two-layer": ["L0H1", "L0H0->L1H3.K"], "zero-layer": []}[model]
    assert off(page, name, texts[3], ids[3], model=bridge) < TOLERANCE
    assert off(page, name, texts[4], ids[4], cuts, model=bridge) < TOLERANCE


def test_a_head_that_is_out_can_say_its_average(page):
    model = load_model("two-layer")
    texts, ids = rows(50, 34)
    held_out = anatomy(model).run(models.heldout_rows(8))

    def average(sublayer, z):
        z[:, 1] = held_out.gathered[sublayer.name][:, 1].mean((0, 1))
        return z

    out = ["L0H1", "L1H1"]
    assert off(page, "two-layer", texts[0], ids[0], out, "mean", model, average) < TOLERANCE
    assert (
        off(page, "two-layer", texts[0], ids[0], out, "mean", model) > 0.1
    )  # zero is something else


def test_the_comparison_can_fail(page):
    texts, ids = rows(50, 34)
    assert off(page, "two-layer", texts[0], ids[0], ["L0H1"], edit=lambda sublayer, z: z) > 0.1


def test_the_patterns_are_those_of_the_model(page):
    texts, ids = rows(50, 34)
    found = page.evaluate(
        "async setting => (await (await window.bench).ask('run', setting)).value.patterns.map(p => [...p])",
        setting("two-layer", texts[0]),
    )
    n = round((len(found[0]) / 4) ** 0.5)
    cache = load_model("two-layer").run_with_cache(ids[:1])[1]
    for layer in (0, 1):
        ours = np.array(found[layer]).reshape(4, n, n)[:, : ids.shape[1], : ids.shape[1]]
        assert np.abs(ours - cache[f"blocks.{layer}.attn.hook_pattern"][0].numpy()).max() < 1e-5


def test_the_parts_of_a_logit_are_those_of_the_library(page):
    model, text = load_model("two-layer"), "Mr. Dursley had a neighbour who disliked Mr. D"
    tokens = model.to_tokens(text)
    cuts = ["L0H1->L1H3.K"]
    (answer,) = ask(page, ("run", setting("two-layer", text, cuts=cuts)))
    token = answer["answer"]["id"]
    direction = model.W_U[:, token] - model.W_U.mean(
        1
    )  # against the mean of all logits; the model has no norms
    for when, without in (("before", []), ("after", cuts)):
        run = anatomy(model).run(tokens, without=without)
        theirs = {name: float(run.part(name)[0, -1] @ direction) for name in run.model.parts()}
        ours = {part["name"]: part["value"] for part in answer["parts"][when]}
        assert theirs.pop("pos") == pytest.approx(0, abs=1e-5)
        assert ours == pytest.approx(theirs, abs=TOLERANCE)


def test_the_parts_of_a_score_are_those_of_the_library(page):
    model, text = load_model("two-layer"), "Mr. Dursley had a neighbour who disliked Mr. D"
    tokens = model.to_tokens(text)
    at = tokens.shape[1] - 1
    (ours,) = ask(page, ("score", setting("two-layer", text, at=at, head="L1H3", source=6)))
    theirs = circuits.score_decomposition(model, tokens, "L1H3", dst=at, src=6)
    assert ours["names"] == list(theirs.components[:-1])  # the model has no biases
    assert np.abs(np.array(ours["table"]) - theirs.table[:-1, :-1].numpy()).max() < TOLERANCE
    assert theirs.table[-1].abs().max() == 0


@pytest.mark.parametrize(
    "cuts", [[], ["L0H1->L1H3.K", "L0H0", "L1H2"], ["L1H3", "L0H1->L1H2.V"]], ids=len
)
@pytest.mark.parametrize("fill", ["zero", "mean"])
def test_what_a_wire_or_head_is_worth_is_what_its_cut_costs(page, cuts, fill):
    """Against the lab's own runs, one cut at a time; those runs are held to PyTorch above."""
    text, token = rows(50, 34)[0][1], 300
    base = setting("two-layer", text, fill=fill, answer=token)
    (now,) = ask(page, ("run", base | {"cuts": cuts, "all": True}))
    (worths,) = ask(page, ("worths", base | {"cuts": cuts, "at": now["at"]}))
    assert set(worths) == {*HEADS, *WIRES}

    def logit(cuts):
        (answer,) = ask(page, ("run", base | {"cuts": cuts, "at": now["at"], "all": True}))
        row = logits(answer)[now["at"]].astype(np.float64)
        return row[token] - row.mean()

    here = logit(cuts)
    for name in [*HEADS, *WIRES[::5], *cuts, "L0H1->L1H3.Q"]:
        other = [cut for cut in cuts if cut != name] if name in cuts else [*cuts, name]
        cost = (here - logit(other)) * (-1 if name in cuts else 1)
        assert worths[name] == pytest.approx(cost, abs=2e-4), name


@pytest.mark.parametrize(("model", "head"), [("one-layer", "L0H0"), ("two-layer", "L1H3")])
def test_the_words_of_a_head_are_those_of_the_library(page, model, head):
    bridge = load_model(model)
    token, source = (bridge.to_single_token(word) for word in (" king", " the"))
    question = {"model": model, "head": head, "token": token, "source": source}
    (words,) = ask(page, ("words", question))
    ov, qk = circuits.full_ov(bridge, head), circuits.full_qk(bridge, head)
    for kind, row, largest in (
        ("raises", ov.A[source] @ ov.B, True),
        ("lowers", ov.A[source] @ ov.B, False),
    ):
        assert [word["id"] for word in words[kind]] == row.topk(8, largest=largest).indices.tolist()
    best = (qk.A[token] @ qk.B).topk(8)
    assert [word["id"] for word in words["looksFor"]] == best.indices.tolist()
    assert [word["value"] for word in words["looksFor"]] == pytest.approx(
        best.values.tolist(), abs=TOLERANCE
    )


def test_a_note_that_an_earlier_head_wrote_can_be_looked_for(page):
    """Chapter 3: read through L0H1, L1H3 looks for the very token it stands on."""
    model = load_model("two-layer")
    token = model.to_single_token(" king")
    question = {"model": "two-layer", "head": "L1H3", "token": token, "source": token, "via": 1}
    (words,) = ask(page, ("words", question))
    heads = {name: (model.W_V[0, 1], model.W_O[0, 1]) for name in ("L0H1",)}
    carried = model.W_E @ heads["L0H1"][0] @ heads["L0H1"][1]
    scores = (model.W_E[token] @ model.W_Q[1, 3]) @ (carried @ model.W_K[1, 3]).T / 32**0.5
    assert [word["id"] for word in words["looksFor"]] == scores.topk(8).indices.tolist()
    assert words["looksFor"][0]["id"] == token


def test_a_text_longer_than_the_context_is_cropped(page):
    (answer,) = ask(page, ("run", setting("two-layer", "word " * 400)))
    assert answer["cropped"]
    assert len(answer["tokens"]) == 256
