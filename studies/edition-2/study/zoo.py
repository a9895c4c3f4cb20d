"""Train sixteen small models on repeats, from eight seeds on each of two tasks, and store which circuit each finds.

    python -m tools zoo                             some minutes; chapter 3 shows the result
    python -m tools zoo --seeds 0 1 --steps 50 --out FILE     a short try; what FILE holds of other seeds stays

The models have two layers of two heads, no MLP and no norm. Unlike those of `circuitkit.induction.train`, their heads read
and write the whole stream, positions too, so all three circuits of the chapter are within reach: notes about the previous
token (K wires), pointer arithmetic (Q wires) and two matches at once (both). The first task repeats a span of different
tokens. In the second, tokens come again within the span and are followed by others, so that one match is not enough.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tools.study import manifest

RESULT = Path(__file__).resolve().parents[2] / "src" / "circuitkit" / "induction" / "data" / "zoo.jsonl"
D_VOCAB, N_POS, N_HEADS, D_HEAD, D_CONTENT, D_POS = 32, 40, 2, 16, 32, 16
STEPS = {"different": 400, "recurring": 1500}


def rows_of(task: str, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows that repeat a span of 10 to 20 tokens, and where the next token is determined: from the second pass on."""
    if task == "different":
        spans = torch.rand(batch, D_VOCAB, generator=generator).argsort(dim=1, stable=True)
    else:
        spans = torch.randint(8, (batch, N_POS), generator=generator)
    period = torch.randint(N_POS // 4, N_POS // 2 + 1, (batch, 1), generator=generator)
    place = torch.arange(N_POS)
    return spans.gather(1, place % period), place[:-1] >= period + (task == "recurring")


class Net(nn.Module):
    """Content and position side by side in one stream, which every head reads and writes whole."""

    def __init__(self, seed: int):
        super().__init__()
        from circuitkit.induction._made import sinusoids

        generator = torch.Generator().manual_seed(seed)
        normal = lambda *shape, std: nn.Parameter(torch.randn(*shape, generator=generator) * std)  # noqa: E731
        d, width = D_CONTENT + D_POS, N_HEADS * D_HEAD
        self.W_E, self.W_U = normal(D_VOCAB, d, std=1.0), normal(d, D_VOCAB, std=0.02)
        self.W_pos = nn.functional.pad(sinusoids(N_POS, D_POS).float(), (D_CONTENT, 0))
        wide = [(d, width)] * 3 + [(width, d)]
        self.layers = nn.ModuleList(nn.ParameterList([normal(*shape, std=0.1) for shape in wide]) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.W_E[tokens] + self.W_pos[: tokens.shape[1]]
        split = lambda y: y.unflatten(-1, (N_HEADS, -1)).transpose(1, 2)  # noqa: E731
        for W_Q, W_K, W_V, W_O in self.layers:
            out = nn.functional.scaled_dot_product_attention(
                split(x @ W_Q), split(x @ W_K), split(x @ W_V), is_causal=True
            )
            x = x + out.transpose(1, 2).flatten(2) @ W_O
        return x @ self.W_U

    def anatomy(self) -> Any:
        from circuitkit import Heads
        from circuitkit.anatomy import from_heads

        split = [
            [w.detach().unflatten(1, (N_HEADS, -1)).transpose(0, 1) for w in layer[:3]]
            + [layer[3].detach().unflatten(0, (N_HEADS, -1))]
            for layer in self.layers
        ]
        stacked = (torch.cat(matrices) for matrices in zip(*split, strict=True))
        layers = tuple(layer for layer in range(2) for _ in range(N_HEADS))
        heads = Heads(tuple(f"{n}" for n in range(len(layers))), *stacked, layers=layers)
        return from_heads(heads, self.W_E.detach(), self.W_U.detach(), self.W_pos)


def train(task: str, seed: int, steps: int, lr: float = 4e-3) -> tuple[Net, list[float]]:
    """The model, and its accuracy on fresh rows at every step."""
    net, generator, curve = Net(seed), torch.Generator().manual_seed(1000 + seed), []
    optimiser = torch.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 20, (steps - step) / (0.3 * steps))
        rows, known = rows_of(task, 64, generator)
        logits = net(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits[known], rows[:, 1:][known])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        curve.append(float((logits.argmax(-1) == rows[:, 1:])[known].float().mean()))
    return net, curve


def looks(value: Any, rows: Tensor, known: Tensor) -> dict[str, float]:
    """Attention of the first layer to one back, two back and an earlier copy, each that of its best head."""
    pattern = next(iter(value.run(rows).patterns.values()))
    same = (rows[:, :, None] == rows[:, None, :]).tril(-1).to(pattern)
    copies = (pattern * same[:, None]).sum(-1)[:, :, :-1]
    return {
        "one back": float(pattern.diagonal(-1, -2, -1).mean((0, 2)).max()),
        "two back": float(pattern.diagonal(-2, -2, -1).mean((0, 2)).max()),
        "earlier copy": float((copies * known[:, None]).sum((0, 2)).div(known.sum()).max()),
    }


def judged(net: Net, task: str) -> dict[str, Any]:
    """Accuracy of the whole model, and with one kind of wire between its layers cut, one wire at a time too."""
    from circuitkit.induction import paths

    value = net.anatomy()
    rows, known = rows_of(task, 256, torch.Generator().manual_seed(7))

    def accuracy(without: Any = ()) -> float:
        right = value.run(rows[:, :-1], without=without, fill="mean").logits.argmax(-1) == rows[:, 1:]
        return float(right[known].float().mean())

    found = {"whole": accuracy(), **{kind: accuracy(paths(value, kind)) for kind in "QKV"}}
    found |= {wire: accuracy(wire) for kind in "QKV" for wire in paths(value, kind)} | looks(value, rows, known)
    return {name: round(x, 3) for name, x in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(8)])
    parser.add_argument("--steps", type=int, help="default: 400 and 1500")
    parser.add_argument("--tasks", nargs="+", default=[*STEPS], choices=STEPS)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = [json.loads(line) for line in args.out.read_text("utf-8").splitlines()] if args.out.exists() else []
    for task in args.tasks:
        for seed in args.seeds:
            began = time.process_time()
            net, curve = train(task, seed, args.steps or STEPS[task])
            means = [round(math.fsum(curve[i : i + 10]) / 10, 2) for i in range(0, len(curve) - 9, 10)]
            one = {"task": task, "seed": seed, "curve": means} | judged(net, task)
            found = [old for old in found if (old["task"], old["seed"]) != (task, seed)] + [one]
            shown = {name: x for name, x in one.items() if name not in ("curve", "task") and "->" not in name}
            print(task, f"{time.process_time() - began:.0f} s", shown, means[::5], flush=True)
            lines = map(json.dumps, sorted(found, key=lambda one: (one["task"], one["seed"])))
            args.out.write_text("\n".join(lines) + "\n", "utf-8")
    if args.out == RESULT:
        manifest.write("induction")



if __name__ == "__main__":
    main()
