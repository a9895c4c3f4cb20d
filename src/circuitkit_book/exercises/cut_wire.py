"""Exercise 3.5. `answer(x, r, W_Q, W_K)` returns a causal head's pattern when its keys do not see `r`.

**Shapes**: the stream `x [pos, d_model]`, which contains what an earlier head wrote, `r [pos, d_model]`; `W_Q` and
`W_K [d_model, d_head]`; the result is `[destination, source]`. The queries still see all of `x`.
"""

import torch
from torch import Tensor

from circuitkit_book.exercises.checking import Exercise, checks
from circuitkit_book.exercises.shared import AXIS, MASK, SCALE, head_pattern


def spec(x: Tensor, r: Tensor, W_Q: Tensor, W_K: Tensor) -> Tensor:
    pos = x.shape[0]
    root = torch.tensor(float(W_Q.shape[1]), dtype=torch.float64).sqrt()
    out = torch.zeros(pos, pos, dtype=torch.float64)
    for dst in range(pos):
        query = x[dst] @ W_Q
        weights = [
            torch.exp(torch.dot(query, (x[src] - r[src]) @ W_K) / root) for src in range(dst + 1)
        ]
        for src in range(dst + 1):
            out[dst, src] = weights[src] / sum(weights)
    return out


def body(
    x,
    r,
    W_Q,
    W_K,
    *,
    queries="x",
    keys="cut",
    roles="right",
    cut="before",
    scale="root",
    mask="before",
    axis=-1,
):
    along = r / r.norm(dim=1, keepdim=True)
    inputs = {
        "projected": x - (x * along).sum(1, keepdim=True) * along,
        "x": x,
        "cut": x - r,
        "r": r,
        "added": x + r,
        "twice": x - 2 * r,
        "turned": r - x,
    }
    q, k = inputs[queries], inputs[keys]
    if roles == "wires":
        q, k = k, q

    def pattern(q, k):
        q, k = q @ W_Q, k @ W_K
        q, k = {"swapped": (k, q), "queries": (q, q), "keys": (k, k)}.get(roles, (q, k))
        return head_pattern(q, k, x.shape[1], scale=scale, mask=mask, axis=axis)

    if roles == "swapped matrices":
        return head_pattern(q @ W_K, k @ W_Q, x.shape[1], scale=scale, mask=mask, axis=axis)
    if cut == "after":
        return pattern(q, x) - pattern(q, r)
    return pattern(q, x) - pattern(q, k) if cut == "difference" else pattern(q, k)


EXERCISE = Exercise(
    about="3.5 cut one wire | medium | 15 minutes | 03-induction-heads#q-k-and-v-composition-and-a-score-that-misleads",
    spec=spec, body=body, axes="pos, d_model, d_head",
    inputs={"x": "pos d_model", "r": "pos d_model", "W_Q": "d_model d_head", "W_K": "d_model d_head"},
    names=("destination", "source"),
    choices="""
    keys = x | nothing is cut | This is the pattern of the whole model. What do the keys read when the earlier head is silent for them?
    keys = r | the keys read the earlier head alone | That keeps the wire and cuts all others.
    keys = added / twice / turned | the keys read another sum of x and r than x - r | The stream x holds r once. How does one get it out?
    keys = projected | all that points along r is taken out of the keys | The other heads may have written in the same direction. Take out r, no more.
    queries = cut | the queries do not see r either | That tells what the earlier head is worth to this pattern altogether. Leave the queries as they are.
    queries = r / added | the queries read the earlier head alone, or twice | Leave the queries as they are.
    roles = wires | the wire into the queries is cut, not that into the keys | The destination asks, the source answers. Whose input was to lose r?
    roles = swapped | queries and keys are exchanged | Rows are destinations, and a destination asks with W_Q.
    roles = swapped matrices | W_Q and W_K are exchanged | A destination asks with W_Q, a source answers with W_K.
    roles = queries / keys | queries or keys are compared with themselves | The destination asks with W_Q; the source answers with W_K.
    cut = after | the cut is made after the softmax | Scores are linear in the key's input, attention is not: take r out before the softmax. Rows have to sum to 1.
    cut = difference | it is the difference that the cut makes | Return the pattern after the cut.
    """
    + SCALE
    + MASK
    + AXIS,
)  # fmt: skip
check_cut_wire = checks(EXERCISE, __doc__)
