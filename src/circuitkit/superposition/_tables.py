"""Attention of position-free one-hot models as arithmetic on token counts: exact, and more than ten times faster.

Without positions a row depends only on its own token `a` and on how often each token `b` occurs up to it, `c[b]`:

    z_h(a, c) = sum_b c[b] e^{S_h(a,b)} g_h(a,b) v_h(b)  /  sum_b c[b] e^{S_h(a,b)}

because equal keys have equal scores, gates and values. So scores, gates and values are tables over pairs of tokens, equal
rows of a batch are computed once and weighted, and both sums are one matrix product with the counts.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._precision import finest, near
from circuitkit.superposition._block import EPSILON, across_heads, activation, effective, most_active, write_penalty
from circuitkit.superposition._recipe import Recipe


@dataclass(frozen=True)
class CountBatch:
    """The distinct rows of one batch, grouped by their own token and padded: `counts[token, row, key]`."""

    counts: Float[Tensor, "d_vocab row d_vocab"]
    weight: Float[Tensor, "d_vocab row"]
    """How often the row occurs; 0 for padding."""
    index: Int[Tensor, "d_vocab row"]
    """One place of the flattened batch where the row occurs."""
    row: Int[Tensor, " place"]
    """Of each place of the flattened batch, the number of its row among all, `token * rows + row`."""
    pairs_all: Float[Tensor, "d_vocab d_vocab"]
    """Share of all query-key pairs of the batch, by tokens; sums to 1. Likewise `pairs_causal` for causal pairs."""
    pairs_causal: Float[Tensor, "d_vocab d_vocab"]
    n_rows: int


def count_batch(tokens: Int[Tensor, "prompt pos"], d_vocab: int, dtype: torch.dtype = torch.float32) -> CountBatch:
    """Distinct rows of a batch of prompts. **Error**: none; every row is in it, with its multiplicity."""
    (n, pos), place = tokens.shape, tokens.device
    one_hot = torch.zeros(n, pos, d_vocab, dtype=torch.int32, device=place).scatter_(2, tokens[..., None], 1)
    counts = one_hot.cumsum(1, dtype=torch.int32)
    pairs_causal = torch.einsum("npa,npb->ab", finest(one_hot), finest(counts))
    total = finest(one_hot.sum(1))
    pairs_all = total.T @ total
    keys = torch.cat([tokens.reshape(-1, 1).to(torch.int32), counts.reshape(-1, d_vocab)], 1)
    rows, inverse, weight = _unique(keys, pos)
    first = torch.empty(len(rows), dtype=torch.long, device=place).scatter_(0, inverse, torch.arange(len(keys), device=place))
    own = rows[:, 0].long()
    sizes = torch.bincount(own, minlength=d_vocab)
    width = int(sizes.max())
    slot = torch.arange(len(rows), device=place) - (sizes.cumsum(0) - sizes)[own]  # rows are sorted by their own token
    padded = torch.zeros(d_vocab, width, d_vocab, dtype=dtype, device=place)
    padded[:, :, 0] = 1.0  # a padding row counts one key, so that its denominator is not 0; its weight is 0
    padded[own, slot] = rows[:, 1:].to(dtype)
    weights, index = (torch.zeros(d_vocab, width, dtype=kind, device=place) for kind in (dtype, torch.long))
    weights[own, slot], index[own, slot] = weight.to(dtype), first
    every, causal = ((pairs / pairs.sum()).to(dtype) for pairs in (pairs_all, pairs_causal))
    return CountBatch(padded, weights, index, (own * width + slot)[inverse], every, causal, n * pos)


def _unique(keys: Int[Tensor, "row column"], largest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows in lexical order, each row's number among them, and multiplicities."""
    base, width = largest + 1, keys.shape[1] - 1
    if base**width * width < 2**62:  # the counts of a row fit into one integer
        code = keys[:, 0].long()
        for column in range(1, width + 1):
            code = code * base + keys[:, column]
        _, inverse, weight = code.unique(return_inverse=True, return_counts=True)
    else:
        _, inverse, weight = keys.unique(dim=0, return_inverse=True, return_counts=True)
    rows = keys.new_empty(len(weight), keys.shape[1])
    rows[inverse] = keys
    return rows, inverse, weight


def pair_tables(
    recipe: Recipe, p: dict[str, Tensor], embed: Float[Tensor, "d_vocab d_model"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`(S, gate, v, W_O)`: scores and gates `[run, head, dst token, src token]`, values `[run, head, token, d_head]`."""

    def read(weight: str, bias: str) -> Tensor:
        return torch.einsum("am,rhmd->rhad", embed, p[weight]) + p[bias][:, :, None]

    W_V, b_V, W_O = effective(recipe, p)
    scores = read("W_Q", "b_Q") @ read("W_K", "b_K").transpose(-2, -1) / recipe.d_head**0.5
    gate = activation(recipe.gate, read("W_GQ", "b_GQ") @ read("W_GK", "b_GK").transpose(-2, -1))
    v = torch.einsum("am,rhmd->rhad", embed, W_V) + b_V[:, :, None]
    if recipe.share > 1:
        scores, gate = (part.repeat_interleave(recipe.share, 1) for part in (scores, gate))
    return scores, gate, v, W_O


def mixed(batch: CountBatch, scores: Tensor, gate: Tensor, v: Tensor) -> Float[Tensor, "run token row head d_head"]:
    """`z` of the module docstring for every distinct row.

    Scores are centred within their row of the table; if they differ by less than `SAFE` no sum overflows or loses a key.
    Beyond that the sums are made in float64. Beyond its range, too, and where asking would wait for a device at each step, a
    softmax over `scores + log(counts)`: many times slower and always right.
    """
    parts, spread = (batch.counts, scores, gate, v), score_range(scores) if near(scores) else math.inf
    if spread < SAFE[scores.dtype]:
        return _sums(*parts)
    return _sums(*map(finest, parts)).to(v.dtype) if spread < SAFE[torch.float64] else _softmax(*parts)


def _sums(counts: Tensor, scores: Tensor, gate: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        centre = (scores.amax(-1, keepdim=True) + scores.amin(-1, keepdim=True)) / 2
    e = (scores - centre).exp()
    # Two products: a slice of one joined product would have its gradient filled with zeros and added.
    summed = (torch.einsum("rhab,rhbd->abrhd", e * gate, v), e.permute(2, 3, 0, 1)[..., None])
    top, total = (torch.bmm(counts, part.flatten(2)).unflatten(2, part.shape[2:]) for part in summed)
    return (top / total).permute(2, 0, 1, 3, 4)


def _softmax(counts: Tensor, scores: Tensor, gate: Tensor, v: Tensor) -> Tensor:
    pattern = (scores[:, :, :, None] + counts.log()).softmax(-1)  # [run, head, token, row, key]
    return torch.einsum("rhanb,rhab,rhbd->ranhd", pattern, gate, v)


SAFE = {torch.float32: 160.0, torch.float64: 1400.0}


def score_range(scores: Tensor) -> float:
    """Largest difference of two scores of the same query, which decides how `mixed` adds them up."""
    return float((scores.detach().amax(-1) - scores.detach().amin(-1)).max())


def loss_terms(
    recipe: Recipe,
    p: dict[str, Tensor],
    embed: Float[Tensor, "d_vocab d_model"],
    batch: CountBatch,
    target: Float[Tensor, "d_vocab row d_model"],
    target_l1: float,
    target_rms: float,
    active: int | None = None,
) -> tuple[Float[Tensor, "run"], Float[Tensor, "run"]]:
    """Mean over rows of the squared error, and the penalty without alpha, one number a run: as `GatedBlock` has them, up to
    rounding.
    """
    scores, gate, v, W_O = pair_tables(recipe, p, embed)
    z = mixed(batch, scores, gate, v)
    if recipe.top_k is not None:
        z = most_active(z[..., 0], W_O[:, None, None, :, 0].norm(dim=-1), active or recipe.top_k)[..., None]
    r, a, n, h, d = z.shape
    out = z.reshape(r, a * n, h * d) @ W_O.reshape(r, h * d, -1)
    weight = (batch.weight / batch.n_rows).view(-1)
    error = (out - target.view(1, a * n, -1)).square().sum(-1) @ weight
    if recipe.penalty == "gate":
        share = batch.pairs_all if recipe.pairs == "all" else batch.pairs_causal
        return error, (across_heads(gate, recipe.power, axis=1) * share).sum((-2, -1))
    if recipe.penalty == "write":
        rows = write_penalty(z[..., 0].reshape(r, a * n, h), W_O[:, :, 0], recipe.power)
        return error, rows @ weight / target_l1
    if recipe.penalty == "write_norm":
        return error, length_penalty(z, W_O, recipe.power).view(r, -1) @ weight / target_rms
    return error, torch.zeros_like(error)


def length_penalty(z: Float[Tensor, "run token row head d_head"], W_O: Tensor, power: float) -> Float[Tensor, "run token row"]:
    """`(sum_h |o_h|^power)^(1 / power)` for what each head writes in a row, `o_h = z_h W_O_h`, without writing it out."""
    gram = torch.einsum("rhdm,rhem->rhde", W_O, W_O)
    square = torch.einsum("ranhd,rhde,ranhe->ranh", z, gram, z)
    return across_heads((square + EPSILON**2).sqrt(), power, axis=-1)
