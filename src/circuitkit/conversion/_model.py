"""A bridge whose MLP layers are attention heads: everything else is the bridge it was."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from circuitkit._contract import Cache, Integer, public
from circuitkit._heads import Heads, heads, stack
from circuitkit.conversion._find import FoundMLP
from circuitkit.conversion._gated import GatedNeuronHeads, GateSum
from circuitkit.conversion._neuron_heads import NeuronHeads
from circuitkit.conversion._report import Report
from circuitkit.conversion._two_key import NeuronAttention


@public
class AttentionOnlyBridge(TransformerBridge):
    """A converted model. Call it, cache it and hook it as any `TransformerBridge`.

    New hooks: `blocks.{l}.mlp.neurons.hook_scores`, `.hook_pattern`, `.hook_v`, `.hook_z`. The stream of the converted
    model has a bias token at position 0 and one more coordinate; as nothing ever writes to either, they are not stored:
    every neuron-head sees the bias token as a fixed key, and ordinary heads do not see it.
    Made by `to_attention_only`, never constructed.
    """

    @property
    def report(self) -> Report:
        """Heads, parameters, promised and measured errors."""
        return self.__dict__["_circuitkit_report"]

    @property
    def _mlps(self) -> list[tuple[FoundMLP, NeuronAttention]]:
        return self.__dict__["_circuitkit_mlps"]

    @property
    def heads(self) -> Heads:
        """All neuron-heads, `L{layer}N{neuron}`, on d_model + 1 coordinates; they read the normalised stream.

        Layers count the sublayers of the converted model: attention of block l is layer 2l, its neurons are 2l + 1 (2l
        where attention and MLP run in parallel). Copies of the weights, built anew at every access.
        """
        with torch.no_grad():
            return stack(*(self.neuron_heads(mlp.layer).heads for mlp, _ in self._mlps))

    @property
    def attention_heads(self) -> Heads:
        """The ordinary heads on the same coordinates as `.heads`, so that the two can be compared and composed."""
        trained = heads(self._as_plain_bridge())
        wide = {name: F.pad(getattr(trained, name), (0, 0, 0, 1)) for name in ("W_Q", "W_K", "W_V")}
        layers = tuple(2 * layer for layer in trained.layers)
        return replace(trained, **wide, W_O=F.pad(trained.W_O, (0, 1)), layers=layers)

    def _as_plain_bridge(self) -> TransformerBridge:
        """The same object without `.heads`, so that `heads` reads the ordinary ones."""
        plain = object.__new__(TransformerBridge)
        object.__setattr__(plain, "__dict__", self.__dict__)
        return plain

    def neuron_heads(self, layer: Integer) -> NeuronHeads | GatedNeuronHeads:
        """One layer's neuron-heads with the weights the model holds now; gradients flow to them."""
        for mlp, attention in self._mlps:
            if mlp.layer == layer:
                W, b, terms = mlp.weights, mlp.biases, attention.terms
                name, order = f"L{layer}", 2 * layer + (0 if is_parallel(mlp.block) else 1)
                plain = W["W_in"], W["W_out"]
                if isinstance(terms, GateSum):
                    return GatedNeuronHeads(W["W_gate"], *plain, b["b_gate"], b["b_in"], b["b_out"], terms, name, order)
                return NeuronHeads(*plain, b["b_in"], b["b_out"], terms, name, order)
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

    def neuron_pattern(self, cache: Cache, head: str) -> Float[Tensor, "batch pos 2"]:
        """One neuron-head's attention over (bias token, itself) at every position, from a cache of this model."""
        layer, neuron, term = self.neuron_place(head)
        k = len(self.neuron_heads(layer).terms)
        return cache[f"blocks.{layer}.mlp.neurons.hook_pattern"][:, :, neuron * k + term]

    def neuron_place(self, head: str) -> tuple[int, int, int]:
        """Layer, neuron and term of a neuron-head, from a name such as `L1N37` or `L1N37.2`."""
        form = re.fullmatch(r"L(\d+)N(\d+)(?:\.(\d+))?", head)
        layer, neuron, term = (int(part or 0) for part in form.groups()) if form else (-1, 0, 0)
        sizes = {mlp.layer: (mlp.weights["W_in"].shape[1], len(attention.terms)) for mlp, attention in self._mlps}
        most, terms = sizes.get(layer, (0, 0))
        if neuron >= most or term >= terms:
            last = f"L{layer}N{most - 1}.{terms - 1}" if most else f"in layers {list(sizes)}"
            raise ValueError(f"no neuron-head is called {head!r}; expected a name such as 'L1N37' or 'L1N37.2', here up to {last}")
        return layer, neuron, term


def is_parallel(block: Any) -> bool:
    """True where the MLP reads what the attention reads, not what it wrote."""
    return "Parallel" in type(block).__name__
