"""The short answers inside the pages: right ones pass, known mistakes get their hint, the rest is refused politely."""

import math

import pytest
import torch

import circuitkit as ck
from circuitkit import models
from circuitkit import superposition as sp
from circuitkit.names import parse
from circuitkit_book import exercises as ex

THIRDS, WRITES = torch.full((3,), 1 / 3), torch.tensor([2.0, -1.0])
GATES = sp.GATES.gate(torch.outer(torch.tensor([0.5, 2, -1]), torch.tensor([1, 0.4])))
#: A right answer, a wrong one, and words of the hint for the wrong one.
CASES = {
    "head_with_the_name": ("L1H3", "L1H0", "It is a bias"),
    "second_wire": ("L0H0->L1H3.K", "L0H1->L1H3.K", "the page has cut"),
    "column_of_ory": (" satisf", "isf", "another source raises it more"),
    "rank_of_ov": (32, 160, "which dimension is smallest?"),
    "row_of_he": (" hath", "hath", "Write it exactly as it is in the vocabulary"),
    "score_of_itself": (0.866, 86.6, "Give a share between 0 and 1"),
    "constant_head": (2.957, 0, "if the mean replaces the output"),
    "odds_of_mind": (torch.tensor(5.0).exp(), 5.0, "The odds are its exponential"),
    "head_too_many": ("L1H2", "L0H0", "no set of heads predicts"),
    "rescaled_score": (1, 2, "so does the norm of W_OV"),
    "tied_wires": (2 / 3, 1, "one of them is not known"),
    "second_neuron": ([0, 3 / (1 + math.exp(-1))], [0, 3], "all attention goes to itself"),
    "sharpness": (278.5, 1278, "where the error is largest"),
    "row_of_scores": ([2, 42, 40], [-2, 38, 40], "subtracts it"),
    "smallest_omega": (math.log(2048e6) / 2, math.log(2048e6), "half of this"),
    "bias_row": (math.sqrt(3), 2.0, "RMSNorm"),
    "n_paths": (13 * 3073, 12 * 3072, "skip"),
    "shared_write": ([0.5, 2], [0, 2], "residual stream"),
    "six_gates": (GATES.flatten().tolist(), [0.5, 0.2, 2, 0.8, -1, -0.4], "These are the scores"),
    "three_gates": (float(torch.linalg.vector_norm(THIRDS, 0.6)), 1.55, "power 1 / 0.6"),
    "cancelling_writes": (float(torch.linalg.vector_norm(WRITES, 0.6)), 1.0, "penalty of the sum"),
    "n_subsets": (2**11, 2**12, "only the other eleven"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_right_answer_passes_a_mistake_gets_its_hint_and_nonsense_is_refused(name):
    check = getattr(ex, f"check_{name}")
    right, wrong, hint = CASES[name]
    assert check(right).passed
    assert not check(wrong).passed
    assert hint in check(wrong).message.replace("\n", " ")
    assert "No answer yet." in check(None).message
    assert not check(None).done
    assert not check("none of these")
    assert not check([1.0, 2.0, 3.0, 4.0])


SIGMOID_1 = 1 / (1 + math.exp(-1))
WIRE = "L0H1->L1H3.K"
#: Every other wrong answer that has a hint, worked out again, and words of that hint.
WRONG = {
    "head_with_the_name": {"L1H2": "attends to ` D` itself"},
    "second_wire": {
        "L0H2->L1H3.K": "still above 70%",
        "L0H3->L1H3.K": "still 76%",
        "L0H0": "This is a head",
        "L0H1->L1H3.Q": "enters the queries",
    },
    "column_of_ory": {" hist": "directly before", "satisf": "Write it exactly"},
    "rank_of_ov": {2048: "This is the number of tokens"},
    "row_of_he": {"have": "another row"},
    "score_of_itself": {1 - 0.866: "whose own score is above the mean"},
    "constant_head": {-2.957: "Give a positive number", 2 * 2.957: "counted too often"},
    "odds_of_mind": {
        math.exp(-5): "the odds of `bay` to `mind`",
        0.0: "drops out of the odds",
        148.4 / 149.4: "This is the probability",
    },
    "rescaled_score": {1 / 2: "so does the product in the numerator", 2**2: "not with the square"},
    "tied_wires": {1 / 3: "both are among the first three"},
    "second_neuron": {
        (0, 3 - 3 * SIGMOID_1): "the attention to the bias token",
        (3 * SIGMOID_1, 0): "wrong coordinate",
    },
    "sharpness": {0.2785 / 1000: "Solve for the sharpness"},
    "row_of_scores": {
        (2, 20 + 2, 20): "Omega enters the scores twice",
        (2, 42, 40 + 2): "does not read x",
        (40 - 1, -1, 40): "the row of the first token",
    },
    "smallest_omega": {math.log(1 / 1e-6) / 2: "ignores how many tokens"},
    "bias_row": {3 / 4: "before the division", -1 / math.sqrt(3): "another entry", 1: "not stay"},
    "n_paths": {13 * 3072: "skip the neurons", 12 * 3073: "skip the heads", 3084: "components"},
    "shared_write": {(1, 2): "and not s.", (0.5, 1): "so C3 gets s and not 2 s"},
    "six_gates": {
        (1, 0.9, 1, 1, 0, 0): "not their sum",
        tuple(1 / (1 + math.exp(-q * k)) for q in (0.5, 2, -1) for k in (1, 0.4)): "a sigmoid",
        (0.5, 1, 0, 0.2, 0.8, 0): "query by query",
    },
    "three_gates": {
        3 * 3**-0.6: "sum of the powers",
        1: "sum of the gates",
        3 ** (1 / 0.6): "and not 1",
    },
    "cancelling_writes": {2**0.6 + 1: "sum of the powers", 3: "penalty for p = 1"},
    "n_subsets": {2**11 - 1: "empty subset", 2 * 11: "multiply"},
    "possible_writer": {"L19H3": "L19H3 is in a later layer", "L22H1": "L22H1 is in a later layer"},
    "second_match": {
        ("L0H0->L1H3.Q", WIRE): "You exchanged row and column",
        (WIRE, "L0H2->L1H3.Q"): "carries the first term",
        ("L0H2->L1H3.Q",): "which head is in the query",
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_answer_with_a_hint_gets_its_own(name):
    check = getattr(ex, f"check_{name}")
    for answer, hint in WRONG[name].items():
        result = check(list(answer) if isinstance(answer, tuple) else answer)
        message = result.message.replace("\n", " ")
        assert not result.passed
        assert result.done
        assert hint in message
        assert [other for other in WRONG[name].values() if other in message] == [hint]


def test_numbers_are_right_to_one_percent_and_whole_ones_exactly():
    for name, (right, _, _) in CASES.items():
        check = getattr(ex, f"check_{name}")
        if isinstance(right, str):
            continue
        given = torch.as_tensor(right, dtype=torch.float64).flatten()
        for place in range(len(given)):
            for factor, add in ((1.03, 0.03), (1.0, 3.0), (-1.0, 0.03)):
                other = given.clone()
                other[place] = other[place] * factor + add
                assert not check(other.tolist()).passed, (name, other)
    assert ex.check_smallest_omega(1.008 * math.log(2048e6) / 2).passed
    assert not ex.check_smallest_omega(1.012 * math.log(2048e6) / 2).passed


def test_the_key_of_two_tokens_later_is_shifted_by_two_and_other_shifts_get_their_hints():
    place = torch.eye(8, 11)[:, torch.randperm(11, generator=torch.Generator().manual_seed(0))]
    keys = {shift: place.T.roll(shift, 1) for shift in (2, 1, 0, -2, 3)}
    results = {
        shift: ex.check_two_tokens_later(key, None, place, None, None)
        for shift, key in keys.items()
    }
    assert [shift for shift, result in results.items() if result.passed] == [2]
    for shift, hint in (
        (1, "previous position, as before"),
        (0, "own position"),
        (-2, "other direction"),
    ):
        assert hint in results[shift].message.replace("\n", " ")
    assert results[3].mistake == ""
    for wrong in (place, torch.zeros(3), "place"):
        assert (
            "Give one matrix of shape [11, 8]"
            in ex.check_two_tokens_later(wrong, None, place, None, None).message
        )


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("head_with_the_name", " L1H3 "),
        ("second_wire", " L0H0 -> L1H3.K"),
        ("possible_writer", " L16H0"),
        ("second_match", ["L0H1 -> L1H3.Q ", "L0H0-> L1H3.K"]),
    ],
)
def test_a_name_may_have_the_spaces_that_a_run_accepts(name, answer):
    names = answer if isinstance(answer, list) else [answer]
    assert all(parse(text) == parse(text.replace(" ", "")) for text in names)
    assert getattr(ex, f"check_{name}")(answer).passed


def test_a_needed_wire_into_the_queries_is_not_called_unexpected():
    model = ck.load_model("two-layer")
    text = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
    cut = ck.run(model, text, without="L0H1->L1H3.Q", fill="zero").logits[0, -1]
    assert round(float(cut.softmax(-1)[model.to_single_token("or")]), 3) == 0.028
    message = ex.check_second_wire("L0H1->L1H3.Q").message
    assert "2.8%" in message


def test_whole_numbers_are_compared_exactly():
    missed = ex.check_n_subsets(2047)
    assert not missed.passed
    assert "The empty subset counts" in missed.message


def test_the_right_answers_of_chapter_2_are_those_of_the_model():
    model = ck.load_model("one-layer")
    W_E, W_U = model.W_E.detach(), model.W_U.detach()
    W_V, W_O = model.W_V[0, 1].detach(), model.W_O[0, 1].detach()
    table = W_E @ W_V @ W_O @ W_U
    table = table - table.mean(1, keepdim=True)
    best = table[:, model.to_single_token("ory")].argmax()
    assert ex.check_column_of_ory(model.tokenizer.decode([best])).passed

    frequent = models.corpus_statistics().unigram >= 1000
    scores = W_E @ model.W_Q[0, 1].detach() @ model.W_K[0, 1].detach().T @ W_E.T
    lower = scores.diagonal() < scores[:, frequent].mean(1)
    assert ex.check_score_of_itself(float(lower[frequent].double().mean())).passed

    two = ck.load_model("two-layer")
    text = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"
    last = [ck.run(two, text, without=cut).logits[0, -1] for cut in ([], "L1H0")]
    above_mean = [float(x[two.to_single_token("or")] - x.mean()) for x in last]
    assert ex.check_constant_head(above_mean[0] - above_mean[1]).passed


@pytest.mark.parametrize(
    ("s", "completes"), [(0.49, False), (0.51, True), (1.99, True), (2.01, False)]
)
def test_the_limits_of_the_shared_write_are_where_the_model_fails(s, completes):
    written = torch.tensor([[2.0, -2.0, s], [-2.0, 2.0, s]])
    active = {0: [0], 1: [1], 2: [0, 1]}
    logits = {own: written[heads].sum(0) for own, heads in active.items()}
    assert completes == all(x.argmax() == own and x.max() > 1 for own, x in logits.items())
