"""Which heads of SmolLM2 are enough to repeat, when all others get the values of other rows? Chosen three ways, judged on other rows.

The pieces of `real_circuit.py` that keep heads instead of taking them out:

    python -m tools real-circuit --only mask "mask, second part" "mask, third part" sizes enough
"""

from typing import Any

import torch

#: What is kept is tried at these sizes.
SIZES = (16, 32, 48, 64, 96, 128)
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


def mask(
    model: Any, known: dict[str, Any], begin: str = "", seed: int = 1000, steps: int = 160, price: float = 0.03, rate: float = 0.15
) -> dict[str, float]:
    """A gate for each head, learnt: loss on the second pass of fresh rows, plus a price on every open gate.

    Gates are drawn (hard concrete, Louizos et al. 2018), so that they end open or shut; what is kept is how far each is open.
    A later part begins where the gates of another piece, `begin`, have ended: the price is higher there.
    """
    from circuitkit import anatomy
    from tools.study.real_circuit import judged, rows_of

    value, generator = anatomy(model), torch.Generator().manual_seed(0)
    opened = known[begin] if begin else dict.fromkeys(value.head_names, 2.5)
    logit = torch.tensor([opened[name] for name in value.head_names], requires_grad=True)
    adam = torch.optim.Adam([logit], lr=rate)
    for step in range(steps):
        rows = rows_of(model, seed + step, 20, 3, step % 2)
        u = torch.rand(len(logit), generator=generator).clamp(1e-4, 1 - 1e-4)
        gate = (1.2 * ((u.log() - (1 - u).log() + logit) / 0.67).sigmoid() - 0.1).clamp(0, 1)
        loss = judged(swapped(value, rows.tokens, gate), rows)[0].mean()
        still = (logit + 0.67 * 2.4).sigmoid().sum()  # how many gates are expected to be open
        adam.zero_grad()
        (loss + price * (1.0 if begin else min(1.0, step / 40)) * still).backward()
        adam.step()
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss:.2f}, open {int((logit > 0).sum())}, expected {still:.0f}", flush=True)
    return {name: round(v, 3) for name, v in zip(value.head_names, logit.tolist(), strict=True)}


def orders(known: dict[str, Any]) -> dict[str, list[str]]:
    """All heads, those to be kept first, by each way of choosing: what their loss costs alone, that guessed, and the learnt gates."""
    found = {how: known[how]["values"] for how in ("patching", "integrated 4")} | {"mask": known["mask, third part"]}
    return {how: sorted(values, key=lambda name: -values[name]) for how, values in found.items()}


def right(model: Any, rows: Any, fill: str) -> tuple[Any, Any]:
    """The accuracy on the second pass with only these heads kept, as a function of them; and a bench that does it."""
    from circuitkit.induction._effect import Bench
    from tools.study.real_circuit import judged

    bench = Bench(model, rows, fill, lambda run: judged(run, rows)[1])
    return lambda kept: float(bench.without([name for name in bench.model.head_names if name not in {*kept}]).mean()), bench


def sizes(model: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Accuracy by the number of heads kept, on rows that chose nothing else; the gates under all fills, the others under one."""
    from tools.study.real_circuit import rows_of

    rows, ways = rows_of(model, 12, 20, 6), orders(known)
    found: dict[str, Any] = {}
    for fill in FILLS:
        keep, bench = right(model, rows, fill)
        found["whole"] = round(float(bench.without(()).mean()), 4)
        for how in ways if fill == "resample" else ("mask",):
            found[f"{how}, {fill}"] = [round(keep(ways[how][:size]), 4) for size in SIZES]
            print(how, fill, found["whole"], found[f"{how}, {fill}"], flush=True)
    return found


def judged_beside(model: Any, names: list[str], size: int, fill: str, opening: int, draws: int) -> dict[str, Any]:
    """Accuracy with only the first heads kept, on rows that chose neither heads nor size, beside drawn sets."""
    from circuitkit.induction import effect
    from tools.study.real_circuit import judged, rows_of

    rows = rows_of(model, 20, 20, 6, opening)
    one = effect(model, rows, keep=names[:size], fill=fill, measure=lambda run: judged(run, rows)[1], draws=draws)
    print(line := repr(one).replace(": measure", ": accuracy"), flush=True)
    return {"line": line, "values": [[round(v, 4) for v in row] for row in one.values.tolist()]}


def enough(model: Any, known: dict[str, Any], draws: int = 20) -> dict[str, Any]:
    """The smallest size that keeps half of the accuracy, and for another row's values the next one, too."""
    found, names, whole = {}, orders(known)["mask"], known["sizes"]["whole"]
    for fill in FILLS:
        least = [size for size, v in zip(SIZES, known["sizes"][f"mask, {fill}"], strict=True) if v >= whole / 2]
        tries = [(size, opening) for size in least[:2] for opening in (1, 0)] if fill == "resample" else [(least[0], 1)]
        for size, opening in tries:
            found[f"kept {size}, {fill}, opening {opening}"] = judged_beside(
                model, names, size, fill, opening, draws if (fill, opening) == ("resample", 1) else draws // 3
            )
    return found | {"heads": names[:128]}
