"""The OV-coherent task: its answers by a slow lookup, and its places."""

import pytest
import torch

from tools.study.coherent import OVCoherentTask


@pytest.mark.parametrize("n_signals", [1, 2, 4, 5])
def test_answers_by_lookup(n_signals):
    task = OVCoherentTask(n_signals=n_signals)
    tokens, answers = task.sample(500, 0)
    for prompt, answer in zip(tokens.tolist(), answers.tolist(), strict=True):
        signals = sorted(token for token in prompt if 1 <= token <= n_signals)
        assert len(signals) == 2
        assert task.pairs.index(tuple(signals)) == answer
        assert prompt[-1] == 0
        assert 0 not in prompt[:-1]
        assert max(prompt) < task.d_vocab


def test_the_public_sizes_and_uniform_places():
    task = OVCoherentTask()
    assert (task.d_vocab, len(task.pairs)) == (12, 10)
    tokens, answers = task.sample(40_000, 1)
    signal = ((tokens >= 1) & (tokens <= 4)).double().mean(0)
    assert (signal[:-1] - 2 / 7).abs().max() < 0.012
    same = torch.tensor([a == b for a, b in task.pairs])
    assert same[answers].double().mean().item() == pytest.approx(0.25, abs=0.012)
    assert torch.equal(tokens, task.sample(40_000, 1)[0])
