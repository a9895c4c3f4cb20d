"""The logits when one head writes its mean at every position."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Generator, Tensor

from circuitkit.bridge import Model
from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise
from circuitkit_book.exercises.models_to_try import hooked, random_row, shipped


def z_replaced(
    model: Model, tokens: Tensor, layer: int, head: int, new: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the logits when `new(z)` replaces the `z` of one head, `[1, pos, d_head]`."""

    def change(z: Tensor) -> Tensor:
        z[:, :, head] = new(z[:, :, head])
        return z

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_z", change)


def solution(model: Model, tokens: Tensor, layer: int, head: int) -> Tensor:
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
    """The head is replaced by 0. Replace it by its mean over positions."""
    return z_replaced(model, tokens, layer, head, lambda z: 0 * z)


def average_subtracted(model, tokens, layer, head):
    """You subtract the mean. Replace z by its mean instead: the mean stays, and the deviations from it are removed."""
    return z_replaced(model, tokens, layer, head, lambda z: z - z.mean(1, keepdim=True))


def nothing_replaced(model, tokens, layer, head):
    """The model runs unchanged. Does the hook return the new z, is it in `fwd_hooks`, and does the mean run over positions?"""
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


def all_heads(model, tokens, layer, head):
    """All heads of the layer are replaced. Which axis of `hook_z` [row, position, head, d_head] is the head?"""
    name = f"blocks.{layer}.attn.hook_z"
    return hooked(model, tokens, name, lambda z: z.mean(1, keepdim=True).expand_as(z))


def other_layer(model, tokens, layer, head):
    """A head of the other layer is replaced. Layers are counted from 0, as in `blocks.0`."""
    return solution(model, tokens, 1 - layer, head)


def layer_0_always(model, tokens, layer, head):
    """You replace a head of layer 0 in every case. Put the argument `layer` into the name of the hook."""
    return solution(model, tokens, 0, head)


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


def values_replaced(model, tokens, layer, head):
    """You replace the values (`hook_v`). `hook_z` is what the head's pattern makes of them."""

    def change(value: Tensor) -> Tensor:
        value[:, :, head] = value[:, :, head].mean(1, keepdim=True)
        return value

    return hooked(model, tokens, f"blocks.{layer}.attn.hook_v", change)


def sum_over_positions(model, tokens, layer, head):
    """The head is replaced by its sum over positions. Divide by the number of positions."""
    return z_replaced(model, tokens, layer, head, lambda z: z.sum(1, keepdim=True))


EXERCISE = Exercise(
    name="average_out",
    title="a head at its mean",
    section="1-residual-stream/stream-is-a-sum#two-heads-are-biases",
    solution=solution,
    cases=cases,
    axes=("row", "position", "vocab"),
    mistakes=(
        zero, average_subtracted, nothing_replaced, mean_over_numbers, mean_over_everything,
        mean_over_heads, all_heads, other_layer, layer_0_always, head_as_position,
        last_position_only, values_replaced, sum_over_positions,
    ),
)  # fmt: skip


def check_average_out(answer: Any) -> Result:
    """Check that `answer(model, tokens, layer, head)` returns the logits when a head writes its mean everywhere.

    Parameters
    ----------
    answer : function of a model, `tokens [1, pos]`, a layer and a head. It replaces the head's `hook_z` at every
        position by its mean over the positions of the row, and returns `[1, pos, vocab]`.

    Source: this book.
    """
    return check(EXERCISE, answer)
