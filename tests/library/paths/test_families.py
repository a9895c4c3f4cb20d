"""Score tables of nine families in float32, against what the models themselves attend to and say.

The reference is the model as transformers runs it: its logits, and its patterns, whose logarithms are its scores up to a
constant for each destination. Errors are relative: to the largest logit, and to the largest score of the head.
"""

import math

import pytest
import torch

import circuitkit as ck
from tests.support.zoo import make

#: By family: the shape in `zoo`, the cap of its scores, and the floor: the error of the same comparison in float64, where
#: only what transformers computes in float32 whatever the model's dtype (norms, rotations, the softmax) is left, as a bound.
FAMILIES = {
    "GPT-2": ("gpt2", None, 1e-12),
    "NeoX": ("neox-parallel", None, 1e-12),
    "Llama": ("llama", None, 3e-6),
    "Qwen2": ("qwen2", None, 3e-6),
    "Qwen3": ("qwen3", None, 3e-6),
    "Gemma 2": ("gemma2", 5.0, 3e-6),
    "Gemma 3": ("gemma3", None, 3e-6),
    "Mistral": ("mistral", None, 3e-6),
    "Phi": ("phi", None, 3e-6),
}
PAIRS = [(10, 10), (10, 8), (9, 7), (6, 5), (3, 0)]  # inside every window of 5


def measured(shape, cap, dtype):
    """Largest relative errors: of logits, and of the sums of tables against the model's own attention."""
    model = make(shape, dtype)
    tokens = torch.randint(50, (2, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    said = (ck.run(model, tokens).logits - logits).abs().max() / logits.abs().max()
    own = 0.0
    for head in [name for name in ck.heads_of(model).names if name[:2] in ("L1", "L2")]:
        layer, number = int(head[1]), int(head[3:])
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][1, number].double()
        pairs = {*PAIRS, *((dst, dst) for dst, _ in PAIRS)}
        of = {
            pair: ck.paths.score_decomposition(model, tokens[1], head, *pair).values.double()
            for pair in pairs
        }
        found = {pair: of[pair] for pair in PAIRS}
        largest = max(abs(float(one.sum())) for one in found.values())
        for (dst, src), one in found.items():
            first = float(of[dst, dst].sum())
            told = [
                s if cap is None else cap * math.tanh(s / cap) for s in (float(one.sum()), first)
            ]
            wanted = float(pattern[dst, src].log() - pattern[dst, dst].log())
            own = max(own, abs(told[0] - told[1] - wanted) / largest)
    return float(said), own


@pytest.mark.weekly
@pytest.mark.parametrize("family", FAMILIES)
def test_tables_equal_scores_and_scores_are_what_the_model_does(family):
    shape, cap, floor = FAMILIES[family]
    assert max(measured(shape, cap, torch.float32)) < 1e-5
    assert max(measured(shape, cap, torch.float64)) < floor
