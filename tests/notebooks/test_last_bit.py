"""The simulated processor that rounds otherwise: it flips what is rounded, leaves what is exact, and repeats itself."""

import pytest
import torch
from torch import nn

from tools.notebooks.last_bit import INTEGER, ROUNDED, LastBit, flip

GENERATOR = torch.Generator().manual_seed(0)
X = {
    dtype: torch.randn(40, 64, generator=GENERATOR, dtype=dtype)
    for dtype in (torch.float32, torch.float64)
}


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.detach().contiguous().view(INTEGER[values.dtype])


OPERATIONS = {
    "matrix product": lambda x: x @ x.T,
    "batched product": lambda x: torch.einsum("bij,bkj->bik", x.view(4, 10, 64), x.view(4, 10, 64)),
    "linear": lambda x: nn.functional.linear(x, x, x[:, 0]),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "std": lambda x: x.std(1),
    "norm": lambda x: x.norm(dim=1),
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "exp": torch.exp,
    "exp in place": lambda x: x.clone().exp_(),
    "exp with out": lambda x: torch.exp(x, out=torch.empty_like(x)),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "layer norm": lambda x: nn.functional.layer_norm(x, (64,)),
    "cumsum": lambda x: x.cumsum(1),
    "solve": lambda x: torch.linalg.solve(x[:, :40] + 40 * torch.eye(40, dtype=x.dtype), x),
    "singular values": lambda x: torch.linalg.svdvals(x),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(*(x.view(1, 4, 10, 64),) * 3),
}


@pytest.mark.parametrize("dtype", X, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_about_half_of_the_rounded_results_have_another_last_bit(name, dtype):
    operation, x = OPERATIONS[name], X[dtype]
    plain = operation(x)
    with LastBit(1):
        flipped, again = operation(x), operation(x)
    with LastBit(2):
        other = operation(x)
    assert torch.equal(flipped, again)
    assert not torch.equal(flipped, other)
    if name not in (
        "solve",
        "linear",
        "attention",
        "std",
        "singular values",
    ):  # made of several operations
        assert (bits(flipped) ^ bits(plain)).unique().tolist() == [0, 1]
        assert 0.2 < (flipped != plain).double().mean() < 0.8
    assert torch.allclose(flipped, plain, rtol=1e-4 if dtype == torch.float32 else 1e-12)


def test_the_share_is_a_half():
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for seed in range(5):
        assert (flip(values, seed) != values).double().mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "exact",
    [
        lambda: torch.arange(12.0).view(3, 4) @ torch.arange(12.0).view(4, 3),
        lambda: torch.ones(1000).sum(),
        lambda: torch.full((64,), 0.5).mean(),
        lambda: torch.zeros(4).softmax(0),
        lambda: torch.tensor([0.0, -torch.inf]).softmax(0),
        lambda: torch.zeros(3).exp(),
        lambda: torch.tensor([torch.inf, -torch.inf]).exp(),
        lambda: torch.tensor([3.0, 4.0]).norm(),
        lambda: torch.eye(5) @ torch.eye(5),
        lambda: torch.zeros(3).sigmoid(),
    ],
)
def test_results_that_every_order_gives_stay(exact):
    plain = exact()
    for seed in range(20):
        with LastBit(seed):
            assert torch.equal(exact(), plain)


def test_not_a_number_stays_one_and_nothing_becomes_infinite():
    extremes = torch.tensor(
        [torch.nan, torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny]
    )
    for seed in range(20):
        flipped = flip(extremes, seed)
        assert flipped.isnan().tolist() == [True, False, False]
        assert not flipped.isinf().any()


@pytest.mark.parametrize(
    "alike",
    [
        lambda x: x + 1.1 * x,
        lambda x: x / 3,
        lambda x: x.sqrt(),
        lambda x: x.T.contiguous(),
        lambda x: torch.cat([x, -x])[::2],
        lambda x: x.sort(1).values,
        lambda x: x.relu().max(1).values,
        lambda x: x.to(torch.float64),
    ],
)
def test_what_every_processor_does_alike_is_left_alone(alike):
    x = X[torch.float32].abs()
    with LastBit(1):
        flipped = alike(x)
    assert torch.equal(flipped, alike(x))


def test_gradients_are_flipped_too():
    def gradient(x):
        leaf = x.clone().requires_grad_()
        # The backward form of softmax alone: the sum that follows has exact gradients.
        leaf.softmax(-1).mul(torch.arange(64, dtype=x.dtype)).sum().backward()
        return leaf.grad

    for x in X.values():
        plain = gradient(x)
        with LastBit(1):
            flipped = gradient(x)
        assert not torch.equal(flipped, plain)
        assert torch.allclose(flipped, plain, rtol=1e-3, atol=1e-5)


def test_training_goes_another_way():
    def trained(mode=None):
        torch.manual_seed(0)
        layer = nn.Linear(64, 3)
        optimiser = torch.optim.AdamW(layer.parameters())
        for _ in range(3):
            optimiser.zero_grad()
            layer(X[torch.float32]).square().mean().backward()
            nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
            optimiser.step()
        return layer.weight.detach()

    plain = trained()
    with LastBit(5):
        flipped = trained()
    assert not torch.equal(flipped, plain)
    assert torch.allclose(flipped, plain, atol=1e-5)


def test_complex_results_and_half_precision():
    matrix = X[torch.float64][:, :40]
    with LastBit(1):
        values = torch.linalg.eigvals(matrix)
        half = X[torch.float32].half() @ X[torch.float32].half().T
    plain = torch.linalg.eigvals(matrix)
    assert (values != plain).double().mean() > 0.1
    assert torch.allclose(values, plain)
    assert torch.equal(half, X[torch.float32].half() @ X[torch.float32].half().T)


def test_larger_flips_show_a_margin():
    values = X[torch.float32]
    assert (bits(flip(values, 1, ulps=4)) ^ bits(values)).unique().tolist() == [0, 4]


def test_every_name_is_an_operation():
    assert [name for name in sorted(ROUNDED) if not hasattr(torch.ops.aten, name)] == []
