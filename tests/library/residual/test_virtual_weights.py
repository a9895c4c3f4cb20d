"""Products of what writes and what reads: by hand, element by element, and as what they mean."""

import pytest
import torch

from circuitkit.residual import (
    components,
    decompose,
    memory_scores,
    virtual_weight_table,
    virtual_weights,
)
from tests.support import tiny_models


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def order(gated=False, parallel=False):
    """Components with the moment they read and the moment they write, spelled out."""
    reads, writes = {}, {"embed": 0, "pos": 0}
    for layer in range(2):
        at = 10 * layer
        for h in range(3):
            writes[f"L{layer}H{h}"] = at + 2
            reads |= {f"L{layer}H{h}.{kind}": at + 1 for kind in "QKV"}
        reads[f"L{layer} MLP"] = at + 1 if parallel else at + 3
        if gated:
            reads |= dict.fromkeys(
                (f"L{layer} MLP.Q", f"L{layer} MLP.V"), reads.pop(f"L{layer} MLP")
            )
        writes[f"L{layer} MLP"] = at + 4
    return reads | {"unembed": 99}, writes


def test_by_hand(boot):
    model = boot(d_model=3, d_head=1, n_heads=1, d_vocab=2, n_ctx=2)
    with torch.no_grad():
        state = model.state_dict()
        state["blocks.0.attn.o.weight"].copy_(torch.tensor([[1.0], [2.0], [0.0]]))
        state["blocks.1.attn.k.weight"].copy_(torch.tensor([[3.0, 4.0, 5.0]]))
    close(virtual_weights(model, "L0H0", "L1H0.K").AB, [[11.0]])
    writers, readers, strength = virtual_weight_table(model)
    expected = 11 / (5**0.5 * 50**0.5)
    close(strength[writers.index("L0H0"), readers.index("L1H0.K")], expected)


@pytest.mark.parametrize("kind", ["LN", "RMS"])
def test_every_product(boot, kind):
    """All pairs of a model with norms and MLPs against the state dictionary; gain and centring folded."""
    gated = kind == "RMS"
    model = boot(
        attn_only=False,
        normalization_type=kind,
        gated_mlp=gated,
        act_fn="silu" if gated else "gelu",
    )
    state = {name: value.detach() for name, value in model.state_dict().items()}
    reads, writes = order(gated)
    out, d = {}, 4
    out["embed"], out["pos"] = state["embed.weight"], state["pos_embed.weight"]
    into = {"unembed": ("ln_final", state["unembed.weight"].T)}
    for layer in range(2):
        p = f"blocks.{layer}."
        for h in range(3):
            out[f"L{layer}H{h}"] = state[p + "attn.o.weight"][:, d * h : d * h + d].T
            for k in "QKV":
                weight = state[f"{p}attn.{k.lower()}.weight"][d * h : d * h + d].T
                into[f"L{layer}H{h}.{k}"] = (p + "ln1", weight)
        out[f"L{layer} MLP"] = state[p + "mlp.out.weight"].T
        into[f"L{layer} MLP.V" if gated else f"L{layer} MLP"] = (
            p + "ln2",
            state[p + "mlp.in.weight"].T,
        )
        if gated:
            into[f"L{layer} MLP.Q"] = (p + "ln2", state[p + "mlp.gate.weight"].T)
    fold = torch.eye(22, dtype=torch.float64) - (0 if gated else 1 / 22)
    read = {
        name: fold @ torch.diag(state[f"{norm}.weight"]) @ weight
        for name, (norm, weight) in into.items()
    }
    writers, readers = components(model)
    assert set(writers) == set(out)
    assert set(readers) == set(read)
    names_out, names_in, strength = virtual_weight_table(model)
    assert names_out == tuple(writers)
    assert names_in == tuple(readers)
    for i, writer in enumerate(names_out):
        close(writers[writer], out[writer])
        for j, reader in enumerate(names_in):
            close(readers[reader], read[reader])
            if writes[writer] >= reads[reader]:
                assert strength[i, j].isnan()
                with pytest.raises(
                    ValueError,
                    match=f"'{writer}' writes after '{reader}' has read; expected a writer",
                ):
                    virtual_weights(model, writer, reader)
                continue
            product = out[writer] @ read[reader]
            close(virtual_weights(model, writer, reader).AB, product)
            size = product.norm() / (out[writer].norm() * read[reader].norm())
            close(strength[i, j], size, 1e-9)  # a square root of a sum of squares of Gram matrices


def test_what_virtual_weights_mean(with_norm, tokens):
    """A head's share of a later head's query is its z times the virtual weights, over the divisor of the position."""
    split = decompose(with_norm, tokens)
    with torch.no_grad():
        _, cache = with_norm.run_with_cache(tokens)
    state, z = with_norm.state_dict(), cache["blocks.0.attn.hook_z"][:, :, 1]
    scale, part = cache["blocks.1.ln1.hook_scale"], split["L0H1"]
    read = (part - part.mean(-1, keepdim=True)) / scale * state["blocks.1.ln1.weight"]
    query = read @ state["blocks.1.attn.q.weight"][8:12].T
    close(z @ virtual_weights(with_norm, "L0H1", "L1H2.Q").AB / scale, query)


def test_final_rms_does_not_centre(boot):
    model = boot(attn_only=False, normalization_type="LN", final_rms=True)
    state, (_, readers) = model.state_dict(), components(model)
    close(readers["unembed"], state["ln_final.weight"][:, None] * state["unembed.weight"].T)
    gained = state["blocks.0.ln1.weight"][:, None] * state["blocks.0.attn.q.weight"][:4].T
    close(readers["L0H0.Q"], gained - gained.mean(0))


def test_the_direct_path(plain, tokens):
    """Token by token, embed -> unembed is what the embedding alone adds to the logits."""
    direct = virtual_weights(plain, "embed", "unembed").AB
    assert direct.shape == (37, 37)
    split = decompose(plain, tokens)
    close(direct[tokens], split["embed"] @ plain.W_U.detach())


def test_table_is_between_zero_and_one_and_finds_a_match(boot):
    model = boot()
    with (
        torch.no_grad()
    ):  # the second head of the first layer writes just what one key of the second layer reads
        state = model.state_dict()
        state["blocks.1.attn.k.weight"][:4].copy_(2 * state["blocks.0.attn.o.weight"][:, 4:8].T)
    writers, readers, strength = virtual_weight_table(model)
    known = strength[~strength.isnan()]
    assert (known >= 0).all()
    assert (known <= 1).all()
    row = strength[writers.index("L0H1")].nan_to_num()
    assert readers[int(row.argmax())] == "L1H0.K"
    W = state["blocks.0.attn.o.weight"][:, 4:8]
    close(row.max(), (W.T @ W).norm() / W.norm() ** 2, 1e-9)


def test_random_strength(boot):
    """The docstring's baseline, 1 / sqrt(d_model)."""
    _, _, strength = virtual_weight_table(boot(d_model=64, n_heads=8))
    assert strength[~strength.isnan()].mean().item() == pytest.approx(1 / 8, rel=0.1)


def test_rotary_models_write_no_positions(boot):
    writers, _ = components(boot(positional_embedding_type="rotary"))
    assert "pos" not in writers
    assert "embed" in writers


def test_old_names_are_read(boot):
    model = boot(attn_only=False, normalization_type="RMS", gated_mlp=True, act_fn="silu")
    for old, new in (
        (("pos_embed", "L1 MLP.gate"), ("pos", "L1 MLP.Q")),
        (("MLP0", "L1H0.K"), ("L0 MLP", "L1H0.K")),
    ):
        assert torch.equal(virtual_weights(model, *old).AB, virtual_weights(model, *new).AB)


def test_no_layers(boot):
    writers, readers, strength = virtual_weight_table(boot(n_layers=0))
    assert (writers, readers) == (("embed", "pos"), ("unembed",))
    assert not strength.isnan().any()


def test_attention_and_mlp_in_parallel(tmp_path):
    """In a GPT-NeoX block the MLP does not read what the heads beside it write."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    original = GPTNeoXForCausalLM(GPTNeoXConfig(**tiny_models.HUGGING_FACE))
    model = tiny_models.from_folder(tmp_path, original)
    reads, writes = order(parallel=True)
    writers, readers, strength = virtual_weight_table(model)
    for i, writer in enumerate(writers):
        for j, reader in enumerate(readers):
            assert strength[i, j].isnan().item() == (writes[writer] >= reads[reader]), (
                writer,
                reader,
            )
    scores = memory_scores(model, torch.randint(0, 50, (2, 9)))
    at = scores.names.index
    assert scores.deletion[at("L0 MLP"), at("L0H0")].isnan()
    assert not scores.deletion[at("L1 MLP"), at("L0 MLP")].isnan()


def test_unknown_names_are_listed(plain):
    for writer, reader, said in (
        ("L0H9", "L1H0.K", "no part is called 'L0H9'; the nearest of 11 are L0H2, L0H1, L0H0"),
        ("unembed", "L1H0.K", "no writer is called 'unembed'; the nearest of 8 are "),
        (
            "L0H0",
            "L1H0",
            "no reader is called 'L1H0'; the nearest of 19 are L1H0.Q, L1H0.K, L1H0.V",
        ),
        ("L0H0", "pos", "no reader is called 'pos'; "),
    ):
        with pytest.raises(ValueError, match=said):
            virtual_weights(plain, writer, reader)
    with pytest.raises(ValueError, match=r"components got model=None; expected a transformer-lens"):
        components(None)
