"""Exercise 3.3, patch one head."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check
from circuitkit.exercises._shared import random_row, shipped


def spec(model, clean: Tensor, corrupt: Tensor, layer: int, head: int) -> Tensor:
    model.reset_hooks()
    _, whole = model.run_with_cache(clean)
    _, other = model.run_with_cache(corrupt)
    stream = other[f"blocks.{layer}.hook_resid_post"][0].detach().double()
    for pos in range(clean.shape[1]):
        change = whole[f"blocks.{layer}.attn.hook_z"][0, pos, head] - other[f"blocks.{layer}.attn.hook_z"][0, pos, head]
        stream[pos] += change.double() @ model.W_O[layer, head].double()
    for later in range(layer + 1, model.cfg.n_layers):
        end = stream[-1] + model.b_O[later].double()
        for h in range(model.cfg.n_heads):
            q, k, v = (stream @ W[later, h].double() + b[later, h].double() for W, b in (
                (model.W_Q, model.b_Q), (model.W_K, model.b_K), (model.W_V, model.b_V)))  # fmt: skip
            weights = (k @ q[-1] / q.shape[1] ** 0.5).softmax(0)  # of the last position, the only one that is read
            end = end + weights @ v @ model.W_O[later, h].double()
        stream = torch.cat([stream[:-1], end[None]])
    return stream[-1] @ model.W_U.double() + model.b_U.double()


def body(model, clean, corrupt, layer, head, *, heads="one", rows="right", value="whole", place="asked", gives="last"):
    base, new = (corrupt, clean) if rows == "right" else (clean, corrupt) if rows == "exchanged" else (corrupt, corrupt)
    at = layer if place == "asked" else 1 - layer
    source = model.run_with_cache(new)[1][f"blocks.{at}.attn.hook_z"]
    which = [head] if heads == "one" else range(model.cfg.n_heads) if heads == "all" else [(head + 1) % model.cfg.n_heads]

    def hook(z, hook):
        z, own = z.clone(), z
        for h in which:
            put = {"zero": 0.0 * own, "half": (own + source) / 2, "sum": own + source}.get(value, source)
            if value == "last":
                z[:, -1, h] = source[:, -1, h]
            else:
                z[:, :, h] = put[:, :, h]
        return z

    logits = model.run_with_hooks(base, fwd_hooks=[(f"blocks.{at}.attn.hook_z", hook)])[0]
    return {"all": logits, "change": logits[-1] - model(base)[0, -1], "chances": logits[-1].softmax(-1)}.get(gives, logits[-1])


EXERCISE = Exercise(
    about="3.3 patch one head | medium | 25 minutes | 03-induction-heads#take-it-out-and-measure",
    spec=spec, body=body, axes="pos", smallest=5, trials=4,
    inputs={
        "model": lambda size, generator, case: shipped("two-layer"),
        "layer": lambda size, generator, case: size["step"] % 2, "head": lambda size, generator, case: (1, 3, 2, 2)[size["step"] % 4],
        "clean": random_row(0, 2048), "corrupt": random_row(0, 2048),
    },
    names=("vocab",),
    choices="""
    heads
        all | all heads of the layer are patched | `hook_z` is [row, position, head, d_head]: which index picks one head?
        next | the head after the one asked for is patched | Heads are counted from 0.
    rows
        exchanged | the two rows are exchanged | The run that counts reads the corrupt row; what is put into it comes from the clean one.
        corrupt | what is put in comes from the corrupt run itself | Which row has to be run for the cache?
    value
        zero | the head is set to zero instead of to its clean value | That is an ablation. A patch puts in what the head does on the other row.
        half | the head is set to the mean of both runs | Put in the clean value, all of it.
        sum | the clean value is added to the corrupt one | The clean value comes in the place of the other.
        last | only the last position is patched | Other positions feed later layers, too. Patch all of them.
    place = other layer | the hook sits in the other layer | Layers are counted from 0, as in `blocks.0`.
    gives
        all | the logits of all positions are returned | Return those of the last position, [vocab].
        change | the change of the logits is returned | Return the logits themselves.
        chances | probabilities are returned | Return logits, without a softmax.
    """,
)  # fmt: skip


def check_patch(answer) -> Result:
    """Exercise 3.3. `answer(model, clean, corrupt, layer, head)` runs the corrupt row with one head's clean output put in.

    **Shapes**: `clean` and `corrupt [1, pos]`; at all positions the head's `hook_z` is what it is on the clean row; the
    result is `[vocab]`, the logits at the last position.
    """
    return check(EXERCISE, answer)
