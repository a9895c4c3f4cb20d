"""Full QK and OV circuits, their largest entries, and copying scores."""

import dataclasses
import types

import pytest
import torch
from transformer_lens import FactoredMatrix

import circuitkit
from circuitkit._blocks import largest_entries
from circuitkit.circuits import copying_score, full_ov, full_qk, random_heads, top_per_row

CLOSE = {"rtol": 0, "atol": 1e-12}


def column(model, layer, head):
    """Weights of one head read off the linear layers themselves, as row-vector matrices."""
    cfg, state = model.cfg, model.state_dict()
    rows = slice(head * cfg.d_head, (head + 1) * cfg.d_head)
    part = lambda name: state[f"blocks.{layer}.attn.{name}.weight"]  # noqa: E731
    bias = lambda name: state[f"blocks.{layer}.attn.{name}.bias"][rows]  # noqa: E731
    return part("q")[rows].T, part("k")[rows].T, part("v")[rows].T, part("o")[:, rows].T, bias


def test_full_ov_is_the_product(plain):
    _, _, v, o, _ = column(plain, 1, 2)
    state = plain.state_dict()
    expected = state["embed.weight"] @ v @ o @ state["unembed.weight"].T
    circuit = full_ov(plain, "L1H2")
    assert circuit.shape == (37, 37)
    assert circuit.mdim == 5
    torch.testing.assert_close(circuit.AB, expected, **CLOSE)
    torch.testing.assert_close(full_ov(plain, ["L0H0", "L1H2"]).AB[1], expected, **CLOSE)


def test_full_ov_is_what_attending_adds(boot):
    """Route through the model: what one head adds to the logits when all attention lies on one token."""
    model = boot(n_layers=1, seed=4)
    tokens = torch.tensor([[5, 11]])

    def on_first(pattern, hook):
        forced = torch.zeros_like(pattern)
        forced[..., 0] = 1.0
        return forced

    def silence(z, hook):
        z = z.clone()
        z[:, :, 1] = 0.0
        return z

    point = "blocks.0.attn.hook_pattern"
    both = model.run_with_hooks(tokens, fwd_hooks=[(point, on_first)])
    without = model.run_with_hooks(
        tokens, fwd_hooks=[(point, on_first), ("blocks.0.attn.hook_z", silence)]
    )
    added = (both - without)[0, 1]
    rows = model.W_E.detach() + model.W_pos.detach()[0]  # here positions are read by the values too
    torch.testing.assert_close(
        full_ov(model, "L0H1", embed=rows, biases=True).AB[5], added, **CLOSE
    )
    assert (full_ov(model, "L0H1", embed=rows).AB[5] - added).abs().max() > 1e-3


def test_full_ov_on_other_rows(with_norm):
    rows = with_norm.blocks[0].ln1(with_norm.W_E).detach()
    _, _, v, o, _ = column(with_norm, 0, 1)
    expected = rows @ v @ o @ with_norm.W_U.detach()
    torch.testing.assert_close(full_ov(with_norm, "L0H1", embed=rows).AB, expected, **CLOSE)


@pytest.mark.parametrize("query", ["token", "position"])
@pytest.mark.parametrize("key", ["token", "position"])
def test_full_qk_is_the_product(plain, query, key):
    q, k, _, _, _ = column(plain, 0, 1)
    rows = {
        "token": plain.state_dict()["embed.weight"],
        "position": plain.state_dict()["pos_embed.weight"],
    }
    expected = rows[query] @ q @ k.T @ rows[key].T / 5**0.5
    circuit = full_qk(plain, "L0H1", query=query, key=key)
    torch.testing.assert_close(circuit.AB, expected, **CLOSE)
    torch.testing.assert_close(
        full_qk(plain, ["L0H1"], query=query, key=key).AB[0], expected, **CLOSE
    )


def test_four_tables_make_the_pattern(boot, tokens):
    """Content and position terms add up to the model's own pattern, biases included once."""
    model = boot(n_layers=1, seed=7)
    pattern = model.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"][:, 2]
    places = torch.arange(9)
    table = lambda **sides: full_qk(model, "L0H2", **sides).AB  # noqa: E731
    for row, ids in enumerate(tokens):
        scores = (
            table()[ids][:, ids]
            + table(key="position")[ids][:, places]
            + table(query="position")[places][:, ids]
            + table(query="position", key="position")[places][:, places]
        )
        _, _, _, _, bias = column(model, 0, 2)
        q, k, *_ = column(model, 0, 2)
        stream = model.W_E.detach()[ids] + model.W_pos.detach()[:9]
        scores = (
            scores
            + ((stream @ q) @ bias("k"))[:, None] / 5**0.5
            + ((stream @ k) @ bias("q"))[None] / 5**0.5
        )
        scores = scores.masked_fill(torch.ones(9, 9).triu(1) > 0, -torch.inf)
        torch.testing.assert_close(scores.softmax(-1), pattern[row], **CLOSE)


def test_full_qk_with_biases(boot):
    model = boot(n_layers=1, seed=7)
    q, k, _, _, bias = column(model, 0, 1)
    rows = model.W_E.detach()
    expected = (rows @ q + bias("q")) @ (rows @ k + bias("k")).T / 5**0.5
    torch.testing.assert_close(full_qk(model, "L0H1", biases=True).AB, expected, **CLOSE)


def test_equals_transformer_lens(plain):
    theirs = plain.W_E @ plain.OV[1, 2] @ plain.W_U
    torch.testing.assert_close(full_ov(plain, "L1H2").AB, theirs.AB.detach(), **CLOSE)
    theirs = plain.W_E @ plain.QK[1, 2] @ plain.W_E.T
    torch.testing.assert_close(full_qk(plain, "L1H2").AB, theirs.AB.detach() / 5**0.5, **CLOSE)


def test_grouped_query_heads_share_keys(boot):
    model = boot(n_heads=4, n_key_value_heads=2, n_layers=1, bias=False)
    tables = [full_qk(model, f"L0H{head}") for head in range(4)]
    torch.testing.assert_close(tables[0].B, tables[1].B, **CLOSE)
    torch.testing.assert_close(tables[2].B, tables[3].B, **CLOSE)
    assert (tables[1].B - tables[2].B).abs().max() > 0.1
    ids = torch.tensor([[3, 8, 1]])
    pattern = model.run_with_cache(ids)[1]["blocks.0.attn.hook_pattern"][0, 2, 2]
    stream = model.W_E.detach()[ids[0]] + model.W_pos.detach()[:3]
    stack = circuitkit.heads_of(model)["L0H2"]
    torch.testing.assert_close(
        (stream @ stack.W_Q[0] @ stack.W_K[0].T @ stream.T / 5**0.5)[2].softmax(-1),
        pattern,
        **CLOSE,
    )


def test_rotary_tables_make_the_pattern(boot, tokens):
    """With rotary positions one table per distance: together they give the model's own pattern."""
    model = boot(positional_embedding_type="rotary", d_head=4, n_layers=1, bias=False)
    pattern = model.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"][0, 1]
    ids = tokens[0]
    scores = torch.full((9, 9), -torch.inf, dtype=torch.float64)
    for dst in range(9):
        for src in range(dst + 1):
            scores[dst, src] = full_qk(model, "L0H1", offset=dst - src).AB[ids[dst], ids[src]]
    # The model's tables of cosines hold float32 values.
    torch.testing.assert_close(scores.softmax(-1), pattern, rtol=0, atol=1e-6)


def test_largest_entries():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(23, 3, generator=generator), torch.randn(3, 31, generator=generator)
    expected = sorted(
        ((float(a[i] @ b[:, j]), i, j) for i in range(23) for j in range(31)), reverse=True
    )[:7]
    values, rows, columns = largest_entries(a, b, 7, block=4)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == [
        (i, j) for _, i, j in expected
    ]
    torch.testing.assert_close(
        values, torch.tensor([v for v, _, _ in expected]), rtol=1e-5, atol=1e-6
    )
    assert len(largest_entries(a, b, 23 * 31, block=7)[0]) == 23 * 31


def test_top_per_row():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(11, 3, generator=generator), torch.randn(3, 7, generator=generator)
    for largest in (True, False):
        top = top_per_row(FactoredMatrix(a, b), 2, largest=largest, block=4)
        for i in range(11):
            expected = sorted(range(7), key=lambda j: float(a[i] @ b[:, j]), reverse=largest)[:2]
            assert top.columns[i].tolist() == expected
            assert top.values[i, 0].item() == pytest.approx(
                float(a[i] @ b[:, expected[0]]), abs=1e-6
            )


def with_eigenvalues(*values):
    """One head on a stream of 6 whose OV has these eigenvalues: blocks of rotation times scale for complex pairs."""
    n = len(values)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    blocks, i = torch.zeros(n, n, dtype=torch.float64), 0
    while i < n:
        if isinstance(values[i], complex):
            a, b = values[i].real, values[i].imag
            blocks[i : i + 2, i : i + 2] = torch.tensor([[a, b], [-b, a]])
            i += 2
        else:
            blocks[i, i] = values[i]
            i += 1
    stack = random_heads(1, 6, n).to(torch.float64)
    return dataclasses.replace(
        stack, W_V=basis[None, :, :n], W_O=(blocks @ torch.linalg.inv(basis)[:n])[None]
    )


def test_copying_by_hand():
    result = copying_score(with_eigenvalues(3.0, 1.0, -1.0))
    assert result.score.item() == pytest.approx(3 / 5, abs=1e-12)
    assert result.positive_fraction.item() == pytest.approx(2 / 3, abs=1e-12)
    pair = copying_score(with_eigenvalues(3 + 4j, 3 - 4j, -2.0))
    assert pair.score.item() == pytest.approx((6 - 2) / (5 + 5 + 2), abs=1e-12)
    assert pair.positive_fraction.item() == pytest.approx(2 / 3, abs=1e-12)
    assert pair.eigenvalues.abs()[0].tolist() == pytest.approx([5, 5, 2])


def test_copying_extremes():
    assert copying_score(with_eigenvalues(2.0, 0.5)).score.item() == pytest.approx(1, abs=1e-12)
    assert copying_score(with_eigenvalues(-2.0, -0.5)).score.item() == pytest.approx(-1, abs=1e-12)
    silent = with_eigenvalues(1.0, 1.0)
    silent = copying_score(dataclasses.replace(silent, W_O=torch.zeros_like(silent.W_O)))
    assert silent.score.item() == 0
    assert silent.positive_fraction.item() == 0
    # Eigenvalues that are zero up to rounding count on neither side.
    assert copying_score(with_eigenvalues(2.0, 0.0, 0.0)).positive_fraction.item() == 1


def test_copying_of_the_full_circuit(plain):
    """Reference: numpy's eigenvalues of the whole d_vocab x d_vocab matrix."""
    import numpy as np

    result = copying_score(plain)
    assert result.names == circuitkit.heads_of(plain).names
    for row, name in enumerate(result.names):
        values = np.linalg.eigvals(full_ov(plain, name).AB.numpy())
        values = sorted(values, key=abs, reverse=True)[:5]
        expected = sum(values).real / sum(abs(value) for value in values)
        assert result.score[row].item() == pytest.approx(expected, abs=1e-10)
        assert result.positive_fraction[row].item() == pytest.approx(
            sum(v.real > 0 for v in values) / 5
        )
    some = copying_score(circuitkit.heads_of(plain)[["L1H2", "L0H1"]], plain)
    torch.testing.assert_close(some.score, result.score[[5, 1]], **CLOSE)
    alone = copying_score(circuitkit.heads_of(plain))
    assert (alone.score - result.score).abs().max() > 0.05


def test_copying_equals_transformer_lens(plain):
    values = full_ov(plain, "L0H0").eigenvalues
    expected = values.sum().real / values.abs().sum()
    torch.testing.assert_close(copying_score(plain).score[0], expected, **CLOSE)


def test_half_precision_copying():
    result = copying_score(random_heads(2, 8, 3).to(torch.bfloat16))
    assert result.score.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: full_ov(m, "L7H0"), ["'L7H0'", "L1H0", "L1H1"]),
        (
            lambda m: full_qk(m, "L0H0", query="word"),
            ["query='word'", "['token', 'position']", "query='token'"],
        ),
        (
            lambda m: full_qk(m, "L0H0", offset=1),
            ["offset=1", "added to the stream", "Leave offset out"],
        ),
        (lambda m: top_per_row(full_ov(m, "L0H0"), 0), ["k=0", "at least 1"]),
        (lambda m: top_per_row(full_ov(m, "L0H0"), 38), ["k=38", "1 to 37", "smaller k"]),
        (
            lambda m: top_per_row(full_ov(m, ["L0H0"]), 3),
            ["FactoredMatrix", "without leading axes", "full_ov(model"],
        ),
        (lambda m: full_ov(torch.nn.Linear(2, 2), "L0H0"), ["Linear", "TransformerBridge"]),
        (lambda m: copying_score({"a": 1}), ["{'a': 1}", "TransformerBridge"]),
        (lambda m: copying_score(m, m), ["expected Heads first", "copying_score(heads, model)"]),
        (
            lambda m: copying_score(random_heads(1, 7, 2), m),
            ["d_model 7", "d_model 24", "copying_score(model)"],
        ),
    ],
)
def test_messages(plain, call, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call(plain)
    for words in said:
        assert words in str(error.value)


def test_rotary_messages(boot):
    model = boot(positional_embedding_type="rotary", d_head=4, n_layers=1)
    with pytest.raises(
        ValueError,
        match=r"offset=None.*rotated by their positions.*offset=1 for the previous token",
    ):
        full_qk(model, "L0H0")
    with pytest.raises(
        ValueError, match=r"offset=13, .*expected 0 to 12|offset=13; expected 0 to 12"
    ):
        full_qk(model, "L0H0", offset=13)
    with pytest.raises(ValueError, match=r"key='position'.*no table of positions.*offset="):
        full_qk(model, "L0H0", key="position", offset=1)


def test_a_stand_in_without_embeddings_is_refused(plain):
    stand_in = types.SimpleNamespace(heads=circuitkit.heads_of(plain))
    with pytest.raises(
        ValueError, match=r"full_ov got model as a SimpleNamespace; expected a transformer-lens"
    ):
        full_ov(stand_in, "L0H0")
    with pytest.raises(
        ValueError,
        match=r"copying_score got heads_or_model as a SimpleNamespace; expected Heads or a transformer-lens",
    ):
        copying_score(stand_in)
