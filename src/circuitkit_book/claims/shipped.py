"""The shipped models and the text that computations share, loaded once."""

from functools import cache
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from circuitkit import induction, models

if TYPE_CHECKING:
    from transformer_lens import FactoredMatrix


@cache
def model(name: str, exact: bool = False) -> Any:
    """A shipped model; `exact` in float64. Never changed by a computation."""
    loaded = models.load_model(name)
    return loaded.double() if exact else loaded


@cache
def repeats() -> induction.Repeated:
    """Sixteen rows of 64 random tokens shown twice, drawn as often as in the text: those of chapter 3."""
    return induction.repeated_tokens(2048, 64, batch=16, bos=0, weights=unigram())


@cache
def second_pass(*without: str) -> induction.InductionLoss:
    """Losses of the two-layer model on `repeats()` with some heads or wires cut."""
    return induction.induction_loss(model("two-layer"), repeats(), without=without)


def unigram() -> Float[Tensor, " d_vocab"]:
    """How often each token occurs in the training text."""
    return models.corpus_statistics().unigram.float()


def token(name: str, word: str) -> int:
    """The id of a word that is one token."""
    return int(model(name).to_single_token(word))


def product(factors: "FactoredMatrix") -> Tensor:
    """The matrix itself."""
    return factors.A @ factors.B


def relative(difference: Tensor, whole: Tensor) -> float:
    """Length of a difference over the length of the whole."""
    return float(difference.norm() / whole.norm())
