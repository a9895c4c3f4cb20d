"""The smoothed bigram model with which chapters 1 and 2 compare the weights of small models."""

from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.checks import checked

__all__ = ["bigram_log_probs"]


@checked
def bigram_log_probs(
    counts: Int[Tensor, "d_vocab d_vocab"], discount: float = 0.75
) -> Float[Tensor, "d_vocab d_vocab"]:
    """Return `log p(b | a)` of a smoothed bigram model in float64, with one row for each `a`.

    Parameters
    ----------
    counts : how often the token of the column follows that of the row, such as
        `ck.models.corpus_statistics().bigram`
    discount : what is subtracted from each count, between 0 and 1

    Notes
    -----
    `p(b | a) = max(c(a, b) - D, 0) / c(a) + D n(a) / c(a) * q(b)` with the discount `D`, the counts
    `c`, the number `n(a)` of different tokens that follow `a`, and the share `q(b)` of different
    bigrams that end in `b`. Source: interpolated absolute discounting, Kneser and Ney 1995.

    Examples
    --------
    >>> import torch
    >>> bigram_log_probs(torch.tensor([[3, 1], [0, 0]])).exp().round(decimals=2).tolist()
    [[0.75, 0.25], [0.5, 0.5]]
    """
    counts = counts.double()  # [a, b]
    is_seen = (counts > 0).double()
    kinds_before = is_seen.sum(0) + 0.5  # [b]; 0.5 for tokens that never follow another
    q = kinds_before / kinds_before.sum()
    total = counts.sum(1, keepdim=True)  # [a, 1]
    backoff = discount * is_seen.sum(1, keepdim=True) / total.clamp_min(1)
    backoff[total == 0] = 1  # nothing is known about what follows this token
    return ((counts - discount).clamp_min(0) / total.clamp_min(1) + backoff * q).log()
