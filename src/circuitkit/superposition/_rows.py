"""The rows a verdict is computed on: places where a trigram must be completed, and places where it must not."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import must, public
from circuitkit._precision import finest
from circuitkit.superposition._odds import margins
from circuitkit.superposition._task import FORCED, SkipTrigramTask

Draw = Callable[[int, int], Tensor]
Find = Callable[[Tensor], Tensor]

def evaluate(run: Callable, task: SkipTrigramTask, tokens: Int[Tensor, "prompt pos"], places: Int[Tensor, "row 2"]) -> tuple[Tensor, ...]:
    """What each head and the rest add to the completion's margins at `places[row] = (prompt, pos)`, in float64, and the trigrams there."""
    prompts, which = places[:, 0].unique(return_inverse=True)
    found = []
    for part in prompts.split(2048):
        output = run(tokens[part])
        if not isinstance(output, tuple) or len(output) != 2:
            raise ValueError(f"run(tokens) must return (head_logits, residual_logits); it returned a {type(output).__name__}")
        found.append([logits.detach() for logits in returned_by_run(*output, tokens[part], task)])
    pos, (h, r) = places[:, 1], map(torch.cat, zip(*found, strict=True))
    trigram = tokens[places[:, 0], pos].to(h.device)
    m, r = (margins(finest(logits), trigram + task.n_trigrams) for logits in (h[which, :, pos], r[which, pos]))
    return m, r, trigram


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

    `post`: in prompts that hold exactly one. `odds`: where counts of tokens alone prove it, for models without positions:
    more sources than pairs of a destination and its completion could have used up.
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


def count(trigram: Tensor, task: SkipTrigramTask) -> Int[Tensor, "trigram"]:
    return torch.bincount(trigram, minlength=task.n_trigrams + 1)[1 : task.n_trigrams + 1]


def enough(draw: Draw, find: Find, task: SkipTrigramTask, rows: int, seed: int, limit: int = 400_000) -> tuple[Tensor, Tensor]:
    """Prompts and the first `rows` places of each trigram in them; draws more prompts until there are enough."""
    tokens, n = draw(4096, seed), 4096
    while True:
        places = find(tokens)
        kind = tokens[places[:, 0], places[:, 1]]
        if n >= limit or int(count(kind, task).min()) >= rows:
            return tokens, torch.cat([places[kind == destination][:rows] for destination in task.destinations])
        # A new seed each time, derived from the caller's, so that no prompt is drawn twice.
        extra = min(4 * n, limit - n)
        tokens, n = torch.cat([tokens, draw(extra, seed + 1_000_003 * n)]), n + extra
