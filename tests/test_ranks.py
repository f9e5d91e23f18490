"""Several ranks: they decide alike, and the end of one ends the others with one row that names it."""

import math
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from bench import combinations
from bench.machine import meters, ranks
from bench.machine.environment import describe_host
from bench.main import as_rank
from bench.rows import columns, report, results
from bench.rows.verdict import bus_bandwidth
from bench.settings import SettingError, read_settings
from bench.timing.measure import Job, Limits, measure
from mlp_benchmark import mlp_workload
from tests.fakes import Clock, Device

TORCHRUN = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
}
SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.3", "MACHINE": "m", "USE_GPU": "0"}


def test_torchrun_says_which_rank_this_is():
    me = ranks.read_ranks(TORCHRUN)
    assert (me.rank, me.world_size, me.local_rank, me.nodes, me.are_many) == (3, 4, 1, 2, True)
    assert (me.share(7), me.share(1)) == (3, 1)
    without = {name: value for name, value in TORCHRUN.items() if name != "GROUP_WORLD_SIZE"}
    assert ranks.read_ranks(without).nodes == 2
    assert not ranks.read_ranks({"WORLD_SIZE": "4"}).are_many  # another program's variable


def test_half_of_torchruns_variables_are_a_mistake():
    with pytest.raises(SettingError, match="LOCAL_RANK='' must be a whole number"):
        ranks.read_ranks({name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"NUM_DEVICES": "2", "FRAMEWORK": "tensorflow"}, "NUM_DEVICES='2': TensorFlow runs on one device here"),
        ({"NUM_DEVICES": "all", "FRAMEWORK": "tf"}, "NUM_DEVICES='all': TensorFlow runs on one device here"),
        ({"NUM_DEVICES": "2", "BATCH_SIZE": "auto"}, "BATCH_SIZE='auto' is found on one device"),
        ({"NUM_DEVICES": "2", "EPOCHS": "1"}, "EPOCHS='1' trains on one device"),
        ({"NUM_DEVICES": "0"}, "NUM_DEVICES='0' must be a whole number from 1 to 1000000000, or all"),
    ],
)
def test_what_several_devices_cannot_do_is_one_line(environ, said):
    with pytest.raises(SettingError, match=said):
        read_settings("mlp", environ)


def test_a_rank_of_torchrun_runs_one_combination_that_agrees_with_it(monkeypatch):
    settings, me = read_settings("mlp", {}), ranks.read_ranks(TORCHRUN)
    assert as_rank(settings, me, 1).num_devices == 4
    with pytest.raises(SettingError, match="runs one combination of settings, and 4 are asked for: name one value"):
        as_rank(settings, me, 4)
    with pytest.raises(SettingError, match="WORLD_SIZE='4': TensorFlow runs on one device here"):
        as_rank(read_settings("mlp", {"FRAMEWORK": "tf"}), me, 1)
    monkeypatch.setenv("NUM_DEVICES", "2")
    with pytest.raises(SettingError, match="NUM_DEVICES='2' and torchrun's 4 must agree"):
        as_rank(read_settings("mlp"), me, 1)


def test_each_rank_gets_its_share_of_the_cores(monkeypatch):
    """torchrun sets OMP_NUM_THREADS=1, which would make the rate on one device look better beside it."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    as_rank(read_settings("mlp", {}), ranks.read_ranks(TORCHRUN), 1)
    assert "OMP_NUM_THREADS" not in os.environ


class Threads:
    """Ranks as threads, which meet as processes do."""

    def __init__(self, size):
        self.meeting, self.value = threading.Barrier(size, timeout=20), None

    def share(self, rank, value):
        """Rank 0's value."""
        if rank == 0:
            self.value = value
        self.meeting.wait()
        value = self.value
        self.meeting.wait()
        return value


class SharedDevice(Device):
    """A rank's device; its barrier lasts until the slowest one is ready, its probe is rank 0's."""

    def __init__(self, threads, rank, work):
        super().__init__(Clock(), lambda i: work)
        self.threads, self.rank, self.ready = threads, rank, 0.0

    def read_clock(self):
        self.clock.now = self.threads.share(self.rank, self.clock.now)
        return self.clock.now

    def synchronize(self):
        super().synchronize()
        for rank in range(2):
            self.ready = max(self.ready, self.threads.share((self.rank - rank) % 2, self.clock.now))
        self.clock.now = self.ready

    def read(self):
        return self.threads.share(self.rank, super().read())


def test_ranks_of_unlike_speed_take_the_same_steps_at_the_pace_of_the_slowest():
    threads, found = Threads(2), {}
    devices = [SharedDevice(threads, rank, work) for rank, work in enumerate((0.010, 0.025))]

    def run(device):
        found[device.rank] = measure(Job(device, 2 * 8, Limits(max_seconds=2), device.read_clock))

    others = [threading.Thread(target=run, args=(device,)) for device in devices]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert devices[0].steps == devices[1].steps
    assert found[0] == found[1]
    assert found[0].throughput == pytest.approx(16 / 0.025, rel=0.02)


class TwoCounters(ranks.Group):
    """A group whose other rank has counted 5 J, or does not know."""

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, (True, "x") if isinstance(value, tuple) else self.other]


class Counter:
    power_scope = "gpu board"

    def joules(self):
        return 7.0


def test_energy_is_the_sum_of_all_devices_and_blank_where_one_is_unknown():
    own = meters.Instruments(Counter())
    assert own.of_all(TwoCounters(5.0), "cuda", "x").joules() == 12
    assert math.isnan(own.of_all(TwoCounters(math.nan), "cuda", "x").joules())
    assert meters.Instruments().of_all(TwoCounters(5.0), "cuda", "x").counter is None


def test_unlike_ranks_are_flagged():
    flags = lambda likeness: [  # noqa: E731
        watch.flag for watch in meters.Instruments().of_all(TwoCounters(0), "cpu", likeness).watches()
    ]
    assert "unlike_ranks" in flags("y")
    assert "unlike_ranks" not in flags("x")


def test_other_ranks_are_no_other_programs():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while sum(psutil.Process(busy.pid).cpu_times()[:2]) < 0.3:
            time.sleep(0.05)
        alone = sum(meters.own_cpu_seconds())
        assert sum(meters.own_cpu_seconds(busy.pid)) >= alone + 0.3
    finally:
        busy.kill()
        busy.wait()


def scaled(world_size, throughput, **changes):
    row = {"status": "ok", "workload": "mlp", "model": "mlp-8", "phase": "training", "scope": "device"}
    row |= {"world_size": world_size, "nodes": "", "unit": "images/s", "throughput": str(throughput)}
    row |= {"throughput_low": str(throughput * 0.9), "throughput_high": str(throughput * 1.1)}
    return dict.fromkeys(columns.WORK, "") | row | changes


def test_the_table_of_a_list_shows_the_efficiency_with_its_interval():
    rows = [scaled("1", 100), scaled("2", 160), scaled("2", 170), scaled("2", 180), scaled("2", 9, phase="forward")]
    title, one, two = report.describe_scaling(rows).splitlines()
    assert title == "scaling: mlp-8, training"
    assert " ".join(one.split()) == "1 device 100 images/s 100 a device efficiency 1.000"
    assert " ".join(two.split()) == "2 devices 170 images/s 85 a device efficiency 0.850 (0.655 to 1.100)"
    assert report.describe_scaling(rows[:1]) == ""


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert [bus_bandwidth(10, n) for n in (2, 4, 8)] == [10, 15, 17.5]


# Ranks that are no benchmarks: rank 1 does what FAULT says, rank 0 waits, and has a worker.
STAND_IN = """
import os, signal, subprocess, sys, time
if os.environ["RANK"] == "0":
    print("worker", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
    if os.environ["FAULT"] == "lost": sys.exit(4)
    if os.environ["FAULT"]: time.sleep(600)
elif os.environ["FAULT"] == "killed":
    time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)
elif os.environ["FAULT"] == "lost":
    os.kill(os.getpid(), signal.SIGKILL)
elif os.environ["FAULT"] == "reported":
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("fault", "status", "notes"),
    [
        ("", 0, []),
        ("reported", 1, []),
        (
            "killed",
            1,
            ["rank 1 of 2 was ended by signal 9, most likely for lack of memory: choose a smaller BATCH_SIZE"],
        ),
        ("lost", 1, ["rank 1 of 2 was ended by signal 9, most likely for lack of memory: choose a smaller BATCH_SIZE"]),
    ],
)
def test_a_rank_that_ends_ends_the_others_with_one_row(monkeypatch, tmp_path, capsys, fault, status, notes):
    script, path = tmp_path / "stand_in.py", tmp_path / "m.csv"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sys, "argv", [str(script)])
    for name, value in (SMALL | {"NUM_DEVICES": "2", "FAULT": fault}).items():
        monkeypatch.setenv(name, value)
    assert combinations.run_all("mlp", [{}], 1, describe_host("m"), path, mlp_workload) == status
    rows = results.read(path) if path.exists() else []
    assert [(row["note"], row["world_size"]) for row in rows] == [(note, "2") for note in notes]
    worker = int(capsys.readouterr().out.split()[1])
    if fault:
        assert has_ended(worker)
    else:
        os.kill(worker, signal.SIGKILL)  # of a rank that ended well: nobody's to end


def has_ended(pid):
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_all_is_the_number_of_gpus(monkeypatch):
    monkeypatch.setenv("NUM_DEVICES", "all")
    monkeypatch.setattr(combinations, "ask", lambda *question: "8")
    assert combinations.count_all("mlp", {"MODEL": "mlp-8"}) == {"MODEL": "mlp-8", "NUM_DEVICES": "8"}
    monkeypatch.setattr(combinations, "ask", lambda *question: "0")
    with pytest.raises(SettingError, match="there is none to use: name a number of CPU processes"):
        combinations.count_all("mlp", {})


# Real ranks, by gloo.


def start(tmp_path, *command, **environ):
    environ = os.environ | SMALL | {"RESULTS_DIR": str(tmp_path)} | environ
    return subprocess.Popen(
        [sys.executable, *command], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def rows_of(tmp_path):
    return results.read(tmp_path / "m.csv")


def test_two_ranks_train_together(tmp_path):
    run = start(tmp_path, "mlp_benchmark.py", NUM_DEVICES="2")
    out, _ = run.communicate(timeout=200)
    assert run.returncode == 0, out
    rows = rows_of(tmp_path)
    assert [row["phase"] for row in rows] == ["training", "forward", "backward", "optimizer"]
    assert {(row["world_size"], row["nodes"], row["status"], row["batch_size"]) for row in rows} == {
        ("2", "1", "ok", "32")
    }
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert "mlp-16, training, float32, batch 32, synthetic images, sgd, 2 devices" in out
    assert out.count("training, device: building") == 1  # rank 0 alone speaks


def test_ranks_with_unequal_weights_are_refused(tmp_path):
    run = start(tmp_path, "tests/rank_script.py", NUM_DEVICES="2", FAULT="weights")
    out, _ = run.communicate(timeout=200)
    assert (run.returncode, len(rows_of(tmp_path))) == (1, 1), out
    (row,) = rows_of(tmp_path)
    assert (row["status"], row["throughput"]) == ("wrong_output", "")
    assert row["note"].endswith("after training, rank 0 has other weights than rank 1")


def test_a_rank_of_torchrun_that_is_killed_while_it_measures_is_named_in_one_row(tmp_path):
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "mlp_benchmark.py")
    run = start(tmp_path, *command, MAX_SECONDS="60", TARGET_CI="0.001")
    for line in run.stdout:
        if "building and checking" in line:
            break
    found = psutil.Process(run.pid).children(recursive=True)
    (second,) = [child for child in found if child.environ().get("RANK") == "1"]
    time.sleep(1)
    second.kill()
    out, _ = run.communicate(timeout=60)
    (row,) = rows_of(tmp_path)
    assert (row["status"], row["note"]) == ("crashed", "rank 1 of 2 ended without a word: killed, or crashed"), out
    assert all(has_ended(child.pid) for child in found)
