"""Products of what writes and what reads: by hand, matrix by matrix, and as what they mean."""

import pytest
import torch

from circuitkit.residual import (
    component_names,
    decompose,
    memory_scores,
    reader_matrix,
    virtual_weight_table,
    virtual_weights,
    writer_matrix,
)
from tests.support import zoo


def moments(gated=False, parallel=False):
    """When each input reads and each part writes, spelled out."""
    reads, writes = {}, {"embed": 0, "pos": 0}
    for layer in range(2):
        at = 10 * layer
        for h in range(3):
            writes[f"L{layer}H{h}"] = at + 2
            reads |= {f"L{layer}H{h}.{side}": at + 1 for side in "QKV"}
        sides = (".Q", ".V") if gated else ("",)
        reads |= {f"L{layer} MLP{side}": at + (1 if parallel else 3) for side in sides}
        writes[f"L{layer} MLP"] = at + 4
    return reads | {"unembed": 99}, writes


def test_by_hand(boot, close):
    model = boot(d_model=3, d_head=1, n_heads=1, d_vocab=2, n_ctx=2)
    with torch.no_grad():
        state = model.state_dict()
        state["blocks.0.attn.o.weight"].copy_(torch.tensor([[1.0], [2.0], [0.0]]))
        state["blocks.1.attn.k.weight"].copy_(torch.tensor([[3.0, 4.0, 5.0]]))
    close(virtual_weights(model, "L0H0", "L1H0.K").AB, [[11.0]])
    expected = 11 / (5**0.5 * 50**0.5)
    assert virtual_weight_table(model)["L0H0", "L1H0.K"] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["LN", "RMS"])
def test_every_product(boot, close, kind):
    """All pairs against the state dictionary, with the gain and the centring of norms."""
    gated = kind == "RMS"
    act_fn = "silu" if gated else "gelu"
    model = boot(attn_only=False, normalization_type=kind, gated_mlp=gated, act_fn=act_fn)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    out, d = {"embed": state["embed.weight"], "pos": state["pos_embed.weight"]}, 4
    into = {"unembed": ("ln_final", state["unembed.weight"].T)}
    for layer in range(2):
        p = f"blocks.{layer}."
        for h in range(3):
            out[f"L{layer}H{h}"] = state[p + "attn.o.weight"][:, d * h : d * h + d].T
            for side in "QKV":
                weight = state[f"{p}attn.{side.lower()}.weight"][d * h : d * h + d].T
                into[f"L{layer}H{h}.{side}"] = (p + "ln1", weight)
        out[f"L{layer} MLP"] = state[p + "mlp.out.weight"].T
        reads_in = f"L{layer} MLP.V" if gated else f"L{layer} MLP"
        into[reads_in] = (p + "ln2", state[p + "mlp.in.weight"].T)
        if gated:
            into[f"L{layer} MLP.Q"] = (p + "ln2", state[p + "mlp.gate.weight"].T)
    fold = torch.eye(22, dtype=torch.float64) - (0 if gated else 1 / 22)
    read = {
        name: fold @ torch.diag(state[f"{norm}.weight"]) @ weight
        for name, (norm, weight) in into.items()
    }

    writers, readers = component_names(model)
    writers = {name: writer_matrix(model, name) for name in writers}
    readers = {name: reader_matrix(model, name) for name in readers}
    table = virtual_weight_table(model)
    assert set(table.axes["writer"]) == set(writers) == set(out)
    assert set(table.axes["reader"]) == set(readers) == set(read)
    tolerance = 1e-7 if gated else 1e-12  # transformer-lens computes an RMS norm in float32
    read_at, written_at = moments(gated)
    for writer in writers:
        close(writers[writer], out[writer])
        for reader in readers:
            close(readers[reader], read[reader], tolerance)
            strength = torch.tensor(table[writer, reader], dtype=torch.float64)
            if written_at[writer] >= read_at[reader]:
                assert strength.isnan()
                with pytest.raises(ValueError, match=f"'{writer}' writes after '{reader}' has"):
                    virtual_weights(model, writer, reader)
                continue
            product = out[writer] @ read[reader]
            close(virtual_weights(model, writer, reader).AB, product, 10 * tolerance)
            size = product.norm() / (out[writer].norm() * read[reader].norm())
            close(strength, size, 10 * tolerance)


def test_what_virtual_weights_mean(with_norm, tokens, close):
    """A head's share of a later query is its z times the virtual weights, over the divisor."""
    with torch.no_grad():
        _, cache = with_norm.run_with_cache(tokens)
    state, z = with_norm.state_dict(), cache["blocks.0.attn.hook_z"][:, :, 1]
    scale, part = cache["blocks.1.ln1.hook_scale"], decompose(with_norm, tokens)["L0H1"]
    read = (part - part.mean(-1, keepdim=True)) / scale * state["blocks.1.ln1.weight"]
    query = read @ state["blocks.1.attn.q.weight"][8:12].T
    close(z @ virtual_weights(with_norm, "L0H1", "L1H2.Q").AB / scale, query)


def test_the_direct_path(plain, tokens, close):
    direct = virtual_weights(plain, "embed", "unembed").AB
    close(direct[tokens], decompose(plain, tokens)["embed"] @ plain.W_U.detach())


def test_random_strength(boot):
    """The baseline of the docstring, 1 / sqrt(d_model)."""
    table = virtual_weight_table(boot(d_model=64, n_heads=8)).values
    assert table[~table.isnan()].mean().item() == pytest.approx(1 / 8, rel=0.1)


def test_a_norm_behind_a_layer_is_part_of_the_writer(close):
    model = zoo.make("olmo2")
    gain = model.original_model.model.layers[0].post_attention_layernorm.weight.detach()
    close(writer_matrix(model, "L0H1"), model.blocks[0].attn.W_O[1].detach() * gain, 1e-6)


def test_an_mlp_beside_the_heads_does_not_read_them():
    model = zoo.make("neox-parallel")
    table = virtual_weight_table(model)
    assert torch.tensor(table["L0H0", "L0 MLP"]).isnan()
    assert not torch.tensor(table["L0H0", "L1 MLP"]).isnan()
    deletion = memory_scores(model, torch.arange(9)).deletion
    assert torch.tensor(deletion["L0 MLP", "L0H0"]).isnan()
    assert not torch.tensor(deletion["L1 MLP", "L0 MLP"]).isnan()


def test_unknown_names_are_refused_with_the_nearest(plain):
    for writer, reader, text in (
        ("L0H9", "L1H0.K", "no writer is called 'L0H9'.* L0H2, L0H1"),
        ("unembed", "L1H0.K", "no writer is called 'unembed'"),
        ("L0H0", "L1H0", "no reader is called 'L1H0'.* L1H0.Q, L1H0.K, L1H0.V"),
    ):
        with pytest.raises(ValueError, match=text):
            virtual_weights(plain, writer, reader)
    with pytest.raises(ValueError, match="normalises its whole stream between its layers"):
        virtual_weight_table(zoo.make("bert"))
