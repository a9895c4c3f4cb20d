"""How many lines of the library refuse bad input, and whether the count can be trusted."""

import textwrap

import pytest

from tools.check import refusing_lines


def test_less_than_eight_percent_refuse():
    table = refusing_lines.measure(refusing_lines.ROOT / "src/circuitkit")
    assert refusing_lines.share(table) < refusing_lines.LIMIT


CASES = {
    "a raise": ('def f(x):\n    y = x\n    raise ValueError("no")', 1),
    "with its condition": (
        'def f(x):\n    y, z = x, x\n    y = z + 1\n    if x:\n        raise ValueError(\n            "no"\n        )\n    return y',
        4,
    ),
    "something else happens": (
        'def f(x):\n    if x:\n        print(x)\n        raise ValueError("no")\n    return x\n',
        1,
    ),
    "another error": ('def f(x):\n    if x:\n        raise KeyError("no")\n    return x', 0),
    "what a call gives": (
        "def f(x):\n    y = x\n    if x:\n        raise unknown(x)\n    return y + 1",
        2,
    ),
    "a list of complaints": (
        'def f(x):\n    a = x\n    b = a\n    c = b\n    d = c\n    e = d\n    g = e\n    wrong = []\n    if x:\n        wrong.append("no")\n'
        "    if wrong:\n        raise ValueError(wrong)\n    return g",
        5,
    ),
    "a refuser": (
        'def check(x):\n    """Words."""\n    if x:\n        raise ValueError("no")\n\n\ndef g(x):\n    check(x)\n    return x + 1',
        3,
    ),
    "a rule": (
        '@public\n@must(lambda x: x > 0\n      or "more")\n@dataclass\ndef f(x):\n    return x',
        2,
    ),
    "a named rule": (
        '_more = "more"\n\n\ndef fits(x):\n    return x > 0 or "more"\n\n\n@public\n@must(fits, _more)\ndef f(x):\n    return x',
        4,
    ),
    "no rule": ("@must(fits)\n@cache\ndef f(x):\n    return x", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_by_hand(tmp_path, name):
    source, lines = CASES[name]
    (tmp_path / "one.py").write_text(textwrap.dedent(source))
    assert refusing_lines.measure(tmp_path)["(root)"][0] == lines


def test_the_contract_counts_whole(tmp_path):
    (tmp_path / "_contract.py").write_text(
        '"""Words."""\n\nimport torch\n\nA = 1  # counted\n\n\ndef kind(x):\n    """Words."""\n    return x\n'
    )
    assert refusing_lines.measure(tmp_path)["(root)"] == (3, 10)


def test_exercises_and_claims_are_not_counted(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "one.py").write_text('raise ValueError("no")')
    (tmp_path / "two.py").write_text("x = 1\n")
    assert refusing_lines.measure(tmp_path) == {"(root)": (0, 1)}
