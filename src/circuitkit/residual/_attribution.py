"""Any logit as an exact sum over components."""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Model, ids, must, public
from circuitkit.residual._decompose import centres, decompose


class LogitAttribution(NamedTuple):
    """How much each component adds to one logit at each position.

    `total` is the sum of `values` over components. **Source**: see `logit_attribution`.
    """

    names: tuple[str, ...]
    """Component names as in `Decomposition`, then `"norm bias"` and `"unembed bias"` where the model has them."""
    values: Float[Tensor, "component batch pos"]
    """Contributions in logits; they sum over components to `total`."""
    total: Float[Tensor, "batch pos"]
    """The model's own logit (or difference of logits)."""


def _uncapped(model: Any) -> Any:
    cap = float(getattr(model.cfg, "output_logits_soft_cap", -1.0) or -1.0)
    return cap <= 0 or f"a model without output_logits_soft_cap: with one of {cap:g} logits are no sum over components"


@public
@ids()
@ids("answer")
@ids("versus")
@must(_uncapped)
def logit_attribution(
    model: Model,
    tokens: Int[Tensor, "batch pos"],
    answer: Int[Tensor, "batch pos"],
    versus: Int[Tensor, "batch pos"] | Literal["mean"] | None = None,
) -> LogitAttribution:
    """Split the logit of `answer` at every position (minus that of `versus`, if given) over the components.

    A softmax does not notice a number added to all logits, so a component that raises every logit alike seems to speak
    for any answer. Give another token as `versus`, or `versus="mean"` for the mean over the vocabulary, to cancel it.

    Without a norm, `logit = sum_c r_c . W_U[:, answer]`. With a final LayerNorm or RMSNorm the divisor is a number per
    position; with it frozen at its value in this run the rest is linear: `r_c -> (r_c - mean) / scale * w`, and the
    norm's own bias is a component of its own. Exact up to rounding in either case. What freezing hides: a component
    also changes the divisor, and that share is attributed to nobody.

    **Source**: "A Mathematical Framework for Transformer Circuits", logits as a sum over paths; the shares of a
    norm are this book's.
    """
    W_U, norm = model.W_U.detach(), model.ln_final
    split = decompose(model, tokens)
    direction = _against(W_U.T, W_U.mean(1), answer, versus)
    names, parts = list(split.names), split.parts
    if split.norm_scale is not None:
        if centres(model.cfg, final=True):
            parts = parts - parts.mean(-1, keepdim=True)
        parts = parts / split.norm_scale
        weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
        parts = parts if weight is None else parts * weight.detach()
        if bias is not None:
            names.append("norm bias")
            parts = torch.cat([parts, bias.detach().expand_as(parts[:1])])
    values = torch.einsum("cbpm,bpm->cbp", parts, direction)
    b_U = getattr(model, "b_U", None)
    if b_U is not None and b_U.any():
        names.append("unembed bias")
        b_U = b_U.detach()
        values = torch.cat([values, _against(b_U, b_U.mean(), answer, versus)[None]])
    pick = lambda token: split.logits.gather(-1, token[..., None])[..., 0]  # noqa: E731
    total = pick(answer)
    if versus is not None:
        total = total - (split.logits.mean(-1) if isinstance(versus, str) else pick(versus))
    return LogitAttribution(tuple(names), values, total.detach())


def _against(table: Tensor, mean: Tensor, answer: Tensor, versus: Tensor | str | None) -> Tensor:
    """Rows of `table` for `answer`, minus those for `versus` or minus their mean over the vocabulary."""
    if versus is None:
        return table[answer]
    return table[answer] - (mean if isinstance(versus, str) else table[versus])
