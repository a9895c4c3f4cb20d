"""Superposition, small enough to train while you watch: more sparse features than dimensions."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, LearningRate, Seed, Share, must, public
from circuitkit._work import progress


class ToyModel(NamedTuple):
    """Trained toy models, one per density; `x -> ReLU(x W W^T + b)`. **Source**: Elhage et al. 2022, "Toy Models of Superposition"."""

    W: Float[Tensor, "instance feature hidden"]
    """Row `i` is the direction feature `i` is stored in."""
    b: Float[Tensor, "instance feature"]
    loss: Float[Tensor, " instance"]
    """Final importance-weighted squared error, summed over features, mean over samples."""

    @property
    def capacity(self) -> Float[Tensor, "instance feature"]:
        """Share of a dimension each feature has to itself, `|w_i|^4 / sum_j (w_i . w_j)^2`; 0.5 for antipodal pairs, 0 if not
        stored.

        **Source**: "Toy Models of Superposition", feature dimensionality, where it is written otherwise.
        """
        inner = self.W @ self.W.transpose(-2, -1)
        return (
            inner.diagonal(dim1=-2, dim2=-1) ** 2 / inner.pow(2).sum(-1).clamp_min(1e-12)
        ).clamp(max=1.0)


@public
@must(
    lambda density: (
        len(density) > 0
        and 0 <= density.min() <= density.max() <= 1
        or "probabilities from 0 to 1, one a model"
    )
)
@must(
    lambda pairs, density, n_features: (
        (pairs == "independent" or (n_features % 2 == 0 and density.max() <= 0.5))
        or "an even number of features and a density of at most 0.5, because pairs are never on together"
    )
)
def train_toy_models(
    density: Float[Tensor, " instance"],
    n_features: Count,
    n_hidden: Count,
    *,
    importance: Share = 1.0,
    pairs: Literal["independent", "anticorrelated"] = "independent",
    steps: Count = 3_000,
    batch: Count = 256,
    lr: LearningRate = 1e-2,
    seed: Seed = 0,
) -> ToyModel:
    """Train one toy model per feature density (probability that a feature is on), all side by side.

    Features are uniform in [0, 1] when on; `"anticorrelated"`: features 2k and 2k+1 are never on together. `importance` is
    the factor from one feature's weight in the loss to the next. Adam, cosine decay. **Source**: Elhage et al. 2022, "Toy
    Models of Superposition", sections 2-4; the trainer is ours.
    """
    generator, place = (
        torch.Generator().manual_seed(seed),
        density.device,
    )  # the same numbers on every device
    n, density = len(density), density.cpu()
    W = (
        (torch.randn(n, n_features, n_hidden, generator=generator) * n_hidden**-0.5)
        .to(place)
        .requires_grad_()
    )
    b = torch.zeros(n, n_features, device=place, requires_grad=True)
    weight = importance ** torch.arange(n_features, dtype=torch.float32, device=place)
    optimiser = torch.optim.Adam([W, b], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    loss = torch.full((n,), torch.nan)
    with torch.enable_grad():
        for _ in progress(range(steps), "training", steps):
            x = _sample(density, n_features, batch, pairs, generator).to(place)
            error = (torch.relu(x @ W @ W.transpose(-2, -1) + b[:, None]) - x).pow(2) @ weight
            loss = error.mean(1)
            optimiser.zero_grad(set_to_none=True)
            loss.sum().backward()
            optimiser.step()
            schedule.step()
    return ToyModel(W.detach(), b.detach(), loss.detach())


def _sample(
    density: Tensor, n_features: int, batch: int, pairs: str, generator: torch.Generator
) -> Tensor:
    shape = (len(density), batch, n_features)
    value = torch.rand(shape, generator=generator)
    if pairs == "independent":
        return value * (torch.rand(shape, generator=generator) < density[:, None, None])
    draw = torch.rand(len(density), batch, n_features // 2, generator=generator)
    first, second = draw < density[:, None, None], draw >= 1 - density[:, None, None]
    return value * torch.stack([first, second], dim=-1).flatten(-2)
