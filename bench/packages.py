"""Refuse an interpreter without the packages that a framework needs, in one line that names all of them.

    python3 bench/packages.py torch     without a name: what plots and comparisons need

`make` calls it if PYTHON is set, because it then installs nothing. Standard library only, for any Python.
"""

import sys
from importlib.util import find_spec

COMMON = ("numpy", "PIL", "tqdm", "filelock", "psutil", "pooch", "pandas", "matplotlib")
OWN = {
    "torch": ("torch", "torchvision", "transformers"),
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax", "keras"),
    "mlx": ("mlx", "mlx_lm"),
}
PACKAGES = {"PIL": "pillow", "mlx_lm": "mlx-lm"}  # names of packages that differ from their modules'


def main(framework=""):
    """Return the exit status, 2 if a package is missing; torchvision and transformers only serve some workloads."""
    needed: list[str] = [*COMMON, *OWN.get(framework, ())]
    missing = [PACKAGES.get(name, name) for name in needed if find_spec(name) is None]
    if not missing:
        return 0
    names = " ".join(missing)
    fix = f"`{sys.executable} -m pip install {names}`, or unset PYTHON"
    print(f"PYTHON={sys.executable!r} lacks {names}: {fix}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
