"""The stream as a sum of parts, and what later parts delete from it."""

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


def test_a_deletion_score_needs_a_position(plain, tokens):
    with pytest.raises(ValueError, match="skip=9 positions cannot be left out of 9"):
        deletion_scores(plain, tokens, skip=9)
