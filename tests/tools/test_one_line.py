"""The page of eight questions: what stands on it is what runs, and both answers agree."""

import pytest
import torch

from tools.study import one_line


@pytest.fixture(scope="module")
def rows():
    with torch.no_grad():
        return one_line.measured(times=1)


def test_both_answers_agree(rows):
    assert len(rows) == 8
    assert max(off for _, _, off in rows) < 1e-5


def test_the_page_holds_the_code_that_runs():
    text = one_line.PAGE.read_text("utf-8")
    assert f"```python\n{one_line.SETUP}```" in text
    for task in one_line.TASKS:
        assert f"# transformer-lens\n{task.theirs}\n```" in text
        assert f" of the time\n{task.ours}\n```" in text


def test_a_difference_is_seen(monkeypatch):
    wrong = one_line.TASKS[7]._replace(ours="found = 1.01 * (model.W_O[0, 1] @ model.W_K[1, 3])")
    monkeypatch.setattr(one_line, "TASKS", (wrong,))
    with torch.no_grad():
        ((_, _, off),) = one_line.measured(times=1)
    assert off > 1e-3
