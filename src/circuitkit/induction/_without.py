"""Take out a head, or one path from a head to the query, key or value input of a later head."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from circuitkit._contract import Model, Names, public
from circuitkit._precision import require_same

Fill = Literal["zero", "mean"]
_FORM = re.compile(r"L(\d+)H(\d+)(?:->L(\d+)H(\d+)\.([QKV]))?")


class Cut(NamedTuple):
    """One thing to take out: a whole head (`later` is `None`), or its path into one input of a later head."""

    earlier: tuple[int, int]
    """Layer and number of the head that writes."""
    later: tuple[int, int] | None
    """Layer and number of the head that reads."""
    kind: str | None
    """`"Q"`, `"K"` or `"V"`."""


@public
def paths(model: Model, kind: Literal["Q", "K", "V"], *, into: str | None = None, out_of: str | None = None) -> tuple[str, ...]:
    """All paths `"L0H1->L1H3.K"` of one kind between heads of different layers, to give to `without=`.

    `into` and `out_of` keep those that end or begin at one head. Leaving out all paths of a kind is the comparison of
    Q-, K- and V-composition: later heads then read the stream without earlier heads at that one input.

    **Source**: "A Mathematical Framework for Transformer Circuits", Q-, K- and V-composition; cutting single wires
    is this book's.
    """
    names = _names(model)
    for head in (into, out_of):
        if head is not None:
            parse(model, [head])
    return tuple(
        f"{earlier}->{later}.{kind}"
        for earlier, (first, _) in names.items()
        for later, (second, _) in names.items()
        if first < second and into in (None, later) and out_of in (None, earlier)
    )


def parse(model: Any, without: Sequence[str]) -> list[Cut]:
    """Read names such as `"L0H1"` and `"L0H1->L1H3.K"`; refuse unknown heads and layers in the wrong order."""
    names, cuts = _names(model), []
    for text in [without] if isinstance(without, str) else without:
        form = _FORM.fullmatch(text)
        a, b, c, d, kind = form.groups() if form else (None,) * 5
        ends = [f"L{a}H{b}"] + ([f"L{c}H{d}"] if kind else [])
        places = [names[name] for name in ends if name in names]
        if len(places) < len(ends) or not all(one[0] < two[0] for one, two in pairwise(places)):
            no = [f"; no head is called {name!r}" for name in ends if form and name not in names]
            raise ValueError(
                f"without got {text!r}{no[0] if no else ''}; expected a head such as 'L0H1' or a path such as 'L0H1->L1H3.K', from an "
                "earlier layer to the query (Q), key (K) or value (V) input of a head in a later one, because a head reads only what "
                f"layers before its own have written. The heads are {_shown(names)}."
            )
        cuts.append(Cut(places[0], places[1] if kind else None, kind))
    return cuts


@public
def hooks(model: Model, without: Names, *, fill: Fill = "zero") -> list[tuple[str, Callable]]:
    r"""Forward hooks that take heads and paths out: `model.run_with_hooks(tokens, fwd_hooks=hooks(model, [...]))`.

    A head `"L0H1"`: its output is replaced by zero, or with `fill="mean"` by its mean over the rows at each position.
    A path `"L0H1->L1H3.K"`: the later head's key is computed from the stream minus what the earlier head wrote there,

    $$k' = \mathrm{ln}(x - z W_O)\, W_K + b_K,$$

    while everything else in the model, the later head's query and value included, still sees it. Norms before the
    attention are applied anew to the smaller stream.

    **Error**: exact up to rounding; the first run checks that $\mathrm{ln}(x) W_K + b_K$ is what the model computes, to
    1e-3 of its size, and refuses models where it is not. Use fresh hooks for each run.
    **Source**: path patching with one component's output set to zero; "A Mathematical Framework", ablations.
    """
    bridge, cuts = model, parse(model, without)
    whole, tails = defaultdict(list), defaultdict(list)
    for cut in cuts:
        if cut.later is None:
            whole[cut.earlier[0]].append(cut.earlier[1])
        else:
            tails[cut.later[0], cut.later[1], cut.kind].append(cut.earlier)
    out = [(f"blocks.{layer}.attn.hook_z", _fill(heads, fill)) for layer, heads in whole.items()]
    if tails:
        out += _path_hooks(bridge, tails)
    return out


def _fill(heads: list[int], fill: str) -> Callable:
    def hook(z: Tensor, hook: Any) -> Tensor:
        z = z.clone()
        z[:, :, heads] = z[:, :, heads].mean(0, keepdim=True) if fill == "mean" else 0.0
        return z

    return hook


def _path_hooks(bridge: Any, tails: dict[tuple[int, int, str], list[tuple[int, int]]]) -> list[tuple[str, Callable]]:
    """Hooks that remember what the earlier heads wrote and correct the inputs of the later ones."""
    _refuse_shared_keys(bridge, tails)
    wrote: dict[tuple[int, int], Tensor] = {}
    stream: dict[int, Tensor] = {}
    out = []

    def remember(layer: int, numbers: list[int]) -> Callable:
        W_O = bridge.W_O[layer].detach()

        def hook(z: Tensor, hook: Any) -> None:
            for number in numbers:
                wrote[layer, number] = z[:, :, number] @ W_O[number]

        return hook

    def read(layer: int) -> Callable:
        def hook(x: Tensor, hook: Any) -> None:
            stream[layer] = x

        return hook

    def correct(layer: int, kind: str, readers: dict[int, list[tuple[int, int]]]) -> Callable:
        W = getattr(bridge, f"W_{kind}")[layer].detach()
        b = getattr(bridge.blocks[layer].attn, f"b_{kind}", None)
        b = W.new_zeros(W.shape[0], W.shape[2]) if b is None else b.detach()
        norm = getattr(bridge.blocks[layer], "ln1", None) or torch.nn.Identity()

        def hook(activation: Tensor, hook: Any) -> Tensor:
            activation, x = activation.clone(), stream[layer]
            for head, sources in readers.items():
                whole = norm(x) @ W[head] + b[head]
                _refuse_other_inputs(whole, activation[:, :, head], layer, kind)
                rest = x - sum(wrote[source] for source in sources)
                activation[:, :, head] += (norm(rest) - norm(x)) @ W[head]
            return activation

        return hook

    sources: dict[int, set[int]] = defaultdict(set)
    inputs: dict[tuple[int, str], dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    for (layer, head, kind), earlier in tails.items():
        inputs[layer, kind][head] = sorted(set(earlier))
        for first, number in earlier:
            sources[first].add(number)
    out += [(f"blocks.{layer}.attn.hook_z", remember(layer, sorted(numbers))) for layer, numbers in sources.items()]
    out += [(f"blocks.{layer}.hook_resid_pre", read(layer)) for layer in {layer for layer, _ in inputs}]
    out += [
        (f"blocks.{layer}.attn.hook_{kind.lower()}", correct(layer, kind, heads))
        for (layer, kind), heads in inputs.items()
    ]
    return out


def _refuse_shared_keys(bridge: Any, tails: dict) -> None:
    shared = getattr(bridge.cfg, "n_key_value_heads", None) or bridge.cfg.n_heads
    kinds = sorted({kind for _, _, kind in tails if kind in "KV"})
    if shared != bridge.cfg.n_heads and kinds:
        raise ValueError(
            f"without got paths into {' and '.join(kinds)} of a grouped-query model; expected one key and one value for each head, but "
            f"its {bridge.cfg.n_heads} heads share {shared}. Cut paths into Q, or leave out whole heads."
        )


def _refuse_other_inputs(ours: Tensor, theirs: Tensor, layer: int, kind: str) -> None:
    text = f"without got a path into {kind} of layer {layer}, where ln1(stream) @ W_{kind} + b_{kind} differs from the model's own, and the "
    text += "path is cut before that product. This architecture normalises elsewhere; leave out whole heads instead"
    require_same(ours, theirs, 1e-3 * max(float(theirs.detach().abs().max()), 1e-6), text)


def _names(bridge: Any) -> dict[str, tuple[int, int]]:
    """Names of all heads, with layer and number, in the order of the layers."""
    return {f"L{i}H{j}": (i, j) for i in range(bridge.cfg.n_layers) for j in range(bridge.cfg.n_heads)}


def _shown(names: dict[str, Any]) -> str:
    some = ", ".join(list(names)[:24])
    return some + (f", ... ({len(names)} in all)" if len(names) > 24 else "")
