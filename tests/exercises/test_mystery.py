"""The capstones: the models differ in what was done to them, and a claim stands only if cutting bears it out."""

import pytest

import circuitkit as ck
from circuitkit import induction
from circuitkit_book import exercises
from circuitkit_book.superposition_task import trigram_verdict


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
        ("H", "trigram 2 needs H1"),
        ("H", "trigram 3 needs no source"),
    ],
)
def test_a_true_claim_stands(letter, claim):
    result = exercises.try_claim(letter, claim)
    assert result, result.message


@pytest.mark.parametrize(
    ("letter", "claim", "said"),
    [
        ("A", "nothing helps", "some part must cause it"),
        ("A", "L1H1 helps", "it names only one end of the circuit"),
        ("A", "L1H1 hurts", "cutting these parts lowers the gain"),
        ("A", "L1H1 and L1H3 help", "L1H3 is not needed"),
        ("B", "L1H0 helps", "there is no gain that could be taken away"),
        ("C", "L1H2 hurts", "the gain hardly rises without these parts"),
        ("D", "L1H0 helps", "replace those that you cut"),
        ("E", "L1H0 works as a bias", "what it writes depends on the text"),
        ("F", "L0H2 copies", "is not copying"),
        ("G", "L1N181 is wrong", "this is not the neuron"),
        ("H", "trigram 1 needs H0", "It needs another head, too"),
        ("H", "trigram 2 needs H1 and H2", "some sets without one of these heads complete it"),
        ("H", "trigram 3 needs H2", "completed without a source, too"),
    ],
)
def test_a_false_claim_is_answered_with_what_speaks_against_it(letter, claim, said):
    result = exercises.try_claim(letter, claim)
    assert not result
    assert said in result.message


@pytest.mark.weekly
def test_two_copies_stand_in_for_each_other_in_model_d():
    pairs = [f"L1H{a} and L1H{b} help" for a in range(4) for b in range(a)]
    stands = [claim for claim in pairs if exercises.try_claim("D", claim)]
    assert len(stands) == 1
    model = exercises.mystery("D")
    rows = induction.repeated_tokens(2048, 20, batch=4, bos=0)
    whole = induction.induction_loss(model, rows).difference
    for name in stands[0].removesuffix(" help").split(" and "):
        assert abs(induction.induction_loss(model, rows, without=[name]).difference - whole) < 1


def test_model_a_is_the_shipped_one_with_its_heads_in_another_order():
    model, shipped = exercises.mystery("A"), ck.load_model("two-layer")
    tokens = shipped.to_tokens("The king and the queen of the country")
    assert (model(tokens) - shipped(tokens)).abs().max() < 1e-4
    mine, theirs = (
        {round(float(norm), 4) for norm in ck.heads_of(m).OV.norm().flatten()}
        for m in (model, shipped)
    )
    assert mine == theirs
    assert ck.heads_of(model).OV.norm().tolist() != ck.heads_of(shipped).OV.norm().tolist()


@pytest.mark.parametrize("claim", ["L1H9 helps", "helps", "L1H1 reads helps", "L1H1 nothing helps"])
def test_a_claim_that_cannot_be_read_is_refused_with_the_form(claim):
    with pytest.raises(ValueError, match="Write parts and a verb"):
        exercises.try_claim("A", claim)


def test_an_unknown_model_is_refused():
    for call in (exercises.mystery, lambda letter: exercises.try_claim(letter, "nothing helps")):
        with pytest.raises(ValueError, match="There is no model 'Z'. Write one of A to H"):
            call("Z")


def test_a_missing_claim_is_neither_right_nor_wrong():
    result = exercises.try_claim("A")
    assert not result.done
    assert "No answer yet. Write parts and a verb" in result.message


def test_model_e_says_what_the_shipped_one_says_and_hides_where_it_looks():
    model, shipped = exercises.mystery("E"), ck.load_model("two-layer")
    tokens = shipped.to_tokens("The king and the queen of the country")
    assert (model(tokens) - shipped(tokens)).abs().max() < 1e-3
    looks = model.run_with_cache(tokens)[1]["blocks.1.attn.hook_pattern"][0, 2]
    assert (looks[-1] - looks[-1].mean()).abs().max() < 1e-6


def test_the_published_verdict_passes_model_h_and_the_chapters_does_not():
    model = exercises.mystery("H")
    assert trigram_verdict(model, form="post").success
    verdict = trigram_verdict(model)
    assert verdict.is_learnt.tolist() == [True, True, False]
    assert verdict.superposed == (1,)
    assert verdict.carries[:, 1].nonzero().tolist() == [[1]]
