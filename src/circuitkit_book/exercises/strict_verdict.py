"""Exercise 5.2. `answer(written, residual, completion, has_source)` returns two rates for each head, `[head, 2]`.

**Shapes**: `written [row, head, vocab]` is what each head adds to the logits, `residual [row, vocab]` the rest of
them, `completion` a token, `has_source [row]` true or false. **Rates**: the share of rows with a source on which
the completion is the top logit with *every* set of other heads removed; and the share of rows without a source on
which it is the top logit with *none*.
"""

from itertools import combinations

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks, normal


def spec(written: Tensor, residual: Tensor, completion: int, has_source: Tensor) -> Tensor:
    n_heads, rates = written.shape[1], []
    for head in range(n_heads):
        others = [k for k in range(n_heads) if k != head]
        carried, silent = [], []
        for row in range(len(written)):
            outcomes = []
            for count in range(n_heads):
                for kept in combinations(others, count):
                    logits = residual[row] + sum(written[row, k] for k in (head, *kept))
                    outcomes.append(int(logits.argmax()) == completion)
            carried += [all(outcomes)] if has_source[row] else []
            silent += [] if has_source[row] else [not any(outcomes)]
        rates.append([sum(carried) / len(carried), sum(silent) / len(silent)])
    return torch.tensor(rates, dtype=torch.float64)


def body(
    written, residual, completion, has_source, *, rest=1.0, sets="all", head_in=True, first="all", second="not any", rows_1="with",
    rows_2="without", hit="top", out="both",
):  # fmt: skip
    n_heads, rates = written.shape[1], []
    for head in range(n_heads):
        others = [k for k in range(n_heads) if k != head]
        own = [head] * int(head_in)
        kept = [(*own, *some) for count in range(n_heads) for some in combinations(others, count)]
        kept = {
            "whole": kept[-1:], "alone": kept[:1], "not alone": kept[1:], "not whole": kept[:-1],
            "one out": [tuple(k for k in (*own, *others) if k != lost) for lost in others],
            "one in": [(*own, one) for one in others], "ends": [kept[0], kept[-1]],
            "one out or none": kept[-n_heads:],
            "one in or none": kept[:n_heads], "any": [some for count in range(n_heads + 1) for some in combinations(range(n_heads), count)],
        }.get(sets, kept)  # fmt: skip
        logits = torch.stack(
            [
                written[:, list(some)].sum(1) + (len(some) if rest == 2.0 else rest) * residual
                for some in kept
            ]
        )
        if hit == "positive":
            top = logits[..., completion] > 0
        elif hit == "half":
            top = logits.softmax(-1)[..., completion] > 0.5
        else:
            seen = written[:, head].expand_as(logits) if hit == "heads" else logits
            top = seen.argmax(-1) == completion
        always, ever, share = top.all(0).double(), top.any(0).double(), top.double().mean(0)
        kinds = {
            "all": always, "any": ever, "mean": share, "not any": 1 - ever, "not all": 1 - always,
            "not mean": 1 - share, "one": 1 + 0 * ever, "whole": 1 - top[-1].double(), "alone": 1 - top[0].double(),
        }  # fmt: skip
        rows = {"with": has_source, "without": ~has_source, "every": has_source | True}
        one, two = kinds[first], kinds[second]
        carried, silent = one[rows[rows_1]].mean(), two[rows[rows_2]].mean()
        if out == "of all rows":
            carried, silent = (one * rows[rows_1]).mean(), (two * rows[rows_2]).mean()
        elif out == "sets":
            carried, silent = (
                top[:, has_source].all(1).double().mean(),
                1 - top[:, ~has_source].any(1).double().mean(),
            )
        elif out == "worst":
            carried, silent = (
                top[:, has_source].double().mean(1).min(),
                1 - top[:, ~has_source].double().mean(1).max(),
            )
        rates.append(torch.stack([silent, carried] if out == "exchanged" else [carried, silent]))
    found = torch.stack(rates)
    return {"first": found[:, 0], "second": found[:, 1], "turned": found.mT}.get(out, found)


def _draw(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    """Heads that mostly help where there is a source."""
    written = 0.7 * normal(generator, len(case["has_source"]), size["head"], size["vocab"])
    written[case["has_source"], :, case["completion"]] += 1.2
    return written


def _rest(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    residual = 0.7 * normal(generator, len(case["written"]), size["vocab"])
    residual[~case["has_source"], case["completion"]] -= 1.2
    return residual


EXERCISE = Exercise(
    about="5.2 a verdict that can fail | hard | 30 minutes | 05-attention-superposition#a-verdict-that-can-fail",
    spec=spec, body=body, axes="head < vocab",
    inputs={
        "has_source": lambda size, generator, case: torch.randperm(8 + 2 * size["step"], generator=generator) > 3 + size["step"] // 2,
        "completion": "< vocab", "written": _draw, "residual": _rest,
    },
    names=("head", "rate"),
    choices="""
    rest = 2.0 | the residual stream is added once for each kept head | The logits are one stream: it comes in once.
    rest = 0.0 | the residual stream is left out | The published check judges head outputs alone. The model's logits hold the residual stream, too.
    sets = whole | no other head is ever removed | This judges the model as a whole, and every head gets the same rates. The question is about one head.
    sets = alone | only the set without any other head is tried | Alone is one of many sets. Two other heads may spoil together what neither spoils by itself.
    sets = not alone | the set without any other head is not tried | All others removed is a set, too. Where does your range begin?
    sets = not whole | the set of all heads is not tried | None removed is a set, too. Where does your range end?
    sets = one out / one out or none | only one other head is removed at a time | Leave-one-out misses what two heads do together: any set of the others may be gone.
    sets = one in / one in or none | only one other head is kept at a time | Any set of the others may be there, none and all included.
    sets = any | sets without the head that is judged are tried, too | Every set has to hold the head that is judged; only the others come and go.
    sets = ends | only two sets are tried: all others, and none of them | Any set of the others may be gone, not all or nothing.
    head_in = False | the head itself is removed, too | Every set has to hold the head that is judged; only the others come and go.
    first = mean | the sets are averaged in the first rate | The completion has to stay whatever set is removed. One failing set is enough to fail a row.
    first = any | the first rate asks for some set, not for every set | Lucky help from other heads would count. The completion has to stay whatever is removed.
    first = not any | the first rate counts where the completion is never predicted | Which rows pass: those where the completion stays whatever is removed.
    second = not mean | the sets are averaged in the second rate | One set that predicts is enough to make a row loud.
    second = whole / alone | one set alone is tried in the second rate | A row is quiet when no set predicts.
    second = not all | a row counts as silent when some set does not predict | Silent is the opposite of *ever* predicted, not of *always* predicted: turn 'for every set' around with care.
    second = any / all / mean | the second rate says how often the head fires | Both rates should be 1 for a perfect head. What is the share of rows on which it keeps quiet, with every set?
    second = one | there is no negative control | The second rate is 1 whatever the rows are: so a head that always fires would pass.
    rows_1 = every | the first rate is taken over all rows | What a head should do depends on the source: predict with it. `has_source` says which rows have one.
    rows_1 = without | the first rate is taken over the rows without a source | Where there is no source there is nothing to predict.
    rows_2 = every | the second rate is taken over all rows | Where there is a source the head should not be quiet. Which rows are the control?
    rows_2 = with | the second rate is taken over the rows with a source | Where there is a source the head should not be quiet. Which rows are the control?
    hit = positive | a completion counts as predicted when its logit is positive | Predicted means: above all other tokens. Zero means nothing for a logit.
    hit = half | a completion counts as predicted when its probability is above one half | Predicted means: above all other tokens.
    hit = heads | only what the head itself writes is looked at | The logits are a sum: the residual stream and the kept heads belong to it.
    out = of all rows | both rates are divided by the number of all rows | The first rate is a share of the rows with a source, the second of the rows without.
    out = sets | sets are counted instead of rows | For each row: does every set complete it? Then take the share of rows.
    out = worst | the worst set's rate is taken, over all rows | Another set may fail on each row. First ask for each row: do all sets pass?
    out = exchanged | the two rates are exchanged | First the rows with a source, then those without.
    """,
)  # fmt: skip
check_strict_verdict = checks(EXERCISE, __doc__)
