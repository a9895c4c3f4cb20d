"""Models of one's own, in a folder: whole and sound or refused in words; nothing is made up, cut or filled up."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import circuitkit as ck
from circuitkit import induction
from circuitkit.models import load_tokenizer
from tests.support import tiny_models

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = "In the beginning", "In the beginning God created the heaven and the earth"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A GPT-2 with dropout and a tokenizer of its own, as `save_pretrained` leaves it."""
    folder = tmp_path_factory.mktemp("models") / "mine"
    sizes = tiny_models.GPT2 | {"vocab_size": load_tokenizer().vocab_size, "n_positions": 24}
    config = transformers.GPT2Config(
        **sizes, resid_pdrop=0.5, attn_pdrop=0.5, architectures=["GPT2LMHeadModel"]
    )
    tiny_models.from_folder(folder, transformers.GPT2LMHeadModel(config))
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "mine")
    return tmp_path / "mine"


def weights(folder, change):
    """The folder's weights after a change of the dictionary that holds them."""
    found = load_file(folder / "model.safetensors")
    change(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_path_is_as_good_as_its_name(whole):
    one, two = ck.load_model(whole), ck.load_model(str(whole))
    tokens = one.to_tokens(TEXTS[1])
    assert torch.equal(one(tokens), two(tokens))
    assert ck.heads(one).of == ck.heads(two).of
    assert ck.heads(one).of.startswith(str(whole))


def test_a_weight_that_is_missing_is_not_drawn(folder):
    weights(folder, lambda W: [W.pop(name) for name in [*W] if "h.1.mlp" in name])
    with pytest.raises(
        ValueError,
        match=r"the weights of '.*mine' lack .*h\.1\.mlp.*and 1 more; expected all, because transformers would put random numbers",
    ):
        ck.load_model(folder)
    assert (
        transformers.PreTrainedModel.from_pretrained.__func__
        is vars(transformers.PreTrainedModel)["from_pretrained"].__func__
    )


def test_what_is_loaded_elsewhere_is_loaded_as_before(folder):
    before = vars(transformers.PreTrainedModel)["from_pretrained"]
    ck.load_model(folder)
    assert vars(transformers.PreTrainedModel)["from_pretrained"] is before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder, value):
    weights(
        folder,
        lambda W: next(w for name, w in W.items() if name.endswith("h.1.attn.c_attn.weight"))[
            0
        ].fill_(value),
    )
    with pytest.raises(
        ValueError, match=r"NaN or infinite entries in .*1\.attn.*; expected finite weights"
    ):
        ck.load_model(folder)


def test_weights_that_became_no_numbers_are_named_by_every_tool(folder):
    model = ck.load_model(folder)
    rows = induction.repeated_tokens(model.cfg.d_vocab, 8, batch=2)
    ck.heads(model), induction.scores(model, rows)
    with torch.no_grad():
        next(p for name, p in model.original_model.named_parameters() if p.ndim == 2)[0, 0] = float(
            "nan"
        )
    tools = [lambda: ck.heads(model), lambda: induction.scores(model, rows), lambda: induction.survey(model, batch=2, period=8),
             lambda: induction.induction_loss(model, rows), lambda: ck.report(model), lambda: ck.circuits.copying_score(model)]  # fmt: skip
    for tool in tools:
        with pytest.raises(
            ValueError,
            match="NaN or infinite entries in .*; expected finite weights, because no result would mean anything",
        ):
            tool()


def test_a_folder_without_tokenizer_makes_none_up(folder):
    for file in folder.glob("*token*"):
        file.unlink()
    model = ck.load_model(folder)
    assert model.tokenizer is None
    with pytest.raises(
        ValueError,
        match=r"'.*mine' has no tokenizer; expected ids.*tokenizer.save_pretrained\(folder\)",
    ):
        model.to_tokens("In the beginning")
    assert model(torch.tensor([[5, 7, 5]])).shape == (1, 3, model.cfg.d_vocab)
    assert not ck.report(model).problems


def test_texts_of_several_lengths_are_not_filled_up(whole):
    model = ck.load_model(whole)
    lengths = [model.to_tokens(text).shape[1] for text in TEXTS]
    with pytest.raises(
        ValueError,
        match=rf"the texts have {lengths[0]}, {lengths[1]} tokens; expected one length.*padding_side='right'",
    ):
        model.to_tokens([*TEXTS])
    assert model.to_tokens([*TEXTS], padding_side="right").shape == (2, lengths[1])
    assert torch.equal(model.to_tokens([TEXTS[0]] * 2)[:1], model.to_tokens(TEXTS[0]))
    for nothing in ([], ""):
        with pytest.raises(ValueError, match="expected some text"):
            model.to_tokens(nothing, prepend_bos=False)


def test_a_text_past_the_context_is_not_cut(whole):
    model = ck.load_model(whole)
    with pytest.raises(ValueError, match=r"reads at most 24 \(n_ctx\).*truncate=True"):
        model.to_tokens(TEXTS[1] * 5)
    assert model.to_tokens(TEXTS[1] * 5, truncate=True).shape == (1, 24)
    with pytest.raises(ValueError, match="tokens.*24"):
        ck.report(model, prompt=TEXTS[1] * 5)


def test_what_is_no_folder_of_a_model_says_so(folder, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FileNotFoundError,
        match=r"there is no config.json in '.*empty'; expected what model.save_pretrained\(folder\) writes",
    ):
        ck.load_model(tmp_path / "empty")
    with pytest.raises(
        FileNotFoundError, match=r"'.*model.safetensors' is a file; expected a folder"
    ):
        ck.load_model(folder / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match="there is no folder 'mine/mien'; expected a folder"
    ):
        ck.load_model("mine/mien")
    cut = (folder / "model.safetensors").read_bytes()[:5000]
    (folder / "model.safetensors").write_bytes(cut)
    with pytest.raises(
        (ValueError, FileNotFoundError),
        match=r"the model in 'mine' could not be read: .*Look at config.json, or save it again",
    ):
        ck.load_model("mine")
    (folder / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    with pytest.raises(ValueError, match="the model in 'mine' could not be read"):
        ck.load_model("mine")


def test_dropout_is_off_in_what_is_measured(whole):
    """A model left in train mode is measured as it is used, and stays in train mode."""
    model = ck.load_model(whole)
    rows = induction.repeated_tokens(model.cfg.d_vocab, 8, batch=3)
    measures = {
        "effect": lambda: induction.effect(model, rows, "L1H0", draws=2).values,
        "loss": lambda: torch.tensor(induction.induction_loss(model, rows)[:2]),
        "scores": lambda: induction.scores(model, rows).prefix_matching,
        "logits": lambda: ck.anatomy(model).run(rows.tokens).logits,
        "attribution": lambda: (
            ck.residual.logit_attribution(
                model, rows.tokens, rows.tokens.roll(-1, 1), versus="mean"
            ).values
        ),
        "converted": lambda: torch.tensor(
            ck.to_attention_only(model, heads_per_neuron=2).report.logit_error
        ),
    }

    def report():
        return torch.tensor([row["value"] for row in ck.report(model).rows])

    measures["report"] = report
    still = {name: measure() for name, measure in measures.items()}
    model.train()
    assert not torch.equal(model(rows.tokens), model(rows.tokens))
    for name, measure in measures.items():
        assert torch.equal(measure(), still[name]), name
    assert model.training


def test_heads_of_another_model_are_not_composed(whole, folder):
    mine, other = ck.load_model(whole), ck.load_model(folder)
    one, two = ck.heads(mine), ck.heads(other)
    with pytest.raises(
        ValueError,
        match=r"read from '.*mine \(....\)', later .*read from '.*mine \(....\)'; expected .* of one d_model and one model",
    ):
        ck.circuits.composition_scores(one, two, "K")
    with pytest.raises(ValueError, match="heads of that model and no other"):
        ck.circuits.copying_score(one, other)
    assert ck.circuits.copying_score(one, mine).score.shape == (6,)
    with pytest.raises(ValueError, match="heads of one model, because others share no stream"):
        ck.stack(one["L0H0"], two["L1H0"])
    assert ck.stack(one["L0H0"], one["L1H0"]).of == one.of


@pytest.mark.parametrize("layers", [[0, 0], [1, 0, 1], []])
def test_a_layer_is_read_once(folder, layers):
    with pytest.raises(ValueError, match=r"numbers of layers, each once, of a model in a folder"):
        ck.load_model(folder, layers=layers)


def test_half_a_name_is_not_a_head(whole):
    model = ck.load_model(whole)
    for call in (lambda: ck.heads(model)[1, 2], lambda: ck.circuits.full_ov(model, (1, 2))):
        with pytest.raises(
            ValueError, match=r"\(1, 2\).*could be two heads or head 3 of layer 1. Write 'L1H3'"
        ):
            call()
    with pytest.raises(
        TypeError,
        match=r"full_ov could not take these arguments: too many positional arguments. Write full_ov\(model, head",
    ):
        ck.circuits.full_ov(model, 1, 3)


def test_a_knob_is_named(whole):
    with pytest.raises(TypeError, match="to_attention_only could not take these arguments"):
        ck.to_attention_only(ck.load_model(whole), 8)


def test_settings_that_change_are_read_again(tmp_path):
    config = transformers.LlamaConfig(
        **tiny_models.HUGGING_FACE,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["LlamaForCausalLM"],
    )
    model = tiny_models.from_folder(tmp_path, transformers.LlamaForCausalLM(config))
    rows = induction.repeated_tokens(50, 8, batch=3)
    told = []
    for name, value in (("variance_epsilon", 1e-6), ("variance_epsilon", 1.0), ("scaling", 2.0)):
        for part in model.original_model.modules():
            if hasattr(part, name):
                setattr(part, name, value)
        told.append(induction.effect(model, rows, "L0H1", draws=1).values)
        torch.testing.assert_close(
            ck.anatomy(model).run(rows.tokens).logits, model(rows.tokens), rtol=0, atol=1e-4
        )
    assert not any(torch.equal(one, two) for one, two in zip(told, told[1:], strict=False))


def test_what_is_kept_is_not_that_of_other_settings_or_hooks(whole, tmp_path):
    rows = induction.repeated_tokens(2048, 8, batch=3)

    def asked(model):
        with ck.kept_in(tmp_path):
            return induction.effect(model, rows, "L0H1", draws=1).values

    model = ck.load_model(whole)
    first = asked(model)
    for place, value in (("act", torch.nn.ReLU()), ("act", torch.nn.Tanh())):
        setattr(model.original_model.transformer.h[0].mlp, place, value)
        assert not torch.equal(asked(model), first)
    model = ck.load_model(whole)
    assert torch.equal(asked(model), first)
    held = model.original_model.transformer.h[0].mlp.register_forward_hook(
        lambda module, args, out: out
    )
    with pytest.raises(ValueError, match="with hooks on it has no name to be kept by"):
        asked(model)
    held.remove()
    assert torch.equal(asked(model), first)
    model.add_hook("blocks.0.hook_mlp_out", lambda x, hook: x * 0)
    with pytest.raises(ValueError, match="with hooks on it"):
        asked(model)
    with pytest.raises(ValueError, match="with hooks on it has no name to be kept by"):
        ck.report(model, tmp_path / "x.html")
    with pytest.raises(ValueError, match="to_attention_only got a model with hooks on it"):
        ck.to_attention_only(model, heads_per_neuron=2)


def test_a_kept_file_that_was_cut_off_is_made_again(whole, tmp_path):
    model, rows = ck.load_model(whole), induction.repeated_tokens(2048, 8, batch=3)
    with ck.kept_in(tmp_path):
        first = induction.effect(model, rows, "L0H1", draws=1).values
    for file in tmp_path.rglob("*.json"):
        file.write_text(file.read_text()[:7])
    with ck.kept_in(tmp_path):
        assert torch.equal(induction.effect(model, rows, "L0H1", draws=1).values, first)


def test_a_promise_holds_inside_autocast(whole):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        twin = ck.to_attention_only(ck.load_model(whole), heads_per_neuron=3)
    assert all(layer.measured <= layer.bound + layer.rounding for layer in twin.report.layers)


def test_two_models_of_one_name_are_two(whole, folder, tmp_path, monkeypatch):
    weights(folder, lambda W: [w.mul_(1.5) for name, w in W.items() if name.endswith("wte.weight")])
    shutil.move(folder, tmp_path / "other" / "mine")
    loaded = []
    for parent in (whole.parent, tmp_path / "other"):
        monkeypatch.chdir(parent)
        loaded.append(ck.load_model("mine"))
    one, two = map(ck.heads, loaded)
    with pytest.raises(ValueError, match="and one model"):
        ck.circuits.composition_scores(one, two, "K")
    native = [
        tiny_models.boot(
            torch.float32,
            seed=seed,
            d_model=12,
            d_head=4,
            n_layers=2,
            n_ctx=16,
            n_heads=3,
            d_vocab=23,
        )
        for seed in (0, 1)
    ]
    with pytest.raises(ValueError, match="and one model"):
        ck.circuits.composition_scores(*map(ck.heads, native), "K")


def test_a_folder_called_like_a_shipped_model_is_a_folder(folder, monkeypatch):
    folder.rename(folder.parent / "two-layer")
    monkeypatch.chdir(folder.parent)
    assert ck.load_model(Path("two-layer")).cfg.d_model == 24
    assert ck.load_model("two-layer").cfg.d_model == 160
    assert ck.report(Path("two-layer")).title == "two-layer"
    assert "two-layer/" not in ck.report(Path("two-layer")).html


@pytest.mark.parametrize("name", ["gpt2-small", "gpt2", "neox"])
def test_a_folder_called_like_a_hub_s_model_is_a_folder(folder, monkeypatch, name):
    """transformer-lens has short names of its own: `gpt2-small` is `gpt2` to it, and `neox` a model of the hub."""
    monkeypatch.chdir(folder.parent)
    other = folder.parent / "gpt2"
    folder.rename(name)
    if name != "gpt2":
        shutil.copytree(name, other)
        weights(other, lambda W: [w.mul_(2) for w in W.values()])
    first = ck.load_model(Path(name).absolute()).W_E
    for way in (name, f"./{name}", Path(name)):
        assert torch.equal(ck.load_model(way).W_E, first)


@pytest.mark.parametrize("layers", [[0], [1, 0]])
def test_layers_of_a_folder_without_tokenizer_have_none(folder, layers):
    for file in folder.glob("*token*"):
        file.unlink()
    assert ck.load_model(folder, layers=layers).tokenizer is None


@pytest.mark.filterwarnings("always")
def test_weights_that_nothing_reads_are_named(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 1}))
    with pytest.warns(
        UserWarning,
        match=r"the weights of '.*mine' hold .*h\.1\..* and \d+ more, which a model of its config.json does not read",
    ):
        ck.load_model(folder)


def test_sizes_that_do_not_fit_are_named(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_inner": 50}))
    with pytest.raises(
        ValueError,
        match=r"have other sizes than its config.json says, .*mlp.* for instance \(.*\), not \(.*50.*\); expected both from one model",
    ):
        ck.load_model(folder)


def test_a_tokenizer_that_cannot_be_read_is_named(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(
        (ValueError, FileNotFoundError),
        match=r"the tokenizer in '.*mine' could not be read: .*tokenizer.save_pretrained",
    ):
        ck.load_model(folder)


@pytest.mark.parametrize("value", [None, 5, [5], ["a", None]])
def test_what_is_no_text(whole, value):
    with pytest.raises(
        ValueError, match="to_tokens got .*; expected some text, or a list of texts"
    ):
        ck.load_model(whole).to_tokens(value)


def test_a_prompt_wants_a_tokenizer_and_a_page_a_file(folder, tmp_path):
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match="report got a prompt, and the model has no tokenizer"):
        ck.report(folder, prompt="Quux the")
    (tmp_path / "x.html").mkdir()
    with pytest.raises(ValueError, match="is a folder. Write a name in it that ends in .html"):
        ck.report(folder, tmp_path / "x.html")


def test_nothing_of_this_warns(whole):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ck.heads(ck.load_model(whole))
