"""Exercise 1.7. `answer(model, tokens, layer, head)` returns the logits when one head writes its average everywhere.

**Shapes**: `tokens [1, pos]`; at every position the head's `hook_z` is replaced by its mean over the positions of
the row; the result is `[1, pos, vocab]`.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import HOOK, hooked, random_row, shipped


def spec(model, tokens: Tensor, layer: int, head: int) -> Tensor:
    model.reset_hooks()
    pos = tokens.shape[1]
    x = (model.W_E[tokens[0]] + model.W_pos[:pos]).detach().double()
    for i in range(model.cfg.n_layers):
        written = torch.zeros_like(x) + model.b_O[i].double()
        for h in range(model.cfg.n_heads):
            q, k, v = (x @ W[i, h].double() + b[i, h].double() for W, b in (
                (model.W_Q, model.b_Q), (model.W_K, model.b_K), (model.W_V, model.b_V)))  # fmt: skip
            z = torch.zeros_like(q)
            for dst in range(pos):
                z[dst] = (k[: dst + 1] @ q[dst] / q.shape[1] ** 0.5).softmax(0) @ v[: dst + 1]
            if (i, h) == (layer, head):
                z = sum(z) / pos + torch.zeros_like(z)
            written += z @ model.W_O[i, h].double()
        x = x + written
    return (x @ model.W_U.double() + model.b_U.double())[None]


def body(
    model,
    tokens,
    layer,
    head,
    *,
    fill="mean",
    over="positions",
    heads="one",
    place="asked",
    site="z",
    at="all",
):
    def new(z, name):
        mean = {
            "numbers": lambda: z.mean(3, keepdim=True), "heads": lambda: z.mean(2, keepdim=True), "later": lambda: z[:, 1:].mean(1, keepdim=True),
            "both": lambda: z.mean((1, 3), keepdim=True), "past": lambda: z.cumsum(1) / torch.arange(1, z.shape[1] + 1)[:, None, None],
            "all": lambda: z.mean((1, 2), keepdim=True), "end": lambda: z[:, -1:], "start": lambda: z[:, :1], "sum": lambda: z.sum(1, keepdim=True),
        }.get(over, lambda: z.mean(1, keepdim=True))().expand_as(z)  # fmt: skip
        return {"zero": 0 * z, "minus": z - mean, "added": z + mean}.get(fill, mean)

    if fill == "nothing":
        return model(tokens)
    return hooked(model, tokens, layer, head, new, heads=heads, place=place, site=site, at=at)


EXERCISE = Exercise(
    about="1.7 a head at its average | medium | 20 minutes | 01-residual-stream#in-bulk-and-what-the-sum-does-not-see",
    spec=spec, body=body, axes="pos", smallest=4, trials=4,
    inputs={
        "model": lambda size, generator, case: shipped("two-layer"),
        "layer": lambda size, generator, case: size["step"] % 2, "head": lambda size, generator, case: (1, 3, 0, 2)[size["step"] % 4],
        "tokens": random_row(0, 2048),
    },
    names=("row", "position", "vocab"),
    choices="""
    fill = zero | the head is replaced by zero | Zero takes away the head's constant, too. What does it write on average?
    fill = minus | the average is taken out instead of kept | What remains should no longer depend on the position. Yours is what does.
    fill = added | the average is added to what was there | It comes in the place of what was there.
    fill = nothing | the model runs as it is | Does the hook return the new tensor, and does the run get the hook? See `fwd_hooks`.
    over = numbers | the average runs over d_head | Which axis are the positions? `hook_z` is [row, position, head, d_head].
    over = both / all | the average runs over more than the positions | Each of the d_head numbers of this head has an average of its own, over the positions of the row.
    over = heads | the average runs over the heads | It is the head's own average, over the positions of the row.
    over = past | the average runs over the positions so far | One average for the row: all of its positions, later ones included.
    over = later | the first position is left out of the average | All positions of the row belong to it.
    over = end / start | the head is held at its first or last value | An average takes all positions.
    over = sum | positions are added up, not averaged | How many are there?
    """
    + HOOK,
)  # fmt: skip
check_average_out = checks(EXERCISE, __doc__)
