"""The constructions of "Attention-Only Transformers", literally: full matrices, masks, bias token last.

One step in the proof of its Theorem 4 is false: the LayerNorm of a stream with a bias coordinate. Three norms
that repair it are here, too. Chapter 4 and the claims about the paper use these functions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.bridge import norms_close_layers, submodules
from circuitkit.checks import checked, require_at_least
from circuitkit.conversion.activations import HeadSum, same_for_all_neurons
from circuitkit.conversion.neurons import with_bias_token
from circuitkit.heads import Heads
from circuitkit.reading import attention_layers, converted_neurons, layer_heads
from circuitkit.rows import to_tokens

__all__ = [
    "MaskedHead",
    "augmented_head",
    "bias_trick",
    "centred_with_gain",
    "direct_sum",
    "generalized_silu",
    "layer_norm",
    "literal_stream",
    "mask_as_weights",
    "masked_softmax",
    "norm_of_first",
    "post_norm_layers",
    "remark3",
    "rms_norm",
    "rms_with_gain",
    "theorem2",
    "theorem6",
    "theorem7",
]

NormFunction = Callable[[Tensor], Tensor]


# Heads with masks


@dataclass(frozen=True, eq=False)
class MaskedHead:
    """A masked attention head: `msoftmax(X W_QK X^T, mask) X W_OV` with full square matrices.

    Parameters
    ----------
    W_QK, W_OV : `[d_model, d_model]`
    mask : `[pos, pos]`, 1 where a destination (row) may attend to a source (column), else 0

    Notes
    -----
    Source: "Attention-Only Transformers", below Definition 1.
    """

    W_QK: Float[Tensor, "d_model d_model"]
    W_OV: Float[Tensor, "d_model d_model"]
    mask: Float[Tensor, "pos pos"]

    def pattern(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos pos"]:
        """The attention pattern; rows sum to 1."""
        return masked_softmax(x @ self.W_QK @ x.T, self.mask)

    def __call__(self, x: Float[Tensor, "pos d_model"]) -> Float[Tensor, "pos d_model"]:
        """What the head writes."""
        return self.pattern(x) @ x @ self.W_OV


@checked
def masked_softmax(
    scores: Float[Tensor, "dst src"], mask: Float[Tensor, "dst src"]
) -> Float[Tensor, "dst src"]:
    """`rownorm(exp(scores) * mask)`, computed without overflow.

    Parameters
    ----------
    scores : `[dst, src]`
    mask : `[dst, src]`, 1 for an allowed source and 0 elsewhere

    Raises
    ------
    ValueError : if a row of the mask is zero, because it has no softmax

    Notes
    -----
    Error: rounding. Source: "Attention-Only Transformers", Definition 1.

    Examples
    --------
    >>> masked_softmax(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 1.0]])).tolist()
    [[0.5, 0.0, 0.5]]
    """
    empty = (mask == 0).all(-1).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"The rows {empty} of the mask are zero. Allow each row a source.")
    return scores.masked_fill(mask == 0, -torch.inf).softmax(-1)


@checked
def direct_sum(
    left: Float[Tensor, "rows columns"], right: float | int
) -> Float[Tensor, "rows_and_1 columns_and_1"]:
    """`X (+) [right]`: X and one number as the diagonal blocks of a matrix, 0 elsewhere.

    Parameters
    ----------
    left : `[rows, columns]`
    right : the number

    Notes
    -----
    Source: "Attention-Only Transformers", notation.

    Examples
    --------
    >>> direct_sum(torch.tensor([[5.0, 7.0]]), 1.0).tolist()
    [[5.0, 7.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return torch.block_diag(left, left.new_tensor([[right]]))


@checked
def generalized_silu(a1: float, a2: float) -> HeadSum:
    """The activations of the paper, which one head computes: `a1 SiLU(a2 x)`.

    Parameters
    ----------
    a1, a2 : the two factors; the paper's GELU has `1 / 1.702` and `1.702`

    Notes
    -----
    Source: "Attention-Only Transformers", section 2.
    """
    return same_for_all_neurons("generalized silu", [[a2, 0.0, a1 * a2, 0.0]], 0.0)


@checked
def theorem2(
    V1: Float[Tensor, "d_model d_mlp"],
    V2: Float[Tensor, "d_mlp d_model"],
    n_pos: int,
    a1: float | int = 1.0,
    a2: float | int = 1.0,
) -> list[MaskedHead]:
    """Theorem 2: heads whose sum on `X (+) [1]` is `a1 SiLU(a2 X V1) V2 (+) [0]`, one a neuron.

    `W_QK = a2 [[0, -V1_i], [0, 0]]` and `W_OV = a1 a2 V1_i V2_i (+) [0]`. Every token may attend to
    itself and to the bias token, which is last.

    Parameters
    ----------
    V1, V2 : the weights of the MLP, `[d_model, d_mlp]` and `[d_mlp, d_model]`
    n_pos : how many tokens there are, without the bias token
    a1, a2 : the factors of the generalized SiLU

    Notes
    -----
    Error: rounding, as in the MLP. Source: "Attention-Only Transformers", Theorem 2 and the proof in
    its appendix, with two slips corrected: the blocks have the sizes d_model and 1 (it says N and
    1), and a token's score is 0 for itself and -x for the bias token, not the reverse.
    """
    require_at_least(1, n_pos=n_pos)
    mask = torch.eye(n_pos + 1, dtype=V1.dtype, device=V1.device)
    mask[:, -1] = 1
    heads = []
    for column, row in zip(V1.T, V2, strict=True):
        W_QK = V1.new_zeros(len(column) + 1, len(column) + 1)
        W_QK[:-1, -1] = -a2 * column
        heads.append(MaskedHead(W_QK, direct_sum(a1 * a2 * torch.outer(column, row), 0.0), mask))
    return heads


@checked
def theorem6(W: Float[Tensor, "d_model d_model"], n_pos: int) -> MaskedHead:
    """Theorem 6: a head whose mask is the identity computes `X W`, whatever its scores are.

    Parameters
    ----------
    W : `[d_model, d_model]`
    n_pos : how many positions there are

    Notes
    -----
    Error: rounding. Source: "Attention-Only Transformers", Theorem 6.
    """
    require_at_least(1, n_pos=n_pos)
    return MaskedHead(torch.zeros_like(W), W, torch.eye(n_pos, dtype=W.dtype, device=W.device))


@checked
def theorem7(
    d_model: int,
    n_pos: int,
    a1: float | int = 1.0,
    a2: float | int = 1.0,
    residual: bool = False,
    like: Tensor | None = None,
) -> list[MaskedHead]:
    """Theorem 7: `d_model` heads whose sum on `X (+) [1]` is `a1 SiLU(a2 X) (+) [0]`.

    Parameters
    ----------
    d_model, n_pos : the shape of X
    a1, a2 : the factors of the generalized SiLU
    residual : whether one more head writes `-X`, so that a skip connection turns X into the
        activation
    like : a tensor whose dtype and device the heads shall have

    Notes
    -----
    Error: rounding. Source: "Attention-Only Transformers", Theorem 7, whose `X I_N` must be `X I_D`.
    """
    require_at_least(1, d_model=d_model, n_pos=n_pos)
    like = torch.zeros(()) if like is None else like
    eye = torch.eye(d_model, dtype=like.dtype, device=like.device)
    heads = theorem2(eye, eye, n_pos, a1, a2)
    return [*heads, theorem6(direct_sum(-eye, 0.0), n_pos + 1)] if residual else heads


@checked
def augmented_head(
    W_QK: Float[Tensor, "d_model d_model"],
    W_OV: Float[Tensor, "d_model d_model"],
    mask: Float[Tensor, "pos pos"],
) -> MaskedHead:
    """An attention head that ignores the bias token: `W_QK (+) [1]`, `W_OV (+) [0]`, `mask (+) [1]`.

    Parameters
    ----------
    W_QK, W_OV : the matrices of the head, `[d_model, d_model]`
    mask : `[pos, pos]`

    Notes
    -----
    Error: none. Source: "Attention-Only Transformers", proof of Theorem 4.
    """
    return MaskedHead(direct_sum(W_QK, 1.0), direct_sum(W_OV, 0.0), direct_sum(mask, 1.0))


@checked
def bias_trick(
    V1: Float[Tensor, "d_model d_mlp"],
    b_in: Float[Tensor, " d_mlp"],
    V2: Float[Tensor, "d_mlp d_model"],
) -> tuple[Float[Tensor, "d_model_and_1 d_mlp"], Float[Tensor, "d_mlp d_model_and_1"]]:
    """Weights that act on `[X | 1]` as `V1, b_in, V2` act on X, and write 0 to the column of ones.

    They need a column of ones that every layer keeps. The output bias is left out: it is a head of
    Theorem 6 that reads the column of ones.

    Parameters
    ----------
    V1, b_in, V2 : weights and inner bias of an MLP

    Notes
    -----
    Error: none. Source: "Attention-Only Transformers", proof of Theorem 4.
    """
    return torch.cat([V1, b_in[None]]), torch.cat([V2, V2.new_zeros(len(V2), 1)], 1)


@checked
def remark3(
    V1: Float[Tensor, "d_model d_mlp"],
    V2: Float[Tensor, "d_mlp d_model"],
    a1: float | int = 1.0,
    a2: float | int = 1.0,
) -> Heads:
    """Remark 3: the matrices of Theorem 2 as rank-one factors, with the bias token first.

    `W_Q = W_V = a2 [V1_i | 0]`, `W_K = [0 | -1]`, `W_O = a1 [V2_i | 0]`. The paper's `W_K` carries
    `sqrt(D + 1)` because it divides scores by that; libraries divide by `sqrt(d_head)`, which is 1
    here. As `W_Q = W_V`, and all heads share `W_K`, two vectors are stored for each neuron.

    Parameters
    ----------
    V1, V2, a1, a2 : as in `theorem2`

    Notes
    -----
    Error: rounding. Source: "Attention-Only Transformers", Remark 3.
    """
    reads = torch.cat([a2 * V1.T, V1.new_zeros(V1.shape[1], 1)], 1)[..., None]
    keys = torch.zeros_like(reads)  # [head, d_model + 1, 1]
    keys[:, -1] = -1
    writes = torch.cat([a1 * V2, V2.new_zeros(len(V2), 1)], 1)[:, None]
    names = tuple(f"L0N{neuron}" for neuron in range(V1.shape[1]))
    return Heads(names, reads, keys, reads.clone(), writes, scale=1.0, mask="self_or_first")


@checked
def mask_as_weights(
    mask: Bool[Tensor, "dst src"], omega: float | int
) -> tuple[Float[Tensor, "dst dst"], Float[Tensor, "src src"]]:
    """Any mask as weights: position queries and keys that score 0 where allowed, `-omega` elsewhere.

    Parameters
    ----------
    mask : `[dst, src]`, True where attention is allowed
    omega : a large number

    Returns
    -------
    W_Q, W_K : they act on one-hot positions

    Notes
    -----
    Error: a forbidden source keeps at most `exp(spread - omega)` of an allowed one's weight, where
    `spread` is the range of the other scores, so a row of the pattern is wrong by at most
    `2 n_pos exp(spread - omega)`. Source: the third result in the abstract of "Attention-Only
    Transformers"; the post's 2 Omega is a case of it.
    """
    scores = torch.where(mask, 0.0, -float(omega))
    return scores, torch.eye(mask.shape[1], dtype=scores.dtype, device=scores.device)


# Norms


@checked
def layer_norm(
    x: Float[Tensor, "*batch d_model"], eps: float = 0.0
) -> Float[Tensor, "*batch d_model"]:
    """Rows with mean 0 and mean square 1: `(x - mean) / sqrt(mean((x - mean)^2) + eps)`.

    Parameters
    ----------
    x : `[..., d_model]`
    eps : added under the root

    Notes
    -----
    Source: Ba, Kiros and Hinton 2016; no gain, no bias.
    """
    return rms_norm(x - x.mean(-1, keepdim=True), eps)


@checked
def rms_norm(
    x: Float[Tensor, "*batch d_model"], eps: float = 0.0
) -> Float[Tensor, "*batch d_model"]:
    """Rows with mean square 1: `x / sqrt(mean(x^2) + eps)`.

    Parameters
    ----------
    x : `[..., d_model]`
    eps : added under the root

    Notes
    -----
    Source: Zhang and Sennrich 2019; no gain.
    """
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@checked
def norm_of_first(norm: NormFunction, n_extra: int = 1) -> NormFunction:
    """Repair (c), for every norm: normalize the original coordinates only.

    `norm_of_first(norm)(X (+) [1]) = norm(X) (+) [1]`, where the norm of zeros is taken to be
    zeros. This is what a converted model does.

    Parameters
    ----------
    norm : maps `[..., d_model]` to the same shape
    n_extra : how many coordinates at the end stay as they are

    Notes
    -----
    Error: none. Source: this book, a repair of Theorem 4.
    """
    require_at_least(0, n_extra=n_extra)

    def repaired(x: Tensor) -> Tensor:
        stream, extra = x[..., :-n_extra], x[..., -n_extra:]
        is_zero = (stream == 0).all(-1, keepdim=True)
        normed = norm(torch.where(is_zero, torch.ones_like(stream), stream))
        return torch.cat([torch.where(is_zero, torch.zeros_like(normed), normed), extra], -1)

    return repaired


@checked
def rms_with_gain(d_model: int, eps: float = 0.0) -> NormFunction:
    """Repair (a): RMSNorm on all `D + 1` coordinates with a fixed gain, exact on `X (+) [1]`.

    The bias coordinate of a token is 0 and only dilutes its mean square, so the gain is
    `sqrt(D / (D + 1))` on the stream, and the epsilon shrinks to `eps' = eps D / (D + 1)`. The bias
    token's gain is `sqrt(1 / (D + 1) + eps')`.

    Parameters
    ----------
    d_model : D
    eps : of the norm of the original coordinates

    Notes
    -----
    Error: rounding. Source: this book, a repair of Theorem 4.
    """
    require_at_least(1, d_model=d_model)
    return with_gain(rms_norm, d_model, 1, eps)


@checked
def centred_with_gain(d_model: int, eps: float = 0.0) -> NormFunction:
    """Repair (b): LayerNorm on `D + 2` coordinates, exact if rows are centred.

    The bias token is `(1, -1)` on the two last coordinates, which cancel in every mean. Writing
    weights whose rows have mean 0 keep the stream centred. The gain is `sqrt(D / (D + 2))` on the
    stream and `sqrt(2 / (D + 2) + eps')` on the two.

    Parameters
    ----------
    d_model : D
    eps : of the norm of the original coordinates

    Notes
    -----
    Error: rounding. Source: this book, a repair of Theorem 4.
    """
    require_at_least(1, d_model=d_model)
    return with_gain(layer_norm, d_model, 2, eps)


def with_gain(norm: Callable, d_model: int, n_extra: int, eps: float) -> NormFunction:
    """A norm on all coordinates with the gain that makes it right on the original ones."""
    size = d_model + n_extra
    smaller_eps = eps * d_model / size
    gain = torch.full((size,), math.sqrt(d_model / size), dtype=torch.float64)
    gain[d_model:] = math.sqrt(n_extra / size + smaller_eps)

    def normalize(x: Tensor) -> Tensor:
        return norm(x, smaller_eps) * gain.to(x)

    return normalize


def post_norm_layers(
    x: Float[Tensor, "pos d_model"],
    layers: Sequence[Sequence[MaskedHead]],
    norm: NormFunction,
    skip: bool = True,
) -> list[Float[Tensor, "pos d_model"]]:
    """The paper's transformer: `X_{j+1} = norm(X_j + sum_i h_{j,i}(X_j))`.

    Parameters
    ----------
    x : the first stream, `[pos, d_model]`
    layers : the heads of each layer
    norm : what is applied behind each layer
    skip : whether `X_j` is added. Without it, the first converted layer zeroes the bias token, so
        that from the second on every neuron has scores 0 and outputs half its input.

    Returns
    -------
    streams : the first stream, and that behind each layer

    Notes
    -----
    Source: "Attention-Only Transformers", definition of a transformer and Remark 5.
    """
    streams = [x]
    for heads in layers:
        written = torch.stack([head(streams[-1]) for head in heads]).sum(0)
        streams.append(norm(streams[-1] + written if skip else written))
    return streams


# A converted model, literally


@checked
def literal_stream(
    model: TransformerBridge, tokens: Int[Tensor, " pos"]
) -> Float[Tensor, "sublayer pos_and_bias d_model_and_1"]:
    """The stream before the first sublayer and after each one, bias token first, from heads alone.

    Each sublayer adds the results of its heads on the normalized stream, and its output bias on the
    tokens. Norms act on the original coordinates. Attention heads see the tokens only, as with the
    mask `[1] (+) causal` and no value at the bias token.

    Parameters
    ----------
    model : a converted model whose layers follow each other, with norms in front of them
    tokens : the ids of one sequence

    Raises
    ------
    ValueError : if the norms of the model stand elsewhere, or attention and MLP run in parallel

    Notes
    -----
    It is slow, for reading and for proofs. Error: that of the conversion. Source: "Attention-Only
    Transformers", proof of Theorem 4, with its norm corrected.
    """
    blocks: Any = model.blocks
    norms_behind = norms_close_layers(model) or any("ln1_post" in submodules(b) for b in blocks)
    is_converted = all(converted_neurons(model, layer) for layer in range(len(blocks)))
    if norms_behind or model.cfg.parallel_attn_mlp or not is_converted:
        raise ValueError(
            "literal_stream needs a model made by to_attention_only, with serial layers and with "
            "norms in front of them only."
        )
    rows = to_tokens(model, tokens)  # [1, pos]
    _, cache = model.run_with_cache(rows, names_filter="blocks.0.hook_in")
    stream = [with_bias_token(cache["blocks.0.hook_in"][0])]
    for layer, block in enumerate(blocks):
        if layer in attention_layers(model):
            heads = layer_heads(model, layer)
            written = heads.results(normalized(block, "ln1", stream[-1])).sum(0)
            stream.append(stream[-1] + on_tokens(written, block.attn.b_O))
        neurons = converted_neurons(model, layer)
        wide = with_bias_token(normalized(block, "ln2", stream[-1]))
        bias = on_tokens(torch.zeros_like(wide[1:, :-1]), neurons.b_out)
        stream.append(stream[-1] + neurons.heads().results(wide).sum(0) + bias)
    return torch.stack(stream)


def normalized(block: Any, norm: str, stream: Tensor) -> Float[Tensor, "pos d_model"]:
    """The tokens of a stream with a bias token, on the original coordinates, behind a norm."""
    tokens = stream[1:, :-1]
    return submodules(block)[norm](tokens[None])[0] if norm in submodules(block) else tokens


def on_tokens(written: Float[Tensor, "pos d_model"], bias: Tensor | None) -> Tensor:
    """What is written at tokens, and an output bias, on a stream with a bias token."""
    return F.pad(written if bias is None else written + bias, (0, 1, 1, 0))
