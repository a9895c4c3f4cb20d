"""Any model as an `Anatomy`: what is a model is asked here, once, and every read is checked against the model's logits."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from circuitkit._contract import Model, public
from circuitkit._heads import Heads
from circuitkit._precision import finest, rounding_hint
from circuitkit._state import require_finite, state_of
from circuitkit.anatomy._neurons import Neurons
from circuitkit.anatomy._sublayer import MLP, UNLIMITED, Anatomy, Norm, Step, Sublayer, from_heads
from circuitkit.heads import layer_heads, window_of
from circuitkit.parts import converted_neurons

_NORMS = ("ln1", "ln1_post", "ln2", "ln2_post")
_WANTED = ("hook_in", "hook_out", "hook_resid_pre", "hook_cos", "hook_sin")
_UNKNOWN = (AttributeError, KeyError, RuntimeError, TypeError)
"""What reading an unknown architecture may end in."""
_KNOWN: WeakKeyDictionary[Any, tuple[Any, Anatomy]] = WeakKeyDictionary()
"""What was read of the models that still live, with the state of their weights then."""


def anatomy(model: Any) -> Anatomy:
    """A model as one value: embeddings, steps of sublayers, an unembedding, with one language of names.

    Takes a `TransformerBridge` (GPT-2, Llama, Qwen, NeoX, Gemma, Mistral, Phi, OPT, BERT, OLMo 2, native), a converted model,
    chapter 5's toys and gated blocks, and any object with `heads`, `W_E` and `W_U`. The model is run once to find its norms,
    and again when weights or settings have changed, always without the hooks that may be on it; a mixture of experts is one part,
    as is an MLP that was not converted.
    **Shapes**: weights are views. **Error**: the model's logits on 2 rows of random tokens are computed again and must agree
    to 3e-4 of the largest (half precision: the square root of its spacing), else this raises; in float64 they agree to 1e-12,
    or to 1e-5 where transformers computes norms or rotations in float32. **Source**: this book.

    >>> import circuitkit as ck
    >>> ck.anatomy(ck.load_model("one-layer")).parts()[:3]
    ('embed', 'pos', 'L0H0')
    """
    if isinstance(model, Anatomy):
        return model
    if isinstance(model, Heads):
        raise ValueError(
            "anatomy(model) got Heads, which are no model by themselves; expected what they read from and write to as well. "
            "Write circuitkit.anatomy.from_heads(heads, W_E, W_U)."
        )
    if hasattr(model, "models") and hasattr(model, "model"):
        return anatomy(model.model)  # several runs of a training, of which one was chosen
    if hasattr(model, "block") and hasattr(model, "original"):
        toy, gates = model.original, model.block.gates
        return _agreeing(model, from_heads(model.block.heads, toy.W_E, toy.W_U, gate=gates))
    if not hasattr(model, "cfg") and isinstance(getattr(model, "heads", None), Heads):
        made = from_heads(model.heads, model.W_E, model.W_U, getattr(model, "W_pos", None))
        return _agreeing(model, made) if hasattr(model, "run") else made
    return _anatomy(model)


@public
def _anatomy(model: Model) -> Anatomy:
    state = state_of(model)
    if model not in _KNOWN or _KNOWN[model][0] != state:
        require_finite(model)
        _KNOWN[model] = state, _read(model)
    return _KNOWN[model][1]


def _read(bridge: Any) -> Anatomy:
    with torch.no_grad(), still(bridge):
        try:
            tokens, logits, cache = _probed(bridge)
            out = _bridge(bridge, tokens, cache)
            own = out.run(tokens).logits
        except _UNKNOWN as problem:
            raise ValueError(
                f"anatomy cannot read this model ({type(bridge.original_model).__name__}): {type(problem).__name__}: {problem}. "
                "Expected blocks of attention and an MLP that read and write one stream. Look at run_with_cache instead."
            ) from problem
    return _compared(type(bridge.original_model).__name__, out, own, logits)


def norms_of_mlps(bridge: Any) -> dict[int, Norm]:
    """The norm in front of each block's MLP where there is one that is known, whatever else the model does."""
    found: dict[int, Norm] = {}
    with torch.no_grad(), still(bridge), suppress(*_UNKNOWN):
        *_, cache = _probed(bridge)
        for layer, block in enumerate(bridge.blocks):
            with suppress(*_UNKNOWN):
                last = _block(bridge, layer, block, cache)[-1].sublayers[-1]
                found |= {} if last.before is None else {layer: last.before}
    return found


def _probed(bridge: Any) -> tuple[Tensor, Tensor, Any]:
    """Random tokens, and logits and cache of one run on them."""
    tokens = random_rows(int(bridge.cfg.d_vocab), _probe_length(bridge)).to(
        next(bridge.parameters()).device
    )
    return tokens, *bridge.run_with_cache(tokens, names_filter=lambda name: name.endswith(_WANTED))


def _agreeing(model: Any, out: Anatomy) -> Anatomy:
    """A toy model's anatomy, compared with `(head_logits, residual_logits)` of its own."""
    with torch.no_grad():
        tokens = random_rows(out.d_vocab, 8)
        shares, rest = model.run(tokens)
        return _compared(type(model).__name__, out, out.run(tokens).logits, shares.sum(1) + rest)


def _compared(kind: str, out: Anatomy, own: Tensor, logits: Tensor) -> Anatomy:
    allowed = max(torch.finfo(logits.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
    size = float(logits.abs().max())
    off = float((own - logits).abs().max()) if own.shape == logits.shape else float("nan")
    if not off <= allowed * max(size, 1e-6):
        raise ValueError(
            f"anatomy cannot read this model ({kind}): its parts give logits that are off by {off:.3g} (largest {size:.3g}); "
            "expected the model's own, because nothing said about the parts would hold of it. It has something between its "
            "blocks that is not known here (another norm, scores by distance, scaled logits or residuals)."
            + rounding_hint(logits)
        )
    return out


@contextmanager
def still(bridge: Any) -> Iterator[None]:
    """Without dropout and without hooks while it is read."""
    hooked = [(point, point._forward_hooks) for point in bridge.hook_dict.values()]
    try:
        for point, hooks in hooked:
            point._forward_hooks = type(hooks)()
        with measured(bridge):
            yield
    finally:
        for point, hooks in hooked:
            point._forward_hooks = hooks


@contextmanager
def measured(*models: Any) -> Iterator[None]:
    """Inside, no dropout: what is measured is the model as it is used, in whatever mode it was left."""
    parts = [
        part
        for model in models
        for part in (model, getattr(model, "original_model", None))
        if part is not None
    ]
    was = [module for part in parts for module in part.modules() if module.training]
    try:
        for module in was:
            module.training = False
        yield
    finally:
        for module in was:
            module.training = True


def random_rows(d_vocab: int, n: int) -> Tensor:
    """Two rows of `n` tokens, the same each time."""
    return torch.randint(d_vocab, (2, n), generator=torch.Generator().manual_seed(0))


def _probe_length(bridge: Any) -> int:
    """Long enough to tell a window from none, where that is affordable."""
    windows = [
        window_of(block.attn.original_component, n)
        for n, block in enumerate(bridge.blocks)
        if hasattr(block, "attn")
    ]
    short = [window for window in windows if window is not None and window < 512]
    return min(int(bridge.cfg.n_ctx), max([12, *(window + 4 for window in short)]))


def _bridge(bridge: Any, tokens: Tensor, cache: Any) -> Anatomy:
    W_E, steps = bridge.W_E.detach(), []
    for layer, block in enumerate(bridge.blocks):
        steps += _block(bridge, layer, block, cache)
    opening = _norm(bridge._modules.get("embed_ln"), W_E.shape[1], W_E, bridge.cfg)
    begun = cache[
        "embed_ln.hook_in"
        if opening
        else "blocks.0.hook_resid_pre"
        if steps
        else "ln_final.hook_in"
    ]
    W_pos, rest = None, begun
    if "pos_embed.hook_out" in cache:
        W_pos = bridge.W_pos.detach()[: int(bridge.cfg.n_ctx)]
        if "token_type_embed.hook_out" in cache:  # the same at every position: a sentence alone
            W_pos = W_pos + cache["token_type_embed.hook_out"][0, 0]
        rest = begun - W_pos[: tokens.shape[1]]
    embedded = finest(W_E[tokens])
    gain = float((finest(rest) * embedded).sum() / embedded.square().sum())
    head = None
    if "mlm_head" in bridge._modules:
        transform = bridge.original_model.cls.predictions.transform
        head = lambda x: transform.transform_act_fn(transform.dense(x))  # noqa: E731
    return Anatomy(
        W_E=W_E,
        steps=tuple(steps),
        W_U=bridge.W_U.detach(),
        W_pos=W_pos,
        final=_norm(bridge._modules.get("ln_final"), W_E.shape[1], W_E, bridge.cfg),
        b_U=_given(getattr(bridge, "b_U", None)),
        gain=1.0 if abs(gain - 1) < 1e-3 else gain,
        opening=opening,
        head=head,
        cap=_positive(getattr(bridge.cfg, "output_logits_soft_cap", None)),
        n_ctx=int(bridge.cfg.n_ctx or UNLIMITED),
    )


def _block(bridge: Any, layer: int, block: Any, cache: Any) -> list[Step]:
    """The one or two steps of a block. A norm stands before what its output enters, after what it reads, or closes a step."""
    at, cfg, like = f"blocks.{layer}.", bridge.cfg, bridge.W_E.detach()
    entered = {
        n: cache[f"{at}{n}.hook_in"]
        for n in _NORMS
        if n in block._modules and f"{at}{n}.hook_in" in cache
    }
    left = {n: cache[f"{at}{n}.hook_out"] for n in entered}
    found: dict[str | None, Norm | None] = {
        n: _norm(block._modules[n], like.shape[1], like, cfg) for n in entered
    }
    seen: dict[str, Any] = {
        "attn": (
            cache[f"{at}attn.hook_in"],
            _first(cache, f"{at}attn.o.hook_out", f"{at}attn.hook_out"),
        )
    }
    if "mlp" in block._modules:
        ways = ("mlp.hook_in", "mlp.in.hook_in"), ("mlp.out.hook_out", "mlp.hook_out")
        seen["mlp"] = tuple(_first(cache, *(f"{at}{name}" for name in names)) for names in ways)
    used: set[str | None] = set()
    subs, streams = [], []
    for part, (goes_in, comes_out) in seen.items():
        # what the MLP reads from "ln1" is the stream itself, unless the attention read it there as well
        allowed = [n for n in entered if part == "attn" or n[2] == "2" or n in used]
        before = next((n for n in allowed if torch.equal(left[n], goes_in)), None)
        after = next(
            (n for n in entered if n != before and torch.equal(entered[n], comes_out)), None
        )
        used |= {before, after}
        inside, bias = (
            _attention(bridge, layer, block.attn, cache)
            if part == "attn"
            else _mlp(bridge, layer, block)
        )
        subs.append(Sublayer(layer, inside, found.get(before), found.get(after), bias))
        streams.append(goes_in if before is None else entered[before])
    if len(subs) == 2 and torch.equal(*streams):
        return [Step(tuple(subs))]
    closing = [
        next((found[n] for n in _NORMS if n in found and n not in used and n[2] == k), None)
        for k in "12"
    ]
    return [Step((sub,), norm) for sub, norm in zip(subs, closing, strict=False)]


def _attention(bridge: Any, layer: int, attn: Any, cache: Any) -> tuple[Heads, Tensor | None]:
    return layer_heads(bridge, layer), _given(getattr(attn, "b_O", None))


def _mlp(bridge: Any, layer: int, block: Any) -> tuple[Any, Tensor | None]:
    """Neuron-heads and their bias, or the whole MLP as one function that holds its own."""
    converted = converted_neurons(bridge, layer)
    if converted is not None:
        weights = {n: w.detach() for n, w in vars(converted).items() if isinstance(w, Tensor)}
        held = Neurons(**{**vars(converted), **weights})
        return held, _given(held.b_out)
    mlp, original = block.mlp, block.mlp.original_component
    weights = {name: _matrix(mlp, name) for name in ("W_in", "W_out", "W_gate")}
    if mlp.name is None:  # OPT and BERT have no module for the whole of it, and OPT no rows
        act = (
            original.activation_fn
            if hasattr(original, "activation_fn")
            else original.intermediate.intermediate_act_fn
        )
        return MLP(lambda x: mlp.out(act(getattr(mlp, "in")(x))).reshape(x.shape), **weights), None

    def whole(x: Tensor) -> Tensor:
        with measured(mlp):
            out = mlp(x)
        return (
            out[0] if isinstance(out, tuple) else out
        )  # a mixture of experts tells its choices as well

    return MLP(whole, **weights), None


def _matrix(mlp: Any, name: str) -> Tensor | None:
    """A matrix of an MLP; a mixture of experts has none."""
    try:
        value = getattr(mlp, name)
    except (AttributeError, NotImplementedError):
        return None
    return value.detach() if isinstance(value, Tensor) and value.ndim == 2 else None


def _norm(module: Any, size: int, like: Tensor, cfg: Any) -> Norm | None:
    """The norm that a module computes, found on random rows of ordinary and of tiny size."""
    if module is None:
        return None
    rows = torch.randn(1, 4, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.cat([rows, 1e-3 * rows], 1).to(like)
    out, bias = module(rows), _given(module(torch.zeros_like(rows[:, :1]))[0, 0])
    if torch.equal(out, rows):
        return None
    original, weight = module.original_component, getattr(module, "weight", None)
    gains = [None] if weight is None else [weight.detach(), 1 + weight.detach(), None]
    sizes = {
        float(e)
        for e in (
            getattr(original, "eps", None),
            getattr(original, "variance_epsilon", None),
            cfg.eps,
        )
        if e
    }
    known = [
        Norm(gain, bias, eps, centre) for gain in gains for eps in sizes for centre in (True, False)
    ]
    off = [float((norm(rows) - out).abs().max() / out.abs().max()) for norm in known]
    best = min(range(len(known)), key=off.__getitem__)
    if not off[best] <= max(torch.finfo(like.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5:
        raise TypeError(
            f"{type(original).__name__} is no LayerNorm or RMSNorm (off by {off[best]:.2g} of its largest output)"
        )
    return known[best]


def _first(cache: Any, *names: str) -> Tensor:
    return next(cache[name] for name in names if name in cache)


def _positive(*values: Any) -> float | None:
    return next((float(value) for value in values if value is not None and float(value) > 0), None)


def _given(value: Any) -> Tensor | None:
    """A tensor that is not zero everywhere, detached."""
    return value.detach() if isinstance(value, Tensor) and value.any() else None
