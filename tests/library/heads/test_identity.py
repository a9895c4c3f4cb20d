"""The unrelated distribution that owns the name `circuitkit` on the package index is told apart."""

from importlib import metadata

import pytest

from circuitkit._identity import refuse_namesake


def test_another_projects_distribution_is_refused(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: {"circuitkit": "9.1"}[name])
    with pytest.raises(ImportError, match=r"'circuitkit' 9\.1, is installed") as told:
        refuse_namesake()
    assert "pip uninstall -y circuitkit circuitkit-book" in str(told.value)


def test_this_distribution_alone_is_welcome():
    assert refuse_namesake() is None
