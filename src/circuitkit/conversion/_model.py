"""A bridge whose MLP layers are attention heads, and the attention of such a layer over its two keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge

from circuitkit._contract import Integer, public
from circuitkit._heads import allowed_pairs
from circuitkit.anatomy import Neurons
from circuitkit.anatomy._heads import MixedHeads
from circuitkit.conversion._gated import GateSums
from circuitkit.conversion._head_sum import HeadSum, in_single
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
        if any(hook.has_hooks() for hook in (self.hook_scores, self.hook_pattern, self.hook_v, self.hook_z)):
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
            q, v = (torch.cat([torch.zeros_like(t[..., :1, :]), t], -2).transpose(-2, -1) for t in (q, v))
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
        raise ValueError(f"layer {layer} has no converted MLP; converted are {[mlp.layer for mlp, _ in self._mlps]}")

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
