"""Train small models with and without head dropout, and measure what an ablated head costs; see `self_repair.md`.

`python -m studies.self_repair FOLDER` trains the ten models into a folder, where a model that is there already is not trained again, and
writes the table and the weights that ship. It takes about six minutes of one core.
"""

import functools
import json
import math
import statistics
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import circuitkit as ck
from circuitkit.rows import after_occurrences, earlier_occurrences
from circuitkit.training import fit
from circuitkit_book.induction_training import task_rows
from circuitkit_book.self_repair import (
    D_HEAD,
    D_MODEL,
    D_VOCAB,
    N_CTX,
    N_HEADS,
    N_LAYERS,
    Repair,
    model_of_weights,
    repair,
    repeating_rows,
)

DATA = Path(__file__).resolve().parents[1] / "src/circuitkit/data/induction"
SEEDS, STEPS, BATCH, RATE = range(5), 2000, 48, 3e-3
DROPOUT, NOISE, DRAWS = 0.3, 0.2, 20


class Net(nn.Module):
    """Attention layers with LayerNorm without gains, whose heads can be switched off row by row."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        width = N_HEADS * D_HEAD

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * std)

        def layers(*shape: int, std: float) -> nn.ParameterList:
            return nn.ParameterList([normal(*shape, std=std) for _ in range(N_LAYERS)])

        self.W_E = normal(D_VOCAB, D_MODEL, std=0.3)
        self.W_pos = normal(N_CTX, D_MODEL, std=0.3)
        self.W_U = normal(D_MODEL, D_VOCAB, std=D_MODEL**-0.5)
        self.q, self.k, self.v = (layers(D_MODEL, width, std=D_MODEL**-0.5) for _ in range(3))
        self.o = layers(width, D_MODEL, std=0.5 * width**-0.5)

    def forward(self, tokens: Tensor, is_on: Tensor) -> Tensor:
        """Logits; `is_on` is `[batch, layer, head]`, 1 or 0."""
        n_pos = tokens.shape[1]
        x = self.W_E[tokens] + self.W_pos[:n_pos]
        future = torch.full((n_pos, n_pos), -math.inf).triu(1)
        for layer in range(N_LAYERS):
            read = nn.functional.layer_norm(x, (D_MODEL,))
            q, k, v = (
                (read @ side[layer]).unflatten(2, (N_HEADS, D_HEAD)).transpose(1, 2)
                for side in (self.q, self.k, self.v)
            )
            pattern = (q @ k.mT / math.sqrt(D_HEAD) + future).softmax(-1)
            z = pattern @ v * is_on[:, layer, :, None, None]
            x = x + z.transpose(1, 2).flatten(2) @ self.o[layer]
        return nn.functional.layer_norm(x, (D_MODEL,)) @ self.W_U


def train(seed: int, dropout: float) -> dict[str, Tensor]:
    """The weights of one model, rounded to half precision; equal seeds have equal rows and targets in both arms."""
    net = Net(seed)
    rows_of, noise_of, dropout_of = (
        torch.Generator().manual_seed(10 * seed + i) for i in (1, 2, 3)
    )

    def loss(step: int) -> Tensor:
        rows = task_rows(D_VOCAB, N_CTX, BATCH, (N_CTX // 4, N_CTX // 2), rows_of)
        tokens, targets = rows[:, :-1], rows[:, 1:]
        other = torch.randint(D_VOCAB, targets.shape, generator=noise_of)
        is_other = torch.rand(targets.shape, generator=noise_of) < NOISE
        targets = torch.where(is_other, other, targets)
        targets = targets.masked_fill(~earlier_occurrences(tokens).any(-1), -100)
        is_on = (torch.rand(BATCH, N_LAYERS, N_HEADS, generator=dropout_of) >= dropout).float()
        return nn.functional.cross_entropy(net(tokens, is_on).flatten(0, 1), targets.flatten())

    def rate(step: int) -> float:
        return RATE * min(1.0, (step + 1) / 100, (STEPS - step) / (0.3 * STEPS))

    adamw = functools.partial(torch.optim.AdamW, betas=(0.9, 0.98), weight_decay=0.01)
    fit(net.parameters(), loss, STEPS, learning_rate=rate, optimizer=adamw, clip_norm=1.0)
    return {name: value.detach().half().contiguous() for name, value in net.state_dict().items()}


def place_of(head: str) -> tuple[int, int]:
    """Layer and number of a head, such as 17 and 3 of "L17H3"."""
    layer, _, number = head[1:].partition("H")
    return int(layer), int(number)


def induction_scores(run: ck.ablation.Run) -> dict[str, float]:
    """The mean attention of each head to tokens after an earlier occurrence, over counted positions."""
    after = after_occurrences(run.tokens).float()
    counted = earlier_occurrences(run.tokens).any(-1)
    heads = ck.heads_of(run.model).names
    return {head: float((run.pattern(head) * after).sum(-1)[counted].mean()) for head in heads}


def random_repairs(before: ck.ablation.Run, head: str, answers: Tensor, seed: int) -> list[float]:
    """What the other parts give back if the head's change is turned into random directions."""
    model, tokens = before.model, before.tokens
    layer, number = place_of(head)
    W_O = model.blocks[layer].attn.W_O[number]
    old = before.z(head)
    length = ((old.mean(0, keepdim=True) - old) @ W_O).norm(dim=-1, keepdim=True)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(DRAWS):
        turned = torch.randn(old.shape, generator=generator)
        turned = turned * length / (turned @ W_O).norm(dim=-1, keepdim=True)
        found.append(repair_with(model, tokens, head, old + turned, before, answers).by_parts)
    return found


def repair_with(model, tokens, head, z_new, before, answers) -> Repair:
    """The split if a head gathers this instead of its own z."""
    layer, number = place_of(head)

    def put_in(z: Tensor, hook) -> Tensor:
        z = z.clone()
        z[:, :, number] = z_new
        return z

    with model.hooks(fwd_hooks=[(f"blocks.{layer}.attn.hook_z", put_in)]):
        after = ck.run(model, tokens)
    return repair(before, after, head, answers)


def measured(weights: dict[str, Tensor], seed: int) -> dict:
    """All numbers of one model."""
    model = model_of_weights(weights)
    tokens, answers = repeating_rows(128, seed=1000 + seed)
    before = ck.run(model, tokens)
    counted = answers >= 0
    accuracy = float((before.logits.argmax(-1) == answers)[counted].float().mean())
    scores = induction_scores(before)
    heads = []
    for head, score in scores.items():
        line = {"head": head, "score": score}
        for fill in ("mean", "zero", "resample"):
            after = ck.run(model, tokens, without=head, fill=fill)
            split = repair(before, after, head, answers)
            line[fill] = {
                "direct": split.direct,
                "fall": split.fall,
                "parts": split.by_parts,
                "norm": split.by_norm,
            }
        heads.append(line)
    able = [line for line in heads if line["score"] >= 0.3 and int(line["head"][1]) < N_LAYERS - 1]
    chosen = max(able, key=lambda line: line["mean"]["direct"], default=None)
    result = {"seed": seed, "accuracy": accuracy, "heads": heads}
    if chosen is not None:
        result["chosen"] = chosen["head"]
        result["random"] = random_repairs(before, chosen["head"], answers, seed)
        result["share of parts"] = chosen["mean"]["parts"] / chosen["mean"]["direct"]
        result["share of norm"] = chosen["mean"]["norm"] / chosen["mean"]["direct"]
    return result


def rounded(value):
    """Numbers with five digits behind the point, through lists and dictionaries."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def main(folder: Path) -> None:
    """Train what is missing, measure, and write the table and the weights that ship."""
    folder.mkdir(parents=True, exist_ok=True)
    table = []
    for dropout in (DROPOUT, 0.0):
        for seed in SEEDS:
            path = folder / f"{dropout}-{seed}.safetensors"
            if not path.exists():
                save_file(train(seed, dropout), path)
            line = {"dropout": dropout, **measured(load_file(path), seed)}
            table.append(rounded(line))
            share = {name: line.get(name) for name in ("chosen", "share of parts", "share of norm")}
            print(dropout, seed, round(line["accuracy"], 3), share, flush=True)
    (DATA / "self-repair.json").write_text(json.dumps(table) + "\n")
    arm = [line for line in table if line["dropout"] and "chosen" in line]
    middle = statistics.median_low([line["share of parts"] for line in arm])
    ships = next(line["seed"] for line in arm if line["share of parts"] == middle)
    save_file(
        load_file(folder / f"{DROPOUT}-{ships}.safetensors"), DATA / "head-dropout.safetensors"
    )
    print("ships: seed", ships)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
