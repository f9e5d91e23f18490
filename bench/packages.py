"""Find the Python of each framework's environment. Standard library only."""

import os
import sys
from pathlib import Path

from bench.settings import ROOT, SettingError


def venv_of(framework):
    """Return the folder of a framework's environment, which is `.venv` for PyTorch, and on a Mac for all."""
    return ROOT / (".venv" if framework == "torch" or sys.platform == "darwin" else f".venv-{framework}")


def python_of(framework):
    """Return the Python of a framework's environment, or raise SettingError; outside of make's, the running one."""
    if os.environ.get("PYTHON") or not Path(sys.prefix, "installed").exists():
        return sys.executable
    if not (venv_of(framework) / "installed").exists():
        raise SettingError(f"FRAMEWORK={framework!r} is not installed: `make install FRAMEWORK={framework}`")
    return str(venv_of(framework) / "bin" / "python")
