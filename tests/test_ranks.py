"""Several ranks: they decide alike, and the end of one ends the others with one row."""

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import best_settings
import measure_all
import noise_check
from bench import cli, frameworks, launch, run
from bench.host import meters, ranks
from bench.records import results
from bench.settings import SettingError
from bench.timing import MeasurementError
from bench.timing.measure import Job, measure
from mlp_benchmark import mlp_workload
from tests.fakes import Clock, Device

TORCHRUN = {
    **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
}
SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.1", "MACHINE": "m", "USE_GPU": "0", "RUNS": "1"}


@pytest.fixture
def as_rank(monkeypatch):
    """Set the variables of a rank, and others; without a framework."""

    def call(**environ):
        monkeypatch.setattr(frameworks, "load", pytest.fail)
        for name, value in (TORCHRUN | environ).items():
            monkeypatch.setenv(name, value)

    return call


def test_torchrun_says_which_rank_this_is():
    me = ranks.read_ranks(TORCHRUN | {"RANK": "3"})
    assert (me.rank, me.world_size, me.local_rank, me.nodes, me.are_many) == (3, 4, 1, 2, True)
    assert (me.share(7), me.share(1)) == (3, 1)
    assert not ranks.read_ranks({"WORLD_SIZE": "4"}).are_many  # another program's variable


@pytest.mark.parametrize(
    "change", [{"LOCAL_RANK": ""}, {"LOCAL_RANK": "2"}, {"LOCAL_WORLD_SIZE": "0"}, {"WORLD_SIZE": "0"}, {"RANK": "-1"}]
)
def test_impossible_variables_of_torchrun_are_named(change):
    ((name, value),) = change.items()
    with pytest.raises(SettingError, match=f"{name}={value!r} "):
        ranks.read_ranks(TORCHRUN | change)


@pytest.mark.parametrize("start", [best_settings.main, measure_all.main, noise_check.main])
def test_a_command_that_starts_its_own_runs_refuses_torchrun(as_rank, start):
    as_rank()
    with pytest.raises(SettingError, match="RANK"):
        start()


@pytest.mark.parametrize(
    "wrong",
    [{"MODEL": "mlp-8,mlp-9"}, {"RUNS": "2"}, {"BATCH_SIZE": "auto"}, {"EPOCHS": "1"}, {"FRAMEWORK": "jax"}],
)
def test_ranks_of_torchrun_measure_one_combination_once(as_rank, capsys, wrong):
    as_rank(**{"MODEL": "mlp-8"} | wrong)
    assert launch.main("mlp", mlp_workload) == cli.MISTAKE
    assert "NUM_DEVICES" in capsys.readouterr().err


class TwoRanks(ranks.Group):
    """A group whose other rank answers with a value of its own."""

    ranks = ranks.read_ranks(TORCHRUN)

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, self.other]


def test_ranks_share_their_machine_and_only_the_first_one_writes(as_rank, monkeypatch):
    def measure_work(bench, _):
        bench.emit({"status": "ok"})
        assert (bench.settings.num_workers, bench.instruments.counter) == (3, None)  # the fewest of any rank
        return 0

    as_rank(OMP_NUM_THREADS="1", NUM_WORKERS="4")  # torchrun's default of threads: one core of each rank's share
    found = frameworks.Device("cpu", None, "2.9", 1)
    framework = SimpleNamespace(find_device=lambda settings: found, join_ranks=lambda me, device: TwoRanks(3))
    monkeypatch.setattr(frameworks, "load", lambda name: framework)
    monkeypatch.setattr(meters, "open_instruments", pytest.fail)
    for rank, count in (("1", 0), ("0", 1)):
        monkeypatch.setenv("RANK", rank)
        lines = []
        assert run.measure_settings("image", None, measure_work, run.Task(), lines.append) == 0
        assert len(lines) == count
    assert "OMP_NUM_THREADS" not in os.environ


def test_ranks_must_have_the_same_weights_after_training():
    run.refuse_unequal_weights([(1.0, 2.0), (1.0, 2.0)])
    with pytest.raises(MeasurementError, match=r"\[1\]") as error:
        run.refuse_unequal_weights([(1.0, 2.0), (1.0, 2.0000001)])
    assert error.value.status == "wrong_output"


class Threads:
    """Ranks as threads, which meet as processes do."""

    def __init__(self, size):
        self.meeting, self.value = threading.Barrier(size, timeout=20), None

    def share(self, rank, value):
        """Return rank 0's value."""
        if rank == 0:
            self.value = value
        self.meeting.wait()
        value = self.value
        self.meeting.wait()
        return value


class SharedDevice(Device):
    """A rank's device; its barrier lasts until the slowest one is ready, and it reads what rank 0 reads."""

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


# Real ranks, by gloo


def start(tmp_path, *command, **environ):
    environ = os.environ | SMALL | {"RESULTS_DIR": str(tmp_path)} | environ
    return subprocess.Popen(
        [sys.executable, *command], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.parametrize("starts_torchrun", [False, True])
def test_two_ranks_train_together(tmp_path, starts_torchrun):
    command = [*launch.torchrun(2), "mlp_benchmark.py"] if starts_torchrun else ["mlp_benchmark.py"]
    process = start(tmp_path, *command, **({} if starts_torchrun else {"NUM_DEVICES": "2"}))
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    rows = results.read(tmp_path / "m.csv")
    assert [row["phase"] for row in rows] == ["training", "forward", "backward", "optimizer"]
    same = {(row["world_size"], row["nodes"], row["status"], row["batch_size"]) for row in rows}
    assert same == {("2", "1", "ok", "32")}
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert out.count("added to ") == 1


def test_a_rank_that_fails_is_one_row(tmp_path):
    process = start(tmp_path, "tests/rank_script.py", NUM_DEVICES="2")
    out, _ = process.communicate(timeout=300)
    (row,) = results.read(tmp_path / "m.csv")
    assert (process.returncode, row["throughput"], row["world_size"]) == (1, "", "2")
    assert row["status"] in ("failed", "crashed")  # rank 0 notices it, or is ended before it does
    assert "rank 1: out_of_memory: unable to allocate 9 TiB" in out


def test_ctrl_c_on_several_ranks_keeps_what_was_measured(tmp_path):
    process = start(tmp_path, "mlp_benchmark.py", NUM_DEVICES="2", NUM_IMAGES="1000000000")
    assert any("then measuring" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    stored = results.read(tmp_path / "m.csv") if (tmp_path / "m.csv").exists() else []
    assert {row["status"] for row in stored} <= {"interrupted"}
