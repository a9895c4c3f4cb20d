"""Theorem 4 carried out: the whole stream of a converted model on N+1 tokens and D+1 coordinates."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Converted, ids, public
from circuitkit._heads import Heads, allowed_pairs
from circuitkit.anatomy import Norm, anatomy
from circuitkit.anatomy._neurons import widened, with_bias_token


@public
@ids()
def literal_stream(
    model: Converted, tokens: Int[Tensor, " pos"]
) -> Float[Tensor, "sublayer pos_and_bias d_model_and_1"]:
    """The stream before the first sublayer and after each one, bias token first, computed from `Heads` alone.

    Each sublayer adds its heads' results on the normalised stream, and its output bias on the real tokens. Norms act on the
    original coordinates (the repair of Theorem 4); ordinary heads have the mask `[1] (+) causal`. Serial blocks with norms in
    front, one sequence at a time: for reading and proving, slow. **Error**: that of the conversion.
    **Source**: "Attention-Only Transformers", proof of Theorem 4.
    """
    whole = anatomy(model)
    if any(len(step.sublayers) > 1 or step.closing or sub.after for step in whole.steps for sub in step.sublayers):
        raise ValueError("literal_stream needs serial blocks with norms in front; read others from their cache")
    stream = [with_bias_token(whole.run(tokens[None]).streams[0][0])]
    for sub in whole.sublayers:
        normed = _normed(stream[-1], sub.before)
        if isinstance(sub.inside, Heads):
            results = _on_tokens(sub.inside, normed)
        else:
            results = sub.inside.heads.results(normed)
        stream.append(stream[-1] + results.sum(0))
        if sub.bias is not None:
            stream[-1][1:, :-1] += sub.bias
    return torch.stack(stream)


def _on_tokens(heads: Heads, x: Float[Tensor, "pos_and_bias d_model_and_1"]) -> Tensor:
    """What ordinary heads write: real tokens do not see the bias token, which sees itself and holds no value.

    Values with a bias `b_V` get it undone there, by the row of `W_V` that only the bias token reads.
    """
    wide = widened(heads)
    if wide.b_V is not None:
        wide.W_V[:, -1] = -wide.b_V
    allowed = torch.block_diag(torch.ones(1, 1), torch.ones(len(x) - 1, len(x) - 1)).bool()
    allowed &= allowed_pairs(heads.mask, len(x))
    return wide.results(x, wide.pattern_of(wide.scores(x).masked_fill(~allowed.to(x.device), -torch.inf)))


def _normed(stream: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return stream
    return torch.cat([stream[:1], torch.cat([norm(stream[1:, :-1]), stream[1:, -1:]], -1)])
