"""The verdict: which head alone carries which trigram, whatever set of other heads is removed.

A completion is predicted as strongly as it leads over every other token. If S is a set of heads,
its *margins* are `M_S[u] = logit of the completion - logit of u`, one for each other token u. They
are a sum over the heads of S and the residual stream, so all sets can be tried at little cost. The
*log-odds* of the completion are `-ln sum_u exp(-M_S[u])`, and it is the most likely token if the
smallest margin is positive.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.checks import checked, require_at_least
from circuitkit.superposition.task import FORCED, SkipTrigramTask, task_of
from circuitkit.superposition.toys import head_logits

if TYPE_CHECKING:
    import pandas as pd

Form = Literal["odds", "argmax", "post"]

LEAST_GAIN = 1.0
"""A completion is predicted if its log-odds exceed those of guessing by this, in nats."""
MOST_GAIN_WITHOUT_SOURCE = math.log(2)
"""A head is silent if it raises the log-odds over those of guessing by no more than this."""
THRESHOLD = 0.99
"""The share of rows on which an answer must be right."""
MOST_HEADS = 16
"""All `2^16` sets of so many heads can be tried in seconds."""
MOST_PROMPTS = 400_000
SEED = 42
"""Of the prompts: every model of a task is judged on the same rows."""


# Margins of sets of heads


class Margins(NamedTuple):
    """How far the completion leads over each other token in some rows.

    The lead is split into the shares of the heads and of the residual stream; each row has a trigram.
    """

    heads: Float[Tensor, "row head other"]
    residual: Float[Tensor, "row other"]
    trigram: Int[Tensor, " row"]

    @property
    def whole_model(self) -> Float[Tensor, "row other"]:
        """The margins of the whole model."""
        return self.heads.sum(1) + self.residual


Strength = Callable[[Float[Tensor, "*row other"]], Float[Tensor, "*row"]]


def log_odds(margins: Float[Tensor, "*row other"]) -> Float[Tensor, "*row"]:
    """Log-odds of the completion, `ln(p / (1 - p))`."""
    return -(-margins).logsumexp(-1)


def smallest_margin(margins: Float[Tensor, "*row other"]) -> Float[Tensor, "*row"]:
    """How far the completion leads over the strongest other token."""
    return margins.amin(-1)


def margins_over_others(
    logits: Float[Tensor, "row *head d_vocab"], completion: Int[Tensor, " row"]
) -> Float[Tensor, "row *head other"]:
    """`logits[completion] - logits[u]` for every token u but the completion, in float64."""
    n_others = logits.shape[-1] - 1
    others = torch.arange(n_others, device=logits.device).expand(len(logits), -1)
    others = others + (others >= completion[:, None])  # [row, other], without the completion
    ones = [1] * (logits.ndim - 2)
    others = others.view(-1, *ones, n_others).expand(*logits.shape[:-1], -1)
    completions = completion.view(-1, *ones, 1).expand(*logits.shape[:-1], -1)
    logits = logits.double()
    return logits.gather(-1, completions) - logits.gather(-1, others)


def always_predicted(
    heads: Float[Tensor, "row head other"], residual: Float[Tensor, "row other"]
) -> Bool[Tensor, "row head"]:
    """Whether a head predicts the completion together with *any* set of other heads; exact.

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


# The rows that are judged


def places_due(
    task: SkipTrigramTask, tokens: Int[Tensor, "prompt pos"], form: Form
) -> Int[Tensor, "row 2"]:
    """Every `(prompt, pos)` behind which a completion must follow.

    The post's form takes prompts with exactly one such place. For log-odds, only places count
    where numbers of tokens alone prove that a source is unused, because a model without positions
    sees no more: there are more sources than pairs of a destination and its completion.
    """
    due = task.states(tokens) == FORCED
    due[:, -1] = False  # nothing is predicted at the last position
    if form == "post":
        due &= due.sum(1, keepdim=True) == 1
    if form == "odds":
        unused = (tokens == task.source).cumsum(1)
        for destination in task.destinations:
            at_destination = tokens == destination
            n_before = at_destination.cumsum(1) - at_destination.long()
            n_completed = (tokens == destination + task.n_trigrams).cumsum(1)
            unused = unused - torch.minimum(n_before, n_completed)
        due &= unused > 0
    return due.nonzero()


def places_without_source(
    task: SkipTrigramTask, tokens: Int[Tensor, "prompt pos"]
) -> Int[Tensor, "row 2"]:
    """Every `(prompt, pos)` that holds a destination and has no source before it."""
    no_source = (tokens == task.source).cumsum(1) == 0
    places = task.is_destination(tokens) & no_source
    places[:, -1] = False
    return places.nonzero()


def rows_per_trigram(
    trigram: Int[Tensor, " row"], task: SkipTrigramTask
) -> Int[Tensor, " trigram"]:
    """How many rows each trigram has."""
    return torch.bincount(trigram, minlength=task.n_trigrams + 1)[1 : task.n_trigrams + 1]


def draw_places(
    draw: Callable[[int, int], Tensor],
    find: Callable[[Tensor], Tensor],
    task: SkipTrigramTask,
    rows: int,
    seed: int,
) -> tuple[Int[Tensor, "prompt pos"], Int[Tensor, "row 2"]]:
    """Prompts and the first `rows` places of each trigram; prompts are drawn until these suffice."""
    n = 4096
    tokens = draw(n, seed)
    while True:
        places = find(tokens)
        trigram = tokens[places[:, 0], places[:, 1]]
        fewest = int(rows_per_trigram(trigram, task).min())
        if n >= MOST_PROMPTS and fewest == 0:
            raise ValueError(f"{n} prompts hold no row of some trigram. Use a smaller task.")
        if n >= MOST_PROMPTS or fewest >= rows:
            chosen = [places[trigram == b][:rows] for b in task.destinations]
            return tokens, torch.cat(chosen)
        n_more = min(4 * n, MOST_PROMPTS - n)
        # Another seed each time, so that no prompt is drawn twice.
        tokens = torch.cat([tokens, draw(n_more, seed + 1_000_003 * n)])
        n += n_more


def margins_at(
    model: TransformerBridge,
    task: SkipTrigramTask,
    tokens: Int[Tensor, "prompt pos"],
    places: Int[Tensor, "row 2"],
) -> Margins:
    """The margins of each head and of the residual stream at `places[row] = (prompt, pos)`."""
    prompts, which = places[:, 0].unique(return_inverse=True)
    written, residual = [], []
    for part in prompts.split(2048):
        part_written, part_residual = head_logits(model, tokens[part])
        written.append(part_written.cpu())  # where tokens and places lie
        residual.append(part_residual.cpu())
    trigram = tokens[places[:, 0], places[:, 1]]
    at_place = which, places[:, 1]
    return Margins(
        margins_over_others(torch.cat(written)[at_place], trigram + task.n_trigrams),
        margins_over_others(torch.cat(residual)[at_place], trigram + task.n_trigrams),
        trigram,
    )


# The verdict


@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """Which head alone carries which trigram. Rates are shares of rows; column i is trigram i + 1.

    Parameters
    ----------
    form : `"odds"`, `"argmax"` or `"post"`, see `head_verdict`
    learnt : share of rows with a source on which the whole model predicts the completion
    quiet : share of rows without a source on which the whole model does not
    carried : share of rows with a source on which the head predicts the completion with every set
        of other heads, `[head, trigram]`
    silent : share of rows without a source on which the head does not, with any set
    gain : log-odds over guessing with the worst set of other heads, in nats, that 99% of the rows
        with a source reach
    n_with_source, n_without_source : rows of each trigram

    Notes
    -----
    The post's form has no rows without a source, and `gain` belongs to log-odds; fields that a
    form does not have are None. Source: see `head_verdict`.
    """

    form: Form
    learnt: Float[Tensor, " trigram"]
    carried: Float[Tensor, "head trigram"]
    n_with_source: Int[Tensor, " trigram"]
    quiet: Float[Tensor, " trigram"] | None = None
    silent: Float[Tensor, "head trigram"] | None = None
    n_without_source: Int[Tensor, " trigram"] | None = None
    gain: Float[Tensor, "head trigram"] | None = None

    @property
    def carries(self) -> Bool[Tensor, "head trigram"]:
        """Whether the head alone carries the trigram."""
        carries = self.carried >= THRESHOLD
        return carries if self.silent is None else carries & (self.silent >= THRESHOLD)

    @property
    def is_learnt(self) -> Bool[Tensor, " trigram"]:
        """Whether the whole model has learnt the trigram."""
        is_learnt = self.learnt >= THRESHOLD
        return is_learnt if self.quiet is None else is_learnt & (self.quiet >= THRESHOLD)

    def carriers(self, trigram: int) -> tuple[int, ...]:
        """The heads that alone carry this trigram (1 .. T)."""
        n_trigrams = len(self.learnt)
        if not 1 <= trigram <= n_trigrams:
            raise ValueError(f"There is no trigram {trigram}. They are numbered 1 to {n_trigrams}.")
        return tuple(self.carries[:, trigram - 1].nonzero().flatten().tolist())

    @property
    def superposed(self) -> tuple[int, ...]:
        """Trigrams in superposition: the model has learnt them, and no head alone carries them."""
        return numbers_of(self.is_learnt & ~self.carries.any(0))

    @property
    def not_learnt(self) -> tuple[int, ...]:
        """Trigrams that the model has not learnt."""
        return numbers_of(~self.is_learnt)

    @property
    def success(self) -> bool:
        """Whether every trigram is learnt, and carried by a head alone."""
        return bool((self.is_learnt & self.carries.any(0)).all())

    @property
    def exactly_one(self) -> bool:
        """Whether every trigram is learnt, and carried by exactly one head alone."""
        return self.success and bool((self.carries.sum(0) == 1).all())

    def word(self, trigram: int) -> str:
        """The verdict on one trigram, in words."""
        n_carriers = len(self.carriers(trigram))
        if trigram in self.not_learnt:
            return "not learnt"
        if n_carriers == 0:
            return "superposition"
        return "one head" if n_carriers == 1 else f"{n_carriers} heads, each alone"

    def to_frame(self) -> "pd.DataFrame":
        """A DataFrame with one row for each trigram."""
        import pandas as pd  # takes half a second, and judging needs no frame

        trigrams = range(1, len(self.learnt) + 1)
        carriers = [" ".join(f"H{head}" for head in self.carriers(i)) or "-" for i in trigrams]
        columns = {"learnt": self.learnt.tolist()}
        if self.quiet is not None:
            columns["quiet"] = self.quiet.tolist()
        columns |= {"carried by": carriers, "verdict": [self.word(i) for i in trigrams]}
        if self.gain is not None:
            columns["worst gain"] = self.gain.amax(0).tolist()
        columns["rows"] = self.n_with_source.tolist()
        if self.n_without_source is not None:
            columns["without source"] = self.n_without_source.tolist()
        return pd.DataFrame(columns, index=pd.Index(trigrams, name="trigram"))

    def __repr__(self) -> str:
        form = {"odds": "Log-odds", "argmax": "Argmax", "post": "The post's"}[self.form]
        shown: dict[str | int, Any] = {"worst gain": "{:.1f}".format}
        table = self.to_frame().reset_index()
        text = table.to_string(index=False, float_format="{:.3f}".format, formatters=shown)
        superposed = ", ".join(map(str, self.superposed)) or "none"
        return f"{form} verdict. Trigrams in superposition: {superposed}\n{text}"


def numbers_of(trigrams: Bool[Tensor, " trigram"]) -> tuple[int, ...]:
    """The numbers of the trigrams that are True."""
    return tuple((1 + trigrams.nonzero().flatten()).tolist())


def shares(
    right: Bool[Tensor, "row *head"], trigram: Int[Tensor, " row"], task: SkipTrigramTask
) -> Float[Tensor, "*head trigram"]:
    """The share of right answers among the rows of each trigram."""
    per_trigram = [right[trigram == b].float().mean(0) for b in task.destinations]
    return torch.stack(per_trigram, -1)


def judged(form: Form, present: Margins, absent: Margins, task: SkipTrigramTask) -> Verdict:
    """The verdict in rows with a source and in rows without one.

    `"odds"` compares log-odds with those of guessing, `"argmax"` asks for the most likely token.
    """
    strength, guessing, least, most = smallest_margin, 0.0, 0.0, 0.0
    if form == "odds":  # when all tokens are equal, a completion has these log-odds
        strength, guessing = log_odds, -math.log(task.d_vocab - 1)
        least, most = LEAST_GAIN, MOST_GAIN_WITHOUT_SOURCE
    smallest, _ = extremes(present.heads, present.residual, strength)
    _, largest = extremes(absent.heads, absent.residual, strength)
    gain = smallest - guessing  # [row, head]
    carried = always_predicted(present.heads, present.residual) & (gain > least)
    learnt = strength(present.whole_model) - guessing > least
    quiet = strength(absent.whole_model) - guessing <= most
    return Verdict(
        form,
        learnt=shares(learnt, present.trigram, task),
        carried=shares(carried, present.trigram, task),
        n_with_source=rows_per_trigram(present.trigram, task),
        quiet=shares(quiet, absent.trigram, task),
        silent=shares(largest - guessing <= most, absent.trigram, task),
        n_without_source=rows_per_trigram(absent.trigram, task),
        gain=gain_reached(gain, present.trigram, task) if form == "odds" else None,
    )


def gain_reached(
    gain: Float[Tensor, "row head"], trigram: Int[Tensor, " row"], task: SkipTrigramTask
) -> Float[Tensor, "head trigram"]:
    """The gain that 99% of the rows of each trigram reach."""
    columns = []
    for b in task.destinations:
        largest_first = gain[trigram == b].sort(0, descending=True).values
        columns.append(largest_first[math.ceil(THRESHOLD * len(largest_first)) - 1])
    return torch.stack(columns, 1)


def post_verdict(present: Margins, task: SkipTrigramTask) -> Verdict:
    """The published verdict: heads alone, without the residual stream, in rows with a source."""
    carried = always_predicted(present.heads, torch.zeros_like(present.residual))
    return Verdict(
        "post",
        learnt=shares(smallest_margin(present.whole_model) > 0, present.trigram, task),
        carried=shares(carried, present.trigram, task),
        n_with_source=rows_per_trigram(present.trigram, task),
    )


@checked
def head_verdict(
    model: TransformerBridge,
    task: SkipTrigramTask | None = None,
    form: Form = "odds",
    *,
    rows: int = 300,
) -> Verdict:
    """Which head alone carries which trigram, when *every* set of the other heads is removed.

    A row counts for a head only if the answer is right with every set of other heads. With a
    source, right means that the completion is predicted; without a source, that it is not.

    - `"odds"`: the completion is predicted if it is the most likely token and its log-odds exceed
      those of guessing, `-ln(d_vocab - 1)`, by more than 1 nat. Without a source they may exceed
      them by ln 2. Rows with a source are those where counts of tokens prove the completion due.
    - `"argmax"`: it is predicted if it is the most likely token. A nearly uniform model can fail by
      chance.
    - `"post"`: the published form. Argmax of the heads' outputs without the residual stream, on
      rows with a source only, from prompts with exactly one trigram. A model that never attends to
      the source passes. The authors' function also passes a model that has not learnt its
      trigrams; `success` does not.

    Parameters
    ----------
    model : a `TransformerBridge` with one layer of attention, no MLP and no norm, see `head_logits`
    task : by default the model's own, `model.task`
    form : one of the three above
    rows : how many rows of each trigram are judged, drawn from the task

    Returns
    -------
    A `Verdict`; `.superposed` has the trigrams in superposition.

    Raises
    ------
    ValueError : for a model whose logits are no sum over at most 16 heads, or another task's model

    Notes
    -----
    Error: exact on these rows, to 1e-11 in log-odds. A rate has a standard error of at most
    `0.5 / sqrt(rows)`. Source: "Gated Attention Blocks" (2024), section "Experimental Results", and
    its public code, which also counts a row only if every set is right. Log-odds: this book.

    Examples
    --------
    >>> from circuitkit.superposition import hand_specified
    >>> head_verdict(hand_specified(n_heads=2, n_trigrams=3)).superposed
    (3,)
    """
    task = task_of(model) if task is None else task
    if task.d_vocab != model.W_U.shape[1]:
        raise ValueError(
            f"The model has {model.W_U.shape[1]} tokens, and a task of {task.n_trigrams} trigrams "
            f"has {task.d_vocab}. Use the task that the model was made for."
        )
    require_at_least(1, rows=rows)

    def due(prompts: Tensor) -> Tensor:
        return places_due(task, prompts, form)

    def without_source(prompts: Tensor) -> Tensor:
        return places_without_source(task, prompts)

    present = margins_at(model, task, *draw_places(task.sample, due, task, rows, SEED))
    if form == "post":
        return post_verdict(present, task)
    absent = margins_at(
        model, task, *draw_places(task.negatives, without_source, task, rows, SEED + 1)
    )
    return judged(form, present, absent, task)


# Rates of success
