"""Models on which answers are tried, and runs of them in which a hook replaces a value."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit.bridge import Model
from circuitkit.models import load_model
from circuitkit.reading import heads_of
from circuitkit_book import superposition_models


@cache
def shipped(name: str) -> Any:
    """Return a shipped model, the same object at every call."""
    return load_model(name)


@cache
def toy(step: int) -> Any:
    """Return a toy model: trained ones and ones by hand in turn, with noise in their heads from step 2 on.

    The noise makes what a model completes depend on every token of a prompt.
    """
    makers = (
        superposition_models.blind_model,
        superposition_models.two_head_model,
        superposition_models.one_head_model,
    )
    if step % 2:
        model = superposition_models.load_original(4, 5, step)
    else:
        model = makers[step // 2 % 3](3 + step)
    if step < 2:
        return model
    generator, heads = Generator().manual_seed(step), heads_of(model)
    W_K = heads.W_K + 0.5 * torch.randn(heads.W_K.shape, generator=generator)
    W_V = heads.W_V + 0.5 * torch.randn(heads.W_V.shape, generator=generator)
    noisy = replace(heads, W_K=W_K, W_V=W_V)
    return superposition_models.toy_model(noisy, model.task, model.W_E, model.W_U)


def random_row(generator: Generator, length: int, first: int = 0) -> Tensor:
    """Return one row of random tokens of the shipped models, `[1, length]`."""
    return torch.randint(first, 2048, (1, length), generator=generator)


def patterns(model: Model, tokens: Tensor) -> Tensor:
    """Return all attention patterns of one row, `[layer, head, dst, src]`."""
    _, cache = model.run_with_cache(tokens)
    layers = range(model.cfg.n_layers)
    return torch.stack([cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in layers])


def hooked(model: Model, tokens: Tensor, name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the logits of a run in which `change` is applied to a copy of one hooked value."""

    def hook(value: Tensor, hook: Any) -> Tensor:
        return change(value.clone())

    return model.run_with_hooks(tokens, fwd_hooks=[(name, hook)])
