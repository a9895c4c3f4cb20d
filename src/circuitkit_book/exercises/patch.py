"""Exercise 3.3. `answer(model, clean, corrupt, layer, head)` runs the corrupt row with one head's clean output put in.

**Shapes**: `clean` and `corrupt [1, pos]`; at all positions the head's `hook_z` is what it is on the clean row; the
result is `[vocab]`, the logits at the last position.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import HOOK, cached, hooked, random_row, shipped


def spec(model, clean: Tensor, corrupt: Tensor, layer: int, head: int) -> Tensor:
    model.reset_hooks()
    _, whole = model.run_with_cache(clean)
    _, other = model.run_with_cache(corrupt)
    stream = other[f"blocks.{layer}.hook_resid_post"][0].detach().double()
    for pos in range(clean.shape[1]):
        change = (
            whole[f"blocks.{layer}.attn.hook_z"][0, pos, head]
            - other[f"blocks.{layer}.attn.hook_z"][0, pos, head]
        )
        stream[pos] += change.double() @ model.W_O[layer, head].double()
    for later in range(layer + 1, model.cfg.n_layers):
        end = stream[-1] + model.b_O[later].double()
        for h in range(model.cfg.n_heads):
            q, k, v = (stream @ W[later, h].double() + b[later, h].double() for W, b in (
                (model.W_Q, model.b_Q), (model.W_K, model.b_K), (model.W_V, model.b_V)))  # fmt: skip
            weights = (k @ q[-1] / q.shape[1] ** 0.5).softmax(
                0
            )  # of the last position, the only one that is read
            end = end + weights @ v @ model.W_O[later, h].double()
        stream = torch.cat([stream[:-1], end[None]])
    return stream[-1] @ model.W_U.double() + model.b_U.double()


def body(
    model,
    clean,
    corrupt,
    layer,
    head,
    *,
    rows="right",
    value="whole",
    gives="last",
    heads="one",
    place="asked",
    site="z",
    at="all",
):
    base, source = {
        "exchanged": (clean, corrupt),
        "corrupt": (corrupt, corrupt),
        "clean": (clean, clean),
    }.get(rows, (corrupt, clean))
    cache = cached(model, source)

    def new(z, name):
        put = cache[name]
        return {
            "zero": 0 * z,
            "half": (z + put) / 2,
            "sum": z + put,
            "change": put - z,
            "mean": put.mean(1, keepdim=True),
            "below": cache[f"blocks.0.attn.hook_{site}"],
        }.get(value, put)

    logits = hooked(model, base, layer, head, new, heads=heads, place=place, site=site, at=at)[0]
    if gives == "change":
        return logits[-1] - model(base)[0, -1]
    return {
        "all": logits,
        "start": logits[0],
        "chances": logits[-1].softmax(-1),
        "mean": logits.mean(0),
    }.get(gives, logits[-1])


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
    rows = exchanged | the two rows are exchanged | The run that counts reads the corrupt row; what is put into it comes from the clean one.
    rows = corrupt | nothing of the clean run comes in: this is the corrupt row as it is | Which row has to be run for the cache, and does the run get the hook?
    rows = clean | nothing of the corrupt run is left: this is the clean row as it is | Which row does the run read that gets the hook?
    value = zero | the head is set to zero instead of to its clean value | That is an ablation. A patch puts in what the head does on the other row.
    value = half / sum / change | what is put in is made from both runs | The clean value comes in the place of the other.
    value = below | what is put in is what the head of the first layer does | Take the value of the layer that is asked for.
    value = mean | what is put in is the clean run's average over positions | Each position has a clean value of its own.
    gives = all | the logits of all positions are returned | Return those of the last position, [vocab].
    gives = start | the logits of the first position are returned | Return those of the last position, [vocab].
    gives = mean | the logits are averaged over positions | Return those of the last position, [vocab].
    gives = change | the change of the logits is returned | Return the logits themselves.
    """
    + HOOK,
)  # fmt: skip
check_patch = checks(EXERCISE, __doc__)
