"""What each part of a model adds to the residual stream, read from what the hooks of one run saw.

A model is a transformer-lens `TransformerBridge`. Its layers are steps: the attention of layer l
is step 2 l and its MLP is step 2 l + 1 (2 l as well if both read the same stream). Embeddings are
step -1, and the unembedding is the step behind all layers.

Two kinds of norms change what a part has written. A norm *behind a layer* (Gemma 2 and 3, OLMo 2)
acts on the sum of all heads before the sum is added to the stream. A *closing* norm (BERT) acts on
the whole stream after a layer has been added. Both are linear once their divisor is frozen at the
value that it had in the run, so every part has its own share of the result.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.bridge import Model, final_hook, has_folded_weights, norms_close_layers, submodules
from circuitkit.comparison import LayerSeen
from circuitkit.first_use import require_additive_layers
from circuitkit.names import Name, parse, unknown
from circuitkit.norms import FrozenNorm
from circuitkit.reading import converted_neurons, neuron_rows, neurons_of

Stream = Float[Tensor, "batch pos d_model"]


def n_heads(model: Model, layer: int) -> int:
    """How many query heads a layer has."""
    attention = submodules(model.blocks[layer]).get("attn")
    if attention is None:
        return 0
    # a gated layer may have more heads than the other layers of its model
    return getattr(attention.config, "n_heads", model.cfg.n_heads)


def head_names(model: Model, layer: int | None = None) -> list[str]:
    """The attention heads of a layer, or of all layers, in order."""
    layers = range(len(model.blocks)) if layer is None else [layer]
    return [f"L{i}H{head}" for i in layers for head in range(n_heads(model, i))]


# Which parts there are


def start_names(model: Model) -> list[Name]:
    """What stands in the stream before the first layer."""
    names = [Name("embed")]
    if "pos_embed" in submodules(model):
        names.append(Name("pos"))
    if "embed_ln" in submodules(model):
        names.append(Name("embed bias"))
    return names


def layer_names(model: Model, layer: int, by_neuron: bool = True) -> list[Name]:
    """The parts of one layer: its heads and bias, then its MLP, or its neurons and their bias."""
    block = model.blocks[layer]
    names = [Name("H", layer, head) for head in range(n_heads(model, layer))]
    b_O = getattr(block.attn, "b_O", None) if names else None
    if is_part(model, b_O) or norms_close_layers(model):
        names.append(Name("bias", layer))
    if "mlp" not in submodules(block):
        return names
    neurons = converted_neurons(model, layer) if by_neuron else None
    if neurons is None:
        names.append(Name("MLP", layer))
    else:
        names.extend(neurons_in(model, layer))
    b_out = None if neurons is None else neurons.b_out
    if is_part(model, b_out) or norms_close_layers(model):
        names.append(Name("MLP bias", layer))
    return names


def is_part(model: Model, bias: Tensor | None) -> bool:
    """Whether a bias that a model holds is one of its parts.

    It is, also if it is zero, so that names depend on the architecture and all checkpoints of a
    training have the same. Native models always hold biases; the shipped attention-only models and
    those of `handmade` mean none, and say so in their configuration.
    """
    if bias is None:
        return False
    return not getattr(model.cfg, "without_biases", False) or bool(bias.any())


def biases_at_end(model: Model) -> tuple[bool, bool]:
    """Whether the norm before the unembedding, and the unembedding, have a bias, zero or not.

    transformer-lens folds the bias of the norm into that of the unembedding.
    """
    norm = submodules(model).get("ln_final")
    norm_has = norm is not None and getattr(norm.original_component, "bias", None) is not None
    is_folded = has_folded_weights(model)
    b_U = getattr(model.unembed.original_component, "bias", None)
    unembedding_has = isinstance(b_U, torch.nn.Parameter) or (is_folded and norm_has)
    is_nonzero = model.b_U is not None and bool(model.b_U.any())
    return norm_has and not is_folded, unembedding_has or is_nonzero


def neuron_names(layer: int, numbers: Any, n_terms: int) -> list[Name]:
    """The heads of some converted neurons; a neuron with only one head is called by its number."""
    terms = [None] if n_terms == 1 else range(n_terms)
    return [Name("N", layer, number, term) for number in numbers for term in terms]


def neurons_in(model: Model, layer: int) -> list[Name]:
    """The names of a layer's neurons, if it has any; of a converted layer, of its neuron-heads."""
    neurons = neurons_of(model, layer)
    if neurons is None:
        return []
    return neuron_names(layer, range(len(neurons.W_out)), len(neurons.terms))


def part_names(model: Model, neurons: bool = True) -> tuple[str, ...]:
    """The names of all parts, whose outputs add up to the last residual stream.

    Parameters
    ----------
    model : a `TransformerBridge`
    neurons : whether each neuron-head of a converted layer is a part; otherwise its MLP is one

    Examples
    --------
    >>> import circuitkit as ck
    >>> part_names(ck.load_model("one-layer"))[:3]
    ('embed', 'pos', 'L0H0')
    """
    return tuple(str(part) for part in parts_of(model, neurons))


def parts_of(model: Model, neurons: bool) -> list[Name]:
    """All parts, as in `part_names`."""
    parts = start_names(model)
    for layer in range(len(model.blocks)):
        parts.extend(layer_names(model, layer, neurons))
    return parts


def require_part(model: Model, name: Name) -> None:
    """Raise a `ValueError` with the nearest names if the model does not have this part."""
    part, layer = name.part, name.layer
    if layer is None:
        exists = part.kind == "unembed" or part in start_names(model)
    elif layer >= len(model.blocks):
        exists = False
    elif part.kind == "N":
        neurons = neurons_of(model, layer)
        counts = (0, 0) if neurons is None else (len(neurons.W_out), len(neurons.terms))
        exists = (part.number or 0) < counts[0] and (part.term or 0) < counts[1]
    else:
        exists = part in layer_names(model, layer, by_neuron=part.kind == "MLP bias")
    if not exists:
        raise unknown("part", str(part), [*part_names(model), "unembed"])


# Where parts stand


def step_of(model: Model, name: Name) -> int:
    """The step at which a part reads and writes; parts of one step do not see each other."""
    if name.layer is None:
        return 2 * len(model.blocks) if name.kind == "unembed" else -1
    in_attention = name.kind in ("H", "bias")
    if in_attention or model.cfg.parallel_attn_mlp:
        return 2 * name.layer
    return 2 * name.layer + 1


def heads_before(model: Model, reader: Name) -> list[str]:
    """The attention heads that have written before a part reads."""
    step = step_of(model, reader)
    return [head for head in head_names(model) if step_of(model, parse(head)[0]) < step]


def norm_before(model: Model, name: Name) -> Any:
    """The norm through which a head or an MLP reads the stream, or None."""
    if norms_close_layers(model):
        return None
    modules = submodules(model.blocks[name.layer])
    reads_first_norm = name.kind == "H" or (model.cfg.parallel_attn_mlp and "ln2" not in modules)
    return modules.get("ln1" if reads_first_norm else "ln2")


READ_AT_ENDS = (
    "embed.hook_out",
    "embed_ln.hook_in",
    "embed_ln.hook_scale",
    "pos_embed.hook_out",
    "token_type_embed.hook_out",
    "ln_final.hook_in",
    "ln_final.hook_scale",
    "mlm_head.hook_in",
)
READ_IN_LAYERS = (
    "hook_in",
    "hook_out",
    "attn.hook_v",
    "attn.hook_pattern",
    "attn.hook_z",
    "attn.o.hook_out",
    "mlp.hook_in",
    "mlp.hook_out",
    "mlp.out.hook_in",
)
READ_IN_NORMS = ("hook_in", "hook_scale", "hook_out")


def hooks_to_record(model: Model, points: dict[str, Any]) -> set[str]:
    """The hooks, among `points` by name, that a `Recording` reads; each by its first name."""
    names: list[str] = list(READ_AT_ENDS)
    for layer in range(len(model.blocks)):
        names.extend(f"blocks.{layer}.{hook}" for hook in READ_IN_LAYERS)
        for norm in ("ln1", "ln1_post", "ln2", "ln2_post"):
            names.extend(f"blocks.{layer}.{norm}.{hook}" for hook in READ_IN_NORMS)
    return {points[name].name for name in names if name in points}


@dataclass(repr=False)
class Recording:
    """What the hooks of one run saw, by hook name, and the parts that are read from it.

    It may be incomplete: while the model runs, it holds what has happened so far.
    """

    model: Model
    hook_names: dict[str, str]
    """The hook behind each of its names."""
    values: dict[str, Tensor] = field(default_factory=dict)
    uncut: dict[str, Tensor] = field(default_factory=dict)
    """What MLPs would have read without cuts, by the first name of the hook."""
    neuron_z: dict[int, Tensor] = field(default_factory=dict)
    """What neuron-heads gathered, `[batch, pos, head]`, by layer."""
    neuron_query: dict[int, Tensor] = field(default_factory=dict)
    """The queries of neuron-heads, `[batch, pos, head]`, by layer."""
    second_call_of_head: "dict[Name, Recording]" = field(default_factory=dict)
    """By head that reads other inputs than the rest of its layer: its second call."""
    traced: dict[str, Tensor] = field(default_factory=dict)
    """Where slopes are taken. Of a run: by `"L1"` and `"L1 MLP"`, what the heads or neurons of a changed
    layer have gathered. Of a second call: by `"Q"`, `"K"` and `"V"`, the stream that each changed input
    reads, before the norm."""
    traced_for_cache: dict[str, Tensor] = field(default_factory=dict)
    """The same of the run that the cache comes from."""
    returned: dict[Any, Any] = field(default_factory=dict)
    """What the module of each layer returned."""

    is_additive: bool = False
    """Whether layers are known to add what they write to the stream."""

    def trace(self, place: str, value: Tensor) -> Tensor:
        """A value, which is kept if slopes are wanted; they begin here if they began nowhere before."""
        if torch.is_grad_enabled():
            self.traced[place] = value if value.requires_grad else value.requires_grad_()
        return value

    def __getitem__(self, hook: str) -> Tensor:
        """The value at a hook, by any of its names."""
        name = self.hook_names.get(hook)
        if name not in self.values:
            raise ValueError(
                f"transformer-lens shows no value at {hook} of this kind of model "
                f"({self.model.cfg.architecture}), so this cannot be read from it. Runs with other "
                "parts replaced, patterns and heads_of(model) may work all the same."
            )
        return self.values[name]

    def record(self, tensor: Any, hook: Any) -> None:
        """Keep what a hook sees; a user's listener at the same place has seen it already."""
        if isinstance(tensor, Tensor):
            self.values[str(hook.name)] = tensor

    def keep(self, block: Any, _: tuple, output: Any) -> None:
        """Keep what the module of a layer returns."""
        self.returned[block] = output

    def stream(self, name: Name) -> Stream:
        """The stream that a head, an MLP or the unembedding reads, before the norm."""
        block = f"blocks.{name.layer}"
        if name.kind == "unembed":
            return self[final_hook(self.model)]
        if name.kind == "H" or self.model.cfg.parallel_attn_mlp:
            return self[f"{block}.hook_in"]
        if norms_close_layers(self.model):
            return self[f"{block}.ln1.hook_out"]
        if norm_before(self.model, name) is not None:
            return self[f"{block}.ln2.hook_in"]
        hook = self.hook_names[f"{block}.mlp.hook_in"]
        return self.uncut[hook] if hook in self.uncut else self.values[hook]

    def require_additive(self, is_checked: bool = False) -> None:
        """Raise a `ValueError` if a layer does anything but add its output to the stream.

        Some families multiply what layers write (Granite) in a way that no hook shows.

        Parameters
        ----------
        is_checked : whether the model is known to add what its layers write, without hooks
        """
        if self.is_additive:
            return
        if not is_checked:
            require_additive_layers(self.model)
        if norms_close_layers(self.model):
            return
        # cuts into an MLP change what it reads, and not the stream
        values = self.values | self.uncut
        seen = {hook: values[name] for hook, name in self.hook_names.items() if name in values}
        for layer in range(len(self.model.blocks)):
            if problem := LayerSeen(self.model, layer, seen).problem():
                raise ValueError(
                    f"layer {layer} of this model does not simply add its output to the residual "
                    f"stream, because {problem}. So the stream is not the sum of its parts. A hook may "
                    "change it (remove it: model.reset_hooks(including_permanent=True), or "
                    "handle.remove() for a hook of torch), or this kind of model is not supported."
                )
        self.is_additive = True

    def heads_z(self, layer: int | None) -> Float[Tensor, "batch pos head d_head"]:
        """What the heads of a layer gathered."""
        z = self[f"blocks.{layer}.attn.hook_z"]
        return z if z.ndim == 4 else z.unflatten(-1, (n_heads(self.model, layer or 0), -1))

    def heads_v(self, layer: int) -> Float[Tensor, "batch pos head d_head"]:
        """The values of the heads of a layer, of which those of a group share theirs."""
        z = self.heads_z(layer)
        values = self[f"blocks.{layer}.attn.hook_v"].reshape(*z.shape[:2], -1, z.shape[3])
        return values.repeat_interleave(z.shape[2] // values.shape[2], 2)

    def neurons_z(self, layer: int) -> Float[Tensor, "batch pos head"]:
        """What the neurons of a layer gathered; of a converted layer, its neuron-heads."""
        neurons = converted_neurons(self.model, layer)
        if neurons is None:
            z = self[f"blocks.{layer}.mlp.out.hook_in"]
            return z.view(*self[f"blocks.{layer}.hook_in"].shape[:2], -1)
        if layer not in self.neuron_z:
            gate, value = neurons.reads(self[f"blocks.{layer}.mlp.hook_in"])
            self.neuron_z[layer] = neurons.z(gate, value)
        return self.neuron_z[layer]

    def neuron_queries(self, layer: int) -> Float[Tensor, "batch pos head"]:
        """The queries of the neuron-heads of a converted layer."""
        if layer not in self.neuron_query:
            neurons = converted_neurons(self.model, layer)
            gate, _ = neurons.reads(self[f"blocks.{layer}.mlp.hook_in"])
            self.neuron_query[layer] = neurons.terms.queries(gate)
        return self.neuron_query[layer]

    def frozen(self, norm: str) -> FrozenNorm:
        """A norm of the model with the divisor that it had in this run."""
        module = self.model.get_submodule(norm).original_component
        return FrozenNorm.of(module, self[f"{norm}.hook_scale"], self[f"{norm}.hook_in"])

    @torch.no_grad()
    def final_norm(self) -> FrozenNorm | None:
        """The norm before the unembedding with its scales; None if the model has none."""
        return self.frozen("ln_final") if "ln_final.hook_scale" in self.hook_names else None

    def output(self, name: Name, z: Tensor | None = None) -> Stream:
        """What a part writes, before a norm behind its layer.

        Parameters
        ----------
        name : the part
        z : what the heads or the neuron-heads of the layer shall have gathered; by default what they
            have gathered in the run
        """
        layer = name.layer
        if layer is None:
            return self.start_output(name)
        if name.kind == "H":
            return self.head_output(name, z)
        if name.kind == "bias":
            return self.attention_bias(layer)
        if name.kind == "MLP bias":
            return self.mlp_bias(layer)
        if name.kind == "N":
            return self.neurons_output(name, z)
        if z is None:
            return self[f"blocks.{layer}.mlp.hook_out"]
        return self.neurons_output(name, z) + self.mlp_bias(layer)

    def start_output(self, name: Name) -> Stream:
        """What the token embedding or the position embedding writes.

        The part `"embed bias"` writes nothing here: it is the bias of the norm behind the
        embeddings, and `share` adds this bias.
        """
        # a model without layers hands its embeddings to the last norm
        first_reader = "blocks.0.hook_in" if len(self.model.blocks) else final_hook(self.model)
        has_norm = "embed_ln" in submodules(self.model)
        embeddings = self["embed_ln.hook_in" if has_norm else first_reader]
        if name.kind == "embed bias":
            return torch.zeros_like(embeddings)
        positions = torch.zeros_like(embeddings)
        for module in ("pos_embed", "token_type_embed"):
            if module in submodules(self.model):
                positions = positions + self[f"{module}.hook_out"]
        return positions if name.kind == "pos" else embeddings - positions

    def head_output(self, name: Name, z: Tensor | None) -> Stream:
        """What a head writes."""
        z = self.heads_z(name.layer) if z is None else z
        return z[:, :, name.number] @ self.model.blocks[name.layer].attn.W_O[name.number]

    def attention_bias(self, layer: int) -> Stream:
        """What the attention of a layer writes beyond the outputs of its heads."""
        W_O = self.model.blocks[layer].attn.W_O
        heads = torch.einsum("bphd,hdm->bpm", self.heads_z(layer), W_O)
        return self[f"blocks.{layer}.attn.o.hook_out"].view_as(heads) - heads

    def neurons_output(self, name: Name, z: Tensor | None) -> Stream:
        """What a neuron, its heads, or a whole converted MLP write."""
        neurons = neurons_of(self.model, name.layer)
        z = self.neurons_z(name.layer or 0) if z is None else z
        rows = neuron_rows(self.model, name)
        neuron_of_row = [row // len(neurons.terms) for row in rows]
        return z[..., rows] @ neurons.W_out[neuron_of_row]

    def mlp_bias(self, layer: int) -> Stream:
        """What a converted MLP writes beyond the outputs of its neurons; otherwise zero.

        An MLP that is not converted is one part, which holds its bias.
        """
        written = self[f"blocks.{layer}.mlp.hook_out"]
        neurons = converted_neurons(self.model, layer)
        if neurons is None:
            return torch.zeros_like(written)
        return written - self[f"blocks.{layer}.mlp.out.hook_in"] @ neurons.W_out

    def norms_behind(self, name: Name, reading_step: int) -> list[str]:
        """The norms that act on what a part has written before a step reads it, in their order."""
        norms = []
        if name.layer is not None:
            number = 1 if name.kind in ("H", "bias") else 2
            norms.append(f"blocks.{name.layer}.ln{number}_post")
        # a closing norm acts on everything that its own step and earlier steps have written
        for step in range(step_of(self.model, name), reading_step):
            if step == -1:
                norms.append("embed_ln")
            elif norms_close_layers(self.model):
                norms.append(f"blocks.{step // 2}.ln{step % 2 + 1}")
        return [norm for norm in norms if f"{norm}.hook_scale" in self.hook_names]

    def share(
        self,
        name: Name,
        reading_step: int,
        output: Stream | None = None,
    ) -> Stream:
        """A part's summand in the stream that a step reads, after all norms between the two.

        Parameters
        ----------
        name : a part that writes before that step
        reading_step : the step
        output : what the part shall have written, by default what it has written in the run; with
            another output, a norm behind the layer has the divisor that this output gives it
        """
        as_it_was = self.output(name)
        value = as_it_was if output is None else output
        for place, norm in enumerate(self.norms_behind(name, reading_step)):
            frozen = self.frozen(norm)
            if output is not None and norm.endswith("_post"):
                module = self.model.get_submodule(norm).original_component
                norm_input = self[f"{norm}.hook_in"] - as_it_was + output
                frozen = frozen.with_divisor_for(module, norm_input)
            value = frozen.apply(value)
            # the bias of the first norm is a part of its own, or belongs to the bias of its layer
            if place == 0 and name.kind in ("bias", "MLP bias", "embed bias"):
                value = value + frozen.bias
        return value

    def patterns(self, layer: int) -> Float[Tensor, "batch head dst src"]:
        """The patterns of a layer's heads, each with the inputs that it read."""
        return self.of_all_heads(f"blocks.{layer}.attn.hook_pattern")

    def of_all_heads(self, hook: str) -> Float[Tensor, "batch head dst src"]:
        """The patterns or scores of a layer's heads, each with the inputs that it read."""
        values = self[hook]
        for head, second in self.second_call_of_head.items():
            if hook.startswith(f"blocks.{head.layer}."):
                values = values.clone()
                values[:, head.number] = second[hook][:, head.number]
        return values

    def neuron_attention(self, name: Name) -> Float[Tensor, "batch pos"]:
        """How much a neuron-head attends to the token itself, not to the bias token."""
        if converted_neurons(self.model, name.layer) is None:
            raise ValueError(
                f"'{name}' is a neuron of an MLP, and only heads attend. Convert the model first: "
                "to_attention_only(model)."
            )
        rows = neuron_rows(self.model, name)
        if len(rows) != 1:
            raise ValueError(
                f"'{name}' has {len(rows)} heads. Write the name of one, such as '{name}.0'."
            )
        return torch.sigmoid(self.neuron_queries(name.layer or 0)[..., rows[0]])

    def neuron_contributions(
        self, layer: int, direction: Stream, reading_step: int
    ) -> dict[str, Float[Tensor, "batch pos"]]:
        """The dot products of a direction with the shares of all neurons of a layer.

        The outputs of the heads are never computed, because they would take too much memory.
        Instead the direction is taken back through the norms. Of an MLP that is not converted, the
        bias that it adds to its neurons follows.
        """
        neurons = neurons_of(self.model, layer)
        for norm in reversed(self.norms_behind(Name("MLP", layer), reading_step)):
            frozen = self.frozen(norm)
            folded = frozen.fold(direction[..., None])[..., 0]
            direction = (folded / frozen.scale).to(direction.dtype)
        written = direction @ neurons.W_out.T
        written = written.repeat_interleave(len(neurons.terms), -1)  # [batch, pos, head]
        products = (self.neurons_z(layer) * written).unbind(-1)
        names = map(str, neurons_in(self.model, layer))
        result = dict(zip(names, products, strict=True))
        if converted_neurons(self.model, layer) is None and neurons.b_out is not None:
            result[str(Name("MLP bias", layer))] = direction @ neurons.b_out
        return result
