"""What people type, typed: make and the scripts as processes."""

import os
import signal
import subprocess
import sys

import psutil

from bench.records import results

SMALL = {"MODEL": "squeezenet1_1", "BATCH_SIZE": "1", "MAX_SECONDS": "0.3", "MACHINE": "here", "SCOPE": "device"}
SMALL |= {"USE_GPU": "0", "RUNS": "1"}


def call(*command, **environ):
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environ)
    return done.returncode, done.stdout, done.stderr


def test_make_image_measures(tmp_path):
    status, out, err = call("make", "image", f"PYTHON={sys.executable}", **SMALL)
    assert (status, "images/s" in out) == (0, True), err
    (row,) = results.read(tmp_path / "results" / "here.csv")
    assert (row["status"], row["model"], row["batch_size"]) == ("ok", "squeezenet1_1", "1")


def test_a_mistake_is_one_line():
    status, out, err = call("make", "image", f"PYTHON={sys.executable}", "BATCHSIZE=64", USE_GPU="0")
    said = [line for line in err.splitlines() if "BATCHSIZE" in line]
    assert (status, out, len(said), "Traceback" in err) == (2, "", 1, False)
    _, out, _ = call("make", "-n", "doctor", "PYTHON=chosen")
    assert out.index("chosen") < out.index(".venv")


def test_ctrl_c_ends_a_real_run_with_its_workers_and_files(tmp_path):
    environ = os.environ | SMALL | {"MAX_SECONDS": "60", "SCOPE": "input", "NUM_WORKERS": "1", "TMPDIR": str(tmp_path)}
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
    while len(children := psutil.Process(program.pid).children(recursive=True)) < 2:  # the child and its worker
        assert program.poll() is None
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=300)
    assert (program.returncode, "Traceback" in err) == (130, False)
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert not list(tmp_path.glob("jpegs-*"))
