"""Report what can run on this machine and what cannot, each problem with its fix.

    make doctor

Uses the standard library only, so that it works before anything is installed. Each framework is tried in a process of
its own, because a broken one may crash. The exit status is 1 if no framework can run.
"""

import os
import platform
import shutil
import signal
import sys
from dataclasses import replace

from bench import cli, processes
from bench.host import environment, meters, resources, sensors
from bench.host.cpus import cpu_quota
from bench.settings import FRAMEWORKS, ROOT, SettingError, environment_of, read_settings

INSTALLED_GB = 8  # the size of the larger environment
TRY_SECONDS = 300  # the first import after an installation reads a few GB


def main():
    return examine(read_settings("doctor").results_dir, FRAMEWORKS)


def examine(results_dir, frameworks):
    """Print what is known about this machine, then try frameworks; return the exit status, 1 if none can run."""
    for check in (check_variables, check_power, check_memory, lambda: check_results(results_dir), check_commit):
        try:
            show(*check())
        except Exception as error:
            show("system", "--", f"cannot be checked: {type(error).__name__}: {error}")
    works = [try_framework(name) for name in frameworks]
    if not any(works):
        print("\nno framework can run here: the lines above say why", file=sys.stderr)
    return 0 if any(works) else 1


def show(subject, state, words):
    """Print a line; its state is "ok", "no" (something cannot run or be trusted) or "--" (something is missing)."""
    print(f"{subject:<12} {state:<3} {words}", flush=True)


def try_framework(name):
    """Print the lines of a framework's own process, or why it has none; return whether the framework can run."""
    own = os.environ.get("PYTHON")
    interpreter = own or str(environment_of(name) / "bin" / "python")
    if not own and not os.path.exists(interpreter):
        show(name, "--", f"not installed: `make image FRAMEWORK={name}` installs it")
        return False
    print(f"trying {name} ...", file=sys.stderr, flush=True)
    fix = "set PYTHON to another interpreter" if own else f"`make clean`, `make image FRAMEWORK={name}`"
    try:
        command = [interpreter, "-m", "bench.doctor", name]
        status, out, err = processes.run_process(command, dict(os.environ), TRY_SECONDS, captures=True)
    except OSError as error:
        show(name, "no", f"{interpreter} cannot be started ({error.strerror}): {fix}")
        return False
    if status == cli.INTERRUPTED:
        raise KeyboardInterrupt
    if out and status >= 0:
        print(out, end="", flush=True)
        return status == 0
    problem = (err.strip() or "it ended without a message").splitlines()[-1]
    if status == -signal.SIGILL:
        problem = "illegal instruction: an x86-64 build on an arm64 Mac, or a CPU without AVX"
    elif status < 0:
        problem = f"ended by signal {-status} ({signal.strsignal(-status)})"
    show(name, "no", f"{problem}: {fix}")
    return False


def report_framework(name):
    """Open a framework's device as a run does and print what it reports; return the exit status, 1 if it cannot run."""
    try:
        from bench import frameworks
        from bench.workloads.operators import matmul

        environment.refuse_rosetta()
        settings = replace(read_settings("tflops", {"FRAMEWORK": name}), precision="float32")
        framework = frameworks.load(name)
        device = framework.find_device(settings)
        # Opening the session compares its output with float64.
        session = framework.open_session(matmul((256, 256, 256)), settings, None, "device")
    except (SettingError, ModuleNotFoundError) as error:
        show(name, "no", cli.explain(error))
        return 1
    except Exception as error:
        show(name, "no", f"{type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    place = f"{device.device_name or 'the CPU'} ({device.device})"
    words = f"{device.framework_version}, Python {platform.python_version()}, on {place}: "
    words += f"matmul verified in {session.measured_precision}"
    missing = environment.explain_missing_gpu(name) if device.device == "cpu" else ""
    show(name, "--" if missing else "ok", "; ".join(filter(None, [words, missing])))
    if name == "torch" and not (shutil.which("cc") or shutil.which("gcc")):
        show("  compiler", "--", "COMPILE=1 needs one: `sudo apt install build-essential python3-dev`")
    instruments = meters.open_instruments(device.device, device.device_name)
    known = f"of the {instruments.counter.power_scope}" if instruments.counter else "stays blank: "
    show("  energy", "ok" if instruments.counter else "--", known + instruments.why_no_energy)
    pressure = sensors.read_thermal_pressure()
    heat = {"thermal pressure": pressure} if pressure else instruments.read()
    words = ", ".join(f"{name} {value}" for name, value in heat.items() if value)
    state = "no" if pressure not in (None, "nominal") else "ok" if words else "--"
    show("  heat", state, words or "no sensor reports temperature or clock")
    return 0


def check_variables():
    if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1":
        fix = "moves operators to the CPU silently: `unset PYTORCH_ENABLE_MPS_FALLBACK`"
        return "environment", "no", f"PYTORCH_ENABLE_MPS_FALLBACK='1' {fix}"
    found = environment.find_allocator(os.environ)
    return "environment", "ok", f"speed is affected by {found}" if found else "no variable affects the speed"


def check_power():
    source = environment.find_power_source()
    if environment.find_low_power_mode() or source == "battery":
        return "power", "no", "battery or low-power mode slow everything: plug it in, turn low-power mode off"
    return "power", "ok", source or "the system does not report its power source"


def check_memory():
    memory, free = environment.find_memory_gb(), resources.available_bytes()
    words = f"{memory or 0:g} GiB" + (f", {free / 2**30:.1f} GiB available to this process" if free else "")
    words += f"; this container may use {cpu_quota():g} of {os.cpu_count()} CPUs" if cpu_quota() else ""
    return "memory", "ok" if memory else "--", words


def check_results(folder):
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.exists(place))
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK):
        return "results", "no", f"RESULTS_DIR={str(folder)!r} is not writable: set it to a writable folder"
    free = shutil.disk_usage(ROOT).free / 10**9
    if free < INSTALLED_GB and not (ROOT / ".venv").exists():
        return "disk", "no", f"{free:.0f} GB free, an installation takes {INSTALLED_GB} GB: delete something"
    return "results", "ok", f"rows go to {cli.display_path(folder)}; {free:.0f} GB free"


def check_commit():
    commit = environment.find_commit()
    if commit is None:
        return "commit", "no", "none, so results cannot be sent: install git, `git clone` the repository"
    if commit.endswith("-dirty"):
        return "commit", "no", "the code was changed, so its results cannot be sent: `git stash` the changes"
    return "commit", "ok", commit


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(report_framework(sys.argv[1]))
    sys.exit(cli.run_script(main))
