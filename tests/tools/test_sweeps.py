"""Sweeps: nothing lost by an interruption, clear words about damage, other backends, and the progress bar."""

import io

import joblib
import pytest

from circuitkit.superposition import load_results, rate
from tools.study.sweeps import Bar, load_table, sweep

SETTINGS = [{"name": name, "size": size} for name in ("a", "b") for size in (1, 2, 3)]


def measure(name, size):
    return [{"value": size * 0.5, "init": init} for init in range(2)]


class Stopping:
    """Fails at the n-th call, as a power cut would."""

    def __init__(self, after):
        self.left = after

    def __call__(self, name, size):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return measure(name, size)


def test_one_tidy_table(tmp_path):
    rows = sweep(measure, SETTINGS, tmp_path / "t.csv")
    assert len(rows) == 12
    assert rows == load_table(tmp_path / "t.csv")
    assert rows[3] == {
        "name": "a",
        "size": "2",
        "part": "1",
        "parts": "2",
        "value": "1",
        "init": "1",
    }
    text = (tmp_path / "t.csv").read_text().splitlines()
    assert text[:2] == ["name,size,part,parts,value,init", "a,1,0,2,0.5,0"]


def test_an_interrupted_sweep_goes_on(tmp_path):
    path, calls = tmp_path / "t.csv", []
    with pytest.raises(KeyboardInterrupt):
        sweep(Stopping(4), SETTINGS, path)
    assert len(load_table(path)) == 8

    def counting(name, size):
        calls.append((name, size))
        return measure(name, size)

    rows = sweep(counting, SETTINGS, path)
    assert calls == [("b", 2), ("b", 3)]
    whole = sweep(measure, SETTINGS, tmp_path / "other.csv")
    assert rows == whole
    assert path.read_bytes() == (tmp_path / "other.csv").read_bytes()


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_cut_anywhere_and_completed(tmp_path, cut):
    """Whatever number of bytes is missing at the end, the next call restores the whole table."""
    path = tmp_path / "t.csv"
    whole = sweep(measure, SETTINGS, path)
    good = path.read_bytes()
    path.write_bytes(good[:-cut])
    try:
        found = load_table(path)
    except ValueError as error:
        assert "is half written" in str(error)  # noqa: PT017
    else:
        assert all(
            row in whole for row in found
        )  # a cut between two settings leaves a shorter, sound table
    assert sweep(measure, SETTINGS, path) == whole
    assert path.read_bytes() == good


def test_half_written_and_damaged_tables_are_named(tmp_path):
    path = tmp_path / "t.csv"
    sweep(measure, SETTINGS, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]))
    with pytest.raises(
        ValueError, match=r"half written: setting \{'name': 'a', 'size': '2'\} has 1 of 2 rows"
    ):
        load_table(path)
    path.write_text("".join(lines) + "b,3,0")
    with pytest.raises(ValueError, match="half written: the last line has no end"):
        load_table(path)
    path.write_text("".join([*lines[:3], "a,2,0\n", *lines[4:]]))
    with pytest.raises(ValueError, match="line 4 has 3 of 6 columns.*Delete that line"):
        load_table(path)
    with pytest.raises(ValueError, match="line 4 has 3 of 6 columns"):
        sweep(measure, SETTINGS, path)
    path.write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="is not a sweep table: its first line"):
        load_table(path)
    with pytest.raises(ValueError, match="missing or empty"):
        load_table(tmp_path / "none.csv")


def test_growing_a_sweep_keeps_what_is_there(tmp_path):
    path = tmp_path / "t.csv"
    sweep(measure, SETTINGS, path)
    more = [*SETTINGS, {"name": "c", "size": 9}]
    assert len(sweep(measure, more, path)) == 14
    assert len(sweep(measure, SETTINGS[:1], path)) == 2
    assert len(load_table(path)) == 14


def test_a_table_cut_inside_its_first_line_begins_anew(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("name,si")
    assert len(sweep(measure, SETTINGS[:1], path)) == 2
    assert path.read_text().startswith("name,size,part,parts,value,init\n")


def test_bad_sweeps(tmp_path):
    with pytest.raises(ValueError, match="no settings"):
        sweep(measure, [], tmp_path / "t.csv")
    with pytest.raises(ValueError, match="same keys"):
        sweep(measure, [{"name": "a", "size": 1}, {"size": 1}], tmp_path / "t.csv")
    with pytest.raises(ValueError, match="given twice"):
        sweep(measure, [SETTINGS[0], SETTINGS[0]], tmp_path / "t.csv")
    with pytest.raises(
        RuntimeError, match=r"stopped at \{'name': 'a', 'size': 1\}: ZeroDivisionError"
    ):
        sweep(lambda name, size: 1 / 0, SETTINGS, tmp_path / "t.csv")
    sweep(measure, SETTINGS, tmp_path / "t.csv")
    with pytest.raises(ValueError, match="holds another sweep"):
        sweep(lambda other: {}, [{"other": 1}], tmp_path / "t.csv")
    with pytest.raises(ValueError, match="Return the same keys"):
        sweep(lambda size: {"a" * size: 0}, [{"size": 1}, {"size": 2}], tmp_path / "u.csv")


def test_two_processes_give_the_same_table(tmp_path):
    one = sweep(measure, SETTINGS, tmp_path / "one.csv")
    two = sweep(measure, SETTINGS, tmp_path / "two.csv", n_jobs=2)
    assert one == two
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_a_local_dask_cluster_gives_the_same_table(tmp_path):
    distributed = pytest.importorskip("distributed", reason="way out: pip install dask distributed")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ports and event loops of the cluster, nothing of ours
        cluster = distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        )
        with cluster, distributed.Client(cluster), joblib.parallel_config("dask"):
            rows = sweep(measure, SETTINGS, tmp_path / "t.csv")
    assert rows == sweep(measure, SETTINGS, tmp_path / "other.csv")


def test_the_bar_shows_on_a_terminal_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown, hidden = Terminal(), io.StringIO()
    for stream in (shown, hidden):
        bar = Bar(4, 1, stream, width=8)
        bar.step()
        bar.step(4)
    assert shown.getvalue() == "\r[##......] 1/4\r[####....] 2/4\r[########] 4/4\n"
    assert hidden.getvalue() == ""


def test_stored_tables():
    rows = load_results("originals")
    assert {row["config"] for row in rows} == {"2H3T", "3H4T", "4H5T"}
    assert all(isinstance(row["loss"], float) and row["loss"] > row["bayes_loss"] for row in rows)
    with pytest.raises(ValueError, match=r"no stored file 'nothing.csv'; stored are"):
        load_results("nothing")


def test_rates():
    assert [round(x, 3) for x in rate(0, 20)[2:]] == [
        0.0,
        0.161,
    ]  # by hand: z^2 / (20 + z^2) = 3.8415 / 23.8415
    assert [round(x, 3) for x in rate(20, 20)[2:]] == [0.839, 1.0]
    low, high = rate(30, 60)[2:]
    assert low + high == pytest.approx(1)
    assert str(rate(9, 10)) == "9/10 = 0.90 (95 % interval 0.60 to 0.98)"
    with pytest.raises(ValueError, match="k=3, n=2; expected 0 <= k <= n"):
        rate(3, 2)
