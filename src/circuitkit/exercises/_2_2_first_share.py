"""Exercise 2.2, how much goes to the first place: patterns from a run."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check
from circuitkit.exercises._shared import random_row, shipped


def spec(model, tokens: Tensor) -> Tensor:
    model.reset_hooks()
    _, cache = model.run_with_cache(tokens)
    out = torch.zeros(model.cfg.n_layers, model.cfg.n_heads, dtype=torch.float64)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            shares = [float(cache[f"blocks.{layer}.attn.hook_pattern"][0, head, dst, 0]) for dst in range(1, tokens.shape[1])]
            out[layer, head] = sum(shares) / len(shares)
    return out


def body(model, tokens, *, place="first", rows="later", reduce="mean", kind="pattern", turned=False, shape="both", order=False):
    patterns = []
    for layer in range(model.cfg.n_layers):
        pattern = model.run_with_cache(tokens)[1][f"blocks.{layer}.attn.hook_pattern"][0]
        patterns.append(pattern.mT if turned else pattern)
    pattern = torch.stack(patterns)
    at = {"second": lambda p: p[..., 1], "itself": lambda p: p.diagonal(dim1=-2, dim2=-1)}.get(place, lambda p: p[..., 0])(pattern)
    at = at if rows == "all" else at[..., -1:] if rows == "last" else at[..., 1:]
    out = {"sum": at.sum(-1), "max": at.amax(-1), "rows": at}.get(reduce, at.mean(-1))
    out = out.mT if order else out
    return {"first layer": out[0], "last layer": out[-1], "flat": out.flatten(), "over heads": out.mean(1)}.get(shape, out)


EXERCISE = Exercise(
    about="2.2 how much goes to the first place | easy | 15 minutes | 02-qk-and-ov-circuits#where-a-head-looks-the-qk-circuit",
    spec=spec, body=body, axes="pos", smallest=5, trials=4,
    inputs={"model": lambda size, generator, case: shipped(("two-layer", "two-layer-mlp")[size["step"] % 2]), "tokens": random_row(0, 2048)},
    names=("layer", "head"),
    choices="""
    place
        second | the share of the second place is measured | Places are counted from 0.
        itself | the share of the place itself is measured | The diagonal is a place looking at itself. Which column is the first place?
    rows
        all | the first place counts as a destination, too | It has nothing else to look at: leave its row out.
        last | only the last destination is counted | Take the mean over all destinations but the first.
    reduce
        sum | shares are added up, not averaged | A share of one row is at most 1, and so is a mean of shares.
        max | it is the largest share, not the mean | One destination that looks there is not yet a habit.
        rows | there is still one number for each destination | What is asked for is their mean.
    turned = True | destinations and sources are exchanged | `hook_pattern` is [row, head, destination, source].
    shape
        first layer | only the first layer is returned | One row for each layer: `model.cfg.n_layers` of them.
        last layer | only the last layer is returned | One row for each layer: `model.cfg.n_layers` of them.
        flat | layers and heads are in one row | Return [layer, head].
        over heads | it is averaged over heads | Each head has habits of its own.
    """,
)  # fmt: skip


def check_first_share(answer) -> Result:
    """Exercise 2.2. `answer(model, tokens)` returns what each head gives to the first place, on average.

    **Shapes**: `tokens [1, pos]`; the result is `[layer, head]`, the mean over all destinations but the first.
    """
    return check(EXERCISE, answer)
