"""Random tokens that repeat, and a model run on rows with parts taken out: what its heads do is reduced on the spot, so that
no pattern outlives its layer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from circuitkit._contract import Count, Several, Token, must, public
from circuitkit._heads import Heads
from circuitkit._state import hooked, is_bridge, require_finite
from circuitkit.anatomy import Anatomy, anatomy, read
from circuitkit.anatomy._read import measured


class Repeated(NamedTuple):
    """Rows in which one span of random tokens comes several times. **Source**: see `repeated_tokens`."""

    tokens: Int[Tensor, "batch pos"]
    """`[batch, pos]`: an opening token if there is one, then the span, then the span again."""
    period: int
    """Length of the span."""
    start: int
    """Position where the span first begins: 1 after an opening token, otherwise 0."""


def _drawable(d_vocab: int, bos: int | None, exclude: Sequence[int], weights: Tensor | None) -> Any:
    never = [*exclude, *([] if bos is None else [bos])]
    fits = weights is None or (len(weights) == d_vocab and not bool((weights < 0).any()))
    fits = (
        fits and max(never, default=0) < d_vocab and bool(_chances(d_vocab, weights, never).any())
    )
    return (
        fits
        or f"ids in 0..{d_vocab - 1} and {d_vocab} weights, none negative, that leave a token to draw"
    )


@public
@must(
    lambda n_ctx, period, times, bos: (
        n_ctx is None
        or (bos is not None) + times * period <= n_ctx
        or f"a period of at most {(n_ctx - (bos is not None)) // times}, because the model's context ends there, or fewer times"
    )
)
@must(_drawable)
def repeated_tokens(
    d_vocab: Several,
    period: Several,
    *,
    times: Count = 2,
    batch: Count = 8,
    bos: Token | None = None,
    exclude: Sequence[Token] = (),
    weights: Float[Tensor, " token"] | None = None,
    n_ctx: Count | None = None,
    generator: torch.Generator | None = None,
) -> Repeated:
    """Rows `[bos] s s ...` in which a random span $s$ of `period` tokens comes `times` times.

    Tokens of a span differ, so that "what followed last time" has one answer, unless the vocabulary is smaller than the span.
    **Shapes**: tokens `[batch, (bos is given) + times * period]`. `weights[token]` draws in proportion (a corpus's unigram
    counts); `exclude` and `bos` are never drawn. `generator`: left out, one with seed 0, so the same call gives the same
    rows. **Error**: none. **Source**: "In-context Learning and Induction Heads" (2022), repeated random sequences.

    >>> rows = repeated_tokens(50, 3, batch=1, bos=0)
    >>> rows.tokens.shape, bool((rows.tokens[:, 1:4] == rows.tokens[:, 4:7]).all())
    (torch.Size([1, 7]), True)
    """
    start = int(bos is not None)
    chance = _chances(d_vocab, weights, [*exclude, *([] if bos is None else [bos])])
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    again = int((chance > 0).sum()) < period
    span = torch.multinomial(
        chance.expand(batch, -1), period, replacement=again, generator=generator
    )
    opening = torch.full((batch, start), 0 if bos is None else bos, dtype=torch.long)
    return Repeated(torch.cat([opening, *[span] * times], dim=1), period, start)


def repeating(rows: Repeated) -> bool:
    """Whether the span does come twice from where it is said to begin."""
    return torch.equal(
        *(rows.tokens[:, rows.start + i * rows.period :][:, : rows.period] for i in (0, 1))
    )


def _chances(d_vocab: int, weights: Tensor | None, never: list[int]) -> Tensor:
    """How likely each token is drawn, not normalised."""
    chance = torch.ones(d_vocab) if weights is None else weights.detach().cpu().float().clone()
    chance[never] = 0
    return chance


@public
def earlier_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """True where the source is before the destination and holds the same token, `[batch, dst, src]`. **Source**: this book.

    >>> earlier_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]]
    """
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


@public
def after_occurrences(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch dst src"]:
    """True where the source comes directly after an earlier occurrence of the destination's token: where induction heads look.

    **Shapes**: `[batch, pos]` to `[batch, dst, src]`. **Source**: "In-context Learning and Induction Heads", prefix matching.

    >>> after_occurrences(torch.tensor([[5, 7, 5, 5]])).int()[0].tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]
    """
    return torch.nn.functional.pad(earlier_occurrences(tokens)[..., :-1], (1, 0))


Fill = Literal["zero", "mean"]

#: Called in each layer with its number, the pattern `[batch, head, dst, src]` of some destinations, values
#: `[batch, head or group, pos, d_head]`, `W_O`, and which destinations these are.
Watch = Callable[[int, Tensor, Tensor, Tensor, slice], None]


class _Seen(Exception):
    """All that was to be seen: what would follow is asked by nobody."""


def engine(model: Any, without: Sequence[str], look: bool = False) -> Any:
    """The bridge itself where that is faster, or where its hooks count or it cannot be read; else the model as an `Anatomy`."""
    bridge = is_bridge(model) and _heads_of(model, without) is not None
    if bridge:
        require_finite(model)
        if not look or hooked(model):
            return model
    try:
        return anatomy(model)
    except ValueError:
        if not bridge:
            raise
    return model


@torch.no_grad()
def run(
    what: str,
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    without: Sequence[str] = (),
    fill: Fill = "zero",
) -> Float[Tensor, "batch pos d_vocab"]:
    """Logits of one forward pass without some parts and wires; see `Anatomy.run`."""
    runs = engine(model, without)
    if isinstance(runs, Anatomy):
        return runs.run(tokens, without=without, fill=fill, watch=lambda *_: None).logits
    return _on_bridge(what, runs, tokens, None, without, fill)


@torch.no_grad()
def look(
    what: str,
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    watch: Watch,
    without: Sequence[str] = (),
    fill: Fill = "zero",
) -> None:
    """What heads do without some parts and wires, layer by layer; nothing behind the last pattern is computed."""
    runs = engine(model, without, look=True)
    if not isinstance(runs, Anatomy):
        _on_bridge(what, runs, tokens, watch, without, fill)
        return
    last, n_pos = (
        [sub.name for sub in runs.sublayers if isinstance(sub.inside, Heads)][-1:],
        tokens.shape[1],
    )

    def sees(sub: Any, pattern: Tensor, values: Tensor, rows: slice) -> None:
        watch(sub.layer, pattern, values, sub.inside.W_O, rows)
        if [sub.name] == last and rows.stop == n_pos:
            raise _Seen

    with suppress(_Seen):
        runs.run(tokens, without=without, fill=fill, watch=sees)


def _heads_of(bridge: Any, without: Sequence[str]) -> dict[int, list[int]] | None:
    """Numbers of the heads to take out, by layer; `None` where something else is named."""
    rows: dict[int, list[int]] = defaultdict(list)
    for name in [without] if isinstance(without, str) else without:
        *earlier, part = read(name)
        layer, number = part.layer or 0, part.number or 0
        known = layer < bridge.cfg.n_layers and number < bridge.cfg.n_heads
        if earlier or part.kind != "H" or part.input or not known:
            return None
        rows[layer].append(number)
    return rows


def _on_bridge(
    what: str, bridge: Any, tokens: Tensor, watch: Watch | None, without: Sequence[str], fill: Fill
) -> Tensor:
    n, rows = int(bridge.cfg.n_heads), _heads_of(bridge, without) or {}
    hooks = [
        (f"blocks.{layer}.attn.hook_z", _filled(heads, n, fill)) for layer, heads in rows.items()
    ]
    waiting: dict[int, dict[str, Tensor]] = (
        {layer: {} for layer in range(bridge.cfg.n_layers)} if watch else {}
    )

    def keep(layer: int, name: str) -> Callable:
        def hook(value: Tensor, hook: Any) -> None:
            waiting[layer][name] = value
            if watch is not None and len(waiting[layer]) == 2:
                W_O, found = bridge.blocks[layer].attn.W_O, waiting.pop(layer)
                v = found["hook_v"]
                v = v.unflatten(-1, (-1, W_O.shape[1])) if v.ndim == 3 else v
                watch(
                    layer, found["hook_pattern"], v.transpose(1, 2), W_O, slice(0, tokens.shape[1])
                )

        return hook

    watched = [
        (f"blocks.{i}.attn.{name}", keep(i, name))
        for i in waiting
        for name in ("hook_v", "hook_pattern")
    ]
    hooks += [("unembed.hook_in", lambda stream, hook: stream[:, :1])] if watch else []
    if {name for name, _ in watched} <= {*bridge.hook_dict}:
        with measured(bridge):
            logits = bridge.run_with_hooks(
                tokens.to(next(bridge.parameters()).device), fwd_hooks=hooks + watched
            )
        if not waiting:
            return logits
    raise ValueError(
        f"{what} waited for the patterns of layers {[*waiting]}, which this model does not offer or never called; "
        "expected attention that shows its pattern in every layer. Boot a Hugging Face model with attn_implementation='eager'."
    )


def _filled(heads: list[int], n: int, fill: Fill) -> Callable:
    def hook(z: Tensor, hook: Any) -> Tensor:
        z = z.clone()
        own = z.view(*z.shape[:2], n, -1)
        own[:, :, heads] = own[:, :, heads].mean(0, keepdim=True) if fill == "mean" else 0.0
        return z

    return hook


def token_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch next"]:
    """Loss in nats of predicting each next token: entry `t` is about position `t + 1`. One row at a time in memory."""
    losses = [
        -row.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        for row, ids in zip(logits[:, :-1], tokens, strict=True)
    ]
    return torch.stack(losses)


def second_pass(
    logits: Float[Tensor, "batch pos d_vocab"], rows: Repeated
) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Loss and accuracy of each row on the second pass without its first token, which nothing tells."""
    again = slice(rows.start + rows.period, rows.start + 2 * rows.period)
    logits, tokens = logits[:, again], rows.tokens[:, again].to(logits.device)
    right = logits[:, :-1].argmax(-1) == tokens[:, 1:]
    return token_losses(logits, tokens).mean(1), right.to(logits.dtype).mean(1)
