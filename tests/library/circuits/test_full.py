"""Full QK and OV circuits, and copying scores."""

import dataclasses

import pytest
import torch

from circuitkit import heads_of
from circuitkit.circuits import (
    copying_score,
    full_ov,
    full_qk,
    random_heads,
)
from tests.support import zoo

CLOSE = {"rtol": 0, "atol": 1e-12}  # float64, sums of at most a hundred terms of size one


def column(model, layer, head):
    """Weights of one head from the linear layers themselves, as matrices for row vectors."""
    state, d_head = model.state_dict(), model.cfg.d_head
    rows = slice(head * d_head, (head + 1) * d_head)
    q, k, v, o = (state[f"blocks.{layer}.attn.{name}.weight"] for name in "qkvo")
    biases = {name: state[f"blocks.{layer}.attn.{name}.bias"][rows] for name in "qkv"}
    return q[rows].T, k[rows].T, v[rows].T, o[:, rows].T, biases


def test_full_ov_is_what_attending_adds(boot):
    """What one head adds to the logits when all its attention lies on one token."""
    model = boot(n_layers=1, seed=4, bias=False)
    with torch.no_grad():
        model.W_pos.zero_()  # positions are read by values too

    def look_at_first_token(pattern, hook):
        forced = torch.zeros_like(pattern)
        forced[..., 0] = 1.0
        return forced

    def silence(z, hook):
        z = z.clone()
        z[:, :, 1] = 0.0
        return z

    tokens, look = torch.tensor([[5, 11]]), ("blocks.0.attn.hook_pattern", look_at_first_token)
    with_head = model.run_with_hooks(tokens, fwd_hooks=[look])
    without = model.run_with_hooks(tokens, fwd_hooks=[look, ("blocks.0.attn.hook_z", silence)])
    added = (with_head - without)[0, 1]
    torch.testing.assert_close(full_ov(model, "L0H1").AB[5], added, **CLOSE)


def test_four_tables_and_the_biases_make_the_pattern(boot, tokens):
    model = boot(n_layers=1, seed=7)
    pattern = model.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"][:, 2]
    places, future = torch.arange(9), torch.ones(9, 9).triu(1) > 0
    q, k, _, _, bias = column(model, 0, 2)
    for row, ids in enumerate(tokens):
        at = {"token": ids, "position": places}
        scores = sum(
            full_qk(model, "L0H2", query=query, key=key).AB[at[query]][:, at[key]]
            for query in at
            for key in at
        )
        stream = model.W_E.detach()[ids] + model.W_pos.detach()[:9]
        scores = scores + ((stream @ q) @ bias["k"])[:, None] / 5**0.5
        scores = scores + ((stream @ k) @ bias["q"])[None] / 5**0.5
        scores = scores.masked_fill(future, -torch.inf)
        torch.testing.assert_close(scores.softmax(-1), pattern[row], **CLOSE)


@pytest.mark.parametrize("n_groups", [None, 1])
def test_rotary_tables_make_the_pattern(boot, tokens, n_groups):
    """One table for each distance; heads may share keys."""
    rotary = {"positional_embedding_type": "rotary", "d_head": 4, "n_key_value_heads": n_groups}
    model = boot(n_layers=1, bias=False, **rotary)
    pattern = model.run_with_cache(tokens)[1]["blocks.0.attn.hook_pattern"][0, 1]
    ids = tokens[0]
    scores = torch.full((9, 9), -torch.inf, dtype=torch.float64)
    for dst in range(9):
        for src in range(dst + 1):
            scores[dst, src] = full_qk(model, "L0H1", offset=dst - src).AB[ids[dst], ids[src]]
    # 1e-6: the model's tables of cosines hold float32 values
    torch.testing.assert_close(scores.softmax(-1), pattern, rtol=0, atol=1e-6)


def test_tables_equal_transformer_lens(plain):
    theirs = plain.W_E @ plain.OV[1, 2] @ plain.W_U
    torch.testing.assert_close(full_ov(plain, "L1H2").AB, theirs.AB.detach(), **CLOSE)
    theirs = plain.W_E @ plain.QK[1, 2] @ plain.W_E.T
    torch.testing.assert_close(full_qk(plain, "L1H2").AB, theirs.AB.detach() / 5**0.5, **CLOSE)


def test_scaled_embeddings_are_what_the_first_layer_reads():
    """Gemma multiplies its embedding: rows of the table come from the stream, not from W_E."""
    model, tokens = zoo.make("gemma1"), torch.arange(50)[None, :20]
    stream = model.run_with_cache(tokens)[1]["blocks.0.hook_in"][0]
    head = heads_of(model, "L0H1")
    expected = stream @ head.W_V[0] @ head.W_O[0] @ model.W_U.detach()
    torch.testing.assert_close(full_ov(model, "L0H1").AB[:20], expected, **CLOSE)


def test_neuron_heads_have_a_row_and_a_column_for_the_bias_token():
    model = zoo.converted("native-mlp")
    head, table = heads_of(model, "L0N3.1"), full_ov(model, "L0N3.1").AB
    expected = model.W_E.detach() @ head.W_V[0, :-1] @ head.W_O[0, :, :-1] @ model.W_U.detach()
    assert table.shape == (51, 51)
    torch.testing.assert_close(table[:50, :50], expected, **CLOSE)
    bias_token = head.W_V[0, -1:] @ head.W_O[0, :, :-1] @ model.W_U.detach()
    torch.testing.assert_close(table[50:, :50], bias_token, **CLOSE)
    assert not table[:, 50].any()


def with_eigenvalues(*values):
    """One head on a stream of 6 whose OV has these eigenvalues; complex ones come in pairs."""
    n, i = len(values), 0
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    blocks = torch.zeros(n, n, dtype=torch.float64)
    while i < n:
        if isinstance(values[i], complex):
            a, b = values[i].real, values[i].imag
            blocks[i : i + 2, i : i + 2] = torch.tensor([[a, b], [-b, a]])
            i += 2
        else:
            blocks[i, i] = values[i]
            i += 1
    W_O = blocks @ torch.linalg.inv(basis)[:n]
    heads = random_heads(1, 6, n).to(torch.float64)
    return dataclasses.replace(heads, W_V=basis[None, :, :n].clone(), W_O=W_O[None])


def test_copying_by_hand():
    def score(*values):
        return copying_score(with_eigenvalues(*values))["L0H0"]

    assert score(3.0, 1.0, -1.0) == pytest.approx(3 / 5, abs=1e-12)
    assert score(3 + 4j, 3 - 4j, -2.0) == pytest.approx((6 - 2) / (5 + 5 + 2), abs=1e-12)
    assert score(2.0, 0.5) == pytest.approx(1, abs=1e-12)
    assert score(-2.0, -0.5) == pytest.approx(-1, abs=1e-12)
    silent = with_eigenvalues(1.0, 1.0)
    silent = dataclasses.replace(silent, W_O=torch.zeros_like(silent.W_O))
    assert copying_score(silent)["L0H0"] == 0


def test_copying_of_neurons_equals_their_own_product():
    """A neuron that is a head of rank one copies by the sign of its trace."""
    model = zoo.converted("native-mlp")
    heads = heads_of(model, ["L0N3", "L1N2"])
    scores = copying_score(heads, model)
    for name in scores:
        trace = full_ov(model, name).AB.trace()
        assert scores[name] == pytest.approx(float(trace.sign()), abs=1e-12)


def test_copying_in_half_precision_is_computed_in_float32():
    assert copying_score(random_heads(2, 8, 3).to(torch.bfloat16)).values.dtype == torch.float32


def test_arguments_that_would_give_a_wrong_table(plain, boot):
    with pytest.raises(ValueError, match="no head is called 'L7H0'"):
        full_ov(plain, "L7H0")
    with pytest.raises(ValueError, match="query='word'.*'token' or 'position'"):
        full_qk(plain, "L0H0", query="word")
    with pytest.raises(ValueError, match="offset=1, but these heads do not rotate"):
        full_qk(plain, "L0H0", offset=1)
    rotary = boot(positional_embedding_type="rotary", d_head=4, n_layers=1)
    with pytest.raises(ValueError, match="offset=None.*offset=1 for the previous token"):
        full_qk(rotary, "L0H0")
    with pytest.raises(ValueError, match="no position embedding.*offset=1"):
        full_qk(rotary, "L0H0", key="position")
    n_ctx = rotary.cfg.n_ctx
    assert full_qk(rotary, "L0H0", offset=n_ctx - 1).AB.shape == (37, 37)
    with pytest.raises(ValueError, match=f"offset={n_ctx}.*from 0 to {n_ctx - 1}"):
        full_qk(rotary, "L0H0", offset=n_ctx)
    with pytest.raises(
        ValueError, match="was given a str and a second argument. Write the heads first"
    ):
        copying_score("L0H1", plain)
    with pytest.raises(ValueError, match="do not write into the stream of this model"):
        copying_score(random_heads(1, 7, 2), plain)
    with pytest.raises(ValueError, match="do not write into the stream of this model"):
        copying_score(heads_of(boot(seed=8)), plain)
    with pytest.raises(TypeError, match="A TransformerBridge is needed, not {.a.: 1}"):
        copying_score({"a": 1})
