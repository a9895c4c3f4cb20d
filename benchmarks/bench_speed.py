"""Seconds of an MLP, of the two-key route and of the literal route, and of three programs for the Omega construction.

`python benchmarks/bench_speed.py --store` also writes `src/circuitkit/data/conversion/speed.json`, which the page "Trained
models as attention" shows. A layer has 128 coordinates and 512 SiLU neurons. The routes are run in turns, and each time is the
median of the runs. Training is a forward pass, a squared error and the gradients of all weights.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from circuitkit.conversion import neuron_heads
from circuitkit_book.omega import OmegaMLP

RESULT = Path(__file__).resolve().parents[1] / "src/circuitkit/data/conversion/speed.json"
D, M = 128, 512
LENGTHS = (64, 256)
OMEGA_SIZES = 64, 256, 64  # coordinates, neurons, tokens
RUNS = 9


def weights(d: int, m: int) -> tuple[Tensor, Tensor]:
    """The two matrices of an MLP."""
    generator = torch.Generator().manual_seed(0)
    W_in = torch.randn(d, m, generator=generator) / math.sqrt(d)
    return W_in, torch.randn(m, d, generator=generator) / math.sqrt(m)


def two_key(X: Tensor, W_in: Tensor, W_out: Tensor) -> Tensor:
    """The softmax over two scores for each token and neuron, times the value."""
    return neuron_heads(W_in, W_out)(X)


def literal(X: Tensor, W_in: Tensor, W_out: Tensor) -> Tensor:
    """Whole patterns of all neuron-heads on the stream with a bias token."""
    return neuron_heads(W_in, W_out).literal(X)


def plain(X: Tensor, W_in: Tensor, W_out: Tensor) -> Tensor:
    """The MLP."""
    return F.silu(X @ W_in) @ W_out


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds of some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def medians(works: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """The median seconds of each work, run in turns after one run for warming up."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(values) for name, values in times.items()}


def repeated(work: Callable[[], object], count: int) -> Callable[[], object]:
    """The same work several times, so that a fast one can be timed."""

    def all_of_it() -> None:
        for _ in range(count):
            work()

    return all_of_it


def training(route: Callable, X: Tensor, W_in: Tensor, W_out: Tensor) -> None:
    """A forward pass and the gradients of the weights."""
    W_in, W_out = W_in.requires_grad_(), W_out.requires_grad_()
    loss = route(X, W_in, W_out).square().mean()
    torch.autograd.grad(loss, [W_in, W_out])


def routes() -> list[dict]:
    """Tokens a second of the three routes, for inference and for training."""
    rows = []
    fast = 40  # so many runs of a fast route are timed together
    for length in LENGTHS:
        X = torch.randn(length, D, generator=torch.Generator().manual_seed(1))
        for use in ("inference", "training"):
            works = {}
            for name, route in {"MLP": plain, "two keys": two_key, "literal": literal}.items():
                W_in, W_out = weights(D, M)

                def once(route=route, W_in=W_in, W_out=W_out, X=X, use=use) -> None:
                    if use == "training":
                        training(route, X, W_in, W_out)
                    else:
                        with torch.no_grad():
                            route(X, W_in, W_out)

                works[name] = once if name == "literal" else repeated(once, fast)
            found = medians(works, RUNS)
            for name, value in found.items():
                each = value if name == "literal" else value / fast
                rows.append({"tokens": length, "use": use, "route": name, "seconds": each})
    return rows


# The Omega construction, three programs


def omega_dense(X: Tensor, layer: OmegaMLP) -> Tensor:
    """Formula (4.7) with full square matrices in each head: the program of the construction as it is written."""
    return layer(X)


def omega_factored(X: Tensor, layer: OmegaMLP, W_in: Tensor, W_out: Tensor) -> Tensor:
    """Whole patterns of all heads, but no square matrices: the position code and the neuron are multiplied apart."""
    n, m = len(X), W_in.shape[1]
    stream = layer.augment(X)
    code = stream[:, X.shape[1] + m :]
    itself = 2 * layer.omega * (code @ code.T)
    hidden = itself.softmax(-1)[:n, :n] @ (X @ W_in)
    scores = itself.expand(m, -1, -1).clone()
    scores[:, :n, n] = 2 * layer.omega
    scores[:, :n, :n] = scores[:, :n, :n] - hidden.T[:, :, None]
    pattern = scores.softmax(-1)[:, :n, :n]
    hidden = hidden - torch.einsum("mqk,km->qm", pattern, hidden)
    return itself.softmax(-1)[:n, :n] @ (hidden @ W_out)


def omega_masked(X: Tensor, layer: OmegaMLP, W_in: Tensor, W_out: Tensor) -> Tensor:
    """The one-hot part of the scores as a mask: only the two places that are left are computed."""
    hidden = X @ W_in
    scores = torch.stack([-hidden, torch.zeros_like(hidden)], -1)
    return (hidden - scores.softmax(-1)[..., 0] * hidden) @ W_out


def omega() -> list[dict]:
    """Seconds of three programs for the three sublayers, over those of the MLP, at a small size."""
    d, m, length = OMEGA_SIZES
    W_in, W_out = weights(d, m)
    X = torch.randn(length, d, generator=torch.Generator().manual_seed(1))
    layer = OmegaMLP(W_in, W_out, None, None, length, 20.0, "three_layers")
    programs = {
        "MLP": lambda: plain(X, W_in, W_out),
        "full square matrices": lambda: omega_dense(X, layer),
        "whole patterns": lambda: omega_factored(X, layer, W_in, W_out),
        "one-hot part as a mask": lambda: omega_masked(X, layer, W_in, W_out),
    }
    counts = {
        "MLP": 200,
        "full square matrices": 1,
        "whole patterns": 10,
        "one-hot part as a mask": 200,
    }
    exact = plain(X, W_in, W_out)
    with torch.no_grad():
        for name, program in programs.items():
            error = float((program() - exact).abs().max())
            if error > 1e-4:
                raise ValueError(f"{name} differs from the MLP by {error:.1e}.")
        works = {name: repeated(work, counts[name]) for name, work in programs.items()}
        found = medians(works, RUNS)
    return [
        {"tokens": length, "program": name, "seconds": value / counts[name]}
        for name, value in found.items()
    ]


def processor() -> str:
    """The name of the processor, as far as it is known."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", action="store_true", help="write the table of the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, programs = routes(), omega()
    for row in rows:
        one = next(
            r["seconds"]
            for r in rows
            if r["route"] == "MLP" and (r["tokens"], r["use"]) == (row["tokens"], row["use"])
        )
        if row["route"] != "MLP":
            name = f"speed-{row['use']}-{row['route'].replace(' ', '-')}-over-mlp-{row['tokens']}"
            print(f"{name} {row['seconds'] / one:.2f} -")
    for row in programs[1:]:
        name = row["program"].replace(" ", "-")
        print(f"speed-omega-{name}-over-mlp {row['seconds'] / programs[0]['seconds']:.1f} -")
    if arguments.store:
        provenance = {
            "script": "benchmarks/bench_speed.py",
            "machine": f"one core of {processor()}, torch {torch.__version__}",
            "sizes": f"{D} coordinates and {M} neurons; Omega: 64 coordinates and 256 neurons",
        }
        table = {"provenance": provenance, "rows": rows, "omega": programs}
        RESULT.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
