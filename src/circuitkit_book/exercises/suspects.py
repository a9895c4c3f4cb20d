"""Models E to H: a bias in disguise, a copier that is never read, one wrong neuron, a trigram that is a guess.

Each is made of a shipped model or by hand; its judge does to it what a claim says, and the same to parts that it does not name.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from circuitkit import conversion, models, superposition
from circuitkit.anatomy import anatomy
from circuitkit.heads import Heads

Judged = tuple[list[str], list[str]]
"""What was measured, and what speaks against the claim: nothing, if it stands."""
Weights = dict[str, Tensor]
WRONG = (0, 181)
"""Layer and number of the neuron of model G whose threshold was moved."""


def disguise(weights: Weights) -> None:
    """Model E: the head that always looked at the opening token looks at all tokens alike, and still writes one vector."""
    with torch.no_grad():
        part = {kind: weights[f"layers.1.attn.{kind}.weight"].narrow(0, 0, 32) for kind in "qkv"}
        model = models.load_model("two-layer")
        said = model.run_with_cache(model.to_tokens("the"))[1]["blocks.1.attn.hook_v"][0, 0, 0]
        for kind in "qkv":
            part[kind].zero_()
            weights[f"layers.1.attn.{kind}.bias"][:32].zero_()
        weights["layers.1.attn.v.bias"][:32].copy_(said)


def never_read(weights: Weights) -> None:
    """Model F: the head that only looks at the opening token has the matrices of the copying head; a bias writes what it wrote."""
    with torch.no_grad():
        model = models.load_model("one-layer")
        value = model.run_with_cache(model.to_tokens("the"))[1]["blocks.0.attn.hook_z"][0, 0]
        W_V, W_O = weights["layers.0.attn.v.weight"], weights["layers.0.attn.o.weight"]
        gone = value[3] @ W_O[:, 96:].T - value[0] @ W_O[:, :32].T
        weights["layers.0.attn.o.bias"].add_(gone)
        W_V[96:], W_O[:, 96:] = W_V[:32].clone(), W_O[:, :32].clone()
        weights["layers.0.attn.v.bias"][96:] = weights["layers.0.attn.v.bias"][:32].clone()


def one_wrong() -> Any:
    """Model G: the converted model with MLPs, but for one neuron that opens too early."""
    model = conversion.to_attention_only(models.load_model("two-layer-mlp"), heads_per_neuron=5)
    with torch.no_grad():
        model.blocks[WRONG[0]].mlp.b_in[WRONG[1]] += 2.0
    return model


def toy() -> Any:
    """Model H: trigram 2 in one head, trigram 1 in two that are both needed, trigram 3 guessed without looking for a source."""
    task, eye = superposition.SkipTrigramTask(n_trigrams=3), torch.eye(8)
    W_Q, W_K, W_V, W_O = torch.zeros(4, 4, 8, 8)
    due = 4.0 * eye[torch.arange(8).add(3).clamp_max(7)]  # row b: the completion of destination b
    for head, trigram, gain in ((1, 2, 1.0), (0, 1, 1.0), (3, 1, 1.0)):
        W_Q[head, trigram], W_K[head, 0], W_V[head, 0, trigram] = 30 * eye[0], eye[0], 1.0
        W_O[head, trigram] = gain * due[trigram]
    W_Q[2, 3], W_K[2, 3], W_V[2, 3, 3], W_O[2, 3] = 30 * eye[3], eye[3], 1.0, due[3]
    W_U = eye.clone()
    W_U[
        1, 4
    ] = (
        -5.0
    )  # trigram 1: the stream itself speaks against its completion, more than one head can outweigh
    heads = Heads(tuple(f"L0H{i}" for i in range(4)), W_Q, W_K, W_V, W_O, scale=1.0)
    return superposition.toy_model(heads, task, eye, W_U)


def _read(model: Any) -> tuple[Any, Tensor, Any]:
    value, rows = anatomy(model), models.heldout_rows(4)[:, :128]
    return value, rows, value.run(rows)


def _loss(logits: Tensor, rows: Tensor) -> float:
    return float(-logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None]).mean())


def _constant(value: Any, rows: Tensor, part: str) -> tuple[float, float]:
    """What the loss rises by without a part, and with its average over all rows and places instead."""

    def mean(x: Tensor) -> Tensor:
        return x.mean((0, 1), keepdim=True).expand_as(x)

    whole = _loss(value.run(rows).logits, rows)
    return _loss(value.run(rows, without=[part]).logits, rows) - whole, _loss(
        value.run(rows, without=[part], fill=mean).logits, rows
    ) - whole


def _copied(value: Any, rows: Tensor, run: Any, part: str) -> float:
    """How much a part raises the logits of the tokens seen so far above those of all others, on average."""
    change = run.logits - value.run(rows, without=[part]).logits
    seen = torch.zeros_like(change, dtype=torch.bool)
    for place in range(1, rows.shape[1]):
        seen[:, place:].scatter_(
            -1, rows[:, place, None, None].expand(-1, rows.shape[1] - place, 1), True
        )
    change, seen = change[:, 1:], seen[:, 1:]
    return float(change[seen].mean() - change[~seen].mean())


def judge_heads(model: Any, claim: str) -> Judged | None:
    """ "L1H2 works as a bias", "L0H1 copies": cut, or replaced by its average, beside every other head; which are told if it stands."""
    found = re.fullmatch(r"(L[01]H[0-3]) (works as a bias|copies)", claim)
    value, rows, run = _read(model)
    if not found or found[1] not in value.parts():
        return None
    part, verb = found.groups()
    heads = [name for name in value.parts() if re.fullmatch(r"L\dH\d", name)]
    if verb == "copies":
        raised = {name: _copied(value, rows, run, name) for name in (part, *heads)}
        against = []
        if raised[part] <= 0.5:
            against = [
                f"Against: {raised[part]:+.1f} is no help to the tokens of the row. Where does it look, and what stands there?"
            ]
        elif raised[part] < max(raised.values()):
            against = ["Against: another head raises them more."]
        elif abs(_constant(value, rows, part)[1]) < 0.01:
            against = [
                "Against: with its average in its place the loss stays as it is, so it writes one vector, whatever stands in the row."
            ]
        return [
            f"{name} raises the tokens seen so far by {raised[name]:+.1f} above all others."
            for name in raised
            if name == part or not against
        ], against
    costs = {
        name: tuple(round(cost, 2) + 0.0 for cost in _constant(value, rows, name))
        for name in (part, *heads)
    }
    zero, mean = costs[part]
    against = (
        []
        if zero > 0.05
        else [f"Against: without {part} the loss hardly rises, so what it writes is not needed."]
    )
    if not against and abs(mean) >= 0.05 * zero:
        against = [
            f"Against: with its average in its place the loss changes by {mean:+.2f}, so what it writes differs from place to place."
        ]
    return [
        f"Without {n} the loss changes by {z:+.2f}; with its average everywhere, by {m:+.2f}."
        for n, (z, m) in costs.items()
        if n == part or not against
    ], against


def _neurons(wrong: Any) -> tuple[Callable[..., float], float]:
    """The largest error of the logits of model G when neurons are set right; and as it is."""
    right, rows = models.load_model("two-layer-mlp"), models.heldout_rows(2)[:, :64]
    wanted = right(rows)

    @torch.no_grad()
    def error(layer: int, neuron: int) -> float:
        mine, theirs = wrong.blocks[layer].mlp.b_in, right.blocks[layer].mlp.b_in
        own = mine[neuron].clone()
        mine[neuron] = theirs[neuron]
        gap = float((wrong(rows) - wanted).abs().max())
        mine[neuron] = own
        return gap

    return error, float((wrong(rows) - wanted).abs().max())


def judge_neuron(model: Any, claim: str) -> Judged | None:
    """ "L1N37 is wrong": it gets the threshold of the shipped model, and so do eight others, one after another."""
    if not (found := re.fullmatch(r"L([01])N(\d+) is wrong", claim)) or int(found[2]) >= 512:
        return None
    (layer, neuron), (error, whole) = map(int, found.groups()), _neurons(model)
    left, others = (
        error(layer, neuron),
        [error(layer, (neuron + 61 * i) % 512) for i in range(1, 9)],
    )
    lines = [
        f"The model's logits are off by up to {whole:.2f}.",
        f"With the shipped threshold in L{layer}N{neuron}, by up to {left:.2f}.",
    ]
    lines += [
        f"With the shipped threshold in one of eight others of its layer: {min(others):.2f} or more."
    ]
    what = (
        "nothing gets better, so this is not the neuron"
        if left > 0.99 * whole
        else "this neuron is not all of it, if it is any of it"
    )
    against = f"Against: an error of {left:.2f} is left: {what}. Compare the two models neuron by neuron: which is the first layer in which one differs?"
    return lines, [] if left < 0.01 * whole else [against]


def judge_trigram(model: Any, claim: str) -> Judged | None:
    """ "trigram 2 needs H0 and H3", "trigram 1 needs no source": all sets of heads are tried, with a source and without."""
    if not (
        found := re.fullmatch(
            r"trigram ([1-3]) needs (no source|H[0-3](?:(?:, | and |, and )H[0-3])*)", claim
        )
    ):
        return None
    tokens = torch.cat([model.task.sample(1500, seed=2), model.task.negatives(500, seed=3)])
    written, residual = superposition.head_logits(model, tokens)
    trigram, named = int(found[1]), [int(h) for h in re.findall(r"\d", found[2])]
    due = (model.task.states(tokens) == 2) & (tokens == trigram)
    bare = (tokens == trigram) & ~(tokens == 0).any(1, keepdim=True)

    def right(kept: list[int], places: Tensor) -> float:
        logits = (residual + written[:, :, kept].sum(2))[places]
        return float((logits.argmax(-1) == trigram + 3).float().mean())

    everyone = list(range(4))
    lines = [
        f"All heads: completed on {right(everyone, due):.0%} of rows with a source, on {right(everyone, bare):.0%} without."
    ]
    guess = right(everyone, bare)
    if not named:
        return lines, [] if guess > 0.9 else [
            "Against: without a source it is not completed, or not on every row."
        ]
    sets = [[h for h in everyone if code >> h & 1] for code in range(16)]
    holding, lacking = (
        [kept for kept in sets if set(named) <= set(kept)]
        if has
        else [k for k in sets if not set(named) <= set(k)]
        for has in (1, 0)
    )
    worst, best = (
        min(right(kept, due) for kept in holding),
        max(right(kept, due) for kept in lacking),
    )
    lines += [
        f"Sets of heads that hold all you name: completed on {worst:.0%} of rows with a source at the least."
    ]
    lines += [f"Sets that lack one of them: on {best:.0%} at the most."]
    tests = {
        "Against: it is completed without a source, too.": guess > 0.1,
        "Against: with some sets that hold all you name it is not completed, so it depends on others, too.": worst
        <= 0.9,
        "Against: with some sets that lack a head you name it is completed all the same.": best
        >= 0.1,
    }
    return lines, [text for text, found in tests.items() if found]
