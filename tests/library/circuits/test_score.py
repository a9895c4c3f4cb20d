"""The decomposition of one attention score."""

import pytest
import torch

from circuitkit.circuits import score_decomposition

CLOSE = {"rtol": 0, "atol": 1e-12}


def head_weights(model, layer, head):
    d, state = model.cfg.d_head, model.state_dict()
    rows = slice(head * d, (head + 1) * d)
    part = lambda name: state[f"blocks.{layer}.attn.{name}.weight"]  # noqa: E731
    bias = lambda name: state[f"blocks.{layer}.attn.{name}.bias"][rows]  # noqa: E731
    return part("q")[rows].T, part("k")[rows].T, part("v")[rows].T, part("o")[:, rows].T, bias


def test_every_pair_of_a_plain_model(plain, tokens):
    dst, src = 7, 4
    _, cache = plain.run_with_cache(tokens)
    q, k, *_ = head_weights(plain, 1, 2)
    state = plain.state_dict()
    for row in range(2):
        result = score_decomposition(plain, tokens, "L1H2", dst, src, row=row)
        assert result.components == ("embed", "pos", "L0H0", "L0H1", "L0H2", "bias")
        parts = [state["embed.weight"][tokens[row]], state["pos_embed.weight"][:9]]
        for head in range(3):
            _, _, v, o, _ = head_weights(plain, 0, head)
            pattern = cache["blocks.0.attn.hook_pattern"][row, head]
            parts.append(pattern @ (parts[0] + parts[1]) @ v @ o)
        for i, on_query in enumerate(parts):
            for j, on_key in enumerate(parts):
                expected = (on_query[dst] @ q) @ (on_key[src] @ k) / 5**0.5
                assert result.table[i, j].item() == pytest.approx(expected.item(), abs=1e-12)
        assert (result.table[-1] == 0).all()
        queries, keys = (
            cache["blocks.1.attn.hook_q"][row, dst, 2],
            cache["blocks.1.attn.hook_k"][row, src, 2],
        )
        assert result.score == pytest.approx((queries @ keys / 5**0.5).item(), abs=1e-12)
        assert result.table.sum().item() == pytest.approx(result.score, abs=1e-12)
        torch.testing.assert_close(result.query, result.table.sum(1))
        torch.testing.assert_close(result.key, result.table.sum(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 3},
        {"attn_only": False, "normalization_type": "LN"},
        {"attn_only": False, "normalization_type": "LNPre"},
        {"n_heads": 4, "n_key_value_heads": 2},
    ],
    ids=str,
)
def test_sums_to_the_score(boot, tokens, changes):
    model = boot(**changes)
    _, cache = model.run_with_cache(tokens)
    share = 2 if "n_key_value_heads" in changes else 1
    for layer, head, dst, src, row in (
        (0, 1, 5, 5, 0),
        (1, 2, 8, 0, 1),
        (model.cfg.n_layers - 1, 0, 6, 2, 1),
    ):
        result = score_decomposition(model, tokens, f"L{layer}H{head}", dst, src, row=row)
        queries = cache[f"blocks.{layer}.attn.hook_q"][row, dst, head]
        keys = cache[f"blocks.{layer}.attn.hook_k"][row, src, head // share]
        assert result.score == pytest.approx((queries @ keys / 5**0.5).item(), abs=1e-11)


def test_norms_and_biases_by_hand(with_norm, tokens):
    """The share of L0 MLP as a query against all biases as a key, with the frozen norm written out."""
    model, dst, src = with_norm, 7, 3
    _, cache = model.run_with_cache(tokens)
    result = score_decomposition(model, tokens, "L1H1", dst, src, row=1)
    assert result.components == (
        "embed",
        "pos",
        "L0H0",
        "L0H1",
        "L0H2",
        "L0 bias",
        "L0 MLP",
        "bias",
    )
    norm = model.blocks[1].ln1
    q, k, _, _, bias = head_weights(model, 1, 1)

    def through(vector, place):
        x = cache["blocks.1.ln1.hook_in"][1, place]
        scale = ((x - x.mean()).square().mean() + 1e-5).sqrt()
        return (vector - vector.mean()) / scale * norm.weight.detach()

    written = cache["blocks.0.hook_mlp_out"][1, dst]
    layer = through(model.state_dict()["blocks.0.attn.o.bias"], src)
    for column, constant in ((5, layer @ k), (7, norm.bias.detach() @ k + bias("k"))):
        expected = (through(written, dst) @ q) @ constant / 5**0.5
        assert result.table[6, column].item() == pytest.approx(expected.item(), abs=1e-12)


def test_rotary(boot, tokens):
    model = boot(positional_embedding_type="rotary", d_head=4, normalization_type="LN")
    _, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.1.attn.hook_pattern"][0, 2, 6]
    scores = torch.tensor(
        [score_decomposition(model, tokens, "L1H2", 6, src).score for src in range(7)]
    )
    torch.testing.assert_close(scores.softmax(-1).double(), pattern[:7], rtol=0, atol=1e-6)


def test_largest(plain, tokens):
    result = score_decomposition(plain, tokens, "L1H0", 8, 2)
    best = result.largest(3)
    sizes = result.table.abs().flatten().sort(descending=True).values
    assert [abs(value) for _, _, value in best] == pytest.approx(sizes[:3].tolist())
    query, key, value = best[0]
    place = result.components.index(query), result.components.index(key)
    assert result.table[place].item() == value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("L1H0", 2, 5), ["dst=2, src=5", "src <= dst < 9", "looks back"]),
        (("L1H0", 9, 5), ["dst=9", "(2, 9)", "Count from 0"]),
        (("L5H0", 3, 2), ["'L5H0'", "L1H0"]),
    ],
)
def test_messages(plain, tokens, arguments, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        score_decomposition(plain, tokens, *arguments)
    for words in said:
        assert words in str(error.value)


def test_wrong_row(plain, tokens):
    with pytest.raises(ValueError, match=r"row=2, tokens of shape \(2, 9\).*a row of the batch"):
        score_decomposition(plain, tokens, "L1H0", 3, 2, row=2)


def test_a_soft_cap_comes_behind_the_sum(boot, tokens):
    model = boot(attn_scores_soft_cap=1.0)
    _, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.1.attn.hook_pattern"][0, 0, 5]
    scores = torch.tensor(
        [score_decomposition(model, tokens, "L1H0", 5, src).score for src in range(6)]
    )
    torch.testing.assert_close(scores.tanh().softmax(-1).double(), pattern[:6], rtol=0, atol=1e-6)


def test_the_largest_pairs_are_found_without_the_table(plain, tokens):
    result = score_decomposition(plain, tokens, "L1H0", 8, 2)
    size, names = result.table.abs(), result.components
    order = size.flatten().argsort(descending=True)[:7].tolist()
    wanted = [
        (names[i // len(names)], names[i % len(names)], float(result.table.flatten()[i]))
        for i in order
    ]
    for found, pair in zip(result.largest(7), wanted, strict=True):
        assert found[:2] == pair[:2]
        assert found[2] == pytest.approx(pair[2])
    assert len(result.largest(10**6)) == size.numel()
    assert result.query.tolist() == pytest.approx(result.table.sum(1).tolist())
    assert result.key.tolist() == pytest.approx(result.table.sum(0).tolist())
