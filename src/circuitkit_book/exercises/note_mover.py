"""Exercise 1.4. `answer(source, target)` returns `W_V, W_O` of a head that moves notes inside the stream.

The head looks at its own position, so the stream becomes `x + x @ W_V @ W_O`. After that, what `x` had along row `i`
of `source` is gone from there and has been added along row `i` of `target`; everything else is as before.

**Shapes**: `source` and `target [note, d_model]`, all rows of both orthonormal; `W_V [d_model, d_head]` and `W_O
[d_head, d_model]` with any `d_head`.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks, normal


def spec(source: Tensor, target: Tensor) -> Tensor:
    stream = _notes(source)
    out = stream.clone()
    for pos, row in enumerate(stream):
        for old, new in zip(source, target, strict=True):
            note = torch.dot(row, old)
            out[pos] = out[pos] - note * old + note * new
    return out


def _notes(source: Tensor) -> Tensor:
    """A stream to try the head on."""
    return normal(torch.Generator().manual_seed(5), 4, source.shape[1])


def observe(answer, source: Tensor, target: Tensor) -> Tensor:
    W_V, W_O = built(answer, W_V=(source.shape[1], "d_head"), W_O=("d_head", source.shape[1]))
    return _notes(source) + _notes(source) @ W_V @ W_O


def body(
    source, target, *, reads="source", erase=-1.0, write=1.0, onto="target", mixed="", stream=0.0
):
    old, new = source, target if onto == "target" else target.flip(0)
    W_O = write * new + erase * old
    W_V = {
        "source": source,
        "target": target,
        "sum": source + target,
        "difference": target - source,
    }.get(reads, source).mT
    if reads == "both":
        W_V, W_O = torch.cat([source, target]).mT, torch.cat([W_O, source - target])
    elif reads == "target, too":
        W_V, W_O = torch.cat([source, target]).mT, torch.cat([W_O, -target])
    if mixed == "one head":
        W_V, W_O = W_V.sum(1, keepdim=True), W_O.sum(0, keepdim=True)
    elif mixed == "first":
        W_V, W_O = W_V[:, :1], W_O[:1]
    elif mixed == "average":
        W_O = W_O / len(source)
    elif mixed == "turned":
        W_V, W_O = W_O.mT, W_V.mT
    if stream:
        eye = torch.eye(source.shape[1], dtype=source.dtype)
        W_V, W_O = eye, stream * eye + W_V @ W_O
    return W_V, W_O


def _source(size, generator, case):
    """Orthonormal rows, each later case with other numbers of them and of dimensions."""
    count = 1 + size["step"] % 3
    return torch.linalg.qr(normal(generator, 2 * count + 2 + size["step"] // 3, count))[0].mT


def _target(size, generator, case):
    """As many orthonormal rows, at right angles to the source."""
    source = case["source"]
    rest = normal(generator, *source.shape)
    return torch.linalg.qr((rest - rest @ source.mT @ source).mT)[0].mT


EXERCISE = Exercise(
    about="1.4 a head that moves a note, by hand | hard | 20 minutes | 01-residual-stream#who-deletes",
    spec=spec, body=body,
    inputs={"source": _source, "target": _target},
    observe=observe, parts=("W_V", "W_O"),
    names=("position", "dimension"),
    choices="""
    erase = 0.0 | the note is copied but not erased | Afterwards the stream holds the note twice. It can only be added to: what must be added to take a note away?
    erase = 1.0 | the note is doubled, not erased | The note arrives at the target. But what you add along the source makes it twice as long there.
    erase = -2.0 / -0.5 | the note is erased twice over, or by half | What must be added along the source so that nothing is left?
    write = 0.0 | the note is erased but not written | The note has to arrive somewhere.
    write = -1.0 | the note arrives with the wrong sign | It is gone from the source, and its negative stands at the target.
    write = 0.5 | only half of the note arrives | Nothing divides it on the way.
    reads = target | the head reads the target instead of the source | W_V decides what is read. Which directions hold the note?
    reads = sum / difference | the head reads a mixture of source and target | The note is what x has along the source, no more and no less.
    reads = both | source and target are exchanged | What the target held before is to stay there. Read the source alone.
    reads = target, too | what the target held is erased | The note is added to what the target holds. Nothing was said about clearing the target first.
    onto = flipped | the notes arrive in reverse order | Row i of source goes to row i of target.
    mixed = one head | the notes are mixed | With one note this works. With several, each needs its own column of W_V and its own row of W_O.
    mixed = first | only the first note is moved | Each note needs its own column of W_V and its own row of W_O.
    mixed = turned | what should be read is written, and what should be written is read | `x @ W_V @ W_O`: the columns of W_V are what is read, the rows of W_O what is written.
    mixed = average | the notes are divided by their number | Each note moves in full.
    stream = 1.0 | the head writes the whole new stream | The old stream is still there, and what the head writes is added to it. Write the difference only.
    stream = -1.0 | the head takes the whole stream away | What the head writes is added to the stream. Everything but the notes stays.
    """,
)  # fmt: skip
check_note_mover = checks(EXERCISE, __doc__)
