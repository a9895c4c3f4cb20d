"""Take the induction of SmolLM2 apart wire by wire, beside drawn wires, and store what was found.

    python -m tools real-induction --fetch      first: the weights
    python -m tools real-circuit                all pieces; each is stored when it is done (a quarter of an hour)
    python -m tools real-circuit --only "key wires"
    python -m tools real-circuit --ship         only put what is stored beside the survey that chapter 3 reads

The wires are chosen on other rows than those that judge them. Chapter 3 shows the cuts, no page yet the attributions.
"""

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tools.study import manifest

RESULT = Path(__file__).with_suffix(".json")
SHIPPED = Path(__file__).resolve().parents[2] / "src" / "circuitkit" / "induction" / "data" / "smollm2-135m.json"
WEIGHTS = Path(__file__).resolve().parents[2] / "data" / "real-models" / "smollm2-135m"


def rows_of(model: Any, seed: int = 0, period: int = 24, batch: int = 3, opening: int = 1) -> Any:
    from circuitkit import induction

    generator = torch.Generator().manual_seed(seed)
    return induction.repeated_tokens(model.cfg.d_vocab, period, batch=batch, bos=opening, generator=generator)


def strongest_key(value: Any, head: str, rows: Any) -> str:
    """The earlier head that, as a key, tells the right place from others by most."""
    run, total = value.run(rows.tokens), {}
    for row in range(len(rows.tokens)):
        for dst in range(rows.start + rows.period + 4, rows.tokens.shape[1], 12):
            right = dst - rows.period + 1
            for src, weight in ((right, 1.0), *((right + far, -1 / 3) for far in (-9, 5, 13) if 1 < right + far < dst)):
                names, table = run.score_table(head, dst, src, row, neurons=False)
                for name, share in zip(names, table.sum(0).tolist(), strict=True):
                    total[name] = total.get(name, 0.0) + weight * share
    return max((name for name in total if re.fullmatch(r"L\d+H\d+", name)), key=total.__getitem__)


def both(model: Any, rows: Any, **how: Any) -> dict[str, Any]:
    """An effect on loss and on accuracy from the same runs."""
    from circuitkit.induction import effect
    from circuitkit.induction._stream import second_pass

    seen = []

    def measure(run: Any) -> torch.Tensor:
        loss, right = second_pass(run.logits[: len(rows.tokens)], rows)
        seen.append(right)
        return loss

    found = effect(model, rows, measure=measure, **how)
    named = {"loss": found.values, "accuracy": torch.stack(seen)}
    return {name: replace(found, measure=name, values=values) for name, values in named.items()}


def looks(head: str, period: int = 24) -> Any:
    """How much of its attention a head gives to what followed last time."""
    return lambda run: run.pattern(head)[:, 1 + period :].diagonal(2, -2, -1).mean(-1)


def wires(model: Any, known: dict[str, Any]) -> list[str]:
    """The best source of each induction head's keys."""
    from circuitkit import anatomy, induction

    heads, value, rows = induction.stored_survey().groups["induction"], anatomy(model), rows_of(model, 1, batch=1)
    return [f"{strongest_key(value, head, rows)}->{head}.K" for head in heads]


def told(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"line": repr(one), "values": [[round(v, 4) for v in row] for row in one.values.tolist()]}
        for name, one in found.items()
    }


def keys(model: Any, known: dict[str, Any]) -> dict[str, Any]:
    """The wire into one head's key, and into the key that three heads share."""
    from circuitkit import induction

    group, found = [f"L16H0->L17H{n}.K" for n in (3, 4, 5)], {}
    for cut, names in (("its own key", group[:1]), ("the shared key", group)):
        for head in ("L17H3", "L17H4"):
            one = induction.effect(model, rows_of(model), names, fill="resample", measure=looks(head), draws=3)
            found[f"{head}, {cut}"] = replace(one, measure="attention on the right place")
    return told(found)


def each(model: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Each of the eight wires by itself: what its head still sees of the right place."""
    from circuitkit import induction

    found = {}
    for wire in known["wires"]:
        head = wire.split("->")[1].removesuffix(".K")
        one = induction.effect(model, rows_of(model), [wire], fill="resample", measure=looks(head), draws=3)
        found[f"{head}, its wire"] = replace(one, measure="attention on the right place")
    return told(found)


def cut_wires(model: Any, known: dict[str, Any], **how: Any) -> dict[str, Any]:
    return told(both(model, rows_of(model), without=known["wires"], fill="resample", **how))


def guessed(model: Any, known: dict[str, Any], how: Any) -> dict[str, float]:
    from circuitkit import induction

    names, values = induction.attribution(model, rows_of(model, 10, 20, 2), how=how)
    return {name: round(value, 4) for name, value in zip(names, values.tolist(), strict=True)}


def ship(known: dict[str, Any]) -> None:
    """Add the cuts to the stored survey, in a line for each."""
    lines = {
        "accuracy": known["key wires"]["accuracy"],
        "accuracy by size": known["key wires by size"]["accuracy"],
        "loss": known["key wires"]["loss"],
        **known["keys"],
        **known["each"],
    }
    effects = {}
    for name, one in lines.items():
        done, rest = one["line"].split(": ", 1)
        measure = re.split(r" \d", rest)[0]
        cut = re.findall(r"L\d+H\d+->L\d+H\d+\.K", done) or known["wires"]
        effects[name] = {"done": done, "measure": measure, "cut": cut, "values": one["values"]}
    table = json.loads(SHIPPED.read_text("utf-8")) | {"effects": 0}
    told = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in effects.items())
    text = json.dumps(table, indent=1).replace('"effects": 0', '"effects": {\n' + told + "\n }")
    SHIPPED.write_text(text + "\n", "utf-8")
    manifest.write("induction")


PIECES: dict[str, Any] = {
    "wires": wires,
    "key wires": cut_wires,
    "key wires by size": lambda model, known: cut_wires(model, known, against="size"),
    "keys": keys,
    "each": each,
    "gradient": lambda model, known: guessed(model, known, "gradient"),
    "integrated": lambda model, known: guessed(model, known, "integrated"),
    "patching": lambda model, known: guessed(model, known, "patching"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PIECES, help="some pieces; the others stay as they are stored")
    parser.add_argument("--ship", action="store_true")
    args = parser.parse_args()
    if args.ship:
        return ship(json.loads(RESULT.read_text("utf-8")))
    torch.set_num_threads(1)
    import circuitkit

    model = circuitkit.load_model(str(WEIGHTS))
    known = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    for name in args.only or PIECES:
        known[name] = PIECES[name](model, known)
        RESULT.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    ship(known)


if __name__ == "__main__":
    main()
