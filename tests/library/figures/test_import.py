"""The figures ask for their libraries when they draw, not when they are imported."""

import subprocess
import sys

CODE = "import sys, circuitkit.figures; print([name for name in ('matplotlib', 'circuitsvis', 'torch', 'PIL') if name in sys.modules])"


def test_importing_figures_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
