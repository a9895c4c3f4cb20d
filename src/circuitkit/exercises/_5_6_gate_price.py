"""Exercise 5.6, the price of open gates."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(gates: Tensor, power: float) -> Tensor:
    total, pairs = 0.0, 0
    for dst in range(gates.shape[1]):
        for src in range(dst + 1):
            total += sum(float(gate) ** power for gate in gates[:, dst, src]) ** (1 / power)
            pairs += 1
    return torch.tensor(total / pairs, dtype=torch.float64)


def body(gates, power, *, power_at="right", root="each", heads="sum", pairs="causal", reduce="mean"):
    p = {"right": power, "none": 1.0, "inverse": 1 / power, "square": 2.0}[power_at]
    powers = gates**p
    price = {
        "sum": lambda: powers.sum(0), "mean": lambda: powers.mean(0), "max": lambda: powers.amax(0),
        "apart": lambda: powers,
    }[heads]()  # fmt: skip
    undone = {
        "each": lambda v: v ** (1 / p), "none": lambda v: v, "after": lambda v: v, "same": lambda v: v**p,
        "sqrt": torch.sqrt,
    }[root]  # fmt: skip
    price = undone(price)
    pos = gates.shape[-1]
    ones = torch.ones(pos, pos)
    chosen = {
        "causal": ones.tril(), "all": ones, "zeros": ones, "past": ones.triu(), "no diagonal": ones.tril(-1),
        "ahead": ones.tril(1),
    }  # fmt: skip
    where = chosen[pairs].bool() if pairs in chosen else ones.bool()
    price = price * ones.tril() if pairs == "zeros" else price
    each = price[..., where]
    if heads == "apart":
        each = undone(powers)[..., where].sum(0)
    found = {
        "mean": lambda: each.mean(), "sum": lambda: each.sum(), "positions": lambda: each.sum() / pos,
        "rows": lambda: ((price * chosen["causal"]).sum(-1) / torch.arange(1, pos + 1)).mean(),
        "max": lambda: each.max(), "each": lambda: each, "heads too": lambda: each.mean() / len(gates),
    }[reduce]()  # fmt: skip
    return found ** (1 / p) if root == "after" else found


EXERCISE = Exercise(
    about="5.6 the price of open gates | easy | 10 minutes | 05-attention-superposition#the-gated-block-and-its-loophole",
    spec=spec, body=body, axes="head, pos",
    inputs={
        "gates": lambda size, generator, case: normal(generator, size["head"], size["pos"], size["pos"]).clamp(0, 1),
        "power": lambda size, generator, case: (0.6, 0.5, 0.8)[size["step"] % 3],
    },
    choices="""
    pairs
        all | the mean runs over all pairs | Half of these pairs lie in the future, where nothing can be read. The post's code counts them, too, and pays for gates that do nothing.
        zeros | the future counts as zeros in the mean | The future is gone from the sum, but the mean still divides by its pairs.
        no diagonal | a position's look at itself is left out | A position may look at itself: the diagonal is causal.
        past | the past is left out instead of the future | Rows are destinations. Which triangle is the past of a row, `tril` or `triu`?
        ahead | one place of the future is counted | Which diagonal is the position itself?
    reduce
        sum | the pairs are summed, not averaged | A longer prompt would cost more for the same gates.
        positions | the sum is divided by the number of positions | The mean is over pairs.
        rows | each destination is averaged by itself first | The mean is over all pairs alike, so later rows count more.
        max | the dearest pair is returned | Asked is the mean over pairs.
        each | the price of each pair is returned | Asked is one number: their mean.
        heads too | the mean runs over heads, too | Heads are summed, pairs averaged.
    root
        none | the power 1/p is left out | A single gate at 0.5 should cost 0.5, whatever p is. What has to undo the power after the sum?
        after | the root is taken of the mean | Each pair has its own price. Root first, mean afterwards.
        same | the power p is taken twice | A single gate at 0.5 should cost 0.5, whatever p is. What undoes a power p?
        sqrt | a square root is taken, whatever p is | What undoes a power p?
    heads
        mean | the heads are averaged, not summed | One open gate should cost the same however many closed ones stand beside it.
        max | only the widest gate of a pair pays | Heads are summed.
    power_at
        none | the gates are added, without a power or head by head | Then one gate at 1 costs as much as two at 0.5, and nothing speaks for one head a pair.
        inverse | the powers p and 1/p are exchanged | First each gate to the power p, below 1; after the sum the power 1/p.
        square | the power is 2, whatever p is | With a power above 1 sharing is cheap.
    """,
)  # fmt: skip


def check_gate_price(answer) -> Result:
    """Exercise 5.6. `answer(gates, power)` returns the mean over causal pairs of $(\\sum_h g_h^p)^{1/p}$.

    **Shapes**: `gates [head, destination, source]`, between 0 and 1, future pairs included; `power` is a number below
    1; the result is one number.
    """
    return check(EXERCISE, answer)
