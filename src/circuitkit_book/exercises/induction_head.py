"""Exercise 3.4. `answer(vocab, n_ctx)` returns two heads, each `(W_Q, W_K, W_V, W_O)`, that make an induction circuit.

The stream has `d_model = 3 * vocab + n_ctx` coordinates, in this order: the word here (`vocab`, one-hot), the place
(`n_ctx`, one-hot), the note (`vocab`, empty), the output (`vocab`, empty). Head 0 looks one place back and notes the
word there. Head 1 looks at the place whose note is the word here, and writes the word that stands there to the
output. The check divides scores by sqrt(d_head), masks the future, and tries two rows whose spans differ in length: each
head by itself, head 1 on the notes that a right head 0 leaves, then both together.

**Shapes**: `W_Q, W_K, W_V [d_model, d_head]`, `W_O [d_head, d_model]` with any `d_head`. A row begins with token 0,
which never comes again. Nothing is asked of head 1 before the second pass.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, Misfit, built, checks
from circuitkit_book.exercises.shared import head_pattern

_CLEAR = 0.9
_LEVEL, _WEAK = -1, -2


def _rows(vocab: int, n_ctx: int) -> list[tuple[list[int], int, int]]:
    """Two rows to try the heads on, with where the second pass begins, and the period. Each is token 0, some more words in one of
    them, and a span of different tokens twice: neither a distance nor a place serves both.
    """
    order = (torch.randperm(vocab - 1, generator=torch.Generator().manual_seed(vocab)) + 1).tolist()
    longest, found = (n_ctx - 1) // 2, []
    for before, period in ((0, longest), (1, longest - 1)):
        span = order[before : before + period]
        found.append(([0, *order[:before], *span, *span], 1 + before + period, period))
    return found


def spec(vocab: int, n_ctx: int) -> Tensor:
    tables = []
    for words, again, period in _rows(vocab, n_ctx):
        out = torch.zeros(len(words), 5, dtype=torch.float64)
        for dst in range(len(words)):
            out[dst, 0] = max(dst - 1, 0)
            out[dst, 1] = words[max(dst - 1, 0)]
            if dst >= again:  # in the first pass there is nothing to match, and nothing is asked
                out[dst, 2] = dst - period + 1
                out[dst, 3] = out[dst, 4] = words[dst - period + 1]
        tables.append(out)
    return torch.cat(tables)


def observe(pair, vocab: int, n_ctx: int) -> Tensor:
    """Each head by itself, the second on what a right first one leaves; then, if all that is right, the two together."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise Misfit(
            "it returned no pair of heads; return (W_Q, W_K, W_V, W_O), (W_Q, W_K, W_V, W_O)"
        )
    d_model = 3 * vocab + n_ctx
    shapes = {
        "W_Q": (d_model, "d_head"),
        "W_K": (d_model, "d_head"),
        "W_V": (d_model, "d_value"),
        "W_O": ("d_value", d_model),
    }
    heads = [
        built(four, **{f"{name} of head {i}": shape for name, shape in shapes.items()})
        for i, four in enumerate(pair)
    ]
    tables, note = [], slice(vocab + n_ctx, 2 * vocab + n_ctx)
    for words, again, _ in _rows(vocab, n_ctx):
        x = torch.zeros(len(words), d_model, dtype=torch.float64)
        x[range(len(words)), words] = x[range(len(words)), range(vocab, vocab + len(words))] = 1
        noted, found = x.clone(), torch.zeros(len(words), 5, dtype=torch.float64)
        noted[range(len(words)), [vocab + n_ctx + w for w in (words[0], *words[:-1])]] = 1
        pattern, left = _run(heads[0], x)
        found[:, 0], found[:, 1] = _clear(pattern), _said(left[:, note])
        pattern, ideal = _run(heads[1], noted)
        found[again:, 2], found[again:, 3] = _clear(pattern[again:]), _said(ideal[again:, -vocab:])
        found[again:, 4] = _said(_run(heads[1], left)[1][again:, -vocab:])
        found[:, (found == _WEAK).any(0)] = (
            _WEAK  # how loud it is differs with the number of places, and is no matter here
        )
        found[:again, 2:] = 0
        tables.append(found)
    table = torch.cat(tables)
    if not torch.equal(table[:, :4], spec(vocab, n_ctx)[:, :4]):
        table[:, 4] = 0  # what follows from a fault that is told already
    return table


def _run(head: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    W_Q, W_K, W_V, W_O = head
    pattern = head_pattern(x @ W_Q, x @ W_K, x.shape[1])
    return pattern, x + pattern @ x @ W_V @ W_O


def _said(numbers: Tensor) -> Tensor:
    positive = numbers.clamp_min(0)
    return _clear(positive / positive.sum(1, keepdim=True).clamp_min(1e-9))


def _clear(shares: Tensor) -> Tensor:
    """Where nine tenths of each row are; else -1 if several places are level in front, -2 if one is ahead but not enough."""
    ahead, where = shares.sort(1, descending=True)
    level = ahead[:, 0] - ahead[:, 1] < 1e-9
    return torch.where(ahead[:, 0] > _CLEAR, where[:, 0], torch.where(level, _LEVEL, _WEAK))


ORDERS = {
    "right": ("word", "place", "note", "out"), "note first": ("word", "note", "place", "out"), "place first": ("place", "word", "note", "out"),
    "out first": ("word", "place", "out", "note"),
}  # fmt: skip


def body(
    vocab, n_ctx, *, place="place", shift=1, loud_0=100.0, V_0="word", note="note", loud_1=100.0, Q="word", K="note", order="right", V="word", out="out",
    swapped=False, sign_0=1.0, heads="two",
):  # fmt: skip
    directions = torch.eye(3 * vocab + n_ctx, dtype=torch.float64).split(
        [n_ctx if one == "place" else vocab for one in ORDERS[order]]
    )
    named: dict[str, Tensor] = dict(zip(ORDERS[order], directions, strict=True))
    here = named[place].mT
    carried = named["place"].mT[:, :vocab] if V_0 == "place" else named[V_0].mT
    first = (loud_0 * sign_0 * here, here.roll(shift, 1), carried, named[note])
    if K in ("1", "2", "3", "4", "distance"):
        Q_1, K_1 = (
            named["place"].mT,
            named["place"].mT.roll((n_ctx - 1) // 2 - 1 if K == "distance" else int(K), 1),
        )
    else:
        Q_1, K_1 = (named[name].mT[:, :vocab] for name in (Q, K))
    second = (loud_1 * Q_1, K_1, named[V].mT, named[out])
    if heads == "same":
        return first, first
    return (second, first) if swapped else (first, second)


EXERCISE = Exercise(
    about="3.4 an induction head by hand | hard | 30 minutes | 03-induction-heads#an-induction-head-by-hand",
    spec=spec, body=body,
    inputs={
        "vocab": lambda size, generator, case: 6 + size["step"],
        "n_ctx": lambda size, generator, case: 8 + 2 * size["step"],
    },
    observe=observe, parts=("head 0", "head 1"), trials=4, names=("destination", "observed"),
    columns=tuple(f"{word} (-1: several alike, -2: one is ahead, but by too little)" for word in (
        "place that head 0 looks at", "word that stands in the note after head 0", "place that head 1 looks at, given right notes",
        "token that stands out in head 1's output, given right notes", "token that stands out in the output of both")),
    choices="""
    shift = 0 | the first head looks at its own position | So the note says which word stands here, which is known already. Which key must answer the query of place j?
    shift = -1 | the shift of the first head goes the wrong way | Its best match lies in the future, where a causal head cannot look. The key of place j has to answer the query of place j + 1.
    shift = 2 | the first head looks two places back | The key of place j has to answer the query of place j + 1.
    place = word | the first head matches words instead of places | It looks for copies of a word. One place back is a question of places: which coordinates hold them?
    V_0 = place | the first head notes the place, not the word | What does head 1 have to find in the note?
    note = out | nothing legible stands in the note | Head 0 looks one place back. Into which directions does it write what it finds?
    Q = note / place | the second head asks with something else than its word | The destination knows its own word. What was the place it wants told?
    K = word | the second head's keys read words | It finds earlier copies, the destination included. One layer can do that; where does the note come in?
    K = place | the second head's keys read places | Which place fits cannot be known beforehand. Where does the note come in?
    K = distance / 1 / 2 / 3 / 4 | the second head looks at a fixed distance | The span may have any length, and may begin anywhere. What do the right place and this one have in common?
    order = note first / place first / out first | the coordinates of the stream are taken in another order | First the word, then the place, the note, and the output.
    V = note | the second head copies the note instead of the word | At the place it looks at, the note holds the token you know already. What stands there itself?
    out = word | nothing stands out in the output | No output direction is ahead of the others. From where does head 1 read what it copies, where does it write it, and with which sign?
    loud_0 = 1.0 / 10.0 | the scores of the first head are too small | The right place is ahead, but not by enough: a softmax gives it nine tenths only when its score is several units above all others, after the division by sqrt(d_head). Make the queries louder.
    loud_1 = 1.0 / 10.0 | the scores of the second head are too small | The right place is ahead, but not by enough: a softmax needs several units of score, after the division by sqrt(d_head). Make its queries louder.
    loud_1 = -100.0 | the place that the second head should look at is not ahead of all others | Other places are level with it, or ahead. Does anything else fit its query? Is the sign of its scores right?
    sign_0 = -1.0 | the place that the first head should look at is not ahead of all others | Other places are level with it, or ahead. Does anything else fit its query? Is the sign of its scores right?
    swapped = True | the two heads are in the wrong order | First the note is written, then it is read.
    heads = same | the second head is a copy of the first | It has another task: to find the place whose note is the word here.
    """,
)  # fmt: skip
check_induction_head = checks(EXERCISE, __doc__)
