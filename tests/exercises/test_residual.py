"""Exercises of chapter 1: what they ask for is what the library and torch compute, and other right ways are accepted."""

import pytest
import torch
from torch.nn.functional import layer_norm

from circuitkit_book import exercises

SPEC = {exercise.number: exercise for exercise in exercises.catalogue(1)}


def cases(number):
    return list(SPEC[number].cases())


@pytest.mark.parametrize("case", cases("1.1"))
def test_the_parts_of_a_logit_sum_to_the_logit_above_the_mean(case):
    logits = case["parts"].sum(0) @ case["W_U"]
    found = SPEC["1.1"].spec(**case).sum()
    torch.testing.assert_close(found, logits[case["token"]] - logits.mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", cases("1.2"))
def test_the_parts_through_a_norm_sum_to_what_torch_normalises(case):
    whole = layer_norm(case["parts"].sum(0), case["gain"].shape, case["gain"], eps=case["eps"])
    found = SPEC["1.2"].spec(**case).sum()
    torch.testing.assert_close(found, whole @ case["W_U"][:, case["token"]], rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", cases("1.3"))
def test_the_heard_part_is_heard_alike_and_the_rest_is_not_heard(case):
    heard = SPEC["1.3"].spec(**case)
    torch.testing.assert_close(heard @ case["W"], case["x"] @ case["W"], rtol=0, atol=1e-10)
    assert torch.linalg.matrix_rank(torch.cat([heard, case["W"].T])) == case["W"].shape[1]


def test_a_mover_with_a_larger_inner_space_is_right():
    def roomy(source, target):
        return source.T.repeat(1, 2), (target - source).repeat(2, 1) / 2

    assert exercises.check_note_mover(roomy)
