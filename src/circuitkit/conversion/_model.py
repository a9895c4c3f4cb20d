"""A bridge whose MLP layers are attention heads: everything else is the bridge it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from transformer_lens.model_bridge import TransformerBridge

from circuitkit._contract import Integer, public
from circuitkit.anatomy import Neurons
from circuitkit.anatomy._heads import MixedHeads
from circuitkit.conversion._mlps import FoundMLP
from circuitkit.conversion._report import Report
from circuitkit.conversion._two_key import NeuronAttention


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
