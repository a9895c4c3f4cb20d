"""Exercise 3.4, an induction head by hand."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Misfit, Result, built, check
from circuitkit.exercises._shared import head_pattern

_CLEAR = 0.9
_LEVEL, _WEAK = -1, -2


def _row(vocab: int, n_ctx: int) -> list[int]:
    """The row to try the heads on: token 0, which never comes again, and a span of different tokens twice."""
    order = torch.randperm(vocab - 1, generator=torch.Generator().manual_seed(vocab)) + 1
    span = order[: (n_ctx - 1) // 2].tolist()
    return [0, *span, *span]


def spec(vocab: int, n_ctx: int) -> Tensor:
    words = _row(vocab, n_ctx)
    period = len(words) // 2
    out = torch.zeros(len(words), 3, dtype=torch.float64)
    for dst in range(len(words)):
        out[dst, 0] = max(dst - 1, 0)
        if dst > period:  # in the first pass there is nothing to match, and nothing is asked
            out[dst, 1] = dst - period + 1
            out[dst, 2] = words[dst - period + 1]
    return out


def observe(pair, vocab: int, n_ctx: int) -> Tensor:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise Misfit("it returned no pair of heads; return (W_Q, W_K, W_V, W_O), (W_Q, W_K, W_V, W_O)")
    words, d_model = _row(vocab, n_ctx), 3 * vocab + n_ctx
    x = torch.zeros(len(words), d_model, dtype=torch.float64)
    for place, word in enumerate(words):
        x[place, word] = x[place, vocab + place] = 1
    reads = (d_model, "d_head")
    looks = []
    shapes = {"W_Q": reads, "W_K": reads, "W_V": (d_model, "d_value"), "W_O": ("d_value", d_model)}
    for number, four in enumerate(pair):
        W_Q, W_K, W_V, W_O = built(four, **{f"{name} of head {number}": shape for name, shape in shapes.items()})
        pattern = head_pattern(x @ W_Q, x @ W_K, d_model)
        looks.append(_clear(pattern[1:] if not looks else pattern[len(words) // 2 + 1 :]))
        x = x + pattern @ x @ W_V @ W_O
    said = x[len(words) // 2 + 1 :, -vocab:].clamp_min(0)
    looks.append(_clear(said / said.sum(1, keepdim=True).clamp_min(1e-9)))
    found = torch.zeros(len(words), 3, dtype=torch.float64)
    for column, places in enumerate(looks):
        found[-len(places) :, column] = places
        if (places == _WEAK).any():  # the first head that is too quiet is the one to speak of
            found[-len(places) :, column] = _WEAK
            break
    return found


def _clear(shares: Tensor) -> Tensor:
    """Where nine tenths of each row are; else -1 if several places are level in front, -2 if one is ahead but not enough."""
    ahead, where = shares.sort(1, descending=True)
    level = ahead[:, 0] - ahead[:, 1] < 1e-9
    return torch.where(ahead[:, 0] > _CLEAR, where[:, 0], torch.where(level, _LEVEL, _WEAK))


def body(
    vocab, n_ctx, *, place="place", shift=1, loud_0=100.0, loud_1=100.0, note="note", Q="word", K="note", V="word", out="out",
    swapped=False, sign_0=1.0, heads="two",
):  # fmt: skip
    directions = torch.eye(3 * vocab + n_ctx, dtype=torch.float64).split([vocab, n_ctx, vocab, vocab])
    named: dict[str, Tensor] = dict(zip(("word", "place", "note", "out"), directions, strict=True))
    here = named[place].mT
    first = (loud_0 * sign_0 * here, here.roll(shift, 1), named["word"].mT, named[note])
    second = (loud_1 * named[Q].mT, named[K].mT, named[V].mT, named[out])
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
    columns=(
        "place that head 0 looks at (-1: several alike, -2: one is ahead, but by too little)",
        "place that head 1 looks at (-1: several alike, -2: one is ahead, but by too little)",
        "token that stands out in the output (-1: several alike, -2: one is ahead, but by too little)",
    ),
    choices="""
    shift
        0 | the first head looks at its own position | So the note says which word stands here, which is known already. Which key must answer the query of place j?
        -1 | the shift of the first head goes the wrong way | Its best match lies in the future, where a causal head cannot look. The key of place j has to answer the query of place j + 1.
        2 | the first head looks two places back | The key of place j has to answer the query of place j + 1.
    place = word | the first head matches words instead of places | It looks for copies of a word. One place back is a question of places: which coordinates hold them?
    note
        out | head 1 finds no note to match: nothing is written there, or something else | Into which directions does head 0 write, and from which do the keys of head 1 read?
    Q = note | the second head asks with its note | The destination knows its own word. What was the place it wants told?
    K = word | the second head's keys read words | It finds earlier copies, the destination included. One layer can do that; where does the note come in?
    V = note | the second head copies the note instead of the word | At the place it looks at, the note holds the token you know already. What stands there itself?
    out
        word | nothing arrives in the output | Both heads look at the right places, but no output direction is above zero. Where does head 1 write?
    loud_0 = 1.0 | the scores of the first head are too small | The right place is ahead, but not by enough: a softmax gives it nine tenths only when its score is several units above all others, after the division by sqrt(d_head). Make the queries louder.
    loud_1 = 1.0 | the scores of the second head are too small | The right place is ahead, but not by enough: a softmax needs several units of score, after the division by sqrt(d_head). Make its queries louder.
    sign_0 = -1.0 | the first head avoids the place it should look at | Its scores have the wrong sign.
    swapped = True | the two heads are in the wrong order | First the note is written, then it is read.
    heads = same | the second head is a copy of the first | It has another task: to find the place whose note is the word here.
    """,
)  # fmt: skip


def check_induction_head(answer) -> Result:
    """Exercise 3.4. `answer(vocab, n_ctx)` returns two heads, each `(W_Q, W_K, W_V, W_O)`, that make an induction circuit.

    The stream has `d_model = 3 * vocab + n_ctx` coordinates, in this order: the word here (`vocab`, one-hot), the place
    (`n_ctx`, one-hot), the note (`vocab`, empty), the output (`vocab`, empty). Head 0 looks one place back and notes the
    word there. Head 1 looks at the place whose note is the word here, and writes the word that stands there to the
    output. The check divides scores by sqrt(d_head), masks the future, and runs head 1 on what head 0 has left.

    **Shapes**: `W_Q, W_K, W_V [d_model, d_head]`, `W_O [d_head, d_model]` with any `d_head`. The row begins with token 0,
    which never comes again. Nothing is asked of head 1 before the second pass.
    """
    return check(EXERCISE, answer)
