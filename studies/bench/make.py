"""Make the bench: 40 small models, a manifest without answers, and the answers in two files.

Run it with `python -m studies.bench.make`, or with the numbers of the models to make again. All
models take a few minutes on one thread.
"""

import functools
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from studies.bench import measure, plant, tasks
from studies.bench.load import load
from studies.bench.network import (
    N_CTX,
    Head,
    Sizes,
    Weights,
    bridge_state,
    heads_of,
    random_weights,
    rounded,
    run,
    train,
)
from studies.bench.plant import LEVELS, Planted

FOLDER = Path(__file__).parent
N_TASK_ROWS = 128
MAX_BYTES = 150_000


class Entry(NamedTuple):
    """One model of the bench.

    `twin` makes the same model with its circuit whole, for a model that lacks a part of it.
    """

    kind: str
    how: str
    is_planted: bool
    sizes: Sizes
    make: Callable[[int], Planted]
    twin: Callable[[int], Planted] | None = None


# Models that are trained or random


def without_plan(weights: Weights) -> Planted:
    """Wrap a model in which no head has a planned part."""
    return Planted(weights, [], [], "repeat", {}, [])


def random_model(sizes: Sizes, scale: float, seed: int) -> Planted:
    """Draw a model of random weights."""
    generator = torch.Generator().manual_seed(seed)
    return without_plan(random_weights(sizes, generator, scale))


def trained(
    sizes: Sizes, n_steps: int, rows: Callable[[int, torch.Generator], Tensor], seed: int
) -> Planted:
    """Train a model on rows that `rows(n, generator)` draws."""
    generator = torch.Generator().manual_seed(seed)
    start = random_weights(sizes, generator, 0.7)
    with torch.enable_grad():
        weights = train(start, sizes.norm, lambda n: rows(n, generator), n_steps)
    return without_plan(weights)


def repeated_rows(d_vocab: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw rows in which a block of 8 to 30 random tokens is repeated."""
    period = torch.randint(8, 31, (n, 1), generator=generator)
    tokens = torch.randint(d_vocab, (n, N_CTX), generator=generator)
    return tokens.gather(1, torch.arange(N_CTX) % period)


def zipf_rows(d_vocab: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw tokens independently; token k occurs in proportion to 1 / (k + 2)."""
    chances = 1 / torch.arange(2, d_vocab + 2.0)
    return chances.multinomial(n * N_CTX, True, generator=generator).reshape(n, N_CTX)


@functools.cache
def letters(d_vocab: int) -> Tensor:
    """Return the shipped text as numbers of letters; rare characters share the last number."""
    from circuitkit.models import heldout_text

    text = " ".join(passage["text"] for passage in heldout_text())[:400_000]
    common = sorted(set(text), key=text.count, reverse=True)[: d_vocab - 1]
    number = {character: k for k, character in enumerate(common)}
    return torch.tensor([number.get(character, d_vocab - 1) for character in text])


def shuffled_rows(d_vocab: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw rows of text whose letters are in random order."""
    text = letters(d_vocab)
    start = torch.randint(len(text) - N_CTX, (n, 1), generator=generator)
    order = torch.rand(n, N_CTX, generator=generator).argsort(1)
    return text[start + order]


# What the bench holds


def by_hand(
    kind: str, recipe: Callable[..., Planted], sizes: Sizes, level: int, **options: object
) -> Entry:
    """Describe a circuit that is set by hand."""
    make = functools.partial(recipe, sizes, level=LEVELS[level], **options)
    return Entry(kind, "set by hand", True, sizes, make)


def lacking(
    kind: str, recipe: Callable[..., Planted], sizes: Sizes, level: int, lack: dict, **options
) -> Entry:
    """Describe a circuit that lacks a part, with its whole twin."""
    whole = functools.partial(recipe, sizes, level=LEVELS[level], **options)
    make = functools.partial(whole, **lack)
    return Entry(kind, "set by hand", False, sizes, make, whole)


def by_training(kind: str, is_planted: bool, sizes: Sizes, n_steps: int, rows) -> Entry:
    """Describe a model that is trained."""
    rows = functools.partial(rows, sizes.d_vocab)
    make = functools.partial(trained, sizes, n_steps, rows)
    return Entry(kind, "trained", is_planted, sizes, make)


def untrained(sizes: Sizes, scale: float) -> Entry:
    """Describe a model of random weights."""
    make = functools.partial(random_model, sizes, scale)
    return Entry("random weights", f"random, scale {scale}", False, sizes, make)


def planted_entries(half: int) -> list[Entry]:
    """List the ten planted models of a half."""
    p = plant
    notes, pair = "induction by notes", "composed pair behind a norm"
    if half == 0:
        return [
            by_hand(notes, p.notes, Sizes(2, 6, 64, 16, 32), 1),
            by_training(notes, True, Sizes(2, 4, 64, 16, 32), 1200, repeated_rows),
            by_hand("induction by pointer", p.pointer, Sizes(2, 4, 60, 28, 32), 0),
            by_hand("induction by two tokens", p.two_tokens, Sizes(2, 4, 64, 24, 32), 0),
            by_hand("skip trigrams", p.skip_trigrams, Sizes(1, 8, 72, 20, 32), 2),
            by_hand("duplicate token", p.duplicate, Sizes(2, 4, 48, 28, 36), 2, layer=1),
            by_hand("copying", p.copying, Sizes(2, 6, 48, 16, 64), 1, layer=0),
            by_hand("bias", p.bias, Sizes(1, 8, 64, 16, 80), 1),
            by_hand("virtual head", p.virtual, Sizes(3, 4, 76, 16, 32), 0, layers=(0, 2)),
            by_hand(pair, p.notes, Sizes(2, 4, 80, 20, 40, True), 1),
        ]
    return [
        by_hand(notes, p.notes, Sizes(3, 4, 68, 16, 34), 2, layers=(0, 1)),
        by_training(notes, True, Sizes(2, 4, 64, 16, 40), 1200, repeated_rows),
        by_hand("induction by pointer", p.pointer, Sizes(2, 4, 58, 28, 36), 1),
        by_hand("induction by two tokens", p.two_tokens, Sizes(2, 4, 66, 24, 34), 1),
        by_hand("skip trigrams", p.skip_trigrams, Sizes(2, 4, 76, 20, 34), 1, n=5),
        by_hand("duplicate token", p.duplicate, Sizes(1, 6, 52, 28, 40), 1),
        by_hand("copying", p.copying, Sizes(2, 7, 56, 16, 48), 2, layer=1, n_marked=6),
        by_hand("bias", p.bias, Sizes(2, 4, 60, 16, 96), 2, layer=1, reads_first=True),
        by_hand("virtual head", p.virtual, Sizes(2, 5, 72, 16, 36), 1),
        by_training(pair, True, Sizes(2, 4, 64, 16, 36, True), 900, repeated_rows),
    ]


def empty_entries(half: int) -> list[Entry]:
    """List the ten models of a half that have no circuit."""
    p = plant
    text, zipf = "trained on shuffled text", "trained on frequencies"
    broken, bare = "one wire broken", "pattern without OV"
    if half == 0:
        return [
            untrained(Sizes(2, 4, 64, 16, 48), 0.5),
            untrained(Sizes(2, 8, 64, 8, 32, True), 3.0),
            by_training(text, False, Sizes(2, 4, 48, 12, 40), 250, shuffled_rows),
            by_training(text, False, Sizes(1, 8, 64, 8, 48, True), 400, shuffled_rows),
            by_training(zipf, False, Sizes(2, 4, 64, 16, 64), 250, zipf_rows),
            by_training(zipf, False, Sizes(2, 4, 32, 8, 32, True), 250, zipf_rows),
            lacking(broken, p.notes, Sizes(2, 6, 64, 16, 34), 1, {"broken": True}),
            lacking(broken, p.virtual, Sizes(2, 4, 72, 16, 34), 1, {"broken": True}),
            lacking(bare, p.notes, Sizes(2, 5, 64, 16, 36), 1, {"empty": "random"}),
            lacking(bare, p.copying, Sizes(2, 6, 52, 16, 64), 1, {"empty": "zero"}, layer=1),
        ]
    return [
        untrained(Sizes(2, 6, 72, 12, 40), 1.0),
        untrained(Sizes(3, 4, 64, 16, 36), 2.0),
        by_training(text, False, Sizes(2, 4, 64, 16, 36, True), 250, shuffled_rows),
        by_training(text, False, Sizes(2, 8, 48, 8, 48), 250, shuffled_rows),
        by_training(zipf, False, Sizes(1, 6, 60, 10, 96), 400, zipf_rows),
        by_training(zipf, False, Sizes(2, 4, 40, 10, 36, True), 250, zipf_rows),
        lacking(broken, p.notes, Sizes(2, 4, 80, 20, 36, True), 1, {"broken": True}),
        lacking(broken, p.pointer, Sizes(2, 4, 60, 28, 34), 1, {"broken": True}),
        lacking(bare, p.notes, Sizes(3, 4, 64, 16, 32), 2, {"empty": "zero"}, layers=(1, 2)),
        lacking(bare, p.duplicate, Sizes(2, 4, 48, 28, 34), 1, {"empty": "random"}),
    ]


# Answers


def label(head: Head) -> str:
    """Return the name of a head."""
    return f"L{head[0]}H{head[1]}"


def wire_label(wire: tuple[Head, Head, str]) -> str:
    """Return the name of a wire."""
    source, to, side = wire
    return f"{label(source)}->{label(to)}.{side}"


def circuit_lines(entry: Entry, found: dict, cuts: dict) -> list[tuple[str, dict]]:
    """List the circuits that the true behaviours and wires make, each with its verdict.

    An induction circuit is a head that matches prefixes and copies, with the heads that its
    queries and keys need. A virtual head is a pair of heads with a wire into the values.
    """
    lines = []
    wires = [wire for wire, (answer, _) in cuts.items() if answer == "true"]
    for head in sorted({head for head, _ in found}):
        answers = {found[head, "prefix matching"][0], found[head, "copying"][0]}
        into = [wire for wire in wires if wire[1] == head and wire[2] != "V"]
        name = "induction"
        if entry.kind == "virtual head":
            into = [wire for wire in wires if wire[1] == head and wire[2] == "V"]
            answers, name = {"true" if into else "false"}, "virtual head"
        if "false" in answers:
            continue
        members = sorted({label(wire[0]) for wire in into} | {label(head)})
        line = {"line": "circuit", "circuit": name, "heads": members}
        line["wires"] = [wire_label(wire) for wire in into]
        is_true = answers == {"true"} and bool(into)
        lines.append(("true" if is_true else "unclear", line))
    return lines


def trigram_lines(planted: Planted, tables: dict[Head, Tensor]) -> list[tuple[str, dict]]:
    """List the planted skip trigrams, and the heads for which others are too strong to be false."""
    lines: list[tuple[str, dict]] = []
    for head, trigram in planted.trigrams:
        value = tables[head][trigram[0], trigram[1], trigram[2]].item()
        line = {"line": "skip trigram", "head": label(head), "trigram": list(trigram)}
        answer = "true" if value >= measure.TRIGRAM else "unclear"
        lines.append((answer, {**line, "logits": round(value, 2)}))
        tables[head][trigram[0], trigram[1], trigram[2]] = 0  # the rest is counted below
    for head, table in tables.items():
        n_strong = int((table >= measure.TRIGRAM).sum())
        if n_strong > 0:
            line = {"line": "skip trigram", "head": label(head), "n_strong": n_strong}
            lines.append(("unclear", {**line, "logits": round(table.max().item(), 2)}))
    return lines


def answer_of(entry: Entry, planted: Planted, seed: int) -> dict:
    """Measure which lines are true of a model, and verify what it should do.

    Returns
    -------
    The kind, the true and the unclear lines, all measured values, and the scores on the task.
    """
    weights, norm = planted.weights, entry.sizes.norm
    d_vocab = entry.sizes.d_vocab
    rows = measure.Rows(d_vocab, seed + 1)
    generator = torch.Generator().manual_seed(seed + 2)
    task = tasks.TASKS[planted.task](N_TASK_ROWS, d_vocab, planted.data, generator)
    found = measure.behaviours(weights, norm, rows)
    cuts = measure.wires(weights, norm, rows, found, task, 1 / d_vocab)
    lines = [
        (answer, {"line": "behaviour", "head": label(head), "behaviour": name})
        for (head, name), (answer, _) in found.items()
    ]
    lines += [
        (answer, {"line": "wire", "wire": wire_label(wire), "lost": round(lost, 3)})
        for wire, (answer, lost) in cuts.items()
    ]
    tables = measure.largest_trigrams(weights, norm, rows)
    lines += trigram_lines(planted, tables) + circuit_lines(entry, found, cuts)
    return {
        "kind": entry.kind,
        "how": entry.how,
        "planted": entry.is_planted,
        "lines": [line for answer, line in lines if answer == "true"],
        "unclear": [line for answer, line in lines if answer == "unclear"],
        "verified": verified(entry, planted, task, lines, seed),
        "measured": {
            label(head): {
                name: [round(value, 3) for value in found[head, name][1]]
                for name in (*measure.PATTERNS, "copying")
            }
            for head in heads_of(weights)
        },
    }


def verified(
    entry: Entry, planted: Planted, task: tasks.Task, lines: list[tuple[str, dict]], seed: int
) -> dict:
    """Score a model on its task: whole, without its circuit, and without as many other heads."""
    weights, norm = planted.weights, entry.sizes.norm
    heads = set(planted.heads)
    if not heads:
        members = {
            name
            for answer, line in lines
            if line["line"] == "circuit" and answer == "true"
            for name in line["heads"]
        }
        heads = {head for head in heads_of(weights) if label(head) in members}
    others = [head for head in heads_of(weights) if head not in heads]
    control = random.Random(seed).sample(others, min(len(heads), len(others)))
    result = {"task": planted.task, "model": tasks.scores(weights, norm, task)}
    if heads:
        result["circuit"] = sorted(label(head) for head in heads)
        result["without circuit"] = tasks.scores(weights, norm, task, tuple(heads))
        result["without other heads"] = tasks.scores(weights, norm, task, tuple(control))
    if entry.twin is not None:
        twin = rounded(entry.twin(seed).weights)
        result["whole twin"] = tasks.scores(twin, norm, task)
    return result


def require_sound(entry: Entry, planted: Planted, answer: dict) -> None:
    """Raise an error if a planted model does not solve its task, or an empty one does."""
    accuracy = answer["verified"]["model"]["accuracy"]
    lost = answer["verified"].get("without circuit", {"accuracy": 1.0})["accuracy"]
    is_frequencies = planted.task == "frequencies"
    if entry.is_planted and (accuracy - lost < (0.08 if is_frequencies else 0.5)):
        raise RuntimeError(f"{entry.kind}: accuracy {accuracy:.2f}, and {lost:.2f} without it.")
    if not entry.is_planted and accuracy > 0.15:
        raise RuntimeError(f"{entry.kind} should not solve a task: accuracy {accuracy:.2f}.")
    true_wires = {line["wire"] for line in answer["lines"] if line["line"] == "wire"}
    missing = {wire_label(wire) for wire in planted.wires} - true_wires
    if missing:
        raise RuntimeError(f"{entry.kind}: planted wires without effect: {missing}.")


# Files


def store(number: int, entry: Entry, weights: Weights) -> dict:
    """Write a model, and return its entry in the manifest."""
    path = FOLDER / "models" / f"{number:02d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file(bridge_state(weights, entry.sizes.norm), path)
    content = path.read_bytes()
    if len(content) > MAX_BYTES:
        raise RuntimeError(f"Model {number} has {len(content)} bytes.")
    sizes = entry.sizes._asdict()
    sizes["normalization_type"] = "LN" if sizes.pop("norm") else None
    sizes["n_ctx"] = N_CTX
    return {"sizes": sizes, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def require_same(number: int, entry: Entry, weights: Weights) -> None:
    """Raise an error if the stored model computes something else than ours."""
    tokens = tasks.uniform(4, entry.sizes.d_vocab, torch.Generator().manual_seed(0))
    difference = load(number)(tokens) - run(weights, tokens, entry.sizes.norm).logits
    # float32 sums in another order; logits are below 100
    if difference.abs().max() > 1e-3:
        raise RuntimeError(f"The bridge of model {number} differs by {difference.abs().max()}.")


def make_one(number: int, entry: Entry, manifest: dict) -> dict:
    """Make and store one model, enter it in the manifest, and return its answer."""
    seed = 1000 + 17 * number
    planted = entry.make(seed)
    planted = planted._replace(weights=rounded(planted.weights))
    manifest[f"{number:02d}"] = store(number, entry, planted.weights)
    write(FOLDER / "manifest.json", manifest)
    require_same(number, entry, planted.weights)
    answer = answer_of(entry, planted, seed)
    require_sound(entry, planted, answer)
    return answer


def write(path: Path, table: dict) -> None:
    """Write a table as JSON, sorted by the numbers of the models."""
    path.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n", "utf-8")


def read(path: Path) -> dict:
    """Read a table, which is empty if there is none yet."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def main(numbers: list[int]) -> None:
    """Make the models with these numbers, and write the manifest and the answers."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    manifest = read(FOLDER / "manifest.json")
    for half, name in enumerate(("fit", "test")):
        entries = planted_entries(half) + empty_entries(half)
        random.Random(417 + half).shuffle(entries)
        answers = read(FOLDER / f"answers-{name}.json")
        for place, entry in enumerate(entries):
            number = 20 * half + place
            if number not in numbers:
                continue
            begin = time.process_time()
            answers[f"{number:02d}"] = make_one(number, entry, manifest)
            write(FOLDER / f"answers-{name}.json", answers)
            print(
                f"{number:02d}: {time.process_time() - begin:.1f} s of processor time", flush=True
            )


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or list(range(40)))
