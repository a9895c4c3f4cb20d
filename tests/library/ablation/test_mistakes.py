"""Mistakes that would change nothing, or give a number that means something else, are explained."""

import pytest
import torch

import circuitkit as ck
from circuitkit.ablation import run
from circuitkit.effects import attribution, effect
from tests.support import tiny_models
from tests.support.zoo import make

SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
ROWS = torch.tensor([[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11]])


@pytest.fixture(scope="module")
def model():
    return tiny_models.boot(torch.float32, **SIZES)


@pytest.mark.parametrize("at", [3, [1.7], [], [True], [[1]], "3", [6], [-7]])
def test_positions_are_a_list(model, at):
    with pytest.raises(
        ValueError, match="^at must be positions in a list|^at=.* is outside the text, which has 6"
    ):
        run(model, ROWS, without="L0H1", at=at)


@pytest.mark.parametrize("how", [{"patch": ROWS.flip(1)}, {"at": [1]}, {"fill": "mean"}])
def test_a_replacement_needs_a_name(model, how):
    with pytest.raises(ValueError, match="Name what is replaced in without="):
        run(model, ROWS, **how)


@pytest.mark.parametrize("rows", [ROWS[:1], ROWS[:1].repeat(3, 1)])
@pytest.mark.parametrize("fill", ["mean", "resample"])
def test_equal_rows_replace_nothing(model, rows, fill):
    with pytest.raises(ValueError, match="all rows are equal"):
        run(model, rows, without="L0H1", fill=fill)


def test_values_come_from_this_model_and_names_are_texts(model):
    other = tiny_models.boot(torch.float32, **SIZES)
    with pytest.raises(ValueError, match="a run of another model"):
        run(model, ROWS, without="L0H1", patch=run(other, ROWS))
    source = run(other, ROWS.flip(1))
    run(other, ROWS, without="L0H1", patch=source)
    with torch.no_grad():
        other.blocks[0].attn.v.original_component.weight.mul_(2)
    with pytest.raises(ValueError, match="before its weights were changed.* Run it again"):
        run(other, ROWS, without="L0H1", patch=source)
    with pytest.raises(TypeError, match="a list of names, not {'L0H1': 0}"):
        run(model, ROWS, without={"L0H1": 0})
    with pytest.raises(ValueError, match="fill to be 'zero' or 'mean' or 'resample'"):
        run(model, ROWS, without="L0H1", fill="median")
    with pytest.raises(TypeError, match="without=None. It expects without to be a string or"):
        run(model, ROWS, without=None)
    with pytest.raises(TypeError, match="tokens to be a string or a list of strings or a tensor"):
        run(model, [[1, 2, 3]])


def test_a_run_does_not_mix_its_values_with_later_weights():
    """After a step of training, the parts of an old run would no longer add up to its stream."""
    changing = tiny_models.boot(torch.float32, **SIZES, normalization_type="LN", attn_only=False)
    before = run(changing, ROWS)
    stream, z = before.stream(), before.z("L0H1")
    with torch.no_grad():
        changing.blocks[0].attn.o.original_component.weight.mul_(2)
    direction = torch.ones(12)
    for call in (
        lambda: before.part("L0H1"),
        lambda: before.parts(),
        lambda: before.contributions(direction),
        lambda: before.read("L1H0"),
    ):
        with pytest.raises(
            ValueError, match="weights of the model have changed.* Run the model again"
        ):
            call()
    # what needs no weights is still what the run saw
    assert torch.equal(before.stream(), stream)
    assert torch.equal(before.z("L0H1"), z)
    after = run(changing, ROWS)
    torch.testing.assert_close(sum(after.parts().values()), after.stream())


@pytest.mark.parametrize("fill", ["mean", "resample"])
def test_fill_has_the_same_meaning_in_run_and_effect(model, fill):
    """The second head's new values are those it had when the first was whole."""
    names, whole = ["L0H1", "L1H1"], run(model, ROWS)
    cut = run(model, ROWS, without=names, fill=fill)
    z = whole.z("L1H1")
    expected = z.roll(1, 0) if fill == "resample" else z.mean(0, keepdim=True).expand_as(z)
    torch.testing.assert_close(cut.z("L1H1"), expected)
    measured = effect(model, ROWS, names, fill=fill, measure=lambda r: r.logits[:, 2, 5], draws=0)
    torch.testing.assert_close(measured.values[1], cut.logits[:, 2, 5])
    assert repr(measured).endswith("no random controls")


@pytest.mark.parametrize("name", ["embed", "pos", "L0 bias"])
def test_embeddings_and_biases_read_nothing(model, name):
    for read in (run(model, ROWS).stream, run(model, ROWS).read, run(model, ROWS).parts):
        with pytest.raises(ValueError, match=f"'{name}' reads nothing"):
            read(name)


@pytest.mark.parametrize("wrong", ["(5,)", "(12, 3)", "double", "long", "up"])
def test_a_direction_fits_the_stream(model, wrong):
    directions = {"(5,)": torch.ones(5), "(12, 3)": torch.ones(12, 3), "up": "up"}
    directions |= {"double": torch.ones(12).double(), "long": torch.ones(12).long()}
    with pytest.raises(
        (TypeError, ValueError), match="one vector|expects direction to be a tensor"
    ):
        run(model, ROWS).contributions(directions[wrong])
    with pytest.raises(ValueError, match="direction, given to contributions, holds NaN"):
        run(model, ROWS).contributions(torch.ones(12).index_fill(0, torch.tensor(3), torch.nan))


@pytest.mark.parametrize("kind", ["native", "native-mlp"])
def test_cuts_into_a_part_do_not_show_in_what_it_reads(kind):
    model = make(kind)
    whole, wires = run(model, ROWS), ["L0H1->L1H2", "L0H1->unembed"]
    wires += ["L0H1->L1 MLP"] if kind == "native-mlp" else []
    cut = run(model, ROWS, without=wires)
    torch.testing.assert_close(cut.stream("L1H2"), whole.stream("L1H2"))
    assert not torch.allclose(cut.z("L1H2"), whole.z("L1H2"))
    total = sum(cut.parts().values())
    torch.testing.assert_close(cut.stream(), total - cut.part("L0H1"))


def test_a_measure_of_an_early_part_has_slope_zero_at_later_heads(model):
    found = attribution(model, ROWS, measure=lambda result: result.part("L0H1")[:, -1, 0])
    assert found["L0H1"] != 0
    assert [found[name] for name in ("L0H0", "L1H0", "L1H1", "L1H2")] == [0] * 4
    with pytest.raises(ValueError, match="no attention heads"):
        attribution(ck.load_model("zero-layer"), ROWS)


def test_a_measure_that_needs_no_next_token_takes_single_tokens(model):
    assert effect(model, ROWS[:, :1], "L0H1", measure=lambda r: r.logits[:, -1, 5]).change != 0


def test_a_set_of_names_is_read_by_run_and_effect(model):
    names = {"L0H1", "L1H2"}
    change = effect(model, ROWS, names, draws=0)
    assert change.sets[0] == ("L0H1", "L1H2")
    cut = run(model, ROWS, without=names)
    assert torch.equal(cut.logits, run(model, ROWS, without=["L0H1", "L1H2"]).logits)


def test_a_path_through_a_bias_is_refused(model):
    with pytest.raises(ValueError, match="is no wire or path"):
        run(model, ROWS, without="embed->L0 bias->L1H1.K")


def test_without_a_norm_in_front_an_mlp_with_a_cut_input_reads_the_whole_stream_elsewhere():
    """Its hook shows the cut stream, which neither `stream` nor a path through the MLP may use."""
    model = make("olmo2")
    whole, cut = run(model, ROWS), run(model, ROWS, without="L0H1->L0 MLP")
    torch.testing.assert_close(cut.stream("L0 MLP"), whole.stream("L0 MLP"))
    both = run(model, ROWS, without=["L0H1->L0 MLP", "L0H2->L0 MLP->unembed"])
    of_path = run(model, ROWS, without=["L0H1->L0 MLP", "L0H2->L0 MLP"]).part("L0 MLP")
    expected = cut.stream() - cut.part("L0 MLP") + of_path
    torch.testing.assert_close(both.stream(), expected, atol=1e-5, rtol=1e-5)
