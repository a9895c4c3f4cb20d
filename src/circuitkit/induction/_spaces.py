"""Named subspaces of the residual stream, and heads defined by what they do to them."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._heads import Heads

#: A source subspace, a target subspace and the matrix between them, rows for the source.
Action = tuple[str, str, Tensor]


class Spaces:
    """Orthogonal subspaces that share out the residual stream: `Spaces(token=5, position=8).d_model == 13`."""

    def __init__(self, **sizes: int):
        self.sizes = sizes
        ends = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
        self.places = {name: slice(*ends[i : i + 2]) for i, name in enumerate(sizes)}
        self.d_model = ends[-1]

    def directions(self, name: str) -> Float[Tensor, "n d_model"]:
        """The unit vectors that span a subspace, one row each."""
        return torch.eye(self.d_model)[self.places[name]]

    def head(self, name: str, layer: int, looks: Sequence[Action], moves: Sequence[Action], d_head: int) -> Heads:
        r"""The head whose score is $\sum q B k^\top$ over `looks` and whose output is $\sum x M$ over `moves`.

        Each look `(query space, key space, B)` reads the destination in one subspace and the source in another; each move
        `(from, to, M)` carries the source's content from one into another. *Proof*: every action gets head dimensions of its
        own, one for each column of $B$ that is not zero, where $W_Q = B$ and $W_K$ is the identity, and one for each row of
        $M$ that is not zero, where $W_V$ is the identity and $W_O = M$. $W_Q$ carries the factor sqrt(d_head) that scores are
        divided by. **Source**: tracr's idea of deriving a matrix from its action.
        """
        W_Q, W_K, W_V = (torch.zeros(self.d_model, d_head) for _ in range(3))
        W_O, used = torch.zeros(d_head, self.d_model), 0
        for query, key, block in looks:
            columns = block.any(0).nonzero()[:, 0]
            room = slice(used, used := used + len(columns))
            W_Q[self.places[query], room] = block[:, columns] * math.sqrt(d_head)
            W_K[self.places[key], room] = torch.eye(self.sizes[key])[:, columns]
        used = 0
        for source, target, block in moves:
            rows = block.any(1).nonzero()[:, 0]
            room = slice(used, used := used + len(rows))
            W_V[self.places[source], room] = torch.eye(self.sizes[source])[:, rows]
            W_O[room, self.places[target]] = block[rows]
        return Heads((name,), W_Q[None], W_K[None], W_V[None], W_O[None], layers=(layer,))


def shift(n: int, by: int) -> Float[Tensor, "n n"]:
    """The matrix that sends direction `j` to direction `j + by`, and to nothing where that is out of range."""
    return torch.eye(n).roll(by, dims=1) * (torch.ones(n, n).triu(by) if by >= 0 else torch.ones(n, n).tril(by))
