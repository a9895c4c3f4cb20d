"""One attention layer on one-hot tokens: the model in which all skip-trigram experiments are made."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Place, must, one_dtype, public
from circuitkit._heads import Heads
from circuitkit.anatomy import from_heads, to_bridge
from circuitkit.superposition._task import SkipTrigramTask

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


@public
@must(lambda task, W_E, heads: len(heads) > 0 and tuple(W_E.shape) == (task.d_vocab, heads.d_model)
     or f"W_E [{task.d_vocab}, {heads.d_model}]: as many tokens as the task's {task.n_trigrams} trigrams have, and the heads' stream")
@one_dtype("heads", "W_E", "W_U")
@dataclass(frozen=True, eq=False, repr=False)
class ToyModel:
    """A one-layer attention-only model without positions: `logits = (W_E[tokens] + sum_h head_h(W_E[tokens])) W_U`.

    Calling it gives what `head_verdict` needs: each head's share of the logits and the residual stream's. **Source**: "Gated
    Attention Blocks", experiments on toy models: one layer, one-hot tokens, no positions.
    """

    heads: Heads
    task: SkipTrigramTask
    W_E: Float[Tensor, "d_vocab d_model"]
    W_U: Float[Tensor, "d_model d_vocab"]

    def __repr__(self) -> str:
        return f"ToyModel({len(self.heads)} heads, {self.task.n_trigrams} trigrams, d_head={self.heads.d_head})"

    def run(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch head pos d_vocab"], Float[Tensor, "batch pos d_vocab"]]:
        """`(head_logits, residual_logits)`; their sum over heads plus the residual is the model's logits, exactly."""
        self.task._require(tokens)
        x = self.W_E[tokens]
        return self.heads.results(x) @ self.W_U, x @ self.W_U

    __call__ = run

    def to(self, *args: Place, **kwargs: Any) -> "ToyModel":
        """The same model on another device or in another dtype; arguments as in `torch.Tensor.to`."""
        to: Any = lambda part: part.to(*args, **kwargs)  # noqa: E731
        return ToyModel(to(self.heads), self.task, to(self.W_E), to(self.W_U))

    def logits(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        heads, residual = self.run(tokens)
        return heads.sum(1) + residual

    def bridge(self) -> "TransformerBridge":
        """The same model as a `TransformerBridge`, up to rounding; what native models always have beside it is zero."""
        return to_bridge(from_heads(self.heads, self.W_E, self.W_U), n_ctx=self.task.n_ctx)
