"""Where SmolLM2's heads rest, what makes the place, and what is lost when the rest is taken away: a piece of `real_circuit.py`.

    python -m tools real-circuit --only sinks
"""

from typing import Any

import torch


def text_of(model: Any, batch: int = 4, length: int = 64) -> torch.Tensor:
    """Held-out text behind the opening token, each row from another passage."""
    from circuitkit import models

    passages = models.heldout_text()
    spans = [model.to_tokens(passages[7 * i + 3]["text"], prepend_bos=False)[0, 5 : 4 + length] for i in range(batch)]
    return torch.cat([torch.ones(batch, 1, dtype=torch.long), torch.stack(spans)], 1)


def looked(value: Any, tokens: torch.Tensor, first: int = 1) -> tuple[dict[str, float], dict[str, float], Any]:
    """Every head's mean attention on the opening token, how loud its value is there beside elsewhere, and the run."""
    share, loud = {}, {}

    def watch(sub: Any, pattern: torch.Tensor, values: torch.Tensor, places: slice) -> None:
        assert pattern.shape[-2] == tokens.shape[1], "these rows are short enough to be seen at once"
        inside = sub.inside
        values = values if values.shape[1] == len(inside) else values.repeat_interleave(len(inside) // values.shape[1], 1)
        size = torch.einsum("bhpd,hdm->bhpm", values, inside.W_O).norm(dim=-1)
        for head in range(len(inside)):
            share[f"{sub.name}H{head}"] = float(pattern[:, head, first:, 0].mean())
            loud[f"{sub.name}H{head}"] = float(size[:, head, 0].mean() / size[:, head, 1:].mean())

    return share, loud, value.run(tokens, watch=watch)


def changed(value: Any, tokens: torch.Tensor, heads: list[str], what: str, at: int = 0) -> Any:
    """A run in which some heads read one place otherwise.

    `"zero"`: nothing; `"swap"`: what the opening token offers is what place `at` offers; `"block"`: place `at` is not
    looked at, and the attention that it had goes to all others in proportion.
    """
    seen: dict[str, Any] = {}

    def watch(sub: Any, pattern: torch.Tensor, values: torch.Tensor, places: slice) -> None:
        assert pattern.shape[-2] == tokens.shape[1], "these rows are short enough to be seen at once"
        n = pattern.shape[1]
        seen["now"] = pattern, values if values.shape[1] == n else values.repeat_interleave(n // values.shape[1], 1)

    def edit(sub: Any, z: torch.Tensor) -> torch.Tensor:
        rows = [i for i in range(z.shape[1]) if f"{sub.name}H{i}" in heads] if z.ndim == 4 else []
        if not rows:
            return z
        pattern, values = (one[:, rows] for one in seen["now"])
        place = at if what == "block" else 0
        here, offered = pattern[..., place, None], values[:, :, place, None]
        if what == "swap":
            new = z[:, rows] + here * (values[:, :, at, None] - offered)
        else:
            new = z[:, rows] - here * offered
            new = new if what == "zero" else new / (1 - here).clamp_min(1e-6)
        z = z.clone()
        z[:, rows, place + 1 if what == "block" else 1 :] = new[:, :, place + 1 if what == "block" else 1 :]
        return z

    return value.run(tokens, watch=watch, edit=edit)


def loss(run: Any) -> torch.Tensor:
    told = run.logits[:, :-1].log_softmax(-1).gather(-1, run.tokens[:, 1:, None])
    return -told[..., 0].mean(1)


def sinks(model: Any, known: dict[str, Any], draws: int = 5) -> dict[str, Any]:
    """Shares, sizes, and the loss on text after each change beside the same change at drawn places."""
    from circuitkit import anatomy, induction
    from tools.study.real_circuit import rows_of

    value, tokens = anatomy(model), text_of(model)
    share, loud, run = looked(value, tokens)
    rows = rows_of(model, 10, 40, 4)
    again, _, _ = looked(value, rows.tokens, rows.start + rows.period)
    heads = [name for name in share if share[name] > 0.5]
    sizes = [[round(float(x.norm(dim=-1).mean()), 1) for x in (s[:, :1], s[:, 1:])] for s in run.streams]
    writes = {name: float(run.part(name)[:, 0].norm(dim=-1).mean()) for name in value.parts() if name.endswith("MLP")}
    wrote = sorted(writes, key=lambda name: -writes[name])[:4]
    alike = torch.nn.functional.cosine_similarity(run.streams[36][:1, 0], run.streams[36][1:, 0]).min()
    places = torch.randperm(30, generator=torch.Generator().manual_seed(0))[:draws] + 2
    whole = loss(run)
    cuts = {}
    for name, first, other in (("value", ("zero", 0), "swap"), ("block", ("block", 0), "block")):
        tries = [loss(changed(value, tokens, heads, *first)), *(loss(changed(value, tokens, heads, other, int(at))) for at in places)]
        cuts[name] = [[round(v, 4) for v in one.tolist()] for one in (whole, *tries)]
        print(name, [round(float(one.mean()), 2) for one in (whole, *tries)], flush=True)
    most = [name for name in share if share[name] > 0.8]
    for fill in ("mean", "zero"):
        found = induction.effect(model, tokens, most, fill=fill, draws=12)
        cuts[fill] = [[round(v, 4) for v in row] for row in found.values.tolist()]
        print(found, flush=True)
    round_ = lambda table: [round(v, 3) for v in table.values()]  # noqa: E731
    return {
        "share": round_(share), "on repeats": round_(again), "loud": round_(loud), "sizes": sizes[::2],
        "written": {name: round(writes[name]) for name in wrote}, "alike": round(float(alike), 3),
        "heads": len(heads), "most": len(most), "cuts": cuts,
    }  # fmt: skip
