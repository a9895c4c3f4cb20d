"""Reading and writing subspaces and the angles between them."""

import dataclasses
import math

import pytest
import torch

from circuitkit import Heads
from circuitkit.circuits import random_heads
from circuitkit.residual import principal_cosines, subspace_overlap
from circuitkit.residual._weights import reading_basis, writing_basis


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def draw(n, d_model, d_head, seed=0):
    W = random(4, n, d_model, d_head, seed=seed)
    return Heads(tuple(f"L0H{i}" for i in range(n)), W[0], W[1], W[2], W[3].transpose(1, 2))


def test_by_hand():
    """Two planes that share the first axis and are turned by 30 degrees about it: cosines 1 and sqrt(3) / 2."""
    e = torch.eye(3, dtype=torch.float64)
    flat = torch.stack([e[0], e[1]], dim=1)
    turned = torch.stack([e[0], math.cos(math.pi / 6) * e[1] + math.sin(math.pi / 6) * e[2]], dim=1)
    W, mixing = (
        torch.zeros(1, 3, 2, dtype=torch.float64),
        torch.tensor([[2.0, 1.0], [0.0, -3.0]], dtype=torch.float64),
    )
    writer = Heads(("L0H0",), W, W, W, (flat @ mixing).T[None])
    reader = Heads(("L1H0",), W, W, (turned @ mixing.T)[None], W.mT, layers=(1,))
    close(subspace_overlap(writer, reader), [[(1 + 3 / 4) / 2]])


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_reading_basis_spans_what_is_read(kind):
    heads = draw(3, 11, 4)
    basis, W = reading_basis(heads, kind), getattr(heads, f"W_{kind}")
    assert basis.shape == (3, 11, 4)
    for h in range(3):
        close(basis[h].T @ basis[h], torch.eye(4))
        close(basis[h] @ basis[h].T @ W[h], W[h], 1e-11)  # projecting the weights changes nothing
        x = random(11, seed=h)
        close((basis[h] @ basis[h].T @ x) @ W[h], x @ W[h], 1e-11)


def test_values_are_read_by_default():
    heads = draw(2, 7, 3)
    assert torch.equal(reading_basis(heads), reading_basis(heads, "V"))


def test_writing_basis_spans_what_is_written():
    heads = draw(3, 11, 4)
    basis = writing_basis(heads)
    assert basis.shape == (3, 11, 4)
    for h in range(3):
        close(basis[h].T @ basis[h], torch.eye(4))
        written = random(5, 4, seed=h) @ heads.W_O[h]
        close(written @ basis[h] @ basis[h].T, written, 1e-11)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_overlap_against_loops(kind):
    earlier, later = draw(2, 11, 3), draw(4, 11, 5, seed=1)
    overlap = subspace_overlap(earlier, later, kind)
    assert overlap.shape == (2, 4)
    for i in range(2):
        for j in range(4):
            W, O = getattr(later, f"W_{kind}")[j], earlier.W_O[i]  # noqa: E741
            onto = lambda M: M @ torch.linalg.pinv(M)  # noqa: E731
            close(overlap[i, j], torch.trace(onto(O.T) @ onto(W)) / 5, 1e-11)
    assert (overlap >= 0).all()
    assert (overlap <= 1).all()


def test_the_gradient_of_an_overlap_is_that_of_finite_differences():
    early, late = (random_heads(2, 9, 4, layer=i, seed=i).to(torch.float64) for i in (0, 1))

    def overlap(W_O, W_V):
        return subspace_overlap(
            dataclasses.replace(early, W_O=W_O), dataclasses.replace(late, W_V=W_V)
        )

    given = early.W_O.clone().requires_grad_(), late.W_V.clone().requires_grad_()
    assert torch.autograd.gradcheck(overlap, given, check_undefined_grad=False, fast_mode=True)
    assert (
        min(
            float(slope.abs().max())
            for slope in torch.autograd.grad(overlap(*given).trace(), given)
        )
        > 1e-3
    )


def test_overlap_of_known_subspaces():
    earlier = draw(1, 6, 2)
    e = torch.eye(6, dtype=torch.float64)
    earlier = dataclasses.replace(earlier, W_O=torch.stack([5 * e[0], e[1] - e[0]])[None])
    reads = lambda *columns: dataclasses.replace(earlier, W_V=torch.stack(columns, dim=1)[None])  # noqa: E731
    for later, share in (
        (reads(e[0] + e[1], 3 * e[1]), 1.0),
        (reads(e[4], e[5]), 0.0),
        (reads(e[0], e[5]), 0.5),
        (reads(e[2], e[0] + e[3]), 0.25),  # one of two directions, at 45 degrees
    ):
        close(subspace_overlap(earlier, later), [[share]])


def test_overlap_of_random_subspaces():
    """The docstring's baseline: d_head of the earlier head over d_model."""
    overlap = subspace_overlap(draw(40, 24, 3), draw(40, 24, 5, seed=1))
    assert overlap.mean().item() == pytest.approx(3 / 24, rel=0.05)


def test_strength_does_not_matter():
    earlier, later = draw(2, 11, 3), draw(3, 11, 3, seed=1)
    mixed = dataclasses.replace(later, W_V=later.W_V @ random(3, 3, seed=5))
    close(subspace_overlap(earlier, mixed), subspace_overlap(earlier, later), 1e-10)


def plain_cosines(writers, readers):
    """By one singular value decomposition of each stack, and of the product of the two bases."""

    def basis(rows):
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        return directions[sizes > 1e-10 * sizes[0]]

    return torch.linalg.svdvals(basis(writers) @ basis(readers).T)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize(
    ("n", "m", "angles"), [(1, 1, 3), (2, 2, 6), (2, 4, 6), (5, 2, 10), (6, 4, 17)]
)
def test_angles_of_joint_spaces_against_a_plain_svd(monkeypatch, kind, n, m, angles):
    earlier, later = draw(n, 17, 3), draw(m, 17, 5, seed=1)
    monkeypatch.setattr("circuitkit._blocks._TILE", 60)  # one head at a time
    found = principal_cosines(earlier, later, kind)
    wanted = plain_cosines(torch.cat([*earlier.W_O]), torch.cat([*getattr(later, f"W_{kind}").mT]))
    assert found.shape == (angles,)
    close(found, wanted, 1e-10)
    if n == m == 1:
        close(found.square().sum() / 5, subspace_overlap(earlier, later, kind)[0, 0])


def test_heads_that_write_the_same_are_counted_once():
    """Two planes in four dimensions that share a line: three dimensions together; a head without weights adds nothing."""
    e = torch.eye(4, dtype=torch.float64)
    W = torch.stack(
        [
            torch.stack([e[0], e[1]]),
            torch.stack([e[1], 1e3 * (e[1] + e[2])]),
            torch.zeros(2, 4, dtype=torch.float64),
        ]
    )
    some = Heads(("L0H0", "L0H1", "L0H2"), W.mT, W.mT, W.mT, W)
    close(principal_cosines(some, some), torch.ones(3))
    reader = dataclasses.replace(
        some[:1], W_V=torch.stack([e[3], e[0] + e[3]], dim=1)[None], layers=(1,)
    )
    close(principal_cosines(some, reader), [1.0, 0.0])


def test_random_joint_spaces_share_as_said():
    found = [
        principal_cosines(draw(3, 40, 4, seed=s), draw(5, 40, 4, seed=s + 50)).square().mean()
        for s in range(20)
    ]
    assert float(sum(found)) / 20 == pytest.approx(20 / 40, rel=0.05)


def test_errors():
    with pytest.raises(ValueError, match=r"kind='OV'; expected one of \['Q', 'K', 'V'\]"):
        reading_basis(draw(1, 7, 2), "OV")
    with pytest.raises(
        ValueError,
        match="earlier with . heads of d_model 7 .*, later with . heads of d_model 5 .*of one d_model and one model, because both must live in one",
    ):
        subspace_overlap(draw(1, 7, 2), draw(1, 5, 2))
