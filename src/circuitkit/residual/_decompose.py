"""The final residual stream, and any logit, as an exact sum of what each component wrote; and what a later one deletes."""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Natural, ids, must, public
from circuitkit.anatomy import anatomy
from circuitkit.anatomy._address import spelled, unknown
from circuitkit.anatomy._engine import run_of


class Decomposition(NamedTuple):
    """What each component added to the residual stream: `logits = norm(sum of parts) W_U + b_U`. **Source**: see `decompose`."""

    names: tuple[str, ...]
    """`"embed"`, `"pos"`, then in order of depth `"L0H0"`, ..., `"L0 bias"` (b_O) and `"L0 MLP"`."""
    parts: Float[Tensor, "component batch pos d_model"]
    """One summand per name, in the order of `names`."""
    logits: Float[Tensor, "batch pos d_vocab"]
    """The model's logits in the same run."""
    norm_scale: Float[Tensor, "batch pos 1"] | None
    """The divisor of the final norm at each position, or `None` for a model without one."""

    @property
    def total(self) -> Float[Tensor, "batch pos d_model"]:
        """The final residual stream, the sum of all parts."""
        return self.parts.sum(0)

    def __getitem__(self, key: Any) -> Any:
        """A part by its name; by number, the named tuple's own field."""
        if isinstance(key, slice) or key in range(-4, 4) and key is not True and key is not False:
            return tuple.__getitem__(self, key)
        name = spelled(key) if isinstance(key, str) else key
        if name not in self.names:
            raise unknown("component", str(key), self.names)
        return self.parts[self.names.index(name)]


@public
@ids()
def decompose(model: AnyModel, tokens: Int[Tensor, "batch pos"]) -> Decomposition:
    """Split the final residual stream into embedding, position, every head, every MLP and the output biases.

    `x_final = embed + pos + sum_h z_h W_O^h + sum_l b_O^l + sum_l mlp^l`. A norm behind a layer (Gemma 2) or on the whole
    stream (BERT) is frozen, and parts are what is left behind it. An MLP that became heads is one part; single ones are
    `anatomy(model).run(tokens).part("L0N3")`. **Error**: exact up to rounding. **Source**: "A Mathematical Framework for
    Transformer Circuits", the residual stream as a sum; so are transformer-lens's `decompose_resid` and `stack_head_results`.
    """
    run = run_of(model, tokens)
    groups = list(run.parts())
    names = tuple(name for some, _ in groups for name in some)
    scale = None if run.final is None else run.final.scale
    return Decomposition(names, torch.cat([parts for _, parts in groups]), run.logits, scale)


class MemoryScores(NamedTuple):
    """Deletion and mutual direction of what components write, summed over positions. **Source**: see `memory_scores`."""

    names: tuple[str, ...]
    """Component names as in `Decomposition`."""
    deletion: Float[Tensor, "later earlier"]
    """`-<r_later, r_earlier> / <r_earlier, r_earlier>`, summed over positions: 1 deletes everything the earlier one
    wrote, 0 leaves it, negative amplifies it. NaN where the first component is not later."""
    cosine: Float[Tensor, "later earlier"]
    """Mean cosine between the two outputs at the same position, with the same NaNs and where either writes nothing."""


@public
@ids()
@must(
    lambda skip, tokens: (
        skip < tokens.shape[1] or f"fewer than the {tokens.shape[1]} positions, or longer text"
    )
)
def memory_scores(
    model: AnyModel, tokens: Int[Tensor, "batch pos"], *, skip: Natural = 1
) -> MemoryScores:
    """Which components delete from the stream what which earlier components wrote, on given tokens.

    Component b deletes of a: `-<r_b, r_a> / <r_a, r_a>`, products summed over batch and positions, of which the first `skip`
    are left out (attention rests there, and it is large). Of what writes nothing there is nothing to delete (NaN). Heads of
    one layer write at once, so none is later than the other; b_O counts with its heads, and so does an MLP that runs beside
    them. **Error**: float32 rounding. **Source**: "A Mathematical Framework for Transformer Circuits", on heads and neurons
    that clear what others wrote; the number is this book's.
    """
    split = decompose(model, tokens)
    parts = split.parts[:, :, skip:].flatten(1, 2)
    inner = torch.einsum("apm,bpm->ab", parts, parts)
    deletion = -inner / inner.diagonal()
    unit = (parts / parts.norm(dim=-1, keepdim=True)).nan_to_num()
    cosine = torch.einsum("apm,bpm->ab", unit, unit) / parts.shape[1]
    silent = inner.diagonal() == 0
    cosine = cosine.masked_fill(silent[:, None] | silent[None, :], torch.nan)
    depth = torch.tensor(
        [anatomy(model).find(name).step for name in split.names], device=inner.device
    )
    never = depth[:, None] <= depth[None, :]
    return MemoryScores(
        split.names, deletion.masked_fill(never, torch.nan), cosine.masked_fill(never, torch.nan)
    )


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
