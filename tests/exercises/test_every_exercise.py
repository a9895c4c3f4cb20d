"""Every exercise: its solution passes, each mistake is recognised, and other right answers are accepted."""

import math
import re
from pathlib import Path

import pytest
import torch

from circuitkit_book import exercises

ALL = exercises.catalogue()
BOOK = Path(__file__).resolve().parents[2] / "book"


def by_name(exercise):
    return exercise.name


def check_of(exercise):
    return getattr(exercises, f"check_{exercise.name}")


def test_each_exercise_has_a_check():
    checks = {name for name in exercises.__all__ if name.startswith("check_")}
    assert checks == {f"check_{exercise.name}" for exercise in ALL}


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_solution_passes_and_may_be_checked_again(exercise):
    result = check_of(exercise)(exercise.solution)
    assert result, result.message
    assert result.message.startswith(f"Exercise {exercise.number}, {exercise.title}: right")
    assert check_of(exercise)(result)


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_each_mistake_is_recognised_with_its_sentence(exercise):
    assert len(set(exercise.mistakes)) == len(exercise.mistakes)
    for mistake in exercise.mistakes:
        result = check_of(exercise)(mistake)
        assert not result.passed, mistake.__name__
        assert mistake.__name__ in result.mistake.split(" or "), result.message
        assert mistake.__doc__ in result.message
        assert "On the first wrong case (" in result.message
        assert "Read again: " in result.message


@pytest.mark.parametrize("exercise", ALL, ids=by_name)
def test_the_section_to_read_again_exists(exercise):
    page, _, anchor = exercise.section.partition("#")
    text = (BOOK / f"{page}.ipynb").read_text("utf-8")
    headings = re.findall(r'"#+ (.+?)(?:\\n)?"', text)
    slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
    assert anchor in slugs


# Other right answers


def neuron(w_in, b_in, w_out, stretch=1.0, key=1.0):
    zero = w_in.new_zeros(1)
    W_Q = torch.cat([w_in, zero])[:, None] / key
    W_K = torch.cat([0 * w_in, -key + zero])[:, None]
    W_V = stretch * torch.cat([w_in, -b_in + zero])[:, None]
    return W_Q, b_in / key, W_K, W_V, stretch * b_in, torch.cat([w_out, zero])[None] / stretch


def two_heads(n, gain, wide=0, second=60.0):
    b, vocab = torch.arange(1, n + 1), 2 * n + 2
    W_Q, W_K, W_V = torch.zeros(3, 2, vocab, n + wide)
    W_O = torch.zeros(2, n + wide, vocab)
    each = torch.eye(n, n + wide)
    W_Q[:, b], W_K[:, b], W_V[:, b] = each, 30 * each, 0.5 * each
    W_K[1, 0, :n] = second
    W_O[:, :n, b + n] = 2 * gain * torch.tensor([1.0, -1.0])[:, None, None] * torch.eye(n)
    return W_Q, W_K, W_V, W_O


def induction_circuit(vocab, n_ctx, loud=100.0, double=1):
    word, place, note, out = torch.eye(3 * vocab + n_ctx).split([vocab, n_ctx, vocab, vocab])
    values, notes = word.T.repeat(1, double), note.repeat(double, 1)
    first = (loud * place.T.roll(-1, 1), place.T, values, notes)
    return first, (loud * word.T, note.T, word.T, 3 * out)


OTHER_ANSWERS = {
    "a mover with twice the inner space": (exercises.check_note_mover, lambda source, target: (source.T.repeat(1, 2), (target - source).repeat(2, 1) / 2)),
    "a turned stream in float32": (exercises.check_turned_stream, lambda R, *W: [part.float() for part in (W[0] @ R, R.T @ W[1], W[2] @ R, R.T @ W[3])]),
    "a copying head of pseudo-inverses": (exercises.check_copying_head, lambda W_E, W_U: (torch.linalg.pinv(W_E), torch.linalg.pinv(W_U))),
    "a gentle induction head": (exercises.check_induction_head, lambda vocab, n_ctx: induction_circuit(vocab, n_ctx, 40.0, 2)),
    "a neuron of other scales": (exercises.check_neuron_as_head, lambda *given: neuron(*given, -3.0, 0.5)),
    "a neuron in float32": (exercises.check_neuron_as_head, lambda *given: [torch.as_tensor(part).float() for part in neuron(*given)]),
    "a window as a list": (exercises.check_omega_window, lambda n_pos, tolerance, eps: [math.log(n_pos / tolerance) / 2, 4 * tolerance / eps]),
    "wider heads that attend harder": (exercises.check_two_heads, lambda n, gain: two_heads(n, gain, 3, 200.0)),
    "two heads that change places": (exercises.check_two_heads, lambda n, gain: tuple(part.flip(0) for part in two_heads(n, gain))),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_ANSWERS)
def test_another_right_answer_is_accepted(name):
    check, answer = OTHER_ANSWERS[name]
    result = check(answer)
    assert result, result.message


def test_a_copying_score_from_the_whole_table_is_refused():
    def from_table(W_E, W_V, W_O, W_U):
        values = torch.linalg.eigvals(W_E @ W_V @ W_O @ W_U)
        return values.real.sum() / values.abs().sum()

    assert "a matrix of width 4" in exercises.check_copying_score(from_table).message


# Solutions against an independent reference


def case_of(name, number=0):
    (exercise,) = [exercise for exercise in ALL if exercise.name == name]
    case = exercise.all_cases()[number]
    return exercise.solution(*exercise.given(case)), case


def test_parts_through_a_norm_sum_to_what_torch_normalises():
    parts, case = case_of("logit_through_norm", 2)
    gain = case["gain"]
    whole = torch.nn.functional.layer_norm(case["parts"].sum(0), gain.shape, gain, eps=case["eps"])
    torch.testing.assert_close(parts.sum(), whole @ case["W_U"][:, case["token"]])


def test_the_part_that_a_head_reads_has_the_same_product_and_nothing_more():
    heard, case = case_of("heard_part", 2)
    torch.testing.assert_close(heard @ case["W"], case["x"] @ case["W"])
    assert torch.linalg.matrix_rank(torch.cat([heard, case["W"].T])) == case["W"].shape[1]
