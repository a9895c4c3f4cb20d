"""One attention score as a sum over pairs: a component on the query side with a component on the key side."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, HeadName, Natural, ids, must, public
from circuitkit.anatomy import anatomy
from circuitkit.anatomy._engine import run_of


@public
class ScoreDecomposition(NamedTuple):
    """What `score_decomposition` returns.

    `score` is the sum of `table`. **Source**: see `score_decomposition`.
    """

    table: Float[Tensor, "query key"]
    """`table[i, j]`: component `i` at the destination, read as a query, against component `j` at the source, as a key."""
    components: tuple[str, ...]
    """`"embed"`, `"pos"`, earlier heads, their `"L0 bias"`, MLPs or neuron-heads, and `"bias"`; the same on both sides."""
    score: float
    """The whole attention score before mask and softmax: the sum of the table."""

    @property
    def query(self) -> Float[Tensor, " query"]:
        """Each component's share on the query side, summed over keys."""
        return self.table.sum(1)

    @property
    def key(self) -> Float[Tensor, " key"]:
        """Each component's share on the key side, summed over queries."""
        return self.table.sum(0)

    def largest(self, k: Count = 5) -> list[tuple[str, str, float]]:
        """The `k` pairs of largest size: (query component, key component, share)."""
        order = self.table.abs().flatten().topk(min(k, self.table.numel())).indices.tolist()
        width = len(self.components)
        return [
            (self.components[i // width], self.components[i % width], self.table.flatten()[i].item()) for i in order
        ]


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

    $s = \sum_{i,j} (c_i W_Q) (c_j W_K)^\top / \sqrt{d_{head}}$ over the components $c$ of the residual stream at the
    destination and at the source.

    **Norms**: scales are frozen, so the sum stays exact. **Biases**: `b_Q`, `b_K` and the norm's bias are the component
    `"bias"`. **Rotary positions**: rotated by the distance. A soft cap comes behind the sum. `neurons`: whether neuron-heads
    of a converted model stand for themselves (left out: where it has at most 1024 of them).
    **Shapes**: `row` picks from a batch. **Error**: exact up to rounding.
    **Source**: "A Mathematical Framework for Transformer Circuits", where it is the table behind Q- and K-composition.
    """
    value, rows = anatomy(model), tokens[None] if tokens.ndim == 1 else tokens
    apart = value.few_neurons() if neurons is None else neurons
    names, table = run_of(model, rows[[row]]).score_table(value.head_name(head), dst, src, neurons=apart)
    return ScoreDecomposition(table, names, table.sum().item())
