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
from bench import cli, run
from bench.host import meters, ranks
from bench.records import columns, report, results
from bench.settings import SettingError, read_settings
from bench.timing.measure import Job, MeasurementError, measure
from mlp_benchmark import mlp_workload
from tests.fakes import Clock, Device

TORCHRUN = {
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
}
SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.3", "MACHINE": "m", "USE_GPU": "0", "RUNS": "1"}


def test_torchrun_says_which_rank_this_is():
    me = ranks.read_ranks(TORCHRUN)
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
    """A group whose other rank answers with a value of its own."""

    ranks = ranks.Ranks(0, 2, 0, 2, 1, True)

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, self.other]


def test_ranks_must_have_the_same_weights_after_training():
    session = SimpleNamespace(checksum=lambda: (1.0, 2.0))
    run.prove_equal_weights(session, TwoRanks((1.0, 2.0)))
    with pytest.raises(MeasurementError, match="rank 1") as error:
        run.prove_equal_weights(session, TwoRanks((1.0, 2.0000001)))
    assert error.value.status == "wrong_output"


@pytest.mark.parametrize(("others", "workers"), [(4, 4), (3, 3)])  # as many as the rank with the fewest
def test_ranks_divide_the_workers_of_their_machine_and_have_no_energy(monkeypatch, others, workers):
    monkeypatch.setenv("NUM_WORKERS", "8")
    device = SimpleNamespace(device="cpu")
    framework = SimpleNamespace(join_ranks=lambda me, device: TwoRanks(others))
    bench = run.Bench(read_settings("image"), None, framework, device, meters.Instruments("a counter"))
    joined = run.join_ranks(bench, TwoRanks.ranks)
    assert (joined.settings.num_workers, joined.instruments.counter) == (workers, None)


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
    assert out.count("training, device: building") == 1  # only rank 0 logs


def test_a_rank_that_fails_is_one_row(tmp_path):
    process = start(tmp_path, "tests/rank_script.py", NUM_DEVICES="2")
    out, _ = process.communicate(timeout=300)
    (row,) = rows_of(tmp_path)
    assert (process.returncode, row["status"], row["throughput"], row["world_size"]) == (1, "failed", "", "2")
    assert "a rank failed" in row["note"]
    assert "rank 1 of 2: out_of_memory: unable to allocate 9 TiB" in out


def test_ctrl_c_on_several_ranks_keeps_what_was_measured(tmp_path):
    process = start(tmp_path, "mlp_benchmark.py", NUM_DEVICES="2", MAX_SECONDS="60", TARGET_CI="0.001")
    assert any("building and checking" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130, out
    stored = rows_of(tmp_path) if (tmp_path / "m.csv").exists() else []
    assert {row["status"] for row in stored} <= {"interrupted"}
