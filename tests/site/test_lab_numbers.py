"""The numbers that the lab computes in a browser, against PyTorch and the library."""

import json
import random
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import circuitkit
from circuitkit import circuits, models
from circuitkit.paths import score_decomposition
from circuitkit.reading import heads_of
from circuitkit_book import superposition_models as sp
from circuitkit_book.superposition_task import trigram_verdict
from tests.support.site import DESKTOP, OpenPage

# The lab computes in double precision, and so does PyTorch here.
TOLERANCE = 1e-4
TEXT = "Mr. Dursley had a neighbour who disliked Mr. D"
HEADS = [f"L{layer}H{head}" for layer in (0, 1) for head in range(4)]
WIRES = [f"L0H{a}->L1H{b}.{kind}" for b in range(4) for kind in "QKV" for a in range(4)]
SEVERAL = ["L0H2", "L0H2->L1H0.V", "L1H1", "L0H1->L1H3.K"]
ODD_TEXTS = [
    "",
    "😀👩\u200d👧 é n\u0303 🇸🇪",
    "a\x00b\x07\x1b[31m\x85\ufeff \u2028x\u00a0 y\r\n\t \n\x7f",
    "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=10_000)),
    " " * 400 + "x  y",
    "<script>alert(1)</script>&amp;<|endoftext|>x<|endoftext",
    "don't WE'LL I'm 's 've'd ١٢٣ ⅷ ² ½ x2y 3.14",
    "".join(map(chr, range(1, 0x3000))),
]
# A worker as the lab makes it, with the weights that a request needs; typed arrays come as lists.
ASK = """async ([kind, request]) => {
    window.ask ??= (async () => {
        const engine = await circuitLab.need("engine"), text = await circuitLab.need("text");
        const script = new Blob([`(${engine})()`], {type: "text/javascript"});
        const worker = new Worker(URL.createObjectURL(script)), waiting = new Map();
        worker.onmessage = ({data}) => waiting.get(data.id)(data);
        let count = 0;
        const ask = (kind, value) => new Promise(done => {
            waiting.set(++count, done);
            worker.postMessage({id: count, kind, value});
        });
        await ask("text", text);
        return Object.assign(ask, {models: new Set()});
    })();
    const ask = await window.ask;
    const [base, heads] = (request.model ?? "").split(/-(?=\\d$)/);
    if (base && !ask.models.has(base)) {
        ask.models.add(base);
        await ask("model", await circuitLab.need(`models/${base}`));
    }
    if (heads && !ask.models.has(request.model)) {
        ask.models.add(request.model);
        await ask("copy", {name: request.model, of: base, heads: Number(heads)});
    }
    const {value, error} = await ask(kind, request);
    if (error) throw new Error(error);
    return JSON.stringify(value, (_, part) => part?.buffer ? Array.from(part) : part);
}"""
SET_SLIDERS = """rows => document.querySelectorAll("circuit-toy input[type=range]").forEach((input, k) => {
    input.value = rows[Math.floor(k / 3)][k % 3];
    input.dispatchEvent(new Event("input"));
})"""


@pytest.fixture(scope="module")
def page(browser, site):
    opened = OpenPage(browser, f"{site}/book/lab.html", DESKTOP)
    yield opened.page
    opened.context.close()


def ask(page, kind: str, request):
    return json.loads(page.evaluate(ASK, [kind, request]))


def request(text: str = TEXT, model: str = "two-layer", **more) -> dict:
    plain = {"model": model, "text": text, "cuts": [], "fill": "zero", "at": -1, "answer": -1}
    return plain | more


@cache
def load_model(name: str, step: int | None = None):
    return circuitkit.load_model(name, step=step).double()


@cache
def texts() -> list[str]:
    """Held-out passages of about 30 tokens."""
    tokenizer = load_model("two-layer").tokenizer
    return [tokenizer.decode(row[1:]) for row in models.heldout_rows(30, 30, seed=7)]


def difference(page, text: str, model: str = "two-layer", step=None, hooks=(), **more) -> float:
    """The largest difference between a logit of the lab and PyTorch's, over all positions.

    With hooks, PyTorch runs the whole model with them, and only the lab cuts.
    """
    name = model if step is None else f"{model}-step{step:05d}"
    answer = ask(page, "run", request(text, name, all=True, **more))
    tokens = torch.tensor([[token["id"] for token in answer["tokens"]]])
    bridge = load_model(model, step)
    if hooks:
        theirs = bridge.run_with_hooks(tokens, fwd_hooks=hooks).detach()[0]
    else:
        theirs = circuitkit.run(bridge, tokens, without=more.get("cuts", ())).logits[0]
    return float(np.abs(np.reshape(answer["logits"], theirs.shape) - theirs.numpy()).max())


@cache
def model_with_mlps(heads_per_neuron: int | None = None):
    """The model with MLPs, or the copy in which each neuron is so many heads."""
    model = load_model("two-layer-mlp")
    if heads_per_neuron is None:
        return model
    return circuitkit.to_attention_only(model, heads_per_neuron=heads_per_neuron)


def test_lab_tokenizer_agrees_with_the_library(page):
    tokenizer = load_model("two-layer").tokenizer
    for text in [row["text"] for row in models.heldout_text()[::3]] + ODD_TEXTS:
        expected = [0, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        assert ask(page, "ids", text) == expected, text[:80]


def test_logits_of_the_whole_model_are_those_of_pytorch(page):
    assert max(difference(page, text) for text in texts()[:3]) < TOLERANCE


@pytest.mark.parametrize(
    "names",
    [[*HEADS[1::3], *WIRES[::7]], pytest.param([*HEADS, *WIRES], marks=pytest.mark.weekly)],
    ids=["some", "all"],
)
def test_logits_without_one_head_or_wire_are_those_of_pytorch(page, names):
    for i, name in enumerate(names):
        assert difference(page, texts()[i % 30], cuts=[name]) < TOLERANCE, name


def test_logits_without_several_heads_and_wires_are_those_of_pytorch(page):
    assert difference(page, texts()[0], cuts=SEVERAL) < TOLERANCE
    assert difference(page, texts()[1], cuts=[*WIRES[:24], "L1H2"]) < TOLERANCE


@pytest.mark.parametrize(
    ("model", "step", "cuts"),
    [
        ("zero-layer", None, []),
        ("one-layer", None, ["L0H0"]),
        ("two-layer", 5000, ["L0H1", "L0H0->L1H3.K"]),
        pytest.param("two-layer", 0, ["L0H1", "L0H0->L1H3.K"], marks=pytest.mark.weekly),
    ],
)
def test_logits_of_the_other_models_are_those_of_pytorch(page, model, step, cuts):
    assert difference(page, texts()[3], model, step) < TOLERANCE
    assert difference(page, texts()[4], model, step, cuts=cuts) < TOLERANCE


def test_head_replaced_by_its_mean_gives_the_logits_of_pytorch(page):
    held_out = load_model("two-layer").run_with_cache(models.heldout_rows(8))[1]

    def average(z, hook):
        mean = held_out[hook.name][:, :, 1].mean((0, 1))
        return torch.cat([z[:, :, :1], mean.expand_as(z[:, :, 1:2]), z[:, :, 2:]], dim=2)

    cuts = ["L0H1", "L1H1"]
    hooks = [(f"blocks.{layer}.attn.hook_z", average) for layer in (0, 1)]
    assert difference(page, texts()[0], cuts=cuts, fill="mean", hooks=hooks) < TOLERANCE
    assert difference(page, texts()[0], cuts=cuts, fill="mean") > 0.1


OTHER = "Mr. Hursley had a neighbour who disliked Mr. D"


@pytest.mark.parametrize(
    "cuts", [["L0H1->L1H3.K"], ["L1H3"], SEVERAL, *([name] for name in WIRES[::16])]
)
def test_values_patched_from_a_second_text_give_the_logits_of_the_library(page, cuts):
    model = load_model("two-layer")
    asked = request(cuts=cuts, fill="patch", other=OTHER, all=True)
    theirs = circuitkit.run(model, TEXT, without=cuts, patch=OTHER).logits[0].detach().numpy()
    ours = np.reshape(ask(page, "run", asked)["logits"], theirs.shape)
    assert np.abs(ours - theirs).max() < TOLERANCE


def test_effects_and_scores_with_a_second_text_are_those_of_patches(page):
    model, cuts = load_model("two-layer"), ["L0H0->L1H3.K"]
    token, last = model.to_single_token("ur"), model.to_tokens(TEXT).shape[1] - 1
    asked = request(cuts=cuts, fill="patch", other=OTHER, at=last, answer=token)
    effects = ask(page, "effects", asked)

    def logit(without) -> float:
        row = circuitkit.run(model, TEXT, without=without, patch=OTHER).logits[0, -1]
        return float(row[token] - row.mean())

    for name in [*HEADS, *WIRES[::7]]:
        expected = logit(cuts) - logit([*cuts, name])
        assert effects[name] == pytest.approx(expected, abs=2 * TOLERANCE), name
    score = ask(page, "score", asked | {"head": "L1H3", "source": 5})["table"]
    row = circuitkit.run(model, TEXT, without=cuts, patch=OTHER).pattern("L1H3")[0, -1]
    other = ask(page, "score", asked | {"head": "L1H3", "source": 8})["table"]
    ratio = float((row[5] / row[8]).log())
    assert np.sum(score) - np.sum(other) == pytest.approx(ratio, abs=2 * TOLERANCE)


def test_second_text_of_another_length_patches_nothing_and_shows_no_effect(page):
    with pytest.raises(ValueError, match="same? shape|must have the shape"):
        circuitkit.run(load_model("two-layer"), TEXT, without="L1H3", patch="Mr. D")
    asked = request(cuts=["L1H3"], fill="patch", other="Mr. D", at=22, answer=5)
    found = ask(page, "run", asked)
    assert found["other"]["fits"] is False
    assert all(guess["before"] == guess["after"] for guess in found["guesses"])
    assert ask(page, "effects", asked) == {}


def test_attention_patterns_are_those_of_the_model(page):
    answer = ask(page, "run", request())
    model = load_model("two-layer")
    cached = model.run_with_cache(model.to_tokens(TEXT))[1]
    for layer, ours in enumerate(answer["patterns"]):
        theirs = cached[f"blocks.{layer}.attn.hook_pattern"][0].numpy()
        assert np.reshape(ours, theirs.shape) == pytest.approx(theirs, abs=1e-5)


def test_logit_attribution_is_that_of_the_library(page):
    model, cuts = load_model("two-layer"), ["L0H1->L1H3.K"]
    answer = ask(page, "run", request(cuts=cuts))
    direction = model.W_U[:, answer["answer"]["id"]] - model.W_U.mean(1)
    for when, without in (("before", []), ("after", cuts)):
        run = circuitkit.run(model, model.to_tokens(TEXT), without=without)
        ours = {part["name"]: part["value"] for part in answer["parts"][when]}
        theirs = {name: float(part[0, -1] @ direction) for name, part in run.parts().items()}
        theirs.pop("pos")  # the lab leaves out this part, which is 0
        assert ours == pytest.approx(theirs, abs=TOLERANCE)


def test_score_decomposition_is_that_of_the_library(page):
    model = load_model("two-layer")
    tokens = model.to_tokens(TEXT)
    last = tokens.shape[1] - 1
    ours = ask(page, "score", request(at=last, head="L1H3", source=6))
    theirs = score_decomposition(model, tokens, "L1H3", dst=last, src=6)
    assert ours["names"] == list(theirs.names[:-1])
    assert np.array(ours["table"]) == pytest.approx(theirs.values[:-1, :-1].numpy(), abs=TOLERANCE)


@pytest.mark.parametrize(
    "cuts",
    [pytest.param([], marks=pytest.mark.weekly), ["L0H1->L1H3.K", "L0H0", "L1H2"]],
    ids=["intact", "cut"],
)
def test_effect_of_each_head_and_wire_is_that_of_its_ablation(page, cuts):
    model = load_model("two-layer")
    tokens, token = model.to_tokens(TEXT), model.to_single_token("ur")
    last = tokens.shape[1] - 1
    effects = ask(page, "effects", request(at=last, answer=token, cuts=cuts))

    @cache
    def logit(*without: str) -> float:
        row = circuitkit.run(model, tokens, without=without).logits[0, -1]
        return float(row[token] - row.mean())

    assert set(effects) == {*HEADS, *WIRES}
    for name in [*HEADS, *WIRES]:
        absent = [cut for cut in cuts if cut != name]
        expected = logit(*absent) - logit(*absent, name)
        assert effects[name] == pytest.approx(expected, abs=2 * TOLERANCE), name


OF_NEURONS = ["L0N488", "L1N428", "L0N111->L1H2.V", "L0H1->L0N7", "L0H2->L1N30"]
OF_THEIR_HEADS = ["L0N488", "L0N111->L1H2.V", "L0H1->L0N488.Q", "L0H1->L0N7.V", "L0N3->L1N30"]


def of_neurons(page, heads: int | None, cuts: list[str]) -> float:
    """The largest difference from the library, as a share of the largest logit."""
    bridge = model_with_mlps(heads)
    name = "two-layer-mlp" if heads is None else f"two-layer-mlp-{heads}"
    answer = ask(page, "run", request(texts()[len(cuts)], name, cuts=cuts, all=True))
    tokens = torch.tensor([[token["id"] for token in answer["tokens"]]])
    theirs = circuitkit.run(bridge, tokens, without=cuts).logits[0].detach()
    ours = np.reshape(answer["logits"], theirs.shape)
    return float(np.abs(ours - theirs.numpy()).max() / theirs.abs().max())


@pytest.mark.parametrize("heads", [None, 5, pytest.param(1, marks=pytest.mark.weekly)])
def test_logits_without_neurons_and_their_wires_are_those_of_pytorch(page, heads):
    """In the model with MLPs, and in its copies, in which each neuron is one head or five."""
    assert of_neurons(page, heads, OF_THEIR_HEADS if heads else OF_NEURONS) < TOLERANCE
    if heads is None:
        assert of_neurons(page, heads, []) < TOLERANCE
        assert of_neurons(page, heads, ["L0 MLP", "L0H1->L1N3"]) < TOLERANCE


@pytest.mark.weekly
@pytest.mark.parametrize("heads", [None, 1, 5])
def test_logits_without_one_neuron_or_wire_are_those_of_pytorch(page, heads):
    for cut in [*(OF_THEIR_HEADS if heads else OF_NEURONS), "L0 MLP", "L1 MLP"]:
        assert of_neurons(page, heads, [cut]) < TOLERANCE, cut


def test_neurons_patched_from_a_second_text_give_the_logits_of_the_library(page):
    cuts = ["L0N488", "L0H1->L0N7", "L0N8->L1H2.K", "L1 MLP"]
    asked = request(model="two-layer-mlp", cuts=cuts, fill="patch", other=OTHER, all=True)
    theirs = circuitkit.run(model_with_mlps(), TEXT, without=cuts, patch=OTHER).logits[0].detach()
    ours = np.reshape(ask(page, "run", asked)["logits"], theirs.shape)
    assert np.abs(ours - theirs.numpy()).max() < TOLERANCE * float(theirs.abs().max())


@pytest.mark.weekly
def test_neurons_replaced_by_their_means_give_the_logits_of_pytorch(page):
    model, place = model_with_mlps(), "blocks.0.mlp.hook_post"
    held_out = model.run_with_cache(models.heldout_rows(8))[1][place]

    def average(post, hook):
        post = post.clone()
        post[..., [7, 488]] = held_out[..., [7, 488]].mean((0, 1))
        return post

    asked = request(model="two-layer-mlp", cuts=["L0N488", "L0N7"], fill="mean", all=True)
    theirs = model.run_with_hooks(model.to_tokens(TEXT), fwd_hooks=[(place, average)])[0].detach()
    ours = np.reshape(ask(page, "run", asked)["logits"], theirs.shape)
    assert np.abs(ours - theirs.numpy()).max() < TOLERANCE * float(theirs.abs().max())


def test_effects_and_scores_with_neurons_are_those_of_ablations(page):
    model, cuts = model_with_mlps(), ["L0N111->L1H2.K", "L0H1->L0N7", "L1N428"]
    tokens, token = model.to_tokens(TEXT), model.to_single_token("ur")
    last = tokens.shape[1] - 1
    names = ["L1H2", "L0H1->L1H2.K", "L0N488", "L0N7", "L1N3", "L0N488->L1H2.Q", "L0H2->L0N7"]
    asked = request(model="two-layer-mlp", at=last, answer=token, cuts=cuts)

    def logit(without) -> float:
        row = circuitkit.run(model, tokens, without=without).logits[0, -1]
        return float(row[token] - row.mean())

    found = ask(page, "measure", asked | {"names": [*names, *cuts]})["found"]
    for name in [*names, *cuts]:
        absent = [cut for cut in cuts if cut != name]
        expected = logit(absent) - logit([*absent, name])
        assert found[name] == pytest.approx(expected, abs=2 * TOLERANCE), name
    row = circuitkit.run(model, tokens, without=cuts).pattern("L1H2")[0, -1]
    scores = [
        np.sum(ask(page, "score", asked | {"head": "L1H2", "source": source})["table"])
        for source in (5, 8)
    ]
    ratio = float((row[5] / row[8]).log())
    assert scores[0] - scores[1] == pytest.approx(ratio, abs=2 * TOLERANCE)
    listed = ask(page, "neurons", asked)
    post = circuitkit.run(model, tokens, without=cuts).cache["blocks.0.mlp.hook_post"][0, -1]
    fired = listed["fired"][listed["names"].index("L0N488")]
    assert fired == pytest.approx(float(post[488]), abs=TOLERANCE)


@pytest.mark.parametrize("heads", [5, pytest.param(1, marks=pytest.mark.weekly)])
def test_heads_of_a_neuron_are_those_of_the_conversion(page, heads):
    model, copy = model_with_mlps(), model_with_mlps(heads)
    asked = request(model=f"two-layer-mlp-{heads}", at=8, neuron="L0N488", of="two-layer-mlp")
    ask(page, "run", request(model="two-layer-mlp"))
    found = ask(page, "asHeads", asked)
    logits = [one(model.to_tokens(TEXT)).detach() for one in (model, copy)]
    difference = float((logits[0] - logits[1]).abs().max())
    assert found["difference"] == pytest.approx(difference, abs=TOLERANCE)
    mine = slice(488 * heads, 489 * heads)
    names = [f"blocks.0.mlp.neurons.hook_{name}" for name in ("pattern", "v")]
    _, cache = copy.run_with_cache(model.to_tokens(TEXT), names_filter=lambda name: name in names)
    pattern, values = (cache[name][0, 8, mine, 1] for name in names)
    weights = [head["weight"] for head in found["heads"]]
    assert weights == pytest.approx(pattern.tolist(), abs=TOLERANCE)
    assert [head["value"] for head in found["heads"]] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "forced", [{}, {6: 0.0}, {6: 0.0, 7: 1.0}, dict.fromkeys(range(12), 1.0)], ids=str
)
def test_forced_gates_give_the_logits_of_the_library(page, forced):
    """The tokens A, B1 to B5, C1 to C5 and start have the ids 0 to 11."""
    model, tokens = sp.load_gated().double(), torch.tensor([[11, 7, 0, 8, 10, 11, 1]])
    block = model.blocks[0].attn.block

    def gates(pattern, hook):
        plain = block.pattern(model.W_E[tokens])
        rows = [plain[:, h] * forced[h] if h in forced else pattern[:, h] for h in range(12)]
        return torch.stack(rows, 1)

    hooks = [("blocks.0.attn.hook_pattern", gates)]
    theirs = model.run_with_hooks(tokens, fwd_hooks=hooks)[0].detach()
    cuts = [f"L0H{head} {'open' if gate else 'shut'}" for head, gate in forced.items()]
    asked = request("start C2 A C3 C5 start B1", "gated", cuts=cuts, at=6, answer=6, all=True)
    answer = ask(page, "run", asked)
    assert [token["id"] for token in answer["tokens"]] == tokens[0].tolist()
    assert np.abs(np.reshape(answer["logits"], theirs.shape) - theirs.numpy()).max() < TOLERANCE
    seen = ask(page, "gates", asked | {"source": 2})
    natural = block.gates(model.W_E[tokens])[0, :, 6, 2].tolist()
    assert [head["gate"] for head in seen] == pytest.approx(natural, abs=1e-6)
    plain = block.pattern(model.W_E[tokens])[0, :, 6, 2].tolist()
    assert [head["attention"] for head in seen] == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize("cuts", [[], ["L0H1->L1H3.K", "L1H2"]], ids=["intact", "cut"])
def test_failed_repeat_is_explained_by_the_numbers_of_the_library(page, cuts):
    text = "The cat sat on the mat. The cat sat on the"
    model = load_model("two-layer")
    tokens = model.to_tokens(text)
    run = circuitkit.run(model, tokens, without=cuts)
    copied = model.to_single_token(" mat")
    winner = int(run.logits[0, -1].argmax())
    found = ask(page, "run", request(text, cuts=cuts))["failure"]
    source = tokens[0].tolist().index(copied)
    assert (found["token"]["id"], found["winner"]["id"]) == (copied, winner)
    assert (found["source"], found["same"]) == (source, 5)
    on = [head for head in HEADS if head not in cuts]
    weights = {head: float(run.pattern(head)[0, -1, source]) for head in on}
    assert found["head"] == max(weights, key=weights.get)
    assert found["weight"] == pytest.approx(weights[found["head"]], abs=1e-5)
    toward = model.W_U - model.W_U.mean(1, keepdim=True)
    parts = {name: part[0, -1] for name, part in run.parts().items() if name != "pos"}
    added = float(parts[found["head"]] @ toward[:, copied])
    assert found["added"] == pytest.approx(added, abs=TOLERANCE)
    leads = {name: float(p @ (toward[:, winner] - toward[:, copied])) for name, p in parts.items()}
    against = {part["name"]: part["value"] for part in found["against"]}
    assert against == pytest.approx(leads, abs=TOLERANCE)
    assert list(against.values()) == sorted(against.values(), reverse=True)
    assert found["lead"] == pytest.approx(sum(leads.values()), abs=TOLERANCE)


def test_only_a_repeat_that_is_not_continued_counts_as_a_failure(page):
    assert ask(page, "run", request())["failure"] is None  # the copied token is on top
    assert ask(page, "run", request("The house"))["failure"] is None  # nothing repeats
    assert ask(page, "run", request(cuts=["L0H1->L1H3.K"]))["failure"]["token"]["text"] == "ur"


@pytest.mark.parametrize(("model", "head"), [("one-layer", "L0H0"), ("two-layer", "L1H3")])
def test_words_of_a_head_are_those_of_its_circuits(page, model, head):
    bridge = load_model(model)
    token, source = bridge.to_single_token(" king"), bridge.to_single_token(" the")
    asked = {"model": model, "head": head, "token": token, "source": source}
    words = ask(page, "words", asked)
    ov, weights = circuits.full_ov(bridge, head), heads_of(bridge)[head]
    query, keys = bridge.W_E[token] @ weights.W_Q[0], bridge.W_E @ weights.W_K[0]
    written, looked_for = ov.A[source] @ ov.B, keys @ query / keys.shape[1] ** 0.5
    rows = (("raises", written, 1), ("lowers", -written, -1), ("looksFor", looked_for, 1))
    for kind, row, sign in rows:
        best = row.topk(8)
        assert [word["id"] for word in words[kind]] == best.indices.tolist()
        values = [sign * word["value"] for word in words[kind]]
        assert values == pytest.approx(best.values.tolist(), abs=TOLERANCE), kind


@pytest.mark.parametrize(
    "writes",
    [
        [[4, -2, 3], [-2, 4, 3]],
        [[4, -2, 6], [-2, 4, 0]],
        [[-3, 2, 1], [5, -1, -6]],
        [[4, -2, 4], [-2, 4, 3]],  # after B1 the logits of C1 and C3 are equal
    ],
)
def test_verdict_of_the_toy_is_that_of_the_library(page, writes):
    page.evaluate(SET_SLIDERS, writes)
    model = sp.hand_specified(n_heads=2, n_trigrams=3)
    heads = heads_of(model)
    W_O = heads.W_O.clone()
    W_O[:, 0, 4:7] = torch.tensor(writes, dtype=W_O.dtype)
    found = trigram_verdict(sp.toy_model(replace(heads, W_O=W_O), model.task), rows=20)
    rows = page.locator("circuit-toy tbody tr").all()
    assert len(rows) == 3
    for trigram, row in enumerate(rows):
        carriers = [f"head {head}" for head in range(2) if found.carried[head, trigram] == 1]
        verdict = " and ".join(carriers) or "no head alone"
        cells = row.locator("th, td").all_inner_texts()
        assert cells[1] == (verdict if found.learnt[trigram] == 1 else "not learned")
        gains = [
            float(gain.replace("−", "-")) for gain in re.findall(r"gain (\S+)", row.inner_text())
        ]
        for head in range(2):
            assert min(gains[head], gains[2]) == pytest.approx(
                float(found.gain[head, trigram]), abs=0.0501
            )
