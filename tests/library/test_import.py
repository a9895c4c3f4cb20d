"""`import circuitkit` is light, recognises its namesake, and has the names that it lists."""

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
    code = f"import circuitkit, sys; print({{*{HEAVY}, 'torch', 'numpy'}} & {{*sys.modules}})"
    done = python(code)
    assert (done.returncode, done.stdout.strip()) == (0, "set()"), done.stderr


@pytest.mark.weekly
def test_modules_print_nothing_leave_the_seed_and_load_heavy_packages_late():
    code = f"""
import sys, torch
before = torch.get_rng_state()
import circuitkit
circuitkit.list_models(), circuitkit.figures
print({{*{HEAVY}}} & {{*sys.modules}})
for name in circuitkit.__all__:
    getattr(circuitkit, name)
assert torch.equal(before, torch.get_rng_state())
"""
    done = python(code)
    assert (done.stdout.strip(), done.stderr.strip()) == ("set()", "")


def distribution(folder, name, version="2.3.4"):
    """A distribution as pip leaves it behind."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_the_namesake_is_recognised(tmp_path):
    """Another project owns the distribution name 'circuitkit'."""
    done = python("import circuitkit", path=distribution(tmp_path, "circuitkit"))
    assert done.returncode != 0
    text = "ImportError: Another project's distribution, 'circuitkit' 2.3.4, is installed in this"
    assert text in done.stderr
    assert "pip uninstall -y circuitkit circuitkit-book" in done.stderr


def test_an_unknown_name_lists_the_names():
    with pytest.raises(AttributeError, match=r"circuitkit has no 'hedas'. It has Heads, "):
        circuitkit.hedas  # noqa: B018
