"""Head scores against loops over single attention weights."""

import numpy as np
import pytest
import torch

from circuitkit.handmade import build_induction_model
from circuitkit.induction import BEHAVIOURS, repeated_tokens, scores


def slow_scores(slow_model, rows):
    """The four definitions, one weight and one source at a time."""
    runs = [slow_model.run(row) for row in rows]
    out = {}
    for key in runs[0][1]:
        prefix, duplicate, previous, known = 0.0, 0.0, 0.0, 0
        for row, (_, patterns, _) in zip(rows, runs, strict=True):
            pattern = patterns[key]
            for dst in range(len(row)):
                earlier = [p for p in range(dst) if row[p] == row[dst]]
                prefix += sum(pattern[dst, p + 1] for p in earlier)
                duplicate += sum(pattern[dst, p] for p in earlier)
                known += bool(earlier)
                previous += pattern[dst, dst - 1] if dst else 0.0
        steps = sum(len(row) - 1 for row in rows)
        out[key] = {
            "prefix matching": prefix / known,
            "duplicate token": duplicate / known,
            "previous token": previous / steps,
        }
    sources = [
        (row, p + 1)
        for row, ids in enumerate(rows)
        for p in range(len(ids) - 1)
        if any(ids[q] == ids[p] for q in range(p + 1, len(ids)))
    ]
    unembed = np.stack([slow_model.w["unembed.weight"][rows[row][p]] for row, p in sources])
    unembed = unembed * slow_model.w.get("ln_final.weight", 1.0)
    unembed = unembed - unembed.mean(0)
    for key, entry in out.items():
        values = np.stack([runs[row][2][key][p] for row, p in sources])
        W_O = np.split(slow_model.w[f"blocks.{key[0]}.attn.o.weight"].T, slow_model.n_heads)[key[1]]
        logits = (values - values.mean(0)) @ W_O @ unembed.T
        # The square matrix token by token has many eigenvalues that are zero up to rounding.
        eigenvalues = np.linalg.eigvals(logits)
        entry["copying"] = (
            eigenvalues.real.sum() / np.abs(eigenvalues[np.abs(eigenvalues) > 1e-9]).sum()
        )
    return out


@pytest.mark.parametrize("which", ["plain", "with_norm", "grouped"])
def test_scores_against_loops(which, boot, slow, request):
    if which == "grouped":
        model = boot(n_heads=4, n_key_value_heads=2, seed=2)
    else:
        model = request.getfixturevalue(which)
    rows = [[3, 7, 1, 3, 7, 1, 3, 22], [5, 5, 8, 5, 9, 8, 0, 1]]
    table, expected = scores(model, torch.tensor(rows)), slow_scores(slow(model), rows)
    assert table.names == tuple(f"L{i}H{j}" for i, j in expected)
    for kind in BEHAVIOURS:
        wanted = [entry[kind] for entry in expected.values()]
        assert table.select(behaviour=kind).values.tolist() == pytest.approx(wanted, abs=1e-9)


def test_handmade_heads_score_one_for_what_they_were_made_for():
    table = scores(build_induction_model(13, 26))
    assert table["L0H0", "previous token"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "prefix matching"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "copying"] == pytest.approx(1, abs=1e-5)
    table = scores(build_induction_model(13, 26, method="pointer"))
    assert table["L0H0", "duplicate token"] == pytest.approx(1, abs=1e-6)
    assert table["L1H0", "prefix matching"] == pytest.approx(1, abs=1e-6)


def test_copying_is_the_eigenvalue_score_of_the_ov_circuit_where_both_are_defined(boot):
    """One layer, every token seen once, no positions: the map is W_E W_OV W_U, centred."""
    model = boot(n_layers=1, n_ctx=46, bias=False, seed=4)
    model.pos_embed.weight.zero_()
    centred = model.W_E - model.W_E.mean(0)
    columns = model.W_U - model.W_U.mean(1, keepdim=True)
    eigenvalues = torch.linalg.eigvals(centred @ model.W_V[0] @ model.W_O[0] @ columns)
    expected = eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)
    every_token_twice = torch.cat([torch.arange(23), torch.arange(23)])
    copying = scores(model, every_token_twice).select(behaviour="copying").values
    assert copying == pytest.approx(expected, abs=1e-9)


def test_a_head_that_writes_nothing_has_the_copying_score_zero(boot):
    model = boot(n_layers=1)
    model.blocks[0].attn.o.weight.data.zero_()
    assert scores(model).select(behaviour="copying").values.tolist() == [0.0, 0.0]


def test_scores_of_a_model_with_cuts_are_those_of_its_cut_patterns(plain, slow):
    rows = [[3, 7, 1, 3, 7, 1], [5, 5, 8, 5, 9, 8]]
    table = scores(plain, torch.tensor(rows), without=["L0H1", "L1H0->L2H1.K"])
    patterns = [slow(plain).run(row, [(0, 1)], [((1, 0), (2, 1), "K")])[1] for row in rows]
    steps = [pattern[2, 1][dst, dst - 1] for pattern in patterns for dst in range(1, 6)]
    assert table["L2H1", "previous token"] == pytest.approx(np.mean(steps), abs=1e-9)
    whole = scores(plain, torch.tensor(rows))
    assert abs(table["L2H1", "previous token"] - whole["L2H1", "previous token"]) > 1e-6


def test_default_rows_fit_a_small_vocabulary(boot):
    model = boot(d_vocab=3, n_layers=1)
    assert torch.equal(scores(model).values, scores(model, repeated_tokens(3, 3)).values)


def test_rows_without_a_recurring_token_are_refused(plain):
    with pytest.raises(ValueError, match=r"No token recurs.*repeated_tokens"):
        scores(plain, torch.tensor([[1, 2, 3, 4]]))
    with pytest.raises(TypeError, match="TransformerBridge is needed, not 'gpt2'"):
        scores("gpt2")
