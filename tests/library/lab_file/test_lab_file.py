"""A model in one file: the numbers of the page against PyTorch, and what is refused."""

import base64
import gzip
import html
import json

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import circuitkit as ck
from circuitkit import lab_file
from circuitkit.bridge import submodules
from tests.support import lab_models, tiny_models, zoo

# The page computes in double precision; Llama's norms and rotations are in single precision in PyTorch.
TOLERANCE = 1e-4
SHAPES = ("gpt2", "llama", "gpt2 heads", "llama heads")


def question(model, tokens: torch.Tensor, cut_sets: list[list[str]]) -> tuple[dict, list]:
    """What the page is asked about a model, and what the library answers."""
    page = ck.lab(model, tokens)
    text = " ".join(map(str, tokens[0].tolist()))
    asked = [{"text": text, "cuts": cuts} for cuts in cut_sets]
    theirs = [ck.run(model, tokens, without=cuts).logits[0] for cuts in cut_sets]
    weights = base64.b64encode(page.weights).decode()
    return {"weights": weights, "asked": asked}, theirs


def cuts_of(model, choose) -> list[list[str]]:
    """No cut, a head, a wire, several of both, and neurons with their wires."""
    n_layers, n_heads = len(model.blocks), model.cfg.n_heads
    heads = [f"L{layer}H{head}" for layer in range(n_layers) for head in range(n_heads)]
    wires = [f"{a}->{b}.{side}" for a in heads for b in heads if a[1] < b[1] for side in "QKV"]
    some = choose.sample(wires, min(len(wires), 5))
    sets = [[], [choose.choice(heads)], some[:1], [choose.choice(heads), *some]]
    if "mlp" not in submodules(model.blocks[0]):
        return sets
    layer = choose.randrange(n_layers)
    neuron, other = f"L{layer}N{choose.randrange(8)}", f"L0N{choose.randrange(8)}"
    into = f"{choose.choice([head for head in heads if int(head[1]) <= layer])}->{neuron}"
    out = [f"{other}->{head}.{choose.choice('QKV')}" for head in heads[n_heads:]][:2]
    return [*sets, [neuron], [other, into], [into, *out, choose.choice(heads)]]


def largest_difference(seeds, tmp_path) -> tuple[float, int]:
    """Of a logit of the page from one of PyTorch, as a share of the model's largest logit."""
    questions, references = [], []
    for shape in SHAPES:
        for seed in seeds:
            model, choose = lab_models.random_model(shape, seed, tmp_path / f"{shape} {seed}")
            tokens = torch.randint(1, 30, (1, choose.choice([7, 15])))  # 0 would pad
            asked, theirs = question(model, tokens, cuts_of(model, choose))
            questions.append(asked)
            references.append(theirs)
    worst = 0.0
    for answer, theirs in zip(lab_models.computed_by_the_lab(questions), references, strict=True):
        assert "error" not in answer, answer
        largest = max(float(logits.abs().max()) for logits in theirs)
        for ours, logits in zip(answer["logits"], theirs, strict=True):
            difference = torch.tensor(ours).view_as(logits) - logits
            worst = max(worst, float(difference.abs().max()) / largest)
    return worst, len(questions)


@pytest.mark.filterwarnings("ignore")
def test_logits_of_the_page_are_those_of_pytorch(tmp_path):
    worst, count = largest_difference([1], tmp_path)
    assert count == 4
    assert worst < TOLERANCE


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore")
def test_logits_of_200_random_models_are_those_of_pytorch(tmp_path):
    worst, count = largest_difference(range(100, 150), tmp_path)
    print(f"{count} models: the largest difference is {worst:.2g} of the largest logit")
    assert count == 200
    assert worst < TOLERANCE


# Families that the documentation names; the others that it names are shapes of GPT-2 and Llama.
ALSO = [
    pytest.param(kind, marks=pytest.mark.weekly)
    for kind in ("neox-serial", "phi", "opt", "qwen2", "gpt2")
]


@pytest.mark.parametrize("kind", ["llama", "neox-parallel", *ALSO])
def test_parts_scores_and_effects_of_the_page_are_those_of_the_library(kind):
    """Norms, biases, rotation and grouped queries; the heads of GPT-NeoX turn a part of each query."""
    model = zoo.make(kind)
    tokens, cuts = torch.tensor([[3, 7, 9, 4, 7, 3]]), ["L0H1->L2H3.K", "L1H0"]
    twin = lab_file.rounded_copy(model, tokens)
    setting = {"text": "3 7 9 4 7 3", "at": 5, "answer": 8}
    asked, _ = question(model, tokens, [[]])
    asked |= {"run": setting, "score": setting | {"head": "L2H3", "source": 2}}
    (answer,) = lab_models.computed_by_the_lab([asked | {"effects": setting | {"cuts": cuts}}])

    parts = {part["name"]: part["value"] for part in answer["run"]["parts"]["before"]}
    theirs = ck.why(twin, tokens, 8)
    theirs = {name: float(theirs[name]) for name in theirs.names}
    ends = [theirs.pop(name, 0.0) for name in ("norm bias", "unembed bias")]
    assert parts.pop("bias", 0.0) == pytest.approx(sum(ends), abs=1e-5)
    assert parts == pytest.approx({name: theirs[name] for name in parts}, abs=1e-5)
    assert sum(parts.values()) == pytest.approx(sum(theirs.values()), abs=1e-5)

    table = ck.paths.score_decomposition(twin, tokens, "L2H3", dst=5, src=2)
    names = answer["score"]["names"]
    rows = torch.tensor([[table[i, j] for j in names] for i in names])
    assert torch.tensor(answer["score"]["table"]).sub(rows).abs().max() < 1e-5
    assert float(rows.sum()) == pytest.approx(float(table.values.sum()), abs=1e-5)

    def logit(names) -> float:
        row = ck.run(twin, tokens, without=names).logits[0, -1]
        return float(row[8] - row.mean())

    for name in ("L0H2", "L2H1", "L0H0->L2H3.V", "L1H2->L2H0.Q", "L0H0->L1H1.K", *cuts):
        absent = [cut for cut in cuts if cut != name]
        expected = logit(absent) - logit([*absent, name])
        assert answer["effects"][name] == pytest.approx(expected, abs=1e-5), name
    assert len(answer["effects"]) == 12 + 3 * 3 * 16


def test_what_heads_add_is_about_the_first_text():
    model = tiny_models.boot(torch.float32, **zoo.NATIVE)
    one, other = torch.tensor([[3, 7, 9, 4]]), torch.tensor([[8, 2, 5, 6]])
    alone, last = ck.lab(model, one).heads, ck.lab(model, other).heads
    predicted = [int(ck.run(model, row).logits[0, -1].argmax()) for row in (one, other)]
    assert len(set(predicted)) == 2
    assert ck.lab(model, torch.cat([one, other])).heads == alone != last
    theirs = ck.why(lab_file.rounded_copy(model, one), one, predicted[0])
    assert alone == pytest.approx({name: float(theirs[name]) for name in alone}, abs=1e-6)


def test_a_matrix_of_zeros_is_not_a_missing_one():
    model = tiny_models.boot(torch.float32, **zoo.NATIVE, normalization_type="LN")
    with torch.no_grad():
        for layer in (0, 1):
            model.blocks[layer].attn.o.weight.zero_()
        model.blocks[1].ln1.weight.zero_()
    tokens = torch.tensor([[3, 7, 9]])
    (answer,) = lab_models.computed_by_the_lab([saved(ck.lab(model, tokens))])
    assert "error" not in answer, answer


def test_texts_are_read_as_the_models_own_tokenizer_reads_them_or_not_at_all():
    model = ck.load_model("zero-layer")
    text = "Mr. D <|endoftext|>don't 3.14 é"
    page = ck.lab(model, ["The house", "Mr. Dorling had"])
    weights = base64.b64encode(page.weights).decode()
    ours, *_ = lab_models.computed_by_the_lab(
        [{"weights": weights, "asked": [], "run": {"text": text}}]
    )
    ids = [token["id"] for token in ours["run"]["tokens"]]
    assert (ours["types"], ids) == (True, model.to_tokens(text)[0].tolist())

    words = {f"w{number}": number for number in range(50)}
    other = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    )
    plain = tiny_models.boot(torch.float32, **zoo.NATIVE)
    plain.tokenizer = other
    (ours,) = lab_models.computed_by_the_lab([saved(ck.lab(plain, torch.tensor([[3, 7, 9]])))])
    assert ours["types"] is False
    assert ours["rows"] == [{"text": "3 7 9", "shown": "w3w7w9"}]


def saved(page, change=lambda header, body: (header, body)) -> dict:
    """A question about a file, in which something was changed."""
    length = int.from_bytes(page.weights[:8], "little")
    header, body = json.loads(page.weights[8 : 8 + length]), page.weights[8 + length :]
    header, body = change(header, body)
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + body
    return {"weights": base64.b64encode(data).decode(), "asked": []}


def with_card(**changes):
    def change(header, body):
        card = json.loads(header["__metadata__"]["lab"]) | changes
        return header | {"__metadata__": {"lab": json.dumps(card)}}, body

    return change


def with_values(name: str, value: float):
    """The first number of a tensor is replaced."""

    def change(header, body):
        at = header[name]["data_offsets"][0]
        return header, body[:at] + np.float16(value).tobytes() + body[at + 2 :]

    return change


def bytes_of(data: bytes) -> dict:
    return {"weights": base64.b64encode(data).decode(), "asked": []}


def test_the_page_refuses_what_is_broken_or_hostile_with_a_reason():
    model = zoo.make("native-mlp", torch.float32)
    page = ck.lab(model, torch.tensor([[3, 7, 9, 3, 7]]))
    bomb = gzip.compress(bytes(40_000_000))
    questions = {
        "": saved(page),
        "damaged (its header would have 0 bytes)": bytes_of(b"PK"),
        "damaged (its weights cannot be unpacked)": bytes_of(gzip.compress(b"{}")[:-4]),
        "damaged (its header would have 1048576 bytes)": bytes_of((2**20).to_bytes(8, "little") + b"{}"),
        "more than the lab reads": bytes_of(bomb),
        "not written by ck.lab": saved(page, lambda header, body: (header | {"__metadata__": {}}, body)),
        "does not fit its place)": saved(page, lambda header, body: (header, body[:-4])),
        "damaged (layers.0.W_in has values that are not finite": saved(page, with_values("layers.0.W_in", np.nan)),
        "other logits than PyTorch": saved(page, with_values("layers.0.W_in", 3.0)),
        "at most 12 layers": saved(page, with_card(dHead=10**9)),
        "damaged (its tokens do not fit its model)": saved(page, with_card(tokens=["<img src=x onerror=alert(1)>"])),
        "its rows": saved(page, with_card(rows=[[10**6]])),
        "its checks": saved(page, with_card(checks=[])),
    }  # fmt: skip
    answers = lab_models.computed_by_the_lab(list(questions.values()))
    for reason, answer in zip(questions, answers, strict=True):
        assert reason in answer.get("error", ""), (reason, answer)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bert", "a network"),
        ("gemma1", "does not begin with the rows of W_E"),
        ("gemma2", "its logits are capped at 8"),
        ("qwen3", "normalise queries and keys"),
        ("mistral", "see only 5 positions"),
        ("native-encoder", "look ahead"),
    ],
)
def test_other_shapes_are_refused_with_the_reason_and_the_way_that_works(kind, reason):
    with pytest.raises(ValueError, match=rf"{reason}.* ck\.run\(model"):
        ck.lab(zoo.make(kind), torch.tensor([[3, 7, 9]]))


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("gemma", {"head_dim": 8}, "does not begin with the rows of W_E"),
        ("mixtral", {"num_local_experts": 2}, "its MLPs are mixtures of experts"),
    ],
)
def test_models_as_they_are_initialised_are_refused(kind, settings, reason, tmp_path):
    """The padding token of such a Gemma has a row of zeros, which no factor changes."""
    config = transformers.AutoConfig.for_model(kind, **zoo.GROUPED | settings)
    original = transformers.AutoModelForCausalLM.from_config(config).eval()
    model = tiny_models.from_folder(tmp_path, original, noise=0)
    with pytest.raises(ValueError, match=f"{reason}.* where the library can read the model"):
        ck.lab(model, torch.tensor([[3, 7, 9]]))


def test_an_empty_list_of_texts_is_refused():
    model = zoo.make("native", torch.float32)
    with pytest.raises(ValueError, match="list of texts is empty. Give at least one text"):
        ck.lab(model, [])


def test_a_model_beyond_the_limits_is_refused_with_the_numbers():
    many = tiny_models.boot(torch.float32, **zoo.NATIVE | {"d_vocab": 130_000})
    with pytest.raises(
        ValueError, match=r"3,\d{3},\d{3} weights, and the lab reads at most 3,000,000"
    ):
        ck.lab(many, torch.tensor([[3]]))
    model = zoo.make("native", torch.float32)
    with pytest.raises(ValueError, match="65 texts"):
        ck.lab(model, torch.zeros(65, 2, dtype=torch.long))


def test_a_model_with_a_hook_that_changes_it_is_refused():
    model = tiny_models.boot(torch.float32, **zoo.NATIVE)
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z + 1, is_permanent=True)
    with pytest.raises(ValueError, match="a hook changes"):
        ck.lab(model, torch.tensor([[3, 7, 9]]))


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    page = ck.lab(zoo.make("native", torch.float32), torch.tensor([[3, 7, 9]]))
    out = page.save(tmp_path / "mine.html")
    before = out.read_text("utf-8")
    assert base64.b64encode(gzip.compress(page.weights, mtime=0)).decode() in before
    monkeypatch.setattr(lab_file.bundle, "one_file", lambda *_: "\ud800")  # cannot be written
    with pytest.raises(UnicodeEncodeError):
        page.save(out)
    assert out.read_text("utf-8") == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.html"]
    with pytest.raises(ValueError, match=r"ends in \.html"):
        page.save(tmp_path / "mine.pdf")


def test_a_notebook_shows_the_page_and_stores_a_still_picture(monkeypatch):
    model, tokens = zoo.make("native", torch.float32), torch.tensor([[3, 7, 9]])
    page = ck.lab(model, tokens, title='"two" & more')
    monkeypatch.delenv(lab_file.STILL)
    live = page._repr_mimebundle_()[0]["text/html"]
    assert html.unescape(live.split('srcdoc="')[1].split('"')[0]) == page.html
    monkeypatch.setenv(lab_file.STILL, "1")
    still, again = (ck.lab(model, tokens)._repr_mimebundle_()[0] for _ in range(2))
    assert set(still) == {"image/png", "text/plain"}
    assert still == again
    assert 'ck.lab(model, text).save("my-lab.html")' in still["text/plain"]
    assert len(still["image/png"]) < 100_000
