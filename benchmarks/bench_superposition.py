"""Speed of the skip-trigram tools, in CPU time: ratios inside one run, and the sampler per 300,000 prompts."""

import time

import torch
from circuitkit.superposition._train import Training
from circuitkit.superposition._verdict import always_predicted

from circuitkit.superposition import GatedBlock, SkipTrigramTask, hand_specified, post_recipe


def cpu(work, repeats: int) -> float:
    """CPU seconds of one call, the best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for _ in range(repeats):
            work()
        best = min(best, (time.process_time() - start) / repeats)
    return best


def brute_force(m: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """For every head and every set of other heads, 1.0 where the completion is predicted: `[row, head, 2^(heads-1)]`."""
    n_heads = m.shape[1]
    out = []
    for head in range(n_heads):
        others = [k for k in range(n_heads) if k != head]
        kept = []
        for code in range(2 ** (n_heads - 1)):
            members = [head] + [k for bit, k in enumerate(others) if code >> bit & 1]
            kept.append((m[:, members].sum(1) + r).amin(-1) > 0)
        out.append(torch.stack(kept, 1))
    return torch.stack(out, 1).to(m.dtype)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        f"sample-300000-prompts-seconds {cpu(lambda: SkipTrigramTask(5).sample(300_000, 0), 1):.3f} 1"
    )

    generator = torch.Generator().manual_seed(0)
    margins, rest = torch.randn(1500, 8, 11, generator=generator), torch.zeros(1500, 11)
    closed = cpu(lambda: always_predicted(margins, rest), 20)
    print(
        f"closed-form-verdict-over-brute-force-at-8-heads {closed / cpu(lambda: brute_force(margins, rest), 1):.5f} 0.02"
    )
