"""What people type, typed: make and the scripts as processes."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.rows import read_rows

SMALL = {"MODEL": "squeezenet1_1", "BATCH_SIZE": "1", "MAX_SECONDS": "0.3", "MACHINE": "here", "SCOPE": "device"}
SMALL |= {"USE_GPU": "0", "RUNS": "1"}
MAC, NEW_PYTHON = {"LIKE_A_MAC": "1"}, {"START_METHOD": "forkserver"}  # of tests/processes/sitecustomize.py


def call(*command, **environ):
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ)
    return done.returncode, done.stdout, done.stderr


def test_make_image_measures(tmp_path):
    environ = SMALL | MAC | {"SCOPE": "device,input", "NUM_WORKERS": "1"}
    status, out, err = call("make", "image", f"PYTHON={sys.executable}", **environ)
    assert (status, "images/s" in out) == (0, True), err
    rows = read_rows(tmp_path / "results" / "here.csv")
    assert [row["scope"] for row in rows] == ["device", "input"]
    assert {(row["status"], row["model"], row["batch_size"]) for row in rows} == {("ok", "squeezenet1_1", "1")}


@pytest.mark.parametrize("command", ["compare_results.py >&-", "-m bench.doctor"])
def test_an_output_that_is_closed_or_whose_reader_has_gone_is_no_error(tmp_path, command):
    """As in `make doctor | head -3`. Of what measures, tests/test_loss.py has the same."""
    reader, writer = os.pipe()
    os.close(reader)
    shell = ["sh", "-c", f"{sys.executable} {command}"]
    done = subprocess.run(shell, stdout=writer, stderr=subprocess.PIPE, env=os.environ | {"RESULTS_DIR": str(tmp_path)})
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


MAKES = [name for name in ("make", os.environ.get("OLD_MAKE")) if name]  # OLD_MAKE: GNU make 3.81, as on a Mac


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize(
    ("goals", "wrong"),
    [
        ("iamge", "iamge"),
        ("tests", "tests"),  # a folder
        ("image MODEL=resnet50 resnet18", "resnet18"),
        ("compare nvidia-h200 amd-epyc-25-17-2-cores", "nvidia-h200"),
    ],
)
def test_what_is_not_a_command_is_refused_before_anything_runs(make, goals, wrong):
    status, out, err = call(make, *goals.split())
    assert (status, out, len(err.splitlines()), f"{wrong} is not" in err, "make help" in err) == (2, "", 1, True, True)
    assert ("did you mean" in err) == (wrong in ("iamge", "tests"))


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("python", ["python3 -u", ".venv", r"C:\new\python", "a';touch made;'", '"$(touch made)"'])
def test_a_python_that_is_none_is_one_line_with_its_name(make, tmp_path, python):
    status, out, err = call(make, "compare", PYTHON=python, MADE=str(tmp_path))
    assert (status, out, f"PYTHON='{python}'" in err.splitlines()[0]) == (2, "", True)
    assert not os.path.exists("made")


def test_a_script_takes_no_arguments():
    status, out, err = call(sys.executable, "mlp_benchmark.py", "--model", "mlp-64")
    assert (status, out, "--model mlp-64" in err, "MODEL=" in err) == (2, "", True, True)
    assert call(sys.executable, "submit_results.py", "sumbit")[0] == 2


@pytest.mark.parametrize("script", sorted(map(str, Path().glob("*.py"))))
def test_a_python_without_packages_is_one_line(script):
    status, out, err = call(sys.executable, "-S", script)  # as a system's Python, without site-packages
    assert (status, out, len(err.splitlines()), "make image" in err) == (2, "", 1, True), err
    assert "make image" not in call(sys.executable, "-S", script, PYTHON=sys.executable)[2]


def test_what_belongs_to_another_user_is_one_line_with_its_name():
    status, out, _ = call(sys.executable, "-m", "bench.doctor", PYTHON="/")  # which cannot be run
    assert (status, out.count("/: Permission denied"), out.count("git clone")) == (1, 4, 4)
    program = "from bench import process; process.run_script(lambda: open('/proc/x', 'w'))"
    assert re.fullmatch("/proc/x: .*RESULTS_DIR\n", call(sys.executable, "-c", program)[2])
    status, out, _ = call("make", "install", PYTHON=sys.executable)  # which is the user's own
    assert (status, "nothing" in out, "torch" in out) == (0, True, False)


def has_worker(processes):
    """Whether these are a child and its worker, without the resource tracker and a Mac's caffeinate."""
    with suppress(psutil.Error):  # one that has just ended
        commands = [" ".join(each.cmdline()) for each in processes]
        return len([each for each in commands if not re.search("resource_tracker|caffeinate", each)]) >= 2


@pytest.mark.parametrize("others", [{}, MAC, NEW_PYTHON])
def test_ctrl_c_ends_a_real_run_with_its_workers(tmp_path, others):
    environ = os.environ | SMALL | others
    environ |= {"MAX_SECONDS": "60", "SCOPE": "input", "NUM_WORKERS": "1", "TMPDIR": str(tmp_path)}
    program = subprocess.Popen(
        [sys.executable, "image_benchmark.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        # A shell starts what it puts into the background deaf to Ctrl-C, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not has_worker(children := psutil.Process(program.pid).children(recursive=True)):
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=300)
    assert (program.returncode, "Traceback" in err) == (130, False)
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert not list(tmp_path.glob("bench-*"))
