"""The verdict against enumeration by logits and by softmax, on hand-made models, and its rows."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import circuitkit as ck
from circuitkit.superposition import head_logits, head_verdict
from circuitkit.superposition.verdict import (
    Margins,
    always_leads,
    extremes,
    judged,
    log_odds,
    margins_at,
    margins_over_others,
    smallest_margin,
)
from circuitkit_book.superposition_models import (
    blind_model,
    hand_specified,
    load_original,
    one_head_model,
    toy_model,
    two_head_model,
)
from circuitkit_book.superposition_task import (
    SkipTrigramTask,
    control_rows,
    draw_rows,
    due_rows,
    places_due,
    trigram_verdict,
)


def draw_logits(rows, n_heads, n_tokens, seed, size=1.5):
    """What heads and stream add to logits, with ties and with heads that cancel."""
    generator = torch.Generator().manual_seed(seed)
    heads = size * torch.randn(rows, n_heads, n_tokens, generator=generator, dtype=torch.float64)
    heads[: rows // 4] = heads[: rows // 4].round()
    heads[: rows // 8, -1] = -heads[: rows // 8, 0]
    residual = torch.randn(rows, n_tokens, generator=generator, dtype=torch.float64)
    return heads, residual, torch.randint(n_tokens, (rows,), generator=generator)


def every_set(heads, residual, completion):
    """For each set of heads: whether the completion is on top, and its log-odds from the softmax.

    Returns the sets `[set, head]`, and two tensors `[set, row]`; nothing is shared between sets.
    """
    sets = [*product((0, 1), repeat=heads.shape[1])]
    on_top, odds = [], []
    for kept in sets:
        logits = residual.clone()
        for head, is_kept in enumerate(kept):
            if is_kept:
                logits = logits + heads[:, head]
        others = logits.scatter(1, completion[:, None], -torch.inf)
        own = logits.gather(1, completion[:, None])[:, 0]
        p = logits.softmax(-1).gather(1, completion[:, None])[:, 0]
        on_top.append(own > others.amax(-1))
        odds.append(p.log() - (1 - p).log())
    return torch.tensor(sets).bool(), torch.stack(on_top), torch.stack(odds)


# Margins and sets


def test_margins_and_extremes_computed_by_hand():
    # Three tokens; the completion is 0. Head 0 writes (2, 0, 0), head 1 writes (0, 1, 0).
    heads = torch.tensor([[[2.0, 0, 0], [0.0, 1, 0]]])
    residual = torch.tensor([[0.0, 0, 0.5]])
    m = margins_over_others(heads, torch.tensor([0]))
    r = margins_over_others(residual, torch.tensor([0]))
    assert m.tolist() == [[[2, 2], [-1, 0]]]
    assert r.tolist() == [[0, -0.5]]
    assert always_leads(m, r).tolist() == [[True, False]]  # head 1 alone predicts token 1
    # Head 0 has 1.5 over token 2 alone, and 1 over token 1 with head 1.
    smallest, largest = extremes(m, r, smallest_margin)
    assert smallest.tolist() == [[1.0, -1.0]]
    assert largest.tolist() == [[1.5, 1.0]]
    # Two other tokens with equal margins: the odds are half of those over one.
    assert log_odds(torch.tensor([3.0, 3.0])).item() == pytest.approx(3 - math.log(2))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.integers(2, 8), st.integers(0, 10**6))
def test_extremes_are_those_of_enumeration(n_heads, n_tokens, seed):
    heads, residual, completion = draw_logits(24, n_heads, n_tokens, seed)
    m = margins_over_others(heads, completion)
    r = margins_over_others(residual, completion)
    sets, on_top, odds = every_set(heads, residual, completion)
    least, most = extremes(m, r, log_odds)
    _, best = extremes(m, r, smallest_margin)
    for head in range(n_heads):
        with_head = sets[:, head]
        assert torch.equal(always_leads(m, r)[:, head], on_top[with_head].all(0))
        assert torch.equal(best[:, head] > 0, on_top[with_head].any(0))
        # A softmax near 1 loses digits of 1 - p.
        assert torch.allclose(least[:, head], odds[with_head].amin(0), atol=1e-10)
        assert torch.allclose(most[:, head], odds[with_head].amax(0), atol=1e-10)


def test_token_0_can_be_an_answer():
    model = hand_specified(2, 3)
    answers = torch.tensor([[-1, 0, 6]])
    margins = margins_at(model, torch.tensor([[7, 0, 3]]), answers)
    assert margins.answer.tolist() == [0, 6]
    logits = model(torch.tensor([[7, 0, 3]]))[0].double()
    # rounding of float32 logits up to 6
    assert torch.allclose(margins.whole_model[0], logits[1, 0] - logits[1, 1:], atol=1e-5)


def test_more_than_16_heads_are_refused():
    with pytest.raises(ValueError, match="up to 16 heads, and this model has 17"):
        extremes(torch.zeros(1, 17, 2), torch.zeros(1, 2), log_odds)


# Whole verdicts


def by_enumeration(model, tokens, answers, answer, judge):
    """A rate of each head and of the whole model, from logits of every set, `[head + 1]`."""
    places = (answers == answer).nonzero().tolist()
    written, residual = head_logits(model, tokens[[row for row, _ in places]])
    at = torch.arange(len(places)), torch.tensor([pos for _, pos in places])
    completion = torch.full((len(places),), answer)
    sets, on_top, odds = every_set(written[at].double(), residual[at].double(), completion)
    gain = odds + math.log(model.task.d_vocab - 1)
    heads = [judge(on_top[sets[:, h]], gain[sets[:, h]]) for h in range(sets.shape[1])]
    whole = judge(on_top[-1:], gain[-1:])
    return torch.stack([*heads, whole]).float().mean(1)


def is_completed_by_odds(on_top, gain):
    return on_top.all(0) & (gain > 1).all(0)


def is_silent_by_odds(on_top, gain):
    return (gain <= math.log(2)).all(0)


def is_completed_by_argmax(on_top, gain):
    return on_top.all(0)


def is_silent_by_argmax(on_top, gain):
    return ~on_top.any(0)


def random_model(n_heads, n_trigrams, d_head, seed):
    heads = ck.circuits.random_heads(n_heads, 2 * n_trigrams + 2, d_head, seed=seed)
    names = tuple(f"L0H{head}" for head in range(n_heads))
    fields = {name: 2 * getattr(heads, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    return toy_model(ck.Heads(names, **fields), SkipTrigramTask(n_trigrams))


MODELS = {
    "trained": lambda: load_original(3, 4, 0),
    "one random head": lambda: random_model(1, 2, 2, seed=0),
    "random heads": lambda: random_model(5, 3, 2, seed=1),
}


@pytest.mark.parametrize("form", ["odds", "argmax"])
@pytest.mark.parametrize("name", MODELS)
def test_verdicts_are_those_of_enumeration(name, form):
    model = MODELS[name]()
    task = model.task
    due, control = due_rows(task, form, 40), control_rows(task, 40)
    verdict = head_verdict(model, *due, *control, form)
    assert verdict.rules == tuple(task.completions)
    completed, silent = {
        "odds": (is_completed_by_odds, is_silent_by_odds),
        "argmax": (is_completed_by_argmax, is_silent_by_argmax),
    }[form]
    carried = torch.cat([verdict.carried, verdict.learnt[None]])
    quiet = torch.cat([verdict.silent, verdict.quiet[None]])
    for column, answer in enumerate(task.completions):
        rates = by_enumeration(model, *due, answer, completed)
        assert torch.allclose(carried[:, column], rates, atol=1e-6)
        rates = by_enumeration(model, *control, answer, silent)
        assert torch.allclose(quiet[:, column], rates, atol=1e-6)


def one_head(written):
    """A model of 50 tokens whose only head writes these numbers if token 4 is one of three."""
    still, W_V, W_O = torch.zeros(1, 50, 1), torch.zeros(1, 50, 1), torch.zeros(1, 1, 50)
    W_V[:, 4] = 3.0  # a third of the attention is on it
    W_O[0, 0, list(written)] = torch.tensor([*written.values()])
    heads = ck.Heads(("L0H0",), still, still, W_V, W_O)
    return ck.handmade.bridge_of(heads, torch.eye(50), torch.eye(50), n_ctx=4)


def test_an_answer_that_is_only_second_is_not_learnt():
    answers = torch.tensor([[-1, -1, 2]])
    rows = torch.tensor([[3, 4, 1]]), answers, torch.tensor([[3, 5, 1]]), answers
    # Logits 4.4 on token 2, 6 on token 9, 1 on token 1 and 0 on 47 others: far above guessing.
    others = math.exp(6) + math.e + 47
    assert 4.4 - math.log(others) + math.log(49) > 2
    for criterion in ("odds", "argmax"):
        verdict = head_verdict(one_head({2: 4.4, 9: 6.0}), *rows, criterion)
        assert (verdict.learnt.tolist(), verdict.quiet.tolist()) == ([0], [1])
        assert verdict.superposed == ()
        assert verdict.to_frame()["verdict"].tolist() == ["not learnt"]
        assert head_verdict(one_head({2: 4.4, 9: 4.3}), *rows, criterion).success


def rates_of_sets(heads, tokens, answers, criterion):
    """Whether rows are predicted and silent with every set, `[head + 1, row]`; the model is last."""
    n_heads, x = len(heads.W_Q), torch.eye(heads.d_model)[tokens]
    q, k, v = x[:, -1:] @ heads.W_Q[:, None], x @ heads.W_K[:, None], x @ heads.W_V[:, None]
    pattern = (q @ k.mT / heads.W_Q.shape[-1] ** 0.5).softmax(-1)
    write = (pattern @ v @ heads.W_O[:, None])[:, :, 0].double()  # [head, row, token]
    sets = [kept for kept in product([False, True], repeat=n_heads)]
    right, quiet = [], []
    for kept in sets:
        p = (x[:, -1] + write[torch.tensor(kept)].sum(0)).softmax(-1)
        p_answer = p[torch.arange(len(p)), answers]
        gain = (p_answer / (1 - p_answer) * (heads.d_model - 1)).log()
        is_first = p.argmax(-1) == answers
        right.append(is_first & (gain > 1) if criterion == "odds" else is_first)
        quiet.append(gain <= math.log(2) if criterion == "odds" else ~is_first)
    groups = [[s for s, kept in enumerate(sets) if kept[head]] for head in range(n_heads)]
    groups.append([len(sets) - 1])  # all heads
    right, quiet = torch.stack(right), torch.stack(quiet)
    return [torch.stack([table[group].all(0) for group in groups]) for table in (right, quiet)]


@pytest.mark.parametrize("criterion", ["odds", "argmax"])
@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_verdicts_on_random_models_are_those_of_all_sets_by_own_torch(n_heads, criterion):
    heads = ck.circuits.random_heads(n_heads, 6, 2, seed=n_heads)
    names = tuple(f"L0H{head}" for head in range(n_heads))
    fields = {name: 3 * getattr(heads, name) for name in ("W_Q", "W_K", "W_V", "W_O")}
    heads, eye = ck.Heads(names, **fields), torch.eye(6)
    model = ck.handmade.bridge_of(heads, eye, eye, n_ctx=4)
    tokens = torch.randint(6, (2, 300, 4), generator=torch.Generator().manual_seed(0))
    # The first, second or third choice of the model, so that all cases come.
    choices = model(tokens.flatten(0, 1))[:, -1].argsort(-1, descending=True).view(2, 300, 6)
    answers = choices[:, torch.arange(300), torch.arange(300) % 3]
    placed = torch.full((2, 300, 4), -1)
    placed[:, :, -1] = answers
    verdict = head_verdict(model, tokens[0], placed[0], tokens[1], placed[1], criterion)
    right, _ = rates_of_sets(heads, tokens[0], answers[0], criterion)
    _, quiet = rates_of_sets(heads, tokens[1], answers[1], criterion)
    assert 0.1 < right[-1].float().mean() < 0.9
    for column, rule in enumerate(verdict.rules):
        learnt = right[:, answers[0] == rule].float().mean(1)
        silent = quiet[:, answers[1] == rule].float().mean(1)
        assert torch.equal(verdict.carried[:, column], learnt[:-1])
        assert torch.equal(verdict.silent[:, column], silent[:-1])
        assert (verdict.learnt[column], verdict.quiet[column]) == (learnt[-1], silent[-1])
    # what a head does with every set of others, the whole model does
    assert (verdict.carried <= verdict.learnt).all()
    assert (verdict.silent <= verdict.quiet).all()


def test_hand_made_models_get_the_verdict_that_they_deserve():
    for model, n_learnt, n_carried in (
        (hand_specified(2, 3), 3, 2),
        (hand_specified(5, 5), 5, 5),
        (two_head_model(5), 5, 0),
        (one_head_model(5), 5, 5),
        (blind_model(5), 0, 0),
    ):
        verdict = trigram_verdict(model, rows=100)
        carried = verdict.carries.any(0) & verdict.is_learnt
        assert (int(verdict.is_learnt.sum()), int(carried.sum())) == (n_learnt, n_carried)
        assert bool((verdict.gain[verdict.carries] > 1).all())


def test_redundant_heads_are_reported():
    model = hand_specified(3, 3)
    heads = ck.heads_of(model)
    names = ("L0H0", "L0H1", "L0H2", "L0H3")
    four = {k: getattr(heads, k)[[0, 1, 2, 0]] for k in ("W_Q", "W_K", "W_V", "W_O")}
    verdict = trigram_verdict(toy_model(ck.Heads(names, **four), model.task), rows=50)
    assert verdict.success
    assert verdict.carries.sum(0).tolist() == [2, 1, 1]
    assert verdict.to_frame()["verdict"].tolist() == ["2 heads, each alone"] + 2 * ["one head"]
    assert trigram_verdict(model, rows=50).carries.sum(0).tolist() == [1, 1, 1]


def test_98_of_100_rows_are_not_enough_and_99_are():
    def verdict_with(n_wrong, criterion):
        m = torch.full((100, 1, 3), 9.0).double()
        m[:n_wrong] = -9.0
        answer = torch.ones(100, dtype=torch.long)
        due = Margins(m, torch.zeros(100, 3).double(), answer)
        control = Margins(-m.abs(), torch.zeros(100, 3).double(), answer)
        return judged(due, control, criterion)

    for criterion in ("odds", "argmax"):
        assert not verdict_with(2, criterion).success
        assert verdict_with(1, criterion).success
    # 99 of the 100 rows reach this gain, the log-odds of 9 over 3 tokens above those of guessing
    assert verdict_with(1, "odds").gain.item() == pytest.approx(9.0)
    assert verdict_with(2, "odds").gain.item() == pytest.approx(-9.0)


def test_a_nearly_uniform_model_fails_by_argmax_and_not_in_log_odds():
    """Without a source it tilts by 0.01 nats towards the completion."""
    model = hand_specified(3, 3)
    W_E = torch.eye(8)
    W_E[[1, 2, 3], [4, 5, 6]] = 0.01
    W_E[[1, 2, 3], [1, 2, 3]] = 0.0  # else the direct path repeats the destination
    heads = ck.heads_of(model)
    undo = torch.linalg.pinv(W_E)
    read = {name: undo @ getattr(heads, name) for name in ("W_Q", "W_K", "W_V")}
    names = heads.names
    tilted = toy_model(ck.Heads(names, W_O=heads.W_O, **read), model.task, W_E)
    assert trigram_verdict(tilted, form="argmax", rows=50).quiet.tolist() == [0, 0, 0]
    assert trigram_verdict(tilted, rows=50).quiet.tolist() == [1, 1, 1]


def test_the_table():
    frame = trigram_verdict(hand_specified(2, 3), rows=50).to_frame()
    assert frame.index.tolist() == [1, 2, 3]
    assert frame["carried by"].tolist() == ["H0", "H1", "-"]
    assert frame["verdict"].tolist() == ["one head", "one head", "superposition"]
    assert frame["worst gain"].round(1).tolist()[0] == 2.7
    blind = trigram_verdict(blind_model(2), rows=20).to_frame()
    assert blind["verdict"].tolist() == ["not learnt", "not learnt"]


# Rows


def test_only_completions_that_counts_prove_are_judged_in_log_odds():
    task = SkipTrigramTask(2)  # 0 source, 1 2 destinations, 3 4 completions
    tokens = torch.tensor(
        [[5, 3, 1, 0, 1, 3, 5], [5, 0, 1, 3, 0, 1, 3], [5, 3, 0, 1, 3, 5, 5], [5, 4, 1, 0, 1, 3, 5]]
    )
    every_place = [[0, 4], [1, 2], [1, 5], [2, 3], [3, 4]]
    assert places_due(task, tokens, "argmax").nonzero().tolist() == every_place
    # The first prompt holds 1, 3 and 0 before its destination, which could be a whole trigram.
    assert places_due(task, tokens, "odds").nonzero().tolist() == every_place[1:]
    assert places_due(task, tokens, "post").nonzero().tolist() == [[0, 4], [2, 3], [3, 4]]


def test_prompts_are_drawn_until_rare_trigrams_have_their_rows():
    rare = SkipTrigramTask(30, n_ctx=4)
    drawn = []

    def draw(n, seed):
        drawn.append(rare.sample(n, seed))
        return drawn[-1]

    def find(prompts):
        return places_due(rare, prompts, "argmax")

    tokens, answers = draw_rows(draw, find, rare, rows=40, seed=0)
    assert torch.bincount(answers[answers >= 0])[list(rare.completions)].tolist() == [40] * 30
    assert (find(tokens) | (answers < 0)).all()
    assert len(drawn) > 1
    assert not torch.equal(drawn[0], drawn[1][:4096])


def test_mistakes_are_explained():
    model = hand_specified(3, 3)
    rows = torch.tensor([[7, 0, 1]])
    answers = torch.tensor([[-1, -1, 4]])
    with pytest.raises(ValueError, match=r"answers \[4\], and the control rows have \[5\]"):
        head_verdict(model, rows, answers, rows, answers + (answers > 0).long())
    with pytest.raises(ValueError, match="The answer 9 is no token"):
        head_verdict(
            model, rows, torch.where(answers > 0, 9, -1), rows, torch.where(answers > 0, 9, -1)
        )
    with pytest.raises(ValueError, match="does not hold a task"):
        trigram_verdict(
            ck.handmade.bridge_of(ck.heads_of(model), torch.eye(8), torch.eye(8), n_ctx=4)
        )
