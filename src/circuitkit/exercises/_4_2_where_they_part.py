"""Exercise 4.2, where two models part: neuron by neuron."""

from copy import deepcopy
from functools import cache

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check
from circuitkit.exercises._shared import random_row, shipped


@cache
def _changed(seed: int):
    """The shipped model with MLPs, and some neurons of it moved."""
    model, generator = deepcopy(shipped("two-layer-mlp")), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in (0, 1)[seed % 2 :]:
            for neuron in torch.randint(512, (2,), generator=generator).tolist():
                model.blocks[layer].mlp.b_in[neuron] += 1.5
    return model


def spec(one, other, tokens: Tensor) -> Tensor:
    out = torch.zeros(2, 512, dtype=torch.float64)
    caches = []
    for model in (one, other):
        model.reset_hooks()
        caches.append(model.run_with_cache(tokens)[1])
    for layer in range(2):
        here, there = (c[f"blocks.{layer}.mlp.in.hook_out"][0].double() for c in caches)
        for pos in range(tokens.shape[1]):
            out[layer] = torch.maximum(out[layer], abs(here[pos] - there[pos]))
    return out


def body(one, other, tokens, *, hook="mlp.in.hook_out", over="max", sign="abs", shape="both"):
    caches = [model.run_with_cache(tokens)[1] for model in (one, other)]
    out = []
    for layer in range(2):
        gap = caches[0][f"blocks.{layer}.{hook}"][0] - caches[1][f"blocks.{layer}.{hook}"][0]
        gap = {"abs": gap.abs(), "square": gap.square()}.get(sign, gap if sign == "none" else -gap)
        out.append({"mean": gap.mean(0), "last": gap[-1], "sum": gap.sum(0)}.get(over, gap.amax(0)))
    found = torch.stack(out)
    return {"largest": found.argmax(1), "turned": found.mT, "first layer": found[0], "one layer": found[1]}.get(shape, found)


EXERCISE = Exercise(
    about="4.2 where two models part | medium | 20 minutes | 04-mlps-as-attention#what-it-costs",
    spec=spec, body=body, axes="pos", smallest=3, trials=4,
    inputs={"one": lambda size, generator, case: shipped("two-layer-mlp"), "other": lambda size, generator, case: _changed(size["step"]),
            "tokens": random_row(1, 2048)},
    names=("layer", "neuron"),
    choices="""
    hook = mlp.out.hook_in | the gap is taken behind the activation | A neuron reads before its activation: which hook comes first, `mlp.in.hook_out` or `mlp.out.hook_in`?
    over
        mean | it is the mean over positions, not the largest | One token may be enough to tell two models apart, and a mean hides it.
        last | only the last position is compared | Compare them all, and keep the largest.
        sum | gaps are added up over positions | Keep the largest.
    sign
        none | the sign is kept, so gaps below zero are lost | How far apart are two numbers?
        minus | the sign is kept, so gaps above zero are lost | How far apart are two numbers?
        square | gaps are squared | How far apart are two numbers?
    shape
        largest | it says which neuron, not how much | Return [layer, neuron], the gaps themselves.
        turned | layers and neurons are exchanged | Return [layer, neuron].
        first layer | only the first layer is returned | Both layers, one row each.
        one layer | only the second layer is returned | Both layers, one row each.
    """,
)  # fmt: skip


def check_where_they_part(answer) -> Result:
    """Exercise 4.2. `answer(one, other, tokens)` says how far apart two models are in what each neuron reads.

    **Shapes**: `tokens [1, pos]`; the result is `[layer, neuron]`, the largest absolute gap over positions, before the
    activation (`mlp.in.hook_out`).
    """
    return check(EXERCISE, answer)
