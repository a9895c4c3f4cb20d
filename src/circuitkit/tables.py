"""The table of results that most tools return: read by name, ranked, and shown in a notebook.

You get a `Table` from a tool and seldom make one. `table["L1H3"]` is the value of one name,
`table["L0H1", "L1H3"]` that of a pair, and `table.top(5)` has the five largest values. The names
are in `table.names`, the tensor is `table.values`, and `table.to_frame()` gives a pandas DataFrame.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from circuitkit.checks import checked
from circuitkit.names import nearest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table"]


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Numbers with names: one value for each head, each pair of heads, each component of a logit.

    Parameters
    ----------
    values : a tensor whose leading dimensions are the axes below; more dimensions may follow
        (for example `[batch, pos]`)
    axes : for each axis, in order, what its entries are (`"head"`) and their names (`("L0H0", ...)`)
    title : what the values are, with their unit

    Notes
    -----
    Source: this book.

    Examples
    --------
    >>> scores = Table(torch.tensor([0.1, 0.9]), {"head": ("L0H0", "L0H1")}, "attention")
    >>> round(scores["L0H1"], 2)
    0.9
    >>> list(scores.top(1).names)
    ['L0H1']
    """

    values: Tensor
    axes: dict[str, tuple[str, ...]]
    title: str = ""

    def __post_init__(self) -> None:
        for axis, names in self.axes.items():
            if len(set(names)) < len(names):
                raise ValueError(f"Two entries of {axis!r} have one name. Give different names.")
        sizes = tuple(len(names) for names in self.axes.values())
        if tuple(self.values.shape[: len(sizes)]) != sizes:
            raise ValueError(
                f"A table with {sizes} names cannot hold values of the shape "
                f"{tuple(self.values.shape)}. Give one name for each entry of the leading axes."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names along the first axis."""
        return next(iter(self.axes.values()))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, key: str | tuple[str, ...]) -> Tensor | float:
        """The value of an entry: one name for each axis, beginning with the first.

        Fewer names than axes, or values with more dimensions, give a tensor.
        """
        wanted = key if isinstance(key, tuple) else (key,)
        if len(wanted) > len(self.axes):
            raise KeyError(
                f"This table has {len(self.axes)} axes ({', '.join(self.axes)}), "
                f"and {len(wanted)} names were given."
            )
        value = self.values
        for name, (axis, names) in zip(wanted, self.axes.items(), strict=False):
            value = value[position(name, axis, names)]
        return value if value.ndim else value.item()

    def select(self, **chosen: str) -> "Table":
        """The entries with one name on an axis: `scores.select(behaviour="previous token")`.

        Parameters
        ----------
        chosen : for each axis that is to go, the name on it

        Raises
        ------
        KeyError : if the table has no such axis, or the axis no such name
        """
        values, axes = self.values, dict(self.axes)
        for axis, name in chosen.items():
            if axis not in axes:
                raise KeyError(f"This table has the axes {', '.join(self.axes)}, not {axis!r}.")
            dim = list(axes).index(axis)
            values = values.select(dim, position(name, axis, axes.pop(axis)))
        names = ", ".join(chosen.values())
        return Table(values, axes, f"{self.title}: {names}" if self.title else names)

    def top(self, k: int = 5, *, absolute: bool = False) -> "Table":
        """The `k` entries with the largest values, largest first.

        An entry of a table with several axes is called by all its names, such as
        `"L0H1, L1H3"`. NaN entries are left out.

        Parameters
        ----------
        k : how many entries
        absolute : whether entries are ranked by their absolute values

        Raises
        ------
        ValueError : if an entry holds more than one number, because such entries have no order, or
            if `k` is not a count
        """
        if not isinstance(k, int) or k < 0:
            raise ValueError(f"top was given k={k!r}. Give the number of entries, such as top(5).")
        if self.values.ndim != len(self.axes):
            raise ValueError(
                f"Each entry of this table holds values of the shape "
                f"{tuple(self.values.shape[len(self.axes) :])}, so entries have no order. "
                "Choose one number for each entry first."
            )
        flat = self.values.detach().flatten()
        size = flat.abs() if absolute else flat
        order = size.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True)
        n_ranked = int((~flat.isnan()).sum())
        chosen = order[:n_ranked][:k]
        names = [", ".join(names) for names in product(*self.axes.values())]
        axes = {", ".join(self.axes): tuple(names[i] for i in chosen.tolist())}
        return Table(flat[chosen], axes, self.title)

    def to_frame(self) -> "pd.DataFrame":
        """A DataFrame: the first axis as rows; a second axis, or further dimensions, as columns."""
        import pandas as pd  # takes half a second, and computing needs no frame

        axes = list(self.axes.items())
        rows = pd.Index(self.names, name=axes[0][0])
        values = self.values.detach().cpu()
        if values.ndim == 1:
            return pd.DataFrame({self.title or "value": values.numpy()}, index=rows)
        columns = None
        if len(axes) == 2 and values.ndim == 2:
            columns = pd.Index(axes[1][1], name=axes[1][0])
        return pd.DataFrame(values.flatten(1).numpy(), index=rows, columns=columns)

    def __repr__(self) -> str:
        title = f"{self.title}\n" if self.title and self.values.ndim > 1 else ""
        return title + self.to_frame().round(3).to_string(max_rows=20, max_cols=20)

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        return self.to_frame().round(3).to_html(max_rows=20, max_cols=20, border=0)


Table.__init__ = checked(Table.__init__)


def position(name: str, axis: str, names: tuple[str, ...]) -> int:
    """The place of a name on an axis.

    Raises
    ------
    KeyError : with the nearest names, if the axis does not have this name
    """
    if name in names:
        return names.index(name)
    close = ", ".join(nearest(str(name), names)) or ", ".join(names[:6])
    raise KeyError(f"No {axis} is called {name!r} in this table. The nearest names are {close}.")
