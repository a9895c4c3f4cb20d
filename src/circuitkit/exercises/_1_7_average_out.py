"""Exercise 1.7, a head at its average: the first hook."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check
from circuitkit.exercises._shared import random_row, shipped


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


def body(model, tokens, layer, head, *, heads="one", fill="mean", over="positions", place="asked"):
    at = {"asked": layer, "other layer": 1 - layer}[place]
    which = {"one": [head], "all": list(range(model.cfg.n_heads)), "others": [h for h in range(model.cfg.n_heads) if h != head]}[heads]

    def hook(z, hook):
        z = z.clone()
        own = z[:, :, which]
        axis = {"positions": 1, "numbers": 3}.get(over, 1)
        new = own.mean(axis, keepdim=True).expand_as(own)
        if fill == "last":
            new = own[:, -1:].expand_as(own)
        elif fill in ("zero", "minus"):
            new = torch.zeros_like(own) if fill == "zero" else own - new
        if over == "heads":
            new = z.mean(2, keepdim=True).expand_as(z)[:, :, which]
        z[:, :, which] = new
        return z

    if fill == "nothing":
        return model(tokens)
    return model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{at}.attn.hook_z", hook)])


EXERCISE = Exercise(
    about="1.7 a head at its average | medium | 20 minutes | 01-residual-stream#who-deletes",
    spec=spec, body=body, axes="pos", smallest=4, trials=4,
    inputs={
        "model": lambda size, generator, case: shipped("two-layer"),
        "layer": lambda size, generator, case: size["step"] % 2, "head": lambda size, generator, case: (3, 1, 2, 0)[size["step"] % 4],
        "tokens": random_row(0, 2048),
    },
    names=("row", "position", "vocab"),
    choices="""
    heads
        all | all heads of the layer are replaced | `hook_z` is [row, position, head, d_head]: which index picks one head?
        others | every head but the one asked for is replaced | Which of them was to lose its text?
    fill
        zero | the head is replaced by zero | Zero takes away the head's constant, too. What does it write on average?
        minus | the average is taken out instead of kept | What remains should no longer depend on the position. Yours is what does.
        last | the head is held at its last position's value | An average takes all positions.
        nothing | the model runs as it is | Does the hook return the new tensor, and does the run get the hook? See `fwd_hooks`.
    over
        numbers | the average runs over d_head | Which axis are the positions? `hook_z` is [row, position, head, d_head].
        heads | the average runs over the heads | It is the head's own average, over the positions of the row.
    place = other layer | the hook sits in the other layer | Layers are counted from 0, as in `blocks.0`.
    """,
)  # fmt: skip


def check_average_out(answer) -> Result:
    """Exercise 1.7. `answer(model, tokens, layer, head)` returns the logits when one head writes its average everywhere.

    **Shapes**: `tokens [1, pos]`; at every position the head's `hook_z` is replaced by its mean over the positions of
    the row; the result is `[1, pos, vocab]`.
    """
    return check(EXERCISE, answer)
