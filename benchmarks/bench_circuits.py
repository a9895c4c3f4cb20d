"""Composition scores of all head pairs of a GPT-2-small-shaped model, beside transformer-lens, in one run.

The limit on the time is a twentieth of transformer-lens's; the limit on the difference is 1e-5 of the score. 24 layers of 16
heads are compared with what version 0.1.0 did: triangles, multiplied out pair by pair. Also what the path expansion costs beside a forward
pass, which has no limit. The least of two or three turns counts, on either side.
"""

import time
from dataclasses import replace

import torch

import circuitkit
from circuitkit.circuits import _composition, composition_scores, random_heads
from circuitkit.paths import path_logits


def gpt2_shaped():
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {
        "d_model": 768,
        "d_head": 64,
        "n_layers": 12,
        "n_heads": 12,
        "n_ctx": 16,
        "d_vocab": 50,
    }
    config = TransformerBridgeConfig(**sizes, attn_only=True, normalization_type=None, seed=0)
    return TransformerBridge.boot_native(config).eval().requires_grad_(False)


def seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def all_pairs(stack, kind):
    return composition_scores(stack, stack, kind)


def multiplied_out(stack):
    """Processor seconds for what version 0.1.0 did: triangles, and the norms of all products of an earlier and a later head's factors, 16 by 16."""

    def work():
        triangle = lambda tall: torch.linalg.qr(tall, mode="r").R  # noqa: E731
        writes, reads = (
            triangle(stack.by_head("W_V")) @ stack.W_O,
            stack.by_head("W_K") @ triangle(stack.by_head("W_Q")).mT,
        )
        for late in range(16, len(stack), 16):
            for early in range(0, late, 16):
                block = writes[early : early + 16].flatten(0, 1) @ reads[
                    late : late + 16
                ].transpose(0, 1).flatten(1)
                block.unflatten(0, (16, -1)).unflatten(2, (16, -1)).square().sum((1, 3)).sqrt()

    return seconds(work)[0]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    model = gpt2_shaped()
    stack = circuitkit.heads_of(model)
    composition_scores(
        stack[:12], stack[12:24], "K"
    )  # first use of the routines is not what is measured
    for kind in "KQV":
        turns = [
            (
                seconds(lambda kind=kind: all_pairs(circuitkit.heads_of(model), kind)),
                seconds(lambda kind=kind: model.all_composition_scores(kind)),
            )
            for _ in range(2)
        ]
        (ours, result), (theirs, scores) = (
            min(some, key=lambda one: one[0]) for some in zip(*turns, strict=True)
        )
        reference = scores.scores.reshape(144, 144)
        off = (
            ((result.score - reference).abs() / reference.clamp_min(1e-12))[result.possible]
            .max()
            .item()
        )
        print(f"composition-{kind}-time-over-transformer-lens {ours / theirs:.4f} 0.05")
        print(f"composition-{kind}-relative-difference {off:.2e} 1e-5")
    many = replace(random_heads(384, 1024, 64), layers=tuple(i // 16 for i in range(384)))
    turns = [(seconds(lambda: all_pairs(many, "K"))[0], multiplied_out(many)) for _ in range(3)]
    ours, theirs = map(min, zip(*turns, strict=True))
    print(f"composition-24x16x1024-over-multiplied-out {ours / theirs:.3f} 0.5")
    _composition.composition_baseline.cache_clear()
    drawn = {
        "d_model": 1024,
        "d_early": 64,
        "d_late": 64,
        "baseline": "random",
        "scale_free": False,
        "seed": 0,
    }
    first, _ = seconds(lambda: _composition.composition_baseline(**drawn))
    again, _ = seconds(lambda: _composition.composition_baseline(**drawn))
    print(f"composition-baseline-again-over-first {again / first:.2e} 0.01")
    two = circuitkit.load_model("two-layer")
    rows = circuitkit.models.heldout_rows(4)
    bare, _ = seconds(lambda: two(rows))
    whole, _ = seconds(lambda: path_logits(two, rows))
    print(f"path-expansion-over-forward-two-layer {whole / bare:.2f} -")


if __name__ == "__main__":
    main()
