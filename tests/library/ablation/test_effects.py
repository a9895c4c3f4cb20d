"""Effects against hooks of transformer-lens, their random controls, and attribution against small steps."""

import re

import joblib
import pytest
import torch

import circuitkit as ck
from circuitkit.effects import attribution, effect, wires
from circuitkit.rows import repeated_tokens
from circuitkit_book.induction_by_hand import build_induction_model
from tests.support import tiny_models, zoo

ROWS = torch.tensor([[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11], [4, 12, 4, 9, 1, 20]])
SIZES = {"d_model": 14, "d_head": 5, "n_layers": 3, "n_ctx": 16, "n_heads": 2, "d_vocab": 23}


def boot(**changes):
    return tiny_models.boot(size=0.5, **SIZES | changes).requires_grad_(False)


@pytest.fixture(scope="module")
def plain():
    """Three layers of attention, biases but no norms."""
    return boot()


def mean_losses(logits, rows=ROWS):
    """The mean loss of each row, by hand."""
    losses = []
    for row, ids in zip(logits, rows, strict=True):
        each = [-row[t].log_softmax(-1)[ids[t + 1]] for t in range(len(ids) - 1)]
        losses.append(float(sum(each)) / len(each))
    return losses


def clean(model, layer, rows=ROWS):
    return model.run_with_cache(rows)[1][f"blocks.{layer}.attn.hook_z"].clone()


def with_z(layer, head, values):
    """A hook that replaces what one head gathered."""

    def put(z, hook):
        z = z.clone()
        z[:, :, head] = values
        return z

    return f"blocks.{layer}.attn.hook_z", put


def losses_with(model, *hooks, rows=ROWS):
    return mean_losses(model.run_with_hooks(rows, fwd_hooks=list(hooks)), rows)


def changed(found):
    return found.values[1].tolist()


# What is measured


def test_values_of_other_rows_are_those_of_the_untouched_model(plain):
    z = clean(plain, 1)
    donors = ROWS.flip(1)
    expected = {"resample": z.roll(1, 0)[:, :, 0], "mean": z.mean(0, keepdim=True)[:, :, 0]}
    for fill, values in expected.items():
        losses = losses_with(plain, with_z(1, 0, values))
        found = effect(plain, ROWS, "L1H0", fill=fill, draws=1)
        assert changed(found) == pytest.approx(losses, abs=1e-10)
        assert found.values[0].tolist() == pytest.approx(mean_losses(plain(ROWS)), abs=1e-10)
    losses = losses_with(plain, with_z(1, 0, clean(plain, 1, donors)[:, :, 0]))
    found = effect(plain, ROWS, "L1H0", patch=donors, draws=1)
    assert changed(found) == pytest.approx(losses, abs=1e-10)


def test_an_untouched_value_is_not_one_of_the_changed_run(plain):
    """Two heads in a row: the second's value is what it had when the first was whole."""
    hooks = [with_z(layer, 1, clean(plain, layer).roll(1, 0)[:, :, 1]) for layer in (0, 1)]
    found = effect(plain, ROWS, ["L0H1", "L1H1"], fill="resample", draws=1)
    assert changed(found) == pytest.approx(losses_with(plain, *hooks), abs=1e-10)


@pytest.mark.parametrize("kind", "QKV")
def test_an_input_is_all_that_it_reads(plain, kind):
    x = plain.run_with_cache(ROWS)[1]["blocks.1.hook_resid_pre"]
    W = getattr(plain.blocks[1].attn, f"W_{kind}")[1]

    def add(value, hook):
        value = value.clone()
        value[:, :, 1] += (x.roll(1, 0) - x) @ W
        return value

    losses = losses_with(plain, (f"blocks.1.attn.hook_{kind.lower()}", add))
    found = effect(plain, ROWS, f"L1H1.{kind}", fill="resample", draws=1)
    assert changed(found) == pytest.approx(losses, abs=1e-10)
    assert found.sets[1] == (f"L1H0.{kind}",)


def test_donors_at_the_end(plain):
    donors = ROWS.flip(1)
    everything = effect(plain, ROWS, "unembed", patch=donors, draws=1)
    assert changed(everything) == pytest.approx(mean_losses(plain(donors)), abs=1e-10)
    assert "(from other tokens)" in repr(everything)


def test_the_circuit_is_needed():
    """The hand-made model is right by its one wire; by chance, 1 in 7 predictions is right at most."""
    model, rows = build_induction_model(20, 16), repeated_tokens(20, 8)

    def change(names):
        return effect(model, rows, names, measure="accuracy").change

    assert change("L0H0->L1H0.K") < -0.9
    assert change("L0H0->L1H0.V") == 0


def test_a_measure_of_ones_own(plain):
    def attention(result):
        return result.pattern("L1H0")[:, -1, 0]

    found = effect(plain, ROWS, "L0H1", fill="resample", measure=attention, draws=1)
    pattern = plain.run_with_cache(ROWS)[1]["blocks.1.attn.hook_pattern"][:, 0, -1, 0]
    assert found.values[0].tolist() == pytest.approx(pattern.tolist(), abs=1e-10)

    def best(result):
        return result.logits[:, -1].argmax(-1)

    whole = effect(plain, ROWS, "L0H1", measure=best, draws=1)
    assert whole.values[0].tolist() == plain(ROWS)[:, -1].argmax(-1).tolist()


@pytest.mark.parametrize("returned", [3.0, None, "logits", "nan"])
def test_a_measure_that_gives_no_number_a_row_is_explained(plain, returned):
    def measure(result):
        own = {"logits": result.logits, "nan": result.logits[:, 0, 0] / 0}
        return own.get(returned, returned)

    with pytest.raises(ValueError, match="It must return 3 finite numbers, one for each row"):
        effect(plain, ROWS, "L0H1", measure=measure, draws=1)


@pytest.mark.parametrize(
    "backend", ["threading", pytest.param("loky", marks=pytest.mark.weekly)]
)  # a process imports torch
def test_threads_and_processes_give_the_same_values(backend):
    model = ck.load_model("two-layer")
    rows = repeated_tokens(model.cfg.d_vocab, 8, batch=2)
    alone = effect(model, rows, ["L0H1", "L1H1"], draws=3)
    with joblib.parallel_config(backend, n_jobs=2):
        values = effect(model, rows, ["L0H1", "L1H1"], draws=3).values
    torch.testing.assert_close(values, alone.values)


# Random controls


def test_controls_stand_in_the_same_layers():
    model = boot(n_heads=7, n_layers=2, d_model=16, d_head=3)
    names = ("L0H2", "L0H5", "L1H1")
    found = effect(model, ROWS, names, draws=9)
    assert found.sets[0] == names
    assert len({frozenset(names) for names in found.sets}) == 10
    for drawn in found.sets[1:]:
        assert sorted(name[:2] for name in drawn) == ["L0", "L0", "L1"]
        assert not {*drawn} & {*names}
    wire = effect(model, ROWS, "L0H2->L1H1.K", draws=9)
    assert all(re.fullmatch(r"L0H\d->L1H\d\.K", *drawn) for drawn in wire.sets[1:])
    path = effect(model, ROWS, "embed->L0H1.K->L1H0.V", draws=3)
    assert all(re.fullmatch(r"embed->L0H\d\.K->L1H\d\.V", *drawn) for drawn in path.sets[1:])
    crowded = effect(model, ROWS, [f"L0H{n}" for n in range(5)], draws=4)
    assert len(crowded.sets) == 5
    assert all(len({*drawn}) == 5 for drawn in crowded.sets)
    assert effect(model, ROWS, names, draws=9, seed=1).sets[1:] != found.sets[1:]


def test_controls_of_neurons_and_mlps_are_whole():
    sizes = {"d_model": 12, "d_head": 4, "n_layers": 2, "n_heads": 3, "d_mlp": 7}
    original = boot(attn_only=False, **sizes)
    model = ck.to_attention_only(original, heads_per_neuron=3)
    for name, dots in (("L0N3", 0), ("L0N3.1", 1)):
        sets = effect(model, ROWS, name, draws=4).sets
        assert len(sets) == 5
        assert {control.count(".") for (control,) in sets} == {dots}
    one, both = (effect(model, ROWS, names).change for names in ("L0 MLP", ["L0 MLP", "L1 MLP"]))
    assert one != pytest.approx(both, abs=1e-3)
    assert effect(original, ROWS, "L0 MLP").change == pytest.approx(one, abs=0.05)


# How it is shown, and what is refused


def test_the_line_and_the_table(plain):
    found = effect(plain, ROWS, "L1H1", draws=20)
    paired = found.values[1] - found.values[0]
    low, high = found.interval
    assert found.change == pytest.approx(float(paired.mean()))
    assert (high - low) / 2 == pytest.approx(1.96 * float(paired.std()) / 3**0.5)
    changes = [float((row - found.values[0]).mean()) for row in found.values[2:]]
    assert found.controls.tolist() == pytest.approx(changes)  # of the same kind as `change`
    assert found.rank == 1 + sum(abs(change) >= abs(found.change) for change in changes)
    line = r"without L1H1 \(zero\): loss N -> N, [+-]N \[[+-]N, [+-]N\] over 3 rows; "
    line += r"1 random controls: [+-]N \([+-]N to [+-]N\), rank [12] of 2"
    assert re.fullmatch(line.replace("N", r"\d+\.\d\d"), repr(found))
    assert repr(effect(plain, ROWS, "embed")).endswith("no random controls")
    assert "on one row" in repr(effect(plain, ROWS[:1], "L0H1", draws=1))
    frame = found.to_frame()
    assert frame.loc["given", "change"] == pytest.approx(found.change)
    assert frame.loc["control 1", "names"] == "L1H0"


def test_names_of_wires(plain):
    assert len(wires(plain, "K")) == 2 * 2 + 4 * 2
    assert wires(plain, "V", into="L1H0") == ("L0H0->L1H0.V", "L0H1->L1H0.V")
    for name in ("L1H1.K", "L9H9", "embed"):
        with pytest.raises(ValueError, match=f"no head is called '{name}'"):
            wires(plain, "K", into=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"without": []}, "Name what is replaced"),
        ({"without": "L0H1", "patch": ROWS[:2]}, "patch must have the shape of tokens"),
        ({"without": "L7H1"}, "no part is called 'L7H1'"),
    ],
)
def test_arguments_that_cannot_be_meant(plain, arguments, message):
    with pytest.raises(ValueError, match=message):
        effect(plain, ROWS, **arguments)


def test_rows_that_cannot_be_meant(plain):
    with pytest.raises(ValueError, match="at least two positions"):
        effect(plain, ROWS[:, :1], "L0H1")
    rows = repeated_tokens(23, 4, batch=3, bos=0)
    for measure in (effect, attribution):
        with pytest.raises(ValueError, match="The rows do not hold the same 3 tokens"):
            measure(plain, rows._replace(period=3), *["L0H1"] * (measure is effect))


# Attribution


def test_attribution_is_the_slope_along_the_way_to_the_other_value(plain):
    estimate = attribution(plain, ROWS, fill="resample")
    for name in estimate.names:
        layer, head = int(name[1]), int(name[3])
        z = clean(plain, layer)[:, :, head]
        other = z.roll(1, 0)
        ends = []
        for step in (-1e-4, 1e-4):
            hook = with_z(layer, head, z + step * (other - z))
            ends.append(sum(losses_with(plain, hook)) / 3)
        # losses near 100 are rounded to 1e-8 or worse
        assert estimate[name] == pytest.approx((ends[1] - ends[0]) / 2e-4, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_slopes_are_taken_where_gradients_are_off(plain, off):
    expected = attribution(plain, ROWS).values
    with off():
        assert torch.equal(attribution(plain, ROWS).values, expected)


def test_one_prompt_is_enough_and_a_measure_needs_a_gradient(plain):
    assert attribution(plain, ROWS[0]).values.shape == (6,)
    with pytest.raises(ValueError, match="The measure has no gradient"):
        attribution(plain, ROWS, measure=lambda result: result.logits.detach()[:, -1, 0])


def test_drawing_ends_when_there_is_no_other_control(plain):
    given = ["L0H0", "L0H1", "L0H2"]  # too few other heads, so a control holds two of these
    found = effect(boot(n_heads=4), ROWS, given, draws=10**9)
    triples = {frozenset(f"L0H{n}" for n in range(4) if n != left) for left in range(3)}
    assert {frozenset(names) for names in found.sets[1:]} == triples
    wire = effect(plain, ROWS, "L0H0->L1H1.K", draws=10**9)
    others = {f"L0H{i}->L1H{j}.K" for i in range(2) for j in range(2)} - {"L0H0->L1H1.K"}
    assert {*wire.sets[1:]} == {(name,) for name in others}
    assert effect(plain, ROWS, "embed", draws=10**9).sets == (("embed",),)


CUTS = (
    ["L2H1"],
    ["L1H0->L2H1.K"],
    ["L1 MLP"],
    ["L1H1->unembed"],
    ["L1H0->L2H1.V->unembed"],
)


@pytest.mark.parametrize(
    "kind",
    ["gpt2", "gemma2", pytest.param("llama", marks=pytest.mark.weekly)]
    + [pytest.param(kind, marks=pytest.mark.weekly) for kind in ("neox-parallel", "opt", "bert")],
)
def test_layers_before_the_first_cut_are_not_computed_again(kind):
    model, rows = zoo.make(kind), ROWS + 3
    base, called = ck.run(model, rows), []
    layer = model.blocks[0].original_component
    handle = layer.register_forward_hook(lambda *_: called.append("again"))
    for names in CUTS:
        called.clear()
        found = effect(model, rows, names, measure=lambda run: run.logits.mean((1, 2)), draws=0)
        assert called == ["again"]  # in the run without cuts only
        expected = ck.run(model, rows, without=names).logits
        torch.testing.assert_close(found.values[1], expected.mean((1, 2)), rtol=0, atol=1e-12)
        assert (found.values[0] - found.values[1]).abs().max() > 1e-6
    handle.remove()
    torch.testing.assert_close(ck.run(model, rows).logits, base.logits, rtol=0, atol=0)
