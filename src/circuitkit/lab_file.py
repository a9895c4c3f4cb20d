"""`lab`: a small model in the lab of a web page, as one HTML file.

The page has its own engine (`lab_page/engine.js`), which computes two shapes of models: positions that
are added or rotary, LayerNorm or RMSNorm, MLPs that are plain or gated. Whatever this engine would
compute differently is refused here, with the reason. The weights are rounded to 16 bits. A copy of
the model with the rounded weights runs in PyTorch, and some of its logits are stored with the
weights, so that the page can compare its own numbers when it opens.
"""

import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from circuitkit.ablation import run, run_with
from circuitkit.bridge import copy_model, norms_close_layers, own_hooks_only, submodules
from circuitkit.checks import checked, require_bridge, require_finite
from circuitkit.conversion.convert import FoundMLP, find_mlp, is_mixture
from circuitkit.conversion.neurons import bias_of
from circuitkit.cuts import resolve
from circuitkit.effects import wires
from circuitkit.figures import circuit
from circuitkit.figures.pictures import STILL
from circuitkit.first_use import verdict_on
from circuitkit.heads import Heads, first_difference
from circuitkit.intervention import Replacement
from circuitkit.lab_page import bundle
from circuitkit.names import SIDES, Name
from circuitkit.norms import FrozenNorm
from circuitkit.parts import head_names, neurons_in, norm_before
from circuitkit.reading import attention_layers, layer_heads
from circuitkit.residual import why
from circuitkit.rows import Rows, Text, read_rows

__all__ = ["Lab", "lab"]

NUMBERS, LAYERS, HEADS, POSITIONS, TEXTS = 3_000_000, 12, 16, 256, 64
"""What the lab reads at most; `lab_page/weights.js` and `own.js` have the same limits."""
IN_PLACE = 4_000_000
"""The largest page, in bytes, that a notebook shows in place."""
CHECKED = 2500
"""About how many logits of a text are compared with PyTorch."""


@dataclass(frozen=True, eq=False, repr=False)
class Lab:
    """A model in the lab: `.save("my-lab.html")` writes the page, and a notebook shows it in place.

    Parameters
    ----------
    title : the name of the model
    weights : the bytes of a safetensors file, which holds all that the page computes with
    rounding : the largest difference that rounding the weights to 16 bits makes to a logit of the
        texts, and the largest of these logits
    heads : what each head adds to the logit of the most probable token after the first text
    """

    title: str
    weights: bytes
    rounding: tuple[float, float]
    heads: dict[str, float]

    def __repr__(self) -> str:
        return (
            f"Lab of {self.title}. Rounding its weights to 16 bits changes a logit by at most "
            f"{self.rounding[0]:.1g}; the largest is {self.rounding[1]:.2g}. "
            'ck.lab(model, text).save("my-lab.html") writes the page.'
        )

    @property
    def html(self) -> str:
        """The page."""
        return bundle.one_file(self.title, self.weights)

    def save(self, out: str | Path) -> Path:
        """Write the page, which opens without a network connection; returns where it is.

        Parameters
        ----------
        out : a name that ends in `.html`

        Raises
        ------
        ValueError : if no page can be written there
        """
        out = Path(out)
        if out.suffix != ".html" or out.is_dir() or not out.parent.is_dir():
            raise ValueError(
                f"The lab cannot be written to {str(out)!r}. Write a name that ends in .html, in a "
                "folder that exists."
            )
        unfinished = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            unfinished.write_text(self.html, "utf-8")
            unfinished.replace(out)
        finally:
            unfinished.unlink(missing_ok=True)
        return out

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        """What Jupyter shows: the page itself, or a still picture."""
        said, page = {"text/plain": repr(self)}, self.html
        if os.environ.get(STILL) and self.heads:
            alt = f"The heads of {self.title}, and what each adds to the logit of the next token"
            data, more = circuit(self.heads, alt=alt)._repr_mimebundle_()
            return data | said, more
        if os.environ.get(STILL) or len(page) > IN_PLACE:
            return said, {}
        style = "width:100%;height:60rem;border:1px solid"
        frame = f'<iframe title="{escape(self.title)}" srcdoc="{escape(page)}" style="{style}">'
        return said | {"text/html": f"{frame}</iframe>"}, {}


@checked
def lab(
    model: TransformerBridge,
    text: Text,
    *,
    title: str = "",
) -> Lab:
    """A small model in the lab: a web page in which heads and wires are cut by a click.

    `lab(model, text).save("my-lab.html")` writes one HTML file that opens without a network
    connection. The page computes the model itself, and compares its logits with stored ones of
    PyTorch when it opens. The lab of the book's website opens the same file. A notebook shows the
    page in place if it is smaller than 4 MB.

    Parameters
    ----------
    model : a `TransformerBridge` whose shape is that of GPT-2 or of Llama, with MLPs or without.
        GPT-NeoX, Phi, OPT and Qwen2 work, too; Qwen3, Gemma, OLMo 2 and BERT are refused.
    text : a text, several texts, or token ids `[pos]` or `[batch, pos]`. The page begins with the
        first one, lists all of them, and takes means over them.
    title : the name that the page shows; by default the model's own

    Returns
    -------
    A `Lab`.

    Raises
    ------
    ValueError : for a model that the page would not compute as PyTorch does, with the reason, and
        for one beyond the limits: 3 million weights, 12 layers, 16 heads in a layer. Run such a model
        in a notebook: `run(model, text, without="L0H1")`

    Notes
    -----
    The page reads at most 256 tokens. Weights are rounded to 16 bits, and `repr` of the result
    shows what this changes. The page computes in double precision. It is compared with PyTorch on the
    rounded weights, and refuses to show a model if a logit differs by more than 1e-4 of the largest
    one. A model without a tokenizer takes token ids: `lab(model, torch.tensor([[5, 7, 5]]))`. A wire is
    cut as in `run`. The mean that replaces a head or a wire is taken over all positions of all
    given texts, where `run` takes it position by position. Source: this book.

    Examples
    --------
    >>> import circuitkit as ck
    >>> ck.lab(ck.load_model("one-layer"), "The son of the king began to re").title
    'one-layer'
    """
    require_bridge(model)
    n_weights = sum(weight.numel() for weight in model.original_model.parameters())
    require_at_most(NUMBERS, n_weights, "weights")
    texts = read_rows(model, text)
    rows = [
        row[None, :length].cpu() for row, length in zip(texts.tokens, texts.lengths, strict=True)
    ]
    require_at_most(TEXTS, len(rows), "texts")
    require_at_most(POSITIONS, max(row.shape[1] for row in rows), "tokens in a text")
    mlps_of(model)  # refused before it runs in float64, which a mixture of experts does not
    twin = rounded_copy(model, rows[0])
    tensors, card = read(twin)
    checks = list(compared(twin, [*rows, *random_rows(twin)][:3], rows))
    for number, check in enumerate(checks):
        tensors[f"check.{number}"] = check.pop("logits")
    was, now = (
        torch.cat([run(one, [row]).logits[0].cpu() for row in rows]) for one in (model, twin)
    )
    rounding = float((was - now).abs().max()), float(now.abs().max())
    shares = (
        why(twin, [rows[0]], int(now[rows[0].shape[1] - 1].argmax())) if head_names(twin) else {}
    )
    title = title or Path(model.cfg.model_name or type(model.original_model).__name__).name
    card |= {"title": title, "rows": [row[0].tolist() for row in rows], "checks": checks}
    card |= tokens_of(model) | {"rounding": rounding}
    given: Any = [text] if isinstance(text, str) else text
    if "bpe" in card and isinstance(given, Sequence) and isinstance(given[0], str):
        card["texts"] = list(given)
    require_at_most(NUMBERS, sum(tensor.numel() for tensor in tensors.values()), "weights")
    weights = save(tensors, {"lab": json.dumps(card, allow_nan=False)})
    return Lab(title, weights, rounding, {name: float(shares[name]) for name in head_names(twin)})


# What is refused


def refused(reason: str) -> ValueError:
    """The error for a model that the page cannot compute."""
    return ValueError(
        f"The lab cannot show this model: {reason.rstrip('.')}. In a notebook, "
        "ck.run(model, tokens, without='L0H1') makes the same cuts where the library can read the model."
    )


def require_at_most(limit: int, number: int, what: str) -> None:
    """Raise a `ValueError` for more than the lab reads."""
    if number > limit:
        raise refused(f"there are {number:,} {what}, and the lab reads at most {limit:,}")


def require_known_shape(model: TransformerBridge, heads: Sequence[Heads]) -> None:
    """Raise a `ValueError` for what the engine of the page does not compute."""
    require_at_most(LAYERS, len(model.blocks), "layers")
    verdict = verdict_on(model)
    whole = vars(verdict) | {"unembedding": re.sub("they|them", "its logits", verdict.unembedding)}
    problems = [reason for reason in whole.values() if isinstance(reason, str)]
    problems += [*verdict.mlps.values(), *verdict.heads.values()]
    if any(factor != 1 for factor in verdict.factors.values()):
        problems.append("it multiplies what its parts write")
    modules = {*submodules(model), *(name for block in model.blocks for name in submodules(block))}
    others = modules & {"embed_ln", "token_type_embed", "ln1_post", "ln2_post", "mlm_head"}
    if norms_close_layers(model) or others:
        problems.append(f"it has norms or embeddings of other kinds ({', '.join(sorted(others))})")
    if len(heads) < len(model.blocks):
        problems.append("one of its layers has no attention heads")
    for layer in heads:
        require_at_most(HEADS, len(layer), "heads in a layer")
        window = layer.window or POSITIONS
        difference = first_difference([heads[0], layer])
        reasons = {
            "its heads normalise queries and keys": layer.norm_eps is not None,
            "its scores are capped": layer.cap is not None,
            f"its heads see only {window} positions": window < min(model.cfg.n_ctx, POSITIONS),
            "its heads look ahead": layer.mask != "causal",
            f"its layers differ in {difference}": difference or len(layer) != len(heads[0]),
        }
        problems += [layer.why_no_patterns, *(reason for reason, is_so in reasons.items() if is_so)]
    for problem in filter(None, problems):
        raise refused(problem)


def mlps_of(model: TransformerBridge) -> dict[int, FoundMLP]:
    """The MLPs of a model by their layers, or a `ValueError` for one that the page cannot compute."""
    if any(is_mixture(block.mlp) for block in model.blocks if "mlp" in submodules(block)):
        raise refused("its MLPs are mixtures of experts")
    try:
        return {
            layer: find_mlp(model, layer)
            for layer, block in enumerate(model.blocks)
            if "mlp" in submodules(block)
        }
    except ValueError as problem:
        raise refused(str(problem)) from None


# A copy with rounded weights, and what the page reads of it


def rounded_copy(model: TransformerBridge, row: Int[Tensor, "row pos"]) -> TransformerBridge:
    """A copy on the processor, in float64, whose weights are those that the file holds."""
    with own_hooks_only(model):
        twin, plain = copy_model(model), run(model, [row]).logits
    if not torch.allclose(run(model, [row]).logits, plain, rtol=1e-3, atol=1e-3):
        raise refused("a hook changes what it computes; model.reset_hooks(True) removes it")
    with torch.no_grad():
        for weight in {*twin.parameters(), *twin.original_model.parameters()}:
            weight.copy_(weight.half())
            require_finite(weight, "A weight of this model, rounded to 16 bits,")
    for module in (twin, twin.original_model):
        nn.Module.to(module, "cpu", torch.float64)
    twin.cfg.dtype, twin.cfg.device = torch.float64, "cpu"
    return twin


def stored(value: Tensor) -> Tensor:
    """A tensor as the file holds it: in 16 bits where these are exact, else in 32."""
    half = value.detach().half()
    # norms are measured, with a rounding error; all other weights are rounded already
    is_exact = bool(((half - value).abs() <= 1e-6 * value.abs()).all())
    return (half if is_exact else value.detach().float()).contiguous()


def read(model: TransformerBridge) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a model by the names of the page, and what weights cannot say."""
    layers = [layer_heads(model, layer) for layer in attention_layers(model)]
    require_known_shape(model, layers)
    tensors: dict[str, Tensor | None] = {"W_E": model.W_E, "W_U": model.W_U, "b_U": model.b_U}
    norms, activations = {"ln_final": submodules(model).get("ln_final")}, set()
    mlps = mlps_of(model)
    for layer, heads in enumerate(layers):
        place, attention = f"layers.{layer}", model.blocks[layer].attn
        norms[f"{place}.ln1"] = norm_before(model, Name("H", layer))
        tensors |= {f"{place}.{name}": value for name, value in side_by_side(attention, heads)}
        if layer not in mlps:
            continue
        mlp = mlps[layer]
        activations.add(mlp.activation)
        norms[f"{place}.ln2"] = mlp.norm
        for name in ("in", "gate", "out"):
            tensors[f"{place}.W_{name}"] = getattr(mlp.bridge, f"W_{name}", None)
            tensors[f"{place}.b_{name}"] = bias_of(mlp.bridge, name)
    if len(activations) > 1 or not activations <= {"relu", "silu", "gelu", "gelu_new"}:
        raise refused(f"its MLPs have the activations {sorted(activations)}")
    n_ctx = min(model.cfg.n_ctx, POSITIONS)
    tensors["W_pos"] = positions_of(model, n_ctx)
    card = {"nCtx": n_ctx, "addsPositions": True, "parallel": bool(model.cfg.parallel_attn_mlp)}
    card |= {"dHead": 1, "act": next(iter(activations), "gelu")} | read_norms(
        norms, model.W_E, tensors
    )
    if layers:
        card |= {"dHead": layers[0].d_head, "scale": layers[0].scale}
        if turn := layers[0].turn:
            planes, angles = turn.planes.tolist(), turn.angles.tolist()
            card["rotary"] = {"gain": turn.gain, "planes": planes, "angles": angles}
    there = {name: stored(value) for name, value in tensors.items() if value is not None}
    for name, value in list(there.items()):
        # biases or positions of zeros are none
        if name.split(".")[-1].startswith(("b", "W_pos")) and not value.any():
            del there[name]
    return there, card


def side_by_side(attention: Any, heads: Heads) -> Iterator[tuple[str, Tensor | None]]:
    """The weights of a layer, with the columns of its heads side by side; shared ones once."""
    yield "W_O", heads.W_O.flatten(0, 1)
    yield "b_O", getattr(attention, "b_O", None)
    for side in "QKV":
        of_each_group = slice(None, None, len(heads) // len(getattr(attention, f"W_{side}")))
        bias = getattr(heads, f"b_{side}")
        yield f"W_{side}", getattr(heads, f"W_{side}")[of_each_group].movedim(0, 1).flatten(1)
        yield f"b_{side}", None if bias is None else bias[of_each_group].flatten()


def read_norms(
    norms: dict[str, Any], W_E: Tensor, tensors: dict[str, Tensor | None]
) -> dict[str, Any]:
    """Add the gains and biases of norms to the tensors, and return their common kind."""
    like, kinds = W_E[:1, None], {}
    for place, norm in norms.items():
        module = getattr(norm, "original_component", None)
        if module is None or isinstance(module, nn.Identity):
            continue
        frozen = FrozenNorm.of(module, like[..., :1], like)
        tensors |= {f"{place}.gain": frozen.gain, f"{place}.bias": frozen.bias}
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        kinds[frozen.centred, eps] = {"norm": "LN" if frozen.centred else "RMS", "eps": eps}
    if len(kinds) > 1:
        raise refused("its norms are of different kinds")
    return next(iter(kinds.values()), {})


def positions_of(model: TransformerBridge, n_ctx: int) -> Float[Tensor, "pos d_model"]:
    """What the model adds to the stream at each position, which may be zero."""
    # Not only one token: the row of a padding token is zero, whatever the model multiplies it by.
    tokens = torch.linspace(0, len(model.W_E) - 1, n_ctx).long()
    recording = run(model, [tokens]).recording
    embedded, added = (recording.start_output(Name(kind))[0] for kind in ("embed", "pos"))
    if not torch.allclose(embedded, model.W_E[tokens], rtol=1e-5, atol=1e-7):
        raise refused("its stream does not begin with the rows of W_E")
    return added


# Tokens


def tokens_of(model: TransformerBridge) -> dict[str, Any]:
    """The text of each token, and the tokenizer itself where the page has the same kind."""
    tokenizer = model.tokenizer
    numbers = range(len(model.W_E))
    if tokenizer is None:
        return {"tokens": [str(number) for number in numbers]}
    n_known = len(tokenizer)
    known = {"tokens": [tokenizer.decode([n]) if n < n_known else f"<{n}>" for n in numbers]}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    whole = json.loads(backend.to_str() if backend else '{"model": {"type": ""}}')
    before, bpe = whole.get("pre_tokenizer") or {}, whole["model"]
    kind = bpe["type"], before.get("type"), whole.get("normalizer")
    others = "dropout", "byte_fallback", "ignore_merges", "continuing_subword_prefix"
    is_of_the_page = (
        kind == ("BPE", "ByteLevel", None)
        and before["use_regex"]
        and not before["add_prefix_space"]
        and not any(bpe.get(name) for name in (*others, "end_of_word_suffix"))
    )
    if not is_of_the_page:
        return known
    opening = model.to_tokens("a")[0].tolist()
    start = opening[: len(opening) - len(tokenizer("a", add_special_tokens=False)["input_ids"])]
    specials = {token["content"]: token["id"] for token in whole["added_tokens"]}
    return known | {"bpe": bundle.byte_pairs(bpe) | {"start": start, "specials": specials}}


# The comparison with PyTorch


def random_rows(model: TransformerBridge) -> list[Int[Tensor, "row pos"]]:
    """Two rows of random tokens, the same each time."""
    shape = 2, 1, min(40, model.cfg.n_ctx)
    generator = torch.Generator().manual_seed(0)
    return list(torch.randint(len(model.W_E), shape, generator=generator))


def compared(
    model: TransformerBridge, rows: Sequence[Tensor], texts: Sequence[Tensor]
) -> Iterator[dict[str, Any]]:
    """Logits of some rows, each without cuts and with some, for the page to compare."""
    whole = run(model, list(texts))
    average = Replacement("mean over tokens", whole.recording, rows=whole.rows)
    choose = random.Random(0)
    for row, fill in zip(rows, (Replacement("zero"), average, average), strict=True):
        every = -(-row.shape[1] * len(model.W_E) // CHECKED)
        neurons = [str(name) for layer in mlps_of(model) for name in neurons_in(model, layer)]
        kinds = [head_names(model), *(wires(model, side) for side in SIDES), neurons]
        for names in ([], [choose.choice(names) for names in kinds if names]):
            logits = run_with(model, Rows.of(row), resolve(model, names), fill).logits
            yield {
                "ids": row[0].tolist(),
                "cuts": names,
                "fill": fill.fill.split()[0],
                "every": every,
                "logits": logits[0, :, ::every].float().contiguous(),
            }
