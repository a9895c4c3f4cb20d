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

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import ActivationCache
from transformer_lens.hook_points import HookPoint

from circuitkit.checks import checked, shown, to_tokens
from circuitkit.cuts import NOTHING, Cuts, Inputs, Reading, alternatives, merged, resolve
from circuitkit.names import Name, parse
from circuitkit.parts import (
    Recording,
    converted_neurons,
    final_hook,
    heads_per_key,
    hooks_to_record,
    in_layer,
    n_heads,
    neuron_rows,
    norm_before,
    part_names,
    require_part,
    step_of,
)

__all__ = ["Run", "run"]

Tokens = Int[Tensor, "batch pos"]
Fill = Literal["zero", "mean", "resample"]


# What stands in the place of a value


@dataclass(frozen=True)
class Replacement:
    """By what a value is replaced: by zero, the mean over rows, the row before, or as it was.

    With a `source`, the values of another run are taken instead of this one's.
    """

    fill: str
    source: Recording | None = None
    positions: tuple[int, ...] | None = None

    def __call__(self, now: Tensor, value_in: Callable[[Recording], Tensor]) -> Tensor:
        """The replacement of `now`, `[batch, pos, ...]`, which is `value_in(run)` in another run."""
        value = now if self.source is None else value_in(self.source)
        if self.fill == "zero":
            value = torch.zeros_like(now)
        elif self.fill == "mean":
            value = value.mean(0, keepdim=True).expand_as(now)
        elif self.fill == "resample":
            value = value.roll(1, 0)
        if self.positions is None:
            return value
        result = now.clone()
        result[:, list(self.positions)] = value[:, list(self.positions)]
        return result


# Calling a layer a second time


@contextmanager
def only_permanent_hooks(module: Any) -> Iterator[None]:
    """Inside, hooks that are not permanent are off: a listener sees each value of a run once."""
    points = [part for part in module.modules() if isinstance(part, HookPoint) and part.fwd_hooks]
    before = [(point, point._forward_hooks, point.fwd_hooks) for point in points]
    try:
        for point in points:
            permanent = []
            permanent_hooks = type(point._forward_hooks)()
            for handle in point.fwd_hooks:
                if handle.is_permanent:
                    permanent.append(handle)
                    permanent_hooks[handle.hook.id] = point._forward_hooks[handle.hook.id]
            # new containers, so that hooks which are added inside are gone afterwards
            point._forward_hooks = permanent_hooks
            point.fwd_hooks = permanent
        yield
    finally:
        for point, hooks, handles in before:
            point._forward_hooks = hooks
            point.fwd_hooks = handles


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Inside, the model is in evaluation mode, so that dropout is off."""
    training = []
    if model.training or model.original_model.training:
        # the wrapped model is no submodule of a bridge
        modules = [*model.modules(), *model.original_model.modules()]
        training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@dataclass(repr=False)
class AttentionCall:
    """What an attention module was called with, and what its projections then computed."""

    attention: Any
    arguments: tuple[tuple, dict] = ((), {})
    projections: dict[str, Tensor] = field(default_factory=dict)
    """Queries, keys and values before any hook, `[batch, pos, head * d_head]`."""

    def linear(self, side: str) -> Any:
        """The module that computes queries (`"Q"`), keys, values or outputs (`"O"`)."""
        return getattr(self.attention, side.lower()).original_component

    def listen(self) -> list[Any]:
        """Add the listeners; returns the handles that remove them."""

        def take_arguments(module: Any, args: tuple, kwargs: dict) -> None:
            self.arguments = args, kwargs

        handles = [self.attention.register_forward_pre_hook(take_arguments, with_kwargs=True)]
        for side in "QKV":

            def take_projection(module: Any, args: tuple, value: Tensor, side: str = side) -> None:
                self.projections.setdefault(side, value)  # only of the first call

            handles.append(self.linear(side).register_forward_hook(take_projection))
        return handles

    def again(
        self, projections: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "batch pos head d_head"], Float[Tensor, "batch head dst src"]]:
        """z and pattern of all heads in a second call with these queries, keys and values."""
        positional, named = self.arguments
        # without the cache of earlier keys and values, which the second call would let grow twice
        named = {key: None if "past" in key else value for key, value in named.items()}
        points = self.attention.o.hook_in, self.attention.hook_pattern
        values: dict[HookPoint, Tensor] = {}

        def keep(value: Tensor, hook: HookPoint) -> None:
            values[hook] = value

        with only_permanent_hooks(self.attention), ExitStack() as stack:
            for side, value in projections.items():
                stack.enter_context(constant(self.linear(side), value))
            for point in points:
                point.add_hook(keep)
            self.attention.forward(*positional, **named)
        z, pattern = (values[point] for point in points)
        z = z if z.ndim == 4 else z.unflatten(-1, (self.attention.W_O.shape[0], -1))
        return z, pattern


@contextmanager
def constant(module: Any, value: Tensor) -> Iterator[None]:
    """Inside, a module returns this value without computing anything; its hooks act on it."""
    before = vars(module).get("forward")
    module.forward = lambda *_: value
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def joined(
    wanted: dict[tuple[Name, Inputs], tuple[Reading, ...]], group: int
) -> list[dict[tuple[Name, Inputs], tuple[Reading, ...]]]:
    """Distribute heads over calls: heads that read different inputs must not share a key.

    Parameters
    ----------
    wanted : what the inputs of each head miss
    group : how many heads share a key
    """
    calls: list[dict[tuple[Name, Inputs], tuple[Reading, ...]]] = []
    for (head, inputs), readings in wanted.items():
        for call in calls:
            together = {(name.number or 0) // group: missing for (name, _), missing in call.items()}
            if together.get((head.number or 0) // group, readings) == readings:
                call[head, inputs] = readings
                break
        else:
            calls.append({(head, inputs): readings})
    return calls


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
    """One forward pass with cuts. Its methods are hooks, called in the order of the model."""

    model: Any
    cuts: Cuts
    replaced: Replacement
    recording: Recording
    attention_calls: dict[int, AttentionCall] = field(default_factory=dict)
    """By layer, of the layers that are called a second time."""
    alternative: dict[tuple[Name, Inputs], Tensor] = field(default_factory=dict)
    """What a part would have computed (its `raw` value) with other inputs."""
    readers: list[Name] = field(init=False)
    """The parts whose inputs miss something."""
    paths: list[tuple[Name, Inputs]] = field(init=False)
    """The parts that paths need as they would be with other inputs."""

    def __post_init__(self) -> None:
        self.readers = list(dict.fromkeys(entry.part for entry, _ in self.cuts.inputs))
        self.paths = list(dict.fromkeys(alternatives(self.cuts, self.cuts.inputs)))

    def stream_with(self, name: Name, reading: Reading) -> Float[Tensor, "batch pos d_model"]:
        """What an input reads: the stream with some parts' outputs replaced, behind the norm."""
        stream = self.recording.stream(name)
        step = step_of(self.model, name)
        if reading:
            self.recording.require_additive(step)
        if reading is None:
            stream = self.replaced(stream, lambda run: run.stream(name))
        for writer, inputs in reading or ():
            written = self.recording.share(writer, step)
            if inputs is None:
                instead = self.replaced(written, lambda run, w=writer: run.share(w, step))
            else:
                raw = self.alternative[writer, inputs]
                instead = self.recording.share(writer, step, raw)
            stream = stream - written + instead
        if name.kind == "unembed":
            return stream
        norm = norm_before(self.model, name)
        if norm is None:
            return stream
        with only_permanent_hooks(norm):
            return norm(stream)

    def readings(
        self, part: Name, inputs: Inputs, sides: Sequence[str | None]
    ) -> tuple[Reading, ...]:
        """What the inputs of a part miss: by the cuts, and by these inputs as well."""
        result = []
        for side in sides:
            entry = replace(part, side=side)
            extra = dict(inputs).get(entry, NOTHING)
            result.append(merged(self.cuts.reading(entry), extra))
        return tuple(result)

    def paths_in(self, layer: int, kinds: Sequence[str]) -> list[tuple[Name, Inputs]]:
        """The parts of a layer, of some kinds, that paths need with other inputs."""
        return [pair for pair in self.paths if pair[0].layer == layer and pair[0].kind in kinds]

    def reads_otherwise(self, layer: int, kinds: Sequence[str]) -> bool:
        """Whether parts of a layer are computed a second time, with other inputs."""
        return bool(named(self.readers, layer, kinds) or self.paths_in(layer, kinds))

    def record(self, tensor: Any, hook: HookPoint) -> None:
        """Keep what a hook sees; a user's listener at the same place has seen it already."""
        if isinstance(tensor, Tensor):
            self.recording.values[str(hook.name)] = tensor

    # Attention

    def projections(
        self, layer: int, readings: Sequence[tuple[int, tuple[Reading, ...]]]
    ) -> dict[str, Tensor]:
        """Queries, keys and values of a layer in which some heads, by number, miss something."""
        call = self.attention_calls[layer]
        total = n_heads(self.model, layer)
        result = {"O": self.recording.stream(Name("H", layer, 0))}  # the output is not needed
        streams = {}
        for reading in {reading for _, of_head in readings for reading in of_head} - {NOTHING}:
            streams[reading] = self.stream_with(Name("H", layer, 0), reading)
        for place, side in enumerate("QKV"):
            as_it_was = call.projections[side]
            missing = {number: of_head[place] for number, of_head in readings}
            tables: dict[Reading, Tensor] = {NOTHING: as_it_was}
            for reading in set(missing.values()) - {NOTHING}:
                tables[reading] = call.linear(side)(streams[reading])
            if len(set(missing.values())) == 1:
                result[side] = tables[next(iter(missing.values()))]
                continue
            d_head = self.model.blocks[layer].attn.W_O.shape[1]
            table = as_it_was.unflatten(-1, (-1, d_head)).clone()  # [batch, pos, head, d_head]
            for number, reading in missing.items():
                row = number * table.shape[2] // total  # heads of a group share keys and values
                table[:, :, row] = tables[reading].view_as(table)[:, :, row]
            result[side] = table.flatten(-2)
        return result

    def at_z(self, z: Tensor, hook: HookPoint) -> Tensor:
        """Replace what the heads of a layer gathered where they are ablated or read other inputs."""
        layer, shape = layer_of(hook), z.shape
        z = z.reshape(*shape[:2], n_heads(self.model, layer), -1).clone()
        wanted = {}
        for head, inputs in self.paths_in(layer, ("H",)):
            wanted[head, inputs] = self.readings(head, inputs, "QKV")
        for head in named(self.readers, layer, ("H",)):
            wanted[head, NOTHING] = self.readings(head, NOTHING, "QKV")
        for call in joined(wanted, heads_per_key(self.model, layer)):
            numbers = [(head.number or 0, readings) for (head, _), readings in call.items()]
            new_z, patterns = self.attention_calls[layer].again(self.projections(layer, numbers))
            for head, inputs in call:
                if inputs:
                    self.alternative[head, inputs] = new_z[:, :, head.number]
                else:
                    z[:, :, head.number] = new_z[:, :, head.number]
                    self.recording.new_patterns[head] = patterns[:, head.number]
        for head in named(self.cuts.parts, layer, ("H",)):
            now = z[:, :, head.number].clone()
            z[:, :, head.number] = self.replaced(now, lambda run, h=head: run.raw(h))
        return z.view(shape)

    # MLPs and neurons

    def at_mlp_input(self, read: Tensor, hook: HookPoint) -> Tensor:
        """Let an MLP read a stream in which something is missing."""
        layer = layer_of(hook)
        mlp = Name("MLP", layer)
        self.recording.values[str(hook.name)] = read
        for _, inputs in self.paths_in(layer, ("MLP",)):
            (reading,) = self.readings(mlp, inputs, (None,))
            changed = self.stream_with(mlp, reading)
            written = mlp_output(self.model.blocks[layer].mlp, changed)
            self.alternative[mlp, inputs] = written
        reading = self.cuts.reading(mlp)
        return read if reading == NOTHING else self.stream_with(mlp, reading).view_as(read)

    def neuron_table(
        self, layer: int, readings: tuple[Reading, ...]
    ) -> Float[Tensor, "batch pos head"]:
        """What all neuron-heads of a layer gather if their queries and values miss this."""
        neurons = converted_neurons(self.model, layer)
        gate, value = neurons.reads(self.recording[in_layer(layer, "mlp.hook_in")])
        of_queries, of_values = readings
        if of_queries != NOTHING:
            gate, _ = neurons.reads(self.stream_with(Name("MLP", layer), of_queries))
        if of_values != NOTHING:
            _, value = neurons.reads(self.stream_with(Name("MLP", layer), of_values))
        return neurons.z(gate, value)

    def at_neurons(self, post: Tensor, hook: HookPoint) -> Tensor:
        """Replace what converted neurons gathered where they are ablated or read other inputs."""
        layer = layer_of(hook)
        neurons = converted_neurons(self.model, layer)
        before = self.neuron_table(layer, (NOTHING, NOTHING))
        z = before.clone()
        by_readings: dict[tuple[Reading, ...], list[int]] = defaultdict(list)
        for part in named(self.readers, layer, ("N", "MLP")):
            rows = neuron_rows(self.model, part)
            by_readings[self.readings(part, frozenset(), "QV")].extend(rows)
        for readings, rows in by_readings.items():
            z[..., rows] = self.neuron_table(layer, readings)[..., rows]
        for part, inputs in self.paths_in(layer, ("N", "MLP")):
            table = self.neuron_table(layer, self.readings(part, inputs, "QV"))
            raw = table[..., neuron_rows(self.model, part)]
            if part.kind == "MLP":
                raw = raw.unflatten(-1, (-1, len(neurons.terms))).sum(-1) @ neurons.W_out
                raw = raw if neurons.b_out is None else raw + neurons.b_out
            self.alternative[part, inputs] = raw
        ablated = named(self.cuts.parts, layer, ("N", "MLP"))
        rows = [row for part in ablated for row in neuron_rows(self.model, part)]
        if rows:
            z[..., rows] = self.replaced(z[..., rows], lambda run: run.neurons_z(layer)[..., rows])
        self.recording.neuron_z[layer] = z
        return post + (z - before).unflatten(-1, (-1, len(neurons.terms))).sum(-1)

    # Whole parts, and the unembedding

    def at_output(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Replace an embedding, or what an MLP writes."""
        return self.replaced(value, lambda run: run[str(hook.name)])

    def at_attention_output(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Take away an attention layer's bias."""
        return value - self.model.blocks[layer_of(hook)].attn.b_O

    def at_neurons_output(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Take away the bias of a converted MLP."""
        b_out = converted_neurons(self.model, layer_of(hook)).b_out
        return value if b_out is None else value - b_out

    def at_end(self, stream: Tensor, hook: HookPoint) -> Tensor:
        """Let the unembedding read a stream in which something is missing."""
        self.recording.values[str(hook.name)] = stream
        unembed = Name("unembed")
        return self.stream_with(unembed, self.cuts.reading(unembed))

    def hooks(self) -> dict[str, Callable]:
        """Where something is changed, and the function that changes it."""
        return {
            place: hook_fn
            for part in [*self.cuts.parts, *self.readers, *(part for part, _ in self.paths)]
            for place, hook_fn in self.hooks_of_part(part, part in self.cuts.parts)
        }

    def hooks_of_part(self, part: Name, is_ablated: bool) -> Iterator[tuple[str, Callable]]:
        """Where a part is ablated or reads other inputs."""
        if part.kind in ("embed", "pos"):
            modules = ("embed",) if part.kind == "embed" else ("pos_embed", "token_type_embed")
            for module in modules:
                if module in self.model._modules:
                    yield f"{module}.hook_out", self.at_output
        elif part.kind == "unembed":
            yield final_hook(self.model), self.at_end
        elif part.kind == "H":
            yield in_layer(part.layer, "attn.hook_z"), self.at_z
        elif part.kind == "bias":
            yield in_layer(part.layer, "attn.o.hook_out"), self.at_attention_output
        elif converted_neurons(self.model, part.layer) is not None:
            yield in_layer(part.layer, "mlp.out.hook_in"), self.at_neurons
            if is_ablated and part.kind != "N":
                yield in_layer(part.layer, "mlp.out.hook_out"), self.at_neurons_output
        elif is_ablated:
            yield in_layer(part.layer, "mlp.hook_out"), self.at_output
        else:
            yield in_layer(part.layer, "mlp.hook_in"), self.at_mlp_input


def named(parts: Iterable[Name], layer: int, kinds: Sequence[str]) -> list[Name]:
    """The parts of a layer that are of some kinds."""
    return [part for part in parts if part.layer == layer and part.kind in kinds]


def layer_of(hook: HookPoint) -> int:
    """The layer of a hook such as `blocks.1.attn.hook_z`."""
    return int(str(hook.name).split(".")[1])


@contextmanager
def hooked(
    model: Any, cut_run: CutRun, points: dict[str, HookPoint], recorded: set[str]
) -> Iterator[None]:
    """Inside, the model's hooks change what `cut_run` asks for, and record their values.

    Changes come before a user's own hooks, which therefore see the changed values, and the
    recording after them.
    """
    added = []
    with ExitStack() as stack:
        stack.enter_context(guarded(points, cut_run))
        stack.callback(remove, added)
        for name, hook_fn in cut_run.hooks().items():
            added.append((points[name], points[name].add_hook(hook_fn, prepend=True)))
        for name in recorded:
            added.append((points[name], points[name].add_hook(cut_run.record)))
        for layer, block in enumerate(model.blocks):
            if cut_run.reads_otherwise(layer, ("H",)):
                call = cut_run.attention_calls[layer] = AttentionCall(block.attn)
                for handle in call.listen():
                    stack.callback(handle.remove)
        yield


@contextmanager
def guarded(points: dict[str, HookPoint], cut_run: CutRun) -> Iterator[None]:
    """Inside, a user's hook that is not permanent must not change values where wires are cut.

    Such hooks do not act when a layer is computed a second time, so a change would be lost there.
    """
    is_computed_again = bool(cut_run.readers) or any(
        part.kind == "N" for part in cut_run.cuts.parts
    )
    before = []
    try:
        for point, handle in temporary_hooks(points):
            if isinstance(getattr(handle.user_hook, "__self__", None), CutRun):
                raise ValueError(
                    "Another run of this model is under way, in a thread or around a hook, and "
                    "both would change the same hooks. Run the model once at a time."
                )
            if is_computed_again:
                hooks, number = point._forward_hooks, handle.hook.id
                before.append((hooks, number, hooks[number]))
                hooks[number] = only_looking(hooks[number], str(point.name))
        yield
    finally:
        for hooks, number, hook_fn in before:
            hooks[number] = hook_fn


def temporary_hooks(points: dict[str, HookPoint]) -> list[tuple[HookPoint, Any]]:
    """The hooks that are not permanent, each with its hook point."""
    result = []
    for name, point in points.items():
        if name == point.name and point.fwd_hooks:  # a hook has several names
            result += [(point, handle) for handle in point.fwd_hooks if not handle.is_permanent]
    return result


def only_looking(hook_fn: Callable, place: str) -> Callable:
    """A hook of torch that raises a `ValueError` if it changes a value."""

    def full_hook(module: Any, args: Any, value: Any) -> None:
        before = value.clone() if isinstance(value, Tensor) else value
        result = hook_fn(module, args, value)
        after = value if result is None else result
        is_same = after is before
        if isinstance(before, Tensor) and isinstance(after, Tensor):
            is_same = torch.allclose(after, before, rtol=0, atol=0, equal_nan=True)
        if not is_same:
            raise ValueError(
                f"The hook at {place} changes values. Where wires or inputs are cut, layers are "
                "computed a second time, in which only permanent hooks act. Remove the hook with "
                "model.reset_hooks(), or add it with add_hook(..., is_permanent=True)."
            )

    return full_hook


def remove(added: list[tuple[HookPoint, Any]]) -> None:
    """Take hooks away again."""
    for point, handle in added:
        handle.hook.remove()
        point.fwd_hooks.remove(handle)


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

    Notes
    -----
    In a run with a wire into a head cut, `stream` and `read` of the head are what all heads of its
    layer read, before the cut. Its `pattern`, `z` and `part` are those after the cut. A cut into the
    unembedding, such as `"L1H0->unembed"`, changes `logits`, `stream()` and `read()`, while `parts`
    and `contributions` are what the parts have written, so they add up to the stream before this cut.
    Source: Elhage et al. 2021, the residual stream as a sum.
    """

    model: Any
    tokens: Tokens
    logits: Float[Tensor, "batch pos d_vocab"]
    recording: Recording
    cuts: Cuts
    replacement: Replacement

    def __repr__(self) -> str:
        batch, pos = self.tokens.shape
        return f"Run({batch} rows of {pos} tokens, {len(self.model.blocks)} layers)"

    @cached_property
    def cache(self) -> ActivationCache:
        """The values at all hooks, under all their names.

        Most of them are not kept during a run. When `cache` is first read, the model runs again.

        Raises
        ------
        ValueError : if the model computes other logits by now
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
        values = {}
        for name, point in points.items():
            if point.name in again.recording.values:
                values[name] = again.recording.values[str(point.name)]
        for layer in {head.layer for head in again.recording.new_patterns}:
            values[in_layer(layer, "attn.hook_pattern")] = again.recording.patterns(layer or 0)
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
        ValueError : for an input, a wire, a path, a part that the model does not have, or a reader
            that runs before the part
        """
        part = one_part(self.model, name)
        step = step_of(self.model, reading_part(self.model, before))
        if part.kind == "unembed" or step_of(self.model, part) >= step:
            raise ValueError(
                f"{name!r} has written nothing into the stream that {before!r} reads. "
                "Write the name of an earlier part, such as 'embed'."
            )
        self.recording.require_additive(step)
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
        step = step_of(self.model, reading_part(self.model, before))
        self.recording.require_additive(step)
        names = names_before(self.model, step, neurons)
        with torch.set_grad_enabled(self.logits.requires_grad):
            return {str(name): self.recording.share(name, step) for name in names}

    @checked
    def contributions(
        self,
        direction: Float[Tensor, " d_model"] | Float[Tensor, "batch pos d_model"],
        before: str = "unembed",
        neurons: bool = False,
    ) -> dict[str, Float[Tensor, "batch pos"]]:
        """The dot product of every part's share of a stream with a direction.

        The outputs of single heads and neurons are not formed: `z (W_O direction)`. The sum is the
        product with the stream before cuts into its reader, as in `parts`.

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
        step = step_of(self.model, reading_part(self.model, before))
        self.recording.require_additive(step)
        direction = direction.expand(*self.tokens.shape, d_model)
        result = {}
        with torch.set_grad_enabled(self.logits.requires_grad):
            for name in names_before(self.model, step, neurons=False):
                layer = converted_neurons(self.model, name.layer) if name.kind == "MLP" else None
                if neurons and layer is not None:
                    result |= self.recording.neuron_contributions(name.layer or 0, direction, step)
                elif name.kind == "H":
                    result[str(name)] = self.recording.head_contribution(name, direction, step)
                else:
                    result[str(name)] = (self.recording.share(name, step) * direction).sum(-1)
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
        return self.recording.stream(reading_part(self.model, name)).reshape(*self.tokens.shape, -1)

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
        part = reading_part(self.model, name)
        stream = self.stream(name)
        if part.kind == "unembed":
            norm = self.model._modules.get("ln_final")
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
        part = one_part(self.model, name)
        if part.kind == "N":
            return self.recording.neuron_attention(part)
        require_head(part)
        return self.recording.patterns(part.layer or 0)[:, part.number]

    def z(self, name: str) -> Float[Tensor, "batch pos d_head"]:
        """What a head gathered, after all cuts: its pattern times its values, before `W_O`.

        Parameters
        ----------
        name : a head such as `"L1H3"`
        """
        part = one_part(self.model, name)
        require_head(part)
        return self.recording.raw(part)


def names_before(model: Any, step: int, neurons: bool) -> list[Name]:
    """The parts that have written before a step, in the order of the model."""
    names = [parse(name)[0] for name in part_names(model, neurons)]
    return [name for name in names if step_of(model, name) < step]


def reading_part(model: Any, text: str) -> Name:
    """A part that reads the stream, from its name; a `ValueError` for any other."""
    part = one_part(model, text)
    if part.kind not in ("H", "N", "MLP", "unembed"):
        raise ValueError(
            f"{text!r} reads nothing. Write the name of a head, an MLP or a neuron, or 'unembed'."
        )
    return part


def one_part(model: Any, text: str) -> Name:
    """A part of the model, from its name; a `ValueError` for an input, a wire or a path."""
    chain = parse(text)
    if len(chain) != 1 or chain[0].side is not None:
        raise ValueError(
            f"{text!r} is an input, a wire or a path. Write the name of a part, such as 'L0H1'."
        )
    require_part(model, chain[0])
    return chain[0]


def require_head(part: Name) -> None:
    """Raise a `ValueError` if a part is not an attention head."""
    if part.kind != "H":
        raise ValueError(f"'{part}' is no attention head. Write a name such as 'L0H1'.")


def run(
    model: Any,
    tokens: str | Sequence[str] | Tokens,
    *,
    without: str | Sequence[str] = (),
    fill: Fill = "zero",
    patch: "str | Tokens | Run | None" = None,
    at: Sequence[int] | None = None,
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
    neuron-head (`"L0H1->L1N12.Q"` or `".V"`), or in the last stream (`"L0H1->unembed"`).

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, or token ids `[batch, pos]`
    without : names of what is replaced; an input covers its wires, a wire its paths, a part all
    fill : `"zero"`, or values of the run without any replacement, as in `effect`: their `"mean"` over
        rows, or those of the row before (`"resample"`). Biases become zero.
    patch : other tokens of the same shape, or their run on this model: the values come from there
    at : positions at which values are replaced, such as `[3]`; all of them if it is None. Of a path,
        they are those of its first part; what follows from it may change at all later positions.

    Returns
    -------
    A `Run` with `logits`, `cache` and `part(name)`.

    Raises
    ------
    ValueError : for unknown names, `fill` from other rows if all rows are equal, a `patch` from
        another model, positions outside the rows, `fill`, `patch` or `at` where nothing is replaced,
        and temporary hooks that change a cut layer

    Notes
    -----
    Error: rounding. The norms in front of the changed inputs are applied anew; norms behind a
    layer keep their divisor (behind a part on a path, they have the one of what it would write), and
    so do closing norms. A key belongs to one query head here, even where the model shares it among a
    group. Hooks that are not permanent do not act in the second call of a layer: they may look, and
    an error is raised if they change values there. `"mean"` and `"resample"` run the model twice.
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
    if not isinstance(without, Iterable):
        raise TypeError(f"without is a name such as 'L0H1' or a list of names, not {without!r}.")
    names = [without] if isinstance(without, str) else list(without)
    tokens = to_tokens(model, tokens)
    if patch is not None and not isinstance(patch, Run):
        patch = to_tokens(model, patch)
    require_arguments(tokens, names, fill, patch, at)
    require_same_model(model, patch)
    positions, cuts = positions_of(at, tokens.shape[1]), resolve(model, names)
    source = patch if isinstance(patch, Run) else None
    if isinstance(patch, Tensor):
        source = run(model, patch)
    elif fill != "zero":
        source = run(model, tokens)  # the values before any replacement
    # patching takes the other run's values as they are
    how = "patch" if patch is not None else fill
    recording = None if source is None else source.recording
    replacement = Replacement(how, recording, positions)
    with torch.no_grad():
        return run_with(model, tokens, cuts, replacement)


def run_with(
    model: Any,
    tokens: Tokens,
    cuts: Cuts,
    replacement: Replacement,
    recorded: set[str] | None = None,
) -> Run:
    """Run a model with cuts that are resolved already; by default, record what parts need."""
    points = model.hook_dict
    recording = Recording(model, {name: point.name for name, point in points.items()})
    cut_run = CutRun(model, cuts, replacement, recording)
    if recorded is None:
        recorded = hooks_to_record(model, points)
    with evaluated(model), hooked(model, cut_run, points, recorded):
        logits = model(tokens)
    return Run(model, tokens, logits, recording, cuts, replacement)


def require_arguments(tokens: Tokens, names: Sequence[str], fill: Any, patch: Any, at: Any) -> None:
    """Raise a `ValueError` for a fill, a patch or positions that do not fit the rest."""
    if fill not in ("zero", "mean", "resample"):
        raise ValueError(f"fill is 'zero', 'mean' or 'resample', not {fill!r}.")
    if patch is not None and fill != "zero":
        raise ValueError("patch takes values from other tokens, so leave out fill.")
    if not names and (patch is not None or fill != "zero" or at is not None):
        raise ValueError(
            "fill, patch and at say how values are replaced, and nothing is replaced. "
            "Name what is replaced in without=, such as without='L0H1'."
        )
    other = patch.tokens if isinstance(patch, Run) else patch
    if other is not None and other.shape != tokens.shape:
        raise ValueError(
            f"patch must have the shape of tokens, {tuple(tokens.shape)}, not {tuple(other.shape)}."
        )
    require_different_rows(tokens, fill)


def require_same_model(model: Any, patch: Any) -> None:
    """Raise a `ValueError` for the run of another model."""
    if isinstance(patch, Run) and patch.model is not model:
        raise ValueError(
            "patch is a run of another model, whose values mean something else here. "
            "Give a run of this model: patch=run(model, other_tokens)."
        )


def require_different_rows(tokens: Tokens, fill: Any) -> None:
    """Raise a `ValueError` if values are taken from other rows, and all rows are equal."""
    from_other_rows = isinstance(fill, str) and fill != "zero"
    if from_other_rows and len({tuple(row) for row in tokens.tolist()}) < 2:
        raise ValueError(
            f"fill={fill!r} takes values from other rows, and all rows are equal. "
            "Give different rows, or write fill='zero'."
        )


def positions_of(at: Any, n_pos: int) -> tuple[int, ...] | None:
    """The positions at which values are replaced, if all of them lie in rows of this length."""
    if at is None:
        return None
    positions = at.tolist() if hasattr(at, "tolist") else at  # a tensor or an array
    is_list = isinstance(positions, Sequence) and not isinstance(positions, str)
    if not is_list or not all(is_position(pos, n_pos) for pos in positions):
        raise ValueError(
            f"at must be positions from 0 to {n_pos - 1}, in a list such as at=[{n_pos - 1}], "
            f"not {at!r}."
        )
    return tuple(int(pos) for pos in positions)


def is_position(pos: Any, n_pos: int) -> bool:
    """Whether this is an integer from 0 to `n_pos - 1`; True and False are none."""
    is_integer = isinstance(pos, Integral) and not isinstance(pos, bool)
    return is_integer and 0 <= int(pos) < n_pos
