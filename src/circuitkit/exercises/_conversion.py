"""Exercises of chapter 4, on MLPs as attention heads."""

import math

import torch
from torch import Tensor

from circuitkit.exercises._check import Result, check
from circuitkit.exercises._exercise import Case, Exercise, Mistake, built, normal, sizes

_PAGE = "04-mlps-as-attention"
_NEURON = f"{_PAGE}#one-neuron-is-one-head"
_OMEGA = f"{_PAGE}#without-a-mask-a-large-number"
_NORM = f"{_PAGE}#a-false-step-and-its-repair"
_SUM = f"{_PAGE}#activations-that-are-not-silu"


# --- 4.1 the two weights of a neuron -------------------------------------------------------------------------------


def _weights_spec(x: Tensor) -> Tensor:
    rows = []
    for value in x.tolist():
        itself, bias = math.exp(0.0), math.exp(-value)
        rows.append([itself / (itself + bias), bias / (itself + bias)])
    return torch.tensor(rows, dtype=torch.float64)


def _two(x, itself, bias, dim=-1):
    """A softmax over two scores for each token."""
    return torch.stack([itself * x, bias * x], -1).softmax(dim)


TWO_WEIGHTS = Exercise(
    number="4.1",
    title="the two weights of a neuron",
    minutes=5,
    difficulty="easy",
    read=_NEURON,
    spec=_weights_spec,
    draw=lambda generator, step: {"x": 2 * normal(generator, 2 + step)},
    names=("token", "place"),
    mistakes=(
        Mistake(
            "the two weights are exchanged",
            lambda x: _two(x, -1.0, 0.0),
            "A neuron that reads a large positive number is on: where should it look? The paper's sketch of the proof "
            "has this slip, too: the score -x belongs to the bias token.",
        ),
        Mistake(
            "both columns hold the same number",
            lambda x: torch.stack([1 - torch.sigmoid(x), torch.sigmoid(-x)], -1),
            "1 - sigmoid(x) and sigmoid(-x) are two names of one number; the post has this slip in print. The weights "
            "of a row sum to 1.",
        ),
        Mistake(
            "the scores are x and -x",
            lambda x: _two(x, 1.0, -1.0),
            "Only the difference of two scores counts, and here it is 2x. Which of the two scores has to be 0?",
        ),
        Mistake(
            "the softmax runs over the tokens",
            lambda x: _two(x, 0.0, -1.0, dim=0),
            "Each token shares out its own attention, among two places. Over which axis do the weights sum to 1?",
        ),
        Mistake(
            "the scores are divided by sqrt(2)",
            lambda x: _two(x / math.sqrt(2), 0.0, -1.0),
            "The root that heads divide by is that of d_head, not of the number of keys. What is d_head here?",
        ),
        Mistake(
            "these are the scores, without the softmax",
            lambda x: torch.stack([torch.zeros_like(x), -x], -1),
            "The scores are right. Attention is what the softmax makes of them.",
        ),
        Mistake(
            "the first column is what the head writes",
            lambda x: torch.stack([x * torch.sigmoid(x), torch.sigmoid(-x)], -1),
            "Asked are the weights. What the head writes is the weight times the value, one step later.",
        ),
    ),
)


def check_two_weights(answer) -> Result:
    """Exercise 4.1. `answer(x)` returns how a neuron-head shares its attention, `[token, 2]`: itself, bias token.

    **Shapes**: `x [token]` is what the neuron reads at each token, before its activation.
    """
    return check(TWO_WEIGHTS, answer)


# --- 4.2 a mask with two places ------------------------------------------------------------------------------------


def _mask_spec(scores: Tensor) -> Tensor:
    n = len(scores)
    pattern = torch.zeros(n, n, dtype=torch.float64)
    for dst in range(n):
        places = {dst, 0}
        total = sum(math.exp(float(scores[dst, src])) for src in places)
        for src in places:
            pattern[dst, src] = math.exp(float(scores[dst, src])) / total
    return pattern


def _masked(scores, allowed=None, closed=-math.inf, after=False, dim=-1):
    """The pattern with one thing wrong about its mask."""
    if allowed is None:
        allowed = _self_or(scores, 0)
    if after:
        return scores.softmax(-1) * allowed
    return scores.masked_fill(~allowed, closed).softmax(dim)


def _self_or(scores, place):
    allowed = torch.eye(len(scores), dtype=torch.bool)
    allowed[:, place] = True
    return allowed


def _row_open(scores, keep_column):
    allowed = _self_or(scores, 0) if keep_column else torch.eye(len(scores), dtype=torch.bool)
    allowed[0] = True
    return allowed


TWO_PLACES = Exercise(
    number="4.2",
    title="a mask with two places",
    minutes=10,
    difficulty="easy",
    read=_NEURON,
    spec=_mask_spec,
    draw=lambda generator, step: {"scores": normal(generator, 3 + step, 3 + step)},
    names=("destination", "source"),
    mistakes=(
        Mistake(
            "the mask is the causal one",
            lambda scores: _masked(scores, torch.ones_like(scores).tril().bool()),
            "A neuron knows nothing of the other tokens. Here too much of the past is visible.",
        ),
        Mistake(
            "the bias token is hidden",
            lambda scores: _masked(scores, torch.eye(len(scores), dtype=torch.bool)),
            "With one place to look at there is nothing to choose, and the pattern is the identity whatever the scores.",
        ),
        Mistake(
            "the bias token is looked for at the last position",
            lambda scores: _masked(scores, _self_or(scores, -1)),
            "The paper puts it there, and a causal mask would hide it. In this book it comes first.",
        ),
        Mistake(
            "the first row is open instead of the first column",
            lambda scores: _masked(scores, _row_open(scores, keep_column=False)),
            "Rows are destinations, columns are sources. Everybody looks at the bias token; it looks at nobody.",
        ),
        Mistake(
            "the bias token looks at everybody",
            lambda scores: _masked(scores, _row_open(scores, keep_column=True)),
            "The rows of the tokens are right. Row 0 has two places as well, and the two are the same.",
        ),
        Mistake(
            "the mask comes after the softmax",
            lambda scores: _masked(scores, after=True),
            "The hidden places took their share before they were removed, so the rows no longer sum to 1.",
        ),
        Mistake(
            "masked scores are 0 instead of minus infinity",
            lambda scores: _masked(scores, closed=0.0),
            "exp(0) = 1: a hidden place still gets attention. What must vanish after exp?",
        ),
        Mistake(
            "the two places are hidden and the others shown",
            lambda scores: _masked(scores, ~_self_or(scores, 0)),
            "The pattern is 0 exactly where it should not be. `masked_fill` fills where its mask is true.",
        ),
        Mistake(
            "these are the masked scores, without the softmax",
            lambda scores: scores.masked_fill(~_self_or(scores, 0), -math.inf),
            "The mask is right. What turns scores into shares?",
        ),
        Mistake(
            "the softmax runs over destinations",
            lambda scores: _masked(scores, dim=0),
            "Each destination shares out one unit of attention: rows sum to 1, columns do not.",
        ),
    ),
)


def check_two_places(answer) -> Result:
    """Exercise 4.2. `answer(scores)` returns the pattern of a neuron-head: itself and the bias token, nothing else.

    **Shapes**: `scores [pos, pos]`, destinations in rows, the bias token at position 0; the result has the same shape.
    """
    return check(TWO_PLACES, answer)


# --- 4.3 a neuron as a head, by hand -------------------------------------------------------------------------------


def _silu(value: float) -> float:
    return value / (1 + math.exp(-value))


def _neuron_spec(w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor:
    x, d_model = _some_tokens(w_in), len(w_in)
    out = torch.zeros(1 + len(x), d_model + 1, dtype=torch.float64)
    for pos in range(len(x)):
        reads = sum(float(x[pos, i] * w_in[i]) for i in range(d_model)) + float(b_in)
        for j in range(d_model):
            out[1 + pos, j] = _silu(reads) * w_out[j]
    return out


def _some_tokens(w_in: Tensor) -> Tensor:
    return normal(torch.Generator().manual_seed(4), len(w_in) + 2, len(w_in))


def _run_neuron(answer, w_in: Tensor, b_in: Tensor, w_out: Tensor) -> Tensor | None:
    """What the head writes on a stream that begins with the bias token."""
    wide = len(w_in) + 1
    shapes = {"W_Q": (wide, 1), "b_Q": (), "W_K": (wide, 1), "W_V": (wide, 1), "b_V": (), "W_O": (1, wide)}
    parts = built(answer(w_in, b_in, w_out), **shapes)
    if parts is None:
        return None
    W_Q, b_Q, W_K, W_V, b_V, W_O = parts
    stream = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), _some_tokens(w_in)).roll(-1, 1)
    scores = (stream @ W_Q + b_Q) @ (stream @ W_K).T
    return _masked(scores) @ (stream @ W_V + b_V) @ W_O


def _neuron(w_in, b_in, w_out, *, key=-1.0, query=True, value=True, reads=True, erase=-1.0, first=False, mark=0.0):
    """A neuron-head with one thing wrong."""
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    def wide(stream, bias):
        return torch.cat([bias, stream] if first else [stream, bias])[:, None]

    b_V = b_in * value if reads else 1 + 0 * b_in
    W_V = wide(w_in * reads, erase * b_V * one)
    return wide(w_in, zero), b_in * query, wide(0 * w_in, key * one), W_V, b_V, wide(w_out, mark * one).T


NEURON = Exercise(
    number="4.3",
    title="a neuron as a head, by hand",
    minutes=25,
    difficulty="hard",
    read=_NEURON,
    spec=_neuron_spec,
    draw=lambda generator, step: {
        "w_in": normal(generator, 2 + step),
        "b_in": 0.5 + normal(generator, 1)[0].abs(),
        "w_out": normal(generator, 2 + step),
    },
    observe=_run_neuron,
    tolerance=1e-6,
    names=("position", "coordinate"),
    mistakes=(
        Mistake(
            "the keys carry the paper's factor sqrt(D + 1)",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, key=-math.sqrt(len(w_in) + 1)),
            "The paper divides scores by sqrt(D + 1) and takes it back in W_K. Here, as in every library, scores are "
            "divided by sqrt(d_head).",
        ),
        Mistake(
            "the sign of the key is turned around",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, key=1.0),
            "The neuron is on where it should be off: x sigmoid(-x). When x is large, which place must lose?",
        ),
        Mistake(
            "the bias token has a value",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, erase=0.0),
            "b_V is added at every position, at the bias token, too. Where it is not wanted, something else has to "
            "take it back: which number of the stream marks the bias token?",
        ),
        Mistake(
            "the bias token's value is doubled instead of taken back",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, erase=1.0),
            "The place is right: the row of W_V that reads the bias coordinate. Its sign is not.",
        ),
        Mistake(
            "b_in stands in the rows of the bias coordinate",
            lambda w_in, b_in, w_out: (
                torch.cat([w_in, b_in[None]])[:, None],
                0.0,
                _neuron(w_in, b_in, w_out)[2],
                torch.cat([w_in, b_in[None]])[:, None],
                0.0,
                torch.cat([w_out, 0 * w_out[:1]])[None],
            ),
            "That coordinate is 1 at the bias token alone, so only the bias token gets b_in. The tokens need it.",
        ),
        Mistake(
            "the head writes into the bias coordinate",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, mark=1.0),
            "The next layer would take these tokens for bias tokens. What should the head add to that coordinate?",
        ),
        Mistake(
            "the query leaves b_in out",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, query=False),
            "The head decides by x w_in alone. The neuron decides by x w_in + b_in.",
        ),
        Mistake(
            "the value leaves b_in out",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, value=False),
            "SiLU(y) is sigmoid(y) times y: the weight is right, and what it is multiplied with is not yet all of y.",
        ),
        Mistake(
            "b_in is left out",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, query=False, value=False),
            "The neuron reads x w_in + b_in. A row of W_Q or W_V cannot add it: tokens have a 0 in the last coordinate.",
        ),
        Mistake(
            "the value does not read x",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, reads=False),
            "This head writes sigmoid(y), a gate. A SiLU neuron multiplies the gate with y itself.",
        ),
        Mistake(
            "the bias coordinate is taken to be the first",
            lambda w_in, b_in, w_out: _neuron(w_in, b_in, w_out, first=True),
            "The bias token is the first position, but its coordinate is the last: X + [1] adds a column at the end.",
        ),
    ),
)


def check_neuron_as_head(answer) -> Result:
    """Exercise 4.3. `answer(w_in, b_in, w_out)` returns `W_Q, b_Q, W_K, W_V, b_V, W_O` of the head that is a SiLU neuron.

    **Shapes**: `w_in` and `w_out [d_model]`, `b_in` a number; `W_Q, W_K, W_V [d_model + 1, 1]`, `W_O [1, d_model + 1]`,
    `b_Q` and `b_V` numbers. The stream has one more coordinate, the last, which is 1 at position 0 (the bias token, zero
    elsewhere) and 0 at the tokens. The head looks at itself and at position 0. It writes
    $\\mathrm{SiLU}(x\\,w_{in} + b_{in})\\,w_{out}$ at a token and nothing at the bias token.
    """
    return check(NEURON, answer)


# --- 4.4 an MLP as a sum of heads ----------------------------------------------------------------------------------


def _mlp_spec(x: Tensor, W_in: Tensor, b_in: Tensor, W_out: Tensor, b_out: Tensor, terms: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], W_out.shape[1], dtype=torch.float64)
    for pos in range(x.shape[0]):
        out[pos] = b_out
        for n in range(W_in.shape[1]):
            reads = float(torch.dot(x[pos], W_in[:, n]) + b_in[n])
            for b, c, a, d in terms.tolist():
                attention = 1 / (1 + math.exp(-(b * reads + c)))
                out[pos] += attention * (a * reads + d) * W_out[n]
    return out


def _mlp(
    x,
    W_in,
    b_in,
    W_out,
    b_out,
    terms,
    *,
    query=1.0,
    value=1.0,
    offsets=1.0,
    times=1,
    order="bcad",
    mean=False,
    aside=False,
):
    """The MLP as a sum of heads with one thing wrong."""
    b, c, a, d = (terms[:, order.index(name)] for name in "bcad")
    scores = ((x @ W_in + query * b_in)[..., None] * b + offsets * c).sigmoid()
    values = (x @ W_in + value * b_in)[..., None] * a
    terms = scores * values + offsets * d if aside else scores * (values + offsets * d)
    heads = terms.mean(-1) if mean else terms.sum(-1)
    return heads @ W_out + times * b_out


def _mlp_case(generator: torch.Generator, pos: int, d_model: int, d_mlp: int, k: int) -> Case:
    return {
        "x": normal(generator, pos, d_model),
        "W_in": normal(generator, d_model, d_mlp),
        "b_in": normal(generator, d_mlp),
        "W_out": normal(generator, d_mlp, d_model),
        "b_out": normal(generator, d_model),
        "terms": normal(generator, k, 4),
    }


SUM_OF_HEADS = Exercise(
    number="4.4",
    title="an MLP as a sum of heads",
    minutes=15,
    difficulty="medium",
    read=_SUM,
    spec=_mlp_spec,
    draw=lambda generator, step: _mlp_case(generator, *sizes(generator, step // 2, 4)),
    square=lambda generator: _mlp_case(generator, 4, 4, 4, 4),
    names=("position", "coordinate"),
    mistakes=(
        Mistake(
            "b_out is added once for each term",
            lambda terms, **mlp: _mlp(**mlp, terms=terms, times=len(terms)),
            "The output bias belongs to the layer. However many heads there are, it is added once.",
        ),
        Mistake(
            "b_out is added by every head",
            lambda terms, W_in, **mlp: _mlp(**mlp, W_in=W_in, terms=terms, times=len(terms) * W_in.shape[1]),
            "The output bias belongs to the layer, not to its neurons. However many heads there are, it is added once.",
        ),
        Mistake(
            "b_out is left out",
            lambda **mlp: _mlp(**mlp, times=0),
            "One bias of the MLP is missing: the one that no head adds.",
        ),
        Mistake(
            "the values leave b_in out",
            lambda **mlp: _mlp(**mlp, value=0.0),
            "Queries and values read the same number: x W_in + b_in.",
        ),
        Mistake(
            "the queries leave b_in out",
            lambda **mlp: _mlp(**mlp, query=0.0),
            "Queries and values read the same number: x W_in + b_in.",
        ),
        Mistake(
            "b_in is left out",
            lambda **mlp: _mlp(**mlp, query=0.0, value=0.0),
            "A neuron reads x W_in + b_in, in its query and in its value.",
        ),
        Mistake(
            "the offsets c and d are left out",
            lambda **mlp: _mlp(**mlp, offsets=0.0),
            "A term has four numbers. Without its offsets it is a scaled SiLU, and fitted sums need more than that.",
        ),
        Mistake(
            "the columns of terms are read in the order a, d, b, c",
            lambda **mlp: _mlp(**mlp, order="adbc"),
            "The first two numbers, b and c, make the score; the last two, a and d, make the value.",
        ),
        Mistake(
            "the columns of terms are read in the order a, b, c, d",
            lambda **mlp: _mlp(**mlp, order="abcd"),
            "The columns are not in the order of the alphabet: first b and c of the score, then a and d of the value.",
        ),
        Mistake(
            "d is added outside of the attention",
            lambda **mlp: _mlp(**mlp, aside=True),
            "The value is ay + d, and the head's weight multiplies all of it. Are there brackets around the value?",
        ),
        Mistake(
            "the activation is SiLU, whatever the terms are",
            lambda terms, **mlp: _mlp(**mlp, terms=terms.new_tensor([[1.0, 0.0, 1.0, 0.0]])),
            "This is the MLP with one head for each neuron. The rows of terms say which heads there are.",
        ),
        Mistake(
            "the terms are averaged",
            lambda **mlp: _mlp(**mlp, mean=True),
            "Heads add up. Nothing divides them by their number.",
        ),
        Mistake(
            "W_out is transposed",
            lambda W_out, **mlp: _mlp(**mlp, W_out=W_out.T),
            "Neuron n writes row n of W_out.",
        ),
        Mistake(
            "W_in is transposed",
            lambda W_in, **mlp: _mlp(**mlp, W_in=W_in.T),
            "Neuron n reads column n of W_in: rows of x multiply from the left.",
        ),
    ),
)


def check_mlp_as_heads(answer) -> Result:
    """Exercise 4.4. `answer(x, W_in, b_in, W_out, b_out, terms)` returns the MLP as the sum of its neuron-heads.

    **Shapes**: `x [pos, d_model]`, `W_in [d_model, d_mlp]`, `b_in [d_mlp]`, `W_out [d_mlp, d_model]`, `b_out [d_model]`,
    `terms [k, 4]`; the result is `[pos, d_model]`. A row $(b, c, a, d)$ of `terms` is one head of every neuron: reading
    $y$, it looks at itself with weight $\\sigma(by + c)$ and finds the value $ay + d$.
    """
    return check(SUM_OF_HEADS, answer)


# --- 4.5 how large Omega should be ---------------------------------------------------------------------------------


def _window(n_pos, tolerance, eps, *, per_omega=2.0, log=math.log, count=True, half=0.5, slope=0.25, size=2.0):
    """Ends of the window, with one thing wrong."""
    low = log((n_pos if count else 1) / tolerance) / per_omega
    return torch.tensor([low, tolerance / (size * eps * half * slope)], dtype=torch.float64)


def _window_spec(n_pos: int, tolerance: float, eps: float) -> Tensor:
    # Leak: n_pos tokens of weight exp(-2 omega) each. Rounding: a quarter of half the gap between numbers at 2 omega.
    ends = []
    for excess in (
        lambda omega: tolerance - n_pos * math.exp(-2 * omega),
        lambda omega: (2 * omega * eps) / 2 / 4 - tolerance,
    ):
        below, above = 0.0, 1e6
        for _ in range(200):
            middle = (below + above) / 2
            below, above = (middle, above) if excess(middle) < 0 else (below, middle)
        ends.append(below)
    return torch.tensor(ends, dtype=torch.float64)


def _draw_window(generator: torch.Generator, step: int) -> Case:
    eps = 2.0 ** -(7, 10, 23, 52)[step % 4]
    factor = 2 + int(torch.randint(0, 15, (), generator=generator))
    return {"n_pos": 5 + 3 * step, "tolerance": factor * eps, "eps": eps}


OMEGA = Exercise(
    number="4.5",
    title="how large Omega should be",
    minutes=15,
    difficulty="medium",
    read=_OMEGA,
    spec=_window_spec,
    draw=_draw_window,
    names=("end",),
    mistakes=(
        Mistake(
            "the smallest Omega is the post's, twice what is needed",
            lambda **case: _window(**case, per_omega=1.0),
            "The post asks exp(Omega) > N / tolerance. But its scores are 2 Omega apart.",
        ),
        Mistake(
            "the number of tokens is left out",
            lambda **case: _window(**case, count=False),
            "One hidden token keeps exp(-2 Omega). How many of them are there?",
        ),
        Mistake(
            "the logarithm has base 10",
            lambda **case: _window(**case, log=math.log10),
            "A softmax takes powers of e, so the natural logarithm undoes it.",
        ),
        Mistake(
            "the logarithm has base 2",
            lambda **case: _window(**case, log=math.log2),
            "A softmax takes powers of e, so the natural logarithm undoes it.",
        ),
        Mistake(
            "the largest Omega leaves out how flat the sigmoid is",
            lambda **case: _window(**case, slope=1.0),
            "A score that is wrong by r moves the weight by less than r. What is the steepest slope of a sigmoid?",
        ),
        Mistake(
            "rounding is counted as a whole step",
            lambda **case: _window(**case, half=1.0),
            "Rounding goes to the nearest number, which is at most half a step away.",
        ),
        Mistake(
            "scores are taken to be Omega, not 2 Omega, when they are rounded",
            lambda **case: _window(**case, size=1.0),
            "Rounding grows with the score. How large are the scores of itself and of the bias token?",
        ),
        Mistake(
            "scores are taken to be Omega, not 2 Omega",
            lambda **case: _window(**case, per_omega=1.0, size=1.0),
            "Both ends are off by two. How far above the other tokens do itself and the bias token stand?",
        ),
        Mistake(
            "the logarithm is upside down",
            lambda **case: -_window(**case) * torch.tensor([1.0, -1.0], dtype=torch.float64),
            "The smaller the tolerance, the larger Omega has to be. Which of the two belongs on top of the quotient?",
        ),
        Mistake(
            "the two ends are exchanged",
            lambda **case: _window(**case).flip(0),
            "Leak says how large Omega must be at least, rounding how large at most. Return them in this order.",
        ),
    ),
)


def check_omega_window(answer) -> Result:
    """Exercise 4.5. `answer(n_pos, tolerance, eps)` returns `[smallest, largest]`, the Omegas that keep two errors small.

    **Leak**: `n_pos` tokens keep the weight $e^{-2\\Omega}$ each, together at most `tolerance`. **Rounding**: a score near
    $2\\Omega$ is off by at most half of $2\\Omega\\cdot$`eps`, which moves the sigmoid by at most `tolerance`.
    """
    return check(OMEGA, answer)


# --- 4.6 a norm that keeps the bias token --------------------------------------------------------------------------


def _norm_spec(d_model: int) -> Tensor:
    x = _some_rows(d_model)
    wanted = torch.zeros(len(x) + 1, d_model + 1, dtype=torch.float64)
    for pos in range(len(x)):
        length = math.sqrt(sum(float(v) ** 2 for v in x[pos]) / d_model)
        for i in range(d_model):
            wanted[pos, i] = x[pos, i] / length
    wanted[-1, -1] = 1.0
    return wanted


def _some_rows(d_model: int) -> Tensor:
    return normal(torch.Generator().manual_seed(5), 3, d_model)


def _run_norm(answer, d_model: int) -> Tensor | None:
    """RMSNorm with the gain, on a few rows and the bias token."""
    gain = answer(d_model)
    found = built(None if gain is None else [gain], gain=(d_model + 1,))
    if found is None:
        return None
    stream = torch.block_diag(_some_rows(d_model), torch.ones(1, 1, dtype=torch.float64))
    return stream / stream.square().mean(-1, keepdim=True).sqrt() * found[0]


def _gain(d_model, stream, bias):
    return torch.tensor([stream] * d_model + [bias], dtype=torch.float64)


NORM = Exercise(
    number="4.6",
    title="a norm that keeps the bias token",
    minutes=15,
    difficulty="medium",
    read=_NORM,
    spec=_norm_spec,
    draw=lambda generator, step: {"d_model": 2 + step},
    observe=_run_norm,
    tolerance=1e-6,
    names=("row", "coordinate"),
    mistakes=(
        Mistake(
            "the gain is 1 everywhere",
            lambda d_model: _gain(d_model, 1.0, 1.0),
            "The new coordinate is 0 at a token and still counts in the mean: the mean square shrinks. By how much?",
        ),
        Mistake(
            "the gain of the stream is upside down",
            lambda d_model: _gain(d_model, math.sqrt((d_model + 1) / d_model), 1 / math.sqrt(d_model + 1)),
            "A mean over D + 1 coordinates is smaller than over D, so the row is divided by too little and comes out "
            "too long. Should the gain be above or below 1?",
        ),
        Mistake(
            "the bias coordinate has the gain of the others",
            lambda d_model: _gain(d_model, *[math.sqrt(d_model / (d_model + 1))] * 2),
            "The tokens are right. Work out the row of the bias token: one 1 and D zeros. What is its mean square?",
        ),
        Mistake(
            "the bias coordinate has gain 1",
            lambda d_model: _gain(d_model, math.sqrt(d_model / (d_model + 1)), 1.0),
            "The tokens are right. Work out the row of the bias token: one 1 and D zeros. What is its mean square?",
        ),
        Mistake(
            "the gain of the bias coordinate is upside down",
            lambda d_model: _gain(d_model, math.sqrt(d_model / (d_model + 1)), math.sqrt(d_model + 1)),
            "The tokens are right. The norm makes the bias token's 1 larger; the gain has to bring it back to 1.",
        ),
        Mistake(
            "both gains are upside down",
            lambda d_model: _gain(d_model, math.sqrt((d_model + 1) / d_model), math.sqrt(d_model + 1)),
            "These are what the norm does to the two kinds of rows. The gain has to undo it.",
        ),
        Mistake(
            "the bias coordinate is taken to be the first",
            lambda d_model: _gain(d_model, math.sqrt(d_model / (d_model + 1)), 1 / math.sqrt(d_model + 1)).roll(1),
            "The numbers are right. X + [1] adds its column at the end.",
        ),
        Mistake(
            "the roots are missing",
            lambda d_model: _gain(d_model, d_model / (d_model + 1), 1 / (d_model + 1)),
            "The sizes of mean squares are right; the norm divides by the root of a mean square.",
        ),
        Mistake(
            "these are the gains for two bias coordinates",
            lambda d_model: _gain(d_model, math.sqrt(d_model / (d_model + 2)), math.sqrt(2 / (d_model + 2))),
            "Repair (b) is for LayerNorm and has two bias coordinates. Here there is one.",
        ),
    ),
)


def check_norm_gain(answer) -> Result:
    """Exercise 4.6. `answer(d_model)` returns the gain with which RMSNorm keeps the bias token.

    **Shapes**: the result is `[d_model + 1]`. With it $\\mathrm{RMSNorm}(X \\oplus [1])$, taken over all `d_model + 1`
    coordinates, equals $\\mathrm{RMSNorm}(X) \\oplus [1]$.
    """
    return check(NORM, answer)


EXERCISES = (TWO_WEIGHTS, TWO_PLACES, NEURON, SUM_OF_HEADS, OMEGA, NORM)
