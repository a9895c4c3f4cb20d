"""A bridge whose MLP layers are attention heads; a neuron-head in tokens, and the whole stream as Theorem 4 has it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

from circuitkit._contract import Converted, Count, Integer, ids, public
from circuitkit._heads import Heads, allowed_pairs
from circuitkit._precision import finest
from circuitkit.anatomy import Neurons, Norm, anatomy
from circuitkit.anatomy._heads import MixedHeads
from circuitkit.anatomy._neurons import widened, with_bias_token
from circuitkit.conversion._head_sum import GateSums, HeadSum, in_single
from circuitkit.conversion._mlps import FoundMLP
from circuitkit.conversion._promise import Report

_MOST_PATTERN_NUMBERS = 2**22


class NeuronAttention(nn.Module):
    """What stands in a converted MLP between reading and writing: neuron-heads choosing between themselves and bias.

    Takes what every neuron reads (the gate of a gated MLP) and returns what its heads gather. Hooks have shape `[batch, pos,
    head, ...]`, `hook_scores` and `hook_pattern` over the keys (bias, itself), and run only when something listens.
    """

    def __init__(self, terms: HeadSum | GateSums) -> None:
        super().__init__()
        self.terms = terms
        self.route = "two_key"
        self.n_calls = 0
        self.hook_scores, self.hook_pattern = HookPoint(), HookPoint()
        self.hook_v, self.hook_z = HookPoint(), HookPoint()
        for hook in (self.hook_scores, self.hook_pattern, self.hook_v, self.hook_z):
            hook.pos_dim = 1

    def forward(self, reads: Float[Tensor, "*batch d_mlp"]) -> Float[Tensor, "*batch d_mlp"]:
        self.n_calls += 1
        if self.route == "literal":
            return self._literal(reads)
        if any(
            hook.has_hooks()
            for hook in (self.hook_scores, self.hook_pattern, self.hook_v, self.hook_z)
        ):
            return self._hooked(reads)
        return self.terms(reads)

    def _queries_and_values(self, reads: Tensor) -> tuple[Tensor, Tensor]:
        """`[..., head]` each, heads of one neuron side by side; a gate's other factor is multiplied in behind this module."""
        like = reads[..., None]
        b, c, a, d = self.terms.columns(reads)
        return (like * b + c).flatten(-2), (like * a + d).flatten(-2)

    @in_single
    def _hooked(self, reads: Tensor) -> Tensor:
        query, value = self._queries_and_values(reads)
        scores = self.hook_scores(torch.stack([-query, torch.zeros_like(query)], -1))
        pattern = self.hook_pattern(scores.softmax(-1))
        values = self.hook_v(torch.stack([torch.zeros_like(value), value], -1))
        z = self.hook_z((pattern * values).sum(-1))
        return z.unflatten(-1, (reads.shape[-1], len(self.terms))).sum(-1)

    @in_single
    def _literal(self, reads: Tensor) -> Tensor:
        """Whole masked patterns over the bias token and all positions, a few heads at a time."""
        query, value = self._queries_and_values(reads)
        n_pos = reads.shape[-2] + 1
        allowed = allowed_pairs("self_or_first", n_pos, reads.device)
        key = reads.new_zeros(n_pos)
        key[0] = -1
        step = max(1, _MOST_PATTERN_NUMBERS // (n_pos * n_pos * max(1, reads[..., 0, 0].numel())))
        parts = []
        for q, v in zip(query.split(step, -1), value.split(step, -1), strict=True):
            q, v = (
                torch.cat([torch.zeros_like(t[..., :1, :]), t], -2).transpose(-2, -1)
                for t in (q, v)
            )
            pattern = (q[..., None] * key).masked_fill(~allowed, -torch.inf).softmax(-1)
            parts.append((pattern @ v[..., None])[..., 1:, 0].transpose(-2, -1))
        return torch.cat(parts, -1).unflatten(-1, (reads.shape[-1], len(self.terms))).sum(-1)


@public
class AttentionOnlyBridge(TransformerBridge):
    """A converted model, made by `to_attention_only`. Call it, cache it and hook it as any `TransformerBridge`.

    New hooks: `blocks.{l}.mlp.neurons.hook_scores`, `.hook_pattern`, `.hook_v`, `.hook_z`. Nothing ever writes to the bias
    token or its coordinate, so they are not stored: neuron-heads see a fixed key, ordinary heads nothing.
    """

    @property
    def report(self) -> Report:
        """Heads, parameters, promised and measured errors."""
        return self.__dict__["_circuitkit_report"]

    @property
    def _mlps(self) -> list[tuple[FoundMLP, NeuronAttention]]:
        return self.__dict__["_circuitkit_mlps"]

    @property
    def heads(self) -> MixedHeads:
        """All heads by name, `L0H1` and `L0N3.1`, on d_model + 1 coordinates. Nothing is built before it is taken."""
        return MixedHeads(self)

    def neuron_heads(self, layer: Integer) -> Neurons:
        """One layer's neuron-heads with the weights the model holds now; gradients flow to them."""
        for mlp, attention in self._mlps:
            if mlp.layer == layer:
                held: dict[str, Any] = {**mlp.weights, **mlp.biases}
                return Neurons(**held, terms=attention.terms, layer=mlp.layer)
        raise ValueError(
            f"layer {layer} has no converted MLP; converted are {[mlp.layer for mlp, _ in self._mlps]}"
        )

    @contextmanager
    def route(self, name: Literal["two_key", "literal"]) -> Iterator["AttentionOnlyBridge"]:
        """Within `with model.route("literal"):` every neuron-head computes its whole masked pattern."""
        before = [attention.route for _, attention in self._mlps]
        try:
            for _, attention in self._mlps:
                attention.route = name
            yield self
        finally:
            for (_, attention), old in zip(self._mlps, before, strict=True):
                attention.route = old


_COLUMNS = ("W_in", "b_in", "W_gate", "b_gate")


class NeuronReading(NamedTuple):
    """Token ids with their scores, largest first: `W_E W_in` of one neuron for reading, `W_out W_U` for writing.

    **Source**: see `read_neuron`.
    """

    name: str
    on: tuple[tuple[int, float], ...]
    """Tokens that turn the neuron on: what it reads from each token's embedding behind its norm, bias included."""
    off: tuple[tuple[int, float], ...]
    """Tokens that turn it off, most negative first."""
    writes: tuple[tuple[int, float], ...]
    """Tokens whose logits it raises for each unit it is on."""
    lowers: tuple[tuple[int, float], ...]
    """Tokens whose logits it lowers, most negative first."""


@public
def read_neuron(model: Converted, head: str, k: Count = 10) -> NeuronReading:
    """The two rank-one circuits of a neuron-head as lists of tokens: `W_E W_in` (QK) and `W_out W_U` (OV).

    Read from embeddings alone, without what earlier layers add and the last norm's scale; a gated neuron by its gate.
    **Error**: exact for what it states. **Source**: the framework paper's full circuits.
    """
    whole = anatomy(model)
    _, sub, rows, _ = whole.find(head)
    if rows is None or not isinstance(sub.inside, Neurons):
        raise ValueError(
            f"read_neuron got head={head!r}; expected a neuron or one of its heads, such as 'L1N37', 'L1N37.2'"
        )
    neurons, n = sub.inside, rows[0] // len(sub.inside.terms)
    columns = {
        name: w[..., [n]] for name, w in vars(neurons).items() if name in _COLUMNS and w is not None
    }
    one = replace(neurons, W_out=neurons.W_out[[n]], **columns)
    with torch.no_grad():
        reads = one.reads(whole.embedding if sub.before is None else sub.before(whole.embedding))[
            0
        ][:, 0]
        writes = one.W_out[0] @ whole.W_U
    ends = [_top(values, k) for values in (reads, -reads, writes, -writes)]
    signed = [
        end if i % 2 == 0 else tuple((token, -score) for token, score in end)
        for i, end in enumerate(ends)
    ]
    return NeuronReading(head, *signed)


def _top(values: Tensor, k: int) -> tuple[tuple[int, float], ...]:
    best = finest(values).topk(min(k, len(values)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))


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
    if any(
        len(step.sublayers) > 1 or step.closing or sub.after
        for step in whole.steps
        for sub in step.sublayers
    ):
        raise ValueError(
            "literal_stream needs serial blocks with norms in front; read others from their cache"
        )
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
    return wide.results(
        x, wide.pattern_of(wide.scores(x).masked_fill(~allowed.to(x.device), -torch.inf))
    )


def _normed(stream: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return stream
    return torch.cat([stream[:1], torch.cat([norm(stream[1:, :-1]), stream[1:, -1:]], -1)])
