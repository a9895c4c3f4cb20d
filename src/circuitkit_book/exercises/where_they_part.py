"""Exercise 4.2. `answer(one, other, tokens)` says how far apart two models are in what each neuron reads.

**Shapes**: `tokens [1, pos]`; the result is `[layer, neuron]`, the largest absolute gap over positions, before the
activation (`mlp.in.hook_out`).
"""

from copy import deepcopy
from functools import cache

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import cached, random_row, shipped


@cache
def _changed(seed: int):
    """The shipped model with MLPs, and some neurons of it moved."""
    model, generator = deepcopy(shipped("two-layer-mlp")), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in (0, 1)[seed % 2 :]:
            for neuron in torch.randint(512, (2,), generator=generator).tolist():
                model.blocks[layer].mlp.b_in[neuron] += 1.5 * (-1) ** neuron
                model.blocks[layer].mlp.W_in[:, neuron] += 0.1 * torch.randn(
                    len(model.blocks[layer].mlp.W_in), generator=generator
                )
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
    caches, out = [cached(model, tokens) for model in (one, other)], []
    pairs = [[cache[f"blocks.{layer}.{hook}"][0] for cache in caches] for layer in range(2)]
    place = int(torch.stack([(here - there).abs().sum(1) for here, there in pairs]).sum(0).argmax())
    for here, there in pairs:
        gap = here - there
        gap = {
            "abs": gap.abs(), "square": gap.square(), "minus": -gap, "sizes": (here.abs() - there.abs()).abs(), "relu": (here.relu() - there.relu()).abs(), "share": (gap / here).abs(), "other share": (gap / there).abs(),
        }.get(sign, gap)  # fmt: skip
        out.append({
            "mean": gap.mean(0), "mean first": (here - there).mean(0).abs(), "last": gap[-1], "first": gap[0], "sum": gap.sum(0), "norm": gap.norm(dim=0),
            "maxima": here.amax(0) - there.amax(0) if sign == "none" else (here.amax(0) - there.amax(0)).abs(), "place": gap[place],
            "worst": gap[gap.sum(1).argmax()], "least": gap.amin(0), "later": gap[1:].amax(0), "early": gap[:-1].amax(0), "spread": gap.amax(0) - gap.amin(0), "where": gap.argmax(0),
            "rms": gap.square().mean(0).sqrt(), "range": (here - there).amax(0) - (here - there).amin(0), "std": (here - there).std(0),
        }.get(over, gap.amax(0)))  # fmt: skip
    found = torch.stack(out)
    return {"largest": found.argmax(1), "twice": found[:1].expand_as(found)}.get(shape, found)


EXERCISE = Exercise(
    about="4.2 where two models part | medium | 20 minutes | 04-mlps-as-attention#what-it-costs",
    spec=spec, body=body, axes="pos", smallest=3, trials=4,
    inputs={"one": lambda size, generator, case: shipped("two-layer-mlp"), "other": lambda size, generator, case: _changed(size["step"]),
            "tokens": random_row(1, 2048)},
    names=("layer", "neuron"),
    choices="""
    hook = mlp.out.hook_in | the gap is taken behind the activation | A neuron reads before its activation: which hook comes first, `mlp.in.hook_out` or `mlp.out.hook_in`?
    over = mean first | the mean over positions is taken first, with signs, and then its absolute value | Gaps of both signs cancel in a mean. Keep the largest.
    over = mean | it is the mean over positions, not the largest | One token may be enough to tell two models apart, and a mean hides it.
    over = later / early | a position is left out, the first or the last | Compare them all.
    over = where | it says where the gap is largest, not how large it is | Return the gaps themselves.
    over = last / first | one position alone is compared, the first or the last | Compare them all, and keep the largest.
    over = sum | gaps are added up over positions | Keep the largest.
    over = norm | it is the root of the summed squares over positions | Keep the largest.
    over = rms / std | it is a mean square's root or a spread over positions, not the largest gap | Keep the largest.
    over = range | it is the distance from the lowest to the highest signed gap | Take absolute values first, then the largest.
    sign = relu | only what is above 0 is compared | A reading counts below 0, too.
    over = least | it is the smallest gap over positions | Keep the largest.
    over = maxima | the largest values are compared, wherever they are | Compare position by position, then keep the largest gap.
    over = place / worst | one position is taken for all neurons | Each neuron has a position of its own at which the gap is largest.
    sign = none / minus | the sign is kept, so gaps of one sign are lost | How far apart are two numbers?
    sign = sizes | sizes are compared, so a change of sign is lost | First subtract, then take the absolute value.
    sign = share / other share | gaps are divided by what a model reads | Return the gaps themselves.
    shape = twice | the first layer's gaps are returned for both layers | Both layers, one row each.
    shape = largest | it says which neuron, not how much | Return [layer, neuron], the gaps themselves.
    """,
)  # fmt: skip
check_where_they_part = checks(EXERCISE, __doc__)
