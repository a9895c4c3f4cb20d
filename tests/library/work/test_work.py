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
    assert {key: one.result for key, one in done.items()} == {
        f"item {n}": {"square": n**2} for n in range(6)
    }
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
    again = {
        one.key: one for one in work(square, ITEMS, tmp_path, what="t")
    }  # only what failed is asked again
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
        assert {
            one.key: one.result for one in work(lambda n: n + 1, ITEMS, tmp_path, what="t")
        } == {f"item {n}": n + 1 for n in range(6)}


@pytest.mark.weekly
def test_a_worker_killed_in_the_middle_loses_nothing_and_nothing_is_computed_twice(tmp_path):
    distributed = pytest.importorskip("distributed", reason="way out: pip install dask distributed")
    notes, kept, items = (
        tmp_path / "notes",
        tmp_path / "kept",
        {f"item {n}": (n,) for n in range(16)},
    )
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
        warnings.simplefilter(
            "ignore"
        )  # ports, event loops and lost connections of the cluster, nothing of ours
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        )
        with cluster, distributed.Client(cluster) as client, joblib.parallel_config("dask"):
            killed = [*client.run(os.getpid).values()]
            thread = threading.Thread(target=kill, args=(killed,))
            thread.start()
            done = {one.key: one.result for one in work(slow, items, kept, what="t")}
            thread.join()
    assert done == {f"item {n}": n**2 for n in range(16)}
    assert len(before) >= 4
    runs = {number: (notes / f"{number}").read_text().split() for number in range(16)}
    assert all(
        len(pids) == 1 for number, pids in runs.items() if f"item_{number}" in before
    )  # kept then: never again
    twice = [pids for pids in runs.values() if len(pids) > 1]
    assert len(twice) <= 1  # what the killed worker was at
    assert all(pids[0] == str(killed[0]) for pids in twice)


@pytest.mark.parametrize(
    ("seconds", "silenced", "seen"), [(5.0, "", False), (0.0, "", True), (0.0, "1", False)]
)
def test_the_bar_waits_and_can_be_silenced(seconds, silenced, seen):
    code = f"import circuitkit._work as w; w.SECONDS = {seconds}; print([*w.progress(range(3), 'a bar')])"
    env = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"} | (
        {"TQDM_DISABLE": silenced} if silenced else {}
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env
    )
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


CHILD = """
import os, sys, torch, circuitkit as ck
from circuitkit.induction._effect import Bench
ck_model, rows = ck.load_model("one-layer"), ck.induction.repeated_tokens(50, 16, batch=3)
own, log, last = Bench.without, open(sys.argv[2], "a"), int(sys.argv[3])
def without(self, names):
    print(",".join(names), file=log, flush=True)
    if last and sum(1 for _ in open(sys.argv[2])) >= last:
        os.kill(os.getpid(), 9)
    return own(self, names)
Bench.without = without
with ck.kept_in(sys.argv[1]):
    found = ck.induction.effect(ck_model, rows, "L0H1", draws=5)
    heads = ck.induction.attribution(ck_model, rows, how="patching", fill="zero")
print(found.values.tolist(), heads.values.tolist())
"""


@pytest.mark.weekly
def test_an_effect_and_patching_killed_in_the_middle_go_on(tmp_path):
    import circuitkit as ck

    call = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        CHILD,
        str(tmp_path / "kept"),
        str(tmp_path / "log"),
    ]
    killed = subprocess.run([*call, "3"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len([*(tmp_path / "kept").rglob("*.json")]) == 2
    done = subprocess.run([*call, "0"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    model, rows = ck.load_model("one-layer"), ck.induction.repeated_tokens(50, 16, batch=3)
    alone = ck.induction.effect(model, rows, "L0H1", draws=5)
    heads = ck.induction.attribution(model, rows, how="patching", fill="zero")
    assert done.stdout.strip() == f"{alone.values.tolist()} {heads.values.tolist()}"
    ran = (tmp_path / "log").read_text().splitlines()
    (twice,) = {one for one in ran if ran.count(one) > 1}  # what it was at when it was killed
    assert ran.count(twice) == 2
    assert set(ran) == {
        "",
        *model_heads(model),
    }  # and patching all heads asked for those alone that no drawn set was


def model_heads(model):
    import circuitkit as ck

    return ck.anatomy(model).head_names


def test_what_is_kept_belongs_to_its_model_rows_and_measure(tmp_path, monkeypatch):
    import circuitkit as ck

    model, rows = ck.load_model("one-layer"), ck.induction.repeated_tokens(50, 16, batch=3)
    other = ck.induction.repeated_tokens(50, 12, batch=3)
    calls = [
        lambda: ck.induction.effect(model, rows, "L0H1", draws=1),
        lambda: ck.induction.effect(model, rows, "L0H1", draws=1, measure="accuracy"),
        lambda: ck.induction.effect(model, rows.tokens, "L0H1", draws=1),
        lambda: ck.induction.effect(model, other, "L0H1", draws=1),
        lambda: ck.induction.effect(model, rows, "L0H1", draws=1, fill="mean"),
        lambda: ck.induction.effect(model, rows, "L0H1", draws=1, at=[3]),
        lambda: ck.induction.effect(model, rows, "L0H1", draws=1, fill=rows.tokens.flip(0)),
        lambda: ck.induction.effect(ck.load_model("two-layer"), rows, "L0H1", draws=1),
    ]
    plain = [call().values.tolist() for call in calls]
    for _ in range(2):
        with ck.kept_in(tmp_path):
            assert [call().values.tolist() for call in calls] == plain
    assert len([*tmp_path.iterdir()]) == len(calls)
    with (
        ck.kept_in(tmp_path),
        pytest.raises(ValueError, match="a measure of your own has no name to be kept by"),
    ):
        ck.induction.effect(
            model, rows, "L0H1", draws=1, measure=lambda run: run.logits.mean((1, 2))
        )


@pytest.mark.parametrize("name", ["one-layer", "two-layer-mlp"])
def test_every_weight_tells_models_apart(name):
    """The last bit of one number of each weight."""
    import torch

    import circuitkit as ck
    from circuitkit._work import fingerprint

    model = ck.load_model(name)
    seen = [fingerprint(model, "asked"), fingerprint(model, "asked something else")]
    assert fingerprint(ck.load_model(name), "asked") == seen[0]
    for weight in model.original_model.parameters():
        place = weight.view(-1)
        spot = weight.numel() // 3
        with torch.no_grad():
            before = place[spot].clone()
            place[spot] = torch.nextafter(before, torch.tensor(9.0))
            seen.append(fingerprint(model, "asked"))
            place[spot] = before
    assert len({*seen}) == len(seen) > 8
    assert fingerprint(model, "asked") == seen[0]


def test_settings_and_large_numbers():
    """A float of the settings is part of what is kept; numbers whose sum is past the format are numbers."""
    import torch

    import circuitkit as ck
    from circuitkit._state import is_finite
    from circuitkit._work import fingerprint

    model = ck.load_model("two-layer-mlp")
    first = fingerprint(model)
    model.cfg.eps = 0.25
    assert fingerprint(model) != first
    assert is_finite(torch.full((4,), 3e38))
    assert not is_finite(torch.tensor([1.0, float("nan")]))


def test_values_of_two_activations_are_told_apart():
    import torch

    import circuitkit as ck
    from circuitkit._work import fingerprint
    from tests.support import tiny_models

    sizes = {
        "d_model": 12,
        "d_head": 4,
        "n_layers": 2,
        "n_ctx": 40,
        "n_heads": 3,
        "d_vocab": 23,
        "d_mlp": 24,
    }
    one, two = (
        tiny_models.boot(torch.float32, attn_only=False, act_fn=name, **sizes)
        for name in ("gelu", "relu")
    )
    two.load_state_dict(one.state_dict())
    assert fingerprint(ck.anatomy(one)) != fingerprint(ck.anatomy(two))


def test_models_of_every_kind_are_told_apart():
    import dataclasses

    import torch

    import circuitkit as ck
    from circuitkit._work import fingerprint

    twins = [
        ck.to_attention_only(ck.load_model("two-layer-mlp"), heads_per_neuron=k) for k in (2, 3)
    ]
    toys = [ck.superposition.load_original(2, 3, seed) for seed in (0, 1)]
    value = ck.anatomy(ck.load_model("one-layer"))
    other = dataclasses.replace(value, W_U=value.W_U + torch.eye(*value.W_U.shape))
    kinds = [*twins, *toys, value, other]
    told = [fingerprint(kind) for kind in kinds]
    assert len({*told}) == len(kinds)
    assert told == [fingerprint(kind) for kind in kinds]


def test_a_failing_item_is_named_and_the_others_are_kept(tmp_path, monkeypatch):
    import circuitkit as ck
    from circuitkit.induction import _scores

    own = _scores.induction_loss
    monkeypatch.setattr(
        _scores,
        "induction_loss",
        lambda model, rows, without: own(model, rows, without=without) if len(without) else 1 / 0,
    )
    model = ck.load_model("one-layer")
    with ck.kept_in(tmp_path):
        with pytest.raises(
            ValueError,
            match=r"survey: 1 of 4 could not be computed: nothing \(ZeroDivisionError: division by zero\)\. The others are kept",
        ):
            ck.induction.survey(model)
        monkeypatch.setattr(
            _scores,
            "induction_loss",
            lambda model, rows, without: (
                1 / 0 if len(without) else own(model, rows, without=without)
            ),
        )
        again = ck.induction.survey(model)
    monkeypatch.undo()
    assert again.losses == ck.induction.survey(model).losses
