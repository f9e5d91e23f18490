"""Report what can run on this machine and what cannot, each problem with its fix.

    make doctor

Uses the standard library only, so that it works before anything is installed. Each framework is tried in a process of
its own, because a broken one may crash. The exit status is 1 if no framework can run.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import ssl
import sys
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from bench import cli, processes
from bench.host import environment, meters, resources, sensors
from bench.settings import FRAMEWORKS, ROOT, SettingError, cpu_quota, environment_of, read_settings
from bench.workloads import CIFAR10_FOLDER, CIFAR10_URL

GB = 10**9
INSTALLED_GB = 8  # the size of the larger environment
TRY_SECONDS = 300  # the first import after an installation reads a few GB


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    state: str  # "ok"; "no": something cannot run or be trusted; "--": something optional is missing
    words: str

    def __str__(self):
        return f"{self.subject:<12} {self.state:<3} {self.words}"


def main():
    """Examine all frameworks; return the exit status."""
    return examine(read_settings("doctor").results_dir, FRAMEWORKS)


def examine(results_dir, frameworks):
    """Print the findings about this machine and some frameworks; return the exit status, 1 if none of them can run.

    Each finding is printed as soon as it is known, the slow ones last.
    """
    print_findings("environment", check_fallback)
    print_findings("power", check_power)
    print_findings("memory", check_memory)
    print_findings("results", check_results, results_dir)
    print_findings("disk", check_disk)
    print_findings("CIFAR-10", check_network)
    print_findings("commit", check_commit)
    works = [try_framework(name) for name in frameworks]
    if not any(works):
        print("\nno framework can run here: the lines above say why", file=sys.stderr)
    return 0 if any(works) else 1


def print_findings(subject, check, *arguments):
    """Print the findings of one check; a check that fails becomes a finding too."""
    try:
        for finding in check(*arguments):
            print(finding, flush=True)
    except Exception as error:
        print(Finding(subject, "--", f"cannot be checked: {type(error).__name__}: {error}"), flush=True)


# Frameworks


def find_interpreter(framework):
    """Return the Python, a path or a command, that make runs a framework with; None if it is not installed yet."""
    if os.environ.get("PYTHON"):
        return os.environ["PYTHON"]
    path = environment_of(framework) / "bin" / "python"
    return str(path) if os.path.lexists(path) else None


def try_framework(name):
    """Print the findings of a framework's own process, or why it has none; return whether the framework can run."""
    interpreter, reinstall = find_interpreter(name), f"`make clean`, then `make image FRAMEWORK={name}`"
    if interpreter is None:
        print(Finding(name, "--", f"not installed: `make image FRAMEWORK={name}` installs it"), flush=True)
        return False
    print(f"trying {name} ...", file=sys.stderr, flush=True)
    try:
        command = [interpreter, "-m", "bench.doctor", name]
        status, out, err = processes.run_process(command, dict(os.environ), TRY_SECONDS, captures=True)
    except OSError as error:
        fix = "set it to another interpreter" if os.environ.get("PYTHON") else reinstall
        problem = f"PYTHON={interpreter!r} cannot be started ({error.strerror}): {fix}"
    else:
        if status == cli.INTERRUPTED:
            raise KeyboardInterrupt
        if out and status >= 0:
            print(out, end="", flush=True)
            return status == 0
        if status == -signal.SIGALRM:
            problem = f"no answer in {TRY_SECONDS} s: {reinstall}"
        elif status == -signal.SIGILL:
            problem = "illegal instruction: an x86-64 build on an arm64 Mac, or a CPU without AVX: `make clean`"
        elif status < 0:
            problem = f"ended by signal {-status} ({signal.strsignal(-status)}): {reinstall}"
        else:
            problem = (err.strip() or "it ended without a message").splitlines()[-1]
    print(Finding(name, "no", problem), flush=True)
    return False


def report_framework(name):
    """Open a framework's device as a run does and print what it reports; return the exit status, 1 if it cannot run."""

    try:
        from bench.run import open_bench
        from bench.workloads.operators import matmul

        settings = read_settings("tflops", {"FRAMEWORK": name, "PRECISION": "float32"})
        bench = open_bench(replace(settings, precision="float32"), environment.describe_host())
        # Opening the session compares its output with float64.
        session = bench.framework.open_session(matmul((256, 256, 256)), bench.settings, None, "device")
    except (SettingError, ModuleNotFoundError) as error:
        problem = cli.explain(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        for finding in describe_bench(name, bench, session.measured_precision):
            print(finding)
        return 0
    print(Finding(name, "no", problem))
    return 1


def describe_bench(name, bench, measured_precision):
    """Yield the findings about a framework that runs: its device, its meters."""
    device, instruments = bench.device, bench.instruments
    place = f"{device.device_name or 'the CPU'} ({device.device})"
    words = f"{device.framework_version}, Python {platform.python_version()}, on {place}: "
    words += f"matmul verified in {measured_precision}"
    missing = environment.explain_missing_gpu(name, bench.host.driver) if device.device == "cpu" else ""
    yield Finding(name, "--" if missing else "ok", "; ".join(filter(None, [words, missing])))
    if instruments.counter:
        yield Finding("  energy", "ok", f"of the {instruments.counter.power_scope}")
    else:
        yield Finding("  energy", "--", f"stays blank: {instruments.why_no_energy}")
    if sensors.psutil is None:
        yield Finding("  load", "--", "not watched: `pip install psutil`")
    elif meters.sees_others():
        yield Finding("  load", "ok", "other programs' load and swapping are watched")
    else:
        yield Finding("  load", "--", "only swapping is monitored, because this container has a CPU quota")
    pressure = sensors.read_thermal_pressure()
    heat = ", ".join(f"{column} {value}" for column, value in instruments.read().items() if value)
    if pressure:
        yield Finding("  heat", "no" if pressure != "nominal" else "ok", f"thermal pressure is {pressure}")
    else:
        yield Finding("  heat", "ok" if heat else "--", heat or "no sensor reports temperature or clock")


# Everything else


def check_fallback():
    if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        words = "moves operators to the CPU silently: `unset PYTORCH_ENABLE_MPS_FALLBACK`"
        yield Finding("environment", "no", f"PYTORCH_ENABLE_MPS_FALLBACK='1' {words}")
    found = environment.find_allocator(os.environ)
    yield Finding("environment", "ok", f"speed is affected by {found}" if found else "no variable affects the speed")


def check_power():
    source = environment.find_power_source()
    if environment.find_low_power_mode():
        yield Finding("power", "no", "low-power mode slows everything: turn it off in the system's settings")
    elif source == "battery":
        yield Finding("power", "no", "on battery, which may slow everything: plug it in")
    else:
        yield Finding("power", "ok", source or "the system does not report its power source")


def check_memory():
    if cpu_quota():
        yield Finding("CPU", "--", f"this container may use {cpu_quota():g} of {os.cpu_count()} CPUs")
    memory, free = environment.find_memory_gb(), resources.available_bytes()
    words = f"{memory:g} GiB" if memory else "the system does not report it"
    words += f", {free / environment.GIB:.1f} GiB available to this process" if free else ""
    yield Finding("memory", "ok" if memory else "--", words)
    if sensors.psutil:
        swapped = sensors.psutil.swap_memory().used / environment.GIB
        yield Finding("swap", "ok", f"{swapped:.1f} GiB in use; a result is flagged if this grows meanwhile")


def check_results(folder):
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.exists(place))
    if os.path.isdir(nearest) and os.access(nearest, os.W_OK):
        yield Finding("results", "ok", f"rows go to {cli.display_path(folder)}")
    else:
        yield Finding("results", "no", f"RESULTS_DIR={str(folder)!r} is not writable: set it to a writable folder")


def check_disk():
    free = shutil.disk_usage(ROOT).free / GB
    if free < INSTALLED_GB and not (ROOT / ".venv").exists():
        yield Finding("disk", "no", f"{free:.0f} GB free, an installation takes {INSTALLED_GB} GB: delete something")
    else:
        yield Finding("disk", "ok", f"{free:.0f} GB free")


def check_commit():
    commit = environment.find_commit()
    if commit is None:
        yield Finding(
            "commit",
            "no",
            "git reports no commit here, so results cannot be sent: install git, and `git clone` the repository",
        )
    elif commit.endswith("-dirty"):
        yield Finding("commit", "no", "the code was changed, so its results cannot be sent: `git stash` the changes")
    else:
        yield Finding("commit", "ok", commit)


def check_network(url=CIFAR10_URL, folder=CIFAR10_FOLDER):
    """Yield whether CIFAR-10 is downloaded or can be. Without it `make mlp` uses synthetic images."""
    if (Path(folder) / url.rpartition("/")[2]).exists():
        yield Finding("CIFAR-10", "ok", "is downloaded")
        return
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        # `make mlp` brings certificates of its own.
        if not any(isinstance(each, ssl.SSLCertVerificationError) for each in (error, reason)):
            yield Finding("CIFAR-10", "--", f"{url} cannot be reached ({reason}): `make mlp` uses synthetic images")
            return
    yield Finding("CIFAR-10", "ok", "can be downloaded")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(report_framework(sys.argv[1]))
    sys.exit(cli.run_script(main))
