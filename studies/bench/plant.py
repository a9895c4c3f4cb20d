"""Circuits set by hand among random heads: what a head compares, and what it copies where.

A stream is divided into subspaces. Tokens, positions and outputs are codes: unit vectors that are as
different as the dimensions allow. At the end, the basis of the stream is rotated, so that no
coordinate has a meaning, the heads of a layer are in random order, and every weight has noise.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from studies.bench.network import N_CTX, Head, Sizes, Weights, random_weights

Action = tuple[str, str, Tensor]
"""A subspace that is read, another one, and the matrix between them."""


class Level(NamedTuple):
    """How hard a planted circuit is to see.

    Parameters
    ----------
    beta : how much more the right position scores than others, before overlaps of the codes
    gain : the logit of a token that is written with length 1
    noise : standard deviation of the noise of each weight, in units of the matrix's mean size
    scale : of the random heads
    """

    beta: float
    gain: float
    noise: float
    scale: float


LEVELS = (Level(24, 16, 0.04, 0.7), Level(18, 10, 0.08, 1.2), Level(13, 8, 0.12, 1.8))


class Planted(NamedTuple):
    """A model with its planted parts.

    `wires` are pairs of heads with "Q", "K" or "V". `task` names the task of `tasks.py` that the
    model solves, and `data` is what this task needs to know.
    """

    weights: Weights
    heads: list[Head]
    wires: list[tuple[Head, Head, str]]
    task: str
    data: dict
    trigrams: list[tuple[Head, tuple[int, int, int]]]


def cyclic_code(n: int, dims: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return `n` unit vectors, and the matrix that maps each of them to the next one.

    The vectors lie on circles: entry j is (cos, sin) of `2 pi f j / n` for some frequencies f. Of
    300 random choices of frequencies, the one with the least overlap is taken.
    """
    if dims == n:
        basis = random_rotation(n, n, generator)
        return basis, basis.T @ basis.roll(-1, 0)
    best, least = torch.zeros(0), math.inf
    for _ in range(300):
        frequencies = 1 + torch.randperm((n - 1) // 2, generator=generator)[: dims // 2]
        angles = 2 * math.pi * torch.arange(1, n)[:, None] * frequencies / n
        overlap = angles.cos().mean(1).max().item()
        if overlap < least:
            best, least = frequencies, overlap
    angles = 2 * math.pi * torch.arange(n)[:, None] * best / n
    code = torch.stack([angles.cos(), angles.sin()], -1).flatten(1) / math.sqrt(dims // 2)
    step = 2 * math.pi * best / n
    turns = [
        torch.stack([torch.stack([a.cos(), a.sin()]), torch.stack([-a.sin(), a.cos()])])
        for a in step
    ]
    return code, torch.block_diag(*turns)


def random_rotation(n: int, d: int, generator: torch.Generator) -> Tensor:
    """Return `n` random orthonormal rows with `d` entries."""
    return torch.linalg.qr(torch.randn(d, n, generator=generator))[0].T


class Builder:
    """A model in which heads are planted one by one.

    Parameters
    ----------
    sizes : sizes of the model
    seed : of everything that is random
    level : how hard the circuit is to see
    spaces : dimensions of the subspaces; "token", "position" and "output" always exist
    """

    def __init__(self, sizes: Sizes, seed: int, level: Level, **spaces: int):
        self.sizes, self.level, self.beta = sizes, level, level.beta
        self.generator = torch.Generator().manual_seed(seed)
        self.spaces = spaces
        self.slices, begin = {}, 0
        for name, n_dims in spaces.items():
            self.slices[name] = slice(begin, begin + n_dims)
            begin += n_dims
        self.d_used = begin
        if begin > sizes.d_model - sizes.norm:
            raise ValueError(f"The subspaces need {begin} dimensions of {sizes.d_model}.")
        label = torch.randperm(sizes.d_vocab, generator=self.generator)
        code, _ = cyclic_code(sizes.d_vocab, spaces["token"], self.generator)
        self.tokens = code[label]
        if spaces["output"] == spaces["token"]:
            self.outputs = self.tokens @ self.rotation("token")
        else:
            code, _ = cyclic_code(sizes.d_vocab, spaces["output"], self.generator)
            self.outputs = code[label]
        self.partner = label.argsort()[(label + 5) % sizes.d_vocab]  # of each token
        self.positions, self.next = cyclic_code(N_CTX + 3, spaces["position"], self.generator)
        self.marked = torch.zeros(sizes.d_vocab)  # tokens with an entry in the subspace "mark"
        self.heads: dict[Head, tuple[Tensor, Tensor]] = {}

    def rotation(self, space: str) -> Tensor:
        """Draw a rotation of a subspace."""
        return random_rotation(self.spaces[space], self.spaces[space], self.generator)

    def writes(self, partner: bool = False) -> Tensor:
        """Return the matrix that maps a token to its output, or to the output of its partner."""
        targets = self.outputs[self.partner] if partner else self.outputs
        return torch.linalg.lstsq(self.tokens, targets).solution

    def back(self, by: int) -> Tensor:
        """Return the matrix that maps a position to the one that is `by` before it."""
        return self.beta * torch.linalg.matrix_power(self.next.T, by)

    def add(
        self,
        layer: int,
        compares: list[Action],
        copies: list[Action],
        query: tuple[str, Tensor] | None = None,
        constant: tuple[str, Tensor] | None = None,
    ) -> Head:
        """Plant a head at a random place of a layer.

        Parameters
        ----------
        layer : its layer
        compares : `(query space, key space, matrix)`
        copies : `(from space, to space, matrix)`
        query : a subspace of the keys, and a query that is the same everywhere
        constant : a subspace, and an output that is the same everywhere

        Returns
        -------
        Its layer and number.
        """
        QK, OV = torch.zeros(2, self.d_used + 1, self.d_used)  # the last row is a bias
        for query_space, key_space, matrix in compares:
            QK[self.slices[query_space], self.slices[key_space]] += matrix
        for from_space, to_space, matrix in copies:
            OV[self.slices[from_space], self.slices[to_space]] += matrix
        if query is not None:
            QK[-1, self.slices[query[0]]] += query[1]
        if constant is not None:
            OV[-1, self.slices[constant[0]]] += constant[1]
        free = [h for h in range(self.sizes.n_heads) if (layer, h) not in self.heads]
        choice = torch.randint(len(free), (), generator=self.generator)
        head = (layer, free[int(choice)])
        self.heads[head] = (QK, OV)
        return head

    def build(self) -> Weights:
        """Return the model: planted heads among random ones, rotated, with noise."""
        sizes, d_used = self.sizes, self.d_used
        weights = random_weights(sizes, self.generator, self.level.scale)
        # a norm takes away the mean, so nothing may lie along (1, 1, ...)
        ones = torch.ones(sizes.d_model, 1) / math.sqrt(sizes.d_model)
        start = torch.randn(sizes.d_model, d_used, generator=self.generator)
        basis = torch.linalg.qr(start - ones @ (ones.T @ start) * sizes.norm)[0].T
        embedding = torch.zeros(sizes.d_vocab, d_used)
        embedding[:, self.slices["token"]] = self.tokens
        if "mark" in self.slices:
            embedding[:, self.slices["mark"]] = self.marked[:, None]
        weights["W_E"] = embedding @ basis
        weights["W_pos"] = self.positions[:N_CTX] @ basis[self.slices["position"]]
        final = self.length(sizes.n_layers)
        weights["W_U"] = self.level.gain * final * (self.outputs @ basis[self.slices["output"]]).T
        for (layer, h), (QK, OV) in self.heads.items():
            length = self.length(layer)
            self.write_head(weights, layer, h, QK, OV, basis, length)
        for name, tensor in weights.items():
            if not name.startswith("b_"):
                size = tensor.square().mean().sqrt()
                weights[name] = tensor + self.level.noise * size * torch.randn(
                    tensor.shape, generator=self.generator
                )
        return weights

    def length(self, layer: int) -> float:
        """Return by what a norm before this layer divides about; 1 without norms."""
        squared = 2.1 + 1.0 * (layer > 0)
        return math.sqrt(squared / self.sizes.d_model) if self.sizes.norm else 1.0

    def write_head(
        self,
        weights: Weights,
        layer: int,
        h: int,
        QK: Tensor,
        OV: Tensor,
        basis: Tensor,
        length: float,
    ) -> None:
        """Split the two matrices of a head, undo the norm, and store them at its place."""
        d_head = self.sizes.d_head
        left, right, bias = self.split(QK * math.sqrt(d_head))
        weights["W_Q"][layer, h] = basis.T @ left * length
        weights["W_K"][layer, h] = basis.T @ right.T * length
        weights["b_Q"][layer, h] = bias
        left, right, bias = self.split(OV)
        weights["W_V"][layer, h] = basis.T @ left * length
        weights["W_O"][layer, h] = right @ basis
        weights["b_V"][layer, h] = bias

    def split(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split a matrix into two factors of rank `d_head`; its last row becomes a bias."""
        d_head = self.sizes.d_head
        U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
        if S[d_head:].sum() > 1e-3 * S.sum():
            raise ValueError(f"The head has a rank of more than {d_head}.")
        turn = random_rotation(d_head, d_head, self.generator)
        left = U[:, :d_head] * S[:d_head].sqrt() @ turn
        right = turn.T @ (S[:d_head].sqrt()[:, None] * Vh[:d_head])
        return left[:-1], right, left[-1]


# Recipes. Each returns what it planted; `broken` and `empty` make its twins without a circuit.


def notes(
    sizes: Sizes,
    seed: int,
    level: Level,
    layers: tuple[int, int] = (0, 1),
    broken: bool = False,
    empty: str = "",
    n_alike: int = 1,
    n_scrambled: int = 0,
) -> Planted:
    """Plant a previous-token head that feeds the keys of an induction head.

    Parameters
    ----------
    sizes, seed, level : of the model
    layers : of the two heads
    broken : whether the note is scrambled by a rotation before it is written
    empty : "zero" or "random" for an induction head that writes nothing, or nothing useful
    n_alike : how many heads do the job of the first, each of which is enough
    n_scrambled : how many more heads attend to the previous token, and write a scrambled note
    """
    dims = 16 if sizes.d_model < 72 else 20
    model = Builder(sizes, seed, level, token=dims, position=12, note=dims, output=dims)
    note = model.rotation("token") if broken else torch.eye(dims)
    previous = [("position", "position", model.back(1))]
    first = [model.add(layers[0], previous, [("token", "note", note)]) for _ in range(n_alike)]
    for _ in range(n_scrambled):
        model.add(layers[0], previous, [("token", "note", model.rotation("token"))])
    outputs = {"": model.writes(), "zero": torch.zeros(dims, dims)}
    if empty == "random":
        outputs[empty] = torch.randn(dims, dims, generator=model.generator) / math.sqrt(8 * dims)
    second = model.add(
        layers[1],
        [("token", "note", model.beta * torch.eye(dims))],
        [("token", "output", outputs[empty])],
    )
    wires = [] if broken else [(head, second, "K") for head in first]
    return Planted(model.build(), [*first, second], wires, "repeat", {}, [])


def pointer(sizes: Sizes, seed: int, level: Level, broken: bool = False) -> Planted:
    """Plant a duplicate-token head that writes a position, from which an induction head counts on.

    Parameters
    ----------
    sizes, seed, level : of the model
    broken : whether the position is scrambled by a rotation before it is written
    """
    model = Builder(sizes, seed, level, token=16, position=12, pointer=12, output=16)
    place = model.rotation("position") if broken else torch.eye(12)
    first = model.add(
        0,
        [
            ("token", "token", 2 * model.beta * torch.eye(16)),
            ("position", "position", -model.beta * torch.eye(12)),
        ],
        [("position", "pointer", place)],
    )
    second = model.add(
        1,
        [("pointer", "position", 1.3 * model.beta * model.next)],
        [("token", "output", model.writes())],
    )
    wires = [] if broken else [(first, second, "Q")]
    return Planted(model.build(), [first, second], wires, "repeat", {}, [])


def two_tokens(sizes: Sizes, seed: int, level: Level) -> Planted:
    """Plant an induction head that compares two tokens: this one and the previous one."""
    model = Builder(sizes, seed, level, token=12, position=12, note=12, second=12, output=12)
    one, copy = torch.eye(12), torch.eye(12)
    first = model.add(0, [("position", "position", model.back(1))], [("token", "note", copy)])
    before = model.add(0, [("position", "position", model.back(2))], [("token", "second", copy)])
    last = model.add(
        1,
        [("token", "note", model.beta * one), ("note", "second", model.beta * one)],
        [("token", "output", model.writes())],
    )
    wires = [(first, last, "K"), (before, last, "K"), (first, last, "Q")]
    return Planted(model.build(), [first, before, last], wires, "two-token repeat", {}, [])


def skip_trigrams(sizes: Sizes, seed: int, level: Level, n: int = 4) -> Planted:
    """Plant a previous-token head that copies, and a head with `n` skip trigrams."""
    model = Builder(sizes, seed, level, token=sizes.d_vocab, position=12, output=20)
    copier = model.add(
        0,
        [("position", "position", model.back(1))],
        [("token", "output", 0.4 * model.writes())],
    )
    chosen = torch.randperm(sizes.d_vocab, generator=model.generator)[: 3 * n].reshape(3, n)
    source, destination, output = chosen
    E = model.tokens
    head = model.add(
        0,
        [("token", "token", model.beta / 2 * E[destination].T @ E[source])],
        [("token", "output", E[source].T @ model.outputs[output])],
    )
    data = {"trigrams": chosen.T.tolist()}
    lines = [(head, tuple(trigram)) for trigram in data["trigrams"]]
    return Planted(model.build(), [copier, head], [], "skip trigrams", data, lines)


def duplicate(sizes: Sizes, seed: int, level: Level, layer: int = 0, empty: str = "") -> Planted:
    """Plant a duplicate-token head, which raises the logit of the partner of a repeated token.

    Parameters
    ----------
    sizes, seed, level : of the model
    layer : of the head
    empty : "random" for a head that writes nothing useful
    """
    model = Builder(sizes, seed, level, token=16, position=12, output=16)
    output = model.writes(partner=True)
    if empty:
        output = torch.randn(16, 16, generator=model.generator) / math.sqrt(8 * 16)
    head = model.add(
        layer,
        [
            ("token", "token", 2 * model.beta * torch.eye(16)),
            ("position", "position", -model.beta * torch.eye(12)),
        ],
        [("token", "output", output)],
    )
    data = {"partner": model.partner.tolist()}
    return Planted(model.build(), [head], [], "duplicates", data, [])


def copying(
    sizes: Sizes, seed: int, level: Level, layer: int = 0, n_marked: int = 8, empty=""
) -> Planted:
    """Plant a head that attends to tokens with a mark, from everywhere, and copies them.

    Parameters
    ----------
    sizes, seed, level : of the model
    layer : of the head
    n_marked : number of tokens with the mark
    empty : "zero" for a head that writes nothing
    """
    model = Builder(sizes, seed, level, token=16, position=12, output=16, mark=1)
    marked = torch.randperm(sizes.d_vocab, generator=model.generator)[:n_marked]
    model.marked[marked] = 1.0
    output = torch.zeros(16, 16) if empty else model.writes()
    head = model.add(
        layer, [], [("token", "output", output)], query=("mark", torch.tensor([model.beta / 2]))
    )
    data = {"marked": marked.tolist()}
    return Planted(model.build(), [head], [], "marked", data, [])


def bias(
    sizes: Sizes, seed: int, level: Level, layer: int = 0, reads_first: bool = False
) -> Planted:
    """Plant a head that attends to the first token only and always writes the same.

    Parameters
    ----------
    sizes, seed, level : of the model
    layer : of the head
    reads_first : whether the output comes from the position of the first token, and not from a bias
    """
    model = Builder(sizes, seed, level, token=16, position=16, output=16)
    first = model.positions[0]
    output = 8 / level.gain * torch.randn(16, generator=model.generator) / math.sqrt(16)
    head = model.add(
        layer,
        [],
        [("position", "output", torch.outer(first, output))] if reads_first else [],
        query=("position", model.beta * first),
        constant=None if reads_first else ("output", output),
    )
    log_odds = level.gain * model.outputs @ output
    return Planted(model.build(), [head], [], "frequencies", {"log_odds": log_odds.tolist()}, [])


def virtual(
    sizes: Sizes, seed: int, level: Level, layers: tuple[int, int] = (0, 1), broken: bool = False
) -> Planted:
    """Plant two previous-token heads; the values of the second are the notes of the first.

    Parameters
    ----------
    sizes, seed, level : of the model
    layers : of the two heads
    broken : whether the second head reads a subspace into which nobody writes
    """
    model = Builder(sizes, seed, level, token=16, position=12, note=16, spare=8, output=16)
    first = model.add(
        layers[0], [("position", "position", model.back(1))], [("token", "note", torch.eye(16))]
    )
    reads = (
        ("spare", "output", model.writes()[:8]) if broken else ("note", "output", model.writes())
    )
    second = model.add(layers[1], [("position", "position", model.back(1))], [reads])
    wires = [] if broken else [(first, second, "V")]
    return Planted(model.build(), [first, second], wires, "two back", {}, [])
