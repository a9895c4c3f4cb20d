"""The gated block and its penalties against slow loops, and its settings."""

import math

import pytest
import torch

from circuitkit.superposition import GATES, WRITES, GatedBlock
from circuitkit.superposition.block import Recipe
from circuitkit_book.superposition_task import post_recipe


def slow_block(block, x):
    """`(written[pos, head, d_model], z[pos, head, d_head], gate[head, dst, src])`, from the formulas."""
    recipe, n_pos = block.recipe, len(x)
    d_head = recipe.d_head
    gates = torch.zeros(block.n_heads, n_pos, n_pos)
    z = torch.zeros(n_pos, block.n_heads, d_head)
    written = torch.zeros(n_pos, block.n_heads, x.shape[-1])
    for h in range(block.n_heads):
        W_V, W_O = block.W_V[h].clone(), block.W_O[h].clone()
        for column in range(d_head):
            if recipe.normalise:
                W_V[:, column] /= W_V[:, column].norm()
                W_O[column] /= W_O[column].norm()
        if recipe.fixed_scale:
            W_O = W_O * math.e * 1.3  # the target's root mean square in these tests
        for dst in range(n_pos):
            scores = []
            for src in range(n_pos):
                q, k = x[dst] @ block.W_Q[h] + block.b_Q[h], x[src] @ block.W_K[h] + block.b_K[h]
                scores.append(float(q @ k) / math.sqrt(d_head))
                gate_query = x[dst] @ block.W_GQ[h] + block.b_GQ[h]
                gate_key = x[src] @ block.W_GK[h] + block.b_GK[h]
                gates[h, dst, src] = 1.0
                if recipe.gate is not None:
                    gates[h, dst, src] = float(recipe.gate(gate_query @ gate_key))
            total = sum(math.exp(score) for score in scores[: dst + 1])
            for src in range(dst + 1):
                share = float(gates[h, dst, src]) * math.exp(scores[src]) / total
                z[dst, h] += share * (x[src] @ W_V + block.b_V[h])
            written[dst, h] = z[dst, h] @ W_O
    return written, z, gates


def penalty_by_hand(block, z, gates):
    p, n_pos = block.recipe.power, len(z)
    if block.recipe.penalty == "none":
        return 0.0
    total = 0.0
    if block.recipe.penalty == "gate":
        pairs = [(i, j) for i in range(n_pos) for j in range(n_pos)]
        if block.recipe.pairs == "causal":
            pairs = [(i, j) for i, j in pairs if j <= i]
        for dst, src in pairs:
            total += sum(float(gate) ** p for gate in gates[:, dst, src]) ** (1 / p)
        return total / len(pairs)
    W_O = block.used_weights()[1][:, 0]
    for pos in range(n_pos):
        for u in range(W_O.shape[1]):
            sizes = [(abs(z[pos, h, 0]) + 1e-3) * (abs(W_O[h, u]) + 1e-3) for h in range(len(W_O))]
            total += float(sum(size**p for size in sizes)) ** (1 / p)
    return total / n_pos


@pytest.mark.parametrize(
    "recipe",
    [
        post_recipe(2),
        GATES,
        WRITES,
        WRITES.but(gate=None),
        GATES.but(d_head=2, d_gate=3, value_bias=True, gate=torch.sigmoid, power=0.8),
        Recipe(gate=torch.relu, penalty="none", d_head=3, normalise=False),
    ],
)
@torch.no_grad()
def test_output_gates_and_penalty_are_those_of_a_slow_loop(recipe):
    torch.set_default_dtype(torch.float64)
    try:
        block = GatedBlock(recipe.but(expansion=3), 2, 7, target_rms=1.3, seed=3)
        for bias in (block.b_GQ, block.b_GK):
            bias.copy_(torch.linspace(-1, 1, bias.numel()).view_as(bias))
        x = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
        written, z, gates = slow_block(block, x)
        penalty = penalty_by_hand(block, z, gates)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(block(x[None])[0], written.sum(1), atol=1e-12)
    assert torch.allclose(block.gates(x), gates, atol=1e-12)
    gates = block.gates(x)
    assert block.penalty(gates, block.z(x, gates)).item() == pytest.approx(penalty, abs=1e-12)


def test_two_half_open_gates_cost_more_than_one_open_gate():
    block = GatedBlock(Recipe(expansion=1), 2, 3)
    z = torch.zeros(1, 1, 2, 1)

    def cost(first, second):
        gates = torch.tensor([first, second]).view(1, 2, 1, 1).requires_grad_()
        penalty = block.penalty(gates, z)
        penalty.backward()
        return penalty.item(), gates.grad.flatten().tolist()

    assert cost(1.0, 0.0) == (pytest.approx(1.0), [pytest.approx(1.0), 0.0])
    assert cost(0.5, 0.5)[0] == pytest.approx(0.5 * 2 ** (1 / 0.6))
    value, slopes = cost(0.0, 0.0)  # the slope of x^0.6 is infinite here
    assert value == pytest.approx(0.0, abs=1e-9)
    assert slopes == [0.0, 0.0]


def test_schedules_by_hand():
    alphas = [round(GATES.alpha_at(step), 3) for step in (0, 350, 700, 799, 800, 999)]
    assert alphas == [0, 0.5, 2, 2, 0.2, 0.2]
    assert post_recipe(3).alpha_at(0) == 0.1
    assert [post_recipe(3).lr_at(step) for step in (0, 99_999)] == [5e-4, 5e-4]


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="'write' needs heads of d_head=1"):
        WRITES.but(d_head=2)
    with pytest.raises(ValueError, match="'gate' needs a gate"):
        GATES.but(gate=None)
    with pytest.raises(ValueError, match="Recipe was given penalty='soft'"):
        GATES.but(penalty="soft")
    with pytest.raises(ValueError, match="2, 3 and 4 heads, not with 5"):
        post_recipe(5)
