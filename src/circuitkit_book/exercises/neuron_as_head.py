"""Exercise 4.3. `answer(w_in, b_in, w_out)` returns `W_Q, b_Q, W_K, W_V, b_V, W_O` of the head that is a SiLU neuron.

**Shapes**: `w_in` and `w_out [d_model]`, `b_in` a number; `W_Q, W_K, W_V [d_model + 1, 1]`, `W_O [1, d_model + 1]`,
`b_Q` and `b_V` numbers. The stream has one more coordinate, the last, which is 1 at position 0 (the bias token, zero
elsewhere) and 0 at the tokens. The head looks at itself and at position 0. It writes
$\\mathrm{SiLU}(x\\,w_{in} + b_{in})\\,w_{out}$ at a token and nothing at the bias token.
"""

import math

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, built, checks, normal


def _silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def spec(w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor:
    x, d_model = _some_tokens(w_in), len(w_in)
    out = torch.zeros(1 + len(x), d_model + 1, dtype=torch.float64)
    for pos in range(len(x)):
        reads = sum(float(x[pos, i] * w_in[i]) for i in range(d_model)) + float(b_in)
        for j in range(d_model):
            out[1 + pos, j] = _silu(reads) * w_out[j]
    return out


def _some_tokens(w_in: Tensor) -> Tensor:
    return normal(torch.Generator().manual_seed(4), len(w_in) + 2, len(w_in))


def observe(answer, w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor:
    """What the head writes on a stream that begins with the bias token."""
    wide = len(w_in) + 1
    shapes = {
        "W_Q": (wide, 1),
        "b_Q": (),
        "W_K": (wide, 1),
        "W_V": (wide, 1),
        "b_V": (),
        "W_O": (1, wide),
    }
    W_Q, b_Q, W_K, W_V, b_V, W_O = built(answer, **shapes)
    stream = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), _some_tokens(w_in)).roll(-1, 1)
    scores = (stream @ W_Q + b_Q) @ (stream @ W_K).T
    seen = torch.eye(len(scores), dtype=torch.bool) | (torch.arange(len(scores)) == 0)
    return scores.masked_fill(~seen, -math.inf).softmax(-1) @ (stream @ W_V + b_V) @ W_O


def body(
    w_in, b_in, w_out, *, key="-1", b_query="b_in", b_value="b_in", reads="w_in", asks="w_in", erase=-1.0, place="last", mark=0.0,
    writes="w_out", bias_at="number", tokens_key="nothing", slope="silu",
):  # fmt: skip
    one = torch.ones(1, dtype=torch.float64)
    given = {"w_in": w_in, "w_out": w_out, "nothing": 0 * w_in, "minus": -w_in, "minus out": -w_out}
    number = {"b_in": b_in, "0": 0 * b_in, "minus": -b_in, "1": 1 + 0 * b_in}

    def wide(stream, bias):
        return torch.cat([bias, stream] if place == "first" else [stream, bias])[:, None]

    k = {
        "-1": -1.0,
        "1": 1.0,
        "paper": -math.sqrt(len(w_in) + 1),
        "0": 0.0,
        "-2": -2.0,
        "-10": -10.0,
        "b_in": -float(b_in),
        "plus b_in": float(b_in),
        "-100": -100.0,
        "-1000": -1000.0,
    }[key]
    b_V = number["1"] if reads == "nothing" else number[b_value]
    erased = -one if erase == 2.0 else erase * b_V * one
    b_Q = number[b_query]
    in_keys = {
        "nothing": 0 * w_in,
        "w_in": w_in,
        "same": 0 * w_in + k,
        "ones": 0 * w_in + 1,
        "minus": -w_in,
    }[tokens_key]
    steep = {"silu": 1.0, "gelu": 1.702}[slope]
    if bias_at in ("value", "value taken"):
        return (
            wide(given[asks], 0 * one),
            b_Q,
            wide(in_keys, k * one),
            wide(given[reads], (b_in if bias_at == "value" else -b_in) * one),
            0.0,
            wide(w_out, 0 * one).mT,
        )
    if bias_at == "row":
        return (
            wide(given[asks], b_in * one),
            0.0,
            wide(in_keys, k * one),
            wide(given[reads], b_in * one),
            0.0,
            wide(w_out, 0 * one).mT,
        )
    return (
        wide(steep * given[asks], 0 * one), steep * b_Q, wide(in_keys, k * one), wide(given[reads], erased), b_V,
        wide(given[writes], mark * one).mT,
    )  # fmt: skip


EXERCISE = Exercise(
    about="4.3 a neuron as a head, by hand | hard | 25 minutes | 04-mlps-as-attention#one-neuron-is-one-head",
    spec=spec, body=body,
    inputs={
        "w_in": lambda size, generator, case: normal(generator, 2 + size["step"]),
        "b_in": lambda size, generator, case: (-1) ** size["step"] * (0.5 + normal(generator, 1)[0].abs()),
        "w_out": lambda size, generator, case: normal(generator, 2 + size["step"]),
    },
    observe=observe, parts=("W_Q", "b_Q", "W_K", "W_V", "b_V", "W_O"),
    names=("position", "coordinate"),
    choices="""
    key = paper | the keys carry the paper's factor sqrt(D + 1) | The paper divides scores by sqrt(D + 1) and takes it back in W_K. Here, as in every library, scores are divided by sqrt(d_head).
    key = 1 | the sign of the key is turned around | The neuron is on where it should be off: x sigmoid(-x). When x is large, which place must lose?
    key = 0 | the keys are zero everywhere | Then every place has the same score and each gets half. Which key must answer at the bias token?
    key = b_in / plus b_in | b_in stands in the key of the bias token | The query carries b_in; the key only says which place it is.
    erase = -2.0 | the bias token's value is taken back twice | b_V puts it there once.
    bias_at = value / value taken | b_in stands in the value's row of the bias coordinate, and nowhere else | That coordinate is 1 at the bias token alone. The tokens need it.
    key = -2 / -10 / -100 / -1000 | the key of the bias token is too large | The difference of the two scores has to be y itself.
    tokens_key = w_in / same / ones / minus | the keys of the tokens are not zero | The difference of the two scores has to be y itself. Which place needs a key?
    slope = gelu | the gate is that of a GELU: sigmoid(1.702 y) | SiLU(y) is sigmoid(y) times y, with no number in it.
    asks = minus | the query has the wrong sign | When x is large, which place must lose?
    asks = nothing | the query does not read x | The head has to decide by what the neuron reads.
    asks = w_out | the query reads with w_out | A neuron reads with w_in and writes with w_out.
    erase = 0.0 | the bias token has a value | b_V is added at every position, at the bias token, too. Where it is not wanted, something else has to take it back: which number of the stream marks the bias token?
    erase = 2.0 | 1 is taken back at the bias token, not its value | What does b_V put there?
    erase = 1.0 | the bias token's value is doubled instead of taken back | Mind the sign in the row of W_V that reads the bias coordinate.
    bias_at = row | b_in stands in the rows of the bias coordinate | That coordinate is 1 at the bias token alone, so only the bias token gets b_in. The tokens need it.
    mark = 1.0 / -1.0 | the head writes into the bias coordinate | The next layer would take these tokens for bias tokens. What should the head add to that coordinate?
    b_query = 0 | the query leaves b_in out | The head decides by x w_in alone. The neuron decides by x w_in + b_in.
    b_query = minus | the query takes b_in with the wrong sign | The neuron decides by x w_in + b_in.
    b_value = 0 | the value leaves b_in out | SiLU(y) is sigmoid(y) times y, and y has a bias.
    b_value = minus | the value takes b_in with the wrong sign | The value at a token is y = x w_in + b_in.
    b_value = 1 | the value's bias is 1 instead of b_in | The value at a token is y = x w_in + b_in.
    reads = nothing | the value does not read x | This head writes sigmoid(y), a gate. A SiLU neuron multiplies the gate with y itself.
    reads = w_out | the value reads with w_out | A neuron reads with w_in and writes with w_out.
    reads = minus | the value reads -x | The value at a token is y = x w_in + b_in.
    writes = w_in | the head writes with w_in | A neuron reads with w_in and writes with w_out.
    writes = minus out | the head writes with the wrong sign | What it writes is SiLU(y) times w_out.
    place = first | the bias coordinate is taken to be the first | The bias token is the first position, but its coordinate is the last: X + [1] adds a column at the end.
    """,
)  # fmt: skip
check_neuron_as_head = checks(EXERCISE, __doc__)
