"""The gated block and its penalties against slow loops written from the formulas, and against hand-computed numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.superposition import GATES, LORSA, GatedBlock, hand_specified, post_recipe
from circuitkit.superposition._block import WRITES, Recipe, across_heads, most_active, write_penalty


def slow_block(block: GatedBlock, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`(output[pos, d_model], gate[head, dst, src])` for one row, one number at a time."""
    recipe, pos = block.recipe, len(x)
    gates, write = (
        torch.zeros(block.n_heads, pos, pos),
        torch.zeros(pos, block.n_heads, x.shape[-1]),
    )
    activation = torch.zeros(pos, block.n_heads)
    for h in range(block.n_heads):
        group = h // recipe.share
        W_V, b_V, W_O = block.W_V[h].clone(), block.b_V[h].clone(), block.W_O[h].clone()
        if recipe.normalise:
            for column in range(W_V.shape[1]):
                length = W_V[:, column].square().sum()
                W_V[:, column] /= length.sqrt()
                W_O[column] /= W_O[column].norm()
        if recipe.output_scale != "none":
            W_O = W_O * math.exp(float(block.log_scale))
        for dst in range(pos):
            scores = []
            for src in range(pos):
                q, k = (
                    x[dst] @ block.W_Q[group] + block.b_Q[group],
                    x[src] @ block.W_K[group] + block.b_K[group],
                )
                scores.append(float(q @ k) / math.sqrt(recipe.d_head))
                g = float(
                    (x[dst] @ block.W_GQ[group] + block.b_GQ[group])
                    @ (x[src] @ block.W_GK[group] + block.b_GK[group])
                )
                gates[h, dst, src] = {
                    "clamp": min(max(g, 0.0), 1.0),
                    "none": 1.0,
                    "relu": max(g, 0.0),
                    "relu_tanh": math.tanh(max(g, 0.0)),
                    "binary": float(g >= 0),
                    "binary_ste": float(g >= 0),
                }[recipe.gate]
            total = sum(math.exp(s) for s in scores[: dst + 1])
            for src in range(dst + 1):
                v = x[src] @ W_V + b_V
                passed = float(gates[h, dst, src]) * math.exp(scores[src]) / total
                write[dst, h] += passed * (v @ W_O)
                activation[dst, h] += passed * float(v[0])
    if recipe.top_k:
        for dst in range(pos):
            length = [
                float(write[dst, h].norm()) if activation[dst, h] > 0 else 0.0
                for h in range(block.n_heads)
            ]
            for h in sorted(range(block.n_heads), key=length.__getitem__)[: -recipe.top_k]:
                write[dst, h] = 0
            write[dst, activation[dst] <= 0] = 0
    return write.sum(1), gates[:: recipe.share]


CASES = [
    post_recipe(2),
    GATES,
    WRITES,
    GATES.but(d_head=2, d_gate=3, value_bias="free"),
    GATES.but(gate="relu_tanh", output_scale="learned"),
    Recipe(gate="binary_ste", d_gate=2),
    Recipe(gate="relu", penalty="write_norm", d_head=3),
    WRITES.but(gate="none"),
    LORSA,
    LORSA.but(top_k=2, share=3, d_head=4, d_value=1, value_bias="free"),
    GATES.but(top_k=3, share=2),
    WRITES.but(d_head=3, d_value=2, share=3, penalty="write_norm"),
]


@pytest.mark.parametrize("recipe", CASES)
@torch.no_grad()
def test_output_and_gates_against_a_slow_loop(recipe):
    torch.set_default_dtype(torch.float64)
    try:
        block = GatedBlock(recipe.but(expansion=3), 2, 7, target_rms=1.3, seed=3)
        for value in (block.b_GQ, block.b_GK):
            value.copy_(torch.linspace(-1, 1, value.numel()).view_as(value))
        x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
        out, gates = slow_block(block, x)
        assert torch.allclose(block(x), out, atol=1e-12)
        assert torch.allclose(block.gates(x), gates, atol=1e-12)
        assert torch.allclose(block.results(x[None]).sum(1)[0], out, atol=1e-12)
        p = recipe.power
        rest = block(x[None], without=(0, 3))[0]
        assert torch.allclose(
            rest,
            block.results(x[None])[0, [1, 2, 4, 5, *range(6, block.n_heads)]].sum(0),
            atol=1e-12,
        )
        if recipe.penalty == "gate":
            pairs = [(i, j) for i in range(5) for j in range(5) if recipe.pairs == "all" or j <= i]
            by_hand = sum(float((gates[:, i, j] ** p).sum() ** (1 / p)) for i, j in pairs) / len(
                pairs
            )
            assert float(block.penalty(x[None])) == pytest.approx(by_hand, abs=1e-12)
        if recipe.penalty == "write_norm":
            lengths = block.results(x).norm(dim=-1)  # [head, pos]
            by_hand = float(((lengths**2 + 1e-6).sqrt() ** p).sum(0).pow(1 / p).mean()) / 2
            assert float(block.penalty(x[None], target_rms=2.0)) == pytest.approx(
                by_hand, abs=1e-12
            )
        if recipe.penalty == "write":
            z, W_O, e = block.mixed(x)[..., 0], block.weights()[2][:, 0], 1e-3
            total = 0.0
            for pos in range(5):
                for u in range(7):
                    total += sum(
                        ((abs(z[h, pos]) + e) * (abs(W_O[h, u]) + e)) ** p
                        for h in range(block.n_heads)
                    ) ** (1 / p)
            assert float(block.penalty(x[None], target_l1=2.0)) == pytest.approx(
                float(total) / 5 / 2, abs=1e-12
            )
    finally:
        torch.set_default_dtype(torch.float32)


def test_penalty_by_hand():
    gates = torch.tensor([0.5, 0.5, 0.0])
    assert float(across_heads(gates, 0.6, 0)) == pytest.approx(0.5 * 2 ** (1 / 0.6))
    one, two = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
    assert float(across_heads(one, 0.6, 0)) == pytest.approx(1.0)
    assert (
        float(across_heads(two, 0.6, 0)) > 1.5
    )  # two half-open gates cost more than one open gate
    assert float(across_heads(torch.zeros(3), 0.6, 0)) == 0.0
    z, W_O = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    assert float(write_penalty(z, W_O, 1.0)) == pytest.approx(2.0, abs=0.02)


def test_gradient_of_the_penalty_is_torchs_own_and_zero_when_closed():
    x = torch.tensor([[0.4, 0.1], [0.0, 0.3], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    across_heads(x, 0.6, 1).sum().backward()
    ours, x.grad = x.grad.clone(), None
    torch.linalg.vector_norm(x, 0.6, dim=1).sum().backward()
    assert torch.allclose(ours, x.grad, atol=1e-12)
    assert ours[2].tolist() == [0, 0]


def test_post_form():
    """The value bias escapes normalisation in the post's form: scale it, and the output scales with it."""
    block = GatedBlock(post_recipe(4), 4, 12, seed=0).requires_grad_(False)
    assert block.n_heads == 8
    assert (block.recipe.alpha, block.recipe.lr, block.recipe.pairs, block.recipe.error) == (
        0.3,
        1e-3,
        "all",
        "mse",
    )
    x = torch.eye(12)[None]
    W_V, b_V, W_O = block.weights()
    assert torch.allclose(W_V.norm(dim=1), torch.ones(8, 1))
    assert torch.allclose(W_O.norm(dim=2), torch.ones(8, 1))
    block.W_V.mul_(100)
    block.W_O.mul_(100)
    before = block(x).clone()
    block.b_V.mul_(1000)
    assert block(x).norm() > 100 * before.norm()
    gates = block.W_GQ.flatten(1)
    assert torch.allclose(gates @ gates.T, torch.eye(8), atol=1e-5)  # orthonormal across heads
    assert not block.b_GQ.any()


def test_closed_loophole():
    block = GatedBlock(post_recipe(2).but(value_bias="none"), 2, 8, seed=0).requires_grad_(False)
    before = block(torch.eye(8)[None])
    block.W_V.mul_(50)
    block.b_V.mul_(50)
    assert torch.allclose(block(torch.eye(8)[None]), before, atol=1e-5)


def test_duplicate_init_copies_the_original():
    original = hand_specified(2, 3).heads
    block = GatedBlock(post_recipe(2).but(init="duplicate"), 2, 8, seed=0, original=original)
    noise = GatedBlock(post_recipe(2), 2, 8, seed=0)
    assert torch.allclose(block.W_K - noise.W_K, original.W_K.repeat(2, 1, 1), atol=1e-5)
    with pytest.raises(ValueError, match="expected original=heads"):
        GatedBlock(post_recipe(2).but(init="duplicate"), 2, 8)
    with pytest.raises(ValueError, match=r"gives \(4, 8, 1\), the block needs \(4, 8, 2\)"):
        GatedBlock(post_recipe(2).but(init="duplicate", d_head=2), 2, 8, original=original)


def test_as_ordinary_heads():
    block = GatedBlock(WRITES.but(gate="none"), 2, 8, seed=1).requires_grad_(False)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(block.heads.results(x), block.results(x), atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.floats(0.01, 1), st.integers(10, 2000))
def test_schedules(warmup, tail, steps):
    recipe = Recipe(
        alpha=2.0,
        alpha_warmup=warmup,
        alpha_tail=tail,
        tail_factor=0.25,
        steps=steps,
        cosine=True,
        lr_warmup=0.1,
    )
    alphas = [recipe.alpha_at(step) for step in range(steps)]
    assert alphas[-1] == (0.5 if tail * steps >= 1 else alphas[-1])
    assert max(alphas) <= 2.0
    rates = [recipe.lr_at(step) for step in range(steps)]
    assert max(rates) <= recipe.lr * (1 + 1e-9)
    assert rates[-1] == pytest.approx(0, abs=1e-12)


def test_schedules_by_hand():
    assert [round(GATES.alpha_at(step), 3) for step in (0, 350, 700, 799, 800, 999)] == [
        0,
        0.5,
        2,
        2,
        0.2,
        0.2,
    ]
    assert post_recipe(3).alpha_at(0) == 0.1
    assert [post_recipe(3).lr_at(step) for step in (0, 99_999)] == [5e-4, 5e-4]


def test_bad_recipes():
    with pytest.raises(ValueError, match="(?s)gate='soft'.*alpha=-1.0.*alpha_tail=2.0.*lr=0.0"):
        Recipe(gate="soft", alpha=-1.0, lr=0.0, alpha_tail=2.0, n_prompts=10)
    with pytest.raises(
        ValueError, match="n_prompts=10, batch=1000; expected one batch of prompts or more"
    ):
        Recipe(n_prompts=10)
    with pytest.raises(
        ValueError,
        match="d_head=2, d_value=None; expected d_head=1 for penalty 'write'. Write penalty='write_norm'",
    ):
        WRITES.but(d_head=2)
    with pytest.raises(ValueError, match="expected a gate for penalty 'gate'"):
        GATES.but(gate="none")
    with pytest.raises(ValueError, match=r"no field \['alfa'\]"):
        GATES.but(alfa=1)
    with pytest.raises(
        ValueError, match="n_heads=5; expected 2, 3 or 4: the post has models of so many heads"
    ):
        post_recipe(5)
    with pytest.raises(
        ValueError,
        match="(?s)d_head=0; expected an integer of at least 1.*power=3.0; expected a number above 0",
    ):
        GATES.but(d_head=0, power=3.0)
    with pytest.raises(ValueError, match="alpha=nan; expected a finite number"):
        Recipe(alpha=float("nan"))


def test_top_k_by_hand_and_on_its_way():
    z, length = (
        torch.tensor([[1.0, -9.0, 2.0, 0.5], [-1.0, -2.0, -3.0, 4.0]]),
        torch.tensor([3.0, 1.0, 1.0, 1.0]),
    )
    assert most_active(z, length, 1).tolist() == [[1, 0, 0, 0], [0, 0, 0, 4]]
    assert most_active(z, length, 2).tolist() == [[1, 0, 2, 0], [0, 0, 0, 4]]
    assert most_active(z, length, 4).tolist() == [[1, 0, 2, 0.5], [0, 0, 0, 4]]
    assert [LORSA.top_k_at(step, 12) for step in (0, 250, 499, 500, 999)] == [12, 7, 1, 1, 1]
    assert LORSA.but(top_k=50).top_k_at(0, 12) == 12
    assert GATES.top_k_at(0, 12) == 12
    with pytest.raises(
        ValueError, match="expected heads that write one direction. Write d_value=1"
    ):
        LORSA.but(d_head=2)
    with pytest.raises(ValueError, match="d_value=1 for a start along axes"):
        GATES.but(init="pca", d_head=2)
    with pytest.raises(ValueError, match="groups that share queries and keys can hold"):
        GatedBlock(LORSA.but(share=5), 2, 8)
    shared = GatedBlock(LORSA.but(share=3), 2, 8).heads
    assert len(shared) == 6
    assert torch.equal(shared.W_K[0], shared.W_K[2])


def test_no_penalty_is_zero():
    block = GatedBlock(GATES.but(penalty="none"), 2, 8)
    assert block.penalty(torch.eye(8)[None]).item() == 0
