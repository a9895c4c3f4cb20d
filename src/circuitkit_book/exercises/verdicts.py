"""Tests a reader's claim about a mystery model: cuts what it names, and parts that it does not name."""

import re
from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from circuitkit import induction, models, superposition
from circuitkit.bridge import Model
from circuitkit.rows import repeated_tokens
from circuitkit_book.exercises.checking import Result
from circuitkit_book.exercises.models_to_try import hooked
from circuitkit_book.exercises.mysteries import N_HEADS, mystery, require_letter

PART = r"L0H[0-3]->L1H[0-3]\.[QKV]|L[01]H[0-3]"
FORMS = {
    "ABCD": "Write parts and a verb, such as 'L1H2 helps', 'L0H1->L1H2.K and L1H0 help', 'L1H2 hurts', or 'nothing helps'.",
    "E": "Write a head and what it does, such as 'L0H2 works as a bias'.",
    "F": "Write a head and what it does, such as 'L0H2 copies'.",
    "G": "Write layer and neuron, such as 'L1N37 is wrong'.",
    "H": "Write 'trigram 1 needs H2', 'trigram 1 needs H0 and H1' or 'trigram 1 needs no source', with trigrams 1 to 3.",
}
EXPLANATIONS = {
    "B": "A head of layer 0 still attends to the previous token, but writes nothing. The induction head of layer 1 is as it was, and finds no note that it could match.",
    "D": "Another head of layer 1 is a copy of the induction head, and either is enough. Ablating one head at a time does not find a part that has a copy. The head of layer 0 that both read has none.",
    "F": "The head that attends only to the first token has the value and output\n"
    "matrices of the copying head. A bias adds the vector that this head wrote before.\n"
    "By its weights it copies, but it does not attend to tokens that it could copy.",
}


class Verdict(NamedTuple):
    """What was measured about a claim, and what contradicts it: nothing, if the claim holds."""

    measured: list[str]
    against: list[str]


def try_claim(letter: str, claim: Any = None) -> Result:
    """Test a claim about a mystery model by cutting what it names, and compare with other cuts.

    For A to D a claim names heads (`L1H2`) or wires (`L0H1->L1H2.K`, the output of L0H1 in the keys of L1H2) and ends in
    `helps`, `hurts` or `nothing helps`: they help or hurt to predict a span that comes for the second time. It holds
    if cutting all that it names takes away 90% of the effect, if each named part is needed for that, and if cuts of
    other parts of the same kind change much less. About A it has to name both ends of the circuit.

    Parameters
    ----------
    letter : the model, A to H
    claim : the claim; `try_claim("E")` shows the form of a claim about model E

    Raises
    ------
    ValueError : there is no such model, or the claim has another form

    Examples
    --------
    >>> try_claim("A", "nothing helps").passed
    False

    Source: this book.
    """
    require_letter(letter)
    title = f"Model {letter}"
    form = FORMS["ABCD" if letter in "ABCD" else letter]
    if claim is None or claim is ...:
        return Result(title, False, f"{title}: No answer yet. {form}", done=False)
    text = re.sub(r"\s*->\s*", "->", " ".join(str(claim).split()))
    verdict = judge(letter, text)
    if verdict is None:
        raise ValueError(f"The claim {text!r} cannot be read. {form}")
    lines = [f"{title}, claim: {text}", *verdict.measured]
    lines += [f"Against the claim: {sentence}" for sentence in verdict.against]
    holds = not verdict.against
    lines.append(f"{title}: the claim {'holds' if holds else 'does not hold'}.")
    if holds and letter in EXPLANATIONS:
        lines.append(EXPLANATIONS[letter])
    return Result(title, holds, "\n".join(lines), answer=claim)


def judge(letter: str, claim: str) -> Verdict | None:
    """Return the verdict on a claim; None if its form is wrong."""
    if letter in "ABCD":
        return judge_parts(letter, claim)
    if letter in "EF":
        return judge_head(mystery(letter), claim)
    if letter == "G":
        return judge_neuron(mystery(letter), claim)
    return judge_trigram(mystery(letter), claim)


# Models A to D


@cache
def gain_of(letter: str) -> Callable[[tuple[str, ...]], float]:
    """Return a function that measures the gain on the second pass without some parts, in nats per token."""
    model = mystery(letter)
    unigram = models.corpus_statistics().unigram.float()
    rows = repeated_tokens(2048, 32, batch=16, bos=0, weights=unigram)

    @cache
    def gain(without: tuple[str, ...]) -> float:
        return -induction.induction_loss(model, rows, without=list(without)).difference

    return gain


def judge_parts(letter: str, claim: str) -> Verdict | None:
    """Judge a claim about heads and wires by the gain on the second pass without them."""
    match = re.fullmatch(rf"((?:(?:{PART})(?:, and |, | and | |$))+)(helps?|hurts?)", claim)
    if claim != "nothing helps" and match is None:
        return None
    gain = gain_of(letter)
    whole = gain(())
    measured = [f"The model predicts the second pass better than the first by {whole:.1f} nats."]
    if match is None:
        return Verdict(measured, against_nothing(gain))
    parts = tuple(dict.fromkeys(re.findall(PART, match[1])))
    helps = match[2].startswith("help")
    without = round(gain(parts), 1) + 0.0
    measured.append(f"Without {' and '.join(parts)}, by {without:.1f} nats.")
    effect = whole - without if helps else without - whole
    against = against_effect(helps, effect, whole, without)
    if against:
        return Verdict(measured, against)
    sign = 1 if helps else -1

    def effect_of(cut: tuple[str, ...]) -> float:
        return sign * (whole - gain(cut))

    against = against_spare_parts(parts, effect_of)
    others = {cut: effect_of(cut) for cut in controls(parts)}
    if others:
        cut = max(others, key=others.__getitem__)
        names = " and ".join(cut)
        text = f"Of the cuts of other parts ({len(others)} tried), {names} changes most"
        measured.append(f"{text}: {others[cut]:.1f} nats, and yours {effect:.1f}.")
        if others[cut] > 0.67 * effect:
            against.append(f"cutting {names} changes almost as much. What is special about yours?")
    if letter == "A" and not against and not names_both_ends(parts):
        against.append(
            "it names only one end of the circuit. Which head of the other layer belongs to it?"
        )
    return Verdict(measured, against)


def against_nothing(gain: Callable[[tuple[str, ...]], float]) -> list[str]:
    """Return what contradicts the claim that nothing helps."""
    whole = gain(())
    if whole >= 0.5:
        return [f"the gain is {whole:.1f} nats, so some part must cause it."]
    heads = [f"L{layer}H{head}" for layer in (0, 1) for head in range(N_HEADS)]
    largest = max(gain((head,)) for head in heads) - whole
    if largest > 0.5:
        return [f"without one of the heads the gain is {largest:.1f} nats larger. What does it do?"]
    return []


def against_effect(helps: bool, effect: float, whole: float, without: float) -> list[str]:
    """Return what contradicts the claim that all named parts together help, or hurt."""
    if effect < -0.5:
        return [f"cutting these parts {'raises' if helps else 'lowers'} the gain."]
    if helps and whole < 0.5:
        return ["there is no gain that could be taken away."]
    if helps and effect < 0.9 * whole:
        text = f"{without:.1f} of {whole:.1f} nats are left"
        return [f"{text}. Parts that you do not name cause them, or replace those that you cut."]
    if effect < 1.0:
        return ["the gain hardly rises without these parts."]
    return []


def against_spare_parts(
    parts: tuple[str, ...], effect_of: Callable[[tuple[str, ...]], float]
) -> list[str]:
    """Return a sentence for each named part without which the effect is as large."""
    effect, against = effect_of(parts), []
    for part in parts if len(parts) > 1 else ():
        alone = round(effect_of((part,)), 1) + 0.0
        rest = effect_of(tuple(other for other in parts if other != part))
        if alone < 0.25 * effect and rest > 0.9 * effect:
            text = f"{part} is not needed: cutting it alone changes {alone:.1f} nats"
            against.append(f"{text}, and cutting the others without it {rest:.1f}.")
    return against


def names_both_ends(parts: tuple[str, ...]) -> bool:
    """Return whether heads of both layers, or a wire with a reader, are named."""
    layers = set()
    for part in parts:
        writer, _, reader = part.partition("->")
        if not reader or writer not in parts:
            layers |= {end[:2] for end in (writer, reader) if end}
    return len(layers) == 2


def controls(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return cuts of as many parts of the same kinds, of which none is named; 40 at most."""
    wires = [part for part in parts if "->" in part]
    ends = sorted({wire.split("->")[1] for wire in wires})
    pools = [(wires, [f"L0H{head}->{end}" for end in ends for head in range(N_HEADS)])]
    for layer in ("L0", "L1"):
        heads = [part for part in parts if part.startswith(layer) and "->" not in part]
        pools.append((heads, [f"{layer}H{head}" for head in range(N_HEADS)]))
    choices = []
    for named, pool in pools:
        if named:
            others = [part for part in pool if part not in parts]
            choices.append(list(combinations(others, len(named))))
    return [sum(choice, ()) for choice in product(*choices)][:40]


# Models E and F


def judge_head(model: Model, claim: str) -> Verdict | None:
    """Judge the claim that a head works as a bias, or copies."""
    match = re.fullmatch(r"(L[01]H[0-3]) (works as a bias|copies)", claim)
    heads = [f"L{layer}H{head}" for layer in range(model.cfg.n_layers) for head in range(N_HEADS)]
    if match is None or match[1] not in heads:
        return None
    rows = models.heldout_rows(4)[:, :128]
    if match[2] == "copies":
        return judge_copying(model, rows, match[1], heads)
    return judge_bias(model, rows, match[1], heads)


def logits_with(model: Model, rows: Tensor, name: str, fill: str) -> Tensor:
    """Return the logits when a head writes 0, or its mean over all rows and positions."""
    layer, head = int(name[1]), int(name[3])

    def change(z: Tensor) -> Tensor:
        mean = z[:, :, head].mean((0, 1))
        z[:, :, head] = mean if fill == "mean" else 0.0
        return z

    return hooked(model, rows, f"blocks.{layer}.attn.hook_z", change)


def loss(logits: Tensor, rows: Tensor) -> float:
    """Return the mean loss of the next tokens, in nats."""
    right = logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None])
    return -float(right.mean())


def rises(model: Model, rows: Tensor, name: str) -> tuple[float, float]:
    """Return by how much the loss rises when a head writes 0, and when it writes its mean."""
    whole = loss(model(rows), rows)
    zero, mean = (loss(logits_with(model, rows, name, fill), rows) for fill in ("zero", "mean"))
    return round(zero - whole, 2) + 0.0, round(mean - whole, 2) + 0.0


def raised(model: Model, rows: Tensor, name: str) -> float:
    """Return how much a head raises the logits of earlier tokens of the row above those of all others."""
    change = model(rows) - logits_with(model, rows, name, "zero")
    seen = torch.zeros_like(change, dtype=torch.bool)  # [batch, pos, token]
    for pos in range(1, rows.shape[1]):
        seen[:, pos] = seen[:, pos - 1]
        seen[:, pos].scatter_(-1, rows[:, pos, None], True)
    change, seen = change[:, 1:], seen[:, 1:]
    return float(change[seen].mean() - change[~seen].mean())


def judge_copying(model: Model, rows: Tensor, name: str, heads: list[str]) -> Verdict:
    """Judge the claim that a head copies. The other heads are only shown if it holds."""
    found = {head: raised(model, rows, head) for head in heads}
    against = []
    if found[name] <= 0.5:
        against.append(
            f"{found[name]:+.1f} is not copying. Where does the head attend, and what is there?"
        )
    elif found[name] < max(found.values()):
        against.append("another head raises them more.")
    elif abs(rises(model, rows, name)[1]) < 0.01:
        against.append(
            "the loss stays the same if the head writes its mean, so it writes the same vector everywhere."
        )
    shown = [name] if against else heads
    text = "{} raises the logits of earlier tokens by {:+.1f} above those of all others."
    return Verdict([text.format(head, found[head]) for head in shown], against)


def judge_bias(model: Model, rows: Tensor, name: str, heads: list[str]) -> Verdict:
    """Judge the claim that a head works as a bias. The other heads are only shown if it holds."""
    zero, mean = rises(model, rows, name)
    against = []
    if zero <= 0.05:
        against.append(f"the loss hardly rises without {name}, so what it writes is not needed.")
    elif abs(mean) >= 0.05 * zero:
        against.append(
            f"with its mean the loss changes by {mean:+.2f}, so what it writes depends on the text."
        )
    measured = []
    for head in [name] if against else heads:
        zero, mean = rises(model, rows, head)
        measured.append(
            f"If {head} writes 0, the loss changes by {zero:+.2f}; if it writes its mean, by {mean:+.2f}."
        )
    return Verdict(measured, against)


# Model G


def judge_neuron(model: Model, claim: str) -> Verdict | None:
    """Judge the claim that a neuron is wrong: it gets the input bias of the shipped model, and so do eight others."""
    match = re.fullmatch(r"L([01])N(\d+) is wrong", claim)
    if match is None or int(match[2]) >= 512:
        return None
    layer, neuron = int(match[1]), int(match[2])
    right, rows = models.load_model("two-layer-mlp"), models.heldout_rows(2)[:, :64]
    expected = right(rows)

    @torch.no_grad()
    def error(index: int) -> float:
        b_in, value = model.blocks[layer].mlp.b_in, float(model.blocks[layer].mlp.b_in[index])
        b_in[index] = right.blocks[layer].mlp.b_in[index]
        gap = float((model(rows) - expected).abs().max())
        b_in[index] = value
        return gap

    whole, left = float((model(rows) - expected).abs().max()), error(neuron)
    others = [error((neuron + 61 * step) % 512) for step in range(1, 9)]
    measured = [
        f"The logits are off by up to {whole:.2f}.",
        f"With the shipped bias in L{layer}N{neuron}, they are off by up to {left:.2f}.",
        f"With the shipped bias in one of eight other neurons of its layer, by {min(others):.2f} or more.",
    ]
    if left < 0.01 * whole:
        return Verdict(measured, [])
    text = "this is not the neuron" if left > 0.99 * whole else "this neuron is not the only cause"
    return Verdict(measured, [f"{text}. Which is the first layer in which the two models differ?"])


# Model H


def judge_trigram(model: Model, claim: str) -> Verdict | None:
    """Judge which heads a trigram needs: all sets of heads are tried, with a source and without."""
    heads = r"H[0-3](?:(?:, and |, | and )H[0-3])*"
    match = re.fullmatch(rf"trigram ([1-3]) needs (no source|{heads})", claim)
    if match is None:
        return None
    trigram, named = int(match[1]), {int(head) for head in re.findall(r"\d", match[2])}
    tokens = torch.cat([model.task.sample(1500, seed=2), model.task.negatives(500, seed=3)])
    written, residual = superposition.head_logits(model, tokens)
    is_due = (model.task.states(tokens) == 2) & (tokens == trigram)
    is_bare = (tokens == trigram) & ~(tokens == 0).any(1, keepdim=True)

    def completed(kept: tuple[int, ...], places: Tensor) -> float:
        logits = residual[places] + written[places][:, list(kept)].sum(1)
        return float((logits.argmax(-1) == trigram + 3).float().mean())

    everyone = tuple(range(N_HEADS))
    guessed = completed(everyone, is_bare)
    text = f"All heads complete it on {completed(everyone, is_due):.0%} of the rows with a source"
    measured = [f"{text} and on {guessed:.0%} of those without."]
    if not named:
        against = [] if guessed > 0.9 else ["without a source it is not always completed."]
        return Verdict(measured, against)
    sets = [kept for count in range(N_HEADS + 1) for kept in combinations(everyone, count)]
    worst = min(completed(kept, is_due) for kept in sets if named <= set(kept))
    best = max(completed(kept, is_due) for kept in sets if not named <= set(kept))
    measured += [
        f"Sets with all heads that you name complete it on {worst:.0%} of the rows with a source or more.",
        f"Sets without one of them complete it on {best:.0%} or fewer.",
    ]
    against = []
    if guessed > 0.1:
        against.append("it is completed without a source, too.")
    if worst <= 0.9:
        against.append(
            "some sets with all heads that you name do not complete it. It needs another head, too."
        )
    if best >= 0.1:
        against.append("some sets without one of these heads complete it.")
    return Verdict(measured, against)
