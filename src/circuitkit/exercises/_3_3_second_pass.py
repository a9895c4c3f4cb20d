"""Exercise 3.3, what the second pass is worth."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Exercise, Result, check, normal


def spec(logits: Tensor, tokens: Tensor, period: int, start: int) -> Tensor:
    def loss(place: int) -> Tensor:  # of the token at this place, predicted one place before
        chances = torch.exp(logits[place - 1])
        return -torch.log(chances[tokens[place]] / sum(chances))

    first = torch.stack([loss(start + i) for i in range(1, period)])
    second = torch.stack([loss(start + period + i) for i in range(1, period)])
    return first.mean() - second.mean()


def body(
    logits, tokens, period, start, *, about="next", first="inner", second="inner", opening="counted", chance="log",
    compare="first - second", reduce="mean",
):  # fmt: skip
    scores = {
        "log": lambda: logits.log_softmax(-1), "logits": lambda: logits,
        "bits": lambda: logits.log_softmax(-1) / math.log(2), "chances": lambda: logits.softmax(-1),
    }[chance]()  # fmt: skip
    s, n = {"counted": start, "forgotten": 0, "one too many": start + 1}[opening], len(tokens)
    lag = {"next": (-1, 0), "own": (0, 0), "before": (0, -1), "two": (-2, 0)}[about]
    spans = {  # of predicted tokens: from and to, counted from where a pass begins
        "inner": (1, period),
        "whole": (0, period),
        "shifted": (1, period + 1),
        "one less": (1, period - 1),
        "late": (2, period),
        "early": (0, period - 1),
    }
    losses = []
    for begin, span in ((s, first), (s + period, second)):
        a, b = spans[span]
        at = torch.arange(begin + a, min(begin + b, n))
        at = at[(at + lag[0] >= 0) & (at + lag[1] >= 0)]
        losses.append(-scores[at + lag[0], tokens[at + lag[1]]])
    one, two = (
        part.sum() if reduce in ("sum", "period") else part.median() if reduce == "median" else part.mean()
        for part in losses
    )
    one, two = (one / period, two / period) if reduce == "period" else (one, two)
    return {
        "first - second": lambda: one - two, "second - first": lambda: two - one, "second": lambda: two,
        "first": lambda: one, "ratio": lambda: one / two, "share": lambda: (one - two) / one,
        "both": lambda: torch.stack([one, two]), "added": lambda: one + two, "size": lambda: (one - two).abs(),
        "each": lambda: losses[0] - losses[1],
    }[compare]()  # fmt: skip


def _tokens(size: dict[str, int], generator: torch.Generator, case: dict) -> Tensor:
    span = torch.randint(size["vocab"], (case["period"],), generator=generator)
    return torch.cat([torch.zeros(case["start"], dtype=torch.long), span, span])


EXERCISE = Exercise(
    about="3.3 what the second pass is worth | medium | 15 minutes | 03-induction-heads#see-it-first",
    spec=spec, body=body, axes="vocab, period", smallest=3,
    inputs={
        "period": lambda size, generator, case: size["period"],
        "start": lambda size, generator, case: size["step"] % 2, "tokens": _tokens,
        "logits": lambda size, generator, case: normal(generator, len(case["tokens"]), size["vocab"]),
    },
    choices="""
    about
        own | each token is predicted from its own position | At a position the model has read its token already. Which position's logits are about this token?
        before | each position is scored on the token before it | The shift goes the wrong way: logits are about the token that comes next.
        two | each token is predicted from two places before | Logits are about the token that comes directly next.
    second
        whole | the first token of the second pass is counted | When the second pass opens nothing has repeated yet, so even a perfect induction head cannot know its first token.
        one less | the last token of the second pass is left out | A pass has `period` tokens, and all but its first are counted.
        late | the second token of the second pass is left out | A pass has `period` tokens, and all but its first are counted.
        early | the second pass begins and ends one place early | A list of losses begins with the second token: its entry i is about token i + 1.
    first
        whole | the first token of the first pass is counted | Without an opening token nobody predicts it. Leave out the first token of either pass.
        shifted | the opening of the second pass is counted to the first | A list of losses begins with the second token: its entry i is about token i + 1. At which entry does the first pass end?
        one less | the last token of the first pass is left out | A pass has `period` tokens, and all but its first are counted.
        late | the second token of the first pass is left out | A pass has `period` tokens, and all but its first are counted.
        early | the first pass begins and ends one place early | A list of losses begins with the second token: its entry i is about token i + 1.
    opening
        forgotten | the opening token is forgotten | With an opening token everything stands one place later. Where does `start` come in?
        one too many | everything stands one place too late | Count the places on paper for a span of 3 with no opening token.
    chance
        logits | logits are taken for log-probabilities | A high logit among higher ones is a bad prediction. What turns scores into the logarithm of a probability, and along which axis?
        bits | the loss is in bits | The losses of this book are in nats: the natural logarithm.
        chances | probabilities without the logarithm | A loss is minus the logarithm of a probability.
    compare
        second - first | the sign is the wrong way round | The second pass is worth something when its loss is lower: a model that repeats well has to come out above 0. On the random numbers of this check either sign can be right.
        second | only the second pass is measured | A loss alone does not say what the repetition is worth. Lower than what?
        first | only the first pass is measured | What is the repetition worth, compared with it?
        ratio | the losses are divided, not subtracted | Asked is a difference, in nats a token.
        share | the gain is given as a share | Asked is a difference, in nats a token.
        both | both losses are returned | Asked is one number, the first minus the second.
        added | the losses are added | What is the second pass worth, compared with the first?
        size | the difference has lost its sign | A second pass that is worse than the first has to come out below 0.
        each | one difference for each token is returned | Asked is one number: their mean.
    reduce
        sum | the losses are summed, not averaged | Give nats a token, so that spans of different length can be compared.
        period | the sums are divided by period | A pass counts one prediction less than it has tokens.
    """,
)  # fmt: skip


def check_second_pass(answer) -> Result:
    """Exercise 3.3. `answer(logits, tokens, period, start)` returns the mean loss of the first pass minus the second's.

    **Shapes**: `logits [pos, vocab]`, `tokens [pos]`, a span of `period` tokens twice from position `start` on, with
    nothing after it. The result is one number, in nats a token. Neither pass counts the prediction of its first token.
    """
    return check(EXERCISE, answer)
