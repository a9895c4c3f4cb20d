"""The training loop, against loops written out in torch."""

import functools

import torch

from circuitkit.training import fit
from circuitkit_book.feature_toys import cosine_decay


def start(seed=0):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def distances(x):
    return lambda step: (x - step / 10).square().sum(1)


def test_fit_takes_the_same_steps_as_a_written_out_loop():
    x, y = start(), start()
    adamw = functools.partial(torch.optim.AdamW, betas=(0.9, 0.98), weight_decay=0.01)
    with torch.no_grad():  # a reader may call it inside no_grad
        losses = fit(
            [x],
            distances(x),
            30,
            learning_rate=cosine_decay(0.1, 30),
            optimizer=adamw,
            clip_norm=1.0,
        )
    descent = torch.optim.AdamW([y], lr=0.1, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, 30)
    expected = []
    for step in range(30):
        loss = distances(y)(step)
        descent.zero_grad()
        loss.sum().backward()
        torch.nn.utils.clip_grad_norm_([y], 1.0)
        descent.step()
        schedule.step()
        expected.append(loss.detach())
    torch.testing.assert_close(x, y, rtol=1e-6, atol=0)  # the schedule of torch is a recursion
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-6, atol=0)


def test_models_side_by_side_are_trained_as_if_alone():
    together, alone = start(), start()[1:2].detach().requires_grad_()
    fit([together], distances(together), 20, learning_rate=0.1)
    fit([alone], distances(alone), 20, learning_rate=0.1)
    assert torch.equal(together[1:2], alone)


def test_fit_leaves_frozen_parameters():
    x, frozen = start(), torch.ones(3, 4)
    fit([x, frozen], lambda step: (x - frozen).square().mean(), 4)
    assert torch.equal(frozen, torch.ones(3, 4))
