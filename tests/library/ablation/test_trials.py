"""Cases in which two researchers who used the library got a wrong number, or an error of no help."""

import re

import pytest
import torch

import circuitkit as ck
from circuitkit.ablation import run
from circuitkit.effects import attribution, effect
from circuitkit.reports import page
from circuitkit.reports.lines import Line
from circuitkit.superposition import GATES, GatedBlock, with_gated_layer
from tests.support import tiny_models
from tests.support.zoo import SHAPES, converted, make

SIZES = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_ctx": 16, "n_heads": 3, "d_vocab": 23}
ROWS = torch.tensor([[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11]])


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def double(value, hook):
    return 2 * value


@pytest.fixture
def model():
    return tiny_models.boot(torch.float64, **SIZES)


# Biases


def test_a_bias_is_replaced_only_at_the_given_positions(model):
    """In the last layer, and without a last norm, no other position sees the bias."""
    change = run(model, ROWS, without="L1 bias", at=[4]).logits - run(model, ROWS).logits
    expected = torch.zeros_like(change)
    expected[:, 4] = -(model.blocks[1].attn.b_O @ model.W_U)
    close(change, expected)


@pytest.mark.parametrize("how", [{"fill": "mean"}, {"fill": "resample"}, {"patch": ROWS.flip(1)}])
@pytest.mark.parametrize("name", ["L1 bias", "L1 bias->unembed", "L0 bias->L1H2.K"])
def test_a_bias_is_the_same_in_every_row_and_run(model, how, name):
    close(run(model, ROWS, without=name, **how).logits, run(model, ROWS).logits)


def test_the_wires_of_a_bias_are_the_bias(model):
    part = run(model, ROWS, without="L1 bias").logits
    close(run(model, ROWS, without="L1 bias->unembed").logits, part)
    close(part, run(model, ROWS).logits - model.blocks[1].attn.b_O @ model.W_U)


def test_a_converted_mlp_keeps_its_bias_if_its_values_are_its_own(tokens, other_tokens):
    model = converted("native-mlp")
    close(run(model, tokens, without="L0 MLP", patch=tokens).logits, run(model, tokens).logits)
    source = run(model, other_tokens).cache["blocks.0.mlp.hook_out"]
    changed = run(model, tokens, without="L0 MLP", patch=other_tokens)
    close(changed.cache["blocks.0.mlp.hook_out"], source)


# Hooks of the user


PLACES = [
    ("native-mlp", "L1H2", "blocks.1.attn.hook_z"),
    ("native-mlp", "L1H2", "blocks.1.attn.o.hook_in"),
    ("native-mlp", "L0 MLP", "blocks.0.mlp.hook_out"),
    ("native-mlp", "embed", "embed.hook_out"),
    ("native-mlp", "L0H1->L1H2.K", "blocks.1.attn.hook_z"),
    ("native-mlp", "L0H1->L1H2.K", "blocks.1.attn.hook_in"),
    ("native-mlp", "L0H1->unembed", "ln_final.hook_in"),
    ("converted", "L0H1->L1N2.Q", "blocks.1.mlp.hook_in"),
    ("converted", "L1 MLP", "blocks.1.mlp.hook_pre"),
]


@pytest.mark.parametrize("is_permanent", [False, True])
@pytest.mark.parametrize(("name", "what", "place"), PLACES)
def test_a_hook_that_changes_what_a_run_puts_in_is_refused(tokens, name, what, place, is_permanent):
    """It has acted on the value that is put in, and would act on it once more."""
    model = converted("native-mlp") if name == "converted" else make(name)
    expected = run(model, tokens, without=what).logits
    point = model.hook_dict[place]
    point.add_hook(double, is_permanent=is_permanent)
    try:
        with pytest.raises(ValueError, match="The hook at .* changes values.*including_permanent"):
            run(model, tokens, without=what, patch=tokens)
        run(model, tokens)
    finally:
        point.remove_hooks(including_permanent=True)
    close(run(model, tokens, without=what).logits, expected, 0)


def test_a_hook_at_another_place_acts_once(model):
    model.add_hook("blocks.0.attn.hook_z", double, is_permanent=True)
    close(run(model, ROWS, without="L1H2", patch=ROWS).logits, model(ROWS))
    model.add_hook("blocks.1.attn.hook_q", double, is_permanent=True)
    close(run(model, ROWS, without="L0H1->L1H2.Q", patch=ROWS).logits, model(ROWS))


def advised_models():
    """Two families in which a bridge has hooks of its own, one in which it has none, and weekly the rest."""
    few = ["opt", "bert", "gpt2"]
    rest = [pytest.param(name, marks=pytest.mark.weekly) for name in SHAPES if name not in few]
    return [*few, *rest]


@pytest.mark.parametrize("name", advised_models())
def test_a_message_advises_how_to_remove_the_hooks_of_the_user_only(name, tokens, other_tokens):
    model = make.__wrapped__(name)  # the shared one keeps its hooks
    expected = run(model, tokens, without="L0 MLP", patch=other_tokens).logits
    parts = run(model, tokens).parts()
    model.add_hook("blocks.0.attn.o.hook_in", double, is_permanent=True)
    with pytest.raises(ValueError, match="The hook at .* changes values") as problem:
        run(model, tokens, without="L0H1")
    exec(re.search(r"Remove it: (model\..*?\))\.", str(problem.value))[1], {"model": model})
    close(run(model, tokens, without="L0 MLP", patch=other_tokens).logits, expected, 0)
    for part, value in run(model, tokens).parts().items():
        close(value, parts[part], 0)


# Positions


def test_a_wire_into_a_part_is_cut_where_the_part_is_ablated_at_some_positions(model):
    """The key at position 1 is also read at later positions, where the head is not ablated."""
    both = run(model, ROWS, without=["L0H1->L1H2.K", "L1H2"], at=[1])
    wire = run(model, ROWS, without="L0H1->L1H2.K", at=[1])
    expected = wire.part("L1H2").clone()
    assert (expected - run(model, ROWS).part("L1H2"))[:, 2:].abs().max() > 1e-3
    expected[:, 1] = 0
    close(both.part("L1H2"), expected)


def test_a_path_into_an_mlp_that_is_ablated_at_some_positions(tokens):
    model = make("native-mlp")
    both = run(model, tokens, without=["embed->L0H1->L1 MLP", "L1 MLP"], at=[1])
    expected = run(model, tokens, without="embed->L0H1->L1 MLP", at=[1]).part("L1 MLP").clone()
    expected[:, 1] = 0
    # the last norm divides by another number at position 1 only
    close(both.part("L1 MLP"), expected)


def test_positions_may_count_from_the_end(model):
    expected = run(model, ROWS, without="L0H1", at=[5, 4]).logits
    close(run(model, ROWS, without="L0H1", at=[-1, 4]).logits, expected, 0)


# Effects and attributions


def test_controls_are_like_the_names_that_are_not_covered(model):
    found = effect(model, ROWS, ["L0H1", "L0H1->L1H2.K", "embed->L0H1->L1H0"], draws=2)
    assert found.sets[0] == ("L0H1", "L0H1->L1H2.K", "embed->L0H1->L1H0")
    assert sorted(found.sets[1:]) == [("L0H0",), ("L0H2",)]
    by_input = effect(model, ROWS, ["L1H2.K", "L0H1->L1H2.K"], draws=2)
    assert sorted(by_input.sets[1:]) == [("L1H0.K",), ("L1H1.K",)]


def test_a_measure_of_the_cache_has_the_slopes_of_the_same_measure_of_the_run(model):
    model.requires_grad_(True)

    def of_cache(result):
        return result.cache["blocks.1.hook_resid_post"][:, -1].sum(-1)

    def of_run(result):
        return result.stream()[:, -1].sum(-1)

    expected = attribution(model, ROWS, measure=of_run)
    assert expected.values.abs().max() > 1e-3
    close(attribution(model, ROWS, measure=of_cache).values, expected.values)
    with pytest.raises(ValueError, match="The measure has no gradient.*calls the model"):
        attribution(model, ROWS, measure=lambda result: result.model(result.tokens)[:, -1, 5])


@pytest.mark.parametrize("measure", ["loss", "accuracy"])
def test_logits_that_are_no_numbers_have_no_loss_and_no_accuracy(model, measure):
    with torch.no_grad():
        model.blocks[0].attn.v.original_component.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="output of the model holds NaN"):
        effect(model, ROWS, "L0H1", measure=measure, draws=1)


# Gates


def test_the_gates_of_a_head_read_the_stream_before_all_cuts():
    """Only the pattern and the values of a gated head follow its three inputs."""
    model = tiny_models.boot(torch.float64, **SIZES)
    block = GatedBlock(GATES, n_heads=3, d_model=12, seed=1, dtype=torch.float64)
    gated = with_gated_layer(model, 1, block)
    sides = ["L1H4.Q", "L1H4.K", "L1H4.V"]
    cut = run(gated, ROWS, without=sides, patch=ROWS.flip(1))
    own, other = run(gated, ROWS), run(gated, ROWS.flip(1))
    x, other_x = own.read("L1H4"), other.read("L1H4")
    pattern = block.gates(x)[:, 4] * block.pattern(other_x)[:, 4]
    close(cut.pattern("L1H4"), pattern)
    assert (pattern - other.pattern("L1H4")).abs().max() > 1e-3


def test_a_block_that_holds_nan_or_no_heads_is_refused(model):
    block = GatedBlock(GATES, n_heads=3, d_model=12, dtype=torch.float64)
    with torch.no_grad():
        block.W_GQ[0, 0] = torch.nan
    with pytest.raises(ValueError, match="W_GQ of the block holds NaN"):
        with_gated_layer(model, 1, block)
    with pytest.raises(ValueError, match="n_heads=0"):
        GatedBlock(GATES, n_heads=0, d_model=12)


@pytest.mark.usefixtures("as_a_reader")
def test_scores_of_layers_with_different_numbers_of_heads_stand_under_their_names():
    numbers = {"L0H0": 0.1, "L0H1": 0.2, "L2H0": 0.3, "L2H1": 0.4, "L2H2": 0.5}
    (drawn,) = page.score_maps([Line(name, "copying", value) for name, value in numbers.items()])
    # M is the corner of a cell: its column, then its row
    corners = {round(shade, 1): outline.split("h")[0] for shade, outline in drawn["shades"]}
    assert corners == {0.1: "M0 0", 0.2: "M1 0", 0.3: "M0 2", 0.4: "M1 2", 0.5: "M2 2"}
    assert drawn["largest"] == (pytest.approx(0.5), 2, 2)


# Numbers that are none


def test_a_model_with_nan_in_its_weights_has_no_scores(model):
    with torch.no_grad():
        model.blocks[0].attn.v.original_component.weight[0, 0] = torch.nan
    for tool in (ck.induction.scores, ck.induction.induction_loss):
        with pytest.raises(ValueError, match="output of the model holds NaN"):
            tool(model)


@pytest.mark.parametrize("field", [{"window": 0}, {"cap": 0.0}, {"scale": float("nan")}])
def test_how_heads_score_is_a_positive_number(field):
    W = torch.ones(1, 4, 2)
    with pytest.raises(ValueError, match="must be a positive number"):
        ck.Heads(("L0H0",), W, W, W, W.mT, **field)


# Messages


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: run(ROWS, model), "The model comes first"),
        (lambda model: ck.heads_of(model, "L0H9"), "no head is called 'L0H9'. The nearest names "),
        (lambda model: run(model, ROWS, without="L0H1->L1H2.O"), "inputs are Q, K and V"),
        (lambda model: run(model, ROWS.to(torch.uint8)), "torch.int64"),
        (lambda model: run(model, ROWS.to(torch.int8)), "torch.int64"),
    ],
)
def test_messages_say_what_to_write(model, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(model)


def test_a_run_keeps_its_values_when_those_it_gave_or_got_are_changed(model):
    tokens = ROWS.clone()
    base = run(model, tokens)
    expected = base.stream("L1H0").clone(), base.z("L0H1").clone(), base.tokens.clone()
    base.stream("L1H0").zero_()
    base.z("L0H1").zero_()
    tokens.zero_()
    for now, before in zip(
        (base.stream("L1H0"), base.z("L0H1"), base.tokens), expected, strict=True
    ):
        assert torch.equal(now, before)
