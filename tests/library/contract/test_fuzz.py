"""No public function answers a wrong argument with an error from deep inside, or with a number."""

import importlib
import inspect

import fuzz
import pytest

import circuitkit
from circuitkit._contract import public

TARGETS = [target for package in fuzz.PACKAGES for target in fuzz.targets(package)]


@pytest.fixture(scope="module", autouse=True)
def offline():
    with fuzz.offline():
        yield


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.package}.{target.name}")
@pytest.mark.usefixtures("as_a_reader")
def test_every_wrong_argument_is_refused_in_words(target):
    found = list(fuzz.outcomes(target))
    assert found[0].what == "right", f"the right call fails: {found[0].text}"
    bad = [
        f"{o.what}: {o.argument} [{o.label}] {o.text[:200]}"
        for o in found
        if o.what in ("raw", "silent")
    ]
    assert not bad, "\n".join(bad)


def test_every_public_name_is_called():
    """A new name is covered by itself; one that needs no arguments has nothing to spoil."""
    called = {(target.package, target.name.partition(".")[0]) for target in TARGETS}
    for package in fuzz.PACKAGES[1:]:
        module = importlib.import_module(f"circuitkit.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) and inspect.signature(thing).parameters:
                assert (package, name) in called, f"{package}.{name} is never called"
    assert {("heads", "Heads"), ("heads", "heads"), ("heads", "stack")} <= called


def test_every_argument_has_a_right_value_and_a_kind():
    missing = [
        f"{target.name}.{name}"
        for target in TARGETS
        for name in target.parameters
        for table in (fuzz.GOOD, fuzz.KIND_OF)
        if name not in table and f"{target.name}.{name}" not in table
    ]
    assert not missing, (
        f"say in tests/support/fuzz.py what is right and what is wrong for {missing}"
    )


def test_what_is_left_out_is_there():
    """A name in a table that nothing has any more would excuse the next one of that name."""
    names = {target.name for target in TARGETS}
    assert {name for name, _, _ in fuzz.NOT_TRIED} <= names
    assert set(fuzz.LEFT_OUT) <= names
    classes = {
        name
        for package in fuzz.PACKAGES
        for name, thing in fuzz.exported(package).items()
        if inspect.isclass(thing)
    }
    assert classes >= fuzz.RECORDS


def outcome(function, **arguments):
    target = fuzz.Target("", "f", function)
    return fuzz.attempt(target, arguments)[0]


def test_the_fuzz_tells_clear_from_raw():
    def f(k):
        return circuitkit.circuits.random_heads(k, 4, 2)

    assert outcome(f, k=2) == "result"
    assert outcome(f, k=0) == "clear"
    assert outcome(lambda k: [1][k], k=3) == "raw"
    assert (
        outcome(
            lambda k: (_ for _ in ()).throw(
                ValueError("a ValueError from somewhere else, long enough")
            ),
            k=3,
        )
        == "raw"
    )


def test_the_fuzz_tells_silent_from_right():
    """The same function, once with a promise and once without."""

    def careless(seed):
        return 3

    fuzz.GOOD["careless.seed"] = lambda: 1
    found = {o.label: o.what for o in fuzz.outcomes(fuzz.Target("", "careless", careless))}
    assert found["nan"] == found["-1"] == found["True"] == found["2**70"] == "silent"
    assert found[""] == "right"
    assert found["0"] == "result"


def test_a_call_without_an_end_is_raw(monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)

    def endless(k):
        while k:
            pass

    assert outcome(endless, k=1) == "raw"


def test_the_door_does_not_hide_the_function():
    assert inspect.unwrap(circuitkit.circuits.random_heads).__name__ == "random_heads"
    assert public(lambda x: x)(3) == 3  # nothing is promised, nothing is checked
