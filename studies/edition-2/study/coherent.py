"""The OV-coherent task: the answer at one read-off token depends on a pair of earlier tokens; models of it.

    python -m tools coherent --out data/superposition

Trains one layer of 1 to 3 heads of rank 1, 2 and 4 on the task, eight models a setting, without positions: the read-off
token's own bias plus what its heads write. Writes `coherent.csv`, one row a model: accuracy, and how many of the ten answers
some head gives whatever other heads are removed, by (5.1) of chapter 5. Interrupted, it goes on where it was.
"""

import argparse
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuitkit.superposition._verdict import always_predicted, margins
from tools.study.sweeps import sweep

SEEDS, STEPS, BATCH = 8, 1500, 256


@dataclass(frozen=True)
class OVCoherentTask:
    """`[signal] ... [signal] ... [read-off] -> [answer]`: prompts that end in the read-off token after two signals.

    Token 0 is the read-off, `1 .. S` are signals, the rest noise. The answer is one of `S (S + 1) / 2` classes, one for
    each unordered pair of signals, a signal twice included: with the 4 signals of the public description these are its
    10 outputs. No head can read the answer from one source, because each signal is part of several pairs.
    **Source**: Greenspan and Wynroe, "An OV-Coherent Toy Model of Attention Head Superposition", as far as its text goes:
    it states 12 input tokens (1 read-off, 4 signals, 7 noise) and 10 outputs. That outputs are unordered pairs, the
    prompt length and uniform places are our reading; no code is public.
    """

    n_signals: int = 4
    n_noise: int = 7
    n_ctx: int = 8

    @property
    def d_vocab(self) -> int:
        return 1 + self.n_signals + self.n_noise

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The unordered pair behind each answer, in the order of the answers."""
        return list(combinations_with_replacement(range(1, self.n_signals + 1), 2))

    def sample(self, n: int, seed: int) -> tuple[Int[Tensor, "prompt pos"], Int[Tensor, "prompt"]]:
        """`(tokens, answers)`: two uniform signals at two distinct uniform places, noise elsewhere, read-off last.

        >>> tokens, answers = OVCoherentTask().sample(3, seed=0)
        >>> tokens.shape, tokens[:, -1].tolist()
        (torch.Size([3, 8]), [0, 0, 0])
        """
        generator, s = torch.Generator().manual_seed(seed), self.n_signals
        tokens = torch.randint(1 + s, self.d_vocab, (n, self.n_ctx), generator=generator)
        tokens[:, -1] = 0
        first = torch.randint(self.n_ctx - 1, (n,), generator=generator)
        step = torch.randint(1, self.n_ctx - 1, (n,), generator=generator)
        places = torch.stack([first, (first + step) % (self.n_ctx - 1)], 1)
        signals = torch.randint(1, 1 + s, (n, 2), generator=generator)
        tokens.scatter_(1, places, signals)
        low, high = signals.sort(1).values.unbind(1)
        # Pairs that begin with 1 come first: S of them, then S - 1, and so on.
        return tokens, (low - 1) * s - (low - 1) * (low - 2) // 2 + high - low


def shares(p: dict[str, Tensor], tokens: Int[Tensor, "prompt pos"]) -> Float[Tensor, "run prompt head answer"]:
    """What each head writes at the read-off, for models with a leading run axis: a score and a value for each token."""
    scores = torch.einsum("rhd,rhvd->rhv", p["q"], p["k"]) / p["q"].shape[-1] ** 0.5
    pattern = scores[:, :, tokens].softmax(-1)  # [run, head, prompt, pos]
    read = torch.einsum("rhpt,rhptd->rhpd", pattern, p["v"][:, :, tokens])
    return torch.einsum("rhpd,rhda->rpha", read, p["o"])


def judge(heads: int, d_head: int) -> list[dict]:
    torch.set_num_threads(1)
    task = OVCoherentTask()
    n = len(task.pairs)
    shapes = {"q": (heads, d_head), "k": (heads, task.d_vocab, d_head), "v": (heads, task.d_vocab, d_head), "o": (heads, d_head, n), "b": (n,)}
    generator = torch.Generator().manual_seed(0)
    p = {name: (torch.randn(SEEDS, *shape, generator=generator) * (name != "b")).requires_grad_() for name, shape in shapes.items()}
    adam = torch.optim.Adam(p.values(), lr=1e-2)
    for step in range(STEPS):
        adam.param_groups[0]["lr"] = 1e-2 * min(1.0, 2 - 2 * step / STEPS)
        tokens, answers = task.sample(BATCH, 1000 + step)
        logits = shares(p, tokens).sum(2) + p["b"][:, None]
        adam.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.repeat(SEEDS)).mul(SEEDS).backward()
        adam.step()
    tokens, answers = task.sample(4000, 1)
    rows = []
    with torch.no_grad():
        for seed, part in enumerate(shares(p, tokens).double()):
            m, r = margins(part, answers), margins(p["b"][seed].double().expand(len(tokens), -1), answers)
            right, carried = (m.sum(1) + r).amin(-1) > 0, always_predicted(m, r)
            learnt = torch.stack([right[answers == a].double().mean() >= 0.99 for a in range(n)])
            alone = torch.stack([carried[answers == a].double().mean(0).max() >= 0.99 for a in range(n)])
            rows.append({
                "seed": seed, "accuracy": round(float(right.double().mean()), 4), "learnt": int(learnt.sum()),
                "shared": int((learnt & ~alone).sum()),
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/superposition"))
    settings = [{"heads": heads, "d_head": d_head} for heads in (1, 2, 3) for d_head in (1, 2, 4)]
    sweep(judge, settings, parser.parse_args().out / "coherent.csv")


if __name__ == "__main__":
    main()
