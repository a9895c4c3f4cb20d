"""The verdict: which head alone carries which rule, whatever set of other heads is removed.

A rule is an answer token that must follow in some contexts. If S is a set of heads, its *margins*
are `M_S[u] = logit of the answer - logit of u`, one for each other token u. They are a sum over the
heads of S and the residual stream, so all sets can be tried at little cost. The *log-odds* of the
answer are `-ln sum_u exp(-M_S[u])`, and it has the largest logit if the smallest margin is positive.
`predicted` is the one definition of a prediction, for the whole model and for its heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit.bridge import Model, undisturbed
from circuitkit.checks import checked, require_bridge
from circuitkit.rows import to_tokens

if TYPE_CHECKING:
    import pandas as pd

LEAST_GAIN = 1.0
"""A predicted answer has the largest logit, and its log-odds exceed guessing by more than this."""
MOST_GAIN_OF_CONTROL = math.log(2)
"""A model is silent about an answer whose log-odds exceed guessing by no more than this, in nats."""
THRESHOLD = 0.99
"""The share of rows on which an answer must be right."""
MOST_HEADS = 16
"""All `2^16` sets of so many heads can be tried in seconds."""


# What heads add to the logits


@checked
def head_logits(
    model: Model, tokens: Int[Tensor, "batch pos"]
) -> tuple[Float[Tensor, "batch pos head d_vocab"], Float[Tensor, "batch pos d_vocab"]]:
    """What each head adds to the logits, and what the residual stream adds without any head.

    The logits are `written.sum(2) + residual`, and stay so if heads are removed from the sum.

    Parameters
    ----------
    model : a `TransformerBridge` with one layer of attention, no MLP and no norm at the end
    tokens : token ids, `[batch, pos]`

    Returns
    -------
    written : `[batch, pos, head, d_vocab]`
    residual : `[batch, pos, d_vocab]`

    Raises
    ------
    ValueError : if the model's logits are no sum over its heads

    Notes
    -----
    Error: rounding. Source: this book.

    Examples
    --------
    >>> from circuitkit import Heads, handmade
    >>> W, eye = torch.ones(2, 8, 3), torch.eye(8)
    >>> model = handmade.bridge_of(Heads(("L0H0", "L0H1"), W, W, W, W.mT), eye, eye, n_ctx=4)
    >>> head_logits(model, torch.tensor([[7, 0, 3]]))[0].shape
    torch.Size([1, 3, 2, 8])
    """
    require_sum_over_heads(model)
    z_name, stream_name = "blocks.0.attn.hook_z", "blocks.0.hook_resid_pre"
    tokens = to_tokens(model, tokens)
    with torch.no_grad(), undisturbed(model):
        _, cache = model.run_with_cache(tokens, names_filter=[z_name, stream_name])
        attention = model.blocks[0].attn
        written = torch.einsum("bphd,hdm->bphm", cache[z_name], attention.W_O) @ model.W_U
        residual = (cache[stream_name] + attention.b_O) @ model.W_U + model.b_U
    return written.detach(), residual.detach()


def require_sum_over_heads(model: Model) -> None:
    """Raise a `ValueError` unless the logits are a sum over the heads of one layer."""
    require_bridge(model)
    cfg = model.cfg
    has_norm = getattr(cfg, "normalization_type", None) is not None
    has_cap = getattr(cfg, "output_logits_soft_cap", 0) > 0
    if len(model.blocks) != 1 or not cfg.attn_only or has_norm or has_cap:
        raise ValueError(
            f"This model has {len(model.blocks)} layers"
            f"{', norms' if has_norm else ''}{'' if cfg.attn_only else ', MLPs'}. The logits must "
            "be a sum over heads that can be removed: one layer of attention, no MLP, no norm, no "
            "cap of the logits, as in the models that circuitkit.handmade.bridge_of makes."
        )


# Margins of sets of heads


class Margins(NamedTuple):
    """How far the answer leads over each other token in some rows, and which answer it is.

    The lead is split into the shares of the heads and of the residual stream.
    """

    heads: Float[Tensor, "row head other"]
    residual: Float[Tensor, "row other"]
    answer: Int[Tensor, " row"]

    @property
    def whole_model(self) -> Float[Tensor, "row other"]:
        """The margins of the whole model."""
        return self.heads.sum(1) + self.residual


def margins_at(
    model: Model, tokens: Int[Tensor, "row pos"], answers: Int[Tensor, "row pos"]
) -> Margins:
    """The margins at every position that has an answer."""
    heads, residual, answer = [], [], []
    for part, part_answers in zip(tokens.split(2048), answers.split(2048), strict=True):
        written, stream = head_logits(model, part)
        part_answers = part_answers.to(written.device)
        is_judged = part_answers >= 0
        answer.append(part_answers[is_judged])
        heads.append(margins_over_others(written[is_judged], answer[-1]))
        residual.append(margins_over_others(stream[is_judged], answer[-1]))
    return Margins(torch.cat(heads), torch.cat(residual), torch.cat(answer))


def margins_over_others(
    logits: Float[Tensor, "row *head d_vocab"], answer: Int[Tensor, " row"]
) -> Float[Tensor, "row *head other"]:
    """`logits[answer] - logits[u]` for every token u but the answer, in float64."""
    logits = logits.double()
    is_other = torch.ones_like(logits, dtype=torch.bool)
    is_other[torch.arange(len(answer)), ..., answer] = False
    others = logits[is_other].view(*logits.shape[:-1], logits.shape[-1] - 1)
    return logits[~is_other].view(*logits.shape[:-1], 1) - others


Strength = Callable[[Float[Tensor, "*row other"]], Float[Tensor, "*row"]]


def log_odds(margins: Float[Tensor, "*row other"]) -> Float[Tensor, "*row"]:
    """Log-odds of the answer, `ln(p / (1 - p))`."""
    return -(-margins).logsumexp(-1)


def gain_over_guessing(margins: Float[Tensor, "*row other"]) -> Float[Tensor, "*row"]:
    """Log-odds of the answer above those that it has when all tokens are equally likely."""
    return log_odds(margins) + math.log(margins.shape[-1])


def smallest_margin(margins: Float[Tensor, "*row other"]) -> Float[Tensor, "*row"]:
    """How far the answer leads over the strongest other token."""
    return margins.amin(-1)


Criterion = Literal["odds", "argmax"]


def predicted(
    leads: Bool[Tensor, "*row"], gain: Float[Tensor, "*row"], criterion: Criterion
) -> Bool[Tensor, "*row"]:
    """Whether an answer is predicted, in the whole model or with every set of heads.

    Parameters
    ----------
    leads : whether it has the largest logit; with every set, if there are several
    gain : its log-odds over guessing; the smallest of all sets, if there are several
    criterion : see `head_verdict`
    """
    return leads if criterion == "argmax" else leads & (gain > LEAST_GAIN)


def always_leads(
    heads: Float[Tensor, "row head other"], residual: Float[Tensor, "row other"]
) -> Bool[Tensor, "row head"]:
    """Whether the answer has the largest logit with a head and *any* set of other heads; exact.

    `min_u ( m_h[u] + sum_{k != h} min(0, m_k[u]) + r[u] ) > 0`. Some set fails exactly if for some
    token u a set S has `m_h[u] + sum_S m_k[u] + r[u] <= 0`, and for a fixed u the smallest sum
    takes all negative terms.
    """
    negative = heads.clamp(max=0)
    negative_of_others = negative.sum(1, keepdim=True) - negative
    worst = heads + negative_of_others + residual[:, None]
    return worst.amin(-1) > 0


def extremes(
    heads: Float[Tensor, "row head other"],
    residual: Float[Tensor, "row other"],
    strength: Strength,
) -> tuple[Float[Tensor, "row head"], Float[Tensor, "row head"]]:
    """The smallest and the largest strength over all sets of heads that hold a head; all are tried.

    Raises
    ------
    ValueError : for more than 16 heads
    """
    n_heads = heads.shape[1]
    if n_heads > MOST_HEADS:
        raise ValueError(
            f"The verdict tries every set of heads, which is possible for up to {MOST_HEADS} heads, "
            f"and this model has {n_heads}."
        )
    numbers = torch.arange(2**n_heads, device=heads.device)
    kept = (numbers[:, None] >> torch.arange(n_heads, device=heads.device)) & 1  # [set, head]
    smallest, largest = torch.empty_like(heads[..., 0]), torch.empty_like(heads[..., 0])
    rows_at_once = max(1, 2**22 // (len(kept) * heads.shape[2]))
    for rows in torch.arange(len(heads)).split(rows_at_once):
        margins = torch.einsum("sh,rhu->rsu", kept.to(heads.dtype), heads[rows])
        strengths = strength(margins + residual[rows, None])  # [row, set]
        for head in range(n_heads):
            with_head = strengths[:, kept[:, head] == 1]
            smallest[rows, head] = with_head.amin(1)
            largest[rows, head] = with_head.amax(1)
    return smallest, largest


# The verdict


@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """Which head alone carries which rule. Rates are shares of rows, one for each rule.

    Parameters
    ----------
    rules : the answer tokens, in the order of the columns
    learnt : share of rows on which the whole model predicts the answer
    quiet : share of control rows on which the whole model is silent about it
    carried : share of rows on which the head predicts the answer with every set of other heads
    silent : share of control rows on which the head is silent about it with every set
    gain : log-odds over guessing with the worst set of other heads, in nats, that 99% of the rows
        reach. Of n rows in ascending order it is the value of row `n // 100`, counted from 0, so
        with fewer than 100 rows it is the smallest of all.

    Notes
    -----
    `head_verdict` says what *predicts* and *silent* mean; its source is there, too.
    """

    rules: tuple[int, ...]
    learnt: Float[Tensor, " rule"]
    quiet: Float[Tensor, " rule"]
    carried: Float[Tensor, "head rule"]
    silent: Float[Tensor, "head rule"]
    gain: Float[Tensor, "head rule"]

    @property
    def carries(self) -> Bool[Tensor, "head rule"]:
        """Whether the head alone carries the rule."""
        return (self.carried >= THRESHOLD) & (self.silent >= THRESHOLD)

    @property
    def is_learnt(self) -> Bool[Tensor, " rule"]:
        """Whether the whole model has learnt the rule."""
        return (self.learnt >= THRESHOLD) & (self.quiet >= THRESHOLD)

    @property
    def superposed(self) -> tuple[int, ...]:
        """Rules in superposition: the model has learnt them, and no head alone carries them."""
        is_superposed = self.is_learnt & ~self.carries.any(0)
        return tuple(self.rules[i] for i in is_superposed.nonzero().flatten().tolist())

    @property
    def success(self) -> bool:
        """Whether every rule is learnt, and carried by a head alone."""
        return bool((self.is_learnt & self.carries.any(0)).all())

    def to_frame(self) -> "pd.DataFrame":
        """A DataFrame with one row for each rule."""
        import pandas as pd  # takes half a second, and judging needs no frame

        carriers, words = [], []
        for is_learnt, carries in zip(self.is_learnt, self.carries.T, strict=True):
            heads = [f"H{head}" for head in carries.nonzero().flatten().tolist()]
            carriers.append(" ".join(heads) or "-")
            named = {0: "superposition", 1: "one head"}
            word = named.get(len(heads), f"{len(heads)} heads, each alone")
            words.append(word if is_learnt else "not learnt")
        columns = {"learnt": self.learnt, "quiet": self.quiet, "carried by": carriers}
        columns |= {"verdict": words, "worst gain": self.gain.amax(0)}
        return pd.DataFrame(columns, pd.Index(self.rules, name="rule"))

    def __repr__(self) -> str:
        return self.to_frame().to_string(float_format="{:.3f}".format)


@checked
def head_verdict(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    answers: Int[Tensor, "row pos"],
    control_tokens: Int[Tensor, "control control_pos"],
    control_answers: Int[Tensor, "control control_pos"],
    criterion: Criterion = "odds",
) -> Verdict:
    """Which head alone carries which rule, when *every* set of the other heads is removed.

    The whole model is right on a row if it predicts the answer, and on a control row if it is silent
    about it. A head is right on a row only if the same holds with the head and every set of other
    heads. So a head that carries a rule is in a model that has learnt it.

    - `"odds"`: an answer is predicted if it has the largest logit and its log-odds exceed those of
      guessing, `-ln(d_vocab - 1)`, by more than 1 nat. The model is silent if they exceed them by no
      more than ln 2.
    - `"argmax"`: an answer is predicted if it has the largest logit, and the model is silent if it has
      not. A nearly uniform model can fail by chance.

    Parameters
    ----------
    model : a `TransformerBridge` with one layer of attention, no MLP and no norm, see `head_logits`
    tokens : rows of token ids in which the model must answer
    answers : for each position, the token that must follow it, or -1 where nothing is judged
    control_tokens : rows of token ids in which the same answers would be wrong
    control_answers : for each position, the token that must not be predicted, or -1
    criterion : when an answer counts as predicted

    Returns
    -------
    A `Verdict`; `.superposed` has the answers that the model has learnt and no head alone carries.

    Raises
    ------
    ValueError : for a model whose logits are no sum over at most 16 heads, and for answers that the
        control rows do not have

    Notes
    -----
    Error: exact on these rows, to 1e-11 in log-odds. Source: "Gated Attention Blocks" (2024), section
    "Experimental Results", and its public code, which also counts a row only if every set is right.
    Log-odds and control rows: this book.

    Examples
    --------
    >>> from circuitkit import Heads, handmade
    >>> W, eye = torch.ones(2, 4, 1), torch.eye(4)
    >>> model = handmade.bridge_of(Heads(("L0H0", "L0H1"), W, W, W, W.mT), eye, eye, n_ctx=4)
    >>> due, control = torch.tensor([[3, 0, 1]]), torch.tensor([[3, 3, 1]])
    >>> answers = torch.tensor([[-1, -1, 2]])  # 2 must follow, unless no 0 came before
    >>> head_verdict(model, due, answers, control, answers).success
    False
    """
    require_sum_over_heads(model)
    require_same_answers(model, answers, control_answers)
    due = margins_at(model, tokens, answers)
    control = margins_at(model, control_tokens, control_answers)
    return judged(due, control, criterion)


def require_same_answers(model: Model, answers: Tensor, control_answers: Tensor) -> None:
    """Raise a `ValueError` unless rows and control rows have the same answers, all tokens."""
    rules, controls = (set(part[part >= 0].tolist()) for part in (answers, control_answers))
    if not rules or rules != controls:
        raise ValueError(
            f"The rows have the answers {sorted(rules)}, and the control rows have "
            f"{sorted(controls)}. Each rule needs rows of both kinds; -1 marks positions that are "
            "not judged."
        )
    if max(rules) >= model.cfg.d_vocab:
        raise ValueError(f"The answer {max(rules)} is no token; there are {model.cfg.d_vocab}.")


def judged(due: Margins, control: Margins, criterion: Criterion) -> Verdict:
    """The verdict from the margins of rows and control rows."""
    rules = due.answer.unique()
    whole = due.whole_model
    smallest_gain, _ = extremes(due.heads, due.residual, gain_over_guessing)
    learnt = predicted(smallest_margin(whole) > 0, gain_over_guessing(whole), criterion)
    carried = predicted(always_leads(due.heads, due.residual), smallest_gain, criterion)
    strength, most = smallest_margin, 0.0
    if criterion == "odds":
        strength, most = gain_over_guessing, MOST_GAIN_OF_CONTROL
    _, largest = extremes(control.heads, control.residual, strength)
    in_order = [smallest_gain[due.answer == rule].sort(0).values for rule in rules]
    # 99% of the rows reach the gain that stands behind the lowest 1%
    gain = [values[len(values) // 100] for values in in_order]
    return Verdict(
        tuple(rules.tolist()),
        learnt=shares(learnt, due.answer),
        quiet=shares(strength(control.whole_model) <= most, control.answer),
        carried=shares(carried, due.answer),
        silent=shares(largest <= most, control.answer),
        gain=torch.stack(gain, -1),
    )


def shares(
    is_right: Bool[Tensor, "row *head"], answer: Int[Tensor, " row"]
) -> Float[Tensor, "*head rule"]:
    """The share of right rows of each answer."""
    per_rule = [is_right[answer == rule].float().mean(0) for rule in answer.unique()]
    return torch.stack(per_rule, -1)
