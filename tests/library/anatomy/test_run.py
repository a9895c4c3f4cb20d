"""The loop with parts and wires taken out, against a forward pass in plain loops that shares no code with it."""

import dataclasses

import pytest
import torch

import circuitkit as ck
from circuitkit.anatomy import Norm, from_heads
from circuitkit.anatomy._sublayer import Sublayer
from circuitkit.conversion import neuron_heads_of
from tests.support.slow_forward import forward
from tests.support.zoo import converted, make


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b.to(a), atol=tolerance, rtol=tolerance)


@pytest.fixture(params=["native", "native-mlp", "native-rotary"])
def native(request):
    return make(request.param)


def slow(model, tokens, **without):
    return torch.stack([forward(model, row, **without)[0] for row in tokens])


def test_logits_and_every_part(native, tokens):
    run = ck.anatomy(native).run(tokens)
    close(run.logits, slow(native, tokens))
    for row, ids in enumerate(tokens):
        parts = forward(native, ids)[1]
        assert set(run.model.parts()) <= set(parts)
        for name, value in parts.items():
            close(run.part(name)[row], value) if name in run.model.parts() else None


@pytest.mark.parametrize("kind", "QKV")
def test_wires_between_heads(native, tokens, kind):
    anatomy = ck.anatomy(native)
    for source in ("embed", "L0H1", "L0 bias"):
        run = anatomy.run(tokens, without=f"{source}->L1H2.{kind}")
        close(run.logits, slow(native, tokens, cut=[(source, "L1H2", kind)]))


def test_several_wires_at_once(native, tokens):
    wires = [
        ("L0H1", "L1H2", "K"),
        ("L0H0", "L1H2", "K"),
        ("L0H1", "L1H3", "K"),
        ("embed", "L0H0", "Q"),
        ("L0H3", "L1H2", "V"),
    ]
    run = ck.anatomy(native).run(tokens, without=[f"{a}->{b}.{kind}" for a, b, kind in wires])
    close(run.logits, slow(native, tokens, cut=wires))
    every = [("L0H1", "L1H2", kind) for kind in "QKV"]
    close(
        ck.anatomy(native).run(tokens, without="L0H1->L1H2").logits, slow(native, tokens, cut=every)
    )


def test_wires_into_the_unembedding_and_an_mlp(native, tokens):
    anatomy = ck.anatomy(native)
    close(
        anatomy.run(tokens, without="L0H1->unembed").logits,
        slow(native, tokens, cut=[("L0H1", "unembed", "")]),
    )
    if "L1 MLP" in anatomy.parts():
        wire = [("L0H1", "L1 MLP", ""), ("L1H0", "L1 MLP", "")]
        close(
            anatomy.run(tokens, without=["L0H1->L1 MLP", "L1H0->L1 MLP"]).logits,
            slow(native, tokens, cut=wire),
        )


def test_whole_parts(native, tokens):
    anatomy = ck.anatomy(native)
    for name in (name for name in anatomy.parts() if name.startswith(("embed", "L0"))):
        close(anatomy.run(tokens, without=[name]).logits, slow(native, tokens, gone=[name]))
    gone = ["L0H1", "L1H0", "L0H3"]
    close(anatomy.run(tokens, without=gone).logits, slow(native, tokens, gone=gone))


def test_a_converted_model_has_the_parts_of_the_original(tokens):
    """Neurons add up to their MLP as the slow loop computes it, up to the promise; cuts of an MLP agree too."""
    model, heads = make("native-mlp"), converted("native-mlp")
    anatomy, bound = ck.anatomy(heads), 40 * heads.report.bound
    run = anatomy.run(tokens)
    assert [name for name in anatomy.parts() if name.startswith("L0N")][:3] == [
        "L0N0.0",
        "L0N0.1",
        "L0N1.0",
    ]
    close(run.logits, heads(tokens), 1e-12)
    for row, ids in enumerate(tokens):
        parts = forward(model, ids)[1]
        neurons = sum(run.part(f"L0N{n}") for n in range(20)) + run.part("L0 MLP bias")
        close(neurons, run.part("L0 MLP"))
        close(run.part("L0 MLP")[row], parts["L0 MLP"], bound)
    for wire in (("L0H1", "L1 MLP", ""), ("L0 MLP", "L1H2", "K")):
        name = "->".join(wire[:2]) + (f".{wire[2]}" if wire[2] else "")
        close(anatomy.run(tokens, without=name).logits, slow(model, tokens, cut=[wire]), bound)
    close(anatomy.run(tokens, without="L0 MLP").logits, slow(model, tokens, gone=["L0 MLP"]), bound)
    assert run.part("L1 MLP bias").abs().max() > 1e-3
    close(anatomy.run(tokens, without="L1 MLP").streams[-1], run.streams[-1] - run.part("L1 MLP"))


@pytest.mark.parametrize("kind", ["native-mlp", "gated"])
def test_one_neuron_by_hand(tokens, kind):
    """A neuron-head's share, pattern and cuts, from the matrices of the model."""
    model = converted(kind)
    anatomy = ck.anatomy(model)
    run, held = anatomy.run(tokens), neuron_heads_of(model, 1)
    read = run.read_by(anatomy.sublayers[3], run.streams[3])
    shift = 0 if kind == "gated" else held.b_in[5]  # a native gated MLP has no biases
    value = read @ held.W_in[:, 5] + shift
    gate = read @ held.W_gate[:, 5] if kind == "gated" else value
    # a gate is fitted for its own range
    numbers = held.terms.coefficients[:, 5 if kind == "gated" else 0]
    b, c, a, d = numbers[:, 1]
    looks = torch.sigmoid(gate * b + c)
    gathers = value * d if kind == "gated" else value * a + d
    close(run.pattern("L1N5.1"), looks)
    share = (looks * gathers)[..., None] * held.W_out[5]
    close(run.part("L1N5.1"), share)
    close(anatomy.run(tokens, without="L1N5.1").streams[-1], run.streams[-1] - share)
    close(anatomy.run(tokens, without="L1N5").streams[-1], run.streams[-1] - run.part("L1N5"))
    alone = anatomy["L1N5.1"]
    close(
        alone.results(
            torch.cat(
                [torch.eye(13, dtype=read.dtype)[-1:], torch.nn.functional.pad(read[0], (0, 1))]
            )
        )[0, 1:, :-1],
        share[0],
    )
    less = run.streams[3] - run.part("L0H1")
    norm = anatomy.sublayers[3].before
    v2 = norm(less) @ held.W_in[:, 5] + shift
    expected = 0
    for b, c, a, d in numbers.T:
        value = v2 * d if kind == "gated" else v2 * a + d
        expected = expected + torch.sigmoid(gate * b + c) * value
    cut = anatomy.run(tokens, without="L0H1->L1N5.V")
    close(cut.part("L1N5"), expected[..., None] * held.W_out[5])
    close(cut.part("L1N4"), run.part("L1N4"))


def test_fill(tokens):
    anatomy = ck.anatomy(make("native-mlp"))
    run, order = anatomy.run(tokens), torch.tensor([2, 0, 1])
    for part in ("L0H1", "L0 MLP", "embed"):
        mean, other = (
            anatomy.run(tokens, without=part, fill=fill) for fill in ("mean", lambda x: x[order])
        )
        close(mean.part(part), run.part(part).mean(0, keepdim=True).expand_as(run.part(part)))
        close(other.part(part), run.part(part)[order])
    wire = anatomy.run(tokens, without="L0H1->L1H2.V", fill=lambda x: x[order])
    stream, swap = run.streams[2], run.part("L0H1")[order] - run.part("L0H1")
    heads, norm = anatomy.sublayers[2].inside["L1H2"], anatomy.sublayers[2].before
    v = norm(stream + swap) @ heads.W_V[0] + heads.b_V[0]
    close(wire.part("L1H2"), run.pattern("L1H2") @ v @ heads.W_O[0])
    with pytest.raises(
        ValueError, match=r"fill='median'; expected one of \['zero', 'mean'\] or a function"
    ):
        anatomy.run(tokens, without="L0H1", fill="median")


def test_edit_and_watch(tokens):
    anatomy, seen = ck.anatomy(make("native-mlp")), []
    run = anatomy.run(
        tokens,
        watch=lambda sub, pattern, values, rows: seen.append(
            (sub.name, pattern.shape, values.shape)
        ),
    )
    assert seen == [("L0", (3, 4, 11, 11), (3, 4, 11, 5)), ("L1", (3, 4, 11, 11), (3, 4, 11, 5))]
    assert run.patterns == {}

    def halve(sub: Sublayer, z):
        return (
            z * torch.tensor([1.0, 0.5, 1.0, 1.0]).to(z)[:, None, None] if sub.name == "L1" else z
        )

    edited = anatomy.run(tokens, edit=halve)
    close(edited.part("L1H1"), run.part("L1H1") / 2)
    close(edited.part("L1H0"), run.part("L1H0"))


@pytest.mark.parametrize(
    "what",
    ["L1H0", "L0H1->L1H0.K", "L0H1->L1 MLP", "L1 MLP", "L1H0->unembed", "L0H0", "embed->L0H0.Q"],
)
def test_going_on_from_an_earlier_run(tokens, what):
    anatomy = ck.anatomy(make("native-mlp"))
    base = anatomy.run(tokens)
    resumed = anatomy.run(tokens, without=what, base=base)
    close(resumed.logits, anatomy.run(tokens, without=what).logits)
    for name in anatomy.parts():
        close(resumed.part(name), anatomy.run(tokens, without=what).part(name))
    assert all(a is b for a, b in zip(resumed.streams[:1], base.streams[:1], strict=True)) == (
        what[:2] != "em" and what != "L0H0"
    )
    with pytest.raises(ValueError, match="expected a run of these tokens through this model"):
        anatomy.run(tokens.flip(1), without="L1H0", base=base)


def test_gradients_reach_what_was_edited(tokens):
    anatomy = ck.anatomy(make("native"))
    size = torch.ones((), dtype=torch.float64, requires_grad=True)
    run = anatomy.run(tokens, edit=lambda sub, z: z * size if sub.name == "L0" else z, grad=True)
    run.logits.sum().backward()
    step = 1e-6
    moved = [
        anatomy.run(tokens, edit=lambda sub, z, s=s: z * s if sub.name == "L0" else z).logits.sum()
        for s in (1 + step, 1 - step)
    ]
    close(size.grad, (moved[0] - moved[1]) / (2 * step), 1e-5)
    assert anatomy.run(tokens).logits.grad_fn is None


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("L2H0", "no part is called 'L2H0'; the nearest of .* are L1H0"),
        ("L1H9->L1H0.K", "no part is called 'L1H9'; the nearest of .* are L1H3"),
        ("L1H0->L0H1.K", "expected a part before the arrow that runs before"),
        ("L1H0->L1H1.K", "expected a part before the arrow that runs before"),
        ("L0H0->L1H1->L1H0", "expected a part before the arrow that runs before"),
        ("L0H1.K->L1H1.K", "expected a part before the arrow"),
        ("L0H1->L1 MLP.Q", "L1 MLP has one input"),
        ("L0H0>>L1H0", "no name of a part"),
    ],
)
def test_what_cannot_be_taken_out(tokens, without, message):
    with pytest.raises(ValueError, match=message):
        ck.anatomy(make("native-mlp")).run(tokens, without=without)


def test_what_neurons_do_not_have(tokens):
    anatomy = ck.anatomy(converted("native-mlp"))
    with pytest.raises(ValueError, match="L1N5 has the inputs Q, V: its keys read the bias token"):
        anatomy.run(tokens, without="L0H1->L1N5.K")
    with pytest.raises(ValueError, match="no part is called 'L1N77'; the nearest of .* are L1N19"):
        anatomy.run(tokens, without="L1N77")
    with pytest.raises(ValueError, match="'L1N5' is not one head"):
        anatomy.run(tokens).pattern("L1N5")
    with pytest.raises(ValueError, match="'L1N5' is no attention head"):
        anatomy.run(tokens).score_sides("L1N5", 3, 1)
    with pytest.raises(ValueError, match="'unembed' writes nothing"):
        anatomy.run(tokens).part("unembed")
    with pytest.raises(
        ValueError, match="'L1N5' is not in the stream before step 1; expected one of embed"
    ):
        anatomy.run(tokens).part("L1N5", before=1)


@pytest.mark.usefixtures("as_a_reader")
@pytest.mark.parametrize(
    "bad", [torch.zeros(3, dtype=torch.long), torch.zeros(0, 3, dtype=torch.long)]
)
def test_tokens_of_another_shape(bad):
    with pytest.raises(
        ValueError,
        match=r"expected \[batch, pos\] with at least 1 position|tensor of integers \[batch, pos\]",
    ):
        ck.anatomy(make("native")).run(bad)


def test_tokens_of_another_model(tokens):
    with pytest.raises(ValueError, match=r"expected ids in 0\.\.49"):
        ck.anatomy(make("native")).run(tokens + 40)
    with pytest.raises(ValueError, match="at most 12, the model's context"):
        ck.anatomy(make("native")).run(tokens.repeat(1, 2))


def test_a_norm_behind_a_sublayer_is_shared_out():
    """Parts behind a norm that stands after a sublayer, and behind one of the whole stream, by hand."""
    from circuitkit.circuits import random_heads

    heads, eye = random_heads(2, 6, 3).to(torch.float64), torch.eye(6, dtype=torch.float64)
    plain = from_heads(heads, eye, eye)
    draw = torch.Generator().manual_seed(0)
    norms = [
        Norm(
            torch.randn(6, generator=draw, dtype=torch.float64),
            torch.randn(6, generator=draw, dtype=torch.float64),
            1e-3,
            c,
        )
        for c in (True, False)
    ]
    step = plain.steps[0]
    model = dataclasses.replace(
        plain,
        steps=(
            step._replace(
                sublayers=(dataclasses.replace(step.sublayers[0], after=norms[0]),),
                closing=norms[1],
            ),
        ),
    )
    ids = torch.tensor([[1, 5, 2]])
    x = eye[ids]
    wrote = heads.results(x)[0].sum(0)
    behind = torch.nn.functional.layer_norm(wrote, (6,), norms[0].gain, norms[0].bias, 1e-3)
    stream = x[0] + behind
    closed = (
        stream / (stream.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * norms[1].gain
        + norms[1].bias
    )
    run = model.run(ids)
    close(run.streams[-1][0], closed)
    assert model.parts() == ("embed", "L0H0", "L0H1", "L0 bias")
    close(sum(run.part(name) for name in model.parts())[0], closed)
    W = torch.randn(6, 2, generator=draw, dtype=torch.float64)
    close(torch.cat([share for _, share in run.shares(W)]).sum(0)[0], closed @ W)
    for name, share in zip(
        model.parts(), torch.cat([share for _, share in run.shares(W)]), strict=True
    ):
        close(share, run.part(name) @ W)
