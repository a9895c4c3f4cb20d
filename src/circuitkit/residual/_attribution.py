"""Any logit as an exact sum over components."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, ids, public
from circuitkit.anatomy._engine import run_of


class LogitAttribution(NamedTuple):
    """How much each component adds to one logit at each position: `total` is the sum of `values`. **Source**: see
    `logit_attribution`.
    """

    names: tuple[str, ...]
    """Component names as in `Decomposition` or those of neuron-heads, then `"norm bias"` and `"unembed bias"`, if any."""
    values: Float[Tensor, "component batch pos"]
    """Contributions in logits; they sum over components to `total`."""
    total: Float[Tensor, "batch pos"]
    """The model's logit (or difference of logits)."""


@public
@ids()
@ids("answer")
@ids("versus")
def logit_attribution(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"],
    answer: Int[Tensor, "batch pos"],
    versus: Int[Tensor, "batch pos"] | Literal["mean"] | None = None,
    *,
    neurons: bool | None = None,
) -> LogitAttribution:
    """Split the logit of `answer` at every position (minus that of `versus`, if given) over the components.

    A softmax does not notice a number added to all logits, so a component that raises every logit alike seems to speak for
    any answer: `versus` another token, or `"mean"` for the mean over the vocabulary, cancels it.

    Without a norm, `logit = sum_c r_c . W_U[:, answer]`. A final norm's divisor is frozen at its value in this run, `r_c -> (r_c -
    mean) / scale * w`, and its bias is a component of its own: exact up to rounding, but that a component also changes the divisor
    is attributed to nobody. `neurons`: whether neuron-heads of a converted model stand for themselves (left out: where it has at
    most 1024). **Source**: "A Mathematical Framework for Transformer Circuits", logits as a sum over paths; norms are ours.
    """
    run = run_of(model, tokens, patterns=False)
    value = run.model.linear_head("logit_attribution")
    W_U, norm = value.W_U, value.final
    direction = _against(W_U.T, W_U.mean(1), answer, versus)[..., None]
    V = direction if run.final is None else run.final.fold(direction) / run.final.scale[..., None]
    groups = list(run.shares(V, neurons=value.few_neurons() if neurons is None else neurons))
    names = [name for some, _ in groups for name in some]
    values = [shares[..., 0] for _, shares in groups]
    last = run.streams[-1] if run.final is None else run.final(run.streams[-1])
    total = (last * direction[..., 0]).sum(-1)
    if norm is not None and norm.bias is not None:
        names.append("norm bias")
        values.append((norm.bias @ direction)[None, ..., 0])
    if value.b_U is not None:
        names.append("unembed bias")
        values.append(_against(value.b_U, value.b_U.mean(), answer, versus)[None])
        total = total + values[-1][0]
    return LogitAttribution(tuple(names), torch.cat(values), total)


def _against(table: Tensor, mean: Tensor, answer: Tensor, versus: Tensor | str | None) -> Tensor:
    """Rows of `table` for `answer`, minus those for `versus` or minus their mean over the vocabulary."""
    if versus is None:
        return table[answer]
    return table[answer] - (mean if isinstance(versus, str) else table[versus])
