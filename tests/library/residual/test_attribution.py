"""A logit as a sum: by hand, and against the model and transformer-lens."""

import copy

import pytest
import torch

import circuitkit as ck
from circuitkit.residual import decompose, logit_attribution, why
from tests.support import tiny_models, zoo

TEXT = "The house belonged to Mr. Dorling. Nobody had seen Mr. D"


@pytest.fixture(scope="module")
def answers():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 37, (2, 2, 9), generator=generator).unbind(0)


def test_by_hand(boot, close):
    """No layers, three dimensions, LayerNorm: (3, 0, 0) centred is (2, -1, -1), of variance 2."""
    root = (2 + 1e-5) ** 0.5
    sizes = {"d_model": 3, "d_head": 1, "n_heads": 1, "n_layers": 0, "d_vocab": 2, "n_ctx": 1}
    model = boot(**sizes, normalization_type="LN")
    with torch.no_grad():
        state = model.state_dict()
        state["embed.weight"].copy_(torch.tensor([[3.0, 0, 0], [0.0, 0, 0]]))
        state["pos_embed.weight"].zero_()
        state["ln_final.weight"].copy_(torch.tensor([1.0, 2.0, 1.0]))
        state["ln_final.bias"].copy_(torch.tensor([0.0, 10.0, 0.0]))
        state["unembed.weight"].copy_(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    shares = logit_attribution(model, torch.tensor([0]), 0)
    assert shares.names == ("embed", "pos", "norm bias")
    close(shares.values[:, 0, 0], [-2 / root, 0.0, 10.0])  # -1 / root, times the gain of 2
    versus = logit_attribution(model, torch.tensor([0]), 0, 1)
    close(versus.values[:, 0, 0], [-2 / root - 2 / root, 0.0, 10.0])


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        # transformer-lens computes an RMS norm, and a norm without gain, in float32
        ({"normalization_type": "LN", "final_rms": True}, 2e-5),
        ({"n_layers": 0, "unembedding_bias": True}, 1e-12),
    ],
    ids=str,
)
def test_shares_sum_to_the_logit(boot, tokens, answers, close, settings, tolerance):
    model, (answer, versus) = boot(attn_only=False, **settings), answers
    logits = model(tokens).detach()
    expected = logits.gather(2, answer[..., None]) - logits.gather(2, versus[..., None])
    shares = logit_attribution(model, tokens, answer, versus)
    close(shares.values.sum(0), expected[..., 0], tolerance)
    mean = logit_attribution(model, tokens, answer, "mean")
    expected = logits.gather(2, answer[..., None])[..., 0] - logits.mean(-1)
    close(mean.values.sum(0), expected, tolerance)


def test_a_folded_model_has_an_unembedding_bias(gpt2, tokens, answers, close):
    answer, versus = answers
    folded = copy.deepcopy(gpt2)
    folded.enable_compatibility_mode()
    b_U = folded.b_U.detach()
    shares = logit_attribution(folded, tokens, answer, versus)
    assert shares.names[-1] == "unembed bias"
    close(shares["unembed bias"], b_U[answer] - b_U[versus])
    with torch.no_grad():
        _, cache = folded.run_with_cache(tokens)
    expected = cache.logit_attrs(decompose(folded, tokens).values, answer, versus)
    close(shares.values[:-1], expected, 1e-5)
    # a difference of logits does not change
    unfolded = logit_attribution(gpt2, tokens, answer, versus)
    close(shares.values.sum(0), unfolded.values.sum(0), 1e-4)
    mean = logit_attribution(folded, tokens, answer, "mean")
    close(mean["unembed bias"], b_U[answer] - b_U.mean(), 1e-6)  # float32, summed in another order


def test_why_is_the_attribution_at_one_position(close):
    model = ck.load_model("two-layer")
    shares = ck.why(model, TEXT, "or")
    answer = model.to_single_token("or")
    tokens = model.to_tokens(TEXT)
    logits = model(tokens)[0, -1].detach()
    close(shares.values.sum(), logits[answer] - logits.mean(), 1e-4)
    assert shares.names == logit_attribution(model, tokens, answer).names
    assert list(shares.top(1).names) == ["L1H3"]
    assert torch.equal(why(model, tokens[0], answer, position=-1).values, shares.values)
    against = why(model, TEXT, "or", versus="an", position=4)
    expected = logit_attribution(model, TEXT, "or", "an")
    assert torch.equal(against.values, expected.values[:, 0, 4])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m, t: logit_attribution(m, t, t[:, 1:]), ValueError, r"\(2, 8\).*\(2, 9\)"),
        (lambda m, t: logit_attribution(m, t, 37), ValueError, "outside the vocabulary, 0 to 36"),
        (lambda m, t: why(m, t, [3, 4, 5]), ValueError, r"\(3, 9\).* one for each text"),
        (lambda m, t: why(m, t[0], 3, position=9), ValueError, "position=9.* 9 tokens"),
    ],
)
def test_wrong_arguments(plain, tokens, call, error, text):
    with pytest.raises(error, match=text):
        call(plain, tokens)


def test_logits_that_are_no_sum_are_refused(boot, tokens):
    with pytest.raises(ValueError, match="no sum over its parts, because they are capped at 2"):
        logit_attribution(boot(output_logits_soft_cap=2.0), tokens, 3)
    with pytest.raises(ValueError, match=r"because a network \(mlm_head\) computes them"):
        why(zoo.make("bert"), tokens[0], 3)


def test_a_model_with_nan_in_its_weights_has_no_parts(boot):
    model = boot(d_model=6, d_head=3, n_heads=2, n_layers=1, d_vocab=9, n_ctx=4)
    tokens = torch.tensor([[1, 5, 2]])
    with torch.no_grad():
        model.blocks[0].attn.q.original_component.weight[0, 0] = torch.nan
    for call in (lambda: why(model, tokens[0], 3), lambda: decompose(model, tokens)):
        with pytest.raises(ValueError, match="holds NaN"):
            call()


def test_names_do_not_depend_on_the_weights():
    """At step 0 of a training all biases are zero."""
    from circuitkit.paths import path_logits

    rows = torch.tensor([[3, 5, 3, 4]])
    sizes = zoo.NATIVE | {"attn_only": False, "d_mlp": 20, "normalization_type": "LN"}
    trained, fresh = (tiny_models.boot(**sizes, bias=bias) for bias in (True, False))
    assert [bool(model.blocks[0].attn.b_O.any()) for model in (trained, fresh)] == [True, False]
    for model in (trained, fresh):
        assert decompose(model, rows).names[6:8] == ("L0 bias", "L0 MLP")
        assert logit_attribution(model, rows, 5).names[-2:] == ("L1 MLP", "norm bias")
        assert "bias" in path_logits(model, rows)
        model.enable_compatibility_mode()
        assert logit_attribution(model, rows, 5).names[-2:] == ("L1 MLP", "unembed bias")
    without_biases = ck.load_model("two-layer")
    assert "L0 bias" not in decompose(without_biases, rows).names
    assert "bias" not in path_logits(without_biases, rows)
