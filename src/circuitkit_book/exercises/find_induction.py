"""Exercise 3.2. `answer(model, tokens, period, start)` returns each head's attention to where a span went on before.

**Shapes**: `tokens [1, pos]`, a span of `period` tokens at positions `start` and on, and again directly after; the
result is `[layer, head]`: the mean, over the second pass, of the attention to the token after the copy one period back,
whatever else the span holds twice.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import cached, shipped


def spec(model, tokens: Tensor, period: int, start: int) -> Tensor:
    model.reset_hooks()
    _, cache = model.run_with_cache(tokens)
    out = torch.zeros(model.cfg.n_layers, model.cfg.n_heads, dtype=torch.float64)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            for dst in range(start + period, start + 2 * period):
                source = dst - period + 1  # the copy of dst stands at dst - period
                out[layer, head] += (
                    float(cache[f"blocks.{layer}.attn.hook_pattern"][0, head, dst, source]) / period
                )
    return out


def body(
    model,
    tokens,
    period,
    start,
    *,
    away=1,
    span="second",
    opening=True,
    reduce="mean",
    turned=False,
):
    cache = cached(model, tokens)
    begin = start if opening else 0
    low, high = {
        "first": (0, 1),
        "both": (0, 2),
    }.get(span, (1, 2))
    dst = torch.arange(begin + low * period, begin + high * period)
    dst = {
        "late": dst[1:],
        "early": dst[:-1],
        "wide": torch.cat([dst[:1] - 1, dst]),
        "last": dst[-1:],
        "begin": dst[:1],
    }.get(span, dst)
    src = (
        {
            "itself": dst,
            "before": dst - 1,
            "first": 0 * dst,
            "clamped": (dst - period - 1).clamp_min(0),
            "far": dst - 2 * period + 1,
            "end": (dst - period + 1).clamp_min(0),
        }[away]
        if isinstance(away, str)
        else dst - period + away
    )
    dst, src = dst[src >= 0], src[src >= 0]
    found = []
    for layer in range(model.cfg.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0]
        pattern = pattern.mT if turned else pattern
        shares = pattern[:, dst, src]
        won = (pattern[:, dst].argmax(-1) == src).double().mean(1)
        found.append(
            {
                "won": won,
                "all": shares.sum(1) / pattern.shape[-1],
                "one less": shares.sum(1) / (period - 1),
                "sum": shares.sum(1),
                "max": shares.amax(1),
                "block": pattern[:, dst][..., src].mean((1, 2)),
            }.get(reduce, shares.mean(1))
        )
    return torch.stack(found)


def _tokens(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    span = torch.randint(1, 2048, (case["period"],), generator=generator)
    if size["step"] > 1:  # a token twice, and the opening token again
        span[3], span[2] = span[1], 0
    return torch.cat([torch.zeros(case["start"], dtype=torch.long), span, span])[None]


EXERCISE = Exercise(
    about="3.2 find the induction head | medium | 20 minutes | 03-induction-heads#find-the-circuit-in-a-trained-model",
    spec=spec, body=body, axes="period", smallest=5, trials=4,
    inputs={
        "model": lambda size, generator, case: shipped(("two-layer", "two-layer-mlp", "one-layer", "two-layer")[size["step"] % 4]), "period": lambda size, generator, case: size["period"] + 2 * size["step"],
        "start": lambda size, generator, case: 1 - size["step"] % 2, "tokens": _tokens,
    },
    names=("layer", "head"),
    choices="""
    away = 0 | the earlier copy itself is counted, not the token after it | An induction head looks at what came *next* the last time.
    away = -1 / clamped | the token before the earlier copy is counted | An induction head looks at what came *next* the last time.
    away = 2 | the place is one too late | The copy stands `period` places back. Where is the token after it?
    away = before | the token before the destination is counted | That is the other head of the circuit. Where did the span go on the last time?
    away = itself / first | the destination itself or the first place is counted | Where did the span go on the last time?
    span = first | the first pass is counted instead of the second | Which destinations have seen their token before?
    span = both | the first pass is counted, too | Nothing has repeated yet in the first pass.
    span = wide | the last destination of the first pass is counted, too | The second pass begins at `start + period`.
    span = last / begin | only one destination of the second pass is counted | Take the mean over the whole second pass.
    span = late | the first destination of the second pass is left out | The second pass begins at `start + period`, and its first token has a copy, too.
    span = early | the last destination of the second pass is left out | The second pass ends before `start + 2 * period`.
    opening = False | the opening token is forgotten | The span begins at position `start`, not at 0.
    reduce = sum | shares are added up, not averaged | A perfect induction head scores 1.
    reduce = all / one less | shares are divided by another number than that of the second pass's destinations | How many are there? A perfect induction head scores 1.
    reduce = won | destinations are counted whose largest share it is | How much goes there is asked, not how often it is the most.
    reduce = block | every destination is paired with every place that some destination should look at | Each destination has one such place: index with both lists at once, or take a diagonal.
    reduce = max | it is the largest share, not the mean | A perfect induction head looks there every time.
    turned = True | destinations and sources are exchanged | `hook_pattern` is [row, head, destination, source].
    """,
)  # fmt: skip
check_find_induction = checks(EXERCISE, __doc__)
