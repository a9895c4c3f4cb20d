"""The held-out text and the token statistics of the training text."""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Count, Seed, Share, must, public
from circuitkit._stored import stored, stored_file


@public
class CorpusStatistics(NamedTuple):
    """Counts over the tokens the models were trained on (`<|endoftext|>` begins each document).

    **Source**: counted from the tokens by `studies/edition-2/train/pack.py`.
    """

    unigram: Int[Tensor, " d_vocab"]
    """How often each token occurs."""
    bigram: Int[Tensor, "d_vocab d_vocab"]
    """`bigram[a, b]`: how often token `b` follows token `a`."""

    def log_probs(self, discount: Share = 0.75) -> Float[Tensor, "d_vocab d_vocab"]:
        """Smoothed bigram model `log p(b | a)`, rows over `a`, float64: interpolated absolute discounting.

        `p(b|a) = max(c(a,b) - D, 0) / c(a) + D n(a) / c(a) * q(b)`, where `n(a)` counts the successors seen after `a` and `q`
        is the share of bigram *types* that end in `b` (Kneser and Ney 1995).
        """
        count = self.bigram.double()
        types = (count > 0).double()
        continuation = (types.sum(0) + 0.5) / (types.sum(0) + 0.5).sum()
        total = count.sum(1, keepdim=True).clamp_min(1)
        backoff = discount * types.sum(1, keepdim=True) / total
        backoff = torch.where(backoff > 0, backoff, torch.ones_like(backoff))
        return ((count - discount).clamp_min(0) / total + backoff * continuation).log()


@cache
def corpus_statistics() -> CorpusStatistics:
    """Unigram and bigram counts of the training text, the latter dense, `[d_vocab, d_vocab]`.

    **Error**: none, counts are integers. **Source**: counted from the tokens by `studies/edition-2/train/pack.py`.
    """
    table = stored("models", "statistics.safetensors")
    unigram = table["unigram"].long()
    successors = table["successors"].long() & 0xFFFF
    rows = torch.repeat_interleave(torch.arange(len(unigram)), successors)
    columns, counts = table["columns"].long() & 0xFFFF, table["counts"].long() & 0xFFFF
    bigram = torch.zeros(len(unigram), len(unigram), dtype=torch.long)
    bigram[rows, columns] = counts
    return CorpusStatistics(unigram, bigram)


def corpus_provenance() -> list[dict[str, str | int]]:
    """Every file of the corpus: `"title"`, `"author"`, why it is `"free"`, its size in `"characters"`, its sha256.

    **Source**: recorded by `studies/edition-2/train/corpus.py`.
    """
    return stored("models", "corpus-provenance.json")["files"]


def heldout_text() -> list[dict[str, str]]:
    """Passages that no shipped model was trained on: dictionaries with `"file"` (its source) and `"text"`.

    **Source**: one chunk in thirty-three of the corpus, held out by `studies/edition-2/train/corpus.py`.
    """
    return stored("models", "heldout.jsonl")


@cache
def heldout_tokens() -> Int[Tensor, " token"]:
    """The whole held-out text as one row of token ids, `<|endoftext|>` (id 0) before each passage; not to be written to."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(stored_file("models", "tokenizer.json")))
    rows = [
        [0, *row.ids] for row in tokenizer.encode_batch([item["text"] for item in heldout_text()])
    ]
    return torch.tensor([token for row in rows for token in row])


@public
@must(
    lambda n, n_ctx: (
        2 <= n_ctx < len(heldout_tokens()) >= n
        or f"2 <= n_ctx < {len(heldout_tokens())} held-out tokens, and no more rows"
    )
)
def heldout_rows(n: Count, n_ctx: Count = 256, *, seed: Seed = 0) -> Int[Tensor, "row pos"]:
    """`n` rows of `n_ctx` tokens of held-out text at seeded random places, each opened by `<|endoftext|>` (id 0).

    **Shapes**: `[n, n_ctx]` token ids. **Source**: the text of `heldout_text`.
    """
    tokens = heldout_tokens()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(tokens) - n_ctx, (n,), generator=generator)
    rows = tokens[starts[:, None] + torch.arange(n_ctx - 1)]
    return torch.cat([torch.zeros(n, 1, dtype=rows.dtype), rows], dim=1)
