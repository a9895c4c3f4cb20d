"""Products of what writes and what reads: by hand, matrix by matrix, and as what they mean."""

import pytest
import torch

from circuitkit.residual import (
    virtual_weights,
    writer_matrix,
)
from circuitkit_book.residual_stream import deletion_scores, virtual_weight_table
from tests.support import tiny_models, zoo


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


def test_a_mixture_of_experts_has_virtual_weights_between_its_heads(tmp_path):
    """Only its MLPs have no matrices; layer 0 is an ordinary MLP here."""
    import transformers

    moe = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
    settings = zoo.GROUPED | moe | {"head_dim": 8, "mlp_only_layers": [0]}
    original = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("qwen3_moe", **settings)
    )
    model = tiny_models.from_folder(tmp_path, original)
    first, second = original.model.layers[:2]
    W_O = first.self_attn.o_proj.weight.T[8:16]  # of L0H1
    W_K = second.self_attn.k_proj.weight[8:16].T  # of the second of two groups
    expected = W_O @ (second.input_layernorm.weight[:, None] * W_K)
    torch.testing.assert_close(virtual_weights(model, "L0H1", "L1H2.K").AB, expected)
    assert virtual_weights(model, "L0 MLP", "unembed").AB.shape == (40, 50)
    for pair in (("L1 MLP", "unembed"), ("L0H1", "L1 MLP")):
        with pytest.raises(ValueError, match="'L1 MLP' is a mixture of experts"):
            virtual_weights(model, *pair)
