"""The live trainer: its task, its model, its curves."""

import pytest
import torch

from circuitkit import heads_of
from circuitkit.induction import induction_loss, scores, train
from circuitkit.induction._made import Net, sinusoids, task_rows, to_bridge
from circuitkit.induction._stream import after_occurrences, earlier_occurrences

SMALL = {"d_vocab": 12, "n_ctx": 16, "d_content": 10, "d_head": 6, "d_pos": 4, "batch": 8}


def test_rows_repeat_spans_of_different_tokens():
    rows = task_rows(12, 16, 200, (4, 8), torch.Generator().manual_seed(0))
    periods = set()
    for row in rows.tolist():
        period = next(p for p in range(1, 16) if row[p] == row[0])
        periods.add(period)
        assert len(set(row[:period])) == period
        assert all(row[i] == row[i - period] for i in range(period, 16))
    assert periods == {4, 5, 6, 7, 8}


def test_the_bridge_is_the_same_function():
    net = Net(2, 12, sinusoids(16, 4), 10, 3, 6, seed=5).double()
    net.W_pos = net.W_pos.double()
    rows = torch.randint(0, 12, (3, 13), generator=torch.Generator().manual_seed(0))
    bridge = to_bridge(net)
    logits, cache = bridge.run_with_cache(rows)
    expected, patterns = net(rows)
    assert torch.allclose(logits, expected, atol=1e-12)
    for layer, pattern in enumerate(patterns):
        assert torch.allclose(cache[f"blocks.{layer}.attn.hook_pattern"], pattern, atol=1e-12)
    stack = heads_of(bridge)
    assert not stack.W_V[:, 10:].any()
    assert not stack.W_O[:, :, 10:].any()
    assert not bridge.W_U[10:].any()


def test_curves_are_what_the_bridge_says():
    """The first step's curves, measured again on the first checkpoint with the rows of that step."""
    run = train(2, n_heads=2, steps=3, seed=3, checkpoints=[0, 2, 3], **SMALL)
    assert run.loss.shape == run.accuracy.shape == (3,)
    assert run.prefix_matching.shape == run.previous_token.shape == (3, 4)
    assert sorted(run.checkpoints) == [0, 2, 3]
    rows = task_rows(12, 16, 8, (4, 8), torch.Generator().manual_seed(4))[:, :]
    seen, model = rows[:, :-1], run.checkpoints[0]
    found = scores(model, seen)
    assert run.prefix_matching[0] == pytest.approx(found.prefix_matching, abs=1e-5)
    assert run.previous_token[0] == pytest.approx(found.previous_token, abs=1e-5)
    logits = model(seen)
    losses, right = [], []
    for row in range(8):
        for t in range(15):
            if any(seen[row, p] == seen[row, t] for p in range(t)):
                losses.append(-logits[row, t].log_softmax(-1)[rows[row, t + 1]].item())
                right.append(float(logits[row, t].argmax() == rows[row, t + 1]))
    assert run.loss[0].item() == pytest.approx(sum(losses) / len(losses), abs=1e-4)
    assert run.accuracy[0].item() == pytest.approx(sum(right) / len(right), abs=1e-5)


def test_seeds_decide_and_the_global_state_is_left_alone():
    before = torch.get_rng_state()
    one, again, other = (train(1, steps=3, seed=seed, **SMALL) for seed in (0, 0, 1))
    assert torch.equal(one.loss, again.loss)
    assert not torch.equal(one.loss, other.loss)
    assert torch.equal(before, torch.get_rng_state())


def test_two_layers_learn_it_and_one_does_not():
    """A smaller task than the default one: a second instead of four."""
    small = {"d_vocab": 24, "n_ctx": 24, "d_content": 48, "batch": 48, "steps": 200}
    two, one = train(2, **small), train(1, n_heads=4, **small)
    assert two.accuracy[-1] > 0.95
    assert one.accuracy[-1] < 0.5
    assert two.onset(0.9) is not None
    assert two.onset(0.9) > two.onset(0.5) > 10
    assert one.onset(0.9) is None
    found = scores(two.model)
    assert found.top("prefix_matching", 1)[0][0] == "L1H0"
    assert found["L1H0"]["prefix_matching"] > 0.7
    assert induction_loss(two.model).accuracy > 0.9
    assert induction_loss(two.model, without=["L0H0->L1H0.K"]).accuracy < 0.3


def test_marks_of_a_training_batch():
    rows = task_rows(12, 16, 5, (4, 8), torch.Generator().manual_seed(0))
    assert torch.equal(after_occurrences(rows).any(-1), earlier_occurrences(rows).any(-1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_layers": 0}, "n_layers=0; expected an integer of at least 1"),
        ({"steps": 0}, "steps=0; expected an integer of at least 1"),
        ({"n_ctx": 7}, "n_ctx=7.*expected an integer of at least 8"),
        ({"d_vocab": 7}, "d_vocab=7, n_ctx=16; expected an integer of at least 8"),
        ({"d_pos": 3}, "d_pos=3; expected an even number.*Write d_pos=4"),
        ({"d_pos": 0}, "d_pos=0; expected an integer of at least 2"),
        ({"checkpoints": [0, 99]}, r"checkpoints=\[0, 99\], steps=5; expected steps from 0 to 5"),
    ],
)
def test_errors(settings, words):
    with pytest.raises(ValueError, match=words):
        train(**{**SMALL, "steps": 5, **settings})
