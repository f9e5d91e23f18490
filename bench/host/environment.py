"""Describe where a result was measured: machine, chip, system, driver, power source, environment variables, commit.

    python -m bench.host.environment    prints it

Standard library only. A value that the system does not report is None, never a guess or an error.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from bench.settings import ROOT, SettingError, environment_of, slug

GIB = 2**30
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, in cuda.h
# The torch of requirements-cuda.txt is built for CUDA 13, which needs this driver. See
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html#cuda-toolkit-major-component-versions
NEEDED_CUDA, NEEDED_DRIVER = 13, 580
KEPT = "1000000000000"  # bytes: glibc then keeps freed memory and does not map large blocks separately
GLIBC_KEEPS = {"MALLOC_MMAP_THRESHOLD_": KEPT, "MALLOC_TRIM_THRESHOLD_": KEPT}
# They change results on a CPU by up to a factor of two.
ALLOCATOR_VARIABLES = (
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
)
# Variables that change the speed of the same work: part of a row's setup, so rows with other values are not merged.
SETUP_VARIABLES = (
    *ALLOCATOR_VARIABLES,
    "CUDA_LAUNCH_BLOCKING",  # waits after every kernel
    "NVIDIA_TF32_OVERRIDE",  # 0: no library uses TF32
    "TORCHINDUCTOR_LAYOUT_OPTIMIZATION",  # 0: a factor of 4.5 in training of convolutions on MPS
    "TRANSFORMERS_SDPA_FORCE_GQA",  # attention without repeated K and V
)


@dataclass(frozen=True)
class Card:
    """An NVIDIA card, or a MIG slice of one."""

    name: str
    uuid: str  # as `nvidia-smi -L` prints it: GPU-... or MIG-...
    multiprocessors: float = math.inf
    capability: float = math.inf  # compute capability, such as 8.6


@dataclass(frozen=True)
class Environment:
    """One host. Names are as the system reports them."""

    machine: str  # in every row, and the name of the CSV file
    gpu_cores: int | None  # Apple silicon only: one chip is sold with several core counts
    cpu_name: str | None
    cpu_count: int  # logical CPUs
    memory_gb: float | None  # installed, in units of 2**30 bytes
    os: str
    driver: str | None  # version of the NVIDIA driver
    power_source: str | None  # "ac" or "battery"
    low_power_mode: int | None  # 1 or 0
    allocator: str | None  # SETUP_VARIABLES that are set, as NAME=value, separated by spaces
    commit: str | None  # of this repository; ends in "-dirty" if its programs were changed
    python: str


def describe_host(machine=None):
    """Return the Environment of this host; `machine` overrides its name."""
    cpu_name, cpu_count, gpu_cores = find_cpu_name(), os.cpu_count() or 1, find_apple_gpu_cores()
    card = None if is_driver_too_old() else find_card()  # an unusable card does not name the machine
    return Environment(
        machine=machine or name_machine(cpu_name, cpu_count, card and card.name, gpu_cores),
        gpu_cores=gpu_cores,
        cpu_name=cpu_name,
        cpu_count=cpu_count,
        memory_gb=find_memory_gb(),
        os=find_os(),
        driver=find_driver(),
        power_source=find_power_source(),
        low_power_mode=find_low_power_mode(),
        allocator=find_allocator(os.environ),
        commit=find_commit(),
        python=platform.python_version(),
    )


def refuse_rosetta():
    """Raise SettingError for an x86-64 Python on an arm64 Mac: frameworks crash with an illegal instruction."""
    is_x86 = platform.system() == "Darwin" and platform.machine() == "x86_64"
    if is_x86 and _output("sysctl", "-n", "hw.optional.arm64") == "1":
        raise SettingError(
            f"PYTHON={sys.executable!r} is an x86-64 program on an arm64 Mac: install an arm64 Python "
            "(`arch -arm64 brew install python@3.12`), then `make clean`"
        )


def name_machine(cpu_name, cpu_count, gpu_name, gpu_cores):
    """Return a slug of the host's fastest device: nvidia-h200, apple-m1-max-32-gpu-cores, amd-epyc-2-cores."""
    if gpu_name:
        return slug(gpu_name if "nvidia" in gpu_name.lower() else f"nvidia {gpu_name}")
    chip = re.sub(r"\((R|TM)\)|@.*| with .*|\d+-Core|\b(CPU|Processor)\b", " ", cpu_name or "", flags=re.I)
    return slug(f"{chip.strip() or 'cpu'} " + (f"{gpu_cores} gpu cores" if gpu_cores else f"{cpu_count} cores"))


def find_cpu_name():
    if platform.system() == "Darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    found = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo"), re.M)
    return found[1].strip() if found else platform.processor() or platform.machine() or None


def find_card(library="libcuda.so.1"):
    """Return the Card that CUDA calls the first one; None without a card, or if all cards are hidden.

    Asks CUDA's driver, because CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and, by default, the cards' speed decide which
    card is first; see https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html. NVML, which orders cards
    by slot, cannot tell. Nothing is allocated on the card.
    """
    cuda, status = _start_cuda(library)
    card, name, uuid = ctypes.c_int(), ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    if status != 0 or cuda.cuDeviceGet(ctypes.byref(card), 0) or cuda.cuDeviceGetName(name, len(name), card):
        return None
    # For a MIG slice, the first version of this function returns the UUID of the whole card.
    if getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)(uuid, card):
        return None
    value, numbers = ctypes.c_int(), []
    for attribute in (16, 75, 76):  # multiprocessor count, compute capability major and minor, in cuda.h
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, card)
        numbers.append(value.value)
    found, (count, major, minor) = name.value.decode(), numbers
    kind = "MIG" if " MIG " in found else "GPU"
    return Card(found, f"{kind}-{UUID(bytes=bytes(uuid))}", count, major + minor / 10)


def hides_cards(library="libcuda.so.1"):
    """Return whether CUDA_VISIBLE_DEVICES hides every card: it is empty, or its first entry ("-1") is not a card."""
    return "CUDA_VISIBLE_DEVICES" in os.environ and _start_cuda(library)[1] == NO_DEVICE


def _start_cuda(library):
    """Return (CUDA's driver library, the status of its start); (None, None) without a driver."""
    try:
        cuda = ctypes.CDLL(library)
        return cuda, cuda.cuInit(0)
    except (OSError, AttributeError):
        return None, None


def find_driver():
    """Return the version of NVIDIA's driver, which also reports hidden cards; None without a driver."""
    version = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return version and version.partition("\n")[0].strip()


def find_cuda_version(library="libcuda.so.1"):
    """Return the newest major version of CUDA that NVIDIA's driver supports; None without a driver."""
    cuda, version = _start_cuda(library)[0], ctypes.c_int()
    return version.value // 1000 if cuda and cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def is_driver_too_old():
    """Return whether the driver cannot run the torch that this program installs; False in a user's own environment."""
    cuda = find_cuda_version()
    return bool(cuda and cuda < NEEDED_CUDA and Path(sys.prefix).resolve() == environment_of("torch").resolve())


def explain_missing_gpu(framework, driver):
    """Explain why a framework that runs on the CPU does not use this machine's GPU, with the fix.

    Returns:
        One clause; "" on a machine without an NVIDIA driver that is not an Apple silicon Mac.
    """
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        if framework == "jax":
            return "jax itself does not support the GPU of a Mac: docs/mac.md describes a plug-in"
        return f"{framework} does not find the GPU: `make clean`, then make again, with macOS 14 or newer"
    if driver is None:
        return ""
    if hides_cards():
        return f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides all GPUs: unset it"
    if is_driver_too_old():
        return (
            f"NVIDIA's driver {driver} is too old for the installed torch, which needs {NEEDED_DRIVER} or newer: "
            "update the driver, or set PYTHON=... to an environment whose torch is built for CUDA 12"
        )
    return (
        f"{framework} does not find a GPU, although NVIDIA's driver {driver} is installed: {framework} may be built "
        "for CPUs or for a newer driver (PYTHON=... names another environment)"
    )


def find_apple_gpu_cores():
    if platform.system() != "Darwin":
        return None
    try:
        displays = json.loads(_output("system_profiler", "SPDisplaysDataType", "-json") or "")["SPDisplaysDataType"]
        return next(int(d["sppci_cores"]) for d in displays if "sppci_cores" in d)
    except (KeyError, StopIteration, TypeError, ValueError):
        return None


def is_virtual():
    """Return whether this is a virtual machine, as the CPU reports it on Linux; elsewhere False."""
    return bool(re.search(r"^flags\b.*\bhypervisor\b", read_text("/proc/cpuinfo"), re.MULTILINE))


def find_memory_gb():
    if platform.system() == "Darwin":
        size = int(_output("sysctl", "-n", "hw.memsize") or 0)
    else:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return round(size / GIB, 1) or None


def find_os():
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"] + ", "
    except (OSError, KeyError):
        name = ""
    return f"{name}{platform.system()} {platform.release()}"


def find_power_source():
    """Return "ac", "battery", or None (most desktops and servers do not report it)."""
    if platform.system() == "Darwin":
        source = re.search("drawing from '(AC|Battery)", _output("pmset", "-g", "batt") or "")
        return {"AC": "ac", "Battery": "battery"}[source[1]] if source else None
    supplies = Path("/sys/class/power_supply").glob("*")
    supplies = [s for s in supplies if read_text(s / "scope").strip() != "Device"]  # a mouse has a battery of its own
    if any(read_text(s / "online").strip() == "1" for s in supplies):
        return "ac"
    return "battery" if any(read_text(s / "status").strip() == "Discharging" for s in supplies) else None


def find_low_power_mode():
    """Return 1 or 0, from a Mac's low-power mode or a PC's platform profile; None without either."""
    if platform.system() == "Darwin":
        # Macs that also have a high-power mode call the setting powermode; 2 is high power.
        mode = re.search(r"\b(?:low)?powermode\s+([0-2])", _output("pmset", "-g") or "")
        return int(mode[1] == "1") if mode else None
    profile = read_text("/sys/firmware/acpi/platform_profile").strip()
    return int(profile in ("low-power", "quiet")) if profile else None


def find_allocator(environ):
    """Return the SETUP_VARIABLES of an environment as a row stores them; None if none is set."""
    return " ".join(f"{name}={environ[name]}" for name in SETUP_VARIABLES if environ.get(name)) or None


def find_commit():
    """Return the short commit of this repository. New rows in results/ do not make it dirty."""
    if _output("git", "-C", str(ROOT), "rev-parse", "--show-prefix"):  # a copy inside another repository
        return None
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!results")
    return f"{commit}-dirty" if commit and changed else commit


def run_git(folder, *command):
    """Return what a git command prints in a folder, as it is; None if it fails or git is missing."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, check=True)
        return done.stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None


def _output(*command):
    """Return what a command prints, stripped; None if it is missing, fails, hangs or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def read_text(path):
    """Return a file's text; "" if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def main():
    """Print this host; return the exit status, 2 if no framework can run."""
    try:
        refuse_rosetta()
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    for name, value in asdict(describe_host()).items():
        print(f"{name:13} {'' if value is None else value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
