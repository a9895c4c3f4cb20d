"""Deletion scores: by hand, against loops, and where there is nothing to say."""

import math

import pytest
import torch

from circuitkit.residual import decompose, memory_scores


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def at(scores, later, earlier, field="deletion"):
    return getattr(scores, field)[scores.names.index(later), scores.names.index(earlier)].item()


@pytest.fixture
def chain(boot):
    """One token of two dimensions: the first head writes 4 to the second axis, the next takes `share` of it away."""

    def make(share):
        model = boot(d_model=2, d_head=1, n_heads=1, d_vocab=1, n_ctx=1, bias=False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            state = model.state_dict()
            state["embed.weight"].copy_(torch.tensor([[1.0, 0.0]]))
            state["blocks.0.attn.v.weight"].copy_(torch.tensor([[1.0, 0.0]]))
            state["blocks.0.attn.o.weight"].copy_(torch.tensor([[0.0], [4.0]]))
            state["blocks.1.attn.v.weight"].copy_(torch.tensor([[0.0, 1.0]]))
            state["blocks.1.attn.o.weight"].copy_(torch.tensor([[0.0], [-share]]))
        return memory_scores(model, torch.tensor([[0]]), skip=0)

    return make


@pytest.mark.parametrize("share", [0.75, 1.0, -0.5])
def test_by_hand(chain, share):
    scores = chain(share)
    assert scores.names == ("embed", "pos", "L0H0", "L1H0")
    assert at(scores, "L1H0", "L0H0") == pytest.approx(share, abs=1e-15)
    assert at(scores, "L1H0", "L0H0", "cosine") == pytest.approx(
        -math.copysign(1, share), abs=1e-15
    )
    assert at(scores, "L1H0", "embed") == 0.0
    assert at(scores, "L1H0", "embed", "cosine") == 0.0


def test_components_that_write_nothing(chain):
    scores = chain(0.0)  # positions are zero, and so is what the second head writes
    assert at(scores, "L1H0", "L0H0") == 0.0
    assert math.isnan(at(scores, "L1H0", "L0H0", "cosine"))
    assert math.isnan(at(scores, "L1H0", "pos"))
    assert math.isnan(at(scores, "L1H0", "pos", "cosine"))


@pytest.mark.parametrize("skip", [0, 1, 4])
def test_against_loops(with_norm, tokens, skip):
    scores, split = memory_scores(with_norm, tokens, skip=skip), decompose(with_norm, tokens)
    assert scores.names == split.names
    place = {"embed": 0, "pos": 0}
    for layer in range(2):
        place |= {f"L{layer}{what}": 10 * layer + 1 for what in ("H0", "H1", "H2", " bias")}
        place[f"L{layer} MLP"] = 10 * layer + 2
    n = 0
    for later in scores.names:
        for earlier in scores.names:
            deletion, cosine = at(scores, later, earlier), at(scores, later, earlier, "cosine")
            if place[later] <= place[earlier]:
                assert math.isnan(deletion)
                assert math.isnan(cosine)
                continue
            against = own = angle = count = 0.0
            for b in range(2):
                for i in range(skip, 9):
                    x, y = split[later][b, i].tolist(), split[earlier][b, i].tolist()
                    dot = sum(p * q for p, q in zip(x, y, strict=True))
                    against, own = against - dot, own + sum(q * q for q in y)
                    angle += dot / math.sqrt(sum(p * p for p in x) * sum(q * q for q in y))
                    count += 1
            assert deletion == pytest.approx(against / own, abs=1e-12)
            assert cosine == pytest.approx(angle / count, abs=1e-12)
            n += 1
    assert n > 30


def test_the_first_position_is_left_out_by_default(plain, tokens):
    one, same = memory_scores(plain, tokens), memory_scores(plain, tokens, skip=1)
    torch.testing.assert_close(one.deletion, same.deletion, equal_nan=True)


def test_skip_out_of_range(plain, tokens):
    with pytest.raises(
        ValueError, match="got skip=9, .*expected fewer than the 9 positions, or longer text"
    ):
        memory_scores(plain, tokens, skip=9)
    with pytest.raises(ValueError, match="got skip=-1; expected an integer of at least 0"):
        memory_scores(plain, tokens, skip=-1)
