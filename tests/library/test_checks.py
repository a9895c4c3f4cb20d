"""Wrong arguments are explained in plain sentences."""

from typing import Literal

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import circuitkit as ck
from circuitkit.checks import checked, require_finite, to_token
from circuitkit.rows import to_tokens


@checked
def example(
    x: Float[Tensor, "batch pos"],
    weights: Float[Tensor, " batch"] | None = None,
    fill: Literal["zero", "mean"] = "zero",
    n: int = 1,
    ids: Int[Tensor, " pos"] | None = None,
    scale: float = 1.0,
) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"x": torch.zeros(2)}, ValueError, r"x to be a tensor of real numbers \[batch, pos\]"),
        ({"x": [1.0]}, TypeError, r"given x=\[1.0\]"),
        ({"x": torch.zeros(2, 3), "weights": torch.zeros(4)}, ValueError, "batch = 2"),
        ({"x": torch.zeros(2, 3), "fill": "men"}, ValueError, "'zero' or 'mean'"),
        ({"x": torch.zeros(2, 3), "n": 1.5}, TypeError, "n to be an integer"),
        ({"x": torch.zeros(2, 3), "ids": torch.zeros(3)}, ValueError, "integers"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(arguments, error, text):
    with pytest.raises(error, match=text):
        example(**arguments)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: example(),
            "example: missing a required argument: 'x'. Its parameters are x, weights",
        ),
        (lambda: example(torch.zeros(2, 3), k=1), "example: got an unexpected .* 'k'"),
        (lambda: ck.Heads(("L0H0",)), "Heads: missing a required argument: 'W_Q'"),
    ],
)
def test_a_wrong_call_names_the_function(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_right_arguments_pass():
    x = torch.zeros(2, 3)
    assert example(x, torch.ones(2), "mean", 2, torch.zeros(3, dtype=torch.long)) is x
    assert example(x, scale=2) is x  # an integer is a number


@pytest.fixture(scope="module")
def model():
    return ck.load_model("zero-layer")


def test_texts_and_ids_become_rows_of_tokens(model):
    text = "Mr. Dorling"
    rows = to_tokens(model, text)
    assert torch.equal(rows, model.to_tokens(text))
    assert torch.equal(to_tokens(model, rows[0]), rows)
    assert torch.equal(to_tokens(model, [text, text]), torch.cat([rows, rows]))


@pytest.mark.usefixtures("as_a_reader")
def test_unusable_tokens_are_refused(model):
    with pytest.raises(TypeError, match="TransformerBridge is needed, not 'gpt2'"):
        to_tokens("gpt2", "text")
    with pytest.raises(ValueError, match="different numbers of tokens"):
        to_tokens(model, ["Mr.", "Mr. Dorling"])
    for too_long in ("the " * 300, torch.zeros(1, 257, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"this model reads at most 256. Shorten it"):
            to_tokens(model, too_long)
    with pytest.raises(ValueError, match="0 to 2047"):
        to_tokens(model, torch.tensor([[2048]]))
    with pytest.raises(TypeError, match="text or token ids"):
        to_tokens(model, torch.zeros(1, 3))
    with pytest.raises(ValueError, match="no tokens"):
        to_tokens(model, torch.zeros(1, 0, dtype=torch.long))


def test_an_answer_is_one_token(model):
    token = model.to_single_token("or")
    assert to_token(model, "or") == to_token(model, token) == token
    with pytest.raises(ValueError, match="2 tokens|3 tokens"):
        to_token(model, "Dorling")
    with pytest.raises(ValueError, match="outside the vocabulary"):
        to_token(model, 4096)


def test_nan_is_refused():
    require_finite(torch.ones(2), "W_E")
    require_finite(torch.full((2,), 3e38), "W_E")  # their sum is infinite
    for odd in ([1.0, float("nan")], [float("inf"), float("-inf")], [float("-inf"), 1.0]):
        with pytest.raises(ValueError, match="W_E holds NaN"):
            require_finite(torch.tensor(odd), "W_E")


def test_a_message_has_only_the_sizes_that_its_own_axes_must_have():
    """The example's x fixes `batch` and `pos`; the weights have the first axis only."""
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"real numbers \[batch = 2\] or None\.$"):
        example(x, weights=torch.zeros(4))
    with pytest.raises(TypeError, match=r"weights=4\. .* real numbers \[batch\] or None\.$"):
        example(x, weights=4)
    with pytest.raises(TypeError, match=r"expects n to be an integer\.$"):
        example(x, n="2")
