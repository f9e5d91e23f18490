"""The parent process: plans, starts children, combines and stores what they measured, and tells how a child died."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from bench import launch
from bench.frameworks import Device
from bench.host.environment import describe_host
from bench.launch import Launcher
from bench.records import report, results
from bench.settings import SettingError, list_runs, read_settings
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload

# A child in place of a benchmark: its MODEL says what becomes of it. The worker shares its process group.
STAND_IN = """
import json, os, signal, subprocess, sys, time
sys.path.insert(0, os.environ["BENCH_ROOT"])
from bench import processes
signal.signal(signal.SIGTERM, signal.default_int_handler)
processes.end_with_parent()
task, what, rank = json.loads(os.environ["BENCH_TASK"]), os.environ["MODEL"], os.environ.get("RANK")
with open(os.environ["LOG"], "a") as log:
    log.write(json.dumps([what, task["is_first"], os.environ.get("SCOPE", ""), "LOGLEVEL" in os.environ]) + "\\n")
number = len(open(os.environ["LOG"]).readlines())
def emit(**line):
    row = {"device": "cpu", "device_name": None, "framework": "torch", "framework_version": "1", "workload": "image",
           "model": what, "phase": "inference", "scope": "device", "unit": "images/s", "status": "ok", "flags": "",
           "note": "", "windows": 9, "first_step_seconds": 1.0, "world_size": 1, "precision": "float32"}
    if rank in (None, "0"):
        print(json.dumps(row | line), file=open(task["lines"], "a"), flush=True)
if what == "broken": os.kill(os.getpid(), signal.SIGILL)
if what != "mistake": emit(status="begun")
if rank == "1": what = {"rank fails": "killed", "stuck": "stuck"}[what]
elif rank == "0": what = "stuck"
if what == "stuck":
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid
    with open(os.environ["PIDS"], "a") as pids:
        print(os.getpid(), worker, file=pids)
while rank == "1" and what == "killed" and not os.path.exists(os.environ["PIDS"]): time.sleep(0.01)
if what == "ok": emit(throughput=4.0 + number, throughput_low=3.5 + number, throughput_high=4.5 + number)
if what == "third is interrupted":
    if number == 3: os.kill(os.getppid(), signal.SIGINT); time.sleep(100)
    emit(throughput=4.0 + number, throughput_low=None, throughput_high=None)
if what == "interrupts":
    emit(throughput=5.0, throughput_low=4.0, throughput_high=6.0, status="interrupted")
    os.kill(os.getppid(), signal.SIGINT); time.sleep(100)
if what == "fails": emit(status="unsupported", note="not here"); sys.exit(1)
if what == "mistake":
    print(json.dumps({"mistake": "MODEL='mistake' is not known"}), file=open(task["lines"], "a"))
    sys.exit(2)
if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
if what == "aborted": os.kill(os.getpid(), signal.SIGABRT)
if what == "stuck": time.sleep(100)
"""


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Return a Launcher of the stand-in, whose children note what they were asked for in tmp_path/log."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    values = {"RESULTS_DIR": tmp_path, "PIDS": tmp_path / "pids", "LOG": tmp_path / "log", "BENCH_ROOT": os.getcwd()}
    for name, value in (values | {"USE_GPU": "0"}).items():
        monkeypatch.setenv(name, str(value))
    return Launcher("image", image_workload, [str(script)], describe_host("m"))


@pytest.fixture
def run_all(stand_in, monkeypatch, tmp_path, capfd):
    """Run a list of models with the stand-in; returns (status, stdout, what children were asked for, stored rows)."""

    def call(*models, **environ):
        for name, value in ({"MODEL": ",".join(models)} | environ).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "log").unlink(missing_ok=True)
        status = launch.run_all(stand_in, report.describe)
        asked = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        return status, capfd.readouterr().out, asked, results.read(tmp_path / "m.csv")

    return call


def have_ended(pids, seconds=300):
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def read_pids(tmp_path, count):
    """Return the process ids that stand-ins noted, once there are `count` of them."""
    deadline = time.monotonic() + 300
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


def test_five_processes_give_one_row(run_all):
    status, out, asked, (row,) = run_all("ok")
    assert status == 0
    # Only the first one compares with the CPU and measures the pipeline.
    assert asked == [["ok", True, "", False], *[["ok", False, "device", False]] * 4]
    assert [row[name] for name in ("throughput", "throughput_low", "throughput_high")] == ["7", "4.5", "9.5"]
    assert row["process_rates"] == "5 6 7 8 9"
    assert (row["machine"], row["device_name"], row["schema"]) == ("m", row["cpu_name"], "2")
    assert "range of 5 processes" in out
    assert out.count("added to ") == 1
    assert [scope for *_, scope, _ in run_all("ok", RUNS="2", SCOPE="input")[2]] == ["input", "input"]


def test_a_combination_that_fails_runs_once_and_the_others_run(run_all):
    assert len(run_all("ok", SUSTAIN="60")[2]) == 1  # long enough for one process; below there are two
    status, out, asked, rows = run_all("fails", "ok", RUNS="2")
    assert status == 0
    assert [what for what, *_ in asked] == ["fails", "ok", "ok"]
    assert [(row["model"], row["status"]) for row in rows[1:]] == [("fails", "unsupported"), ("ok", "ok")]
    assert "unsupported: not here" in out
    assert run_all("fails")[0] == 1


@pytest.mark.parametrize(("model", "status"), [("killed", "out_of_memory"), ("aborted", "crashed")])
def test_a_child_that_is_killed_leaves_a_row_and_the_others_run(run_all, model, status):
    code, out, _, (dead, _) = run_all(model, "ok", RUNS="1")
    assert code == 0
    assert f"{status}: it was ended by signal " in out
    assert (dead["status"], dead["model"], dead["throughput"], dead["scope"]) == (status, model, "", "device")


@pytest.mark.parametrize("model", ["mistake", "broken"])
def test_a_mistake_or_a_crash_before_any_work_ends_all(run_all, tmp_path, model):
    with pytest.raises(SettingError, match="MODEL='mistake'" if model == "mistake" else "signal 4"):
        run_all(model, "ok")
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_ctrl_c_stores_what_was_complete(run_all):
    status, _, asked, (row,) = run_all("third is interrupted", "ok")
    assert (status, len(asked)) == (130, 3)  # no other combination is started
    assert (row["status"], row["process_rates"]) == ("ok", "5 6")
    status, _, _, rows = run_all("interrupts")
    assert (status, rows[-1]["status"], rows[-1]["throughput"]) == (130, "interrupted", "5")


def test_two_devices_run_under_torchrun_and_a_rank_that_fails_is_one_row(stand_in, tmp_path):
    (row,) = stand_in.run_child({"MODEL": "rank fails", "NUM_DEVICES": "2"})
    assert (row["status"], row["note"]) == ("crashed", "a rank failed, see above")
    assert have_ended(read_pids(tmp_path, 2))
    assert all(json.loads(line)[-1] for line in (tmp_path / "log").read_text().splitlines())


def test_a_time_limit_ends_all_processes(stand_in, tmp_path):
    (row,) = stand_in.run_child({"MODEL": "stuck"}, limit=3)  # by then the child has noted its process ids
    assert row["status"] == "crashed"
    assert "time limit" in row["note"]
    assert have_ended(read_pids(tmp_path, 2))


PARENT = """
import sys
from bench.launch import Launcher
from bench.host.environment import describe_host
from image_benchmark import image_workload
Launcher("image", image_workload, [sys.argv[1]], describe_host("m")).run_child({"MODEL": "stuck"})
"""


def test_a_parent_that_is_killed_leaves_no_process(stand_in, tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *stand_in.command], env=os.environ | {"NUM_DEVICES": "2"})
    pids = read_pids(tmp_path, 4)
    parent.kill()
    parent.wait()
    assert have_ended(pids)


# Before anything runs


@pytest.mark.parametrize(
    ("script", "workload", "environ", "said"),
    [
        ("mlp", mlp_workload, {"MODEL": "mlp-8,mlp-9999x1", "DATA": "synthetic"}, "MODEL=.mlp-9999x1"),
        ("llm", llm_workload, {"DEPTH": "0,9000", "PHASE": "decode"}, "DEPTH='9000'.*9128"),
    ],
)
def test_every_entry_of_a_list_is_checked(script, workload, environ, said, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    launcher = Launcher(script, workload, [], describe_host("m"))
    with pytest.raises(SettingError, match=said):
        [launch.plan_run(launcher, change) for change in list_runs(script)]


def test_a_framework_is_asked_for_its_device_in_a_process_of_its_own():
    found = launch.find_device(read_settings("mlp", {"USE_GPU": "0"}))
    assert (found.device, found.count) == ("cpu", 0)


def test_all_is_the_number_of_gpus(monkeypatch):
    monkeypatch.setenv("NUM_DEVICES", "all")
    launcher = Launcher("image", image_workload, [], describe_host("m"))
    found = [Device("cuda", None, "2.9", 1, count=8), Device("cpu", None, "2.9", 1)]
    monkeypatch.setattr(launch, "find_device", lambda settings: found.pop(0))
    assert launch.plan_run(launcher, {}) == {"NUM_DEVICES": "8"}
    with pytest.raises(SettingError, match="NUM_DEVICES='all'"):
        launch.plan_run(launcher, {})


# BATCH_SIZE=auto, with trials from a table.


@pytest.fixture
def choose(monkeypatch):
    """Choose a batch size; `rows` are {batch size: cells of its trial}, and a size without a row has run out."""

    def call(rows, device="cpu", **environ):
        tried = []

        def trial(launcher, change, brief):
            assert brief
            assert change["SUSTAIN"] is None
            tried.append(int(change["BATCH_SIZE"]))
            row = {"status": "ok", "unit": "images/s", "scope": "device", "phase": "training", "device": device}
            row |= {"step_seconds_median": 0.001, "note": ""}
            return [row | rows.get(tried[-1], {"status": "out_of_memory", "note": "full"})]

        for name, value in ({"BATCH_SIZE": "auto"} | environ).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(Launcher, "run_child", trial)
        monkeypatch.setattr(launch.resources, "available_bytes", lambda: 1000)
        change = launch.choose_batch_size(Launcher("mlp", mlp_workload, [], describe_host("m")), {"MODEL": "mlp-8"})
        return change.get("BATCH_SIZE"), tried

    return call


def rates(*values, **cells):
    return {2**i: {"throughput": float(value)} | cells for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("rows", "environ", "fastest", "tried"),
    [
        (rates(10, 20, 40, 30), {"SUSTAIN": "60"}, "4", [1, 2, 4, 8, 16]),
        (rates(), {}, "1", [1]),
        (rates(10), {"BATCH_SIZE": "8"}, None, []),
        (rates(10, 20, 20.1, 20.2, 100, 200), {}, "8", [1, 2, 4, 8]),  # doubling gains nothing
        (rates(10, 20, step_seconds_median=6.0), {"MAX_SECONDS": "10"}, "1", [1]),  # the next step takes too long
        (rates(10, 20, peak_memory_bytes=600), {}, "1", [1]),  # of 1000 bytes of the system's memory
        (rates(10, 20, peak_memory_bytes=600), {"device": "cuda"}, "2", [1, 2, 4]),
    ],
)
def test_auto_takes_the_fastest_size_that_fits(choose, rows, environ, fastest, tried):
    assert choose(rows, **environ) == (fastest, tried)
