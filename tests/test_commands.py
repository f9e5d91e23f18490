"""What people type, typed: make and the scripts as processes."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from bench.records import results

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
    rows = results.read(tmp_path / "results" / "here.csv")
    assert [row["scope"] for row in rows] == ["device", "input"]
    assert {(row["status"], row["model"], row["batch_size"]) for row in rows} == {("ok", "squeezenet1_1", "1")}


def test_the_doctor_prefers_the_python_that_was_chosen():
    _, out, _ = call("make", "-n", "doctor", "PYTHON=chosen")
    assert out.index("chosen") < out.index(".venv")


@pytest.mark.parametrize("name", ["iamge", "tests"])  # the second one is a folder
def test_what_is_not_a_command_is_a_line_that_names_make_help(name):
    status, out, err = call("make", name)
    assert (status, out, len(err.splitlines()), f"{name} is not" in err, "make help" in err) == (2, "", 1, True, True)


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
    while "then measuring" not in (line := program.stderr.readline()):
        assert line, "the program ended before it measured"
    while not has_worker(children := psutil.Process(program.pid).children(recursive=True)):
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=300)
    assert (program.returncode, "Traceback" in err) == (130, False)
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert not list(tmp_path.glob("jpegs-*"))
