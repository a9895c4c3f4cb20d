"""Theorem 4's false step, LayerNorm of a stream with a bias coordinate, and the norms that repair it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit._contract import Count, NonNegative, must, public
from circuitkit.anatomy import Norm
from circuitkit.conversion._paper import MaskedHead

AnyNorm = Callable[[Tensor], Tensor]


@public
def layer_norm(x: Float[Tensor, "*batch d_model"], eps: NonNegative = 0.0) -> Float[Tensor, "*batch d_model"]:
    """Rows with mean 0 and mean square 1; no gain, no bias.

    `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)` for each row. **Source**: Ba, Kiros and Hinton 2016.
    """
    return Norm(None, eps=eps)(x)


@public
def rms_norm(x: Float[Tensor, "*batch d_model"], eps: NonNegative = 0.0) -> Float[Tensor, "*batch d_model"]:
    """Rows with mean square 1; no gain.

    `x / sqrt(mean(x^2) + eps)` for each row. **Source**: Zhang and Sennrich 2019.
    """
    return Norm(None, eps=eps, centre=False)(x)


@public
def norm_of_first(norm: AnyNorm, n_extra: Count = 1) -> AnyNorm:
    """Repair (c), for every norm: normalise the original coordinates, leave the last `n_extra` as they are.

    `norm_of_first(norm)(X (+) [1]) = norm(X) (+) [1]`, where the norm of zeros is taken to be zeros: what a converted model
    does. **Error**: exact. **Source**: this book, a repair of Theorem 4.
    """

    @public
    @must(lambda x: x.shape[-1] > n_extra or f"more than {n_extra} coordinates, the extra ones last")
    def repaired(x: Float[Tensor, "*batch d_model_and_extra"]) -> Float[Tensor, "*batch d_model_and_extra"]:
        stream, extra = x[..., :-n_extra], x[..., -n_extra:]
        silent = (stream == 0).all(-1, keepdim=True)
        normed = norm(torch.where(silent, torch.ones_like(stream), stream))
        return torch.cat([torch.where(silent, torch.zeros_like(normed), normed), extra], -1)

    return repaired


@public
def rms_with_gain(d_model: Count, eps: NonNegative = 0.0) -> AnyNorm:
    """Repair (a), RMSNorm on all `D+1` coordinates with a fixed gain: exact on `X (+) [1]`.

    A token's bias coordinate 0 only dilutes its mean square: gain `sqrt(D/(D+1))` on the stream, and an epsilon inside the
    root shrinks by D/(D+1) to `eps'`. The bias token's gain is `sqrt(1/(D+1) + eps')`. **Error**: rounding. **Source**: this
    book, a repair of Theorem 4.
    """
    return _with_gain(rms_norm, d_model, 1, eps)


@public
def centred_with_gain(d_model: Count, eps: NonNegative = 0.0) -> AnyNorm:
    """Repair (b), LayerNorm on `D+2` coordinates: exact when rows are centred and the bias token is `(1, -1)`.

    Writing weights whose rows have mean 0 keep the stream centred; the two bias coordinates cancel in every mean. Gains
    `sqrt(D/(D+2))` on the stream, `sqrt(2/(D+2) + eps')` on the two. **Shapes**: the function keeps `[..., D+2]`.
    **Error**: rounding. **Source**: this book, a repair of Theorem 4.
    """
    return _with_gain(layer_norm, d_model, 2, eps)


def _with_gain(norm: Callable[[Tensor, float], Tensor], d_model: int, n_extra: int, eps: float) -> Any:
    size = d_model + n_extra
    eps_inside = eps * d_model / size
    gain = torch.full((size,), math.sqrt(d_model / size), dtype=torch.float64)
    gain[d_model:] = math.sqrt(n_extra / size + eps_inside)

    @public
    @must(lambda x: x.shape[-1] == len(gain) or f"[..., {len(gain)}], the stream with its bias coordinates last")
    def gained(x: Float[Tensor, "*batch d_stream"]) -> Float[Tensor, "*batch d_stream"]:
        return norm(x, eps_inside) * gain.to(x)

    return gained


def _in_the_stream(x: Tensor, layers: Sequence[Sequence[MaskedHead]]) -> Any:
    alike = all((head.W_QK.dtype, len(head.W_QK)) == (x.dtype, x.shape[1]) for heads in layers for head in heads)
    return alike or "heads of x's width and dtype"


@public
@must(_in_the_stream)
def post_norm_layers(
    x: Float[Tensor, "pos d_model"],
    layers: Sequence[Sequence[MaskedHead]],
    norm: AnyNorm,
    skip: bool = True,
) -> list[Float[Tensor, "pos d_model"]]:
    """The paper's transformer: `X_{j+1} = norm(X_j + sum_i h_{j,i}(X_j))`, the stream before and after every layer.

    `skip=False` leaves out `X_j`: the bias token is zeroed by the first converted layer, and from the second on every neuron sees
    scores 0 and outputs half its input. **Source**: "Attention-Only Transformers", definition of a transformer and Remark 5.
    """
    stream = [x]
    for heads in layers:
        written = torch.stack([head(stream[-1]) for head in heads]).sum(0)
        stream.append(norm(stream[-1] + written if skip else written))
    return stream
