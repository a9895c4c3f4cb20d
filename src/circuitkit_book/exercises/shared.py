"""Choices that several exercises share: the scale of scores, the mask, the axis of the softmax; and a head that takes them."""

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from circuitkit import superposition
from circuitkit.heads import heads_of
from circuitkit.models import load_model

SCALE = """
    scale = none | the scores are not divided by sqrt(d_head) | Without the division the softmax is too sharp, and the sharper the wider the head.
    scale = d_model | the scores are divided by sqrt(d_model) | A score sums over the d_head numbers of a query, not over the d_model numbers of the stream.
    scale = no root | the scores are divided by d_head, without the root | The scores of random vectors grow like the root of their length.
    scale = pos | the scores are divided by the root of the number of positions | A score sums over the d_head numbers of a query.
"""

MASK = """
    mask = after | the mask comes after the softmax | The future took its share before it was removed, so the rows no longer sum to 1.
    mask = zero | masked scores are 0 instead of minus infinity | exp(0) = 1: a hidden place still gets attention. What must vanish after exp?
    mask = none | there is no causal mask | A destination may look at itself and at what came before it.
    mask = past | the mask hides the past instead of the future | Rows are destinations. Which triangle is the future of a row?
    mask = itself / itself, filled | the mask hides the destination itself | The diagonal is the destination looking at itself, which is allowed. The first row has nothing else.
"""

AXIS = """
    axis = 0 | the softmax runs over destinations | Each destination shares out one unit of attention: rows sum to 1, columns do not.
    axis = all | the softmax runs over all pairs at once | Each destination shares out one unit of attention of its own.
    axis = none / none, 0 | the softmax is missing: these are the masked scores | What turns scores into shares?
    axis = exp | the exponentials are not divided by their sum | Each destination shares out one unit of attention: rows sum to 1.
"""


def attend(scores: Tensor, hidden: Tensor, *, mask: Any = "before", axis: Any = -1) -> Tensor:
    """The pattern from scores and what is hidden, with a turn in the mask or in the softmax."""
    if mask == "past":
        hidden = hidden.mT
    elif mask in ("itself", "itself, filled"):
        hidden = hidden | torch.eye(len(hidden), dtype=torch.bool)
    elif mask == "none":
        hidden = torch.zeros_like(hidden)
    masked = (
        scores
        if mask == "after"
        else scores.masked_fill(hidden, 0.0 if mask == "zero" else -torch.inf)
    )
    pattern = {
        "all": lambda: masked.flatten().softmax(0).reshape(masked.shape),
        "none": lambda: masked,
        "none, 0": lambda: scores.masked_fill(hidden, 0.0),
        "exp": lambda: masked.exp(),
    }.get(axis, lambda: masked.softmax(axis if isinstance(axis, int) else -1))()
    return (
        pattern.masked_fill(hidden, 0.0)
        if mask == "after"
        else pattern.nan_to_num(0.0)
        if mask == "itself, filled"
        else pattern
    )


def head_pattern(
    q: Tensor, k: Tensor, d_model: int, *, scale: Any = "root", mask: Any = "before", axis: Any = -1
) -> Tensor:
    """The causal pattern of queries and keys, with a turn in scale, mask or softmax."""
    pos, d_head = q.shape
    roots = {"none": 1.0, "d_model": d_model**0.5, "no root": float(d_head), "pos": pos**0.5}
    scores = q @ k.mT / roots.get(scale, d_head**0.5)
    return attend(scores, torch.ones(pos, pos).triu(1).bool(), mask=mask, axis=axis)


HOOK = """
    heads = all | all heads of the layer are changed | `hook_z` is [row, position, head, d_head]: which index picks one head?
    heads = others | every head but the one asked for is changed | Which of them was asked for?
    heads = next | the head after the one asked for is changed | Heads are counted from 0.
    heads = position / number | the head's number picks a position, or one of the d_head numbers of all heads | `hook_z` is [row, position, head, d_head]: which index picks one head?
    place = other layer | the hook sits in the other layer | Layers are counted from 0, as in `blocks.0`.
    site = pattern | the head's pattern is changed (`hook_pattern`), not what it makes of the values | `hook_z` holds what is left when the pattern has weighed the values.
    site = v | the head's values are changed (`hook_v`), not what it makes of them | `hook_z` holds what is left when the pattern has weighed the values.
    at = last / first | only one position is changed, the first or the last | Other positions feed later layers, too. Change all of them.
"""


def hooked(
    model: Any,
    tokens: Tensor,
    layer: int,
    head: int,
    new: Any,
    *,
    heads: str,
    place: str,
    site: str,
    at: str,
) -> Tensor:
    """The logits when `new(z, name)` stands in for one head's `z`, or with a turn in where it stands."""
    name = f"blocks.{layer if place == 'asked' else 1 - layer}.attn.hook_{site}"

    def hook(z: Tensor, hook: Any) -> Tensor:
        if site == "pattern":
            z, put = z.movedim(1, 2), new(z, name).movedim(1, 2)
            return torch.cat(
                [put[:, :, i : i + 1] if i == head else z[:, :, i : i + 1] for i in range(4)], 2
            ).movedim(2, 1)
        part = torch.zeros_like(z, dtype=torch.bool)
        some = part[:, {"last": slice(-1, None), "first": slice(1)}.get(at, slice(None))]
        if heads in ("position", "number"):
            (some[:, head] if heads == "position" else some[..., head])[:] = True
        else:
            some[:, :, (head + 1) % 4 if heads == "next" else head] = True
        part = {"all": part.any(2, keepdim=True), "others": ~part & part.any(2, keepdim=True)}.get(
            heads, part
        )
        return torch.where(part, new(z, name), z)

    return model.run_with_hooks(tokens, fwd_hooks=[(name, hook)])


@cache
def shipped(name: str) -> Any:
    """A shipped model for an investigation: the same one for every case, and a specification takes its hooks off first."""
    return load_model(name)


@cache
def some_toy(step: int) -> Any:
    """A toy model for an investigation: trained, or made by hand; one does not look at sources, one hides behind two heads.

    All but the first two have noise in what their heads write, so that what they complete depends on every token of a prompt.
    """
    makers = (superposition.blind_model, superposition.two_head_model, superposition.one_head_model)
    toy = superposition.load_original(4, 5, step) if step % 2 else makers[step // 2 % 3](3 + step)
    generator = torch.Generator().manual_seed(step)
    heads = heads_of(toy)
    noisy = {}
    for name in ("W_K", "W_V"):
        weight = getattr(heads, name)
        noisy[name] = weight + 0.5 * (step > 1) * torch.randn(weight.shape, generator=generator)
    return superposition.toy_model(replace(heads, **noisy), toy.task, toy.W_E, toy.W_U)


@lru_cache(64)
def _cached(model: Any, row: tuple[int, ...]) -> Any:
    return model.run_with_cache(torch.tensor([row]))[1]


def cached(model: Any, tokens: Tensor) -> Any:
    """The cache of a run, kept: for our own wrong turns, which read the same few rows over and over."""
    return _cached(model, tuple(tokens[0].tolist()))


def random_row(low: int, high: int) -> Any:
    """One row of tokens as long as the axis `pos`, and longer from case to case."""
    return lambda size, generator, case: torch.randint(
        low, high, (1, size["pos"] + size["step"]), generator=generator
    )
