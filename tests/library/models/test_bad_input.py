"""What a shipped model, a damaged file, a wrong name and a missing network say."""

import re
import shutil
import socket

import pytest
import torch

import circuitkit
from circuitkit.models import _load, checkpoints, model_card
from tests.support import tiny_models

LIST = re.escape(str(circuitkit.list_models()))


def test_unknown_name_lists_the_names():
    with pytest.raises(
        ValueError,
        match=rf"no model is called 'two-layr'\. Did you mean 'two-layer'\? .* one of {LIST}",
    ):
        circuitkit.load_model("two-layr")
    with pytest.raises(
        ValueError,
        match=rf"no model is called 'nonsense'\. Expected .* {LIST}, or the name of a model",
    ):
        circuitkit.load_model("nonsense")
    for function in (model_card, checkpoints):
        with pytest.raises(
            ValueError, match=rf"no model is called 'nonsense'\. Expected .* {LIST}"
        ):
            function("nonsense")


@pytest.mark.parametrize("given", [None, 2, ["two-layer"]])
@pytest.mark.usefixtures("as_a_reader")
def test_a_name_that_is_no_string(given):
    with pytest.raises(
        ValueError, match=rf"name={re.escape(repr(given))}; expected a name.*list_models\(\)"
    ):
        circuitkit.load_model(given)


def test_wrong_step_lists_the_steps():
    steps = re.escape(str(checkpoints("two-layer")))
    with pytest.raises(
        ValueError,
        match=rf"'two-layer' has no checkpoint at step 7; expected one of {steps} \(or leave",
    ):
        circuitkit.load_model("two-layer", step=7)
    with pytest.raises(ValueError, match="'zero-layer' has no checkpoint at step -1"):
        circuitkit.load_model("zero-layer", step=-1)


def test_a_step_of_a_model_that_does_not_ship():
    with pytest.raises(
        ValueError,
        match=rf"step=100, name='gpt2'; expected no step: only shipped models .*{LIST}\. Leave step",
    ):
        circuitkit.load_model("gpt2", step=100)


def replace_file(folder, file, change):
    path = folder / file
    content = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


def test_corrupted_weights(copied, sha256):
    """One flipped bit: the message names the file, the hash it has and the hash it should have."""
    recorded = model_card("one-layer")["files"][str(checkpoints("one-layer")[-1])]["sha256"]
    replace_file(copied, "one-layer.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1]))
    found = sha256(copied / "one-layer.safetensors")
    message = rf"one-layer\.safetensors is damaged: its sha256 is {found}, expected {recorded} .*Install the package again"
    with pytest.raises(ValueError, match=message):
        circuitkit.load_model("one-layer")
    circuitkit.load_model("zero-layer")  # the others are not held up


def test_truncated_weights(copied):
    replace_file(copied, "zero-layer.safetensors", lambda b: b[:100])
    with pytest.raises(ValueError, match=r"zero-layer\.safetensors is damaged: its sha256 is"):
        circuitkit.load_model("zero-layer")


@pytest.mark.parametrize("file", ["zero-layer.safetensors", "tokenizer.json"])
def test_missing_file(copied, file):
    replace_file(copied, file, None)
    with pytest.raises(
        FileNotFoundError,
        match=rf"{file} is missing; expected it inside .*Install the package again",
    ):
        circuitkit.load_model("zero-layer")


def test_missing_manifest(copied):
    replace_file(copied, "manifest.json", None)
    with pytest.raises(
        FileNotFoundError,
        match=r"manifest\.json is missing; expected it inside the installed package",
    ):
        circuitkit.list_models()


def test_corrupted_tokenizer_and_text(copied):
    for file, use in (
        ("tokenizer.json", circuitkit.models.load_tokenizer),
        ("heldout.jsonl", circuitkit.models.heldout_text),
    ):
        replace_file(copied, file, lambda b: b + b" ")
        with pytest.raises(
            ValueError, match=rf"{file} is damaged: its sha256 is \w+, expected \w+"
        ):
            use()


LONG = "word after word " * 300


@pytest.mark.parametrize("shipped", ["zero-layer", "two-layer"])
def test_text_longer_than_the_context(shipped):
    model = circuitkit.load_model(shipped)
    message = rf"the input has \d+ tokens, but '{shipped}' reads at most 256 \(n_ctx\).*Cut it: model\.to_tokens\(text, tr"
    for use in (model.to_tokens, model, model.run_with_cache):
        with pytest.raises(ValueError, match=message):
            use(LONG)
    rows = torch.ones(1, 257, dtype=torch.long)
    for use in (model, model.run_with_cache, lambda t: model.run_with_hooks(t, fwd_hooks=[])):
        with pytest.raises(ValueError, match="the input has 257 tokens"):
            use(rows)
    assert model(rows[:, :256]).shape == (1, 256, 2048)
    assert model.to_tokens(LONG, truncate=True).shape == (1, 256)


@pytest.mark.parametrize("wrong", [-1, 2048, 50256])
def test_token_id_out_of_range(wrong):
    model = circuitkit.load_model("one-layer")
    rows = torch.tensor([[0, 5, wrong]])
    low, high = min(0, wrong), max(5, wrong)
    message = rf"token ids run from {low} to {high}, but 'one-layer' has ids 0 to 2047\. Make tokens with model\.to_tokens"
    for use in (model, model.run_with_cache):
        with pytest.raises(ValueError, match=message):
            use(rows)
    with pytest.raises(ValueError, match=r"expected ids in 0\.\.2047"):
        circuitkit.residual.decompose(model, rows)
    model(torch.tensor([[0, 2047]]))


@pytest.fixture
def cut(monkeypatch):
    """No network, and no cache; the list that comes back holds what was asked of a socket."""
    asked = []

    def refuse(address, *args, **kwargs):
        asked.append(address)
        raise OSError("network is unreachable")

    def never(*args, **kwargs):
        raise AssertionError("the hub's client was started")

    from transformer_lens.model_bridge import TransformerBridge

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", never)
    monkeypatch.setattr(
        TransformerBridge, "boot_transformers", never
    )  # its client retries for half a minute
    monkeypatch.setattr(_load, "_cached", lambda name: False)
    for variable in (
        "https_proxy",
        "HTTPS_PROXY",
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(variable, raising=False)
    return asked


@pytest.mark.parametrize(
    "name", ["gpt2", "attn-only-2l", "EleutherAI/pythia-70m", "somebody/something"]
)
def test_no_network(cut, name):
    with pytest.raises(FileNotFoundError) as caught:
        circuitkit.load_model(name)
    text = str(caught.value)
    assert text.startswith(
        f"{name!r} is a model on the Hugging Face hub: it is not in this machine's cache and the hub"
    )
    assert "Expected internet access, a cached copy, or a path to a local folder" in text
    assert str(circuitkit.list_models()) in text
    assert len(cut) == 1
    assert cut[0][1] == 443


def test_a_hub_that_does_not_answer_is_given_up_soon(cut, monkeypatch):
    timeouts = []

    def slow(address, timeout=None):
        timeouts.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", slow)
    with pytest.raises(FileNotFoundError, match="the hub cannot be reached"):
        circuitkit.load_model("gpt2")
    assert sum(timeouts) < 5


def test_a_proxy_is_asked_instead_of_the_hub(cut, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    with pytest.raises(FileNotFoundError):
        circuitkit.load_model("gpt2")
    assert cut == [("proxy.example", 3128)]


def test_what_the_hub_answers_is_passed_on(monkeypatch):
    """With a network, a name the hub does not know is not blamed on the network."""
    from transformer_lens.model_bridge import TransformerBridge

    def refuse(name, **kwargs):
        raise OSError(f"{name} is not a valid model identifier\nlisted on the hub")

    monkeypatch.setattr(_load, "_reachable", lambda *args: True)
    monkeypatch.setattr(TransformerBridge, "boot_transformers", refuse)
    with pytest.raises(
        FileNotFoundError,
        match=r"'me/mine' could not be loaded from .* not a valid .*check its spelling",
    ):
        circuitkit.load_model("me/mine")


def test_hub_names_reach_the_hub(monkeypatch):
    """Aliases are resolved, the device is handed on, and the model comes back in eval mode."""
    from transformer_lens.model_bridge import TransformerBridge

    seen = []

    def boot(name, device=None):
        seen.append((name, device))
        return tiny_models.boot(
            d_model=4, d_head=2, n_layers=1, n_ctx=4, n_heads=2, d_vocab=5
        ).train()

    monkeypatch.setattr(_load, "_reachable", lambda *args: True)
    monkeypatch.setattr(TransformerBridge, "boot_transformers", boot)
    model = circuitkit.load_model("gpt2", device="cpu")
    circuitkit.load_model("gpt2-small")
    assert seen == [("gpt2", "cpu"), ("gpt2", None)]
    assert not model.training


def test_a_local_folder(tmp_path):
    import warnings

    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=12, n_layer=1, n_head=2, vocab_size=50, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    circuitkit.models.load_tokenizer().save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = circuitkit.load_model(str(tmp_path))
    assert not model.training
    assert len(circuitkit.heads_of(model)) == 2


@pytest.mark.parametrize("path", ["/no/such/folder", "./nowhere", "~/model"])
def test_a_folder_that_is_not_there(path):
    with pytest.raises(
        FileNotFoundError,
        match=f"there is no folder '{path}'; expected a folder that a model was saved to",
    ):
        circuitkit.load_model(path)


def test_the_shipped_data_is_left_as_it_was(data, manifest, sha256):
    assert (
        sha256(data / "one-layer.safetensors")
        == list(manifest["models"]["one-layer"]["files"].values())[-1]["sha256"]
    )
    assert shutil.disk_usage(data).free > 0


def test_a_hub_that_falls_silent_during_the_download_is_told(monkeypatch):
    from transformer_lens.model_bridge import TransformerBridge

    def boot(name, **_):
        raise OSError("Connection reset")

    answers = iter([True, False])
    monkeypatch.setattr(_load, "_cached", lambda name: False)
    monkeypatch.setattr(_load, "_reachable", lambda *args: next(answers))
    monkeypatch.setattr(TransformerBridge, "boot_transformers", boot)
    with pytest.raises(
        FileNotFoundError,
        match="'gpt2' is a model on the Hugging Face hub: it is not in this machine's",
    ):
        circuitkit.load_model("gpt2")


def test_a_host_that_answers_is_reachable(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(_load, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert _load._reachable()
    assert not _load._reachable()


def test_embeddings_instead_of_ids_are_not_measured():
    from circuitkit.models._load import _check_call

    assert _check_call("two-layer", (2048, 256), None, (torch.zeros(1, 5000, 3),), {}) is None
    assert _check_call("two-layer", (2048, 256), None, (), {}) is None
