"""Exercise 5.1, what must follow."""

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check


def spec(tokens: Tensor, n: int) -> Tensor:
    labels, waiting = [], False
    for token in tokens.tolist():
        if token == 0:
            waiting = True
        if waiting and 1 <= token <= n:
            labels.append(token + n)
            waiting = False
        else:
            labels.append(-1)
    return torch.tensor(labels)


def body(tokens, n, *, used="each", needs="before", first=1, last=0, says="completion", free=-1, at="destination"):
    found, waiting, spent = torch.full_like(tokens, free), 0, False
    for pos, token in enumerate(tokens.tolist()):
        is_destination = first <= token <= n - last
        if needs == "adjacent":
            waiting = int(token == 0) if not is_destination else waiting
        elif token == 0:
            waiting = 1
        if is_destination and (waiting or needs == "nothing") and not spent:
            found[pos] = {
                "completion": token + n, "destination": token, "high": token + n + 1, "low": token + n - 1, "true": 1,
                "source": 0,
            }[says]  # fmt: skip
            waiting = 1 if used == "never" else 0
            spent = used == "once"
    if at == "completion":
        return torch.cat([torch.full((1,), free), found[:-1]])
    if at == "before":
        return torch.cat([found[1:], torch.full((1,), free)])
    if at == "known":
        return torch.where(found >= 0, found, torch.cat([tokens[1:], torch.full((1,), -1)]))
    if at == "own token":
        return torch.where(found >= 0, found, tokens)
    return found[found >= 0] if at == "only" else found


def _prompt(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    n, length = case["n"], 5 + 2 * size["step"]
    tokens, waiting = [2 * n + 1], False
    while len(tokens) < length:
        kind = torch.rand((), generator=generator).item()
        low, high = (0, 0) if kind < 0.2 and not waiting else (1, n) if kind < 0.5 else (n + 1, 2 * n + 1)
        token = int(torch.randint(low, high + 1, (), generator=generator))
        tokens.append(token)
        waiting = waiting or token == 0
        if waiting and 1 <= token <= n:
            tokens.append(token + n)
            waiting = False
    return torch.tensor(tokens[:length])


EXERCISE = Exercise(
    about="5.1 what must follow | easy | 10 minutes | 05-attention-superposition#the-task",
    spec=spec, body=body,
    inputs={"n": lambda size, generator, case: 2 + size["step"] // 4, "tokens": _prompt},
    names=("position",), kind=torch.long,
    choices="""
    used
        never | a source is never used up | One source is good for one completion. What has to change when it has been used?
        once | only the first trigram is found | A prompt may hold several trigrams: a new source begins a new one.
    needs
        nothing | no source is needed | A destination without a source before it asks for nothing. This is the model that never looks.
        adjacent | the source has to stand directly before the destination | They are called skip-trigrams because anything may stand between source and destination.
    at
        completion | the label stands at the completion | A label says what follows a position, so it stands where the model has to predict: one place earlier.
        before | the labels stand one place too early | A label stands at the destination itself: that is where the completion has to be predicted.
        known | free positions hold the token that follows | Where any token may follow, the label is -1, whatever did follow.
        own token | free positions hold their own token | Where any token may follow, the label is -1.
        only | only the completions are returned | One label for each position, -1 where any token may follow.
    says
        destination | the label is the destination | At these places the completion has to follow: another token than the one that is there.
        high | the completion is numbered one too high | Destinations are 1 to n and completions n + 1 to 2n. Which completion belongs to destination 1?
        low | the completion is numbered one too low | Destinations are 1 to n and completions n + 1 to 2n. Which completion belongs to destination 1?
        true | the label says only that something must follow | Which token is it?
        source | the label is the source | At these places the completion has to follow.
    free = 0 | free positions hold 0 | 0 would say that the source must follow. Where any token may follow, the label is -1.
    last = 1 | the last destination is forgotten | Destinations are 1 to n, both included.
    first
        0 | the source counts as a destination | Token 0 is the source; destinations begin with 1.
        2 | the first destination is forgotten | Destinations are 1 to n, both included.
    """,
)  # fmt: skip


def check_labels(answer) -> Result:
    """Exercise 5.1. `answer(tokens, n)` returns the token that must follow each position, and -1 where any may.

    **Shapes**: `tokens [pos]`, whole numbers: 0 is the source, 1 to `n` the destinations, `n + 1` to `2n` their
    completions, `2n + 1` begins the prompt. A destination that comes after an unused source is completed and uses it.
    """
    return check(EXERCISE, answer)
