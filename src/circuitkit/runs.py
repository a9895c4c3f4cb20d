"""The value `Run`: one forward pass, and what each part of the model read and wrote in it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import ActivationCache

from circuitkit.bridge import Model, only_permanent_hooks, submodules, versions_of_weights
from circuitkit.checks import checked, require_finite, shown
from circuitkit.cuts import Cuts
from circuitkit.first_use import require_norms_before_layers
from circuitkit.names import Name, parse
from circuitkit.parts import Recording, Stream, norm_before, parts_of, require_part, step_of
from circuitkit.reading import neurons_of
from circuitkit.rows import Rows, Tokens

__all__ = ["Run"]


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One forward pass: logits, cache, and what each part read, gathered and wrote.

    Parameters
    ----------
    model : the model that ran
    rows : what it ran on: the token ids, and how many of each row are text
    logits : its logits; NaN at padding, as in what the methods return
    recording : what its hooks saw, as far as parts are read from them
    cuts : what was ablated
    again : runs the model in the same way once more, and records the hooks with given names
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

    Texts of different lengths are padded on the right, so `logits[:, -1]` is the last token of the
    longest text only. `last_logits` are those at the last token of each text, and `is_text` says which
    tokens are text; `lengths` counts them.

    A run holds its model, and `pickle` cannot save a model of transformer-lens. So save what you
    need of it: `torch.save(run.logits, "logits.pt")`.
    Source: Elhage et al. 2021, the residual stream as a sum.
    """

    model: Model
    rows: Rows
    logits: Float[Tensor, "batch pos d_vocab"]
    recording: Recording
    cuts: Cuts
    again: "Callable[[set[str]], Run]"
    weight_versions: list[tuple[int, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        batch, pos = self.tokens.shape
        size = f"{int(self.lengths.min())} to {pos}" if self.rows.is_padded else str(pos)
        return f"Run({batch} rows of {size} tokens, {len(self.model.blocks)} layers)"

    @property
    def tokens(self) -> Tokens:
        """The token ids that the model read, those of padding included."""
        return self.rows.tokens

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        """How many tokens each text has."""
        return self.rows.lengths

    @property
    def is_text(self) -> Bool[Tensor, "batch pos"]:
        """Which tokens are text; the others are padding."""
        return self.rows.is_text

    @property
    def last_logits(self) -> Float[Tensor, "batch d_vocab"]:
        """The logits at the last token of each text."""
        return self.rows.pick(self.logits, -1)

    def __getattr__(self, name: str) -> Any:
        """Explain what a run has; called only for a name that it does not have."""
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # the error of a property itself
        raise AttributeError(
            f"A Run has no {name!r}. It has model, tokens, lengths, is_text, logits, last_logits and "
            "cache, and the methods part, parts, contributions, stream, read, pattern and z. Its values have no gradients; "
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

    @contextmanager
    def as_it_ran(self) -> Iterator[None]:
        """Inside, values are multiplied as in the run: with its gradients, and without autocast."""
        gradient = torch.set_grad_enabled(self.logits.requires_grad)
        with gradient, torch.autocast(self.logits.device.type, enabled=False):
            yield

    @cached_property
    def cache(self) -> ActivationCache:
        """The values at all hooks, under all their names.

        Most of them are not kept during a run. When `cache` is first read, the model runs again.
        Patterns, scores and z are those after all cuts. In a layer in which an input of a head is
        cut, queries, keys and values are left out, such as `blocks.1.attn.hook_k`, because the hook
        shows what they were before the cut. The gates and values of neurons are left out likewise.
        At padding, the cache holds what the model has computed there.

        Raises
        ------
        ValueError : if the model computes other logits by now
        KeyError : for a value that is left out
        """
        points = self.model.hook_dict
        recorded = {str(point.name) for point in points.values()}
        with self.as_it_ran(), only_permanent_hooks(self.model):
            again = self.again(recorded)
        if not torch.allclose(again.logits, self.logits, equal_nan=True):
            raise ValueError(
                "The model has changed since this run (its weights or its hooks), so the cache "
                "cannot be completed. Run it again, and read run.cache before the change."
            )
        recording = again.recording
        self.recording.traced_for_cache = recording.traced
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

    def part(self, name: str, before: str = "unembed") -> Stream:
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
        with self.as_it_ran():
            return self.rows.blank(self.recording.share(part, step))

    def parts(self, before: str = "unembed", neurons: bool = False) -> dict[str, Stream]:
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
        with self.as_it_ran():
            shares = {str(name): self.recording.share(name, step) for name in names}
        return {name: self.rows.blank(share) for name, share in shares.items()}

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
        direction: Float[Tensor, " d_model"] | Stream,
        before: str = "unembed",
        neurons: bool = False,
    ) -> dict[str, Float[Tensor, "batch pos"]]:
        """The dot product of every part's share of a stream with a direction.

        The sum is the product with the stream before cuts into its reader, as in `parts`.

        Parameters
        ----------
        direction : one vector `[d_model]`, or one for each position, of the model's dtype
        before : as in `parts`
        neurons : whether each neuron of an MLP, converted or not, has a contribution of its own, and
            so has the bias that the MLP adds to them

        Raises
        ------
        ValueError : for a direction of another shape or dtype, or one with NaN or infinite values
        """
        d_model, dtype = self.model.cfg.d_model, self.model.W_E.dtype
        shapes = (d_model,), (*self.tokens.shape, d_model)
        if direction.dtype != dtype or tuple(direction.shape) not in shapes:
            raise ValueError(
                f"direction is {shown(direction)}. Give a tensor of {dtype}, either one vector "
                f"{shapes[0]} or one for each position {shapes[1]}."
            )
        require_finite(direction, "direction, given to contributions,")
        step, names = self.parts_before(before, neurons)
        direction = direction.expand(*self.tokens.shape, d_model)
        result = {}
        with self.as_it_ran():
            for name in names:
                is_mlp = name.kind == "MLP" and neurons_of(self.model, name.layer) is not None
                if name.kind != "N" and not (neurons and is_mlp):
                    share = (self.recording.share(name, step) * direction).sum(-1)
                    # where norms close layers, the bias of such a norm comes on top of the MLP's own
                    result[str(name)] = result.get(str(name), 0) + share
                elif str(name) not in result:  # all neurons of a layer together
                    result |= self.recording.neuron_contributions(name.layer or 0, direction, step)
        return {name: self.rows.blank(share) for name, share in result.items()}

    def stream(self, name: str = "unembed") -> Stream:
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
        return self.rows.blank(stream.reshape(*self.tokens.shape, -1).clone())

    def read(self, name: str = "unembed") -> Stream:
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
        with self.as_it_ran(), only_permanent_hooks(norm):
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
            with self.as_it_ran():
                return self.rows.blank(self.recording.neuron_attention(part))
        return self.rows.blank(self.recording.patterns(part.layer or 0)[:, part.number])

    def z(self, name: str) -> Float[Tensor, "batch pos d_head"]:
        """What a head gathered, after all cuts: its pattern times its values, before `W_O`.

        Parameters
        ----------
        name : a head such as `"L1H3"`. A neuron-head such as `"L0N12"`, whose pattern `pattern`
            returns, is refused here; the cache holds what all neuron-heads of a layer gathered,
            `cache["blocks.0.mlp.neurons.hook_z"]`, `[batch, pos, head]`.

        Raises
        ------
        ValueError : for the name of a neuron or of anything else than a head
        """
        part = find_part(self.model, name, ("H",), IS_NO_HEAD)
        return self.rows.blank(self.recording.heads_z(part.layer)[:, :, part.number].clone())


IS_NO_HEAD = "is no attention head. Write a name such as 'L0H1'."


def find_part(
    model: Model, text: str, kinds: Sequence[str] | None = None, problem: str = ""
) -> Name:
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


def find_reader(model: Model, text: str) -> Name:
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
    for an_input in cuts.inputs:
        if an_input.kind == "H":
            patterns.append(rf"blocks\.{an_input.layer}\.attn\.(hook_)?(rot_)?[qkv]")
        elif an_input.side is not None:
            inside = r"(in\.hook_out|hook_pre|gate|neurons\.(?!hook_z))"
            patterns.append(rf"blocks\.{an_input.layer}\.mlp\.{inside}")
    return {hook for hook in hooks if any(re.match(pattern, hook) for pattern in set(patterns))}
