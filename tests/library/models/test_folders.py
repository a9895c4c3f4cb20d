"""Models from a folder: loaded whole, or refused with the names of the weights at fault."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import circuitkit as ck
from circuitkit.models import load_tokenizer
from circuitkit.rows import repeated_tokens
from tests.support import tiny_models

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = "In the beginning God created the heaven and the earth"


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


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


def test_a_folder_is_read_in_the_default_precision(tmp_path, whole):
    config = transformers.LlamaConfig(**tiny_models.HUGGING_FACE, num_key_value_heads=1)
    transformers.LlamaForCausalLM(config).double().save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    tokens = torch.tensor([[1, 2, 3]])
    try:
        torch.set_default_dtype(torch.float64)
        for folder in (tmp_path, whole):  # without and with a tokenizer
            model = ck.load_model(folder)
            assert {weight.dtype for weight in model.parameters()} == {torch.float64}
            assert model(tokens).dtype == torch.float64
        assert torch.equal(ck.load_model(tmp_path).W_U, stored.T)
        torch.set_default_dtype(torch.bfloat16)
        for name in (tmp_path, "zero-layer"):
            assert ck.load_model(name).W_U.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_folder_computes_what_transformers_computes(tmp_path, kind):
    torch.manual_seed(0)
    if kind == "gpt2":
        original = transformers.GPT2LMHeadModel(transformers.GPT2Config(**tiny_models.GPT2))
    else:
        config = transformers.LlamaConfig(**tiny_models.HUGGING_FACE, num_key_value_heads=1)
        original = transformers.LlamaForCausalLM(config)
    original.save_pretrained(tmp_path, max_shard_size="5KB")  # several files, as a large model has
    tokens = torch.randint(50, (2, 9))
    for model in (ck.load_model(tmp_path), ck.load_model(str(tmp_path))):
        assert not model.training
        # both compute in float32, in another order of operations
        expected = original.eval()(tokens, use_cache=False).logits
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-5)


def test_half_precision_is_read_as_float32(folder):
    change_weights(
        folder, lambda weights: weights.update({k: w.half() for k, w in weights.items()})
    )
    assert {p.dtype for p in ck.load_model(folder).parameters()} == {torch.float32}


def test_missing_weights_are_not_replaced_by_random_numbers(folder):
    before = vars(transformers.PreTrainedModel)["from_pretrained"]
    change_weights(folder, lambda W: [W.pop(name) for name in [*W] if "h.1.mlp" in name])
    with pytest.raises(ValueError, match=r"The weights of '.*mine' lack .*h\.1\.mlp.*and 1 more"):
        ck.load_model(folder)
    assert vars(transformers.PreTrainedModel)["from_pretrained"] is before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(folder, value):
    def change(weights):
        next(w for name, w in weights.items() if name.endswith("h.1.attn.c_attn.weight"))[0] = value

    change_weights(folder, change)
    message = r"The weight .*h\.1\.attn\.c_attn\.weight of '.*mine' holds NaN or infinite values"
    with pytest.raises(ValueError, match=message):
        ck.load_model(folder)


def test_sizes_that_differ_from_the_configuration_are_named(folder):
    change_config(folder, n_inner=50)
    with pytest.raises(ValueError, match=r"have other sizes than config.json says for .*mlp"):
        ck.load_model(folder)


@pytest.mark.filterwarnings("always")
def test_unused_weights_are_named(folder):
    change_config(folder, n_layer=1)
    with pytest.warns(UserWarning, match=r"'.*mine' does not use .*h\.1\..* and \d+ more"):
        ck.load_model(folder)


def test_loading_a_sound_folder_warns_of_nothing(whole):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ck.load_model(whole)


def test_a_folder_without_tokenizer_gives_a_model_without_one(folder):
    with_tokenizer = ck.load_model(folder)
    tokens = with_tokenizer.to_tokens(TEXT)
    for file in folder.glob("*token*"):
        file.unlink()
    model = ck.load_model(folder)
    assert model.tokenizer is None
    assert torch.equal(model(tokens), with_tokenizer(tokens))


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no config.json in '.*'\. A model is"):
        ck.load_model(tmp_path)


@pytest.mark.parametrize("name", ["two-layer", "gpt2-small", "neox"])
def test_a_folder_may_be_called_like_another_model(folder, monkeypatch, name):
    """transformer-lens takes `gpt2-small` for `gpt2`, and `neox` for a model of the Hub."""
    monkeypatch.chdir(folder.parent)
    folder.rename(name)
    assert ck.load_model(Path(name)).cfg.d_model == 24
    if name == "two-layer":
        assert ck.load_model(name).cfg.d_model == 160  # a string is the shipped model
    else:
        assert ck.load_model(name).cfg.d_model == 24


def test_dropout_is_off_in_what_is_measured(whole):
    """A model in train mode is measured in eval mode, and it stays in train mode."""
    model = ck.load_model(whole)
    rows = repeated_tokens(model.cfg.d_vocab, 8, batch=3)
    before = ck.run(model, rows.tokens).logits
    model.train()
    assert not torch.equal(model(rows.tokens), before)
    assert torch.equal(ck.run(model, rows.tokens).logits, before)
    assert model.training


WORDS = ["[UNK]", "[CLS]", "[SEP]", "the", "cat", "<s>", "</s>", "▁the", "▁cat"]
TOKENIZERS = {  # template, other settings, the tokens of "the cat"
    "BERT's": ("[CLS] $A [SEP]", {"cls_token": "[CLS]", "sep_token": "[SEP]"}, [1, 3, 4, 2]),
    "without names": ("[CLS] $A [SEP]", {}, [1, 3, 4, 2]),
    "two openings": ("<s> <s> $A", {"bos_token": "<s>"}, [5, 5, 3, 4]),
    "an end": ("<s> $A </s>", {"bos_token": "<s>", "eos_token": "</s>"}, [5, 3, 4]),
    "an end only": ("$A </s>", {"eos_token": "</s>"}, [6, 3, 4]),
    "no template": (None, {"bos_token": "<s>"}, [5, 3, 4]),
    "no special tokens": (None, {}, [3, 4]),
    "metaspace": (None, {}, [7, 8]),
    "metaspace, opening": ("<s> $A", {"bos_token": "<s>"}, [5, 7, 8]),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_are_those_of_the_models_own_tokenizer(folder, kind):
    """As in transformers, without an end and with an opening token where there is no template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    template, settings, expected = TOKENIZERS[kind]
    ids = {word: i for i, word in enumerate(WORDS)}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    is_metaspace = "metaspace" in kind
    core.pre_tokenizer = (
        pre_tokenizers.Metaspace() if is_metaspace else pre_tokenizers.WhitespaceSplit()
    )
    if template is not None:
        special = [(word, ids[word]) for word in template.split() if word in ids]
        core.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]", **settings)
    own.save_pretrained(folder)
    model = ck.load_model(folder)
    assert ck.run(model, "the cat").tokens.tolist() == [expected]
    whole = transformers.AutoTokenizer.from_pretrained(folder)("the cat")["input_ids"]
    assert kind in ("an end", "an end only", "no template") or whole == expected
    assert ck.checks.to_token(model, "cat") == (8 if is_metaspace else 4)


def test_an_mlp_that_cannot_be_converted_says_so(tmp_path):
    """Phi-3 computes gate and value in one product, and calls no module for its activation."""
    none = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.Phi3Config(**tiny_models.HUGGING_FACE, **none)
    model = tiny_models.from_folder(tmp_path, transformers.Phi3ForCausalLM(config))
    with pytest.raises(ValueError, match="Phi3ForCausalLM cannot be converted"):
        ck.to_attention_only(model, heads_per_neuron=2)
