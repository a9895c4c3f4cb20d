"""What a researcher gives by mistake: half precision, lists for tokens, another model, a stream that does not fit."""

import copy
import dataclasses
import re

import pytest
import torch

import circuitkit as ck
from circuitkit import circuits, induction, paths, residual, superposition
from circuitkit_book import claims
from tests.support import tiny_models

SIZES = {
    "d_model": 12,
    "d_head": 4,
    "n_layers": 2,
    "n_ctx": 16,
    "n_heads": 3,
    "d_vocab": 23,
    "d_mlp": 19,
}
TOKENS = torch.arange(8)[None]
HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def model():
    return tiny_models.boot(torch.float32, attn_only=False, normalization_type="LN", **SIZES)


@pytest.fixture(scope="module")
def coarse():
    return tiny_models.boot(torch.bfloat16, attn_only=False, normalization_type="LN", **SIZES)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("scale_free", [False, True])
def test_composition_of_heads_in_half_precision(model, dtype, scale_free):
    heads = ck.heads_of(model).to(dtype)
    found = circuits.composition_scores(heads[:3], heads[3:], "K", scale_free=scale_free)
    again = heads.to(torch.float32)
    expected = circuits.composition_scores(again[:3], again[3:], "K", scale_free=scale_free)
    assert found.score.dtype == torch.float32
    torch.testing.assert_close(found.score, expected.score, rtol=0, atol=0)
    assert found.baseline == expected.baseline


def test_heads_of_two_dtypes_meet_in_the_finer_one(model):
    heads = ck.heads_of(model)
    fine = heads.to(torch.float64)
    for one, two in ((heads[:3], fine[3:]), (fine[:3], heads[3:])):
        found = circuits.composition_scores(one, two, "V", baseline="analytic").score
        assert found.dtype == torch.float64
        expected = circuits.composition_scores(fine[:3], fine[3:], "V", baseline="analytic").score
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert circuits.virtual_head(heads["L0H0"], fine["L1H0"]).W_V.dtype == torch.float64
    torch.testing.assert_close(
        circuits.copying_score(fine, model).score.float(),
        circuits.copying_score(model).score,
        rtol=0,
        atol=1e-4,
    )


def test_half_precision_gives_the_same_to_its_rounding(coarse):
    fine = copy.deepcopy(coarse).to(torch.float32)
    near = lambda a, b: float((a.float() - b).norm() / b.norm()) < 0.03  # noqa: E731
    found, wanted = (residual.decompose(m, TOKENS).values for m in (coarse, fine))
    assert near(found, wanted)
    assert near(paths.path_logits(coarse, TOKENS).sum(), fine(TOKENS).detach())
    found, wanted = (
        paths.score_decomposition(m, TOKENS, "L1H0", 3, 2).values for m in (coarse, fine)
    )
    assert near(found, wanted)


CALLS = {
    "probe": lambda model, tokens: ck.to_attention_only(model, heads_per_neuron=1, probe=tokens),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (TOKENS + 20, r"from 20 to 27; expected ids in 0..22, the model's vocabulary"),
        (TOKENS - 1, r"from -1 to 6; expected ids in 0..22"),
        (TOKENS.repeat(1, 3), r"shape \(1, 24\), .*at most 16, the model's context"),
    ],
)
def test_ids_the_model_cannot_read(model, call, tokens, words):
    with pytest.raises(ValueError, match=words):
        call(model, tokens)


def test_nothing_to_decompose(model):
    with pytest.raises(
        ValueError, match=r"got probe of shape \(0, 5\), .*with at least 1 position"
    ):
        ck.to_attention_only(model, heads_per_neuron=1, probe=torch.empty(0, 5, dtype=torch.long))


@pytest.mark.usefixtures("as_a_reader")
def test_a_stream_that_the_heads_cannot_read(model):
    heads, good = ck.heads_of(model), torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    for x, words in (
        (
            good[:, :11],
            "shape (5, 11), torch.float32; expected [..., pos, d_model] with d_model=12, torch.float32",
        ),
        (good[0], "shape (12,)"),
        (
            good.double(),
            "torch.float64; expected [..., pos, d_model] with d_model=12, torch.float32",
        ),
        (good.tolist(), "a list; expected a torch tensor of floating-point numbers"),
    ):
        for call in (heads.scores, heads.pattern, heads.results):
            with pytest.raises(ValueError, match=re.escape(words)):
                call(x)
    assert heads.to(torch.float64).pattern(good.double()).shape == (6, 5, 5)


@pytest.mark.parametrize("given", [0.0, -1.0, float("inf"), float("nan")])
def test_a_range_of_gates_that_is_none(model, given):
    with pytest.raises(
        ValueError, match=f"gate_range={given!r}; expected a positive, finite number"
    ):
        ck.to_attention_only(model, heads_per_neuron=4, gate_range=given)


@pytest.mark.usefixtures("as_a_reader")
def test_stack_wants_heads(model):
    heads = ck.heads_of(model)
    with pytest.raises(
        ValueError, match=r"stack got parts as a list; expected Heads.*stack\(\*list_of_heads\)"
    ):
        ck.stack([heads])
    with pytest.raises(
        ValueError, match=r"stack got parts as a TransformerBridge; .*circuitkit.heads\(model\)"
    ):
        ck.stack(model)


@pytest.mark.usefixtures("as_a_reader")
def test_claims_by_another_thing_than_their_id():
    for call in (claims.find, claims.check, claims.recompute):
        with pytest.raises(ValueError, match="got id=2.2; expected a text.*Put it in quotes"):
            call(2.2)


def toy(n, dtype=torch.float32):
    v = 2 * n + 2
    heads = circuits.random_heads(2, v, 3).to(dtype)
    return superposition.ToyModel(
        heads,
        superposition.SkipTrigramTask(n),
        torch.eye(v, dtype=dtype),
        torch.eye(v, dtype=dtype),
    )


@pytest.mark.usefixtures("as_a_reader")
def test_a_toy_model_and_what_does_not_fit_it():
    made = toy(3)
    with pytest.raises(
        ValueError, match=r"W_U of shape \(8, 8\).*\[d_model, d_vocab\] with d_model=9"
    ):
        dataclasses.replace(made, W_E=torch.zeros(8, 9))
    with pytest.raises(
        ValueError,
        match=r"from 0 to 11; expected \[prompt, pos\] with tokens 0 to 7, as the task of 3 trigrams has",
    ):
        superposition.head_verdict(made, superposition.SkipTrigramTask(5))
    for task, shown in ((superposition.SkipTrigramTask, "SkipTrigramTask"), (3, "3")):
        with pytest.raises(
            ValueError,
            match=f"got task={shown}; expected a task, because prompts are drawn from it. Write model.task",
        ):
            superposition.head_verdict(made, task)
    with pytest.raises(ValueError, match="got recipe='gates'; expected a Recipe.*GATES.but"):
        superposition.train_gated(made, "gates")
    for dtype in HALF:
        with pytest.raises(
            ValueError,
            match=r"in float32 or float64, because training amplifies rounding. Write model.to",
        ):
            superposition.train_gated(toy(3, dtype), inits=1, steps=1)


@pytest.mark.usefixtures("as_a_reader")
def test_induction_scores_of_a_list_and_of_truth_values(model):
    with pytest.raises(ValueError, match="scores got tokens as a list"):
        induction.scores(model, [[1, 2, 1, 2]])
    with pytest.raises(
        ValueError,
        match="scores got tokens of shape .*torch.bool; expected a torch tensor of integers",
    ):
        induction.scores(model, TOKENS > 2)


def test_a_stated_range_that_a_gate_leaves_is_told():
    gated = tiny_models.boot(
        torch.float32,
        attn_only=False,
        normalization_type="LN",
        gated_mlp=True,
        **SIZES | {"act_fn": "silu"},
    )
    with torch.no_grad():
        for name, weight in gated.named_parameters():
            if "mlp.gate.weight" in name:
                weight *= 100
    told = str(ck.to_attention_only(gated, heads_per_neuron=8, gate_range=2.0).report)
    assert (
        told.count(
            "beyond the stated range 2: the bound does not hold here; give a larger gate_range"
        )
        == 2
    )
    assert "beyond" not in str(ck.to_attention_only(gated, heads_per_neuron=8).report)


def test_a_layer_without_biases_is_recorded_and_replaced(tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        **tiny_models.HUGGING_FACE,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["LlamaForCausalLM"],
    )
    llama = tiny_models.from_folder(tmp_path, transformers.LlamaForCausalLM(config))
    record = superposition.record_layer(llama, 0, TOKENS)
    wrote = llama.run_with_cache(TOKENS)[1]["blocks.0.hook_attn_out"]
    torch.testing.assert_close(record.y, wrote, rtol=0, atol=1e-6)
    recipe = superposition.GATES.but(steps=2, batch=2)
    block = superposition.train_gated(
        superposition.record_layer(llama, 0, TOKENS.repeat(4, 1)), recipe
    ).block
    hooks = superposition.replacing(llama, 0, block)
    assert not torch.equal(llama.run_with_hooks(TOKENS, fwd_hooks=hooks), llama(TOKENS))
