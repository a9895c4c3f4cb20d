"""The names of all wires of one kind between heads; what `without=` takes is said at `Anatomy.run`."""

from typing import Literal

from circuitkit._contract import AnyModel, public
from circuitkit._heads import Heads
from circuitkit.anatomy import anatomy, join

Fill = Literal["zero", "mean"]


@public
def paths(model: AnyModel, kind: Literal["Q", "K", "V"], *, into: str | None = None, out_of: str | None = None) -> tuple[str, ...]:
    """All paths `"L0H1->L1H3.K"` of one kind between heads of different layers, to give to `without=`.

    `into` and `out_of` keep those that end or begin at one head. Leaving out all paths of a kind is the comparison of
    Q-, K- and V-composition: later heads then read the stream without earlier heads at that one input.

    **Source**: "A Mathematical Framework for Transformer Circuits", Q-, K- and V-composition; cutting single wires
    is this book's.
    """
    value = anatomy(model)
    value.taken([head for head in (into, out_of) if head is not None])
    heads = [
        (number, name)
        for number, step in enumerate(value.steps)
        for sub in step.sublayers
        if isinstance(sub.inside, Heads)
        for name in sub.parts
    ]
    return tuple(
        join(earlier, f"{later}.{kind}")
        for first, earlier in heads
        for second, later in heads
        if first < second and into in (None, later) and out_of in (None, earlier)
    )
