"""Whole models: promised bounds over random configurations, architectures, hooks, routes, refusals."""

import gc
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from circuitkit import anatomy, circuits, heads_of, to_attention_only
from circuitkit.conversion import gate_sum, literal_stream


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

    act = {
        "silu": lambda t: t * torch.sigmoid(t),
        "relu": lambda t: t.clamp_min(0),
        "gelu": lambda t: 0.5 * t * torch.special.erfc(-t / math.sqrt(2)),
        "gelu_new": lambda t: (
            0.5 * t * (1 + torch.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)))
        ),
    }[model.cfg.act_fn]
    x = x.double()
    if model.cfg.gated_mlp:
        return linear("out", act(linear("gate", x)) * linear("in", x))
    return linear("out", act(linear("in", x)))


def rounding(model, layer, x, k):
    """What a careful evaluation may lose: an eps for every operation on the largest sums that occur."""
    eps = torch.finfo(x.dtype).eps
    operations = model.cfg.d_model + model.cfg.d_mlp + 8 * k
    weights = [
        p.detach().double().abs()
        for n, p in model.blocks[layer].mlp.named_parameters()
        if p.ndim == 2
    ]
    largest = float(x.double().abs().max()) + 1
    for weight in weights:
        largest *= 1 + float(weight.sum(1).max())
    return 8 * operations * eps * largest


@pytest.mark.weekly
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.permutations([2, 3, 5, 7, 11]),
    n_heads=st.integers(1, 3),
    n_layers=st.integers(1, 2),
    activation=st.sampled_from(["silu", "relu", "gelu", "gelu_new"]),
    norm=st.sampled_from([None, "LN", "LNPre", "RMS"]),
    gated=st.sampled_from([False, False, False, True]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    k=st.integers(1, 8),
    seed=st.integers(0, 10**6),
)
def test_every_layer_keeps_its_promise(
    native, sizes, n_heads, n_layers, activation, norm, gated, dtype, k, seed
):
    d_model, d_head, d_mlp, pos, _ = sizes
    gated = gated and norm is not None
    config = {
        "d_head": d_head,
        "n_heads": n_heads,
        "d_model": d_model * n_heads,
        "d_mlp": d_mlp,
        "n_layers": n_layers,
    }
    model = native(
        dtype, seed, act_fn=activation, normalization_type=norm, gated_mlp=gated, n_ctx=13, **config
    )
    k = 3 * k if gated else k
    tokens = torch.randint(37, (2, pos), generator=torch.Generator().manual_seed(seed))
    converted = to_attention_only(model, heads_per_neuron=max(k, 2) if gated else k, probe=tokens)
    with torch.no_grad():
        _, cache = converted.run_with_cache(tokens)
        found = converted(tokens)  # with gradients the sums run in another order
    for layer, row in enumerate(converted.report.layers):
        x, out = cache[f"blocks.{layer}.mlp.hook_in"], cache[f"blocks.{layer}.mlp.hook_out"]
        error = float((out.double() - exact_mlp(model, layer, x)).abs().max())
        assert error <= row.bound + rounding(model, layer, x, row.heads_per_neuron)
        assert row.neuron_heads == d_mlp * row.heads_per_neuron
    exact = model(tokens).detach()
    reported = converted.report.logit_error
    assert float((found - exact).abs().max()) == pytest.approx(
        reported, abs=64 * torch.finfo(dtype).eps * float(exact.abs().max() + 1)
    )


@pytest.mark.parametrize("eps", [0.1, 30.0, 1e4])
@pytest.mark.parametrize("norm", ["LN", "RMS"])
@pytest.mark.parametrize(("activation", "gated"), [("relu", False), ("relu", True), ("silu", True)])
def test_a_norm_whose_eps_is_large_keeps_the_promise(native, eps, norm, activation, gated):
    # its rows are shorter than sqrt(d_model), which is what the promise counts with; the shortest come from a small stream
    model = native(
        torch.float64, 5, act_fn=activation, gated_mlp=gated, normalization_type=norm, eps=eps
    )
    tokens = torch.randint(37, (2, 9), generator=torch.Generator().manual_seed(1))
    for size in (1.0, 1e-3):
        with torch.no_grad():
            model.W_E.mul_(size)
        converted = to_attention_only(model, heads_per_neuron=8, probe=tokens)
        with torch.no_grad():
            _, cache = converted.run_with_cache(tokens)
        for layer, row in enumerate(converted.report.layers):
            x, out = cache[f"blocks.{layer}.mlp.hook_in"], cache[f"blocks.{layer}.mlp.hook_out"]
            error = float((out - exact_mlp(model, layer, x)).abs().max())
            assert row.measured <= row.bound + row.rounding
            assert error <= row.bound + rounding(model, layer, x, row.heads_per_neuron)
            assert not gated or converted.neuron_heads(layer).measured_reach(x) <= row.reach


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.booleans(),
    st.sampled_from(["gelu", "relu", "silu", "gelu_new"]),
    st.integers(1, 8),
    st.integers(0, 99),
)
def test_parallel_and_serial_blocks_keep_their_promise(boot_neox, parallel, activation, k, seed):
    model = boot_neox(seed=seed, use_parallel_residual=parallel, hidden_act=activation)
    converted = to_attention_only(model, heads_per_neuron=k)
    assert all(row.measured <= row.bound + 1e-12 for row in converted.report.layers)
    taken = converted.heads[
        ["L1N0.0", "L1N0.1"] if k > 1 and activation.startswith("gelu") else "L1N0"
    ]
    assert set(taken.layers) == {1 if parallel else 3}
    assert converted.heads["L1H2"].layers == (1 if parallel else 2,)


@pytest.mark.parametrize("kind", ["gpt2", "opt", "neox", "bert", "llama"])
def test_hugging_face_models(kind, hugging_face):
    model = hugging_face(kind)
    tokens = torch.randint(3, 38, (2, 9), generator=torch.Generator().manual_seed(0))
    exact = model(tokens)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = list(model.hook_dict)
    converted = to_attention_only(model, heads_per_neuron=32 if kind == "llama" else 8)
    report = converted.report
    with torch.no_grad():
        logits, cache = converted.run_with_cache(tokens)
    assert (logits - exact).abs().max() < 1e-4
    assert all(row.measured <= row.bound + 1e-12 for row in report.layers)
    for layer in (0, 1):
        mlp = converted.neuron_heads(layer)
        x, out = cache[f"blocks.{layer}.mlp.hook_in"], cache[f"blocks.{layer}.mlp.hook_out"]
        assert torch.allclose(mlp(x), out, atol=1e-11)
        assert torch.allclose(mlp.literal(x), out, atol=1e-10)
        assert f"blocks.{layer}.mlp.neurons.hook_pattern" in cache
    with converted.route("literal"):
        assert torch.allclose(converted(tokens), logits, atol=1e-10)
    # the input model: its weights, its function, its hooks, and no listener left on it
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model(tokens), exact)
    assert list(model.hook_dict) == names
    assert converted.tokenizer is model.tokenizer
    assert report.parameters == sum(p.numel() for p in model.original_model.parameters())


def test_silu_is_exact_and_free_of_new_parameters(native):
    model = native(act_fn="silu")
    converted = to_attention_only(model, max_error=0.0)
    assert converted.report.bound == 0.0
    assert converted.report.logit_error <= 1e-13
    assert set(converted.state_dict()) == set(model.state_dict())
    assert converted.report.heads == 2 * (3 + 19)
    assert "L" not in str(converted.report).splitlines()[1]


@pytest.mark.parametrize("wanted", [1e-2, 1e-3, 1e-5])
def test_max_error_bounds_the_activation(native, wanted):
    report = to_attention_only(native(), max_error=wanted).report
    assert all(row.activation_error <= wanted for row in report.layers)


def test_the_copy_is_independent_and_outlives_the_original(native):
    model = native(n_layers=2)
    tokens = torch.tensor([[1, 2, 3, 4]])
    exact, converted = model(tokens), to_attention_only(model, heads_per_neuron=8)
    first = converted(tokens)
    optimizer = torch.optim.SGD(converted.parameters(), lr=1.0)
    first.square().mean().backward()
    optimizer.step()
    assert not torch.allclose(converted(tokens), first)
    assert torch.equal(model(tokens), exact)
    again = to_attention_only(model, heads_per_neuron=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    del model
    gc.collect()
    assert torch.equal(again(tokens), first)


def test_hooks_edit_the_pattern(native):
    model = native()
    tokens = torch.tensor([[5, 6, 7]])
    converted = to_attention_only(model, heads_per_neuron=3)
    _, cache = converted.run_with_cache(tokens)
    pattern = cache["blocks.1.mlp.neurons.hook_pattern"]
    assert pattern.shape == (1, 3, 19 * 3, 2)
    assert torch.allclose(pattern.sum(-1), torch.ones(1, 3, 57).double())
    single = converted.neuron_heads(1).pattern(cache["blocks.1.mlp.hook_in"][0], ["L1N4.2"])[0]
    view = pattern[0, :, 4 * 3 + 2]
    assert torch.allclose(view[:, 0], single[1:, 0], atol=1e-12)
    assert torch.allclose(view[:, 1], single.diagonal()[1:], atol=1e-12)
    assert torch.allclose(
        anatomy(converted).run(tokens).pattern("L1N4.2")[0], view[:, 1], atol=1e-12
    )

    def to_bias_only(pattern, hook):
        return torch.tensor([1.0, 0.0]).to(pattern).expand_as(pattern)

    hooks = [("blocks.1.mlp.neurons.hook_pattern", to_bias_only)]
    silent = converted.run_with_hooks(tokens, fwd_hooks=hooks)
    state = model.state_dict()
    bias = next(v for n, v in state.items() if n.endswith("blocks.1.mlp.out.bias"))
    without = model.run_with_hooks(
        tokens, fwd_hooks=[("blocks.1.mlp.hook_out", lambda out, hook: bias.expand_as(out))]
    )
    assert (silent - without).abs().max() < 1e-2  # block 0 still differs by its own small error


@pytest.mark.parametrize("route", ["two_key", "literal"])
def test_gradients_through_the_model(native, route):
    model = native(act_fn="silu")
    tokens = torch.tensor([[5, 6, 7]])
    model(tokens).square().sum().backward()
    converted = to_attention_only(model, heads_per_neuron=1)
    assert all(parameter.grad is None for parameter in converted.parameters())
    with converted.route(route):
        converted(tokens).square().sum().backward()
    for one, two in zip(model.parameters(), converted.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-9, atol=1e-9)


def test_the_report_counts_heads_by_hand(native):
    report = to_attention_only(
        native(), heads_per_neuron=3
    ).report  # two blocks of 3 heads and 19 neurons
    assert [row.neuron_heads for row in report.layers] == [57, 57]
    assert report.heads == 2 * (3 + 57)


def test_a_route_holds_inside_its_block_only(native):
    converted = to_attention_only(native(), heads_per_neuron=1)
    routes = lambda: {block.mlp.neurons.route for block in converted.blocks}  # noqa: E731
    with converted.route("literal"):
        assert routes() == {"literal"}
    assert routes() == {"two_key"}
    with pytest.raises(KeyError), converted.route("literal"):
        raise KeyError
    assert routes() == {"two_key"}


def test_heads_of_a_converted_model(native):
    model = native(dtype=torch.float32)
    converted = to_attention_only(model, heads_per_neuron=2)
    both = converted.heads
    assert both.names[:6] == ("L0H0", "L0H1", "L0H2", "L0N0.0", "L0N0.1", "L0N1.0")
    assert len(both) == len(both.names) == 2 * (3 + 19 * 2)
    assert repr(both) == "MixedHeads(6 attention heads, 76 neuron-heads, d_model=13)"
    assert both.d_model == both["L0H0"].d_model == both["L1N3"].d_model == 13
    trained = heads_of(model)
    wide = both[list(trained.names)]
    assert wide.names == trained.names
    assert wide.layers == (0, 0, 0, 2, 2, 2)
    assert torch.equal(wide.W_O[..., :-1], trained.W_O)
    assert (wide.W_Q[:, -1] == 0).all()
    assert (wide.W_O[..., -1] == 0).all()
    neurons = both["L1 MLP"]
    assert (neurons.names, set(neurons.layers)) == (converted.neuron_heads(1).names, {3})
    assert torch.equal(neurons.W_Q, converted.neuron_heads(1).heads.W_Q)
    assert both["L1N3"].names == ("L1N3.0", "L1N3.1")
    assert both[["L0N2.1", "L1N0"]].layers == (1, 3, 3)
    assert both[-1].names == ("L1N18.1",)
    assert both[1:3].names == ("L0H1", "L0H2")
    assert both.index("L0N0.1") == both.index(4) == 4
    assert [one.names[0] for one in both] == list(both.names)
    assert sum((group.names for group in both.groups()), ()) == both.names
    with pytest.raises(
        ValueError, match="no head is called 'L1N19.0'; the nearest of 82 are L1N18.0"
    ):
        both.index("L1N19.0")
    with pytest.raises(ValueError, match="head index 82 is out of range for 82 heads"):
        both[82]
    with pytest.raises(ValueError, match="no part is called 'L2H0'"):
        both["L2H0"]
    pair = both[["L0H0", "L1N3.1"]]  # together they have weights, and no patterns
    assert torch.equal(pair.OV.AB[1], both["L1N3.1"].OV.AB[0])
    assert torch.equal(both.QK.AB[0], both["L0H0"].QK.AB[0])
    with pytest.raises(ValueError, match="do not score by QK alone"):
        pair.scores(torch.zeros(3, 13))


def test_heads_of_a_converted_model_cost_nothing_until_they_are_taken(native, monkeypatch):
    converted = to_attention_only(native(), heads_per_neuron=2)
    both = converted.heads  # and now nothing can be read or built any more
    monkeypatch.setattr(type(converted), "forward", None)
    assert isinstance(converted.heads, type(both))
    monkeypatch.undo()
    assert len(both) == 82


def test_reading_a_converted_model_copies_no_weight_that_it_shares(native):
    converted = to_attention_only(native(), heads_per_neuron=2)
    shared = [
        parameter for parameter in converted.parameters() if torch._C._is_cow_tensor(parameter)
    ]
    assert len(shared) > 20
    anatomy(converted).run(torch.tensor([[1, 2, 3]]))
    converted.heads[["L0N3", "L1N2.1"]]
    assert all(torch._C._is_cow_tensor(parameter) for parameter in shared)


@pytest.mark.parametrize("gated", [False, True])
def test_gated_layers_say_what_plain_ones_say(native, gated):
    layer = to_attention_only(
        native(act_fn="silu", gated_mlp=gated), heads_per_neuron=4
    ).neuron_heads(1)
    k = 4 if gated else 1
    assert repr(layer) == f"Neurons(19 {'gated ' * gated}neurons x {k} heads, d_model=12, 'silu')"
    assert layer.names[k] == ("L1N1.0" if gated else "L1N1")
    assert layer.index(layer.names[k]) == k
    assert layer.neuron(1).names == layer.names[k : 2 * k]
    assert layer.bound == (math.inf if gated else 0.0)
    x = torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert layer.pattern(x, [layer.names[0], 2]).shape == (2, 6, 6)
    assert layer.measured_reach(x) == float(layer.reads(x)[0].detach().abs().max())


def test_dtype_moves_with_the_model(native):
    converted = to_attention_only(native(dtype=torch.float32), heads_per_neuron=4)
    tokens = torch.tensor([[1, 2, 3]])
    wide = converted.to(torch.float64)
    assert wide(tokens).dtype == torch.float64
    assert wide(tokens, return_type="loss").ndim == 0
    assert converted.neuron_heads(0).W_in.dtype == torch.float64


def test_the_training_flag_is_kept(native):
    model = native()
    model.train()
    flags = [module.training for module in model.modules()]
    converted = to_attention_only(model, heads_per_neuron=1)
    assert [module.training for module in model.modules()] == flags
    assert converted.blocks[0].mlp.training


def test_theorem_4_repaired_on_the_whole_stream(native):
    """The literal model on N+1 tokens and D+1 coordinates: every sublayer a sum of heads, the bias token untouched."""
    model = native(act_fn="silu")
    converted = to_attention_only(model, heads_per_neuron=1)
    tokens = torch.tensor([5, 6, 7, 8])
    stream = literal_stream(converted, tokens)
    _, cache = model.run_with_cache(tokens[None])
    assert stream.shape == (
        5,
        5,
        13,
    )  # embedding, then attention and MLP of two blocks; bias token; bias coordinate
    for layer in (0, 1):
        for place, name in (
            (2 * layer, "resid_pre"),
            (2 * layer + 1, "resid_mid"),
            (2 * layer + 2, "resid_post"),
        ):
            assert torch.allclose(
                stream[place, 1:, :-1], cache[f"blocks.{layer}.hook_{name}"][0], atol=1e-12
            )
    bias_row = torch.tensor([0.0] * 12 + [1.0]).double()
    assert (stream[:, 0] == bias_row).all()
    assert (stream[:, 1:, -1] == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "max_error=None, heads_per_neuron=None; expected exactly one of the two"),
        (
            {"max_error": 0.1, "heads_per_neuron": 2},
            "max_error=0.1, heads_per_neuron=2; expected exactly one",
        ),
        (
            {"max_error": 1e-12},
            "max_error=1e-12 cannot be met for 'gelu': 8 heads per neuron reach",
        ),
        ({"heads_per_neuron": 0}, "heads_per_neuron=0; expected an integer from 1 to 32 or None"),
    ],
)
def test_knobs(native, arguments, message):
    with pytest.raises(ValueError, match=message):
        to_attention_only(native(), **arguments)


def test_refusals(native):
    with pytest.raises(ValueError, match="expected a transformer-lens TransformerBridge"):
        to_attention_only(torch.nn.Linear(2, 2), heads_per_neuron=1)
    with pytest.raises(
        ValueError, match=r"block 0: activation .* is not supported; heads can compute \['gelu'"
    ):
        to_attention_only(native(act_fn="solu"), heads_per_neuron=1)
    with pytest.raises(ValueError, match="no MLP layers: it is attention-only already"):
        to_attention_only(native(attn_only=True), heads_per_neuron=1)
    with pytest.raises(
        ValueError, match="expected a model that is not converted already: see model.report"
    ):
        to_attention_only(to_attention_only(native(), heads_per_neuron=1), heads_per_neuron=1)
    broken = native()
    with torch.no_grad():
        broken.blocks[1].mlp.W_out[3, 2] = math.inf
    with pytest.raises(ValueError, match="block 1: W_out hold infinite or NaN entries"):
        to_attention_only(broken, heads_per_neuron=1)
    with pytest.raises(
        ValueError, match="block 0: a 'silu' gate needs a bounded range.*state gate_range"
    ):
        to_attention_only(
            native(act_fn="silu", gated_mlp=True, normalization_type=None), heads_per_neuron=8
        )
    with pytest.raises(
        ValueError, match=r"block 0: max_error=1e-14 cannot be met for a 'silu' gate"
    ):
        to_attention_only(native(act_fn="silu", gated_mlp=True), max_error=1e-14)
    with pytest.raises(ValueError, match="name='fast'; expected one of"):
        with to_attention_only(native(), heads_per_neuron=1).route("fast"):
            pass
    with pytest.raises(ValueError, match=r"layer 7 has no converted MLP; converted are \[0, 1\]"):
        to_attention_only(native(), heads_per_neuron=1).neuron_heads(7)


def test_a_mixture_of_experts_is_refused(tmp_path, tokenizer):
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    config = transformers.MixtralConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        num_local_experts=2, num_experts_per_tok=1, vocab_size=40, max_position_embeddings=16,
        architectures=["MixtralForCausalLM"], bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.MixtralForCausalLM(config).eval().save_pretrained(tmp_path)
    model = TransformerBridge.boot_transformers(str(tmp_path), tokenizer=tokenizer)
    with pytest.raises(
        ValueError, match="block 0: .* is a mixture of experts: its router picks by a discontinuous"
    ):
        to_attention_only(model, heads_per_neuron=1)


def test_a_stated_gate_range_is_used_where_no_norm_bounds_it(native, draw):
    model = native(act_fn="silu", gated_mlp=True, normalization_type=None)
    converted = to_attention_only(model, max_error=1e-3, gate_range=30.0)
    row = converted.report.layers[0]
    assert row.reach == 30.0
    assert row.measured_reach < 30
    assert row.bound == math.inf  # the other branch is unbounded, and the report says so


def test_composition_with_neuron_heads(native):
    from circuitkit.circuits import composition_scores

    converted = to_attention_only(native(dtype=torch.float32), heads_per_neuron=1)
    read_by = composition_scores(converted.heads["L0H1"], converted.heads["L0 MLP"], "Q")
    assert read_by.score.shape == (1, 19)
    W_O, W_in = converted.heads["L0H1"].OV.AB[0], converted.heads["L0N3"].W_Q[0, :, 0]
    by_hand = (W_O @ W_in).norm() / (W_O.norm() * W_in.norm())
    assert float(read_by.score[0, 3]) == pytest.approx(float(by_hand), rel=1e-4)


def test_a_neurons_circuits_as_tokens(native):
    from circuitkit.conversion import read_neuron

    model = native()
    converted = to_attention_only(model, heads_per_neuron=2)
    found = read_neuron(converted, "L1N4.1", k=3)
    reads = [
        float(
            (
                model.blocks[1].ln2(model.W_E[None])[0, t] @ model.W_in[1][:, 4] + model.b_in[1][4]
            ).detach()
        )
        for t in range(37)
    ]
    order = sorted(range(37), key=reads.__getitem__)
    assert [token for token, _ in found.on] == order[:-4:-1]
    assert [token for token, _ in found.off] == order[:3]
    assert found.off[0][1] == pytest.approx(min(reads))
    writes = [float((model.W_out[1][4] @ model.W_U[:, t]).detach()) for t in range(37)]
    assert found.writes[0] == pytest.approx((max(range(37), key=writes.__getitem__), max(writes)))
    assert found.lowers[0] == pytest.approx((min(range(37), key=writes.__getitem__), min(writes)))
    for wrong, message in (
        ("N3", "'N3' is no name of a part"),
        ("L1N99", "no part is called 'L1N99'; the nearest of .* are L1N18"),
        ("L1H1", "head='L1H1'; expected a neuron or one of its heads"),
    ):
        with pytest.raises(ValueError, match=message):
            read_neuron(converted, wrong)
    with pytest.raises(ValueError, match="Convert it first with to_attention_only"):
        read_neuron(model, "L1N4")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_precision(native, dtype):
    model = native(dtype=dtype)
    converted = to_attention_only(model, heads_per_neuron=5)
    tokens = torch.tensor([[1, 2, 3]])
    assert converted(tokens).dtype == dtype
    exact = model(tokens).detach()
    # a coarse number format loses a few of its own units, whatever the route
    assert float((converted(tokens).detach() - exact).abs().max()) < 64 * torch.finfo(
        dtype
    ).eps * float(exact.abs().max())


def test_chapter_2s_tools_run_on_neuron_heads(native):
    from circuitkit.circuits import copying_score, full_ov, full_qk

    model = native(dtype=torch.float32)
    view = to_attention_only(model, heads_per_neuron=1)
    reads = (model.W_E @ model.W_in[1][:, 4]).detach()
    slope = (
        view.heads["L1N4"].W_V[0, :-1, 0] / model.W_in[1][:, 4].detach()
    )  # a of the single head, 1 by the fit
    qk, ov = full_qk(view, "L1N4").AB, full_ov(view, "L1N4").AB
    b = float((view.heads["L1N4"].W_Q[0, :-1, 0] / model.W_in[1][:, 4].detach()).mean())
    assert torch.allclose(qk[:-1, -1], -b * reads, atol=1e-4)
    assert (qk[:, :-1] == 0).all()
    expected = torch.outer(reads * slope.mean(), (model.W_out[1][4] @ model.W_U).detach())
    assert torch.allclose(ov[:-1, :-1], expected, atol=1e-3)
    assert (ov[:, -1] == 0).all()
    pair = copying_score(view.heads[["L1N4", "L0N2"]], view)
    whole = copying_score(view)
    assert whole.names == view.heads.names
    at = [whole.names.index(name) for name in pair.names]
    assert torch.allclose(whole.score[at], pair.score)
    plain = copying_score(model)
    assert torch.allclose(
        whole.score[[whole.names.index(name) for name in plain.names]], plain.score, atol=1e-5
    )


def test_a_gated_layers_promise_by_hand(native):
    model = native(act_fn="silu", gated_mlp=True, normalization_type="RMS", n_layers=1)
    row = to_attention_only(model, heads_per_neuron=12).report.layers[0]
    state = {name: value for name, value in model.state_dict().items() if "blocks.0" in name}
    gain = next(value for name, value in state.items() if "ln2" in name and name.endswith("weight"))
    size = {}
    for part in ("gate", "in"):
        weight = next(value for name, value in state.items() if name.endswith(f"mlp.{part}.weight"))
        size[part] = math.sqrt(12) * (weight * gain).norm(
            dim=1
        )  # a normalised row has length sqrt(d_model)
    out = next(value for name, value in state.items() if name.endswith("mlp.out.weight")).abs()
    reaches = [1.001 * float(gate) for gate in size["gate"]]
    error = torch.tensor(
        [gate_sum("silu", reach, 12).error for reach in reaches], dtype=torch.float64
    )
    assert max(reaches) <= row.reach == gate_sum("silu", max(reaches), 12).reach
    assert row.activation_error == float(error.max())
    assert row.bound == pytest.approx(float((out * size["in"] * error).sum(1).max()), rel=2e-3)


def test_no_listener_stays_on_the_converted_model(native):
    for settings_ in ({}, {"act_fn": "silu", "gated_mlp": True}):
        converted = to_attention_only(native(**settings_), heads_per_neuron=4)
        for block in converted.blocks:
            assert not block.mlp.neurons._forward_hooks
            assert not block.mlp._forward_pre_hooks


def test_the_literal_stream_is_for_converted_models_with_serial_blocks(native, hugging_face):
    tokens = torch.tensor([1, 2, 3])
    with pytest.raises(
        ValueError, match="literal_stream got model as a TransformerBridge; .*Convert it first"
    ):
        literal_stream(native(), tokens)
    beside = to_attention_only(hugging_face("neox"), max_error=1e-2)
    with pytest.raises(ValueError, match="needs serial blocks with norms in front"):
        literal_stream(beside, tokens)


def test_the_literal_stream_of_a_rotary_model_with_shared_keys(hugging_face):
    converted = to_attention_only(hugging_face("llama"), max_error=1e-2)
    tokens = torch.tensor([1, 2, 3, 5])
    _, cache = converted.run_with_cache(tokens[None])
    stream = literal_stream(converted, tokens)
    for layer in (0, 1):
        expected = cache[f"blocks.{layer}.hook_resid_post"][0]
        assert torch.allclose(stream[2 * layer + 2, 1:, :-1], expected, atol=1e-5)


def test_a_second_activation_is_refused(native):
    model = native()
    model.blocks[0].mlp.original_component.activation = torch.nn.ReLU()
    with pytest.raises(
        ValueError,
        match=r"block 0: expected one activation function in .*, found .*\.activation.*; give",
    ):
        to_attention_only(model, heads_per_neuron=1)


def test_a_norm_behind_the_activation_is_refused(native):
    model = native()
    model.blocks[1].mlp.original_component.ln = torch.nn.LayerNorm(19)
    with pytest.raises(
        ValueError, match="block 1: a LayerNorm between activation and output mixes the neurons"
    ):
        to_attention_only(model, heads_per_neuron=1)


class Odd(torch.nn.Module):
    """In the place of a norm: refuses rows, or bends them as no norm does."""

    def __init__(self, bends):
        super().__init__()
        self.bends = bends

    def forward(self, x):
        if self.bends:
            return x.sin()
        raise TypeError("no such rows")


@pytest.mark.parametrize("bends", [True, False])
def test_an_unknown_norm_bounds_no_gate(native, bends):
    model = native(act_fn="silu", gated_mlp=True)
    model.blocks[0].ln2._modules["_original_component"] = Odd(bends)
    with pytest.raises(
        ValueError, match="block 0: a 'silu' gate needs a bounded range, and no norm in front"
    ):
        to_attention_only(model, heads_per_neuron=4)


def test_without_lazy_copies_the_weights_are_copied_at_once(native, monkeypatch):
    model, tokens = native(), torch.tensor([[1, 2, 3]])
    expected = to_attention_only(model, heads_per_neuron=2)(tokens)
    monkeypatch.delattr(torch, "_lazy_clone")
    plain = to_attention_only(model, heads_per_neuron=2)
    assert torch.equal(plain(tokens), expected)
    before = model.W_E.clone()
    with torch.no_grad():
        plain.embed.weight.zero_()
    assert torch.equal(model.W_E, before)


def test_memory_that_torch_does_not_own_is_copied(native, monkeypatch):
    def refuse(tensor):
        raise RuntimeError("not backed by an allocator of torch")

    model, tokens = native(), torch.tensor([[1, 2, 3]])
    expected = to_attention_only(model, heads_per_neuron=2)(tokens)
    monkeypatch.setattr(torch, "_lazy_clone", refuse)
    assert torch.equal(to_attention_only(model, heads_per_neuron=2)(tokens), expected)


class Counter(torch.nn.Module):
    """A module whose method a hook calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def count(self):
        self.calls += 1


def calling(method):
    return lambda module, args, output: method()


def test_methods_that_hooks_hold_follow_their_module_into_the_copy(native):
    model, outside = native(), Counter()
    model.counter = Counter()
    for listener in (model.counter, outside):
        model.blocks[0].register_forward_hook(calling(listener.count))
    converted = to_attention_only(model, heads_per_neuron=1)
    heard = outside.calls
    converted.counter.calls = 0
    converted(torch.tensor([[1, 2, 3]]))
    assert model.counter.calls == 0  # the original was never run
    assert converted.counter.calls == 1
    assert outside.calls == heard + 1  # a listener from elsewhere hears both models


def test_the_heads_of_a_neuron_are_added_up(native):
    model = to_attention_only(native(torch.float64, act_fn="gelu"), heads_per_neuron=3)
    result = circuits.score_decomposition(model, torch.arange(7)[None], "L1H1", 5, 2, neurons=True)
    whole = result.by_neuron()
    assert len(result.components) - len(whole.components) == 2 * model.cfg.d_mlp
    rows = [i for i, name in enumerate(result.components) if name.startswith("L0N4.")]
    at = whole.components.index("L0N4")
    assert whole.table[at].sum().item() == pytest.approx(result.table[rows].sum().item())
    assert whole.score == pytest.approx(result.score)
