"""Do heads act together on a pair of a query and a key? Signed effects, interference, nulls and planted sharing.

`studies/sharing_in_text.md` is the plan of the study that uses these functions, and a page of chapter 5 builds them.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.heads import Heads
from circuitkit.reading import heads_of

__all__ = [
    "matched",
    "matched_apart",
    "next_token_directions",
    "other_text",
    "pairs_of",
    "permuted",
    "planted",
    "share_of_strong",
    "shared",
    "signed_effects",
    "strongest",
]

LIMIT = 0.2
"""The other heads may add or take away this share of an effect before a pair counts as shared."""


# Signed effects


def next_token_directions(
    model: TransformerBridge, tokens: Int[Tensor, "row pos"], layer: int
) -> Float[Tensor, "row query d_model"]:
    """How the logit of the true next token, above the mean logit, depends on the stream behind a layer.

    Behind the last layer this is a column of the unembedding minus the mean column. In front of one more layer it is the
    gradient for the stream of the same position; what other positions pass on is left as it is.

    Parameters
    ----------
    model : an attention-only model without norms, of one or two layers
    tokens : token ids
    layer : which layer; the last or the one in front of it

    Returns
    -------
    A direction for each query. The last position has no next token, so there is none for it.

    Raises
    ------
    ValueError : for other models and layers

    Notes
    -----
    Error: rounding. Source: this book.
    """
    depth = len(model.blocks)
    if model.cfg.normalization_type or not model.cfg.attn_only or not depth - 2 <= layer < depth:
        raise ValueError(
            f"Layer {layer} of {depth} was asked for. The directions are computed for the last two layers of a model "
            "with attention only and without norms."
        )
    centred = (model.W_U - model.W_U.mean(1, keepdim=True)).T
    direct = centred[tokens[:, 1:]]
    if layer == depth - 1:
        return direct
    name = f"blocks.{layer}.hook_resid_post"
    _, cache = model.run_with_cache(tokens, names_filter=[name])
    fixed = cache[name][:, :-1].detach()
    live = fixed.clone().requires_grad_()
    later = [f"L{layer + 1}H{head}" for head in range(model.cfg.n_heads)]
    heads = heads_of(model)[later]
    with torch.enable_grad():
        written = own_position_attention(heads, live, fixed)
        (toward,) = torch.autograd.grad(((live + written) * direct).sum(), live)
    return toward


def own_position_attention(heads: Heads, live: Tensor, fixed: Tensor) -> Tensor:
    """What a layer writes if each position may change its own stream only: other positions' keys and values are fixed."""
    q, own_k, own_v = (
        torch.einsum("rpm,hmd->rhpd", live, W) for W in (heads.W_Q, heads.W_K, heads.W_V)
    )
    k, v = (torch.einsum("rpm,hmd->rhpd", fixed, W) for W in (heads.W_K, heads.W_V))
    n = live.shape[1]
    eye = torch.eye(n, dtype=torch.bool)
    scores = torch.where(eye, (q * own_k).sum(-1)[..., None], q @ k.mT) / heads.scale
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
    own = pattern.diagonal(dim1=-2, dim2=-1)[..., None]
    z = pattern.masked_fill(eye, 0.0) @ v + own * own_v
    return torch.einsum("rhpd,hdm->rpm", z, heads.W_O)


def signed_effects(
    model: TransformerBridge, tokens: Int[Tensor, "row pos"], layer: int = 0
) -> Float[Tensor, "head row query key"]:
    """What each head moves from each key to each query, as its effect on the logit of the true next token.

    Parameters
    ----------
    model : an attention-only model without norms; the layer may be a gated block
    tokens : token ids
    layer : the last layer, where the effect is exact, or the one in front of it, where it is an estimate of first order

    Returns
    -------
    Signed logits, above the mean of all logits. There is no query at the last position, which has no next token.

    Raises
    ------
    ValueError : for other models and layers

    Notes
    -----
    Error: rounding in the last layer. Source: this book; the direct effect is that of logit attribution.
    """
    directions = next_token_directions(model, tokens, layer)
    attention = model.blocks[layer].attn
    names = [f"blocks.{layer}.attn.hook_{part}" for part in ("pattern", "v")]
    parts = []
    with torch.no_grad():
        for rows, toward in zip(tokens.split(50), directions.split(50), strict=True):
            _, cache = model.run_with_cache(rows, names_filter=names)
            pattern, v = (cache[name] for name in names)
            read = torch.einsum("rim,hdm->hrid", toward, attention.W_O)
            moved = torch.einsum("hrid,rjhd->hrij", read, v[:, :-1])
            parts.append(pattern.transpose(0, 1)[:, :, :-1, :-1] * moved)
    return torch.cat(parts, 1)


def pairs_of(effects: Float[Tensor, "head row query key"]) -> Float[Tensor, "head row pair"]:
    """The effects at pairs whose key is neither the first token nor the query's own."""
    n = effects.shape[-1]
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    earlier[:, 0] = False
    return effects[:, :, earlier]


# Interference


def shared(
    effects: Float[Tensor, "head *pair"], limit: float = LIMIT
) -> tuple[Bool[Tensor, "*pair"], Bool[Tensor, "*pair"]]:
    """Whether heads interfere on each pair: constructively, and destructively.

    The sum of the effects is the effect of the whole edge. *Constructive*: besides the head with the largest effect of the
    same sign, others of this sign add more than `limit` of the sum. *Destructive*: heads of the other sign take away more than `limit` of it.

    Parameters
    ----------
    effects : the signed effect of each head on each pair
    limit : a share of the sum

    Notes
    -----
    If neither holds, what this head does with any set of the others stays within `limit` of the sum. Source: this book, after
    the definition of "Gated Attention Blocks" (2024), section "Experimental Results".

    Examples
    --------
    >>> [bool(part) for part in shared(torch.tensor([[3.0], [-1.0]]))]
    [False, True]
    """
    edge = effects.sum(0)
    relative = effects * edge.sign() / edge.abs().clamp(min=1e-12)
    helping = relative.clamp(min=0)
    others = helping.sum(0) - helping.amax(0)
    opposing = -relative.clamp(max=0).sum(0)
    return others > limit, opposing > limit


def strongest(
    effects: Float[Tensor, "head row pair"], share: float = 0.01
) -> Int[Tensor, " strong"]:
    """The places, in the flattened rows and pairs, of the edges with the largest effect."""
    edge = effects.sum(0).abs().flatten()
    return edge.topk(round(share * len(edge))).indices


def share_of_strong(
    effects: Float[Tensor, "head row pair"], share: float = 0.01, limit: float = LIMIT
) -> dict[str, float]:
    """The share of strong pairs that are shared, and the two kinds of interference."""
    strong = effects.flatten(1)[:, strongest(effects, share)]
    constructive, destructive = shared(strong, limit)
    kinds = {"constructive": constructive, "destructive": destructive}
    kinds["shared"] = constructive | destructive
    return {name: float(found.double().mean()) for name, found in kinds.items()}


# Nulls: heads that have nothing to do with each other


def other_text(
    effects: Float[Tensor, "head row pair"], generator: torch.Generator
) -> Float[Tensor, "head row pair"]:
    """Each head's effects come from another row, at the same places."""
    n_heads, n_rows = effects.shape[:2]
    shifts = torch.randperm(n_rows, generator=generator)[:n_heads].tolist()
    return torch.stack([own.roll(shift, 0) for own, shift in zip(effects, shifts, strict=True)])


def permuted(
    effects: Float[Tensor, "head row pair"], generator: torch.Generator
) -> Float[Tensor, "head row pair"]:
    """Each head's effects are permuted over all pairs of all rows."""
    orders = [torch.randperm(effects[0].numel(), generator=generator) for _ in effects]
    flat = [own.flatten()[order] for own, order in zip(effects, orders, strict=True)]
    return torch.stack(flat).view_as(effects)


def matched(
    effects: Float[Tensor, "head place"],
    cell: Int[Tensor, " place"],
    generator: torch.Generator,
) -> Float[Tensor, "head place"]:
    """Each head's effects are permuted among the places of the same cell, for example the same offset and current token."""
    by_cell = cell.argsort(stable=True)
    drawn = torch.empty_like(effects)
    for head, own in enumerate(effects):
        mixed = torch.randperm(len(cell), generator=generator)
        drawn[head, by_cell] = own[mixed[cell[mixed].argsort(stable=True)]]
    return drawn


def matched_apart(
    effects: Float[Tensor, "head place"],
    cell: Int[Tensor, " place"],
    generator: torch.Generator,
) -> Float[Tensor, "head place"]:
    """As `matched`, but no two heads take their effects from the same place.

    The places of a cell are put in a random order, and each head is shifted by another number of places.

    Raises
    ------
    ValueError : if a cell has fewer places than there are heads
    """
    mixed = torch.randperm(len(cell), generator=generator)
    places = mixed[cell[mixed].argsort(stable=True)]
    sizes = cell[places].unique_consecutive(return_counts=True)[1]
    if int(sizes.min()) < len(effects):
        raise ValueError(
            f"A cell has {int(sizes.min())} places for {len(effects)} heads, so two heads would share a place. "
            "Leave out cells with fewer places than heads."
        )
    size = sizes.repeat_interleave(sizes)
    start = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    rank = torch.arange(len(cell)) - start
    drawn = torch.empty_like(effects)
    for head, own in enumerate(effects):
        drawn[head, places] = own[places[start + (rank + head) % size]]
    return drawn


# Planted sharing


def planted(
    effects: Float[Tensor, "head place"],
    share: float,
    generator: torch.Generator,
    kind: Literal["constructive", "destructive"] = "constructive",
) -> Float[Tensor, "head place"]:
    """Sharing in a share of the places; the effect of each whole edge stays.

    The edge's effect becomes two halves in two heads (constructive), or 1.5 of it in one head and -0.5 in another.
    """
    n_heads, n_places = effects.shape
    chosen = torch.randperm(n_places, generator=generator)[: round(share * n_places)]
    pair = torch.rand(len(chosen), n_heads, generator=generator).argsort(1)[:, :2]
    first = 0.5 if kind == "constructive" else 1.5
    edge = effects[:, chosen].sum(0)
    result = effects.clone()
    result[:, chosen] = 0.0
    result[pair[:, 0], chosen] = first * edge
    result[pair[:, 1], chosen] = (1 - first) * edge
    return result
