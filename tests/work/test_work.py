"""Long work: kept by key, nothing computed twice, one failure alone, a worker killed in the middle, a bar that stays silent."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import joblib
import pytest

from circuitkit._work import place_in, progress, work


def square(number):
    return {"square": number**2}


ITEMS = {f"item {n}": (n,) for n in range(6)}


def test_results_come_back_by_key_and_are_kept(tmp_path):
    done = {one.key: one for one in work(square, ITEMS, tmp_path, what="t")}
    assert {key: one.result for key, one in done.items()} == {f"item {n}": {"square": n**2} for n in range(6)}
    assert json.loads(place_in(tmp_path, "item 3").read_text()) == {"square": 9}
    assert len([*tmp_path.iterdir()]) == 6


def test_what_is_there_is_not_computed_again(tmp_path):
    def never(number):
        raise AssertionError

    first = [*work(square, {"item 1": (1,)}, tmp_path, what="t")]
    assert [*work(never, {"item 1": (1,)}, tmp_path, what="t")] == first


def test_one_failure_is_told_and_stops_no_other(tmp_path):
    done = {one.key: one for one in work(lambda n: 1 / n, ITEMS, tmp_path, what="t")}
    assert done["item 0"].problem == "ZeroDivisionError: division by zero"
    assert done["item 0"].result is None
    assert all(done[f"item {n}"].result == 1 / n for n in range(1, 6))
    again = {one.key: one for one in work(square, ITEMS, tmp_path, what="t")}  # only what failed is asked again
    assert again["item 0"].result == {"square": 0}
    assert again["item 2"].result == 0.5


def test_an_interruption_keeps_what_was_done(tmp_path):
    def stops(number):
        if number == 3:
            raise KeyboardInterrupt
        return square(number)

    with pytest.raises(KeyboardInterrupt):
        [*work(stops, ITEMS, tmp_path, what="t")]
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["item_0", "item_1", "item_2"]
    assert not [*tmp_path.glob("*.new")]


def test_two_processes_give_the_same(tmp_path):
    with joblib.parallel_config(n_jobs=2):
        assert {one.key: one.result for one in work(lambda n: n + 1, ITEMS, tmp_path, what="t")} == {f"item {n}": n + 1 for n in range(6)}


def test_a_worker_killed_in_the_middle_loses_nothing_and_nothing_is_computed_twice(tmp_path):
    distributed = pytest.importorskip("distributed", reason="way out: pip install dask distributed")
    notes, kept, items = tmp_path / "notes", tmp_path / "kept", {f"item {n}": (n,) for n in range(16)}
    notes.mkdir()

    def slow(number):
        import os
        import time

        note = notes / f"{number}"
        note.write_text((note.read_text() if note.exists() else "") + f"{os.getpid()} ")
        time.sleep(0.25)
        (notes / f"{number}.ended").write_text("x")
        return number**2

    def kill(workers):
        while len([*kept.glob("*.json")]) < 4:
            time.sleep(0.01)
        before[:] = sorted(path.stem for path in kept.glob("*.json"))
        os.kill(workers[0], signal.SIGKILL)

    before: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ports, event loops and lost connections of the cluster, nothing of ours
        cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
        with cluster, distributed.Client(cluster) as client, joblib.parallel_config("dask"):
            killed = [*client.run(os.getpid).values()]
            thread = threading.Thread(target=kill, args=(killed,))
            thread.start()
            done = {one.key: one.result for one in work(slow, items, kept, what="t")}
            thread.join()
    assert done == {f"item {n}": n**2 for n in range(16)}
    assert len(before) >= 4
    runs = {number: (notes / f"{number}").read_text().split() for number in range(16)}
    assert all(len(pids) == 1 for number, pids in runs.items() if f"item_{number}" in before)  # kept then: never again
    twice = [pids for pids in runs.values() if len(pids) > 1]
    assert len(twice) <= 1  # what the killed worker was at
    assert all(pids[0] == str(killed[0]) for pids in twice)


@pytest.mark.parametrize(("seconds", "silenced", "seen"), [(5.0, "", False), (0.0, "", True), (0.0, "1", False)])
def test_the_bar_waits_and_can_be_silenced(seconds, silenced, seen):
    code = f"import circuitkit._work as w; w.SECONDS = {seconds}; print([*w.progress(range(3), 'a bar')])"
    env = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"} | ({"TQDM_DISABLE": silenced} if silenced else {})
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "[0, 1, 2]\n"
    assert ("a bar" in done.stderr) == seen, done.stderr


@pytest.mark.parametrize("silenced", ["", "0", "1"])
def test_the_bar_of_a_notebook_can_be_silenced(silenced):
    from tqdm.notebook import tqdm as notebook_bar

    made = []

    def bar(*args, **kwargs):
        made.append(kwargs["disable"])
        return notebook_bar(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tqdm.auto.tqdm", bar)
        patch.setenv("TQDM_DISABLE", silenced)
        assert [*progress(range(3), "a bar")] == [0, 1, 2]
    assert made == [silenced == "1"]


def test_stored_outputs_are_made_without_a_bar():
    from tools.notebooks.execute import ENVIRONMENT

    assert ENVIRONMENT["TQDM_DISABLE"] == os.environ["TQDM_DISABLE"] == "1"
