"""The parent process: plans, starts children, and writes the row of a child that died."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import psutil
import pytest

import tflops_sweep
from bench import frameworks, launch
from bench.frameworks import Device
from bench.host import environment
from bench.host.environment import describe_host
from bench.launch import Launcher
from bench.records import report, results
from bench.settings import SettingError, list_runs, read_settings
from image_benchmark import image_workload
from llm_benchmark import llm_workload
from mlp_benchmark import mlp_workload
from transformer_benchmark import transformer_workload

WORKLOADS = {"image": image_workload, "mlp": mlp_workload, "transformer": transformer_workload, "llm": llm_workload}
# A child in place of a benchmark: its MODEL says what becomes of it. The worker shares its process group.
STAND_IN = """
import json, os, signal, subprocess, sys, time
sys.path.insert(0, os.environ["BENCH_ROOT"])
from bench import processes
from bench.records import results
signal.signal(signal.SIGTERM, signal.default_int_handler)
processes.end_with_parent()
what, rank = os.environ["MODEL"], os.environ.get("RANK")
print("asked for", what, *(os.environ.get(name, "") for name in ("RUNS", "BENCH_REPEATED", "SCOPE")), flush=True)
if rank == "0":
    what = "slow"
while rank == "1" and not (os.path.exists(os.environ["PIDS"]) and os.path.getsize(os.environ["PIDS"])):
    time.sleep(0.01)  # rank 0 is at work when rank 1 fails
if what in ("slow", "stuck"):
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]).pid
    with open(os.environ["PIDS"], "a") as pids:
        print(os.getpid(), worker, file=pids)
if what == "ok":
    path = os.path.join(os.environ["RESULTS_DIR"], "m.csv")
    row = {"schema": "1", "run_id": os.environ["BENCH_RUN"], "status": "ok", "scope": "device", "unit": "images/s"}
    results.append(path, row | {"throughput": 5 + len(results.read(path)), "flags": "contended"})
if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
if what == "aborted": os.kill(os.getpid(), signal.SIGABRT)
if what == "interrupts": os.kill(os.getppid(), signal.SIGINT)
if what == "mistake": print("MODEL='mistake' is not known", file=sys.stderr)
if what in ("slow", "stuck", "interrupts"):
    try:
        time.sleep(100)
    except KeyboardInterrupt:
        sys.exit(130)
sys.exit({"fails": 1, "mistake": 2}.get(what, 0))
"""


@pytest.fixture
def run_all(monkeypatch, tmp_path, capfd):
    """Run a list of models with the stand-in; returns (status, stdout, stderr, rows)."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(launch, "check_all", lambda *entries: None)  # no framework has the stand-in's models
    monkeypatch.setenv("RESULTS_DIR", str(tmp_path))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("BENCH_ROOT", os.getcwd())

    def call(*models, **environ):
        for name, value in ({"MODEL": ",".join(models), "USE_GPU": "0", "MACHINE": "m"} | environ).items():
            monkeypatch.setenv(name, value)
        status = launch.run_all(Launcher("image", image_workload, [str(script)], describe_host("m")))
        out, err = capfd.readouterr()
        return status, out, err, results.read(tmp_path / "m.csv") if (tmp_path / "m.csv").exists() else []

    return call


def have_ended(pids, seconds=300):
    deadline = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def read_pids(tmp_path, count):
    """The process ids that stand-ins noted, once there are so many."""
    deadline = time.monotonic() + 300
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(pid) for pid in (tmp_path / "pids").read_text().split()]


def asked_for(out):
    return [line.split()[2:] for line in out.splitlines() if line.startswith("asked")]


def test_every_combination_runs_in_several_processes_if_it_works(run_all):
    status, out, _, rows = run_all("a", "ok", RUNS="2")
    assert status == 0
    assert asked_for(out) == [["a", "1"], ["ok", "1"], ["ok", "1", "1"]]  # the second one prints no details
    assert len({row["run_id"] for row in rows}) == 2
    assert out.count("added to ") == 1


def test_five_processes_give_one_result(run_all):
    _, out, _, rows = run_all("ok")
    assert len(rows) == len(asked_for(out)) == 5
    first, second = out.split("  device")[1].splitlines()[:2]
    assert first.split()[:5] == ["7", "images/s", "5", "to", "9"]
    assert "94 %" in first
    assert second.split() == [
        "5",
        "contended,",
        "6",
        "contended,",
        "7",
        "contended,",
        "8",
        "contended,",
        "9",
        "contended",
    ]
    assert out.count("contended: ") == 1


@pytest.mark.parametrize(
    ("environ", "count"), [({"SUSTAIN": "60"}, 1), ({"RUNS": "1"}, 1), ({"SUSTAIN": "60", "RUNS": "2"}, 2)]
)
def test_a_single_process_says_so(run_all, environ, count):
    _, out, _, _ = run_all("ok", **environ)
    assert (len(asked_for(out)), "one process only" in out) == (count, count == 1)


def test_after_a_slow_process_the_others_leave_the_pipeline_out(run_all, monkeypatch):
    monkeypatch.setattr(launch, "SCOPE_SECONDS", 0)
    assert asked_for(run_all("ok", RUNS="2")[1]) == [["ok", "1"], ["ok", "1", "1", "device"]]
    assert asked_for(run_all("ok", RUNS="2", SCOPE="input")[1]) == [["ok", "1", "input"], ["ok", "1", "1", "input"]]


def test_three_processes_are_enough_if_one_takes_over_a_minute(run_all, monkeypatch):
    monkeypatch.setattr(launch, "LONG_SECONDS", 0)
    assert len(asked_for(run_all("ok")[1])) == 3
    assert len(asked_for(run_all("ok", RUNS="4")[1])) == 4


@pytest.mark.parametrize(("model", "status"), [("killed", "out_of_memory"), ("aborted", "crashed")])
def test_a_child_that_is_killed_leaves_a_row_and_the_others_run(run_all, model, status):
    code, out, _, (row,) = run_all("a", model, "b")
    assert code == 0
    assert "asked for b" in out
    assert f"{status}: the process was ended by signal " in out
    assert (row["status"], row["model"], row["throughput"], row["machine"]) == (status, model, "", "m")
    assert (row["scope"], row["batch_size"]) == ("", "16")


def test_a_mistake_in_one_entry_ends_all(run_all):
    code, out, err, rows = run_all("mistake", "b")
    assert (code, rows) == (2, [])
    assert "MODEL='mistake'" in err
    assert "asked for b" not in out


@pytest.mark.parametrize(("models", "status"), [(("fails", "ok"), 0), (("killed",), 1)])
def test_the_exit_status_tells_whether_anything_was_measured(run_all, models, status):
    code, *_, rows = run_all(*models)
    assert code == status
    assert "fails" in models or [row["status"] for row in rows] == ["out_of_memory"]


def test_ctrl_c_reaches_the_child_and_starts_no_other(run_all, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_all("interrupts", "b")
    assert not (tmp_path / "m.csv").exists()


@pytest.mark.parametrize(
    ("script", "environ", "said"),
    [
        ("image", {"MODEL": "resnet18,resnet51"}, "MODEL='resnet51'.*resnet50"),
        ("mlp", {"MODEL": "mlp-8,mlp-9999x1", "DATA": "synthetic"}, "1000 layers"),
        ("transformer", {"MODEL": "distilbert,bert-huge"}, "MODEL='bert-huge'"),
        ("llm", {"DEPTH": "0,9000", "PHASE": "decode", "USE_GPU": "0"}, "DEPTH='9000'.*9128"),
        ("llm", {"MODEL": "smollm2-135m,gpt-5"}, "MODEL='gpt-5'"),
        ("mlp", {"EPOCHS": "1", "PHASE": "training,inference", "DATA": "synthetic"}, "EPOCHS='1'"),
    ],
)
def test_every_entry_is_checked_before_anything_is_measured(script, environ, said, monkeypatch):
    def ask(expression, *arguments):  # in this process, which has torch loaded
        try:
            return eval(expression, {"frameworks": frameworks, "sys": SimpleNamespace(argv=["", *arguments])})
        except SystemExit as error:
            raise SettingError(str(error)) from None

    monkeypatch.setattr(launch, "ask", ask)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=said):
        launch.check_all(script, list_runs(script), WORKLOADS[script])


def test_a_question_to_a_framework_is_a_process_of_its_own():
    found = launch.find_device(read_settings("mlp", {"USE_GPU": "0"}))
    assert (found.device, found.count) == ("cpu", 0)
    assert found.framework_version.startswith(metadata.version("torch"))
    assert launch.ask("print(frameworks.__name__, sys.argv[1:])", "torch") == "bench.frameworks ['torch']"
    with pytest.raises(SettingError, match=r"^a mistake$"):
        launch.ask("sys.exit('a warning\\na mistake')")
    with pytest.raises(SettingError, match=r"torch.* -9"):
        launch.ask("__import__('os').kill(__import__('os').getpid(), 9)", "torch")


def test_what_only_a_gpus_default_model_can_do_is_left_to_the_child(monkeypatch):
    monkeypatch.setenv("DEPTH", "9000")
    launch.check_all("llm", list_runs("llm"), WORKLOADS["llm"])
    monkeypatch.setenv("DEPTH", "131000")
    with pytest.raises(SettingError, match="DEPTH='131000'"):
        launch.check_all("llm", list_runs("llm"), WORKLOADS["llm"])


def test_all_is_the_number_of_gpus(monkeypatch):
    monkeypatch.setenv("NUM_DEVICES", "all")
    found = [Device("cuda", None, "2.9", 1, count=8), Device("cpu", None, "2.9", 1)]
    monkeypatch.setattr(launch, "find_device", lambda settings: found.pop(0))
    assert launch.count_all("mlp", {"MODEL": "mlp-8"}) == {"MODEL": "mlp-8", "NUM_DEVICES": "8"}
    with pytest.raises(SettingError, match="NUM_DEVICES='all'"):
        launch.count_all("mlp", {})


# Ends of several ranks, and of their parent: real processes.


def test_a_rank_that_is_killed_ends_the_others_with_one_row(run_all, tmp_path):
    code, _, _, (row,) = run_all("killed", NUM_DEVICES="2")
    assert (code, row["status"]) == (1, "failed")
    assert "a rank failed" in row["note"]
    assert have_ended(read_pids(tmp_path, 2))


@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_time_limit_ends_all_processes(run_all, monkeypatch, tmp_path, devices):
    def wait(child, timeout=None):  # the limit is reached once all ranks are at work
        if timeout == 1234:
            read_pids(tmp_path, 2 * int(devices))
            raise subprocess.TimeoutExpired(child.args, timeout)
        return wait_for(child, timeout)

    wait_for = subprocess.Popen.wait
    run_all("ok")
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    change = {"MODEL": "stuck", "NUM_DEVICES": devices, "BENCH_SEARCH": "s"}
    launcher = Launcher("image", image_workload, [str(tmp_path / "stand_in.py")], describe_host("m"))
    status, (row,) = launcher.launch(change, limit=1234, captures=True)
    assert (status, row["status"], row["search"]) == (-signal.SIGALRM, "crashed", "s")
    assert "time limit" in row["note"]
    assert have_ended(read_pids(tmp_path, 2 * int(devices)))


PARENT = """
import sys
from bench.launch import Launcher
from bench.host.environment import describe_host
from image_benchmark import image_workload
Launcher("image", image_workload, [sys.argv[1]], describe_host("m")).launch({"MODEL": "stuck"})
"""


@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_parent_that_is_killed_leaves_no_process(tmp_path, devices):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    environ = {"PIDS": str(tmp_path / "pids"), "NUM_DEVICES": devices, "RESULTS_DIR": str(tmp_path), "USE_GPU": "0"}
    command = [sys.executable, "-c", PARENT, str(tmp_path / "stand_in.py")]
    parent = subprocess.Popen(command, env=os.environ | environ | {"BENCH_ROOT": os.getcwd()})
    pids = read_pids(tmp_path, 2 * int(devices))
    parent.kill()
    parent.wait()
    assert have_ended(pids)


# BATCH_SIZE=auto, with trials from a table.


@pytest.fixture
def choose(monkeypatch):
    """Chooses a batch size; `rows` are {batch size: cells of its trial}, and a size without a row has run out."""

    def call(rows, device="cpu", free=10**12, **environ):
        tried = []

        def trial(launcher, change, limit, captures):
            assert change["SUSTAIN"] is None
            tried.append(int(change["BATCH_SIZE"]))
            row = {"status": "ok", "unit": "images/s", "device": device, "peak_memory_bytes": "0"}
            row |= {"step_seconds_median": "0.001"} | rows.get(tried[-1], {"status": "out_of_memory", "note": "full"})
            return 0, [row]

        for name, value in ({"BATCH_SIZE": "auto"} | environ).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(Launcher, "launch", trial)
        monkeypatch.setattr(launch.resources, "available_bytes", lambda: free)
        change = launch.choose_batch_size(Launcher("mlp", mlp_workload, [], describe_host("m")), {"MODEL": "mlp-8"})
        return change.get("BATCH_SIZE"), tried

    return call


def rates(*values):
    return {2**i: {"throughput": str(value)} for i, value in enumerate(values)}


SLOW = {1: {"throughput": "10"}, 2: {"throughput": "20", "step_seconds_median": "6"}, 4: {"throughput": "40"}}


@pytest.mark.parametrize(
    ("rows", "environ", "fastest", "tried"),
    [
        (rates(10, 20, 40, 30), {"SUSTAIN": "60"}, "4", [1, 2, 4, 8, 16]),
        (rates(), {}, "1", [1]),
        (rates(10), {"BATCH_SIZE": "8"}, None, []),
        (rates(10, 20, 20.1, 20.2, 100, 200), {}, "8", [1, 2, 4, 8]),  # doubling gains nothing
        (SLOW, {"MAX_SECONDS": "10"}, "2", [1, 2]),  # the next step would take too long
        (rates(*range(1, 20)), {"EPOCHS": "1"}, "32768", [2**i for i in range(16)]),  # CIFAR-10 has 50,000 images
    ],
)
def test_auto_takes_the_fastest_size_that_fits(choose, rows, environ, fastest, tried):
    assert choose(rows, **environ) == (fastest, tried)


@pytest.mark.parametrize(
    ("device", "own", "sizes"), [("cpu", False, [1]), ("cuda", True, [1, 2, 4]), ("cuda", False, [1])]
)
def test_auto_ends_before_the_systems_memory_is_used_up(choose, monkeypatch, device, own, sizes):
    monkeypatch.setattr(launch, "find_device", lambda settings: Device(device, None, "2.9", 1, has_own_memory=own))
    used = {size: {"throughput": str(size), "peak_memory_bytes": "600"} for size in (1, 2)}
    assert choose(used, device=device, free=1000)[1] == sizes


# The row of a child that died.


def death(script, describe_workload, **environ):
    return launch.describe_death(read_settings(script, environ), describe_host("m"), describe_workload, -9)


def test_a_killed_sweep_is_a_row_that_names_no_size():
    row = death("tflops", tflops_sweep.first_size)
    assert (row["status"], row["workload"]) == ("out_of_memory", "matmul")
    assert row["precision"] is row["matrix_size"] is None
    assert "SIZES" in row["note"]
    assert "out_of_memory" in report.describe_result(row)
    assert report.describe_task(row).startswith("matmul, torch")


@pytest.mark.parametrize(("card", "batch_size"), [(environment.Card("NVIDIA H200", "GPU-1"), 64), (None, 16)])
def test_a_killed_run_names_the_batch_size_of_its_device(monkeypatch, card, batch_size):
    monkeypatch.setattr(environment, "find_card", lambda: card)  # None: there is a driver, and all cards are hidden
    host = replace(describe_host("m"), driver="580.1", gpu_cores=None)
    row = launch.describe_death(read_settings("image", {}), host, image_workload, -6)
    assert (row["batch_size"], row["status"]) == (batch_size, "crashed")
