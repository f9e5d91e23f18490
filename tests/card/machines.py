"""Machines with cards made of software: what nvidia-smi and NVML answer, and the environment of their processes.

python -m tests.card.machines      fails if PyTorch is a build for CUDA and its tests would be skipped all the same
"""

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

FIELDS = {"driver_version": "driver", "memory.total": "memory", "compute_cap": "capability"}  # nvidia-smi's names
FIELDS |= {"power.limit": "limit"}
SHARED = {"driver": "580.95.05", "capability": "8.9", "memory": "24564 MiB", "limit": "450.00 W"}
RTX_4090, GT_1030 = ({"name": f"NVIDIA GeForce {name}"} for name in ("RTX 4090", "GT 1030"))
# NVML's return codes of the readings that fail; 3 is "Not Supported", 13 is "Function Not Found".
NO_ENERGY = {"TotalEnergyConsumption": 3}
NOT_ON_VGPU = NO_ENERGY | dict.fromkeys(("Temperature", "ClockInfo", "CurrentClocksEventReasons"), 3)
# Sources on github.com: no power and so no energy on a laptop, influxdata/telegraf/issues/6258, and on Pascal,
# rust-nvml/nvml-wrapper/pull/54; no reasons before driver 535, leptonai/gpud/pull/48; a vGPU, N/A but for memory and
# utilization, microsoft/Bringing-Old-Photos-Back-to-Life/issues/28; jade-hpc-gpu/jade-hpc-gpu.github.io/issues/73.
# CUDA sees one slice of a card with MIG, and its utilization is N/A: docs.nvidia.com/datacenter/tesla/mig-user-guide.
MACHINES = {
    "rtx 4090": [RTX_4090],
    "mig": [{"name": "NVIDIA H100 80GB HBM3", "cuda_name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "UtilizationRates": 3}],
    "laptop": [{"name": "NVIDIA GeForce GTX 1650", "memory": "4096 MiB", "capability": "7.5"} | NO_ENERGY],
    "pascal": [GT_1030 | {"driver": "525.60.13", "capability": "6.1", "CurrentClocksEventReasons": 13} | NO_ENERGY],
    "vgpu": [{"name": "GRID T4-8Q", "memory": "8192 MiB", "capability": "7.5"} | NOT_ON_VGPU],
    "exclusive": [{"name": "Tesla V100-SXM2-16GB", "capability": "7.0", "is_exclusive": True}],
    "two kinds": [GT_1030 | {"memory": "2048 MiB", "capability": "6.1"}, RTX_4090],
    "pair": [RTX_4090, RTX_4090],
}


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


def environ(folder, machine="rtx 4090", **others):
    """Return the environment of processes on one of MACHINES; the cards are gone as soon as folder/lost exists."""
    build(folder)
    of_slot = [{"index": str(slot), "uuid": f"GPU-{slot}"} | card for slot, card in enumerate(MACHINES[machine])]
    root = Path(__file__).parents[2]
    ours = {"CARDS": json.dumps({"folder": str(folder), "cards": [SHARED | card for card in of_slot]})}
    ours |= {"LD_PRELOAD": f"{folder}/libcudart.so.13", "LD_LIBRARY_PATH": str(folder)}
    ours |= {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": f"{root}:{root}/tests/processes"}
    return os.environ | ours | {"RESULTS_DIR": f"{folder}/results"} | others


def list_cards():
    """Return the cards of this process's machine."""
    machine = json.loads(os.environ["CARDS"])
    return [] if os.path.exists(f"{machine['folder']}/lost") else machine["cards"]


def answer_nvml(pynvml):
    """Let pynvml read these cards in this process; a handle is a slot."""
    values = {"TotalEnergyConsumption": lambda slot: (60 + slot) * 1000 * time.monotonic()}  # millijoules
    values |= {"UtilizationRates": lambda slot: pynvml.c_nvmlUtilization_t(3, 1), "Temperature": lambda slot: 61 + slot}
    values |= dict.fromkeys(("CurrentClocksEventReasons", "CurrentClocksThrottleReasons"), lambda slot: 4)
    values["ClockInfo"] = lambda slot: 2520

    def read(name, slot, *kind):
        if code := list_cards()[slot].get(name) if list_cards() else 15:  # GPU is lost
            raise pynvml.NVMLError(code)
        return values[name](slot)

    pynvml.nvmlInit, pynvml.nvmlDeviceGetHandleByIndex = lambda: None, int
    for name in values:
        setattr(pynvml, f"nvmlDeviceGet{name}", functools.partial(read, name))


def plug_in_with(frameworks):
    """Plug the cards in as soon as bench.frameworks loads PyTorch, and let meters wait for less than seconds."""
    load = frameworks.load

    def load_and_plug_in(name):
        frameworks.load = load
        module = load(name)
        import pynvml

        from bench.host import meters
        from bench.timing import proof
        from tests.card import card

        meters.ENERGY_SECONDS, meters.POLL_SECONDS = 0.2, 0.001
        answer_nvml(pynvml)
        card.plug_in()
        if os.environ.get("CARD_COMPILES"):  # its kernels do nothing, so that no output is right
            proof.check_equal = proof.require = lambda *arguments: None
        return module

    frameworks.load = load_and_plug_in


if __name__ == "__main__":
    queries = [each.partition("=")[2] for each in sys.argv if each.startswith("--query-gpu=")]
    if not queries:
        sys.exit(explain_missing() if "cc" in explain_missing() else None)
    for card in list_cards():
        print(", ".join(card[FIELDS.get(name, name)] for name in queries[0].split(",")))
    sys.exit(None if list_cards() else print("No devices were found") or 6)
