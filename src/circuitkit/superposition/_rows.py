"""The rows a verdict is computed on: places where a trigram must be completed, and places where it must not."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import must, public
from circuitkit.superposition._task import FORCED, SkipTrigramTask


@dataclass(frozen=True)
class Rows:
    """What a model says at chosen places: `heads[row, head, d_vocab]`, `residual[row, d_vocab]`, `trigram[row]` (1..T)."""

    heads: Float[Tensor, "row head d_vocab"]
    residual: Float[Tensor, "row d_vocab"]
    trigram: Int[Tensor, "row"]


def evaluate(
    run: Callable[[Tensor], tuple[Tensor, Tensor]], task: SkipTrigramTask, tokens: Int[Tensor, "prompt pos"], places: Tensor
) -> Rows:
    """Run the model on the prompts that hold a chosen place (`places[row] = (prompt, pos)`) and read it there."""
    prompts, which = places[:, 0].unique(return_inverse=True)
    heads, residual = [], []
    for part in prompts.split(2048):
        output = run(tokens[part])
        if not isinstance(output, tuple) or len(output) != 2:
            raise ValueError(f"run(tokens) must return (head_logits, residual_logits); it returned a {type(output).__name__}")
        h, r = returned_by_run(*output, tokens[part], task)
        heads.append(h.detach())
        residual.append(r.detach())
    pos = places[:, 1]
    h, r = torch.cat(heads), torch.cat(residual)
    return Rows(h[which, :, pos], r[which, pos], tokens[places[:, 0], pos].to(h.device))


_ours = "logits, one for each token of the task. Use the task the model was made for"


@public
@must(lambda head_logits, task: head_logits.shape[1] > 0 and head_logits.shape[-1] == task.d_vocab or f"{task.d_vocab} {_ours}")
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

    `post`: only in prompts that hold exactly one. `odds`: only where the counts of tokens prove it, so that a model without
    positions can know: more sources than pairs of a destination and its completion could have used up.
    """
    forced = task.states(tokens) == FORCED
    forced[:, -1] = False  # nobody sees what follows the last position
    if form == "post":
        forced &= (forced.sum(1, keepdim=True) == 1)
    if form == "odds":
        proven = torch.zeros_like(tokens)
        for b in task.destinations:  # the destination at the place itself has used nothing
            here = tokens == b
            proven -= torch.minimum(here.cumsum(1) - here.long(), (tokens == b + task.n_trigrams).cumsum(1))
        forced &= proven + (tokens == task.source).cumsum(1) > 0
    return forced.nonzero()


def negative_places(task: SkipTrigramTask, tokens: Tensor) -> Int[Tensor, "row 2"]:
    """Every `(prompt, pos)` that holds a destination and has no source before it."""
    clean = (tokens == task.source).cumsum(1) == 0
    places = task.is_destination(tokens) & clean
    places[:, -1] = False
    return places.nonzero()


def first_per_trigram(task: SkipTrigramTask, tokens: Tensor, places: Tensor, most: int) -> Int[Tensor, "row 2"]:
    """At most `most` places of each trigram, the first ones, in order."""
    kind = tokens[places[:, 0], places[:, 1]]
    keep = [places[kind == destination][:most] for destination in task.destinations]
    return torch.cat(keep)


def enough_positives(task: SkipTrigramTask, rows: int, seed: int, form: str, limit: int = 400_000) -> tuple[Tensor, Tensor]:
    """Prompts of the task and `rows` places of each trigram in them; draws more prompts until there are enough."""
    return _enough(lambda n, s: task.sample(n, s), lambda t: positive_places(task, t, form), task, rows, seed, limit)


def enough_negatives(task: SkipTrigramTask, rows: int, seed: int, limit: int = 400_000) -> tuple[Tensor, Tensor]:
    return _enough(lambda n, s: task.negatives(n, s), lambda t: negative_places(task, t), task, rows, seed, limit)


def _enough(draw, find, task: SkipTrigramTask, rows: int, seed: int, limit: int) -> tuple[Tensor, Tensor]:
    tokens, n = draw(4096, seed), 4096
    while True:
        places = find(tokens)
        counts = torch.bincount(tokens[places[:, 0], places[:, 1]], minlength=task.n_trigrams + 1)[1 : task.n_trigrams + 1]
        if n >= limit or int(counts.min()) >= rows:
            return tokens, first_per_trigram(task, tokens, places, rows)
        # A new seed each time, derived from the caller's, so that no prompt is drawn twice.
        extra = min(4 * n, limit - n)
        tokens, n = torch.cat([tokens, draw(extra, seed + 1_000_003 * n)]), n + extra
