r"""A formula has its room before it is typeset: its width is guessed from the TeX, and until then nobody reads TeX.

`circuitkit.css` hides a formula without `ck-set`, which `formulas.js` gives when it is typeset or cannot be. In ems, from
MathJax's letters; nine in ten of the chapters' formulas are within half an em of what they turn out to be.
"""

import html
import re

FORMULA = re.compile(
    r'<(span|div) class="((?:amsmath )?math notranslate nohighlight)"([^>]*)>(.*?)</\1>', re.S
)
EDGES = re.compile(r"^\s*\\\(|\\\)\s*$")
NEW_ROW = r"\\"
TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[^\s\\]", re.S)
NOTHING = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|!)|&")
WRAPS = re.compile(
    r"\\(?:math(?:bf|rm|cal|bb|sf|tt)|text(?:bf|rm|tt)?|operatorname|boldsymbol|(?:wide)?(?:hat|tilde)|bar|vec|dot|(?:over|under)line)"
)
RELATION = re.compile(
    r"[=<>]|\\(?:[lg]eq?|ll|gg|approx|sim(?:eq)?|equiv|propto|in|to|mapsto|(?:long)?(?:left|right)arrow|Rightarrow|iff|neq?|subset|colon)"
)
SIGN = re.compile(r"[+-]|\\(?:times|o(?:times|plus|dot)|pm|circ|c[au]p|setminus)")
NAME = re.compile(r"\\(?:log|exp|max|min|sin|cos|arg|Pr|det|sup|lim|ln|tanh|erf)")
WIDE = {
    **dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 0.76),
    **dict.fromkeys("ijlI.:!'|", 0.33),
    **dict.fromkeys("frst()[]", 0.42),
    **dict.fromkeys("mwMW", 0.9),
    **{
        ",": 0.45,
        ";": 0.45,
        "/": 0.5,
        "*": 0.7,
        "~": 0.25,
        r"\cdot": 0.72,
        r"\top": 0.78,
        r"\infty": 1.0,
        r"\mid": 0.83,
    },
    **{r"\,": 0.17, r"\:": 0.22, r"\;": 0.28, r"\ ": 0.25, r"\quad": 1.0, r"\qquad": 2.0},
    **{r"\ldots": 1.17, r"\dots": 1.17, r"\cdots": 1.3, r"\sum": 1.25, r"\prod": 1.15},
}
INDEX = 0.71  # the size of what is raised or lowered
MATHJAX = 1.26  # how large it writes beside the text


def width(tex: str) -> float:
    """How wide TeX will be, in ems."""
    return MATHJAX * _run(TOKEN.findall(tex), 0, None)[0]


def _group(tokens: list[str], i: int) -> tuple[float, int]:
    """The width of the token or group at i, and where the next one begins."""
    if i >= len(tokens):
        return 0.0, i
    if tokens[i] == "{":
        return _run(tokens, i + 1, "}")
    return _one(tokens, i)


def _run(tokens: list[str], i: int, end: str | None) -> tuple[float, int]:
    total, before = 0.0, "("
    while i < len(tokens) and tokens[i] != end:
        if tokens[i] in "^_":
            raised = []
            while i < len(tokens) and tokens[i] in "^_":
                wide, i = _group(tokens, i + 1)
                raised.append(wide)
            total += INDEX * max(raised) + 0.05
            continue
        token = tokens[i]
        wide, i = _one(tokens, i)
        sign_of_a_number = SIGN.fullmatch(token) and (
            before in "({,[" or RELATION.fullmatch(before)
        )
        total += wide - 0.44 * bool(sign_of_a_number)
        before = token
    return total, i + 1


def _one(tokens: list[str], i: int) -> tuple[float, int]:
    token, i = tokens[i], i + 1
    if token == "{":
        return _run(tokens, i, "}")
    if NOTHING.fullmatch(token):
        return 0.0, i
    if WRAPS.fullmatch(token):
        return _group(tokens, i)
    if token in (r"\frac", r"\tfrac", r"\dfrac"):
        above, i = _group(tokens, i)
        below, i = _group(tokens, i)
        return max(above, below) * (1 if token == r"\dfrac" else INDEX) + 0.25, i
    if token == r"\sqrt":
        wide, i = _group(tokens, i)
        return wide + 0.83, i
    if NAME.fullmatch(token):
        return 0.5 * (len(token) - 1) + 0.17, i
    return 1.33 if RELATION.fullmatch(token) else 1.22 if SIGN.fullmatch(token) else WIDE.get(
        token, 0.53
    ), i


def reserve(app, pagename, templatename, context, doctree) -> None:
    """Each formula says how much room it will take."""

    def fix(found):
        tag, kind, rest, tex = found.groups()
        tex = html.unescape(re.sub(r"<[^>]*>", "", tex))
        if tag == "span":
            room = f"--ck-wide: {width(re.sub(EDGES, '', tex)):.1f}em"
        else:
            room = f"--ck-rows: {1 + tex.count(NEW_ROW)}"
        return f'<{tag} class="{kind}" style="{room}"{rest}>{found[4]}</{tag}>'

    context["body"] = FORMULA.sub(fix, context.get("body") or "")


def setup(app) -> None:
    app.connect(
        "html-page-context", reserve, priority=900
    )  # after those that know a formula by its class alone
