"""What a capstone says against a claim, from numbers that are given: thresholds, signs, and which parts are compared."""

import pytest
import torch

import circuitkit as ck
from circuitkit_book.exercises import mysteries, omega_window, pictures, verdicts

HEADS = ["L0H0", "L0H1"]


@pytest.mark.parametrize(
    ("zero", "mean", "against"),
    [
        (0.5, 0.0, ""),
        (0.5, 0.02, ""),
        (0.5, -0.02, ""),
        (0.5, 0.03, "with its mean the loss changes by +0.03"),
        (0.5, -0.03, "with its mean the loss changes by -0.03"),
        (0.05, 0.0, "hardly rises without L0H0"),
        (-0.5, 0.0, "hardly rises without L0H0"),
    ],
)
def test_a_bias_is_needed_and_its_mean_is_enough(monkeypatch, zero, mean, against):
    monkeypatch.setattr(verdicts, "rises", lambda model, rows, name: (zero, mean))
    verdict = verdicts.judge_bias(None, None, "L0H0", HEADS)
    assert bool(verdict.against) == bool(against)
    assert against in "".join(verdict.against)
    assert (
        f"If L0H0 writes 0, the loss changes by {zero:+.2f}; if it writes its mean, by {mean:+.2f}."
        in verdict.measured
    )
    assert len(verdict.measured) == (1 if against else 2)


@pytest.mark.parametrize(
    ("own", "other", "mean", "against"),
    [
        (0.6, 0.5, 0.2, ""),
        (0.6, 0.5, -0.2, ""),
        (0.5, 0.1, 0.2, "+0.5 is not copying"),
        (-2.0, 0.1, 0.2, "-2.0 is not copying"),
        (0.6, 0.7, 0.2, "another head raises them more"),
        (0.6, 0.5, 0.0, "it writes the same vector everywhere"),
    ],
)
def test_a_copying_head_raises_most_and_depends_on_the_text(monkeypatch, own, other, mean, against):
    monkeypatch.setattr(
        verdicts, "raised", lambda model, rows, name: {"L0H0": own, "L0H1": other}[name]
    )
    monkeypatch.setattr(verdicts, "rises", lambda model, rows, name: (1.0, mean))
    verdict = verdicts.judge_copying(None, None, "L0H0", HEADS)
    assert bool(verdict.against) == bool(against)
    assert against in "".join(verdict.against)


WHOLE = 4.0
#: The gain without some parts of a made-up model: L0H1 feeds L1H2; L1H3 hurts.
LEFT = {("L0H1",): 0.2, ("L1H2",): 0.1, ("L1H3",): 7.0}


def gain(without):
    """The gain without parts: the smallest of those of the needed parts, or more without the part that hurts."""
    left = [LEFT[part,] for part in without if (part,) in LEFT and part != "L1H3"]
    return min(left) if left else LEFT["L1H3",] if "L1H3" in without else WHOLE


@pytest.mark.parametrize(
    ("letter", "claim", "against"),
    [
        ("B", "L0H1 helps", ""),
        ("B", "L1H3 hurts", ""),
        ("A", "L0H1 helps", "only one end"),
        ("A", "L0H1 and L1H2 help", ""),
        ("B", "L0H0 helps", "4.0 of 4.0 nats are left"),
        ("B", "L0H1 hurts", "cutting these parts lowers the gain"),
        ("B", "L1H3 helps", "cutting these parts raises the gain"),
        ("B", "L0H0 hurts", "the gain hardly rises"),
        ("B", "L0H1 and L0H3 help", "L0H3 is not needed: cutting it alone changes 0.0 nats"),
        ("B", "nothing helps", "the gain is 4.0 nats"),
    ],
)
def test_a_claim_about_parts_is_judged_by_the_gain_without_them(
    monkeypatch, letter, claim, against
):
    monkeypatch.setattr(verdicts, "gain_of", lambda letter: gain)
    verdict = verdicts.judge_parts(letter, claim)
    assert bool(verdict.against) == bool(against)
    assert against in "".join(verdict.against)


@pytest.mark.parametrize(
    ("helps", "effect", "whole", "against"),
    [
        (True, 3.7, 4.0, False),
        (True, 3.5, 4.0, True),
        (True, -0.6, 4.0, True),
        (True, 0.4, 0.4, True),
        (False, 1.1, 4.0, False),
        (False, 0.9, 4.0, True),
        (False, -0.6, 4.0, True),
    ],
)
def test_nine_tenths_of_a_gain_or_1_nat_more_is_an_effect(helps, effect, whole, against):
    without = whole - effect if helps else whole + effect
    assert bool(verdicts.against_effect(helps, effect, whole, without)) == against


def test_parts_of_other_names_that_change_as_much_speak_against_a_claim(monkeypatch):
    for other, against in ((2.6, False), (2.8, True)):
        table = {(): 4.0, ("L1H2",): 0.0, ("L1H0",): 4.0 - other}
        monkeypatch.setattr(
            verdicts, "gain_of", lambda letter, table=table: lambda cut: table.get(cut, 4.0)
        )
        verdict = verdicts.judge_parts("B", "L1H2 helps")
        assert bool(verdict.against) == against
        assert f"L1H0 changes most: {other:.1f} nats, and yours 4.0." in verdict.measured[-1]


def test_controls_are_of_the_same_kind_and_name_no_part_of_the_claim():
    assert verdicts.controls(("L1H2",)) == [("L1H0",), ("L1H1",), ("L1H3",)]
    wires = verdicts.controls(("L0H1->L1H3.K",))
    assert wires == [("L0H0->L1H3.K",), ("L0H2->L1H3.K",), ("L0H3->L1H3.K",)]
    both = verdicts.controls(("L0H1", "L1H3"))
    assert len(both) == 9
    assert {part for cut in both for part in cut} == {f"L0H{i}" for i in (0, 2, 3)} | {
        f"L1H{i}" for i in range(3)
    }
    assert (
        len(verdicts.controls(tuple(f"L0H{i}->L1H{j}.K" for i, j in ((0, 0), (1, 1), (2, 2)))))
        == 40
    )


@pytest.mark.parametrize(
    ("parts", "both"),
    [
        (["L0H1"], False),
        (["L0H1", "L0H2"], False),
        (["L0H1", "L1H2"], True),
        (["L0H1->L1H2.K"], True),
        (["L0H1", "L0H1->L1H2.K"], False),
    ],
)
def test_a_circuit_has_an_end_in_each_layer(parts, both):
    assert verdicts.names_both_ends(tuple(parts)) == both


@pytest.fixture(scope="module")
def one():
    return ck.load_model("one-layer")


@pytest.fixture(scope="module")
def rows():
    return torch.randint(1, 2048, (2, 6), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits_without(model, rows, head, average):
    """The logits when a head writes 0, or its mean over rows and positions, from the parts of a run."""
    _, cache = model.run_with_cache(rows)
    z = cache["blocks.0.attn.hook_z"][:, :, head]
    new = z.reshape(-1, z.shape[-1]).mean(0) if average else torch.zeros(z.shape[-1])
    stream = cache["blocks.0.hook_resid_post"] + (new - z) @ model.W_O[0, head]
    return stream @ model.W_U + model.b_U


def test_a_head_that_writes_0_or_its_mean_is_a_change_of_the_stream(one, rows):
    for name in ("L0H0", "L0H3"):
        for fill in ("zero", "mean"):
            expected = logits_without(one, rows, int(name[3]), fill == "mean")
            found = verdicts.logits_with(one, rows, name, fill)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)  # float32
    logits = one(rows)
    wanted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
    assert verdicts.loss(logits, rows) == pytest.approx(float(wanted), rel=1e-5)
    without = [verdicts.loss(logits_without(one, rows, 3, mean), rows) for mean in (False, True)]
    assert verdicts.rises(one, rows, "L0H3") == pytest.approx(
        [x - float(wanted) for x in without], abs=0.006
    )


def test_tokens_of_the_row_are_compared_with_all_others(one, rows):
    change = one(rows) - logits_without(one, rows, 0, False)
    seen, rest = [], []
    for row, tokens in enumerate(rows.tolist()):
        for pos in range(1, len(tokens)):
            for token in range(change.shape[-1]):
                group = seen if token in tokens[1 : pos + 1] else rest  # the opening token is none
                group.append(float(change[row, pos, token]))
    expected = sum(seen) / len(seen) - sum(rest) / len(rest)
    assert verdicts.raised(one, rows, "L0H0") == pytest.approx(expected, abs=1e-3)


def test_model_d_has_two_equal_heads_and_model_f_says_what_the_shipped_one_says():
    heads = ck.heads_of(mysteries.mystery("D"))
    equal = [
        (a, b)
        for a in range(8)
        for b in range(a)
        if all(
            torch.equal(W.reshape(8, *W.shape[-2:])[a], W.reshape(8, *W.shape[-2:])[b])
            for W in (heads.W_Q, heads.W_K, heads.W_V, heads.W_O)
        )
    ]
    assert len(equal) == 1
    assert min(equal[0]) >= 4
    model, shipped = mysteries.mystery("F"), ck.load_model("one-layer")
    tokens = shipped.to_tokens("The king and the queen of the country")
    assert (model(tokens) - shipped(tokens)).abs().max() < 0.5


@pytest.mark.parametrize("numbers", [{"a": 1.0, "b": -2.0, "c": 0.5}])
def test_bars_and_colours_are_the_numbers(monkeypatch, numbers):
    from matplotlib import pyplot as plt

    from circuitkit import figures

    drawn = []
    monkeypatch.setattr(figures, "show", lambda fig, alt: drawn.append(fig))
    pictures.picture(numbers, alt="Bars.", label="nats")
    pictures.picture({"you": numbers, "it": {"a": 3, "b": 4, "c": 5}}, alt="Bars.")
    pictures.picture(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), alt="Table.", rows="ab", columns="cd")
    bars, groups, table = (fig.axes[0] for fig in drawn)
    assert [bar.get_height() for bar in bars.patches] == [1.0, -2.0, 0.5]
    assert [label.get_text() for label in bars.get_xticklabels()] == list("abc")
    assert bars.get_ylabel() == "nats"
    centres = [bar.get_x() + bar.get_width() / 2 for bar in groups.patches]
    assert [bar.get_height() for bar in groups.patches] == [1.0, -2.0, 0.5, 3, 4, 5]
    assert [round((a + b) / 2, 6) for a, b in zip(centres[:3], centres[3:], strict=True)] == [
        0,
        1,
        2,
    ]
    assert [text.get_text() for text in groups.get_legend().get_texts()] == ["you", "it"]
    assert table.images[0].get_array().tolist() == [[1, -2], [3, 4]]
    assert table.images[0].get_clim() == (-4, 4)
    assert [label.get_text() for label in table.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in table.get_xticklabels()] == ["c", "d"]
    plt.close("all")


def test_a_prediction_is_not_made_of_other_words_or_things_that_are_no_numbers():
    near = pictures.predict({"without it": 1, "with": 0.5}, ["with", "without"])
    assert near.done
    assert not near.passed
    assert 'did you mean "without"?' in near.message
    for value in (True, float("nan"), "1"):
        assert not pictures.predict({"a": value}, ["a"]).passed
    assert not pictures.predict({}, ["a"]).done


def test_mistakes_about_the_largest_omega_are_off_by_a_factor_of_two_in_the_direction_of_their_hint():
    """A score of 2 Omega is off by at most Omega eps, which moves a weight by a quarter of that."""
    eps, tolerance = 2.0**-23, 1e-6
    right = 4 * tolerance / eps
    assert right * eps / 4 == pytest.approx(tolerance)
    _, whole_step = omega_window.whole_step(5, tolerance, eps)
    assert 2 * whole_step * eps / 4 == pytest.approx(tolerance)  # off by a whole step, 2 Omega eps
    _, of_omega = omega_window.score_of_omega(5, tolerance, eps)
    assert of_omega * eps / 2 / 4 == pytest.approx(
        tolerance
    )  # a score of Omega is off by half of Omega eps
