"""What gave a number for nonsense, each refused in words: the list of the findings of the second edition."""

import pytest
import torch

import circuitkit as ck
from circuitkit import conversion, models
from tests.support import tiny_models

pytestmark = pytest.mark.usefixtures("as_a_reader")
SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
TOKENS = torch.arange(8)[None]


@pytest.fixture(scope="module")
def model():
    return tiny_models.boot(torch.float32, **SIZES)


SHARES = models.CorpusStatistics(torch.ones(3).long(), torch.ones(3, 3).long())
SILENT = {
    "a discount of -1": (
        lambda m: SHARES.log_probs(-1.0),
        "discount=-1.0; expected a number above 0 and at most 1",
    ),
    "a discount of 5": (
        lambda m: SHARES.log_probs(5.0),
        "discount=5.0; expected a number above 0 and at most 1",
    ),
    "a context of -3": (
        lambda m: conversion.choose_omega(-3, torch.float32),
        "n_pos=-3; expected an integer of at least 1",
    ),
    "a negative sharpness": (
        lambda m: ck.to_attention_only(m, heads_per_neuron=1, sharpness=-5),
        "sharpness=-5; expected a positive, finite",
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_it_is_refused(model, name):
    call, words = SILENT[name]
    with pytest.raises(ValueError, match=words):
        call(model)
