"""Exercises of chapter 3: what they ask for is what the library computes, and other right ways are accepted."""

import pytest
import torch

from circuitkit import handmade, induction
from circuitkit_book import exercises

SPEC = {
    "3.1": exercises.check_induction_target.exercise,
    "3.2": exercises.check_prefix_matching.exercise,
    "3.3": exercises.check_second_pass.exercise,
    "3.6": exercises.check_without_head.exercise,
}


def cases(number):
    return list(SPEC[number].cases())


@pytest.mark.parametrize("case", cases("3.1"))
def test_the_places_are_those_of_the_library(case):
    expected = induction._stream.after_occurrences(case["tokens"][None])[0]
    assert torch.equal(SPEC["3.1"].spec(**case).bool(), expected)


@pytest.fixture(scope="module")
def model():
    return handmade.build_induction_model(20, 32, sharpness=9.0)


@pytest.mark.parametrize(("period", "bos"), [(7, None), (5, 0)])
def test_the_scores_are_those_of_the_library(model, period, bos):
    rows = induction.repeated_tokens(20, period, batch=1, bos=bos)
    pattern = model.run_with_cache(rows.tokens)[1]["blocks.1.attn.hook_pattern"][0].double()
    found = SPEC["3.2"].spec(pattern, rows.period, rows.start)
    expected = induction.scores(model, rows).prefix_matching[1]
    assert abs(found.item() - expected.item()) < 1e-6
    logits = model(rows.tokens)[0].double()
    worth = SPEC["3.3"].spec(logits, rows.tokens[0], rows.period, rows.start).item()
    assert worth == pytest.approx(-induction.induction_loss(model, rows).difference, abs=1e-4)


def test_the_map_of_induction_heads_is_that_of_the_library():
    exercise = exercises.check_find_induction.exercise
    span = lambda case: case["tokens"][0, -case["period"] :].tolist()  # noqa: E731
    once = [case for case in exercise.cases() if len({*span(case)}) == case["period"]]
    assert (
        len(once) == 2
    )  # the others hold a token twice: the library then counts what came next after either
    for case in once:
        rows = induction.Repeated(case["tokens"], case["period"], case["start"])
        expected = induction.scores(case["model"], rows).prefix_matching
        assert torch.allclose(exercise.spec(**case).flatten(), expected.double(), atol=1e-6)


def by_hand(loud=100.0, double=1):
    def answer(vocab, n_ctx):
        word, place, note, out = torch.eye(3 * vocab + n_ctx).split([vocab, n_ctx, vocab, vocab])
        first = (
            loud * place.T.roll(-1, 1),
            place.T,
            word.T.repeat(1, double),
            note.repeat(double, 1),
        )
        return first, (loud * word.T, note.T, word.T, 3 * out)

    return answer


@pytest.mark.parametrize("loud", [40.0, 100.0, 1000.0])
def test_any_sharpness_and_inner_space_that_does_the_job_is_right(loud):
    assert exercises.check_induction_head(by_hand(loud, double=2))


def test_a_distance_that_fits_one_length_of_span_is_refused():
    def answer(vocab, n_ctx):
        word, place, _, out = torch.eye(3 * vocab + n_ctx).split([vocab, n_ctx, vocab, vocab])
        first, _ = by_hand()(vocab, n_ctx)
        return first, (100 * place.T, place.T.roll((n_ctx - 1) // 2 - 1, 1), word.T, out)

    assert (
        exercises.check_induction_head(answer).diagnosis
        == "the second head looks at a fixed distance"
    )


@pytest.mark.parametrize("case", cases("3.6"))
def test_the_average_over_rows_stays_as_it_was(case):
    left = SPEC["3.6"].spec(**case)
    torch.testing.assert_close(left.mean(0), case["stream"].mean(0), rtol=0, atol=1e-12)
    rest = case["stream"] - case["results"][:, :, case["head"]]
    torch.testing.assert_close(left - left.mean(0), rest - rest.mean(0), rtol=0, atol=1e-12)
