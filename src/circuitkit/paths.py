"""Exact sums over paths, with the attention patterns and norms of one run frozen.

How the logits are expanded. The embeddings start the path `direct`, and each MLP starts a path of
its own. Layer by layer, each head reads each path that exists so far, and what it writes is a new
path. What biases add is followed in one path, `bias`. The sum of all paths is the last residual
stream, and the unembedding of each path is its share of the logits.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from circuitkit.ablation import run
from circuitkit.bridge import Model, norms_close_layers
from circuitkit.checks import checked, require_at_least
from circuitkit.first_use import require_right_weights, require_sum_of_logits
from circuitkit.heads import Heads, norm_divisor, require_scores
from circuitkit.names import Name, Side, parse, unknown
from circuitkit.norms import FrozenNorm
from circuitkit.parts import biases_at_end, head_names, is_part, parts_of
from circuitkit.reading import (
    attention_layers,
    heads_of,
    layer_heads,
    require_attention_head,
)
from circuitkit.residual import require_one_text, require_sum
from circuitkit.rows import Text, read_rows
from circuitkit.runs import Run
from circuitkit.tables import Table

__all__ = ["PathLogits", "path_logits", "score_decomposition"]

DIRECT, BIAS, REST = "direct", "bias", "rest"
MOST_PATHS = 4096
"""The largest number of paths that are followed one by one."""


@dataclass(frozen=True)
class Path:
    """One path, and what it has left in the last residual stream.

    Parameters
    ----------
    order : how many heads it passes; -1 for the rest
    z : what its last head has gathered, `[batch, pos, d_head]`, which is smaller than the stream;
        for a path without heads, the stream itself
    W_O : the output matrix of its last head
    norm_behind : the norm through which that head writes (OLMo 2)
    """

    order: int
    z: Tensor
    W_O: Tensor | None = None
    norm_behind: FrozenNorm | None = None

    @torch.no_grad()
    def stream(self) -> Float[Tensor, "batch pos d_model"]:
        """What the path has left in the residual stream."""
        written = self.z if self.W_O is None else self.z @ self.W_O
        return written if self.norm_behind is None else self.norm_behind.apply(written)


def stream_of(paths: Iterable[Path]) -> Tensor | int:
    """What several paths have left in the stream, with one product for all that end in one head."""
    by_head: dict[int, list[Path]] = defaultdict(list)
    for path in paths:
        by_head[id(path.W_O)].append(path)
    return sum(
        replace(same[0], z=sum(path.z for path in same)).stream() for same in by_head.values()
    )


@dataclass(frozen=True, eq=False, repr=False)
class PathLogits(Mapping):
    """The logits of each path, `[batch, pos, d_vocab]`, by name; computed when they are read.

    `"direct"` leads from the token straight to the logits, `"L0H1->L1H3"` through two heads (a
    virtual head), and `"L0 MLP->L1H3"` starts with what an MLP wrote. The sum of all is the model's
    logits.

    Two more names exist only where they are needed. `"rest"` holds the paths through more heads than
    were asked for, so it exists if `max_order` is smaller than the number of layers. `"bias"` holds
    all that biases add, and exists if the model has biases, zero or not. The shipped attention-only
    models and those of `handmade.bridge_of` count as models without biases until one of their biases
    has a value other than zero.

    Notes
    -----
    Source: see `path_logits`.
    """

    run: Run
    paths: dict[str, Path]

    def __getitem__(self, name: str) -> Float[Tensor, "batch pos d_vocab"]:
        if not isinstance(name, str):
            raise TypeError(f"One path is read at a time. For several, write .sum({list(name)}).")
        return self.sum([name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __contains__(self, name: object) -> bool:
        return name in self.paths

    def __repr__(self) -> str:
        return f"PathLogits of {len(self)} paths"

    @checked
    def sum(
        self, names: str | Sequence[str] | None = None, *, at: int | slice = slice(None)
    ) -> Float[Tensor, "..."]:
        """The logits of several paths together.

        Parameters
        ----------
        names : the paths; all of them by default
        at : a position, or a slice of positions

        Returns
        -------
        Logits `[batch, pos, d_vocab]`, or `[batch, d_vocab]` for one position.

        Raises
        ------
        ValueError : for unknown names, names that are given twice, and a position outside the text
        """
        if names is None:
            names = list(self)
        names = [names] if isinstance(names, str) else names
        if len(set(names)) < len(names):
            raise ValueError("A path is named twice. Name each path once, because logits add up.")
        for name in names:
            if name not in self.paths:
                raise unknown("path", name, self.paths)
        self.run.require_same_weights()
        model, rows, norm = self.run.model, self.run.rows, self.run.recording.final_norm()
        # in float32 for half precision
        nothing = torch.zeros_like(self.run.recording.stream(Name("unembed")))
        stream = nothing + stream_of([self.paths[name] for name in names])
        if norm is not None:
            stream = norm.apply(stream)
            if BIAS in names:
                stream = stream + norm.bias
        stream = rows.blank(stream)
        stream = rows.pick(stream, at) if isinstance(at, int) else stream[:, at]
        logits = stream @ model.W_U.detach().to(stream)
        return logits + model.b_U.detach() if BIAS in names else logits


@checked
def path_logits(model: Model, tokens: Text, *, max_order: int | None = None) -> PathLogits:
    r"""Write the logits as a sum over paths, with every attention pattern frozen.

    Parameters
    ----------
    model : a `TransformerBridge` whose logits are not capped
    tokens : a text, a list of texts of any lengths, or token ids `[pos]` or `[batch, pos]`
    max_order : the largest number of heads on a path; longer paths are summed in `"rest"`

    Returns
    -------
    A mapping from the names of the paths to their logits `[batch, pos, d_vocab]`.

    Raises
    ------
    ValueError : for more than 4,096 paths, for logits that are no sum, and if the paths do not add
        up to the logits, because a hook changes values that they do not show

    Notes
    -----
    For two attention-only layers without biases: $W_E W_U + \sum_h A^h \otimes W_{OV}^h +
    \sum_{h_2, h_1} (A^{h_2} A^{h_1}) \otimes W_{OV}^{h_1} W_{OV}^{h_2}$, read from the token to the
    logits. Norms keep the divisors that the model used: this is exact for the sum, but the share of
    a path then depends on the others. Error: exact up to rounding (1e-5 of the largest logit in
    float32, 1e-12 in float64; 1e-6 for models in float64 whose norms compute in float32, as those
    of Llama do). Source: "A Mathematical Framework for Transformer Circuits", path
    expansion; the treatment of norms and MLPs is this book's.

    Examples
    --------
    >>> import circuitkit as ck
    >>> path_logits(ck.load_model("two-layer"), "The house belonged to Mr. Dorling.")
    PathLogits of 25 paths
    """
    rows = read_rows(model, tokens)
    require_sum_of_logits(model)
    require_right_weights(model)
    n_layers = len(model.blocks)
    max_order = n_layers if max_order is None else max_order
    require_at_least(0, max_order=max_order)
    model_run = run(model, rows)
    paths = PathLogits(model_run, expand(model_run, max_order))
    require_sum(paths.sum()[None], model_run.logits, "logit")
    return paths


@dataclass(frozen=True)
class FrozenAttention:
    """The heads of one layer, with the patterns and norms of a run."""

    heads: Heads
    pattern: Float[Tensor, "batch head dst src"]
    norm_before: FrozenNorm | None
    norm_behind: FrozenNorm | None

    @classmethod
    def of(cls, model_run: Run, layer: int) -> "FrozenAttention":
        """Read from a run what is frozen."""
        heads = layer_heads(model_run.model, layer)
        # half precision is too coarse for sums over many paths
        heads = heads.to(torch.promote_types(heads.W_Q.dtype, torch.float32))
        pattern = model_run.recording.patterns(layer).to(heads.W_Q)
        before, behind = (frozen_norm(model_run, layer, norm) for norm in ("ln1", "ln1_post"))
        return cls(heads, pattern, before, behind)

    def gather(
        self, stream: Float[Tensor, "*share batch pos d_model"], with_biases: bool = False
    ) -> Float[Tensor, "*share batch head pos d_head"]:
        """What each head gathers of shares of the stream, and because of biases."""
        read = stream if self.norm_before is None else self.norm_before.apply(stream)
        if with_biases and self.norm_before is not None:
            read = read + self.norm_before.bias
        values = torch.einsum("...pm,hmd->...hpd", read.to(self.pattern), self.heads.W_V)
        if with_biases and self.heads.b_V is not None:
            values = values + self.heads.b_V[:, None]
        return self.pattern @ values


def frozen_norm(model_run: Run, layer: int, norm: str) -> FrozenNorm | None:
    """The norm `ln1` before, or `ln1_post` behind the heads of a layer, as it was in a run."""
    hook = f"blocks.{layer}.{norm}"
    is_behind = norm == "ln1" and norms_close_layers(model_run.model)
    if is_behind or f"{hook}.hook_scale" not in model_run.recording.hook_names:
        return None
    return model_run.recording.frozen(hook)


@torch.no_grad()
def expand(model_run: Run, max_order: int) -> dict[str, Path]:
    """All paths through at most `max_order` heads, in the order of how many heads they pass."""
    step, names = model_run.parts_before("unembed", neurons=False)
    # what heads write follows from what they read
    parts = [(name, model_run.recording.share(name, step)) for name in names if name.kind != "H"]
    direct = sum(stream for part, stream in parts if part.layer is None)
    paths = {DIRECT: Path(0, torch.as_tensor(direct))}
    whole, bias = paths[DIRECT].z, torch.zeros_like(paths[DIRECT].z)
    n_layers = len(model_run.model.blocks)
    for layer in range(n_layers):
        attention = FrozenAttention.of(model_run, layer)
        shorter = {name: path for name, path in paths.items() if path.order < max_order}
        if len(paths) + len(shorter) * len(attention.heads.names) > MOST_PATHS:
            raise ValueError(
                f"There are more than {MOST_PATHS} paths, the most that are followed one by one. Write "
                f"a smaller max_order, such as max_order={max(path.order for path in shorter.values())}."
            )
        if shorter:
            paths.update(through_heads(shorter, attention))
        bias = bias + through_all_heads(bias, attention)
        whole = whole + through_all_heads(whole, attention)
        for part, stream in parts:
            if part.layer != layer:
                continue
            whole = whole + stream
            if part.kind == "MLP":
                paths[str(part)] = Path(0, stream)
            else:
                bias = bias + stream

    paths = dict(sorted(paths.items(), key=lambda item: item[1].order))
    if has_bias(model_run, bias):
        paths[BIAS] = Path(0, bias)
    if max_order < n_layers:
        paths[REST] = Path(-1, whole - stream_of(paths.values()))
    return paths


def through_heads(
    paths: Mapping[str, Path], attention: FrozenAttention
) -> Iterator[tuple[str, Path]]:
    """The paths that continue through each head of a layer, with their names."""
    z = attention.gather(torch.stack([path.stream() for path in paths.values()]))
    outputs = list(zip(attention.heads.names, attention.heads.W_O, strict=True))
    for (name, path), z_of_path in zip(paths.items(), z, strict=True):
        for number, (head, W_O) in enumerate(outputs):
            longer = head if name == DIRECT else f"{name}->{head}"
            yield longer, Path(path.order + 1, z_of_path[:, number], W_O, attention.norm_behind)


def through_all_heads(
    bias: Float[Tensor, "batch pos d_model"], attention: FrozenAttention
) -> Float[Tensor, "batch pos d_model"]:
    """What all heads of a layer write because of biases."""
    z = attention.gather(bias, with_biases=True)
    written = torch.einsum("bhpd,hdm->bpm", z, attention.heads.W_O)
    return written if attention.norm_behind is None else attention.norm_behind.apply(written)


def has_bias(model_run: Run, bias: Tensor) -> bool:
    """Whether the model has biases, zero or not, that can add something to the logits."""
    model, norm = model_run.model, model_run.recording.final_norm()
    if any(biases_at_end(model)):
        return True
    has_part = any("bias" in part.kind for part in parts_of(model, neurons=False))
    values = [getattr(model.blocks[layer].attn, "b_V", None) for layer in attention_layers(model)]
    if has_part or any(is_part(model, b_V) for b_V in values):
        return True
    return bool(bias.any() or (norm is not None and norm.bias.any()))


@checked
def score_decomposition(model: Model, tokens: Text, head: str, dst: int, src: int) -> Table:
    r"""Split the attention score of a head for one source into pairs of parts.

    Parameters
    ----------
    model : a `TransformerBridge`
    tokens : a text, or the token ids of one text
    head : the name of an attention head, such as `"L1H3"`
    dst, src : the positions of the destination and the source; -1 is the last one

    Returns
    -------
    A `Table` of `[query, key]`: the entry `(i, j)` is the product of what part `i` has written at
    the destination, read as a query, and what part `j` has written at the source, read as a key.
    All entries add up to the score before mask and softmax. `"bias"`, the last name on each side,
    holds the biases of the head and of the norm before it.

    Raises
    ------
    ValueError : for positions outside the text, a source behind the destination, and a name that
        is no attention head

    Notes
    -----
    $s = \sum_{i,j} (c_i W_Q) (c_j W_K)^\top / \sqrt{d_{head}}$, where $c$ are the parts of the stream
    at the destination and at the source. Norms are frozen; rotary positions are applied; a cap of
    the scores (Gemma 2) comes after the sum. Hooks on queries, keys or the norm in front of the head
    do not count, because the score is computed from weights. Error: exact up to rounding. Source: "A
    Mathematical Framework for Transformer Circuits", the table behind Q- and K-composition.

    Examples
    --------
    >>> import circuitkit as ck
    >>> text = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
    >>> table = score_decomposition(ck.load_model("two-layer"), text, "L1H3", dst=-1, src=8)
    >>> table.axes["query"][:3], len(table.axes["key"])
    (('embed', 'pos', 'L0H0'), 7)
    """
    rows = read_rows(model, tokens)
    require_one_text(rows)
    dst, src = int(rows.index(dst, "dst")), int(rows.index(src, "src"))
    require_attention_head(model, head)
    attention_head = heads_of(model, head)
    require_scores(attention_head)
    if src > dst and attention_head.mask == "causal":
        raise ValueError(
            f"The source {src} comes after the destination {dst}, and this head only looks back. "
            "Choose src <= dst."
        )
    model_run = run(model, rows)
    parts = model_run.parts(before=head)
    require_sum(torch.stack(list(parts.values())), model_run.stream(head), "stream")
    queries = side_of_parts(model_run, parts, head, "Q", dst)
    keys = side_of_parts(model_run, parts, head, "K", src)
    names = (*parts, BIAS)
    products = queries @ keys.mT / attention_head.scale
    return Table(products, {"query": names, "key": names}, f"score of {head}")


@torch.no_grad()
def side_of_parts(
    model_run: Run, parts: Mapping[str, Tensor], head: str, side: Side, position: int
) -> Float[Tensor, "part d_head"]:
    """What each part and, as the last row, all biases add to a query or key at one position."""
    name = parse(head)[0]
    layer, number = name.layer or 0, name.number or 0
    heads = heads_of(model_run.model, head_names(model_run.model, layer))
    read = torch.stack([part[0, position] for part in parts.values()])  # [part, d_model]
    bias = torch.zeros_like(read[:1])
    norm = frozen_norm(model_run, layer, "ln1")
    if norm is not None:
        read = replace(norm, scale=norm.scale[0, position]).apply(read)
        bias = norm.bias[None]
    # [head, part, d_head]
    rows = torch.cat([read, bias.to(read)]) @ getattr(heads, f"W_{side}").to(read)
    b = getattr(heads, f"b_{side}")
    if b is not None:
        rows[:, -1] += b
    if heads.norm_eps is not None:
        # the parts add up to the whole query or key, whose size the norm divides by
        rows = rows / norm_divisor(heads, rows.sum(1, keepdim=True))
        rows = rows * getattr(heads, f"gain_{side}")[:, None]
    rows = rows[number]
    if heads.turn is None:
        return rows
    return heads.turn(rows, torch.full((len(rows),), position, device=rows.device))
