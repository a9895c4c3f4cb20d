"""Exercise 3.6, take a head out."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(stream: Tensor, results: Tensor, head: int) -> Tensor:
    rows, positions = stream.shape[:2]
    out = stream.clone()
    for pos in range(positions):
        typical = sum(results[row, pos, head] for row in range(rows)) / rows
        for row in range(rows):
            out[row, pos] = stream[row, pos] - results[row, pos, head] + typical
    return out


def body(stream, results, head, *, which="one", average="rows", out="taken", put="added", only="stream"):
    own = {
        "one": lambda: results[:, :, head], "all": lambda: results.sum(2),
        "next": lambda: results[:, :, (head + 1) % results.shape[2]],
        "others": lambda: results.sum(2) - results[:, :, head], "first": lambda: results[:, :, 0],
        "dimension": lambda: results[:, :, :, head], "position": lambda: results[:, head],
    }[which]()  # fmt: skip
    typical = {
        "rows": lambda: own.mean(0, keepdim=True), "zero": lambda: 0 * own,
        "rows and positions": lambda: own.mean((0, 1)), "positions": lambda: own.mean(1, keepdim=True),
        "heads": lambda: results.mean(2), "dimensions": lambda: own.mean(2, keepdim=True),
        "number": lambda: own.mean(), "stream": lambda: stream.mean(0, keepdim=True),
        "sum": lambda: own.sum(0, keepdim=True), "first row": lambda: own[:1],
        "other heads": lambda: (results.sum(2) - own) / max(results.shape[2] - 1, 1),
        "median": lambda: own.median(0, keepdim=True).values,
        "sample": lambda: own.sum(0, keepdim=True) / max(len(own) - 1, 1),
        "rows and heads": lambda: results.mean((0, 2))[None],
    }[average]()  # fmt: skip
    base = stream + {"taken": -own, "kept": 0 * own, "twice": own}[out]
    found = base + {"added": typical, "subtracted": -typical}[put]
    return {
        "stream": lambda: found,
        "average": lambda: typical.expand_as(stream),
        "averaged": lambda: stream.mean(0, keepdim=True).expand_as(stream),
        "replaced": lambda: typical - own,
        "results": lambda: torch.cat(
            [results[:, :, :head], typical[:, :, None].expand_as(results[:, :, :1]), results[:, :, head + 1 :]], 2
        ),
        "sum of results": lambda: results.sum(2) - own + typical,
    }[only]()


EXERCISE = Exercise(
    about="3.6 take a head out | medium | 10 minutes | 03-induction-heads#take-it-out-and-measure",
    spec=spec, body=body, axes="row, position, head, dimension",
    inputs={
        "results": lambda size, generator, case: (
            normal(generator, *(size[n] for n in ("row", "position", "head", "dimension"))) + 1
        ),
        "stream": lambda size, generator, case: (
            case["results"].sum(2) + normal(generator, *case["results"].sum(2).shape)
        ),
        "head": "< head",
    },
    names=("row", "position", "dimension"),
    choices="""
    average
        zero | the head is replaced by zero | A head that always writes the same is then missed by all that rely on it. Leave it its average.
        rows and positions | the average runs over positions, too | Heads do different things at different positions. Average over rows only.
        positions | the average runs over positions instead of rows | That keeps what the head knows about this row, which is what should be lost.
        heads | the average runs over heads | The other heads are not to change, nor to stand in for this one.
        other heads | the average of the other heads stands in | The other heads are not to change, nor to stand in for this one.
        rows and heads | the average runs over rows and heads | The other heads are not to stand in for this one.
        dimensions | the average runs over dimensions | What a head writes is a vector, and so is what it writes on average. Dimensions do not mix.
        number | the average is one number | What a head writes on average is a vector, at each position another one. Name the axis to average over.
        stream | the average of the stream stands in | The head is one term of the stream: average what the head wrote.
        sum | the sum over rows stands in, not the mean | What does the head write in a typical row?
        first row | the first row stands in for the average | What does the head write in a typical row?
    out
        kept | the average is added, the head is still there | What the head wrote is a term of the sum. The average is to stand in its place, not beside it.
        twice | the head is added once more instead of taken out | Take that term out of the sum.
    put = subtracted | the average is taken away instead of added | The average is to stand in the head's place.
    which
        all | all heads are taken out | Only one of them is to go: results is [row, position, head, dimension].
        others | the other heads are taken out | Only the head in question is to go.
        first | it is always head 0 | Which argument says which head?
        next | it is the next head | Heads are counted from 0.
        dimension | a dimension is picked instead of a head | results is [row, position, head, dimension].
        position | a position is picked instead of a head | results is [row, position, head, dimension].
    only
        average | the rest of the stream is lost | That is what should stand in the head's place. The other terms of the stream stay.
        averaged | the whole stream is averaged | The others keep what they wrote. Which term of the stream belongs to the head?
        replaced | it is the change alone, without the stream | Add it to the stream.
        results | the results of all heads are returned, not the stream | The stream is what they are added to.
        sum of results | only the heads are summed, the rest of the stream is lost | The stream holds more than this layer's heads.
    """,
)  # fmt: skip


def check_without_head(answer) -> Result:
    """Exercise 3.6. `answer(stream, results, head)` returns the stream with one head replaced by its average.

    **Shapes**: `stream [row, position, d_model]`, what the heads of a layer added to it, `results [row, position, head,
    d_model]`, and the number of a head; the result has the shape of `stream`. The average runs over rows, at each
    position apart.
    """
    return check(EXERCISE, answer)
