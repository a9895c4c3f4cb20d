"""Which pairs of neurons make an induction head look back, and what cutting them does, beside drawn neurons.

    python -m tools neuron-pairs        four processor minutes; needs the weights of `python -m tools real-induction --fetch`

SmolLM2 is converted, eight heads a neuron, and so every score of a head is a sum over pairs (part that asks, part that
offers), neurons among them: some 700 million pairs in layer 18. They are ranked from two thin matrices and never made; a mean
over rows is ranked too, since a mean of products of thin matrices is one product of wider ones. Softmax does not see what is
added to all places alike, so a second ranking takes what a pair adds to the right place above the mean of three wrong ones: the
same product, with the difference of the keys. The shipped model with MLPs is asked the same.

On other rows the wires of the 100 strongest pairs are cut, from the asking neurons into the head's queries and from the offering
ones into its keys. Beside them as many drawn neurons: any of the earlier layers, any of the same layers, and for each name one
of the twenty of its own layer that put as much, in size, into the same queries or (differences of) keys.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tools.study import manifest
from tools.study.real_circuit import WEIGHTS, rows_of
from tools.study.real_decoders import PROVENANCE

TARGET = Path(__file__).resolve().parents[2] / "src" / "circuitkit" / "conversion" / "data" / "pairs.json"
PAIRS, DRAWS, NEAR, PERIOD = 100, 20, 20, 24
DST = 1 + PERIOD + 15
SRC = DST - PERIOD + 1
WRONG = (SRC - 9, SRC + 5, SRC + 13)
HOW = ("score", "above other places")
CONTROLS = ("any", "same layer", "same layer and size")


def sides(model: Any, tokens: torch.Tensor, head: str) -> dict[str, Any]:
    """The mean over rows of the score, and of what it is above the mean of the wrong places: rows side by side."""
    from circuitkit.circuits import score_decomposition

    found = {how: ([], []) for how in HOW}
    for row in tokens:
        split = {src: score_decomposition(model, row, head, DST, src, neurons=True).by_neuron() for src in (SRC, *WRONG)}
        right = split[SRC]
        for how, (queries, keys) in found.items():
            queries.append(right.queries / len(tokens))
            keys.append(right.keys if how == "score" else right.keys - sum(split[src].keys for src in WRONG) / len(WRONG))
    return {how: right._replace(queries=torch.cat(q, 1), keys=torch.cat(k, 1)) for how, (q, k) in found.items()}


def neurons_of(parts: Any) -> Any:
    """The pairs of neurons alone."""
    some = torch.tensor([i for i, name in enumerate(parts.components) if name[:1] == "L" and "N" in name])
    return parts._replace(queries=parts.queries[some], keys=parts.keys[some], components=tuple(parts.components[i] for i in some.tolist()))


def drawn(names: list[str], pool: dict[str, float], how: str, generator: torch.Generator) -> list[str]:
    """As many of the pool, none twice and none of the names: any, of the same layer each, or one of the nearest there in size."""
    layers, taken, left = {}, [], {*names}
    for name in pool:
        layers.setdefault("" if how == "any" else name.partition("N")[0], []).append(name)
    for name in names:
        some = [one for one in layers["" if how == "any" else name.partition("N")[0]] if one not in left]
        if how == "same layer and size":
            some = sorted(some, key=lambda one: abs(pool[one] - pool[name]))[:NEAR]
        taken.append(some[int(torch.randint(len(some), (1,), generator=generator))])
        left.add(taken[-1])
    return taken


def study(model: Any, head: str, named_on: torch.Tensor, judged_on: torch.Tensor, draws: int = DRAWS) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is in the score, and a row for each cut: the attention to the right place on each judged row, or of each draw."""
    from circuitkit.anatomy import Neurons, anatomy

    value = anatomy(model)
    short = replace(value, steps=value.steps[: value.find(head).step + 1], W_U=value.W_U[:, :1])
    base, told, rows = short.run(judged_on), {"head": head}, []
    for sub in short.sublayers:  # kept, so that no cut makes all neurons of a layer again
        if isinstance(sub.inside, Neurons) and short.find(f"L{sub.layer} MLP").step < len(short.steps) - 1:
            base.gathered[sub.name] = base.z(sub)

    def attention(asking: list[str], offering: list[str]) -> torch.Tensor:
        cut = [f"{name}->{head}.Q" for name in asking] + [f"{name}->{head}.K" for name in offering]
        return short.run(judged_on, without=cut, base=base).pattern(head)[:, DST, SRC]

    def row(how: str, cut: str, values: Any) -> None:
        rows.append({"head": head, "ranked": how, "cut": cut, "values": [round(float(v), 4) for v in values]})
        print(rows[-1], flush=True)

    row("", "nothing", attention([], []))
    for how, parts in sides(model, named_on, head).items():
        alone, generator = neurons_of(parts), torch.Generator().manual_seed(0)
        best = [pair for pair in alone.largest(4 * PAIRS) if pair[2] > 0][:PAIRS]
        ends = [sorted({pair[side] for pair in best}) for side in (0, 1)]
        pools = [dict(zip(alone.components, table.norm(dim=1).tolist(), strict=True)) for table in (alone.queries, alone.keys)]
        told |= {"parts": len(parts.components), "pairs": len(parts.components) ** 2}
        told[how] = {
            "sum": round(parts.score, 3), "neurons": round(alone.score, 3), "named": round(sum(pair[2] for pair in best), 3),
            "asks": len(ends[0]), "offers": len(ends[1]), "best": [[*pair[:2], round(pair[2], 3)] for pair in best[:5]],
        }  # fmt: skip
        print(told[how], flush=True)
        row(how, "named", attention(*ends))
        for control in CONTROLS:
            tries = ([drawn(names, pool, control, generator) for names, pool in zip(ends, pools, strict=True)] for _ in range(draws))
            row(how, control, [attention(*one).mean() for one in tries])
    return told, rows


def main() -> None:
    torch.set_num_threads(1)
    import circuitkit as ck

    about, rows = {}, []
    for name, where, heads, many in (("two-layer-mlp", "two-layer-mlp", ("L1H2",), 1), ("smollm2", str(WEIGHTS), ("L18H6", "L17H3"), 8)):
        model = ck.to_attention_only(ck.load_model(where), heads_per_neuron=many, probe=torch.arange(8)[None])
        named_on, judged_on = (rows_of(model, seed, PERIOD, batch, opening=int(many > 1)).tokens for seed, batch in ((20, 4), (21, 8)))
        for head in heads:
            told, found = study(model, head, named_on, judged_on)
            about[f"{name} {head}"] = told
            rows += [{"model": name, **row} for row in found]
    smol = {key: PROVENANCE["smollm2"][key] for key in ("model", "weights", "licence", "sha256")}
    TARGET.write_text(json.dumps({"provenance": {**smol, **about}, "rows": rows}, indent=1) + "\n")
    manifest.write("conversion")


if __name__ == "__main__":
    main()
