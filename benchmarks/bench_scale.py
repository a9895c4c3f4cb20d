"""How the tools grow: compared with a forward pass at GPT-2's size, and as powers of a size.

A line that ends in `-exponent` fits seconds (or the largest tensor) at four sizes to a power of the
size. Its limit is the power that the algorithm states, and 0.15 more for the clock of a busy machine.
Ratios compare work that is measured in turns in one process on one thread.
"""

import math
import resource
import time
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from circuitkit import induction, skip_trigrams
from circuitkit.circuits import composition_scores, random_heads
from circuitkit.handmade import bridge_of
from circuitkit.paths import path_logits
from circuitkit.residual import logit_attribution
from circuitkit.rows import repeated_tokens
from circuitkit_book.residual_stream import subspace_overlap


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any one result held."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes():
                numbers = value.untyped_storage().nbytes() // value.element_size()
                self.numbers = max(self.numbers, numbers)
        return out


def seconds(*works, times=3):
    """The least processor seconds of each piece of work, taken in turns."""
    least = [math.inf] * len(works)
    for _ in range(times):
        for number, work in enumerate(works):
            start = time.process_time()
            work()
            least[number] = min(least[number], time.process_time() - start)
    return least


def exponent(sizes, values):
    """The slope of a straight line through the logarithms."""
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


def megabytes_of(work):
    """How much the memory of the process grew during some work."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def gpt2_shaped(d_vocab=50_257):
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    shape = {
        "d_model": 768,
        "d_head": 64,
        "n_layers": 12,
        "n_heads": 12,
        "n_ctx": 1024,
        "d_mlp": 3072,
    }
    config = TransformerBridgeConfig(
        **shape, d_vocab=d_vocab, act_fn="gelu", normalization_type="LN", seed=0
    )
    return TransformerBridge.boot_native(config).eval().requires_grad_(False)


def one_head(d_vocab, d_model=64):
    generator = torch.Generator().manual_seed(0)
    W_E = torch.randn(d_vocab, d_model, generator=generator) / d_model**0.5
    W_U = torch.randn(d_model, d_vocab, generator=generator) / d_vocab**0.5
    return bridge_of(random_heads(1, d_model, 16), W_E, W_U, n_ctx=8)


def compared_with_a_forward_pass():
    model = gpt2_shaped()
    generator = torch.Generator().manual_seed(0)
    few, many = (torch.randint(50_257, (1, n), generator=generator) for n in (32, 1024))
    forward, paths = seconds(
        lambda: model(few), lambda: path_logits(model, few, max_order=1).sum(at=-1)
    )
    print(f"paths-order-1-over-forward-32-tokens {paths / forward:.3g} 4")
    forward, shares = seconds(
        lambda: model(many), lambda: logit_attribution(model, many, 7), times=2
    )
    grown = megabytes_of(lambda: logit_attribution(model, many, 7))
    print(f"attribution-1024-tokens-more-megabytes {grown:.3g} 200")
    print(f"attribution-over-forward-1024-tokens {shares / forward:.3g} 1.3")
    rows = repeated_tokens(50_257, 64, batch=8)
    forward, scored = seconds(
        lambda: model(rows.tokens), lambda: induction.scores(model, rows), times=2
    )
    print(f"induction-scores-over-forward {scored / forward:.3g} 1.5")


def at_full_size():
    """One head and 50,257 tokens, in seconds."""
    model = one_head(50_257, 768)
    (taken,) = seconds(lambda: skip_trigrams.strongest(model, "L0H0"), times=1)
    print(f"skip-trigrams-50257-tokens-seconds {taken:.3g} 60")


def laws():
    sizes = [4096, 6144, 8192, 12288]
    models = {n: one_head(n) for n in sizes}
    works = [lambda n=n: skip_trigrams.strongest(models[n], "L0H0") for n in sizes]
    print(f"skip-trigrams-vocabulary-exponent {exponent(sizes, seconds(*works, times=2)):.3g} 2.15")
    largest = []
    for work in works:
        with Largest() as seen:
            work()
        largest.append(seen.numbers)
    print(f"skip-trigrams-largest-tensor-exponent {exponent(sizes, largest):.3g} 1.15")
    counts = [128, 256, 512, 1024]  # fewer heads take too little time to show the law
    stacks = {n: random_heads(n, 256, 16) for n in counts}
    later = {n: replace(stack, layers=(1,) * n) for n, stack in stacks.items()}
    for name, tool in ("subspace-overlap", subspace_overlap), ("composition", composition_scores):
        taken = seconds(*(lambda n=n, tool=tool: tool(stacks[n], later[n]) for n in counts))
        print(f"{name}-heads-exponent {exponent(counts, taken):.3g} 2.15")


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    compared_with_a_forward_pass()
    laws()
    at_full_size()


if __name__ == "__main__":
    main()
