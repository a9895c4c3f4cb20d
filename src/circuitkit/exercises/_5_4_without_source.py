"""Exercise 5.4, take the source away: a control that a verdict needs."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check
from circuitkit.exercises._shared import some_toy


def spec(model, tokens: Tensor) -> Tensor:
    n, rates = model.task.n_trigrams, torch.zeros(2, dtype=torch.float64)
    due = model.task.states(tokens) == 2
    for which in range(2):
        asked = tokens.clone()
        for row in range(len(tokens)):
            for pos in range(tokens.shape[1]):
                if which == 1 and tokens[row, pos] == 0:
                    asked[row, pos] = 2 * n + 1
        logits = model.logits(asked)
        hits = [int(logits[row, pos].argmax()) == int(tokens[row, pos]) + n for row, pos in due.nonzero().tolist()]
        rates[which] = sum(hits) / len(hits)
    return rates


def body(model, tokens, *, places="due", order=False, said="completion", changed="all", gives="both"):
    n, due = model.task.n_trigrams, model.task.states(tokens) == 2
    source = tokens == 0
    if changed == "first":
        source &= source.cumsum(1) == 1
    gone = torch.where(source, 2 * n + 1, tokens)
    where = {"destinations": (tokens >= 1) & (tokens <= n), "all": torch.ones_like(due), "after": due.roll(1, 1)}.get(places, due)
    rates = []
    for asked in (tokens, tokens if changed == "none" else gone):
        here = model.task.states(asked) == 2 if places == "recounted" else where
        wanted = {"itself": tokens, "next": tokens.roll(-1, 1)}.get(said, tokens + n)
        chance = model.logits(asked)
        hit = (chance.argmax(-1) == wanted) if said != "chance" else chance.softmax(-1).gather(-1, wanted.clamp_max(2 * n + 1)[..., None])[..., 0]
        rates.append(hit[here].double().mean())
    rates = torch.stack(rates[::-1] if order else rates)
    return {"first": rates[0], "second": rates[1], "gap": rates[0] - rates[1]}.get(gives, rates)


EXERCISE = Exercise(
    about="5.4 take the source away | medium | 20 minutes | 05-attention-superposition#the-published-check-passes-a-model-that-never-looks",
    spec=spec, body=body, trials=6,
    inputs={"model": lambda size, generator, case: some_toy(size["step"]), "tokens": lambda size, generator, case: case["model"].task.sample(40 + 5 * size["step"], seed=30 + size["step"])},
    names=("with and without",),
    choices="""
    places
        destinations | every destination is counted | Count where a completion was due in the *first* prompt: `model.task.states(tokens) == 2`.
        all | every position is counted | Count where a completion was due: `model.task.states(tokens) == 2`.
        after | the positions are one too late | The state after a token is written at the token.
        recounted | after the change it is asked anew where a completion is due | Without a source nothing is due. Count the same places both times.
    said
        itself | a hit is the destination itself | What should follow destination b?
        next | a hit is the token that follows in the prompt | The last place of a prompt has none. The completion of destination b is b + n.
        chance | it is the chance, not how often it is the largest | Count how often the completion has the largest logit.
    order = True | with and without are exchanged | First the prompts as they are.
    changed
        none | nothing was taken away | Do you run the changed prompts?
        first | only the first source of a prompt is taken away | A prompt may hold several.
    gives
        first | only the rate with the source is returned | Return both.
        second | only the rate without the source is returned | Return both.
        gap | it is the difference | Return both rates, not their difference.
    """,
)  # fmt: skip


def check_without_source(answer) -> Result:
    """Exercise 5.4. `answer(model, tokens)` says how often a toy model completes, with its sources and without them.

    **Shapes**: `tokens [prompt, pos]`; the result is `[2]`: of the places where a completion is due, the share at which
    it has the largest logit, first in the prompts as they are, then with every source replaced by token `2n + 1`.
    """
    return check(EXERCISE, answer)
