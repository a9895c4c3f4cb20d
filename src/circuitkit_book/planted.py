"""Small models with a planted circuit, each made from a text: the circuit of the day from a date, a mystery from a name.

`circuitkit/lab_page/planted.js` makes the same models in a browser. Both draw the same random numbers in the same order, and
compute weights with sums, products, divisions and square roots only, so that they agree on every processor.

The model has two layers of four heads, no norms and no biases. Its stream is a sum of five subspaces: the token, two notes that
layer 0 writes, the output that the unembedding reads, and the position. Values and outputs leave the position out. Some heads of
layer 0 look one token back and write a note. A head of layer 1 uses the note `note` to find the answer, and other heads look at
the same place but write nothing that counts.
"""

from datetime import date
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.handmade import bridge_of
from circuitkit.heads import Heads

__all__ = ["Planted", "circuit_of_the_day", "planted_model"]

Array = NDArray[np.float64]
WORDS = (*"ABCDEFGHIJKL", "start", "?")
N_LETTERS, START, ASK, N_WORDS = 12, 12, 13, 14
N, N_HEADS, D_HEAD = 12, 4, 28
SPACES = {"token": 0, "note": 14, "other": 28, "out": 42}  # where each subspace begins
D_CONTENT = 56
BACK, MATCH, SINK, GAIN = 5.5, 8.0, 3.5, 6.5  # differences of scores, and the logit of the answer
NOISE, FILLER_NOISE, LEAK = 0.02, 0.1, 0.25
MARGIN, CLEAR = 0.3, 2.0  # logits
WIRES = [
    f"L0H{writer}->L1H{reader}.{side}"
    for writer in range(4)
    for reader in range(4)
    for side in "QKV"
]


class Stream:
    """Random numbers of mulberry32: a counter, mixed by products of 32-bit integers (Tommy Ettinger, 2017)."""

    def __init__(self, text: str):
        self.state = 0x811C9DC5  # the 32-bit FNV-1a hash of the text
        for byte in text.encode():
            self.state = (self.state ^ byte) * 0x01000193 % 2**32

    def take(self, n: int) -> Array:
        """Return the next `n` numbers from 0 to 1."""
        mask = np.uint64(2**32 - 1)
        t = (self.state + 0x6D2B79F5 * np.arange(1, n + 1, dtype=np.uint64)) & mask
        self.state = (self.state + 0x6D2B79F5 * n) % 2**32
        t = ((t ^ (t >> 15)) * (t | 1)) & mask
        t ^= (t + (t ^ (t >> 7)) * (t | 61)) & mask
        return (t ^ (t >> 14)) / 2**32

    def below(self, n: int) -> int:
        """Return one of 0 to `n` - 1."""
        return int(self.take(1)[0] * n)

    def order(self, n: int) -> list[int]:
        """Return 0 to `n` - 1 in random order."""
        items = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


class Role(NamedTuple):
    """What a head compares and copies.

    Parameters
    ----------
    does : "write", "read", "decoy", "offset", "stripe" or "fill"
    match : `(query space, key space)` in which equal tokens score `MATCH`
    back : `(number of positions, score)`
    looks : `(token, score)`: tokens to which it attends from everywhere
    not_itself : whether its own position is excluded
    reads : the space that its values read
    writes : `(space, strength)`
    noise : largest noise of its values and outputs
    """

    does: str
    match: tuple[str, str] | None = None
    back: tuple[int, float] | None = None
    looks: tuple[tuple[int, float], ...] = ()
    not_itself: bool = False
    reads: str = "token"
    writes: tuple[tuple[str, float], ...] = ()
    noise: float = NOISE


class Planted(NamedTuple):
    """A planted model with its question.

    Parameters
    ----------
    kind : "simple", "redundant" (one cut is not enough) or "empty" (no wire carries the answer)
    story : "follow" (the answer followed the earlier copy of the last token), "before" (it came before it) or "asked" (it
        followed the earlier copy of the token before the question mark)
    tokens : the text, as numbers; `WORDS` are their names
    answer : the token that the model predicts
    roles : `[layer][head]`
    W_E, W_pos, W_U, W_Q, W_K, W_V, W_O : weights; those of heads are `[layer, head, ...]`
    """

    kind: str
    story: str
    reason: str
    tokens: list[int]
    answer: int
    roles: list[list[Role]]
    W_E: Array
    W_pos: Array
    W_U: Array
    W_Q: Array
    W_K: Array
    W_V: Array
    W_O: Array

    def model(self) -> TransformerBridge:
        """Return the model as a `TransformerBridge`."""
        heads = [(layer, head) for layer in range(2) for head in range(N_HEADS)]
        names = tuple(f"L{layer}H{head}" for layer, head in heads)
        W_Q, W_K = (tensor(W).flatten(0, 1) for W in (self.W_Q, self.W_K))
        W_V = tensor(np.pad(self.W_V, ((0, 0), (0, 0), (0, N), (0, 0)))).flatten(0, 1)
        W_O = tensor(np.pad(self.W_O, ((0, 0), (0, 0), (0, 0), (0, N)))).flatten(0, 1)
        parts = Heads(names, W_Q, W_K, W_V, W_O, layers=tuple(layer for layer, _ in heads))
        W_E, W_U = np.pad(self.W_E, ((0, 0), (0, N))), np.pad(self.W_U, ((0, N), (0, 0)))
        W_pos = np.pad(self.W_pos, ((0, 0), (D_CONTENT, 0)))
        return bridge_of(parts, tensor(W_E), tensor(W_U), tensor(W_pos))

    def answers(self) -> list[frozenset[str]]:
        """Return every smallest set of up to three wires whose cuts take the answer from the top.

        All 18,472 sets are tried. The list is empty if none of them is enough.
        """
        sets, *_ = cut_sets()
        found: list[frozenset[str]] = []
        for i in np.flatnonzero(leads(self) <= 0):
            names = frozenset(WIRES[wire] for wire in sets[i])
            if not any(smaller <= names for smaller in found):
                found.append(names)
        return found


def tensor(array: Array) -> Tensor:
    return torch.tensor(array, dtype=torch.float32)


def circuit_of_the_day(day: date) -> Planted:
    """Return the model that the page "The circuit of the day" shows on a date.

    Examples
    --------
    >>> from datetime import date
    >>> circuit_of_the_day(date(2026, 12, 1)).kind
    'redundant'

    Source: this book.
    """
    return planted_model(day.isoformat())


def planted_model(text: str, kind: str | None = None) -> Planted:
    """Make a model with a planted circuit from a text, for example from a secret and the name of a student.

    Parameters
    ----------
    text : any text; another text gives another model
    kind : "simple", "redundant" or "empty"; by default the text decides, three times in five for "simple"

    Returns
    -------
    The model and its question, a `Planted`. The answer is predicted with a lead of at least 2 logits. One cut is enough if
    the kind is "simple", only two are if it is "redundant", and no three are if it is "empty", each by 0.3 logits.

    Raises
    ------
    ValueError : there is no such kind

    Examples
    --------
    >>> [sorted(answer) for answer in planted_model("a secret, Ada", kind="simple").answers()]
    [['L0H2->L1H0.V']]

    Source: this book.
    """
    if kind not in (None, "simple", "redundant", "empty"):
        raise ValueError(
            f"There is no kind {kind!r}. Write 'simple', 'redundant' or 'empty', or leave it out."
        )
    stream = Stream(text)
    while True:
        planted = draw(stream)
        if kind in (None, planted.kind) and is_sound(planted):
            return planted


def is_sound(planted: Planted) -> bool:
    """Return whether cuts do to the answer what the kind of the model says, with a margin."""
    of_sets = leads(planted)
    one, two, three = (of_sets[:end].min() for end in (1 + 48, 1 + 48 + 1128, None))
    if of_sets[0] < CLEAR:
        return False
    if planted.kind == "simple":
        return bool(one < -MARGIN)
    if planted.kind == "redundant":
        return bool(one > MARGIN and two < -MARGIN)
    return bool(three > MARGIN)


# --- what is planted -------------------------------------------------------------------------------------------------


def draw(stream: Stream) -> Planted:
    """Draw a text and the roles of all heads, and make the weights."""
    kind = ("simple", "simple", "simple", "redundant", "empty")[stream.below(5)]
    story = ("follow", "before", "asked")[stream.below(3)]
    tokens, answer, source = draw_text(story, stream)
    wide = stream.below(2)  # three heads that could write and two that could read, or two and three
    layers = [draw_writers(kind, wide, stream), draw_readers(kind, story, wide, stream)]
    reason = ("bigram", "offset", "stripe")[stream.below(3)] if kind == "empty" else ""
    if reason == "offset":
        role = Role(reason, back=(N - 1 - source, BACK), writes=(("out", GAIN),))
        layers[stream.below(2)].append(role)
    if reason == "stripe":
        role = Role(reason, looks=((answer, MATCH), (START, SINK)), writes=(("out", GAIN),))
        layers[stream.below(2)].append(role)
    roles = []
    for some in layers:
        while len(some) < N_HEADS:
            some.append(draw_filler(stream))
        roles.append([some[i] for i in stream.order(N_HEADS)])
    W_U = np.zeros((D_CONTENT, N_WORDS))
    W_U[SPACES["out"] :] = np.eye(N_WORDS)
    for token in range(N_WORDS):  # without its circuit, the model predicts another token
        default, logit = stream.below(N_LETTERS), 1.8 + 0.8 * stream.take(1)[0]
        if default == answer:
            default = (answer + 1) % N_LETTERS
        if reason == "bigram" and token == tokens[-1]:
            default, logit = answer, GAIN
        W_U[token, default] = logit
    return Planted(kind, story, reason, tokens, answer, roles, *weights(roles, W_U, stream))


def draw_text(story: str, stream: Stream) -> tuple[list[int], int, int]:
    """Return the tokens, the answer and its position. Two letters are there twice, one of them at the end."""
    letters = stream.order(N_LETTERS)
    asked, answer, another, *others = letters
    first = 3 + stream.below(4)
    source = first - 1 if story == "before" else first + 1
    text = [START] + [-1] * (N - 1)
    text[first], text[source], text[-1] = asked, answer, asked
    if story == "asked":
        text[-2:] = asked, ASK
    free = [i for i in range(N) if text[i] < 0]
    i = stream.below(len(free) - 2)
    j = i + 2 + stream.below(len(free) - i - 2)
    text[free[i]] = text[free[j]] = another
    for place in free:
        if text[place] < 0:
            text[place] = others.pop(0)
    return text, answer, source


def draw_writers(kind: str, wide: int, stream: Stream) -> list[Role]:
    """Heads of layer 0 that look one token back; what is written into "other" reaches no head that counts."""
    twins = kind == "redundant" and wide
    leak = LEAK * stream.below(2) if kind == "simple" else 0.0
    weak = 0.7 + 0.3 * stream.take(1)[0]
    back = (1, BACK)
    second = (("note", weak),) if twins else (("other", 1.0), ("note", leak))
    roles = [
        Role("write", back=back, writes=(("note", 1.0),)),
        Role("write" if twins else "decoy", back=back, writes=second),
    ]
    if wide:
        roles.append(Role("decoy", back=back, writes=(("other", 1.0),)))
    return roles


def draw_readers(kind: str, story: str, wide: int, stream: Stream) -> list[Role]:
    """Heads of layer 1 that look at the answer, or at the token after it if the story is "before"."""
    count = {"simple": 1, "redundant": 2 - wide, "empty": 0}[kind]
    halved = kind == "redundant" and (story == "before" or not wide)
    roles = []
    for i in range(3 - wide):
        real = i < count
        note = "note" if real or stream.below(2) else "other"
        pairs = {"follow": ("token", note), "before": ("token", "token"), "asked": (note, note)}
        roles.append(
            Role(
                "read" if real else "decoy",
                match=pairs[story],
                looks=((START, SINK),),
                not_itself=story != "follow",
                reads=note if story == "before" else "token",
                writes=(("out", GAIN / 2 if halved else GAIN) if real else ("other", 1.0),),
            )
        )
    return roles


def draw_filler(stream: Stream) -> Role:
    """A head that looks at the first token, at all, at itself or two back, and writes noise."""
    which = stream.below(4)
    if which == 0:
        return Role("fill", looks=((START, SINK),), noise=FILLER_NOISE)
    back = ((0, 0.4), (0, BACK), (2, BACK))[which - 1]
    return Role("fill", back=back, noise=FILLER_NOISE)


# --- weights ---------------------------------------------------------------------------------------------------------


def weights(roles: list[list[Role]], W_U: Array, stream: Stream) -> tuple[Array, ...]:
    """Return all weights: each head by its role, with noise, and a content of the stream that is turned at random."""
    W_Q, W_K = np.zeros((2, 2, N_HEADS, D_CONTENT + N, D_HEAD))
    W_V = np.zeros((2, N_HEADS, D_CONTENT, D_HEAD))
    W_O = np.zeros((2, N_HEADS, D_HEAD, D_CONTENT))
    for layer, head in np.ndindex(2, N_HEADS):
        role = roles[layer][head]
        plant_scores(role, W_Q[layer, head], W_K[layer, head])
        plant_copies(role, W_V[layer, head], W_O[layer, head])
        amounts = NOISE * MATCH * D_HEAD**0.5, NOISE, role.noise, role.noise
        for W, amount in zip((W_Q, W_K, W_V, W_O), amounts, strict=True):
            one = W[layer, head]
            one += amount * (2 * stream.take(one.size).reshape(one.shape) - 1)
    W_E = np.eye(N_WORDS, D_CONTENT)
    for _ in range(3):  # reflections of the content
        mirror = np.floor(7 * stream.take(D_CONTENT)) - 3
        for W in (
            W_Q[:, :, :D_CONTENT],
            W_K[:, :, :D_CONTENT],
            W_V,
            W_O.swapaxes(2, 3),
            W_E.T,
            W_U,
        ):
            W -= 2 / (mirror @ mirror) * mirror[:, None] * (mirror @ W)[..., None, :]
    return W_E, np.eye(N), W_U, W_Q, W_K, W_V, W_O


def plant_scores(role: Role, W_Q: Array, W_K: Array) -> None:
    """Write what a head compares; every pair of directions has a dimension of the head for itself."""
    size = D_HEAD**0.5
    column = 0
    if role.match:
        query, key = (SPACES[space] for space in role.match)
        for i in range(N_LETTERS):
            W_Q[query + i, i], W_K[key + i, i] = MATCH * size, 1
        column = N_LETTERS
    if role.not_itself or role.back:
        by, score = role.back or (0, -2 * MATCH)
        for i in range(N):
            W_Q[D_CONTENT + i, column + max(0, i - by)] = score * size
            W_K[D_CONTENT + i, column + i] = 1
        column += N
    for token, score in role.looks:
        W_Q[:N_WORDS, column] = score * size
        W_K[token, column] = 1
        column += 1


def plant_copies(role: Role, W_V: Array, W_O: Array) -> None:
    """Write what a head moves from the token that it attends to."""
    for i in range(N_LETTERS):
        W_V[SPACES[role.reads] + i, i] = 1
        for space, strength in role.writes:
            W_O[i, SPACES[space] + i] = strength


# --- what cuts do ----------------------------------------------------------------------------------------------------


@cache
def cut_sets() -> tuple[list[tuple[int, ...]], Array, NDArray[np.int64]]:
    """Return all sets of up to three wires, what each small set cuts of one reader, and the small set of each reader.

    The second is `[small set, side, writer]`, and the third `[set, reader]`.
    """
    inputs = [(side, writer) for writer in range(4) for side in range(3)]
    small = [some for n in range(4) for some in combinations(range(12), n)]
    place = {some: i for i, some in enumerate(small)}
    cut = np.zeros((len(small), 3, 4))
    for i, some in enumerate(small):
        for one in some:
            cut[i, *inputs[one]] = 1
    sets = [some for n in range(4) for some in combinations(range(48), n)]
    mine = [
        [place[tuple(w // 12 * 3 + w % 3 for w in some if w // 3 % 4 == r)] for r in range(4)]
        for some in sets
    ]
    return sets, cut, np.array(mine)


def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Return what a head reads out, from its queries, keys and values."""
    scores = q @ k.swapaxes(-1, -2) / D_HEAD**0.5
    shares = np.exp(scores - scores.max()) * mask
    return shares / shares.sum(-1, keepdims=True) @ v


def leads(planted: Planted) -> Array:
    """Return the lead of the answer over the next best token at the end of the text, without each set of wires."""
    _, cut, mine = cut_sets()
    W_Q, W_K, W_V, W_O = planted.W_Q, planted.W_K, planted.W_V, planted.W_O
    content = planted.W_E[planted.tokens]
    x = np.concatenate([content, planted.W_pos], 1)
    wrote = attend(x @ W_Q[0], x @ W_K[0], content @ W_V[0], np.tri(N)) @ W_O[0]
    content = content + wrote.sum(0)
    x = np.concatenate([content, planted.W_pos], 1)
    logits = content[-1] @ planted.W_U
    for reader in range(N_HEADS):
        of_Q, of_K, of_V = W_Q[1, reader, :D_CONTENT], W_K[1, reader, :D_CONTENT], W_V[1, reader]
        q = x[-1:] @ W_Q[1, reader] - np.tensordot(cut[:, 0], wrote[:, -1:] @ of_Q, 1)
        k = x @ W_K[1, reader] - np.tensordot(cut[:, 1], wrote @ of_K, 1)
        v = content @ of_V - np.tensordot(cut[:, 2], wrote @ of_V, 1)
        read = attend(q, k, v, np.ones(N))[:, 0]
        logits = logits + (read @ W_O[1, reader] @ planted.W_U)[mine[:, reader]]
    others = np.delete(logits, planted.answer, 1)
    return logits[:, planted.answer] - others.max(1)
