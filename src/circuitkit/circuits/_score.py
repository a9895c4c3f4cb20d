"""One attention score as a sum over pairs: a component on the query side with a component on the key side."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._blocks import largest_entries
from circuitkit._contract import AnyModel, Count, HeadName, Natural, ids, must, public
from circuitkit.anatomy import anatomy
from circuitkit.anatomy._engine import run_of


@public
class ScoreDecomposition(NamedTuple):
    """What `score_decomposition` returns: two sides, whose products, one for each pair, add up to the score.

    No pair is formed before it is asked for. **Source**: see `score_decomposition`.
    """

    queries: Float[Tensor, "query d_head"]
    """What each component at the destination asks for, over the head's scale."""
    keys: Float[Tensor, "key d_head"]
    """What each component at the source offers."""
    components: tuple[str, ...]
    """`"embed"`, `"pos"`, earlier heads, their `"L0 bias"`, MLPs or neuron-heads, and `"bias"`; the same on both sides."""

    @property
    def table(self) -> Float[Tensor, "query key"]:
        """`table[i, j]`: component `i` at the destination, read as a query, against component `j` at the source, as a key."""
        return self.queries @ self.keys.T

    @property
    def score(self) -> float:
        """The whole attention score before mask and softmax: the sum over all pairs."""
        return float(self.queries.sum(0) @ self.keys.sum(0))

    @property
    def query(self) -> Float[Tensor, " query"]:
        """Each component's share on the query side, summed over keys."""
        return self.queries @ self.keys.sum(0)

    @property
    def key(self) -> Float[Tensor, " key"]:
        """Each component's share on the key side, summed over queries."""
        return self.keys @ self.queries.sum(0)

    def by_neuron(self) -> "ScoreDecomposition":
        """The heads of a neuron added up to one component, `"L0N37"`: alone they are large and cancel."""
        names = [name.partition(".")[0] for name in self.components]
        place = {name: i for i, name in enumerate(dict.fromkeys(names))}
        to = torch.tensor([place[name] for name in names], device=self.queries.device)
        left, right = (side.new_zeros(len(place), side.shape[1]).index_add(0, to, side) for side in (self.queries, self.keys))
        return ScoreDecomposition(left, right, tuple(place))

    def largest(self, k: Count = 5) -> list[tuple[str, str, float]]:
        """The `k` pairs of largest size: (query component, key component, share). Pairs are formed a block at a time."""
        ends = []
        for sign in (1, -1):
            values, rows, columns = largest_entries(sign * self.queries, self.keys.T, min(k, len(self.components) ** 2))
            ends += zip((sign * values).tolist(), rows.tolist(), columns.tolist(), strict=True)
        best = sorted(dict.fromkeys(ends), key=lambda end: -abs(end[0]))[:k]
        return [(self.components[i], self.components[j], share) for share, i, j in best]


@public
@ids()
@must(lambda dst, src, row, tokens: (src <= dst < tokens.shape[-1] and row < (len(tokens) if tokens.ndim == 2 else 1))
     or f"0 <= src <= dst < {tokens.shape[-1]} and a row of the batch, because a head looks back. Count from 0")
def score_decomposition(
    model: AnyModel,
    tokens: Int[Tensor, "*batch pos"],
    head: HeadName,
    dst: Natural,
    src: Natural,
    *,
    row: Natural = 0,
    neurons: bool | None = None,
) -> ScoreDecomposition:
    r"""Who makes a head look there: its score at (`dst`, `src`) split by what earlier components wrote.

    $s = \sum_{i,j} (c_i W_Q) (c_j W_K)^\top / \sqrt{d_{head}}$ over the components $c$ of the stream at the destination and
    at the source; norms frozen, rotations by the distance, a soft cap behind the sum. `b_Q`, `b_K` and the norm's bias are
    the component `"bias"`. `neurons`: whether neuron-heads of a converted model stand for themselves (left out: where it has
    at most 1024). **Shapes**: `row` picks from a batch. **Error**: exact up to rounding. **Source**: "A Mathematical
    Framework for Transformer Circuits", the table behind Q- and K-composition.
    """
    value, rows = anatomy(model), tokens[None] if tokens.ndim == 1 else tokens
    apart = value.few_neurons() if neurons is None else neurons
    names, queries, keys = run_of(model, rows[[row]]).score_sides(value.head_name(head), dst, src, neurons=apart)
    return ScoreDecomposition(queries, keys, names)
