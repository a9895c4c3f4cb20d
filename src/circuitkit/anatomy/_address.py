"""One grammar of names: parts, their inputs, wires and paths; read, printed, put in order, and completed.

    embed   pos   L3H5   L3 bias   L3 MLP   L3N120   L3N120.2   L3 MLP bias   unembed        parts
    L1H3.K  L1 MLP.Q                                                                        inputs of a part
    L0H1->L1H3.K                                                                             a wire: part to input
    embed->L0H1->L1H3                                                                        a path

`L3N120` is a neuron (all its heads), `L3N120.2` one of its heads. A gate is read by `.Q`, what it multiplies by `.V`.
"""

import difflib
import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from circuitkit._contract import Count, Natural, PartName, must, public

WORDS = (
    "embed",
    "pos",
    "embed bias",
    "direct",
    "bias",
    "norm bias",
    "unembed bias",
    "rest",
    "unembed",
)
"""Parts that belong to no layer, in order; the bias of the last norm, and groups of paths."""
_PART = re.compile(
    r"L(\d{1,9})(?:(H)(\d{1,9})|(N)(\d{1,9})(?:\.(\d{1,9}))?| (MLP)| (bias)| (MLP bias))", re.ASCII
)
_KINDS = ("H", "bias", "N", "MLP", "MLP bias")
_FORMS = "'embed', 'L3H5', 'L3 MLP', 'L3N120.2', an input such as 'L1H3.K', or 'L0H1->L1H3.K'"


@public
@must(
    lambda kind, layer, number, term: (
        kind in (WORDS if layer is None else _KINDS)
        and (number is None) != (kind in "HN")
        and (term is None or kind == "N")
        or _FORMS
    )
)
@dataclass(frozen=True)
class Address:
    """One part of a model, or one input of it.

    `str` prints it, `read` reads it, `order` puts it in its place. **Source**: this book.

    >>> str(Address("H", 1, 3, input="K"))
    'L1H3.K'
    """

    kind: str
    """One of `WORDS`, or `"H"`, `"N"`, `"MLP"`, `"bias"`, `"MLP bias"` of a layer."""
    layer: Natural | None = None
    number: Natural | None = None
    term: Natural | None = None
    input: Literal["Q", "K", "V"] | None = None

    def __str__(self) -> str:
        if self.layer is None:
            return self.kind
        number = "" if self.number is None else f"{self.number}"
        term = "" if self.term is None else f".{self.term}"
        word = self.kind if self.kind in "HN" else f" {self.kind}"
        return f"L{self.layer}{word}{number}{term}" + (
            "" if self.input is None else f".{self.input}"
        )

    @property
    def part(self) -> "Address":
        """The part whose input this is."""
        return replace(self, input=None)

    @property
    def order(self) -> tuple[int, ...]:
        """Its place in the model: embeddings, then layer by layer heads, bias, neurons or MLP, then the unembedding."""
        if self.layer is None:
            return (
                -1 if self.kind in ("embed", "pos", "embed bias") else 1 << 40,
                WORDS.index(self.kind),
            )
        rest = (-1 if value is None else value for value in (self.number, self.term))
        return (self.layer, _KINDS.index(self.kind), *rest, " QKV".index(self.input or " "))


@public
def read(text: PartName) -> tuple[Address, ...]:
    """The chain of parts that a name stands for: one part or input, the two ends of a wire, or all parts of a path.

    **Error**: `ValueError` for what is no name. Spellings of version 0.1 (`MLP0`, `L0H0>L1H0`) are read. **Source**: this book.

    >>> [str(part) for part in read("embed->L0H1->L1H3.K")]
    ['embed', 'L0H1', 'L1H3.K']
    """
    return tuple(_read_one(piece, text) for piece in re.split(r"\s*-?>\s*", text))


def _read_one(piece: str, whole: str) -> Address:
    piece = (
        re.sub(r"\AMLP(\d+)", r"L\1 MLP", piece)
        .replace("pos_embed", "pos")
        .replace("MLP.gate", "MLP.Q")
    )
    if piece in WORDS:
        return Address(piece)
    name, dot, kind = piece.rpartition(".")
    name, kind = (name, kind) if dot and kind in ("Q", "K", "V") else (piece, None)
    found = _PART.fullmatch(name)
    if found is None:
        raise ValueError(f"{whole!r} is no name of a part; expected one such as {_FORMS}")
    layer, head, h, neuron, n, term, *words = found.groups()
    number = h if head else n
    return Address(
        head or neuron or next(word for word in words if word),
        int(layer),
        None if number is None else int(number),
        None if term is None else int(term),
        kind,
    )


@public
@must(lambda parts: len(parts) > 0 or "a part or more")
def join(*parts: Address | PartName) -> str:
    """The name of a wire or a path from its parts. **Source**: this book.

    >>> join("L0H1", "L1H3.K")
    'L0H1->L1H3.K'
    """
    return "->".join(
        str(one) for part in parts for one in ([part] if isinstance(part, Address) else read(part))
    )


def spelled(text: str) -> str:
    """A name as it is printed, from a spelling of version 0.1 too; what is no name is left as it is.

    >>> spelled("MLP0>L1H3")
    'L0 MLP->L1H3'
    """
    try:
        return join(*read(text))
    except ValueError:
        return text


def nearest(text: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that are closest to one that is not known: by kind, layer and number, else by letters."""
    known = list(known)
    try:
        (wanted,) = read(text)
    except ValueError:
        return difflib.get_close_matches(str(text), known, n=most, cutoff=0.4)

    def away(name: str) -> tuple:
        *before, other = read(name)
        far = [
            abs((a or 0) - (b or 0)) for a, b in zip(_numbers(wanted), _numbers(other), strict=True)
        ]
        return (
            len(before),
            other.kind != wanted.kind,
            (other.layer is None) != (wanted.layer is None),
            *far,
        )

    return heapq.nsmallest(most, known, key=away)


def _numbers(address: Address) -> tuple[int | None, ...]:
    return address.layer, address.number, address.term


def unknown(what: str, text: str, known: Iterable[str]) -> ValueError:
    """The error for a name that a model does not have."""
    known = list(known)
    close = ", ".join(nearest(text, known)) or ", ".join(known[:6])
    return ValueError(f"no {what} is called {text!r}; the nearest of {len(known)} are {close}")


@public
def complete(text: str, known: Sequence[str], most: Count = 24) -> list[str]:
    """Known names that begin so, in order: what a half-typed name may become. **Source**: this book.

    >>> complete("L1", ["L0H0", "L1H0", "L1 MLP"])
    ['L1H0', 'L1 MLP']
    """
    last = text.rsplit(">", 1)[-1]
    found = sorted(
        (name for name in known if name.startswith(last)), key=lambda name: read(name)[-1].order
    )
    return [text[: len(text) - len(last)] + name for name in found[:most]]
