"""Count tables against the plain module, originals, training runs, and recorded layers."""

import dataclasses
import math
from importlib.resources import files

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import circuitkit
from circuitkit.superposition import (
    GATES,
    LORSA,
    WRITES,
    GatedBlock,
    SkipTrigramTask,
    ToyModel,
    hand_specified,
    head_verdict,
    load_original,
    load_results,
    post_recipe,
    rate,
    record_layer,
    replacing,
    train_gated,
    two_head_model,
)
from circuitkit.superposition import _train as tables
from circuitkit.superposition._layer import LayerRecord
from circuitkit.superposition._train import Training, run_seed, stack_parameters


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("recipe", [
    post_recipe(2), GATES, WRITES, WRITES.but(gate="none"),
    GATES.but(d_head=3, d_gate=2, value_bias="free", penalty="write_norm"),
    GATES.but(d_head=2, output_scale="learned", gate="relu_tanh"),
    LORSA, LORSA.but(top_k=2, share=3, expansion=6, penalty="write", alpha=0.3),
])  # fmt: skip
def test_tables_equal_the_plain_module(double, recipe):
    """Error, penalty and every gradient of two runs at once, in float64, to rounding."""
    task, v = SkipTrigramTask(3), 8
    blocks = [GatedBlock(recipe, 2, v, target_rms=1.5, seed=seed) for seed in (1, 2)]
    p, tokens, eye = stack_parameters(blocks, recipe), task.sample(40, 0), torch.eye(8)
    y = torch.randn(v, v, generator=torch.Generator().manual_seed(0))[tokens].cumsum(
        1
    )  # any function of the counts
    batch = tables.count_batch(tokens, v, torch.float64)
    error, penalty = tables.loss_terms(
        recipe, p, eye, batch, y.flatten(0, 1)[batch.index], 2.0, 3.0
    )
    (error + 0.7 * penalty).sum().backward()
    for i, block in enumerate(blocks):
        plain_error = (block(eye[tokens]) - y).square().sum(-1).mean()
        plain_penalty = block.penalty(eye[tokens], 2.0, 3.0)
        (plain_error + 0.7 * plain_penalty).backward()
        assert error[i].item() == pytest.approx(plain_error.item(), rel=1e-12)
        assert penalty[i].item() == pytest.approx(plain_penalty.item(), rel=1e-12)
        for name, value in p.items():
            if value.requires_grad:
                assert torch.allclose(value.grad[i], getattr(block, name).grad, atol=1e-12), name


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(4, 9), st.integers(0, 14), st.integers(0, 999))
def test_count_rows_are_the_rows(n_trigrams, n_ctx, fillers, seed):
    """Every row of the batch is there with its multiplicity, whichever way rows are made distinct."""
    task = SkipTrigramTask(n_trigrams, n_ctx, 2 * n_trigrams + 2 + fillers)
    tokens = task.sample(30, seed)
    batch = tables.count_batch(tokens, task.d_vocab)
    want: dict[tuple, int] = {}
    for prompt in tokens.tolist():
        for pos, token in enumerate(prompt):
            key = (token, tuple(prompt[: pos + 1].count(b) for b in range(task.d_vocab)))
            want[key] = want.get(key, 0) + 1
    have = {
        (a, tuple(int(c) for c in batch.counts[a, n])): int(batch.weight[a, n])
        for a, n in (batch.weight > 0).nonzero().tolist()
    }
    assert have == want
    for a, n in (batch.weight > 0).nonzero().tolist():
        place = int(batch.index[a, n])
        prompt, pos = tokens[place // n_ctx].tolist(), place % n_ctx
        assert prompt[pos] == a
        assert [prompt[: pos + 1].count(b) for b in range(task.d_vocab)] == batch.counts[
            a, n
        ].int().tolist()
    pairs = sum(
        prompt[i] == 1 and prompt[j] == 2
        for prompt in tokens.tolist()
        for i in range(n_ctx)
        for j in range(i + 1)
    )
    assert float(batch.pairs_causal[1, 2]) == pytest.approx(
        pairs / (30 * n_ctx * (n_ctx + 1) / 2), abs=1e-6
    )


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [(1.0, 0, 160), (80.0, 160, 1400), (900.0, 1400, 10**4), (9000.0, 10**4, 10**6)],
)
def test_scores_of_any_size(size, low, high):
    """Sums, where they are safe, sums in windows beyond, and the softmax of scores plus log counts say the same, gradients too."""
    generator = torch.Generator().manual_seed(0)
    batch = tables.count_batch(SkipTrigramTask(3).sample(40, 0), 8)
    scores = size * torch.randn(2, 3, 8, 8, generator=generator)
    scores[0, 1] /= 2 * size  # a head of a small range beside the others
    gate, v = (
        torch.rand(2, 3, 8, 8, generator=generator),
        torch.randn(2, 3, 8, 2, generator=generator),
    )
    weight = batch.weight[:, :, None, None] * torch.randn(
        2, *batch.weight.shape, 3, 2, generator=generator
    )
    said = []
    for adds, kind in (
        (lambda *parts: tables.mixed(batch, *parts), torch.float32),
        (lambda *p: tables._softmax(batch.counts.double(), *p), torch.float64),
    ):
        parts = [part.to(kind, copy=True).requires_grad_() for part in (scores, gate, v)]
        z = adds(*parts)
        (z * weight).sum().backward()
        said.append([z.detach(), *(part.grad for part in parts)])
    for fast, exact in zip(*said, strict=True):
        assert (fast - exact).abs().max() < 1e-5 * max(1.0, float(exact.abs().max()))
    assert low < float((scores.amax(-1) - scores.amin(-1)).max()) < high


def test_stored_originals():
    with safe_open(
        files("circuitkit.superposition") / "data/originals.safetensors", "pt"
    ) as stored:
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            assert torch.equal(
                getattr(load_original(4, 5, 13).heads, name), stored.get_tensor(f"4H5T/{name}")[13]
            )
    model = load_original(4, 5, 0)
    verdict = head_verdict(model, model.task, rows=100)
    assert verdict.not_learnt == ()
    assert not verdict.success
    with pytest.raises(ValueError, match="no originals with 5 heads"):
        load_original(5, 6, 0)
    with pytest.raises(ValueError, match="original 999 of 4H5T is not stored"):
        load_original(4, 5, 999)


@given(n=st.integers(1, 300), share=st.floats(0, 1))
def test_the_ends_of_a_rate_are_where_its_share_is_1_96_deviations_away(n, share):
    k = round(share * n)
    found = rate(k, n)
    for end in (found.low, found.high):
        assert abs(k / n - end) == pytest.approx(
            1.959964 * math.sqrt(end * (1 - end) / n), abs=1e-6
        )
    assert found.low - 1e-12 <= k / n <= found.high + 1e-12
    assert found.low < found.high


@pytest.mark.parametrize(
    "name", ["recipes", "originals", "causes", "coherent", "post", "language_model"]
)
def test_a_stored_table_is_read_from_its_first_row_to_its_last(name):
    lines = (
        files("circuitkit.superposition")
        .joinpath(f"data/{name}.csv")
        .read_text("utf-8")
        .splitlines()
    )
    rows = load_results(name)
    assert len(rows) == len(lines) - 1
    assert list(rows[0]) == lines[0].split(",")


def test_a_gated_run_and_its_rate():
    """Eight runs of the main recipe on one original: figures in their ranges, success common but not promised."""
    original = load_original(4, 5, 40)
    runs = train_gated(original, WRITES, inits=8, seed=5, steps=500)
    assert runs.failed == ()
    assert runs.best == min(range(8), key=runs.loss.__getitem__)
    assert all(0 < fvu < 0.2 for fvu in runs.fvu)
    assert max(runs.value_bias) == 0
    verdicts = [head_verdict(model, original.task, rows=100) for model in runs.models]
    assert sum(verdict.success for verdict in verdicts) >= 4
    # fvu by hand, on other prompts
    tokens = original.task.sample(2000, 77)
    x = original.W_E[tokens]
    y, out = original.heads.results(x).sum(1), runs.models[0].block(x)
    fvu = float((out - y).square().sum() / (y - y.mean((0, 1))).square().sum())
    assert fvu == pytest.approx(runs.fvu[0], rel=0.1)
    heads, residual = runs(tokens)
    assert torch.equal(residual, x)
    assert torch.allclose(heads.sum(1), runs.model.block(x), atol=1e-5)


def test_a_run_does_not_depend_on_its_neighbours():
    original = hand_specified(2, 3).to(torch.float64)
    few = train_gated(original, GATES, inits=2, seed=3, steps=40)
    many = train_gated(original, GATES, inits=4, seed=3, steps=40)
    assert torch.allclose(few.models[1].block.W_O, many.models[1].block.W_O, atol=1e-9)
    assert run_seed(0, 1) != run_seed(1, 0)


def test_nan_names_the_run_and_keeps_the_others():
    original = hand_specified(2, 3)
    runs = train_gated(original, GATES.but(lr=1e30, cosine=False), inits=2, steps=30)
    assert all(
        message.startswith(f"init {i}: the loss is") for i, message in enumerate(runs.failed)
    )
    assert runs.failed
    training = Training(original, GATES.but(steps=5, alpha_warmup=0.0), range(3), 0)
    with torch.no_grad():
        training.p["W_Q"][1, 0, 0, 0] = float("nan")
    training.loss(0).sum().backward()
    assert torch.isfinite(training.p["W_O"].grad[[0, 2]]).all()
    runs = training.finished()
    assert [message[:7] for message in runs.failed] == ["init 1:"]
    assert runs.best in (0, 2)
    assert math.isnan(runs.loss[1])


def test_training_errors():
    with pytest.raises(
        ValueError, match="got original='gpt2'; expected a ToyModel .* or a LayerRecord"
    ):
        train_gated("gpt2")
    with pytest.raises(ValueError, match="inits=0; expected an integer of at least 1"):
        train_gated(hand_specified(2, 3), inits=0)
    with pytest.raises(ValueError, match="alpha=-0.1; expected a finite number, 0 or more"):
        train_gated(hand_specified(2, 3), GATES.but(alpha=-0.1))


def test_a_recorded_layer_and_its_replacement():
    """On a bridge: the record is what the layer did, and a block that copies it leaves the logits as they are."""
    model = two_head_model(3)
    bridge, tokens = model.bridge(), model.task.sample(60, 0)
    record = record_layer(bridge, 0, tokens)
    assert torch.allclose(record.y, model.heads.results(record.x).sum(1), atol=1e-4)
    recipe = WRITES.but(
        gate="none", penalty="none", alpha=0.0, expansion=1, d_head=3, steps=3, batch=8, n_prompts=8
    )
    layer = train_gated(record, recipe, seed=1)
    block = layer.block
    with torch.no_grad():
        for name in ("W_K", "W_V", "W_O"):
            getattr(block, name).copy_(getattr(model.heads, name))
        block.W_Q.copy_(
            model.heads.W_Q * 3**0.5
        )  # these heads divide scores by 1, the block by sqrt(3)
        for name in ("b_Q", "b_K"):
            getattr(block, name).zero_()
        same = bridge.run_with_hooks(tokens, fwd_hooks=replacing(bridge, 0, block))
        assert (same - bridge(tokens)).abs().max() < 1e-3
        none = bridge.run_with_hooks(tokens, fwd_hooks=replacing(bridge, 0, block, without=(0, 1)))
        assert torch.allclose(none, torch.eye(8)[tokens], atol=1e-5)


def test_some_heads_of_a_layer_are_recorded_and_replaced():
    """A block that writes nothing in their place is the model without them; on another layer it has no place."""
    model = circuitkit.load_model("two-layer")
    tokens = torch.randint(1, 2000, (4, 12), generator=torch.Generator().manual_seed(0))
    heads = circuitkit.heads_of(model)
    record = record_layer(model, 1, tokens, heads=["L1H3", "L1H0"])
    run = circuitkit.anatomy(model).run(tokens)
    torch.testing.assert_close(record.y, run.part("L1H3") + run.part("L1H0"), rtol=0, atol=1e-5)
    assert (record.n_heads, record.heads.names) == (2, ("L1H3", "L1H0"))
    recipe = WRITES.but(penalty="write_norm", d_head=2, steps=2, batch=2, n_prompts=2)
    block = train_gated(record, recipe).block
    nothing = tuple(range(block.n_heads))
    found = model.run_with_hooks(tokens, fwd_hooks=replacing(model, 1, block, without=nothing))
    without = circuitkit.anatomy(model).run(tokens, without=["L1H0", "L1H3"], fill="zero").logits
    torch.testing.assert_close(found, without, rtol=0, atol=1e-4)
    with pytest.raises(
        ValueError,
        match="replacing got layer=0.*; expected the layer it was trained on, or another block: this one stands for L1H3, L1H0",
    ):
        replacing(model, 0, block)
    with pytest.raises(
        ValueError, match="a block trained on 'one-layer .*', not on 'two-layer .*'|d_model"
    ):
        replacing(circuitkit.load_model("one-layer"), 0, block)
    with pytest.raises(ValueError, match="L0H1"):
        record_layer(model, 1, tokens, heads=[heads.names[1]])
    with pytest.raises(
        ValueError, match=r"heads=\[\]; expected .* names of some of its heads, or None for all"
    ):
        record_layer(model, 1, tokens, heads=[])
    with pytest.raises(ValueError, match="two hooks were not used together, each once"):
        model.run_with_hooks(tokens, fwd_hooks=replacing(model, 1, block) * 2)


def test_in_a_layer_with_biases_too_and_not_in_a_later_one():
    from tests.support import tiny_models

    model = tiny_models.boot(
        torch.float32, d_model=12, d_head=4, n_layers=2, n_ctx=16, n_heads=3, d_vocab=23
    )
    tokens = torch.randint(23, (4, 8), generator=torch.Generator().manual_seed(0))
    assert model.b_O[0].abs().max() > 0.1
    recipe = WRITES.but(penalty="write_norm", d_head=2, steps=1, batch=2, n_prompts=2)
    block = train_gated(record_layer(model, 0, tokens, heads=["L0H1"]), recipe).block
    found = model.run_with_hooks(
        tokens, fwd_hooks=replacing(model, 0, block, without=tuple(range(block.n_heads)))
    )
    without = circuitkit.anatomy(model).run(tokens, without=["L0H1"], fill="zero").logits
    torch.testing.assert_close(found, without, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="replacing got layer=1.*this one stands for L0H1"):
        replacing(model, 1, block)


def test_a_start_along_axes_is_the_layer_and_top_k_costs_least_along_principal_ones():
    original = load_original(4, 5, 13)
    bridge, tokens = original.bridge(), original.task.sample(60, 0)
    record = record_layer(bridge, 0, tokens)
    begin = LORSA.but(
        init="pca", noise=0.0, expansion=2, value_bias="free", top_k=8, steps=1, lr=1e-12
    )
    for init in ("pca", "axes"):
        layer = train_gated(record, begin.but(init=init))
        assert max(layer.start, layer.fvu) < 1e-6, init
        same = bridge.run_with_hooks(tokens, fwd_hooks=replacing(bridge, 0, layer.block))
        assert (same - bridge(tokens)).abs().max() < 1e-3
    generator = torch.Generator().manual_seed(0)
    heads = circuitkit.heads_of(circuitkit.load_model("two-layer"))[["L1H0", "L1H3"]]
    x = torch.randn(12, 20, 160, generator=generator)
    record = LayerRecord(x, heads.results(x).sum(1), 2, heads)
    units = begin.but(expansion=64, d_head=32, d_value=1, share=8)
    starts = {
        init: train_gated(record, units.but(init=init, top_k=k)).start
        for init, k in (("pca", 128), ("axes", 16))
    }
    assert starts["pca"] < 1e-6
    assert train_gated(record, units.but(top_k=16)).start < starts["axes"] < 1
    with pytest.raises(
        ValueError,
        match="2 heads of rank 32 have 128 directions, the block has 256 heads. Lower expansion",
    ):
        train_gated(record, units.but(expansion=128))
    with pytest.raises(ValueError, match="got init='pca' and a ToyModel; expected a LayerRecord"):
        train_gated(original, begin)


def test_top_k_holds_few_heads_and_its_number_falls_while_it_learns():
    original = load_original(4, 5, 13)
    runs = train_gated(original, LORSA.but(steps=200), inits=2, seed=0)
    heads, _ = runs(original.task.sample(50, 1))
    assert ((heads.abs().sum(-1) > 0).sum(1) <= 1).all()
    assert runs.fvu[runs.best] < 0.9
    both = {
        k: train_gated(original, LORSA.but(steps=1, top_k_warmup=w, top_k=k), inits=1, seed=0)
        for k, w in ((1, 0.9), (12, 0.0))
    }
    # at the first step all heads write, whatever top_k will be: the same step is made
    assert torch.allclose(both[1].models[0].block.W_O, both[12].models[0].block.W_O, atol=1e-6)


def test_training_on_a_record_lowers_its_loss():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 6, 5, generator=generator)
    y = (
        x.cumsum(1) / torch.arange(1, 7)[:, None] @ torch.randn(5, 5, generator=generator)
    )  # uniform attention, linear map
    recipe = WRITES.but(
        d_head=5,
        penalty="write_norm",
        alpha=1e-3,
        expansion=2,
        steps=150,
        batch=8,
        n_prompts=8,
        lr=2e-2,
    )
    layer = train_gated(LayerRecord(x, y, 2), recipe)
    assert layer.loss[-1] < 0.5 * layer.loss[0]
    assert layer.fvu < 0.5


def test_layer_errors():
    x = torch.zeros(4, 3, 2)
    with pytest.raises(ValueError, match="n_heads=0; expected an integer of at least 1"):
        LayerRecord(x, x, 0)
    with pytest.raises(ValueError, match="NaN or infinite entries"):
        LayerRecord(x, x + float("nan"), 1)
    with pytest.raises(
        ValueError,
        match=r"layer=3, heads=None; expected one of the layers with attention heads, \[0\]",
    ):
        record_layer(two_head_model(2).bridge(), 3, torch.zeros(1, 3, dtype=torch.long))
    recipe = WRITES.but(d_head=2, penalty="write_norm", steps=20, batch=2, n_prompts=2, lr=1e38)
    random = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="seed 0: the loss became .* at step"):
        train_gated(LayerRecord(random, random, 1), recipe)
    with pytest.raises(ValueError, match="too short"):
        train_gated(LayerRecord(random[:1], random[:1], 1), recipe)


def test_the_stored_block_passes():
    from circuitkit.superposition import load_gated

    gated = load_gated()
    assert head_verdict(gated, gated.original.task, rows=100).exactly_one


def test_progress_is_told_and_a_silent_original_is_refused():
    told, recipe = [], WRITES.but(steps=60, batch=4, n_prompts=40)
    train_gated(
        hand_specified(2, 3),
        recipe,
        inits=1,
        progress=lambda step, steps: told.append((step, steps)),
    )
    assert told == [(50, 60), (60, 60)]
    x = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(0))
    plain = WRITES.but(d_head=2, penalty="write_norm", steps=25, batch=2, n_prompts=2)
    told.clear()
    train_gated(
        LayerRecord(x, x, 1), plain, progress=lambda step, steps: told.append((step, steps))
    )
    assert told == [(25, 25)]
    model = hand_specified(2, 3)
    silent = dataclasses.replace(model.heads, W_O=torch.zeros_like(model.heads.W_O))
    with pytest.raises(
        ValueError, match="the original's attention layer writes nothing on these prompts"
    ):
        train_gated(ToyModel(silent, model.task, model.W_E, model.W_U), recipe, inits=1)


def test_a_loss_without_penalty(double):
    recipe, task = GATES.but(penalty="none"), SkipTrigramTask(3)
    p = stack_parameters([GatedBlock(recipe, 2, 8)], recipe)
    tokens, target = task.sample(10, 0), torch.ones(8, 8, 8)
    batch = tables.count_batch(tokens, 8, torch.float64)
    y = target[tokens].flatten(0, 1)[batch.index]
    error, penalty = tables.loss_terms(
        recipe, p, torch.eye(8), batch, y[..., 0, :] if y.ndim > 3 else y, 1.0, 1.0
    )
    assert penalty.tolist() == [0.0]
    assert error.item() > 0
