"""Chapter 4, "Why is this neuron on?": what a neuron reads, split into terms, and the lookup that any explanation must beat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import circuitkit as ck
from circuitkit import names
from circuitkit.bridge import Model
from circuitkit.checks import checked
from circuitkit.residual import reader_matrix

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Lookup", "activations", "explained", "judge_guesses", "neuron_terms"]

Values = Float[Tensor, "row pos"]
Tokens = Int[Tensor, "row pos"]


@checked
@torch.no_grad()
def activations(
    model: Model, tokens: Tokens, neuron: str, *, without: str | Sequence[str] = ()
) -> Values:
    """What a neuron passes on at every position, after its activation function.

    Parameters
    ----------
    model : a `TransformerBridge` with MLPs
    tokens : token ids
    neuron : a name such as `"L0N111"`
    without : what is cut meanwhile, as in `circuitkit.run`

    Examples
    --------
    >>> model = ck.load_model("two-layer-mlp")
    >>> activations(model, model.to_tokens("It is"), "L0N111").shape
    torch.Size([1, 3])
    """
    (name,) = names.parse(neuron)
    runs = (ck.run(model, rows, without=without) for rows in tokens.split(50))
    return torch.cat([run.recording.neurons_z(name.layer or 0)[..., name.number] for run in runs])


@checked
@torch.no_grad()
def neuron_terms(model: Model, tokens: Tokens, neuron: str) -> dict[str, Tensor]:
    """Split what a neuron reads at every position into what each earlier part has written.

    Parameters
    ----------
    model : a `TransformerBridge` with MLPs
    tokens : token ids
    neuron : a name such as `"L0N111"`

    Returns
    -------
    For each earlier part, and for `"bias"`, a tensor `[row, pos]`. They add up to what the activation
    function gets. The divisor of the norm is that of the run.

    Notes
    -----
    Error: exact up to rounding. Source: chapter 2's split of a score, applied to a neuron.

    Examples
    --------
    >>> model = ck.load_model("two-layer-mlp")
    >>> list(neuron_terms(model, model.to_tokens("It is"), "L0N111"))[:3]
    ['embed', 'pos', 'L0H0']
    """
    (name,) = names.parse(neuron)
    run = ck.run(model, tokens)
    reads = reader_matrix(model, neuron)[:, 0]
    norm = run.recording.frozen(f"blocks.{name.layer}.ln2")
    terms = run.contributions(reads, before=neuron)
    terms = {part: value / norm.scale[..., 0] for part, value in terms.items()}
    mlp: Any = model.blocks[name.layer].mlp
    bias = norm.bias @ mlp.W_in[:, name.number] + mlp.b_in[name.number]
    return terms | {"bias": bias.expand(tokens.shape)}


@dataclass(frozen=True)
class Lookup:
    """The mean of a neuron's activation for each token, or for each pair of neighbours.

    Parameters
    ----------
    by_token : `[d_vocab]`
    by_pair : from `previous * d_vocab + current` to a mean, `[d_vocab ** 2]`

    Notes
    -----
    A mean of n values is shrunk by `n / (n + weight)`: that of a token towards the mean of all, and that
    of a pair towards that of its token. Source: this book.
    """

    by_token: Float[Tensor, " d_vocab"]
    by_pair: Float[Tensor, " pair"]

    @classmethod
    def of(cls, tokens: Tokens, values: Values, d_vocab: int, weight: float = 5.0) -> "Lookup":
        """The means on a text; the first position has no pair and is left out.

        Examples
        --------
        >>> rows = torch.tensor([[0, 1, 2, 1]])
        >>> Lookup.of(rows, torch.tensor([[0.0, 6.0, 0.0, 0.0]]), 3, weight=0.0).token(rows)[0].tolist()
        [2.0, 3.0, 0.0, 3.0]
        """
        current, value = tokens[:, 1:].flatten(), values[:, 1:].flatten()
        pair = tokens[:, :-1].flatten() * d_vocab + current
        overall = value.mean().expand(d_vocab)
        by_token = shrunk_means(current, value, overall, weight)
        return cls(by_token, shrunk_means(pair, value, by_token.repeat(d_vocab), weight))

    def token(self, tokens: Tokens) -> Values:
        """The mean for the token at each position."""
        return self.by_token[tokens]

    def pair(self, tokens: Tokens) -> Values:
        """The mean for the token before and the token at each position; the first has no pair."""
        pair = tokens[:, :-1] * len(self.by_token) + tokens[:, 1:]
        return torch.cat([self.token(tokens[:, :1]), self.by_pair[pair]], dim=1)


def shrunk_means(index: Tensor, value: Tensor, towards: Tensor, weight: float) -> Tensor:
    """The mean value of each index, shrunk towards another one by `n / (n + weight)`."""
    count = torch.bincount(index, minlength=len(towards)).to(value)
    total = torch.zeros_like(towards).index_add(0, index, value)
    mean = (total + weight * towards) / (count + weight).clamp_min(1e-12)
    return torch.where(count > 0, mean, towards)


def explained(predicted: Tensor, value: Tensor) -> float:
    """The share of the variance of a value that a prediction explains; below 0 if the mean is better.

    Examples
    --------
    >>> explained(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))
    1.0
    """
    return float(1 - (predicted - value).square().mean() / value.var(correction=0))


@checked
def judge_guesses(
    model: Model,
    neuron: str,
    sentences: Sequence[str],
    guesses: Sequence[bool | None],
    lookup: Lookup,
    *,
    above: float = 1.0,
) -> "pd.DataFrame":
    """Whether a neuron is on at the end of each sentence, next to a reader's guesses.

    Parameters
    ----------
    model : a `TransformerBridge` with MLPs
    neuron : a name such as `"L0N111"`
    sentences : the neuron is judged at their last tokens
    guesses : True for each sentence at whose end the reader expects the neuron to be on, False where
        she expects it to be off, and None where she has not guessed yet
    lookup : of this neuron
    above : the neuron is on if its activation is larger

    Returns
    -------
    A DataFrame with a row for each sentence, and a last row, *right*: how many answers of the reader, of
    the lookup by token, and of the answer "always off" are right.

    Raises
    ------
    ValueError : if there are no sentences, or not as many guesses as sentences

    Notes
    -----
    Source: this book.
    """
    import pandas as pd  # takes half a second

    if not sentences or len(sentences) != len(guesses):
        raise ValueError(
            f"There are {len(sentences)} sentences and {len(guesses)} guesses. Write at least one "
            "sentence, and one guess, True, False or None, for each of them."
        )
    words = {True: "on", False: "off", None: ""}
    rows = []
    for sentence, guess in zip(sentences, guesses, strict=True):
        tokens = model.to_tokens(sentence)
        value = float(activations(model, tokens, neuron)[0, -1])
        expected = float(lookup.token(tokens)[0, -1])
        answers = [value > above, guess, expected > above, False]
        rows.append([*map(words.get, answers), f"{value:.1f}"])
    columns = ["on", "your guess", "lookup", "always off", "activation"]
    table = pd.DataFrame(rows, list(sentences), columns)
    right = [str((table[name] == table["on"]).sum()) for name in columns[1:4]]
    table.loc["right"] = ["", *right, ""]
    return table
