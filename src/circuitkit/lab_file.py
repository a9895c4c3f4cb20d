"""`lab`: a small model in the lab of a web page, as one HTML file.

The page has its own engine (`lab_page/engine.js`), which computes two shapes of models: positions that
are added or rotary, LayerNorm or RMSNorm, MLPs that are plain or gated. Whatever this engine would
compute differently is refused here, with the reason. The weights are rounded to 16 bits. A copy of
the model with the rounded weights runs in PyTorch, and some of its logits are stored with the
weights, so that the page can compare its own numbers when it opens.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from safetensors.torch import save
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.ablation import run, run_with
from circuitkit.bridge import Model, copy_model, norms_close_layers, submodules
from circuitkit.checks import checked, require_bridge, require_finite, to_tokens
from circuitkit.conversion.convert import find_mlp
from circuitkit.conversion.neurons import bias_of
from circuitkit.cuts import resolve
from circuitkit.first_use import verdict_on
from circuitkit.heads import Heads, same_rotation
from circuitkit.intervention import Replacement
from circuitkit.names import Name
from circuitkit.norms import FrozenNorm
from circuitkit.parts import Recording, norm_before
from circuitkit.reading import layer_heads

__all__ = ["Lab", "lab"]

LIMITS = {"numbers": 3_000_000, "layers": 12, "heads": 16, "positions": 256}
"""What the lab reads at most; `lab_page/weights.js` has the same limits."""
ROWS, LOGITS = 3, 400
"""How many texts are compared with PyTorch, and about how many logits at each of six positions."""
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_new")


@dataclass(frozen=True, eq=False, repr=False)
class Lab:
    """A model as the lab reads it.

    Parameters
    ----------
    title : the name of the model
    weights : the bytes of a safetensors file, which holds all that the page computes with
    rounding : the largest difference that rounding the weights to 16 bits makes to a logit of the
        texts, and the largest of these logits
    """

    title: str
    weights: bytes
    rounding: tuple[float, float]

    def __repr__(self) -> str:
        difference, largest = self.rounding
        return (
            f"Lab of {self.title}: {len(self.weights) / 1e6:.1f} MB of weights; rounding them to 16 "
            f"bits changes a logit by at most {difference:.2g} (the largest logit is {largest:.3g})"
        )


@checked
def lab(
    model: TransformerBridge,
    text: str | Sequence[str] | Int[Tensor, "..."],
    *,
    title: str | None = None,
) -> Lab:
    """A small model as the engine of the lab reads it, with logits of PyTorch to compare with.

    Parameters
    ----------
    model : a `TransformerBridge` whose shape is that of GPT-2 or of Llama, with MLPs or without
    text : a text, several texts, or token ids `[pos]` or `[batch, pos]`. The page begins with the
        first one, lists all of them, and takes means over them.
    title : the name that the page shows; by default the model's own

    Returns
    -------
    A `Lab`.

    Raises
    ------
    ValueError : for a model that the page would not compute as PyTorch does, with the reason, and
        for one beyond the limits: 3 million numbers, 12 layers, 16 heads in a layer. Run such a model
        in a notebook: `run(model, text, without="L0H1")`

    Notes
    -----
    The page reads at most 256 tokens. Weights are rounded to 16 bits, and `repr` of the result
    shows what this changes. The page computes in double precision: on models with random weights, its
    logits differ from PyTorch's, with the rounded weights, by less than 1e-4 of the largest. A wire is
    cut as in `run`. The mean that replaces a head or a wire is taken over all positions of all
    given texts, where `run` takes it position by position. Source: this book.

    Examples
    --------
    >>> import circuitkit as ck
    >>> page = lab(ck.load_model("one-layer"), "The son of the king began to re")
    >>> page.title
    'one-layer'
    """
    require_bridge(model)
    require_small(model)
    texts = [text] if isinstance(text, str) else list(text) if isinstance(text, Sequence) else None
    given = [to_tokens(model, one) for one in texts] if texts else [*to_tokens(model, text)]
    rows = [row.reshape(1, -1) for row in given]
    if max(row.shape[1] for row in rows) > LIMITS["positions"]:
        raise refused(f"the text has more than {LIMITS['positions']} tokens. Give a shorter text")
    twin = rounded_copy(model, rows[0])
    tensors, card = read(twin)
    checked_rows = [*rows, *random_rows(twin)][:ROWS]
    checks = [*compared(twin, checked_rows, rows)]
    for number, check in enumerate(checks):
        tensors[f"check.{number}"] = check.pop("logits")
    was, now = ([run(one, row).logits.double() for row in rows] for one in (model, twin))
    difference = max(float((a - b).abs().max()) for a, b in zip(was, now, strict=True))
    rounding = (difference, max(float(logits.abs().max()) for logits in now))
    title = str(title or model.cfg.model_name or type(model.original_model).__name__)
    card |= tokens_of(model, texts) | {
        "title": title,
        "rows": [row[0].tolist() for row in rows],
        "checks": checks,
        "rounding": rounding,
    }
    require_numbers(sum(tensor.numel() for tensor in tensors.values()))
    weights = save(tensors, {"lab": json.dumps(card, allow_nan=False)})
    return Lab(title, weights, rounding)


# What is refused


def refused(reason: str) -> ValueError:
    """The error for a model that the page cannot compute."""
    return ValueError(
        f"The lab cannot show this model: {reason}. In a notebook the library runs every model, "
        "with the same cuts: ck.run(model, text, without='L0H1')."
    )


def require_numbers(numbers: int) -> None:
    """Raise a `ValueError` for more weights than the lab reads."""
    if numbers > LIMITS["numbers"]:
        raise refused(f"it has {numbers:,} weights, and the lab reads at most 3,000,000")


def require_small(model: Model) -> None:
    """Raise a `ValueError` for a model beyond the limits, before anything is copied."""
    weights = model.original_model.parameters()
    require_numbers(sum(weight.numel() for weight in weights))
    n_heads = max((block.attn.W_Q.shape[0] for block in attending(model)), default=0)
    for what, number in (("layers", len(model.blocks)), ("heads", n_heads)):
        if number > LIMITS[what]:
            raise refused(f"it has {number} {what}, and the lab reads at most {LIMITS[what]}")


def attending(model: Model) -> list[Any]:
    """The layers, each of which must have attention heads."""
    if any("attn" not in submodules(block) for block in model.blocks):
        raise refused("one of its layers has no attention heads")
    return list(model.blocks)


def require_known_shape(model: Model, heads: Sequence[Heads]) -> None:
    """Raise a `ValueError` for what the engine of the page does not compute."""
    verdict = verdict_on(model)
    problems = [verdict.forward, verdict.logits, verdict.reads, verdict.stream, verdict.unembedding]
    problems += [*verdict.mlps.values(), *verdict.heads.values()]
    problems += [
        f"it multiplies what {part!r} writes by {factor}"
        for part, factor in verdict.factors.items()
        if factor != 1
    ]
    modules = {*submodules(model), *(name for block in model.blocks for name in submodules(block))}
    extra = modules & {"embed_ln", "token_type_embed", "ln1_post", "ln2_post", "mlm_head"}
    if norms_close_layers(model) or extra:
        problems.append(f"it has norms or embeddings of other kinds ({', '.join(extra)})")
    for head in heads:
        n_ctx = min(model.cfg.n_ctx, LIMITS["positions"])
        has_window = head.window is not None and head.window < n_ctx
        problems += [
            head.why_no_patterns,
            "its heads normalise queries and keys" * (head.norm_eps is not None),
            "its scores are capped" * (head.cap is not None),
            f"its heads see only {head.window} positions" * has_window,
            "its heads look ahead" * (head.mask != "causal"),
            "its layers have heads of different kinds" * (not alike(head, heads[0])),
        ]
    if first := next(filter(None, problems), ""):
        raise refused(first.rstrip("."))


def alike(one: Heads, other: Heads) -> bool:
    """Whether the heads of two layers have the same sizes, scale and rotation."""
    sizes = [(len(heads), heads.d_head, heads.scale) for heads in (one, other)]
    return sizes[0] == sizes[1] and same_rotation(one.turn, other.turn)


# A copy with rounded weights, and what the page reads of it


def rounded_copy(model: TransformerBridge, row: Int[Tensor, "row pos"]) -> Model:
    """A copy in float64 whose weights are those that the file holds."""
    twin = copy_model(model)
    before, without_hooks = run(model, row).logits, run(twin, row).logits
    if not torch.allclose(before, without_hooks, rtol=1e-3, atol=1e-3 * float(before.abs().max())):
        raise refused("a hook changes what it computes. Remove it: model.reset_hooks(True)")
    weights = dict.fromkeys([*twin.parameters(), *twin.original_model.parameters()])
    with torch.no_grad():
        for weight in weights:
            weight.copy_(weight.half())
            require_finite(weight, "A weight of this model, rounded to 16 bits,")
    nn.Module.to(twin, torch.float64)
    twin.original_model.to(torch.float64)
    twin.cfg.dtype = torch.float64
    return twin


def stored(value: Tensor) -> Tensor:
    """A tensor as the file holds it: in 16 bits where these are exact, else in 32."""
    value = value.detach().double()
    half = value.half()
    # norms are measured, with a rounding error; all other weights are rounded already
    is_exact = bool(((half - value).abs() <= 1e-6 * value.abs()).all())
    return (half if is_exact else value.float()).contiguous()


def read(model: Model) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a model by the names of the page, and what weights cannot say."""
    heads = [layer_heads(model, layer) for layer, _ in enumerate(attending(model))]
    require_known_shape(model, heads)
    tensors: dict[str, Tensor | None] = {"W_E": model.W_E, "W_U": model.W_U}
    tensors["b_U"] = nonzero(model.b_U)
    norms = {"ln_final": submodules(model).get("ln_final")}
    activations = set()
    for layer, head in enumerate(heads):
        place = f"layers.{layer}"
        block = model.blocks[layer]
        norms[f"{place}.ln1"] = norm_before(model, Name("H", layer))
        for name, value in weights_of_heads(block.attn, head).items():
            tensors[f"{place}.{name}"] = value
        if "mlp" in submodules(block):
            mlp = find_mlp(model, layer)
            activations.add(mlp.activation)
            norms[f"{place}.ln2"] = mlp.norm
            for name in ("in", "gate", "out"):
                tensors[f"{place}.W_{name}"] = getattr(mlp.bridge, f"W_{name}", None)
                tensors[f"{place}.b_{name}"] = nonzero(bias_of(mlp.bridge, name))
    if len(activations) > 1 or not activations <= {*ACTIVATIONS}:
        raise refused(f"its MLPs have the activations {sorted(activations)}")
    found, card = read_norms(norms, model.W_E[:1, None])
    n_ctx = min(model.cfg.n_ctx, LIMITS["positions"])
    n_read = positions_of(model, n_ctx)
    tensors |= found | {"W_pos": n_read}
    card |= {
        "dHead": heads[0].d_head if heads else 1,
        "nCtx": n_ctx,
        "addsPositions": n_read is not None,
        "parallel": bool(model.cfg.parallel_attn_mlp),
        "act": activations.pop() if activations else "gelu",
    }
    if heads:
        card["scale"] = heads[0].scale
    if heads and (turn := heads[0].turn) is not None:
        card["rotary"] = {"gain": turn.gain, "planes": turn.planes.tolist()}
        card["rotary"]["angles"] = turn.angles.tolist()
    return {name: stored(value) for name, value in tensors.items() if value is not None}, card


def nonzero(bias: Tensor | None) -> Tensor | None:
    """A bias, or None if it is zero."""
    return bias if bias is not None and bool(bias.any()) else None


def weights_of_heads(attention: Any, heads: Heads) -> dict[str, Tensor | None]:
    """The matrices of a layer, with the columns of its heads side by side; shared ones once."""
    result: dict[str, Tensor | None] = {"b_O": nonzero(getattr(attention, "b_O", None))}
    for side in "QKV":
        n_groups = len(getattr(attention, f"W_{side}"))
        one_of_each = slice(None, None, len(heads) // n_groups)
        matrix, bias = getattr(heads, f"W_{side}"), getattr(heads, f"b_{side}")
        result[f"W_{side}"] = matrix[one_of_each].movedim(0, 1).flatten(1)
        result[f"b_{side}"] = None if bias is None else bias[one_of_each].flatten()
    return result | {"W_O": heads.W_O.flatten(0, 1)}


def read_norms(norms: dict[str, Any], like: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Gains and biases of norms by place, and their common kind."""
    tensors, kinds = {}, set()
    for place, norm in norms.items():
        module = getattr(norm, "original_component", None)
        if module is None or isinstance(module, nn.Identity):
            continue
        frozen = FrozenNorm.of(module, torch.ones_like(like[..., :1]), like)
        tensors |= {f"{place}.gain": frozen.gain, f"{place}.bias": nonzero(frozen.bias)}
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        kinds.add(("LN" if frozen.centred else "RMS", eps))
    if len(kinds) > 1 or (None in {eps for _, eps in kinds}):
        raise refused(f"its norms are of different kinds: {sorted(kinds, key=str)}")
    kind, eps = kinds.pop() if kinds else ("LN", 1e-5)
    return tensors, {"norm": kind, "eps": eps}


def positions_of(model: Model, n_ctx: int) -> Tensor | None:
    """What the model adds to the stream at each position; None if it adds nothing."""
    done = run(model, torch.zeros(1, n_ctx, dtype=torch.long, device=model.W_E.device))
    added = (
        done.part("pos", before=first_reader(model)) if "pos_embed" in submodules(model) else None
    )
    embedded = done.part("embed", before=first_reader(model))
    if (embedded - model.W_E[0]).abs().max() > 1e-5 * model.W_E.abs().max():
        raise refused("its stream does not begin with the rows of W_E")
    return None if added is None else added[0]


def first_reader(model: Model) -> str:
    """The part that reads what the embeddings wrote."""
    return "L0H0" if len(model.blocks) else "unembed"


# Tokens


def tokens_of(model: Model, texts: list[str] | None) -> dict[str, Any]:
    """The text of each token, and the tokenizer itself where the page has the same kind."""
    tokenizer = getattr(model, "tokenizer", None)
    n_tokens = len(model.W_E)
    if tokenizer is None:
        return {"tokens": [str(number) for number in range(n_tokens)]}
    n_known = min(n_tokens, len(tokenizer))
    tokens = [tokenizer.decode([number]) for number in range(n_known)]
    tokens += [f"<{number}>" for number in range(n_known, n_tokens)]
    bpe = byte_pairs(tokenizer) if texts else None
    if bpe is None:
        return {"tokens": tokens}
    opening = model.to_tokens("a")[0].tolist()
    own = tokenizer("a", add_special_tokens=False)["input_ids"]
    bpe["start"] = opening[: len(opening) - len(own)]
    return {"tokens": tokens, "bpe": bpe, "texts": texts}


def byte_pairs(tokenizer: Any) -> dict[str, Any] | None:
    """A byte-level BPE tokenizer of the kind that the page has; None for another kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    whole = json.loads(backend.to_str())
    before, bpe = whole["pre_tokenizer"] or {}, whole["model"]
    usual = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    settings = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if (
        bpe["type"] != "BPE"
        or whole["normalizer"]
        or any(before.get(name) != value for name, value in usual.items())
        or any(bpe.get(name) for name in (*settings, "ignore_merges"))
    ):
        return None
    ids = bpe["vocab"]
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in bpe["merges"]]
    specials = {one["content"]: one["id"] for one in whole["added_tokens"]}
    return {
        "vocab": sorted(ids, key=ids.get),
        "merges": [ids[part] for pair in pairs for part in pair],
        "specials": specials,
    }


# The comparison with PyTorch


@dataclass(frozen=True)
class Average(Replacement):
    """The mean of a value over all positions of some runs."""

    sources: tuple[Recording, ...] = ()

    def __call__(self, now: Tensor, value_in: Callable[[Recording], Tensor]) -> Tensor:
        """What replaces a value."""
        values = [value_in(source).flatten(0, 1) for source in self.sources]
        return torch.cat(values).mean(0).expand_as(now)


def random_rows(model: Model) -> Iterator[Int[Tensor, "row pos"]]:
    """Rows of random tokens, the same each time."""
    generator = torch.Generator().manual_seed(0)
    for n_pos in (24, 40, 16):
        n_pos = min(n_pos, model.cfg.n_ctx)
        yield torch.randint(len(model.W_E), (1, n_pos), generator=generator)


def compared(
    model: Model, rows: Sequence[Tensor], texts: Sequence[Tensor]
) -> Iterator[dict[str, Any]]:
    """Logits of some rows, each without cuts and with some, for the page to compare."""
    recordings = tuple(run(model, row).recording for row in texts)
    fills = {
        "zero": Replacement("zero"),
        "mean": Average("mean", recordings[0], None, recordings),
    }
    choose = random.Random(0)
    tokens = range(0, len(model.W_E), -(-len(model.W_E) // LOGITS))
    for number, row in enumerate(rows):
        places = range(row.shape[1] - 1, -1, -row.shape[1] // 6)
        fill = ("zero", "mean", "zero")[number]
        for names in ([], some_cuts(model, choose)):
            logits = run_with(model, row, resolve(model, names), fills[fill]).logits
            yield {
                "ids": row[0].tolist(),
                "cuts": names,
                "fill": fill,
                "at": list(places),
                "every": tokens.step,
                "logits": logits[0, list(places)][:, list(tokens)].float().contiguous(),
            }


def some_cuts(model: Model, choose: random.Random) -> list[str]:
    """A head, and a wire into each input of later heads, at random."""
    layers = len(model.blocks)
    heads = [f"L{layer}H{head}" for layer in range(layers) for head in range(model.cfg.n_heads)]
    names = [choose.choice(heads)] if heads else []
    for side in "QKV":
        if layers > 1:
            late = choose.randrange(1, layers)
            early = choose.randrange(late)
            writer, reader = (choose.randrange(model.cfg.n_heads) for _ in range(2))
            names.append(f"L{early}H{writer}->L{late}H{reader}.{side}")
    return names
