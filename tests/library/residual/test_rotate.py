"""No privileged basis: what a rotation of the stream leaves alone, and what a LayerNorm makes of it."""

from dataclasses import replace

import pytest
import torch

import circuitkit
from circuitkit.anatomy import Norm
from circuitkit.residual import decompose, random_rotation, rotate_basis
from tests.support import zoo


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def turn(d=22, seed=0, **kwargs):
    return random_rotation(d, seed=seed, dtype=torch.float64, **kwargs)


@pytest.mark.parametrize("d", [1, 2, 7, 22])
def test_orthogonal_and_seeded(d):
    R = turn(d)
    close(R @ R.T, torch.eye(d))
    assert torch.equal(R, turn(d))
    if d > 1:
        assert not torch.equal(R, turn(d, seed=1))
    assert random_rotation(d, seed=0).dtype == torch.float32


def test_haar():
    """Every entry is symmetric about zero with variance 1 / d, the diagonal too (a bare QR fails there)."""
    drawn = torch.stack([turn(3, seed=seed) for seed in range(400)])
    assert drawn.mean(0).abs().max() < 4 * (3 * 400) ** -0.5
    assert (drawn.square().mean(0) - 1 / 3).abs().max() < 4 * 0.3 / 400**0.5


@pytest.mark.usefixtures("as_a_reader")
def test_fixed_direction():
    fix = torch.tensor([3.0, -1.0, 0.5, 2.0, 7.0])
    R = turn(5, fix=fix)
    close(R @ R.T, torch.eye(5))
    close(fix.double() @ R, fix)
    assert not torch.equal(R, turn(5, seed=1, fix=fix))
    with pytest.raises(ValueError, match=r"fix of shape \(3,\), .*; expected \(5,\), a direction"):
        turn(5, fix=torch.ones(3))


def test_the_function_stays_without_norms(boot, tokens):
    for changes in ({}, {"attn_only": False}, {"positional_embedding_type": "rotary"}):
        model, R = boot(**changes), turn()
        rotated = rotate_basis(model, R)
        with torch.no_grad():
            close(rotated.run(tokens).logits, model(tokens), 1e-10)
        one, other = decompose(model, tokens), decompose(rotated, tokens)
        assert one.names == other.names
        close(other.parts, one.parts @ R, 1e-10)  # every summand turns with the stream
        assert (one.parts - other.parts).abs().max() > 0.1


def test_layer_norm_keeps_one_direction(boot, tokens):
    """LayerNorm is unchanged by rotations that keep the all-ones direction, and by no others."""
    model = boot(attn_only=False, normalization_type="LN")
    with torch.no_grad():
        before = model(tokens)
        close(
            rotate_basis(model, turn(fix=torch.ones(22, dtype=torch.float64))).run(tokens).logits,
            before,
            1e-10,
        )
        assert (rotate_basis(model, turn()).run(tokens).logits - before).abs().max() > 0.1


def test_rms_norm_keeps_them_all(boot, tokens):
    settings = {"gated_mlp": True, "act_fn": "silu", "positional_embedding_type": "rotary"}
    model = boot(attn_only=False, normalization_type="RMS", **settings)
    with torch.no_grad():
        close(
            rotate_basis(model, turn()).run(tokens).logits, model(tokens), 1e-4
        )  # the norm is computed in float32


def test_the_identity_only_folds(boot, tokens):
    model = boot(attn_only=False, normalization_type="LN")
    same = rotate_basis(model, torch.eye(22, dtype=torch.float64))
    with torch.no_grad():
        close(same.run(tokens).logits, model(tokens), 1e-10)
    norms = [same.final, *(sub.before for sub in same.sublayers)]
    assert all(norm.gain is None and norm.bias is None and norm.centre for norm in norms)
    gain = model.blocks[0].ln1.weight.detach()
    close(same["L0H1"].W_Q[0], gain[:, None] * circuitkit.anatomy(model)["L0H1"].W_Q[0])


def test_a_gated_mlp_behind_a_layer_norm(boot, tokens):
    """Its gate has no bias of its own; the one of the norm becomes it."""
    model = boot(attn_only=False, normalization_type="LN", gated_mlp=True, act_fn="silu")
    with torch.no_grad():
        close(
            rotate_basis(model, turn(fix=torch.ones(22))).run(tokens).logits, model(tokens), 1e-10
        )


@pytest.mark.parametrize(
    "name", ["gpt2", "neox-serial", "llama-yarn", "qwen3", "gemma1", "mistral", "phi", "opt"]
)
def test_other_families(name):
    """RMSNorms are turned any way, LayerNorms with (1, ..., 1) kept; a gain of the embedding and norms of queries stay."""
    model = zoo.make(name)
    value, rows = (
        circuitkit.anatomy(model),
        torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0)),
    )
    fix = torch.ones(value.d_model, dtype=torch.float64) if value.final.centre else None
    found = rotate_basis(model, turn(value.d_model, fix=fix)).run(rows).logits
    close(found, value.run(rows).logits, 1e-10)


@pytest.mark.parametrize("name", ["bert", "gemma2", "olmo2"])
def test_a_gain_behind_a_layer_is_refused(name):
    model = zoo.make(name)
    with pytest.raises(
        ValueError, match="a norm behind its layers, whose gain belongs to the coordinates"
    ):
        rotate_basis(model, turn(24))


def test_a_norm_behind_a_layer_without_a_gain(boot, tokens):
    """Its bias turns; a network before the unembedding reads the stream as it was."""
    value = circuitkit.anatomy(boot(attn_only=False, normalization_type="LN"))
    bias = torch.linspace(-1, 1, 22, dtype=torch.float64)
    steps = [
        step._replace(
            sublayers=tuple(replace(s, after=Norm(None, bias)) for s in step.sublayers),
            closing=Norm(None, -bias),
        )
        for step in value.steps
    ]
    value = replace(value, steps=tuple(steps), opening=Norm(None, bias), head=lambda x: x.sin())
    found = rotate_basis(value, turn(fix=torch.ones(22, dtype=torch.float64))).run(tokens).logits
    close(found, value.run(tokens).logits, 1e-10)


def test_the_model_itself_is_untouched(plain, tokens):
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    rotate_basis(plain, turn())
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())


def test_a_shipped_model():
    model = circuitkit.load_model("two-layer")
    rotated = rotate_basis(model, random_rotation(model.cfg.d_model, seed=0))
    text = model.to_tokens("The residual stream has no privileged basis.")
    close(rotated.run(text).logits, model(text), 1e-3)  # float32, logits of size 10
    with pytest.raises(ValueError, match="at most 256, the model's context"):
        rotated.run(torch.zeros(1, 300, dtype=torch.long))


def test_errors(plain):
    with pytest.raises(
        ValueError, match=r"rotation of shape .*orthogonal: R R\^T differs from the identity by \d"
    ):
        rotate_basis(plain, 2 * turn())
    with pytest.raises(
        ValueError, match=r"rotate_basis got model='two-layer'; expected a transformer-lens"
    ):
        rotate_basis("two-layer", turn())
    with pytest.raises(
        ValueError, match=r"a rotation of 5 dimensions; expected 22, the model's d_model"
    ):
        rotate_basis(plain, turn(5))
