"""What every head of a model does on repeated random tokens: four scores from one forward pass."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import AnyModel, Count, Names, ids, must, public, sizes
from circuitkit._precision import full_precision
from circuitkit.anatomy import Anatomy
from circuitkit.induction._stream import Fill, engine, look
from circuitkit.induction._tokens import Repeated, after_occurrences, earlier_occurrences, repeated_tokens

Kind = Literal["prefix_matching", "previous_token", "duplicate_token", "copying"]
KINDS = get_args(Kind)


@public
@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of all heads, each a tensor `[head]` in the order of `names`, which is the order of the layers.

    **Source**: see `scores`.
    """

    names: tuple[str, ...]
    """Head names, such as `"L1H3"`."""
    prefix_matching: Float[Tensor, " head"]
    """Mean attention from a token that occurred before to the positions *after* its earlier occurrences; 0 to 1."""
    previous_token: Float[Tensor, " head"]
    """Mean attention to the previous position, over all positions but the first; 0 to 1."""
    duplicate_token: Float[Tensor, " head"]
    """Mean attention from a token that occurred before to its earlier occurrences; 0 to 1."""
    copying: Float[Tensor, " head"]
    """How far the head, where it attends, raises the logit of the token there: eigenvalue score, -1 to 1."""

    def __getitem__(self, name: str) -> dict[str, float]:
        """The four scores of one head."""
        if name not in self.names:
            shown = ", ".join(self.names[:24]) + (f", ... ({len(self.names)} in all)" if len(self.names) > 24 else "")
            raise ValueError(f"no head is called {name!r}; expected one of {shown}, because scores are kept by head.")
        return {kind: float(getattr(self, kind)[self.names.index(name)]) for kind in KINDS}

    def top(self, kind: Kind, k: Count = 5) -> list[tuple[str, float]]:
        """The `k` heads with the highest score of a kind, best first."""
        values = getattr(self, kind)
        order = values.argsort(descending=True, stable=True)[:k]
        return [(self.names[i], float(values[i])) for i in order.tolist()]

    def __repr__(self) -> str:
        best = ", ".join(f"{kind} {name} {value:.2f}" for kind in KINDS for name, value in self.top(kind, 1))
        return f"Scores({len(self.names)} heads; best {best})"


def default_rows(model: Any, *, period: int = 64, batch: int = 8) -> Repeated:
    """Two passes over a span of different tokens, after the tokenizer's opening token if the model has one."""
    bos, (d_vocab, n_ctx) = getattr(getattr(model, "tokenizer", None), "bos_token_id", None), sizes(model)
    opening = int(bos is not None)
    period = min(period, (n_ctx - opening) // 2, d_vocab - opening)
    return repeated_tokens(d_vocab, period, batch=batch, bos=None if bos is None else int(bos))


@public
@ids(least=2)
@must(lambda tokens: bool(earlier_occurrences(getattr(tokens, "tokens", tokens)).any())
     or "rows in which some token recurs, because that is where heads are measured. Use repeated_tokens(...), or longer text")
def scores(
    model: AnyModel,
    tokens: Int[Tensor, "batch pos"] | Repeated | None = None,
    *,
    without: Names = (),
    fill: Fill = "zero",
) -> Scores:
    r"""Prefix-matching, previous-token, duplicate-token and copying score of every head, from one forward pass.

    With the pattern $A$ and $P_t$ the positions before $t$ that hold the same token, over all $t$ whose $P_t$ is not empty:
    prefix matching is the mean of $\sum_{p \in P_t} A_{t,\,p+1}$, duplicate token that of $\sum_{p \in P_t} A_{t,\,p}$;
    previous token is the mean of $A_{t,\,t-1}$ over $t \ge 1$. Copying is $\sum_i \mathrm{Re}\,\lambda_i / \sum_i
    |\lambda_i|$ over the eigenvalues of the map from the token at a source position to the logits that the head writes when
    it attends only there, $L_{ij} = v_i W_O W_U[:, x_j]$, with $i, j$ over all positions $p + 1$, values and unembedding
    vectors centred over them. Values are the model's own, so norms, MLPs and earlier heads count.

    **Shapes**: `tokens` any rows `[batch, pos]` in which tokens recur, left out eight rows of a random span of 64 (less if
    the model is smaller), twice. `without` leaves out parts and wires, see `Anatomy.run`. Patterns are reduced where they are
    computed, some destinations at a time, and dropped: any attention will do, and long contexts. **Error**: float32 rounding;
    the sampling error of a mean over about 500 positions. **Source**: "In-context Learning and Induction Heads" (prefix
    matching, copying); "A Mathematical Framework" (eigenvalues). Theirs normalise copying differently.

    >>> from circuitkit.induction import build_induction_model
    >>> result = scores(build_induction_model(20, 16))
    >>> [round(value, 3) for value in result.prefix_matching.tolist()]
    [0.0, 1.0]
    """
    rows = default_rows(model) if tokens is None else tokens
    rows = rows.tokens if isinstance(rows, Repeated) else rows
    runs = engine(model, without, look=True)
    watcher = _Watcher(runs, rows.to(runs.W_E.device))
    look("scores", runs, rows, watcher.see, without, fill)
    columns = {kind: torch.cat([found[kind] for found in watcher.found.values()]) for kind in KINDS}
    names = tuple(f"L{i}H{j}" for i, found in watcher.found.items() for j in range(len(found["copying"])))
    return Scores(names, **{kind: column.cpu() for kind, column in columns.items()})


class _Watcher:
    """Reduces each layer's patterns and values to the four scores of its heads."""

    def __init__(self, model: Any, rows: Tensor):
        same, after = earlier_occurrences(rows), after_occurrences(rows)
        self.masks = {"prefix_matching": after, "duplicate_token": same}
        self.places: dict[int, dict[str, tuple[Tensor, ...]]] = {}
        self.n_known = same.any(-1).sum()
        self.found: dict[int, dict[str, Tensor]] = {}
        self.sources = after.any(1)
        columns = full_precision(model.W_U.detach())[:, rows[self.sources]]
        norm = model.final if isinstance(model, Anatomy) else getattr(model, "ln_final", None)
        gain = getattr(norm, "gain", getattr(norm, "weight", None))
        columns = columns if gain is None else columns * full_precision(gain.detach())[:, None]
        self.unembed = columns - columns.mean(1, keepdim=True)

    def see(self, layer: int, pattern: Tensor, values: Tensor, W_O: Tensor, rows: slice) -> None:
        """`pattern[batch, head, dst, src]`: attention on the marked sources, for each destination that has one, and no other."""
        first, n_pos = rows.start, pattern.shape[-1]
        if not first:
            zero = pattern.new_zeros(pattern.shape[1])
            self.found[layer] = dict.fromkeys(KINDS, zero) | {"copying": self._copying(values, W_O)}
        if first not in self.places:  # where they stand in these destinations: the same in every layer
            self.places[first] = {kind: mask[:, rows].nonzero(as_tuple=True) for kind, mask in self.masks.items()}
        found = self.found[layer]
        for kind, (row, dst, src) in self.places[first].items():
            found[kind] = found[kind] + pattern[row, :, dst, src].sum(0) / self.n_known
        previous = pattern.diagonal(first - 1, -2, -1).sum((0, 2))
        found["previous_token"] = found["previous_token"] + previous / (len(pattern) * (n_pos - 1))

    def _copying(self, values: Tensor, W_O: Tensor) -> Tensor:
        """`values[batch, head or group, pos, d_head]`: the wanted eigenvalues are those of a d_head x d_head matrix."""
        W_O = full_precision(W_O.detach())
        value = full_precision(values.detach()).transpose(1, 2)[self.sources].transpose(0, 1)
        # Centring the unembedding vectors is enough: what is the same in all values then multiplies to zero.
        value = value.repeat_interleave(W_O.shape[0] // value.shape[0], dim=0)
        eigenvalues = torch.linalg.eigvals(W_O @ self.unembed @ value)
        total = eigenvalues.abs().sum(-1)
        return torch.where(total > 0, eigenvalues.real.sum(-1) / total.clamp(min=1e-30), 0.0)
