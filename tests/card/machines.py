"""A machine with two cards made of software: what nvidia-smi and NVML answer, and the environment of its processes.

python -m tests.card.machines      fails if PyTorch is a build for CUDA and its tests would be skipped all the same
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

# What nvidia-smi answers.
SHARED = {"driver_version": "580.95.05", "power.limit": "450.00 W", "utilization.gpu": "3 %"}
GT_1030 = {"name": "NVIDIA GeForce GT 1030", "compute_cap": "6.1", "memory.total": "2048 MiB"}
RTX_4090 = {"name": "NVIDIA GeForce RTX 4090", "compute_cap": "8.9", "memory.total": "24564 MiB"}
CARDS = [SHARED | card | {"index": str(slot), "uuid": f"GPU-{slot}"} for slot, card in enumerate([GT_1030, RTX_4090])]


def explain_missing():
    """Return why the card cannot be built here; "" if it can, and PyTorch is a build for CUDA."""
    import torch

    if not torch.version.cuda:
        return "PyTorch is not a build for CUDA"
    version = torch.__version__.split("+")[0]
    if f"torch=={version}\n" not in Path(__file__).parents[2].joinpath("requirements-cuda.txt").read_text():
        return f"the card is not made for PyTorch {version}"
    return "" if shutil.which("cc") and importlib.util.find_spec("triton") else "no cc, or no triton"


@functools.cache
def build(folder):
    """Compile card.c into a folder. What it leaves out of NVIDIA's interfaces is there, and is one error."""
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
    smi = Path(folder, "nvidia-smi")
    smi.write_text(f'#!/bin/sh\nLD_PRELOAD= exec {sys.executable} -S -E {__file__} "$@"\n')
    smi.chmod(0o755)


def environ(folder, **others):
    """Return the environment of processes on this machine."""
    build(folder)
    root = Path(__file__).parents[2]
    ours = {"CARDS": "1", "LD_PRELOAD": f"{folder}/libcudart.so.13", "LD_LIBRARY_PATH": str(folder)}
    ours |= {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{root}:{root}/tests/processes"}
    return os.environ | ours | {"RESULTS_DIR": f"{folder}/results"} | others


def answer_nvml(pynvml):
    """Let pynvml read these cards in this process; a handle is a slot."""
    values = {"TotalEnergyConsumption": lambda slot: (60 + slot) * 1000 * time.monotonic()}  # millijoules
    values |= {"Temperature": lambda slot: 61 + slot, "CurrentClocksEventReasons": lambda slot: 4}
    values |= dict.fromkeys(("ClockInfo", "MaxClockInfo"), lambda slot: 2520)
    pynvml.nvmlInit, pynvml.nvmlDeviceGetHandleByIndex = lambda: None, int
    for name, value in values.items():
        setattr(pynvml, f"nvmlDeviceGet{name}", lambda slot, *kind, value=value: value(slot))


def plug_in_with(frameworks):
    """Plug the cards in as soon as bench.frameworks loads PyTorch."""
    load = frameworks.load

    def load_and_plug_in(name):
        frameworks.load = load
        module = load(name)
        import pynvml

        from tests.card import card

        answer_nvml(pynvml)
        card.plug_in()
        return module

    frameworks.load = load_and_plug_in


if __name__ == "__main__":
    queries = [each.partition("=")[2] for each in sys.argv if each.startswith("--query-gpu=")]
    if not queries:
        sys.exit(explain_missing() if "cc" in explain_missing() else None)
    for card in CARDS:
        print(", ".join(card[name] for name in queries[0].split(",")))
