"""How the tools grow: beside a forward pass of a model of GPT-2's size, and as powers of a size, one thread.

A line that ends in `-exponent` fits seconds (or the largest tensor) at four sizes to a power of the size. Its limit is the law
that the algorithm states, V^2 or n^2 or a constant, and 0.15 more, which is what the clock of a busy machine takes.
Ratios compare work that is measured in turns in one process; the smallest of three counts.
"""

import math
import resource
import time
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from circuitkit import Heads, anatomy, induction, plan
from circuitkit._blocks import largest_entries
from circuitkit.circuits import (
    composition_scores,
    full_ov,
    random_heads,
)
from circuitkit.paths import path_logits
from circuitkit.residual import logit_attribution, subspace_overlap, virtual_weights
from circuitkit.skip_trigrams import strongest


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any one result held."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes():
                self.numbers = max(
                    self.numbers, value.untyped_storage().nbytes() // value.element_size()
                )
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
    x, y = (torch.tensor(some, dtype=torch.float64).log() for some in (sizes, values))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x * x).sum())


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


def plain(d_vocab, d_model=64):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5  # noqa: E731
    return anatomy.from_heads(
        random_heads(1, d_model, 16), draw(d_vocab, d_model), draw(d_model, d_vocab)
    )


def beside_a_forward_pass():
    model = gpt2_shaped()
    generator = torch.Generator().manual_seed(0)
    few, many = (torch.randint(50_257, (1, n), generator=generator) for n in (32, 1024))
    anatomy(model)
    forward, paths = seconds(
        lambda: model(few), lambda: path_logits(model, few, max_order=1).sum(at=-1)
    )
    print(f"paths-order-1-over-forward-32-tokens {paths / forward:.3g} 3")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = path_logits(model, few, max_order=1)
    print(
        f"paths-order-1-megabytes-beside-forward {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.3g} 50"
    )
    del kept
    forward, shares = seconds(
        lambda: model(many), lambda: logit_attribution(model, many, many), times=2
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    logit_attribution(model, many, many)
    print(
        f"attribution-1024-tokens-megabytes-beside-forward {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.3g} 200"
    )
    print(f"attribution-over-forward-1024-tokens {shares / forward:.3g} 1.3")
    pair, product = seconds(
        lambda: virtual_weights(model, "L0H1", "L5H1.K"),
        lambda: model.W_O[0, 1] @ model.W_K[5, 1],
        times=20,
    )
    print(f"virtual-weights-one-pair-milliseconds-more {1e3 * (pair - product):.3g} 10")
    rows = induction.repeated_tokens(50_257, 64, batch=8)
    forward, scored = seconds(
        lambda: model(rows.tokens), lambda: induction.scores(model, rows), times=2
    )
    print(f"induction-scores-over-forward {scored / forward:.3g} 0.8")


def at_full_size():
    """What the issue of scale asks in seconds of one thread: one head, 50,257 tokens."""
    model = plain(50_257, 768)
    (taken,) = seconds(lambda: strongest(model, "L0H0"), times=1)
    print(f"skip-trigrams-50257-tokens-seconds {taken:.3g} 60")
    table = full_ov(model, "L0H0")
    (taken,) = seconds(lambda: largest_entries(table.A, table.B, 10), times=1)
    print(f"top-entries-50257-tokens-seconds {taken:.3g} 8")
    one = random_heads(
        1, 4096, 128
    )  # 5,120 heads that share their numbers, so that only the work takes room
    weights = {
        name: getattr(one, name).expand(5120, -1, -1) for name in ("W_Q", "W_K", "W_V", "W_O")
    }
    some = Heads(
        tuple(f"L{i // 64}H{i % 64}" for i in range(5120)),
        **weights,
        layers=tuple(i // 64 for i in range(5120)),
    )
    for name, work in ("subspace-overlap", subspace_overlap), ("composition", composition_scores):
        ((_, size),) = plan(work, some, some, "K").items.values()
        print(f"{name}-5120-heads-of-8b-megabytes {size / 2**20:.4g} 2048")


def laws():
    sizes = [4096, 6144, 8192, 12288]
    models = {n: plain(n) for n in sizes}
    taken = seconds(*(lambda n=n: strongest(models[n], "L0H0") for n in sizes), times=2)
    print(f"skip-trigrams-vocabulary-exponent {exponent(sizes, taken):.3g} 2.15")
    largest = []
    for n in sizes:
        with Largest() as seen:
            strongest(models[n], "L0H0")
        largest.append(seen.numbers)
    print(f"skip-trigrams-largest-tensor-exponent {exponent(sizes, largest):.3g} 0.15")
    tables = {n: full_ov(models[n], "L0H0") for n in sizes}
    taken = seconds(
        *(lambda n=n: largest_entries(tables[n].A, tables[n].B, 10) for n in sizes), times=2
    )
    print(f"top-entries-vocabulary-exponent {exponent(sizes, taken):.3g} 2.15")
    counts = [
        128,
        256,
        512,
        1024,
    ]  # of fewer, what each head costs by itself hides the law: one that is worse by a power would pass
    stacks = {n: random_heads(n, 256, 16) for n in counts}
    taken = seconds(*(lambda n=n: subspace_overlap(stacks[n], stacks[n]) for n in counts))
    print(f"subspace-overlap-heads-exponent {exponent(counts, taken):.3g} 2.15")
    later = {n: replace(stack, layers=(1,) * n) for n, stack in stacks.items()}
    taken = seconds(*(lambda n=n: composition_scores(stacks[n], later[n]) for n in counts))
    print(f"composition-heads-exponent {exponent(counts, taken):.3g} 2.15")
    lengths = [32, 64, 128, 256]
    text = torch.randint(37, (1, 256), generator=torch.Generator().manual_seed(0))
    deep = gpt2_shaped(d_vocab=64)
    anatomy(deep)
    taken = seconds(*(lambda n=n: path_logits(deep, text[:, :n], max_order=1) for n in lengths))
    print(f"paths-order-1-tokens-exponent {exponent(lengths, taken):.3g} 1.5")


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    beside_a_forward_pass()
    laws()
    at_full_size()


if __name__ == "__main__":
    main()
