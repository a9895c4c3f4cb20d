"""Chains of two heads by what they add to a logit: the same as the path expansion, path by path."""

import pytest
import torch

from circuitkit.circuits import largest_paths, path_logits
from tests.support import zoo

TOKENS = torch.tensor([3, 7, 1, 3, 7, 40, 2])


@pytest.mark.parametrize(
    "name", ["native", "native-mlp", "native-rotary", "gpt2", "llama", "neox-parallel", "qwen3"]
)
@pytest.mark.parametrize("at", [-1, 3])
def test_equals_the_expansion(name, at):
    model = zoo.make(name)
    paths = path_logits(model, TOKENS, max_order=2, most=10_000)
    wanted = {}
    for path in paths:
        if paths.order(path) == 2:
            logits = paths[path][0, at]
            wanted[path] = float(logits[5] - logits.mean())
    found = largest_paths(model, TOKENS, 5, len(wanted), at=at)
    assert {*dict(found)} == {*wanted}
    for path, value in found:
        assert value == pytest.approx(wanted[path], abs=1e-9), path
    assert [abs(value) for _, value in found] == sorted(
        (abs(value) for _, value in found), reverse=True
    )
    assert largest_paths(model, TOKENS, 5, 3, at=at) == found[:3]


def test_what_is_refused():
    model = zoo.make("native")
    with pytest.raises(ValueError, match=r"answer=50; expected a token, 0 to 49"):
        largest_paths(model, TOKENS, 50)
    with pytest.raises(ValueError, match="one of 7 positions"):
        largest_paths(model, TOKENS, 5, at=7)
