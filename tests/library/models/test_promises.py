"""What the manifest says was measured, measured again."""

import pytest
import torch

from circuitkit.models import model_card


@pytest.mark.weekly  # 20 seconds; the files have hashes, and their logits are compared at every change
@torch.no_grad()
def test_heldout_loss(name, heldout, stored_logits):
    """All held-out text, from the stored file alone, to the fourth figure."""
    measured, total, scored = model_card(name)["measured"], 0.0, 0
    rows = heldout[: len(heldout) // 255 * 255].view(-1, 255)
    rows = torch.cat([torch.zeros(len(rows), 1, dtype=torch.long), rows], dim=1)
    for part in rows.split(8):
        logits, target = stored_logits(name, part)[:, :-1], part[:, 1:]
        nll = logits.logsumexp(-1) - logits.gather(-1, target[..., None])[..., 0]
        total, scored = (
            total + nll[target != 0].double().sum().item(),
            scored + int((target != 0).sum()),
        )
    assert scored == measured["heldout_tokens"]
    assert total / scored == pytest.approx(measured["heldout_loss"], abs=1e-3)
