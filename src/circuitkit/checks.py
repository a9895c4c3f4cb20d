"""Argument checks that several modules share: annotations at the call, and answers.

`checked` compares each argument with its annotation. It is meant for functions that a notebook
calls. Mistakes that an annotation cannot see are checked in the function that they would break.
"""

import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, jaxtyped
from torch import Tensor

if TYPE_CHECKING:
    from circuitkit.bridge import Model

__all__ = [
    "checked",
    "require_at_least",
    "require_bridge",
    "require_device",
    "require_finite",
    "require_not_negative",
    "require_positive",
    "to_token",
]

Function = TypeVar("Function", bound=Callable)
# an integer is accepted where a number is annotated, as everywhere in Python
typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function: Function) -> Function:
    """Compare the arguments of every call with their annotations, and explain a mismatch plainly.

    jaxtyping and beartype do the comparison. Their error names the parameter; this decorator says
    in two sentences what was given and what was expected.
    """
    compared = jaxtyped(function, typechecker=typechecker)
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as problem:
            parameters = ", ".join(signature.parameters)
            raise TypeError(f"{name}: {problem}. Its parameters are {parameters}.") from None
        for parameter, value in given.items():
            require_plain(f"{name} was given {parameter}=", value)
        try:
            return compared(*args, **kwargs)
        except TypeCheckError as problem:
            parameter = re.search(r"parameter '(\w+)'", str(problem))
            is_of_this_call = f".{function.__qualname__}." in str(problem)
            if parameter is None or not is_of_this_call:
                raise
            annotation = signature.parameters[parameter[1]].annotation
            error = mismatch(name, parameter[1], annotation, given[parameter[1]], str(problem))
        raise error

    return call  # pyright: ignore[reportReturnType]  # it has the signature of the function


def mismatch(name: str, parameter: str, annotation: Any, value: Any, problem: str) -> Exception:
    """The error for an argument that does not fit its annotation."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    kinds = get_args(annotation) if is_union else (annotation,)
    # the sizes of the axes that earlier arguments have fixed: "pos=3", "batch=torch.Size([2])"
    sizes = dict(re.findall(r"^(\w+)=(\d+|torch.Size.*)$", problem, re.MULTILINE))
    sizes = sizes if isinstance(value, Tensor) else {}
    expected = " or ".join(description(kind, sizes) for kind in kinds)
    text = f"{name} was given {parameter}={shown(value)}. It expects {parameter} to be {expected}."
    if hasattr(value, "W_E"):
        text += " The model comes first."
    is_tensor_of_wrong_kind = isinstance(value, Tensor) and any(map(is_tensor, kinds))
    is_wrong_word = isinstance(value, str) and any(get_origin(kind) is Literal for kind in kinds)
    return ValueError(text) if is_tensor_of_wrong_kind or is_wrong_word else TypeError(text)


def is_tensor(annotation: Any) -> bool:
    """Whether this is a tensor with a shape, such as `Float[Tensor, "batch pos"]`."""
    return isinstance(annotation, type) and issubclass(annotation, AbstractArray)


TYPES_IN_WORDS = {
    int: "an integer",
    np.integer: "a numpy integer",
    float: "a number",
    str: "a string",
    bool: "True or False",
    type(None): "None",
    Sequence[str]: "a list of strings",
    Sequence[Sequence]: "a list of rows (for a DataFrame, write .values.tolist())",
    Iterable[str]: "several strings",
    Mapping[str, Any]: "what a tokenizer returns",
}
NUMBERS = {"Int": "integers (torch.int64)", "Float": "real numbers", "Bool": "truth values"}


def description(kind: Any, sizes: dict[str, str]) -> str:
    """An annotation in words, such as "a tensor of integers [batch = 2, pos]"."""
    if kind in TYPES_IN_WORDS:
        return TYPES_IN_WORDS[kind]
    if get_origin(kind) is Literal:
        return " or ".join(repr(value) for value in get_args(kind))
    if is_tensor(kind):
        axes = []
        for axis in kind.dim_str.split():
            size = sizes.get(axis.lstrip("*#"))
            axes.append(axis if size is None else f"{axis} = {size.removeprefix('torch.Size')}")
        dtype = kind.__name__.partition("[")[0]
        return f"a tensor of {NUMBERS.get(dtype, dtype)} [{', '.join(axes)}]"
    if get_origin(kind) is Callable:
        return "a function"
    if get_origin(kind) is Sequence and is_tensor(get_args(kind)[0]):
        return "a list of such tensors"
    return f"a {kind.__name__}" if isinstance(kind, type) else str(kind)


def shown(value: Any) -> str:
    """A value in an error message: shape and dtype of a tensor, the text of a small value."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} with the shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_plain(given: str, value: Any) -> None:
    """Raise a `ValueError` for a tensor without ordinary numbers: sparse, nested or meta."""
    if not isinstance(value, Tensor):
        return
    kind = "nested" if value.is_nested else "sparse"
    if value.is_meta:
        kind = "meta"
    elif value.layout is torch.strided and not value.is_nested:
        return
    raise ValueError(
        f"{given}a {kind} tensor. It needs an ordinary tensor that holds its numbers, such as "
        f"{'torch.zeros(2, 3)' if kind == 'meta' else 'tensor.to_dense()'}."
    )


def require_device(function: str, device: Any) -> None:
    """Raise a `ValueError` for a device that does not exist, or that this torch cannot use."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        problem = str(error).splitlines()[0][:120]
        raise ValueError(
            f"{function} was given device={str(device)!r}, which this installation of torch cannot "
            f"use here ({problem}). Write device='cpu', or leave it out."
        ) from None


def require_bridge(model: object) -> None:
    """Raise a `TypeError` if this is no `TransformerBridge`."""
    is_bridge = type(model).__name__ == "TransformerBridge"
    if is_bridge and not hasattr(model, "blocks"):
        raise TypeError(
            "This TransformerBridge has no list of layers called blocks, as that of an "
            "encoder-decoder model (BART, T5) or of another kind of network. A model with one stack of "
            "layers is needed, such as load_model('two-layer')."
        )
    if not hasattr(model, "blocks") or not hasattr(model, "W_E"):
        raise TypeError(
            f"A TransformerBridge is needed, not {shown(model)}. Load a model with "
            "load_model('two-layer'), or with TransformerBridge.boot_transformers."
        )


def require_tokenizer(model: "Model") -> None:
    """Raise a `ValueError` if a model cannot read text."""
    if getattr(model, "tokenizer", None) is None:
        raise ValueError(
            "This model has no tokenizer, so it reads token ids [batch, pos] and no text: "
            "torch.tensor([[5, 7, 5]])."
        )


def to_token(model: "Model", answer: str | int | np.integer | Tensor) -> int:
    """The id of one token, given as an id or as its text.

    Parameters
    ----------
    model : a `TransformerBridge`
    answer : a token id, or a string that is exactly one token

    Raises
    ------
    ValueError : if the string is not one token, or the id is outside the vocabulary

    Notes
    -----
    Source: this book.
    """
    require_bridge(model)
    if isinstance(answer, str):
        require_tokenizer(model)
        pieces = model.tokenizer(answer, add_special_tokens=False)["input_ids"]
        if len(pieces) != 1:
            texts = [model.tokenizer.decode([piece]) for piece in pieces]
            raise ValueError(
                f"The answer {answer!r} is {len(pieces)} tokens, {texts}. Give a string that is "
                "one token; a leading space usually belongs to it."
            )
        return pieces[0]
    if isinstance(answer, Tensor | np.integer):
        answer = int(answer)
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise TypeError(f"An answer is a token id or a string, not {shown(answer)}.")
    if not 0 <= answer < len(model.W_E):
        raise ValueError(
            f"The answer {answer} is outside the vocabulary, 0 to {len(model.W_E) - 1}."
        )
    return answer


def require_at_least(minimum: int | float, **numbers: int | float) -> None:
    """Raise a `ValueError` if a number is NaN or below a minimum: `require_at_least(1, steps=9)`."""
    for name, number in numbers.items():
        if not number >= minimum:
            raise ValueError(f"{name}={number} is too small: it must be at least {minimum}.")


def require_positive(**numbers: int | float | None) -> None:
    """Raise a `ValueError` if a number that is given is NaN, infinite, zero or negative."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name}={number} must be a positive number. Leave it out if unsure.")


def require_not_negative(**numbers: float | int | None) -> None:
    """Raise a `ValueError` if a number that is given is NaN, infinite or negative."""
    for name, number in numbers.items():
        if number is not None and not 0 <= number < math.inf:
            raise ValueError(f"{name}={number} must be a finite number of at least 0.")


def require_finite(tensor: Tensor, what: str) -> None:
    """Raise a `ValueError` if a tensor holds NaN or infinite values."""
    # a sum is finite only if all terms are, and takes a thirtieth of the time; large terms overflow
    if not bool(torch.isfinite(tensor.sum())) and not bool(torch.isfinite(tensor).all()):
        raise ValueError(
            f"{what} holds NaN or infinite values, so results would be meaningless. "
            "Check how the model was loaded or trained, or how the values were computed."
        )
