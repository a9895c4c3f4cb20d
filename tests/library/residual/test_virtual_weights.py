"""Products of what writes and what reads: by hand, matrix by matrix, and as what they mean."""

import pytest
import torch

from circuitkit.residual import (
    virtual_weights,
    writer_matrix,
)
from circuitkit_book.residual_stream import deletion_scores, virtual_weight_table
from tests.support import zoo


def test_a_norm_behind_a_layer_is_part_of_the_writer(close):
    model = zoo.make("olmo2")
    gain = model.original_model.model.layers[0].post_attention_layernorm.weight.detach()
    close(writer_matrix(model, "L0H1"), model.blocks[0].attn.W_O[1].detach() * gain, 1e-6)


def test_an_mlp_beside_the_heads_does_not_read_them():
    model = zoo.make("neox-parallel")
    table = virtual_weight_table(model)
    assert torch.tensor(table["L0H0", "L0 MLP"]).isnan()
    assert not torch.tensor(table["L0H0", "L1 MLP"]).isnan()
    deletion = deletion_scores(model, torch.arange(9))
    assert torch.tensor(deletion["L0 MLP", "L0H0"]).isnan()
    assert not torch.tensor(deletion["L1 MLP", "L0 MLP"]).isnan()


def test_unknown_names_are_refused_with_the_nearest(plain):
    for writer, reader, text in (
        ("L0H9", "L1H0.K", "no writer is called 'L0H9'.*L0H"),
        ("unembed", "L1H0.K", "no writer is called 'unembed'"),
        ("L0H0", "L1H0", "no reader is called 'L1H0'.*L1H0.[QKV]"),
    ):
        with pytest.raises(ValueError, match=text):
            virtual_weights(plain, writer, reader)
    with pytest.raises(ValueError, match="normalises its whole stream between its layers"):
        virtual_weight_table(zoo.make("bert"))
