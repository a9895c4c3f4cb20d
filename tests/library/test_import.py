"""`import circuitkit` is light, tells its namesake apart, and names what it has."""

import os
import subprocess
import sys

import pytest

import circuitkit

HEAVY = ("transformer_lens", "matplotlib", "circuitsvis", "transformers", "datasets", "pandas")


def python(code, *, path=None):
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [env.get("PYTHONPATH")])])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


def test_importing_circuitkit_imports_nothing_heavy():
    done = python(
        f"import circuitkit, sys; print([name for name in {(*HEAVY, 'torch', 'numpy')} if name in sys.modules])"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_packages_import_nothing_heavy_print_nothing_and_leave_the_seed():
    code = f"""
import sys, torch
before = torch.get_rng_state()
import circuitkit, circuitkit.models, circuitkit.residual
from circuitkit import Heads, heads_of, list_models, load_model, stack
list_models(), dir(circuitkit)
assert torch.equal(before, torch.get_rng_state())
sys.exit(str([name for name in {HEAVY} if name in sys.modules]))
"""
    done = python(code)
    assert (done.stdout, done.stderr.strip()) == ("", "[]")


def namesake(folder, name, version="2.3.4"):
    """A distribution as pip leaves it behind."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_the_namesake_is_recognised(tmp_path):
    """Another project owns the distribution name 'circuitkit'; where it is installed, we say so and what to do."""
    done = python("import circuitkit", path=namesake(tmp_path, "circuitkit"))
    assert done.returncode != 0
    assert (
        "ImportError: Another project's distribution, 'circuitkit' 2.3.4, is installed in this environment"
        in done.stderr
    )
    assert "Expected: only 'circuitkit-book'" in done.stderr
    assert "pip uninstall -y circuitkit circuitkit-book" in done.stderr


def test_our_own_distribution_is_fine(tmp_path):
    done = python("import circuitkit", path=namesake(tmp_path, "circuitkit-book"))
    assert done.returncode == 0, done.stderr


def test_public_names():
    assert {"Heads", "heads", "stack", "load_model", "list_models", "models", "residual"} <= set(
        circuitkit.__all__
    )
    assert dir(circuitkit) == sorted(circuitkit.__all__)
    for name in circuitkit.__all__:
        assert getattr(circuitkit, name) is not None


def test_an_unknown_name_lists_the_names():
    with pytest.raises(
        AttributeError, match=r"module 'circuitkit' has no attribute 'hedas'; it has \['Heads', "
    ):
        circuitkit.hedas  # noqa: B018
