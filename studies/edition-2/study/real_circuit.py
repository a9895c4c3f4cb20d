"""Take the induction of SmolLM2 apart wire by wire, beside drawn wires, and store what was found.

    python -m tools real-induction --fetch      first: the weights
    python -m tools real-circuit                all pieces; each is stored when it is done (a quarter of an hour)
    python -m tools real-circuit --only "key wires"
    python -m tools real-circuit --ship         only put what is stored beside the survey that chapter 3 reads

The wires are chosen on other rows than those that judge them. Chapter 3 shows the cuts and the attributions.
"""

import argparse
import json
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tools.study import manifest, real_enough, real_norms, real_sinks

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
                names, queries, keys = run.score_sides(head, dst, src, row, neurons=False)
                for name, share in zip(names, (queries.sum(0) @ keys.T).tolist(), strict=True):
                    total[name] = total.get(name, 0.0) + weight * share
    return max((name for name in total if re.fullmatch(r"L\d+H\d+", name)), key=total.__getitem__)


def text_rows(model: Any, period: int = 40, batch: int = 4, opening: int = 1) -> Any:
    """Held-out text of the book twice, each row from another passage."""
    from circuitkit import induction, models

    passages = models.heldout_text()
    spans = [model.to_tokens(passages[7 * i + 3]["text"], prepend_bos=False)[0, 5 : 5 + period] for i in range(batch)]
    first = torch.full((batch, 1), opening)
    return induction.Repeated(torch.cat([first, torch.stack(spans), torch.stack(spans)], 1), period, 1)


def judged(run: Any, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and accuracy of each row on the second pass; nothing else is unembedded."""
    first, last = rows.start + rows.period, rows.start + 2 * rows.period
    wanted = rows.tokens[:, first + 1 : last]
    logits = run.final(run.streams[-1])[:, first : last - 1] @ run.model.W_U
    loss = -logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
    return loss.mean(1), (logits.argmax(-1) == wanted).float().mean(1)


def both(model: Any, rows: Any, **how: Any) -> dict[str, Any]:
    """An effect on loss and on accuracy from the same runs."""
    from circuitkit.induction import effect

    seen = []

    def measure(run: Any) -> torch.Tensor:
        loss, right = judged(run, rows)
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


SETTINGS = {
    f"period {period}, opening {opening}, seed {seed}": (seed, period, opening)
    for period in (20, 40, 64)
    for opening in (1, 0)
    for seed in (10, 11)
}


def settings(model: Any, known: dict[str, Any], against: str = "layers", draws: int = 20) -> dict[str, Any]:
    """The eight wires cut, and twenty drawn sets, on every kind of row."""
    found = {}
    for name, (seed, period, opening) in SETTINGS.items():
        rows = rows_of(model, seed, period, 4, opening)
        found[name] = told(both(model, rows, without=known["wires"], fill="resample", against=against, draws=draws))
        print(name, found[name]["accuracy"]["line"], flush=True)
    for opening in (1, 0):
        rows = text_rows(model, opening=opening)
        name = f"text, period 40, opening {opening}"
        found[name] = told(both(model, rows, without=known["wires"], fill="resample", against=against, draws=draws))
        print(name, found[name]["accuracy"]["line"], flush=True)
    return found


def groups(model: Any, known: dict[str, Any]) -> dict[str, Any]:
    """On every kind of row: where L17H3 and its mate L17H4 look, whole, with the cut of one's key, and with that of the shared key."""
    from circuitkit import anatomy

    value, found = anatomy(model), {}
    wires, aim = [f"L16H0->L17H{n}.K" for n in (3, 4, 5)], ("L17H3", "L17H4")
    kinds = {name: rows_of(model, seed, period, 4, opening) for name, (seed, period, opening) in SETTINGS.items()}
    kinds |= {f"text, period 40, opening {opening}": text_rows(model, opening=opening) for opening in (1, 0)}
    for name, rows in kinds.items():
        base = value.run(rows.tokens)
        runs = [base, *(value.run(rows.tokens, without=cut, fill=lambda x: x.roll(1, 0), base=base) for cut in (wires[:1], wires))]
        found[name] = {head: [[round(v, 3) for v in looks(head, rows.period)(run).tolist()] for run in runs] for head in aim}
    return found


def guessed(model: Any, known: dict[str, Any], how: Any, points: int = 4) -> dict[str, Any]:
    """Every head's share by one way of asking, and the processor seconds that it took."""
    from circuitkit import induction

    began = time.process_time()
    names, values = induction.attribution(model, rows_of(model, 10, 20, 2), how=how, points=points)
    spent = time.process_time() - began
    return {"seconds": round(spent, 1), "values": dict(zip(names, (round(v, 4) for v in values.tolist()), strict=True))}


def saturated(model: Any, known: dict[str, Any]) -> dict[str, float]:
    """The loss as one head, L16H0, goes over to another row's output bit by bit."""
    from circuitkit import anatomy

    rows, value = rows_of(model, 10, 20, 2), anatomy(model)
    base, found = value.run(rows.tokens), {}
    for share in (0.0, 0.1, 0.25, 0.5, 0.75, 1.0):
        go = lambda x, share=share: x + share * (x.roll(1, 0) - x)  # noqa: E731
        run = value.run(rows.tokens, without="L16H0", fill=go, base=base)
        found[str(share)] = round(float(judged(run, rows)[0].mean()), 4)
    return found


def ship(known: dict[str, Any]) -> None:
    """Add the cuts to the stored survey, in a line for each."""
    lines = {
        "accuracy": known["key wires"]["accuracy"],
        "accuracy by size": known["key wires by size"]["accuracy"],
        "loss": known["key wires"]["loss"],
        **known["keys"],
        **known["each"],
        **{name: one["accuracy"] for name, one in known["settings"].items()},
        **{f"{name}, by both": one["accuracy"] for name, one in known.get("settings by both", {}).items()},
        **{name: one for name, one in known.get("enough", {}).items() if name != "heads"},
    }
    effects = {}
    for name, one in lines.items():
        done, rest = one["line"].split(": ", 1)
        measure = re.split(r" \d", rest)[0]
        kept = re.match(r"keeping (\d+) parts", done)
        cut = known["enough"]["heads"][: int(kept[1])] if kept else re.findall(r"L\d+H\d+->L\d+H\d+\.K", done) or known["wires"]
        effects[name] = {"done": done, "measure": measure, "cut": cut, "values": one["values"]}
    asked = ("gradient", "integrated 2", "integrated 4", "patching")
    heads = {name: {"seconds": known[name]["seconds"], "values": [round(v, 3) for v in known[name]["values"].values()]} for name in asked}
    more = {name: known[name] for name in ("saturated", "sizes", "groups", "sinks", "norms") if name in known}
    table = json.loads(SHIPPED.read_text("utf-8")) | {"heads": 0, "effects": 0, "more": 0}
    told = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in effects.items())
    text = json.dumps(table, indent=1).replace('"effects": 0', '"effects": {\n' + told + "\n }")
    told = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in heads.items())
    text = text.replace('"heads": 0', '"heads": {\n' + told + "\n }")
    told = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in more.items())
    SHIPPED.write_text(text.replace('"more": 0', '"more": {\n' + told + "\n }") + "\n", "utf-8")
    manifest.write("induction")


PIECES: dict[str, Any] = {
    "wires": wires,
    "key wires": cut_wires,
    "key wires by size": lambda model, known: cut_wires(model, known, against="size"),
    "keys": keys,
    "each": each,
    "settings": settings,
    "settings by both": lambda model, known: settings(model, known, "both", 6),
    "groups": groups,
    "gradient": lambda model, known: guessed(model, known, "gradient"),
    "integrated 2": lambda model, known: guessed(model, known, "integrated", 2),
    "integrated 4": lambda model, known: guessed(model, known, "integrated", 4),
    "saturated": saturated,
    "patching": lambda model, known: guessed(model, known, "patching"),
    "mask": real_enough.mask,
    "mask, second part": partial(real_enough.mask, begin="mask", seed=2000, steps=35, price=0.12, rate=0.25),
    "mask, third part": partial(real_enough.mask, begin="mask, second part", seed=3000, steps=35, price=0.12, rate=0.25),
    "sizes": real_enough.sizes,
    "enough": real_enough.enough,
    "sinks": real_sinks.sinks,
    "norms": real_norms.norms,
}


def in_lines(known: dict[str, Any]) -> str:
    """A piece a line."""
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(one)}" for name, one in known.items()) + "\n}\n"


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
        RESULT.write_text(in_lines(known), "utf-8")
    ship(known)


if __name__ == "__main__":
    main()
