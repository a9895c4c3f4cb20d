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


def test_copying_by_hand():
    """The eigenvalues of OV are 3 + 4i, 3 - 4i and -2."""
    W_OV = torch.tensor([[3.0, -4.0, 0.0], [4.0, 3.0, 0.0], [0.0, 0.0, -2.0]])
    head = dataclasses.replace(random_heads(1, 3, 3), W_V=torch.eye(3)[None], W_O=W_OV[None])
    assert copying_score(head)["L0H0"] == pytest.approx((6 - 2) / (5 + 5 + 2), abs=1e-6)
    silent = dataclasses.replace(head, W_O=torch.zeros(1, 3, 3))
    assert copying_score(silent)["L0H0"] == 0


def test_copying_in_half_precision_is_computed_in_float32():
    assert copying_score(random_heads(2, 8, 3).to(torch.bfloat16)).values.dtype == torch.float32


def test_arguments_that_would_give_a_wrong_table(plain, boot):
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
    with pytest.raises(ValueError, match="do not write into the stream of this model"):
        copying_score(random_heads(1, 7, 2), plain)
    with pytest.raises(ValueError, match="do not write into the stream of this model"):
        copying_score(heads_of(boot(seed=8)), plain)
