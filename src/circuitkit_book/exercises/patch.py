"""A run in which one head has the output of another run."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Generator, Tensor

from circuitkit.bridge import Model
from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import hooked, random_row, shipped


def solution(model: Model, clean: Tensor, corrupt: Tensor, layer: int, head: int) -> Tensor:
    """Run the clean row for the head's z, and put that into a run of the corrupt row."""
    return all_logits(model, clean, corrupt, layer, head)[-1]


def all_logits(model: Model, clean: Tensor, corrupt: Tensor, layer: int, head: int) -> Tensor:
    """Return the patched logits at all positions, `[pos, vocab]`."""
    return put(model, clean, corrupt, layer, head, lambda new, old: new)


def put(
    model: Model,
    clean: Tensor,
    corrupt: Tensor,
    layer: int,
    head: int,
    mix: Callable[[Tensor, Tensor], Tensor],
    site: str = "z",
) -> Tensor:
    """Return all logits of the corrupt run with `mix(clean value, corrupt value)` in one head."""
    name = f"blocks.{layer}.attn.hook_{site}"
    new = model.run_with_cache(clean)[1][name]

    def change(value: Tensor) -> Tensor:
        value[:, :, head] = mix(new[:, :, head], value[:, :, head])
        return value

    return hooked(model, corrupt, name, change)[0]


def cases(generator: Generator) -> Iterator[Case]:
    """Four heads of the two-layer model."""
    for pos, layer, head in [(5, 0, 1), (8, 1, 3), (7, 0, 2), (10, 1, 2)]:
        yield {
            "model": shipped("two-layer"),
            "clean": random_row(generator, pos),
            "corrupt": random_row(generator, pos),
            "layer": layer,
            "head": head,
        }


def rows_exchanged(model, clean, corrupt, layer, head):
    """The rows are exchanged. Run the corrupt row, and take the head's value from the clean one."""
    return solution(model, corrupt, clean, layer, head)


def corrupt_unchanged(model, clean, corrupt, layer, head):
    """These are the logits of the corrupt row itself. Which row fills the cache, and does the run get the hook?"""
    return model(corrupt)[0, -1]


def clean_unchanged(model, clean, corrupt, layer, head):
    """These are the logits of the clean row itself. Which row does the run with the hook read?"""
    return model(clean)[0, -1]


def zero(model, clean, corrupt, layer, head):
    """The head is replaced by 0, which is an ablation. A patch puts in the head's value on the clean row."""
    return put(model, clean, corrupt, layer, head, lambda new, old: 0 * new)[-1]


def last_position_only(model, clean, corrupt, layer, head):
    """You patch only the last position. The head's value has to be replaced at all positions."""

    def mix(new: Tensor, old: Tensor) -> Tensor:
        old = old.clone()
        old[:, -1] = new[:, -1]
        return old

    return put(model, clean, corrupt, layer, head, mix)[-1]


def all_heads(model, clean, corrupt, layer, head):
    """You patch all heads of the layer. Which index of `hook_z` [row, position, head, d_head] picks one head?"""
    name = f"blocks.{layer}.attn.hook_z"
    new = model.run_with_cache(clean)[1][name]
    return hooked(model, corrupt, name, lambda z: new)[0, -1]


def other_layer(model, clean, corrupt, layer, head):
    """You patch a head of the other layer. Layers are counted from 0, as in `blocks.0`."""
    return solution(model, clean, corrupt, 1 - layer, head)


def layer_0_always(model, clean, corrupt, layer, head):
    """You patch a head of layer 0 in every case. Put the argument `layer` into the name of the hook."""
    return solution(model, clean, corrupt, 0, head)


def head_as_position(model, clean, corrupt, layer, head):
    """The number of the head picks a position. `hook_z` is [row, position, head, d_head]."""
    name = f"blocks.{layer}.attn.hook_z"
    new = model.run_with_cache(clean)[1][name]

    def change(z: Tensor) -> Tensor:
        z[:, head] = new[:, head]
        return z

    return hooked(model, corrupt, name, change)[0, -1]


def values_patched(model, clean, corrupt, layer, head):
    """You patch the values (`hook_v`). `hook_z` is what the head's pattern makes of them."""
    return put(model, clean, corrupt, layer, head, lambda new, old: new, "v")[-1]


def all_positions_returned(model, clean, corrupt, layer, head):
    """You return the logits of all positions. Return those of the last, [vocab]."""
    return all_logits(model, clean, corrupt, layer, head)


def whole_row_returned(model, clean, corrupt, layer, head):
    """You return the logits of the row at all positions. Return those of the last position: logits[0, -1]."""
    return all_logits(model, clean, corrupt, layer, head)[None]


def change_returned(model, clean, corrupt, layer, head):
    """You return the change of the logits. Return the logits of the patched run."""
    return solution(model, clean, corrupt, layer, head) - model(corrupt)[0, -1]


def log_probabilities(model, clean, corrupt, layer, head):
    """You return log-probabilities. Return the logits themselves, without a softmax."""
    return solution(model, clean, corrupt, layer, head).log_softmax(-1)


def pattern_patched(model, clean, corrupt, layer, head):
    """You patch the pattern (`hook_pattern`). `hook_z` is what the pattern makes of the values."""
    name = f"blocks.{layer}.attn.hook_pattern"
    new = model.run_with_cache(clean)[1][name]

    def change(pattern: Tensor) -> Tensor:
        pattern[:, head] = new[:, head]
        return pattern

    return hooked(model, corrupt, name, change)[0, -1]


EXERCISE = Exercise(
    name="patch",
    title="patch one head",
    section="3-induction-heads/induction-in-a-trained-model#cut-one-wire",
    solution=solution,
    cases=cases,
    axes=("vocab",),
    mistakes=(
        rows_exchanged, corrupt_unchanged, clean_unchanged, zero, last_position_only, all_heads,
        other_layer, layer_0_always, head_as_position, values_patched, all_positions_returned,
        whole_row_returned, change_returned, log_probabilities, pattern_patched,
    ),
)  # fmt: skip


def check_patch(answer: Any) -> Result:
    """Check that `answer(model, clean, corrupt, layer, head)` runs the corrupt row with one head's clean output.

    Parameters
    ----------
    answer : function of a model, `clean` and `corrupt [1, pos]`, a layer and a head. It replaces the head's `hook_z`
        at all positions by its value on the clean row, and returns the logits at the last position, `[vocab]`.

    Source: this book.
    """
    return check(EXERCISE, answer)
