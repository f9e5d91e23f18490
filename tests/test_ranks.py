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
import torch

import best_settings
import measure_all
import noise_check
from bench import cli, run
from bench.frameworks import on_torch_ranks
from bench.host import meters, ranks
from bench.records import columns, report, results
from bench.settings import SettingError, read_settings
from bench.timing.measure import Job, MeasurementError, measure
from mlp_benchmark import mlp_workload
from tests.fakes import Clock, Device
from tests.test_launch import have_ended

TORCHRUN = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
}
SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.3", "MACHINE": "m", "USE_GPU": "0", "RUNS": "1"}


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


@pytest.mark.parametrize(
    ("start", "rank", "said"),
    [
        (lambda: run.run_child("mlp", mlp_workload), "5", "RANK='5'"),
        (best_settings.main, "5", "RANK='5'"),
        (best_settings.main, "3", "RANK"),
        (measure_all.main, "3", "RANK"),
        (noise_check.main, "3", "RANK"),
    ],
)
def test_a_mistake_of_torchruns_variables_comes_before_a_framework(monkeypatch, capsys, start, rank, said):
    monkeypatch.setattr(run, "open_bench", pytest.fail)
    for name, value in (TORCHRUN | {"RANK": rank}).items():
        monkeypatch.setenv(name, value)
    assert cli.run_script(start) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_single_rank_of_a_framework_without_ranks_is_a_mistake(monkeypatch):
    alone = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"), "1") | {
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    me = ranks.read_ranks(TORCHRUN | alone)
    monkeypatch.setenv("FRAMEWORK", "jax")
    with pytest.raises(SettingError, match=r"WORLD_SIZE=.1.*JAX"):
        run.as_rank("mlp", read_settings("mlp"), me)


def test_a_rank_of_torchrun_runs_one_combination_that_agrees_with_it(monkeypatch):
    me = ranks.read_ranks(TORCHRUN)
    monkeypatch.setenv("MODEL", "mlp-8")
    # torchrun sets OMP_NUM_THREADS=1, which would make the rate on one device look better in comparison.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert run.as_rank("mlp", read_settings("mlp"), me).num_devices == 4
    assert "OMP_NUM_THREADS" not in os.environ  # each rank gets its share of the cores
    for name, value in (("MODEL", "mlp-8,mlp-9"), ("RUNS", "2"), ("FRAMEWORK", "tf"), ("NUM_DEVICES", "2")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            with pytest.raises(SettingError, match=f"{name}.*WORLD_SIZE|WORLD_SIZE.*{name}|WORLD_SIZE='4'"):
                run.as_rank("mlp", read_settings("mlp"), me)
    monkeypatch.setenv("BATCH_SIZE", "auto")
    with pytest.raises(SettingError, match="BATCH_SIZE"):
        run.as_rank("mlp", read_settings("mlp"), ranks.Ranks(are_many=True))


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

    def read(self, output=None):
        return self.threads.share(self.rank, super().read(output))


def test_ranks_of_unlike_speed_take_the_same_steps_at_the_pace_of_the_slowest():
    threads, found = Threads(2), {}
    devices = [SharedDevice(threads, rank, work) for rank, work in enumerate((0.004, 0.010))]

    def run_rank(device):
        found[device.rank] = measure(Job(device, 2 * 8, 2, clock=device.read_clock))

    others = [threading.Thread(target=run_rank, args=(device,)) for device in devices]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert devices[0].steps == devices[1].steps
    assert found[0] == found[1]
    assert found[0].throughput == pytest.approx(16 / 0.010, rel=0.02)


class TwoRanks(ranks.Group):
    """A group whose other rank answers with its value, and with "x" if asked what it is like."""

    ranks = ranks.Ranks(0, 2, are_many=True)

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, (True, "x") if isinstance(value, tuple) else self.other]


def test_energy_is_the_sum_of_all_devices_and_blank_where_one_is_unknown():
    own = meters.Instruments(SimpleNamespace(power_scope="gpu board", joules=lambda: 7.0))
    assert own.of_all(TwoRanks(5.0), "cuda", "x").joules() == 12
    assert math.isnan(own.of_all(TwoRanks(math.nan), "cuda", "x").joules())
    assert meters.Instruments().of_all(TwoRanks(5.0), "cuda", "x").counter is None


@pytest.mark.parametrize(("likeness", "is_flagged"), [("x", False), ("y", True)])
def test_unlike_ranks_are_flagged(likeness, is_flagged):
    assert meters.Instruments().of_all(TwoRanks(0), "cpu", likeness).unlike == is_flagged


def test_ranks_must_have_the_same_weights_after_training():
    modules = [torch.nn.Linear(3, 2) for _ in range(2)]
    first, second = map(on_torch_ranks.hash_weights, modules)
    modules[1].load_state_dict(modules[0].state_dict())
    assert on_torch_ranks.hash_weights(modules[1]) == first != second
    session = SimpleNamespace(model=SimpleNamespace(hash_weights=lambda: first))
    run.prove_equal_weights(session, TwoRanks(first))
    with pytest.raises(MeasurementError, match="rank 1") as error:
        run.prove_equal_weights(session, TwoRanks(second))
    assert error.value.status == "wrong_output"


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
    assert " ".join(one.split()) == "1 device 100 images/s 100 per device efficiency 1.000"
    assert " ".join(two.split()) == "2 devices 170 images/s 85 per device efficiency 0.850 (0.655 to 1.100)"
    assert report.describe_scaling(rows[:1]) == ""


# Real ranks, by gloo.


def start(tmp_path, *command, **environ):
    environ = os.environ | SMALL | {"RESULTS_DIR": str(tmp_path)} | environ
    return subprocess.Popen(
        [sys.executable, *command], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def rows_of(tmp_path):
    return results.read(tmp_path / "m.csv")


def test_two_ranks_train_together(tmp_path):
    process = start(tmp_path, "mlp_benchmark.py", NUM_DEVICES="2", MAX_SECONDS="0.1")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    rows = rows_of(tmp_path)
    assert [row["phase"] for row in rows] == ["training", "forward", "backward", "optimizer"]
    same = {(row["world_size"], row["nodes"], row["status"], row["batch_size"]) for row in rows}
    assert same == {("2", "1", "ok", "32")}
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert "2 devices" in out
    assert out.count("training, device: building") == 1  # only rank 0 logs


def test_a_fault_of_one_rank_is_one_row(tmp_path):
    process = start(tmp_path, "tests/rank_script.py", NUM_DEVICES="2")
    out, _ = process.communicate(timeout=300)
    (row,) = rows_of(tmp_path)
    assert (process.returncode, row["status"], row["throughput"], row["world_size"]) == (1, "out_of_memory", "", "2")
    assert "rank 1 of 2: unable to allocate 9 TiB" in row["note"]
    assert row["framework_version"]
    assert "Traceback" not in out


def start_long(tmp_path, *command, **environ):
    """Start a run that would take a minute; returns once it builds its model."""
    process = start(tmp_path, *command, MAX_SECONDS="60", TARGET_CI="0.001", **environ)
    assert any("building and checking" in line for line in process.stdout)
    return process


def test_the_users_torchrun_has_a_row_of_rank_0_when_another_rank_is_killed(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start_long(tmp_path, *torchrun, "mlp_benchmark.py")
    found = psutil.Process(process.pid).children(recursive=True)
    (second,) = [child for child in found if child.environ().get("RANK") == "1"]
    second.kill()
    out, _ = process.communicate(timeout=300)
    (row,) = rows_of(tmp_path)
    assert row["status"] in ("failed", "crashed"), out
    assert "torchrun" in row["note"]
    assert f"exitcode  : -9 (pid: {second.pid})" in out  # torchrun's own report names it
    assert have_ended([child.pid for child in found])


def test_ctrl_c_on_several_ranks_keeps_what_was_measured(tmp_path):
    process = start_long(tmp_path, "mlp_benchmark.py", NUM_DEVICES="2")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    stored = rows_of(tmp_path) if (tmp_path / "m.csv").exists() else []
    assert ("interrupted: " in out) != (len(stored) == 1), out


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_meet_the_others_says_so(monkeypatch, capsys, rank):
    # Rank 0 finds its port taken. Rank 1 finds nobody there, and Ctrl-C ends its waiting.
    monkeypatch.setattr(on_torch_ranks, "QUIET_SECONDS", 0)
    with socket.socket() as taken:
        taken.bind(("", 0))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        if rank == 0:
            taken.listen()
            with pytest.raises(SettingError, match="free MASTER_PORT"):
                on_torch_ranks.open_store(ranks.Ranks(0, 2))
        else:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                on_torch_ranks.open_store(ranks.Ranks(1, 2))
            said = capsys.readouterr().err
            assert "waits for rank 0" in said
            assert "MASTER_PORT" in said


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
    with monkeypatch.context() as other:  # all ranks have as many as the one with the fewest
        other.setattr(group, "gather", lambda value: [value, value if isinstance(value, tuple) else 1])
        assert joined(cores) == 1
    monkeypatch.setenv("NUM_WORKERS", "8")
    assert joined(8) == 4  # of the whole machine


def test_a_peer_that_has_ended_leaves_the_machines_workers_divided(monkeypatch):
    def find(pid=0):
        if pid:
            raise ProcessLookupError(3, "No such process")
        return {0, 1, 2, 3}

    monkeypatch.setattr(ranks, "usable_cpus", find)
    assert ranks.share_workers(4, ranks.Ranks(0, 2, 0, 2, 1, True), (123,)) == 2
