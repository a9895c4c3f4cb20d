"""Loading: what comes out, and that it computes what the stored weights say."""

import socket

import pytest
import torch

import circuitkit
from circuitkit.models import checkpoints, load_tokenizer, model_card

TEXT = "It was the best of times,\n  it was the worst of times; naïve café – 1859."


@pytest.fixture(scope="module")
def rows(heldout):
    return torch.stack(
        [torch.cat([heldout[:1] * 0, heldout[at : at + 99]]) for at in (10, 5_000, 90_000)]
    )


def test_ready_to_use(model, name):
    from transformer_lens.model_bridge import TransformerBridge

    assert isinstance(model, TransformerBridge)
    assert not any(module.training for module in model.modules())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(p.requires_grad for p in model.parameters())
    sizes = model_card(name)["sizes"]
    width = sizes["d_content"] + (0 if sizes["mlp"] else sizes["d_pos"])
    expected = {"d_model": width, "d_vocab": 2048, "n_ctx": 256}
    expected |= {key: sizes[key] for key in ("n_layers", "n_heads", "d_head")}
    assert {key: getattr(model.cfg, key) for key in expected} == expected


def test_computes_what_is_stored(model, name, rows, stored_logits):
    """Against a forward pass from the file alone, without transformer-lens; float64 there, float32 here."""
    with torch.no_grad():
        expected = stored_logits(name, rows, torch.float64)
    torch.testing.assert_close(model(rows).double(), expected, atol=2e-4, rtol=1e-4)


def test_a_checkpoint_is_another_model(rows, stored_logits):
    steps = checkpoints("two-layer")
    for step in (steps[0], steps[len(steps) // 2]):
        early = circuitkit.load_model("two-layer", step=step)
        with torch.no_grad():
            expected = stored_logits("two-layer", rows, torch.float64, step=step)
        torch.testing.assert_close(early(rows).double(), expected, atol=2e-4, rtol=1e-4)
    last = circuitkit.load_model("two-layer", step=steps[-1])
    assert torch.equal(last(rows), circuitkit.load_model("two-layer")(rows))
    assert (last(rows) - early(rows)).abs().max() > 1


def test_two_loads_share_nothing(rows):
    one, other = circuitkit.load_model("one-layer"), circuitkit.load_model("one-layer")
    before = other(rows)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.zero_()
    assert torch.equal(other(rows), before)


def test_device_is_taken(rows):
    model = circuitkit.load_model("zero-layer", device="cpu")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert circuitkit.load_model("zero-layer", device="meta").W_E.device.type == "meta"


@pytest.mark.parametrize("shipped", ["zero-layer", "two-layer"])
def test_nothing_writes_positions(shipped):
    """Positions lie in a subspace that queries and keys read, and that no head writes and nothing else reads."""
    model, sizes = circuitkit.load_model(shipped), model_card(shipped)["sizes"]
    d = sizes["d_content"]
    assert sizes["d_pos"] == model.cfg.d_model - d > 0
    assert not model.W_E[:, d:].any()
    assert not model.W_pos[:, :d].any()
    assert not model.W_U[d:].any()
    assert not model.state_dict()["unembed.bias"].any()
    if sizes["n_layers"]:
        stack = circuitkit.heads_of(model)
        assert not stack.W_O[..., d:].any()
        assert not stack.W_V[:, d:].any()
        assert stack.b_Q is stack.b_K is stack.b_V is None
        assert stack.W_Q[:, d:].any()
        assert stack.W_K[:, d:].any()
        assert not model.b_O.any()


def test_text(model):
    tokens = model.to_tokens(TEXT)
    assert tokens[0, 0] == 0  # <|endoftext|> first
    assert (tokens[0, 1:] != 0).all()
    assert model.to_string(tokens[0, 1:]) == TEXT
    assert "".join(model.to_str_tokens("It was the best")[1:]) == "It was the best"
    assert torch.equal(model.to_tokens(TEXT, prepend_bos=False)[0], tokens[0, 1:])
    assert torch.equal(model(TEXT), model(tokens))


def test_tokenizer_round_trip():
    tokenizer = load_tokenizer()
    assert len(tokenizer) == 2048
    assert tokenizer.decode([0]) == "<|endoftext|>"
    for text in (TEXT, "", " ", "\n\n\tif x:\n", "日本語 🎈", "a" * 50):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_no_network(monkeypatch):
    """Loading and using a shipped model opens no connection."""

    def refuse(*args, **kwargs):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    model = circuitkit.load_model("two-layer")
    model(model.to_tokens("It was the best of times"))
