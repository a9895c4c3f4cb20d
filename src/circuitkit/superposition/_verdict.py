"""Which head alone carries which trigram: the judgement that decides whether there is superposition."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import AS_IT_IS, Count, Seed, Share, is_bridge, public
from circuitkit._heads import Heads
from circuitkit.anatomy import Anatomy, anatomy
from circuitkit.superposition._rows import (
    Rows,
    enough_negatives,
    enough_positives,
    evaluate,
    negative_places,
    positive_places,
)
from circuitkit.superposition._subsets import always_predicted, margins, never_predicted
from circuitkit.superposition._task import SkipTrigramTask


@public
@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """What `head_verdict` found. Rates are per trigram, or `[head, trigram]`; trigram `i` is column `i - 1`.

    **Source**: see `head_verdict`.
    """

    strict: bool
    threshold: float
    learnt: Float[Tensor, "trigram"]
    """Share of rows with the source on which the whole model predicts the completion."""
    quiet: Annotated[Float[Tensor, "trigram"], AS_IT_IS]
    """Share of rows without the source on which the whole model does not; NaN in the post's form, which has no such rows."""
    carried: Float[Tensor, "head trigram"]
    """Share of rows with the source on which the head predicts it whatever set of other heads is removed."""
    silent: Annotated[Float[Tensor, "head trigram"], AS_IT_IS]
    """Share of rows without the source on which it does not, whatever is removed; NaN in the post's form."""
    positives: Int[Tensor, "trigram"]
    """Rows behind `learnt` and `carried`."""
    negatives: Int[Tensor, "trigram"]
    """Rows behind `quiet` and `silent`; 0 in the post's form."""

    @property
    def carries(self) -> Bool[Tensor, "head trigram"]:
        """True where the head alone carries the trigram, at the threshold."""
        held = self.carried >= self.threshold
        return held & (self.silent >= self.threshold) if self.strict else held

    @property
    def is_learnt(self) -> Bool[Tensor, "trigram"]:
        known = self.learnt >= self.threshold
        return known & (self.quiet >= self.threshold) if self.strict else known

    def carriers(self, trigram: Count) -> tuple[int, ...]:
        """The heads that alone carry trigram `trigram` (1 .. T)."""
        n = len(self.learnt)
        if trigram > n:
            raise ValueError(f"trigram {trigram} does not exist; trigrams are numbered 1 to {n}")
        return tuple(self.carries[:, trigram - 1].nonzero().flatten().tolist())

    @property
    def success(self) -> bool:
        """Every trigram is learnt and carried by at least one head alone."""
        return bool((self.is_learnt & self.carries.any(0)).all())

    @property
    def exactly_one(self) -> bool:
        """Success, and every trigram is carried by one head only (none is stored twice)."""
        return self.success and bool((self.carries.sum(0) == 1).all())

    @property
    def distributed(self) -> tuple[int, ...]:
        """Trigrams the model has learnt and no head carries: superposition across heads, if anything is."""
        return tuple((1 + (self.is_learnt & ~self.carries.any(0)).nonzero().flatten()).tolist())

    @property
    def not_learnt(self) -> tuple[int, ...]:
        return tuple((1 + (~self.is_learnt).nonzero().flatten()).tolist())

    def table(self) -> str:
        """One line per trigram, in aligned columns."""
        lines = [("trigram", "learnt", "quiet", "carried by", "verdict", "rows")]
        for i in range(len(self.learnt)):
            heads = self.carriers(i + 1)
            if not self.is_learnt[i]:
                word = "not learnt"
            else:
                word = {0: "no head alone", 1: "one head"}.get(len(heads), f"{len(heads)} heads, each alone")
            quiet = f"{self.quiet[i]:.3f}" if self.strict else "-"
            rows = f"{int(self.positives[i])} + {int(self.negatives[i])}"
            named = " ".join(f"H{head}" for head in heads) or "-"
            lines.append((str(i + 1), f"{self.learnt[i]:.3f}", quiet, named, word, rows))
        widths = [max(len(line[column]) for line in lines) for column in range(6)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def __repr__(self) -> str:
        form = "strict" if self.strict else "the post's"
        result = "every trigram has a head of its own" if self.success else "not every trigram has a head of its own"
        return f"{form} verdict: {result}\n{self.table()}"


@public
def head_verdict(
    run: Callable[[Tensor], tuple[Tensor, Tensor]],
    task: SkipTrigramTask,
    strict: bool = True,
    *,
    rows: Count = 300,
    threshold: Share = 0.99,
    seed: Seed = 42,
    tokens: Int[Tensor, "prompt pos"] | None = None,
    negatives: Int[Tensor, "prompt2 pos2"] | None = None,
) -> Verdict:
    """Which head alone carries which trigram, under removal of *every* subset of the other heads.

    `run(tokens)` returns `(head_logits [batch, head, pos, d_vocab], residual_logits [batch, pos, d_vocab])`; any model
    that can be written so can be judged, a bridge with one layer of attention and no norms too. A row counts for a head only if the completion is predicted with every set of
    other heads kept or removed (exact, see `always_predicted`).

    - `strict=True`: logits include the residual stream, and a head must also stay silent: on rows whose destination
      has no source before it, no set that contains the head predicts the completion. Both rates >= `threshold`.
    - `strict=False`: the post's form. Head outputs without the residual stream, rows with the source only, from prompts
      that hold exactly one trigram; "learnt" still means the whole model. A model that never looks at the source passes.

    `rows` places of each trigram are drawn with `seed`; or give `tokens` (and `negatives`), and all their rows count.
    **Error**: exact on the given rows; a rate over `rows` rows has a standard error of at most `0.5 / sqrt(rows)`.
    **Source**: "Gated Attention Blocks", section "Experimental Results"; the post asks each subset separately for > 99 %
    of rows, this asks rows for every subset, which is never more lenient on rows with the source.
    """
    run = _shares(run, task) if is_bridge(run) or isinstance(run, Anatomy) else run
    if tokens is None:
        tokens, places = enough_positives(task, rows, seed, alone=not strict)
    else:
        task._require(tokens)
        places = positive_places(task, tokens, alone=not strict)
    _check_sampled(task, tokens, places, "followed by a destination while its source is unused", "tokens")
    found = evaluate(run, task, tokens, places)
    empty = found.heads.new_full((found.heads.shape[1], task.n_trigrams), float("nan"))
    silent, quiet, n_negative = empty, empty[0], torch.zeros(task.n_trigrams, dtype=torch.long)
    if strict:
        if negatives is None:
            negatives, places = enough_negatives(task, rows, seed + 1)
        else:
            task._require(negatives, "negatives")
            places = negative_places(task, negatives)
        _check_sampled(task, negatives, places, "at a destination without a source before it", "negatives")
        missing = evaluate(run, task, negatives, places)
        never, whole = _both(missing, task, never_predicted, strict)
        silent = _per_trigram(never.to(empty.dtype), missing.trigram, task)
        quiet = _per_trigram(1 - whole.to(empty.dtype), missing.trigram, task)[0]
        n_negative = _count(missing.trigram, task)
    always, whole = _both(found, task, always_predicted, strict)
    return Verdict(
        strict=strict,
        threshold=threshold,
        learnt=_per_trigram(whole.to(empty.dtype), found.trigram, task)[0],
        quiet=quiet,
        carried=_per_trigram(always.to(empty.dtype), found.trigram, task),
        silent=silent,
        positives=_count(found.trigram, task),
        negatives=n_negative,
    )


def _shares(model: Any, task: SkipTrigramTask) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What each head and the rest of a model add to its logits, which must be their sum whatever heads are removed."""
    value = anatomy(model)
    subs, linear = value.sublayers, value.final is None and value.cap is None
    if len(subs) != 1 or not isinstance(subs[0].inside, Heads) or not linear or value.d_vocab != task.d_vocab:
        raise ValueError(
            f"head_verdict got {value!r}; expected a model whose logits are a sum over its heads, with one layer of attention, no "
            f"norm before the unembedding and the task's {task.d_vocab} tokens, because heads are removed from that sum"
        )

    def run(tokens: Tensor) -> tuple[Tensor, Tensor]:
        done = value.run(tokens)
        shares = torch.stack([done.part(name) @ value.W_U for name in subs[0].parts], 1)
        return shares, done.logits - shares.sum(1)

    return run


def _both(rows: Rows, task: SkipTrigramTask, question: Callable, residual: bool) -> tuple[Tensor, Tensor]:
    """The question for every head, `[row, head]`, and whether the whole model predicts the completion, `[row, 1]`."""
    completion = rows.trigram + task.n_trigrams
    m = margins(rows.heads, completion)
    r = margins(rows.residual, completion)
    whole = (m.sum(1) + r).amin(-1) > 0
    return question(m, r if residual else torch.zeros_like(r)), whole[:, None]


def _per_trigram(values: Tensor, trigram: Tensor, task: SkipTrigramTask) -> Tensor:
    """Mean of `values[row, head]` over the rows of each trigram, `[head, trigram]`."""
    return torch.stack([values[trigram == b].mean(0) for b in task.destinations], dim=1)


def _count(trigram: Tensor, task: SkipTrigramTask) -> Int[Tensor, "trigram"]:
    return torch.bincount(trigram, minlength=task.n_trigrams + 1)[1:]


def _check_sampled(task: SkipTrigramTask, tokens: Tensor, places: Tensor, what: str, name: str) -> None:
    counts = _count(tokens[places[:, 0], places[:, 1]], task)
    absent = [i + 1 for i, count in enumerate(counts.tolist()) if count == 0]
    if absent:
        raise ValueError(
            f"no row for trigram {absent} in {len(tokens)} prompts: none of their positions is {what}, so nothing can be "
            f"said about {'it' if len(absent) == 1 else 'them'}. Give more {name}, or leave {name}= out to draw enough."
        )
