"""The stream as a sum of parts, and what later parts delete from it."""

import math
import warnings

import pytest
import torch

import circuitkit as ck
from circuitkit.residual import decompose
from circuitkit_book.residual_stream import deletion_scores
from tests.support import tiny_models


def test_text_and_a_single_row_are_accepted(plain, tokens):
    assert decompose(ck.load_model("zero-layer"), "The house").values.shape[:3] == (2, 1, 3)
    assert torch.equal(decompose(plain, tokens[0]).values, decompose(plain, tokens[:1]).values)


def test_what_hooks_do_is_in_the_parts(with_norm, tokens):
    def silence(z, hook):
        z[:, :, 1] = 0
        return z

    before = decompose(with_norm, tokens)
    with with_norm.hooks(fwd_hooks=[("blocks.0.attn.hook_z", silence)]):
        split = decompose(with_norm, tokens)
    assert not split["L0H1"].any()
    assert torch.equal(split["L0H0"], before["L0H0"])
    assert (split["L1H0"] - before["L1H0"]).abs().max() > 1e-3
    assert not split.values.requires_grad


def test_norms_of_the_whole_stream_are_frozen(tmp_path, close):
    """BERT normalises after it adds; what is left of each part adds up to its stream."""
    from transformers import BertConfig, BertForMaskedLM

    original = BertForMaskedLM(BertConfig(**tiny_models.HUGGING_FACE))
    model = tiny_models.from_folder(tmp_path, original)
    tokens = torch.tensor([[1, 2, 3]])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        split = decompose(model, tokens)
        _, cache = model.run_with_cache(tokens)
    close(split.values.sum(0), cache["blocks.1.hook_resid_post"], 1e-5)
    assert "embed bias" in split


# Deletion


@pytest.fixture
def chain(boot):
    """One head writes 4 to the second axis, and the next one takes `share` of it away."""

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
        return deletion_scores(model, torch.tensor([[0]]), skip=0)

    return make


@pytest.mark.parametrize("share", [0.75, 1.0, -0.5])
def test_deletion_by_hand(chain, share):
    deletion = chain(share)
    assert deletion["L1H0", "L0H0"] == pytest.approx(share, abs=1e-15)
    assert deletion["L1H0", "embed"] == 0.0


def test_deletion_of_parts_that_write_nothing(chain):
    deletion = chain(0.0)  # positions are zero, and so is what the second head writes
    assert deletion["L1H0", "L0H0"] == 0.0
    assert math.isnan(deletion["L1H0", "pos"])


def test_no_position_is_left(plain, tokens):
    with pytest.raises(ValueError, match="skip=9 positions cannot be left out of 9"):
        deletion_scores(plain, tokens, skip=9)
