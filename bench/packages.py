"""Find the Python of each framework, and refuse one without the packages that a framework needs.

    python3 -m bench.packages torch jax     without a name: what plots and comparisons need

`make` calls it if PYTHON is set, because it then installs nothing. Standard library only.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from bench.settings import ROOT, SettingError

COMMON = ("numpy", "PIL", "tqdm", "filelock", "psutil", "pooch", "pandas", "matplotlib")
OWN = {
    "torch": ("torch", "torchvision", "transformers"),
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax", "keras"),
    "mlx": ("mlx", "mlx_lm"),
}


def venv_of(framework):
    """Return the folder of a framework's environment, which is `.venv` for PyTorch, and on a Mac for all."""
    is_apart = sys.platform != "darwin" and framework != "torch"
    return ROOT / (f".venv-{framework}" if is_apart else ".venv")


def python_of(framework):
    """Return the Python of a framework's environment; outside of those that `make` has installed, the running one.

    Raises:
        SettingError: that framework is not installed.
    """
    running = Path(sys.prefix)
    is_installed_here = running.parent.resolve() == ROOT and (running / "installed").exists()
    if os.environ.get("PYTHON") or not is_installed_here:
        return sys.executable
    if not (venv_of(framework) / "installed").exists():
        raise SettingError(f"FRAMEWORK={framework!r} is not installed: `make install FRAMEWORK={framework}`")
    return str(venv_of(framework) / "bin" / "python")


def main(frameworks):
    """Return the exit status, 2 if a package is missing; torchvision and transformers only serve some workloads."""
    needed = dict.fromkeys([*COMMON, *(name for framework in frameworks for name in OWN.get(framework, ()))])
    names = " ".join(name for name in needed if find_spec(name) is None).replace("PIL", "pillow")
    if not names:
        return 0
    fix = f"`{sys.executable} -m pip install {names}`, or unset PYTHON"
    print(f"PYTHON={sys.executable!r} lacks {names}: {fix}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
