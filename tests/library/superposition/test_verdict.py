"""The verdict: closed forms against every subset, planted wrong models, and its errors."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuitkit.superposition import (
    SkipTrigramTask,
    blind_model,
    hand_specified,
    head_verdict,
    load_original,
    one_head_model,
    two_head_model,
)
from circuitkit.superposition._verdict import (
    always_predicted,
    enough,
    greatest,
    margins,
    negative_places,
    positive_places,
)


def every_subset(heads, residual, completion):
    """`[row, head]` lists of predictions over every set of kept heads, by argmax over logits: no margins, no sharing."""
    out = []
    for row in range(len(heads)):
        per_head = []
        for h in range(heads.shape[1]):
            others = [k for k in range(heads.shape[1]) if k != h]
            said = []
            for size in range(len(others) + 1):
                for kept in combinations(others, size):
                    logits = residual[row] + heads[row, h]
                    for k in kept:
                        logits = logits + heads[row, k]
                    rivals = [float(x) for u, x in enumerate(logits) if u != int(completion[row])]
                    said.append(float(logits[completion[row]]) > max(rivals))
            per_head.append(said)
        out.append(per_head)
    return out


def test_hand_computed_rows():
    # Three tokens; completion 0. Head 0 writes (2, 0, 0), head 1 writes (0, 1, 0), residual (0, 0, 0.5).
    heads = torch.tensor([[[2.0, 0, 0], [0.0, 1, 0]]])
    residual = torch.tensor([[0.0, 0, 0.5]])
    m, r = margins(heads, torch.tensor([0])), margins(residual, torch.tensor([0]))
    assert m.tolist() == [[[2, 2], [-1, 0]]]
    assert r.tolist() == [[0, -0.5]]
    assert always_predicted(m, r).tolist() == [[True, False]]  # head 1 alone says token 1
    assert greatest(m, r, odds=False)[0].tolist() == [[1.5, 1.0]]  # both, and over token 1 and 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(2, 5), st.integers(0, 10**6))
def test_closed_forms_are_exact(n_heads, n_tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(12, n_heads, n_tokens, generator=generator, dtype=torch.float64)
    heads[:4] = heads[:4].round()  # ties
    residual = 0.5 * torch.randn(12, n_tokens, generator=generator, dtype=torch.float64)
    completion = torch.randint(n_tokens, (12,), generator=generator)
    m, r = margins(heads, completion), margins(residual, completion)
    said = every_subset(heads, residual, completion)
    assert always_predicted(m, r).tolist() == [[all(s) for s in row] for row in said]
    assert (greatest(m, r, odds=False)[1] <= 0).tolist() == [
        [not any(s) for s in row] for row in said
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_verdict_of_trained_models_is_the_brute_force_verdict(seed):
    model = load_original(3, 4, seed)
    task, verdict = model.task, head_verdict(model, model.task, "argmax", rows=40)
    tokens, places = enough(
        task.sample, lambda rows: positive_places(task, rows, "argmax"), task, 40, 42
    )
    quiet, quiet_places = enough(
        task.negatives, lambda rows: negative_places(task, rows), task, 40, 43
    )
    for trigram in task.destinations:
        for prompts, at, rates, every in (
            (tokens, places, verdict.carried, all),
            (quiet, quiet_places, verdict.silent, lambda said: not any(said)),
        ):
            rows = [(p, q) for p, q in at.tolist() if prompts[p, q] == trigram]
            heads, residual = model.run(prompts[[p for p, _ in rows]])
            pick = range(len(rows)), [q for _, q in rows]
            heads, residual = heads.transpose(1, 2)[pick], residual[pick]
            said = every_subset(
                heads.double(),
                residual.double(),
                torch.full((len(rows),), trigram + task.n_trigrams),
            )
            by_hand = torch.tensor([[every(s) for s in row] for row in said]).double().mean(0)
            assert torch.allclose(rates[:, trigram - 1].double(), by_hand, atol=1e-6)


def test_planted_models_get_the_verdict_they_deserve():
    ideal, blind, two, one = (
        hand_specified(3, 3),
        blind_model(3),
        two_head_model(3),
        one_head_model(3),
    )
    assert head_verdict(ideal, ideal.task, rows=50).exactly_one
    assert head_verdict(
        blind, blind.task, "post", rows=50
    ).success  # the hole in the published check
    strict = head_verdict(blind, blind.task, rows=50)
    assert not strict.success
    assert strict.quiet.tolist() == [0, 0, 0]
    assert strict.not_learnt == (1, 2, 3)
    assert head_verdict(two, two.task, "post", rows=50).success
    assert head_verdict(two, two.task, rows=50).distributed == (1, 2, 3)
    assert head_verdict(one, one.task, rows=50).success
    assert not head_verdict(one, one.task, "post", rows=50).success


def test_redundant_heads_are_reported():
    model = hand_specified(3, 3)

    def doubled(tokens):
        heads, residual = model.run(tokens)
        return torch.cat([heads, heads[:, :1]], 1), residual

    verdict = head_verdict(doubled, model.task, rows=50)
    assert verdict.success
    assert not verdict.exactly_one
    assert verdict.carriers(1) == (0, 3)
    assert "2 heads, each alone" in verdict.table()


def test_a_head_that_fires_without_the_source_is_caught_even_if_another_cancels_it():
    """What the published blocks do: head 0 writes always, head 1 takes it back; together they look right."""
    model = two_head_model(3)
    verdict = head_verdict(model, model.task, rows=50)
    assert verdict.quiet.tolist() == [1, 1, 1]
    assert verdict.silent[0].tolist() == [0, 0, 0]
    assert not verdict.carries.any()


def test_given_prompts_count_all_their_rows():
    model = hand_specified(2, 2)
    tokens = torch.tensor([[5, 0, 1, 3, 0, 2, 4, 3, 3, 3, 3], [5, 3, 3, 0, 1, 3, 3, 3, 3, 3, 3]])
    # The second prompt has a source: its first destination counts, those after the source do not.
    negatives = torch.tensor([[5, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3], [5, 1, 0, 2, 4, 1, 3, 3, 3, 3, 3]])
    verdict = head_verdict(model, model.task, tokens=tokens, negatives=negatives)
    assert (verdict.positives.tolist(), verdict.negatives.tolist()) == ([2, 1], [2, 1])
    post = head_verdict(
        model,
        model.task,
        "post",
        tokens=torch.cat([tokens, torch.tensor([[5, 0, 2, 4] + [3] * 7])]),
    )
    assert post.positives.tolist() == [1, 1]  # the first prompt holds two trigrams and is left out


def test_rates_near_the_threshold():
    """98 of 100 rows are not enough at 0.99, and 99 are."""
    model, task = hand_specified(1, 1), SkipTrigramTask(1)
    tokens = torch.tensor([[3, 0, 1, 2]]).repeat(100, 1)

    def spoiled(n):
        def run(prompts):
            heads, residual = model.run(prompts)
            if int(prompts[0, 1]) == 0:
                heads = heads.clone()
                heads[:n] = 0
            return heads, residual

        return run

    negatives = torch.tensor([[3, 1, 2, 2]])
    assert not head_verdict(spoiled(2), task, tokens=tokens, negatives=negatives).success
    assert head_verdict(spoiled(1), task, tokens=tokens, negatives=negatives).success


def test_tables_say_everything():
    model = hand_specified(2, 3)
    text = str(head_verdict(model, model.task, "argmax", rows=50))
    assert text.startswith("argmax verdict: not every trigram has a head of its own")
    assert text.splitlines()[1:3] == [
        "trigram  learnt  quiet  carried by  verdict        rows",
        "1        1.000   1.000  H0          one head       50 + 50",
    ]
    assert text.splitlines()[4] == "3        1.000   1.000  -           no head alone  50 + 50"
    post = str(head_verdict(model, model.task, "post", rows=50))
    assert post.startswith("the post's verdict: not every")
    assert post.splitlines()[2] == "1        1.000   -      H0          one head       50 + 0"
    odds = str(head_verdict(model, model.task, rows=50)).splitlines()
    assert odds[0].startswith("log-odds verdict: not every")
    assert odds[2].split() == ["1", "1.000", "1.000", "H0", "one", "head", "2.7", "50", "+", "50"]
    assert "not learnt" in head_verdict(blind_model(2), SkipTrigramTask(2), rows=20).table()


def test_bad_input():
    model, task = hand_specified(3, 3), SkipTrigramTask(3)
    with pytest.raises(
        ValueError,
        match=r"head_logits of shape \(.*, 8\).*expected 10 logits, one for each token of the task",
    ):
        head_verdict(
            lambda tokens: hand_specified(3, 3).run(tokens.clamp(max=7)), SkipTrigramTask(4)
        )
    with pytest.raises(ValueError, match="must return .head_logits.*returned a Tensor"):
        head_verdict(lambda tokens: model.logits(tokens), task)
    with pytest.raises(
        ValueError, match=r"head_logits of shape \(.*, 11, 8\).*\[batch, head, pos, d_vocab\]"
    ):
        head_verdict(lambda tokens: (model.run(tokens)[0].sum(1), model.run(tokens)[1]), task)
    with pytest.raises(ValueError, match="head_logits .*NaN or infinite"):
        head_verdict(lambda tokens: tuple(part * float("nan") for part in model.run(tokens)), task)
    with pytest.raises(
        ValueError, match=r"no row for trigram \[2, 3\] in 1 prompts.*followed by a destination"
    ):
        head_verdict(model, task, tokens=torch.tensor([[7, 0, 1, 4]]))
    with pytest.raises(
        ValueError, match=r"no row for trigram \[1\] in 1 prompts.*without a source"
    ):
        head_verdict(
            model, task, tokens=task.sample(500, 0), negatives=torch.tensor([[7, 2, 3, 5]])
        )
    with pytest.raises(ValueError, match="from 0 to 9; expected"):
        head_verdict(model, task, tokens=torch.tensor([[9, 0, 1, 4]]))
    with pytest.raises(ValueError, match="threshold=1.5; expected a number above 0 and at most 1"):
        head_verdict(model, task, threshold=1.5)
    with pytest.raises(ValueError, match="trigram 4 does not exist"):
        head_verdict(model, task, rows=20).carriers(4)


def test_prompts_are_drawn_until_rare_trigrams_have_their_rows():
    rare = SkipTrigramTask(2, n_ctx=4, d_vocab=60)  # a trigram in few of the first 4096 prompts
    tokens, places = enough(
        rare.sample, lambda rows: positive_places(rare, rows, "argmax"), rare, 40, seed=0
    )
    assert len(tokens) > 4096
    assert len(places) == 80
    assert not torch.equal(tokens[:4096], tokens[4096:8192])
