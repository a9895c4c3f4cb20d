"""Hand-made models: what they complete, as heads and as a bridge, and what cannot be made."""

import dataclasses

import pytest
import torch

from circuitkit.superposition import (
    SkipTrigramTask,
    ToyModel,
    blind_model,
    hand_specified,
    head_verdict,
    one_head_model,
    two_head_model,
)


def slow_logits(model: ToyModel, prompt: list[int]) -> torch.Tensor:
    """The model position by position and head by head, from its weight matrices."""
    heads, eye = model.heads, torch.eye(model.task.d_vocab)
    x = [model.W_E[token] for token in prompt]
    rows = []
    for dst in range(len(prompt)):
        out = x[dst].clone()
        for h in range(len(heads)):
            bias = lambda name: 0 if getattr(heads, name) is None else getattr(heads, name)[h]  # noqa: B023, E731
            q = x[dst] @ heads.W_Q[h] + bias("b_Q")
            scores = torch.stack(
                [q @ (x[src] @ heads.W_K[h] + bias("b_K")) / heads.scale for src in range(dst + 1)]
            )
            weights = torch.exp(scores - scores.max())
            weights = weights / weights.sum()
            for src in range(dst + 1):
                out = out + weights[src] * ((x[src] @ heads.W_V[h] + bias("b_V")) @ heads.W_O[h])
        rows.append(out @ model.W_U @ eye)
    return torch.stack(rows)


def test_two_heads_three_trigrams_number_by_number():
    """Trigram 3: each head alone says its own completion louder; together they agree on the third."""
    model = hand_specified(2, 3, gain=4.0)
    prompt = torch.tensor([[7, 0, 5, 3]])  # beginning, source, a filler, destination 3
    heads, residual = (part[0, ..., -1, :] for part in model.run(prompt))
    assert heads[0].round(decimals=4).tolist() == [0, 0, 0, 0, 4, -2, 3, 0]
    assert heads[1].round(decimals=4).tolist() == [0, 0, 0, 0, -2, 4, 3, 0]
    assert residual.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert model.logits(prompt)[0, -1].argmax() == 6


@pytest.mark.parametrize(
    "make", [lambda: hand_specified(2, 3), lambda: two_head_model(3), lambda: one_head_model(2)]
)
def test_logits_against_a_slow_loop(make):
    model = make()
    prompt = model.task.sample(1, 4)[0].tolist()
    assert torch.allclose(
        model.logits(torch.tensor([prompt]))[0], slow_logits(model, prompt), atol=1e-5
    )


@pytest.mark.parametrize(
    ("n_heads", "n_trigrams"), [(2, 3), (3, 4), (4, 5), (3, 6), (4, 10), (2, 2), (3, 2)]
)
def test_shared_trigrams_are_carried_by_no_head(n_heads, n_trigrams):
    model = hand_specified(n_heads, n_trigrams)
    verdict = head_verdict(model, model.task, rows=60)
    assert verdict.not_learnt == ()
    assert verdict.distributed == tuple(range(n_heads + 1, n_trigrams + 1))
    assert [verdict.carriers(i + 1) for i in range(min(n_heads, n_trigrams))] == [
        (i,) for i in range(min(n_heads, n_trigrams))
    ]


def test_a_trigram_shared_by_all_four_heads():
    model = hand_specified(4, 5, shared=[(0, 1, 2, 3)])
    verdict = head_verdict(model, model.task, rows=60)
    assert verdict.distributed == (5,)
    alone = model.run(torch.tensor([[11, 0, 5, 5]]))[0][0, :, -1]
    assert all(int(alone[list(kept)].sum(0).argmax()) != 10 for kept in [(0,), (3,)])
    assert int(alone.sum(0).argmax()) == 10


@pytest.mark.parametrize("n_trigrams", [1, 3, 20])
@pytest.mark.parametrize("make", [two_head_model, one_head_model])
def test_constructions_complete_any_number_and_nothing_else(make, n_trigrams):
    model = make(n_trigrams)
    task = model.task
    tokens = (
        task.sample(3000, 0)
        if n_trigrams < 20
        else torch.cat([task.sample(3000, 0), _planted(task)])
    )
    logits, states = model.logits(tokens), task.states(tokens)
    destination = task.is_destination(tokens)
    seen = (tokens == 0).cumsum(1) > 0
    assert (states == 2).sum() > 100
    predicted = logits.argmax(-1)
    assert (predicted[destination & seen] == tokens[destination & seen] + n_trigrams).all()
    rest = ~(destination & seen)
    expected = torch.eye(task.d_vocab)[tokens[rest]]
    assert (logits[rest] - expected).abs().max() < 1e-4


def _planted(task):
    rows = [[task.bos, 0, b, b + task.n_trigrams, *[task.bos] * 7] for b in task.destinations]
    return torch.tensor(rows * 10)


def test_one_head_says_what_two_heads_say():
    tokens = SkipTrigramTask(5).sample(500, 1)
    assert (two_head_model(5).logits(tokens) - one_head_model(5).logits(tokens)).abs().max() < 1e-5


@pytest.mark.parametrize(
    "make",
    [
        lambda: hand_specified(4, 5),
        lambda: two_head_model(3),
        lambda: one_head_model(3),
        lambda: blind_model(3),
    ],
)
def test_as_a_bridge_and_as_heads(make):
    import circuitkit

    model = make()
    tokens = model.task.sample(20, 3)
    bridge = model.bridge()
    with torch.no_grad():
        assert (bridge(tokens) - model.logits(tokens)).abs().max() < 1e-4
    assert torch.allclose(circuitkit.heads_of(bridge).OV.AB, model.heads.OV.AB)


def test_rank_of_the_constructions():
    assert torch.linalg.matrix_rank(two_head_model(4).heads.OV.AB).tolist() == [4, 4]
    assert hand_specified(4, 5).heads.d_head == 1
    assert hand_specified(4, 4).heads.d_head == 1


def test_errors_say_what_to_write():
    with pytest.raises(ValueError, match=r"4 trigrams on 2 heads.*two_head_model"):
        hand_specified(2, 4)
    with pytest.raises(ValueError, match=r"(?s)shared has 2 groups for 1 .*\[0, 1\] lies inside"):
        hand_specified(4, 5, shared=[(0, 1), (0, 1, 2)])
    with pytest.raises(ValueError, match="needs two or more heads below 4"):
        hand_specified(4, 5, shared=[(0, 7)])
    with pytest.raises(ValueError, match="n_heads=0; expected an integer of at least 1"):
        hand_specified(0, 1)
    model = hand_specified(2, 3)
    with pytest.raises(ValueError, match=r"W_E of shape \(8, 8\).*expected W_E \[10, 8\]"):
        ToyModel(model.heads, SkipTrigramTask(4), model.W_E, model.W_U)


def test_the_repr_counts():
    assert repr(two_head_model(3)) == "ToyModel(2 heads, 3 trigrams, d_head=3)"


def test_biases_go_into_the_bridge():
    model = hand_specified(2, 3)
    draw = lambda: torch.randn(2, 1, generator=torch.Generator().manual_seed(1))  # noqa: E731
    heads = dataclasses.replace(model.heads, b_Q=draw(), b_K=draw(), b_V=draw())
    biased = ToyModel(heads, model.task, model.W_E, model.W_U)
    tokens = model.task.sample(20, seed=1)
    assert (biased.logits(tokens) - model.logits(tokens)).abs().max() > 0.1
    assert torch.allclose(biased.bridge()(tokens), biased.logits(tokens), atol=1e-4)
