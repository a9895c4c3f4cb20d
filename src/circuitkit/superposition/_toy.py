"""One attention layer on one-hot tokens: the model in which all skip-trigram experiments are made."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._contract import Real, must, one_dtype, public
from circuitkit._heads import Heads
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

    `heads` are ordinary `Heads`, so every tool of chapter 2 reads them. Calling the model gives what `head_verdict`
    needs: each head's share of the logits and the share of the residual stream.

    **Source**: "Gated Attention Blocks", experiments on toy models: one layer, one-hot tokens, no positions.
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

    def to(self, dtype: Real) -> "ToyModel":
        """The same model in another dtype."""
        return ToyModel(self.heads.to(dtype), self.task, self.W_E.to(dtype), self.W_U.to(dtype))

    def logits(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        heads, residual = self.run(tokens)
        return heads.sum(1) + residual

    def bridge(self) -> "TransformerBridge":
        """The same model as a transformer-lens `TransformerBridge`: same logits to float32 rounding (1e-5 of scale).

        Position embeddings and output biases, which native models always have, are zero.
        """
        from transformer_lens.config import TransformerBridgeConfig
        from transformer_lens.model_bridge.sources import boot_native

        heads, v = self.heads, self.task.d_vocab
        config = TransformerBridgeConfig(
            d_model=heads.d_model, d_head=heads.d_head, n_heads=len(heads), n_layers=1, n_ctx=self.task.n_ctx,
            d_vocab=v, attn_only=True, normalization_type=None, act_fn="relu", seed=0,
        )  # fmt: skip
        model = boot_native(config)
        state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        divisor = heads.scale / heads.d_head**0.5  # the bridge divides by sqrt(d_head)
        state["embed.weight"], state["unembed.weight"] = self.W_E, self.W_U.T
        for key, weight, bias in (
            ("q", heads.W_Q / divisor, None if heads.b_Q is None else heads.b_Q / divisor),
            ("k", heads.W_K, heads.b_K),
            ("v", heads.W_V, heads.b_V),
        ):
            state[f"blocks.0.attn.{key}.weight"] = weight.transpose(1, 2).flatten(0, 1)
            if bias is not None:
                state[f"blocks.0.attn.{key}.bias"] = bias.flatten()
        state["blocks.0.attn.o.weight"] = heads.W_O.flatten(0, 1).T
        model.load_state_dict({name: value.contiguous() for name, value in state.items()})
        return model.eval()
