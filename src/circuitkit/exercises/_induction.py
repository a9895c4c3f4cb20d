"""Exercises of chapter 3, on induction heads."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Result, check
from circuitkit.exercises._exercise import Case, Exercise, Misfit, Mistake, built, normal, sizes

_PAGE = "03-induction-heads"


# --- 3.1 where an induction head looks -----------------------------------------------------------------------------


def _target_spec(tokens: Tensor) -> Tensor:
    words = tokens.tolist()
    out = torch.zeros(len(words), len(words), dtype=torch.float64)
    for dst in range(len(words)):
        for earlier in range(dst):
            if words[earlier] == words[dst]:
                out[dst, earlier + 1] = 1
    return out


def _same(tokens: Tensor) -> Tensor:
    return (tokens[:, None] == tokens[None, :]).double()


def _shifted(marks: Tensor, by: int) -> Tensor:
    """The marks moved to later sources (`by` positive) or earlier ones, with nothing coming in."""
    out = torch.zeros_like(marks)
    if by > 0:
        out[:, by:] = marks[:, :-by]
    else:
        out[:, :by] = marks[:, -by:]
    return out


def _first_only(marks: Tensor) -> Tensor:
    return marks * (marks.cumsum(1) == 1)


def _draw_target(generator: torch.Generator, step: int) -> Case:
    return {"tokens": torch.randint(3, (6 + step,), generator=generator)}


TARGET = Exercise(
    number="3.1",
    title="where an induction head looks",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#find-the-circuit-in-a-trained-model",
    spec=_target_spec,
    draw=_draw_target,
    names=("destination", "source"),
    mistakes=(
        Mistake(
            "the earlier copy itself is marked",
            lambda tokens: _same(tokens).tril(-1),
            "There the head would find the token that it has already. What does it want to know about the last time?",
        ),
        Mistake(
            "the token before the earlier copy is marked",
            lambda tokens: _shifted(_same(tokens).tril(-1), -1),
            "The shift goes the wrong way: one wants to know what came after the earlier copy.",
        ),
        Mistake(
            "the token before the earlier copy is marked, and the shift wraps around",
            lambda tokens: _same(tokens).tril(-1).roll(-1, 1),
            "The shift goes the wrong way: one wants to know what came after the earlier copy. And roll carries what leaves "
            "on one side in on the other.",
        ),
        Mistake(
            "the shift wraps around",
            lambda tokens: _same(tokens).roll(1, 1).tril(),
            "In column 0 there is nothing to mark: what comes after an earlier copy cannot be the first token. Roll carries "
            "the last column there.",
        ),
        Mistake(
            "the shift comes before the cut, and both are wrong at the edge",
            lambda tokens: _same(tokens).roll(1, 1).tril(-1),
            "Two things: roll carries the last column to the front, and after the shift the destination itself may be "
            "marked. Cut first: which pairs hold an earlier copy? Then shift.",
        ),
        Mistake(
            "a token counts as its own earlier copy",
            lambda tokens: _shifted(_same(tokens).tril(0), 1),
            "So the place after the destination is marked, which lies in the future. Where does the past begin?",
        ),
        Mistake(
            "a token counts as its own earlier copy, and the shift wraps around",
            lambda tokens: _same(tokens).tril(0).roll(1, 1),
            "So the place after the destination is marked, which lies in the future, and roll carries the last column to the "
            "front. Where does the past begin?",
        ),
        Mistake(
            "later copies are marked, too",
            lambda tokens: _shifted(_same(tokens), 1),
            "A causal head cannot look ahead, and at this time the later copy has not been read.",
        ),
        Mistake(
            "the shift moves destinations instead of sources",
            lambda tokens: _same(tokens).tril(-1).roll(1, 0),
            "Rows are destinations. The head stays where it is; the place it looks at is one further on.",
        ),
        Mistake(
            "destinations and sources are exchanged",
            lambda tokens: _target_spec(tokens).T,
            "Rows are destinations, columns are sources, so nothing above the diagonal can be marked.",
        ),
        Mistake(
            "the destination itself is left out",
            lambda tokens: _target_spec(tokens).tril(-1),
            "Take `a a`: the second `a` comes after an earlier `a`. It is a source as good as any, and not in the future.",
        ),
        Mistake(
            "the marks of a row share one unit",
            lambda tokens: _target_spec(tokens) / _target_spec(tokens).sum(1, keepdim=True).clamp_min(1),
            "That is what a perfect head would do. Here the question is only where: yes or no.",
        ),
        Mistake(
            "only the latest copy is marked",
            lambda tokens: _first_only(_target_spec(tokens).flip(1)).flip(1),
            "A token may have occurred more than once before. Each time, something came after it.",
        ),
        Mistake(
            "only the first copy is marked",
            lambda tokens: _first_only(_target_spec(tokens)),
            "A token may have occurred more than once before. Each time, something came after it.",
        ),
    ),
)


def check_induction_target(answer) -> Result:
    """Exercise 3.1. `answer(tokens)` marks the places where an induction head looks.

    **Shapes**: `tokens [pos]` to `[destination, source]`, true (or 1) where the source comes directly after an earlier
    occurrence of the destination's token, false (or 0) elsewhere.
    """
    return check(TARGET, answer)


# --- 3.2 the prefix-matching score ---------------------------------------------------------------------------------


def _prefix_spec(pattern: Tensor, period: int, start: int) -> Tensor:
    out = torch.zeros(pattern.shape[0], dtype=torch.float64)
    for head in range(pattern.shape[0]):
        for dst in range(start + period, start + 2 * period):
            source = dst - period + 1  # the copy of dst stands at dst - period
            out[head] += pattern[head, dst, source] / period
    return out


def _stripe(pattern: Tensor, back: int, first: int, count: int) -> Tensor:
    """Attention `back` positions back, from `count` destinations on."""
    dst = torch.arange(first, first + count)
    return pattern[:, dst, dst - back]


def _draw_prefix(generator: torch.Generator, step: int) -> Case:
    heads, period = sizes(generator, step, 2)
    period, start = period + 2, 1 - step % 2
    pos = start + 2 * period
    scores = normal(generator, heads, pos, pos).masked_fill(torch.ones(pos, pos).triu(1).bool(), -torch.inf)
    return {"pattern": scores.softmax(-1), "period": period, "start": start}


PREFIX = Exercise(
    number="3.2",
    title="the prefix-matching score",
    minutes=10,
    difficulty="easy",
    read=f"{_PAGE}#find-the-circuit-in-a-trained-model",
    spec=_prefix_spec,
    draw=_draw_prefix,
    names=("head",),
    mistakes=(
        Mistake(
            "the score looks at the earlier copy",
            lambda pattern, period, start: _stripe(pattern, period, start + period, period).mean(1),
            "That is the duplicate-token score. An induction head looks one further: how far back is that?",
        ),
        Mistake(
            "the whole diagonal of earlier copies is averaged",
            lambda pattern, period, start: pattern.diagonal(-period, 1, 2).mean(1),
            "Two things: an induction head looks one beyond the earlier copy, and a diagonal holds first-pass rows, too.",
        ),
        Mistake(
            "the score looks at the token before the earlier copy",
            lambda pattern, period, start: _stripe(pattern, period + 1, start + period, period).mean(1),
            "One further on is fewer steps back. From destination 10, with period 4: where is its copy, and what is next?",
        ),
        Mistake(
            "the diagonal is one too far from the middle",
            lambda pattern, period, start: pattern.diagonal(-period - 1, 1, 2).mean(1),
            "One further on is fewer steps back. From destination 10, with period 4: where is its copy, and what is next?",
        ),
        Mistake(
            "the diagonal is taken over heads and destinations",
            lambda pattern, period, start: pattern.diagonal(1 - period).mean(1),
            "torch takes diagonals of the first two axes unless told otherwise; yours are the last two.",
        ),
        Mistake(
            "one destination of the first pass is left in",
            lambda pattern, period, start: pattern.diagonal(1 - period, 1, 2)[:, start:].mean(1),
            "It is the right diagonal, but how long is it? The second pass has `period` destinations and no more.",
        ),
        Mistake(
            "the first destination of the second pass is left out",
            lambda pattern, period, start: _stripe(pattern, period - 1, start + period + 1, period - 1).mean(1),
            "The second pass has `period` destinations, and the first of them has an earlier copy as well.",
        ),
        Mistake(
            "the whole diagonal is averaged",
            lambda pattern, period, start: pattern.diagonal(1 - period, 1, 2).mean(1),
            "It is the right diagonal. But its first entries belong to destinations of the first pass, which have no "
            "earlier copy.",
        ),
        Mistake(
            "the opening token is forgotten",
            lambda pattern, period, start: _stripe(pattern, period - 1, period, period).mean(1),
            "With an opening token everything stands one place later. At which position does the second pass begin?",
        ),
        Mistake(
            "the attention is summed, not averaged",
            lambda pattern, period, start: period * _prefix_spec(pattern, period, start),
            "A perfect head should score 1, however long the span.",
        ),
        Mistake(
            "the sum is divided by all positions",
            lambda pattern, period, start: period * _prefix_spec(pattern, period, start) / pattern.shape[1],
            "In the first pass there is nothing to match; those positions take no part. A perfect head should score 1.",
        ),
        Mistake(
            "destinations and sources are exchanged",
            lambda pattern, period, start: torch.zeros(pattern.shape[0], dtype=pattern.dtype),
            "All your scores are zero: you read above the diagonal, in the future. The pattern is [head, destination, "
            "source].",
        ),
    ),
)


def check_prefix_matching(answer) -> Result:
    """Exercise 3.2. `answer(pattern, period, start)` returns each head's prefix-matching score on a repeated span.

    **Shapes**: `pattern [head, destination, source]`. A span of `period` tokens stands at positions `start` to
    `start + period - 1` and again directly after; `start` is 1 after an opening token, otherwise 0, and nothing follows
    the second pass. The result is `[head]`: the mean, over the destinations of the second pass, of the attention to
    the token after the earlier copy.
    """
    return check(PREFIX, answer)


# --- 3.3 what the second pass is worth -----------------------------------------------------------------------------


def _gain_spec(logits: Tensor, tokens: Tensor, period: int, start: int) -> Tensor:
    def loss(place: int) -> Tensor:  # of the token at this place, predicted one place before
        chances = torch.exp(logits[place - 1])
        return -torch.log(chances[tokens[place]] / sum(chances))

    first = torch.stack([loss(start + i) for i in range(1, period)])
    second = torch.stack([loss(start + period + i) for i in range(1, period)])
    return first.mean() - second.mean()


def _gain(logits, tokens, period, start, *, read=-1, token=0, first=1, log=True, mean=True):
    """The same difference with one thing wrong."""
    scores = logits.log_softmax(-1) if log else logits
    place = torch.arange(1, period) + start
    losses = [-scores[at + read, tokens[at + token]] for at in (place, place + period)]
    early, late = [part.mean() if mean else part.sum() for part in losses]
    return early - late if first else late


def _halves(logits, tokens, period, start):
    losses = -logits.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]]
    return losses[:period].mean() - losses[period:].mean()


def _open(logits, tokens, period):
    losses = -logits.log_softmax(-1)[torch.arange(len(tokens) - 1), tokens[1:]]
    return losses[: period - 1].mean() - losses[period:].mean()


def _between(logits, tokens, period, start, *, cuts, lag=1):
    """Mean loss between the first two cuts minus that behind the second, in places of predicted tokens."""
    losses = [-logits.log_softmax(-1)[at - lag, tokens[at]] for at in range(lag, len(tokens))]
    one, two = (start + cut - lag for cut in cuts)
    return torch.stack(losses[max(one, 0) : two]).mean() - torch.stack(losses[two:]).mean()


def _all_second(logits, tokens, period, start):
    scores = -logits.log_softmax(-1)
    first = torch.arange(start + 1, start + period)
    second = torch.arange(start + period, start + 2 * period)
    return scores[first - 1, tokens[first]].mean() - scores[second - 1, tokens[second]].mean()


def _own(logits, tokens, period, start):
    losses = -logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
    return losses[start : start + period - 1].mean() - losses[start + period : start + 2 * period - 1].mean()


def _draw_gain(generator: torch.Generator, step: int) -> Case:
    vocab, period = sizes(generator, step, 2, smallest=3)
    start = step % 2
    span = torch.randint(vocab, (period,), generator=generator)
    opening = torch.zeros(start, dtype=torch.long)
    return {
        "logits": normal(generator, start + 2 * period, vocab),
        "tokens": torch.cat([opening, span, span]),
        "period": period,
        "start": start,
    }


GAIN = Exercise(
    number="3.3",
    title="what the second pass is worth",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#see-it-first",
    spec=_gain_spec,
    draw=_draw_gain,
    mistakes=(
        Mistake(
            "each token is predicted from its own position",
            lambda logits, tokens, period, start: _gain(logits, tokens, period, start, read=0),
            "At a position the model has read its token already. Which position's logits are about this token?",
        ),
        Mistake(
            "each position is scored on the token before it",
            lambda logits, tokens, period, start: _gain(logits, tokens, period, start, read=0, token=-1),
            "The shift goes the wrong way: logits are about the token that comes next.",
        ),
        Mistake(
            "the first token of the second pass is counted",
            _all_second,
            "When the second pass opens nothing has repeated yet, so even a perfect induction head cannot know its first "
            "token.",
        ),
        Mistake(
            "the opening of the second pass is counted to the first",
            lambda logits, tokens, period, start: _between(logits, tokens, period, start, cuts=(1, period + 1)),
            "A list of losses begins with the second token: its entry i is about token i + 1. At which entry does the first "
            "pass end?",
        ),
        Mistake(
            "both passes count their first token",
            lambda logits, tokens, period, start: _between(logits, tokens, period, start, cuts=(0, period)),
            "The place is right, but nobody can know the first token of either pass. Leave both out.",
        ),
        Mistake(
            "each token is predicted from its own position, in whole passes",
            lambda logits, tokens, period, start: _between(logits, tokens, period, start, cuts=(0, period), lag=0),
            "At a position the model has read its token already. Which position's logits are about this token? And the first "
            "token of each pass is not to be counted.",
        ),
        Mistake(
            "each token is predicted from its own position, from the first of a pass on",
            lambda logits, tokens, period, start: _own(logits, tokens, period, start),
            "At a position the model has read its token already. Which position's logits are about the token that follows?",
        ),
        Mistake(
            "only the second pass is measured",
            lambda logits, tokens, period, start: _gain(logits, tokens, period, start, first=0),
            "A loss alone does not say what the repetition is worth. Lower than what?",
        ),
        Mistake(
            "the opening token is forgotten",
            lambda logits, tokens, period, start: (
                _gain(logits, tokens, period, 0) if start == 0 else _gain(logits[:-1], tokens[:-1], period, 0)
            ),
            "With an opening token everything stands one place later. Where does `start` come in?",
        ),
        Mistake(
            "the opening token is forgotten, and the second part runs to the end",
            lambda logits, tokens, period, start: _open(logits, tokens, period),
            "Without an opening token this is right. With one, everything stands one place later. Where does `start` come in?",
        ),
        Mistake(
            "the row of losses is cut in two",
            _halves,
            "The passes do not lie there: an opening token moves them, and the first token of a pass is predicted from "
            "outside of it. Name the predicted positions of each pass.",
        ),
        Mistake(
            "the sign is the wrong way round",
            lambda logits, tokens, period, start: -_gain(logits, tokens, period, start),
            "The second pass is worth something when its loss is lower: a model that repeats well has to come out above 0. "
            "On the random numbers of this check either sign can be right.",
        ),
        Mistake(
            "the losses are summed, not averaged",
            lambda logits, tokens, period, start: _gain(logits, tokens, period, start, mean=False),
            "Give nats a token, so that spans of different length can be compared.",
        ),
        Mistake(
            "logits are taken for log-probabilities",
            lambda logits, tokens, period, start: _gain(logits, tokens, period, start, log=False),
            "A high logit among higher ones is a bad prediction. What turns scores into the logarithm of a probability, "
            "and along which axis?",
        ),
        Mistake(
            "the loss is in bits",
            lambda logits, tokens, period, start: _gain(logits, tokens, period, start) / math.log(2),
            "The losses of this book are in nats: the natural logarithm.",
        ),
    ),
)


def check_second_pass(answer) -> Result:
    """Exercise 3.3. `answer(logits, tokens, period, start)` returns the mean loss of the first pass minus the second's.

    **Shapes**: `logits [pos, vocab]`, `tokens [pos]`, a span of `period` tokens twice from position `start` on, with
    nothing after it. The result is one number, in nats a token. Neither pass counts the prediction of its first token.
    """
    return check(GAIN, answer)


# --- 3.4 an induction head by hand ---------------------------------------------------------------------------------

_CLEAR = 0.9
_LEVEL, _WEAK = -1, -2


def _row(vocab: int, n_ctx: int) -> list[int]:
    """The row to try the heads on: token 0, which never comes again, and a span of different tokens twice."""
    order = torch.randperm(vocab - 1, generator=torch.Generator().manual_seed(vocab)) + 1
    span = order[: (n_ctx - 1) // 2].tolist()
    return [0, *span, *span]


def _hand_spec(vocab: int, n_ctx: int) -> Tensor:
    words = _row(vocab, n_ctx)
    period = len(words) // 2
    out = torch.zeros(len(words), 3, dtype=torch.float64)
    for dst in range(len(words)):
        out[dst, 0] = max(dst - 1, 0)
        if dst > period:  # in the first pass there is nothing to match, and nothing is asked
            out[dst, 1] = dst - period + 1
            out[dst, 2] = words[dst - period + 1]
    return out


def _run_hand(answer, vocab: int, n_ctx: int) -> Tensor | None:
    pair = answer(vocab, n_ctx)
    if pair is None:
        return None
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
        matrices = built(four, **{f"{name} of head {number}": shape for name, shape in shapes.items()})
        if matrices is None:
            return None
        W_Q, W_K, W_V, W_O = matrices
        pattern = _attention(x @ W_Q, x @ W_K)
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


def _attention(q: Tensor, k: Tensor) -> Tensor:
    future = torch.ones(len(q), len(q)).triu(1).bool()
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(future, -torch.inf).softmax(-1)


def _clear(shares: Tensor) -> Tensor:
    """Where nine tenths of each row are; else -1 if several places are level in front, -2 if one is ahead but not enough."""
    ahead, where = shares.sort(1, descending=True)
    level = ahead[:, 0] - ahead[:, 1] < 1e-9
    return torch.where(ahead[:, 0] > _CLEAR, where[:, 0], torch.where(level, _LEVEL, _WEAK))


def _hand(
    vocab, n_ctx, *, place="place", shift=1, loud=(100.0, 100.0), note="note", Q="word", K="note", V="word", out="out"
):
    """The two heads with one thing wrong."""
    directions = torch.eye(3 * vocab + n_ctx).split([vocab, n_ctx, vocab, vocab])
    named: dict[str, Tensor] = dict(zip(("word", "place", "note", "out"), directions, strict=True))
    here = named[place].T
    first = (loud[0] * here, here.roll(shift, 1), named["word"].T, named[note])
    return first, (loud[1] * named[Q].T, named[K].T, named[V].T, named[out])


BY_HAND = Exercise(
    number="3.4",
    title="an induction head by hand",
    minutes=30,
    difficulty="hard",
    read=f"{_PAGE}#an-induction-head-by-hand",
    spec=_hand_spec,
    draw=lambda generator, step: {"vocab": 6 + step, "n_ctx": 8 + 2 * step},
    observe=_run_hand,
    trials=4,
    names=("destination", "observed"),
    columns=(
        "place that head 0 looks at (-1: several alike, -2: one is ahead, but by too little)",
        "place that head 1 looks at (-1: several alike, -2: one is ahead, but by too little)",
        "token that stands out in the output (-1: several alike, -2: one is ahead, but by too little)",
    ),
    mistakes=(
        Mistake(
            "the first head looks at its own position",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, shift=0),
            "So the note says which word stands here, which is known already. Which key must answer the query of place j?",
        ),
        Mistake(
            "the shift of the first head goes the wrong way",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, shift=-1),
            "Its best match lies in the future, where a causal head cannot look. The key of place j has to answer the query "
            "of place j + 1.",
        ),
        Mistake(
            "the first head matches words instead of places",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, place="word", shift=0),
            "It looks for copies of the word here. One place back is a question of places: which coordinates hold them?",
        ),
        Mistake(
            "the second head copies the note instead of the word",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, V="note"),
            "At the place it looks at, the note holds the token you know already. What stands there itself?",
            read=f"{_PAGE}#what-it-copies-and-a-sentence-to-mend",
        ),
        Mistake(
            "the note is read by the queries instead of the keys",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, Q="note", K="word"),
            "The destination then asks for the word before itself. It should ask with its own word, and sources should "
            "answer with what they were told.",
        ),
        Mistake(
            "the second head matches words with words",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, K="word"),
            "It finds earlier copies, the destination included, and says the current word. One layer can do that; where "
            "does the note come in?",
            read=f"{_PAGE}#why-one-layer-cannot",
        ),
        Mistake(
            "the second head matches notes with notes",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, Q="note"),
            "It looks for places with the same word before them, such as the earlier copy. What does the destination know "
            "that the place it wants was told?",
        ),
        Mistake(
            "the notes stay empty",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, note="word"),
            "Head 1 looks at all places alike, because no key tells it anything. Into which directions does head 0 write, "
            "and from which do the keys of head 1 read?",
        ),
        Mistake(
            "nothing arrives in the output",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, out="word"),
            "Both heads look at the right places, but no output direction is above zero. Where does head 1 write?",
        ),
        Mistake(
            "the scores of the first head are too small",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, loud=(1.0, 100.0)),
            "The right place is ahead, but not by enough: a softmax gives it nine tenths only when its score is several units "
            "above all others, after the division by sqrt(d_head). Make the queries louder.",
        ),
        Mistake(
            "the scores of the second head are too small",
            lambda vocab, n_ctx: _hand(vocab, n_ctx, loud=(100.0, 1.0)),
            "Head 0 is right. For head 1 the right place is ahead, but not by enough: a softmax needs several units of score, "
            "after the division by sqrt(d_head). Make its queries louder, too.",
        ),
    ),
)


def check_induction_head(answer) -> Result:
    """Exercise 3.4. `answer(vocab, n_ctx)` returns two heads, each `(W_Q, W_K, W_V, W_O)`, that make an induction circuit.

    The stream has `d_model = 3 * vocab + n_ctx` coordinates, in this order: the word here (`vocab`, one-hot), the place
    (`n_ctx`, one-hot), the note (`vocab`, empty), the output (`vocab`, empty). Head 0 looks one place back and notes the
    word there. Head 1 looks at the place whose note is the word here, and writes the word that stands there to the
    output. The check divides scores by sqrt(d_head), masks the future, and runs head 1 on what head 0 has left.

    **Shapes**: `W_Q, W_K, W_V [d_model, d_head]`, `W_O [d_head, d_model]` with any `d_head`. The row begins with token 0,
    which never comes again. Nothing is asked of head 1 before the second pass.
    """
    return check(BY_HAND, answer)


# --- 3.5 cut one wire ----------------------------------------------------------------------------------------------


def _wire_spec(x: Tensor, r: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    pos = x.shape[0]
    root = torch.tensor(float(W_Q.shape[1]), dtype=torch.float64).sqrt()
    out = torch.zeros(pos, pos, dtype=torch.float64)
    for dst in range(pos):
        query = x[dst] @ W_Q
        weights = [torch.exp(torch.dot(query, (x[src] - r[src]) @ W_K) / root) for src in range(dst + 1)]
        for src in range(dst + 1):
            out[dst, src] = weights[src] / sum(weights)
    return out


def _draw_wire(generator: torch.Generator, step: int) -> Case:
    pos, d_model, d_head = sizes(generator, step, 3)
    return {
        "x": normal(generator, pos, d_model),
        "r": normal(generator, pos, d_model),
        "W_Q": normal(generator, d_model, d_head),
        "W_K": normal(generator, d_model, d_head),
    }


WIRE = Exercise(
    number="3.5",
    title="cut one wire",
    minutes=15,
    difficulty="medium",
    read=f"{_PAGE}#q-k-and-v-composition-and-a-score-that-misleads",
    spec=_wire_spec,
    draw=_draw_wire,
    names=("destination", "source"),
    mistakes=(
        Mistake(
            "the wire into the queries is cut",
            lambda x, r, W_Q, W_K: _attention((x - r) @ W_Q, x @ W_K),
            "The destination asks, the source answers. Whose input was to lose r?",
        ),
        Mistake(
            "both wires are cut",
            lambda x, r, W_Q, W_K: _attention((x - r) @ W_Q, (x - r) @ W_K),
            "That tells what the earlier head is worth to this pattern altogether. Leave the queries as they are.",
        ),
        Mistake(
            "nothing is cut",
            lambda x, r, W_Q, W_K: _attention(x @ W_Q, x @ W_K),
            "This is the pattern of the whole model. What do the keys read when the earlier head is silent for them?",
        ),
        Mistake(
            "the keys read the earlier head alone",
            lambda x, r, W_Q, W_K: _attention(x @ W_Q, r @ W_K),
            "That keeps the wire and cuts all others.",
        ),
        Mistake(
            "what the earlier head wrote is added once more",
            lambda x, r, W_Q, W_K: _attention(x @ W_Q, (x + r) @ W_K),
            "The stream x holds r already. How does one get it out?",
        ),
        Mistake(
            "the cut is made after the softmax",
            lambda x, r, W_Q, W_K: _attention(x @ W_Q, x @ W_K) - _attention(x @ W_Q, r @ W_K),
            "Scores are linear in the key's input, attention is not: take r out before the softmax. Rows have to sum to 1.",
        ),
        Mistake(
            "the scores are not divided by sqrt(d_head)",
            lambda x, r, W_Q, W_K: _attention(x @ W_Q * W_Q.shape[1] ** 0.5, (x - r) @ W_K),
            "Everything else about the head stays as it was, its scale as well.",
            read="02-qk-and-ov-circuits#two-parts-that-do-not-touch",
        ),
        Mistake(
            "the scores are divided by sqrt(d_model)",
            lambda x, r, W_Q, W_K: _attention(x @ W_Q * (W_Q.shape[1] / W_Q.shape[0]) ** 0.5, (x - r) @ W_K),
            "A score sums over the d_head numbers of a query, not over the d_model numbers of the stream.",
            read="02-qk-and-ov-circuits#two-parts-that-do-not-touch",
        ),
        Mistake(
            "queries and keys are exchanged",
            lambda x, r, W_Q, W_K: _attention((x - r) @ W_K, x @ W_Q),
            "Rows are destinations, and a destination asks with W_Q.",
            read="02-qk-and-ov-circuits#two-parts-that-do-not-touch",
        ),
        Mistake(
            "there is neither mask nor scale",
            lambda x, r, W_Q, W_K: ((x @ W_Q) @ ((x - r) @ W_K).T).softmax(-1),
            "The cut is in the right place. What else happens to scores before the softmax? Two things.",
            read="02-qk-and-ov-circuits#two-parts-that-do-not-touch",
        ),
        Mistake(
            "there is no causal mask",
            lambda x, r, W_Q, W_K: (((x @ W_Q) @ ((x - r) @ W_K).T) / W_Q.shape[1] ** 0.5).softmax(-1),
            "Everything else about the head stays as it was: a destination does not see what comes after it.",
            read="02-qk-and-ov-circuits#two-parts-that-do-not-touch",
        ),
    ),
)


def check_cut_wire(answer) -> Result:
    """Exercise 3.5. `answer(x, r, W_Q, W_K)` returns a causal head's pattern when its keys do not see `r`.

    **Shapes**: the stream `x [pos, d_model]`, which contains what an earlier head wrote, `r [pos, d_model]`; `W_Q` and
    `W_K [d_model, d_head]`; the result is `[destination, source]`. The queries still see all of `x`.
    """
    return check(WIRE, answer)


# --- 3.6 take a head out -------------------------------------------------------------------------------------------


def _without_spec(stream: Tensor, results: Tensor, head: int) -> Tensor:
    rows, positions = stream.shape[:2]
    out = stream.clone()
    for pos in range(positions):
        typical = sum(results[row, pos, head] for row in range(rows)) / rows
        for row in range(rows):
            out[row, pos] = stream[row, pos] - results[row, pos, head] + typical
    return out


def _draw_without(generator: torch.Generator, step: int) -> Case:
    rows, pos, heads, d_model = sizes(generator, step, 4)
    results = normal(generator, rows, pos, heads, d_model) + 1
    return {
        "stream": results.sum(2) + normal(generator, rows, pos, d_model),
        "results": results,
        "head": int(torch.randint(heads, (), generator=generator)),
    }


WITHOUT = Exercise(
    number="3.6",
    title="take a head out",
    minutes=10,
    difficulty="medium",
    read=f"{_PAGE}#take-it-out-and-measure",
    spec=_without_spec,
    draw=_draw_without,
    names=("row", "position", "dimension"),
    mistakes=(
        Mistake(
            "the head is replaced by zero",
            lambda stream, results, head: stream - results[:, :, head],
            "A head that always writes the same is then missed by all that rely on it. Leave it its average.",
        ),
        Mistake(
            "the average is added, the head is still there",
            lambda stream, results, head: stream + results[:, :, head].mean(0, keepdim=True),
            "What the head wrote is a term of the sum. The average is to stand in its place, not beside it.",
            read="01-residual-stream#the-stream-is-a-sum",
        ),
        Mistake(
            "the average is taken away, the head is still there",
            lambda stream, results, head: stream - results[:, :, head].mean(0, keepdim=True),
            "So the head's own contribution stays and its typical one goes. Which of the two should be left?",
        ),
        Mistake(
            "the average runs over positions, too",
            lambda stream, results, head: stream - results[:, :, head] + results[:, :, head].mean((0, 1)),
            "Heads do different things at different positions. Average over rows only.",
        ),
        Mistake(
            "the average runs over positions instead of rows",
            lambda stream, results, head: stream - results[:, :, head] + results[:, :, head].mean(1, keepdim=True),
            "That keeps what the head knows about this row, which is what should be lost.",
        ),
        Mistake(
            "the average runs over heads",
            lambda stream, results, head: stream - results[:, :, head] + results.mean(2),
            "The other heads are not to change, nor to stand in for this one.",
        ),
        Mistake(
            "the average runs over dimensions",
            lambda stream, results, head: stream - results[:, :, head] + results[:, :, head].mean(2, keepdim=True),
            "What a head writes is a vector, and so is what it writes on average. Dimensions do not mix.",
        ),
        Mistake(
            "the average is one number",
            lambda stream, results, head: stream - results[:, :, head] + results[:, :, head].mean(),
            "What a head writes on average is a vector, at each position another one. Name the axis to average over.",
        ),
        Mistake(
            "the rest of the stream is lost",
            lambda stream, results, head: results[:, :, head].mean(0, keepdim=True).expand_as(stream),
            "That is what should stand in the head's place. The other terms of the stream stay.",
        ),
        Mistake(
            "all heads are taken out",
            lambda stream, results, head: stream - results.sum(2) + results.sum(2).mean(0, keepdim=True),
            "Only one of them is to go: results is [row, position, head, dimension].",
        ),
        Mistake(
            "the whole stream is averaged",
            lambda stream, results, head: stream.mean(0, keepdim=True).expand_as(stream),
            "The others keep what they wrote. Which term of the stream belongs to the head?",
        ),
    ),
)


def check_without_head(answer) -> Result:
    """Exercise 3.6. `answer(stream, results, head)` returns the stream with one head replaced by its average.

    **Shapes**: `stream [row, position, d_model]`, what the heads of a layer added to it, `results [row, position, head,
    d_model]`, and the number of a head; the result has the shape of `stream`. The average runs over rows, at each
    position apart.
    """
    return check(WITHOUT, answer)


EXERCISES = (TARGET, PREFIX, GAIN, BY_HAND, WIRE, WITHOUT)
