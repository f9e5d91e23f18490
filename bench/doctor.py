"""What can run here and what cannot, each with the command that mends it.

    make doctor

Standard library only, so that it answers before anything is installed. Each framework is tried in a process of its
own, because a broken one may die there. The exit status is 1 where no framework can run.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import cli
from bench.machine import environment, sensors
from bench.settings import FRAMEWORKS, ROOT, SettingError, cpu_quota, environment_of, read_settings
from bench.work import CIFAR10_FOLDER, CIFAR10_URL

GB = 10**9
INSTALLED_GB = 8  # what the larger of the environments takes
TRY_SECONDS = 300  # the first import after an installation reads a few GB


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    state: str  # "ok"; "no": something cannot run or be trusted; "--": only something optional is missing
    words: str

    def __str__(self):
        return f"{self.subject:<12} {self.state:<3} {self.words}"


def main():
    """Print the report; the exit status is 1 where no framework can run."""
    settings = read_settings("doctor")
    tried = {}
    for name in FRAMEWORKS:
        print(f"trying {name} ...", file=sys.stderr)
        tried[name] = try_framework(name, find_interpreter(name))
        print(describe_framework(name, tried[name]), flush=True)
    works = [facts for facts in tried.values() if "device" in facts]
    first = next((facts for facts in works if facts["device"] != "cpu"), works[0] if works else {})
    print_findings("meters", describe_meters, first)
    print_findings("environment", describe_fallback)
    print_findings("power", describe_power)
    print_findings("memory", describe_memory)
    print_findings("results", describe_results, settings.results_dir)
    print_findings("disk", describe_disk)
    print_findings("CIFAR-10", describe_network)
    if not first:
        print("\nno framework can run here", file=sys.stderr)
    return 0 if first else 1


def print_findings(subject, describe, *arguments):
    """Print what a check finds; a check that fails is a finding too."""
    try:
        findings = describe(*arguments)
        for finding in [findings] if isinstance(findings, Finding) else findings:
            print(finding, flush=True)
    except Exception as error:
        print(Finding(subject, "--", f"cannot be checked: {type(error).__name__}: {error}"), flush=True)


# Frameworks


def find_interpreter(framework):
    """The Python that make runs a framework with, a path or a command; None where it is not installed yet."""
    if os.environ.get("PYTHON"):
        return os.environ["PYTHON"]
    path = environment_of(framework) / "bin" / "python"
    return str(path) if os.path.lexists(path) else None


def try_framework(name, interpreter):
    """What report_framework() returns in a process of that interpreter; or {"problem": words}."""
    if interpreter is None:
        return {"problem": f"not installed: `make image FRAMEWORK={name}` does it"}
    command = [interpreter, "-m", "bench.doctor", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TRY_SECONDS)
    except OSError as error:
        cure = (
            "name another interpreter"
            if os.environ.get("PYTHON")
            else f"`make clean`, then `make image FRAMEWORK={name}`"
        )
        return {"problem": f"PYTHON={interpreter!r} cannot be started ({error.strerror}): {cure}"}
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer in {TRY_SECONDS} s: `make clean`, then `make image FRAMEWORK={name}`"}
    if done.returncode < 0:
        return {"problem": describe_signal(-done.returncode)}
    lines = (done.stdout.strip() or done.stderr.strip() or "it ended without a message").splitlines()
    try:
        return json.loads(lines[-1])
    except ValueError:
        return {"problem": lines[-1]}


def describe_signal(number):
    if number == signal.SIGILL:
        return "it died of an illegal instruction: an x86-64 build on an arm64 Mac, or a CPU without AVX: `make clean`"
    return f"it died of signal {number} ({signal.strsignal(number)}): `make clean`, then install it again"


def report_framework(name):
    """Try a framework in this process; returns facts about it, among them "problem" where there is one."""
    from bench import frameworks

    try:
        from bench.run import open_bench
        from bench.work.operators import matmul

        settings = read_settings("tflops", {"FRAMEWORK": name, "PRECISION": "float32"})
        bench = open_bench(replace(settings, precision="float32"), environment.describe_host())
        # Opening the session compares its output with float64.
        session = bench.framework.open_session(matmul((256, 256, 256)), bench.settings, None, "device")
    except SettingError as error:
        return {"problem": str(error)}
    except ModuleNotFoundError as error:
        return {"problem": str(frameworks.missing_package(name, error))}
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    meters = bench.instruments
    return asdict(bench.device) | {
        "measured_precision": session.measured_precision,
        "python": platform.python_version(),
        "heat": {column: value for column, value in meters.read().items() if value},
        "energy": meters.counter.power_scope if meters.counter else None,
        "why_no_energy": meters.why_no_energy,
        "has_psutil": sensors.psutil is not None,
    }


def describe_framework(name, facts):
    if "problem" in facts:
        return Finding(name, "no", facts["problem"])
    place = f"{facts['device_name'] or 'the CPU'} ({facts['device']})"
    right = f"its matmul is right in {facts['measured_precision']}"
    missing = missing_gpu(name, facts["device"])
    words = f"{facts['framework_version']}, Python {facts['python']}, on {place}: {right}"
    return Finding(name, "--" if missing else "ok", words + missing)


def missing_gpu(name, device):
    """What to do about a GPU that the framework does not see; "" where all is well."""
    if device != "cpu":
        return ""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return f"; it does not see the GPU: `make clean`, then `make image FRAMEWORK={name}` with macOS 14 or newer"
    card, driver = environment.find_nvidia()
    why = f"it may be built for CPUs, or driver {driver} too old"
    if environment.hides_cards():
        why = f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides it"
    return f"; it does not see the {card}: {why}" if card else ""


# Everything else


def describe_meters(facts):
    """Findings about energy, load and heat, from what a framework's process reported; none where none could run."""
    if not facts:
        return
    if facts["energy"]:
        yield Finding("energy", "ok", f"of the {facts['energy']}")
    else:
        yield Finding("energy", "--", f"stays blank: {facts['why_no_energy']}")
    if facts["has_psutil"]:
        yield Finding("load", "ok", "other programs' load and swapping are watched")
    else:
        yield Finding("load", "--", "not watched: `pip install psutil`")
    pressure = sensors.read_thermal_pressure()
    if pressure:
        yield Finding("heat", "no" if pressure != "nominal" else "ok", f"thermal pressure is {pressure}")
    elif facts["heat"]:
        yield Finding("heat", "ok", ", ".join(f"{column} {value}" for column, value in facts["heat"].items()))
    else:
        yield Finding("heat", "--", "no sensor shows temperature or clock")


def describe_fallback():
    if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        words = "moves operators to the CPU silently: `unset PYTORCH_ENABLE_MPS_FALLBACK`"
        return Finding("environment", "no", f"PYTORCH_ENABLE_MPS_FALLBACK='1' {words}")
    return Finding("environment", "ok", "no variable moves work to another device")


def describe_power():
    source, low = environment.find_power_source(), environment.find_low_power_mode()
    if low:
        return Finding("power", "no", "low-power mode slows everything: turn it off in the system's settings")
    if source == "battery":
        return Finding("power", "no", "on battery, which may slow everything: plug it in")
    return Finding("power", "ok", source or "the system does not report its source")


def describe_memory():
    memory = environment.find_memory_gb()
    if cpu_quota():
        yield Finding("CPU", "--", f"this container may use {cpu_quota():g} of {os.cpu_count()} CPUs")
    yield Finding("memory", "ok" if memory else "--", f"{memory:g} GiB" if memory else "the system does not report it")
    swapped = environment.find_swapped_gb()
    if swapped is not None:
        yield Finding("swap", "ok", f"{swapped:.1f} GiB in use; a run during which that grows is flagged")


def describe_results(folder):
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.exists(place))
    if os.path.isdir(nearest) and os.access(nearest, os.W_OK):
        return Finding("results", "ok", f"rows go to {os.path.relpath(folder)}")
    return Finding("results", "no", f"RESULTS_DIR={str(folder)!r} cannot be written to: name a folder that can")


def describe_disk():
    free = shutil.disk_usage(ROOT).free / GB
    if free < INSTALLED_GB and not (ROOT / ".venv").exists():
        return Finding("disk", "no", f"{free:.0f} GB free, an installation takes {INSTALLED_GB}: make room")
    return Finding("disk", "ok", f"{free:.0f} GB free")


def describe_network(url=CIFAR10_URL, folder=CIFAR10_FOLDER):
    """CIFAR-10's home. Without it `make mlp` takes synthetic images."""
    name = url.rpartition("/")[2]
    if (Path(folder) / name).exists():
        return Finding("CIFAR-10", "ok", "is downloaded")
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()
    except ssl.SSLCertVerificationError:
        pass  # `make mlp` brings certificates of its own
    except OSError as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLCertVerificationError):
            words = f"{url} does not answer ({reason}): `make mlp` uses synthetic images"
            return Finding("CIFAR-10", "--", words)
    return Finding("CIFAR-10", "ok", "can be downloaded")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(report_framework(sys.argv[1])))
    else:
        sys.exit(cli.run_script(main))
