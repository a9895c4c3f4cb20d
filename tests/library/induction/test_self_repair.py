"""The fall of a logit in three terms: against plain torch on a model with norms, and a backup that is built by hand."""

import json

import pytest
import torch

import circuitkit as ck
from circuitkit import handmade
from circuitkit.data import DATA
from circuitkit_book.self_repair import (
    dropout_model,
    last_divisor,
    repair,
    repeating_rows,
    stored_repair,
)
from tests.support.zoo import make

TOKENS = torch.tensor([[3, 7, 1, 22, 0, 7], [5, 5, 8, 2, 9, 11], [4, 1, 6, 13, 30, 2]])
ANSWERS = torch.tensor([[7, -100, 22, 0, 7, 9], [5, 8, 2, -100, 11, 0], [1, 6, 13, 30, 2, 4]])


def with_head_at_zero(z, hook):
    z = z.clone()
    z.view(*z.shape[:2], 4, -1)[:, :, 1] = 0
    return z


def in_parts(cache, model):
    """What GPT-2's heads, biases and MLPs write, from the hooks, and the stream's mean and deviation."""
    heads = {}
    for layer in range(3):
        attn = model.blocks[layer].attn
        z = cache[f"blocks.{layer}.attn.hook_z"].reshape(3, 6, 4, -1)
        for head in range(4):
            heads[f"L{layer}H{head}"] = z[:, :, head] @ attn.W_O[head]
    stream = cache["ln_final.hook_in"]
    return heads, stream, (stream.var(-1, unbiased=False) + 1e-5).sqrt()


@torch.no_grad()
def test_the_split_on_a_model_with_norms():
    model = make("gpt2")
    before, after = ck.run(model, TOKENS), ck.run(model, TOKENS, without="L1H1")
    split = repair(before, after, "L1H1", ANSWERS)
    logits, cache = model.run_with_cache(TOKENS)
    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", with_head_at_zero)]):
        cut_logits, cut = model.run_with_cache(TOKENS)
    norm = model.ln_final.original_component
    (old, x, s), (new, x_cut, s_cut) = (in_parts(one, model) for one in (cache, cut))
    torch.testing.assert_close(last_divisor(before), s)
    torch.testing.assert_close(last_divisor(after), s_cut)
    terms = {"direct": [], "norm": [], "L2H3": [], "fall": []}
    for row, pos in (ANSWERS >= 0).nonzero().tolist():
        column = model.W_U[:, ANSWERS[row, pos]] - model.W_U.mean(1)
        column = column * norm.weight
        column = column - column.mean()
        at = (row, pos)
        terms["direct"].append((old["L1H1"][at] - new["L1H1"][at]) @ column / s[at])
        terms["L2H3"].append((new["L2H3"][at] - old["L2H3"][at]) @ column / s[at])
        terms["norm"].append(x_cut[at] @ column * (1 / s_cut[at] - 1 / s[at]))
        whole, less = logits[at], cut_logits[at]
        answer = ANSWERS[at]
        fall = whole[answer] - whole.mean() - less[answer] + less.mean()
        terms["fall"].append(fall)
    mean = {name: float(torch.stack(values).mean()) for name, values in terms.items()}
    assert split.direct == pytest.approx(mean["direct"])
    assert split.by_norm == pytest.approx(mean["norm"])
    assert split.by_part["L2H3"] == pytest.approx(mean["L2H3"])
    assert split.fall == pytest.approx(mean["fall"])
    assert split.fall == pytest.approx(split.direct - split.by_parts - split.by_norm)


def test_a_backup_that_is_built_by_hand_gives_everything_back():
    """Dimension 4 is 1 at every token. L0H0 writes 2 into dimension 0, and L1H0 what is missing there."""
    W_E = torch.eye(5, dtype=torch.float64)[:4]
    W_E[:, 4] = 1
    zeros = torch.zeros(5, 1, dtype=torch.float64)
    one = torch.eye(5, dtype=torch.float64)
    reads = torch.stack([one[:, [4]], one[:, [4]] * 2 - one[:, [0]]])
    writes = torch.stack([2 * one[[0]], one[[0]]])
    off = torch.stack([zeros, zeros])
    heads = ck.heads.Heads(("a", "b"), off, off, reads, writes, layers=(0, 1))
    W_U = torch.eye(5, dtype=torch.float64)[:, :4]
    model = handmade.bridge_of(heads, W_E, W_U, n_ctx=3)
    tokens, answers = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 0, 0]])
    before, after = ck.run(model, tokens), ck.run(model, tokens, without="L0H0")
    split = repair(before, after, "L0H0", answers)
    assert split.direct == pytest.approx(1.5)  # 2, minus the mean over four tokens
    assert split.by_part["L1H0"] == pytest.approx(1.5)
    assert (split.fall, split.by_norm) == (pytest.approx(0), 0)


def test_the_shipped_model_has_the_stored_numbers():
    """The script measured the weights that ship, on rows with the seed 1000."""
    stored = json.loads((DATA / "induction/self-repair.json").read_text())[0]
    tokens, answers = repeating_rows(128, seed=1000)
    before = ck.run(dropout_model(), tokens)
    for line in stored["heads"]:
        after = ck.run(before.model, tokens, without=line["head"], fill="mean")
        split = repair(before, after, line["head"], answers)
        found = [split.direct, split.fall, split.by_parts, split.by_norm]
        expected = [line["mean"][key] for key in ("direct", "fall", "parts", "norm")]
        assert found == pytest.approx(expected, abs=1e-3)  # float32, another order of sums
    table = stored_repair()
    row = table[(table["training"] == "dropout") & (table["seed"] == 0)].iloc[0]
    entry = next(line for line in stored["heads"] if line["head"] == row["head"])
    assert row["other heads"] == pytest.approx(
        entry["mean"]["parts"] / entry["mean"]["direct"], abs=1e-4
    )
    assert row["random"] == pytest.approx(max(stored["random"]) / entry["mean"]["direct"], abs=1e-4)
