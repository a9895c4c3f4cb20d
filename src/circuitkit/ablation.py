"""Run a model with parts ablated, wires and paths cut, or values patched in from other tokens.

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

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.hook_points import HookPoint

from circuitkit.bridge import (
    final_hook,
    only_permanent_hooks,
    submodules,
    torch_hooks,
    undisturbed,
    versions_of_weights,
)
from circuitkit.checks import Text, checked, shown, to_tokens
from circuitkit.cuts import WHOLE_INPUT, Chain, Chains, ChainsBySide, Cuts, resolve, sides_of
from circuitkit.first_use import (
    Verdict,
    require_additive_layers,
    require_norms_before_layers,
    require_replaceable_mlp,
    require_same_model,
    require_separate_heads,
)
from circuitkit.names import Name, parse
from circuitkit.parts import (
    Recording,
    converted_neurons,
    hooks_to_record,
    n_heads,
    neuron_rows,
    norm_before,
    parts_of,
    require_part,
    step_of,
)

__all__ = ["Run", "run"]

Tokens = Int[Tensor, "batch pos"]
Fill = Literal["zero", "mean", "resample"]


# What a value is replaced by


@dataclass(frozen=True)
class Replacement:
    """What values are replaced by: zero, or values that were recorded in another run.

    Parameters
    ----------
    fill : `"zero"`; `"mean"`, the mean over the rows of the other run; `"resample"`, its row before,
        where the last row stands before the first one; or `"patch"`, the same row of it
    source : the recording of the other run; None for `"zero"`
    positions : at which positions values are replaced; None for all
    """

    fill: str
    source: Recording | None = None
    positions: tuple[int, ...] | None = None

    def __call__(self, now: Tensor, value_in: Callable[[Recording], Tensor]) -> Tensor:
        """What replaces a value.

        Parameters
        ----------
        now : the value in this run, `[batch, pos, ...]`
        value_in : a function that reads the same value from the recording of another run
        """
        new = torch.zeros_like(now) if self.source is None else value_in(self.source)
        if self.fill == "mean":
            new = new.mean(0, keepdim=True).expand_as(now)
        elif self.fill == "resample":
            new = new.roll(1, 0)
        if self.positions is None:
            return new
        result = now.clone()
        result[:, list(self.positions)] = new[:, list(self.positions)]
        return result


def mlp_output(mlp: Any, read: Tensor) -> Float[Tensor, "batch pos d_model"]:
    """What an MLP writes if it reads this."""
    with only_permanent_hooks(mlp):
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


# One run


@dataclass(repr=False)  # transformer-lens prints every hook function that it adds
class CutRun:
    """One forward pass with cuts. Its methods whose names begin with `at` are hooks."""

    model: Any
    cuts: Cuts
    replaced: Replacement
    recording: Recording
    arguments: dict[int, tuple[tuple, dict]] = field(default_factory=dict)
    """What the attention of each layer was called with."""
    second_calls: dict[tuple[int, ChainsBySide], Recording] = field(default_factory=dict)
    """What `second_call` has recorded, by its arguments."""

    def missed_by(self, part: Name, chains: Iterable[Chain] = ()) -> ChainsBySide:
        """What each input of a part misses, because of the cuts and of these chains into the part."""
        result = []
        for side in sides_of(self.model, part) or [None]:
            entry = replace(part, side=side)
            more = [chain[:-1] for chain in chains if chain[-1] == entry]
            # a chain that is named twice is missed once
            result.append(tuple(dict.fromkeys([*self.cuts.inputs.get(entry, ()), *more])))
        return tuple(result)

    def changed_input(self, part: Name, missed: Chains) -> Float[Tensor, "batch pos d_model"]:
        """What a part multiplies its weights with if its input misses these chains."""
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
        norm = None if part.kind == "unembed" else norm_before(self.model, part)
        if norm is None:
            return stream
        with only_permanent_hooks(norm):
            return norm(stream)

    def with_share_replaced(
        self,
        stream: Float[Tensor, "batch pos d_model"],
        writer: Name,
        chains: list[Chain],
        step: int,
    ) -> Float[Tensor, "batch pos d_model"]:
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

    def output_without(
        self, part: Name, chains: Sequence[Chain]
    ) -> Float[Tensor, "batch pos d_model"]:
        """What a part would write, before a norm behind its layer, if it missed these chains, too."""
        layer, by_side = part.layer or 0, self.missed_by(part, chains)
        neurons = converted_neurons(self.model, layer)
        if part.kind == "H":
            z = self.with_heads_replaced(self.second_call(layer, by_side).heads_z(layer), layer)
            return self.recording.output(part, z)
        if neurons is not None:
            z = self.with_neurons_replaced(neurons.z(*self.neuron_inputs(layer, by_side)), layer)
            return self.recording.output(part, z)
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
        streams = {chains: self.changed_input(head, chains) for chains in set(by_side) if chains}
        second = Recording(self.model, self.recording.hook_names)

        def read_instead(stream: Tensor, value: Tensor, hook: HookPoint) -> Tensor:
            return stream.view_as(value)

        positional, named = self.arguments[layer]
        # a new cache of earlier keys and values, because the second call would let the old one grow
        # twice; not None, because OLMo 2 in half precision multiplies only what went through a cache
        is_cache = {key: "past" in key and value is not None for key, value in named.items()}
        named = {key: type(value)() if is_cache[key] else value for key, value in named.items()}
        with only_permanent_hooks(attention):
            for side, chains in zip("qkv", by_side, strict=True):
                if chains:
                    hook_in = submodules(attention)[side].hook_in
                    hook_in.add_hook(partial(read_instead, streams[chains]), prepend=True)
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
        return self.with_heads_replaced(z, layer).view(shape)

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

    def neuron_inputs(
        self, layer: int, by_side: ChainsBySide
    ) -> tuple[Float[Tensor, "batch pos neuron"], Float[Tensor, "batch pos neuron"]]:
        """What queries and values of a layer's neurons read if they miss these chains."""
        neurons, mlp = converted_neurons(self.model, layer), Name("MLP", layer)
        gate, value = neurons.reads(self.recording[f"blocks.{layer}.mlp.hook_in"])
        missed_by_queries, missed_by_values = by_side
        if missed_by_queries:
            gate, _ = neurons.reads(self.changed_input(mlp, missed_by_queries))
        if missed_by_values:
            _, value = neurons.reads(self.changed_input(mlp, missed_by_values))
        return gate, value

    def at_neurons(self, post: Tensor, hook: HookPoint) -> Tensor:
        """Replace what converted neurons gathered where they are ablated or read other inputs."""
        layer = hook.layer()
        neurons = converted_neurons(self.model, layer)
        before = self.recording.neurons_z(layer)
        z, queries = before.clone(), self.recording.neuron_queries(layer).clone()
        rows_that_miss: dict[ChainsBySide, list[int]] = defaultdict(list)
        for part in parts_in_layer(self.cuts.readers, layer, ("N", "MLP")):
            rows_that_miss[self.missed_by(part)].extend(neuron_rows(self.model, part))
        for by_side, rows in rows_that_miss.items():
            gate, value = self.neuron_inputs(layer, by_side)
            z[..., rows] = neurons.z(gate, value)[..., rows]
            queries[..., rows] = neurons.terms.queries(gate)[..., rows]
        z = self.with_neurons_replaced(z, layer)
        self.recording.neuron_z[layer] = z
        self.recording.neuron_query[layer] = queries
        return post + (z - before).unflatten(-1, (-1, len(neurons.terms))).sum(-1)

    def with_neurons_replaced(
        self, z: Float[Tensor, "batch pos head"], layer: int
    ) -> Float[Tensor, "batch pos head"]:
        """What the neuron-heads of a layer gathered, with the ablated ones replaced."""
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
        """The same for an MLP or a converted neuron."""
        hooks: dict[str, Callable] = {}
        is_ablated, mlp = part in self.cuts.parts, f"blocks.{part.layer}.mlp"
        if converted_neurons(self.model, part.layer) is not None:
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


# Hooks of the user and of a run


@contextmanager
def hooked(
    cut_run: CutRun, points: dict[str, HookPoint], recorded: Iterable[str]
) -> Iterator[None]:
    """Inside, hooks of the model make the changes of `cut_run`, and record values.

    At each hook point, the changes come first, a user's own hooks come next, and the recording
    comes last. So users see the changed values, and what they change is recorded.
    """
    added, listeners = [], []
    guarded = guard(cut_run, points)
    try:
        for name, hook_fn in cut_run.hooks().items():
            added.append((points[name], points[name].add_hook(hook_fn, prepend=True)))
        for name in recorded:
            added.append((points[name], points[name].add_hook(cut_run.recording.record)))
        for layer, block in enumerate(cut_run.model.blocks):
            if cut_run.cuts.readers and "attn" in submodules(block):
                keep = partial(cut_run.keep_arguments, layer)
                listeners.append(block.attn.register_forward_pre_hook(keep, with_kwargs=True))
        yield
        require_all_acted(added, cut_run.recording)
    finally:
        # a user's hook may have removed these hooks, or itself, during the run
        for point, handle in added:
            handle.hook.remove()
            if handle in point.fwd_hooks:
                point.fwd_hooks.remove(handle)
        for listener in listeners:
            listener.remove()
        for hooks, number, hook_fn in guarded:
            if number in hooks:
                hooks[number] = hook_fn


def require_all_acted(added: list[tuple[HookPoint, Any]], recording: Recording) -> None:
    """Raise a `ValueError` if a hook of a run was removed before it could act."""
    for point, handle in added:
        has_run = str(point.name) in recording.values
        if handle not in point.fwd_hooks and not has_run:
            raise ValueError(
                f"The hooks of this run at {point.name} were removed before the model came there, "
                "so the run would lack a cut or a value. Call model.reset_hooks() after the run, "
                "not in a hook."
            )


def guard(cut_run: CutRun, points: dict[str, HookPoint]) -> list[tuple[dict, int, Callable]]:
    """Let a user's hook raise an error if it changes a value that would then be wrong.

    Where the run puts in values, the hook has acted on them already. Where a layer is computed a
    second time, a hook is passed over, unless it is permanent and acts inside of the layer. The
    result lists every hook that was exchanged: the dictionary of torch that holds it, its key
    there, and the hook as it was.
    """
    for _, handle in temporary_hooks(points):
        if isinstance(getattr(handle.user_hook, "__self__", None), CutRun | Recording):
            raise ValueError(
                "Another run of this model is under way, in a thread or around a hook, and "
                "both would change the same hooks. Run the model once at a time."
            )
    changed = cut_run.hooks()
    has_neurons = any(name.endswith("mlp.out.hook_in") for name in changed)
    is_computed_again = bool(cut_run.cuts.readers) or has_neurons
    changed_points = {points[name] for name in changed}
    guarded = []
    for point in dict.fromkeys(points.values()):  # a hook has several names
        for handle in point.fwd_hooks:
            acts_again = handle.is_permanent and is_inside_layer(cut_run.model, str(point.name))
            if point in changed_points or (is_computed_again and not acts_again):
                hooks, number = torch_hooks(point), handle.hook.id
                guarded.append((hooks, number, hooks[number]))
                hooks[number] = partial(only_looking, hooks[number], str(point.name))
    return guarded


def is_inside_layer(model: Any, place: str) -> bool:
    """Whether a hook stands between what a layer reads and writes, and a second call passes it."""
    match = re.fullmatch(r"blocks\.(\d+)\.(attn|mlp)\.(.*)", place)
    if match is None or match[3] in ("hook_in", "hook_out", "o.hook_out"):
        return False
    # the neurons of a converted MLP are computed from their weights alone
    return match[2] == "attn" or converted_neurons(model, int(match[1])) is None


def temporary_hooks(points: dict[str, HookPoint]) -> list[tuple[HookPoint, Any]]:
    """The hooks that are not permanent, each with its hook point."""
    return [
        (point, handle)
        for point in dict.fromkeys(points.values())  # a hook has several names
        for handle in point.fwd_hooks
        if not handle.is_permanent
    ]


def only_looking(hook_fn: Callable, place: str, module: Any, args: Any, value: Any) -> None:
    """Call a hook of torch, and raise a `ValueError` if it changes a value."""
    before = value.clone() if isinstance(value, Tensor) else value
    result = hook_fn(module, args, value)
    after = value if result is None else result
    is_same = after is before
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        is_same = torch.allclose(after, before, rtol=0, atol=0, equal_nan=True)
    if not is_same:
        raise ValueError(
            f"The hook at {place} changes values, and this run puts in values there or computes "
            "layers a second time. Remove it: model.reset_hooks(including_permanent=True). Only "
            "permanent hooks between what a layer reads and what it writes can stay, such as one "
            "at blocks.0.attn.hook_pattern, and only if no value is put in there."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One forward pass: logits, cache, and what each part read, gathered and wrote.

    Parameters
    ----------
    model : the model that ran
    tokens : what it ran on
    logits : its logits
    recording : what its hooks saw, as far as parts are read from them
    cuts, replacement : what was ablated, and by what it was replaced
    weight_versions : of each weight, its address in memory and how often torch had counted a change
        of it; methods that multiply with weights refuse a run from before such a change

    Notes
    -----
    Heads of one layer share a stream, and a cut wire changes it for one of them only. So not every
    method shows a cut:

    ============================================  ===================  ==========================
    Method                                        A cut into a part    A cut into `"unembed"`
    ============================================  ===================  ==========================
    `stream`, `read`                              is not shown         is shown
    `pattern`, `z` of this part                   is shown             does not reach them
    `part`, `parts`, `contributions`              is shown             is not shown
    `logits`                                      is shown             is shown
    ============================================  ===================  ==========================

    A run holds its model, and `pickle` cannot save a model of transformer-lens. So save what you
    need of it: `torch.save(run.logits, "logits.pt")`.
    Source: Elhage et al. 2021, the residual stream as a sum.
    """

    model: Any
    tokens: Tokens
    logits: Float[Tensor, "batch pos d_vocab"]
    recording: Recording
    cuts: Cuts
    replacement: Replacement
    weight_versions: list[tuple[int, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        batch, pos = self.tokens.shape
        return f"Run({batch} rows of {pos} tokens, {len(self.model.blocks)} layers)"

    def __getattr__(self, name: str) -> Any:
        """Explain what a run has; called only for a name that it does not have."""
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # the error of a property itself
        raise AttributeError(
            f"A Run has no {name!r}. It has model, tokens, logits and cache, and the methods part, "
            "parts, contributions, stream, read, pattern and z. Its values have no gradients; "
            "attribution estimates effects from gradients."
        )

    def has_old_weights(self) -> bool:
        """Whether torch has counted a change of the model's weights since this run."""
        return self.weight_versions != versions_of_weights(self.model)

    def require_same_weights(self) -> None:
        """Raise a `ValueError` if values of this run would be multiplied with later weights."""
        if self.has_old_weights():
            raise ValueError(
                "The weights of the model have changed since this run, and what it recorded does "
                "not fit the new ones. Run the model again: run(model, tokens)."
            )

    @cached_property
    def cache(self) -> ActivationCache:
        """The values at all hooks, under all their names.

        Most of them are not kept during a run. When `cache` is first read, the model runs again.
        Patterns, scores and z are those after all cuts. In a layer in which an input of a head is
        cut, queries, keys and values are left out, such as `blocks.1.attn.hook_k`, because the hook
        shows what they were before the cut. The gates and values of neurons are left out likewise.

        Raises
        ------
        ValueError : if the model computes other logits by now
        KeyError : for a value that is left out
        """
        points = self.model.hook_dict
        recorded = {str(point.name) for point in points.values()}
        gradient = torch.set_grad_enabled(self.logits.requires_grad)
        with gradient, only_permanent_hooks(self.model):
            again = run_with(self.model, self.tokens, self.cuts, self.replacement, recorded)
        if not torch.allclose(again.logits, self.logits, equal_nan=True):
            raise ValueError(
                "The model has changed since this run (its weights or its hooks), so the cache "
                "cannot be completed. Run it again, and read run.cache before the change."
            )
        recording = again.recording
        for head, second in recording.second_call_of_head.items():
            for hook in ("attn.hook_pattern", "attn.hook_attn_scores"):
                name = f"blocks.{head.layer}.{hook}"
                if recording.hook_names[name] in second.values:
                    recording.values[recording.hook_names[name]] = recording.of_all_heads(name)
        for layer, z in recording.neuron_z.items():
            recording.values[f"blocks.{layer}.mlp.neurons.hook_z"] = z
        hidden = hooks_left_out(recording.values, self.cuts)
        values = Cached({name for name, point in points.items() if point.name in hidden})
        for name, point in points.items():
            if point.name in recording.values and point.name not in hidden:
                values[name] = recording.values[str(point.name)]
        return ActivationCache(values, self.model)

    def part(self, name: str, before: str = "unembed") -> Float[Tensor, "batch pos d_model"]:
        """What a part has left in the stream that another part reads, by default the last stream.

        Norms behind the part are taken with the divisor that they had in this run.

        Parameters
        ----------
        name : a part such as `"L0H1"`, `"embed"`, `"L0 MLP"`, `"L0 bias"`
        before : the reader, a later part such as `"L1H3"`; by default the last stream

        Raises
        ------
        ValueError : for an input, a wire, a path, a part that the model does not have, a reader
            that runs before the part, or weights that have changed since the run
        """
        part = find_part(self.model, name)
        step = step_of(self.model, find_reader(self.model, before))
        if part.kind == "unembed" or step_of(self.model, part) >= step:
            raise ValueError(
                f"{name!r} has written nothing into the stream that {before!r} reads. "
                "Write the name of an earlier part, such as 'embed'."
            )
        self.require_same_weights()
        self.recording.require_additive()
        with torch.set_grad_enabled(self.logits.requires_grad):
            return self.recording.share(part, step)

    def parts(
        self, before: str = "unembed", neurons: bool = False
    ) -> dict[str, Float[Tensor, "batch pos d_model"]]:
        """Every part's share of a stream, in the order of the model; they add up to the stream.

        They add up to the stream before cuts into its reader. So after a run without
        `"L1H0->unembed"` their sum is not `stream()`, which lacks what L1H0 has written.

        Parameters
        ----------
        before : the part that reads the stream, such as `"L1H3"`; by default the last stream
        neurons : whether each neuron-head of a converted layer is a part of its own; otherwise the
            layer is one part, `"L0 MLP"`
        """
        step, names = self.parts_before(before, neurons)
        with torch.set_grad_enabled(self.logits.requires_grad):
            return {str(name): self.recording.share(name, step) for name in names}

    def parts_before(self, reader: str, neurons: bool) -> tuple[int, list[Name]]:
        """The step of a reader, and the parts that have written before it, in their order."""
        step = step_of(self.model, find_reader(self.model, reader))
        self.require_same_weights()
        self.recording.require_additive()
        parts = parts_of(self.model, neurons)
        return step, [part for part in parts if step_of(self.model, part) < step]

    @checked
    def contributions(
        self,
        direction: Float[Tensor, " d_model"] | Float[Tensor, "batch pos d_model"],
        before: str = "unembed",
        neurons: bool = False,
    ) -> dict[str, Float[Tensor, "batch pos"]]:
        """The dot product of every part's share of a stream with a direction.

        The sum is the product with the stream before cuts into its reader, as in `parts`.

        Parameters
        ----------
        direction : one vector `[d_model]`, or one for each position, of the model's dtype
        before, neurons : as in `parts`

        Raises
        ------
        ValueError : for a direction of another shape or dtype
        """
        d_model, dtype = self.model.cfg.d_model, self.model.W_E.dtype
        shapes = (d_model,), (*self.tokens.shape, d_model)
        if direction.dtype != dtype or tuple(direction.shape) not in shapes:
            raise ValueError(
                f"direction is {shown(direction)}. Give a tensor of {dtype}, either one vector "
                f"{shapes[0]} or one for each position {shapes[1]}."
            )
        step, names = self.parts_before(before, neurons)
        direction = direction.expand(*self.tokens.shape, d_model)
        result = {}
        with torch.set_grad_enabled(self.logits.requires_grad):
            for name in names:
                if name.kind != "N":
                    result[str(name)] = (self.recording.share(name, step) * direction).sum(-1)
                elif str(name) not in result:  # all neurons of a layer together
                    result |= self.recording.neuron_contributions(name.layer or 0, direction, step)
        return result

    def stream(self, name: str = "unembed") -> Float[Tensor, "batch pos d_model"]:
        """The stream that a part reads, before the norm in front of it.

        Cuts into a head, an MLP or a neuron do not show here; cuts into the unembedding do.

        Parameters
        ----------
        name : a head, an MLP or a neuron; `"unembed"` for the last stream

        Raises
        ------
        ValueError : for a part that reads nothing: an embedding or a bias
        """
        stream = self.recording.stream(find_reader(self.model, name))
        return stream.reshape(*self.tokens.shape, -1).clone()

    def read(self, name: str = "unembed") -> Float[Tensor, "batch pos d_model"]:
        """What a part multiplies its weights with: the stream behind the norm in front of it.

        Cuts into a head, an MLP or a neuron do not show here; cuts into the unembedding do.

        Parameters
        ----------
        name : a head, an MLP or a neuron; `"unembed"` for what the unembedding multiplies

        Raises
        ------
        ValueError : for a part that reads nothing: an embedding or a bias
        """
        part = find_reader(self.model, name)
        self.require_same_weights()
        require_norms_before_layers(self.model)
        stream = self.stream(name)
        if part.kind == "unembed":
            norm = submodules(self.model).get("ln_final")
        else:
            norm = norm_before(self.model, part)
        if norm is None:
            return stream
        with torch.set_grad_enabled(self.logits.requires_grad), only_permanent_hooks(norm):
            return norm(stream)

    def pattern(self, name: str) -> Float[Tensor, "batch dst src"] | Float[Tensor, "batch dst"]:
        """The attention pattern of a head, computed from the inputs that cuts have left it.

        Parameters
        ----------
        name : a head such as `"L1H3"`; of a neuron-head, such as `"L0N12"`, the attention on the
            token itself is returned, `[batch, dst]`, and the rest is on the bias token
        """
        part = find_part(self.model, name, ("H", "N"), IS_NO_HEAD)
        if part.kind == "N":
            self.require_same_weights()
            with torch.set_grad_enabled(self.logits.requires_grad):
                return self.recording.neuron_attention(part)
        return self.recording.patterns(part.layer or 0)[:, part.number]

    def z(self, name: str) -> Float[Tensor, "batch pos d_head"]:
        """What a head gathered, after all cuts: its pattern times its values, before `W_O`.

        Parameters
        ----------
        name : a head such as `"L1H3"`
        """
        part = find_part(self.model, name, ("H",), IS_NO_HEAD)
        return self.recording.heads_z(part.layer)[:, :, part.number].clone()


IS_NO_HEAD = "is no attention head. Write a name such as 'L0H1'."


def find_part(model: Any, text: str, kinds: Sequence[str] | None = None, problem: str = "") -> Name:
    """The part with a name; a `ValueError` if it is none, or of no such kind, with this problem."""
    chain = parse(text)
    if len(chain) != 1 or chain[0].side is not None:
        raise ValueError(
            f"{text!r} is an input, a wire or a path. Write the name of a part, such as 'L0H1'."
        )
    require_part(model, chain[0])
    if kinds is not None and chain[0].kind not in kinds:
        raise ValueError(f"{text!r} {problem}")
    return chain[0]


def find_reader(model: Any, text: str) -> Name:
    """The part with a name, if it reads the stream."""
    problem = "reads nothing. Write the name of a head, an MLP or a neuron, or 'unembed'."
    return find_part(model, text, ("H", "N", "MLP", "unembed"), problem)


class Cached(dict):
    """The values of a cache; a hook that is left out on purpose is explained."""

    def __init__(self, left_out: set[str]) -> None:
        super().__init__()
        self.left_out = left_out

    def __missing__(self, name: str) -> Tensor:
        if name in self.left_out:
            raise KeyError(
                f"{name} is left out of this cache, because the heads or neurons with a cut read "
                "something else than this hook shows. Patterns, scores and z are those after the "
                "cuts; for the values before them, run the model without cuts."
            )
        raise KeyError(name)


def hooks_left_out(hooks: Iterable[str], cuts: Cuts) -> set[str]:
    """The hooks whose values hold for only some heads or neurons of a layer with a cut."""
    patterns = []
    for entry in cuts.inputs:
        if entry.kind == "H":
            patterns.append(rf"blocks\.{entry.layer}\.attn\.(hook_)?(rot_)?[qkv]")
        elif entry.side is not None:
            inside = r"(in\.hook_out|hook_pre|gate|neurons\.(?!hook_z))"
            patterns.append(rf"blocks\.{entry.layer}\.mlp\.{inside}")
    return {hook for hook in hooks if any(re.match(pattern, hook) for pattern in set(patterns))}


@checked
def run(
    model: Any,
    tokens: Text,
    without: str | Iterable[str] = (),
    *,
    fill: Fill = "zero",
    patch: str | Sequence[str] | Int[Tensor, "..."] | Run | None = None,
    at: Any = None,
) -> Run:
    """Run a model with parts ablated, and wires and paths cut, all at once.

    A part `"L0H1"` is replaced for everything that reads it. A wire `"L0H1->L1H3.K"` is replaced
    only in the keys of L1H3: they are computed from `norm(x - y + y_new)`, where `x` is the stream,
    `y` what L0H1 has left in it, and `y_new` the replacement. An input `"L1H3.K"` is replaced as a
    whole: `x_new` in place of `x`. A path `"embed->L0H1->L1H3.K"` replaces `y` by what L0H1 would
    have written with the wire `"embed->L0H1"` cut.

    Parts are `"embed"`, `"pos"`, `"L0H1"`, `"L0 bias"`, `"L0 MLP"`, and of a converted layer
    `"L0N12"` and `"L0N12.0"`. A wire or path ends in one input of a head (`"L0H1->L1H3.K"`), in all
    three (`"L0H1->L1H3"`), in an MLP, whose one input has no letter (`"L0H1->L1 MLP"`), in a
    neuron-head (`"L0H1->L1N12.Q"` or `".V"`), or in the last stream (`"L0H1->unembed"`). The gates of
    a layer from `with_gated_layer` are no input: they read the whole stream, whatever is cut.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, or token ids `[batch, pos]`. Every id is read as text, also those that pad a row.
    without : a name, or several names, of what is replaced, all at once. At all positions, an input
        covers its wires, a wire its paths, and a part all; `circuitkit.cuts` has the rules.
        `"unembed"` is the input of the unembedding, the whole last stream.
    fill : `"zero"`, or values of the run without any replacement, as in `effect`: their `"mean"` over
        rows, position by position, or those of the row before (`"resample"`; the first row takes
        those of the last one). A bias is the same in every row and every run, so only `"zero"`
        changes it.
    patch : other tokens of the same shape, or their run on this model: the values come from there.
        A run from before a change of the weights is refused; torch does not count changes that are
        made in place through `weight.data`, so run again after such a change. The values of a given
        run are those with the hooks that the model had then.
    at : positions at which values are replaced, such as `[3]`, or `[-1]` for the last; all of them if
        it is None. Of a path, they are those of its first part; what follows from it may change at
        all later positions, and there no other name covers it.

    Returns
    -------
    A `Run` with `logits`, `cache` and `part(name)`.

    Raises
    ------
    ValueError : for unknown names, `fill` from other rows if all rows are equal, a `patch` from
        another model, positions outside the rows or none, `fill`, `patch` or `at` where nothing is
        replaced, hooks that change values at a replaced place, or anywhere if wires are cut, and
        logits that are not numbers (NaN)

    Notes
    -----
    Error: rounding. The norm in front of a changed input is computed again. BERT
    has closing norms, which follow the sum of the stream and a layer's output: they keep their
    divisors. A norm of what a layer writes (Gemma 2) keeps its divisor where a wire is cut; where a
    path is cut, it has the divisor that belongs to what the part on the path would write. A key belongs to one query head here, even
    where the model shares it among a group. If heads of a layer have different wires or paths cut, the
    layer is called once more for each of these sets. Only permanent hooks act in such a call, between
    what the layer reads and what it writes; other hooks raise an error if they change a value. Those
    that look see each value once. `"mean"` and `"resample"` run the model
    twice.
    Source: path patching (Wang et al. 2022; Goldowsky-Dill et al. 2023).

    Examples
    --------
    >>> import torch, circuitkit as ck
    >>> model = ck.load_model("two-layer")
    >>> cut = run(model, torch.tensor([[1, 2, 3]]), without="L0H1->L1H3.K")
    >>> cut.logits.shape == model(torch.tensor([[1, 2, 3]])).shape
    True

    Patching: at the last position, head L1H3 writes what it writes after another name.

    >>> clean, other = "Mr. Dorling saw Mr. D", "Mr. Darling saw Mr. D"
    >>> patched = run(model, clean, without="L1H3", patch=other, at=[10])
    """
    names = names_of(without)
    tokens = to_tokens(model, tokens).clone()  # the caller may change hers
    if not names and (patch is not None or fill != "zero" or at is not None):
        raise ValueError(
            "fill, patch and at say how values are replaced, and nothing is replaced. "
            "Name what is replaced in without=, such as without='L0H1'."
        )
    replacement = replacement_of(model, tokens, fill, patch, at)
    with torch.no_grad():
        cuts = resolve(model, names, everywhere=at is None)
        result = run_with(model, tokens, cuts, replacement)
    if bool(result.logits.max().isnan()):  # the largest of numbers with NaN among them is NaN
        raise ValueError(
            "The output of the model holds NaN, so nothing could be read from this run. Look for NaN "
            "among the weights, or in what hooks put in; model.run_with_cache(tokens) shows where it "
            "begins."
        )
    return result


def replacement_of(
    model: Any,
    tokens: Tokens,
    fill: Fill,
    patch: Any,
    at: Any = None,
) -> Replacement:
    """What replaces values, from the arguments of `run`."""
    if patch is not None and fill != "zero":
        raise ValueError("patch takes values from other tokens, so leave out fill.")
    positions = positions_of(at, tokens.shape[1])
    if patch is not None:
        source = run_to_patch_from(model, tokens, patch)
        return Replacement("patch", source.recording, positions)
    if fill == "zero":
        return Replacement(fill, None, positions)
    if bool((tokens == tokens[0]).all()):
        raise ValueError(
            f"fill={fill!r} takes values from other rows, and all rows are equal. "
            "Give different rows, or write fill='zero'."
        )
    # the values before any replacement
    return Replacement(fill, run(model, tokens).recording, positions)


def run_to_patch_from(model: Any, tokens: Tokens, patch: Any) -> "Run":
    """The run that values come from: a given one, or that of given tokens."""
    source = patch if isinstance(patch, Run) else run(model, patch)
    if source.model is not model or source.has_old_weights():
        raise ValueError(
            "patch is a run of another model, or of this one before its weights were changed, so "
            "its values mean something else here. Run it again: patch=run(model, other_tokens)."
        )
    if source.tokens.shape != tokens.shape:
        raise ValueError(
            f"patch must have the shape of tokens, {tuple(tokens.shape)}, "
            f"not {tuple(source.tokens.shape)}."
        )
    return source


def run_with(
    model: Any,
    tokens: Tokens,
    cuts: Cuts,
    replacement: Replacement,
    recorded: set[str] | None = None,
) -> Run:
    """Run a model with cuts that are resolved already; by default, record what parts need."""
    weights = versions_of_weights(model)
    require_possible(model, cuts, require_same_model(model, weights))
    points = model.hook_dict
    recording = Recording(model, {name: point.name for name, point in points.items()})
    cut_run = CutRun(model, cuts, replacement, recording)
    if recorded is None:
        recorded = hooks_to_record(model, points)
    with undisturbed(model), hooked(cut_run, points, recorded):
        logits = model(tokens)
    if cuts.inputs:
        recording.require_additive(is_checked=True)
    return Run(model, tokens, logits, recording, cuts, replacement, weights)


def require_possible(model: Any, cuts: Cuts, verdict: Verdict) -> None:
    """Raise a `ValueError` for cuts that this kind of model does not allow."""
    for part in cuts.parts:
        if part.kind == "MLP" and converted_neurons(model, part.layer) is None:
            require_replaceable_mlp(model, part.layer or 0, verdict)
    if cuts.inputs:
        require_additive_layers(model, verdict)
    for part in cuts.readers:
        if part.kind == "H":
            require_separate_heads(model, part.layer or 0, verdict)


def names_of(names: str | Iterable[str]) -> list[str]:
    """A name or several ones as a list; a set is sorted, so that equal calls do the same."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, dict):
        raise TypeError(f"without is a name such as 'L0H1' or a list of names, not {names!r}.")
    return sorted(names, key=str) if isinstance(names, set | frozenset) else list(names)


def positions_of(at: Any, n_pos: int) -> tuple[int, ...] | None:
    """The positions at which values are replaced, if all of them lie in rows of this length."""
    if at is None:
        return None
    is_list = isinstance(at, Sequence) and not isinstance(at, str) and len(at) > 0
    if not is_list or not all(type(pos) is int and -n_pos <= pos < n_pos for pos in at):
        raise ValueError(
            f"at must be positions from 0 to {n_pos - 1}, in a list such as at=[{n_pos - 1}], or "
            f"negative ones that count from the end, not {at!r}."
        )
    return tuple(at)
