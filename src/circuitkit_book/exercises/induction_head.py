"""Two heads by hand that continue a repeated row of tokens."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from circuitkit_book.exercises.checking import Result, check
from circuitkit_book.exercises.exercise import Case, Exercise, Misfit, built

Head = tuple[Tensor, ...]
CLEAR = 0.9
"""Attention, or a share of what is written, counts from here on."""


def directions(vocab: int, n_ctx: int) -> tuple[Tensor, ...]:
    """Return the directions of the word, the place, the note and the output."""
    return torch.eye(3 * vocab + n_ctx, dtype=torch.float64).split([vocab, n_ctx, vocab, vocab])


def solution(vocab: int, n_ctx: int) -> tuple[Head, Head]:
    """Query a place with the key of the place before it; query a word with the key of a note."""
    word, place, note, out = directions(vocab, n_ctx)
    one_back = (100 * place.T, place.T.roll(1, 1), word.T, note)
    match = (100 * word.T, note.T, word.T, out)
    return one_back, match


def rows(vocab: int, n_ctx: int) -> list[tuple[list[int], int]]:
    """Return two rows and the period of each: token 0, perhaps a word, and a span of different words twice.

    The spans differ in length and in where they begin, so no fixed distance and no fixed place fits both.
    """
    order = torch.randperm(vocab - 1, generator=Generator().manual_seed(vocab)) + 1
    words = order.tolist()
    longest = (n_ctx - 1) // 2
    short = words[1:longest]
    return [
        ([0, *words[:longest], *words[:longest]], longest),
        ([0, words[0], *short, *short], longest - 1),
    ]


def run(head: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the causal pattern of a head and the stream after it."""
    W_Q, W_K, W_V, W_O = head
    scores = (x @ W_Q) @ (x @ W_K).T / W_Q.shape[1] ** 0.5
    future = torch.ones_like(scores).triu(1).bool()
    pattern = scores.masked_fill(future, -torch.inf).softmax(-1)
    return pattern, x + pattern @ x @ W_V @ W_O


def clear(numbers: Tensor) -> Tensor:
    """Return the index that has nine tenths of the positive numbers in each row; -1 everywhere if some row has none."""
    positive = numbers.clamp_min(0)
    largest, index = positive.max(1)
    is_clear = largest > CLEAR * positive.sum(1)
    return index if is_clear.all() else torch.full_like(index, -1)


def observe(pair: Any, vocab: int, n_ctx: int) -> Tensor:
    """Compute where each head attends and what it writes: head 0 by itself, head 1 after right notes, then both.

    Before the second pass nothing is asked of head 1. What both write is only asked if each is right.
    """
    first, second = built_pair(pair, 3 * vocab + n_ctx)
    _, _, note, out = directions(vocab, n_ctx)
    tables = []
    for words, period in rows(vocab, n_ctx):
        count, again = len(words), len(words) - period
        x = torch.zeros(count, 3 * vocab + n_ctx, dtype=torch.float64)
        x[range(count), words] = 1
        x[range(count), range(vocab, vocab + count)] = 1
        noted = x + note[[words[0], *words[:-1]]]
        pattern_0, written = run(first, x)
        pattern_1, ideal = run(second, noted)
        table = torch.zeros(count, 5, dtype=torch.float64)
        table[:, 0], table[:, 1] = clear(pattern_0), clear(written @ note.T)
        table[again:, 2], table[again:, 3] = clear(pattern_1[again:]), clear(ideal[again:] @ out.T)
        right = torch.tensor([words[dst - period + 1] for dst in range(again, count)])
        if is_right(table, words, period):
            table[again:, 4] = clear(run(second, written)[1][again:] @ out.T) - right
        tables.append(table)
    return torch.cat(tables)


def is_right(table: Tensor, words: list[int], period: int) -> bool:
    """Return whether each head by itself does what it should on a row."""
    for dst, observed in enumerate(table[:, :4].long().tolist()):
        before = max(dst - 1, 0)
        expected = [before, words[before], 0, 0]
        if dst >= len(words) - period:
            source = dst - period + 1
            expected[2:] = [source, words[source]]
        if observed != expected:
            return False
    return True


def built_pair(pair: Any, d_model: int) -> list[list[Tensor]]:
    """Return the matrices of both heads."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise Misfit("Return a pair of heads: (W_Q, W_K, W_V, W_O), (W_Q, W_K, W_V, W_O).")
    heads = []
    for head, matrices in enumerate(pair):
        names = [f"{matrix} of head {head}" for matrix in ("W_Q", "W_K", "W_V", "W_O")]
        shapes = [
            (d_model, "d_head"),
            (d_model, "d_head"),
            (d_model, "d_value"),
            ("d_value", d_model),
        ]
        heads.append(built(matrices, **dict(zip(names, shapes, strict=True))))
    return heads


def cases(generator: Generator) -> Iterator[Case]:
    """Four sizes."""
    for step in range(4):
        yield {"vocab": 6 + step, "n_ctx": 8 + 2 * step}


def head_0_at_itself(vocab, n_ctx):
    """Head 0 attends to its own position. Which key has to match the query of place j?"""
    word, place, note, _ = directions(vocab, n_ctx)
    return (100 * place.T, place.T, word.T, note), solution(vocab, n_ctx)[1]


def head_0_unclear(vocab, n_ctx):
    """No position gets nine tenths of head 0's attention. Do the keys shift in the right direction, and are the queries large enough?"""
    (W_Q, *rest), second = solution(vocab, n_ctx)
    return (W_Q / 100, *rest), second


def note_empty(vocab, n_ctx):
    """No word is clear in `previous`. Into which directions does head 0 write, and with which sign?"""
    (W_Q, W_K, W_V, W_O), second = solution(vocab, n_ctx)
    return (W_Q, W_K, W_V, 0 * W_O), second


def head_1_matches_words(vocab, n_ctx):
    """Queries and keys of head 1 read the same thing. The query has to read `word`, and the key has to read `previous`."""
    word, _, _, out = directions(vocab, n_ctx)
    return solution(vocab, n_ctx)[0], (100 * word.T, word.T, word.T, out)


def head_1_exchanged(vocab, n_ctx):
    """Queries and keys of head 1 are exchanged. The query of the destination reads `word`, and the key of the source reads `previous`."""
    word, _, note, out = directions(vocab, n_ctx)
    return solution(vocab, n_ctx)[0], (100 * note.T, word.T, word.T, out)


def head_1_at_a_fixed_distance(vocab, n_ctx):
    """Head 1 attends at a fixed distance, and the spans differ in length. Which group of the source equals the word at the destination?"""
    word, place, _, out = directions(vocab, n_ctx)
    keys = place.T.roll((n_ctx - 1) // 2 - 1, 1)
    return solution(vocab, n_ctx)[0], (100 * place.T, keys, word.T, out)


def head_1_unclear(vocab, n_ctx):
    """No position gets nine tenths of head 1's attention. Does its key read `previous`, with the right sign, and are its queries large enough?"""
    first, (W_Q, *rest) = solution(vocab, n_ctx)
    return first, (W_Q / 100, *rest)


def head_1_copies_the_note(vocab, n_ctx):
    """Head 1 copies `previous`, which holds the word of the destination. Copy the word at the source."""
    first, (W_Q, W_K, _, W_O) = solution(vocab, n_ctx)
    note = directions(vocab, n_ctx)[2]
    return first, (W_Q, W_K, note.T, W_O)


def output_empty(vocab, n_ctx):
    """No token is clear in the output. Into which directions does head 1 write, and with which sign?"""
    first, (W_Q, W_K, W_V, W_O) = solution(vocab, n_ctx)
    return first, (W_Q, W_K, W_V, 0 * W_O)


def heads_exchanged(vocab, n_ctx):
    """The heads are in the wrong order. `previous` is first written, then read."""
    return solution(vocab, n_ctx)[::-1]


def both_unclear(vocab, n_ctx):
    """No position gets nine tenths of the attention of either head. Make the queries larger: scores are divided by sqrt(d_head)."""
    first, second = head_0_unclear(vocab, n_ctx)[0], head_1_unclear(vocab, n_ctx)[1]
    return first, second


def note_before_place(vocab, n_ctx):
    """You take the coordinates in another order. It is word, place, previous, output."""
    word, note, place, out = torch.eye(3 * vocab + n_ctx).split([vocab, vocab, n_ctx, vocab])
    one_back = (100 * place.T, place.T.roll(1, 1), word.T, note)
    return one_back, (100 * word.T, note.T, word.T, out)


EXERCISE = Exercise(
    name="induction_head",
    title="an induction head by hand",
    section="3-induction-heads/why-two-layers#an-induction-head-in-eight-lines",
    solution=solution,
    cases=cases,
    observe=observe,
    several=True,
    axes=("destination", "observed"),
    columns=(
        "the position that head 0 attends to (-1: none is clear)",
        "the word in `previous` after head 0 (-1: none is clear)",
        "the position that head 1 attends to if `previous` is right (-1: none is clear)",
        "the token that head 1 writes if `previous` is right (-1: none is clear)",
        "the token that both heads write, minus the right one",
    ),
    mistakes=(
        head_0_at_itself, head_0_unclear, note_empty, head_1_matches_words, head_1_exchanged,
        head_1_at_a_fixed_distance, head_1_unclear, head_1_copies_the_note, output_empty,
        heads_exchanged, both_unclear, note_before_place,
    ),
)  # fmt: skip


def check_induction_head(answer: Any) -> Result:
    """Check that `answer(vocab, n_ctx)` returns two heads `(W_Q, W_K, W_V, W_O)` that make an induction circuit.

    The stream has `d_model = 3 * vocab + n_ctx` coordinates: the word (one-hot), the place (one-hot), previous and
    output (both empty). Head 0 attends to the previous position and writes its word into previous. Head 1 attends to
    the position whose previous is the word at the destination, and writes the word of that position into the output. The check divides
    scores by sqrt(d_head), masks the future, and tries two rows with spans of different lengths.

    Parameters
    ----------
    answer : function of `vocab` and `n_ctx`. `W_Q`, `W_K` and `W_V` are `[d_model, d_head]` and `W_O` is
        `[d_head, d_model]`, with any `d_head`.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads".
    """
    return check(EXERCISE, answer)
