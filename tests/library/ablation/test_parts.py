"""What a run says about its parts: dot products, inputs and patterns."""

import pytest
import torch

from circuitkit.ablation import run
from tests.support import zoo

TOKENS = torch.tensor([[3, 7, 1, 7, 3, 9, 12, 1], [11, 2, 5, 2, 8, 1, 0, 4]])


@pytest.fixture(scope="module", params=["gpt2", "native-mlp", "converted"])
def model(request):
    if request.param == "converted":
        return zoo.converted("native-mlp")
    return zoo.make(request.param)


def test_contributions_are_dot_products_with_parts_also_of_neuron_heads():
    converted = zoo.converted("native-mlp")
    whole = run(converted, TOKENS)
    direction = torch.linspace(-1, 1, converted.cfg.d_model, dtype=converted.W_E.dtype)
    for reader in ("unembed", "L1H0"):
        parts = whole.parts(before=reader, neurons=True)
        products = whole.contributions(direction, before=reader, neurons=True)
        assert list(products) == list(parts)
        for name, value in products.items():
            torch.testing.assert_close(value, (parts[name] * direction).sum(-1))


def test_queries_are_made_of_what_a_head_reads(model):
    whole = run(model, TOKENS)
    attention = model.blocks[1].attn
    q = torch.einsum("bpm,hmd->bphd", whole.read("L1H0"), attention.W_Q)
    b_Q = getattr(attention, "b_Q", None)
    q = q if b_Q is None else q + b_Q
    cached = whole.cache["blocks.1.attn.hook_q"].view_as(q)
    torch.testing.assert_close(q, cached, atol=1e-5, rtol=1e-5)


def test_logits_are_made_of_what_the_unembedding_reads(model):
    whole = run(model, TOKENS)
    logits = whole.read("unembed") @ model.W_U
    b_U = getattr(model, "b_U", None)
    torch.testing.assert_close(logits if b_U is None else logits + b_U, whole.logits)


def test_a_cut_wire_changes_the_pattern_of_its_reader_only():
    model = zoo.make("native")
    whole = run(model, TOKENS)
    cut = run(model, TOKENS, without="L0H1->L1H2.K")
    assert torch.equal(whole.pattern("L1H1"), cut.pattern("L1H1"))
    assert not torch.allclose(whole.pattern("L1H2"), cut.pattern("L1H2"))
    values = whole.cache["blocks.1.attn.hook_v"].view(*TOKENS.shape, 4, -1)[:, :, 2]
    torch.testing.assert_close(cut.pattern("L1H2") @ values, cut.z("L1H2"))


def test_a_frozen_norm_reads_each_part_linearly():
    whole = run(zoo.make("gpt2"), TOKENS)
    norm = whole.recording.final_norm()
    W = torch.randn(24, 3, dtype=norm.gain.dtype, generator=torch.Generator().manual_seed(0))
    part = whole.part("L1H0")
    torch.testing.assert_close(norm.apply(part) @ W, part @ norm.fold(W) / norm.scale)
    everything = norm.apply(whole.stream()) + norm.bias
    torch.testing.assert_close(everything, whole.read())


def test_what_is_no_earlier_part_is_refused():
    whole = run(zoo.make("native"), TOKENS)
    with pytest.raises(ValueError, match="written nothing into the stream that 'L0H0' reads"):
        whole.part("L0H1", before="L0H0")
    with pytest.raises(ValueError, match="an input, a wire or a path"):
        whole.part("L0H1->L1H1.K")
    with pytest.raises(ValueError, match="no attention head"):
        whole.pattern("embed")
