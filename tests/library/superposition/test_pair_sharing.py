"""Interference of heads on a pair: hand-computed cases, slow loops, and models whose heads are known to share."""

import numpy as np
import pandas as pd
import pytest
import torch

import circuitkit as ck
from circuitkit_book import pair_sharing as ps
from circuitkit_book import superposition_models as toy
from circuitkit_book.sharing_results import changes_over_models


@pytest.mark.parametrize(
    ("effects", "constructive", "destructive"),
    [
        ((3.0, 0.0, 0.0), False, False),
        ((2.0, 1.0, 0.0), True, False),  # the other head adds a third
        ((5.0, 1.0, 0.0), False, False),  # it adds a sixth
        ((3.0, -1.0, 0.0), False, True),  # it takes away half of the sum
        ((-3.0, -1.0, 2.0), True, True),
    ],
)
def test_interference_of_cases_computed_by_hand(effects, constructive, destructive):
    found = ps.shared(torch.tensor(effects)[:, None])
    assert [bool(part) for part in found] == [constructive, destructive]


def test_an_unshared_pair_is_carried_by_one_head_under_every_subset():
    effects = torch.randn(4, 400, generator=torch.Generator().manual_seed(0)).pow(3)
    constructive, destructive = ps.shared(effects)
    sets = torch.arange(16)[:, None] >> torch.arange(4) & 1
    relative = (sets.float() @ effects) / effects.sum(0)
    within = (relative >= 0.8) & (relative <= 1.2)
    carries = torch.stack([within[sets[:, head] == 1].all(0) for head in range(4)])
    assert torch.equal(~carries.any(0), constructive | destructive)
    assert 0.05 < carries.any(0).float().mean() < 0.95


def test_the_effect_of_a_head_is_what_cutting_its_edge_takes_from_the_centred_logit():
    model, tokens = ck.load_model("one-layer"), ck.models.heldout_rows(2, 12, seed=3)
    effects = ps.signed_effects(model, tokens)
    head, row, query, key = 2, 1, 9, 4

    def cut(pattern, hook):
        pattern = pattern.clone()
        pattern[:, head, query, key] = 0.0
        return pattern

    hooks = [("blocks.0.attn.hook_pattern", cut)]
    runs = [model(tokens), model.run_with_hooks(tokens, fwd_hooks=hooks)]
    answer = tokens[row, query + 1]
    centred = [logits[row, query, answer] - logits[row, query].mean() for logits in runs]
    assert torch.allclose(centred[0] - centred[1], effects[head, row, query, key], atol=1e-4)


def test_directions_in_front_of_a_layer_are_finite_differences():
    model, tokens = ck.load_model("two-layer"), ck.models.heldout_rows(2, 12, seed=3)
    query = 8
    step = 1e-2 * torch.randn(model.cfg.d_model, generator=torch.Generator().manual_seed(1))

    def centred(sign):
        def add(stream, hook):
            stream = stream.clone()
            stream[:, query] += sign * step
            return stream

        hooks = [("blocks.0.hook_resid_post", add)]
        logits = model.run_with_hooks(tokens, fwd_hooks=hooks)[:, query]
        return logits.gather(1, tokens[:, query + 1, None])[:, 0] - logits.mean(1)

    by_steps = (centred(1) - centred(-1)) / 2
    by_gradient = ps.next_token_directions(model, tokens, 0)[:, query] @ step
    assert torch.allclose(by_steps, by_gradient, atol=2e-4)


def test_heads_that_share_a_rule_share_pairs_and_others_do_not():
    generator = torch.Generator().manual_seed(0)
    for rules, is_above in ((3, True), (2, False)):
        model = toy.hand_specified(2, rules)
        pairs = ps.pairs_of(ps.signed_effects(model, model.task.sample(500, seed=1)))
        by_chance = ps.share_of_strong(ps.other_text(pairs, generator))["shared"]
        assert (ps.share_of_strong(pairs)["shared"] > 2 * by_chance) == is_above


def test_nulls_keep_the_effects_of_each_head_in_their_cells():
    generator = torch.Generator().manual_seed(0)
    effects = torch.arange(24.0).view(2, 3, 4)
    for drawn in (ps.other_text(effects, generator), ps.permuted(effects, generator)):
        assert torch.equal(drawn.flatten(1).sort().values, effects.flatten(1))
    cell = torch.tensor([0, 1, 0, 1, 2, 0])
    flat = torch.arange(12.0).view(2, 6)
    drawn = ps.matched(flat, cell, generator)
    for number in range(3):
        here = cell == number
        assert torch.equal(drawn[:, here].sort().values, flat[:, here])


@pytest.mark.parametrize("kind", ["constructive", "destructive"])
def test_planted_sharing_keeps_edges_and_is_found(kind):
    generator = torch.Generator().manual_seed(0)
    effects = torch.zeros(4, 200)
    effects[0] = 1.0
    found = ps.planted(effects, 0.05, generator, kind)
    assert torch.allclose(found.sum(0), effects.sum(0))
    constructive, destructive = ps.shared(found)
    assert int((constructive | destructive).sum()) == 10
    assert bool(constructive.any()) == (kind == "constructive")


def test_layers_without_a_direction_are_refused():
    with pytest.raises(ValueError, match="last two layers"):
        ps.signed_effects(ck.load_model("two-layer-mlp"), torch.zeros(1, 4, dtype=torch.long))


def test_no_two_heads_of_the_null_that_matches_take_their_effects_from_one_place():
    generator = torch.Generator().manual_seed(0)
    cell = torch.randint(0, 4, (60,), generator=generator)
    places = torch.arange(60.0).expand(3, 60)
    drawn = ps.matched_apart(places, cell, generator).long()
    assert torch.equal(cell[drawn], cell.expand(3, 60))
    assert all(len(set(three)) == 3 for three in drawn.T.tolist())
    assert all(sorted(own) == list(range(60)) for own in drawn.tolist())
    with pytest.raises(ValueError, match="2 places for 3 heads"):
        ps.matched_apart(places, torch.arange(60) // 2, generator)


def test_changes_over_models_have_the_interval_of_a_t_test_and_a_simulated_power():
    excess = pd.DataFrame([[0.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, np.nan]], index=["layer", "block"])
    found = changes_over_models(excess).loc["block"]
    half = (
        2.7764 * 2.5**0.5 / 5**0.5
    )  # the quantile of the t distribution with four degrees of freedom
    assert np.allclose(found[["change", "low", "high"]], [3, 3 - half, 3 + half], atol=1e-3)
    drawn = np.random.default_rng(0).normal(found.visible, 2.5**0.5, (20_000, 5))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / 5**0.5)
    assert abs((t > 2.7764).mean() - 0.8) < 0.015  # five standard errors
