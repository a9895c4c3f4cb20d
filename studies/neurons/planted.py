"""Which method finds the neuron that does a known job? The plan is in `plan-planted.md`.

`python -m studies.neurons.planted` trains 16 models of eight seeds (about 15 minutes of one core) and writes
`src/circuitkit/data/conversion/neurons_planted.json`. A seed as argument runs this seed alone, and keeps its rows for the whole study.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources.native import boot

import circuitkit as ck
from circuitkit.residual import virtual_weights
from circuitkit.training import fit

RESULT = Path(__file__).resolve().parents[2] / "src/circuitkit/data/conversion/neurons_planted.json"
SEEDS = range(8)
STEPS, BATCH = 1200, 48
N_RULES, N_TOKENS, N_CTX, N_NEURONS, D_HEAD = 3, 48, 32, 48, 32
N_FILLERS = N_TOKENS - 6 * N_RULES
# the stream: token, position, what the previous-token head writes, what neurons of layer 0 write for
# the heads of layer 1, what heads of layer 0 write, and what only the unembedding and the last MLP read
SIZES = {"token": 32, "position": 16, "before": 32, "middle": 16, "heads": 8, "out": 24}
D = sum(SIZES.values())
STARTS = dict(zip(SIZES, torch.tensor([0, *SIZES.values()]).cumsum(0).tolist(), strict=False))
ALL = tuple(SIZES)
# which parts of the stream each trained weight may touch
READS = {
    "0.attn.q": ("position",),
    "0.attn.k": ("position",),
    "0.attn.v": ("token",),
    "0.mlp.in": ("token",),
    "1.attn.q": ("token",),
    "1.attn.k": ("token",),
    "1.attn.v": ("token", "middle"),
    "1.mlp.in": ("token", "out"),
}
WRITES = {
    "0.attn.o": ("heads",),
    "0.mlp.out": ("middle", "out"),
    "1.attn.o": ("out",),
    "1.mlp.out": ("out",),
}
READ_AT_END = ("token", "heads", "out")


def coordinates(spaces: tuple[str, ...]) -> Tensor:
    """A mask of the stream: 1 on these subspaces."""
    mask = torch.zeros(D)
    for name in spaces:
        mask[STARTS[name] : STARTS[name] + SIZES[name]] = 1
    return mask


def part_of_stream(name: str) -> slice:
    """The coordinates of one subspace."""
    return slice(STARTS[name], STARTS[name] + SIZES[name])


# Text with rules


def rule_tokens(rule: int) -> dict[str, int]:
    """The six tokens of a rule."""
    first = N_FILLERS + 6 * rule
    return {name: first + i for i, name in enumerate(("a", "A", "b", "q", "d", "c"))}


class Texts:
    """Rows of a Markov chain in which one rule is planted, or several."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(N_FILLERS, N_FILLERS, generator=self.generator)
        self.chain = (2 * logits).softmax(-1)

    def fillers(self, n_rows: int, generator: torch.Generator) -> Tensor:
        """Rows of the chain alone."""
        rows = torch.randint(N_FILLERS, (n_rows, N_CTX), generator=generator)
        for place in range(1, N_CTX):
            chances = self.chain[rows[:, place - 1]]
            rows[:, place] = torch.multinomial(chances, 1, generator=generator)[:, 0]
        return rows

    def rows(self, n_rows: int, generator: torch.Generator, rule: int | None = None) -> tuple:
        """Rows `[row, pos]`, the place of q, the rule, and whether a (and not A) is before b."""
        rows = self.fillers(n_rows, generator)
        rules = torch.randint(N_RULES, (n_rows,), generator=generator)
        rules = rules if rule is None else torch.full_like(rules, rule)
        is_a = torch.rand(n_rows, generator=generator) < 0.5
        places = torch.zeros(n_rows, dtype=torch.long)
        for row in range(n_rows):
            tokens = rule_tokens(int(rules[row]))
            # three blocks, in an order of their own: (x b), (the other one of a and A), and q with its answer last
            order = torch.randperm(9, generator=generator)[:2].sort().values * 3 + 1
            pair, other = order[torch.randperm(2, generator=generator)].tolist()
            near, far = ("a", "A") if is_a[row] else ("A", "a")
            rows[row, pair], rows[row, pair + 1] = tokens[near], tokens["b"]
            rows[row, other] = tokens[far]
            last = int(order.max()) + 2
            place = int(torch.randint(last, N_CTX - 1, (1,), generator=generator))
            rows[row, place] = tokens["q"]
            rows[row, place + 1] = tokens["d" if is_a[row] else "c"]
            places[row] = place
        return rows, places, rules, is_a


def exchanged(rows: Tensor, rule: int) -> Tensor:
    """The same rows with a and A exchanged."""
    tokens = rule_tokens(rule)
    other = rows.clone()
    other[rows == tokens["a"]], other[rows == tokens["A"]] = tokens["A"], tokens["a"]
    return other


# A model with planted neurons


def empty_model() -> TransformerBridge:
    """A model of these sizes."""
    config = TransformerBridgeConfig(
        d_model=D,
        d_head=D_HEAD,
        n_layers=2,
        n_heads=4,
        d_mlp=N_NEURONS,
        n_ctx=N_CTX,
        d_vocab=N_TOKENS,
        act_fn="silu",
        normalization_type=None,
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )
    with torch.random.fork_rng(devices=[]):
        return boot(config, dtype=torch.float32)


def start(seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor], list[int]]:
    """Weights before training, a mask that is 1 where a weight is trained, and the planted neurons."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    model = empty_model()
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    free = {name: torch.zeros_like(value) for name, value in state.items()}
    for name, spaces in READS.items():
        mask = coordinates(spaces).expand_as(state[f"blocks.{name}.weight"])
        state[f"blocks.{name}.weight"] = normal(*mask.shape) * mask / mask[0].sum().sqrt()
        free[f"blocks.{name}.weight"] = mask.clone()
        free[f"blocks.{name}.bias"] += float("mlp" in name)
    for name, spaces in WRITES.items():
        mask = coordinates(spaces)[:, None].expand_as(state[f"blocks.{name}.weight"])
        state[f"blocks.{name}.weight"] = normal(*mask.shape) * mask / mask.shape[1] ** 0.5
        free[f"blocks.{name}.weight"] = mask.clone()
    mask = coordinates(READ_AT_END).expand(N_TOKENS, D)
    state["unembed.weight"] = normal(N_TOKENS, D) * mask / D**0.5
    free["unembed.weight"], free["unembed.bias"] = mask.clone(), torch.ones(N_TOKENS)

    state["embed.weight"][:, part_of_stream("token")] = normal(N_TOKENS, SIZES["token"])
    state["embed.weight"] /= SIZES["token"] ** 0.5
    angles = torch.arange(N_CTX)[:, None] * 1.5 ** -torch.arange(8)
    state["pos_embed.weight"][:, part_of_stream("position")] = torch.cat(
        [angles.cos(), angles.sin()], 1
    )
    plant_previous_token_head(state, free)
    planted = plant_neurons(state, free, generator)
    return state, free, planted


def plant_previous_token_head(state: dict[str, Tensor], free: dict[str, Tensor]) -> None:
    """L0H0 attends to the token before and copies its embedding to the subspace `before`."""
    head, position, token = (
        slice(0, D_HEAD),
        part_of_stream("position"),
        part_of_stream("token"),
    )
    turn = 1.5 ** -torch.arange(8)  # by which each pair of coordinates turns from token to token
    c, s = turn.cos().diag(), turn.sin().diag()
    back = torch.cat([torch.cat([c, s], 1), torch.cat([-s, c], 1)], 0)  # position i to i - 1
    for name in "qkv":
        state[f"blocks.0.attn.{name}.weight"][head] = 0
        free[f"blocks.0.attn.{name}.weight"][head] = 0
    state["blocks.0.attn.q.weight"][:16, position] = 12 * D_HEAD**0.5 * back
    state["blocks.0.attn.k.weight"][:16, position] = torch.eye(16)
    state["blocks.0.attn.v.weight"][head, token] = torch.eye(32)
    state["blocks.0.attn.o.weight"][:, head] = 0
    state["blocks.0.attn.o.weight"][part_of_stream("before"), head] = torch.eye(32)
    free["blocks.0.attn.o.weight"][:, head] = 0


def plant_neurons(
    state: dict[str, Tensor], free: dict[str, Tensor], generator: torch.Generator
) -> list[int]:
    """A neuron and two decoys for each rule, at random numbers; returns the planted neurons."""
    numbers = torch.randperm(N_NEURONS, generator=generator).tolist()
    E = state["embed.weight"][:, part_of_stream("token")]
    dual = torch.linalg.pinv(E)  # [32, token]
    dual = dual / (E * dual.T).sum(1)  # the token itself gives 1
    kinds = {"planted": (1, 1, -1.5), "decoy at b": (0, 1, -0.5), "decoy behind a": (1, 0, -0.5)}
    planted = []
    for rule in range(N_RULES):
        tokens = rule_tokens(rule)
        for kind, (reads_a, reads_b, bias) in kinds.items():
            number = numbers.pop()
            w_in = torch.zeros(D)
            w_in[part_of_stream("before")] = 6.0 * reads_a * dual[:, tokens["a"]]
            w_in[part_of_stream("token")] = 6.0 * reads_b * dual[:, tokens["b"]]
            spaces = ("out",) if kind == "decoy behind a" else ("middle", "out")
            w_out = torch.randn(D, generator=generator) * coordinates(spaces)
            state["blocks.0.mlp.in.weight"][number] = w_in
            state["blocks.0.mlp.in.bias"][number] = 6.0 * bias
            state["blocks.0.mlp.out.weight"][:, number] = w_out / w_out.norm()
            for name in ("in.weight", "in.bias"):
                free[f"blocks.0.mlp.{name}"][number] = 0
            free["blocks.0.mlp.out.weight"][:, number] = 0
            if kind == "planted":
                planted.append(number)
    return planted


def trained(seed: int, *, silenced: bool) -> tuple[TransformerBridge, list[int]]:
    """A trained model, and its planted neurons; `silenced` sets what they write to zero before training."""
    state, free, planted = start(seed)
    if silenced:
        state["blocks.0.mlp.out.weight"][:, planted] = 0
    model = empty_model()
    model.load_state_dict(state)
    model.requires_grad_(True)
    parameters = dict(model.named_parameters())
    by_pointer = {value.data_ptr(): free[name] for name, value in model.state_dict().items()}
    for parameter in parameters.values():
        mask = by_pointer[parameter.data_ptr()]
        parameter.register_hook(partial(torch.mul, mask))
    texts, generator = Texts(seed), torch.Generator().manual_seed(1000 + seed)

    def loss(step: int) -> Tensor:
        rows, places, _, _ = texts.rows(BATCH, generator)
        logits = model(rows)
        at_q = logits[torch.arange(len(rows)), places]
        answers = rows[torch.arange(len(rows)), places + 1]
        text = F.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        return text + F.cross_entropy(at_q, answers)

    def rate(step: int) -> float:
        return 3e-3 * min(1.0, (step + 1) / 50, 2 * (STEPS - step) / STEPS)

    fit(parameters.values(), loss, STEPS, learning_rate=rate, clip_norm=1.0)
    return model.eval().requires_grad_(False), planted


# Checks


def judged(model: TransformerBridge, texts: Texts, rule: int, without: list[str]) -> list[float]:
    """Accuracy between c and d at q, and the loss of the answer there, on 256 new rows."""
    generator = torch.Generator().manual_seed(77)
    rows, places, _, is_a = texts.rows(256, generator, rule)
    logits = ck.run(model, rows, without=without).logits[torch.arange(256), places]
    tokens = rule_tokens(rule)
    prefers_d = logits[:, tokens["d"]] > logits[:, tokens["c"]]
    answers = torch.where(is_a, tokens["d"], tokens["c"])
    return [float((prefers_d == is_a).float().mean()), float(F.cross_entropy(logits, answers))]


def checks(model: TransformerBridge, blocked: TransformerBridge, seed: int, planted: list[int]):
    """For each rule: learned, used, no bypass, with their numbers."""
    texts, rows = Texts(seed), []
    for rule, number in enumerate(planted):
        accuracy, loss = judged(model, texts, rule, [])
        cut_accuracy, cut_loss = judged(model, texts, rule, [f"L0N{number}"])
        silenced_accuracy, _ = judged(blocked, texts, rule, [])
        is_used = cut_accuracy <= 0.65 and cut_loss - loss >= 0.3
        passed = accuracy >= 0.9 and is_used and silenced_accuracy <= 0.65
        rows.append(
            {
                "seed": seed,
                "rule": rule,
                "neuron": f"L0N{number}",
                "accuracy": accuracy,
                "accuracy without": cut_accuracy,
                "rise of the loss": cut_loss - loss,
                "accuracy of the silenced model": silenced_accuracy,
                "scored": passed,
            }
        )
    return rows


# Methods


def neuron_list() -> list[str]:
    """The names of all neurons."""
    return [f"L{layer}N{number}" for layer in range(2) for number in range(N_NEURONS)]


def tables(model: TransformerBridge, rule: int) -> dict[str, Tensor]:
    """The four rankings from weights."""
    tokens, heads = rule_tokens(rule), ck.heads_of(model)
    W_E, direction = model.W_E, model.W_U[:, tokens["d"]] - model.W_U[:, tokens["c"]]
    before = heads["L0H0"].W_V[0] @ heads["L0H0"].W_O[0]
    reads = [W_E[tokens["b"]] + W_E[tokens[x]] @ before for x in ("a", "A")]
    inputs, direct, through = [], [], []
    for layer, block in enumerate(model.blocks):
        on = [F.silu(read @ block.mlp.W_in + block.mlp.b_in) for read in reads]
        inputs.append((on[0] - on[1]).abs())
        names = [f"L{layer}N{number}" for number in range(N_NEURONS)]
        W_out = torch.cat([virtual_weights(model, name, "unembed").A for name in names])
        direct.append((W_out @ direction).abs())
        later = [f"L1H{head}" for head in range(4)] if layer == 0 else []
        by_head = [(W_out @ heads[h].W_V[0] @ heads[h].W_O[0] @ direction).abs() for h in later]
        through.append(torch.stack(by_head).amax(0) if by_head else torch.zeros(N_NEURONS))
    inputs, direct, through = (torch.cat(values) for values in (inputs, direct, through))
    return {
        "input table": inputs,
        "output table": direct,
        "output table through a head": through,
        "both tables": inputs * torch.maximum(direct, through),
    }


def by_runs(model: TransformerBridge, texts: Texts, rule: int) -> dict[str, Tensor]:
    """The rankings that need runs of the model."""
    generator = torch.Generator().manual_seed(88)
    tokens, names = rule_tokens(rule), neuron_list()
    rows, places, _, is_a = texts.rows(32, generator, rule)
    other = exchanged(rows, rule)
    clean = torch.where(is_a[:, None], rows, other)  # a before b
    corrupted = torch.where(is_a[:, None], other, rows)
    index = torch.arange(len(rows))

    def difference(run: ck.ablation.Run) -> Tensor:
        logits = run.logits[index, places]
        return logits[:, tokens["d"]] - logits[:, tokens["c"]]

    d, c = tokens["d"], tokens["c"]
    shares = []
    for text in (clean, corrupted):
        table = ck.residual.logit_attribution(model, text, d, c, neurons=True)
        shares.append(torch.stack([table[name][index, places].mean() for name in names]))
    estimate = {}
    for end, (text, patch) in {"a": (clean, corrupted), "A": (corrupted, clean)}.items():
        found = ck.attribution(model, text, patch=patch, measure=difference, neurons=True)
        estimate[end] = torch.tensor([found[name] for name in names])
    base = difference(ck.run(model, clean)).mean()
    cut, patched = [], []
    for name in names:
        cut.append(difference(ck.run(model, clean, without=name)).mean() - base)
        patched.append(
            difference(ck.run(model, clean, without=name, patch=corrupted)).mean() - base
        )
    return {
        "direct logit attribution": shares[0] - shares[1],
        "attribution patching, from a": estimate["a"],
        "attribution patching, from A": estimate["A"],
        "attribution patching, both ends": estimate["a"] - estimate["A"],
        "ablation": torch.stack(cut),
        "patching": torch.stack(patched),
    }


def rank(scores: Tensor, planted: int) -> int:
    """The place of a neuron, from 1 on; neurons that tie with it come first."""
    return int((scores.abs() >= scores.abs()[planted]).sum())


def study(seed: int) -> list[dict]:
    """Everything about one seed: a row for each rule, with the rank of its neuron by each method."""
    model, planted = trained(seed, silenced=False)
    blocked, _ = trained(seed, silenced=True)
    rows = checks(model, blocked, seed, planted)
    for row, number in zip(rows, planted, strict=True):
        found = tables(model, row["rule"]) | by_runs(model, Texts(seed), row["rule"])
        generator = torch.Generator().manual_seed(seed)
        found["random ranking"] = torch.rand(2 * N_NEURONS, generator=generator)
        row["rank"] = {name: rank(scores, number) for name, scores in found.items()}
        numbers = {k: round(v, 3) for k, v in row.items() if isinstance(v, float)}
        row |= numbers
        print(json.dumps(row), flush=True)
    return rows


def part_of_study(seed: int) -> list[dict]:
    """The rows of a seed; a study that was stopped goes on with the seeds that are missing."""
    part = Path(tempfile.gettempdir()) / f"neurons_planted_{STEPS}_{seed}.json"
    if not part.exists():
        part.write_text(json.dumps(study(seed)))
    return json.loads(part.read_text())


def main() -> None:
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        part_of_study(int(sys.argv[1]))
        return
    rows = [row for seed in SEEDS for row in part_of_study(seed)]
    expected = sum(1 / n for n in range(1, 2 * N_NEURONS + 1)) / (2 * N_NEURONS)
    provenance = {
        "script": "studies/neurons/planted.py",
        "plan": "studies/neurons/plan-planted.md",
        "steps": STEPS,
        "expected reciprocal rank of a random ranking": round(expected, 3),
    }
    RESULT.write_text(json.dumps({"provenance": provenance, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
