"""One training loop, with which every small model of the book is trained."""

import math
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from circuitkit.checks import checked, require_at_least, require_positive, shown

__all__ = ["fit"]


@checked
def fit(
    parameters: Iterable[Tensor],
    loss_function: Callable[[int], Float[Tensor, "*run"]],
    steps: int,
    *,
    learning_rate: float | Callable[[int], float] = 1e-3,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    clip_norm: float | None = None,
) -> Float[Tensor, "step *run"]:
    """Minimise a loss by gradient descent, changing the parameters in place.

    Several models can be trained side by side: the loss then has one entry for each of them, and
    the sum of the entries is minimised. No entry depends on the parameters of another model, so
    each model is trained as if it were alone.

    Parameters
    ----------
    parameters : tensors to train, for example `module.parameters()`; those that do not require a
        gradient are left as they are
    loss_function : called with the number of the step, from 0 on; returns a scalar, or one loss
        for each model
    steps : number of steps
    learning_rate : a number, or a function of the step
    optimizer : called with the parameters and `lr=`; `functools.partial(torch.optim.AdamW,
        betas=(0.9, 0.98))` changes its other settings
    clip_norm : the largest norm of all gradients together; larger ones are scaled down to it

    Returns
    -------
    The losses `[step, *run]`, each computed before the update of its step.

    Raises
    ------
    ValueError : if no parameter requires a gradient, or the loss depends on none of them

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> x = torch.zeros(1, requires_grad=True)
    >>> losses = fit([x], lambda step: (x - 3).square().sum(), 100, learning_rate=0.1)
    >>> bool((x - 3).abs() < 0.5), losses[0].item()
    (True, 9.0)
    """
    require_at_least(1, steps=steps)
    require_positive(clip_norm=clip_norm)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise ValueError(
            "fit was given no parameter that requires a gradient, so there is nothing to train. "
            "Give tensors such as torch.zeros(3, requires_grad=True), or module.parameters()."
        )
    rate_at = learning_rate if callable(learning_rate) else lambda step: learning_rate
    require_rate(rate_at(0), 0)
    descent = optimizer(trained, lr=rate_at(0))
    losses = []

    # TQDM_DISABLE=1 hides the bar, which appears only if training takes more than five seconds.
    for step in tqdm(range(steps), desc="training", delay=5, leave=False):
        for group in descent.param_groups:
            group["lr"] = require_rate(rate_at(step), step)
        with torch.enable_grad():
            loss = loss_function(step)
            if not isinstance(loss, Tensor) or not loss.requires_grad:
                raise ValueError(
                    "The loss must be a tensor that depends on the parameters, without .item(), "
                    f".detach() or no_grad(). loss_function returned {shown(loss)}."
                )
            descent.zero_grad(set_to_none=True)
            loss.sum().backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, clip_norm)
        descent.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def require_rate(rate: float, step: int) -> float:
    """A learning rate; a `ValueError` if it is negative, infinite or NaN."""
    if not 0 <= rate < math.inf:
        raise ValueError(
            f"The learning_rate of step {step} is {rate}. It must be a number of at least 0, such as "
            "learning_rate=1e-3."
        )
    return rate
