"""The mystery models differ in what was done to them, and a claim holds only if cuts confirm it."""

import pytest

import circuitkit as ck
from circuitkit_book import exercises


@pytest.mark.parametrize(
    ("letter", "claim"),
    [
        ("A", "L1H1 and L0H2 help"),
        ("A", "L0H2->L1H1.K and L0H3 -> L1H1.K help"),
        ("B", "nothing helps"),
        ("C", "L1H0 hurts"),
        ("E", "L1H2 works as a bias"),
        ("F", "L0H0 copies"),
        ("G", "L0N181 is wrong"),
        ("H", "trigram 1 needs H0 and H3"),
        ("H", "trigram 3 needs no source"),
    ],
)
def test_a_true_claim_holds(letter, claim):
    result = exercises.try_claim(letter, claim)
    assert result, result.message
    assert f"Model {letter}: the claim holds." in result.message


@pytest.mark.parametrize(
    ("letter", "claim", "sentence"),
    [
        ("A", "nothing helps", "some part must cause it"),
        ("A", "L1H1 helps", "it names only one end of the circuit"),
        ("A", "L1H1 hurts", "cutting these parts lowers the gain"),
        ("A", "L1H1 and L1H3 help", "L1H3 is not needed"),
        ("B", "L1H0 helps", "there is no gain that could be taken away"),
        ("C", "L1H2 hurts", "the gain hardly rises without these parts"),
        ("D", "L1H0 helps", "Parts that you do not name cause them"),
        ("E", "L1H0 works as a bias", "what it writes depends on the text"),
        ("F", "L0H2 copies", "is not copying"),
        ("G", "L1N181 is wrong", "this is not the neuron"),
        ("H", "trigram 1 needs H0", "It needs another head, too"),
        ("H", "trigram 3 needs H2", "it is completed without a source, too"),
    ],
)
def test_a_false_claim_is_answered_with_what_contradicts_it(letter, claim, sentence):
    result = exercises.try_claim(letter, claim)
    assert not result
    assert "Against the claim: " in result.message
    assert sentence in result.message


def test_models_a_and_e_have_the_logits_of_the_shipped_one():
    shipped = ck.load_model("two-layer")
    tokens = shipped.to_tokens("The king and the queen of the country")
    for letter in "AE":
        model = exercises.mystery(letter)
        assert (model(tokens) - shipped(tokens)).abs().max() < 1e-3
        norms, before = (ck.heads_of(each).OV.norm() for each in (model, shipped))
        assert norms.tolist() != before.tolist()
    pattern = model.run_with_cache(tokens)[1]["blocks.1.attn.hook_pattern"][0, 2]
    assert (pattern[-1] - pattern[-1].mean()).abs().max() < 1e-6  # the bias head of E


@pytest.mark.parametrize("claim", ["L1H9 helps", "helps", "L1H1 reads helps", "L1H1 nothing helps"])
def test_a_claim_of_another_form_is_refused_with_the_form(claim):
    with pytest.raises(ValueError, match="cannot be read. Write parts and a verb"):
        exercises.try_claim("A", claim)


def test_an_unknown_model_is_refused_and_an_untouched_claim_is_no_answer():
    for call in (lambda: exercises.mystery("Z"), lambda: exercises.try_claim("a", "nothing helps")):
        with pytest.raises(ValueError, match="Write one of A to H"):
            call()
    result = exercises.try_claim("A", None)
    assert not result.done
    assert "No answer yet." in result.message
