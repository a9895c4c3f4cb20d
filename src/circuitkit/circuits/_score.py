"""One attention score as a sum over pairs: a component on the query side with a component on the key side."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Count, HeadName, Model, Natural, ids, must, public, unconverted
from circuitkit._precision import require_same
from circuitkit.circuits._frozen import Frozen, freeze
from circuitkit.circuits._rotary import rotation


@public
class ScoreDecomposition(NamedTuple):
    """What `score_decomposition` returns.

    `score` is the sum of `table`. **Source**: see `score_decomposition`.
    """

    table: Float[Tensor, "query key"]
    """`table[i, j]`: component `i` at the destination, read as a query, against component `j` at the source, as a key."""
    components: tuple[str, ...]
    """`"embed"`, `"pos_embed"`, earlier heads and MLPs by name, and `"bias"`; the same on both sides."""
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
@unconverted
@ids()
@must(lambda dst, src, row, tokens: (src <= dst < tokens.shape[-1] and row < (len(tokens) if tokens.ndim == 2 else 1))
     or f"0 <= src <= dst < {tokens.shape[-1]} and a row of the batch, because a head looks back. Count from 0")
def score_decomposition(
    model: Model, tokens: Int[Tensor, "*batch pos"], head: HeadName, dst: Natural, src: Natural, *, row: Natural = 0
) -> ScoreDecomposition:
    r"""Who makes a head look there: its score at (`dst`, `src`) split by what earlier components wrote.

    $s = \sum_{i,j} (c_i W_Q) (c_j W_K)^\top / \sqrt{d_{head}}$ over the components $c$ of the residual stream at the
    destination and at the source.

    **Norms**: the scale before the layer is frozen, so the sum stays exact. **Biases**: `b_Q`, `b_K`, earlier `b_O` and
    the norm's bias are the component `"bias"`. **Rotary positions**: rotated by the distance, for native models.
    **Shapes**: `row` picks from a batch. **Error**: exact up to rounding, and checked against the model's own pattern.
    **Source**: "A Mathematical Framework for Transformer Circuits", where it is the table behind Q- and K-composition.
    """
    frozen = freeze(model, tokens, "score_decomposition")
    stack = frozen.heads[head]
    n_rows = len(frozen.logits)
    layer = stack.layers[0]
    parts, bias = _components(frozen, layer, row)
    names, read = (*parts, "bias"), frozen.norms[layer].linear(_padded(torch.stack(list(parts.values())), n_rows, row))
    read = read[:, row]
    constant = frozen.norms[layer].linear(_padded(bias[None], n_rows, row))[0, row]
    if (shift := frozen.norms[layer].bias) is not None:
        constant = constant + shift
    streams = torch.cat([read, constant[None]])
    queries, keys = streams @ stack.W_Q[0], streams @ stack.W_K[0]
    if stack.b_Q is not None:
        queries[-1] += stack.b_Q[0]
    if stack.b_K is not None:
        keys[-1] += stack.b_K[0]
    table = _turned(model, stack, layer, queries[:, dst], dst - src) @ keys[:, src].T / stack.scale
    _check(model, frozen, stack, layer, queries.sum(0)[dst], keys.sum(0), row, dst)
    return ScoreDecomposition(table, names, table.sum().item())


def _components(frozen: Frozen, layer: int, row: int) -> tuple[dict[str, Tensor], Tensor]:
    """What stands in the stream before `layer`: `[pos, d_model]` for each component, and all earlier biases."""
    parts = {name: start[row] for name, start in frozen.starts.items()}
    bias = torch.zeros_like(parts["embed"])
    for number in range(layer):
        heads, norm = frozen.layer(number), frozen.norms[number]
        stream = torch.stack(list(parts.values())).sum(0) + bias
        stream = norm.linear(_padded(stream[None], len(frozen.logits), row))[0, row]
        read = stream if norm.bias is None else stream + norm.bias
        written = heads.results(read, frozen.patterns[number][row])
        if (own := frozen.output_biases[number]) is not None:
            bias = bias + own
        parts |= dict(zip(heads.names, written, strict=True))
        if (mlp := frozen.mlps[number]) is not None:
            parts[f"MLP{number}"] = mlp[row]
    return parts, bias


def _padded(x: Float[Tensor, "path pos d_model"], n_rows: int, row: int) -> Float[Tensor, "path batch pos d_model"]:
    """The same streams in the batch the norms were frozen on; other rows are zero."""
    out = x.new_zeros(x.shape[0], n_rows, *x.shape[1:])
    out[:, row] = x
    return out


def _turned(model: Any, stack: Any, layer: int, queries: Tensor, distance: int) -> Tensor:
    if stack.positions != "rotary":
        return queries
    return queries @ rotation(model, layer, distance).to(queries)


def _check(model: Any, frozen: Frozen, stack: Any, layer: int, query: Tensor, keys: Tensor, row: int, dst: int) -> None:
    """Softmax of our scores must be the model's pattern, or we left something out."""
    turned = [_turned(model, stack, layer, query, dst - src) @ keys[src] for src in range(dst + 1)]
    ours = (torch.stack(turned) / stack.scale).softmax(-1)
    theirs = frozen.patterns[layer][row, frozen.layer(layer).index(stack.names[0]), dst, : dst + 1]
    text = f"score_decomposition: softmax(q k^T / {stack.scale:g}) of {stack.names[0]} is not the model's own pattern. It changes scores on "
    text += "the way (a soft cap, norms of queries and keys, added distances, a window), and that is not known here"
    require_same(ours, theirs, 1e-3, text)
