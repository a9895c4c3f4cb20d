"""Exercise 5.3. `answer(n, gain)` returns `W_Q, W_K, W_V, W_O` of two heads that serve `n` skip-trigrams.

**Shapes**: `W_Q, W_K, W_V [2, vocab, d_head]`, `W_O [2, d_head, vocab]`, any `d_head`, on one-hot tokens numbered as
on the page of exercises, `vocab = 2n + 2`. Scores are $q \\cdot k$, not divided; the mask is causal. **Wanted**: at a
destination with a source anywhere before it the two heads together write `gain` on its completion; everywhere else,
and on every other token, nothing.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks


def spec(n: int, gain: float, prompt: tuple[int, ...]) -> Tensor:
    written = torch.zeros(2 * n + 2, dtype=torch.float64)
    if 0 in prompt and 1 <= prompt[-1] <= n:
        written[prompt[-1] + n] = gain
    return written


def observe(answer, n: int, gain: float, prompt: tuple[int, ...]) -> Tensor:
    """What both heads together write at the last position of the prompt."""
    v = 2 * n + 2
    shapes = {
        "W_Q": (2, v, "d_head"),
        "W_K": (2, v, "d_head"),
        "W_V": (2, v, "d_value"),
        "W_O": (2, "d_value", v),
    }
    W_Q, W_K, W_V, W_O = built(answer, **shapes)
    tokens, written = list(prompt), torch.zeros(v, dtype=torch.float64)
    for head in range(2):
        attention = (W_K[head][tokens] @ W_Q[head][tokens[-1]]).softmax(0)
        written += attention @ W_V[head][tokens] @ W_O[head]
    return written


def body(
    n, gain, *, score=30.0, source=2.0, led=1, sign_0=1.0, sign_1=-1.0, source_value=0.0, onto="b + n", values="each", match="own",
    gained="both", which="destinations", source_key="all",
):  # fmt: skip
    v, b = 2 * n + 2, torch.arange(1, n + 1)
    W_Q, W_K, W_V = (torch.zeros(2, v, n, dtype=torch.float64) for _ in range(3))
    W_O = torch.zeros(2, n, v, dtype=torch.float64)
    each, ones = torch.eye(n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)
    asks = {"destinations": b, "completions": b + n, "shifted": b - 1, "from zero": b - 1}.get(
        which, b
    )
    W_Q[:, asks] = ones / n if match == "any" else 0 * ones if match == "none" else each
    W_K[:, asks] = score * (ones if match == "any" else each)
    for head in {1: (1,), 0: (0,), 2: (0, 1)}[led]:
        W_K[head, 0] = source * score
    if source_key == "first":
        W_K[:, 0, 1:] = 0
    elif source_key in ("begin", "none"):
        W_K[:, -1], W_K[:, 0] = W_K[:, 0] * (source_key == "begin"), 0
    W_V[:, asks] = ones / n if values == "shared" else each
    W_V[1, 0] += source_value
    at = {
        "b + n": b + n,
        "b": b,
        "low": b + n - 1,
        "high": b + n + 1,
        "source": 0 * b,
        "reversed": (b + n).flip(0),
    }[onto]
    for head, sign in enumerate((sign_0, sign_1)):
        W_O[head][:, at - int(which == "from zero")] = (
            sign
            * (gain if gained in ("both", f"head {head}") else 1.0)
            * (ones if values == "shared" else each)
        )
    if which == "everything":
        W_Q, W_V, eye = (
            torch.eye(v).double().repeat(2, 1, 1),
            torch.eye(v).double().repeat(2, 1, 1),
            torch.eye(v).double(),
        )
        W_K, W_O = score * W_Q, gain * torch.stack([eye.roll(n, 1), -eye.roll(n, 1)])
        W_K[led % 2, 0] = source * score
    if values == "one head":
        W_Q, W_K, W_V, W_O = 0 * W_Q, 0 * W_K, 0 * W_V, 0 * W_O
        W_Q[0, b, 0], W_K[0, 0, 0], W_V[0, 0, 0], W_O[0, 0, b + n] = score, 1.0, 1.0, gain
    return W_Q, W_K, W_V, W_O


def _prompt(size: dict[str, int], generator: torch.Generator, case: dict) -> tuple[int, ...]:
    n, step = case["n"], size["step"]
    b, other = (1 + torch.randperm(n, generator=generator)[:2]).tolist()
    filler = int(torch.randint(n + 1, 2 * n + 1, (), generator=generator))
    start = 2 * n + 1
    prompts = [
        (start, filler, b), (start, 0, b), (start, other, filler, b), (start, 0, other, filler, b),
        (start, 0, b, filler), (start, 0, filler, b, b), (start, b, other, b), (start, other, 0, b),
        (start, b, 0), (start,), (start, 0, start, 0, b), (b, start, filler),
    ]  # fmt: skip
    return prompts[step % len(prompts)]


KINDS = {
    "there is a source and a destination after it": lambda n, gain, prompt: (
        0 in prompt and 1 <= prompt[-1] <= n
    ),
    "there is a destination and no source": lambda n, gain, prompt: (
        0 not in prompt and 1 <= prompt[-1] <= n
    ),
    "there is a destination": lambda n, gain, prompt: 1 <= prompt[-1] <= n,
    "there is no destination at the end": lambda n, gain, prompt: not 1 <= prompt[-1] <= n,
    "another destination stands in the prompt": lambda n, gain, prompt: any(
        1 <= t <= n and t != prompt[-1] for t in prompt
    ),
}


EXERCISE = Exercise(
    about="5.3 two heads, any number of trigrams | hard | 25 minutes | 05-attention-superposition#two-heads-do-any-number",
    spec=spec, body=body,
    inputs={
        "n": lambda size, generator, case: 2 + size["step"] // 6,
        "gain": lambda size, generator, case: 4.0 + size["step"] % 3, "prompt": _prompt,
    },
    observe=observe, parts=("W_Q", "W_K", "W_V", "W_O"), trials=24, kinds=KINDS, names=("written on token",),
    choices="""
    source = 0.0 | nothing is written, source or no source | With a source, one of the two heads has to stay at the destination, and the other has to leave it.
    source = 1.0 | the source only draws level with the destination | Half of the attention stays behind and takes back half of the guess. Which key has to score higher?
    led = 0 | the wrong head is led away by the source | The completion is pushed down where it should go up: the head that stays is the one that takes back.
    sign_1 = 1.0 | the heads add up instead of cancelling | Without a source, what one head writes the other has to write with the opposite sign.
    sign_1 = 0.0 | there is a guess, source or no source | This is the model that never looks. Who takes the guess back when there is no source?
    sign_1 = -2.0 | the second head takes back twice the guess | Without a source the two have to cancel.
    sign_0 = -1.0 | both heads push the completion down | One guesses, the other takes back.
    sign_0 = 0.0 | nobody guesses | One head always writes the completion.
    source_value = 1.0 | the source has a value | A head that looks at the source should find nothing there.
    values = shared | all destinations share one value | Every completion is written at once: this is d_head = 1. How many directions do n completions need?
    values = one head | one head looks at the source and writes all completions | What it writes does not depend on the destination. Which completion is due?
    onto = b / source | the destination itself or the source is written | The OV circuit has to send a destination to its completion, n tokens further on.
    onto = reversed | the completions stand in reverse order | Destination b is completed by token b + n.
    onto = low / high | the completions are numbered one too low or too high | Destination 1 is completed by token n + 1. Does your count of destinations begin with 0 or with 1?
    gained = head 0 / head 1 | only one head's writing is multiplied by the gain | Without a source the two have to cancel.
    which = everything | all tokens ask, answer and write, not destinations alone | Destinations are tokens 1 to n; on all others nothing is to be written.
    gained = none | the gain is left out | Something has to be multiplied by `gain`.
    match = any | a destination looks at all destinations | It mixes in the completions of other destinations in the prompt. Which key should answer which query?
    which = shifted / from zero | destinations are taken to begin with token 0 | Token 0 is the source; destinations are 1 to n.
    which = completions | queries and keys belong to the completions | The prediction is made at the destination.
    source_key = first | only the first trigram is served | Every destination needs a value of its own, and a query for which the source's key beats its own.
    source_key = begin | the token that begins a prompt is taken for the source | Token 0 is the source; a prompt begins with token 2n + 1.
    score = 1.0 / 2.0 / 3.0 / 5.0 / 10.0 | the scores are too small for full attention | A score of 1 above another is only e times as good, one of 3 twenty times. How large must it be for a weight below 1e-6?
    """,
)  # fmt: skip
check_two_heads = checks(EXERCISE, __doc__)
