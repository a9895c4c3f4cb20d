"""How much of an ablated head the rest of a model gives back, for chapter 3."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.sources import boot_native

from circuitkit.bridge import Model, submodules
from circuitkit.checks import checked
from circuitkit.data import stored
from circuitkit.rows import earlier_occurrences
from circuitkit.runs import Run
from circuitkit_book.induction_training import task_rows

__all__ = [
    "Repair",
    "dropout_model",
    "last_divisor",
    "model_of_weights",
    "repair",
    "repeating_rows",
    "stored_repair",
]

D_MODEL, D_HEAD, N_LAYERS, N_HEADS, D_VOCAB, N_CTX = 48, 16, 4, 2, 32, 32


@dataclass(frozen=True)
class Repair:
    """What happens to the logit of the right token when a head is ablated, as means over tokens.

    Parameters
    ----------
    direct : what the head contributed, minus what its replacement contributes
    fall : how far the logit falls
    by_part : what each other part gives back because it writes something else
    by_norm : what is given back because the divisor of the last norm has changed

    Notes
    -----
    `fall` is `direct` minus all that is given back, exactly. The parts are compared at the divisor of
    the whole model, and the rest is that of the norm.
    """

    direct: float
    fall: float
    by_part: dict[str, float]
    by_norm: float

    @property
    def by_parts(self) -> float:
        """What all other parts give back together."""
        return sum(self.by_part.values())


def last_divisor(run: Run) -> Float[Tensor, "batch pos"]:
    """The number by which the last norm divided the stream at each position of a run; 1 without a norm."""
    recording = run.recording
    if "ln_final.hook_scale" not in recording.hook_names:
        return torch.ones(run.tokens.shape, dtype=run.logits.dtype)
    return recording[recording.hook_names["ln_final.hook_scale"]].flatten(2).squeeze(-1)


@checked
def repair(before: Run, after: Run, head: str, answers: Int[Tensor, "batch pos"]) -> Repair:
    r"""Split the fall of the logit of the right token into what a head wrote and what is given back.

    Parameters
    ----------
    before : the run of the whole model
    after : the run of the same tokens with the head ablated, and nothing else
    head : the name of the head
    answers : the right next token at each position; -100 where a position is left out

    Notes
    -----
    Formula: with $c_p$ the dot product of what part p has written with the direction of the logit, and
    $s$ the divisor of the last norm, $\Delta = (c_h - c_h')/s + \sum_{p \neq h} (c_p - c_p')/s +
    \sum_p c_p' (1/s - 1/s')$. Logits are measured from their mean at each position.
    Error: rounding. Source: this book.
    """
    model, counted = before.model, answers >= 0
    direction = answer_directions(model, answers)
    old, new = before.contributions(direction), after.contributions(direction)
    s, s_new = last_divisor(before), last_divisor(after)
    changes = {part: float(((old[part] - new[part]) / s)[counted].mean()) for part in old}
    total = torch.stack(list(new.values())).sum(0)
    by_norm = float((total * (1 / s_new - 1 / s))[counted].mean())
    others = {part: -change for part, change in changes.items() if part != head}
    falls = [right_logits(run, answers) for run in (before, after)]
    fall = float((falls[0] - falls[1])[counted].mean())
    return Repair(changes[head], fall, others, by_norm)


def answer_directions(
    model: Model, answers: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos d_model"]:
    """The direction of the logit of each answer minus the mean logit, behind the centring of the norm."""
    norm = submodules(model).get("ln_final")
    gain = None if norm is None else getattr(norm.original_component, "weight", None)
    W_U = model.W_U - model.W_U.mean(1, keepdim=True)
    direction = W_U.T[answers.clamp(min=0)]
    direction = direction if gain is None else direction * gain
    is_centred = norm is not None and "RMS" not in str(model.cfg.normalization_type)
    return direction - direction.mean(-1, keepdim=True) if is_centred else direction


def right_logits(run: Run, answers: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos"]:
    """The logit of the answer minus the mean logit, at each position."""
    chosen = run.logits.gather(2, answers.clamp(min=0)[..., None])[..., 0]
    return chosen - run.logits.mean(-1)


def repeating_rows(
    batch: int, seed: int
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Rows that repeat a span of random tokens, and the answers that the rows determine (else -100).

    Examples
    --------
    >>> tokens, answers = repeating_rows(2, seed=0)
    >>> tokens.shape, bool((answers[:, 0] == -100).all())
    (torch.Size([2, 31]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    rows = task_rows(D_VOCAB, N_CTX, batch, (N_CTX // 4, N_CTX // 2), generator)
    tokens, following = rows[:, :-1], rows[:, 1:]
    return tokens, following.masked_fill(~earlier_occurrences(tokens).any(-1), -100)


def model_of_weights(weights: dict[str, Tensor]) -> Any:
    """A `TransformerBridge` with the weights that `studies/self_repair.py` has trained."""
    config: Any = TransformerBridgeConfig(
        d_model=D_MODEL,
        d_head=D_HEAD,
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        n_ctx=N_CTX,
        d_vocab=D_VOCAB,
        attn_only=True,
        normalization_type="LNPre",
        act_fn="gelu",
        init_weights=False,
        seed=0,
        architecture="TransformerLensNative",
    )
    config.without_biases = True
    with torch.random.fork_rng(devices=[]):  # boot draws weights, which are overwritten below
        model = boot_native(config, dtype=torch.float32)
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    state["embed.weight"] = weights["W_E"]
    state["pos_embed.weight"] = weights["W_pos"]
    state["unembed.weight"] = weights["W_U"].T
    for layer in range(N_LAYERS):
        for side in "qkvo":
            # stored [d_in, d_out]; a linear layer of torch holds the transpose
            state[f"blocks.{layer}.attn.{side}.weight"] = weights[f"{side}.{layer}"].T
    model.load_state_dict({name: value.float().contiguous() for name, value in state.items()})
    return model.eval().requires_grad_(False)


def dropout_model() -> Any:
    """Load the small model that was trained while heads were switched off at random.

    Returns
    -------
    A `TransformerBridge` with four layers of two heads, LayerNorm without gains, and no MLPs.

    Notes
    -----
    Source: `studies/self_repair.py`, which trained it.

    Examples
    --------
    >>> dropout_model().cfg.n_layers
    4
    """
    return model_of_weights(stored("induction", "head-dropout.safetensors"))


def stored_repair(models: Literal["small", "SmolLM2"] = "small") -> pd.DataFrame:
    """Load what ablated heads cost, in ten small models or in SmolLM2.

    Returns
    -------
    For the small models one row for each training, of the head with the largest contribution that has a
    later layer: what its ablation loses, and the shares of this that other heads and the norm give back;
    `random`, the largest share after a change of the same length in a random direction; and `in layer 1`,
    the smallest share that other heads give back for a head of layer 1 with an induction score above
    0.3. For SmolLM2 one row for each head, in logits.

    Notes
    -----
    Source: `studies/self_repair.py` and `studies/self_repair_smollm2.py`, which computed them.

    Examples
    --------
    >>> stored_repair().columns[:4].to_list()
    ['training', 'seed', 'head', 'lost']
    """
    if models == "SmolLM2":
        table = pd.DataFrame(stored("induction", "self-repair-smollm2.json")["heads"])
        draws = table.pop("random")
        for part in ("heads", "mlps"):
            table[f"random, {part}"] = [
                sum(line[part] for line in lines) / len(lines) if lines else math.nan
                for lines in draws
            ]
        return table
    rows = []
    for line in stored("induction", "self-repair.json"):
        by_head = {entry["head"]: entry for entry in line["heads"]}
        lost = by_head[line["chosen"]]["mean"]["direct"]
        early = [
            entry["mean"]["parts"] / entry["mean"]["direct"]
            for name, entry in by_head.items()
            if name.startswith("L1") and entry["score"] > 0.3
        ]
        row = {"training": "dropout" if line["dropout"] else "plain", "seed": line["seed"]}
        row |= {"head": line["chosen"], "lost": lost}
        row |= {"other heads": line["share of parts"], "norm": line["share of norm"]}
        row |= {"random": max(line["random"]) / lost, "in layer 1": min(early, default=math.nan)}
        rows.append(row)
    return pd.DataFrame(rows)
