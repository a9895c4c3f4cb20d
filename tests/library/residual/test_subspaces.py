"""What heads can write and read, and the angles between these subspaces."""

import pytest
import torch

from circuitkit import Heads, heads_of
from circuitkit_book.residual_stream import subspace_overlap
from tests.support import zoo


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def draw(n, d_model, d_head, layer=0):
    W = random(4, n, d_model, d_head, seed=layer)
    names = tuple(f"L{layer}H{i}" for i in range(n))
    return Heads(names, W[0], W[1], W[2], W[3].mT, layers=(layer,) * n)


@pytest.mark.parametrize("side", ["Q", "K", "V"])
def test_overlap_equals_that_of_projections(side, close):
    earlier, later = draw(2, 11, 3), draw(4, 11, 5, layer=1)
    overlap = subspace_overlap(earlier, later, side)
    assert overlap.axes == {"writer": earlier.names, "reader": later.names}

    def onto(M):
        return M @ torch.linalg.pinv(M)

    for i, writer in enumerate(earlier.names):
        for j, reader in enumerate(later.names):
            written, read = onto(earlier.W_O[i].T), onto(getattr(later, f"W_{side}")[j])
            expected = torch.trace(written @ read).item() / 5
            assert overlap[writer, reader] == pytest.approx(expected, abs=1e-11)


def test_half_precision_gives_about_the_same_overlap(close):
    earlier, later = (draw(2, 12, 4, layer=layer).to(torch.bfloat16) for layer in (0, 1))
    exact = subspace_overlap(earlier.to(torch.float64), later.to(torch.float64))
    close(subspace_overlap(earlier, later).values.double(), exact.values, 1e-5)


def test_heads_of_two_streams_are_refused():
    with pytest.raises(ValueError, match=r"stream of 7 dimensions .* read one of 5. Give heads of"):
        subspace_overlap(draw(1, 7, 2), draw(1, 5, 2))


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_norms_of_a_model_turn_the_subspaces(family, close):
    """GPT-2 centres and multiplies before a head; Gemma 2 multiplies before it and behind it."""
    model = zoo.make(family)
    first, later = model.original_model.base_model.get_submodule(
        {"gpt2": "h", "gemma2": "layers"}[family]
    )[:2]
    W_O, W_K = model.blocks[0].attn.W_O[1].detach(), model.blocks[1].attn.W_K[0].detach()
    if family == "gpt2":
        read = later.ln_1.weight.detach()[:, None] * W_K
        read, written = read - read.mean(0), W_O
    else:
        read = (1 + later.input_layernorm.weight.detach())[:, None] * W_K
        written = W_O * (1 + first.post_attention_layernorm.weight.detach())
    onto = [M @ torch.linalg.pinv(M) for M in (written.T, read)]
    expected = torch.trace(onto[0] @ onto[1]) / read.shape[1]
    found = subspace_overlap(model, side="K")
    assert found["L0H1", "L1H0"] == pytest.approx(
        float(expected), abs=1e-7
    )  # Gemma norms in float32
    heads = heads_of(model)
    assert abs(subspace_overlap(heads, side="K")["L0H1", "L1H0"] - expected) > 1e-3
    with pytest.raises(TypeError, match="must be Heads. For all heads of a model"):
        subspace_overlap(model, heads)
