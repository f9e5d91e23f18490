"""Report what can run on this machine and what cannot, each problem with its fix.

    make doctor

Works before anything is installed. Each framework is tried in a process of its own, because a broken one may crash.
"""

import os
import platform
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

from bench import explain_import, process
from bench.host import environment
from bench.packages import venv_of
from bench.settings import FRAMEWORKS, ROOT, SettingError, read_settings


def examine(frameworks=tuple(FRAMEWORKS)):
    """Print what is known about this machine, then try frameworks; return the exit status, 1 if none can run."""
    memory, disk = (count / environment.GIB for count in (environment.INSTALLED_BYTES, shutil.disk_usage(ROOT).free))
    words = [f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, {disk:.0f} GiB of disk free"]
    cpu = environment.read_text("/proc/cpuinfo")
    if "flags\t" in cpu and "avx2" not in cpu:  # ARM's are called features
        words.append("this CPU, or its virtual machine, has no AVX2: several times slower")
    if environment.find_low_power_mode():
        words.append("the CPU's clock is capped: raise scaling_max_freq, allow turbo, or leave the power saver")
    show("machine", "--" if words[1:] else "ok", "; ".join(words))
    commit = environment.find_commit()
    show("commit", "ok" if commit else "no", commit or environment.GIT_FAILS)
    return 0 if sum(map(try_framework, frameworks)) else 1


def show(subject, state, words):
    """Print a line; its state is "ok", "no" (something cannot run or be trusted) or "--" (something is missing)."""
    print(f"{subject:<12} {state:<3} {words}", flush=True)


def try_framework(name):
    """Print the lines of a framework's own process, or why it has none; return whether the framework can run."""
    interpreter = os.environ.get("PYTHON") or str(venv_of(name) / "bin" / "python")
    print(f"trying {name}, which may take minutes the first time ...", file=sys.stderr, flush=True)
    command = [interpreter, "-m", "bench.doctor", name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        show(name, "--", f"not installed: `make install FRAMEWORK={name}` installs it")
        return False
    except OSError as error:
        show(name, "no", f"{interpreter}: {error.strerror}: if it is another user's, use a `git clone` of your own")
        return False
    if done.stdout and done.returncode >= 0:
        print(done.stdout, end="", flush=True)
        return done.returncode == 0
    problem = (done.stderr.strip() or "it ended without a message").splitlines()[-1]
    if done.returncode < 0:
        cause = process.CAUSES.get(done.returncode, "")
        problem = f"ended by signal {-done.returncode} ({signal.strsignal(-done.returncode)}){cause}"
    show(name, "no", f"{problem}: `make clean && make install FRAMEWORK={name}`")
    return False


def report_framework(name):
    """Open a framework's device as a run does and print what it reports; return the exit status, 1 if it cannot run."""
    try:
        from bench import frameworks
        from bench.workloads.operators import matmul

        given = {"FRAMEWORK": name, "USE_GPU": os.environ.get("USE_GPU", "1")}  # other settings may not fit
        settings = replace(read_settings("tflops", given), precision="float32")
        framework = frameworks.load(name)
        device = framework.find_device(settings)
        session = framework.open_session(matmul((256, 256, 256)), settings, "device")
        session.step()
        session.after_first_step()
        session.check_last_output()  # compares with float64
    except Exception as error:
        show(name, "no", str(error) if isinstance(error, SettingError) else explain_import(error))
        return 1
    place = f"{device.device_name or ('the CPU' if device.type == 'cpu' else 'the GPU')} ({device.type})"
    works = f"{device.framework_version}, Python {platform.python_version()}, on {place}, matmul correct"
    missing = environment.explain_missing_gpu(name) if device.type == "cpu" and settings.use_gpu is not False else ""
    compiler = environment.explain_missing_compiler() if name == "torch" else ""
    show(name, "--" if missing else "ok", "; ".join(filter(None, [works, missing, device.note, compiler])))
    return 0


if __name__ == "__main__":
    sys.exit(report_framework(sys.argv[1]) if sys.argv[1:] else process.run_script(examine))
