"""Exercise 5.5. `answer(W_E, query, key)` returns `W_GQ, b_GQ, W_GK, b_GK` of a gate that opens for one pair only.

**Shapes**: `W_E [vocab, d_model]` with `vocab = d_model + 1`, `query` and `key` two tokens; `W_GQ` and `W_GK
[d_model]`, `b_GQ` and `b_GK` numbers. **Wanted**: the gate, cut off at 0 and 1, is 1 when token `query` looks at
token `key`, and 0 for every other pair of tokens.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks, normal


def spec(W_E: Tensor, query: int, key: int) -> Tensor:
    table = torch.zeros(len(W_E), len(W_E), dtype=torch.float64)
    table[query, key] = 1.0
    return table


def observe(answer, W_E: Tensor, query: int, key: int) -> Tensor:
    """The gate between every two tokens, `[query, key]`."""
    d_model = W_E.shape[1]
    W_GQ, b_GQ, W_GK, b_GK = built(answer, W_GQ=(d_model,), b_GQ=(), W_GK=(d_model,), b_GK=())
    return torch.outer(W_E @ W_GQ + b_GQ, W_E @ W_GK + b_GK).clamp(0, 1)


def _reader(W_E: Tensor, token: int, how: str) -> tuple[Tensor, Tensor]:
    """A direction and a bias that read 1 at one token and 0 at the others, or what somebody took for it."""
    zero, one = torch.zeros((), dtype=W_E.dtype), torch.ones((), dtype=W_E.dtype)
    inverse = torch.linalg.inv(torch.cat([W_E, torch.ones(len(W_E), 1, dtype=W_E.dtype)], 1))
    front = torch.linalg.inv(torch.cat([torch.ones(len(W_E), 1, dtype=W_E.dtype), W_E], 1))[
        :, token
    ]
    own, mean = W_E[token], W_E.mean(0)
    return {
        "solved": lambda: (inverse[:-1, token], inverse[-1, token]), "always": lambda: (0 * own, one),
        "never": lambda: (0 * own, zero), "negative": lambda: (-inverse[:-1, token], -inverse[-1, token]),
        "half": lambda: (inverse[:-1, token] / 2, inverse[-1, token] / 2),
        "no bias": lambda: (inverse[:-1, token], zero), "pinv": lambda: (torch.linalg.pinv(W_E)[:, token], zero),
        "rows": lambda: (inverse[token, :-1], inverse[token, -1]), "embedding": lambda: (own, zero),
        "length 1": lambda: (own / own.norm(), zero), "square length": lambda: (own / own.square().sum(), zero),
        "centred": lambda: (own - mean, zero), "bias 1": lambda: (inverse[:-1, token], one),
        "front": lambda: (front[:-1], front[-1]), "one minus": lambda: (-inverse[:-1, token], 1 - inverse[-1, token]),
        "bias minus": lambda: (inverse[:-1, token], -inverse[-1, token]),
        "signs": lambda: (2 * inverse[:-1, token], 2 * inverse[-1, token] - 1),
        "steep threshold": lambda: (10 * own / own.square().sum(), -9 * one), "minus half": lambda: (own / own.square().sum(), -one / 2), "minus mean": lambda: (own, -(own @ mean)),
        "minus one": lambda: (own, 1 - own @ own), "centred pinv": lambda: (torch.linalg.pinv(W_E - mean)[:, token], zero), "bias -1": lambda: (inverse[:-1, token], -one),
        "square part": lambda: (torch.linalg.inv(W_E[:-1])[:, min(token, len(W_E) - 2)], zero), "square rest": lambda: (torch.linalg.inv(W_E[1:])[:, max(token - 1, 0)], zero),
        "mean bias": lambda: (own - mean, -((own - mean) @ mean)), "centred length": lambda: ((own - mean) / (own - mean).square().sum(), -(((own - mean) / (own - mean).square().sum()) @ mean)),
        "threshold": lambda: (own, 1 - own.square().sum()),
    }[how]()  # fmt: skip


def body(W_E, query, key, *, queries="solved", keys="solved", both="", roles="right"):
    if roles in ("exchanged", "query twice", "key twice"):
        query, key = {
            "exchanged": (key, query),
            "query twice": (query, query),
            "key twice": (key, key),
        }[roles]
    if roles == "next":
        query, key = (query + 1) % len(W_E), (key + 1) % len(W_E)
    return *_reader(W_E, query, both or queries), *_reader(W_E, key, both or keys)


_SIDE = """
    queries = no bias / pinv / bias 1 / bias -1 / centred pinv | the query side's bias is not solved for | There is one token more than dimensions, so no direction alone is 1 on one token and 0 on all others. A direction and a bias have one number more.
    queries = rows | the query side takes a row of the inverse instead of a column | W_E times the inverse is the identity. To get 1 at one token, which part of the inverse do you multiply by?
    queries = square part / square rest | the query side is solved for without one of the tokens | All tokens have an equation, and the bias is the unknown that this needs.
    queries = embedding / length 1 / square length / centred / threshold / steep threshold / minus half / minus mean / mean bias / centred length | the query side is made from the token's embedding | Other tokens have a part in this direction, since embeddings are not orthogonal. Ask for values instead: 1 at one token, 0 at the others.
    queries = always | the query side says 1 to all tokens | It has to be 1 at one token and 0 at the others.
    queries = never | the gate never opens | The pair has to be 1 on both sides; is one of the two signs wrong, or one side 0?
"""


EXERCISE = Exercise(
    about="5.5 a gate for one pair | medium | 20 minutes | 05-attention-superposition#the-gated-block-and-its-loophole",
    spec=spec, body=body,
    inputs={
        "W_E": lambda size, generator, case: normal(generator, 3 + size["step"], 2 + size["step"]),
        "query": lambda size, generator, case: int(torch.randint(3 + size["step"], (), generator=generator)),
        "key": lambda size, generator, case: int(torch.randint(3 + size["step"], (), generator=generator)),
    },
    observe=observe, parts=("W_GQ", "b_GQ", "W_GK", "b_GK"), names=("query token", "key token"),
    choices="""
    queries = half | the gate opens only half | The gate has to be 1 at the pair.
    keys = half | the gate opens only half | The gate has to be 1 at the pair.
    roles = exchanged | query and key are exchanged | The gate opens for the right two tokens in the wrong order. Which comes in through W_GQ?
    roles = query twice | the gate opens when the query token looks at itself | The key side has to read the key token.
    roles = key twice | the gate opens when the key token looks at itself | The query side has to read the query token.
    roles = next | the gate opens for the next two tokens | Tokens are counted from 0.
    both = front | the column of ones is first, and the last number is taken for the bias | Which number of the solution belongs to the column of ones?
    both = one minus | each side is 0 at its token and 1 at the others | Ask for 1 at the token.
    both = signs | each side is 1 at its token and -1 at the others | Two negative numbers make a positive one.
    both = bias minus | both biases have the wrong sign | The bias is added.
    """
    + _SIDE
    + _SIDE.replace("queries", "keys").replace("query side", "key side")
    + _SIDE.replace("queries", "both").replace("the query side", "each side"),
)  # fmt: skip
check_one_pair_gate = checks(EXERCISE, __doc__)
