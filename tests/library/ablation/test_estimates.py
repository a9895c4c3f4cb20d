"""Estimates of wires, their verification, and what `effect` and `attribution` share with `run`: keep, at, fills and measures.

The references are plain hooks of transformer-lens and autograd on a model without norms, and transformer-lens's own edges.
"""

import pytest
import torch
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    attribution_patch,
)

import circuitkit as ck
from circuitkit.ablation import replacement_of, run_with
from circuitkit.cuts import resolve
from circuitkit.effects import replace
from circuitkit.rows import repeated_tokens
from tests.support import zoo

TOKENS = torch.tensor([[3, 7, 9, 4, 7, 3, 8, 7], [8, 2, 5, 6, 2, 1, 8, 9]])
OTHER = torch.tensor([[5, 5, 9, 1, 2, 3, 4, 7], [1, 2, 9, 6, 4, 1, 3, 9]])


def last_logit(run):
    return run.logits[:, -1, 5]


def written_by_layer_0(model, tokens):
    """What each head of layer 0 writes, `[head, batch, pos, d_model]`."""
    _, cache = model.run_with_cache(tokens)
    return torch.einsum("bphd,hdm->hbpm", cache["blocks.0.attn.hook_z"], model.blocks[0].attn.W_O)


def slopes(model, share):
    """The slope of the last logit by how far each wire is replaced, `[side, writer, reader]`.

    The share is that of all wires, or has the same axes.
    """
    attention = model.blocks[1].attn
    change = written_by_layer_0(model, OTHER) - written_by_layer_0(model, TOKENS)
    shares = torch.as_tensor(share, dtype=torch.float64).expand(3, 4, 4).clone().requires_grad_()
    W = torch.stack([attention.W_Q, attention.W_K, attention.W_V])
    added = torch.einsum("swr,wbpm,srmd->sbprd", shares, change.detach(), W)
    hooks = [
        (f"blocks.1.attn.hook_{side}", lambda value, hook, more=more: value + more.view_as(value))
        for side, more in zip("qkv", added, strict=True)
    ]
    logits = model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    return torch.autograd.grad(logits[:, -1, 5].mean(), shares)[0]


@pytest.mark.parametrize("shares", [(0.0,), (1.0,), (0.1, 0.5, 0.9)])
def test_wires_have_the_slopes_of_plain_hooks(shares):
    model = zoo.make("native")
    wanted = sum(slopes(model, share) for share in shares) / len(shares)
    found = ck.attribution(
        model, TOKENS, patch=OTHER, measure=last_logit, wires=True, shares=shares
    )
    assert found.title == "estimated change of the measure"
    assert len(found) == wanted.numel()
    for i, side in enumerate("QKV"):
        for writer in range(4):
            for reader in range(4):
                name = f"L0H{writer}->L1H{reader}.{side}"
                assert found[name] == pytest.approx(float(wanted[i, writer, reader]), abs=1e-9)


@pytest.mark.parametrize("kind", ["gpt2", "neox-serial"])
def test_wires_are_the_edges_of_transformer_lens(kind):
    """It takes the slopes in the run on the corrupt text, and patches towards the clean one."""
    model, edges = zoo.make(kind), {}
    result = attribution_patch(
        model,
        clean=OTHER[:1],
        corrupt=TOKENS[:1],
        metric_fn=lambda logits: logits[..., -1, 5].sum(),
        config=EdgeAttributionConfig(granularity="edge"),
    )
    for (writer, reader), score in result.edge_scores.items():
        if writer.kind == "attn_head_out" and reader.kind in ("q_input", "k_input", "v_input"):
            name = f"L{writer.layer}H{writer.head}->L{reader.layer}H{reader.head}"
            name += f".{reader.kind[0].upper()}"
            edges[name] = edges.get(name, 0.0) + score  # one for each position
    found = ck.attribution(model, TOKENS[0], patch=OTHER[0], measure=last_logit, wires=True)
    assert {*found.names} == {*edges}
    for name, score in edges.items():
        assert found[name] == pytest.approx(score, abs=1e-12)


def check_slopes_are_those_of_small_cuts(kind):
    """Grouped keys, rotations, windows, caps, and norms before and behind layers, between any two layers."""
    model = zoo.make(kind)
    tokens, other = TOKENS.clamp_min(1), OTHER
    found = ck.attribution(model, tokens, patch=other, measure=last_logit, wires=True)
    base = ck.run(model, tokens)
    fill, step = replacement_of(model, base.rows, "zero", other), 3e-2
    for name in found.names[::29]:
        ends = []
        for share in (step, -step):
            with torch.no_grad():
                moved = run_with(
                    model, base.rows, resolve(model, [name]), replace(fill, share=share)
                )
            ends.append(float(last_logit(moved).mean()))
        # central differences have an error of the second order, and some norms compute in float32
        slope = (ends[0] - ends[1]) / (2 * step)
        assert found[name] == pytest.approx(slope, abs=1e-3 * float(found.values.abs().max()))


def test_slopes_are_those_of_small_cuts_with_grouped_keys_and_norms_behind_layers():
    check_slopes_are_those_of_small_cuts("gemma2")


@pytest.mark.weekly
@pytest.mark.parametrize("kind", sorted(zoo.SHAPES))
def test_slopes_are_those_of_small_cuts_in_every_family(kind):
    check_slopes_are_those_of_small_cuts(kind)


def test_what_is_kept_has_no_estimate_and_is_not_replaced_where_slopes_are_taken():
    model = zoo.make("native")
    heads = ck.attribution(model, TOKENS, patch=OTHER, measure=last_logit)
    left = ck.attribution(model, TOKENS, patch=OTHER, measure=last_logit, keep=["L0H1", "L1H0"])
    assert left.names == tuple(name for name in heads.names if name not in ("L0H1", "L1H0"))
    assert [float(left[name]) for name in left.names] == [float(heads[name]) for name in left.names]
    # all other wires into L1H3 are cut, and those into other heads are not
    share = torch.zeros(3, 4, 4)
    share[..., 3] = 1
    share[1, 2, 3] = 0
    wanted = slopes(model, share)
    wires = ck.attribution(
        model,
        TOKENS,
        patch=OTHER,
        measure=last_logit,
        keep="L0H2->L1H3.K",
        wires=True,
        shares=(1.0,),
    )
    assert len(wires) == 11
    for name in wires.names:
        writer, side = int(name[3]), "QKV".index(name[-1])
        assert wires[name] == pytest.approx(float(wanted[side, writer, 3]), abs=1e-6)
    for keep, has_wires in (("L0H1", True), ("L0H1->L1H3.K", False), (heads.names, False)):
        with pytest.raises(ValueError, match="Nothing is left"):
            ck.attribution(model, TOKENS, keep=keep, wires=has_wires)


def test_verified_estimates_are_cut():
    model = ck.load_model("two-layer")
    rows = repeated_tokens(2048, 8, batch=3, bos=0)
    table = ck.attribution(model, rows, wires=True, verify=2)
    best = table.select(change="estimated").top(2, absolute=True).names
    for name in table.names:
        assert bool(torch.tensor(table[name, "measured"]).isnan()) == (name not in best)
    cut = ck.effect(model, rows, best[0])
    assert table[best[0], "measured"] == pytest.approx(cut.change, abs=1e-6)
    assert table[best[0], "control"] == pytest.approx(float(cut.controls.median()), abs=1e-6)
    assert table[best[0], "rank"] == cut.rank


# --- what effect and attribution share with run --------------------------------------------------------------------


def with_z(model, tokens, value, places=slice(None)):
    """Logits where head 1 of layer 0 has gathered something else, by a plain hook."""

    def change(z, hook):
        z = z.clone()
        z[:, places, 1] = value if value.ndim < 3 else value[:, places]
        return z

    return model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", change)])


def test_fills_from_a_data_set_and_of_ones_own():
    model = zoo.make("native")
    texts = [OTHER[0], OTHER[1, :5]]
    z = torch.cat([ck.run(model, text).z("L0H1")[0] for text in texts])
    cases = [
        (ck.run(model, texts), z.mean(0)),
        (
            ck.run(model, OTHER),
            ck.run(model, OTHER).z("L0H1").mean(0),
        ),  # of one length: by position
        (torch.arange(5.0), torch.arange(5.0).double()),
    ]
    for fill, value in cases:
        wanted = with_z(model, TOKENS, value)
        found = ck.run(model, TOKENS, without="L0H1", fill=fill).logits
        assert torch.allclose(found, wanted, atol=1e-9)
        difference = ck.effect(
            model, TOKENS, "L0H1", fill=fill, measure=last_logit, draws=0
        ).values[1]
        assert torch.allclose(difference, wanted[:, -1, 5], atol=1e-9)
    with pytest.raises(ValueError, match=r"fill has the shape \(4,\)"):
        ck.run(model, TOKENS, without="L0H1", fill=torch.zeros(4))
    with pytest.raises(ValueError, match="fill is a run of another model"):
        ck.run(model, TOKENS, without="L0H1", fill=ck.run(zoo.make("gpt2"), TOKENS))


def test_effects_and_estimates_at_some_positions():
    model = zoo.make("native")
    zero = torch.zeros(5, dtype=torch.float64)
    wanted = with_z(model, TOKENS, zero, slice(5, 6))[:, -1, 5]
    found = ck.effect(model, TOKENS, "L0H1", at=[5], measure=last_logit, draws=0)
    assert torch.allclose(found.values[1], wanted, atol=1e-9)
    every = [ck.attribution(model, TOKENS, at=[pos], measure=last_logit).values for pos in range(8)]
    whole = ck.attribution(model, TOKENS, measure=last_logit).values
    assert torch.allclose(sum(every), whole, atol=1e-9)


def test_what_is_kept_is_compared_with_as_many_others():
    model = zoo.make("native")
    found = ck.effect(model, TOKENS, keep=["L0H1", "L1H2"], measure=last_logit, draws=3)
    assert found.sets[0] == ("L0H1", "L1H2")
    assert len(found.sets) == 4
    for names, values in zip(found.sets, found.values[1:], strict=True):
        kept = ck.run(model, TOKENS, keep=list(names)).logits[:, -1, 5]
        assert torch.allclose(values, kept, atol=1e-9)
    assert "only L0H1, L1H2" in repr(found)
    for given in ({}, {"without": "L0H0", "keep": "L0H1"}):
        with pytest.raises(ValueError, match="and not both"):
            ck.effect(model, TOKENS, **given)


def test_named_measures_are_those_of_the_formulas():
    model, rows = zoo.make("native"), [TOKENS[0], OTHER[1, :5]]
    answers = ([4, 7], 9)
    alone = [ck.run(model, row).logits[0] for row in rows]
    without = [ck.run(model, row, without="L0H1").logits[0] for row in rows]
    found = ck.effect(
        model, rows, "L0H1", measure="logit difference", answers=answers, draws=0
    ).values
    for row, answer in enumerate(answers[0]):
        for level, logits in enumerate((alone, without)):
            wanted = float(logits[row][-1, answer] - logits[row][-1, 9])
            assert float(found[level, row]) == pytest.approx(wanted, abs=1e-9)
    found = ck.effect(model, rows, "L0H1", measure="KL divergence", draws=0).values
    for row in range(2):
        p, q = (one[row].softmax(-1) for one in (alone, without))
        wanted = float((p * (p / q).log()).sum(-1).mean())
        assert float(found[1, row]) == pytest.approx(wanted, abs=1e-9)
        assert float(found[0, row]) == pytest.approx(0, abs=1e-12)
    estimated = ck.attribution(model, rows, measure="logit difference", answers=answers)
    plain = ck.attribution(
        model,
        rows,
        measure=lambda run: run.last_logits[[0, 1], [4, 7]] - run.last_logits[:, 9],
    )
    assert torch.allclose(estimated.values, plain.values, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measure": "logit difference"}, "that of two answers"),
        ({"answers": (1, 2)}, "that of two answers"),
        ({"measure": "logit difference", "answers": ([1, 2, 3], 2)}, "answers have the shape"),
        ({"wires": True, "shares": ()}, "must be numbers from 0 to 1"),
        ({"wires": True, "shares": (2.0,)}, "must be numbers from 0 to 1"),
        ({"verify": -1}, "verify=-1"),
        ({"measure": "accuracy"}, "has no gradient"),
    ],
)
def test_arguments_that_cannot_be_meant(given, message):
    with pytest.raises(ValueError, match=message):
        ck.attribution(zoo.make("native"), TOKENS, **given)


def test_a_model_of_one_layer_has_no_wires():
    with pytest.raises(ValueError, match="no wires between heads"):
        ck.attribution(ck.load_model("one-layer"), TOKENS, wires=True)
