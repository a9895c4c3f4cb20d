"""The names of parts, inputs, wires and paths: parse, print, order, and find the nearest.

Names are written like this::

    a part     embed   pos   L3H5   L3 bias   L3 MLP   L3N120   L3N120.2   L3 MLP bias   unembed
    an input   L1H3.K   L1H3   L1 MLP.Q   L3N120.V
    a wire     L0H1->L1H3.K
    a path     embed->L0H1->L1H3.K   embed->L0H1.V->L1H3.K

Layers, heads and neurons are counted from 0, and their numbers have no zeros in front. `L3N120` is a
neuron and `L3N120.2` one of the heads that it was converted into. A converted neuron reads its gate
with `.Q` and what the gate multiplies with `.V`; one of an MLP has one input, without a letter. A part in the middle of a path passes on what changes through
all of its inputs (`L0H1`), or through one of them alone (`L0H1.V`).
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

WITHOUT_LAYER = (
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
"""Parts that belong to no layer, in the order of the model."""
Side = Literal["Q", "K", "V"]
SIDES: tuple[Side, ...] = ("Q", "K", "V")

EXAMPLES = "'embed', 'L3H5', 'L3 MLP', 'L3N120.2', an input such as 'L1H3.K', or 'L0H1->L1H3.K'"
PART = re.compile(
    r"L(?P<layer>\d{1,9})"
    r"(?:H(?P<head>\d{1,9})|N(?P<neuron>\d{1,9})(?:\.(?P<term>\d{1,9}))?| (?P<word>MLP bias|MLP|bias))"
    r"(?:\.(?P<side>[QKV]))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Name:
    """One part of a model, or one input of a part.

    Parameters
    ----------
    kind : one of `WITHOUT_LAYER`, or `"H"`, `"N"`, `"MLP"`, `"bias"`, `"MLP bias"` of a layer
    layer, number : layer, and number of the head or neuron in it
    term : which head of a converted neuron; None for the whole neuron
    side : `"Q"`, `"K"` or `"V"` for an input; None for the part itself

    Examples
    --------
    >>> str(Name("H", 1, 3, side="K"))
    'L1H3.K'
    """

    kind: str
    layer: int | None = None
    number: int | None = None
    term: int | None = None
    side: Side | None = None

    def __str__(self) -> str:
        side = "" if self.side is None else f".{self.side}"
        if self.layer is None:
            return f"{self.kind}{side}"
        if self.kind not in ("H", "N"):
            return f"L{self.layer} {self.kind}{side}"
        term = "" if self.term is None else f".{self.term}"
        return f"L{self.layer}{self.kind}{self.number}{term}{side}"

    @property
    def part(self) -> "Name":
        """The part whose input this is."""
        return replace(self, side=None)

    @property
    def order(self) -> tuple:
        """A sort key for the parts of one layer: by kind, number and term."""
        return (self.kind, self.number or 0, self.term or 0)


def parse(text: str) -> tuple[Name, ...]:
    """Split a name into its chain of parts.

    Parameters
    ----------
    text : a name as printed, such as `"L1H3"`, `"L1H3.K"`, `"L0H1->L1H3.K"`

    Returns
    -------
    One `Name` for a part or an input, two for a wire, three or more for a path. `"pos_embed"` is
    read as `"pos"`.

    Raises
    ------
    ValueError : if the text is no name

    Examples
    --------
    >>> [str(name) for name in parse("embed->L0H1->L1H3.K")]
    ['embed', 'L0H1', 'L1H3.K']
    """
    if not isinstance(text, str):
        raise TypeError(f"a name is a text such as {EXAMPLES}; this is {text!r}")
    chain = []
    for piece in text.split("->"):
        piece = "pos" if piece.strip() == "pos_embed" else piece.strip()
        match = PART.fullmatch(piece)
        if piece in WITHOUT_LAYER:
            chain.append(Name(piece))
        elif match is None:
            raise ValueError(
                f"{text!r} is no name of a part. Write a name such as {EXAMPLES}. The inputs are "
                "Q, K and V."
            )
        else:
            numbers = match["layer"], match["head"] or match["neuron"], match["term"]
            layer, number, term = (None if digits is None else int(digits) for digits in numbers)
            kind = match["word"] or ("H" if match["head"] else "N")
            side: Any = match["side"]
            name = Name(kind, layer, number, term, side)
            if str(name) != piece:
                raise ValueError(
                    f"{text!r} is no name: numbers have no zeros in front. Write {str(name)!r} in "
                    f"place of {piece!r}."
                )
            chain.append(name)
    return tuple(chain)


def join(*names: Name | str) -> str:
    """The name of a wire or a path, from its parts.

    Examples
    --------
    >>> join("L0H1", "L1H3.K")
    'L0H1->L1H3.K'
    """
    return "->".join(str(name) for name in names)


def nearest(text: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that are closest to a wrong one, by their letters.

    Examples
    --------
    >>> nearest("L1H9", ["embed", "L0H3", "L1H3", "L1 MLP"], count=2)
    ['L1H3', 'L0H3']
    """
    return difflib.get_close_matches(text, list(known), n=count, cutoff=0.4)


def unknown(what: str, text: str, known: Iterable[str]) -> ValueError:
    """The error for a name that a model does not have, with the nearest names that it has."""
    known = list(known)
    close = ", ".join(nearest(text, known)) or ", ".join(known[:6])
    return ValueError(f"no {what} is called {text!r}. The nearest names are {close}.")
