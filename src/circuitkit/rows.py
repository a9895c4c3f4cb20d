"""What a model reads: texts of any lengths as rows of token ids, and rows in which a span repeats.

Every tool reads its texts by `read_rows`. Texts of different lengths become `Rows`, which are padded
on the right and know how many tokens of each row are text.

`repeated_tokens` makes rows of random tokens in which a span comes twice, to test whether a model uses
the first pass, and `default_rows` makes them to fit a model. The other functions find the positions
of earlier occurrences of a token, and measure the loss of each token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

if TYPE_CHECKING:
    from circuitkit.bridge import Model

from circuitkit.checks import (
    checked,
    require_at_least,
    require_bridge,
    require_plain,
    require_tokenizer,
    shown,
    to_token,
)

Tokens = Int[Tensor, "batch pos"]

# Texts as rows of token ids


@dataclass(frozen=True, eq=False)
class Rows:
    """Token ids of one or several texts, padded on the right where a text is shorter than others.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`
    lengths : how many tokens of each row are text `[batch]`; what follows is padding

    Notes
    -----
    Source: this book.
    """

    tokens: Tokens
    lengths: Int[Tensor, " batch"]

    @classmethod
    def of(cls, texts: Sequence[Int[Tensor, " pos"]] | Tokens) -> "Rows":
        """Rows in which every id that is given is text; what follows a shorter text has the id 0."""
        rows = list(texts)
        lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
        return cls(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths)

    @cached_property
    def is_text(self) -> Bool[Tensor, "batch pos"]:
        """Which ids are text."""
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return places < self.lengths[:, None]

    @cached_property
    def is_padded(self) -> bool:
        """Whether the texts differ in length."""
        return not bool(self.is_text.all())

    def select(self, values: Tensor) -> Tensor:
        """The values at all tokens of all texts, one text after the other."""
        return values[self.is_text] if self.is_padded else values.flatten(0, 1)

    def blank(self, values: Float[Tensor, "batch pos *any"]) -> Float[Tensor, "batch pos *any"]:
        """The values with NaN at padding, so that no mean takes it in unnoticed."""
        if not self.is_padded:
            return values
        values = values.clone()
        values[~self.is_text] = torch.nan
        return values

    def index(self, position: int, name: str = "position") -> Int[Tensor, " batch"]:
        """A position of each text, counted from its beginning; -1 is the last token of each."""
        shortest = int(self.lengths.min())
        if not -shortest <= position < shortest:
            of = "shortest text" if self.is_padded else "text"
            raise ValueError(
                f"{name}={position} is outside the {of}, which has {shortest} tokens. Write a "
                f"number from 0 to {shortest - 1}, or -1 for the last position."
            )
        return self.lengths * (position < 0) + position

    def pick(
        self, values: Shaped[Tensor, "batch pos *any"], position: int
    ) -> Shaped[Tensor, "batch *any"]:
        """The values at one position of each text."""
        return values[torch.arange(len(values), device=values.device), self.index(position)]

    def means(self, values: Float[Tensor, "batch _"]) -> Float[Tensor, " batch"]:
        """The mean over the tokens of each text, or over all but the first, which nothing predicts."""
        if not self.is_padded:
            return values.mean(1)
        is_text = self.is_text[:, -values.shape[1] :]
        return torch.where(is_text, values, 0).sum(1) / is_text.sum(1)

    def places(self, at: Any) -> Bool[Tensor, "batch pos"] | None:
        """Where positions are, such as `[3]` or `[-1]`, the last token of each text; None for None."""
        if at is None:
            return None
        is_list = isinstance(at, list | tuple | range) and len(at) > 0
        if not is_list or not all(type(position) is int for position in at):
            raise ValueError(
                f"at must be positions in a list, such as at=[3], or at=[-1] for the last, not {at!r}."
            )
        result = torch.zeros_like(self.is_text)
        for position in at:
            result.scatter_(1, self.index(position, "at")[:, None], True)
        return result


def read_rows(model: "Model", text: "Text") -> Rows:
    """Rows of token ids, from whatever a tool takes as its texts.

    Parameters
    ----------
    model : a `TransformerBridge`; its tokenizer reads texts
    text : a string; a list of strings of any lengths; token ids `[pos]` or `[batch, pos]`; a list of
        token ids `[pos]` of any lengths, in which every id is text; what a tokenizer returns, with
        padding on any side and its attention mask; or `Repeated`

    Raises
    ------
    ValueError : for more tokens than the model reads, ids outside the vocabulary, no tokens at all, or
        none but those that the tokenizer adds, and for a tensor of ids in which padding is on the left
        or cannot be told from text
    TypeError : for anything else

    Notes
    -----
    Source: this book.
    """
    require_bridge(model)
    require_plain("to_tokens was given ", text)
    if isinstance(text, Rows):
        return on_device_of(model, text)
    if isinstance(text, Repeated):
        return on_device_of(model, Rows.of(to_ids(text.tokens)))
    if isinstance(text, Mapping):
        return on_device_of(model, Rows.of(ids_under_mask(text)))
    if isinstance(text, Tensor):
        return without_padding(model, on_device_of(model, Rows.of(to_ids(text))))
    texts = [text] if isinstance(text, str) or not isinstance(text, Sequence) else text
    if len(texts) == 0:
        raise ValueError("The list of texts is empty. Give at least one text.")
    rows = []
    for one in texts:
        ids = ids_of_text(model, one) if isinstance(one, str) else one
        rows.extend(to_ids(ids))
    return on_device_of(model, Rows.of(rows))


def to_ids(tokens: Any) -> Tokens:
    """Token ids with a batch axis; a `TypeError` for anything else."""
    is_ids = isinstance(tokens, Tensor) and tokens.dtype in (torch.int64, torch.int32)
    if not is_ids or tokens.ndim not in (1, 2):
        raise TypeError(
            f"A text or token ids [batch, pos] are needed, not {shown(tokens)}. "
            "Write a string, a list of strings, or token ids of torch.int64 such as "
            "torch.tensor([[5, 7, 5]])."
        )
    if tokens.numel() == 0:
        raise ValueError("There are no tokens. Give a text or token ids [batch, pos].")
    return torch.atleast_2d(tokens)


def ids_of_text(model: "Model", text: str) -> Int[Tensor, "1 pos"]:
    """The token ids of a text."""
    require_tokenizer(model)
    if not model.tokenizer(text, add_special_tokens=False)["input_ids"]:
        raise ValueError(
            f"The text {text!r} has no tokens of its own, so there is nothing to read. Give a "
            "text, or the id of the opening token alone: torch.tensor([[0]])."
        )
    return model.to_tokens(text, truncate=False)


def ids_under_mask(given: Mapping[str, Any]) -> list[Int[Tensor, " pos"]]:
    """The ids that the attention mask of a tokenizer marks as text."""
    ids, masks = given.get("input_ids", ()), given.get("attention_mask", ())
    if len(ids) == 0 or len(ids) != len(masks):
        raise ValueError(
            "A tokenizer's result needs input_ids and an attention_mask with as many rows, not "
            f"{', '.join(map(str, given)) or 'nothing'}. Write "
            "model.tokenizer(texts, padding=True, return_tensors='pt'), or give the texts."
        )
    if torch.as_tensor(ids[0]).ndim == 0:  # of one text
        ids, masks = [ids], [masks]
    rows = []
    for row, mask in zip(ids, masks, strict=True):
        row, is_text = torch.as_tensor(row), torch.as_tensor(mask).bool()
        (places,) = torch.where(is_text)
        if row.shape != is_text.shape or len(places) == 0 or bool((places.diff() != 1).any()):
            raise ValueError(
                "In each row of an attention_mask, the ones must be one piece, and as many entries "
                f"are needed as there are ids. This row is {shown(mask)} for ids {shown(row)}. Give "
                "the texts themselves, in a list."
            )
        rows.append(row[is_text])
    return rows


def without_padding(model: "Model", rows: Rows) -> Rows:
    """Rows that know which of their ids the tokenizer has put there to pad them.

    The token that pads may have another use, such as to end a text. Then nothing in the ids says which
    of them are text, and rows that end in it are refused.
    """
    tokenizer = model.tokenizer
    padding = getattr(tokenizer, "pad_token_id", None)
    if padding is None:
        return rows
    opens = padding == tokenizer.bos_token_id
    is_ambiguous = opens or padding == tokenizer.eos_token_id
    is_padding = rows.tokens[:, int(opens) :] == padding
    begins, ends = is_padding[:, :1].any(1), is_padding[:, -1:].any(1)
    is_bad = begins | ends if is_ambiguous else begins
    if bool(is_bad.any()):
        row = int(is_bad.int().argmax())
        raise ValueError(
            f"Row {row} {'begins' if begins[row] else 'ends'} with the id {padding}, which pads rows, so "
            "it cannot be known what of it is text. Give the texts themselves, run(model, ['one text', "
            "'a longer text']), or what the tokenizer returns, with its attention_mask. If every id is "
            "text, give a list of rows, such as list(tokens)."
        )
    if is_ambiguous:
        return rows
    n_padding = is_padding.flip(1).cumprod(1).sum(1)
    return Rows(rows.tokens, rows.lengths - n_padding)


def on_device_of(model: "Model", rows: Rows) -> Rows:
    """Rows on the device of the model, which must know their ids and read that many."""
    n_pos = rows.tokens.shape[1]
    if n_pos > model.cfg.n_ctx:
        raise ValueError(
            f"The input has {n_pos} tokens, and this model reads at most "
            f"{model.cfg.n_ctx}. Shorten it: tokens[:, :{model.cfg.n_ctx}]."
        )
    lowest, highest = int(rows.tokens.min()), int(rows.tokens.max())
    if lowest < 0 or highest >= len(model.W_E):
        raise ValueError(
            f"The token ids range from {lowest} to {highest}, but this model has the tokens "
            f"0 to {len(model.W_E) - 1}. Use the model's own tokenizer: model.to_tokens(text)."
        )
    device = model.W_E.device
    return Rows(rows.tokens.to(device), rows.lengths.to(device))


def to_tokens(model: "Model", text: "Text") -> Tokens:
    """Token ids `[batch, pos]` for a tool that needs texts of one length.

    Parameters
    ----------
    model : a `TransformerBridge`
    text : see `read_rows`

    Raises
    ------
    ValueError : for texts of different lengths, and as in `read_rows`

    Notes
    -----
    Source: this book.
    """
    rows = read_rows(model, text)
    if rows.is_padded:
        raise ValueError(
            f"The texts have different numbers of tokens, {int(rows.lengths.min())} to "
            f"{int(rows.lengths.max())}, and this function needs texts of one length. Give one text at "
            "a time, or cut them to one length."
        )
    return rows.tokens


Answer = int | np.integer | str | Sequence[int | str] | Int[Tensor, "..."]
"""The id or the text of a token; or one for each text; or token ids `[batch, pos]`."""


def answer_ids(model: "Model", rows: Rows, answer: Answer) -> Tokens:
    """The token whose logit is taken at each position."""
    if isinstance(answer, Tensor) and answer.ndim > 0:
        ids = on_device_of(model, Rows.of(to_ids(answer))).tokens
    else:
        answers = (
            [answer] if isinstance(answer, str) or not isinstance(answer, Sequence) else answer
        )
        try:
            ids = torch.tensor([to_token(model, one) for one in answers])
        except ValueError as problem:
            raise ValueError(
                f"{problem} An answer is the id or the text of one token, and versus can be "
                "'mean' as well."
            ) from None
        ids = ids.to(rows.tokens.device)[:, None].expand(-1, rows.tokens.shape[1])
    if ids.shape != rows.tokens.shape and len(ids) != 1:
        raise ValueError(
            f"The answers have the shape {tuple(ids.shape)}, and the tokens have the shape "
            f"{tuple(rows.tokens.shape)}. Give one answer (a token id or a string), a list with one for "
            "each text, or an id for each position."
        )
    return ids.expand(rows.tokens.shape)


# Rows in which a span repeats


class Repeated(NamedTuple):
    """Rows in which a span of tokens comes twice, made by `repeated_tokens` or by hand.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`: an opening token if there is one, the span, the span again
    period : the length of the span
    start : the position where the span first begins: 1 after an opening token, otherwise 0

    Notes
    -----
    Source: see `repeated_tokens`.
    """

    tokens: Tokens
    period: int
    start: int


Text = (
    str
    | Sequence[str]
    | Int[Tensor, "..."]
    | Sequence[Int[Tensor, "..."]]
    | Mapping[str, Any]
    | Repeated
    | Rows
)
"""What a model reads: a text, texts of any lengths, or token ids; see `read_rows`."""


@checked
def repeated_tokens(
    d_vocab: int,
    period: int,
    *,
    batch: int = 8,
    bos: int | None = None,
    weights: Float[Tensor, " token"] | Int[Tensor, " token"] | None = None,
    generator: torch.Generator | None = None,
) -> Repeated:
    """Draw rows in which a span of random tokens comes twice.

    The tokens of a span differ from each other, so that there is one right answer to what followed
    a token the first time. They repeat only if the vocabulary is smaller than the span.

    Parameters
    ----------
    d_vocab : tokens are drawn from 0 to `d_vocab - 1`
    period : the length of the span
    batch : the number of rows
    bos : an opening token in front of the first span, which is drawn nowhere else
    weights : how often each token is drawn `[d_vocab]`, for example its count in a text
    generator : the source of randomness; if it is None, a new one with seed 0, so that equal calls
        give equal rows

    Returns
    -------
    `Repeated`, whose `tokens` are `[batch, 2 * period]`, or one longer with an opening token.

    Raises
    ------
    ValueError : if no token can be drawn, or `weights` is not one number of at least 0 per token

    Notes
    -----
    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", repeated random
    sequences.

    Examples
    --------
    >>> rows = repeated_tokens(50, 3, batch=1, bos=0)
    >>> rows.tokens.shape, bool((rows.tokens[:, 1:4] == rows.tokens[:, 4:7]).all())
    (torch.Size([1, 7]), True)
    """
    require_at_least(1, d_vocab=d_vocab, batch=batch)
    require_at_least(2, period=period)
    if bos is not None and not 0 <= bos < d_vocab:
        raise ValueError(f"bos={bos} is not a token: the vocabulary is 0 to {d_vocab - 1}.")
    chance = torch.ones(d_vocab) if weights is None else weights.detach().cpu().float().clone()
    if len(chance) != d_vocab or not bool((chance.isfinite() & (chance >= 0)).all()):
        raise ValueError(
            f"weights must be {d_vocab} numbers, finite and of at least 0, one for each token."
        )
    if bos is not None:
        chance[bos] = 0
    n_drawable = int((chance > 0).sum())
    if n_drawable == 0:
        raise ValueError("There is no token to draw. Use a larger d_vocab or other weights.")

    if generator is None:
        generator = torch.Generator().manual_seed(0)
    span = torch.multinomial(
        chance.expand(batch, -1), period, replacement=n_drawable < period, generator=generator
    )
    parts = [span, span]
    if bos is not None:
        parts.insert(0, torch.full((batch, 1), bos))
    return Repeated(torch.cat(parts, dim=1), period, len(parts) - 2)


@checked
def default_rows(model: "Model", *, period: int = 64, batch: int = 8) -> Repeated:
    """Draw two passes over a random span for a model, behind its tokenizer's opening token.

    Parameters
    ----------
    model : a `TransformerBridge`
    period : the length of the span; shorter if the context or the vocabulary is too small
    batch : the number of rows

    Notes
    -----
    Source: see `repeated_tokens`.
    """
    require_bridge(model)
    bos = getattr(model.tokenizer, "bos_token_id", None)
    n_opening = int(bos is not None)
    d_vocab = len(model.W_E)
    period = min(period, (model.cfg.n_ctx - n_opening) // 2, d_vocab - n_opening)
    return repeated_tokens(d_vocab, period, batch=batch, bos=bos)


@checked
def earlier_occurrences(tokens: Tokens) -> Bool[Tensor, "batch dst src"]:
    """Mark the earlier positions that hold the same token as the destination.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> earlier_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]
    """
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


@checked
def after_occurrences(tokens: Tokens) -> Bool[Tensor, "batch dst src"]:
    """Mark the positions after earlier occurrences of the destination's token.

    An induction head attends to these positions.

    Parameters
    ----------
    tokens : token ids `[batch, pos]`

    Notes
    -----
    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", prefix matching.

    Examples
    --------
    >>> after_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    """
    return torch.nn.functional.pad(earlier_occurrences(tokens)[..., :-1], (1, 0))


def token_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Tokens
) -> Float[Tensor, "batch next"]:
    """Compute the loss of predicting each next token, in nats.

    Parameters
    ----------
    logits : what a model predicts at each position
    tokens : the tokens that it read

    Returns
    -------
    Losses `[batch, pos - 1]`, `-log softmax(logits[t])[tokens[t + 1]]`: entry `t` belongs to the
    token at position `t + 1`. Logits in half precision are converted to float32 first.

    Notes
    -----
    Source: the usual cross-entropy.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    losses = []
    for row, ids in zip(logits[:, :-1], tokens.to(logits.device), strict=True):
        losses.append(torch.nn.functional.cross_entropy(row, ids[1:], reduction="none"))
    return torch.stack(losses)


def one_pass(
    logits: Float[Tensor, "batch pos d_vocab"], rows: Repeated, start: int
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Compute the loss and the accuracy of each row on the pass over the span that starts here.

    The first token of the pass is left out. In the second pass nothing predicts it, and in the first
    pass nothing predicts any.

    Parameters
    ----------
    logits : what a model predicts on `rows.tokens`
    rows : rows in which a span comes twice
    start : the position of the first token of the pass

    Returns
    -------
    Mean loss in nats `[batch]`, and the share of tokens that have the largest logit `[batch]`.

    Notes
    -----
    Source: see `circuitkit.induction.induction_loss`.
    """
    logits = logits[:, start : start + rows.period]
    tokens = rows.tokens[:, start : start + rows.period].to(logits.device)
    is_right = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return token_losses(logits, tokens).mean(1), is_right.to(logits.dtype).mean(1)


def second_pass(
    logits: Float[Tensor, "batch pos d_vocab"], rows: Repeated
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Compute the loss and the accuracy of each row on the second pass, as in `one_pass`."""
    return one_pass(logits, rows, rows.start + rows.period)


def require_repeating(rows: Repeated) -> None:
    """Raise a `ValueError` if the span is too short or does not come twice where `rows` claims."""
    if rows.period < 2 or rows.start < 0:
        raise ValueError(
            f"The rows have period={rows.period} and start={rows.start}. The period must be at "
            "least 2, because nothing predicts the first token of a span, and the start at least "
            "0. Make rows with repeated_tokens(...)."
        )
    second = rows.start + rows.period
    first_pass = rows.tokens[:, rows.start : second]
    again = rows.tokens[:, second : second + rows.period]
    if again.shape[1] < rows.period or not torch.equal(first_pass, again):
        raise ValueError(
            f"The rows do not hold the same {rows.period} tokens from position {rows.start} and from "
            f"position {second} on. Make them with repeated_tokens(...)."
        )


def require_two_positions(rows: Rows) -> None:
    """Raise a `ValueError` for rows in which no token is predicted."""
    if int(rows.lengths.min()) < 2:
        raise ValueError(
            "Each token is compared with the prediction before it, so every row needs at least two "
            "positions. Give longer rows."
        )
