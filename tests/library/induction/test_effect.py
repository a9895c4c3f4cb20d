"""Parts and wires replaced, beside drawn ones: against loops, against hooks on the bridge, against small steps."""

import re

import pytest
import torch

import circuitkit as ck
from circuitkit.effects import attribution, effect
from circuitkit.effects import wires as paths
from circuitkit.handmade import build_induction_model
from circuitkit.induction import repeated_tokens
from tests.support import tiny_models

ROWS = torch.tensor([[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11], [4, 12, 4, 9, 1, 20]])


def mean_loss(logits, tokens):
    """Of one row, by hand."""
    each = [
        -torch.as_tensor(logits)[t].log_softmax(-1)[tokens[t + 1]] for t in range(len(tokens) - 1)
    ]
    return float(sum(each) / len(each))


def hooked(model, layer, head, values):
    """Each row's loss when one head's z is given."""

    def put(z, hook):
        z = z.clone()
        z[:, :, head] = values
        return z

    logits = model.run_with_hooks(ROWS, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", put)])
    return [mean_loss(row, ids) for row, ids in zip(logits, ROWS, strict=True)]


def clean(model, layer, rows=ROWS):
    return model.run_with_cache(rows)[1][f"blocks.{layer}.attn.hook_z"].clone()


@pytest.mark.parametrize("cut", ["L1H1", "L0H1->L2H0.K", "L1H0->L2H1.V"])
def test_a_cut_against_loops(with_norm, slow, cut):
    ends = [tuple(int(n) for n in end[1:].split("H")) for end in cut.split(".")[0].split("->")]
    heads, wires = (ends, []) if len(ends) == 1 else ([], [(*ends, cut[-1])])
    found = effect(with_norm, ROWS, [cut], draws=1)
    for row, tokens in enumerate(ROWS):
        loops = slow(with_norm)
        expected = [
            mean_loss(loops.run(tokens.tolist(), *gone)[0], tokens)
            for gone in ([(), ()], [heads, wires])
        ]
        assert found.values[:2, row].tolist() == pytest.approx(expected, abs=1e-10)


def test_values_of_other_rows_are_those_of_the_untouched_model(plain):
    z = clean(plain, 1)
    donors = ROWS.flip(1)
    wanted = {"resample": z.roll(1, 0)[:, :, 0], "mean": z.mean(0, keepdim=True)[:, :, 0]}
    for fill, values in wanted.items():
        found = effect(plain, ROWS, "L1H0", fill=fill, draws=1).values[1].tolist()
        assert found == pytest.approx(hooked(plain, 1, 0, values), abs=1e-10)
    found = effect(plain, ROWS, "L1H0", fill=donors, draws=1).values[1].tolist()
    assert found == pytest.approx(hooked(plain, 1, 0, clean(plain, 1, donors)[:, :, 0]), abs=1e-10)


def test_an_untouched_value_is_not_one_of_the_changed_run(plain):
    """Two heads in a row: the second's donor is what it did when the first was whole."""
    first, second = clean(plain, 0), clean(plain, 1)

    def put(layer, z):
        return (
            f"blocks.{layer}.attn.hook_z",
            lambda old, hook: torch.cat([old[:, :, :1], z.roll(1, 0)[:, :, 1:]], 2),
        )

    logits = plain.run_with_hooks(ROWS, fwd_hooks=[put(0, first), put(1, second)])
    wanted = [mean_loss(row, ids) for row, ids in zip(logits, ROWS, strict=True)]
    found = effect(plain, ROWS, ["L0H1", "L1H1"], fill="resample", draws=1)
    assert found.values[1].tolist() == pytest.approx(wanted, abs=1e-10)


def run_hooks(model, hooks):
    logits = model.run_with_hooks(ROWS, fwd_hooks=hooks)
    return [mean_loss(row, ids) for row, ids in zip(logits, ROWS, strict=True)]


def added(kind, layer, head, more):
    """A hook that adds to what one head's queries, keys or values are."""

    def put(value, hook):
        value = value.clone()
        value[:, :, head] += more
        return value

    return f"blocks.{layer}.attn.hook_{kind.lower()}", put


@pytest.mark.parametrize("kind", "QKV")
def test_an_input_is_all_that_it_reads(plain, kind):
    x = plain.run_with_cache(ROWS)[1]["blocks.1.hook_resid_pre"]
    W = getattr(plain.blocks[1].attn, f"W_{kind}")[1]
    wanted = run_hooks(plain, [added(kind, 1, 1, (x.roll(1, 0) - x) @ W)])
    found = effect(plain, ROWS, f"L1H1.{kind}", fill="resample", draws=1)
    assert found.values[1].tolist() == pytest.approx(wanted, abs=1e-10)
    assert found.sets[1] == (f"L1H0.{kind}",)


def test_a_path_carries_what_its_first_wire_changes(plain):
    """Through the key of L1H1 into the values of L2H0, and nowhere else."""

    def out(cache, layer, head):
        return cache[f"blocks.{layer}.attn.hook_z"][:, :, head] @ plain.blocks[layer].attn.W_O[head]

    cache = plain.run_with_cache(ROWS)[1]
    less = out(cache, 0, 0).roll(1, 0) - out(cache, 0, 0)
    with plain.hooks(fwd_hooks=[added("K", 1, 1, less @ plain.blocks[1].attn.W_K[1])]):
        moved = out(plain.run_with_cache(ROWS)[1], 1, 1) - out(cache, 1, 1)
    assert moved.abs().max() > 1e-3
    wanted = run_hooks(plain, [added("V", 2, 0, moved @ plain.blocks[2].attn.W_V[0])])
    found = effect(plain, ROWS, "L0H0->L1H1.K->L2H0.V", fill="resample", draws=3)
    assert found.values[1].tolist() == pytest.approx(wanted, abs=1e-10)
    assert all(re.fullmatch(r"L0H\d->L1H\d\.K->L2H\d\.V", *drawn) for drawn in found.sets[1:])


def test_clean_into_corrupt_and_back_at_chosen_positions(plain):
    corrupt, chosen = ROWS.flip(1), [1, 4]
    for rows, donors in ((corrupt, ROWS), (ROWS, corrupt)):
        own, other = (
            plain.run_with_cache(tokens)[1]["blocks.1.attn.hook_z"] for tokens in (rows, donors)
        )

        def put(z, hook, other=other):
            z = z.clone()
            z[:, chosen, 1] = other[:, chosen, 1]
            return z

        logits = plain.run_with_hooks(rows, fwd_hooks=[("blocks.1.attn.hook_z", put)])
        wanted = [mean_loss(row, ids) for row, ids in zip(logits, rows, strict=True)]
        found = effect(plain, rows, "L1H1", fill=donors, at=chosen, draws=1)
        assert found.values[1].tolist() == pytest.approx(wanted, abs=1e-10)
        assert "(from other rows, at 2 positions)" in repr(found)
        everything = effect(plain, rows, "unembed", fill=donors, draws=1).values[1]
        clean_logits = plain(donors)
        wanted = [mean_loss(row, ids) for row, ids in zip(clean_logits, rows, strict=True)]
        assert everything.tolist() == pytest.approx(wanted, abs=1e-10)
        assert own.shape == other.shape


def test_keeping_is_taking_out_all_others_of_the_kind(plain):
    kept = effect(plain, ROWS, keep=["L0H0", "L2H1"], draws=1)
    cut = effect(plain, ROWS, ["L0H1", "L1H0", "L1H1", "L2H0"], draws=1)
    assert torch.equal(kept.values[:2], cut.values[:2])
    assert "keeping L0H0, L2H1 of 6 (zero)" in repr(kept)
    wires = paths(plain, "K")
    kept = effect(plain, ROWS, keep=wires[0], draws=1)
    assert torch.equal(kept.values[:2], effect(plain, ROWS, wires[1:], draws=1).values[:2])


def test_the_circuit_is_needed_and_enough():
    model, rows = build_induction_model(20, 16), repeated_tokens(20, 8)
    assert (
        effect(model, rows, "L0H0->L1H0.K", measure="accuracy").change < -0.9
    )  # 1 in 7 at most is right by chance
    assert effect(model, rows, "L0H0->L1H0.V", measure="accuracy").change == 0
    assert effect(model, rows, keep=["L0H0->L1H0.K"], measure="accuracy").change == 0
    assert effect(model, rows, keep=["L0H0"], measure="accuracy").change < -0.5


def test_drawn_sets_stand_in_the_same_layers(boot):
    model = boot(n_heads=7, n_layers=2, d_model=16, d_head=3)
    names = ("L0H2", "L0H5", "L1H1")
    found = effect(model, ROWS, names, draws=9)
    assert found.sets[0] == names
    assert len({frozenset(one) for one in found.sets}) == 10
    for drawn in found.sets[1:]:
        assert sorted(name[:2] for name in drawn) == ["L0", "L0", "L1"]
        assert not {*drawn} & {*names}
    found = effect(model, ROWS, ["L0H2->L1H1.K"], draws=9)
    assert all(re.fullmatch(r"L0H\d->L1H\d\.K", *drawn) for drawn in found.sets[1:])
    crowded = effect(model, ROWS, [f"L0H{n}" for n in range(5)], draws=4)
    assert len(crowded.sets) == 5
    assert all(len({*drawn}) == 5 for drawn in crowded.sets)
    assert (
        effect(model, ROWS, names, draws=9, seed=1).sets[1:]
        != effect(model, ROWS, names, draws=9).sets[1:]
    )


def test_by_size_the_nearest_stand_in(boot):
    """30 heads, 21 of which come into question for each."""
    model = boot(n_heads=15, n_layers=2, d_model=30, d_head=2)
    from circuitkit import anatomy

    run = anatomy(model).run(ROWS)
    size = {name: float(run.part(name).norm().log()) for name in anatomy(model).head_names}
    near = sorted(size, key=lambda name: abs(size[name] - size["L1H3"]))[:21]
    drawn = {
        name
        for one in effect(model, ROWS, "L1H3", against="size", draws=20).sets[1:]
        for name in one
    }
    assert drawn <= {*near} - {"L1H3"}
    assert any(name.startswith("L0") for name in drawn)


def test_by_both_the_nearest_of_the_same_layers(boot):
    """Wires from the nearest sources of the same layer into the same layer, the source's own wires into other heads first."""
    model = boot(n_heads=7, n_layers=2, d_model=16, d_head=3)
    from circuitkit import anatomy

    run, wire = anatomy(model).run(ROWS), "L0H2->L1H1.K"
    size = {f"L0H{n}": float(run.part(f"L0H{n}").norm().log()) for n in range(7)}
    near = sorted(size, key=lambda name: abs(size[name] - size["L0H2"]))[:3]
    sets = effect(model, ROWS, wire, against="both", draws=20).sets[1:]
    assert len(sets) == 20  # three sources, seven readers each, without the wire itself
    assert {name for one in sets for name in one} == {
        f"{a}->L1H{n}.K" for a in near for n in range(7)
    } - {wire}
    deep, wire = boot(n_heads=3, n_layers=3, d_model=16, d_head=3), "L1H2->L2H1.K"
    sets = effect(deep, ROWS, wire, against="both", draws=8).sets[1:]
    assert {name[:2] for one in sets for name in one} == {
        "L1"
    }  # layer 0 lies before the reader too


def test_the_line_that_is_printed(plain):
    found = effect(plain, ROWS, "L1H1", draws=20)
    paired = found.values[1] - found.values[0]
    low, high = found.interval
    assert found.change == pytest.approx(float(paired.mean()))
    assert (high - low) / 2 == pytest.approx(1.96 * float(paired.std()) / 3**0.5)
    worse = sum(
        abs(float((row - found.values[0]).mean())) >= abs(found.change) for row in found.values[2:]
    )
    assert found.rank == 1 + worse
    shown = r"without L1H1 \(zero\): loss NUM -> NUM, [+-]NUM \[[+-]NUM, [+-]NUM\] over 3 rows; "
    shown += r"1 random controls: NUM \(NUM to NUM\), rank [12] of 2"
    assert re.fullmatch(shown.replace("NUM", r"\d+\.\d\d"), repr(found))
    assert repr(effect(plain, ROWS, "embed")).endswith("so there is no control")


def test_a_measure_of_ones_own(plain):
    found = effect(
        plain,
        ROWS,
        "L0H1",
        fill="resample",
        measure=lambda run: run.pattern("L1H0")[:, -1, 0],
        draws=1,
    )
    pattern = plain.run_with_cache(ROWS)[1]["blocks.1.attn.hook_pattern"][:, 0, -1, 0]
    assert found.values[0].tolist() == pytest.approx(pattern.tolist(), abs=1e-10)
    whole = effect(plain, ROWS, "L0H1", measure=lambda run: run.logits[:, -1].argmax(-1), draws=1)
    assert whole.values[0].tolist() == plain(ROWS)[:, -1].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("measure", "gave"),
    [
        (lambda run: 3.0, "a value=3.0"),
        (lambda run: None, "a value=None"),
        (lambda run: run.logits, r"a value of shape \(3, 6, 23\)"),
        (lambda run: run.logits.sum(), r"a value of shape \(\)"),
        (
            lambda run: run.logits[:, 0, 0] / 0,
            r"a value of shape \(3,\), torch.float64, with NaN or infinite",
        ),
    ],
)
def test_a_measure_that_gives_no_number_a_row(plain, measure, gave):
    with pytest.raises(ValueError, match="measure returned .* 3 finite numbers"):
        effect(plain, ROWS, "L0H1", measure=measure, draws=1)


def test_of_a_neuron_s_and_an_mlp_s_kind_are_whole_neurons_and_mlps():
    """In a converted model a neuron is several heads, and an MLP many neurons: stand-ins are as whole as what they stand for."""
    plain = tiny_models.boot(
        attn_only=False, d_model=12, d_head=4, n_layers=2, n_ctx=16, n_heads=3, d_vocab=23, d_mlp=7
    )
    twin = ck.to_attention_only(plain, heads_per_neuron=3)
    for name, dots in (("L0N3", 0), ("L0N3.1", 1)):
        for against in ("layers", "size", "both"):
            found = effect(twin, ROWS, name, against=against, draws=4)
            assert len(found.sets) == 5
            assert {one.count(".") for (one,) in found.sets} == {dots}
    one, both = (effect(twin, ROWS, names).change for names in ("L0 MLP", ["L0 MLP", "L1 MLP"]))
    kept = effect(twin, ROWS, keep="L1 MLP")
    assert "keeping L1 MLP of 2 " in repr(kept)
    assert kept.change == pytest.approx(one, abs=1e-9)
    assert effect(twin, ROWS, keep=["L0 MLP", "L1 MLP"]).change == pytest.approx(0, abs=1e-12)
    assert one != pytest.approx(both, abs=1e-3)
    assert effect(plain, ROWS, "L0 MLP").change == pytest.approx(
        effect(twin, ROWS, "L0 MLP").change, abs=0.05
    )
    assert effect(twin, ROWS, keep="L0N3").sets[0] == ("L0N3",)
    rest = effect(twin, ROWS, keep=[f"L{layer}N{n}" for layer in (0, 1) for n in range(7)])
    assert rest.change == pytest.approx(0, abs=1e-12)


def test_wires_go_into_heads(plain):
    for name in ("L1H1.K", "L0H0->L1H1", "L9H9", "embed"):
        with pytest.raises(ValueError, match=f"no head is called '{name}'"):
            paths(plain, "K", into=name)


def test_autocast_changes_nothing(plain):
    calm = effect(plain, ROWS, "L0H1", draws=2).values
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = effect(plain, ROWS, "L0H1", draws=2).values
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(calm, again)


@pytest.mark.parametrize("how", ["gradient", "integrated"])
def test_slopes_are_taken_where_gradients_are_off(plain, how):
    wanted = attribution(plain, ROWS, how=how).values
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert torch.equal(attribution(plain, ROWS, how=how).values, wanted)
    with pytest.raises(ValueError, match="The measure has no gradient"):
        attribution(plain, ROWS, how=how, measure=lambda run: run.logits.detach()[:, -1, 0])


def test_one_row_has_no_interval(plain):
    found = effect(plain, ROWS[:1], "L0H1", fill="zero", draws=1)
    assert repr(found).partition(";")[0].endswith("on one row, so without an interval")
    assert "nan" not in repr(found)


def test_attribution_is_the_slope_along_the_way_to_the_other_value(plain):
    z = {layer: clean(plain, layer) for layer in range(3)}
    guess = attribution(plain, ROWS, fill="resample")
    for number, name in enumerate(guess.names):
        layer, head = int(name[1]), int(name[3])
        own, other = z[layer][:, :, head], z[layer].roll(1, 0)[:, :, head]
        ends = [
            sum(hooked(plain, layer, head, own + step * (other - own))) / 3
            for step in (-1e-4, 1e-4)
        ]
        assert float(guess.values[number]) == pytest.approx(
            (ends[1] - ends[0]) / 2e-4, rel=1e-4, abs=1e-3
        )  # losses near 100 are rounded to 1e-8 or worse


def test_integrated_is_the_mean_slope_at_mixtures(plain):
    """At each mixture every z is moved by a constant to where it shall be, and one of them by a small step more."""
    names = attribution(plain, ROWS).names
    z = {layer: clean(plain, layer) for layer in range(3)}
    wanted = torch.zeros(len(names))
    for share in (0.25, 0.75):
        offset: dict[int, torch.Tensor] = {}

        def loss(step=None, share=share, offset=offset):
            def move(old, hook):
                layer = hook.layer()
                aim = (1 - share) * z[layer] + share * z[layer].roll(1, 0)
                offset.setdefault(layer, aim - old)
                new = old + offset[layer]
                if step is not None and step[0] == layer:
                    new[:, :, step[1]] += step[2] * (z[layer].roll(1, 0) - z[layer])[:, :, step[1]]
                return new

            logits = plain.run_with_hooks(
                ROWS, fwd_hooks=[(f"blocks.{n}.attn.hook_z", move) for n in range(3)]
            )
            return sum(mean_loss(row, ids) for row, ids in zip(logits, ROWS, strict=True)) / 3

        loss()
        for number, name in enumerate(names):
            layer, head = int(name[1]), int(name[3])
            wanted[number] += (loss((layer, head, 1e-4)) - loss((layer, head, -1e-4))) / 2e-4 / 2
    found = attribution(plain, ROWS, how="integrated", points=2, fill="resample").values
    assert found.tolist() == pytest.approx(wanted.tolist(), rel=1e-4, abs=1e-3)
