"""The model that learns induction: its task, its network, its curves."""

import pytest
import torch

from circuitkit import heads_of
from circuitkit.induction import scores
from circuitkit_book.induction_training import InductionNet, task_rows, train_induction_model

SMALL = {"d_vocab": 12, "n_ctx": 16, "batch": 8}


def test_rows_repeat_spans_of_different_tokens():
    rows = task_rows(12, 16, 200, (4, 8), torch.Generator().manual_seed(0))
    periods = set()
    for row in rows.tolist():
        period = next(p for p in range(1, 16) if row[p] == row[0])
        periods.add(period)
        assert len(set(row[:period])) == period
        assert all(row[i] == row[i - period] for i in range(period, 16))
    assert periods == {4, 5, 6, 7, 8}


def test_the_bridge_computes_what_the_trained_network_computes():
    net = InductionNet(2, 3, 12, 16, seed=5)
    rows = torch.randint(0, 12, (3, 13), generator=torch.Generator().manual_seed(0))
    bridge = net.to_bridge()
    logits, cache = bridge.run_with_cache(rows)
    expected, patterns = net(rows)
    assert torch.allclose(logits, expected, atol=1e-12)
    found = torch.cat([cache["pattern", 0], cache["pattern", 1]], dim=1)
    assert torch.allclose(found, patterns, atol=1e-12)
    heads, d_content = heads_of(bridge), net.W_E.shape[1]
    assert not heads.W_V[:, d_content:].any()  # positions are never moved or written
    assert not heads.W_O[:, :, d_content:].any()
    assert not bridge.W_U[d_content:].any()


def test_curves_are_the_scores_of_the_untrained_model_in_the_first_step():
    """`scores` and a loop over positions, on the rows of that step."""
    training = train_induction_model(2, n_heads=2, steps=3, seed=3, **SMALL)
    assert training.loss.shape == training.accuracy.shape == (3,)
    assert training.prefix_matching.shape == training.previous_token.shape == (3, 4)
    rows = task_rows(12, 16, 8, (4, 8), torch.Generator().manual_seed(4))
    seen, model = rows[:, :-1], InductionNet(2, 2, 12, 16, seed=3).to_bridge()
    table = scores(model, seen)
    for curve, behaviour in (
        ("prefix_matching", "prefix matching"),
        ("previous_token", "previous token"),
    ):
        expected = table.select(behaviour=behaviour).values
        assert getattr(training, curve)[0] == pytest.approx(expected, abs=1e-9)
    logits = model(seen)
    losses, right = [], []
    for row in range(8):
        for t in range(15):
            if any(seen[row, p] == seen[row, t] for p in range(t)):
                losses.append(-logits[row, t].log_softmax(-1)[rows[row, t + 1]].item())
                right.append(float(logits[row, t].argmax() == rows[row, t + 1]))
    assert training.loss[0].item() == pytest.approx(sum(losses) / len(losses), abs=1e-9)
    assert training.accuracy[0].item() == pytest.approx(sum(right) / len(right), abs=1e-9)


def test_a_task_without_room_for_a_span_is_refused():
    for settings in ({"n_ctx": 7}, {"n_ctx": 16, "d_vocab": 7}):
        with pytest.raises(ValueError, match="n_ctx must be at least 8"):
            train_induction_model(steps=5, **settings)
