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
from dataclasses import replace
from pathlib import Path

from bench import cli, processes
from bench.host import environment, meters, resources, sensors
from bench.settings import FRAMEWORKS, ROOT, SettingError, cpu_quota, environment_of, read_settings
from bench.workloads import CIFAR10_FOLDER, CIFAR10_URL

GB = 10**9
INSTALLED_GB = 8  # the size of the larger environment
TRY_SECONDS = 300  # the first import after an installation reads a few GB


def main():
    return examine(read_settings("doctor").results_dir, FRAMEWORKS)


def examine(results_dir, frameworks):
    """Print what is known about this machine, then try frameworks; return the exit status, 1 if none can run."""
    run_check("environment", check_variables)
    run_check("power", check_power)
    run_check("memory", check_memory)
    run_check("results", check_results, results_dir)
    run_check("disk", check_disk)
    run_check("CIFAR-10", check_network)
    run_check("commit", check_commit)
    works = [try_framework(name) for name in frameworks]
    if not any(works):
        print("\nno framework can run here: the lines above say why", file=sys.stderr)
    return 0 if any(works) else 1


def show(subject, state, words):
    """Print a line; its state is "ok", "no" (something cannot run or be trusted) or "--" (something is missing)."""
    print(f"{subject:<12} {state:<3} {words}", flush=True)


def run_check(subject, check, *arguments):
    """Run a check, which prints its lines; a check that fails becomes a line too."""
    try:
        check(*arguments)
    except Exception as error:
        show(subject, "--", f"cannot be checked: {type(error).__name__}: {error}")


# Frameworks


def find_interpreter(framework):
    """Return the Python, a path or a command, that make runs a framework with; None if it is not installed yet."""
    if os.environ.get("PYTHON"):
        return os.environ["PYTHON"]
    path = environment_of(framework) / "bin" / "python"
    return str(path) if os.path.lexists(path) else None


def try_framework(name):
    """Print the lines of a framework's own process, or why it has none; return whether the framework can run."""
    interpreter, reinstall = find_interpreter(name), f"`make clean`, then `make image FRAMEWORK={name}`"
    if interpreter is None:
        show(name, "--", f"not installed: `make image FRAMEWORK={name}` installs it")
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
    show(name, "no", problem)
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
        describe_bench(name, bench, session.measured_precision)
        return 0
    show(name, "no", problem)
    return 1


def describe_bench(name, bench, measured_precision):
    """Print the lines about a framework that runs: its device, its meters."""
    device, instruments = bench.device, bench.instruments
    place = f"{device.device_name or 'the CPU'} ({device.device})"
    words = f"{device.framework_version}, Python {platform.python_version()}, on {place}: "
    words += f"matmul verified in {measured_precision}"
    missing = environment.explain_missing_gpu(name, bench.host.driver) if device.device == "cpu" else ""
    show(name, "--" if missing else "ok", "; ".join(filter(None, [words, missing])))
    if instruments.counter:
        show("  energy", "ok", f"of the {instruments.counter.power_scope}")
    else:
        show("  energy", "--", f"stays blank: {instruments.why_no_energy}")
    if sensors.psutil is None:
        show("  load", "--", "not watched: `pip install psutil`")
    elif meters.sees_others():
        show("  load", "ok", "other programs' load and swapping are watched")
    else:
        show("  load", "--", "only swapping is monitored, because this container has a CPU quota")
    pressure = sensors.read_thermal_pressure()
    heat = ", ".join(f"{column} {value}" for column, value in instruments.read().items() if value)
    if pressure:
        show("  heat", "no" if pressure != "nominal" else "ok", f"thermal pressure is {pressure}")
    else:
        show("  heat", "ok" if heat else "--", heat or "no sensor reports temperature or clock")


# Everything else


def check_variables():
    if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        words = "moves operators to the CPU silently: `unset PYTORCH_ENABLE_MPS_FALLBACK`"
        show("environment", "no", f"PYTORCH_ENABLE_MPS_FALLBACK='1' {words}")
    found = environment.find_allocator(os.environ)
    show("environment", "ok", f"speed is affected by {found}" if found else "no variable affects the speed")


def check_power():
    source = environment.find_power_source()
    if environment.find_low_power_mode():
        show("power", "no", "low-power mode slows everything: turn it off in the system's settings")
    elif source == "battery":
        show("power", "no", "on battery, which may slow everything: plug it in")
    else:
        show("power", "ok", source or "the system does not report its power source")


def check_memory():
    if cpu_quota():
        show("CPU", "--", f"this container may use {cpu_quota():g} of {os.cpu_count()} CPUs")
    memory, free = environment.find_memory_gb(), resources.available_bytes()
    words = f"{memory:g} GiB" if memory else "the system does not report it"
    words += f", {free / environment.GIB:.1f} GiB available to this process" if free else ""
    show("memory", "ok" if memory else "--", words)
    if sensors.psutil:
        swapped = sensors.psutil.swap_memory().used / environment.GIB
        show("swap", "ok", f"{swapped:.1f} GiB in use; a result is flagged if this grows meanwhile")


def check_results(folder):
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.exists(place))
    if os.path.isdir(nearest) and os.access(nearest, os.W_OK):
        show("results", "ok", f"rows go to {cli.display_path(folder)}")
    else:
        show("results", "no", f"RESULTS_DIR={str(folder)!r} is not writable: set it to a writable folder")


def check_disk():
    free = shutil.disk_usage(ROOT).free / GB
    if free < INSTALLED_GB and not (ROOT / ".venv").exists():
        show("disk", "no", f"{free:.0f} GB free, an installation takes {INSTALLED_GB} GB: delete something")
    else:
        show("disk", "ok", f"{free:.0f} GB free")


def check_commit():
    commit = environment.find_commit()
    if commit is None:
        show(
            "commit",
            "no",
            "git reports no commit here, so results cannot be sent: install git, and `git clone` the repository",
        )
    elif commit.endswith("-dirty"):
        show("commit", "no", "the code was changed, so its results cannot be sent: `git stash` the changes")
    else:
        show("commit", "ok", commit)


def check_network(url=CIFAR10_URL, folder=CIFAR10_FOLDER):
    """Print whether CIFAR-10 is downloaded or can be. Without it `make mlp` uses synthetic images."""
    if (Path(folder) / url.rpartition("/")[2]).exists():
        show("CIFAR-10", "ok", "is downloaded")
        return
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5).close()
    except OSError as error:
        reason = getattr(error, "reason", error)
        # `make mlp` brings certificates of its own.
        if not any(isinstance(each, ssl.SSLCertVerificationError) for each in (error, reason)):
            show("CIFAR-10", "--", f"{url} cannot be reached ({reason}): `make mlp` uses synthetic images")
            return
    show("CIFAR-10", "ok", "can be downloaded")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(report_framework(sys.argv[1]))
    sys.exit(cli.run_script(main))
