"""Exercise 4.4. `answer(x, W_in, b_in, W_out, b_out, terms)` returns the MLP as the sum of its neuron-heads.

**Shapes**: `x [pos, d_model]`, `W_in [d_model, d_mlp]`, `b_in [d_mlp]`, `W_out [d_mlp, d_model]`, `b_out [d_model]`,
`terms [k, 4]`; the result is `[pos, d_model]`. A row $(b, c, a, d)$ of `terms` is one head of every neuron: reading
$y$, it looks at itself with weight $\\sigma(by + c)$ and finds the value $ay + d$.
"""

import math

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks, normal


def spec(
    x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor, terms: Tensor
) -> Tensor:
    out = torch.zeros(x.shape[0], W_out.shape[1], dtype=torch.float64)
    for pos in range(x.shape[0]):
        out[pos] = b_out
        for n in range(W_in.shape[1]):
            reads = float(torch.dot(x[pos], W_in[:, n]) + b_in[n])
            for b, c, a, d in terms.tolist():
                attention = 1 / (1 + math.exp(-(b * reads + c)))
                out[pos] += attention * (a * reads + d) * W_out[n]
    return out


def body(
    x, W_in, b_in, W_out, b_out, terms, *, query=1.0, value=1.0, c_is=1.0, d_is="inside", b_is="b", a_is="a", times="once",
    order="bcad", add="sum", which="all", shape="sigmoid", turned="", chained=False,
):  # fmt: skip
    k, d_mlp = len(terms), W_in.shape[1]
    used = {
        "all": terms, "but last": terms[:-1], "first": terms[:1], "last": terms[-1:], "silu": terms.new_tensor([[1.0, 0.0, 1.0, 0.0]]),
        "but first": terms[1:], "gelu": terms[:1],
    }[which]  # fmt: skip
    b, c, a, d = (used[:, order.index(name)] for name in "bcad")
    b, a = torch.ones_like(b) if b_is == "1" else b, torch.ones_like(a) if a_is == "1" else a
    y, z = (x @ W_in + query * b_in)[..., None], (x @ W_in + value * b_in)[..., None]
    if turned in ("bias after", "mean bias"):
        y = z = (x @ W_in + (b_in.mean() if turned == "mean bias" else 0.0))[..., None]
        c, d = (c + b_in[:, None], d + b_in[:, None]) if turned == "bias after" else (c, d)
    scores = {"bc": b * (y + c)}.get(b_is, b * y + c_is * c)
    weight = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "exp": torch.exp, "hard": lambda s: (s > 0).double(), "softmax": lambda s: s.softmax(-1), "none": lambda s: s,
              "neurons": lambda s: s.softmax(-2), "minus": lambda s: (-s).sigmoid()}[shape](scores)  # fmt: skip
    values = {"scores": scores * a}.get(a_is, z * a)
    inside = {"inside": d, "none": 0 * d, "minus": -d}.get(d_is, 0 * d)
    heads = weight * (a * (z + d) if d_is == "factored" else values + inside) + (
        d if d_is == "outside" else 0 * d
    )
    if which == "gelu":
        heads = torch.nn.functional.gelu(z)
    if chained:
        for b_, c_, a_, d_ in used.tolist():
            y = (b_ * y + c_).sigmoid() * (a_ * y + d_)
        heads = y
    if add == "values":
        heads = weight.sum(-1, keepdim=True) * (values + inside).sum(-1, keepdim=True)
    gathered = {"mean": heads.mean(-1), "product": heads.prod(-1)}.get(add, heads.sum(-1))
    counts = {"once": 1, "none": 0, "terms": k, "heads": k * d_mlp, "neurons": d_mlp}
    return gathered @ W_out + counts[times] * b_out


EXERCISE = Exercise(
    about="4.4 an MLP as a sum of heads | medium | 15 minutes | 04-mlps-as-attention#activations-that-are-not-silu",
    spec=spec, body=body, axes="pos, d_model, d_mlp, k",
    inputs={
        "x": "pos d_model", "W_in": "d_model d_mlp", "b_in": "d_mlp", "W_out": "d_mlp d_model", "b_out": "d_model",
        "terms": lambda size, generator, case: normal(generator, size["k"], 4),
    },
    names=("position", "coordinate"),
    choices="""
    times = terms | b_out is added once for each term | The output bias belongs to the layer. However many heads there are, it is added once.
    times = heads / neurons | b_out is added by every neuron or head | The output bias belongs to the layer, not to its neurons. It is added once.
    times = none | b_out is left out | One bias of the MLP is missing: the one that no head adds.
    query = 0.0 | the queries leave b_in out | Queries and values read the same number: x W_in + b_in.
    value = 0.0 | the values leave b_in out | Queries and values read the same number: x W_in + b_in.
    chained = True | the terms are applied one after another | Each head reads y itself, and their outputs add up.
    c_is = 0.0 | the offset c is left out | A score is b y + c. Without its offsets a term is a scaled SiLU, and fitted sums need more than that.
    c_is = -1.0 | the offset c is subtracted | A score is b y + c.
    d_is = none | the offset d is left out | A value is a y + d. Without its offsets a term is a scaled SiLU, and fitted sums need more than that.
    d_is = outside | d is added outside of the attention | The value is ay + d, and the head's weight multiplies all of it. Are there brackets around the value?
    d_is = factored | the value is taken as a (y + d) | a multiplies y alone: a y + d.
    d_is = minus | the offset d is subtracted | A value is a y + d.
    b_is = 1 | the slope b is left out | A score is b y + c.
    b_is = bc | the score is taken as b (y + c) | b multiplies y alone: b y + c.
    a_is = 1 | the slope a is left out | A value is a y + d.
    a_is = scores | the value is made from the score | Score and value each read y: the value is a y + d.
    order = adbc / abcd / bacd / bcda / bdac / cbad / acbd / cbda / cdab / dbac / abdc / badc / dcba / bdca / cadb / acdb / adcb / cdba / dacb / dbca / dcab / cabd | the columns of terms are read in another order | The columns are not in the order of the alphabet: first b and c of the score, then a and d of the value.
    which = silu / gelu | the activation is SiLU or GELU, whatever the terms are | The rows of terms say which heads there are.
    which = first / last | only one term is used, the first or the last | Every row of terms is a head of every neuron, and heads add up. Is something overwritten in the loop?
    which = but first / but last | a term is left out, the first or the last | Rows are counted from 0, and each is a head.
    add = mean | the terms are averaged | Heads add up. Nothing divides them by their number.
    add = product | the terms are multiplied | Heads add up.
    add = values | weights and values are summed before they are multiplied | Each head has a weight and a value of its own: multiply first, then add up.
    shape = softmax / neurons | a softmax runs over the terms or the neurons | Each head shares its attention between itself and the bias token: a sigmoid of its own score.
    turned = bias after | b_in is added outside of the slopes | The slopes multiply y, and b_in is part of y.
    turned = mean bias | all neurons get the mean of b_in | Neuron n has entry n of b_in.
    shape = tanh / relu / silu / gelu / exp / hard | the weight is another function of the score than a sigmoid | A softmax over two places is a sigmoid.
    shape = none | the sigmoid is missing | The score is not yet a weight.
    shape = minus | the weight is that of the bias token | The head finds its value at the token itself.
    """,
)  # fmt: skip
check_mlp_as_heads = checks(EXERCISE, __doc__)
