"""Whole models: promised bounds over configurations and architectures, the copy, hooks, routes, refusals."""

import math

import pytest
import torch

from circuitkit import to_attention_only
from circuitkit.bridge import copy_model
from circuitkit.conversion import gate_sum
from circuitkit.reading import converted_neurons
from circuitkit_book.theorems import literal_stream
from tests.support import zoo
from tests.support.activations import EXACT


def exact_mlp(model, layer, x):
    """The layer's MLP in float64 from the state dict of the original, with no helper of the library."""
    state = {
        name: value.double()
        for name, value in model.state_dict().items()
        if f"blocks.{layer}.mlp." in name
    }

    def linear(part, value):
        weight = next(v for n, v in state.items() if n.endswith(f"mlp.{part}.weight"))
        bias = next((v for n, v in state.items() if n.endswith(f"mlp.{part}.bias")), 0)
        return value @ weight.T + bias

    act = EXACT[model.cfg.act_fn]
    x = x.double()
    if model.cfg.gated_mlp:
        return linear("out", act(linear("gate", x)) * linear("in", x))
    return linear("out", act(linear("in", x)))


def rounding(model, layer, x, k):
    """What a careful evaluation may lose: an eps for every operation on the largest sums that occur."""
    operations = model.cfg.d_model + model.cfg.d_mlp + 8 * k
    largest = float(x.double().abs().max()) + 1
    for name, weight in model.blocks[layer].mlp.named_parameters():
        if weight.ndim == 2 and "neurons" not in name:
            largest *= 1 + float(weight.detach().double().abs().sum(1).max())
    return 8 * operations * torch.finfo(x.dtype).eps * largest


def check_layers(model, converted, tokens):
    """Each layer's output is within its promise of the original MLP on the same input."""
    with torch.no_grad():
        _, cache = converted.run_with_cache(tokens)
    for layer, row in converted.report.iterrows():
        x, out = cache[f"blocks.{layer}.mlp.hook_in"], cache[f"blocks.{layer}.mlp.hook_out"]
        error = float((out.double() - exact_mlp(model, layer, x)).abs().max())
        assert error <= row.bound + rounding(model, layer, x, row.heads_per_neuron)
        assert row.measured <= row.bound + 1e-12
        assert row.measured == pytest.approx(
            error, abs=rounding(model, layer, x, row.heads_per_neuron)
        )


@pytest.mark.parametrize("eps", [pytest.param(0.1, marks=pytest.mark.weekly), 1e4])
@pytest.mark.parametrize("norm", ["LN", pytest.param("LNPre", marks=pytest.mark.weekly), "RMS"])
@pytest.mark.parametrize(
    ("activation", "gated"),
    [
        ("gelu", False),
        pytest.param("relu", False, marks=pytest.mark.weekly),
        pytest.param("relu", True, marks=pytest.mark.weekly),
        ("silu", True),
    ],
)
def test_a_norm_whose_eps_is_large_keeps_the_promise(native, eps, norm, activation, gated):
    # its rows are shorter than sqrt(d_model), which is what the promise counts with
    model = native(
        torch.float64, 5, act_fn=activation, gated_mlp=gated, normalization_type=norm, eps=eps
    )
    tokens = torch.randint(37, (2, 9), generator=torch.Generator().manual_seed(1))
    for size in (1.0, 1e-3):
        with torch.no_grad():
            model.W_E.mul_(size)
        check_layers(model, to_attention_only(model, heads_per_neuron=8, probe=tokens), tokens)


def families(without=()):
    """Families whose MLPs and norms lie in different places, and weekly those that resemble one of them."""
    few = ["native-mlp", "gpt2", "llama", "gemma2", "neox-parallel", "bert"]
    rest = [name for name in zoo.SHAPES if name not in [*few, *without]]
    return [*few, *(pytest.param(name, marks=pytest.mark.weekly) for name in rest)]


@pytest.mark.parametrize("family", families(without=["olmo2"]))
def test_every_family_is_converted_and_left_as_it_was(family):
    model = zoo.make(family)
    tokens = torch.randint(3, 38, (2, 9), generator=torch.Generator().manual_seed(0))
    exact = model(tokens)  # a run leaves hooks and activations on the model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = list(model.hook_dict)
    heads = 32 if model.cfg.gated_mlp else 8
    converted = to_attention_only(model, heads_per_neuron=heads, probe=tokens)
    with torch.no_grad():
        logits, cache = converted.run_with_cache(tokens)
        assert torch.allclose(converted(tokens), logits, atol=1e-10)  # without hooks on heads
    assert (logits - exact).abs().max() < 1e-2
    for layer, row in converted.report.iterrows():
        assert row.measured <= row.bound + 1e-12
        mlp = converted_neurons(converted, layer)
        x = cache[f"blocks.{layer}.mlp.hook_in"]
        out = cache[f"blocks.{layer}.mlp.hook_out"]
        assert torch.allclose(mlp(x), out, atol=1e-10)
        assert torch.allclose(mlp.literal(x), out, atol=1e-10)
        assert f"blocks.{layer}.mlp.neurons.hook_pattern" in cache
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model(tokens), exact)
    assert list(model.hook_dict) == names
    assert converted.tokenizer is model.tokenizer


@pytest.mark.parametrize("family", families())
def test_a_copy_computes_the_same_and_stands_alone(family):
    model = zoo.make(family)
    tokens = torch.randint(3, 38, (2, 9), generator=torch.Generator().manual_seed(0))
    calls = []
    point = model.blocks[1].mlp.hook_in
    point.add_hook(lambda value, hook: calls.append("a hook of the user"))
    expected, cache = model.run_with_cache(tokens)
    calls.clear()
    twin = copy_model(model)
    point.add_hook(lambda value, hook: calls.append("the first model"), is_permanent=True)
    logits, twin_cache = twin.run_with_cache(tokens)
    assert calls == []
    point.remove_hooks(including_permanent=True)
    # the same values under the same names: mirrors and inputs captured by blocks work in the copy
    assert torch.equal(logits, expected)
    assert list(twin_cache) == list(cache)
    assert all(torch.equal(twin_cache[name], cache[name]) for name in cache)
    first = {weight.data_ptr() for weight in model.original_model.parameters()}
    second = {weight.data_ptr() for weight in twin.original_model.parameters()}
    assert not first & second


def test_silu_is_exact_and_has_no_new_parameters(native):
    model = native(act_fn="silu")
    converted = to_attention_only(model, max_error=0.0)
    assert converted.report.bound.tolist() == [0.0, 0.0]
    assert converted.report.neuron_heads.tolist() == [19, 19]
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert torch.allclose(converted(tokens), model(tokens), atol=1e-13)
    assert set(converted.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("wanted", [pytest.param(1e-2, marks=pytest.mark.weekly), 1e-4])
@pytest.mark.parametrize("changes", [{}, {"act_fn": "relu"}, {"act_fn": "silu", "gated_mlp": True}])
def test_max_error_bounds_the_output_by_the_fewest_heads(native, wanted, changes):
    model = native(**changes)
    report = to_attention_only(model, max_error=wanted).report
    assert (report.bound > 0).all()
    assert (report.bound <= wanted).all()
    for layer, row in report.iterrows():
        if row.heads_per_neuron > 2:
            fewer = to_attention_only(model, heads_per_neuron=row.heads_per_neuron - 1).report
            assert fewer.bound[layer] > wanted


def test_hooks_see_and_edit_the_pattern(native):
    model, tokens = native(), torch.tensor([[5, 6, 7]])
    converted = to_attention_only(model, heads_per_neuron=3)
    _, cache = converted.run_with_cache(tokens)
    pattern = cache["blocks.1.mlp.neurons.hook_pattern"]
    assert pattern.shape == (1, 3, 19 * 3, 2)
    row = 4 * 3 + 2
    whole = converted_neurons(converted, 1).pattern(cache["blocks.1.mlp.hook_in"][0], [row])[0]
    assert torch.allclose(pattern[0, :, row, 0], whole[1:, 0], atol=1e-12)
    assert torch.allclose(pattern[0, :, row, 1], whole.diagonal()[1:], atol=1e-12)
    last = converted.run_with_cache(tokens, pos_slice=-1)[1]["blocks.1.mlp.neurons.hook_pattern"]
    assert torch.equal(last.squeeze(1), pattern[:, -1])

    def to_bias_only(pattern, hook):
        return torch.tensor([1.0, 0.0]).to(pattern).expand_as(pattern)

    hooks = [("blocks.1.mlp.neurons.hook_pattern", to_bias_only)]
    silent = converted.run_with_hooks(tokens, fwd_hooks=hooks)
    bias = model.blocks[1].mlp.b_out
    without = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.1.mlp.hook_out", lambda out, hook: bias.expand_as(out))]
    )
    assert (silent - without).abs().max() < 1e-2  # block 0 still differs by its own small error


@pytest.mark.parametrize("with_hooks", [False, True])
def test_gradients_through_the_model(native, with_hooks):
    model, tokens = native(act_fn="silu"), torch.tensor([[5, 6, 7]])
    model(tokens).square().sum().backward()
    converted = to_attention_only(native(act_fn="silu"), heads_per_neuron=1)
    assert all(parameter.grad is None for parameter in converted.parameters())
    hooks = [("blocks.0.mlp.neurons.hook_pattern", lambda pattern, hook: pattern)]
    logits = converted.run_with_hooks(tokens, fwd_hooks=hooks if with_hooks else [])
    logits.square().sum().backward()
    for one, two in zip(model.parameters(), converted.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-9, atol=1e-9)


def test_dtype_and_mode_move_with_the_model(native):
    model = native(dtype=torch.float32)
    model.train()
    converted = to_attention_only(model, heads_per_neuron=4)
    assert model.training
    assert converted.blocks[0].mlp.training
    wide = converted.to(torch.float64)
    tokens = torch.tensor([[1, 2, 3]])
    assert wide(tokens).dtype == converted_neurons(converted, 0).W_in.dtype == torch.float64
    assert wide(tokens, return_type="loss").ndim == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_precision(native, dtype):
    model, tokens = native(dtype=dtype), torch.tensor([[1, 2, 3]])
    converted = to_attention_only(model, heads_per_neuron=5)
    exact, logits = model(tokens).detach(), converted(tokens).detach()
    assert logits.dtype == dtype
    # a coarse number format loses a few of its own units, whatever the route
    few_units = 64 * torch.finfo(dtype).eps * float(exact.abs().max())
    assert float((logits - exact).abs().max()) < few_units
    hooked = converted.run_with_cache(tokens)[0].detach()  # head by head
    assert float((hooked - exact).abs().max()) < few_units


def test_a_gated_layers_promise_by_hand(native):
    model = native(act_fn="silu", gated_mlp=True, normalization_type="RMS", n_layers=1)
    row = to_attention_only(model, heads_per_neuron=12).report.loc[0]
    state = {name: value for name, value in model.state_dict().items() if "blocks.0" in name}
    gain = next(value for name, value in state.items() if "ln2" in name and name.endswith("weight"))
    size = {}
    for part in ("gate", "in"):
        weight = next(value for name, value in state.items() if name.endswith(f"mlp.{part}.weight"))
        # a normalized row has length sqrt(d_model)
        size[part] = math.sqrt(12) * (weight * gain).norm(dim=1)
    out = next(value for name, value in state.items() if name.endswith("mlp.out.weight")).abs()
    reaches = 1.001 * size["gate"]
    error = torch.tensor([gate_sum("silu", float(reach), 12).error for reach in reaches])
    assert row.activation_error == pytest.approx(float(error.max()))
    assert row.bound == pytest.approx(float((out * size["in"] * error).sum(1).max()), rel=2e-3)


def test_theorem_4_corrected_on_the_whole_stream(native):
    """The literal model on N+1 tokens and D+1 coordinates: every sublayer a sum of heads, the bias token untouched."""
    model, tokens = native(act_fn="silu"), torch.tensor([5, 6, 7, 8])
    stream = literal_stream(to_attention_only(model, heads_per_neuron=1), tokens)
    _, cache = model.run_with_cache(tokens[None])
    # embedding, then attention and MLP of two blocks; bias token; bias coordinate
    assert stream.shape == (5, 5, 13)
    for layer in (0, 1):
        for place, name in enumerate(("resid_pre", "resid_mid", "resid_post")):
            wanted = cache[f"blocks.{layer}.hook_{name}"][0]
            assert torch.allclose(stream[2 * layer + place, 1:, :-1], wanted, atol=1e-12)
    bias_row = torch.tensor([0.0] * 12 + [1.0]).double()
    assert (stream[:, 0] == bias_row).all()
    assert (stream[:, 1:, -1] == 0).all()


def test_a_sigmoid_gate_needs_no_norm(native):
    model = native(act_fn="silu", gated_mlp=True, normalization_type=None)
    for block in model.blocks:
        block.mlp.original_component.act = torch.sigmoid
    converted = to_attention_only(model, heads_per_neuron=1)
    assert converted.report.bound.tolist() == [0.0, 0.0]
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.allclose(converted(tokens), model(tokens), atol=1e-10)


GATED = {"act_fn": "silu", "gated_mlp": True}
REFUSED = {
    "no goal": ({}, {}, "either heads_per_neuron or max_error"),
    "two goals": ({}, {"max_error": 0.1, "heads_per_neuron": 2}, "either heads_per_neuron or"),
    "too small an error": ({}, {"max_error": 1e-12}, "Block 0: max_error=1e-12 cannot be met"),
    "no MLPs": ({"attn_only": True}, {"heads_per_neuron": 1}, "no MLPs, so there is nothing"),
    "a gate without limit": (
        GATED | {"normalization_type": None},
        {"heads_per_neuron": 8},
        "Block 0: Heads follow a 'silu' gate on a finite range.*limits what the gate reads",
    ),
    "too small an error of a gate": (GATED, {"max_error": 1e-14}, "With 32 heads per neuron"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(native, case):
    sizes, arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        to_attention_only(native(**sizes), **arguments)


def test_what_cannot_be_followed_is_refused(native):
    broken = native()
    with torch.no_grad():
        broken.blocks[1].mlp.W_out[3, 2] = math.inf
    with pytest.raises(ValueError, match=r"Block 1: .*\.weight holds NaN or infinite"):
        to_attention_only(broken, heads_per_neuron=1)
    twice = native()
    twice.blocks[0].mlp.original_component.activation = torch.nn.ReLU()
    with pytest.raises(ValueError, match=r"Block 0: .* one activation function.*\.activation"):
        to_attention_only(twice, heads_per_neuron=1)
    mixed = native()
    mixed.blocks[1].mlp.original_component.ln = torch.nn.LayerNorm(19)
    with pytest.raises(ValueError, match="Block 1: A LayerNorm between activation and output"):
        to_attention_only(mixed, heads_per_neuron=1)


def test_an_mlp_that_scales_its_output_is_refused(native):
    scaled = native()
    mlp = scaled.blocks[1].mlp.original_component
    mlp.register_forward_hook(lambda module, read, written: 1.5 * written)
    with pytest.raises(ValueError, match="The MLP of block 1 computes more than its activation"):
        to_attention_only(scaled, heads_per_neuron=5)


def test_a_gated_model_with_processed_weights_is_refused():
    model = copy_model(zoo.make("llama"))
    model.enable_compatibility_mode()
    with pytest.raises(ValueError, match="before enable_compatibility_mode"):
        to_attention_only(model, heads_per_neuron=8)


def test_a_mixture_of_experts_is_refused(tmp_path):
    import transformers

    from tests.support import tiny_models

    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=2, num_experts_per_tok=1, vocab_size=2048, max_position_embeddings=16,
    )  # fmt: skip
    model = tiny_models.from_folder(tmp_path, transformers.MixtralForCausalLM(config).eval())
    with pytest.raises(ValueError, match="Block 0: .* is a mixture of experts"):
        to_attention_only(model, heads_per_neuron=1)
