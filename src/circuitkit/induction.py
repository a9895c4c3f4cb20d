"""Induction: what heads do on rows that repeat, and what a model gains from the repetition."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.ablation import run
from circuitkit.bridge import Model
from circuitkit.checks import checked, require_finite
from circuitkit.circuits import eigenvalue_score
from circuitkit.first_use import require_unembedding_of_stream
from circuitkit.heads import in_full_precision
from circuitkit.parts import head_names, n_heads
from circuitkit.residual import behind_layer, unembedding_matrix
from circuitkit.rows import (
    Repeated,
    Rows,
    Text,
    after_occurrences,
    default_rows,
    earlier_occurrences,
    one_pass,
    read_rows,
    repeated_tokens,
    require_repeating,
    second_pass,
)
from circuitkit.runs import Run
from circuitkit.tables import Table

__all__ = ["InductionLoss", "Repeated", "induction_loss", "repeated_tokens", "scores"]

BEHAVIOURS = ("prefix matching", "previous token", "duplicate token", "copying in a run")
"""The columns of `scores`."""
Names = str | Sequence[str]


# What heads do


@checked
def scores(model: Model, tokens: Text | None = None, *, without: Names = ()) -> Table:
    r"""Compute four scores of every head on rows in which tokens recur.

    * prefix matching: mean attention from a token that occurred before to the positions *after* its
      earlier occurrences, 0 to 1;
    * previous token: mean attention to the previous position, 0 to 1;
    * duplicate token: mean attention from a token that occurred before to its earlier occurrences,
      0 to 1;
    * copying in a run: whether the head raises the logits of the tokens to which it attends,
      -1 to 1.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : rows from `repeated_tokens`, a text, a list of texts of any lengths, or token ids
        `[batch, pos]`. If it is None: eight rows of a random span of 64 tokens that comes twice, behind the tokenizer's opening token if
        there is one (a shorter span if the context or the vocabulary is too small)
    without : parts, wires and paths that are cut, see `circuitkit.run`

    Returns
    -------
    A `Table` with the axes "head" and "behaviour".

    Raises
    ------
    ValueError : if no token recurs, and for a model without attention heads

    Notes
    -----
    With the pattern $A$ and the positions $P_t$ before $t$ that hold the same token, prefix matching
    is the mean of $\sum_{p \in P_t} A_{t,\,p+1}$ over all $t$ whose $P_t$ is not empty, duplicate
    token is the mean of $\sum_{p \in P_t} A_{t,\,p}$, and previous token is the mean of
    $A_{t,\,t-1}$ over $t \ge 1$. Copying in a run is
    $\sum_i \mathrm{Re}\,\lambda_i / \sum_i |\lambda_i|$ over the eigenvalues of the map from the token at a source position to the logits that the head
    writes if it attends only there, $L_{ij} = v_i W_O W_U[:, x_j]$. Here $i$ and $j$ are all
    positions $p + 1$ of all rows together, and values and unembedding vectors are centred over
    them. Norms act as in `virtual_weights`, without their divisors: the centring and the gain of the
    final norm, and those of a norm behind attention (Gemma 2). `circuits.copying_score` is another
    score: it is computed from the weights alone, for every token, and leaves norms out.
    Values are the model's own, so norms, MLPs and earlier heads count; cutting a wire into the
    values of a head changes none of its scores.

    Error: float32 rounding, and the sampling error of a mean over about 500 positions. Source:
    Olsson et al. 2022, "In-context Learning and Induction Heads" (prefix matching, copying, which
    is normalised differently there); Elhage et al. 2021, "A Mathematical Framework for Transformer
    Circuits" (eigenvalues).

    Examples
    --------
    >>> from circuitkit_book.induction_by_hand import build_induction_model
    >>> table = scores(build_induction_model(20, 16))
    >>> round(table["L1H0", "prefix matching"], 3)
    1.0
    """
    rows = read_rows(model, default_rows(model) if tokens is None else tokens)
    at_text = rows.is_text[:, :, None]
    same = earlier_occurrences(rows.tokens) & at_text
    after = after_occurrences(rows.tokens) & at_text
    if not bool(same.any()):
        raise ValueError(
            "No token recurs in these rows, so there is nothing to match. "
            "Use repeated_tokens(...), or longer text."
        )
    done = run(model, rows, without=without)
    require_finite(rows.select(done.logits), "The output of the model")
    columns, sources = [], after.any(1)
    unembed = centred_unembedding(done, sources)
    for layer in range(len(model.blocks)):
        if n_heads(model, layer):
            pattern = done.recording.patterns(layer)  # [batch, head, dst, src]
            copying = copying_scores(done, layer, sources, unembed)
            columns.append(torch.stack([*attention_scores(pattern, same, after, rows), copying], 1))
    if not columns:
        raise ValueError(
            "This model has no attention heads, so there is nothing to score. Give a model with "
            "attention layers, such as load_model('two-layer')."
        )
    axes = {"head": tuple(head_names(model)), "behaviour": BEHAVIOURS}
    return Table(torch.cat(columns).cpu(), axes, "score")


def attention_scores(
    pattern: Float[Tensor, "batch head dst src"], same: Tensor, after: Tensor, rows: Rows
) -> list[Float[Tensor, " head"]]:
    """Compute prefix matching, previous token and duplicate token of the heads of a layer.

    `same` and `after` mark the earlier occurrences of each destination's token, and the positions
    after them, `[batch, dst, src]`.
    """
    n_recurring = same.any(-1).sum()
    prefix_matching = torch.einsum("bhds,bds->h", pattern, after.to(pattern)) / n_recurring
    duplicate_token = torch.einsum("bhds,bds->h", pattern, same.to(pattern)) / n_recurring
    to_previous = pattern.diagonal(-1, -2, -1).transpose(1, 2)  # [batch, dst - 1, head]
    previous_token = to_previous[rows.is_text[:, 1:]].mean(0)
    return [prefix_matching, previous_token, duplicate_token]


def centred_unembedding(done: Run, sources: Tensor) -> Float[Tensor, "d_model source"]:
    """Return what the unembedding reads for the tokens at some sources, centred over them.

    The final norm is in it, without its divisor. With centred vectors, what all values have in common
    is multiplied by zero.
    """
    require_unembedding_of_stream(done.model)
    unembed = in_full_precision(unembedding_matrix(done.model))[:, done.tokens[sources]]
    norm = done.recording.final_norm()
    if norm is not None:
        unembed = norm.fold(unembed)
    return unembed - unembed.mean(1, keepdim=True)


def copying_scores(
    done: Run, layer: int, sources: Tensor, unembed: Float[Tensor, "d_model source"]
) -> Float[Tensor, " head"]:
    """Compute how far each head of a layer raises the logits of the tokens at some sources.

    `unembed` is the `centred_unembedding` of these sources. The map from the token at each source to
    the logits of the tokens there has as many rows as there are sources, but its rank is at most
    d_head. Its eigenvalues other than 0 are those of the `[d_head, d_head]` matrix that is computed
    here.
    """
    W_O = done.model.blocks[layer].attn.W_O  # [head, d_head, d_model]
    what = f"What the heads of layer {layer} write with"
    W_O = in_full_precision(behind_layer(done.model, layer, "attn", W_O, what))
    value = in_full_precision(done.recording.heads_v(layer)[sources])  # [source, head, d_head]
    return eigenvalue_score(W_O @ unembed @ value.transpose(0, 1))


# What a model gains from the repetition


class InductionLoss(NamedTuple):
    """Loss on random tokens that come twice, in nats for each token.

    Parameters
    ----------
    first : mean loss on the first pass over the span, which nothing predicts
    second : mean loss on the second pass
    difference : `second - first`, negative if the model uses the first pass
    accuracy : the share of tokens of the second pass that have the largest logit

    Notes
    -----
    Source: see `induction_loss`.
    """

    first: float
    second: float
    difference: float
    accuracy: float


@checked
def induction_loss(
    model: Model, rows: Repeated | None = None, *, without: Names = ()
) -> InductionLoss:
    """Compute the loss on the second pass over a random span, and compare it with the first.

    Both passes leave out their first token, which nothing predicts.

    Parameters
    ----------
    model : a `TransformerBridge`
    rows : rows from `repeated_tokens`. If it is None: eight rows of a random span of 64 tokens that
        comes twice, behind the tokenizer's opening token if there is one (a shorter span if the
        context or the vocabulary is too small)
    without : parts, wires and paths that are cut, see `circuitkit.run`

    Raises
    ------
    ValueError : if the span of `rows` does not come twice, or has fewer than two tokens

    Notes
    -----
    Error: float32 rounding, and the sampling error of the rows. Source: Olsson et al. 2022,
    "In-context Learning and Induction Heads"; `evals.induction_loss` of transformer-lens measures
    the second pass only.

    Examples
    --------
    >>> from circuitkit_book.induction_by_hand import build_induction_model
    >>> result = induction_loss(build_induction_model(20, 16))
    >>> round(result.second, 3), result.accuracy
    (0.0, 1.0)
    """
    rows = default_rows(model) if rows is None else rows
    require_repeating(rows)
    logits = run(model, rows, without=without).logits
    require_finite(logits, "The output of the model")
    first, _ = one_pass(logits, rows, rows.start)
    second, accuracy = second_pass(logits, rows)
    values = first, second, second - first, accuracy
    return InductionLoss(*(float(value.mean()) for value in values))
