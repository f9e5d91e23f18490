"""Several ranks: they train alike, and the end of one ends the others with one row."""

import os
import subprocess
import sys
import zlib
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bench import child, frameworks, run
from bench.host import meters, ranks
from bench.records.rows import work_cells
from bench.timing import MeasurementError
from image_benchmark import image_workload
from tests.rows import read_rows

TORCHRUN = {
    **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "a", "MASTER_PORT": "29400"},
}
SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.1", "MACHINE": "m", "USE_GPU": "0", "RUNS": "1"}


def test_torchrun_says_which_rank_this_is():
    me = ranks.read_ranks(TORCHRUN | {"RANK": "3"})
    assert (me.rank, me.world_size, me.local_rank, me.nodes, me.are_many) == (3, 4, 1, 2, True)
    assert (me.share(7), me.share(1)) == (3, 1)
    assert not ranks.read_ranks({"WORLD_SIZE": "4"}).are_many  # another program's variable


@pytest.mark.parametrize(
    ("command", "environ", "named"),
    [
        ("image", {"LOCAL_RANK": ""}, "LOCAL_RANK=''"),  # torchrun did not start it
        ("tflops", {}, "are torchrun's, and `make tflops`"),
        ("image", {"FRAMEWORK": "jax", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, "are torchrun's, and `make image`"),
    ],
)
def test_what_is_no_rank_and_what_has_no_ranks_is_refused(monkeypatch, capsys, command, environ, named):
    for name, value in (TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0"} | environ).items():
        monkeypatch.setenv(name, value)
    assert run.benchmark(command, image_workload) == 2
    assert named in capsys.readouterr().err


class TwoRanks(ranks.Group):
    """A group whose other rank answers with a value of its own."""

    ranks = ranks.read_ranks(TORCHRUN)

    def __init__(self, other, me=ranks):
        self.other, self.ranks = other, me

    def gather(self, value):
        return [value, self.other]


def test_ranks_of_torchrun_share_their_machine(monkeypatch, tmp_path):
    def measure(measurer, describe):
        settings = measurer.settings
        workers = child.choose_workers(settings, describe(settings), measurer.group)
        assert (workers, measurer.instruments.counter) == (3, None)  # the fewest of any rank
        measurer.write(work_cells(settings, describe(settings), "device") | {"status": "failed"})

    environ = {"NUM_WORKERS": "4", "MACHINE": "m", "RESULTS_DIR": str(tmp_path)}
    # torchrun's default of threads: one core of each rank's share.
    for name, value in (TORCHRUN | environ | {"OMP_NUM_THREADS": "1"}).items():
        monkeypatch.setenv(name, value)
    found = frameworks.Device("cpu", None, "2.9", 1)
    framework = SimpleNamespace(
        find_device=lambda settings: found, join_ranks=lambda me, device: nullcontext(TwoRanks(3, me))
    )
    monkeypatch.setattr(frameworks, "load", lambda name: framework)
    monkeypatch.setattr(meters, "open_instruments", pytest.fail)
    for rank in "10":
        assert not (tmp_path / "m.csv").exists()
        monkeypatch.setenv("RANK", rank)
        assert run.benchmark("image", image_workload, measure) == (rank == "0")
    assert [row["world_size"] for row in read_rows(tmp_path / "m.csv")] == ["4"]
    assert "OMP_NUM_THREADS" not in os.environ


def test_ranks_must_have_the_same_weights_after_training():
    context = SimpleNamespace(check_switches=lambda threads: None)
    session = SimpleNamespace(copy_items=lambda: None, matrices=lambda: [("fc", np.ones(3))], context=context)
    device = frameworks.Device("cpu", None, "1", 2)
    sums = [zlib.crc32(np.ones(3).tobytes())]
    measurer = child.Measurer(None, None, device, meters.Instruments(), TwoRanks(sums), print, None)
    measurer.check_last_step(session)
    with pytest.raises(MeasurementError, match=r"\[1\]") as error:
        replace(measurer, group=TwoRanks([1])).check_last_step(session)
    assert error.value.status == "wrong_output"


# mlp_benchmark.py with rank 1 out of memory before a backward pass of PHASE=backward.
SCRIPT = """
import os, sys
sys.path.insert(0, os.getcwd())
from bench import run
from bench.frameworks import session
from mlp_benchmark import mlp_workload

def fail(self):
    raise MemoryError("unable to allocate 9 TiB")

if os.environ.get("RANK") == "1":
    session.Session.run_before = fail
run.SCRIPTS["mlp"] = os.path.abspath(__file__)
sys.exit(run.benchmark("mlp", mlp_workload))
"""


def test_the_failure_of_one_of_two_ranks_ends_both(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = (
        os.environ | SMALL | {"RESULTS_DIR": str(tmp_path), "NUM_DEVICES": "2", "PHASE": "training,forward,backward"}
    )
    done = subprocess.run([sys.executable, script], env=environ, text=True, capture_output=True, timeout=300)
    out, rows = done.stdout + done.stderr, read_rows(tmp_path / "m.csv")
    assert [row["phase"] for row in rows] == ["training", "forward", "backward"], out
    assert [row["status"] for row in rows[:2]] == ["ok", "ok"]
    assert {(row["world_size"], row["nodes"], row["batch_size"]) for row in rows} == {("2", "1", "32")}
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert rows[2]["status"] in ("failed", "crashed")  # rank 0 notices it, or is ended before it does
    assert "rank 1: out_of_memory: unable to allocate 9 TiB" in out
