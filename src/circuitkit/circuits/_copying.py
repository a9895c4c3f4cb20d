"""Does a head copy? The eigenvalues of its OV circuit say whether it raises what it reads."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from circuitkit._contract import AnyModel, must, public
from circuitkit._heads import Heads
from circuitkit._precision import full_precision
from circuitkit.anatomy import heads
from circuitkit.circuits._full import tables


class Copying(NamedTuple):
    """What `copying_score` returns: `score = sum(Re eigenvalues) / sum(|eigenvalues|)`. **Source**: see `copying_score`."""

    score: Float[Tensor, " head"]
    """Sum of the eigenvalues over the sum of their sizes: 1 all positive (copying), -1 all negative."""
    positive_fraction: Float[Tensor, " head"]
    """Share of the eigenvalues (of those not zero up to rounding) with a positive real part."""
    eigenvalues: Complex[Tensor, "head d_head"]
    """The non-trivial eigenvalues, largest size first."""
    names: tuple[str, ...]


def _d_model(model: Any) -> int:
    return tables(model)[0].shape[1]


@public
@must(lambda heads_or_model, model: model is None
     or (isinstance(heads_or_model, Heads) and 0 <= heads_or_model.d_model - _d_model(model) < 2)
     or f"Heads first, of its d_model {_d_model(model)}. Write copying_score(heads, model) or copying_score(model)")
def copying_score(heads_or_model: Heads | AnyModel, model: AnyModel | None = None) -> Copying:
    r"""$\sum_i \lambda_i / \sum_i |\lambda_i|$ over the eigenvalues of each head's OV circuit.

    `copying_score(model)` and `copying_score(heads, model)` take the full circuit $W_E W_V W_O W_U$: an eigenvector with
    positive $\lambda$ is a mixture of tokens whose logits rise when the head attends to it. `copying_score(heads)` takes $W_V
    W_O$ itself: a direction of the stream that comes back with its own sign. Give the model if you have one: the two agree
    only if $W_U W_E$ is near a multiple of the identity on what the head handles. **Shapes**: one entry per head, from a
    `d_head x d_head` product (the non-zero eigenvalues of $AB$ are those of $BA$). **Error**: exact up to rounding; a head
    that writes nothing scores 0; biases and norms are not part of it. **Source**: "A Mathematical Framework for Transformer
    Circuits", copying and eigenvalues. High copying alone does not make an induction head.

    >>> from circuitkit.circuits import random_heads
    >>> copying_score(random_heads(2, 8, 3)).score.shape
    torch.Size([2])
    """
    stack: Any = heads_or_model
    if not isinstance(stack, Heads):
        stack, model = heads(stack), stack
        if not isinstance(stack, Heads):  # of a converted model: attention heads and neuron-heads, a layer at a time
            return _joined([copying_score(some, model) for some in stack.groups()])
    middle = stack.W_O if model is None else stack.W_O @ _unembed_then_embed(model, stack)
    eigenvalues = torch.linalg.eigvals(full_precision(middle @ stack.by_head("W_V")))
    sizes = eigenvalues.abs()
    order = sizes.argsort(dim=-1, descending=True)
    eigenvalues, sizes = eigenvalues.gather(-1, order), sizes.gather(-1, order)
    total = sizes.sum(-1)
    score = torch.where(total > 0, eigenvalues.real.sum(-1) / total.clamp_min(torch.finfo(sizes.dtype).tiny), 0.0)
    real = sizes > sizes[:, :1] * stack.d_head * torch.finfo(sizes.dtype).eps
    positive = ((eigenvalues.real > 0) & real).sum(-1).to(sizes.dtype)
    return Copying(score, positive / real.sum(-1).clamp_min(1), eigenvalues, stack.names)


def _unembed_then_embed(model: Any, stack: Heads) -> Float[Tensor, "d_model d_model"]:
    """`W_U @ W_E`: formed once for all heads; neuron-heads have one more coordinate, which no token has."""
    W_E, _, W_U = tables(model)
    extra = stack.d_model - W_E.shape[1]
    return torch.nn.functional.pad((W_U @ W_E).to(stack.W_O), (0, extra, 0, extra))


def _joined(parts: list[Copying]) -> Copying:
    most = max(part.eigenvalues.shape[1] for part in parts)
    eigenvalues = [torch.nn.functional.pad(part.eigenvalues, (0, most - part.eigenvalues.shape[1])) for part in parts]
    score, positive = (torch.cat([getattr(part, name) for part in parts]) for name in ("score", "positive_fraction"))
    return Copying(score, positive, torch.cat(eigenvalues), tuple(name for part in parts for name in part.names))
