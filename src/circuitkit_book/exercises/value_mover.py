"""A head that moves values from some directions of the stream to others."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, built, normal, orthonormal_rows


def solution(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Read the values along the source, write them to the target, and subtract them from the source."""
    return source.T, target - source


def observe(answer: Any, source: Tensor, target: Tensor) -> Tensor:
    """Compute the stream after the head has written, `[pos, d_model]`."""
    d_model = source.shape[1]
    W_V, W_O = built(answer, W_V=(d_model, "d_head"), W_O=("d_head", d_model))
    x = normal(torch.Generator().manual_seed(5), 4, d_model)
    return x + x @ W_V @ W_O


def cases(generator: Generator) -> Iterator[Case]:
    """Orthonormal rows, of which the first half are sources."""
    for n_values, d_model in [(1, 4), (2, 6), (3, 8), (1, 5), (2, 7)]:
        source, target = orthonormal_rows(generator, 2 * n_values, d_model).split(n_values)
        yield {"source": source, "target": target}


def not_erased(source, target):
    """The value is copied, but it is still at the source. What has to be added along the source to remove it?"""
    return source.T, target


def doubled_at_the_source(source, target):
    """The value is doubled at the source. Check the sign of what you add there."""
    return source.T, target + source


def not_written(source, target):
    """The value is removed from the source, but it does not arrive. It has to be added along the target."""
    return source.T, -source


def wrong_sign(source, target):
    """The value arrives with the wrong sign. It has to be added along the target, not subtracted."""
    return source.T, -target - source


def all_signs_wrong(source, target):
    """All signs are wrong: the value is doubled at the source and subtracted at the target."""
    return source.T, source - target


def target_read(source, target):
    """The head reads the target. Which directions hold the values before the head writes?"""
    return target.T, target - source


def moved_backwards(source, target):
    """The head moves values from the target to the source. Exchange the two."""
    return target.T, source - target


def target_cleared(source, target):
    """What the target held before is lost. The value has to be added to it."""
    W_O = torch.cat([target - source, -target])
    return torch.cat([source, target]).T, W_O


def values_mixed(source, target):
    """The values are mixed. Each value needs its own column of W_V and its own row of W_O."""
    return source.sum(0)[:, None], (target - source).sum(0)[None]


def first_value_only(source, target):
    """Only the first value is moved. Each value needs its own column of W_V and its own row of W_O."""
    return source[:1].T, (target - source)[:1]


def read_and_write_exchanged(source, target):
    """Reading and writing are exchanged. In x @ W_V @ W_O, W_V reads with its columns and W_O writes with its rows."""
    return (target - source).T, source


def whole_stream_written(source, target):
    """The head writes the whole new stream. What it writes is added to the old one, so write only the difference."""
    eye = torch.eye(source.shape[1], dtype=source.dtype)
    return eye, eye + source.T @ (target - source)


def target_read_too(source, target):
    """The head reads source and target together. The value to move is what the stream holds along the source alone."""
    return (source + target).T, target - source


EXERCISE = Exercise(
    name="value_mover",
    title="a head that moves a value",
    section="1-residual-stream/appendix#does-any-head-delete-information",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("position", "coordinate"),
    mistakes=(
        not_erased, doubled_at_the_source, not_written, wrong_sign, all_signs_wrong,
        target_read, moved_backwards, target_cleared, values_mixed, first_value_only,
        read_and_write_exchanged, whole_stream_written, target_read_too,
    ),
)  # fmt: skip


def check_value_mover(answer: Any) -> Result:
    """Check that `answer(source, target)` returns `W_V, W_O` of a head that moves values inside the stream.

    The stream becomes `x + x @ W_V @ W_O`. What `x` held along row `i` of `source` has to move to row `i` of `target`.

    Parameters
    ----------
    answer : function of `source` and `target [value, d_model]`, all rows of both orthonormal. It returns
        `W_V [d_model, d_head]` and `W_O [d_head, d_model]`, with any `d_head`.

    Source: this book.
    """
    return check(EXERCISE, answer)
