"""What `training_seeds.py` measures on each model; every measure is defined in `training_seeds.md`.

A head is found by its role, never by its name. All models are measured on the same rows.
"""

import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

import circuitkit as ck
from circuitkit import circuits, models, paths
from circuitkit.rows import Repeated
from circuitkit_book.residual_stream import subspace_overlap
from studies.training_seeds import sinusoids

TEXT = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
PERIOD, COSTLY = 64, 1.0
LAYER_0 = tuple(f"L0H{head}" for head in range(4))
HEADS = LAYER_0 + tuple(f"L1H{head}" for head in range(4))


def load(file: Path) -> Any:
    """A model that was trained by `training_seeds`, as a bridge."""
    model = ck.load_model("two-layer")
    weights = {name: value.float() for name, value in load_file(file).items()}
    weights["W_pos"] = sinusoids()
    sizes = models.recorded("two-layer")["sizes"]
    model.load_state_dict(models.attention_only(weights, sizes), strict=False)
    return model


@dataclass
class Measured:
    """A model, the rows that all models are measured on, and the heads that have a role."""

    model: Any
    rows: Repeated
    english: Tensor
    roles: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any) -> "Measured":
        """Find the heads of a model that have a role."""
        weights = models.corpus_statistics().unigram.float()
        rows = ck.induction.repeated_tokens(2048, PERIOD, batch=16, bos=0, weights=weights)
        self = cls(model, rows, models.heldout_rows(16))
        score = self.scores()
        self.roles["induction"] = max(HEADS, key=lambda head: score[head, "prefix matching"])
        one, two = self.back(1), self.back(2)
        self.roles["previous"] = max(LAYER_0, key=lambda head: one[head])
        self.roles["two back"] = max(LAYER_0, key=lambda head: two[head])
        return self

    def scores(self, without: Any = ()) -> Any:
        """The scores of all heads on repeated random tokens."""
        return ck.induction.scores(self.model, self.rows, without=without)

    def back(self, distance: int) -> dict[str, float]:
        """Mean attention of each head to the token a distance back, in the second pass."""
        run = ck.run(self.model, self.rows)
        return {
            head: float(run.pattern(head).diagonal(-distance, 1, 2)[:, -PERIOD:].mean())
            for head in HEADS
        }

    def wire(self, writer: str, side: str) -> str | None:
        """The wire from a role to an input of the induction head; None if there is none."""
        reader = self.roles["induction"]
        return f"{self.roles[writer]}->{reader}.{side}" if reader.startswith("L1") else None

    def loss(self, without: Any = ()) -> Any:
        """Loss and accuracy in the second pass over random tokens."""
        return ck.induction.induction_loss(self.model, self.rows, without=without)


def share(part: float, whole: float) -> float:
    """A share of a number; NaN if the number is 0."""
    return part / whole if whole else math.nan


def losses(one: Measured) -> dict[str, Any]:
    """Losses and accuracies of the whole model, and the scores of its heads."""
    span = models.heldout_rows(16, PERIOD + 1, seed=8)[:, 1:]
    twice = torch.cat([torch.zeros(16, 1, dtype=torch.long), span, span], dim=1)
    on_text = ck.induction.induction_loss(one.model, Repeated(twice, PERIOD, 1))
    logits = ck.run(one.model, one.english).logits
    score = one.scores()
    found: dict[str, Any] = dict(one.roles)
    found["loss, English"] = english_loss(logits, one.english)
    found["loss, random twice"] = one.loss().second
    found["accuracy, random twice"] = one.loss().accuracy
    found["loss, text twice"] = on_text.second
    found["accuracy, text twice"] = on_text.accuracy
    for head in HEADS:
        found[f"{head} induction"] = score[head, "prefix matching"]
        found[f"{head} previous"] = score[head, "previous token"]
    ordered = sorted(float(score[head, "prefix matching"]) for head in HEADS)
    found["induction score"], found["second induction score"] = ordered[-1], ordered[-2]
    found["one back"] = one.back(1)[one.roles["previous"]]
    found["two back attention"] = one.back(2)[one.roles["two back"]]
    return found


def english_loss(logits: Tensor, rows: Tensor) -> float:
    """Loss in nats per token."""
    return float(cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()))


def heads_on_english(one: Measured) -> dict[str, float]:
    """Heads that write a constant, that attend to the first token, and to the current token."""
    run = ck.run(one.model, one.english)
    whole = english_loss(run.logits, one.english)
    constant, idle, current = [0.0], 0, [0.0]
    for head in HEADS:
        pattern, written = run.pattern(head)[:, 1:], run.part(head)[:, 1:]
        cut = english_loss(ck.run(one.model, one.english, without=head).logits, one.english)
        of_mean = written.mean((0, 1)).square().sum() / written.square().sum(-1).mean()
        if of_mean > 0.99:
            constant.append(cut - whole)
        if pattern[..., 0].mean() > 0.99 and abs(cut - whole) < 0.1:
            idle += 1
        if head not in LAYER_0:
            current.append(float(pattern.diagonal(1, 1, 2).mean()))
    return {
        "cost of constant head": max(constant),
        "idle sinks": idle,
        "to current token": max(current),
    }


def wires_into_induction(one: Measured) -> dict[str, float]:
    """Shares of the accuracy, and losses of the induction score, without single wires."""
    whole, found = one.loss().accuracy, {}
    if one.wire("previous", "K") is None:
        return {}
    score, reader = one.scores(), one.roles["induction"]
    left = {}
    for head, side in itertools.product(LAYER_0, "QKV"):
        wire = f"{head}->{reader}.{side}"
        left[wire] = share(one.loss(wire).accuracy, whole)
        lost = score[reader, "prefix matching"] - one.scores(wire)[reader, "prefix matching"]
        found[f"score lost, {head} {side}"] = float(lost)
        found[f"left without {head} {side}"] = left[wire]
    three = {"previous K": one.wire("previous", "K"), "previous Q": one.wire("previous", "Q")}
    three["two back K"] = one.wire("two back", "K")
    for name, wire in three.items():
        found[f"left without {name}"] = left[wire]
    found["least left of nine"] = min(
        value for wire, value in left.items() if wire not in three.values()
    )
    values = [f"{head}->{reader}.V" for head in LAYER_0]
    found["left without V"] = share(one.loss(values).accuracy, whole)
    return found


def inputs(one: Measured, rows: Tensor) -> Tensor:
    """The six parts that a head of layer 1 reads, `[part, row, pos, d_model]`."""
    run = ck.run(one.model, rows)
    cache = one.model.run_with_cache(rows)[1]
    own = [cache["hook_embed"], cache["hook_pos_embed"].expand_as(cache["hook_embed"])]
    return torch.stack([*own, *(run.part(head) for head in LAYER_0)])


def terms(one: Measured, rows: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """Queries at the destinations and keys at all positions, of each of the six parts."""
    attn, head = one.model.blocks[1].attn, int(one.roles["induction"][3])
    x = inputs(one, rows)
    return x[:, :, dst] @ attn.W_Q[head] / attn.W_Q.shape[2] ** 0.5, x @ attn.W_K[head]


def matches(one: Measured) -> dict[str, float]:
    """The two terms of the score, and which parts match equal tokens in the weights."""
    if one.wire("previous", "K") is None:
        return {}
    previous, back = int(one.roles["previous"][3]) + 2, int(one.roles["two back"][3]) + 2
    dst = torch.arange(75, 129)
    q, k = terms(one, one.rows.tokens, dst)
    right, wrong = k[:, :, dst - 63], k[:, :, dst - 73]
    table = torch.einsum("irpd,jrpd->ij", q, right - wrong) / (q.shape[1] * q.shape[2])
    expected = torch.zeros(6, 6, dtype=torch.bool)
    expected[0, previous] = expected[previous, back] = True
    model, head = one.model, int(one.roles["induction"][3])
    early, late, E = model.blocks[0].attn, model.blocks[1].attn, model.W_E
    carried = torch.stack([E, E, *(E @ early.W_V[h] @ early.W_O[h] for h in range(4))])
    own = torch.zeros(6, 6)
    for i, j in itertools.product(range(6), range(6)):
        if i != 1 and j != 1:  # positions hold no token
            match = (carried[i] @ late.W_Q[head]) @ (carried[j] @ late.W_K[head]).T
            own[i, j] = (match.argmax(1) == torch.arange(len(E))).float().mean()
    ov = (E @ late.W_V[head] @ late.W_O[head] @ model.W_U).argmax(1)
    return {
        "first term": float(table[0, previous]),
        "second term": float(table[previous, back]),
        "second term over rest": float(table[expected].min() - table[~expected].max()),
        "first match": float(own[0, previous]),
        "second match": float(own[previous, back]),
        "largest other match": float(own[~expected].max()),
        "own token in OV": float((ov == torch.arange(len(E))).float().mean()),
    }


def changed_tokens(one: Measured) -> dict[str, float]:
    """Shares of the accuracy if one token before the last is replaced by a random one."""
    weights = models.corpus_statistics().unigram.float()
    rows = ck.induction.repeated_tokens(2048, PERIOD, batch=64, bos=0, weights=weights).tokens
    generator = torch.Generator().manual_seed(0)
    hit = {}
    for back in (0, 1, 2):
        part = rows[:, :101].clone()
        if back:
            part[:, 100 - back] = torch.multinomial(weights, 64, True, generator=generator)
        last = ck.run(one.model, part).logits[:, -1]
        hit[back] = float((last.argmax(-1) == rows[:, 101]).float().mean())
    return {f"left after change {back} back": share(hit[back], hit[0]) for back in (1, 2)}


def weights_of_wires(one: Measured) -> dict[str, float]:
    """Composition scores and overlaps of the 48 wires, compared with the cost of each cut."""
    whole = one.loss().second
    cost, score, overlap = {}, {}, {}
    heads = ck.heads_of(one.model)
    for side in "QKV":
        scores = circuits.composition_scores(one.model, side=side)
        shared = subspace_overlap(heads[:4], heads[4:], side)
        for writer, reader in itertools.product(LAYER_0, HEADS[4:]):
            wire = f"{writer}->{reader}.{side}"
            cost[wire] = one.loss(wire).second - whole
            score[wire] = float(scores[writer, reader])
            overlap[wire] = float(shared[writer, reader])
    costly = [wire for wire in cost if cost[wire] > COSTLY]
    ranked = sorted(overlap, key=lambda wire: -overlap[wire])
    baseline = {"Q": 160**-0.5, "K": 160**-0.5, "V": 128**-0.5}
    found = {"cost at largest score": cost[max(score, key=lambda wire: score[wire])]}
    found["costly wires"] = len(costly)
    found["largest cost of V"] = max(cost[wire] for wire in cost if wire.endswith("V"))
    if costly:
        found["least score of costly"] = min(score[w] / baseline[w[-1]] for w in costly)
        found["overlap ranks lost"] = max(map(ranked.index, costly)) + 1 - len(costly)
    return found


def threshold(one: Measured) -> dict[str, float]:
    """The term of the position and the first token's embedding, minus the largest other term."""
    if one.wire("previous", "K") is None:
        return {}
    rows = models.heldout_rows(16, 128, seed=8)
    q, k = terms(one, rows, torch.tensor([64]))
    near = k[:, :, 54:64].mean(dim=2)
    table = torch.einsum("ird,jrd->ij", q[:, :, 0], k[:, :, 0] - near) / len(rows)
    is_other = torch.ones(6, 6, dtype=torch.bool)
    is_other[1, 0] = False
    return {"threshold over rest": float(table[1, 0] - table[is_other].max())}


def running_example(one: Measured) -> dict[str, float]:
    """The prediction of `or`, with cuts of wires, and with every set of heads."""
    model = one.model
    answer, tokens = model.to_single_token("or"), model.to_tokens(TEXT)

    def p_or(logits: Tensor) -> float:
        return float(logits[0, -1].softmax(-1)[answer])

    whole = p_or(ck.run(model, tokens).logits)
    found = {"P(or)": whole}
    found["P(or), Harris"] = p_or(ck.run(model, TEXT.replace("Dorling", "Harris")).logits)
    batch = torch.cat([tokens, models.heldout_rows(64, tokens.shape[1])])
    two = [one.roles["previous"], one.roles["induction"]]
    found["P(or) of two heads"] = share(
        p_or(ck.run(model, batch, keep=two, fill="mean").logits), whole
    )
    adds = ck.why(model, TEXT, "or")
    others = [name for name in adds.names if name != one.roles["induction"]]
    found["contribution over rest"] = float(adds[one.roles["induction"]]) - max(
        float(adds[name]) for name in others
    )
    found["sets as expected"] = sets_as_expected(one, batch, answer)
    if one.wire("previous", "K") is not None:
        for side in "KV":
            cut = ck.run(model, tokens, without=one.wire("previous", side))
            found[f"P(or) left without {side}"] = share(p_or(cut.logits), whole)
        three = [one.wire("previous", "K"), one.wire("previous", "Q"), one.wire("two back", "K")]
        kept = ck.run(model, tokens, keep=sorted(set(three)))
        found["P(or) gained with three wires"] = p_or(kept.logits) - whole
    return found


def sets_as_expected(one: Measured, batch: Tensor, answer: int) -> int:
    """Of 256 sets of heads, those that predict `or` exactly if they have the three roles."""
    cache = one.model.run_with_cache(batch)[1]
    hooks = [f"blocks.{layer}.attn.hook_z" for layer in (0, 1)]
    mean = [cache[hook].mean(dim=0) for hook in hooks]
    is_on = (torch.arange(256)[:, None] >> torch.arange(8)) % 2 == 1

    def switch(z: Tensor, hook: Any) -> Tensor:
        first = 4 * hook.layer()
        return torch.where(is_on[:, None, first : first + 4, None], z, mean[hook.layer()])

    copies = batch[:1].expand(256, -1)
    logits = one.model.run_with_hooks(copies, fwd_hooks=[(hook, switch) for hook in hooks])
    is_first = logits[:, -1].argmax(-1) == answer
    has_three = is_on[:, [HEADS.index(head) for head in one.roles.values()]].all(1)
    return int((is_first == has_three).sum())


def english_paths(one: Measured) -> dict[str, float]:
    """The loss with paths of up to two heads, and which virtual heads matter most."""
    logits = paths.path_logits(one.model, one.english)
    kept = [
        english_loss(logits.sum([n for n in logits if n.count("H") <= most]), one.english)
        for most in range(3)
    ]
    virtual = [name for name in logits if "->" in name]
    rise = {
        name: english_loss(logits.sum([n for n in logits if n != name]), one.english)
        for name in virtual
    }
    largest = sorted(virtual, key=lambda name: rise[name])[-3:]
    from_previous = [n for n in largest if n.startswith(one.roles["previous"] + "->")]
    return {
        "improvement of heads": kept[0] - kept[1],
        "improvement of virtual heads": kept[1] - kept[2],
        "virtual over single": share(kept[1] - kept[2], kept[0] - kept[1]),
        "virtual from previous": len(from_previous),
    }


def elsewhere(one: Measured) -> dict[str, float]:
    """What the mean ablation of each role costs on other texts."""
    rows = models.heldout_rows(64, one.model.to_tokens(TEXT).shape[1])
    whole = english_loss(ck.run(one.model, rows).logits, rows)
    found = {}
    for role, head in one.roles.items():
        cut = ck.run(one.model, rows, without=head, fill="mean").logits
        found[f"elsewhere, {role}"] = english_loss(cut, rows) - whole
    return found


def birth(file: Path) -> dict[str, float]:
    """How much of the fall of the training loss after step 1,000 lies within 1,000 steps."""
    values = torch.tensor([json.loads(line) for line in file.read_text().splitlines()])
    blocks = values.view(-1, 250).mean(1)[4:]
    falls = blocks[:-4] - blocks[4:]
    steepest = int(falls.argmax())
    return {
        "share of fall in 1,000 steps": float(falls.max() / (blocks[0] - blocks[-1])),
        "steepest 1,000 steps begin at": 1000 + 250 * steepest + 125,
    }


def measure(model: Any) -> dict[str, Any]:
    """All measures of one model."""
    torch.set_grad_enabled(False)
    one = Measured.of(model)
    found = losses(one)
    parts = (heads_on_english, wires_into_induction, matches, changed_tokens, weights_of_wires)
    for part in (*parts, threshold, running_example, english_paths, elsewhere):
        found |= part(one)
    return found
