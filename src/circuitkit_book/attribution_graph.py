"""Transcoders of the MLPs of a small model, and the attribution graph that joins them with its heads."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import circuitkit as ck
from circuitkit import names
from circuitkit.bridge import Model
from circuitkit.checks import checked
from circuitkit.parts import head_names
from circuitkit.training import fit

if TYPE_CHECKING:
    import pandas as pd

    from circuitkit.runs import Run

__all__ = [
    "Graph",
    "Node",
    "Transcoder",
    "attribution_graph",
    "draw_graph",
    "layer_inputs_and_outputs",
    "predicted_cuts",
    "random_transcoder",
    "replaced_logits",
    "train_transcoder",
    "unexplained",
    "wires_of",
]

Rows = Float[Tensor, "*row d_model"]


@dataclass(frozen=True)
class Transcoder:
    """Many units, few of which are active, that imitate an MLP: `encode(x) @ W_dec + b_dec`.

    Parameters
    ----------
    W_enc, b_enc : what each latent reads, `[d_model, latent]` and `[latent]`
    W_dec, b_dec : what each latent writes, `[latent, d_model]`, and what is always written
    active : how many latents stay on at each position: those with the largest values above 0

    Notes
    -----
    Source: Dunefsky, Chlenski and Nanda 2024; the rule of the largest values is that of TopK autoencoders.
    """

    W_enc: Float[Tensor, "d_model latent"]
    b_enc: Float[Tensor, " latent"]
    W_dec: Float[Tensor, "latent d_model"]
    b_dec: Float[Tensor, " d_model"]
    active: int

    def encode(self, x: Rows) -> Float[Tensor, "*row latent"]:
        """The values of the latents; all but the largest few are 0."""
        value = x @ self.W_enc + self.b_enc
        return value.masked_fill(~is_among_largest(value.detach(), self.active), 0)

    def decode(self, latents: Float[Tensor, "*row latent"]) -> Rows:
        """What the latents write together."""
        return latents @ self.W_dec + self.b_dec

    def __call__(self, x: Rows) -> Rows:
        """What the transcoder writes in place of the MLP."""
        return self.decode(self.encode(x))


def is_among_largest(value: Rows, k: int) -> Tensor:
    """Whether each value is positive and one of the `k` largest of its row."""
    # numpy takes a tenth of the time of torch.topk, and least with 32 bits, in which two values may be equal
    for compared in (value.float().numpy(), value.numpy()):
        smallest = np.partition(compared, -k, axis=-1)[..., -k, None]
        is_large = (compared >= smallest) & (compared > 0)
        if is_large.sum(-1, dtype=np.int32).max() <= k:
            break
    return torch.from_numpy(is_large)


@checked
def train_transcoder(
    x: Float[Tensor, "row d_model"],
    y: Float[Tensor, "row d_model"],
    *,
    latents: int = 512,
    active: int = 32,
    steps: int = 800,
    batch: int = 256,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> Transcoder:
    """Train a transcoder by Adam to write what an MLP writes.

    Parameters
    ----------
    x, y : what the MLP reads, behind its norm, and what it writes
    latents, active : how many latents there are, and how many are on at a position
    steps, batch, learning_rate, seed : settings of the training; the learning rate falls along a cosine

    Raises
    ------
    ValueError : if more latents would be active than there are

    Notes
    -----
    The inputs and outputs are brought to a variance of about 1 for the training, and the factors are
    put into the weights afterwards. Source: this book.

    Examples
    --------
    >>> x = torch.randn(64, 4)
    >>> train_transcoder(x, x.relu(), latents=8, active=2, steps=2).W_dec.shape
    torch.Size([8, 4])
    """
    if not 1 <= active <= latents:
        raise ValueError(
            f"active is {active}, and must be from 1 to the number of latents, {latents}."
        )
    generator = torch.Generator().manual_seed(seed)
    mean, length, height = x.mean(0), x.std(), y.std()
    inputs, outputs = (x - mean) / length, y / height
    W_enc = random_directions(x, latents, generator)
    W_dec = 0.05 * torch.randn(latents, y.shape[1], generator=generator, dtype=y.dtype)
    small = Transcoder(W_enc, x.new_zeros(latents), W_dec, outputs.mean(0), active)
    trained = [small.W_enc, small.b_enc, small.W_dec, small.b_dec]
    for weight in trained:
        weight.requires_grad_()

    def loss(step: int) -> Tensor:
        rows = torch.randint(len(x), (batch,), generator=generator)
        return (small(inputs[rows]) - outputs[rows]).square().sum(-1).mean()

    with torch.enable_grad():
        fit(
            trained,
            loss,
            steps,
            learning_rate=lambda step: learning_rate * (1 + math.cos(math.pi * step / steps)) / 2,
            optimizer=partial(torch.optim.Adam, fused=True),
        )
    W_enc, b_enc, W_dec, b_dec = (weight.detach() for weight in trained)
    W_enc = W_enc / length
    return Transcoder(W_enc, b_enc - mean @ W_enc, W_dec * height, b_dec * height, active)


def random_directions(x: Tensor, latents: int, generator: torch.Generator) -> Tensor:
    """Encoder directions of length about 1, one for each latent."""
    shape = (x.shape[1], latents)
    return torch.randn(shape, generator=generator, dtype=x.dtype) / x.shape[1] ** 0.5


@checked
def random_transcoder(
    x: Float[Tensor, "row d_model"],
    y: Float[Tensor, "row d_model"],
    *,
    latents: int = 512,
    active: int = 32,
    seed: int = 0,
) -> Transcoder:
    """A transcoder whose latents read random directions, and whose decoder is fitted by least squares.

    It is the control of `train_transcoder`, with as many latents, of which as many are active.

    Examples
    --------
    >>> x = torch.randn(64, 4)
    >>> random_transcoder(x, x.relu(), latents=8, active=2).W_dec.shape
    torch.Size([8, 4])
    """
    generator = torch.Generator().manual_seed(seed)
    W_enc = random_directions(x, latents, generator) / x.std()
    b_enc = -x.mean(0) @ W_enc
    start = Transcoder(W_enc, b_enc, W_enc.T, y.mean(0), active)
    # a latent that is never on gets no row of its own, so a little is added to the diagonal
    gram = 1e-6 * len(x) * torch.eye(latents, dtype=x.dtype)
    target = torch.zeros(latents, y.shape[1], dtype=x.dtype)
    centre = torch.zeros(latents, dtype=x.dtype)
    for read, written in zip(x.split(1024), (y - y.mean(0)).split(1024), strict=True):
        latent = start.encode(read)
        gram += latent.T @ latent
        target += latent.T @ written
        centre += latent.sum(0) / len(x)
    gram -= len(x) * torch.outer(centre, centre)
    W_dec = torch.linalg.solve(gram, target)
    return replace(start, W_dec=W_dec, b_dec=y.mean(0) - centre @ W_dec)


def unexplained(guess: Tensor, value: Tensor) -> float:
    """The squared error of a guess, as a share of that of the mean vector.

    Examples
    --------
    >>> unexplained(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [2.0]]))
    1.0
    """
    value, guess = value.flatten(0, -2), guess.flatten(0, -2)
    return float((guess - value).square().sum() / (value - value.mean(0)).square().sum())


@checked
@torch.no_grad()
def layer_inputs_and_outputs(
    model: Model, rows: Int[Tensor, "row pos"]
) -> list[tuple[Float[Tensor, "row pos d_model"], Float[Tensor, "row pos d_model"]]]:
    """What each MLP reads, behind its norm, and what it writes: a pair for each layer.

    Examples
    --------
    >>> model = ck.load_model("two-layer-mlp")
    >>> x, y = layer_inputs_and_outputs(model, model.to_tokens("It is"))[0]
    >>> x.shape, y.shape
    (torch.Size([1, 3, 128]), torch.Size([1, 3, 128]))
    """
    layers = range(len(model.blocks))
    hooks = [(f"blocks.{layer}.ln2.hook_out", f"blocks.{layer}.mlp.hook_out") for layer in layers]
    values: dict[str, list[Tensor]] = {name: [] for pair in hooks for name in pair}
    first = [("ln_final.hook_in", lambda stream, hook: stream[:, :1])]  # logits that nobody reads
    with model.hooks(fwd_hooks=first):
        for some in rows.split(64):
            _, cache = model.run_with_cache(some, names_filter=list(values))
            for name, seen in values.items():
                seen.append(cache[name])
    return [(torch.cat(values[read]), torch.cat(values[written])) for read, written in hooks]


@checked
@torch.no_grad()
def replaced_logits(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    writers: dict[int, Any],
    without: str | None = None,
) -> Float[Tensor, "row pos d_vocab"]:
    """The logits of a model in which functions take the place of some MLPs.

    Parameters
    ----------
    model : a `TransformerBridge` with MLPs
    tokens : token ids
    writers : for each layer, a function from what the MLP reads to what is written in its place, such
        as a `Transcoder`
    without : the name of a head whose output is set to 0

    Notes
    -----
    Everything else computes as usual, attention patterns and divisors of norms included.

    Examples
    --------
    >>> model = ck.load_model("two-layer-mlp")
    >>> replaced_logits(model, model.to_tokens("It is"), {0: torch.zeros_like}).shape
    torch.Size([1, 3, 2048])
    """
    read = {}

    def keep(value: Tensor, hook: Any) -> None:
        read[hook.name.split(".")[1]] = value

    def write(value: Tensor, hook: Any) -> Tensor:
        layer = hook.name.split(".")[1]
        return writers[int(layer)](read[layer])

    hooks = []
    for layer in writers:
        hooks.append((f"blocks.{layer}.ln2.hook_out", keep))
        hooks.append((f"blocks.{layer}.mlp.hook_out", write))
    if without is not None:
        (head,) = names.parse(without)

        def silence(z: Tensor, hook: Any) -> Tensor:
            z = z.clone()
            # [row, pos, head, d_head], or heads side by side in one axis
            by_head = z.view(*z.shape[:2], model.cfg.n_heads, -1)
            by_head[:, :, head.number] = 0
            return z

        hooks.append((f"blocks.{head.layer}.attn.o.hook_in", silence))
    return model.run_with_hooks(tokens, fwd_hooks=hooks)


class Node(NamedTuple):
    """A node of an attribution graph: a part at a position, or a latent of a transcoder there.

    `part` is a name such as `"embed"`, `"L0H1"`, `"L0 error"` or `"logit"`; of a latent it is
    `"L0 latent"`, and `number` says which one.
    """

    part: str
    pos: int = -1
    number: int | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """How a logit flows from tokens through heads and latents.

    Parameters
    ----------
    nodes : all nodes; the first one is the logit
    outflow : how much of the logit goes through each node; of the logit itself 0
    constant : how much of the logit comes from biases
    written : what each node has written into the stream at its position
    reads : for some nodes, the direction that they read at each position, times the slope of the logit
    """

    nodes: list[Node]
    outflow: Float[Tensor, " node"]
    constant: float
    written: Float[Tensor, "node d_model"]
    reads: dict[Node, Float[Tensor, "pos d_model"]]

    def inflow(self, target: Node) -> Float[Tensor, " node"]:
        """How much of the logit goes from each node directly into a target: the edges into it."""
        sources = torch.tensor([node.pos for node in self.nodes])
        earlier = torch.tensor([stage(node) < stage(target) for node in self.nodes])
        return (self.written * self.reads[target][sources]).sum(-1) * earlier

    def of_part(self, part: str) -> float:
        """How much of the logit goes through a part, at all positions together.

        A part does not read what it has written itself, so nothing is counted twice.
        """
        at = torch.tensor([node.part == part for node in self.nodes])
        return float(self.outflow[at].sum())

    def table(self) -> "pd.DataFrame":
        """The nodes with their flows, the largest first."""
        import pandas as pd  # takes half a second

        table = pd.DataFrame(self.nodes).assign(flow=self.outflow)
        return table.sort_values("flow", key=abs, ascending=False)


class Backward:
    """Nodes and the directions that they read, collected from the logit back to the tokens."""

    def __init__(self, run: "Run", direction: Tensor) -> None:
        self.run = run
        self.nodes: list[Node] = []
        """The nodes that write, in the order of `written` and `outflow`."""
        self.written: list[Tensor] = []
        """What nodes have written at their positions, `[node, d_model]`, a group after the other."""
        self.outflow: list[Tensor] = []
        """How much of the logit goes through them, `[node]`."""
        self.reads: list[tuple[Node, Tensor]] = []
        """What each node reads, times what this does to the logit, `[pos, d_model]`."""
        norm = run.recording.frozen("ln_final")
        self.slope = torch.zeros_like(run.part("embed")[0])
        self.constant = float(norm.bias @ direction)
        last = torch.zeros_like(self.slope)
        last[-1] = direction
        reading = norm.fold(last.mT).mT / norm.scale[0]
        self.add([Node("logit", len(last) - 1)], reading[None])

    def add(self, nodes: list[Node], readings: Tensor) -> None:
        """The directions that the nodes of one layer read; they do not read one another."""
        self.reads = [*zip(nodes, readings, strict=True), *self.reads]
        self.slope = self.slope + readings.sum(0)

    def write(self, nodes: list[Node], vectors: Tensor) -> None:
        """Nodes that write vectors, for the slope that the logit has at their positions."""
        self.nodes += nodes
        self.written.append(vectors)
        self.outflow.append((vectors * self.slope[[node.pos for node in nodes]]).sum(-1))

    def mlp(self, layer: int, transcoder: Transcoder) -> None:
        """A transcoder with its error: each active latent is a node."""
        run, slope = self.run, self.slope
        norm = run.recording.frozen(f"blocks.{layer}.ln2")
        x = run.read(f"L{layer} MLP")[0]
        latents = transcoder.encode(x)
        error = run.part(f"L{layer} MLP")[0] - transcoder.decode(latents)
        weights = slope @ transcoder.W_dec.T  # [pos, latent]
        bias = transcoder.b_enc + norm.bias @ transcoder.W_enc
        self.constant += float((weights * (latents > 0) * bias).sum())
        self.constant += float((slope @ transcoder.b_dec).sum())
        pos, number = latents.nonzero().T
        nodes = [Node(f"L{layer} latent", *at) for at in latents.nonzero().tolist()]
        self.write(nodes, latents[pos, number, None] * transcoder.W_dec[number])
        self.write([Node(f"L{layer} error", pos) for pos in range(len(error))], error)
        # a latent reads at its own position only
        read = weights[pos, number, None] * norm.fold(transcoder.W_enc).T[number]
        readings = torch.zeros(len(nodes), *slope.shape, dtype=slope.dtype)
        readings[range(len(nodes)), pos] = read / norm.scale[0, pos]
        self.add(nodes, readings)

    def attention(self, layer: int) -> None:
        """The heads of a layer, each with its pattern of the run: a node for each destination."""
        run, slope = self.run, self.slope
        norm = run.recording.frozen(f"blocks.{layer}.ln1")
        destinations = slope.any(-1).nonzero().flatten()
        readers, readings = [], []
        for part in head_names(run.model, layer):
            head = ck.heads_of(run.model, part)
            pattern, OV = run.pattern(part)[0], head.W_V[0] @ head.W_O[0]
            written = run.part(part)[0]
            moved = pattern @ norm.apply(run.stream(part)[0])[0] @ OV
            # what the biases of the values and of the norm write
            self.constant += float((slope * (written - moved)).sum())
            nodes = [Node(part, pos) for pos in destinations.tolist()]
            self.write(nodes, written[destinations])
            # [dst, src, d_model]
            read = norm.fold(OV @ slope[destinations].T).T[:, None] / norm.scale[0]
            readers += nodes
            readings.append(pattern[destinations, :, None] * read)
        if f"L{layer} bias" in run.parts():
            self.constant += float((slope * run.part(f"L{layer} bias")[0]).sum())
        self.add(readers, torch.cat(readings))

    def embeddings(self) -> None:
        """A node for each token, and one for each position."""
        for part in ("embed", "pos"):
            written = self.run.part(part)[0]
            self.write([Node(part, pos) for pos in range(len(written))], written)

    def graph(self) -> Graph:
        """All nodes, the logit first."""
        logit = self.reads[-1][0]
        nothing = torch.zeros_like(self.slope[:1])
        return Graph(
            [logit, *self.nodes],
            torch.cat([nothing[:, 0], *self.outflow]),
            self.constant,
            torch.cat([nothing, *self.written]),
            dict(self.reads),
        )


def stage(node: Node) -> int:
    """When a node writes; it reads only nodes of earlier stages."""
    if node.part in ("embed", "pos"):
        return -1
    if node.part == "logit":
        return 1_000
    return 2 * int(node.part[1]) + int(node.part[2] != "H")


@checked
@torch.no_grad()
def attribution_graph(
    model: Model,
    tokens: Int[Tensor, "one pos"],
    answer: int,
    transcoders: dict[int, Transcoder],
) -> Graph:
    r"""The attribution graph of the logit of an answer at the last token, above the mean logit.

    Parameters
    ----------
    model : a `TransformerBridge` with heads and MLPs in turn, such as `two-layer-mlp`
    tokens : one row of token ids
    answer : the token whose logit is explained
    transcoders : one for the MLP of each layer

    Returns
    -------
    A `Graph`. Its nodes are tokens, positions, heads at each destination, the active latents, an error
    node for each MLP and position, and the logit.

    Raises
    ------
    ValueError : if tokens hold several rows, or a layer has no transcoder

    Notes
    -----
    Attention patterns, the divisors of norms, and which latents are active are those of the run, and so
    are the errors of the transcoders. Then the logit is linear in what each node writes.
    Formula: an edge is $F_{st} = w_s \cdot r_t$ with $w_s$ what s has written and $r_t$ the direction
    that t reads, times the slope of the logit. What flows into a node, biases included, is what flows
    out of it. Error: rounding. Source: Ameisen et al. 2025, with heads as nodes.

    Examples
    --------
    >>> model = ck.load_model("two-layer-mlp")
    >>> x = torch.randn(64, 128)
    >>> coders = {n: random_transcoder(x, x, latents=8, active=2) for n in (0, 1)}
    >>> attribution_graph(model, model.to_tokens("It is"), 5, coders).nodes[0].part
    'logit'
    """
    if len(tokens) != 1 or set(transcoders) != set(range(len(model.blocks))):
        raise ValueError(
            f"There are {len(tokens)} rows of tokens, and transcoders for the layers "
            f"{sorted(transcoders)}. Give one row, and a transcoder for each of the "
            f"{len(model.blocks)} layers."
        )
    run = ck.run(model, tokens)
    backward = Backward(run, model.W_U[:, answer] - model.W_U.mean(1))
    if model.b_U is not None:
        backward.constant += float(model.b_U[answer] - model.b_U.mean())
    for layer in reversed(range(len(model.blocks))):
        backward.mlp(layer, transcoders[layer])
        backward.attention(layer)
    backward.embeddings()
    return backward.graph()


def wires_of(model: Model, head: str) -> list[str]:
    """All wires from a head into later heads, MLPs and the unembedding.

    Examples
    --------
    >>> wires_of(ck.load_model("two-layer-mlp"), "L1H2")
    ['L1H2->L1 MLP', 'L1H2->unembed']
    """
    layer = int(head[1 : head.index("H")])
    readers = [f"L{later} MLP" for later in range(layer, len(model.blocks))]
    for later in range(layer + 1, len(model.blocks)):
        readers += [f"{name}.{side}" for name in head_names(model, later) for side in "QKV"]
    return [f"{head}->{reader}" for reader in [*readers, "unembed"]]


@checked
@torch.no_grad()
def predicted_cuts(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    answers: Int[Tensor, " row"],
    transcoders: dict[int, Transcoder],
) -> "pd.DataFrame":
    """What three methods predict for the ablation of each head, and what happens.

    Parameters
    ----------
    model, transcoders : as in `attribution_graph`
    tokens : token ids
    answers : for each row, the token whose logit at the last position is measured, above the mean logit

    Returns
    -------
    A row for each head and text: the `measured` change of the logit when the output of the head is set to
    0; by `"wires"`, the sum of the changes when its wires are cut one at a time; by `"transcoders"`, the
    change in the model with transcoders in place of its MLPs; by `"graph"`, minus the flow through the head.

    Notes
    -----
    Source: this book.
    """
    import pandas as pd  # takes half a second

    row = torch.arange(len(tokens))

    def height(logits: Tensor) -> Tensor:
        last = logits[:, -1]
        return last[row, answers] - last.mean(-1)

    whole = height(ck.run(model, tokens).logits)
    replaced = height(replaced_logits(model, tokens, transcoders))
    graphs = [
        attribution_graph(model, tokens[i : i + 1], int(answers[i]), transcoders)
        for i in range(len(tokens))
    ]
    tables = []
    for head in ck.heads_of(model).names:
        by_wire = [ck.run(model, tokens, wire).logits for wire in wires_of(model, head)]
        without = replaced_logits(model, tokens, transcoders, head)
        columns = {
            "measured": height(ck.run(model, tokens, head).logits) - whole,
            "wires": sum(height(logits) - whole for logits in by_wire),
            "transcoders": height(without) - replaced,
            "graph": [-graph.of_part(head) for graph in graphs],
        }
        tables.append(pd.DataFrame({"head": head, "text": row} | columns))
    return pd.concat(tables, ignore_index=True)


def draw_graph(graph: Graph, words: list[str], largest: int = 17, smallest: float = 0.25) -> Any:
    """Draw the nodes with the largest flows, tokens from left to right and layers from bottom to top.

    Edges that carry less than `smallest` are left out.
    """
    import matplotlib.pyplot as plt

    chosen = [0, *graph.outflow.abs().topk(largest).indices.tolist()]
    places = places_of([graph.nodes[i] for i in chosen])
    fig, ax = plt.subplots(figsize=(6.8, 3.6))
    for target, (to_x, to_y) in places.items():
        if target not in graph.reads:
            continue
        edges = graph.inflow(target)
        for i in chosen:
            if abs(size := float(edges[i])) < smallest:
                continue
            x, y = places[graph.nodes[i]]
            color = "C0" if size > 0 else "C3"
            ax.plot(
                [x, to_x], [y, to_y], color=color, lw=0.3 + 0.6 * abs(size), alpha=0.5, zorder=1
            )
    for node, (x, y) in places.items():
        name = node.part.split()[-1] if node.number is None else str(node.number)
        box = {"boxstyle": "round,pad=0.2", "fc": "#fff", "ec": "#777"}
        ax.text(x, y, name, ha="center", va="center", fontsize=7, color="#111", bbox=box, zorder=2)
    columns: dict[int, list[float]] = {}
    for node, (x, _) in places.items():
        columns.setdefault(node.pos, []).append(x)
    middles = [(min(xs) + max(xs)) / 2 for xs in columns.values()]
    ax.set_xticks(middles, [words[pos] for pos in columns])
    levels = ["tokens", "L0 heads", "L0 latents", "L1 heads", "L1 latents", "output"]
    ax.set_yticks(range(-1, len(levels) - 1), levels)
    ax.set(xlim=(-0.8, max(x for x, _ in places.values()) + 0.8), ylim=(-1.5, len(levels) - 1.5))
    return fig


def places_of(nodes: list[Node]) -> dict[Node, tuple[float, float]]:
    """Where nodes stand: those of one position and stage side by side."""
    top = 1 + max(stage(node) for node in nodes if node.part != "logit")
    groups: dict[int, dict[int, list[Node]]] = {}
    for node in sorted(nodes, key=lambda node: (node.pos, node.part, node.number or 0)):
        groups.setdefault(node.pos, {}).setdefault(min(stage(node), top), []).append(node)
    places, left = {}, 0.0
    for stages in groups.values():
        width = max(map(len, stages.values()))
        for height, group in stages.items():
            for i, node in enumerate(group):
                places[node] = (left + (width - len(group)) / 2 + i, float(height))
        left += width + 0.4
    return places
