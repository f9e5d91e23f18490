"""Describe where a result was measured: machine, chip, system, driver, power source, environment variables, commit.

    python -m bench.host.environment    refuses a Python that cannot run the frameworks; bench/install.sh asks it

Standard library only. A value that the system does not report is None, never a guess or an error.
"""

import functools
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench import process
from bench.settings import ROOT, SettingError, slug

log = logging.getLogger("bench")
GIB = 2**30
PCI_DEVICES = Path("/sys/bus/pci/devices")
NVIDIA, AMD = "0x10de", "0x1002"  # vendors on PCI
# glibc then keeps freed memory, and maps no block separately. Before 2.35 it ignores an MMAP_THRESHOLD above 32 MiB.
GLIBC_KEEPS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "1000000000000"}
ALLOCATORS = re.compile(r"LD_PRELOAD|GLIBC_TUNABLES|MALLOC_\w+")  # they change results on a CPU by a factor of two
# Variables that change the speed of the same work: part of a row's setup, so rows with other values are not merged.
# Left out is what names a place, a version or a device, what is only printed, what has a column, and torchrun's own.
SETUP_VARIABLES = re.compile(
    r"(?!\w*(_HOME|_PATH|_DIR|_FILE|_ROOT|_VERSION|_LEVEL|_DEBUG|VISIBLE_DEVICES|DEVICE_ORDER|NUM_THREADS|_HANDLING)$)"
    r"(LD_PRELOAD|DYLD_INSERT_LIBRARIES|GLIBC_TUNABLES|NVIDIA_TF32_OVERRIDE|PYTHONMALLOC|PYTHONDEVMODE|"
    r"(OMP|GOMP|KMP|MKL|ONEDNN|DNNL|OPENBLAS|BLIS|VECLIB|MALLOC|TCMALLOC|CUDA|CUBLAS|CUBLASLT|CUDNN|NCCL|GLOO|HIP|HSA|"
    r"MIOPEN|METAL|MTL|ATEN|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|TRITON|TF|XLA|JAX|MLX)_\w+)"
)


@dataclass(frozen=True)
class Card:
    """An NVIDIA card, as nvidia-smi describes it."""

    name: str
    index: str = "0"  # by slot, as with CUDA_DEVICE_ORDER=PCI_BUS_ID
    uuid: str = ""  # GPU-...
    driver: str = ""  # version
    memory: str = ""  # "81559 MiB", or "[N/A]" if it uses the system's
    power_limit: str = ""  # "450.00 W", or "[N/A]"


def refuse_rosetta():
    """Raise SettingError for an x86-64 Python on an arm64 Mac: frameworks crash with an illegal instruction."""
    is_x86 = platform.system() == "Darwin" and platform.machine() == "x86_64"
    if is_x86 and (output_of("sysctl", "-n", "hw.optional.arm64") or "").strip() == "1":
        fix = "install an arm64 Python (`arch -arm64 brew install python@3.12`), then `make clean`"
        raise SettingError(f"PYTHON={sys.executable!r} is an x86-64 program on an arm64 Mac: {fix}")


def name_machine(cpu_name, cpu_id, cpu_count, gpu_name, gpu_cores):
    """Return a slug of the GPU or chip that ran: nvidia-h200, apple-m1-max-32-gpu-cores, amd-epyc-25-17-2-cores.

    Servers call different CPUs by one name without a number, such as AMD EPYC: their family and model follow it.
    """
    chip = re.sub(r"\((R|TM)\)|@.*| with .*|\d+-Core|\b(CPU|Processor)\b", " ", gpu_name or cpu_name or "", flags=re.I)
    if gpu_name:
        return slug(chip)
    if not re.search(r"\d", chip):
        chip += " ".join(re.findall(r"(?:family|model) (\d+)", cpu_id or ""))
    return slug(f"{chip.strip() or 'cpu'} " + (f"{gpu_cores} gpu cores" if gpu_cores else f"{cpu_count} cores"))


def possible_machines(host):
    """Return the names of machines that rows measured on a Host may have, if their devices are cards or the CPU."""
    names = [None, *(card.name for card in list_cards())]
    return [
        host.machine or name_machine(host.cpu_name, host.cpu_id, host.cpu_count, name, host.gpu_cores) for name in names
    ]


@functools.cache
def list_cards():
    """Return the Cards of this machine in the order of their slots; an empty list without NVIDIA's driver."""
    query = "--query-gpu=name,index,uuid,driver_version,memory.total,power.limit"
    lines = output_of("nvidia-smi", query, "--format=csv,noheader") or ""
    return [Card(*texts) for texts in re.findall(r"^(.+), (\d+), (GPU-\S+), (\S+), (.+), (.*)$", lines, re.M)]


def find_card():
    """Return the first card of CUDA_VISIBLE_DEVICES; None if there is none.

    CUDA counts the cards in the same order because frameworks.load() sets CUDA_DEVICE_ORDER. It accepts the start of a
    card's UUID. A MIG slice (MIG-...) is not a card.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip()
    return next((card for card in list_cards() if first and (card.index == first or card.uuid.startswith(first))), None)


def explain_missing_compiler():
    """Return one clause if what COMPILE needs is missing; else ""."""
    has_header = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    has_all = has_header and (shutil.which("cc") or shutil.which("gcc"))
    return "" if has_all else "COMPILE=1 needs cc and Python.h: `sudo apt install build-essential python3-dev`"


def explain_choice(device_name):
    """Return one clause about another kind of card than the one that runs; "" without one, or if the user chose."""
    others = [card for card in list_cards() if card.name != device_name]
    if not others or others == list_cards() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return ""
    return f"{device_name} is measured: for {others[0].name}, set CUDA_VISIBLE_DEVICES={others[0].index}"


def explain_missing_gpu(framework):
    """Return one clause that explains why a framework on the CPU does not use this machine's GPU; "" without a GPU."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        if framework == "jax":
            return "jax does not support the GPU of a Mac, but FRAMEWORK=mlx does"
        needed = "macOS 15 or newer, or FRAMEWORK=mlx" if framework == "torch" else "macOS 14 or newer"
        return f"{framework} does not find the GPU: `make clean`, then make again, with {needed}"
    if list_cards():
        # CUDA's libraries are missing in an environment that `make` built on a login node.
        if Path(sys.prefix).parent == ROOT and not find_spec("nvidia"):
            return f"{framework} was installed without CUDA: `make clean`, then make again on this machine"
        fix = "unset CUDA_VISIBLE_DEVICES, update the driver, or set PYTHON=... to an environment with a CUDA build"
        return f"{framework} does not find a GPU, although NVIDIA's driver is installed: {fix}"
    vendors = [read_text(path).strip() for path in PCI_DEVICES.glob("*/vendor")]
    if NVIDIA in vendors:
        return "`nvidia-smi` does not list this machine's card: install its driver (in Docker: `docker run --gpus all`)"
    return f"{framework} as installed does not support this machine's AMD GPU" if AMD in vendors else ""


def find_apple_gpu_cores():
    displays = output_of("system_profiler", "SPDisplaysDataType", "-json") or ""  # a program of Macs
    cores = re.search(r'"sppci_cores"\s*:\s*"(\d+)"', displays)
    return int(cores[1]) if cores else None


def find_power_source(folder="/sys/class/power_supply"):
    """Return "ac" or "battery"; None if the system does not report it, as most desktops and servers."""
    if on_mac := re.search("drawing from '(AC|Battery)", output_of("pmset", "-g", "batt") or ""):
        return on_mac[1].lower()
    states = [read_text(path).strip() for path in Path(folder).glob("BAT*/status")]
    return ("battery" if "Discharging" in states else "ac") if states else None


def find_low_power_mode():
    """Return 1 or 0; None if this is not a Mac."""
    # Macs that also have a high-power mode call the setting powermode; 2 is high power.
    mode = re.search(r"\b(?:low)?powermode\s+([0-2])", output_of("pmset", "-g") or "")
    return int(mode[1] == "1") if mode else None


def keep_memory(environ, use_gpu):
    """Return the variables by which glibc keeps freed memory; {} for a card, another library or a user's allocator.

    Without them, equal work takes thousands of page faults a step in one process, and half of them in the next.
    """
    is_fixed = any(map(ALLOCATORS.fullmatch, environ))
    on_cpu = use_gpu is False or not find_card()
    return GLIBC_KEEPS if on_cpu and platform.libc_ver()[0] == "glibc" and not is_fixed else {}


def find_allocator(environ=os.environ):
    """Return the SETUP_VARIABLES of an environment as a row stores them, paths by their last part; None without any."""
    names = sorted(filter(SETUP_VARIABLES.fullmatch, environ))
    texts = (f"{name}={environ[name]}" for name in names if environ[name])
    return re.sub(r"[^\s:=,]*/", "", " ".join(texts)) or None


def find_commit():
    """Return the short commit of this repository, with -dirty if its programs were changed; None if git cannot tell.

    New rows in results/ and untracked files do not make it dirty.
    """
    commit = ask_git(ROOT, "rev-parse", "--short=12", "HEAD")
    changes = ask_git(ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    return None if not commit or changes is None else commit.strip() + ("-dirty" if changes else "")


def explain_commit(commit, root=ROOT):
    """Return why rows with this result of find_commit() cannot be sent, with the fix; "" if they can."""
    if not commit:
        return f"git fails, so results cannot be sent: use a `git clone`, in which `git -C {root} status` works"
    changed = "the code was changed, so its results cannot be sent: `git stash` the changes"
    return changed if commit.endswith("-dirty") else ""


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


@dataclass(frozen=True)
class Host:
    """This machine. Names are as the system reports them."""

    machine: str | None  # the user's name for it; None: each row is named after the device that ran
    gpu_cores: int | None  # Apple silicon only: one chip is sold with several core counts
    cpu_name: str | None
    cpu_count: int  # logical CPUs
    cpu_id: str | None  # Linux: tells chips of one name apart
    driver: str | None  # version of the NVIDIA driver
    power_limit_watts: int | None  # of find_card()
    memory_gb: float  # installed, in units of 2**30 bytes
    os: str
    power_source: str | None  # "ac" or "battery"
    low_power_mode: int | None  # 1 or 0
    allocator: str | None  # SETUP_VARIABLES that are set
    commit: str | None  # this repository's; ends in "-dirty" if it was changed
    python: str  # version
    card_is_shared: bool = False  # as meters.is_card_shared() returns it before the first child


def read_linux_cpu():
    """Return the CPU's name and id, the id None if unknown; of ARM chips with two types of cores, those of both."""
    cpu = read_text("/proc/cpuinfo")
    fields = r"^(vendor_id|cpu family|model|model name|stepping)\s*:\s*(.*\S)"
    chip = dict(re.findall(fields, cpu, re.MULTILINE))
    if len(chip) == 5:
        return chip["model name"], "{vendor_id} family {cpu family} model {model} stepping {stepping}".format(**chip)
    # ARM's names are known to lscpu only; Docker on a Mac has none ("-").
    names = re.findall(r"^ *Model name: +(.*\w)", output_of("lscpu") or "", re.MULTILINE)
    types = dict.fromkeys(re.findall(r"^CPU (implementer|part)\s*: (.+)$", cpu, re.MULTILINE))
    cpu_id = " ".join(f"{name} {text}" for name, text in types)
    return " + ".join(dict.fromkeys(names)) or platform.machine(), cpu_id or None


def installed_bytes():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_host(machine=None):
    """Return this machine's Host; `machine` names it instead of its devices."""
    card = find_card()
    limit = re.match("[1-9][0-9]*", card.power_limit) if card else None
    commit = find_commit()
    if commit is None:
        log.warning("%s", explain_commit(commit))
    if platform.system() == "Darwin":
        cpu_name = (output_of("sysctl", "-n", "machdep.cpu.brand_string") or "").strip() or None
        cpu_id = None
        # A Python that was built with an older SDK is told that macOS 26 is 16.
        os_name = f"macOS {(output_of('sw_vers', '-productVersion') or platform.mac_ver()[0]).strip()}"
    else:
        cpu_name, cpu_id = read_linux_cpu()
        release = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text("/etc/os-release"), re.MULTILINE)
        os_name = (f"{release[1]}, " if release else "") + f"{platform.system()} {platform.release()}"
    return Host(
        machine=machine,
        gpu_cores=find_apple_gpu_cores(),
        cpu_name=cpu_name,
        cpu_count=os.cpu_count() or 1,
        cpu_id=cpu_id,
        driver=next((each.driver for each in list_cards()), None),
        power_limit_watts=int(limit[0]) if limit else None,
        memory_gb=round(installed_bytes() / GIB, 1),
        os=os_name,
        power_source=find_power_source(),
        low_power_mode=find_low_power_mode(),
        allocator=find_allocator(),
        commit=commit,
        python=platform.python_version(),
    )


if __name__ == "__main__":
    sys.exit(process.run_script(refuse_rosetta))
