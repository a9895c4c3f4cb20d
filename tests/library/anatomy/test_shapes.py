"""The loop against transformer-lens and transformers on every shape of model, in float64."""

import dataclasses

import pytest
import torch

import circuitkit as ck
from tests.support.zoo import SHAPES, converted, make

FLOOR = {name: floor for name, (*_, floor) in SHAPES.items()}
FLOOR |= {"native": 1e-12, "native-mlp": 1e-12, "native-rotary": 1e-12, "native-encoder": 1e-6}


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b.to(a), atol=tolerance, rtol=tolerance)


@pytest.fixture(scope="module", params=FLOOR)
def shape(request):
    """Name, model, its anatomy, tokens, one run, and transformer-lens's cache of the same tokens."""
    model = make(request.param)
    # 11 positions lie beyond every window of 5
    tokens = torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(1))
    anatomy = ck.anatomy(model)
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens)
    return request.param, anatomy, tokens, anatomy.run(tokens), logits, cache


def test_logits(shape):
    name, _, _, run, logits, _ = shape
    close(run.logits, logits, FLOOR[name])
    assert run.logits.abs().max() > 0.5


def test_streams_and_patterns(shape):
    name, anatomy, _, run, _, cache = shape
    for layer in range(len([sub for sub in anatomy.sublayers if sub.name == f"L{sub.layer}"])):
        step = anatomy.find(f"L{layer}H0").step
        close(run.streams[step], cache[f"blocks.{layer}.hook_resid_pre"], FLOOR[name])
        close(run.patterns[f"L{layer}"], cache[f"blocks.{layer}.attn.hook_pattern"], FLOOR[name])


def test_parts_add_up_to_every_stream(shape):
    _, anatomy, _, run, _, _ = shape
    for step in (0, 1, len(anatomy.steps)):
        total = sum(run.part(name, step) for name in anatomy.parts(step))
        close(total, run.streams[step], 1e-11)


def test_shares_are_parts_times_a_matrix(shape):
    _, anatomy, tokens, run, _, _ = shape
    draw = torch.Generator().manual_seed(2)
    for W in (
        torch.randn(anatomy.d_model, 3, generator=draw),
        torch.randn(*tokens.shape, anatomy.d_model, 2, generator=draw),
    ):
        groups = list(run.shares(W.double()))
        assert tuple(name for names, _ in groups for name in names) == anatomy.parts()
        for name, share in zip(
            anatomy.parts(), torch.cat([share for _, share in groups]), strict=True
        ):
            close(
                share,
                torch.einsum(
                    "bpm,bpmo->bpo", run.part(name), W.double().expand(*tokens.shape, -1, -1)
                ),
                1e-11,
            )


def test_score_tables_add_up_to_scores(shape):
    _, anatomy, _, run, _, _ = shape
    for head, dst, src in (("L1H2", 9, 6), ("L1H3", 4, 4), ("L0H0", 7, 0)):
        step, sub, rows, _ = anatomy.find(head)
        heads = dataclasses.replace(sub.inside, cap=None)
        scores = heads.scores(run.read_by(sub, run.streams[step]))[1, rows[0]]
        names, queries, keys = run.score_sides(head, dst, src, row=1)
        assert names == (*anatomy.parts(step), "bias")
        close((queries @ keys.T).sum(), scores[dst, src], 1e-11)


@pytest.mark.parametrize("kind", ["native-mlp", "gated"])
def test_converted_models(kind, tokens):
    model = converted(kind)
    anatomy = ck.anatomy(model)
    run = anatomy.run(tokens)
    with torch.no_grad():
        close(run.logits, model(tokens))
    close(sum(run.part(name) for name in anatomy.parts()), run.streams[-1], 1e-11)
    W = torch.randn(12, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    groups = list(run.shares(W))
    assert tuple(name for names, _ in groups for name in names) == anatomy.parts()
    shares = torch.cat([share for _, share in groups])
    for name in (
        "embed",
        "L0H2",
        "L0N3.1",
        "L1N19.0",
        "L1 MLP bias" if kind == "native-mlp" else "L1 bias",
    ):
        close(shares[anatomy.parts().index(name)], run.part(name) @ W)
    names, queries, keys = run.score_sides("L1H2", 5, 3)
    close(
        (queries @ keys.T).sum(),
        anatomy["L1H2"].scores(run.read_by(anatomy.sublayers[2], run.streams[2]))[0, 0, 5, 3],
    )
    assert "L0N7.1" in names


def test_a_mixture_of_experts_is_run_as_one_part():
    model = make_mixture()
    tokens = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))
    run = ck.anatomy(model).run(tokens)
    with torch.no_grad():
        close(run.logits, model(tokens), 2e-5)  # its experts multiply in float32 only
    assert "L1 MLP" in run.model.parts()


def make_mixture():
    from tests.support import zoo

    zoo.SHAPES.setdefault(
        "mixtral",
        ("MixtralForCausalLM", "MixtralConfig", {**zoo.GROUPED, "num_local_experts": 3}, 2e-5),
    )
    return make("mixtral", torch.float32)
