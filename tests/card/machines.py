"""Builds the card made of software, and says whether it can be built here.

python -m tests.card.machines      fails if PyTorch is a build for CUDA and its tests would be skipped all the same
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def explain_missing():
    """Return why the card cannot be built here; "" if it can, and PyTorch is a build for CUDA."""
    import torch

    if not torch.version.cuda:
        return "PyTorch is not a build for CUDA"
    version = torch.__version__.split("+")[0]
    if f"torch=={version}\n" not in (ROOT / "requirements-cuda.txt").read_text():
        return f"the card is not made for PyTorch {version}"
    return "" if shutil.which("cc") and importlib.util.find_spec("triton") else "no cc, or no triton"


def build(folder):
    """Compile card.c into a folder; return the environment of a process that has the card.

    What card.c leaves out of NVIDIA's interfaces is there, and is one error.
    """
    (triton,) = importlib.util.find_spec("triton").submodule_search_locations
    headers = Path(triton, "backends/nvidia/include")
    texts = [(headers / name).read_text() for name in ("cuda.h", "cuda_runtime_api.h", "crt/host_runtime.h")]
    names = set(re.findall(r"\b(?:__)?cu(?:da)?[A-Z]\w+", "".join(texts)))
    names |= {"cudaProfilerStart", "cudaProfilerStop", "__cudaLaunchKernel", "__cudaPushCallConfiguration"}
    rest = [f"__attribute__((weak)) int {name}(void) {{ return card_nothing(); }}" for name in sorted(names)]
    Path(folder, "rest.c").write_text("\n".join(["int card_nothing(void);", *rest]))
    Path(folder, "map").write_text("libcudart.so.13 { cuda*; __cuda*; };")
    options = ["-shared", "-fPIC", "-w", "-D_GNU_SOURCE", f"-I{headers}", "-lpthread"]
    options += [f"-Wl,--version-script={folder}/map,-soname,libcudart.so.13", "-o", f"{folder}/libcudart.so.13"]
    subprocess.run(["cc", Path(__file__).with_name("card.c"), f"{folder}/rest.c", *options], check=True)
    Path(folder, "libcuda.so.1").symlink_to(f"{folder}/libcudart.so.13")
    libraries = {"LD_PRELOAD": f"{folder}/libcudart.so.13", "LD_LIBRARY_PATH": str(folder)}
    return os.environ | libraries | {"PYTHONPATH": f"{ROOT}:{ROOT}/tests/processes"}


if __name__ == "__main__":
    sys.exit(explain_missing() if "cc" in explain_missing() else None)
