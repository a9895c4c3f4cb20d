"""What the manifest says was measured, measured again; and what the shipped models promise."""

import numpy as np
import pytest
import torch

from circuitkit.models import corpus_statistics, model_card

PERIOD = 127  # rows of 256: <|endoftext|>, a span, the span again, and its first token


@pytest.fixture(scope="module")
def repeated(heldout):
    """Rows of spans that come twice: `(random tokens, real text)`, drawn as the packing script draws them."""
    counts = corpus_statistics().unigram.double()
    counts[0] = 0
    rng = np.random.default_rng(2)
    starts = rng.integers(0, len(heldout) - 256, size=64)
    random = torch.from_numpy(
        rng.choice(2048, size=(64, PERIOD), p=(counts / counts.sum()).numpy())
    )
    real = torch.stack([heldout[at : at + PERIOD] for at in starts])
    bos = torch.zeros(64, 1, dtype=torch.long)
    return tuple(torch.cat([bos, span, span, span[:, :1]], dim=1) for span in (random, real))


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


@torch.no_grad()
def test_measured_on_repeated_rows(model, name, repeated):
    """Head scores, losses and accuracy on the packing script's rows, position by position."""
    measured = model_card(name)["measured"]
    for kind, rows in zip(("random", "real"), repeated, strict=True):
        attended = {}
        hits, first, second = [], [], []
        for part in rows.split(16):
            logits, cache = model.run_with_cache(
                part, names_filter=lambda hook: hook.endswith("hook_pattern")
            )
            log_p = logits.log_softmax(-1)
            for i in range(1, PERIOD):
                first.append(-log_p[:, i].gather(1, part[:, i + 1, None]))
            for i in range(PERIOD + 1, 2 * PERIOD):
                second.append(-log_p[:, i].gather(1, part[:, i + 1, None]))
                hits.append((logits[:, i].argmax(-1) == part[:, i + 1]).float())
            for layer in range(model.cfg.n_layers):
                pattern = cache[f"blocks.{layer}.attn.hook_pattern"]
                # The second copy of a token lies PERIOD later; what followed the first copy, PERIOD - 1 before it.
                match = [pattern[:, :, i, i - PERIOD + 1] for i in range(PERIOD + 1, 256)]
                back = [pattern[:, :, i, i - 1] for i in range(1, 256)]
                for what, values in (("prefix_matching", match), ("previous_token", back)):
                    attended.setdefault((layer, what), []).append(torch.stack(values).mean((0, 1)))
        assert torch.cat(hits).mean().item() == pytest.approx(measured[f"{kind}_top1"], abs=2e-3)
        assert torch.cat(first).mean().item() == pytest.approx(measured[f"{kind}_first"], abs=1e-3)
        assert torch.cat(second).mean().item() == pytest.approx(
            measured[f"{kind}_second"], abs=1e-3
        )
        for (layer, what), values in attended.items():
            for head, score in enumerate(torch.stack(values).mean(0).tolist()):
                recorded = measured["heads"][f"L{layer}H{head}"][f"{what}_{kind}"]
                assert score == pytest.approx(recorded, abs=1e-3), (layer, head, what, kind)
