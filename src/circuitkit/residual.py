"""The residual stream as a sum: what each part adds to it, and what it adds to a logit.

A part writes to the stream and later parts read from it, so the weights of a writer and a reader
can be multiplied without running the model: these products are the virtual weights.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import FactoredMatrix

from circuitkit.ablation import require_numbers, run, run_with
from circuitkit.bridge import Model, norms_close_layers, submodules
from circuitkit.checks import checked, require_bridge, require_finite
from circuitkit.cuts import resolve
from circuitkit.first_use import (
    factor_of,
    require_norms_before_layers,
    require_own_keys,
    require_right_weights,
    require_sum_of_logits,
    require_unembedding_of_stream,
)
from circuitkit.intervention import Replacement
from circuitkit.names import Name, parse, unknown
from circuitkit.norms import FrozenNorm
from circuitkit.parts import (
    biases_at_end,
    head_names,
    hooks_to_record,
    n_heads,
    norm_before,
    require_part,
    start_names,
    step_of,
)
from circuitkit.reading import converted_neurons
from circuitkit.rows import Answer, Rows, Text, answer_ids, read_rows
from circuitkit.tables import Table

__all__ = [
    "decompose",
    "logit_attribution",
    "virtual_weights",
    "why",
]


# The stream as a sum


@checked
def decompose(model: Model, tokens: Text) -> Table:
    """Split the last residual stream into what each part has left in it.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, a list of texts of any lengths, or token ids `[pos]` or `[batch, pos]`

    Returns
    -------
    A `Table` of `[part, batch, pos, d_model]`, which sums over the parts to the stream before the
    last norm; NaN at padding. The parts are the embeddings, each head, the output bias of each layer that has one
    (also if it is zero, so that all checkpoints of a model have the same parts), and each MLP.
    There is one exception: the shipped attention-only models and those of `handmade.bridge_of` count
    as models without biases, so there a bias is a part only if its value is not zero. A converted MLP
    is one part.

    Raises
    ------
    ValueError : if the parts do not add up to the stream, because a hook changes it between them

    Notes
    -----
    `x_final = embed + pos + sum_h z_h W_O^h + sum_l b_O^l + sum_l mlp^l`. A norm behind a layer
    (Gemma 2) or of the whole stream (BERT) keeps the divisor that it had in this run.
    Error: exact up to rounding. Source: "A Mathematical Framework for Transformer Circuits", the
    residual stream as a sum.

    Examples
    --------
    >>> import circuitkit as ck
    >>> split = decompose(ck.load_model("one-layer"), "The house")
    >>> split.names[:3], split["L0H1"].shape[-1]
    (('embed', 'pos', 'L0H0'), 160)
    """
    model_run = run(model, tokens)
    parts = model_run.parts()
    values = torch.stack(list(parts.values()))
    require_sum(values, model_run.stream(), "stream")
    return Table(values, {"part": tuple(parts)}, "residual stream")


@torch.no_grad()
def require_sum(
    shares: Float[Tensor, "part *batch any"], whole: Float[Tensor, "*batch any"], what: str
) -> None:
    """Raise a `ValueError` unless shares add up, up to rounding, to what a run has computed."""
    total, is_text = shares.sum(0), ~whole.isnan()
    size = shares.abs().sum(0).nan_to_num().amax(-1, keepdim=True)
    if bool((total.isnan() & is_text).any()):
        raise ValueError(
            f"The parts of the {what} are not numbers (NaN). Look for NaN among the model's weights."
        )
    # rounding errors of many layers add up, most of all in half precision
    tolerance = max(1e-3, torch.finfo(whole.dtype).eps ** 0.5)
    excess = ((total - whole).abs() - tolerance * size).where(is_text, 0)
    if excess.max() > 0:
        place = excess.argmax()
        raise ValueError(
            f"The parts add up to {total.flatten()[place]:.4g}, and the {what} is "
            f"{whole.flatten()[place]:.4g}. A hook changes values in a way that no part shows. Remove it: "
            "model.reset_hooks(including_permanent=True) removes all hooks of transformer-lens, and "
            "handle.remove() a hook of torch, where handle is what register_forward_hook has returned. "
            "If there is no hook, the model computes more than its weights say, such as with clip_qkv or a "
            "gate behind its heads; then measure in runs: run(model, tokens, without='L0H1')."
        )


# A logit as a sum


@checked
def logit_attribution(
    model: Model,
    tokens: Text,
    answer: Answer,
    versus: Answer | None = None,
    *,
    neurons: bool = False,
) -> Table:
    """Split a logit at every position into what each part adds to it.

    A softmax does not change if all logits rise by the same number, so a part that raises every
    logit seems to support any answer. Compare with another token, or with the mean of all logits.

    Parameters
    ----------
    model : a `TransformerBridge` whose logits are not capped
    tokens : a text, a list of texts of any lengths, or token ids `[pos]` or `[batch, pos]`
    answer : a token id or a string that is one token; a list with one for each text; or an id for each
        position, with the shape of `tokens`
    versus : what is subtracted: the logit of another answer, given in the same ways, or with
        `"mean"` the mean over the vocabulary; nothing if it is None
    neurons : whether each neuron of an MLP, converted or not, is a part of its own

    Returns
    -------
    A `Table` of `[part, batch, pos]` in logits, which sums over the parts to the model's logit. It is
    NaN at padding. The entries `"norm bias"` and `"unembed bias"` follow if the model has these biases.

    Raises
    ------
    ValueError : for an answer that is not one token or has another shape, for a model whose
        logits are capped or that has a network before its unembedding, and if the parts do not add
        up to the logit, because a hook changes it

    Notes
    -----
    Without a norm, `logit = sum_c r_c . W_U[:, answer]`. The last norm is frozen at the divisor of
    this run, `r_c -> (r_c - mean) / scale * gain`, so that a part also changes the divisor is
    attributed to no part. Error: exact up to rounding. Source: "A Mathematical Framework for
    Transformer Circuits", logits as a sum over paths; the treatment of norms is this book's.

    Examples
    --------
    >>> import circuitkit as ck
    >>> shares = logit_attribution(ck.load_model("one-layer"), "The house", " is", "mean")
    >>> shares["L0H1"].shape
    torch.Size([1, 3])
    """
    rows = read_rows(model, tokens)
    require_sum_of_logits(model)
    ids = answer_ids(model, rows, answer)
    is_by_mean = isinstance(versus, str) and versus == "mean"
    other = None if versus is None or is_by_mean else answer_ids(model, rows, versus)
    direction = at_answers(model.W_U.detach().mT, ids, other, is_by_mean)
    # patterns of long texts are large, and are not read here
    hooks = hooks_to_record(model, model.hook_dict)
    recorded = {hook for hook in hooks if not hook.endswith("hook_pattern")}
    with torch.no_grad():
        model_run = run_with(model, rows, resolve(model, []), Replacement("zero"), recorded)
    require_numbers(model_run)
    norm = model_run.recording.final_norm()
    read = direction
    if norm is not None:
        read = norm.fold(direction[..., None])[..., 0] / norm.scale  # [batch, pos, d_model]
    shares = model_run.contributions(read.to(direction), neurons=neurons)
    norm_has_bias, unembedding_has_bias = biases_at_end(model)
    if norm is not None and (norm_has_bias or norm.bias.any()):
        shares["norm bias"] = rows.blank((direction * norm.bias).sum(-1))  # exact in autocast, too
    if unembedding_has_bias:
        b_U = at_answers(model.b_U.detach(), ids, other, is_by_mean)
        shares["unembed bias"] = rows.blank(b_U)
    values = torch.stack(list(shares.values()))
    logits = model_run.logits
    whole = logits.gather(-1, ids[..., None])[..., 0]
    if is_by_mean:
        whole = whole - logits.mean(-1)
    elif other is not None:
        whole = whole - logits.gather(-1, other[..., None])[..., 0]
    require_sum(values, whole, "logit")
    return Table(values, {"part": tuple(shares)}, "logit")


def at_answers(
    table: Float[Tensor, "d_vocab *any"], ids: Tensor, other: Tensor | None, is_by_mean: bool
) -> Float[Tensor, "batch pos *any"]:
    """The rows of a table at the answers, minus those at other ones or minus the mean of all rows."""
    chosen = table[ids]
    if is_by_mean:
        return chosen - table.mean(0)
    return chosen if other is None else chosen - table[other]


@checked
def why(
    model: Model,
    text: Text,
    answer: Answer,
    *,
    versus: Answer | None = "mean",
    position: int = -1,
    neurons: bool = False,
) -> Table:
    """Split the logit of one answer into what each part adds to it, at one position.

    Parameters
    ----------
    model : a `TransformerBridge` whose logits are not capped
    text : a text, a list of texts of any lengths, or token ids `[pos]` or `[batch, pos]`
    answer : the next token: an id, or a string that is one token; or one for each text
    versus : what is subtracted: by default the mean of all logits; another answer, or None
    position : where the answer is predicted; the last position of each text by default
    neurons : whether each neuron of an MLP, converted or not, is a part of its own

    Returns
    -------
    A `Table` with one number for each part, `.top(5)` ranks them; of several texts, `[part, text]`.

    Raises
    ------
    ValueError : for a position outside the text, and as in `logit_attribution`

    Notes
    -----
    Error: exact up to rounding; see `logit_attribution`. Source: "A Mathematical Framework for
    Transformer Circuits", logits as a sum over paths.

    Examples
    --------
    >>> import circuitkit as ck
    >>> text = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
    >>> list(why(ck.load_model("two-layer"), text, "or").top(1).names)
    ['L1H3']
    """
    rows = read_rows(model, text)
    rows.index(position)
    # an id may be an element of a tensor, and a tensor may have one for each text
    answer = answer.tolist() if isinstance(answer, Tensor) else answer
    versus = versus.tolist() if isinstance(versus, Tensor) else versus
    shares = logit_attribution(model, rows, answer, versus, neurons=neurons)
    title = f"logit of {answer!r}"
    if versus == "mean":
        title += " minus the mean logit"
    elif versus is not None:
        title += f" minus that of {versus!r}"
    values = torch.stack([rows.pick(share, position) for share in shares.values])
    return Table(values if len(rows.tokens) > 1 else values[:, 0], shares.axes, title)


def require_one_text(rows: Rows) -> None:
    """Raise a `ValueError` for a batch of several texts."""
    if len(rows.tokens) != 1:
        raise ValueError(
            f"One text is needed, and these are {len(rows.tokens)} rows of tokens. "
            "Choose a row, such as tokens[0]."
        )


# What weights say about the stream


def require_products(model: Model) -> None:
    """Raise a `ValueError` for a model whose weights of writers and readers have no products."""
    require_bridge(model)
    require_right_weights(model)
    require_norms_before_layers(model)
    if norms_close_layers(model):
        raise ValueError(
            "This model normalises its whole stream between its layers (as BERT does), so the "
            "weights of a writer and a reader cannot be multiplied. Use residual.decompose."
        )


def writers_and_readers(model: Model) -> tuple[list[str], list[str]]:
    """The names of all writers and all readers, in order; a converted MLP is one of them."""
    writers, readers = [str(name) for name in start_names(model)], []
    for layer, block in enumerate(model.blocks):
        for head in head_names(model, layer):
            writers.append(head)
            readers.extend(f"{head}.{side}" for side in "QKV")
        if "mlp" in submodules(block):
            mlp = f"L{layer} MLP"
            writers.append(mlp)
            # a mixture of experts has none, and no other single matrix
            is_gated = getattr(mlp_of(model, layer), "W_gate", None) is not None
            readers.extend([f"{mlp}.Q", f"{mlp}.V"] if is_gated else [mlp])
    return writers, [*readers, "unembed"]


def is_neuron(model: Model, text: str, *, with_side: bool) -> bool:
    """Whether a name is that of a neuron; a `ValueError` for one that the model does not have."""
    name, *more = parse(text)
    if more or name.kind != "N":
        return False
    require_part(model, name.part)
    is_gated = getattr(mlp_of(model, name.layer or 0), "W_gate", None) is not None
    if name.side is not None and not (with_side and is_gated and name.side in "QV"):
        raise ValueError(
            f"{text!r} is no writer, or names an input that the neuron does not have. Write "
            f"'{name.part}'; only a neuron of a gated MLP reads with .Q (its gate) and .V."
        )
    return True


def mlp_of(model: Model, layer: int) -> Any:
    """What holds W_in, W_gate and W_out of a layer: its MLP, or the neurons it was converted to."""
    return converted_neurons(model, layer) or model.blocks[layer].mlp


def require_one_matrix(model: Model, part: Name) -> None:
    """Raise a `ValueError` for an MLP that does not read with one matrix and write with another."""
    mlp = mlp_of(model, part.layer or 0)
    if not hasattr(mlp, "W_in") or not hasattr(mlp, "W_out"):
        raise ValueError(
            f"{str(part.part)!r} is a mixture of experts or another MLP ({type(mlp).__name__}) "
            "without one matrix that reads and one that writes, so it has no virtual weights. Give "
            f"a head or an embedding instead, or measure it: run(model, tokens).part({str(part.part)!r})."
        )


def writer_matrix(model: Model, name: str) -> Float[Tensor, "rows d_model"]:
    """What a part writes with, behind the gain of a norm behind its layer, times its `factor_of`."""
    (part,) = parse(name)
    if part.kind == "embed":
        ids = torch.arange(len(model.W_E), device=model.W_E.device)
        # with the gain that Gemma gives its embedding in the module itself
        return multiplied(model, "embed", model.embed(ids[None])[0], "The embedding")
    if part.kind == "pos" or part.layer is None:
        norm = undivided(model, submodules(model).get("embed_ln"))
        return model.W_pos.detach() if part.kind == "pos" or norm is None else norm.bias[None]
    if part.kind == "H":
        W, kind = model.blocks[part.layer].attn.W_O[part.number], "attn"
    else:
        require_one_matrix(model, part)
        W, kind = mlp_of(model, part.layer).W_out, "mlp"
        W = W[[part.number]] if part.kind == "N" else W
    return behind_layer(model, part.layer, kind, W, f"What {name} writes with")


def behind_layer(model: Model, layer: int, kind: str, W: Tensor, what: str) -> Tensor:
    """Weights that write at the end of a layer (`"attn"`, `"mlp"`), as they reach the stream.

    They are behind the gain of the norm that may follow the layer, and times its `factor_of`. Rows of
    one head or of all heads can be given.
    """
    after = "ln1_post" if kind == "attn" else "ln2_post"
    norm = undivided(model, submodules(model.blocks[layer]).get(after))
    W = W.detach() if norm is None else norm.apply(W.detach())
    return multiplied(model, f"L{layer} {kind}", W, what)


def multiplied(model: Model, part: str, W: Tensor, what: str) -> Tensor:
    """Weights times what the model multiplies their products with; a `ValueError` for NaN."""
    require_finite(W, what)
    return W.detach() * factor_of(model, part)


def unembedding_matrix(model: Model) -> Float[Tensor, "d_model d_vocab"]:
    """`W_U` times what the model multiplies its logits with (`logit_scale` of Cohere)."""
    return multiplied(model, "unembed", model.W_U, "W_U")


def reader_matrix(model: Model, name: str) -> Float[Tensor, "d_model columns"]:
    """What an input reads with, with the gain and the centring of the norm before it."""
    require_own_keys(model)
    (part,) = parse(name)
    if part.kind == "unembed" or part.layer is None:
        W, norm = unembedding_matrix(model), submodules(model).get("ln_final")
    elif part.kind == "H" and part.number is not None:
        groups = getattr(
            model.blocks[part.layer].attn, f"W_{part.side}"
        )  # [group, d_model, d_head]
        group = part.number * len(groups) // n_heads(model, part.layer)
        W, norm = groups[group], norm_before(model, part)
    else:
        W, norm = mlp_input(model, part), norm_before(model, part)
    require_finite(W, f"What {name} reads with")
    norm = undivided(model, norm)
    return W.detach() if norm is None else norm.fold(W.detach())


def mlp_input(model: Model, part: Name) -> Float[Tensor, "d_model columns"]:
    """What an MLP or a neuron, its gate alone (Q), or what the gate multiplies (V), reads with."""
    require_one_matrix(model, part)
    mlp = mlp_of(model, part.layer or 0)
    matrices = [mlp.W_gate, mlp.W_in] if part.side is None else []
    matrices = matrices or [mlp.W_gate if part.side == "Q" else mlp.W_in]
    matrices = [W if part.kind == "MLP" else W[:, [part.number]] for W in matrices if W is not None]
    return torch.cat(matrices, dim=1)


def undivided(model: Model, norm: Any) -> FrozenNorm | None:
    """A norm of the model without its division; None if there is no norm."""
    if norm is None or isinstance(norm.original_component, torch.nn.Identity):
        return None
    like = model.W_E.new_zeros(1, 1, model.cfg.d_model)
    with torch.no_grad():
        return FrozenNorm.of(norm.original_component, torch.ones_like(like[0, 0, :1]), like)


@checked
def virtual_weights(model: Model, writer: str, reader: str) -> FactoredMatrix:
    """Multiply what a part writes with by what a later input reads with, up to a norm's divisor.

    Parameters
    ----------
    model : a `TransformerBridge`
    writer, reader : such as `"L0H1"` (its `W_O`), `"L0 MLP"`, the neuron `"L0N12"` or `"embed"`, and
        `"L1H0.K"`, `"L1 MLP"`, `"L1N12"` or `"unembed"`. For a gated MLP or one of its neurons,
        `"L1 MLP"` is the whole input: the columns of the gate, then those that it multiplies

    Returns
    -------
    `W_out C diag(gain) W_in` as its two factors, `W_out` and the rest. The gain is that of the norm
    before the reader, and `C` subtracts the mean over d_model where this norm does. In a model
    without norms, this is `W_O^{0.1} W_K^{1.0}` for `("L0H1", "L1H0.K")`, and the direct path
    `W_E W_U` for `("embed", "unembed")`. A norm behind the writer's layer (Gemma 2) is applied to
    `W_out` in the same way, and numbers by which a configuration multiplies an embedding, outputs of
    layers or logits (`residual_multiplier`, `logit_scale`) are factors of the product.

    Raises
    ------
    ValueError : for unknown names, if the writer does not come before the reader, for an MLP that is a
        mixture of experts, for weights that are NaN or infinite, and for multipliers in the
        configuration whose effect is not known

    Notes
    -----
    Error: exact up to the divisor of a norm, and rounding. Source: "A Mathematical Framework for
    Transformer Circuits", virtual weights.

    Examples
    --------
    >>> import circuitkit as ck
    >>> virtual_weights(ck.load_model("two-layer"), "L0H1", "L1H3.K").AB.shape
    torch.Size([32, 32])
    """
    require_products(model)
    writers, readers = writers_and_readers(model)
    if writer not in writers and not is_neuron(model, writer, with_side=False):
        raise unknown("writer", writer, writers)
    is_gated_mlp = f"{reader}.Q" in readers and parse(reader)[0].kind == "MLP"
    if reader not in readers and not is_gated_mlp and not is_neuron(model, reader, with_side=True):
        raise unknown("reader", reader, readers)
    if step_of(model, parse(writer)[0]) >= step_of(model, parse(reader)[0]):
        raise ValueError(
            f"{writer!r} writes after {reader!r} has read. Give a writer that comes before the "
            "reader."
        )
    if "embed" in (writer, reader) or "unembed" in (writer, reader):
        require_unembedding_of_stream(model)
    written = writer_matrix(model, writer)
    norm = undivided(model, submodules(model).get("embed_ln"))
    if norm is not None and writer in ("embed", "pos"):
        written = norm.apply(written)  # BLOOM
    return FactoredMatrix(written, reader_matrix(model, reader))
