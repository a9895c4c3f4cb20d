"""What the induction tools cost beside a forward pass, and the live trainer beside a minute.

The first is the issue's figure: scores of all 144 heads of a GPT-2-small-shaped random model against one bare forward
pass of the same rows: the fastest of each, taken in turns, since a busy machine only ever adds time.
"""

import time

import torch

from circuitkit import induction
from circuitkit.rows import default_rows
from circuitkit_book.induction_training import train_induction_model


def gpt2_shaped():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.sources import native  # noqa: F401  attaches boot_native

    sizes = {
        "d_model": 768,
        "d_head": 64,
        "n_layers": 12,
        "n_heads": 12,
        "d_mlp": 3072,
        "n_ctx": 1024,
        "d_vocab": 50257,
    }
    config = TransformerBridgeConfig(**sizes, normalization_type="LN", act_fn="gelu_new", seed=0)
    return TransformerBridge.boot_native(config).eval().requires_grad_(False)


def seconds(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    model = gpt2_shaped()
    rows = default_rows(model)
    model(rows.tokens)
    bare, scored = [], []
    for _ in range(6):
        bare.append(seconds(lambda: model(rows.tokens)))
        scored.append(seconds(lambda: induction.scores(model, rows)))
    print(f"induction-scores-over-forward-gpt2-shape {min(scored) / min(bare):.3f} 1.3")


if __name__ == "__main__":
    main()
    training = seconds(lambda: train_induction_model(2))
    print(f"induction-train-two-layers-seconds {training:.1f} 60")
