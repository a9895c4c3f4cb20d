"""The capstones: the models differ in what was done to them, and a claim stands only if cutting bears it out."""

import re

import pytest

import circuitkit as ck
from circuitkit import exercises, induction, superposition
from circuitkit.exercises import _mystery


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
        ("A", "nothing helps", "something must bring that about"),
        ("A", "L1H1 helps", "this is one end of the circuit"),
        ("A", "L0H2 helps", "this is one end of the circuit"),
        ("A", "L0H2->L1H1.Q and L0H2 help", "this is one end of the circuit"),
        ("A", "L1H0 helps", "hurts, on the whole"),
        ("A", "L1H1 hurts", "helps, on the whole"),
        ("A", "L1H1 and L1H3 help", "L1H3 is not needed"),
        ("A", "L0H2->L1H1.V helps", "nats are still there"),
        ("B", "L1H0 helps", "no help to be taken away"),
        ("C", "nothing helps", "What does that head do?"),
        ("C", "L1H0 helps", "hurts, on the whole"),
        ("C", "L1H2 hurts", "hardly more without"),
        ("C", "L0H2 hurts", "instead does"),
        ("D", "L1H0 helps", "stands in for it"),
        ("E", "L1H3 works as a bias", "what it writes is not needed"),
        ("E", "L1H0 works as a bias", "differs from place to place"),
        ("E", "L1H2 copies", "it writes one vector"),
        ("F", "L0H2 copies", "is no help to the tokens of the row"),
        ("G", "L1N181 is wrong", "this is not the neuron"),
        ("H", "trigram 1 needs H0", "it depends on others, too"),
        (
            "H",
            "trigram 2 needs H1 and H2",
            "that lack a head you name it is completed all the same",
        ),
        ("H", "trigram 3 needs H2", "completed without a source, too"),
        ("H", "trigram 2 needs no source", "without a source it is not completed"),
    ],
)
def test_a_false_claim_is_answered_with_what_speaks_against_it(letter, claim, said):
    result = exercises.try_claim(letter, claim)
    assert not result
    assert said in result.message


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
        {round(float(norm), 4) for norm in ck.heads(m).OV.norm().flatten()}
        for m in (model, shipped)
    )
    assert mine == theirs
    assert ck.heads(model).OV.norm().tolist() != ck.heads(shipped).OV.norm().tolist()


@pytest.mark.parametrize("claim", ["L1H9 helps", "helps", "L1H1 reads helps", "L1H1 nothing helps"])
def test_a_claim_that_cannot_be_read_is_refused_with_the_form(claim):
    with pytest.raises(ValueError, match="Write parts and a verb"):
        exercises.try_claim("A", claim)


@pytest.mark.parametrize(
    ("letter", "claim"),
    [
        ("A", "L1H1"),
        ("A", "L0H2->L1H1.K"),
        ("E", "L0H2"),
        ("G", "L0N181"),
        ("H", "trigram 1 and H0"),
    ],
)
def test_parts_without_a_verb_are_told_so(letter, claim):
    result = exercises.try_claim(letter, claim)
    assert not result
    assert f"{claim!r} names parts and does not say what they do. Write " in result.message


def test_an_unknown_model_is_refused_and_an_untouched_stub_is_not_done():
    with pytest.raises(
        ValueError, match=r"expected one of \['A', 'B', 'C', 'D', 'E', 'F', 'G', 'H'\]"
    ):
        exercises.mystery("Z")
    with pytest.raises(
        ValueError, match=r"expected one of \['A', 'B', 'C', 'D', 'E', 'F', 'G', 'H'\]"
    ):
        exercises.try_claim("a", "nothing helps")
    assert not exercises.try_claim("A", None).done


def test_controls_are_of_the_same_kind_and_are_not_named():
    assert _mystery._controls(("L1H1",)) == [("L1H0",), ("L1H2",), ("L1H3",)]
    assert _mystery._controls(("L0H0->L1H1.K",)) == [
        ("L0H1->L1H1.K",),
        ("L0H2->L1H1.K",),
        ("L0H3->L1H1.K",),
    ]


@pytest.mark.parametrize("letter", "EFGH")
def test_the_other_models_say_how_their_claims_are_written(letter):
    assert "Write" in exercises.try_claim(letter).message
    with pytest.raises(ValueError, match="cannot be read. Write"):
        exercises.try_claim(letter, "L7H7 helps")


def test_model_e_says_what_the_shipped_one_says_and_hides_where_it_looks():
    model, shipped = exercises.mystery("E"), ck.load_model("two-layer")
    tokens = shipped.to_tokens("The king and the queen of the country")
    assert (model(tokens) - shipped(tokens)).abs().max() < 1e-3
    looks = model.run_with_cache(tokens)[1]["blocks.1.attn.hook_pattern"][0, 2]
    assert (looks[-1] - looks[-1].mean()).abs().max() < 1e-6


def test_the_published_verdict_passes_model_h_and_the_chapters_does_not():
    model = exercises.mystery("H")
    assert superposition.head_verdict(model, model.task, form="post").success
    verdict = superposition.head_verdict(model, model.task)
    assert verdict.not_learnt == (3,)
    assert verdict.distributed == (1,)
    assert verdict.carriers(2) == (1,)


def test_what_model_h_does_not_have_is_told_and_lists_are_read():
    for claim in ("trigram 4 needs H1", "trigram 2 needs H7"):
        with pytest.raises(ValueError, match="trigrams 1 to 3 and heads H0 to H3"):
            exercises.try_claim("H", claim)
    one, other = (
        exercises.try_claim("H", f"trigram 1 needs {heads}").message
        for heads in ("H0, H1, H2 and H3", "H0 and H1 and H2 and H3")
    )
    assert one.splitlines()[1:] == other.splitlines()[1:]


def test_what_was_done_is_told_only_when_the_claim_stands():
    assert "What was done" not in exercises.try_claim("F", "L0H1 copies").message
    told = exercises.try_claim("F", "L0H0 copies").message
    assert told.index("stands.") < told.index("What was done to it: the sink")


@pytest.mark.parametrize(("letter", "claim"), [("E", "L0H2 works as a bias"), ("F", "L0H1 copies")])
def test_a_claim_that_falls_does_not_say_which_one_would_stand(letter, claim):
    part, lines = claim.split()[0], exercises.try_claim(letter, claim).message.splitlines()
    assert not [line for line in lines if re.search(r"L\dH\d", line) and part not in line]
