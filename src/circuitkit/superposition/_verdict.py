"""Which head alone carries which trigram: the rows that are judged, how strongly the best and the worst set of heads
predict a completion there, and the verdict."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import AS_IT_IS, Count, Seed, Share, must, public
from circuitkit._heads import Heads
from circuitkit._precision import finest
from circuitkit._state import is_bridge
from circuitkit.anatomy import Anatomy, anatomy
from circuitkit.superposition._task import FORCED, SkipTrigramTask

EXACT = 16
"""Up to so many heads every set is tried."""
_CELLS = 1 << 22

Pair = tuple[Float[Tensor, "row head"], Float[Tensor, "row head"]]


def margins(
    logits: Float[Tensor, "row *head d_vocab"], completion: Int[Tensor, "row"]
) -> Float[Tensor, "row *head other"]:
    """`logits[completion] - logits[u]` for every `u` but the completion, `[row, ..., d_vocab - 1]`."""
    index = completion.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    difference = logits.gather(-1, index) - logits
    keep = torch.ones(logits.shape[0], logits.shape[-1], dtype=torch.bool, device=logits.device)
    keep.scatter_(1, completion[:, None], False)
    keep = keep.view(-1, *[1] * (logits.ndim - 2), logits.shape[-1]).expand_as(logits)
    return difference[keep].view(*logits.shape[:-1], logits.shape[-1] - 1)


def worst_margins(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]
) -> Float[Tensor, "row head other"]:
    """The smallest margin over each token, among the sets that hold the head: the bracket of `always_predicted`."""
    losses = m.clamp(max=0)
    return m - losses + losses.sum(1, keepdim=True) + r[:, None]


def always_predicted(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]
) -> Bool[Tensor, "row head"]:
    """True where head `h`, kept with *any* set of other heads, predicts the completion: exact, in one pass.

    `min_u ( m_h[u] + sum_{k != h} min(0, m_k[u]) + r[u] ) > 0`. Proof: some set fails if and only if for some `u` some set S
    has `m_h[u] + sum_S m_k[u] + r[u] <= 0`, and for a fixed `u` the smallest sum takes exactly the negative terms.
    """
    return worst_margins(m, r).amin(-1) > 0


def strength(M: Float[Tensor, "*row other"], odds: bool = True) -> Float[Tensor, "*row"]:
    """Log-odds of the completion, or its smallest margin."""
    return -(-M).logsumexp(-1) if odds else M.amin(-1)


def least(m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"]) -> Pair:
    """The smallest log-odds over all sets that hold the head.

    Beyond `EXACT` heads: no set is below `-ln sum_u exp(-w[u])` with `w` of `worst_margins`; the set that attains `min_u w[u]
    = w*` is tried. So `w* - ln(d_vocab - 1) <= low <= high <= w*`.
    """
    if m.shape[1] <= EXACT:
        return (exact := _tried(m, r, True)[..., 0]), exact
    worst = worst_margins(m, r)
    return strength(worst), _at_tokens(m, r, worst, m < 0).amin(-1)


def greatest(
    m: Float[Tensor, "row head other"],
    r: Float[Tensor, "row other"],
    odds: bool = True,
    rounds: int = 40,
    limit: float | None = None,
) -> Pair:
    """The largest log-odds, or smallest margin, over all sets that hold the head.

    No set is above `strength(best)`, `best[u]` its largest margin over `u`; given `limit`, sets are tried only in rows where
    this is. Beyond `EXACT` heads: for weights `p` over tokens, `L_S <= p . M_S - H(p)` and `min_u M_S[u] <= p . M_S`, both
    largest for the heads with `p . m_k > 0`. Each round takes `p` from a mixture of the sets so far (Frank and Wolfe 1956);
    every such set is a lower bound, every such `p` an upper one.
    """
    high = strength(best := -worst_margins(-m, -r), odds)
    if m.shape[1] <= EXACT:
        if (open_ := (high > (-torch.inf if limit is None else limit)).any(1)).any():
            high[open_] = _tried(m[open_], r[open_], odds)[..., 1]
        return high, high
    low = _at_tokens(m, r, best, m > 0, odds).amax(-1)
    mixture = (m.sum(1) + r)[:, None].expand_as(m)
    for step in range(rounds):
        p = (-mixture if odds else -8 * mixture).softmax(-1)
        keep = (torch.einsum("rhu,rku->rhk", p, m) > 0).to(m.dtype)
        keep.diagonal(dim1=1, dim2=2).fill_(1)
        M = torch.einsum("rhk,rku->rhu", keep, m) + r[:, None]
        low = torch.maximum(low, strength(M, odds))
        high = torch.minimum(high, (p * M).sum(-1) - torch.special.entr(p).sum(-1) * odds)
        mixture = mixture + 2 / (step + 2) * (M - mixture)
    return low, torch.maximum(low, high)  # rounding may cross them where they meet


def _at_tokens(
    m: Tensor, r: Tensor, margin: Tensor, keep: Tensor, odds: bool = True, few: int = 16
) -> Float[Tensor, "row head set"]:
    """The strength of the sets `keep[row, :, u]`, with the head, for the tokens `u` where its `margin` is smallest."""
    u = margin.topk(min(few, m.shape[2]), largest=False).indices  # [row, head, set]
    kept = (
        keep[:, None]
        .expand(-1, m.shape[1], -1, -1)
        .gather(3, u[:, :, None].expand(-1, -1, m.shape[1], -1))
        .to(m.dtype)
    )
    kept.diagonal(dim1=1, dim2=2).fill_(1)
    return strength(torch.einsum("rhks,rku->rhsu", kept, m) + r[:, None, None], odds)


def _tried(
    m: Float[Tensor, "row head other"], r: Float[Tensor, "row other"], odds: bool
) -> Float[Tensor, "row head 2"]:
    """The smallest and largest strength over all sets that hold the head; every set is tried.

    With the heads in two halves, `sum_u exp(-M[u])` of all sets is one product of two tables, `[2^(n/2), token]` each. Where
    exponents could leave float64, tokens are taken one by one.
    """
    half = m.shape[1] // 2
    halves = [m[:, :half], m[:, half:]]
    bits = [
        (torch.arange(2 ** part.shape[1])[:, None] >> torch.arange(part.shape[1]) & 1).to(m.device)
        for part in halves
    ]
    out = []
    for rows in torch.arange(len(m)).split(
        max(1, _CELLS // max(2 ** m.shape[1], len(bits[1]) * m.shape[2]))
    ):
        first, second = (
            torch.einsum("sk,rku->rsu", b.to(m.dtype), part[rows])
            for b, part in zip(bits, halves, strict=True)
        )
        first = first + r[rows, None]
        low = [part.amin(-1, keepdim=True) for part in (first, second)]
        if (
            odds
            and max(float((part - at).max()) for part, at in zip((first, second), low, strict=True))
            < 600
        ):
            table = low[0] + low[1].mT - ((low[0] - first).exp() @ (low[1] - second).exp().mT).log()
        else:
            table = first[:, :, None, 0] + second[:, None, :, 0]
            for u in range(1, m.shape[2]):
                other = first[:, :, None, u] + second[:, None, :, u]
                table = -torch.logaddexp(-table, -other) if odds else torch.minimum(table, other)
        ends = []
        for b, across in zip(bits, (2, 1), strict=True):
            without = (b == 0)[None]
            smallest = table.amin(across)[..., None].masked_fill(without, torch.inf).amin(1)
            largest = table.amax(across)[..., None].masked_fill(without, -torch.inf).amax(1)
            ends.append(torch.stack([smallest, largest], -1))
        out.append(torch.cat(ends, 1))
    return torch.cat(out)


Draw = Callable[[int, int], Tensor]
Find = Callable[[Tensor], Tensor]


def evaluate(
    run: Callable,
    task: SkipTrigramTask,
    tokens: Int[Tensor, "prompt pos"],
    places: Int[Tensor, "row 2"],
) -> tuple[Tensor, ...]:
    """What each head and the rest add to the completion's margins at `places[row] = (prompt, pos)`, in float64, and the trigrams there."""
    prompts, which = places[:, 0].unique(return_inverse=True)
    found = []
    for part in prompts.split(2048):
        output = run(tokens[part])
        if not isinstance(output, tuple) or len(output) != 2:
            raise ValueError(
                f"run(tokens) must return (head_logits, residual_logits); it returned a {type(output).__name__}"
            )
        found.append([logits.detach() for logits in returned_by_run(*output, tokens[part], task)])
    pos, (h, r) = places[:, 1], map(torch.cat, zip(*found, strict=True))
    trigram = tokens[places[:, 0], pos].to(h.device)
    m, r = (
        margins(finest(logits), trigram + task.n_trigrams)
        for logits in (h[which, :, pos], r[which, pos])
    )
    return m, r, trigram


_ours = "logits, one for each token of the task. Use the task the model was made for"


@public
@must(
    lambda head_logits, task: (
        head_logits.shape[1] > 0
        and head_logits.shape[-1] == task.d_vocab
        or f"{task.d_vocab} {_ours}"
    )
)
def returned_by_run(
    head_logits: Float[Tensor, "batch head pos d_vocab"],
    residual_logits: Float[Tensor, "batch pos d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    task: SkipTrigramTask,
) -> tuple[Tensor, Tensor]:
    """The two tensors that a `run` must return for these tokens."""
    return head_logits, residual_logits


def positive_places(task: SkipTrigramTask, tokens: Tensor, form: str) -> Int[Tensor, "row 2"]:
    """Every `(prompt, pos)` whose next token is forced.

    `post`: in prompts that hold exactly one. `odds`: where counts of tokens alone prove it, for models without positions:
    more sources than pairs of a destination and its completion could have used up.
    """
    forced = task.states(tokens) == FORCED
    forced[:, -1] = False  # nobody sees what follows the last position
    if form == "post":
        forced &= forced.sum(1, keepdim=True) == 1
    if form == "odds":
        proven = torch.zeros_like(tokens)
        for b in task.destinations:  # the destination at the place itself has used nothing
            here = tokens == b
            proven -= torch.minimum(
                here.cumsum(1) - here.long(), (tokens == b + task.n_trigrams).cumsum(1)
            )
        forced &= proven + (tokens == task.source).cumsum(1) > 0
    return forced.nonzero()


def negative_places(task: SkipTrigramTask, tokens: Tensor) -> Int[Tensor, "row 2"]:
    """Every `(prompt, pos)` that holds a destination and has no source before it."""
    clean = (tokens == task.source).cumsum(1) == 0
    places = task.is_destination(tokens) & clean
    places[:, -1] = False
    return places.nonzero()


def count(trigram: Tensor, task: SkipTrigramTask) -> Int[Tensor, "trigram"]:
    return torch.bincount(trigram, minlength=task.n_trigrams + 1)[1 : task.n_trigrams + 1]


def enough(
    draw: Draw, find: Find, task: SkipTrigramTask, rows: int, seed: int, limit: int = 400_000
) -> tuple[Tensor, Tensor]:
    """Prompts and the first `rows` places of each trigram in them; draws more prompts until there are enough."""
    tokens, n = draw(4096, seed), 4096
    while True:
        places = find(tokens)
        kind = tokens[places[:, 0], places[:, 1]]
        if n >= limit or int(count(kind, task).min()) >= rows:
            return tokens, torch.cat(
                [places[kind == destination][:rows] for destination in task.destinations]
            )
        # A new seed each time, derived from the caller's, so that no prompt is drawn twice.
        extra = min(4 * n, limit - n)
        tokens, n = torch.cat([tokens, draw(extra, seed + 1_000_003 * n)]), n + extra


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
                word = {0: "no head alone", 1: "one head"}.get(
                    len(heads), f"{len(heads)} heads, each alone"
                )
            quiet = "-" if self.form == "post" else f"{self.quiet[i]:.3f}"
            gain = f"{self.gain[:, i].max():.1f}" if self.form == "odds" else "-"
            rows = f"{int(self.positives[i])} + {int(self.negatives[i])}"
            named = " ".join(f"H{head}" for head in heads) or "-"
            lines.append((str(i + 1), f"{self.learnt[i]:.3f}", quiet, named, word, gain, rows))
        shown = [
            c for c, name in enumerate(lines[0]) if name != "worst gain" or self.form == "odds"
        ]
        widths = {c: max(len(line[c]) for line in lines) for c in shown}
        return "\n".join(
            "  ".join(line[c].ljust(widths[c]) for c in shown).rstrip() for line in lines
        )

    def __repr__(self) -> str:
        form = {"odds": "log-odds", "argmax": "argmax", "post": "the post's"}[self.form]
        result = (
            "every trigram has a head of its own"
            if self.success
            else "not every trigram has a head of its own"
        )
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
    m, r, kind = _read(
        run,
        task,
        tokens,
        task.sample,
        find,
        rows,
        seed,
        "tokens",
        "followed by a destination while its source is unused",
    )
    whole, kept = (
        strength(m.sum(1) + r, odds) + guess > due,
        r if form != "post" else torch.zeros_like(r),
    )
    always, open_, gain = (
        always_predicted(m, kept),
        torch.zeros_like(m[..., 0], dtype=torch.bool),
        m[..., 0] * math.nan,
    )
    if odds:
        low, high = least(m, r)
        gain = low + guess
        always, open_ = always & (gain > due), always & (gain <= due) & (high + guess > due)
    rates = {
        "learnt": _per_trigram(whole[:, None], kind, task)[0],
        "carried": _per_trigram(always, kind, task),
    }
    undecided, empty = _per_trigram(open_, kind, task), torch.full_like(rates["carried"], math.nan)
    worst = [gain[kind == b].sort(0, descending=True).values for b in task.destinations]
    rates["gain"] = torch.stack([part[math.ceil(threshold * len(part)) - 1] for part in worst], 1)
    rates |= {
        "silent": empty,
        "quiet": empty[0],
        "positives": count(kind, task),
        "negatives": count(kind[:0], task),
    }
    if form != "post":
        find, absent = (
            lambda prompts: negative_places(task, prompts),
            "at a destination without a source before it",
        )
        m, r, kind = _read(
            run, task, negatives, task.negatives, find, rows, seed + 1, "negatives", absent
        )
        low, high = greatest(m, r, odds, limit=hush - guess)
        undecided = torch.maximum(
            undecided, _per_trigram((high + guess > hush) & (low + guess <= hush), kind, task)
        )
        rates["silent"] = _per_trigram(high + guess <= hush, kind, task)
        rates["quiet"] = _per_trigram(
            (strength(m.sum(1) + r, odds) + guess <= hush)[:, None], kind, task
        )[0]
        rates["negatives"] = count(kind, task)
    return Verdict(form=form, threshold=threshold, undecided=undecided, **rates)


def _shares(model: Any, task: SkipTrigramTask) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What each head and the rest of a model add to its logits, which must be their sum whatever heads are removed."""
    value = anatomy(model)
    subs, linear = value.sublayers, value.final is None and value.cap is None
    if (
        len(subs) != 1
        or not isinstance(subs[0].inside, Heads)
        or not linear
        or value.d_vocab != task.d_vocab
    ):
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
    run: Callable,
    task: SkipTrigramTask,
    tokens: Tensor | None,
    draw: Draw,
    find: Find,
    rows: int,
    seed: int,
    name: str,
    absent: str,
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


def _per_trigram(
    true: Tensor, trigram: Tensor, task: SkipTrigramTask
) -> Float[Tensor, "head trigram"]:
    """Share of `true[row, head]` among the rows of each trigram."""
    return torch.stack([true[trigram == b].float().mean(0) for b in task.destinations], dim=1)
