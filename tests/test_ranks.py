"""Several ranks: they train alike, and the end of one ends the others with one row."""

import os
import subprocess
import sys
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import image_benchmark
from bench import child, frameworks, run
from bench.host import meters, ranks
from bench.settings import read_runs
from bench.timing import MeasurementError
from tests.rows import read_rows

SMALL = {"MODEL": "mlp-16", "DATA": "synthetic", "MAX_SECONDS": "0.1", "MACHINE": "m", "USE_GPU": "0", "RUNS": "1"}
SMALL |= {"NUM_DEVICES": "2", "PHASE": "training,forward,backward"}
CPU = frameworks.Device("cpu", None, "2.9", 2)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, None),
        ({"NUM_DEVICES": "all"}, {"--standalone", "--nproc-per-node=gpu"}),
        ({"PET_NNODES": "2", "NUM_DEVICES": "8"}, {"--nproc-per-node=8"}),
    ],
)
def test_ranks_are_started_by_torchrun_on_one_machine_or_several(monkeypatch, environ, words):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (one,) = read_runs("image")
    command = run.make_child(one, None).command
    assert ("torch.distributed.run" in command) == (words is not None)
    assert {"--standalone", "--nproc-per-node=gpu", "--nproc-per-node=8"} & {*command} == (words or set())
    assert run.count_processes(one) == (1 if "PET_NNODES" in environ else 3)


def two_ranks(other):
    """Return a group whose other rank answers with a value of its own."""
    return SimpleNamespace(ranks=ranks.Ranks(1, 4, 1, 2, are_many=True), gather=lambda value: [value, other])


@pytest.mark.parametrize(("free", "fitting"), [(2**26, 0), (2**31, 2), (2**40, 8)])
def test_workers_share_their_batches(monkeypatch, tmp_path, caplog, free, fitting):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(image_benchmark.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(image_benchmark.resources, "usable_cores", lambda: 8)
    workload = SimpleNamespace(batch_bytes=2**28)
    settings = read_runs("image", {})[0].settings
    assert image_benchmark.choose_workers(settings, workload, ranks.Group(), tmp_path) == fitting
    assert ("--shm-size=7g" in caplog.text, "64 MiB" in caplog.text) == (fitting < 8, fitting == 0)


def test_a_launcher_that_does_not_tell_the_local_rank_starts_one_on_each_node():
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0"}
    assert ranks.read_ranks(environ) == ranks.Ranks(1, 2, 0, 1, nodes=2, are_many=True)


def test_ranks_must_have_the_same_weights_after_training():
    session = SimpleNamespace(check_last_output=lambda: None, matrices=lambda: [("fc", np.ones(3))])
    sums = [zlib.crc32(np.ones(3).tobytes())]
    measurer = child.Measurer(None, None, CPU, meters.Instruments(), two_ranks(sums), print, None)
    measurer.check_last_step(session, {}, print)
    with pytest.raises(MeasurementError, match=r"\[1\]") as error:
        replace(measurer, group=two_ranks([1])).check_last_step(session, {}, print)
    assert error.value.status == "wrong_output"


# mlp_benchmark.py with rank 1 out of memory before a backward pass of PHASE=backward.
SCRIPT = """
import os, sys
from bench import run
from bench.frameworks import session
from mlp_benchmark import mlp_workload

def fail(self):
    raise MemoryError("unable to allocate 9 TiB")

if os.environ.get("RANK") == "1":
    session.ModelSession.run_before = fail
run.SCRIPTS["mlp"] = os.path.abspath(__file__)
sys.exit(run.main("mlp", mlp_workload))
"""


def test_the_failure_of_one_of_two_ranks_ends_both(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = os.environ | SMALL | {"RESULTS_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script], env=environ, text=True, capture_output=True, timeout=300)
    out, rows = done.stdout + done.stderr, read_rows(tmp_path / "m.csv")
    assert [row["phase"] for row in rows] == ["training", "forward", "backward"], out
    assert [row["status"] for row in rows[:2]] == ["ok", "ok"]
    assert {(row["world_size"], row["nodes"], row["batch_size"]) for row in rows} == {("2", "1", "32")}
    steps = int(rows[0]["windows"]) * int(rows[0]["steps_per_window"])
    assert int(rows[0]["items"]) == 2 * 32 * steps
    assert rows[2]["status"] in ("failed", "crashed")  # rank 0 notices it, or is ended before it does
    assert "rank 1: out_of_memory: unable to allocate 9 TiB" in out
