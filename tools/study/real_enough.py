"""Which heads of SmolLM2 are enough to repeat, when all others get the values of other rows? Chosen three ways, judged on other rows.

The pieces of `real_circuit.py` that keep heads instead of taking them out:

    python -m tools real-circuit --only mask orders enough
"""

from typing import Any

import torch

#: What is kept is judged at these sizes.
SIZES = (8, 16, 24, 32, 48, 64, 96, 128)
FILLS = ("resample", "mean", "zero")


def swapped(value: Any, tokens: torch.Tensor, gate: Any) -> Any:
    """A run whose heads gather, as far as their gate is shut, what they gather on the next row of the untouched model."""
    from circuitkit import Heads

    base, first, begins = value.run(tokens), 0, {}
    for sub in value.sublayers:
        if isinstance(sub.inside, Heads):
            begins[sub.name], first = first, first + len(sub.inside)

    def edit(sub: Any, z: torch.Tensor) -> torch.Tensor:
        if sub.name not in begins:
            return z
        own = gate[begins[sub.name] :][: len(sub.inside), None, None]
        return own * z + (1 - own) * base.gathered[sub.name].roll(1, 0)

    return value.run(tokens, edit=edit, grad=True)


def mask(model: Any, known: dict[str, Any], steps: int = 160, price: float = 0.03, rate: float = 0.15) -> dict[str, float]:
    """A gate for each head, learnt: loss on the second pass of fresh rows, plus a price on every open gate.

    Gates are drawn (hard concrete, Louizos et al. 2018), so that they end open or shut; what is kept is how far each is open.
    """
    from circuitkit import anatomy
    from tools.study.real_circuit import judged, rows_of

    value, generator = anatomy(model), torch.Generator().manual_seed(0)
    logit = torch.full((len(value.head_names),), 2.5, requires_grad=True)
    adam = torch.optim.Adam([logit], lr=rate)
    for step in range(steps):
        rows = rows_of(model, 1000 + step, 20, 3, step % 2)
        u = torch.rand(len(logit), generator=generator).clamp(1e-4, 1 - 1e-4)
        gate = (1.2 * ((u.log() - (1 - u).log() + logit) / 0.67).sigmoid() - 0.1).clamp(0, 1)
        loss = judged(swapped(value, rows.tokens, gate), rows)[0].mean()
        still = (logit + 0.67 * 2.4).sigmoid().sum()  # how many gates are expected to be open
        adam.zero_grad()
        (loss + price * min(1.0, step / 40) * still).backward()
        adam.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss:.2f}, open {int((logit > 0).sum())}, expected {still:.0f}", flush=True)
    return {name: round(v, 3) for name, v in zip(value.head_names, logit.tolist(), strict=True)}
