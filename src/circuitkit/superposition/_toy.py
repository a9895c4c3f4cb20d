"""One attention layer on one-hot tokens: the model in which all skip-trigram experiments are made."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit._heads import Heads
from circuitkit.superposition._task import SkipTrigramTask

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge


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

    def __post_init__(self) -> None:
        v = self.task.d_vocab
        if self.W_E.shape[0] != v or self.W_U.shape[1] != v:
            raise ValueError(
                f"the model has {self.W_E.shape[0]} input and {self.W_U.shape[1]} output tokens; the task has {v}. "
                f"A task of {self.task.n_trigrams} trigrams needs {v} of each; make both for the same task."
            )

        d = self.heads.d_model
        if self.W_E.shape[1] != d or self.W_U.shape[0] != d:
            raise ValueError(
                f"the heads read and write {d} dimensions, W_E has {self.W_E.shape[1]} and W_U {self.W_U.shape[0]}; expected "
                f"one size, because all share one residual stream. Give W_E [{v}, {d}] and W_U [{d}, {v}]."
            )

    def __repr__(self) -> str:
        return f"ToyModel({len(self.heads)} heads, {self.task.n_trigrams} trigrams, d_head={self.heads.d_head})"

    def run(
        self, tokens: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch head pos d_vocab"], Float[Tensor, "batch pos d_vocab"]]:
        """`(head_logits, residual_logits)`; their sum over heads plus the residual is the model's logits, exactly."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(self.W_E):
            raise ValueError(
                f"the model got tokens {int(tokens.min())} to {int(tokens.max())}; expected 0 to {len(self.W_E) - 1}, as its "
                f"own task has ({self.task.n_trigrams} trigrams). Give prompts of that task: model.task.sample(n, seed)."
            )
        x = self.W_E[tokens]
        return self.heads.results(x) @ self.W_U, x @ self.W_U

    __call__ = run

    def to(self, dtype: torch.dtype) -> "ToyModel":
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
