"""The skip-trigram task of chapter 5: `[source] ... [destination] -> [completion]`.

The verdict on a model of the task, and the training of gated blocks on its prompts, are here, too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.bridge import Model
from circuitkit.checks import checked, require_at_least
from circuitkit.superposition import GATES, head_verdict, record_layer, train_gated
from circuitkit.superposition.block import Recipe
from circuitkit.superposition.gated_training import GatedRuns, seed_of
from circuitkit.superposition.verdict import (
    Verdict,
    always_leads,
    margins_at,
    shares,
    smallest_margin,
)

__all__ = ["SkipTrigramTask", "post_recipe", "train_on_task", "trigram_verdict"]

IDLE, PENDING, FORCED = 0, 1, 2

Form = Literal["odds", "argmax", "post"]

MOST_PROMPTS = 400_000
SEED = 42
"""Of the prompts on which models are judged: every model of a task is judged on the same rows."""


@dataclass(frozen=True)
class SkipTrigramTask:
    """Prompts of random tokens, in which a destination that follows an unused source is completed.

    Token 0 is the source, tokens `1 .. T` are the destinations, and `T + 1 .. 2 T` are their
    completions. The last token, `d_vocab - 1`, begins every prompt. The tokens so far determine
    one of three states:

    - 0, idle: the next token is uniform over all tokens, the beginning token included;
    - 1, pending (a source has not been used yet): uniform over all tokens but the source;
    - 2, forced (a destination came while a source was pending): the completion follows, and the
      source is used up.

    A destination after a *used* source is not completed, which no position-free model can learn.

    Parameters
    ----------
    n_trigrams : T, the number of destinations
    n_ctx : length of a prompt, the beginning token included

    Raises
    ------
    ValueError : for less than 1 trigram or less than 4 positions

    Notes
    -----
    Source: "Gated Attention Blocks" (2024), section "Toy Dataset Generation"; Jermyn et al. 2023.

    Examples
    --------
    >>> task = SkipTrigramTask(n_trigrams=3)
    >>> task.states(torch.tensor([[7, 0, 2, 5]])).tolist()
    [[0, 1, 2, 0]]
    """

    n_trigrams: int
    n_ctx: int = 11

    def __post_init__(self) -> None:
        if self.n_trigrams < 1 or self.n_ctx < 4:
            raise ValueError(
                f"A task with {self.n_trigrams} trigrams and {self.n_ctx} positions is not "
                "possible. It needs n_trigrams >= 1, and n_ctx >= 4 for a beginning and one trigram."
            )

    @property
    def d_vocab(self) -> int:
        """Number of tokens."""
        return 2 * self.n_trigrams + 2

    @property
    def source(self) -> int:
        """The source token."""
        return 0

    @property
    def bos(self) -> int:
        """The token that begins every prompt."""
        return self.d_vocab - 1

    @property
    def destinations(self) -> range:
        """The destination tokens, which are also the numbers of the trigrams."""
        return range(1, self.n_trigrams + 1)

    @property
    def completions(self) -> range:
        """The completions, in the order of their destinations."""
        return range(self.n_trigrams + 1, 2 * self.n_trigrams + 1)

    @checked
    def sample(self, n: int, seed: int) -> Int[Tensor, "prompt pos"]:
        """`n` prompts, `[prompt, pos]`, drawn exactly from the task's distribution."""
        generator = torch.Generator().manual_seed(seed)
        v = self.d_vocab
        shape = (self.n_ctx - 1, n)
        draws = torch.randint(v * (v - 1), shape, generator=generator, dtype=torch.int32)
        # Both are uniform, over all tokens and over those but the source. Only one of them is
        # used at each position, so they may come from the same random integer.
        any_token = draws // (v - 1)
        no_source = 1 + draws // v
        tokens = [torch.full((n,), self.bos, dtype=torch.int32)]
        pending = torch.zeros(n, dtype=torch.bool)
        forced = torch.zeros(n, dtype=torch.bool)
        for step in range(self.n_ctx - 1):
            token = torch.where(pending, no_source[step], any_token[step])
            token = torch.where(forced, tokens[-1] + self.n_trigrams, token)
            pending = (pending | (token == self.source)) & ~forced
            forced = pending & self.is_destination(token)
            tokens.append(token)
        return torch.stack(tokens, dim=1).long()

    @checked
    def negatives(self, n: int, seed: int) -> Int[Tensor, "prompt pos"]:
        """`n` prompts with at least one destination and no source, so nothing is completed.

        They have the task's own distribution given these two facts.
        """
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.empty(n, self.n_ctx, dtype=torch.long)
        tokens[:, 0] = self.bos
        rows = torch.arange(n)
        while len(rows):
            shape = (len(rows), self.n_ctx - 1)
            draws = torch.randint(1, self.d_vocab, shape, generator=generator)
            tokens[rows, 1:] = draws
            # Nothing is predicted at the last position, so the destination comes before it.
            rows = rows[~self.is_destination(draws[:, :-1]).any(-1)]
        return tokens

    def is_destination(self, tokens: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Where the token is a destination."""
        return (tokens >= 1) & (tokens <= self.n_trigrams)

    @checked
    def states(self, tokens: Int[Tensor, "prompt pos"]) -> Int[Tensor, "prompt pos"]:
        """The state after each token of any prompts: 0 idle, 1 pending, 2 forced.

        Raises
        ------
        ValueError : if a token is not one of the task
        """
        self.require_tokens(tokens)
        states = torch.zeros_like(tokens)
        state = torch.zeros_like(tokens[:, 0])
        for pos in range(tokens.shape[1]):
            token = tokens[:, pos]
            after_idle = torch.where(token == self.source, PENDING, IDLE)
            after_pending = torch.where(self.is_destination(token), FORCED, PENDING)
            # After a forced destination its completion follows, which leaves the state idle.
            after_others = torch.where(state == FORCED, IDLE, after_idle)
            state = torch.where(state == PENDING, after_pending, after_others)
            states[:, pos] = state
        return states

    def require_tokens(self, tokens: Tensor) -> None:
        """Raise a `ValueError` unless these are tokens of the task."""
        if not tokens.numel() or int(tokens.min()) < 0 or int(tokens.max()) >= self.d_vocab:
            between = f"{int(tokens.min())} to {int(tokens.max())}" if tokens.numel() else "none"
            raise ValueError(
                f"A task of {self.n_trigrams} trigrams has the tokens 0 to {self.d_vocab - 1}, and "
                f"these prompts hold {between}. Draw prompts with task.sample(n, seed)."
            )


def task_of(model: Model) -> SkipTrigramTask:
    """The task that a toy model was made for; a `ValueError` for any other model."""
    task = getattr(model, "task", None)
    if not isinstance(task, SkipTrigramTask):
        raise ValueError(
            "This model does not hold a task. Write head_verdict(model, tokens, answers, ...) with "
            "rows of your own, and train_gated(record, held_back) with records of your own."
        )
    return task


# Training gated blocks on the task


@checked
def post_recipe(n_heads: int) -> Recipe:
    """The post's settings for its models with 2, 3 and 4 heads.

    Parameters
    ----------
    n_heads : heads of the original: 2 (appendix B1), 3 (B2) or 4 (main text)

    Raises
    ------
    ValueError : for other numbers of heads

    Notes
    -----
    Source: "Gated Attention Blocks" (2024), experiments and appendix B.
    """
    settings = {2: (0.5, 5e-4), 3: (0.1, 5e-4), 4: (0.3, 1e-3)}
    if n_heads not in settings:
        raise ValueError(f"The post has models with 2, 3 and 4 heads, not with {n_heads}.")
    alpha, lr = settings[n_heads]
    return Recipe(alpha=alpha, lr=lr)


@checked
def train_on_task(
    model: TransformerBridge, recipe: Recipe = GATES, *, inits: int = 8, seed: int = 0
) -> GatedRuns:
    """Train gated blocks to write what the heads of a toy model write on prompts of its task.

    Parameters
    ----------
    model : a toy model
    recipe : see `Recipe`
    inits : number of runs, from different initial weights
    seed : for initial weights and prompts

    Returns
    -------
    The blocks with their losses, see `circuitkit.superposition.train_gated`.

    Notes
    -----
    Source: "Gated Attention Blocks" (2024), section "Gated Attention Block Training".
    """
    task = task_of(model)
    data_seed = seed_of(seed, 10_000)
    prompts = task.sample(recipe.n_prompts, data_seed)
    fresh = task.sample(2000, data_seed + 1)
    training = record_layer(model, 0, prompts, batch=2000)
    held_back = record_layer(model, 0, fresh, batch=2000)
    return train_gated(training, held_back, recipe, inits=inits, seed=seed)


# The verdict on models of the task


@checked
def trigram_verdict(model: TransformerBridge, form: Form = "odds", *, rows: int = 300) -> Verdict:
    """Which head alone carries which trigram, judged on prompts that are drawn from the task.

    - `"odds"` and `"argmax"` are the criteria of `circuitkit.superposition.head_verdict`. For
      log-odds, the rows with a source are those where counts of tokens prove the completion due.
    - `"post"` is the published form: argmax of the heads' outputs without the residual stream, on
      rows with a source only, from prompts with exactly one trigram. Whether the whole model has
      learnt a trigram is read from its own logits. A model that never attends to the source passes. The authors' function also passes a model that has not learnt its
      trigrams; `success` does not.

    Parameters
    ----------
    model : a toy model
    form : one of the three above
    rows : how many rows of each trigram are judged, and how many control rows without a source

    Returns
    -------
    A `Verdict`, whose rules are the numbers of the trigrams. The post's form has no control rows,
    so its `quiet` and `silent` are 1.

    Raises
    ------
    ValueError : for a model that holds no task, or whose logits are no sum over at most 16 heads

    Notes
    -----
    Error: a rate has a standard error of at most `0.5 / sqrt(rows)`. Source: "Gated Attention
    Blocks" (2024), section "Experimental Results", and its public code.

    Examples
    --------
    >>> from circuitkit_book.superposition_models import hand_specified
    >>> trigram_verdict(hand_specified(n_heads=2, n_trigrams=3)).superposed
    (3,)
    """
    require_at_least(1, rows=rows)
    task = task_of(model)
    due = due_rows(task, form, rows)
    if form == "post":
        verdict = post_verdict(model, *due)
    else:
        verdict = head_verdict(model, *due, *control_rows(task, rows), form)
    return replace(verdict, rules=tuple(task.destinations))


def post_verdict(model: TransformerBridge, tokens: Tensor, answers: Tensor) -> Verdict:
    """The published verdict: heads alone, without the residual stream, in rows with a source."""
    due = margins_at(model, tokens, answers)
    is_carried = always_leads(due.heads, torch.zeros_like(due.residual))
    carried = shares(is_carried, due.answer)
    learnt = shares(smallest_margin(due.whole_model) > 0, due.answer)
    return Verdict(
        tuple(due.answer.unique().tolist()),
        learnt,
        torch.ones_like(learnt),
        carried,
        torch.ones_like(carried),
        torch.full_like(carried, torch.nan),
    )


def due_rows(
    task: SkipTrigramTask, form: Form, rows: int
) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row pos"]]:
    """Prompts with a source, and the completions that are due in them."""

    def find(prompts: Tensor) -> Tensor:
        return places_due(task, prompts, form)

    return draw_rows(task.sample, find, task, rows, SEED)


def control_rows(
    task: SkipTrigramTask, rows: int
) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row pos"]]:
    """Prompts without a source, and the completions that would be wrong in them."""

    def find(prompts: Tensor) -> Tensor:
        return places_without_source(task, prompts)

    return draw_rows(task.negatives, find, task, rows, SEED + 1)


def places_due(
    task: SkipTrigramTask, tokens: Int[Tensor, "prompt pos"], form: Form
) -> Bool[Tensor, "prompt pos"]:
    """Every position behind which a completion must follow.

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
    return due


def places_without_source(
    task: SkipTrigramTask, tokens: Int[Tensor, "prompt pos"]
) -> Bool[Tensor, "prompt pos"]:
    """Every position that holds a destination and has no source before it."""
    no_source = (tokens == task.source).cumsum(1) == 0
    places = task.is_destination(tokens) & no_source
    places[:, -1] = False
    return places


def draw_rows(
    draw: Callable[[int, int], Tensor],
    find: Callable[[Tensor], Tensor],
    task: SkipTrigramTask,
    rows: int,
    seed: int,
) -> tuple[Int[Tensor, "row pos"], Int[Tensor, "row pos"]]:
    """Prompts with `rows` places of each trigram, and the completions at these places, elsewhere -1.

    Prompts are drawn until they suffice, or until there are 400,000.
    """
    n = 4096
    tokens = draw(n, seed)
    while True:
        is_place = find(tokens)
        fewest = min(int((is_place & (tokens == b)).sum()) for b in task.destinations)
        if n >= MOST_PROMPTS and fewest == 0:
            raise ValueError(f"{n} prompts hold no row of some trigram. Use a smaller task.")
        if n >= MOST_PROMPTS or fewest >= rows:
            break
        n_more = min(4 * n, MOST_PROMPTS - n)
        # Another seed each time, so that no prompt is drawn twice.
        tokens = torch.cat([tokens, draw(n_more, seed + 1_000_003 * n)])
        n += n_more
    answers = torch.full_like(tokens, -1)
    for b in task.destinations:
        first = (is_place & (tokens == b)).nonzero()[:rows].unbind(1)
        answers[first] = b + task.n_trigrams
    is_judged = (answers >= 0).any(1)
    return tokens[is_judged], answers[is_judged]
