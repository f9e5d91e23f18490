"""Describe where a result was measured: machine, chip, system, driver, power source, environment variables, commit.

Standard library only. A value that the system does not report is None, never a guess or an error.
"""

import functools
import logging
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import NamedTuple

from bench.settings import ROOT, slug

log = logging.getLogger("bench")
GIB = 2**30
INSTALLED_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
SYS = Path("/sys")
GPU_VENDORS = ("0x10de", "0x1002")  # NVIDIA and AMD on PCI
GIT_FAILS = "git fails, so results cannot be sent: use a `git clone`, in which `git status` works"
# Variables that change the speed of the same work are part of a row's setup. Left out is what names a place, a version
# or a device, what is only printed or has a column, torchrun's own, and what others begin with KMP_ (Colab) and CUDA_.
SETUP_VARIABLES = re.compile(
    r"(?!\w*(_HOME|_PATH|_DIR|_DIRECTORY|_FILE|_ROOT|_INCLUDE|_LIB|_VERSION|_LIST|_NUMBER|LOG_LEVEL|_DEBUG|_HANDLING|"
    r"VISIBLE_DEVICES|NUM_THREADS|_PORT|_HOST|_ADDR|_ADDRESS|_URL|_ARGS|_ID|TF_CONFIG)$)"
    r"(LD_PRELOAD|DYLD_INSERT_LIBRARIES|GLIBC_TUNABLES|NVIDIA_TF32_OVERRIDE|PYTHONMALLOC|PYTHONDEVMODE|"
    r"KMP_(AFFINITY|BLOCKTIME|LIBRARY|HW_SUBSET|TPAUSE|SCHEDULE|DYNAMIC|FORCE|HOT_TEAMS|STACKSIZE|TASKING)\w*|"
    r"CUDA_(LAUNCH|DEVICE_MAX|MODULE|MPS|AUTO_BOOST|FORCE|DISABLE|MANAGED|SCALE|GRAPHS|BINARY)\w+|"
    r"(OMP|GOMP|MKL|ONEDNN|DNNL|OPENBLAS|BLIS|VECLIB|MALLOC|TCMALLOC|CUBLAS|CUBLASLT|CUDNN|NCCL|GLOO|HIP|HSA|MIOPEN|"
    r"METAL|MTL|ATEN|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|TRITON|TF|XLA|JAX|MLX)_\w+)"
)
ADDRESS = re.compile(r"://|\d+(\.\d+){3}")  # a network address
CHIP = r"^(vendor_id|cpu family|model|stepping|CPU (?:implementer|variant|part|revision))\s*: (.*\w)"  # in cpuinfo


class NvidiaGpu(NamedTuple):
    """An NVIDIA card, as nvidia-smi describes it."""

    name: str
    index: str = "0"  # by slot, as with CUDA_DEVICE_ORDER=PCI_BUS_ID
    uuid: str = ""  # GPU-...
    driver: str = ""  # version
    memory: int | None = None  # MiB; None if it uses the system's
    power_limit: int | None = None  # watts


@functools.cache
def list_cards():
    """Return the NvidiaGpus of this machine in the order of their slots; an empty list without NVIDIA's driver."""
    query = "--query-gpu=name,index,uuid,driver_version,memory.total,power.limit"
    lines = output_of("nvidia-smi", query, "--format=csv,noheader") or ""
    cells = r"^(.+), (\d+), (GPU-\S+), (\S+), (\d*).*, (\d*)"  # "81559 MiB", "700.00 W" or "[N/A]"
    found = re.findall(cells, lines, re.MULTILINE)
    return [NvidiaGpu(*each[:4], *(int(text) if text else None for text in each[4:])) for each in found]


def find_card():
    """Return the first card of CUDA_VISIBLE_DEVICES; None without one, or if that is a MIG slice (MIG-...).

    CUDA accepts the start of a UUID, and counts the cards in this order: frameworks.load() sets CUDA_DEVICE_ORDER.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return next((card for card in list_cards() if first and (card.index == first or card.uuid.startswith(first))), None)


def name_machine(host, gpu_name):
    """Return a slug of the GPU or of the chip in a host's columns: nvidia-h200, apple-m1-max-32-gpu-cores.

    A name without a number, such as AMD EPYC, is that of different CPUs: what tells them apart (cpu_id) follows it.
    """
    name = gpu_name or host["cpu_name"] or ""
    chip = re.sub(r"\((R|TM)\)|@.*| with .*|\d+-Core|\b(CPU|Processor)\b", " ", name, flags=re.IGNORECASE)
    if gpu_name:
        return slug(chip)
    if not re.search(r"\d", chip.replace("aarch64", "")):
        chip = " ".join([chip, *re.findall(r"(?:family|model|implementer|part) (\w+)", host["cpu_id"] or "")])
    cores = f"{host['gpu_cores']} gpu" if host["gpu_cores"] else host["cpu_count"]
    return slug(f"{chip.strip() or 'cpu'} {cores} cores")


def explain_missing_compiler():
    """Return one clause if what COMPILE needs is missing; else ""."""
    has_header = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    has_all = has_header and (shutil.which("cc") or shutil.which("gcc"))
    return "" if has_all else "COMPILE=1 needs cc and Python.h: `sudo apt install build-essential python3-dev`"


def explain_missing_gpu(framework):
    """Return one clause that explains why a framework on the CPU does not use this machine's GPU; "" without a GPU."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        fix = "set FRAMEWORK=mlx, or with torch or tensorflow and macOS 15 or newer `make clean`, then make again"
    elif list_cards() or any(read_text(path).strip() in GPU_VENDORS for path in SYS.glob("bus/pci/devices/*/vendor")):
        # On a login node, or without the driver, `make` has installed a build for the CPU.
        fix = "unset CUDA_VISIBLE_DEVICES, install or update the driver (in Docker: `docker run --gpus all`), "
        fix += "or `make clean` and make again on this machine"
    else:
        return ""
    return f"{framework} does not find this machine's GPU: {fix}"


def find_low_power_mode():
    """Return 1 if Linux keeps the clock of a CPU below what it can do, 0 if not; None if it does not control clocks."""
    cpus = SYS / "devices/system/cpu"
    policies = [*cpus.glob("cpufreq/policy*")]
    slow = {cpus / "intel_pstate/no_turbo": "1", cpus / "cpufreq/boost": "0"}
    slow[SYS / "firmware/acpi/platform_profile"] = "low-power"
    is_capped = any(read_text(path).strip() == text for path, text in slow.items())
    is_capped |= any(read_text(each / "scaling_max_freq") != read_text(each / "cpuinfo_max_freq") for each in policies)
    return int(is_capped) if policies else None


def find_allocator(environ=os.environ):
    """Return the SETUP_VARIABLES of an environment as a row stores them, paths by their last part; None without any."""
    names = sorted(filter(SETUP_VARIABLES.fullmatch, environ))
    texts = (f"{name}={environ[name]}" for name in names if environ[name] and not ADDRESS.search(environ[name]))
    return re.sub(r"[^\s:=,]*/", "", " ".join(texts)) or None


def find_commit():
    """Return 12 digits of the commit of this repository, with -dirty if its programs were changed; None if git fails.

    New rows in results/ and untracked files do not make it dirty.
    """
    options = "--porcelain=v2", "--branch", "--untracked-files=no"
    status = ask_git(ROOT, "status", *options, "--", ".", ":!results") or ""
    commit = re.match(r"# branch.oid (\w{12})", status)
    is_changed = re.search("^[^#]", status, re.MULTILINE)  # a line that is not about the branch
    return commit and commit[1] + ("-dirty" if is_changed else "")


def ask_git(root, *command):
    """Return what git prints about the repository of a folder, whoever owns it; None if it fails."""
    # With its .git named, git does not search the folders around it, and reads a clone of another owner.
    return output_of("git", "-C", str(root), "--git-dir=.git", "--work-tree=.", *command)


def output_of(*command):
    """Return what a command prints in English; None if it is missing, fails or hangs."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/lib/wsl/lib"  # WSL2's nvidia-smi, which SSH and sudo leave out
    env = os.environ | {"LC_ALL": "C", "PATH": path}
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=20, env=env).decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None


def read_text(path):
    """Return a file's text; "" if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def read_linux():
    """Return the columns that describe a computer with Linux; of ARM chips with two types of cores, those of both."""
    cpu = read_text("/proc/cpuinfo")
    # ARM's names are known to lscpu only; Docker on a Mac has none ("-").
    about = cpu if "model name" in cpu else output_of("lscpu") or ""
    names = re.findall(r"^ *model name\s*: +(.*[\w)])", about, re.MULTILINE | re.IGNORECASE)
    parts = dict.fromkeys(re.findall(CHIP, cpu, re.MULTILINE))
    release = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text("/etc/os-release"), re.MULTILINE)
    batteries = [read_text(path).strip() for path in SYS.glob("class/power_supply/BAT*/status")]
    return {
        "cpu_name": " + ".join(dict.fromkeys(names)) or platform.machine(),
        "cpu_id": " ".join(f"{name.split()[-1]} {text}" for name, text in parts).removeprefix("vendor_id ") or None,
        "os": (f"{release[1]}, " if release else "") + f"{platform.system()} {platform.release()}",
        "power_source": ("battery" if "Discharging" in batteries else "ac") if batteries else None,
        "low_power_mode": find_low_power_mode(),
    }


def read_mac_chip():
    return (output_of("sysctl", "-n", "machdep.cpu.brand_string") or "").strip() or None


def read_mac():
    """Return the columns that describe a Mac, whose chip is sold with several numbers of GPU cores."""
    displays = output_of("system_profiler", "SPDisplaysDataType", "-json") or ""
    cores = re.search(r'"sppci_cores"\s*:\s*"(\d+)"', displays)
    source = re.search("drawing from '(AC|Battery)", output_of("pmset", "-g", "batt") or "")
    # Macs that also have a high-power mode call the setting powermode; 2 is high power.
    mode = re.search(r"\b(?:low)?powermode\s+([0-2])", output_of("pmset", "-g") or "")
    return {
        "gpu_cores": int(cores[1]) if cores else None,
        "cpu_name": read_mac_chip(),
        # A Python that was built with an older SDK is told that macOS 26 is 16.
        "os": f"macOS {(output_of('sw_vers', '-productVersion') or platform.mac_ver()[0]).strip()}",
        "power_source": source[1].lower() if source else None,
        "low_power_mode": int(mode[1] == "1") if mode else None,
    }


def read_host(machine=None):
    """Return the columns that describe this computer. Without the user's name, rows are named after their device."""
    card = find_card() or NvidiaGpu("")
    commit = find_commit()
    if not commit:
        log.warning("%s", GIT_FAILS)
    common = {
        "machine": machine,
        "gpu_cores": None,
        "cpu_count": os.cpu_count() or 1,
        "driver": card.driver or None,
        "power_limit_watts": card.power_limit,
        "memory_gb": round(INSTALLED_BYTES / GIB, 1),
        "allocator": find_allocator(),
        "commit": commit,
        "python": platform.python_version(),
    }
    return common | (read_mac() if platform.system() == "Darwin" else read_linux())
