"""What replaces a value in a run, and what a layer gives when it is called a second time.

How a wire is cut. "L0H1->L1H3.K" means that head 3 of layer 1 computes its keys from the stream
without what head 1 of layer 0 wrote. When the model has run its attention of layer 1, the attention
module is called a second time: with its queries and values as they were, and with keys computed
from the changed stream. Of this second call only what L1H3 gathered (its z) is used. So masks,
rotations, groups and norms of queries are always the model's own.

How a path is cut. In "embed->L0H1->L1H3.K", the second call of layer 0 gives what L0H1 would gather
without the embedding in its inputs. L1H3 then computes its keys from the stream in which this
alternative stands in place of what L0H1 has written, and everything else is as it was.

What a set of names means together is in `circuitkit.cuts`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from circuitkit.bridge import Model, final_hook, only_permanent_hooks, submodules
from circuitkit.cuts import WHOLE_INPUT, Chain, Chains, ChainsBySide, Cuts, sides_of
from circuitkit.names import Name
from circuitkit.parts import Recording, Stream, n_heads, norm_before, step_of
from circuitkit.reading import converted_neurons, neuron_rows
from circuitkit.rows import Rows


@dataclass(frozen=True)
class Replacement:
    """What values are replaced by: zero, or values that were recorded in another run.

    Parameters
    ----------
    fill : `"zero"`; `"mean"`, the mean over the rows of the other run, or `"mean over tokens"`, over all
        that it has read; `"resample"`, its row before, where the last row stands before the first one; or
        `"patch"`, the same row of it
    source : the recording of the other run; None for `"zero"`
    positions : at which positions values are replaced; None for all
    rows : what the other run read, for `"mean"` and `"resample"`
    value : what is put in instead of values of a run
    share : how far values are moved towards the new ones: 0 leaves them, 1 replaces them
    """

    fill: str
    source: Recording | None = None
    positions: Bool[Tensor, "batch pos"] | None = None
    rows: Rows | None = None
    value: Tensor | None = None
    share: float = 1.0

    def __call__(self, now: Tensor, value_in: Callable[[Recording], Tensor]) -> Tensor:
        """What replaces a value.

        Parameters
        ----------
        now : the value in this run, `[batch, pos, ...]`
        value_in : a function that reads the same value from the recording of another run
        """
        if self.value is not None:
            new = fitted(self.value, now)
        elif self.source is None:
            new = torch.zeros_like(now)
        else:
            new = value_in(self.source)
        if self.rows is not None:
            new = from_other_rows(self.fill, self.rows, new, now)
        if self.share != 1:
            new = now + self.share * (new - now)
        if self.positions is None:
            return new
        result = now.clone()
        result[self.positions] = new[self.positions]
        return result


def fitted(value: Tensor, now: Tensor) -> Tensor:
    """A given value for every token; a `ValueError` if it has another size."""
    try:
        return value.expand_as(now).clone()
    except RuntimeError:
        raise ValueError(
            f"fill has the shape {tuple(value.shape)}, and what is replaced here has the shape "
            f"{tuple(now.shape)}: of a head what it gathers (its z), of an MLP, a wire or an input a "
            "vector of the stream. Give a tensor that can be expanded to it."
        ) from None


def from_other_rows(
    fill: str, rows: Rows, values: Float[Tensor, "row _ *any"], now: Float[Tensor, "batch pos *any"]
) -> Float[Tensor, "batch pos *any"]:
    """The mean over rows, position by position, or the values of the row before.

    The positions of texts of different lengths do not correspond. So their mean is that over all
    tokens, and a row that is longer than the one before takes its values from the beginning again.
    """
    if fill.startswith("mean"):
        by_position = fill == "mean" and not rows.is_padded and values.shape[1] == now.shape[1]
        mean = values.mean(0, keepdim=True) if by_position else rows.select(values).mean(0)
        # transformers takes a view of what a mixture of experts returns
        return mean.expand_as(now).contiguous()
    places = torch.arange(values.shape[1], device=values.device) % rows.lengths[:, None]
    row = torch.arange(len(values), device=values.device)[:, None]
    return values[row, places].roll(1, 0)


def mlp_output(mlp: Any, read: Tensor, listener: Callable | None = None) -> Stream:
    """What an MLP writes if it reads this; a listener is given what its neurons gather."""
    with only_permanent_hooks(mlp):
        if listener is not None:
            mlp.out.hook_in.add_hook(listener)
        if mlp.name is not None:
            written = mlp(read)
            return written[0] if isinstance(written, tuple) else written
        # OPT and BERT have no module for the whole of an MLP
        layer = mlp.original_component
        if hasattr(layer, "activation_fn"):
            activation = layer.activation_fn
        else:
            activation = layer.intermediate.intermediate_act_fn
        return mlp.out(activation(getattr(mlp, "in")(read))).reshape(read.shape)


@dataclass(repr=False)  # transformer-lens prints every hook function that it adds
class CutRun:
    """One forward pass with cuts. Its methods whose names begin with `at` are hooks."""

    model: Model
    cuts: Cuts
    replaced: Replacement
    recording: Recording
    arguments: dict[int, tuple[tuple, dict]] = field(default_factory=dict)
    """What the attention of each layer was called with."""
    second_calls: dict[tuple[int, ChainsBySide], Recording] = field(default_factory=dict)
    """What `second_call` has recorded, by its arguments."""
    second_neurons: dict[tuple[int, ChainsBySide], tuple] = field(default_factory=dict)
    """What `neurons_again` has returned, by its arguments."""

    def missed_by(self, part: Name, chains: Iterable[Chain] = ()) -> ChainsBySide:
        """What each input of a part misses, because of the cuts and of these chains into the part."""
        result = []
        for side in sides_of(self.model, part) or [None]:
            an_input = replace(part, side=side)
            more = [chain[:-1] for chain in chains if chain[-1] == an_input]
            # a chain that is named twice is missed once
            result.append(tuple(dict.fromkeys([*self.cuts.inputs.get(an_input, ()), *more])))
        return tuple(result)

    def changed_input(self, part: Name, missed: Chains) -> Stream:
        """What a part multiplies its weights with if its input misses these chains."""
        return self.normed(part, self.changed_stream(part, missed))

    def changed_stream(self, part: Name, missed: Chains) -> Stream:
        """The stream that a part reads if its input misses these chains."""
        stream = self.recording.stream(part)
        chains_by_writer: dict[Name, list[Chain]] = defaultdict(list)
        for chain in missed:
            if chain != WHOLE_INPUT and not self.hides(WHOLE_INPUT, missed):
                chains_by_writer[chain[-1].part].append(chain)
        for writer, chains in chains_by_writer.items():
            if "bias" in writer.kind and self.replaced.source is not None:
                continue  # it is the same in every run
            stream = self.with_share_replaced(stream, writer, chains, step_of(self.model, part))
        if WHOLE_INPUT in missed:
            stream = self.replaced(stream, lambda run: run.stream(part))
        return stream

    def normed(self, part: Name, stream: Tensor) -> Stream:
        """A stream behind the norm through which a part reads it."""
        norm = None if part.kind == "unembed" else norm_before(self.model, part)
        if norm is None:
            return stream
        with only_permanent_hooks(norm):
            return norm(stream)

    def with_share_replaced(
        self,
        stream: Stream,
        writer: Name,
        chains: list[Chain],
        step: int,
    ) -> Stream:
        """The stream that a step reads, in which the share of one writer lacks these chains."""
        share = new = self.recording.share(writer, step)
        wire = (writer,)
        paths = [path for path in chains if path != wire]
        if paths and not self.hides(wire, chains):
            new = self.recording.share(writer, step, self.output_without(writer, paths))
        if wire in chains:
            new = self.replaced(new, lambda run: run.share(writer, step))
        return stream - share + new

    def hides(self, chain: Chain, chains: Sequence[Chain]) -> bool:
        """Whether a chain into an input covers the longer ones of these; see `circuitkit.cuts`."""
        return self.replaced.positions is None and chain in chains

    def output_without(self, part: Name, chains: Sequence[Chain]) -> Stream:
        """What a part would write, before a norm behind its layer, if it missed these chains, too."""
        layer, by_side = part.layer or 0, self.missed_by(part, chains)
        if part.kind == "H":
            z = self.with_heads_replaced(self.second_call(layer, by_side).heads_z(layer), layer)
            return self.recording.output(part, z)
        if part.kind == "N" or converted_neurons(self.model, layer) is not None:
            z, _ = self.neurons_again(layer, by_side)
            return self.recording.output(part, self.with_neurons_replaced(z, layer))
        read = self.changed_input(part, by_side[0])
        written = mlp_output(self.model.blocks[layer].mlp, read)
        if part in self.cuts.parts:
            written = self.replaced(written, lambda run: run.output(part))
        return written

    # Heads

    def second_call(self, layer: int, by_side: ChainsBySide) -> Recording:
        """What hooks see in a second call of an attention module, whose inputs miss these chains.

        In this call the queries, keys and values of all heads of the layer miss them. The caller
        uses only the values of those heads that really do.
        """
        if (layer, by_side) in self.second_calls:
            return self.second_calls[layer, by_side]
        attention, head = self.model.blocks[layer].attn, Name("H", layer, 0)
        streams = {chains: self.changed_stream(head, chains) for chains in set(by_side) if chains}
        second = Recording(self.model, self.recording.hook_names)

        def read_instead(stream: Tensor, value: Tensor, hook: HookPoint) -> Tensor:
            return stream.view_as(value)

        positional, named = self.arguments[layer]
        # a new cache of earlier keys and values, because the second call would let the old one grow
        # twice; not None, because OLMo 2 in half precision multiplies only what went through a cache
        # (transformers 5.24 has renamed it, so it is known by a method)
        named = {
            key: type(value)() if hasattr(value, "get_seq_length") else value
            for key, value in named.items()
        }
        with only_permanent_hooks(attention):
            for side, chains in zip("qkv", by_side, strict=True):
                if chains:
                    hook_in = submodules(attention)[side].hook_in
                    # a tensor of its own for each input, whose slopes are then different ones
                    stream = second.trace(side.upper(), streams[chains].clone())
                    read = self.normed(head, stream)
                    hook_in.add_hook(partial(read_instead, read), prepend=True)
            for point in (attention.hook_pattern, attention.hook_attn_scores, attention.o.hook_in):
                point.add_hook(second.record)
            attention.forward(*positional, **named)
        self.second_calls[layer, by_side] = second
        return second

    def at_z(self, z: Tensor, hook: HookPoint) -> Tensor:
        """Replace what the heads of a layer gathered where they are ablated or read other inputs."""
        layer, shape = hook.layer(), z.shape
        z = z.reshape(*shape[:2], n_heads(self.model, layer), -1).clone()
        for head in parts_in_layer(self.cuts.readers, layer, ("H",)):
            second = self.second_call(layer, self.missed_by(head))
            z[:, :, head.number] = second.heads_z(layer)[:, :, head.number]
            self.recording.second_call_of_head[head] = second
        z = self.recording.trace(f"L{layer}", self.with_heads_replaced(z, layer))
        return z.view(shape)

    def with_heads_replaced(
        self, z: Float[Tensor, "batch pos head d_head"], layer: int
    ) -> Float[Tensor, "batch pos head d_head"]:
        """What the heads of a layer gathered, with the ablated ones replaced."""
        z = z.clone()
        for head in parts_in_layer(self.cuts.parts, layer, ("H",)):
            number = head.number
            now = z[:, :, number].clone()
            z[:, :, number] = self.replaced(now, lambda run, n=number: run.heads_z(layer)[:, :, n])
        return z

    # MLPs and neurons

    def at_mlp_input(self, read: Tensor, hook: HookPoint) -> Tensor:
        """Let an MLP read a stream in which something is missing."""
        mlp = Name("MLP", hook.layer())
        self.recording.uncut[str(hook.name)] = read
        return self.changed_input(mlp, self.missed_by(mlp)[0]).view_as(read)

    def neurons_again(self, layer: int, by_side: ChainsBySide) -> tuple[Tensor, Any]:
        """What the neurons of a layer gather if their inputs miss these chains.

        Of converted neurons, their queries follow, and queries and values may miss different chains.
        Those of an MLP are computed in a second call.
        """
        if (layer, by_side) in self.second_neurons:
            return self.second_neurons[layer, by_side]
        neurons, mlp = converted_neurons(self.model, layer), Name("MLP", layer)
        if neurons is None:
            gathered: list[Tensor] = []
            read = self.changed_input(mlp, by_side[0])
            mlp_output(self.model.blocks[layer].mlp, read, lambda z, hook: gathered.append(z))
            again = gathered[0].view(*read.shape[:2], -1), None
        else:
            gate, value = neurons.reads(self.recording[f"blocks.{layer}.mlp.hook_in"])
            missed_by_queries, missed_by_values = by_side
            if missed_by_queries:
                gate, _ = neurons.reads(self.changed_input(mlp, missed_by_queries))
            if missed_by_values:
                _, value = neurons.reads(self.changed_input(mlp, missed_by_values))
            again = neurons.z(gate, value), neurons.terms.queries(gate)
        self.second_neurons[layer, by_side] = again
        return again

    def at_neurons(self, post: Tensor, hook: HookPoint) -> Tensor:
        """Replace what neurons gathered where they are ablated or read other inputs."""
        layer = hook.layer()
        neurons = converted_neurons(self.model, layer)
        if neurons is None:
            self.recording.values[str(hook.name)] = post
        before = self.recording.neurons_z(layer)
        z, rows_that_miss = before.clone(), defaultdict(list)
        for part in parts_in_layer(self.cuts.readers, layer, ("N", "MLP")):
            rows_that_miss[self.missed_by(part)].extend(neuron_rows(self.model, part))
        for by_side, rows in rows_that_miss.items():
            z[..., rows] = self.neurons_again(layer, by_side)[0][..., rows]
        z = self.recording.trace(f"L{layer} MLP", self.with_neurons_replaced(z, layer))
        if neurons is None:
            return z.view_as(post)
        queries = self.recording.neuron_queries(layer).clone()
        for by_side, rows in rows_that_miss.items():
            queries[..., rows] = self.neurons_again(layer, by_side)[1][..., rows]
        self.recording.neuron_z[layer], self.recording.neuron_query[layer] = z, queries
        return post + (z - before).unflatten(-1, (-1, len(neurons.terms))).sum(-1)

    def with_neurons_replaced(
        self, z: Float[Tensor, "batch pos head"], layer: int
    ) -> Float[Tensor, "batch pos head"]:
        """What the neurons of a layer gathered, with the ablated ones replaced."""
        ablated = parts_in_layer(self.cuts.parts, layer, ("N", "MLP"))
        rows = [row for part in ablated for row in neuron_rows(self.model, part)]
        if rows:
            z = z.clone()
            z[..., rows] = self.replaced(z[..., rows], lambda run: run.neurons_z(layer)[..., rows])
        return z

    # Whole parts, and the unembedding

    def at_output(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Replace an embedding, or what an MLP writes."""
        return self.replaced(value, lambda run: run[str(hook.name)])

    def at_bias(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Subtract the bias of an attention layer or of a converted MLP.

        Values of another run do not replace it, because it is the same in every run.
        """
        layer = hook.layer()
        if ".attn." in str(hook.name):
            bias = self.model.blocks[layer].attn.b_O
        else:
            bias = converted_neurons(self.model, layer).b_out
        if bias is None or self.replaced.source is not None:
            return value
        bias = bias.expand_as(self.recording[f"blocks.{layer}.hook_in"])
        left = self.replaced(bias, lambda run: bias)
        return value - (bias - left).view_as(value)

    def at_end(self, stream: Tensor, hook: HookPoint) -> Tensor:
        """Let the unembedding read a stream in which something is missing."""
        self.recording.values[str(hook.name)] = stream
        unembed = Name("unembed")
        return self.changed_input(unembed, self.cuts.inputs[unembed])

    def hooks(self) -> dict[str, Callable]:
        """Where something is changed, and the function that changes it."""
        hooks: dict[str, Callable] = {}
        for part in [*self.cuts.parts, *self.cuts.readers]:
            block = f"blocks.{part.layer}"
            if part.kind == "embed":
                hooks["embed.hook_out"] = self.at_output
            elif part.kind == "pos":
                hooks["pos_embed.hook_out"] = hooks["token_type_embed.hook_out"] = self.at_output
            elif part.kind == "unembed":
                hooks[final_hook(self.model)] = self.at_end
            elif part.kind == "H":
                hooks[f"{block}.attn.hook_z"] = self.at_z
            elif part.kind == "bias":
                hooks[f"{block}.attn.o.hook_out"] = self.at_bias
            else:
                hooks |= self.hooks_of_mlp(part)
        return {
            name: hook_fn for name, hook_fn in hooks.items() if name in self.recording.hook_names
        }

    def hooks_of_mlp(self, part: Name) -> dict[str, Callable]:
        """The same for an MLP or a neuron."""
        hooks: dict[str, Callable] = {}
        is_ablated, mlp = part in self.cuts.parts, f"blocks.{part.layer}.mlp"
        is_converted = converted_neurons(self.model, part.layer) is not None
        if is_converted or part.kind == "N":
            hooks[f"{mlp}.out.hook_in"] = self.at_neurons
            if is_ablated and part.kind != "N":
                hooks[f"{mlp}.out.hook_out"] = self.at_bias
            return hooks
        if is_ablated:
            hooks[f"{mlp}.hook_out"] = self.at_output
        if part in self.cuts.readers:
            hooks[f"{mlp}.hook_in"] = self.at_mlp_input
        return hooks

    def keep_arguments(self, layer: int, module: Any, positional: tuple, named: dict) -> None:
        """Keep what the attention module of a layer is called with."""
        self.arguments[layer] = positional, named


def parts_in_layer(parts: Iterable[Name], layer: int, kinds: Sequence[str]) -> list[Name]:
    """The parts of a layer that are of some kinds."""
    return [part for part in parts if part.layer == layer and part.kind in kinds]
