"""Induction heads whose every weight follows from what it does to named directions."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, Positive, Several, Vocabulary, must, public
from circuitkit._heads import Heads, stack
from circuitkit.anatomy import from_heads, to_bridge

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

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


def _sharp(sharpness: float, n_ctx: int) -> Any:
    """Below this the stated bound is empty, so the model would not be what its name says."""
    least = math.log(n_ctx) + 3
    return least <= sharpness <= 1000 or (
        f"{least:.1f} to 1000 for n_ctx={n_ctx}, because attention off its target is up to n_ctx * exp(-sharpness), and float32 "
        "scores above 1000 lose the digits that tell positions apart. The default is 40"
    )


@public
@must(_sharp)
def build_induction_model(
    vocab: Vocabulary,
    n_ctx: Several,
    *,
    method: Literal["k-composition", "pointer"] = "k-composition",
    sharpness: Positive = 40.0,
    gain: Positive = 20.0,
) -> "TransformerBridge":
    r"""A two-layer attention-only model that continues repeated tokens, with heads L0H0 and L1H0 made by hand.

    Stream: one direction for each token, one for each position, one memory that layer 0 writes, one output that `W_U` reads.
    With $\beta$ = `sharpness`:

    * `"k-composition"`. L0H0 looks one position back (score $\beta$ there, 0 elsewhere) and writes the token it finds
      into *previous*. L1H0 scores $\beta$ where *previous* holds the destination's token, and copies the token there.
      At position 0 L0H0 can only look at itself; L1H0 subtracts $2\beta$ there.
    * `"pointer"` (Q-composition). L0H0 scores $2\beta$ for the same token and $-\beta$ for the same position, so an earlier
      copy wins, and writes the *position* it finds into *pointer*. L1H0 looks one after it, and copies the token there.

    **Error**. If the token occurred $m \ge 1$ times before, L1H0's weight on the positions after these occurrences is at
    least $1 - n e^{-\beta (c - 2\epsilon)}$ with $\epsilon = n e^{-\beta}$, $n$ = `n_ctx`, and $c = 1$ for k-composition, $c
    = 1/m$ for the pointer. *Proof*: a softmax with one score at least $\beta$ above the at most $n$ others puts at least $1 -
    n e^{-\beta}$ on it, so layer 0 writes the wanted direction with weight at least $1 - \epsilon$ (the pointer, $1/m$ of
    that for each occurrence) and the others with at most $\epsilon$; scores of layer 1 then differ by at least $\beta (c - 2
    \epsilon)$. For $\beta = 40$ and $n = 256$ it is $10^{-15}$. `gain` times the weight is the logit of a token; without an
    earlier occurrence L1H0 spreads evenly. **Shapes**: `vocab` a number of tokens or the tokens; `d_model` is 3 or 2 `vocab`
    + 1 or 2 `n_ctx`. **Source**: the exercises of "A Mathematical Framework for Transformer Circuits" (both mechanisms).

    >>> model = build_induction_model(5, 8)
    >>> model(torch.tensor([[3, 1, 4, 3]])).argmax(-1)[0, -1].item()
    1
    """
    n_tokens = vocab if isinstance(vocab, int) else len(vocab)
    token, place = torch.eye(n_tokens), torch.eye(n_ctx)
    if method == "k-composition":
        spaces = Spaces(token=n_tokens, position=n_ctx, previous=n_tokens, output=n_tokens)
        d_head = max(n_ctx, n_tokens + 1)
        at_zero = torch.zeros(n_ctx, n_ctx)
        at_zero[:, 0] = -2 * sharpness
        match = [("token", "previous", sharpness * token), ("position", "position", at_zero)]
        first = spaces.head("L0H0", 0, _back(1, n_ctx, sharpness), [("token", "previous", token)], d_head)
        second = spaces.head("L1H0", 1, match, [("token", "output", token)], d_head)
    else:
        spaces = Spaces(token=n_tokens, position=n_ctx, pointer=n_ctx, output=n_tokens)
        d_head = n_tokens + n_ctx
        same = [("token", "token", 2 * sharpness * token), ("position", "position", -sharpness * place)]
        after = [("pointer", "position", sharpness * shift(n_ctx, 1))]
        first = spaces.head("L0H0", 0, same, [("position", "pointer", place)], d_head)
        second = spaces.head("L1H0", 1, after, [("token", "output", token)], d_head)
    return _model(spaces, stack(first, second), gain)


@public
@must(_sharp)
@must(lambda back, n_ctx: sum(back) < n_ctx or "two positive distances whose sum is below n_ctx. Use smaller ones")
def build_virtual_head_model(
    vocab: Vocabulary,
    n_ctx: Several,
    *,
    back: tuple[Count, Count] = (1, 2),
    sharpness: Positive = 40.0,
    gain: Positive = 20.0,
) -> "TransformerBridge":
    r"""Two heads that compose through V into one virtual head: the model predicts the token `sum(back)` positions ago.

    L0H0 looks `back[0]` positions back and writes the token there into *carried*; L1H0 looks `back[1]` positions back and moves
    *carried* to the output. The virtual head has the pattern $A^1 A^0$ and the matrix $W_{OV}^0 W_{OV}^1$. **Error**: the weight
    on the wanted token is at least $1 - 2 n e^{-\beta}$ from position `sum(back)` on, by the argument of `build_induction_model`
    twice; before it heads spread evenly. **Source**: the exercises of "A Mathematical Framework for Transformer Circuits".

    >>> model = build_virtual_head_model(5, 8)
    >>> model(torch.tensor([[3, 1, 4, 2, 0]])).argmax(-1)[0, 3:].tolist()
    [3, 1]
    """
    n_tokens = vocab if isinstance(vocab, int) else len(vocab)
    token = torch.eye(n_tokens)
    spaces = Spaces(token=n_tokens, position=n_ctx, carried=n_tokens, output=n_tokens)
    d_head = max(n_ctx, n_tokens)
    first = spaces.head("L0H0", 0, _back(back[0], n_ctx, sharpness), [("token", "carried", token)], d_head)
    second = spaces.head("L1H0", 1, _back(back[1], n_ctx, sharpness), [("carried", "output", token)], d_head)
    return _model(spaces, stack(first, second), gain)


def _back(by: int, n_ctx: int, sharpness: float) -> list:
    """Look `by` positions back: query position `j` scores `sharpness` on key position `j - by`."""
    return [("position", "position", sharpness * shift(n_ctx, -by))]


def _model(spaces: Spaces, heads, gain: float) -> "TransformerBridge":
    W_U = gain * spaces.directions("output").T
    return to_bridge(from_heads(heads, spaces.directions("token"), W_U, spaces.directions("position")))
