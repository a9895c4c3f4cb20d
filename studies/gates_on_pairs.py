"""Gated blocks on the second toy task, whose answer depends on a pair of source tokens.

python -m studies.gates_on_pairs

The task is Greenspan and Wynroe's (2023), as far as its text goes: four signals, seven noise tokens and
a read-off token at the end. Two signals come before it, and the answer is one of ten, their unordered
pair. That the answers are pairs, the length of eight and uniform places are our reading.

Trains originals with two heads of rank 1 or 2, eight seeds of each, and gated blocks of six heads on what
they write at the read-off. The recipes are `GATES` and `WRITES` of the first task, with heads of rank 1,
four runs on each original, of which the one with the lowest loss is judged. Writes `pairs.csv`, one row
a model. About three minutes on one core.
"""

from itertools import combinations_with_replacement

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from circuitkit.superposition import GATES, WRITES, GatedBlock
from circuitkit.superposition.block import Recipe
from circuitkit.superposition.verdict import always_leads, margins_over_others
from circuitkit.training import fit
from circuitkit_book.feature_toys import cosine_decay
from studies.sharing import write_table

N_SIGNALS, N_NOISE, N_CTX, N_SEEDS, N_RUNS = 4, 7, 8, 8, 4
D_VOCAB = 1 + N_SIGNALS + N_NOISE
PAIRS = list(combinations_with_replacement(range(1, 1 + N_SIGNALS), 2))
D_MODEL = D_VOCAB + len(PAIRS)  # tokens first, then answers
RECIPES = {"gates": GATES.but(pairs="all"), "writes": WRITES}


def sample(n: int, seed: int) -> tuple[Int[Tensor, "prompt pos"], Int[Tensor, " prompt"]]:
    """Prompts, and the numbers of their answers."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1 + N_SIGNALS, D_VOCAB, (n, N_CTX), generator=generator)
    tokens[:, -1] = 0
    places = torch.rand(n, N_CTX - 1, generator=generator).argsort(1)[:, :2]
    signals = torch.randint(1, 1 + N_SIGNALS, (n, 2), generator=generator)
    tokens.scatter_(1, places, signals)
    number = torch.zeros(1 + N_SIGNALS, 1 + N_SIGNALS, dtype=torch.long)
    for answer, (low, high) in enumerate(PAIRS):
        number[low, high] = number[high, low] = answer
    return tokens, number[signals[:, 0], signals[:, 1]]


Weights = dict[str, Float[Tensor, "seed ..."]]


def written(
    p: Weights, tokens: Int[Tensor, "prompt pos"]
) -> Float[Tensor, "seed prompt head answer"]:
    """What each head of the originals adds to the logits of the answers, at the read-off."""
    scores = torch.einsum("shd,shvd->shv", p["q"], p["k"]) / p["q"].shape[-1] ** 0.5
    pattern = scores[:, :, tokens].softmax(-1)  # [seed, head, prompt, pos]
    z = torch.einsum("shpt,shptd->shpd", pattern, p["v"][:, :, tokens])
    return torch.einsum("shpd,shda->spha", z, p["o"])


def train_originals(rank: int) -> Weights:
    """Two heads and a bias, next-token cross-entropy at the read-off."""
    generator = torch.Generator().manual_seed(rank)
    shapes = {"q": (2, rank), "k": (2, D_VOCAB, rank), "v": (2, D_VOCAB, rank)}
    shapes |= {"o": (2, rank, len(PAIRS)), "b": (len(PAIRS),)}
    p = {
        name: (torch.randn(N_SEEDS, *shape, generator=generator) * (name != "b")).requires_grad_()
        for name, shape in shapes.items()
    }

    def loss_at(step: int) -> Tensor:
        tokens, answers = sample(256, 1000 + step)
        logits = written(p, tokens).sum(2) + p["b"][:, None]
        chosen = logits.log_softmax(-1)[:, torch.arange(len(answers)), answers]
        return -chosen.mean(1)

    fit(p.values(), loss_at, 2000, learning_rate=cosine_decay(1e-2, 2000))
    return {name: value.detach() for name, value in p.items()}


class Imitation(nn.Module):
    """A block with the two terms of its loss, at the read-off."""

    def __init__(self, block: GatedBlock, rms: Tensor, write_unit: Tensor) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("rms", rms)
        self.register_buffer("write_unit", write_unit)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The relative error and the penalty on some prompts."""
        gates = self.block.gates(x)
        z = self.block.z(x, gates)[:, -1:]
        error = (self.block.write(z)[:, 0] - y).square().sum(-1).mean()
        penalty = self.block.penalty(gates[..., -1:, :], z)
        return error / self.rms**2, penalty / self.write_unit


def train_blocks(
    recipe: Recipe, x: Tensor, y: Float[Tensor, "model prompt d_model"]
) -> tuple[list[GatedBlock], Float[Tensor, " model"], Float[Tensor, " model"]]:
    """Blocks that imitate what is written at the read-off, side by side; their losses and errors."""
    objectives = []
    for number, target in enumerate(y):
        rms = target.square().sum(-1).mean().sqrt()
        block = GatedBlock(recipe, 2, D_MODEL, target_rms=float(rms), seed=100 + number)
        size = target.abs().sum(-1).mean()
        unit = size if recipe.penalty == "write" else torch.ones(())
        objectives.append(Imitation(block, rms, unit))
    parameters, buffers = stack_module_state(objectives)

    def one(parameters: dict, buffers: dict, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(objectives[0], (parameters, buffers), (x, y))

    terms = vmap(one, in_dims=(0, 0, None, 0))

    def loss_at(step: int) -> Tensor:
        rows = torch.arange(step * recipe.batch, (step + 1) * recipe.batch) % 9000
        error, penalty = terms(parameters, buffers, x[rows], y[:, rows])
        return error + recipe.alpha_at(step) * penalty

    fit(parameters.values(), loss_at, recipe.steps, learning_rate=recipe.lr_at)
    for number, objective in enumerate(objectives):
        own = {name: value[number].detach() for name, value in parameters.items()}
        objective.load_state_dict(own, strict=False)
    with torch.no_grad():
        error, penalty = terms(parameters, buffers, x[9000:], y[:, 9000:])
    variance = (y - y.mean(1, keepdim=True)).square().sum(-1).mean(1)
    unexplained = error * y.square().sum(-1).mean(1) / variance
    return (
        [objective.block for objective in objectives],
        error + recipe.alpha * penalty,
        unexplained,
    )


def counts(heads: Float[Tensor, "prompt head answer"], bias: Tensor, answers: Tensor) -> dict:
    """How many answers are learnt, and how many of these no head carries alone."""
    m = margins_over_others(heads, answers)
    r = margins_over_others(bias.expand(len(answers), -1), answers)
    right, carried = (m.sum(1) + r).amin(-1) > 0, always_leads(m, r)
    rows = [answers == answer for answer in range(len(PAIRS))]
    learnt = torch.stack([right[here].double().mean() >= 0.99 for here in rows])
    alone = torch.stack([carried[here].double().mean(0).max() >= 0.99 for here in rows])
    return {"learnt": int(learnt.sum()), "shared": int((learnt & ~alone).sum())}


@torch.no_grad()
def heads_on_a_signal(gates: Float[Tensor, "prompt head src"], tokens: Tensor) -> float:
    """How many gates are open by more than 0.05 on a signal."""
    is_signal = (tokens >= 1) & (tokens <= N_SIGNALS)
    return float((gates > 0.05).sum(1)[is_signal].double().mean())


def judge(rank: int) -> list[dict]:
    """The originals of one rank, and the chosen block of each recipe on each of them."""
    p, rows = train_originals(rank), []
    tokens, answers = sample(4000, 1)
    training, _ = sample(10_000, 2)
    x, one_hot = (torch.eye(D_VOCAB, D_MODEL)[prompts] for prompts in (training, tokens))
    target, original = written(p, training).sum(2), written(p, tokens)
    y = torch.cat([torch.zeros(N_SEEDS, len(x), D_VOCAB), target], 2)
    for seed in range(N_SEEDS):
        found = counts(original[seed], p["b"][seed], answers)
        rows.append(
            {"rank": rank, "seed": seed, "block": "original", "fvu": 0.0, **found, "open": 2.0}
        )
    for name, recipe in RECIPES.items():
        blocks, losses, unexplained = train_blocks(recipe, x, y.repeat_interleave(N_RUNS, 0))
        for seed, best in enumerate(losses.view(N_SEEDS, N_RUNS).argmin(1).tolist()):
            number = seed * N_RUNS + best
            block, fvu = blocks[number], round(float(unexplained[number]), 4)
            with torch.no_grad():
                gates = block.gates(one_hot)
                z = block.z(one_hot, gates)[:, -1]
                heads = torch.einsum("phd,hdm->phm", z, block.used_weights()[1])[..., D_VOCAB:]
            found = counts(heads, p["b"][seed], answers)
            is_open = round(heads_on_a_signal(gates[:, :, -1], tokens), 2)
            row = {"rank": rank, "seed": seed, "block": name, "fvu": fvu, **found, "open": is_open}
            rows.append(row)
    return rows


def main() -> None:
    torch.set_num_threads(1)
    write_table("pairs.csv", [row for rank in (1, 2) for row in judge(rank)])


if __name__ == "__main__":
    main()
