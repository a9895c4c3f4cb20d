"""Exercise 1.7: the logits when one head writes its average at every position."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import hooked, random_row, shipped


def z_replaced(
    model: Any, tokens: Tensor, layer: int, head: int, new: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the logits when `new(z)` replaces the `z` of one head, `[1, pos, d_head]`."""

    def change(z: Tensor) -> Tensor:
        z[:, :, head] = new(z[:, :, head])
        return z

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_z", change)


def solution(model: Any, tokens: Tensor, layer: int, head: int) -> Tensor:
    """Replace the head's z by its mean over positions, with a hook."""
    return z_replaced(model, tokens, layer, head, lambda z: z.mean(1, keepdim=True))


def cases(generator: Generator) -> Iterator[Case]:
    """Four heads of the two-layer model."""
    for pos, layer, head in [(4, 0, 1), (7, 1, 3), (6, 0, 0), (9, 1, 2)]:
        yield {
            "model": shipped("two-layer"),
            "tokens": random_row(generator, pos),
            "layer": layer,
            "head": head,
        }


def zero(model, tokens, layer, head):
    """The head is replaced by 0. What does the head write on average?"""
    return z_replaced(model, tokens, layer, head, lambda z: 0 * z)


def average_subtracted(model, tokens, layer, head):
    """You subtract the average from the head. The average itself has to stay, and the rest has to go."""
    return z_replaced(model, tokens, layer, head, lambda z: z - z.mean(1, keepdim=True))


def average_added(model, tokens, layer, head):
    """You add the average to what the head writes. It has to replace it."""
    return z_replaced(model, tokens, layer, head, lambda z: z + z.mean(1, keepdim=True))


def nothing_replaced(model, tokens, layer, head):
    """The model runs unchanged. Does your hook return the new tensor, and does the run get it in `fwd_hooks`?"""
    return model(tokens)


def mean_over_numbers(model, tokens, layer, head):
    """Your mean runs over d_head. `hook_z` is [row, position, head, d_head]: which axis are the positions?"""
    return z_replaced(model, tokens, layer, head, lambda z: z.mean(2, keepdim=True))


def mean_over_everything(model, tokens, layer, head):
    """Your mean runs over positions and d_head. Each of the d_head numbers has a mean of its own over positions."""
    return z_replaced(model, tokens, layer, head, lambda z: z.mean())


def mean_over_heads(model, tokens, layer, head):
    """Your mean runs over heads. The mean of this head over positions is asked for."""

    def change(z: Tensor) -> Tensor:
        z[:, :, head] = z.mean(2)
        return z

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_z", change)


def mean_over_heads_and_positions(model, tokens, layer, head):
    """Your mean runs over positions and heads. The mean of this head alone is asked for."""

    def change(z: Tensor) -> Tensor:
        z[:, :, head] = z.mean((1, 2), keepdim=True)[:, 0]
        return z

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_z", change)


def first_position_left_out(model, tokens, layer, head):
    """Your mean leaves the first position out. Take the mean over all positions."""
    return z_replaced(model, tokens, layer, head, lambda z: z[:, 1:].mean(1, keepdim=True))


def first_value(model, tokens, layer, head):
    """You hold the head at its first value. Take the mean over all positions."""
    return z_replaced(model, tokens, layer, head, lambda z: z[:, :1])


def last_value(model, tokens, layer, head):
    """You hold the head at its last value. Take the mean over all positions."""
    return z_replaced(model, tokens, layer, head, lambda z: z[:, -1:])


def summed(model, tokens, layer, head):
    """You sum over positions. Divide by their number to get the mean."""
    return z_replaced(model, tokens, layer, head, lambda z: z.sum(1, keepdim=True))


def all_heads(model, tokens, layer, head):
    """All heads of the layer are replaced. Which index of `hook_z` [row, position, head, d_head] picks one head?"""
    name = f"blocks.{layer}.attn.hook_z"
    return hooked(model, tokens, name, lambda z: z.mean(1, keepdim=True).expand_as(z))


def next_head(model, tokens, layer, head):
    """The next head is replaced. Heads are counted from 0."""
    return solution(model, tokens, layer, (head + 1) % model.cfg.n_heads)


def other_layer(model, tokens, layer, head):
    """A head of the other layer is replaced. Layers are counted from 0, as in `blocks.0`."""
    return solution(model, tokens, 1 - layer, head)


def head_as_position(model, tokens, layer, head):
    """The number of the head picks a position. `hook_z` is [row, position, head, d_head]."""

    def change(z: Tensor) -> Tensor:
        z[:, head] = z.mean(1)
        return z

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_z", change)


def last_position_only(model, tokens, layer, head):
    """Only the last position is replaced. Later layers read the other positions, too."""

    def change(z: Tensor) -> Tensor:
        z[:, -1, head] = z[:, :, head].mean(1)
        return z

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_z", change)


def values_averaged(model, tokens, layer, head):
    """You average the values of the head (`hook_v`). `hook_z` is what the pattern makes of them."""

    def change(v: Tensor) -> Tensor:
        v[:, :, head] = v[:, :, head].mean(1, keepdim=True)
        return v

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_v", change)


def without_row_axis(model, tokens, layer, head):
    """The axis of the row is missing: return [1, pos, vocab]."""
    return solution(model, tokens, layer, head)[0]


def last_logits(model, tokens, layer, head):
    """You return the logits of the last position. Return those of all positions, [1, pos, vocab]."""
    return solution(model, tokens, layer, head)[0, -1]


EXERCISE = Exercise(
    number="1.7",
    name="average_out",
    title="a head at its average",
    section="01-residual-stream#in-bulk-and-what-the-sum-does-not-see",
    solution=solution,
    cases=cases,
    axes=("row", "position", "vocab"),
    mistakes=(
        zero, average_subtracted, average_added, nothing_replaced, mean_over_numbers, mean_over_everything,
        mean_over_heads, mean_over_heads_and_positions, first_position_left_out, first_value, last_value,
        summed, all_heads, next_head, other_layer, head_as_position, last_position_only,
        values_averaged, without_row_axis, last_logits,
    ),
)  # fmt: skip


def check_average_out(answer: Any) -> Result:
    """Exercise 1.7: `answer(model, tokens, layer, head)` returns the logits when a head writes its average everywhere.

    Parameters
    ----------
    answer : function of a model, `tokens [1, pos]`, a layer and a head. It replaces the head's `hook_z` at every
        position by its mean over the positions of the row, and returns `[1, pos, vocab]`.

    Source: this book.
    """
    return check(EXERCISE, answer)
