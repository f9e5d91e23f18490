"""Find the Python of each framework's environment. Standard library only."""

import os
import sys
from pathlib import Path

from bench.settings import ROOT, SettingError


def venv_of(framework):
    """Return the folder of a framework's environment, which is `.venv` for PyTorch, and on a Mac for all."""
    is_apart = sys.platform != "darwin" and framework != "torch"
    return ROOT / (f".venv-{framework}" if is_apart else ".venv")


def python_of(framework):
    """Return the Python of a framework's environment; outside of those that `make` has installed, the running one.

    Raises:
        SettingError: that framework is not installed.
    """
    if os.environ.get("PYTHON") or not Path(sys.prefix, "installed").exists():
        return sys.executable
    venv = venv_of(framework)
    if not (venv / "installed").exists():
        raise SettingError(f"FRAMEWORK={framework!r} is not installed: `make install FRAMEWORK={framework}`")
    return str(venv / "bin" / "python")
