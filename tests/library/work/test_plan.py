"""What long work will take, from two rounds of it: nothing else is done, loops in loops count, and a tool's guess is near."""

import math
import time
from pathlib import Path

import pytest
import torch

import circuitkit as ck
from circuitkit._work import progress
from circuitkit.circuits import composition_scores, random_heads


def busy(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_two_rounds_are_done_and_all_are_counted():
    done = []

    def long(n, *, each):
        for item in progress(range(n), "rounds", n):
            busy(each)
            done.append(item)
        done.append("end")

    plan = ck.plan(long, 50, each=0.02)
    assert done == [0, 1]
    assert plan.seconds == pytest.approx(50 * 0.02, rel=0.5)
    assert 0.04 <= plan.took < 0.1  # two rounds of fifty
    assert str(plan).startswith("1 parts, 0 of them kept; about ")
    assert "rounds" in str(plan)
    done.clear()
    long(3, each=0.0)
    assert done == [0, 1, 2, "end"]  # nothing of the plan is left


def test_loops_around_a_loop_count():
    def nested():
        for _ in progress([1, 2, 3, 4], "outer"):
            for _ in progress(range(5), "inner", 5):
                busy(0.02)

    plan = ck.plan(nested)
    assert [*plan.items] == ["inner"]
    assert plan.seconds == pytest.approx(4 * 5 * 0.02, rel=0.5)


def test_what_has_no_long_loop_is_done_and_measured():
    plan = ck.plan(lambda: [busy(0.02) for _ in progress([1, 2], "short")])
    assert plan.seconds == pytest.approx(0.04, rel=0.5)
    with pytest.raises(ZeroDivisionError):
        ck.plan(lambda: 1 / 0)
    assert list(progress([1, 2, 3], "after")) == [1, 2, 3]


STATUS = Path("/proc/self/status")
SAYS = STATUS.exists() and "VmHWM:" in STATUS.read_text("ascii")


@pytest.mark.skipif(not SAYS, reason="this system does not say the most that a process held")
def test_bytes_are_those_of_a_round():
    def wide():
        for _ in progress(range(9), "rounds", 9):
            torch.ones(2**25).sum()

    ((_, size),) = ck.plan(wide).items.values()
    assert 2**27 * 0.9 < size < 2**27 * 2


def test_bytes_that_the_system_does_not_say_are_no_number(monkeypatch):
    monkeypatch.setattr(
        Path, "read_text", lambda path, *_: "VmRSS: 1000 kB\n"
    )  # no highest mark, as in some sandboxes
    plan = ck.plan(lambda: [busy(0.01) for _ in progress(range(9), "rounds", 9)])
    ((_, size),) = plan.items.values()
    assert math.isnan(size)
    assert "nan MiB" in repr(plan)


def test_the_guess_for_a_tool_is_near():
    early, late = random_heads(200, 256, 32), random_heads(200, 256, 32, layer=1)
    composition_scores(early[:2], late[:2])
    guessed = ck.plan(composition_scores, early, late).seconds
    start = time.process_time()
    composition_scores(early, late)
    assert 0.2 < guessed / (time.process_time() - start) < 5


def test_every_long_tool_can_be_asked(monkeypatch):
    monkeypatch.setattr("circuitkit._blocks._BLOCK", 2**14)
    model, rows = ck.load_model("two-layer"), ck.induction.repeated_tokens(50, 20)
    asked = {
        "survey": ck.plan(ck.induction.survey, model),
        "effect": ck.plan(ck.induction.effect, model, rows, "L0H1"),
        "heads": ck.plan(ck.induction.attribution, model, rows, how="patching"),
    }
    assert {name: [*plan.items] for name, plan in asked.items()} == {name: [name] for name in asked}
