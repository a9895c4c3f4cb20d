"""What chapter 1 measures of the residual stream: deletion, subspaces, alignment, and rotations.

The library splits the stream into parts (`circuitkit.residual`), and these functions use the parts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.model_bridge.sources import boot_native
from transformer_lens.model_bridge.sources.native.model import NativeModel

from circuitkit.bridge import Model, submodules
from circuitkit.checks import checked, require_at_least, require_bridge, shown
from circuitkit.circuits import in_order, require_one_stream
from circuitkit.heads import Heads, in_full_precision
from circuitkit.names import Side, parse
from circuitkit.parts import step_of
from circuitkit.reading import converted_neurons, heads_of
from circuitkit.residual import (
    decompose,
    reader_matrix,
    require_products,
    writer_matrix,
    writers_and_readers,
)
from circuitkit.rows import Text, read_rows
from circuitkit.tables import Table

__all__ = [
    "deletion_scores",
    "random_rotation",
    "rotate_basis",
    "subspace_overlap",
    "virtual_weight_table",
]


# Deletion


def steps_of(model: Model, names: Sequence[str]) -> Int[Tensor, " name"]:
    """The steps at which parts, or the parts of inputs, read and write."""
    return torch.tensor([step_of(model, parse(name)[-1]) for name in names])


@checked
def deletion_scores(model: Model, tokens: Text, *, skip: int = 1) -> Table:
    """Measure how much of what earlier parts wrote to the stream later parts take away again.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, a list of texts of any lengths, or token ids `[pos]` or `[batch, pos]`
    skip : how many positions at the beginning are left out, because heads without a better target
        attend to the first token and write unusually long vectors there

    Returns
    -------
    A `Table` with the axes `later` and `earlier`: 1 is all of it, 0 none, a negative number
    amplifies it. NaN where the first part is not later than the second, or the second writes
    nothing.

    Raises
    ------
    ValueError : if no position is left

    Notes
    -----
    The deletion of `a` by `b` is `-<r_b, r_a> / <r_a, r_a>`, where the products are summed over
    batch and positions. Heads of one layer write at the same time, so none is later than another.
    Error: rounding. Source: "A Mathematical Framework for Transformer Circuits", heads and neurons
    that manage memory; the score is this book's.

    Examples
    --------
    >>> import circuitkit as ck
    >>> text = "The house belonged to Mr. Dorling."
    >>> list(deletion_scores(ck.load_model("two-layer"), text).axes)
    ['later', 'earlier']
    """
    rows = read_rows(model, tokens)
    shortest = int(rows.lengths.min())
    if not 0 <= skip < shortest:
        raise ValueError(
            f"skip={skip} positions cannot be left out of {shortest}. "
            f"Write a number from 0 to {shortest - 1}, or give a longer text."
        )
    split = decompose(model, rows)
    outputs = split.values[:, :, skip:][:, rows.is_text[:, skip:]].flatten(
        1
    )  # [part, all it wrote]
    products = outputs @ outputs.mT  # [later, earlier]
    steps = steps_of(model, split.names).to(products.device)
    is_not_later = steps[:, None] <= steps
    deletion = (-products / products.diagonal()).masked_fill(is_not_later, torch.nan)
    return Table(deletion, {"later": split.names, "earlier": split.names}, "deletion")


# Subspaces that heads write to and read


@checked
def subspace_overlap(earlier: Any, later: Heads | None = None, side: Side = "V") -> Table:
    """Measure which share of what each later head can read each earlier head can write to.

    Parameters
    ----------
    earlier : a model, for all its attention heads among themselves, or `Heads`
    later : heads of the same model; left out if `earlier` is a model
    side : whether the later heads read with their queries, keys or values

    Returns
    -------
    A `Table` of `[writer, reader]`, between 0 and 1. It holds NaN where the writer does not lie in
    an earlier layer than the reader.

    Raises
    ------
    ValueError : if no pair is in order, and for heads of different models

    Notes
    -----
    The overlap is the mean squared cosine of the principal angles, `||A^T B||_F^2 / d_head`, where
    the columns of A and B are orthonormal bases of the two subspaces. It does not depend on how
    strongly they are used. Two random subspaces score `d_head / d_model`, with d_head of the
    earlier head. With a model, a norm before the later head and one behind the earlier head turn the
    subspaces, as in `virtual_weights`. `Heads` hold no such norms, so of a model with norms give the
    model. Error: rounding. Source: this book; angles: Bjorck and Golub 1973.

    Examples
    --------
    >>> import circuitkit as ck
    >>> heads = ck.heads_of(ck.load_model("two-layer"))
    >>> overlap = subspace_overlap(heads[:4], heads[4:], "K")
    >>> list(overlap.top(1).names)
    ['L0H1, L1H3']
    """
    if not isinstance(earlier, Heads) and later is not None:
        raise TypeError(
            f"The earlier heads are {type(earlier).__name__}, and must be Heads. For all heads of a "
            "model, write subspace_overlap(model)."
        )
    writers = earlier if isinstance(earlier, Heads) else heads_of(earlier)
    readers = writers if later is None else later
    if isinstance(earlier, Heads):
        W_O, W_read = writers.W_O, getattr(readers, f"W_{side}")
    else:
        require_products(earlier)
        W_O = torch.stack([writer_matrix(earlier, name) for name in writers.names])
        W_read = torch.stack([reader_matrix(earlier, f"{name}.{side}") for name in readers.names])
    require_one_stream(writers, readers)
    possible = in_order(writers, readers)
    written = torch.linalg.qr(in_full_precision(W_O).mT).Q  # [writer, d_model, d_head]
    read = torch.linalg.qr(in_full_precision(W_read)).Q  # [reader, d_model, d_head]
    # one writer at a time, because all products together are as large as writers times readers
    shares = [(basis.mT @ read).square().sum((1, 2)) / readers.d_head for basis in written]
    overlap = torch.stack(shares).masked_fill(~possible, torch.nan)
    axes = {"writer": writers.names, "reader": readers.names}
    return Table(overlap, axes, f"overlap with {side}")


# Alignment of all writers and readers


@checked
def virtual_weight_table(model: Model) -> Table:
    """Measure how strongly each input is aligned with each part that writes before it.

    Parameters
    ----------
    model : a `TransformerBridge`

    Returns
    -------
    A `Table` with the axes `writer` and `reader`; NaN where the writer does not come before the
    reader. A gated MLP has two readers: `"L1 MLP.Q"` is the gate, `"L1 MLP.V"` what it multiplies.

    Notes
    -----
    The alignment is `||W_out W_in||_F / (||W_out||_F ||W_in||_F)`; random matrices score about
    `1 / sqrt(d_model)`. Error: rounding. Source: "A Mathematical Framework for Transformer
    Circuits", virtual weights; the ratio is its composition score.

    Examples
    --------
    >>> import circuitkit as ck
    >>> table = virtual_weight_table(ck.load_model("two-layer"))
    >>> list(table.top(1).names)
    ['L1H0, unembed']
    """
    require_products(model)
    writers, readers = writers_and_readers(model)
    written = [rows_with_same_products(writer_matrix(model, name)) for name in writers]
    read = [rows_with_same_products(reader_matrix(model, name).mT) for name in readers]
    written_at, read_at = steps_of(model, writers), steps_of(model, readers)
    table = torch.full((len(written), len(read)), torch.nan).to(written[0])
    for i, rows in enumerate(written):
        for j, columns in enumerate(read):
            if written_at[i] < read_at[j]:
                table[i, j] = (rows @ columns.mT).norm() / (rows.norm() * columns.norm())
    return Table(table, {"writer": tuple(writers), "reader": tuple(readers)}, "alignment")


def rows_with_same_products(W: Float[Tensor, "rows d_model"]) -> Float[Tensor, "few d_model"]:
    """At most `d_model` rows `R` with `R^T R = W^T W`, so that `||R M|| = ||W M||` for every `M`.

    The embedding of a large vocabulary becomes a triangle, so no product has `d_vocab` rows.
    """
    W = in_full_precision(W)
    return W if len(W) <= W.shape[1] else torch.linalg.qr(W, mode="r").R


# No privileged basis


@checked
def random_rotation(
    d_model: int,
    *,
    seed: int,
    fix: Float[Tensor, " d_model"] | None = None,
) -> Float[Tensor, "d_model d_model"]:
    """Draw a random orthogonal matrix in float64.

    Parameters
    ----------
    d_model : number of dimensions
    seed : the same seed gives the same matrix
    fix : a direction that the matrix leaves as it is

    Raises
    ------
    ValueError : if `fix` has another number of dimensions, or has no direction because it is zero

    Notes
    -----
    Error: `R^T R = I` up to rounding. Source: QR decomposition of a Gaussian matrix, with signs as
    in Mezzadri 2007 (Haar measure).

    Examples
    --------
    >>> R = random_rotation(4, seed=0)
    >>> bool(torch.allclose(R @ R.T, torch.eye(4).double()))
    True
    """
    require_at_least(1, d_model=d_model)
    if fix is not None and not 0 < float(fix.norm()) < torch.inf:
        raise ValueError(
            f"fix must be a direction that can stay as it is, and {shown(fix)} has the length "
            f"{float(fix.norm()):g}. Write torch.ones(d_model), for example."
        )
    generator = torch.Generator().manual_seed(seed)
    size = d_model if fix is None else d_model - 1
    Q, R = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    rotation = Q * R.diagonal().sign()  # without the signs, a QR decomposition is not uniform
    if fix is None:
        return rotation
    # a basis whose first vector is the fixed direction; the others are rotated among themselves
    identity = torch.eye(d_model, dtype=torch.float64)
    frame = torch.cat([fix.cpu().double()[:, None], identity], dim=1)
    basis = torch.linalg.qr(frame).Q
    inside = torch.block_diag(identity[:1, :1], rotation)
    return basis @ inside @ basis.T


@checked
def rotate_basis(model: Model, rotation: Float[Tensor, "d_model d_model"]) -> Any:
    """Return a copy of a model whose residual stream is rotated.

    Parameters
    ----------
    model : a native `TransformerBridge`: one of this book's, one made by hand, or one made by
        `TransformerBridge.boot_native`
    rotation : an orthogonal matrix `R`

    Returns
    -------
    A `TransformerBridge` in which every writer `W` became `W R` and every reader `R^T W`. Gains and
    biases of norms are moved into the readers.

    Raises
    ------
    ValueError : for a matrix that is not orthogonal, and for models of other kinds

    Notes
    -----
    The stream `x` becomes `x R`, and `(x R)(R^T W) = x W`, so without norms the logits stay the
    same. A LayerNorm also subtracts the mean over coordinates, which singles out the direction
    `(1, ..., 1)`. Error: rounding. Source: "A Mathematical Framework for Transformer Circuits", no
    privileged basis; the test by rotation is this book's.

    Examples
    --------
    >>> import circuitkit as ck
    >>> model = ck.load_model("one-layer")
    >>> rotated = rotate_basis(model, random_rotation(160, seed=0))
    >>> bool(torch.allclose(rotated(torch.arange(5)[None]), model(torch.arange(5)[None]), atol=1e-3))
    True
    """
    require_bridge(model)
    require_rotation(model, rotation)
    rotation = rotation.to(model.W_E)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name in weights.keys() & {"embed.weight", "pos_embed.weight"}:
        weights[name] = weights[name] @ rotation
    for layer in range(len(model.blocks)):
        rotate_writer(weights, f"blocks.{layer}.attn.o", rotation)
        rotate_writer(weights, f"blocks.{layer}.mlp.out", rotation)
        attention = [f"blocks.{layer}.attn.{side}" for side in "qkv"]
        rotate_readers(weights, f"blocks.{layer}.ln1", attention, rotation)
        mlp = [f"blocks.{layer}.mlp.in", f"blocks.{layer}.mlp.gate"]
        rotate_readers(weights, f"blocks.{layer}.ln2", mlp, rotation)
    rotate_readers(weights, "ln_final", ["unembed"], rotation)

    with torch.random.fork_rng(devices=[]):  # boot_native draws weights, which are replaced
        rotated = boot_native(model.cfg, model.tokenizer, model.cfg.device, model.W_E.dtype)
    rotated.load_state_dict(weights)
    return rotated.eval().requires_grad_(False)


def require_rotation(model: Model, rotation: Tensor) -> None:
    """Raise a `ValueError` for a matrix or a model that `rotate_basis` cannot use."""
    is_converted = any(converted_neurons(model, layer) for layer in range(len(model.blocks)))
    # a gated layer has weights besides those of its heads
    is_gated = any(
        "attn" in submodules(block) and hasattr(block.attn.original_component, "gates")
        for block in model.blocks
    )
    if not isinstance(model.original_model, NativeModel) or is_converted or is_gated:
        raise ValueError(
            "rotate_basis needs a native model whose layers are plain: one of this book's, one made "
            "by hand, or one made by TransformerBridge.boot_native."
        )
    identity = torch.eye(len(rotation)).to(rotation)
    error = float((rotation @ rotation.mT - identity).abs().max())
    if error > 1e-4:
        raise ValueError(
            f"The matrix is not orthogonal: R R^T differs from the identity by {error:.2g}. "
            "Write random_rotation(d_model, seed=0)."
        )


def rotate_writer(weights: dict[str, Tensor], name: str, rotation: Tensor) -> None:
    """Rotate what a layer adds to the stream; its weight is stored as `[d_model, inputs]`."""
    if f"{name}.weight" in weights:
        weights[f"{name}.weight"] = rotation.mT @ weights[f"{name}.weight"]
    if f"{name}.bias" in weights:
        weights[f"{name}.bias"] = weights[f"{name}.bias"] @ rotation


def rotate_readers(
    weights: dict[str, Tensor], norm: str, readers: Sequence[str], rotation: Tensor
) -> None:
    """Let readers, stored as `[outputs, d_model]`, read the rotated stream.

    The gain and the bias of the norm before them belong to the old coordinates, so they are moved
    into the readers: `(y gain + bias) W = y (gain W) + bias W`.
    """
    nothing = {"weight": torch.ones_like(rotation[0]), "bias": torch.zeros_like(rotation[0])}
    gain = weights.get(f"{norm}.weight", nothing["weight"])
    bias = weights.get(f"{norm}.bias", nothing["bias"])
    for name in readers:
        if f"{name}.weight" not in weights:
            continue
        W = weights[f"{name}.weight"]
        if bias.any() and f"{name}.bias" not in weights:
            raise ValueError(
                f"{name} has no bias that could hold the bias of {norm}, so this model cannot "
                "be rotated. Use a model with biases, or set the bias of the norm to 0."
            )
        if bias.any():
            weights[f"{name}.bias"] = weights[f"{name}.bias"] + W @ bias
        weights[f"{name}.weight"] = (W * gain) @ rotation
    for kind in ("weight", "bias"):
        if f"{norm}.{kind}" in weights:
            weights[f"{norm}.{kind}"] = nothing[kind]
