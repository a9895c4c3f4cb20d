"""Toy models of superposition: the features, and what training finds."""

import pytest
import torch

from circuitkit_book.feature_toys import sample_features, train_toy_models


def close(a, b, tolerance=1e-6):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def test_features_are_on_as_often_as_asked():
    density, generator = torch.tensor([0.1, 0.5, 1.0]), torch.Generator().manual_seed(0)
    x = sample_features(density, 4, 5_000, "independent", generator)
    assert x.shape == (3, 5_000, 4)
    assert (x >= 0).all()
    assert (x <= 1).all()
    close((x > 0).float().mean((1, 2)), density, 0.02)
    close(x[2].mean(), 0.5, 0.02)  # uniform when on
    together = ((x[1, :, 0] > 0) & (x[1, :, 1] > 0)).float().mean()
    close(together, 0.25, 0.03)


def test_anticorrelated_features_are_never_on_together():
    density, generator = torch.tensor([0.1, 0.5]), torch.Generator().manual_seed(0)
    on = sample_features(density, 6, 5_000, "anticorrelated", generator) > 0
    close(on.float().mean(1), density[:, None].expand(2, 6), 0.03)
    for pair in range(3):
        assert not (on[..., 2 * pair] & on[..., 2 * pair + 1]).any()
    assert (on[1, :, 0] & on[1, :, 2]).any()  # different pairs do meet


@pytest.fixture(scope="module")
def trained():
    return train_toy_models(
        torch.tensor([1.0, 0.05]), 5, 2, importance=0.7, steps=1_500, batch=256, seed=0
    )


def test_loss_is_the_weighted_error_of_the_returned_model(trained):
    generator = torch.Generator().manual_seed(7)
    for n, density in enumerate((1.0, 0.05)):
        is_on = torch.rand(4_000, 5, generator=generator) < density
        x = torch.rand(4_000, 5, generator=generator) * is_on
        y = torch.relu(x @ trained.W[n] @ trained.W[n].T + trained.b[n])
        expected = sum(0.7**i * (y[:, i] - x[:, i]).square().mean().item() for i in range(5))
        # one batch of 256 against 4,000
        assert trained.loss[n].item() == pytest.approx(expected, rel=0.25)


def test_seeded_and_free_of_the_global_seed():
    torch.manual_seed(1)
    first = train_toy_models(torch.tensor([0.3]), 3, 2, steps=5, seed=4)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    with torch.no_grad():  # also inside a reader's no_grad
        same = train_toy_models(torch.tensor([0.3]), 3, 2, steps=5, seed=4)
    assert torch.equal(first.W, same.W)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first.W, train_toy_models(torch.tensor([0.3]), 3, 2, steps=5, seed=5).W)
    assert not first.W.requires_grad


def test_densities_that_cannot_be_drawn():
    for density, n_features in ((torch.tensor([0.1]), 5), (torch.tensor([0.1, 0.6]), 4)):
        with pytest.raises(ValueError, match="a density of at most 0.5 and an even number"):
            train_toy_models(density, n_features, 2, pairs="anticorrelated")
    with pytest.raises(ValueError, match="density must hold a probability"):
        train_toy_models(torch.tensor([1.5]), 4, 2)
