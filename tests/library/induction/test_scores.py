"""Head scores against loops over single attention weights, and the tools that cut heads and paths."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from circuitkit import handmade, induction
from circuitkit.circuits import copying_score
from circuitkit.induction import repeated_tokens, scores
from tests.support import tiny_models


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
            "prefix_matching": prefix / known,
            "duplicate_token": duplicate / known,
            "previous_token": previous / steps,
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


@pytest.mark.parametrize(
    "which", ["plain", "with_norm", "grouped", "in blocks", "hooked", "grouped and hooked"]
)
def test_against_loops(which, boot, slow, request, monkeypatch):
    if (
        which == "in blocks"
    ):  # of three destinations, for each of which two rows of two heads hold 8 numbers
        monkeypatch.setattr("circuitkit.anatomy._run._MOST_NUMBERS", 3 * 2 * 2 * 8)
        which = "plain"
    known = "plain" if which == "hooked" else which
    model = (
        boot(n_heads=4, n_key_value_heads=2, seed=2)
        if "grouped" in which
        else request.getfixturevalue(known)
    )
    if "hooked" in which:
        model.add_hook("blocks.0.hook_resid_pre", lambda x, hook: x)
        request.addfinalizer(model.reset_hooks)
    rows = [[3, 7, 1, 3, 7, 1, 3, 22], [5, 5, 8, 5, 9, 8, 0, 1]]
    found, expected = scores(model, torch.tensor(rows)), slow_scores(slow(model), rows)
    assert found.names == tuple(f"L{i}H{j}" for i, j in expected)
    for kind in ("prefix_matching", "previous_token", "duplicate_token", "copying"):
        wanted = [entry[kind] for entry in expected.values()]
        assert getattr(found, kind).tolist() == pytest.approx(wanted, abs=1e-9), kind


def test_the_handmade_heads_score_one():
    """Known by construction: 1 for what a head was made for."""
    found = scores(handmade.build_induction_model(13, 26))
    assert found["L0H0"]["previous_token"] == pytest.approx(1, abs=1e-6)
    assert found["L1H0"]["prefix_matching"] == pytest.approx(1, abs=1e-6)
    assert found["L1H0"]["copying"] == pytest.approx(1, abs=1e-5)
    found = scores(handmade.build_induction_model(13, 26, method="pointer"))
    assert found["L0H0"]["duplicate_token"] == pytest.approx(1, abs=1e-6)
    assert found["L1H0"]["prefix_matching"] == pytest.approx(1, abs=1e-6)


def test_copying_is_the_papers_score_where_both_are_defined(boot):
    """One layer, every token seen once, no positions: the eigenvalues are those of W_E W_OV W_U, centred."""
    model = boot(n_layers=1, n_ctx=46, bias=False, seed=4)
    model.pos_embed.weight.zero_()
    centred = model.W_E - model.W_E.mean(0)
    columns = model.W_U - model.W_U.mean(1, keepdim=True)
    values = torch.linalg.eigvals(centred @ model.W_V[0] @ model.W_O[0] @ columns)
    paper = values.real.sum(-1) / values.abs().sum(-1)
    whole = torch.cat([torch.arange(23), torch.arange(23)])[None]
    assert scores(model, whole).copying == pytest.approx(paper, abs=1e-9)
    model.embed.weight.copy_(centred)
    model.unembed.weight.copy_(columns.T)
    assert scores(model, whole).copying == pytest.approx(copying_score(model).values, abs=1e-9)


def test_a_head_that_writes_nothing_copies_nothing(boot):
    model = boot(n_layers=1)
    model.load_state_dict(
        model.state_dict() | {"blocks.0.attn.o.weight": torch.zeros(14, 10, dtype=torch.float64)}
    )
    assert scores(model).copying.tolist() == [0.0, 0.0]


def test_scores_under_ablation(plain, slow):
    rows = [[3, 7, 1, 3, 7, 1], [5, 5, 8, 5, 9, 8]]
    found = scores(plain, torch.tensor(rows), without=["L0H1", "L1H0->L2H1.K"])
    runs = [slow(plain).run(row, [(0, 1)], [((1, 0), (2, 1), "K")])[1] for row in rows]
    steps = [run[2, 1][dst, dst - 1] for run in runs for dst in range(1, 6)]
    assert found["L2H1"]["previous_token"] == pytest.approx(np.mean(steps), abs=1e-9)
    assert (
        found["L2H1"]["previous_token"]
        != scores(plain, torch.tensor(rows))["L2H1"]["previous_token"]
    )


def test_scores_do_not_depend_on_the_order_of_rows(plain):
    rows = repeated_tokens(23, 6, batch=5).tokens
    there, back = scores(plain, rows), scores(plain, rows.flip(0))
    for kind in ("prefix_matching", "previous_token", "duplicate_token", "copying"):
        assert getattr(there, kind) == pytest.approx(getattr(back, kind), abs=1e-12)


def test_default_rows_fit_every_model(boot, plain):
    assert scores(plain).prefix_matching.shape == (6,)
    small = scores(boot(d_vocab=3, n_layers=1))
    given = scores(boot(d_vocab=3, n_layers=1), repeated_tokens(3, 3))
    assert torch.equal(small.prefix_matching, given.prefix_matching)


def test_no_pattern_is_kept(plain):
    """Whatever the hooks return to the model is nothing, and hooks are gone afterwards."""
    before = {name: len(point.fwd_hooks) for name, point in plain.hook_dict.items()}
    scores(plain)
    assert before == {name: len(point.fwd_hooks) for name, point in plain.hook_dict.items()}


def test_lookup_and_ranking(plain):
    found = scores(plain)
    best = found.top("previous_token", 2)
    assert best[0][1] == found.previous_token.max()
    assert best[0][1] >= best[1][1]
    assert found[best[0][0]]["previous_token"] == best[0][1]
    assert repr(found).startswith("Scores(6 heads; best prefix_matching L")


def test_errors(plain):
    found = scores(plain)
    with pytest.raises(
        ValueError, match="no head is called 'L9H9'; expected one of L0H0, L0H1, L1H0"
    ):
        found["L9H9"]
    with pytest.raises(ValueError, match=r"kind='prefix'; expected one of \['prefix_matching'"):
        found.top("prefix")
    with pytest.raises(ValueError, match="got k=0; expected an integer of at least 1"):
        found.top("copying", 0)
    with pytest.raises(
        ValueError, match="got model='gpt2'; expected a transformer-lens TransformerBridge"
    ):
        scores("gpt2")
    with pytest.raises(
        ValueError, match=r"\(1, 4\), .*rows in which some token recurs.*Use repeated_tokens"
    ):
        scores(plain, torch.tensor([[1, 2, 3, 4]]))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (
            torch.zeros(5, dtype=torch.long),
            r"shape \(5,\).*\[batch, pos\].*One row is tokens\[None\]",
        ),
        (torch.zeros(1, 5), "tensor of integers"),
        (torch.zeros(1, 17, dtype=torch.long), "at least 2 positions in a row and at most 16"),
        (torch.full((1, 5), 23), r"ids in 0..22"),
        (torch.full((1, 5), -1), r"ids in 0..22"),
        (torch.zeros(0, 5, dtype=torch.long), "at least 2 positions"),
    ],
)
def test_bad_tokens_are_refused(plain, tokens, words):
    with pytest.raises(ValueError, match=words):
        scores(plain, tokens)
    with pytest.raises(ValueError, match=words):
        induction.losses_by_position(plain, tokens)


def test_a_model_that_hides_its_pattern_is_refused(plain, monkeypatch):
    hidden = {
        name: point
        for name, point in plain.hook_dict.items()
        if name != "blocks.1.attn.hook_pattern"
    }
    with (
        plain.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda x, hook: x)]),
        monkeypatch.context() as patch,
    ):
        patch.setattr(
            type(plain), "hook_dict", property(lambda bridge: hidden)
        )  # with a hook of the user's, the bridge itself runs
        with pytest.raises(
            ValueError, match=r"waited for the patterns of layers \[0, 1, 2\], which .*eager"
        ):
            scores(plain)
    with (
        plain.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda x, hook: x)]),
        monkeypatch.context() as patch,
    ):
        patch.setattr(
            type(plain), "run_with_hooks", lambda bridge, tokens, fwd_hooks: bridge(tokens)
        )  # offered and never called
        with pytest.raises(ValueError, match="never called"):
            scores(plain)


def test_what_hooks_do_is_seen(plain):
    rows = repeated_tokens(23, 6, batch=5).tokens
    with plain.hooks(
        fwd_hooks=[
            (
                "blocks.1.attn.hook_pattern",
                lambda A, hook: torch.eye(A.shape[-1]).to(A).expand_as(A),
            )
        ]
    ):
        found = scores(plain, rows)
    assert found["L1H0"]["prefix_matching"] == 0
    assert scores(plain, rows)["L1H0"]["prefix_matching"] > 0


def test_a_long_context_is_seen_some_destinations_at_a_time(boot):
    """8,192 positions: the pattern of two heads is 2^27 numbers, of which an eighth is held at a time."""
    model = boot(
        n_ctx=8192, n_layers=1, n_heads=2, d_model=8, d_head=4, d_vocab=5000, dtype=torch.float32
    )
    rows = repeated_tokens(5000, 4096, batch=1)

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **kwargs or {})
            if isinstance(out, torch.Tensor) and out.is_floating_point():
                self.numbers = max(self.numbers, out.numel())
            return out

    with Largest() as seen:
        found = scores(model, rows)
    assert seen.numbers <= 2**24
    assert found.names == ("L0H0", "L0H1")


def test_fused_attention_is_no_obstacle(tmp_path):
    """A model that never forms a pattern: the bridge cannot show one."""
    import transformers

    bridge = tiny_models.from_folder(
        tmp_path, transformers.GPT2LMHeadModel(transformers.GPT2Config(**tiny_models.GPT2)).eval()
    )
    rows = repeated_tokens(50, 6, batch=3).tokens
    eager = scores(bridge, rows)
    bridge.original_model.set_attn_implementation("sdpa")
    fused = scores(bridge, rows)
    assert bridge.original_model.config._attn_implementation == "sdpa"
    for kind in ("prefix_matching", "previous_token", "duplicate_token", "copying"):
        assert getattr(fused, kind) == pytest.approx(getattr(eager, kind), abs=1e-5)
