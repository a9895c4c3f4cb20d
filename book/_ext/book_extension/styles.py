"""Keep the rules of the style sheet that can apply: the theme brings classes by the thousand, and a page waits for all of them."""

import re

PIECE = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{};])""", re.S)
NESTED = re.compile(r"@(?:media|supports|layer|container)\b")
FUNCTION = re.compile(r"\[[^\]]*\]|:(?:not|is|where|has)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")
WORD = re.compile(r"-?[A-Za-z_][\w-]*")


def words_of(texts) -> set[str]:
    """Everything in pages and scripts that may be the name of a class, or the beginning of one: scripts join `cl-` and `up`."""
    return {word for text in texts for word in WORD.findall(text)}


def _named(name: str, words: set[str]) -> bool:
    return name in words or any(name[: dash.end()] in words for dash in re.finditer("-", name[:-1]))


def prune(css: str, words: set[str]) -> str:
    """The style sheet without the selectors that ask for a class which no word of a page or script is or begins."""
    return "".join(_rules(iter(PIECE.split(css)), words))


def _rules(pieces, words: set[str]) -> list[str]:
    """Rules and declarations up to the brace that closes them."""
    out, head = [], ""
    for piece in pieces:
        if piece == "}":
            break
        if piece == ";":
            out.append(f"{head};")
        elif piece == "{":
            kept = head if head.lstrip().startswith("@") else _selectors(head, words)
            inner = _rules(pieces, words)
            if kept and (inner or not NESTED.match(head.strip())):
                out += [kept, "{", *inner, "}"]
        head = head + piece if piece not in (*"{;",) else ""
    return [*out, head] if head.strip() else out


def _selectors(text: str, words: set[str]) -> str:
    """Of a list of selectors those whose classes all occur; what stands in `:not()` or in an attribute is not asked."""
    kept, depth, start = [], 0, 0
    for i, letter in enumerate(f"{text},"):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            one, start = text[start:i], i + 1
            if all(_named(name, words) for name in CLASS.findall(FUNCTION.sub("", one))):
                kept.append(one)
    return ",".join(kept)
