"""Composition scores of all head pairs of a GPT-2-small-shaped model, beside transformer-lens, in one run.

The limit on the time is a tenth of transformer-lens's; the limit on the difference is 1e-5 of the score. Also what the
path expansion costs beside a forward pass, which has no limit.
"""

import time

import torch

import circuitkit
from circuitkit.circuits import composition_scores, path_logits


def gpt2_shaped():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {"d_model": 768, "d_head": 64, "n_layers": 12, "n_heads": 12, "n_ctx": 16, "d_vocab": 50}
    config = TransformerBridgeConfig(**sizes, attn_only=True, normalization_type=None, seed=0)
    return TransformerBridge.boot_native(config).eval().requires_grad_(False)


def seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def all_pairs(stack, kind):
    return composition_scores(stack, stack, kind)


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    model = gpt2_shaped()
    stack = circuitkit.heads(model)
    composition_scores(stack[:12], stack[12:24], "K")  # first use of the routines is not what is measured
    for kind in "KQV":
        ours, result = seconds(lambda kind=kind: all_pairs(circuitkit.heads(model), kind))
        theirs, reference = seconds(lambda kind=kind: model.all_composition_scores(kind).scores.reshape(144, 144))
        off = ((result.score - reference).abs() / reference.clamp_min(1e-12))[result.possible].max().item()
        print(f"composition-{kind}-time-over-transformer-lens {ours / theirs:.4f} 0.1")
        print(f"composition-{kind}-relative-difference {off:.2e} 1e-5")
    two = circuitkit.load_model("two-layer")
    rows = circuitkit.models.heldout_rows(4)
    bare, _ = seconds(lambda: two(rows))
    whole, _ = seconds(lambda: path_logits(two, rows))
    print(f"path-expansion-over-forward-two-layer {whole / bare:.2f} -")


if __name__ == "__main__":
    main()
