"""What it costs to run MLPs as attention, against the MLPs themselves, in one run.

Sublayers of GPT-2-small's size at two lengths, a whole small model, and the memory that a conversion of a
GPT-2-small-shaped random model takes in addition to the model's own weights. Ratios are medians of runs taken in turns.
"""

import os
import statistics
import threading
import time

import torch
import torch.nn.functional as F

from circuitkit import to_attention_only
from circuitkit.conversion import gate_sum, neuron_heads


def seconds(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(work, reference, runs: int = 25) -> float:
    work(), reference()
    pairs = [(seconds(work), seconds(reference)) for _ in range(runs)]
    return statistics.median(one for one, _ in pairs) / statistics.median(two for _, two in pairs)


def native(**changes):
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
    config = TransformerBridgeConfig(
        **{**sizes, "normalization_type": "LN", "act_fn": "gelu_new", "seed": 0, **changes}
    )
    return TransformerBridge.boot_native(config).eval().requires_grad_(False)


def sublayers() -> None:
    g = torch.Generator().manual_seed(0)
    D, M = 768, 3072
    W_in, W_out = torch.randn(D, M, generator=g) / 28, torch.randn(M, D, generator=g) / 55
    b_in, b_out = torch.randn(M, generator=g), torch.randn(D, generator=g)
    for N in (64, 256):
        X = torch.randn(N, D, generator=g)
        for name, act in (("silu", F.silu), ("relu", F.relu), ("gelu", F.gelu)):
            counts = (1, 2, 5, 8) if name == "gelu" else (1,)
            for k in counts:
                heads = neuron_heads(W_in, W_out, b_in, b_out, name, heads_per_neuron=k)
                value = ratio(
                    lambda heads=heads, X=X: heads(X),
                    lambda act=act, X=X: torch.addmm(b_out, act(torch.addmm(b_in, X, W_in)), W_out),
                )
                limit = {1: 1.15, 5: 1.3}.get(k, "-")
                print(f"conversion-{name}-{k}-heads-over-mlp-{N}-positions {value:.3f} {limit}")


def gated() -> None:
    """A SwiGLU of SmolLM2's size, 16 heads a neuron, at two lengths."""
    g = torch.Generator().manual_seed(0)
    D, M = 576, 1536
    W_gate, W_in, W_out = (
        torch.randn(D, M, generator=g) / 8,
        torch.randn(D, M, generator=g) / 24,
        torch.randn(M, D, generator=g) / 40,
    )
    # as in a converted model, a fit for each neuron
    terms = gate_sum("silu", torch.full((M,), 24.0, dtype=torch.float64), 16)
    heads = neuron_heads(W_in, W_out, activation=terms, W_gate=W_gate)
    for N in (64, 256):
        X = torch.randn(N, D, generator=g)
        value = ratio(lambda X=X: heads(X), lambda X=X: (F.silu(X @ W_gate) * (X @ W_in)) @ W_out)
        print(f"conversion-swiglu-16-heads-over-mlp-{N}-positions {value:.3f} 2.5")


def accuracy() -> None:
    g = torch.Generator().manual_seed(0)
    X, W_in, W_out = (
        torch.randn(*s, generator=g, dtype=torch.float64)
        for s in ((64, 128), (128, 512), (512, 128))
    )
    W_in, W_out = W_in / 11, W_out / 22
    exact = F.silu(X @ W_in) @ W_out
    heads = neuron_heads(W_in, W_out)
    error = max(
        float((route - exact).abs().max() / exact.abs().max())
        for route in (heads(X), heads.literal(X))
    )
    print(f"conversion-silu-relative-error-float64 {error:.2e} 2e-15")
    narrow = neuron_heads(W_in.float(), W_out.float())(X.float()).double()
    plain = (F.silu(X.float() @ W_in.float()) @ W_out.float()).double()
    print(
        f"conversion-silu-error-over-mlp-float32 {float((narrow - exact).abs().max() / (plain - exact).abs().max()):.3f} 1"
    )


def whole_model() -> None:
    model = native(act_fn="silu", n_layers=4, d_vocab=2048)
    converted = to_attention_only(model, heads_per_neuron=1)
    tokens = torch.randint(2048, (1, 128), generator=torch.Generator().manual_seed(0))
    print(
        f"conversion-whole-silu-model-over-original {ratio(lambda: converted(tokens), lambda: model(tokens), 11):.3f} 1.3"
    )


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def watched(work):
    """What some work returns, and the most resident memory that it takes beyond what was held before."""
    held, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    thread = threading.Thread(target=watch)
    thread.start()
    made = work()
    peak[0] = max(peak[0], resident())
    done.set()
    thread.join()
    return made, peak[0] - held


def memory() -> None:
    """By resident memory: the weights and all that a conversion adds at its peak, over the weights."""
    before = resident()
    model = native()
    weights = sum(p.numel() * p.element_size() for p in model.original_model.parameters())
    left = resident() - before
    converted, peak = watched(lambda: to_attention_only(model, heads_per_neuron=5))
    print(f"conversion-peak-memory-over-weights {1 + peak / weights:.3f} 2.5")
    print(
        f"conversion-peak-memory-and-what-booting-left-over-weights {(left + peak) / weights:.3f} -"
    )
    assert converted.report.neuron_heads.sum() == 12 * 5 * 3072


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    memory()
    accuracy()
    sublayers()
    gated()
    whole_model()


if __name__ == "__main__":
    main()
