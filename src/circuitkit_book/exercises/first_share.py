"""Exercise 2.2. `answer(model, tokens)` returns what each head gives to the first place, on average.

**Shapes**: `tokens [1, pos]`; the result is `[layer, head]`, the mean over all destinations but the first.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import cached, random_row, shipped


def spec(model, tokens: Tensor) -> Tensor:
    model.reset_hooks()
    _, cache = model.run_with_cache(tokens)
    out = torch.zeros(model.cfg.n_layers, model.cfg.n_heads, dtype=torch.float64)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            shares = [
                float(cache[f"blocks.{layer}.attn.hook_pattern"][0, head, dst, 0])
                for dst in range(1, tokens.shape[1])
            ]
            out[layer, head] = sum(shares) / len(shares)
    return out


def body(
    model,
    tokens,
    *,
    place="first",
    rows="later",
    reduce="mean",
    layers="each",
    turned=False,
    order=False,
):
    patterns = []
    for layer in range(model.cfg.n_layers):
        chosen = {"first": 0, "last": model.cfg.n_layers - 1}.get(layers, layer)
        pattern = cached(model, tokens)[f"blocks.{chosen}.attn.hook_pattern"][0]
        patterns.append(pattern.mT if turned else pattern)
    pattern = torch.stack(patterns)
    at = {
        "second": lambda p: p[..., 1],
        "last": lambda p: p[..., -1],
        "any": lambda p: p.mean(-1),
        "rest": lambda p: p[..., 1:].sum(-1),
        "itself": lambda p: p.diagonal(dim1=-2, dim2=-1),
        "before": lambda p: torch.nn.functional.pad(p.diagonal(-1, -2, -1), (1, 0)),
    }.get(place, lambda p: p[..., 0])(pattern)
    at = (
        at
        if rows == "all"
        else at[
            ...,
            {"last": slice(-1, None), "third": slice(2, None), "early": slice(1, -1)}.get(
                rows, slice(1, None)
            ),
        ]
    )
    out = {
        "won": (pattern.argmax(-1) == 0)[..., 1:].double().mean(-1),
        "median": at.median(-1).values,
        "min": at.amin(-1),
        "sum": at.sum(-1),
        "max": at.amax(-1),
        "rows": at,
        "all": at.sum(-1) / tokens.shape[1],
        "root": at.square().mean(-1).sqrt(),
        "log": at.log().mean(-1).exp(),
    }.get(reduce, at.mean(-1))
    return out.mT if order else out


EXERCISE = Exercise(
    about="2.2 how much goes to the first place | easy | 15 minutes | 02-qk-and-ov-circuits#where-a-head-looks-the-qk-circuit",
    spec=spec, body=body, axes="pos", smallest=5, trials=4,
    inputs={"model": lambda size, generator, case: shipped(("two-layer", "two-layer-mlp", "one-layer", "two-layer")[size["step"] % 4]), "tokens": random_row(0, 2048)},
    names=("layer", "head"),
    choices="""
    place = second / itself / before | another share than that of the first place is measured | Places are counted from 0. Which column is the first place?
    place = last | it is what goes to the last place | Places are counted from 0. Which column is the first place?
    place = any | it is an average over sources | One source is asked for, the first.
    place = rest | it is what goes to all places but the first | That is the rest. What goes to the first?
    layers = first / last | one layer stands for all | `blocks.0`, `blocks.1`: which layer's name does each row of the result ask?
    rows = all | the first place counts as a destination, too | It has nothing else to look at: leave its row out.
    rows = third / early | one destination too many is left out, the second or the last | Only the first has no choice.
    rows = last | only the last destination is counted | Take the mean over all destinations but the first.
    reduce = sum | shares are added up, not averaged | A share of one row is at most 1, and so is a mean of shares.
    reduce = won | destinations are counted whose largest share it is | How much goes there is asked, not how often it is the most.
    reduce = median / min | it is the median or the smallest share, not the mean | Add up and divide.
    reduce = max | it is the largest share, not the mean | One destination that looks there is not yet a habit.
    reduce = all | it is divided by the number of all places | How many destinations are there without the first?
    reduce = root / log | it is another mean than the plain one | Add up and divide.
    reduce = rows | there is still one number for each destination | What is asked for is their mean.
    turned = True | destinations and sources are exchanged | `hook_pattern` is [row, head, destination, source].
    """,
)  # fmt: skip
check_first_share = checks(EXERCISE, __doc__)
