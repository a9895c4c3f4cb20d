"""Attention on one-hot tokens without positions, computed from counts of tokens.

In a toy model a score depends on two tokens only, and so does a gate. A row (a position of a
prompt) then depends on its own token `a` and on how often it sees each token `b`:

    z[a, row] = sum_b counts[row, b] E[a, b] gate[a, b] v[b] / sum_b counts[row, b] E[a, b]

with `E = exp(score)`. Rows with the same token and the same counts are equal, so each is computed
once, with its multiplicity as its weight. Rows are grouped by their own token, and both sums are
matrix products. The result is exact.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.superposition import GatedBlock
from circuitkit.superposition.block import Recipe
from circuitkit.superposition.gated_training import GatedRuns, record_layer, seed_of
from circuitkit.training import fit
from circuitkit_book.superposition_task import train_on_task

WIDEST = 160.0
"""Scores of one table row may differ by this much before sums of their exponentials lose keys."""


@dataclass(frozen=True)
class CountBatch:
    """The distinct rows of some prompts, grouped by their own token and padded.

    Parameters
    ----------
    counts : `[d_vocab, row, d_vocab]`, how often a row sees each token
    weight : `[d_vocab, row]`, the share of all rows that are equal to this one; 0 for padding
    index : `[d_vocab, row]`, one place of the flattened prompts where the row occurs
    row : for each place of the flattened prompts, its row in `weight`, flattened
    all_pairs, causal_pairs : `[d_vocab, d_vocab]`, shares of all and of causal pairs, by tokens
    """

    counts: Float[Tensor, "d_vocab row d_vocab"]
    weight: Float[Tensor, "d_vocab row"]
    index: Int[Tensor, "d_vocab row"]
    row: Int[Tensor, " place"]
    all_pairs: Float[Tensor, "d_vocab d_vocab"]
    causal_pairs: Float[Tensor, "d_vocab d_vocab"]


def count_batch(
    tokens: Int[Tensor, "prompt pos"], d_vocab: int, dtype: torch.dtype = torch.float32
) -> CountBatch:
    """The distinct rows of some prompts."""
    one_hot = torch.nn.functional.one_hot(tokens, d_vocab)  # [prompt, pos, token]
    counts = one_hot.cumsum(1)
    keys = torch.cat([tokens[..., None], counts], -1).flatten(0, 1)
    rows, inverse, n_equal = keys.unique(dim=0, return_inverse=True, return_counts=True)
    place = torch.empty(len(rows), dtype=torch.long)
    place[inverse] = torch.arange(len(keys))
    own = rows[:, 0]  # rows are sorted by it
    n_rows = torch.bincount(own, minlength=d_vocab)
    first = n_rows.cumsum(0) - n_rows
    slot = torch.arange(len(rows)) - first[own]
    width = int(n_rows.max())
    padded = torch.zeros(d_vocab, width, d_vocab, dtype=dtype)
    padded[:, :, 0] = 1.0  # padding sees one key, so that it does not divide by 0
    padded[own, slot] = rows[:, 1:].to(dtype)
    weight = torch.zeros(d_vocab, width, dtype=dtype)
    weight[own, slot] = n_equal.to(dtype) / len(keys)
    index = torch.zeros(d_vocab, width, dtype=torch.long)
    index[own, slot] = place
    totals = one_hot.sum(1).double()
    all_pairs = totals.T @ totals
    causal_pairs = torch.einsum("npa,npb->ab", one_hot.double(), counts.double())
    shares = [(pairs / pairs.sum()).to(dtype) for pairs in (all_pairs, causal_pairs)]
    return CountBatch(padded, weight, index, (own * width + slot)[inverse], *shares)


Parameters = dict[str, Float[Tensor, "run ..."]]
"""The parameters of several blocks, with a leading axis of runs."""


def used_weights(block: GatedBlock, p: Parameters) -> tuple[Tensor, Tensor]:
    """W_V and W_O of all runs, normalised and scaled as the block does it."""
    W_V, W_O = p["W_V"], p["W_O"]
    if block.recipe.normalise:
        W_V = W_V / W_V.square().sum(-2, keepdim=True).sqrt()
        W_O = W_O / W_O.square().sum(-1, keepdim=True).sqrt()
    return W_V, W_O * p["output_scale"][:, None, None, None]


def pair_tables(
    block: GatedBlock, p: Parameters, W_E: Float[Tensor, "d_vocab d_model"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and gates `[run, head, dst token, src token]`, values `[run, head, token, d_head]`."""

    def read(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.einsum("am,rhmd->rhad", W_E, weight) + bias[:, :, None]

    q, k = read(p["W_Q"], p["b_Q"]), read(p["W_K"], p["b_K"])
    scores = q @ k.mT / math.sqrt(block.recipe.d_head)
    gate_scores = read(p["W_GQ"], p["b_GQ"]) @ read(p["W_GK"], p["b_GK"]).mT
    gate = block.recipe.gate
    gates = torch.ones_like(scores) if gate is None else gate(gate_scores)
    return scores, gates, read(used_weights(block, p)[0], p["b_V"])


def gathered(
    counts: Float[Tensor, "token row key"], scores: Tensor, gates: Tensor, v: Tensor
) -> Float[Tensor, "run token row head d_head"]:
    """z of every distinct row."""
    high, low = scores.detach().amax(-1, keepdim=True), scores.detach().amin(-1, keepdim=True)
    if float((high - low).max()) > WIDEST:
        # exact for any scores, and many times slower
        pattern = (scores[:, :, :, None] + counts.log()).softmax(-1)  # [run, head, dst, row, src]
        return torch.einsum("rhanb,rhab,rhbd->ranhd", pattern, gates, v)
    weights = (scores - (high + low) / 2).exp()
    summed = torch.einsum("rhab,rhbd->abrhd", weights * gates, v).flatten(2)
    above = torch.bmm(counts, summed)  # [token, row, run * head * d_head]
    below = torch.bmm(counts, weights.permute(2, 3, 0, 1).flatten(2))
    n_runs, n_heads, _, d_head = v.shape
    z = above.unflatten(2, (n_runs, n_heads, d_head)) / below.unflatten(2, (n_runs, n_heads, 1))
    return z.permute(2, 0, 1, 3, 4)


def loss_terms(
    block: GatedBlock,
    p: Parameters,
    W_E: Float[Tensor, "d_vocab d_model"],
    batch: CountBatch,
    target: Float[Tensor, "d_vocab row d_model"],
) -> tuple[Float[Tensor, " run"], Float[Tensor, " run"]]:
    """The mean squared length of the error, and the penalty without alpha, one number a run."""
    recipe = block.recipe
    scores, gates, v = pair_tables(block, p, W_E)
    z = gathered(batch.counts, scores, gates, v)
    W_O = used_weights(block, p)[1]
    out = torch.einsum("ranhd,rhdm->ranm", z, W_O)
    weight = batch.weight  # [token, row], sums to 1
    error = ((out - target).square().sum(-1) * weight).sum((-2, -1))
    if recipe.penalty == "gate":
        joint = gates.clamp(min=1e-30).pow(recipe.power).sum(1).pow(1 / recipe.power)
        pairs = batch.all_pairs if recipe.pairs == "all" else batch.causal_pairs
        return error, (joint * pairs).sum((-2, -1))
    if recipe.penalty == "write":
        sizes = (z[..., 0].abs() + 1e-3).pow(recipe.power)  # [run, token, row, head]
        reach = (W_O[:, :, 0].abs() + 1e-3).pow(recipe.power)  # [run, head, d_model]
        joint = torch.einsum("ranh,rhm->ranm", sizes, reach).pow(1 / recipe.power)
        return error, (joint.sum(-1) * weight).sum((-2, -1))
    return error, torch.zeros_like(error)


def train_by_counts(
    original: TransformerBridge, recipe: Recipe, *, inits: int = 8, seed: int = 0
) -> GatedRuns:
    """What `train_on_task` computes for a toy model, from the same prompts and initial weights."""
    task = original.task
    data_seed = seed_of(seed, 10_000)
    prompts = task.sample(recipe.n_prompts, data_seed)
    written = record_layer(original, 0, prompts, batch=2000).y
    mean_square = float(written.square().sum(-1).mean())
    unit = mean_square if recipe.relative_error else written.shape[-1]
    write_unit = float(written.abs().sum(-1).mean()) if recipe.penalty == "write" else 1.0
    batches = []
    for rows in torch.arange(len(prompts)).split(recipe.batch)[: recipe.steps]:
        batch = count_batch(prompts[rows], task.d_vocab, written.dtype)
        batches.append((batch, written[rows].flatten(0, 1)[batch.index]))
    # The blocks before training; one step at rate 0 is the plainest way to make them.
    still = recipe.but(steps=1, lr=0.0)
    blocks = train_on_task(original, still, inits=inits, seed=seed).blocks
    names = blocks[0].state_dict().keys()
    p = {name: torch.stack([block.state_dict()[name] for block in blocks]) for name in names}
    trained = set(names) - {"output_scale"} - (set() if recipe.value_bias else {"b_V"})
    for name in trained:
        p[name].requires_grad_()

    def loss_at(step: int) -> Float[Tensor, " run"]:
        batch, target = batches[step % len(batches)]
        error, penalty = loss_terms(blocks[0], p, original.W_E, batch, target)
        return error / unit + recipe.alpha_at(step) * penalty / write_unit

    adam = partial(torch.optim.Adam, fused=True)
    losses = fit(p.values(), loss_at, recipe.steps, learning_rate=recipe.lr_at, optimizer=adam)
    for run, block in enumerate(blocks):
        block.load_state_dict({name: value[run].detach() for name, value in p.items()})
    fresh = task.sample(2000, data_seed + 1)
    held_back = record_layer(original, 0, fresh, batch=2000).y
    batch = count_batch(fresh, task.d_vocab, held_back.dtype)
    with torch.no_grad():
        target = held_back.flatten(0, 1)[batch.index]
        error, penalty = loss_terms(blocks[0], p, original.W_E, batch, target)
    variance = float((held_back - held_back.mean((0, 1))).square().sum(-1).mean())
    loss = error / unit + recipe.alpha * penalty / write_unit
    unexplained = (error / variance).tolist()
    return GatedRuns(blocks, tuple(loss.tolist()), tuple(unexplained), losses)
