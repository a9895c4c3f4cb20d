"""The capstones: models whose heads have changed places and whose circuit was changed; claims are tested by cutting.

Each model is a shipped one, altered when it is loaded, or made by hand: nothing but a seed and a sentence is stored.
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import combinations
from types import EllipsisType
from typing import Any, Literal

import torch
from torch import Tensor

from circuitkit import induction, models
from circuitkit_book.exercises import suspects as _suspects
from circuitkit_book.exercises.checking import Result

LETTERS = ("A", "B", "C", "D", "E", "F", "G", "H")
Letter = Literal["A", "B", "C", "D", "E", "F", "G", "H"]
_WIDTH, _HEADS = 32, 4
_NAMES = [f"L{layer}H{head}" for layer in (0, 1) for head in range(_HEADS)]
_FORM = "Write parts and a verb, such as 'L1H2 helps', 'L0H1->L1H2.K and L1H0 help', 'L1H2 hurts', or 'nothing helps'."
_DONE = {
    "B": "a head of layer 0 still looks one place back, and writes nothing; the head of layer 1 that used to match its notes finds none. Nothing is wrong with that head, and it is useless.",
    "D": "another head of layer 1 was made a copy of the induction head, and either is enough. A part with a spare hides from ablation, one head at a time; what both read, a head of layer 0, has no spare.",
    "F": "the sink was given the values and outputs of the copying head, and the constant that it used to write was moved into the bias. Every weight says that it copies; it has never looked at anything to copy.",
}
_OTHERS = {
    "E": (_suspects.judge_heads, "Write a head and what it does, such as 'L0H2 works as a bias'."),
    "F": (_suspects.judge_heads, "Write a head and what it does, such as 'L0H2 copies'."),
    "G": (_suspects.judge_neuron, "Write layer and neuron, such as 'L1N37 is wrong'."),
    "H": (
        _suspects.judge_trigram,
        "Write such as 'trigram 1 needs H2', 'trigram 1 needs H0 and H1' or 'trigram 1 needs no source'; there are trigrams 1 to 3 and heads H0 to H3.",
    ),
}


def mystery(letter: Letter) -> Any:
    """One of eight models, `"A"` to `"H"`, that are not what they seem.

    A to D have two layers and a changed circuit (chapter 3), E two layers and F one, with a head that is not what it looks
    like (chapters 1 and 2), G is a converted model with one wrong neuron (chapter 4), H a toy that knows three trigrams
    (chapter 5). In A to F the heads have changed places.

    >>> mystery("A").cfg.n_layers
    2
    """
    if letter in "GH":
        return _suspects.one_wrong() if letter == "G" else _suspects.toy()
    model = models.load_model("one-layer" if letter == "F" else "two-layer")
    weights: dict[str, Tensor] = {
        name.replace("._original_component", ""): value for name, value in model.named_parameters()
    }
    alter = {
        "A": lambda weights: None,
        "B": _no_notes,
        "C": _turned,
        "D": _doubled,
        "E": _suspects.disguise,
        "F": _suspects.never_read,
    }
    with torch.no_grad():
        alter[letter](weights)
        for layer in range(model.cfg.n_layers):
            order = torch.randperm(
                _HEADS,
                generator=torch.Generator().manual_seed(40 + 2 * LETTERS.index(letter) + layer),
            )
            for kind in "qkvo":
                for name in (
                    f"layers.{layer}.attn.{kind}.weight",
                    f"layers.{layer}.attn.{kind}.bias",
                ):
                    if not (kind == "o" and name.endswith("bias")):
                        axis = 1 if kind == "o" else 0
                        blocks = weights[name].clone().split(_WIDTH, axis)
                        weights[name].copy_(torch.cat([blocks[int(i)] for i in order], axis))
    return model


def _block(weights: dict[str, Tensor], layer: int, kind: str, head: int) -> Tensor:
    """The part of a weight that belongs to one head, to be written to."""
    weight = weights[f"layers.{layer}.attn.{kind}.weight"]
    return weight.narrow(1 if kind == "o" else 0, head * _WIDTH, _WIDTH)


def _no_notes(weights: dict[str, Tensor]) -> None:
    """Model B: the previous-token head still looks back, and writes nothing."""
    _block(weights, 0, "o", 1).zero_()


def _turned(weights: dict[str, Tensor]) -> None:
    """Model C: the induction head finds the right place, and lowers what it finds there."""
    _block(weights, 1, "o", 3).mul_(-1)


def _doubled(weights: dict[str, Tensor]) -> None:
    """Model D: another head has become a copy of the induction head; either is enough."""
    for kind in "qkvo":
        _block(weights, 1, kind, 1).copy_(_block(weights, 1, kind, 3))


@cache
def _bench(letter: Letter) -> tuple[Callable[[tuple[str, ...]], float], float]:
    """A measurement on one model: what the second pass is worth, in nats a token, without some parts; and with all."""
    model = mystery(letter)
    rows = induction.repeated_tokens(
        2048, 32, batch=16, bos=0, weights=models.corpus_statistics().unigram.float()
    )

    @cache
    def worth(without: tuple[str, ...]) -> float:
        return -induction.induction_loss(model, rows, without=list(without)).difference

    return worth, worth(())


def try_claim(letter: Letter, claim: str | EllipsisType | None = None) -> Result:
    """Test a claim about a mystery model by cutting what it names, beside controls, and say what speaks for and against.

    For A to D it names heads (`L1H2`) or wires (`L0H1->L1H2.K`: what L1H2 reads of L0H1 through its keys) and says `helps`,
    `hurts` or `nothing helps`: helps or hurts to predict a span that comes for the second time. It is accepted when
    cutting all that it names takes away nine tenths of the effect, every named part is needed for that, by itself or
    beside the others, and cuts of as many other parts of the same kind do much less; about A it has to name both ends of
    the circuit. `try_claim("E")` shows how a claim about the others is written.

    >>> try_claim("A", "nothing helps").passed
    False
    """
    title, (judge, form) = f"Model {letter}", _OTHERS.get(letter, (None, _FORM))
    if claim is None or claim is ...:
        return Result(title, False, False, "", f"{title}: no claim yet. {form}")
    if re.search(r"\d", claim) and not re.search(
        r"[a-z]{2}", re.sub(r"\band\b|trigram", "", claim)
    ):
        return Result(
            title,
            False,
            False,
            "",
            f"{title}: {claim.strip()!r} names parts and does not say what they do. {form}",
        )
    if judge is not None:
        if (judged := judge(mystery(letter), " ".join(claim.split()))) is None:
            raise ValueError(f"the claim {claim!r} cannot be read. {form}")
        return _said(title, judged[1], [f"{title}, claim: {claim.strip()}", *judged[0]])
    parts, verb = _read(claim)
    worth, whole = _bench(letter)
    lines = [
        f"{title}, claim: {claim.strip()}",
        f"With all its parts the second pass is worth {whole:+.1f} nats a token.",
    ]
    if verb == "nothing helps":
        against = (
            [
                f"Against: the second pass is worth {whole:.1f} nats, and something must bring that about."
            ]
            if whole >= 0.5
            else []
        )
        if (
            not against
            and (most := max((worth((name,)) - whole, name) for name in _NAMES))[0] > 0.5
        ):
            against = [
                f"Against: there is a head without which it is worth {most[0]:.1f} nats more. What does that head do?"
            ]
        return _said(
            title,
            against,
            [
                *lines,
                *(
                    []
                    if whole >= 0.5
                    else ["For: it does not predict a span any better the second time."]
                ),
            ],
        )
    sign = 1.0 if verb == "helps" else -1.0

    def taken(cut: tuple[str, ...]) -> float:
        return sign * (whole - worth(cut))

    effect, left, against = taken(parts), round(worth(parts), 1) + 0.0, []
    lines += [
        f"Without what you name it is worth {left:+.1f}: {abs(left - whole):.1f} {'less' if left < whole else 'more'}."
    ]
    if effect < -0.5:
        against += [
            f"Against: what you name {'hurts' if sign > 0 else 'helps'}, on the whole. The claim says the opposite."
        ]
    elif sign > 0 and whole < 0.5:
        against += [
            "Against: the second pass is worth next to nothing, or less, so there is no help to be taken away."
        ]
    elif sign > 0 and effect < 0.9 * whole:
        still = f"{left:.1f} of {whole:.1f}" if left < round(whole, 1) else f"all {whole:.1f}"
        against += [
            f"Against: {still} nats are still there. Something that you do not name carries them, or stands in for it."
        ]
    elif effect < 1.0:
        against += ["Against: it is worth hardly more without what you name."]
    else:
        lines += [
            f"For: cutting it takes the {'gain' if sign > 0 else 'damage'} away, or {'nine tenths of it' if sign > 0 else 'a nat of it'} at least."
        ]
        for part in parts if len(parts) > 1 else ():
            rest = taken(tuple(p for p in parts if p != part))
            if taken((part,)) < 0.25 * effect and rest > 0.9 * effect:
                against += [
                    f"Against: {part} is not needed: cut alone it changes {taken((part,)):.1f}, and cutting the rest without it {rest:.1f}."
                ]
        others = [(taken(cut), " and ".join(cut)) for cut in _controls(parts)]
        if others:
            most, names = max((round(most, 1) + 0.0, names) for most, names in others)
            lines += [
                f"{len(others)} other cut{'s' * (len(others) > 1)} of the same kind: {names} does most, {most:.1f}."
            ]
            if most > 0.67 * effect:
                against += [
                    f"Against: cutting {names} instead does {most:.1f}, and yours does {effect:.1f}. What makes your parts special?"
                ]
        if (
            letter == "A"
            and not against
            and len(
                {
                    p[:2]
                    for part in parts
                    if "->" not in part or part.split("->")[0] not in parts
                    for p in part.split("->")
                }
            )
            < 2
        ):
            against += [
                "Still missing: this is one end of the circuit. Name who writes and who reads it: heads of both layers, or wires."
            ]
    return _said(title, against, lines)


def _read(claim: str) -> tuple[tuple[str, ...], str]:
    """The parts of a claim and its verb."""
    text = re.sub(r"\s*->\s*", "->", " ".join(claim.split()))
    verb = next(
        (
            word
            for word in ("nothing helps", "helps", "help", "hurts", "hurt")
            if text.endswith(word)
        ),
        "",
    )
    named = text.removesuffix(verb)
    parts = tuple(re.findall(r"L0H[0-3]->L1H[0-3]\.[QKV]|L[01]H[0-3]", named))
    left = re.sub(r"L0H[0-3]->L1H[0-3]\.[QKV]|L[01]H[0-3]|and|,|\s", "", named)
    if not verb or left or (verb != "nothing helps") != bool(parts):
        raise ValueError(
            f"the claim {claim!r} cannot be read{f' at {left!r}' if left else ''}. {_FORM}"
        )
    return tuple(dict.fromkeys(parts)), {"help": "helps", "hurt": "hurts"}.get(verb, verb)


def _controls(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """As many parts of the same kinds, none of them named: every choice, or the first forty."""
    pools: list[list[str]] = []
    for kind in ("wire", "L0", "L1"):
        mine = [
            p
            for p in parts
            if (kind == "wire") == ("->" in p) and (kind == "wire" or p.startswith(kind))
        ]
        if mine and kind == "wire":
            ends = sorted({p.split("->")[1] for p in mine})
            every = [f"L0H{head}->{end}" for end in ends for head in range(_HEADS)]
        else:
            every = [f"{kind}H{head}" for head in range(_HEADS)]
        if mine:
            pools.append(
                [
                    " ".join(some)
                    for some in combinations([p for p in every if p not in parts], len(mine))
                ]
            )
    found: list[str] = [""]
    for pool in pools:
        found = [f"{one} {other}" for one in found for other in pool]
    return [tuple(cut.split()) for cut in found][:40]


def _said(title: str, against: list[str], lines: list[str]) -> Result:
    if not against and not any(line.startswith("For") for line in lines):
        lines = [*lines, "For: nothing that was tried speaks against it."]
    lines = [
        *lines,
        *against,
        f"{title}: {'the claim does not stand.' if against else 'the claim stands.'}",
    ]
    if not against and title[-1] in _DONE:
        lines = [*lines, f"What was done to it: {_DONE[title[-1]]}"]
    return Result(title, not against, True, "", "\n".join(lines))
