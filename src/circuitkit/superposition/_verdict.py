"""Which head alone carries which trigram: the judgement that decides whether there is superposition."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import AS_IT_IS, Count, Seed, Share, is_bridge, public
from circuitkit._heads import Heads
from circuitkit.anatomy import Anatomy, anatomy
from circuitkit.superposition._odds import always_predicted, greatest, least, strength
from circuitkit.superposition._rows import Draw, Find, count, enough, evaluate, negative_places, positive_places
from circuitkit.superposition._task import SkipTrigramTask


@public
@dataclass(frozen=True, eq=False, repr=False)
class Verdict:
    """What `head_verdict` found. Rates are per trigram, or `[head, trigram]`; trigram `i` is column `i - 1`. **Source**: see
    `head_verdict`.
    """

    form: Literal["odds", "argmax", "post"]
    threshold: float
    learnt: Float[Tensor, "trigram"]
    """Share of rows with the source on which the whole model predicts the completion."""
    quiet: Annotated[Float[Tensor, "trigram"], AS_IT_IS]
    """Share of rows without the source on which the whole model does not; NaN in the post's form, which has no such rows."""
    carried: Float[Tensor, "head trigram"]
    """Share of rows with the source on which the head predicts it whatever set of other heads is removed."""
    silent: Annotated[Float[Tensor, "head trigram"], AS_IT_IS]
    """Share of rows without the source on which it does not, whatever is removed; NaN in the post's form."""
    gain: Annotated[Float[Tensor, "head trigram"], AS_IT_IS]
    """Log-odds over guessing in the worst company, in nats, that `threshold` of the rows with the source reach; NaN but for odds."""
    undecided: Float[Tensor, "head trigram"]
    """Share of rows that the bounds for more than 16 heads leave open; they count against the head."""
    positives: Int[Tensor, "trigram"]
    """Rows behind `learnt` and `carried`."""
    negatives: Int[Tensor, "trigram"]
    """Rows behind `quiet` and `silent`; 0 in the post's form."""

    @property
    def carries(self) -> Bool[Tensor, "head trigram"]:
        """True where the head alone carries the trigram, at the threshold."""
        held = self.carried >= self.threshold
        return held if self.form == "post" else held & (self.silent >= self.threshold)

    @property
    def is_learnt(self) -> Bool[Tensor, "trigram"]:
        known = self.learnt >= self.threshold
        return known if self.form == "post" else known & (self.quiet >= self.threshold)

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
        lines = [("trigram", "learnt", "quiet", "carried by", "verdict", "worst gain", "rows")]
        for i in range(len(self.learnt)):
            heads = self.carriers(i + 1)
            if not self.is_learnt[i]:
                word = "not learnt"
            else:
                word = {0: "no head alone", 1: "one head"}.get(len(heads), f"{len(heads)} heads, each alone")
            quiet = "-" if self.form == "post" else f"{self.quiet[i]:.3f}"
            gain = f"{self.gain[:, i].max():.1f}" if self.form == "odds" else "-"
            rows = f"{int(self.positives[i])} + {int(self.negatives[i])}"
            named = " ".join(f"H{head}" for head in heads) or "-"
            lines.append((str(i + 1), f"{self.learnt[i]:.3f}", quiet, named, word, gain, rows))
        shown = [c for c, name in enumerate(lines[0]) if name != "worst gain" or self.form == "odds"]
        widths = {c: max(len(line[c]) for line in lines) for c in shown}
        return "\n".join("  ".join(line[c].ljust(widths[c]) for c in shown).rstrip() for line in lines)

    def __repr__(self) -> str:
        form = {"odds": "log-odds", "argmax": "argmax", "post": "the post's"}[self.form]
        result = "every trigram has a head of its own" if self.success else "not every trigram has a head of its own"
        return f"{form} verdict: {result}\n{self.table()}"


@public
def head_verdict(
    run: Callable[[Tensor], tuple[Tensor, Tensor]],
    task: SkipTrigramTask,
    form: Literal["odds", "argmax", "post"] = "odds",
    *,
    rows: Count = 300,
    threshold: Share = 0.99,
    seed: Seed = 42,
    tokens: Int[Tensor, "prompt pos"] | None = None,
    negatives: Int[Tensor, "prompt2 pos2"] | None = None,
) -> Verdict:
    """Which head alone carries which trigram, under removal of *every* subset of the other heads.

    `run(tokens)` returns `(head_logits [batch, head, pos, d_vocab], residual_logits [batch, pos, d_vocab])`; a bridge with one
    layer of attention and no norms can be given too. A row counts for a head only if the answer is right with every set of other
    heads kept or removed; with a source that is "predicts", without one "is silent", each on at least `threshold` of the rows:

    - `form="odds"`: `gain = logit(p[completion]) + ln(d_vocab - 1)`, the log-odds over guessing, is above 1 nat and the completion on top; without a source it is at most `ln 2`. The whole model is judged by its gain. Rows with a source are those where counts of tokens prove the completion due.
    - `form="argmax"`: the completion is, or is not, the most likely token. A nearly uniform model fails by chance.
    - `form="post"`: argmax on head outputs without the residual stream, rows with the source only, from prompts with exactly one trigram. A model that never looks at the source passes.

    `rows` places of each trigram are drawn with `seed`; or all rows of given `tokens` (and `negatives`) count.
    **Error**: exact on the given rows for up to 16 heads and for argmax with a source, to 1e-12 in log-odds; beyond, rows
    that bounds leave open are `undecided`. A rate has a standard error of at most `0.5 / sqrt(rows)`. **Source**: "Gated
    Attention Blocks", section "Experimental Results", which asks each subset separately; asking rows for every subset is
    never more lenient with the source. Log-odds: this book.
    """
    run = _shares(run, task) if is_bridge(run) or isinstance(run, Anatomy) else run
    odds = form == "odds"
    guess, due, hush = (math.log(task.d_vocab - 1), 1.0, math.log(2)) if odds else (0.0, 0.0, 0.0)
    find = lambda prompts: positive_places(task, prompts, form)  # noqa: E731
    m, r, kind = _read(run, task, tokens, task.sample, find, rows, seed, "tokens", "followed by a destination while its source is unused")
    whole, kept = strength(m.sum(1) + r, odds) + guess > due, r if form != "post" else torch.zeros_like(r)
    always, open_, gain = always_predicted(m, kept), torch.zeros_like(m[..., 0], dtype=torch.bool), m[..., 0] * math.nan
    if odds:
        low, high = least(m, r)
        gain = low + guess
        always, open_ = always & (gain > due), always & (gain <= due) & (high + guess > due)
    rates = {"learnt": _per_trigram(whole[:, None], kind, task)[0], "carried": _per_trigram(always, kind, task)}
    undecided, empty = _per_trigram(open_, kind, task), torch.full_like(rates["carried"], math.nan)
    worst = [gain[kind == b].sort(0, descending=True).values for b in task.destinations]
    rates["gain"] = torch.stack([part[math.ceil(threshold * len(part)) - 1] for part in worst], 1)
    rates |= {"silent": empty, "quiet": empty[0], "positives": count(kind, task), "negatives": count(kind[:0], task)}
    if form != "post":
        find, absent = lambda prompts: negative_places(task, prompts), "at a destination without a source before it"
        m, r, kind = _read(run, task, negatives, task.negatives, find, rows, seed + 1, "negatives", absent)
        low, high = greatest(m, r, odds, limit=hush - guess)
        undecided = torch.maximum(undecided, _per_trigram((high + guess > hush) & (low + guess <= hush), kind, task))
        rates["silent"] = _per_trigram(high + guess <= hush, kind, task)
        rates["quiet"] = _per_trigram((strength(m.sum(1) + r, odds) + guess <= hush)[:, None], kind, task)[0]
        rates["negatives"] = count(kind, task)
    return Verdict(form=form, threshold=threshold, undecided=undecided, **rates)


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


def _read(
    run: Callable, task: SkipTrigramTask, tokens: Tensor | None, draw: Draw, find: Find, rows: int, seed: int, name: str, absent: str
) -> tuple[Tensor, ...]:
    """`evaluate` at all places of the given prompts, or at `rows` of each trigram in drawn ones."""
    if tokens is None:
        tokens, places = enough(draw, find, task, rows, seed)
    else:
        task._require(tokens, name)
        places = find(tokens)
    counts = count(tokens[places[:, 0], places[:, 1]], task).tolist()
    if missing := [i + 1 for i, n in enumerate(counts) if n == 0]:
        raise ValueError(
            f"no row for trigram {missing} in {len(tokens)} prompts: none of their positions is {absent}, so nothing can be "
            f"said about {'it' if len(missing) == 1 else 'them'}. Give more {name}, or leave {name}= out to draw enough."
        )
    return evaluate(run, task, tokens, places)


def _per_trigram(true: Tensor, trigram: Tensor, task: SkipTrigramTask) -> Float[Tensor, "head trigram"]:
    """Share of `true[row, head]` among the rows of each trigram."""
    return torch.stack([true[trigram == b].float().mean(0) for b in task.destinations], dim=1)
