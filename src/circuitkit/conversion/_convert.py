"""`to_attention_only`: every MLP of a model becomes attention heads."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from circuitkit._contract import Model, NonNegative, Positive, ids, must, public
from circuitkit._precision import finest
from circuitkit._state import require_unhooked
from circuitkit._work import progress
from circuitkit.anatomy import Neurons, Norm
from circuitkit.anatomy._read import norms_of_mlps, random_rows
from circuitkit.conversion._head_sum import (
    Activation,
    GateHeads,
    GateSums,
    HeadSum,
    gate_sum,
    gate_sums,
    head_sum,
)
from circuitkit.conversion._mlps import FoundMLP, all_modules, copy_bridge, find_mlps
from circuitkit.conversion._promise import LayerReport, Report, promised

if TYPE_CHECKING:
    from circuitkit.conversion._model import AttentionOnlyBridge


@public
@must(
    lambda model: (
        type(model).__name__ != "AttentionOnlyBridge"
        or "a model that is not converted already: see model.report"
    )
)
@must(
    lambda model, max_error, heads_per_neuron: (
        (max_error is None) != (heads_per_neuron is None)
        or "exactly one of the two, since each decides the other, for instance heads_per_neuron=5 or max_error=1e-4"
    )
)
@ids("probe")
def to_attention_only(
    model: Model,
    *,
    max_error: NonNegative | None = None,
    heads_per_neuron: GateHeads | None = None,
    sharpness: Positive | None = None,
    gate_range: Positive | None = None,
    probe: Int[Tensor, "batch pos"] | None = None,
) -> "AttentionOnlyBridge":
    """A model that computes what `model` computes, with attention heads in the place of every MLP.

    Give one knob: `heads_per_neuron`, or `max_error`, the largest error of the activation itself (the fewest heads within it
    are taken). SiLU is exact with one head; ReLU takes one of finite `sharpness`; GELU 1 to 8; gated MLPs 2 to 32 on the
    range of each neuron's gate, which follows from the layer's norm or is stated as `gate_range`. The result is called,
    cached, hooked, moved and trained as the bridge was, and has `.heads`, `.report`, `.neuron_heads(layer)` and
    `.route("literal")`. The input model is never written; weights are shared until either of the two is written to.
    **Error**: `.report` holds each layer's promised bound and the errors measured on `probe` (left out: seeded random
    tokens). **Source**: "Attention-Only Transformers", Theorem 4, repaired: norms act on the original coordinates.
    """
    require_unhooked(model, "to_attention_only")
    found = find_mlps(model)  # every problem is reported before anything is copied
    for knob, used in (
        ("sharpness", [m.activation == "relu" for m in found]),
        ("gate_range", [m.gated for m in found]),
    ):
        if locals()[knob] is not None and not any(used):
            raise ValueError(
                f"to_attention_only got {knob}={locals()[knob]}, which no layer here has a use for; leave it out"
            )
    twin = copy_bridge(model)
    mlps = find_mlps(twin)
    knobs = {"max_error": max_error, "heads_per_neuron": heads_per_neuron}
    norms = (
        norms_of_mlps(twin) if any(mlp.gated or mlp.activation == "relu" for mlp in mlps) else {}
    )
    terms = [
        _terms(mlp, knobs, sharpness, gate_range, norms.get(mlp.layer))
        for mlp in progress(mlps, "layers", len(mlps))
    ]
    tokens = (
        random_rows(int(twin.cfg.d_vocab), min(int(twin.cfg.n_ctx), 16)) if probe is None else probe
    )
    tokens = tokens.to(next(twin.original_model.parameters()).device)
    was = [(module, module.training) for module in all_modules(twin)]
    try:
        twin.eval()
        before = _logits(twin, tokens)
        attentions = [_swap(mlp, term) for mlp, term in zip(mlps, terms, strict=True)]
        _rename_hooks(twin)
        after, measured = _measured(twin, mlps, attentions, tokens)
    finally:
        for module, training in was:
            module.training = training
    rows = [_row(twin, norms, *parts) for parts in zip(mlps, terms, measured, strict=True)]
    difference = float((after - before).abs().max())
    return _dressed(
        twin,
        mlps,
        attentions,
        Report(tuple(rows), sum(p.numel() for p in twin.original_model.parameters()), difference),
    )


def _terms(
    mlp: FoundMLP, knobs: dict, sharpness: float | None, gate_range: float | None, norm: Norm | None
) -> HeadSum | GateSums:
    weights, biases = mlp.weights, mlp.biases
    broken = [
        name
        for name, w in (weights | biases).items()
        if w is not None and not torch.isfinite(w.detach()).all()
    ]
    if broken:
        raise ValueError(
            f"block {mlp.layer}: {', '.join(broken)} hold infinite or NaN entries; no bound would hold"
        )
    if not mlp.gated and mlp.activation == "relu":
        return _relu(mlp, knobs, sharpness, norm)
    if not mlp.gated:
        return head_sum(cast("Activation", mlp.activation), **knobs)
    if mlp.activation == "sigmoid":
        return gate_sum("sigmoid", math.inf)
    reads = _largest_reads(norm, weights["W_gate"], biases["b_gate"])
    if gate_range is not None:
        reads = weights["W_gate"].new_full(weights["W_gate"].shape[1:], gate_range)
    if reads is None:
        raise ValueError(
            f"block {mlp.layer}: a {mlp.activation!r} gate needs a bounded range, and no norm in front of this MLP "
            "bounds it; state gate_range=..., the largest gate pre-activation you can promise"
        )
    try:
        return gate_sums(
            mlp.activation, reads.tolist(), knobs["heads_per_neuron"], knobs["max_error"]
        )
    except ValueError as problem:
        raise ValueError(f"block {mlp.layer}: {problem}") from None


def _relu(mlp: FoundMLP, knobs: dict, sharpness: float | None, norm: Norm | None) -> HeadSum:
    """As sharp as the precision can tell: past `4 / (u reach)`, u half a unit in the last place, rounding is larger."""
    W = mlp.weights["W_in"]
    reads = _largest_reads(norm, W, mlp.biases["b_in"])
    reach = 4096.0 if reads is None else max(1.0, float(reads.max()))
    if sharpness is None and knobs["max_error"] is None:
        sharpness = 2.0 ** math.floor(math.log2(8 / (torch.finfo(W.dtype).eps * reach)))
    terms = head_sum("relu", **knobs, sharpness=sharpness)
    most = torch.finfo(torch.float64 if W.dtype == torch.float64 else torch.float32).max
    if terms.b[0] * reach > most:
        why = f"its score overflows where a neuron reads {reach:.3g}, and nothing can be promised"
        raise ValueError(
            f"block {mlp.layer}: relu with sharpness {terms.b[0]:.3g}: {why}; take at most {most / reach:.3g}"
        )
    return terms


def _largest_reads(norm: Norm | None, W: Tensor, b: Tensor | None) -> Tensor | None:
    """For each neuron the largest `|norm(x) W + b|` any input can cause; a part in a thousand is added for rounding."""
    return None if norm is None else 1.001 * replace(norm, centre=False).bound(W, b).detach()


def _swap(mlp: FoundMLP, terms: HeadSum | GateSums) -> Any:
    from circuitkit.conversion._model import NeuronAttention

    attention = NeuronAttention(terms)
    attention.train(mlp.block.training)
    setattr(mlp.owner, mlp.attribute, attention)
    mlp.block.mlp.add_module("neurons", attention)
    return attention


def _rename_hooks(bridge: Any) -> None:
    """Let the bridge find the new hook points under `blocks.{l}.mlp.neurons`."""
    bridge.clear_hook_registry()
    bridge._initialize_hook_registry()


def _measured(bridge: Any, mlps: list, attentions: list, tokens: Tensor) -> tuple[Tensor, list]:
    """Logits, and per layer on the inputs it met: the largest output error, pre-activation and rounding term."""
    seen: list[tuple[Any, Any, Any]] = [(math.nan, math.nan, math.nan)] * len(mlps)
    met: dict[int, Tensor] = {}
    reach: dict[int, Any] = {}

    def listen(place: int, mlp: FoundMLP, terms: HeadSum | GateSums, out: Tensor) -> None:
        neurons = Neurons(**mlp.weights, **mlp.biases, terms=terms)  # pyright: ignore[reportArgumentType]  # biases may be None
        exact, _, rounding = promised(neurons, met.pop(place))
        seen[place] = (finest(out) - exact).abs().max(), reach.pop(place, math.nan), rounding.max()

    handles = []
    for place, (mlp, attention) in enumerate(zip(mlps, attentions, strict=True)):
        attention.n_calls = 0
        start = lambda _, args, i=place: met.update({i: args[0]})  # noqa: E731
        middle = lambda _, args, out, i=place: reach.update({i: args[0].abs().max()})  # noqa: E731
        end = lambda _, args, out, i=place, m=mlp, t=attention.terms: listen(i, m, t, out)  # noqa: E731
        handles.append(getattr(mlp.block.mlp, "in").register_forward_pre_hook(start))
        handles.append(attention.register_forward_hook(middle))
        handles.append(mlp.block.mlp.out.register_forward_hook(end))
    try:
        with torch.no_grad():
            logits = _logits(bridge, tokens)
    finally:
        for handle in handles:
            handle.remove()
    silent = [
        mlp.layer for mlp, attention in zip(mlps, attentions, strict=True) if attention.n_calls != 1
    ]
    if silent:
        why = "do not apply their activation through one replaceable function (processed weights of a gated MLP do that)"
        raise ValueError(
            f"the MLPs of blocks {silent} {why}; convert the model before enable_compatibility_mode"
        )
    return logits, [tuple(map(float, one)) for one in seen]


def _row(
    bridge: Any,
    norms: dict[int, Norm],
    mlp: FoundMLP,
    terms: HeadSum | GateSums,
    measured: tuple[float, float, float],
) -> LayerReport:
    W_out = mlp.weights["W_out"].detach()
    weight = finest(W_out.abs()) * terms.errors(finest(W_out))[:, None]
    if mlp.gated:
        other = _largest_reads(norms.get(mlp.layer), mlp.weights["W_in"], mlp.biases["b_in"])
        weight = weight * (math.inf if other is None else other[:, None]) if terms.error else weight
    return LayerReport(
        layer=mlp.layer,
        activation=mlp.activation,
        neurons=W_out.shape[0],
        heads_per_neuron=terms.heads(W_out.shape[0]) / max(1, W_out.shape[0]),
        attention_heads=int(bridge.cfg.n_heads) if "attn" in mlp.block._modules else 0,
        activation_error=terms.error,
        bound=float(weight.sum(0).max()) if terms.error else 0.0,
        measured=measured[0],
        rounding=measured[2],
        reach=terms.reach if mlp.gated else None,
        measured_reach=measured[1] if mlp.gated else None,
    )


def _logits(bridge: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        out = bridge(tokens)
    if not isinstance(out, Tensor):
        raise ValueError(
            f"the model returned {type(out).__name__} for the probe tokens; expected logits [batch, pos, vocab]"
        )
    return out


def _dressed(bridge: Any, mlps: list, attentions: list, report: Report) -> "AttentionOnlyBridge":
    from circuitkit.conversion._model import AttentionOnlyBridge

    bridge.__dict__["_circuitkit_report"] = report
    bridge.__dict__["_circuitkit_mlps"] = list(zip(mlps, attentions, strict=True))
    object.__setattr__(bridge, "__class__", AttentionOnlyBridge)
    return bridge
