"""No privileged basis: what a rotation of the stream leaves alone, and what a LayerNorm makes of it."""

import pytest
import torch

import circuitkit
from circuitkit.residual import decompose, random_rotation, rotate_basis


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
            close(rotated(tokens), model(tokens), 1e-10)
        one, other = decompose(model, tokens), decompose(rotated, tokens)
        assert one.names == other.names
        close(other.parts, one.parts @ R, 1e-10)  # every summand turns with the stream
        assert (one.parts - other.parts).abs().max() > 0.1


def test_layer_norm_keeps_one_direction(boot, tokens):
    """LayerNorm is unchanged by rotations that keep the all-ones direction, and by no others."""
    model = boot(attn_only=False, normalization_type="LN")
    with torch.no_grad():
        before = model(tokens)
        close(rotate_basis(model, turn(fix=torch.ones(22, dtype=torch.float64)))(tokens), before, 1e-10)
        assert (rotate_basis(model, turn())(tokens) - before).abs().max() > 0.1


def test_rms_norm_keeps_them_all(boot, tokens):
    settings = {"gated_mlp": True, "act_fn": "silu", "positional_embedding_type": "rotary"}
    model = boot(attn_only=False, normalization_type="RMS", **settings)
    with torch.no_grad():
        close(rotate_basis(model, turn())(tokens), model(tokens), 1e-4)  # the norm is computed in float32


def test_the_identity_only_folds(boot, tokens):
    model = boot(attn_only=False, normalization_type="LN")
    same = rotate_basis(model, torch.eye(22, dtype=torch.float64))
    with torch.no_grad():
        close(same(tokens), model(tokens), 1e-10)
    state = same.state_dict()
    assert (state["blocks.0.ln2.weight"] == 1).all()
    assert not state["ln_final.bias"].any()


def test_the_model_itself_is_untouched(plain, tokens):
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    rotate_basis(plain, turn())
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())


def test_a_shipped_model(tokens):
    model = circuitkit.load_model("two-layer")
    rotated = rotate_basis(model, random_rotation(model.cfg.d_model, seed=0))
    text = model.to_tokens("The residual stream has no privileged basis.")
    close(rotated(text), model(text), 1e-3)  # float32, logits of size 10
    assert torch.equal(rotated.to_tokens("It is"), model.to_tokens("It is"))
    with pytest.raises(ValueError, match="'two-layer' reads at most 256"):
        rotated(torch.zeros(1, 300, dtype=torch.long))


def test_errors(plain, gpt2, boot):
    with pytest.raises(ValueError, match=r"rotation of shape .*orthogonal: R R\^T differs from the identity by \d"):
        rotate_basis(plain, 2 * turn())
    with pytest.raises(ValueError, match=r"expected a native bridge \(boot_native, load_model of a shipped model\)"):
        rotate_basis(gpt2, turn(24))
    with pytest.raises(ValueError, match=r"rotate_basis got model='two-layer'; expected a transformer-lens"):
        rotate_basis("two-layer", turn())
    gated = boot(attn_only=False, normalization_type="LN", gated_mlp=True, act_fn="silu")
    with pytest.raises(
        ValueError, match=r"bias of blocks\.0\.ln2 cannot be folded into blocks\.0\.mlp\.in, which has none"
    ):
        rotate_basis(gated, turn())


@pytest.mark.usefixtures("as_a_reader")
def test_a_rotation_of_another_size(plain):
    with pytest.raises(ValueError, match=r"rotation of shape \(5, 5\), .*expected \(22, 22\) = \[d_model, d_model\]"):
        rotate_basis(plain, turn(5))
