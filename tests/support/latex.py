r"""A displayed formula as a value: parses the LaTeX that a page stores and computes it with the symbols given.

`sides(latex, {"W_Q": ..., r"\text{mask}": ...})` returns, for each statement of the formula, the values of its sides.
Symbols are pieces of LaTeX, the longest match first; a symbol may be a function. Writing two things beside each other
multiplies them: scalars with anything, rows and matrices as matrices. A sum takes its terms from the symbol
`\sum_{...}`, a list with the symbols of each term.
"""

import re

import torch

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\S", re.S)
SILENT = {r"\,", r"\;", r"\!", r"\:", r"\left", r"\right", r"\big", r"\Big"}
WIDE, EQUAL = {r"\quad", r"\qquad"}, {"=", r"\le"}
ARGUMENT = {r"\frac", r"\tfrac", r"\sqrt", r"\underbrace"}


def tokens(latex: str) -> list[str]:
    return [token for token in TOKEN.findall(latex) if token not in SILENT]


def sides(latex: str, symbols: dict) -> list[list]:
    """The values of every statement: statements stand apart by a wide space or in aligned lines, sides by `=` or `\\le`."""
    latex = re.sub(r"\\tag\{.*?\}|\\q?quad\\text\{and\}", "", latex)
    if r"\begin{aligned}" in latex:
        latex = re.sub(r"\\(begin|end)\{aligned\}|&", "", latex).replace(r"\\", r"\qquad")
    parts = split(tokens(latex), WIDE)
    return [
        [Reader(part, symbols).all() for part in split(statement, EQUAL)] for statement in parts
    ]


def split(found: list[str], at: set[str]) -> list[list[str]]:
    """Pieces between the tokens of `at` that stand in no braces, without the comma or full stop at their ends."""
    pieces, depth = [[]], 0
    for token in found:
        depth += (token == "{") - (token == "}")
        if depth == 0 and token in at:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece[:-1] if piece[-1] in (",", ".") else piece for piece in pieces if piece]


class Reader:
    """A recursive descent over the tokens of one side."""

    def __init__(self, found: list[str], symbols: dict):
        self.tokens, self.at = found, 0
        self.symbols = {tuple(tokens(name)): value for name, value in symbols.items()}

    def all(self):
        value = self.sum()
        if self.at < len(self.tokens):
            raise ValueError(f"cannot read {''.join(self.tokens[self.at :])!r}")
        return value

    def peek(self, ahead: int = 0) -> str:
        return (self.tokens + [""] * (ahead + 1))[self.at + ahead]

    def next(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise ValueError(
                f"expected {expected or 'more'!r} before {''.join(self.tokens[self.at :])!r}"
            )
        self.at += 1
        return token

    def sum(self):
        value = self.signed()
        while self.peek() in ("+", "-") or (self.peek(), self.peek(1)) == ("(", "+"):
            value = value + self.signed()
        return value

    def signed(self):
        if self.peek() in ("+", "-"):
            return self.product() if self.next() == "+" else -self.product()
        return self.product()

    def product(self):
        value = self.power()
        while (
            (token := self.peek())
            and token not in "+-,)]}&"
            and token not in (r"\\", r"\rangle", r"\end")
        ):
            if (token, self.peek(1)) in (("(", "+"), (r"\|", "_")):
                break
            if token == "/":
                self.next()
                value = value / self.power()
            elif token in (r"\cdot", r"\times", r"\odot", r"\oplus"):
                self.next()
                other = self.product()
                value = direct_sum(value, other) if token == r"\oplus" else value * other
                value = value.sum(-1) if token == r"\cdot" and value.ndim else value
            else:
                other = self.power()
                value = value * other if 0 in (value.ndim, other.ndim) else value @ other
        return value

    def power(self):
        value = self.atom()
        while self.peek() == "^":
            self.next()
            if self.peek() == r"\top":
                self.next()
                value = value.mT if value.ndim > 1 else value
            else:
                value = value ** self.group()
        return value

    def group(self):
        """What stands in braces, or the one thing that needs none."""
        if self.peek() != "{":
            return self.atom()
        return self.between("{", "}")

    def between(self, left: str, right: str):
        self.next(left)
        value = self.sum()
        self.next(right)
        return value

    def skip(self) -> list[str]:
        """An index or a label that is not computed: `_F`, `_{token}`."""
        start, depth = self.at, 0
        while True:
            token = self.next()
            depth += (token == "{") - (token == "}")
            if depth == 0:
                return self.tokens[start : self.at]

    def symbol(self):
        for length in range(len(self.tokens) - self.at, 0, -1):
            if (name := tuple(self.tokens[self.at : self.at + length])) in self.symbols:
                self.at += length
                return self.symbols[name]
        return None

    def atom(self):
        token = self.peek()
        if token == r"\sum":
            return self.series()
        value = self.symbol()
        if callable(value) and not isinstance(value, torch.Tensor):
            return value(*self.arguments())
        if value is not None:
            return torch.as_tensor(value, dtype=torch.float64)
        if token in ("(", "["):
            return self.between(token, {"(": ")", "[": "]"}[token])
        self.next()
        if token.startswith("\\"):
            return self.command(token)
        if token == "e":
            return torch.tensor(1.0, dtype=torch.float64).exp()
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return torch.tensor(float(token), dtype=torch.float64)
        raise ValueError(f"no symbol is given for {token!r} in {''.join(self.tokens)!r}")

    def command(self, token):
        r"""A LaTeX command that stands for a computation, such as `\frac`."""
        if token in ARGUMENT:
            value = self.group()
            if token == r"\underbrace":
                self.next("_"), self.skip()
                return value
            return value.sqrt() if token == r"\sqrt" else value / self.group()
        if token == r"\|":
            value = self.sum()
            self.next(r"\|"), self.next("_"), self.next("F")
            return value.square().sum().sqrt()
        if token == r"\langle":
            value = self.sum()
            self.next(",")
            value = (value * self.sum()).sum()
            self.next(r"\rangle")
            return value
        if token == r"\min" and self.peek() == "_":
            self.next(), self.skip()
            return self.between("(", ")").amin(-1)
        if token == r"\min":
            return torch.minimum(*self.arguments())
        if token == r"\begin":
            self.skip()
            return self.matrix()
        raise ValueError(f"no symbol is given for {token!r} in {''.join(self.tokens)!r}")

    def arguments(self) -> list:
        self.next("(")
        found = [self.sum()]
        while self.peek() == ",":
            self.next()
            found.append(self.sum())
        self.next(")")
        return found

    def series(self):
        r"""`\sum_{i}`: its body, read once for each term."""
        self.next(), self.next("_")
        terms, symbols = self.symbols[(r"\sum", "_", *self.skip())], self.symbols
        start, total = self.at, 0.0
        for term in terms:
            self.at, self.symbols = (
                start,
                symbols | {tuple(tokens(key)): value for key, value in term.items()},
            )
            total = total + self.product()
        self.symbols = symbols
        return total

    def matrix(self):
        rows = [[]]
        while self.peek() != r"\end":
            rows[-1].append(self.sum())
            if self.peek() == "&":
                self.next()
            elif self.peek() == r"\\":
                self.next(), rows.append([])
        self.next(), self.skip()
        return blocks(rows)


def direct_sum(a, b):
    b = b.reshape(1, 1) if b.ndim == 0 else b
    return torch.block_diag(a, b)


def blocks(rows: list[list]) -> torch.Tensor:
    """A block matrix; a number fills a block whose size follows from its row and column."""
    height = [max((entry.shape[0] for entry in row if entry.ndim), default=0) for row in rows]
    columns = zip(*rows, strict=True)
    width = [
        max((entry.shape[1] for entry in column if entry.ndim), default=0) for column in columns
    ]
    if len(height) == len(width):
        height = width = [h or w or 1 for h, w in zip(height, width, strict=True)]
    filled = []
    for row, h in zip(rows, height, strict=True):
        entries = [entry.expand(h or 1, w or 1) for entry, w in zip(row, width, strict=True)]
        filled.append(torch.cat(entries, 1))
    return torch.cat(filled)
