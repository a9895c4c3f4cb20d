"""Logits as sums: by hand, against the slow forward pass, against transformer-lens."""

import pytest
import torch

from circuitkit.residual import decompose, logit_attribution


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), atol=tolerance, rtol=tolerance)


@pytest.fixture(scope="module")
def answers():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 37, (2, 2, 9), generator=generator).unbind(0)


def test_by_hand(boot):
    """No layers, three dimensions, LayerNorm: (3, 0, 0) centred is (2, -1, -1), whose variance is 2."""
    root = (2 + 1e-5) ** 0.5
    model = boot(
        d_model=3, d_head=1, n_heads=1, n_layers=0, d_vocab=2, n_ctx=1, normalization_type="LN"
    )
    with torch.no_grad():
        state = model.state_dict()
        state["embed.weight"].copy_(torch.tensor([[3.0, 0, 0], [0.0, 0, 0]]))
        state["pos_embed.weight"].zero_()
        state["ln_final.weight"].copy_(torch.tensor([1.0, 2.0, 1.0]))
        state["ln_final.bias"].copy_(torch.tensor([0.0, 10.0, 0.0]))
        state["unembed.weight"].copy_(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    out = logit_attribution(model, torch.tensor([[0]]), torch.tensor([[0]]))
    assert out.names == ("embed", "pos", "norm bias")
    close(out.values[:, 0, 0], [-2 / root, 0.0, 10.0])  # -1 / root, times the gain of 2
    close(out.total, [[10 - 2 / root]])
    versus = logit_attribution(model, torch.tensor([[0]]), torch.tensor([[0]]), torch.tensor([[1]]))
    close(versus.values[:, 0, 0], [-2 / root - 2 / root, 0.0, 10.0])


def test_parts_against_a_slow_forward_pass(model, kind, tokens, answers, slow, tolerance):
    """Each component's share, with the divisor of the slow pass, and the sum against its logits."""
    answer, versus = answers
    out, contrast = (
        logit_attribution(model, tokens, answer),
        logit_attribution(model, tokens, answer, versus),
    )
    w, centred = model.state_dict(), kind in ("LN", "LNPre")
    for row in range(2):
        parts, divisors, logits = slow(model, tokens[row].tolist())
        bias = w.get("ln_final.bias")
        assert list(out.names) == [*parts, *(["norm bias"] if bias is not None else [])]
        for i in range(9):
            to, away = int(answer[row, i]), int(versus[row, i])
            for at, part in enumerate(parts.values()):
                read = part[i] - part[i].mean() if centred else part[i]
                read = read / (divisors[i] or 1.0) * w.get("ln_final.weight", 1.0)
                close(out.values[at, row, i], read @ w["unembed.weight"][to], 20 * tolerance)
                both = read @ (w["unembed.weight"][to] - w["unembed.weight"][away])
                close(contrast.values[at, row, i], both, 20 * tolerance)
            if bias is not None:
                close(out.values[-1, row, i], bias @ w["unembed.weight"][to], 20 * tolerance)
            close(out.total[row, i], logits[i, to], 20 * tolerance)
            close(contrast.total[row, i], logits[i, to] - logits[i, away], 20 * tolerance)


def test_sums_to_the_logit(model, tokens, answers, tolerance):
    out = logit_attribution(model, tokens, *answers)
    close(out.values.sum(0), out.total, 20 * tolerance)
    with torch.no_grad():
        logits = model(tokens)
    answer, versus = answers
    expected = [
        [logits[b, i, answer[b, i]] - logits[b, i, versus[b, i]] for i in range(9)]
        for b in range(2)
    ]
    close(out.total, expected, 20 * tolerance)
    swapped = logit_attribution(model, tokens, versus, answer)
    close(swapped.values, -out.values)


def test_against_the_mean_of_the_vocabulary(model, tokens, answers, tolerance):
    """The mean over all 37 answers of the plain attribution, taken one answer at a time, is what is subtracted."""
    answer = answers[0]
    plain = logit_attribution(model, tokens, answer)
    each = [logit_attribution(model, tokens, torch.full_like(answer, token)) for token in range(37)]
    out = logit_attribution(model, tokens, answer, "mean")
    assert out.names == plain.names
    close(out.values, plain.values - sum(one.values for one in each) / 37, 20 * tolerance)
    close(out.total, plain.total - sum(one.total for one in each) / 37, 20 * tolerance)


@pytest.mark.parametrize("kind_of_norm", [None, "LNPre"])
def test_against_transformer_lens(boot, tokens, answers, kind_of_norm):
    """Its `logit_attrs` leaves gains out, so the comparison is on models without them."""
    model = boot(attn_only=kind_of_norm is None, normalization_type=kind_of_norm)
    split, out = decompose(model, tokens), logit_attribution(model, tokens, *answers)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    close(
        out.values,
        cache.logit_attrs(split.parts, *answers),
        1e-12 if kind_of_norm is None else 1e-6,
    )


def test_a_hugging_face_model(gpt2, tokens, answers):
    """Against transformer-lens after folding, where gains are in the unembedding; float32."""
    out = logit_attribution(gpt2, tokens, *answers)
    assert out.names[-2:] == ("L1 MLP", "norm bias")
    close(out.values.sum(0), out.total, 1e-5)
    norm, W_U, split = gpt2.ln_final, gpt2.W_U.detach().double(), decompose(gpt2, tokens)
    final = split.total.double()
    scale = (final.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    for at, name in enumerate(split.names):
        part = split[name].double()
        read = (part - part.mean(-1, keepdim=True)) / scale * norm.weight.detach().double()
        direction = (W_U[:, answers[0]] - W_U[:, answers[1]]).permute(1, 2, 0)
        close(out.values[at].double(), (read * direction).sum(-1), 1e-5)


def test_folded_hugging_face_model(gpt2, tokens, answers):
    """After transformer-lens has folded norms and centred weights, the unembedding has a bias, and the sum holds."""
    import copy

    folded = copy.deepcopy(gpt2)
    folded.enable_compatibility_mode()
    out = logit_attribution(folded, tokens, *answers)
    assert out.names[-1] == "unembed bias"
    close(out.values.sum(0), out.total, 1e-5)
    with torch.no_grad():
        _, cache = folded.run_with_cache(tokens)
    close(out.values[:-1], cache.logit_attrs(decompose(folded, tokens).parts, *answers), 1e-5)
    close(
        out.total, logit_attribution(gpt2, tokens, *answers).total, 1e-4
    )  # a difference of logits is untouched
    b_U = folded.b_U.detach()
    close(out.values[-1], b_U[answers[0]] - b_U[answers[1]])
    mean = logit_attribution(folded, tokens, answers[0], "mean")
    close(mean.values[-1], b_U[answers[0]] - b_U.mean())
    alone = logit_attribution(folded, tokens, answers[0])
    close(alone.values[-1], b_U[answers[0]])
    close(alone.values.sum(0), alone.total, 1e-5)


@pytest.mark.usefixtures("as_a_reader")
def test_wrong_shapes_and_ids(plain, tokens, answers):
    answer, versus = answers
    with pytest.raises(
        ValueError, match=r"answer of shape \(2, 8\), .*\[batch, pos\] with batch=2, pos=9"
    ):
        logit_attribution(plain, tokens, answer[:, 1:])
    with pytest.raises(
        ValueError, match=r"versus of shape \(1, 9\), .*\[batch, pos\] with batch=2, pos=9"
    ):
        logit_attribution(plain, tokens, answer, versus[:1])
    with pytest.raises(
        ValueError,
        match=r"answer of shape .*from -1 to -1; expected ids in 0\.\.36, .*model\.to_tokens",
    ):
        logit_attribution(plain, tokens, torch.full_like(answer, -1))
    with pytest.raises(
        ValueError,
        match=r"versus='median'; expected a torch tensor of integers .* or one of \['mean'\] or None",
    ):
        logit_attribution(plain, tokens, answer, "median")
    with pytest.raises(
        ValueError, match=r"versus of shape .*from 37 to 37; expected ids in 0\.\.36"
    ):
        logit_attribution(plain, tokens, answer, torch.full_like(answer, 37))


def test_a_soft_cap_is_refused(boot, tokens, answers):
    with pytest.raises(
        ValueError,
        match=r"logits are no sum over parts, because its logits are capped at 2; .*output_logits_soft_cap",
    ):
        logit_attribution(boot(output_logits_soft_cap=2.0), tokens, answers[0])


def test_not_a_bridge(tokens, answers):
    with pytest.raises(
        ValueError, match=r"logit_attribution got model as a Identity; expected a transformer-lens"
    ):
        logit_attribution(torch.nn.Identity(), tokens, answers[0])
