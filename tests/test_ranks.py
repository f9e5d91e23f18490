"""Several ranks: they decide alike, and the end of one ends the others with one row that names it."""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from bench.host import meters, ranks
from bench.records import columns, report, results
from bench.records.verdict import bus_bandwidth
from bench.run import as_rank
from bench.settings import SettingError, read_settings
from bench.timing.measure import Job, Limits, measure
from tests.fakes import Clock, Device
from tests.test_launch import have_ended

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


@pytest.mark.parametrize(
    "change",
    [
        {"LOCAL_RANK": None},
        {"LOCAL_RANK": "2"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"GROUP_WORLD_SIZE": "x"},
        {"WORLD_SIZE": "0"},
        {"MASTER_PORT": "999999"},
        {"RANK": "4"},
        {"RANK": "-1"},
    ],
)
def test_impossible_variables_of_torchrun_name_the_variable(change):
    ((name, value),) = change.items()
    environ = {key: text for key, text in (TORCHRUN | change).items() if text is not None}
    with pytest.raises(SettingError, match=f"^{name}={value or ''!r} "):
        ranks.read_ranks(environ)


def test_a_mistake_of_torchruns_variables_comes_before_a_framework(tmp_path):
    """A broken torch would be a traceback."""
    (tmp_path / "torch.py").write_text("raise RuntimeError('imported')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    for script in ("mlp_benchmark.py", "best_settings.py"):
        run = start(tmp_path, script, **TORCHRUN | {"RANK": "5", "PYTHONPATH": path})
        out, _ = run.communicate(timeout=300)
        assert (run.returncode, len(out.splitlines())) == (2, 1)
        assert "RANK='5'" in out


def test_make_best_refuses_to_be_a_rank(tmp_path):
    run = start(tmp_path, "best_settings.py", **TORCHRUN)
    out, _ = run.communicate(timeout=300)
    assert (run.returncode, len(out.splitlines())) == (2, 1)
    assert "RANK" in out


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
    me = ranks.read_ranks(TORCHRUN)
    monkeypatch.setenv("MODEL", "mlp-8")
    assert as_rank("mlp", read_settings("mlp"), me).num_devices == 4
    for name, value in (("MODEL", "mlp-8,mlp-9"), ("RUNS", "2"), ("FRAMEWORK", "tf"), ("NUM_DEVICES", "2")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            with pytest.raises(SettingError, match=f"{name}.*WORLD_SIZE|WORLD_SIZE.*{name}|WORLD_SIZE='4'"):
                as_rank("mlp", read_settings("mlp"), me)
    one = ranks.read_ranks(
        TORCHRUN
        | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        | {"GROUP_WORLD_SIZE": "1"}
    )
    monkeypatch.setenv("BATCH_SIZE", "auto")
    with pytest.raises(SettingError, match="BATCH_SIZE"):
        as_rank("mlp", read_settings("mlp"), one)


def test_each_rank_gets_its_share_of_the_cores(monkeypatch):
    """torchrun sets OMP_NUM_THREADS=1, which would make the rate on one device look better in comparison."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MODEL", "mlp-8")
    as_rank("mlp", read_settings("mlp"), ranks.read_ranks(TORCHRUN))
    assert "OMP_NUM_THREADS" not in os.environ


def failed(status, seconds):
    return {"exit_status": status, "seconds": seconds, "report": {}}


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        ({"0": failed(1, 2.0), "1": failed(-9, 3)}, 1),  # rank 0 reports that it lost rank 1, before torchrun notices
        ({"0": failed(1, 2.0), "1": failed(1, 1.5)}, 1),
        ({"0": failed(130, 1), "1": failed(-15, 1), "2": failed(3, 2)}, 2),
        ({"0": failed(-15, 1), "1": failed(-6, 1)}, 1),
        ({"0": failed(-9, 32), "1": failed(1, 2.0)}, 1),  # torchrun killed rank 0, which ignored SIGTERM
    ],
)
def test_the_rank_that_failed_first_is_the_one_that_the_others_lost(failures, rank):
    assert ranks.find_first_failure(failures)[0] == rank


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
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    rows = rows_of(tmp_path)
    assert [row["phase"] for row in rows] == ["training", "forward", "backward", "optimizer"]
    assert {(row["world_size"], row["nodes"], row["status"], row["batch_size"]) for row in rows} == {
        ("2", "1", "ok", "32")
    }
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert "mlp-16, training, float32, batch 32, synthetic images, sgd, 2 devices" in out
    assert out.count("training, device: building") == 1  # only rank 0 logs


@pytest.mark.parametrize(
    ("fault", "status", "note"), [("weights", "wrong_output", "rank 1"), ("memory", "out_of_memory", "rank 1 of 2: ")]
)
def test_a_fault_of_one_rank_is_one_row(tmp_path, fault, status, note):
    run = start(tmp_path, "tests/rank_script.py", NUM_DEVICES="2", FAULT=fault)
    out, _ = run.communicate(timeout=300)
    assert (run.returncode, len(rows_of(tmp_path))) == (1, 1), out
    (row,) = rows_of(tmp_path)
    assert (row["status"], row["throughput"], row["world_size"]) == (status, "", "2")
    assert note in row["note"]
    assert row["framework_version"]
    assert "Traceback" not in out


def test_the_users_torchrun_has_a_row_of_rank_0_when_another_rank_is_killed(tmp_path):
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "mlp_benchmark.py")
    run = start(tmp_path, *command, MAX_SECONDS="60", TARGET_CI="0.001")
    for line in run.stdout:
        if "building and checking" in line:
            break
    found = psutil.Process(run.pid).children(recursive=True)
    (second,) = [child for child in found if child.environ().get("RANK") == "1"]
    second.kill()
    out, _ = run.communicate(timeout=300)
    (row,) = rows_of(tmp_path)
    assert row["status"] in ("failed", "crashed"), out
    assert "torchrun" in row["note"]
    assert f"exitcode  : -9 (pid: {second.pid})" in out  # torchrun's own report names it
    assert have_ended([child.pid for child in found])


def test_ctrl_c_on_several_ranks_keeps_what_was_measured(tmp_path):
    run = start(tmp_path, "mlp_benchmark.py", NUM_DEVICES="2", MAX_SECONDS="60", TARGET_CI="0.001", MODEL="mlp-8")
    for line in run.stdout:
        if "building and checking" in line:
            break
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 130, out
    stored = rows_of(tmp_path) if (tmp_path / "m.csv").exists() else []
    assert ("interrupted: " in out) != (len(stored) == 1), out


def by_hand(tmp_path, rank, port):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}
    return start(tmp_path, "mlp_benchmark.py", **place, **sizes)


def test_rank_1_without_a_rank_0_says_what_it_waits_for_and_hears_ctrl_c(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        run = by_hand(tmp_path, "1", taken.getsockname()[1])
        line = run.stdout.readline()
        assert "waits for rank 0" in line
        assert "MASTER_PORT" in line
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=300)
    assert run.returncode == 130


def test_a_taken_port_on_rank_0_is_named(tmp_path):
    with socket.create_server(("", 0)) as taken:
        run = by_hand(tmp_path, "0", taken.getsockname()[1])
        out, _ = run.communicate(timeout=300)
    assert run.returncode == 2
    assert "free MASTER_PORT" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("cpus", "cores", "workers"),
    [
        ([{0, 1, 2, 3}] * 2, 4, 2),  # torchrun: both ranks may use all CPUs
        ([{0, 1, 2, 3}, {4, 5, 6, 7}], 4, 4),  # Slurm has bound each rank
        ([set(range(64)), set(range(64, 128))], 32, 16),  # the default of two ranks, at most 16 for each
        ([{0}, {0}], 1, 1),
    ],
)
def test_workers_are_divided_among_the_ranks_that_share_cpus(monkeypatch, cpus, cores, workers):
    from bench import run

    monkeypatch.setattr(ranks, "usable_cpus", lambda pid=0: cpus[pid], raising=False)
    group = ranks.Group()
    group.peers = (1,)
    device = SimpleNamespace(device="cpu", device_name="x", framework_version="1")
    framework = SimpleNamespace(join_ranks=lambda me, device: group)
    host = SimpleNamespace(python="3", driver=None, commit=None)
    me = ranks.Ranks(0, 2, 0, 2, 1, True)

    def joined(count):
        settings = replace(read_settings("image"), num_workers=count)
        bench = run.Bench(settings, host, framework, device, meters.Instruments())
        return run.join_ranks(bench, me).settings.num_workers

    assert joined(cores) == workers
    assert joined(0) == 0
    monkeypatch.setenv("NUM_WORKERS", "8")
    assert joined(8) == 4  # of the whole machine


def test_a_peer_that_has_ended_leaves_the_machines_workers_divided(monkeypatch):
    def find(pid=0):
        if pid:
            raise ProcessLookupError(3, "No such process")
        return {0, 1, 2, 3}

    monkeypatch.setattr(ranks, "usable_cpus", find)
    assert ranks.share_workers(4, ranks.Ranks(0, 2, 0, 2, 1, True), (123,)) == 2
