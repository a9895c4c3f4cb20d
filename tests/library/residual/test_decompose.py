"""The stream as a sum: by hand, against a slow forward pass, against transformer-lens."""

import warnings

import pytest
import torch

from circuitkit import heads_of
from circuitkit.residual import decompose
from circuitkit.residual._decompose import Decomposition
from tests.support import tiny_models


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def test_by_hand(boot):
    """One head that looks at every earlier token alike, in a stream of three dimensions."""
    model = boot(d_model=3, d_head=1, n_heads=1, n_layers=1, d_vocab=2, n_ctx=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        state = model.state_dict()
        state["embed.weight"].copy_(torch.tensor([[1.0, 0, 0], [3.0, 0, 0]]))
        state["pos_embed.weight"].copy_(torch.tensor([[0.0, 0, 1], [0.0, 0, 5]]))
        state["blocks.0.attn.v.weight"].copy_(torch.tensor([[1.0, 0, 0]]))
        state["blocks.0.attn.o.weight"].copy_(torch.tensor([[0.0], [2.0], [0.0]]))
        state["blocks.0.attn.o.bias"].copy_(torch.tensor([0.0, 0.5, 0.0]))
        state["unembed.weight"].copy_(torch.tensor([[0.0, 1, 0], [0.0, 0, 1]]))
    split = decompose(model, torch.tensor([[0, 1]]))
    assert split.names == ("embed", "pos", "L0H0", "L0 bias")
    close(split["embed"], [[[1, 0, 0], [3, 0, 0]]])
    close(split["pos"], [[[0, 0, 1], [0, 0, 5]]])
    close(split["L0H0"], [[[0, 2, 0], [0, 4, 0]]])  # twice 1, and twice the mean of 1 and 3
    close(split["L0 bias"], [[[0, 0.5, 0], [0, 0.5, 0]]])
    close(split.total, [[[1, 2.5, 1], [3, 4.5, 5]]])
    close(split.logits, [[[2.5, 1], [4.5, 5]]])
    assert split.norm_scale is None


def test_against_a_slow_forward_pass(model, kind, tokens, slow, tolerance):
    split = decompose(model, tokens)
    assert split.parts.shape == (len(split.names), 2, 9, 22)
    for row in range(2):
        parts, divisors, logits = slow(model, tokens[row].tolist())
        assert list(split.names) == list(parts)  # every component, in order of depth
        for name, part in parts.items():
            close(split[name][row], part, tolerance)
        close(split.total[row], sum(parts.values()), tolerance)
        close(split.logits[row], logits, 20 * tolerance)
        if divisors[0] is None:
            assert split.norm_scale is None
        else:
            close(split.norm_scale[row, :, 0], divisors, tolerance)


def test_against_transformer_lens(model, tokens, tolerance):
    split = decompose(model, tokens)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    layers = model.cfg.n_layers
    whole, labels = cache.decompose_resid(layer=layers, return_labels=True)
    close(split.total, whole.sum(0), tolerance)
    for part, label in zip(whole, labels, strict=True):
        layer, _, what = label.partition("_")
        if what == "mlp_out":
            close(split[f"L{layer} MLP"], part, tolerance)
        elif what == "attn_out":
            mine = [
                split[name]
                for name in split.names
                if name.startswith(f"L{layer}") and "MLP" not in name
            ]
            close(sum(mine), part, tolerance)
        else:
            close(
                split[label], part.expand(2, -1, -1)
            )  # transformer-lens says "pos_embed", which is read
    if layers:
        results, labels = cache.stack_head_results(return_labels=True)
        for part, label in zip(results, labels, strict=True):
            close(split[label], part, tolerance)


def test_a_hugging_face_model(gpt2, tokens):
    """GPT-2 from a local folder, float32: names, sums, and the heads of transformer-lens."""
    split = decompose(gpt2, tokens)
    layer = lambda i: (f"L{i}H0", f"L{i}H1", f"L{i}H2", f"L{i} bias", f"L{i} MLP")  # noqa: E731
    assert split.names == ("embed", "pos", *layer(0), *layer(1))
    with torch.no_grad():
        logits, cache = gpt2.run_with_cache(tokens)
    close(split.logits, logits, 1e-5)
    close(split.total, cache["ln_final.hook_in"], 1e-5)
    close(split.total, cache.decompose_resid(layer=2).sum(0), 1e-5)
    for part, label in zip(*cache.stack_head_results(return_labels=True), strict=True):
        close(split[label], part, 1e-5)
    final = split.total.double()
    close(split.norm_scale[..., 0].double(), (final.var(-1, unbiased=False) + 1e-5).sqrt(), 1e-6)


def test_heads_of_the_library_write_the_parts(with_norm, tokens):
    """The parts are what `heads_of(model)` computes on the normalised stream."""
    split, stack = decompose(with_norm, tokens), heads_of(with_norm)
    with torch.no_grad():
        _, cache = with_norm.run_with_cache(tokens)
    for layer in range(2):
        results = stack[3 * layer : 3 * layer + 3].results(cache[f"blocks.{layer}.ln1.hook_out"])
        for h in range(3):
            close(split[f"L{layer}H{h}"], results[:, h])


def test_shipped_names_of_a_model_without_biases(boot, tokens):
    names = decompose(boot(bias=False), tokens).names
    assert names == ("embed", "pos", "L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2")


def test_nothing_is_attached_to_the_graph(with_norm, tokens):
    split = decompose(with_norm, tokens)
    assert not split.parts.requires_grad
    assert not split.logits.requires_grad


def test_what_hooks_do_is_in_the_parts(with_norm, tokens):
    """A head taken out by a hook writes nothing, and what comes after it changes; without the hook all is as before."""

    def silence(z, hook):
        z[:, :, 1] = 0
        return z

    before = decompose(with_norm, tokens)
    with with_norm.hooks(fwd_hooks=[("blocks.0.attn.hook_z", silence)]), torch.no_grad():
        split, logits = decompose(with_norm, tokens), with_norm(tokens)
    assert not split["L0H1"].any()
    assert split.names == before.names
    close(split["L0H0"], before["L0H0"])
    assert (split["L1H0"] - before["L1H0"]).abs().max() > 1e-3
    close(split.logits, logits)
    assert torch.equal(decompose(with_norm, tokens).parts, before.parts)


def test_hooks_on_the_stream_itself_are_refused(with_norm, tokens):
    hooks = [("blocks.1.hook_resid_pre", lambda x, hook: 2 * x)]
    with (
        with_norm.hooks(fwd_hooks=hooks),
        pytest.raises(ValueError, match="hooks change the stream between the parts"),
    ):
        decompose(with_norm, tokens)


def test_old_names_are_read(plain, tokens):
    split = decompose(plain, tokens)
    assert torch.equal(split["pos_embed"], split["pos"])


def test_fields_by_number_and_parts_by_name(plain, tokens):
    split = decompose(plain, tokens)
    assert isinstance(split, Decomposition)
    assert split[0] is split.names
    names, parts, _, _ = split
    assert torch.equal(split["L1H2"], parts[names.index("L1H2")])
    with pytest.raises(
        ValueError, match=r"no component is called 'L7H7'; the nearest of 10 are L1H2, L1H1, L1H0"
    ):
        split["L7H7"]


def test_not_a_bridge(tokens):
    with pytest.raises(
        ValueError,
        match=r"decompose got model='two-layer'; expected .* circuitkit\.load_model\(name\)",
    ):
        decompose("two-layer", tokens)


def test_a_norm_of_the_whole_stream_is_frozen(tmp_path):
    """BERT normalises after it adds: what is left of each part behind the frozen norms adds up to its stream."""
    from transformers import BertConfig, BertForMaskedLM

    model = tiny_models.from_folder(
        tmp_path, BertForMaskedLM(BertConfig(**tiny_models.HUGGING_FACE))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        split = decompose(model, torch.tensor([[1, 2, 3]]))
        with torch.no_grad():
            _, cache = model.run_with_cache(torch.tensor([[1, 2, 3]]))
    close(split.total, cache["blocks.1.hook_resid_post"], 1e-5)
    assert split.names[:2] == ("embed", "pos")
    assert "embed bias" in split.names
